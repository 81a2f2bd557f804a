"""A learner's file is run in a process of its own, with limits of time and memory.

Nothing is imported from the current folder, nor from the learner's. What the file prints is discarded. A file that
never ends or asks for too much memory is a report that says so.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from minigpt.grading.report import Report
from minigpt.grading.targets import find_target
from minigpt.system.errors import UserError
from minigpt.system.process import JsonProcess

LOADING, CHECKING = 5, 10  # seconds of computing that a file may take to load, and a check
MEMORY = 2 << 30  # bytes beyond what torch itself takes
STARTING, PATIENCE = 120.0, 6  # seconds of waiting for the imports; how much longer than computing waiting may take
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def grade(path: Path, target: str) -> Report:
    """The report on a learner's file. Raises UserError for an unknown target or no such file."""
    find_target(target)
    path = path.resolve()
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    token = secrets.token_hex(16)
    statement = "from minigpt.grading.child import main; main()"
    with JsonProcess(statement, str(path), target, quiet=True, variables={"OMP_NUM_THREADS": "1"}) as process:
        process.send({"token": token})
        stage = "start"
        for following, seconds in (("load", STARTING), ("check", LOADING * PATIENCE), ("end", CHECKING * PATIENCE)):
            answer = receive(process, seconds)
            if answer is None or answer.get("token") != token:
                return ended(path, target, stage, process)
            if "report" in answer:
                return Report.from_json(answer["report"])
            stage = following
    raise AssertionError("the process sends a report last")


def receive(process: JsonProcess, seconds: float) -> dict[str, Any] | None:
    """The next message; None when the process ended, or was killed because none came in time."""
    timer = Timer(seconds, process.process.kill)
    timer.start()
    try:
        answer = process.receive()
    except ValueError:  # not JSON: the learner's code wrote there
        return None
    finally:
        timer.cancel()
    return answer if isinstance(answer, dict) else None


def ended(path: Path, target: str, stage: str, process: JsonProcess) -> Report:
    """The report on a file whose process ended before it could be checked."""
    process.process.kill()
    code = process.process.wait()
    slow = code in (-signal.SIGKILL, -getattr(signal, "SIGXCPU", 0))
    if stage == "load" and slow:
        why = (
            f"the file was still running after {LOADING} seconds: what trains or reads data at module level belongs "
            'under `if __name__ == "__main__":`'
        )
    elif slow:
        why = f"the check did not end within {CHECKING} seconds: is there a loop that never ends?"
    else:
        why = f"the process ended with code {code} while the file was {'loaded' if stage == 'load' else 'checked'}"
    return Report("cannot tell", target, str(path), [why], how=["run in a process of its own"])


def main() -> None:
    """The process: read the token, run the file, check what it offers, write the report."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what the file prints

    def send(**message: Any) -> None:
        out.write(json.dumps({"token": token, **message}) + "\n")
        out.flush()

    token = json.loads(sys.stdin.readline())["token"]
    path, target = Path(sys.argv[1]), sys.argv[2]
    from minigpt.grading.grade import grade_answer
    from minigpt.grading.load import find_answer, run_file

    limit_memory()
    send(stage="load")
    limit_time(LOADING)
    try:
        names = run_file(path)
        send(stage="check")
        limit_time(CHECKING)
        wanted = find_target(target)
        report = grade_answer(find_answer(names, wanted, path), wanted)
    except UserError as error:
        report = Report("cannot tell", target, str(path), [str(error)])
    except BaseException as error:
        report = Report("cannot tell", target, str(path), [what_it_raised(error, path)])
    send(report=report.to_json())
    os._exit(0)  # whatever threads and exit handlers the file left behind


def what_it_raised(error: BaseException, path: Path) -> str:
    """Why a file could not be loaded, or built what is checked."""
    if isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY):
        return f"it asks for more than {MEMORY >> 30} GB of memory"
    text = " ".join(str(error).split())[:300]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, text = [error.lineno], error.msg
    where = f"line {lines[-1]}: " if lines else ""
    return f"the file cannot be loaded: {where}{type(error).__name__}: {text}"


def limit_time(seconds: int) -> None:
    """End this process after so many more seconds of computing. On Windows only the waiting is limited."""
    with suppress(ImportError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 1, most))


def limit_memory() -> None:
    """Refuse this process more than MEMORY beyond what it has now; where /proc is missing, nothing is limited."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, most))
