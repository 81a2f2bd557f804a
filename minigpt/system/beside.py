"""Writes a folder beside its place, then renames it: at any time, readers find the whole folder or none.

    .NAME.writing-PID    the new folder, locked by the process that writes it
    .NAME.before-PID     the old folder, for the moment between two renames

A killed process leaves such folders. The next process that writes beside them removes those that no process has locked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from minigpt.system.folder import sync
from minigpt.system.locks import HOLDER, LOCK, InUse, Lock
from minigpt.system.moving import discard, remove, rename

LEFT = re.compile(r"\.(?P<name>.+)\.(?P<what>writing|before)-(?P<number>\d+)", re.DOTALL)


class Beside:
    """A new folder beside its place, locked by this process."""

    def __init__(self, place: Path):
        """Raises OSError. Removes what killed processes have left beside the place."""
        sweep(place.parent)
        for number in count(os.getpid()):
            self.path = place.with_name(f".{place.name}.writing-{number}")
            try:
                self.path.mkdir()
                self.lock = Lock(self.path)
                return
            except (FileExistsError, FileNotFoundError, InUse):
                continue  # of another process; or removed before it was locked
            except BaseException:
                discard(self.path)
                raise

    def put(self, place: Path) -> None:
        """Rename the folder to its place. An old folder is replaced, or, after an error, stays. Raises OSError.

        An empty folder is replaced in one step: nobody else can take a name that was reserved by one.
        """
        if sys.platform == "win32":
            self.lock.__exit__()  # Windows cannot rename a folder with an open file
        for name in (LOCK, HOLDER):
            remove(self.path / name)  # the folder itself stays locked
        sync(self.path)
        match = LEFT.fullmatch(self.path.name)
        assert match is not None
        before = self.path.with_name(f".{match['name']}.before-{match['number']}")
        if place.exists() and (sys.platform == "win32" or any(place.iterdir())):
            rename(place, before)
        try:
            rename(self.path, place)
        except BaseException:
            if before.exists():
                rename(before, place)
            raise
        sync(place.parent)
        discard(before)


@contextmanager
def written_beside(place: Path) -> Iterator[Beside]:
    """A new folder for the `with` block, which puts it into its place; otherwise it is removed at the end."""
    beside = Beside(place)
    try:
        yield beside
    finally:
        discard(beside.path)
        beside.lock.__exit__()


def sweep(parent: Path) -> None:
    """Remove what killed processes have left in a folder; an old folder gets its place back if that is free.

    Folders of others are not touched: a link, a locked folder, and a folder with files but without the mark of a lock.
    """
    leftovers = [(path, match) for path in _entries(parent) if (match := LEFT.fullmatch(path.name))]
    for path, match in leftovers:
        if match["what"] == "writing" and ((path / HOLDER).is_file() or not any(_entries(path))):
            with suppress(InUse, OSError), Lock(path):
                discard(path, warns=False)
    for path, match in leftovers:
        writing = path.with_name(f".{match['name']}.writing-{match['number']}")
        if match["what"] == "before" and not writing.exists():
            with suppress(OSError):
                place = parent / match["name"]
                discard(path, warns=False) if place.exists() else rename(path, place)


def _entries(folder: Path) -> list[Path]:
    """The folders and files in a folder, without links; none where it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not path.is_symlink())
    except OSError:
        return []
