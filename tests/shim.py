"""Faults of a file system, made by a test: `faults/shim.c`, compiled here and loaded before the C library.

The shim kills a process at file-system operation number N, simulates a full disk, a failed or a refused operation
there, or records every operation. `faults/crash.py` controls it from inside; `under` is the environment for a whole
command.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "faults" / "shim.c"
OFF, COUNT, KILL_BEFORE, KILL_WITHIN, KILL_AFTER, FULL, BROKEN, RECORD, UNREADABLE, BUSY = range(10)  # as in shim.c


@dataclass(frozen=True)
class Operation:
    """One thing that was done to the file system: a letter of shim.c, its paths, and what was written where."""

    kind: str
    path: str
    other: str
    offset: int
    data: bytes


@cache
def built() -> Path | None:
    """The compiled shim, or None where it cannot be had."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    path = Path(tempfile.mkdtemp(prefix="minigpt-shim-"), "shim.so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, SOURCE, "-ldl"], check=True)
    return path


def library() -> Path:
    """The compiled shim; skips the test where it cannot be had."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the file-system shim is written for Linux")
    return built() or pytest.skip("no C compiler here (cc) to build the file-system shim with")


def under(folder: Path, mode: int = OFF, at: int = 0, match: str = "", log: Path | None = None) -> dict[str, str]:
    """The environment of a process whose doings in `folder` are watched from its start."""
    watched = {"SHIM_FOLDER": str(folder), "SHIM_MODE": str(mode), "SHIM_AT": str(at), "SHIM_MATCH": match}
    return {"LD_PRELOAD": str(library())} | watched | ({"SHIM_LOG": str(log)} if log else {})


def operations(log: Path) -> Iterator[Operation]:
    """What was written down, in order."""
    raw, place = log.read_bytes(), 0
    while place < len(raw):
        kind, *lengths, offset, size = struct.unpack_from("=5q", raw, place)
        place += 40
        parts = []
        for length in (*lengths, size if chr(kind) == "w" else 0):
            parts.append(raw[place : place + length])
            place += length
        yield Operation(chr(kind), parts[0].decode(), parts[1].decode(), offset, parts[2])
