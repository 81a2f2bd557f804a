"""A folder that is written beside its place and renamed: it is there whole, or not at all, whenever it is looked at.

    .NAME.writing-PID    the new one, locked by the process that writes it
    .NAME.before-PID     what stood in its place, for the moment between two renames

A process that is killed leaves these. The next one that writes beside them removes what no process holds any more.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from minigpt.system.folder import HOLDER, LOCK, InUse, Lock, sync

LEFT = re.compile(r"\.(?P<name>\w[\w.-]*)\.(?P<what>writing|before)-(?P<number>\d+)")


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
                continue  # another's; or it was swept before it was locked
            except BaseException:
                shutil.rmtree(self.path, ignore_errors=True)
                raise

    def put(self, place: Path) -> None:
        """Rename the folder to its place. What is there is replaced, or, after an error, stays. Raises OSError."""
        if sys.platform == "win32":
            self.lock.__exit__()  # there a folder with an open file cannot be renamed
        for name in (LOCK, HOLDER):
            (self.path / name).unlink(missing_ok=True)  # the folder itself stays locked
        sync(self.path)
        match = LEFT.fullmatch(self.path.name)
        assert match is not None
        before = self.path.with_name(f".{match['name']}.before-{match['number']}")
        if place.exists():
            place.rename(before)
        try:
            self.path.rename(place)
        except BaseException:
            if before.exists():
                before.rename(place)
            raise
        sync(place.parent)
        shutil.rmtree(before, ignore_errors=True)


@contextmanager
def written_beside(place: Path) -> Iterator[Beside]:
    """A new folder; after the `with` block it has been put into its place, or is gone."""
    beside = Beside(place)
    try:
        yield beside
    finally:
        shutil.rmtree(beside.path, ignore_errors=True)
        beside.lock.__exit__()


def sweep(parent: Path) -> None:
    """Remove what killed processes have left in a folder; what one had put aside gets its place back if that is free.

    Another's folder is not touched: one that is a link, is locked, or holds files and no mark of a lock.
    """
    found = [(path, match) for path in _entries(parent) if (match := LEFT.fullmatch(path.name))]
    for path, match in found:
        if match["what"] == "writing" and ((path / HOLDER).is_file() or not any(_entries(path))):
            with suppress(InUse, OSError), Lock(path):
                shutil.rmtree(path, ignore_errors=True)
    for path, match in found:
        writing = path.with_name(f".{match['name']}.writing-{match['number']}")
        if match["what"] == "before" and not writing.exists():
            with suppress(OSError):
                place = parent / match["name"]
                shutil.rmtree(path) if place.exists() else path.rename(place)


def _entries(folder: Path) -> list[Path]:
    """The folders and files in a folder, without links; none where it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not path.is_symlink())
    except OSError:
        return []
