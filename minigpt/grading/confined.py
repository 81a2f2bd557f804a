"""Runs learners' files in processes of their own, with limits on time and memory.

A server imports torch once and forks for each file. The fork works on a copy of the learner's folder; it prints
nothing, reads nothing from stdin, starts no process and changes no file outside the copy. When the check is over, its
whole process group is killed. Where there is no fork (Windows), a server is started for each file.

This stops accidents and pranks. It is not a sandbox for untrusted code: the file is Python and runs with your rights.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from minigpt.attention import Attention
from minigpt.grading.clock import SECONDS, Clock
from minigpt.grading.continued import check_continued
from minigpt.grading.grade import grade_answer
from minigpt.grading.load import find_answer, run_file
from minigpt.grading.report import Report, Verdict
from minigpt.grading.targets import find_target
from minigpt.system.errors import UserError
from minigpt.system.folder import open_plain, read_file
from minigpt.system.process import NO_MORE, JsonProcess

LONGEST_ANSWER = 1_000_000  # bytes
MOST_FILES, LARGEST_FILE = 200, 5_000_000  # the most files copied beside the checked one; bytes of each
SERVE = "from minigpt.grading import confined; confined.serve()"
FORKS = hasattr(os, "fork")
NO_MEMORY = re.compile("MemoryError|can't allocate memory|out of memory", re.IGNORECASE)
STARTS = {"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system",
          "subprocess.Popen", "pty.spawn"}  # fmt: skip
SENDS = {"os.kill", "os.killpg", "signal.pthread_kill", "socket.connect", "socket.bind", "socket.sendto"}
CHANGES = {"os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
           "os.truncate", "os.utime", "os.setxattr", "shutil.move", "shutil.rmtree"}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Answer = dict[str, Any]
Request = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The limits for one file."""

    processor_seconds: int = SECONDS
    """Processor time of its imports and the check."""
    seconds: int = 60
    """Elapsed time, for a file that waits: long, since other programs may use the processor."""
    memory: int = 2**30
    """Bytes, in addition to the memory of torch itself."""


LIMITS = Limits()


@dataclass(frozen=True)
class Outcome:
    """How a check ended: with an answer, or with the reason why there is none."""

    answer: Answer | None
    reason: str = ""
    processor_seconds: float = 0.0
    """Processor time of the check, without the import of torch; 0.0 where there is no fork."""


class Confined:
    """Checks files, one after the other, in a server process that the first check starts.

    with Confined() as confined:
        outcome = confined.check(Path("ana/multi_head.py"), "multi_head")
    """

    def __init__(self, limits: Limits = LIMITS):
        self.limits = limits
        self.server: JsonProcess | None = None
        self.ended, self.lock = False, threading.Lock()

    def check(self, path: Path, target: str) -> Outcome:
        """Check a copy of a file against the target of this name. Raises UserError if no process can be started."""
        with tempfile.TemporaryDirectory(prefix="minigpt-check-", ignore_cleanup_errors=True) as folder:
            try:
                copy = copy_beside(path, Path(folder))
            except OSError as error:
                return Outcome(None, f"cannot be read: {error.strerror or error}")
            except UserError as error:
                return Outcome(None, f"cannot be read: {str(error).removeprefix(f'{path}: ')}")
            return self._ask({"path": str(copy), "target": target, "limits": asdict(self.limits)})

    def _ask(self, request: Request) -> Outcome:
        with self.lock:
            if self.ended:
                return Outcome(None, "was not checked")
            server = self.server = self.server or JsonProcess(SERVE, quiet=True, variables={"OMP_NUM_THREADS": "1"})
        watch = threading.Timer(self.limits.seconds + 30, server.process.kill)  # for a server that does not fork
        watch.start()
        try:
            server.send(request)
            said = server.receive()
        except ValueError:  # its pipe is closed, or what it wrote is not JSON
            said = None
        finally:
            watch.cancel()
        if said is None or not FORKS:
            self._end_server()
        if said is not None and said.get("reason") == NO_MORE:
            raise UserError(NO_MORE)
        if said is None:
            return Outcome(None, f"ended the process, or took longer than {self.limits.seconds} s")
        return Outcome(said.get("answer"), str(said.get("reason", "")), float(said.get("processor_seconds", 0.0)))

    def end(self) -> None:
        """End the server. A running check is killed, and no other starts. May be called from any thread."""
        self.ended = True
        self._end_server()

    def _end_server(self) -> None:
        with self.lock:
            server, self.server = self.server, None
        if server is not None:
            assert server.process.stdin
            with suppress(BrokenPipeError):
                server.process.stdin.close()  # the server then kills the fork before it ends itself
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(2)
            server.end()

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def grade(path: Path, target: str) -> Report:
    """The report on one learner's file. Raises UserError for an unknown target or a missing file."""
    find_target(target)
    if not path.exists():
        raise UserError(f"{path}: no such file")
    open_plain(path).close()
    with Confined() as confined:
        outcome = confined.check(path, target)
    if outcome.answer is None:
        return Report("cannot tell", target, str(path), [f"the file {outcome.reason}"])
    return replace(Report.from_json(outcome.answer), file=str(path))


def copy_beside(path: Path, folder: Path) -> Path:
    """Copy a file, and the files beside it that it may import or read, into a folder. Raises OSError, and UserError.

    A link beside it is copied if it leads to a file of the same folder.
    """
    copy, home = folder / path.name, os.path.realpath(path.parent)
    copy.write_bytes(read_file(path, LARGEST_FILE, "a program"))
    others = (other for other in sorted(path.parent.glob("*")) if other.name != path.name and other.is_file())
    for other, _ in zip(others, range(MOST_FILES)):
        with suppress(OSError, UserError):
            if os.path.dirname(os.path.realpath(other)) == home:
                (folder / other.name).write_bytes(read_file(other, LARGEST_FILE, "beside a program"))
    return copy


def serve() -> None:
    """The server: reads one request per line from stdin, writes one outcome per line to stdout."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence(1)
    for line in sys.stdin:
        request = json.loads(line)
        limits = Limits(**request["limits"])
        if FORKS:
            outcome = forked(request, limits)
        else:
            silence(0)  # otherwise the file could read the next request
            outcome = inside(request, limits, lambda: None)
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
    os._exit(0)  # skips the garbage collection of all of torch


def silence(*streams: int) -> None:
    """Connect streams of this process (file descriptors) to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)


def inside(request: Request, limits: Limits, loaded: Callable[[], object]) -> dict[str, Any]:
    """Check a file in this process, under the limits; an error that it raises becomes its report.

    `loaded` is called when the file has run. Returns {"answer": the report} or {"reason": why there is none}.
    """
    path, target, clock = Path(request["path"]), request["target"], Clock(limits.processor_seconds)
    os.chdir(path.parent)
    os.environ.update(HOME=str(path.parent), TMPDIR=str(path.parent))
    sys.argv, sys.dont_write_bytecode = [str(path)], True
    sys.path.append(str(path.parent))  # last: a learner's torch.py does not replace torch
    limit_resources(limits)
    sys.addaudithook(guard(str(path.parent)))
    try:
        names = run_file(path)
        loaded()
        wanted = find_target(target)
        answer = find_answer(names, wanted, path)
        answer.clock = clock
        report = grade_answer(answer, wanted)
        if isinstance(answer.thing, Attention) and report.verdict.startswith("right"):
            check_continued(answer.thing, report)
    except UserError as error:
        report = Report("cannot tell", target, str(path), [str(error)])
    except BaseException as error:  # SystemExit and MemoryError too
        verdict: Verdict = "wrong" if is_theirs(error, path) else "cannot tell"
        report = Report(verdict, target, str(path), [f"raises {what_it_raised(error, path)}"])
    if NO_MEMORY.search(" ".join(report.names)):
        return {"reason": f"took more than {limits.memory / 2**30:g} GiB of memory"}
    return {"answer": report.to_json()}


def is_theirs(error: BaseException, path: Path) -> bool:
    """Whether the learner's file raised an error, and not the check itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        not isinstance(error, Exception)
        or isinstance(error, SyntaxError)
        or any(frame.filename == str(path) for frame in frames)
    )


def what_it_raised(error: BaseException, path: Path) -> str:
    """An error in one line, with the line of the learner's file."""
    text = " ".join(str(error).split())[:300]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, text = [error.lineno], error.msg
    return f"{type(error).__name__}: {text}" + (f" (line {lines[-1]})" if lines else "")


def limit_resources(limits: Limits) -> None:
    """Set the limits that the operating system enforces: memory, processor time, file size. Windows has none."""
    try:
        import resource
    except ImportError:
        return
    most = {resource.RLIMIT_CPU: limits.processor_seconds, resource.RLIMIT_FSIZE: 2**24, resource.RLIMIT_CORE: 0}
    with suppress(OSError):  # Linux only; other systems do not enforce it anyway
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most[resource.RLIMIT_AS] = pages * resource.getpagesize() + limits.memory
    for what, number in most.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (number, number + (what == resource.RLIMIT_CPU)))  # SIGXCPU, then SIGKILL


def guard(folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that raises PermissionError for what no checked file needs. Python cannot remove audit hooks."""
    root = os.path.realpath(folder) + os.sep

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and not isinstance(path, int):
                where = os.path.realpath(os.fsdecode(path))
                if not where.startswith(root) and where != os.devnull:
                    raise PermissionError("a checked file may not write outside its own folder")
        elif event in CHANGES:
            raise PermissionError("a checked file may not remove or rename files")
        elif event in STARTS:
            raise PermissionError("a checked file may not start processes")
        elif event in SENDS:
            raise PermissionError("a checked file may not send signals or use the network")

    return refuse


def forked(request: Request, limits: Limits) -> dict[str, Any]:
    """Check a file in a fork: wait for its answer, then kill its process group."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except BlockingIOError:
        os.close(reading)
        os.close(writing)
        return {"reason": NO_MORE}
    if not child:
        os.close(reading)
        become(request, limits, writing)
    os.close(writing)
    try:
        text, reason = listen(reading, limits)
        if not reason:
            wait_for_the_end(child)
    finally:
        for kill in (os.killpg, os.kill):  # its group; the fork alone, if it has no group yet
            with suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        os.close(reading)
    loaded, _, last = text.rpartition(b"\n")
    with suppress(ValueError):
        answer = json.loads(last)
        if isinstance(answer, dict) and not reason:
            return answer | {"processor_seconds": used.ru_utime + used.ru_stime}
    reason = reason or how_it_ended(os.waitstatus_to_exitcode(status), limits)
    if " s" in reason and not loaded:
        reason += ' to load: what trains or reads data belongs under `if __name__ == "__main__":`'
    return {"reason": reason}


def wait_for_the_end(child: int) -> None:
    """Wait up to 2 seconds for a fork that has answered to end by itself, so that its exit code is its own."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.001)


def become(request: Request, limits: Limits, writing: int) -> NoReturn:
    """What the fork does: leave the terminal, use no standard stream, check, write the answer into the pipe."""
    os.setsid()
    silence(0, 1, 2)
    try:
        with os.fdopen(writing, "w", buffering=1, encoding="utf-8") as pipe:  # line-buffered
            answer = inside(request, limits, lambda: pipe.write("loaded\n"))
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def listen(reading: int, limits: Limits) -> tuple[bytes, str]:
    """(What a fork writes until it ends, the reason why reading stopped before that, or "")."""
    text, deadline = b"", time.monotonic() + limits.seconds
    while len(text) <= LONGEST_ANSWER:
        ready, _, _ = select.select([reading, sys.stdin], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return text, f"took longer than {limits.seconds} s"
        if reading not in ready:
            return text, "stopped"  # the parent process has closed its end of our stdin
        piece = os.read(reading, 65536)
        if not piece:
            return text, ""
        text += piece
    return text, "its answer is too long"


def how_it_ended(code: int, limits: Limits) -> str:
    """Why a fork gave no answer. `code`: its exit code, or minus the number of the signal that ended it."""
    if code == -signal.SIGXCPU:
        return f"took more than {limits.processor_seconds} s of processor time"
    if code == -signal.SIGKILL:
        return f"was killed: {limits.processor_seconds} s of processor time, or too much memory"
    if code < 0:
        return f"crashed Python ({signal.Signals(-code).name})"
    return f"ended Python itself (exit code {code}) before it was checked"
