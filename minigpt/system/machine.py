"""What the operating system says of this machine, its CPUs and its user, and what is taken where it says nothing."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path


def c_library() -> ctypes.CDLL | None:
    """The C library that this process has loaded; None on Windows, which finds no library without its name."""
    return None if sys.platform == "win32" else ctypes.CDLL(None)


def own_cpus() -> set[int]:
    """The numbers of the CPUs that this process may use; Windows and macOS do not say, there it is all of them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def keep_on(thread: int, cpus: set[int]) -> None:
    """Let a thread of this process use these CPUs alone. Raises OSError; nothing happens on Windows and macOS."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, cpus)


def processors() -> int:
    """The number of CPUs that this process may use."""
    return len(own_cpus())


def load() -> float:
    """How many threads of all programs used or awaited a CPU, as the mean of the last minute; NaN on Windows."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def cpu_model() -> str:
    """The processor's name."""
    with suppress(OSError, StopIteration):  # Linux says it here, and nowhere else
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def user_id() -> int:
    """The number of the user whose process this is; 0 for everyone on Windows, which has none."""
    return os.getuid() if hasattr(os, "getuid") else 0


def seen_by_browsers() -> Path | None:
    """A folder in which every browser can read: on Linux, those in a sandbox of their own (snap, flatpak) see no other
    than the home folder; None: any.
    """
    return Path.home() if sys.platform == "linux" and os.access(Path.home(), os.W_OK) else None


def folder_path(descriptor: int) -> str:
    """A path that leads into an open folder on Linux; on other systems it leads nowhere."""
    return f"/proc/self/fd/{descriptor}"


def is_root() -> bool:
    """Whether this process may do everything; False on Windows."""
    return hasattr(os, "geteuid") and os.geteuid() == 0
