"""What the system itself keeps this process from: files outside a folder, memory, time. Each has other means.

    Linux    all of them; files by Landlock (5.13 and later, without root)
    macOS    time, and the size of files; not memory, which it does not enforce
    Windows  none

Nothing can be undone: limit a process that does nothing else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from minigpt.system.machine import c_library

LARGEST_FILE = 2**24  # bytes
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on all processors
FILES, NETWORK, SCOPES = {1: 0x1FF3, 2: 0x2000, 3: 0x4000}, {4: 0x3}, {6: 0x3}  # Landlock: its version, what it refuses
NO_NEW_PRIVILEGES, NOT_DUMPABLE, TAKES_ORPHANS = (38, 1), (4, 0), (36, 1)  # of prctl


def not_limited() -> str:
    """What no means of this system keeps a process from, in one line; "" if nothing."""
    if landlock_version():
        return ""
    missing = "no limits of memory and processor time, and " if sys.platform == "win32" else ""
    return f"this system has {missing}no Landlock: what a C library of a checked file writes by itself is not refused"


def limit_resources(processor_seconds: int, memory: int) -> None:
    """Limit processor time, the size of files, and memory to so many bytes more than now. Windows has none."""
    if sys.platform == "win32":
        return
    import resource

    most = {resource.RLIMIT_CPU: processor_seconds + 1, resource.RLIMIT_FSIZE: LARGEST_FILE, resource.RLIMIT_CORE: 0}
    with suppress(OSError):  # Linux only; other systems do not enforce it anyway
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
    for resource_type, number in most.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(resource_type, (number, number))


class TimeIsUp(BaseException):
    """The time is over. No Exception, so that `except Exception` in a program does not end it."""


@contextmanager
def stopped_after(processor_seconds: float, seconds: float) -> Iterator[None]:
    """Raises TimeIsUp inside the `with` when either time is over; nothing on Windows, and outside the main thread.

    A program that hangs is interrupted where it is, so that the traceback has its line. What catches even that, or
    hangs in C, is killed by whoever started its process.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        used = f"{processor_seconds:g} s of processor time" if number == signal.SIGPROF else f"{seconds:g} s"
        raise TimeIsUp(f"took more than {used}")

    alarms = ((signal.SIGPROF, signal.ITIMER_PROF, processor_seconds), (signal.SIGALRM, signal.ITIMER_REAL, seconds))
    before = [signal.signal(number, stop) for number, _, _ in alarms]
    try:
        for _, timer, duration in alarms:
            signal.setitimer(timer, duration)
        yield
    finally:
        for (number, timer, _), handler in zip(alarms, before):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def start_no_process(refuse: Callable[[], NoReturn]) -> None:
    """Let what starts Python's own processes refuse it; Windows has another such function, which an audit hook sees."""
    with suppress(ImportError):
        setattr(import_module("_posixsubprocess"), "fork_exec", lambda *_: refuse())  # noqa: B010  mypy knows its type


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; -1 where there is none of this name."""
    function = getattr(c_library(), name, None)
    return int(function(*arguments)) if function else -1


def control(*arguments: int) -> bool:
    """Call Linux's prctl; False on other systems."""
    return call("prctl", *arguments, 0, 0, 0) == 0


def watch_over_forks() -> None:
    """No other process of this user may look into this one or its open files; it inherits what outlives its forks."""
    control(*NOT_DUMPABLE)
    control(*TAKES_ORPHANS)


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0: there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, call("syscall", CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def landlock(root: str) -> None:
    """Let the kernel refuse files outside the folder, programs, TCP and signals, as far as it knows how to."""
    version = landlock_version()
    if sys.platform != "linux" or not version or not control(*NO_NEW_PRIVILEGES):
        return
    rights = [sum(bits for since, bits in each.items() if since <= version) for each in (FILES, NETWORK, SCOPES)]
    rules = struct.pack("=QQQ", *rights)
    ruleset = call("syscall", CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    for path, allowed in ((root, rights[0] & ~0x1), (os.devnull, rights[0] & 0x4002)):  # all but to execute; to write
        file = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", allowed, file)
        call("syscall", ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0))
        os.close(file)
    call("syscall", RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)
