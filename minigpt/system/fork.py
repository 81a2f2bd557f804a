"""A call in a fork of this process: what it answers, and the end of all that it has started. On Linux alone.

The fork has all that this process has imported, and nothing of what it does reaches this process but one answer through
a pipe. Windows has no forks, and on macOS libraries of the system do not survive one: there, a caller starts a process
that makes the call itself.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

FORKS = sys.platform == "linux"
NONE = "this system has no forks"
LONGEST_ANSWER = 1_000_000  # bytes
PATIENCE = 2  # seconds after the time, in which a fork may still say where it was, or end by itself


@dataclass(frozen=True)
class Fork:
    """How a fork ended."""

    answer: bytes
    """One line; empty if there is a reason."""
    reason: str
    """Why what it said is no answer: it took too long, or was stopped; "" if it said nothing, or a whole line."""
    code: int
    """Its exit code, or minus the number of the signal that ended it."""
    processor_seconds: float

    @property
    def killed(self) -> bool:
        """Whether the system or this process has killed it."""
        return sys.platform != "win32" and self.code == -signal.SIGKILL


def in_fork(call: Callable[[], bytes], seconds: float) -> Fork:
    """Make a call in a fork. It ends after `seconds`, or as stdin of this process does, and all that it started too.

    The fork leaves the terminal, and has no open file but the pipe. Raises BlockingIOError if the system starts no more
    processes.
    """
    if sys.platform != "linux":
        raise OSError(NONE)
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except BlockingIOError:
        os.close(reading)
        os.close(writing)
        raise
    if not child:
        _become(call, writing)
    os.close(writing)
    try:
        answer, reason = _listen(reading, seconds + PATIENCE)
        deadline = time.monotonic() + PATIENCE  # for a fork that closes its pipe to end, so that its code is its own
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not (answer or reason or os.waitid(os.P_PID, child, look)) and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        for kill in (os.killpg, os.kill):  # its group; the fork alone, if it has no group yet
            with suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        os.close(reading)
        _end_orphans()
    code = os.waitstatus_to_exitcode(status)
    return Fork(b"" if reason else answer, reason or "", code, used.ru_utime + used.ru_stime)


def silence(*streams: int) -> None:
    """Connect streams of this process (file descriptors) to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)


def _become(call: Callable[[], bytes], writing: int) -> NoReturn:
    """What the fork does: leave the terminal, close all files but the pipe, call, write the answer into the pipe."""
    if sys.platform != "linux":
        raise OSError(NONE)
    os.setsid()
    silence(0, 1, 2)
    os.closerange(3, writing)
    os.closerange(writing + 1, 4096)
    gc.disable()  # it ends soon, and a search for cycles would copy the memory that it shares
    try:
        answer = call()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer + b"\n")
    finally:
        os._exit(0)


def _listen(reading: int, seconds: float) -> tuple[bytes, str]:
    """(The line that a fork writes, the reason why there is none, or ""). Another process may hold the pipe open."""
    text, deadline = b"", time.monotonic() + seconds
    while len(text) <= LONGEST_ANSWER:
        ready, _, _ = select.select([reading, sys.stdin], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return text, f"took longer than {seconds - PATIENCE:g} s"
        if reading not in ready:
            return text, "stopped"  # the parent process has closed its end of our stdin
        piece = os.read(reading, 65536)
        text += piece
        if not piece or piece.endswith(b"\n"):
            return text, ""
    return text, "its answer is too long"


def _end_orphans() -> None:
    """Kill what a fork started and left behind, also in a session of its own."""
    if sys.platform != "linux":
        raise OSError(NONE)
    with suppress(OSError):
        while pids := Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
            for pid in map(int, pids):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def signal_name(code: int) -> str:
    """The name of the signal that ended a process, from its code: -9 -> SIGKILL."""
    return signal.Signals(-code).name
