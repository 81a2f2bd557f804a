"""What is done to a folder of ours: its name, its lock, no links in it, and files that are whole or not there.

A run, a comparison and their checkpoints may come from a stranger, or be read by another process meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from minigpt.strict_yaml import UserError

LOCK = ".lock"


class InUse(UserError):
    """Another process holds the folder."""


def check_name(name: str, what: str) -> None:
    """Raises UserError for a name that might lead out of the folder in which it becomes one."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name {name}: {what} is named by letters, digits, '.', '-' and '_'")


def refuse_links(folder: Path) -> None:
    """Raises UserError for a link or a pipe in a run's folder, which may come from a stranger.

    What is written through a link lands somewhere else, and a pipe may never answer.
    """
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UserError(f"{path}: not a plain file; a run's folder holds nothing else")


class Lock(AbstractContextManager["Lock"]):
    """A folder to oneself while the `with` lasts, or the lock is referred to, at most to the end of the process.

    The system locks the folder itself and the file `.lock` in it, which says who holds it, and drops both when the
    process ends in any way. The folder's lock outlives the file; the file's is seen by other computers (NFS).
    """

    def __init__(self, folder: Path):
        """Raises InUse, which says who holds the folder, and OSError."""
        self.held = ExitStack()
        descriptor = os.open(folder, os.O_RDONLY)
        self.held.callback(os.close, descriptor)
        file = self.held.enter_context((folder / LOCK).open("a+", encoding="utf-8"))
        try:
            for each in (descriptor, file):
                fcntl.flock(each, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = _holder(file.read(1000))
            raise InUse(f"{folder} is in use by {holder}: two runs cannot share a folder") from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}))
        file.flush()

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def __del__(self) -> None:
        self.held.close()


def _holder(text: str) -> str:
    try:
        values = json.loads(text)
        return f"process {int(values['pid'])} on {values['host']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
