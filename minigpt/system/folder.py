"""What is done to a folder of ours: its name, its lock, no links in it, and files that are whole or not there.

A run, a comparison and their checkpoints may come from a stranger, or be read by another process meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from minigpt.system.errors import UserError
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import one_line

if sys.platform != "win32":
    import fcntl

LOCK, HOLDER = ".lock", ".holder"
SHOWN = 3  # lines of many that say the same of different files


class InUse(UserError):
    """Another process holds the folder."""


def check_name(name: str, what: str) -> None:
    """Raises UserError for a name that might lead out of the folder in which it becomes one."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name {name}: {what} is named by letters, digits, '.', '-' and '_'")


def refuse_links(folder: Path) -> None:
    """Raises UserError for a folder that is a link, or holds a link, a pipe or a device at any depth.

    A run or a comparison may come from a stranger: what is written or removed through a link is somewhere else, and a
    pipe may never answer. Every command calls this before it opens anything in there. A folder that is not there, or
    that nobody may read, holds nothing that could be opened.
    """
    if folder.is_symlink():
        raise UserError(f"{folder}: a symbolic link: give the folder itself, {folder.resolve()}")
    todo = [str(folder)]
    while todo:
        try:
            with os.scandir(todo.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                raise UserError(
                    f"{one_line(entry.path)}: not a plain file; the folder of a run or a comparison holds no others"
                )


class Lock(AbstractContextManager["Lock"]):
    """A folder for one process while the `with` lasts, or the lock is referred to, at most to the end of the process.

    There are two locks, and the system drops both when the process ends in any way. The one of the file `.lock` is seen
    by other computers (NFS); the one of the folder itself, which Windows lacks, still holds when `.lock` was removed.
    What `.holder` says is for the error message alone.
    """

    def __init__(self, folder: Path):
        """Raises InUse, which says who holds the folder, and OSError."""
        self.held = ExitStack()
        try:
            if sys.platform != "win32":
                descriptor = os.open(folder, os.O_RDONLY)
                self.held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held.enter_context(FileLock(folder / LOCK, timeout=0, thread_local=False))
        except (BlockingIOError, Timeout):
            self.held.close()
            raise InUse(f"{folder} is in use by {_holder(folder)}: two runs cannot share a folder") from None
        (folder / HOLDER).write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}), encoding="utf-8")

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def __del__(self) -> None:
        self.held.close()


def _holder(folder: Path) -> str:
    try:
        values = parse_json(read_start(folder / HOLDER, 1000))
        return f"process {int(values['pid'])} on {values['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on disk; Windows opens no folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in an error of a disk that fails while it is read, which does not say where."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def read_start(path: Path, limit: int) -> bytes:
    """The first bytes of a file, at most `limit`. Raises OSError, which names it."""
    with _named(path), path.open("rb") as file:
        return file.read(limit)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file. Raises OSError, which names it."""
    digest = hashlib.sha256()
    with _named(path), path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first lines of many, and how many more there are."""
    return list(lines) if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN:,} more like these"]


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a file beside its place, sync it, and rename it into place, so that it is never half there.

    Raises OSError, after which the file is as before.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as file:
            file.write(contents.encode("utf-8") if isinstance(contents, str) else contents)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
