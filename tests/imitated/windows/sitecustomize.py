"""Windows, as far as a process on Linux can be like it. Python imports this file first where its folder is on the path.

What other packages need is imported before: they were installed for Linux. Then, for minigpt:

- modules, functions and constants that Windows lacks are gone, and there are no /proc, /sys and /dev;
- a file that any process has open or mapped, and a folder with such a file, cannot be renamed, replaced or removed;
- folders cannot be opened, files opened to be read not synced, and some names are refused;
- text files end their lines with "\\r\\n", and whoever opens one without an encoding gets an error, not cp1252.

What stays as on Linux: paths with "/", `os.name`, `pathlib`, and all that C++ does.
"""

import builtins
import ctypes
import enum
import errno
import fcntl
import io
import os
import platform
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
import types
import warnings
import webbrowser
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import absent
import numpy
import safetensors.torch
import tiktoken
import torch.distributed
import tqdm
import yaml

imported = numpy, safetensors, tempfile, tiktoken, torch, tqdm, webbrowser, yaml
remembered = platform.platform(), sysconfig.get_config_vars(), webbrowser.register("none", None)
plain, plain_signals = types.SimpleNamespace(**vars(os)), types.SimpleNamespace(**vars(signal))
plain_io = types.SimpleNamespace(**vars(io))

NAMES = re.compile(r'[<>:"|?*\x00-\x1f]|.*[. ]$|(con|prn|aux|nul|com[1-9¹²³]|lpt[1-9¹²³])(\.|$)', re.IGNORECASE)
SYSTEM = ("/proc/", "/sys/", "/dev/")


def refused(path: Any, code: int = errno.EACCES) -> OSError:
    """The error of a call that Windows refuses."""
    return OSError(code, os.strerror(code), os.fsdecode(path))


def look(path: Any, makes: bool = False) -> None:
    """Raises OSError for a path that Windows does not have, or, if it is made, cannot have."""
    if isinstance(path, int):
        return
    place = os.path.abspath(os.fsdecode(path)) + "/"
    if place.startswith(SYSTEM) and place != f"{os.devnull}/":
        raise refused(path, errno.ENOENT)
    if makes and NAMES.match(place.rstrip("/").rpartition("/")[2]):
        raise refused(path, errno.EINVAL)


def places_in_use() -> Iterator[str]:
    """What any process of this machine has open, has mapped, or stands in."""
    for process in plain.scandir("/proc"):
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            yield plain.readlink(f"{process.path}/cwd")
            for opened in plain.scandir(f"{process.path}/fd"):
                with suppress(OSError):
                    yield plain.readlink(opened.path)
            with open_plainly(f"{process.path}/maps", encoding="utf-8", errors="surrogateescape") as maps:
                yield from (line[73:].rstrip("\n") for line in maps if len(line) > 73)


def check_free(path: Any) -> None:
    """Raises OSError for a file that is in use, and for a folder with such a file."""
    place = os.path.realpath(os.fsdecode(path))
    if any(used == place or used.startswith(f"{place}/") for used in places_in_use()):
        raise refused(path)


def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
    """`os.open`."""
    look(path, makes=bool(flags & os.O_CREAT))
    if os.path.isdir(path):
        raise refused(path)
    return plain.open(path, flags, mode)


def fsync(descriptor: int) -> None:
    """`os.fsync`, for which the file must be open to be written."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & plain.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    plain.fsync(descriptor)


def replace(old: Any, new: Any) -> None:
    """`os.replace`, which replaces files alone."""
    look(new, makes=True)
    check_free(old)
    if os.path.isdir(new):
        raise refused(new)
    check_free(new)
    plain.replace(old, new)


def rename(old: Any, new: Any) -> None:
    """`os.rename`, which replaces nothing."""
    if os.path.lexists(new):
        raise refused(new, errno.EEXIST)
    replace(old, new)


def free_first(call: Any) -> Any:
    """A removal."""

    def remove(path: Any, *, dir_fd: None = None) -> None:
        check_free(path)
        call(path)

    return remove


def makes(call: Any) -> Any:
    """A call that makes a folder."""

    def make(path: Any, *rest: Any, **named: Any) -> None:
        look(path, makes=True)
        call(path, *rest, **named)

    return make


def looks(call: Any) -> Any:
    """A call that looks at a path."""

    def looked(path: Any = ".", *rest: Any, **named: Any) -> Any:
        look(path)
        return call(path, *rest, **named)

    return looked


def symlink(*_: Any, **__: Any) -> None:
    """Windows lets few users make links."""
    raise refused("a link", errno.EPERM)


def kill(pid: int, number: int) -> None:
    """`os.kill`; 0 is no question there, but Ctrl-C for all processes of the console."""
    assert number not in (0, 1), "Ctrl-C for every process of this console"
    plain.kill(pid, number)


open_plainly, locked = io.open, set[int]()


def open_text(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
              newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
    """`open`: no folders, no names that Windows refuses, and its line ends."""
    writes = bool(set(mode) & set("wax+"))
    look(file, makes=writes)
    if not isinstance(file, int) and os.path.isdir(file):
        raise refused(file)
    if "b" not in mode:
        encoding = io.text_encoding(encoding)  # warns where there is none
        newline = "\r\n" if newline is None and writes else newline
    return open_plainly(file, mode, buffering, encoding, errors, newline, closefd, opener)


def locking(descriptor: int, mode: int, size: int) -> None:
    """`msvcrt.locking` of a byte beyond the end of a file, so that others can read it."""
    assert (mode, size) == (2, 1) and os.lseek(descriptor, 0, os.SEEK_CUR) >= os.fstat(descriptor).st_size
    if descriptor in locked:
        raise refused("a lock")  # nobody locks a byte twice
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise refused("a lock") from None
    locked.add(descriptor)


def close(descriptor: int) -> None:
    """`os.close`."""
    locked.discard(descriptor)
    plain.close(descriptor)


class Signals(enum.IntEnum):
    """The signals of Windows."""

    SIGINT, SIGILL, SIGABRT, SIGFPE, SIGSEGV, SIGTERM, SIGBREAK = 2, 4, 6, 8, 11, 15, 21


def handle(number: int, handler: Any) -> Any:
    """`signal.signal`."""
    return handle_plainly(Signals(number), handler)


class CDLL(ctypes.CDLL):
    """`ctypes.CDLL`, which needs a name."""

    def __init__(self, name: Any, *rest: Any, **named: Any):
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")
        super().__init__(name, *rest, **named)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, without what Windows refuses."""

    def __init__(self, *words: Any, preexec_fn: None = None, pass_fds: tuple[()] = (), **named: Any):
        assert preexec_fn is None and not pass_fds
        super().__init__(*words, **named)


def of_sockets(reading: Any, writing: Any, errors: Any, timeout: float | None = None) -> Any:
    """`select.select`."""
    for each in (*reading, *writing, *errors):
        if not stat.S_ISSOCK(os.fstat(each if isinstance(each, int) else each.fileno()).st_mode):
            raise refused("select", errno.ENOTSOCK)
    return select_plainly(reading, writing, errors, timeout)


handle_plainly, select_plainly = signal.signal, select.select
subprocess.os, subprocess.signal = plain, plain_signals  # type: ignore[attr-defined]  # it starts processes as before
shutil._use_fd_functions = False  # type: ignore[attr-defined]
tempfile._os, tempfile._io = plain, plain_io  # type: ignore[attr-defined]  # its files vanish when they are closed
for module in (os, signal, time, select):
    for name in [name for name in vars(module) if absent.is_absent(module.__name__, name)]:
        delattr(module, name)
if hasattr(socket, "AF_UNIX"):
    socket_pair = socket.socketpair
    socket.socketpair = lambda *_: socket_pair(1)  # type: ignore[assignment]  # its own is made with TCP
    del socket.AF_UNIX
os.open, os.fsync, os.replace, os.rename, os.kill, os.symlink = open_descriptor, fsync, replace, rename, kill, symlink
os.close = close
os.unlink, os.remove, os.rmdir = free_first(plain.unlink), free_first(plain.remove), free_first(plain.rmdir)
os.mkdir, os.O_BINARY = makes(plain.mkdir), 0  # type: ignore[attr-defined]
os.stat, os.lstat, os.readlink = looks(plain.stat), looks(plain.lstat), looks(plain.readlink)
os.listdir, os.scandir = looks(plain.listdir), looks(plain.scandir)
signal.Signals, signal.SIGBREAK, signal.signal = Signals, Signals.SIGBREAK, handle  # type: ignore[assignment,misc,attr-defined]
select.select, ctypes.CDLL, subprocess.Popen = of_sockets, CDLL, Popen  # type: ignore[assignment,misc]
builtins.open = io.open = open_text
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=locking)  # type: ignore[assignment]
for name in absent.MODULES:
    sys.modules[name] = None  # type: ignore[assignment]
warnings.filterwarnings("error", category=EncodingWarning, module=r"minigpt|__main__|benchmarks")
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(newline="\r\n")  # type: ignore[union-attr]
sys.platform = "win32"
