"""What is done to a folder of ours: its name, its lock, no links in it, and files that are whole or not there.

A run, a comparison and their checkpoints may come from a stranger, or be read by another process meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
from pathlib import Path
from typing import IO

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


def hold(folder: Path) -> IO[str]:
    """Have a folder to oneself while the returned file is open, at most to the end of the process.

    Raises InUse, which says who holds it. The system drops the lock of a process that ends in any way.
    """
    file = (folder / LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = _holder(file.read(1000))
        file.close()
        raise InUse(f"{folder} is in use by {holder}: two runs cannot share a folder") from None
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}))
    file.flush()
    return file


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
