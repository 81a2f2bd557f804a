"""What a checked program may not do: change files outside its folder, start processes, send, take all memory or time.

Python reports what it does by audit events; the writers of torch and others that report nothing are wrapped. Where
Linux has Landlock (5.13 and later, without root), the kernel refuses too, whichever library writes. Nothing can be
undone: guard a process that does nothing else.

This stops accidents and pranks. It is no sandbox for untrusted code: what C code does by itself is refused where there
is Landlock alone, and there not UDP and the permissions of files. Windows has no limits of time and memory either.
"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

STARTS = {"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system",
          "subprocess.Popen", "pty.spawn"}  # fmt: skip
SENDS = {"os.kill", "os.killpg", "signal.pthread_kill", "socket.connect", "socket.bind", "socket.sendto",
         "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}  # fmt: skip
CHANGES = {"os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
           "os.truncate", "os.utime", "os.setxattr", "shutil.move", "shutil.rmtree", "sqlite3.connect"}  # fmt: skip
REFUSED = {
    **dict.fromkeys(STARTS, "start processes"),
    **dict.fromkeys(SENDS, "send signals or use the network"),
    **dict.fromkeys(("resource.setrlimit", "resource.prlimit"), "change its limits"),
}
WITHOUT_FOLDER = {"os.truncate", "os.setxattr"}  # the last argument of the other CHANGES may be an open folder
WRITERS = (  # they write without an audit event; an argument that is a path must lie in the folder
    "torch._C:PyTorchFileWriter", "torch.jit:save", "torch.jit:ScriptModule.save", "torch:from_file",
    "torch.jit:RecursiveScriptModule.save", "torch:UntypedStorage.from_file", "torch.distributed:FileStore",
    "torch.autograd.profiler:profile.export_chrome_trace", "torch.profiler:ExecutionTraceObserver.register_callback",
    "safetensors:serialize_file", "safetensors.torch:serialize_file", "os:mkfifo", "os:mknod",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OUTSIDE = "a checked file may not write outside its own folder"
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on all processors
FILES, NETWORK, SCOPES = {1: 0x1FF3, 2: 0x2000, 3: 0x4000}, {4: 0x3}, {6: 0x3}  # Landlock: its version, what it refuses
NO_NEW_PRIVILEGES, NOT_DUMPABLE, TAKES_ORPHANS = (38, 1), (4, 0), (36, 1)  # of prctl


def guard(folder: Path, processor_seconds: int, memory: int) -> None:
    """Confine this process to a folder, and to so much time and so many bytes more than now, from now on."""
    root = os.path.realpath(folder)
    limit_resources(processor_seconds, memory)
    for place in WRITERS:
        with suppress(ImportError, AttributeError):  # this version has no such writer
            wrap(place, root)
    with suppress(ImportError):  # multiprocessing starts processes with it, without an audit event
        import _posixsubprocess

        setattr(_posixsubprocess, "fork_exec", lambda *_: refuse("start processes"))  # noqa: B010  mypy knows its type
    landlock(root)
    sys.addaudithook(hook(root))


def refuse(what: str) -> None:
    """Raises PermissionError."""
    raise PermissionError(f"a checked file may not {what}")


def check_inside(root: str, path: Any, base: str = ".") -> None:
    """Raises PermissionError for a path that leads out of the folder."""
    place = os.path.realpath(os.path.join(os.fsencode(base), os.fsencode(path)))
    if not place.startswith(os.fsencode(root + os.sep)) and place != os.fsencode(os.devnull):
        raise PermissionError(OUTSIDE)


def hook(root: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that raises PermissionError for what no checked file needs. Python cannot remove audit hooks."""

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING and not isinstance(path, int):
                check_inside(root, path)
        elif event in CHANGES:
            if event == "sqlite3.connect" and arguments[0] in ("", ":memory:"):
                return
            last = -1 if event in WITHOUT_FOLDER else arguments[-1]
            base = f"/proc/self/fd/{last}" if isinstance(last, int) and last >= 0 else "."
            for path in arguments:
                if isinstance(path, (str, bytes, os.PathLike)):
                    check_inside(root, path, base)
        elif event in REFUSED:
            refuse(REFUSED[event])

    return look


def wrap(place: str, root: str) -> None:
    """Let a function check each argument that is a path. Raises ImportError or AttributeError if there is none."""
    name = place.replace(":", ".").rpartition(".")[2]
    owner = pkgutil.resolve_name(place.removesuffix(name).rstrip(".:"))
    function = getattr(owner, name)

    @wraps(function, updated=())
    def checked(*arguments: Any, **named: Any) -> Any:
        for one in (*arguments, *named.values()):
            if isinstance(one, (str, bytes, os.PathLike)):
                check_inside(root, one)
        return function(*arguments, **named)

    is_method = isinstance(owner, type) and hasattr(function, "__code__")
    setattr(owner, name, checked if is_method or not isinstance(owner, type) else staticmethod(checked))


def control(*arguments: int) -> bool:
    """Call Linux's prctl; False on other systems."""
    with suppress(OSError, AttributeError, TypeError):
        return sys.platform == "linux" and ctypes.CDLL(None).prctl(*arguments, 0, 0, 0) == 0
    return False


def watch_over_forks() -> None:
    """No other process of this user may look into this one or its open files; it inherits what outlives its forks."""
    control(*NOT_DUMPABLE)
    control(*TAKES_ORPHANS)


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0: there is none."""
    with suppress(OSError, AttributeError, TypeError):
        if sys.platform == "linux":
            return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))))
    return 0


def landlock(root: str) -> None:
    """Let the kernel refuse files outside the folder, programs, TCP and signals, as far as it knows how to."""
    version = landlock_version()
    if not version or not control(*NO_NEW_PRIVILEGES):
        return
    rights = [sum(bits for since, bits in each.items() if since <= version) for each in (FILES, NETWORK, SCOPES)]
    call, rules = ctypes.CDLL(None).syscall, struct.pack("=QQQ", *rights)
    ruleset = call(CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    for path, allowed in ((root, rights[0] & ~0x1), (os.devnull, rights[0] & 0x4002)):  # all but to execute; to write
        file = os.open(path, os.O_PATH)
        call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(1), struct.pack("=Qi", allowed, file), ctypes.c_uint(0))
        os.close(file)
    call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)


def not_guarded() -> str:
    """What a checked program can do on this system that it should not, in one line."""
    if landlock_version():
        return ""
    missing = "no limits of memory and processor time, and " if sys.platform == "win32" else ""
    return f"this system has {missing}no Landlock: what a C library of a checked file writes by itself is not refused"


def limit_resources(processor_seconds: int, memory: int) -> None:
    """Set the limits that the operating system enforces: memory, processor time, file size. Windows has none."""
    try:
        import resource
    except ImportError:
        return
    most = {resource.RLIMIT_CPU: processor_seconds + 1, resource.RLIMIT_FSIZE: 2**24, resource.RLIMIT_CORE: 0}
    with suppress(OSError):  # Linux only; other systems do not enforce it anyway
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
    for what, number in most.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (number, number))


class TimeIsUp(BaseException):
    """The time is over. No Exception, so that `except Exception` in a program does not end it."""


@contextmanager
def stopped_after(processor_seconds: float, seconds: float) -> Iterator[None]:
    """Raises TimeIsUp inside the `with` when either time is over; nothing on Windows, and outside the main thread.

    A program that hangs is interrupted where it is, so that the traceback has its line. What catches even that, or
    hangs in C, is killed by whoever started its process.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
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
