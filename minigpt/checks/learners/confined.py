"""Checks learners' files in processes of their own, with limits on time and memory.

A server imports torch once and forks for each file. The fork works on a copy of the learner's folder (`guard.py`); it
prints nothing, reads nothing from stdin, and has one open file: a pipe to the server, which no other process has. What
comes through the pipe counts if it holds the token of this request. When the check is over, the fork and all that it
started are killed. Where there is no fork (`minigpt/system/fork.py`), a server is started for each file.

A program can change another's mark in no way. One that rewrites the checker in its own process can change its own: this
stops accidents and pranks, and is no sandbox.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minigpt.checks.laws.target import find_target
from minigpt.checks.learners.guard import guard
from minigpt.checks.learners.verdict import Report, Verdict, frames_in, what_it_raised
from minigpt.system.errors import UserError
from minigpt.system.folder import open_plain, read_file
from minigpt.system.fork import FORKS, Fork, in_fork, signal_name, silence
from minigpt.system.limits import TimeIsUp, stopped_after, watch_over_forks
from minigpt.system.process import NO_MORE, JsonProcess, answering, messages

JUDGE = "minigpt.checks.learners.check:check_file"
SERVE = "from minigpt.checks.learners import confined; confined.serve()"
MOST_FILES, LARGEST_FILE = 200, 5_000_000  # the most files copied beside the checked one; bytes of each
NO_MEMORY = re.compile("MemoryError|can't allocate memory|out of memory", re.IGNORECASE)
TRAINS = ' to load: what trains or reads data belongs under `if __name__ == "__main__":`'
FORGED = "wrote a result of its own"

Request = dict[str, Any]
Answer = dict[str, Any]  # {"token", "report": the report} or {"token", "reason": why there is none}


@dataclass(frozen=True)
class Limits:
    """The limits for one file."""

    processor_seconds: int = 5
    """Processor time of its imports and the check."""
    seconds: int = 60
    """Elapsed time, for a file that waits: long, since other programs may use the processor."""
    memory: int = 2**30
    """Bytes, in addition to the memory of torch itself."""


LIMITS = Limits()


@dataclass(frozen=True)
class Outcome:
    """How a check ended: with a report, or with the reason why there is none."""

    report: Report | None
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

    def check(self, path: Path, target: str, name: str = "", lines: bool = False, exercise: str = "") -> Outcome:
        """Check a copy of a file, or what has this name in it. Raises UserError if no process can be started."""
        with tempfile.TemporaryDirectory(prefix="minigpt-check-", ignore_cleanup_errors=True) as folder:
            try:
                copy = copy_beside(path, Path(folder))
            except OSError as error:
                return Outcome(None, f"cannot be read: {error.strerror or error}")
            except UserError as error:
                return Outcome(None, f"cannot be read: {str(error).removeprefix(f'{path}: ')}")
            request = {"path": str(copy), "target": target, "name": name, "lines": lines, "exercise": exercise}
            outcome = self._ask(request | {"limits": asdict(self.limits)})
        return outcome if outcome.report is None else replace(outcome, report=replace(outcome.report, file=str(path)))

    def _ask(self, request: Request) -> Outcome:
        with self.lock:
            if self.ended:
                return Outcome(None, "was not checked")
            server = self.server = self.server or JsonProcess(SERVE, quiet=True, variables={"OMP_NUM_THREADS": "1"})
        watch = threading.Timer(self.limits.seconds + 30, server.kill)  # for a server that does not fork
        watch.start()
        token = secrets.token_hex()
        try:
            server.send(request | {"token": token})
            while (answer := server.receive()) and answer.get("token") != token:
                pass  # nobody but this server can know the token
        except ValueError:  # its pipe is closed, or what it wrote is not JSON
            answer = None
        finally:
            watch.cancel()
        if answer is None or not FORKS:
            self._end_server()
        if answer is None:
            return Outcome(None, f"ended the process, or took longer than {self.limits.seconds} s")
        if answer.get("reason") == NO_MORE:
            raise UserError(NO_MORE)
        used = float(answer.get("processor_seconds", 0.0))
        try:
            return Outcome(Report.from_json(answer["report"]), "", used)
        except (KeyError, ValueError, TypeError, AttributeError):
            return Outcome(None, str(answer.get("reason", FORGED)), used)

    def kill(self) -> None:
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
        self.kill()


def grade(path: Path, target: str, name: str = "", lines: bool = False) -> Report:
    """The report on one learner's file. Raises UserError for a missing file, and for an unknown target."""
    if target:
        find_target(target)
    if not path.exists():
        raise UserError(f"{path}: no such file")
    open_plain(path).close()
    with Confined() as confined:
        outcome = confined.check(path, target, name, lines)
    return outcome.report or Report("cannot tell", target, str(path), names=[f"the file {outcome.reason}"])


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
    """The server: reads one request per line from stdin, writes one answer per line to stdout."""
    send = answering()
    watch_over_forks()
    pkgutil.resolve_name(JUDGE)  # imported once, before any fork
    for request in messages():
        limits = Limits(**request.pop("limits"))
        if not FORKS:
            silence(0)  # otherwise the file could read the next request
        answer = forked(request, limits) if FORKS else inside(request, limits)
        send({"token": request["token"]} | answer)
    os._exit(0)  # skips the garbage collection of all of torch


def inside(request: Request, limits: Limits) -> Answer:
    """Check a file in this process, under the limits; an error that it raises becomes its report."""
    path, target = Path(request["path"]), request["target"]
    os.chdir(path.parent)
    os.environ.update(HOME=str(path.parent), TMPDIR=str(path.parent))
    sys.argv, sys.dont_write_bytecode = [str(path)], True
    sys.path.append(str(path.parent))  # last: a learner's torch.py does not replace torch
    guard(path.parent, limits.processor_seconds, limits.memory)
    try:
        with stopped_after(limits.processor_seconds, limits.seconds):
            report: Report = pkgutil.resolve_name(JUDGE)(path, target, request["name"], request["lines"],
                                                  request["exercise"])  # fmt: skip
    except TimeIsUp as error:
        frames = frames_in(error, path)
        where = f" (line {frames[-1].lineno})" if frames else ""
        loading = bool(frames) and frames[0].name == "<module>"
        return {"reason": f"{error}{where}{TRAINS * loading}"}
    except BaseException as error:  # SystemExit and MemoryError too
        is_learners = not isinstance(error, Exception) or isinstance(error, SyntaxError) or bool(frames_in(error, path))
        message = str(error) if isinstance(error, UserError) else f"raises {what_it_raised(error, path)}"
        verdict: Verdict = "wrong" if is_learners and not isinstance(error, UserError) else "cannot tell"
        report = Report(verdict, target, str(path), names=[message])
    if NO_MEMORY.search(" ".join(report.names)):
        return {"reason": f"took more than {limits.memory / 2**30:g} GiB of memory"}
    return {"report": report.to_json()}


def forked(request: Request, limits: Limits) -> Answer:
    """Check a file in a fork."""

    def answer() -> bytes:
        gc.disable()  # the process ends before a search for cycles would pay
        return json.dumps({"token": request["token"]} | inside(request, limits)).encode()

    try:
        fork = in_fork(answer, limits.seconds)
    except BlockingIOError:
        return {"reason": NO_MORE}
    reason = fork.reason or how_it_ended(fork, limits)
    if fork.answer:
        reason = FORGED
        with suppress(ValueError):
            reply = json.loads(fork.answer)
            if isinstance(reply, dict) and reply.get("token") == request["token"]:
                return reply | {"processor_seconds": fork.processor_seconds}
    return {"reason": reason}


def how_it_ended(fork: Fork, limits: Limits) -> str:
    """Why a fork gave no answer."""
    if fork.killed:
        return f"was killed: it took more than {limits.processor_seconds} s of processor time, or too much memory"
    if fork.code < 0:
        return f"crashed Python ({signal_name(fork.code)})"
    return f"ended Python itself (exit code {fork.code}) before it was checked"
