"""Renames and removals: those of the whole package. What the system refuses for a moment is tried again.

Windows refuses them while another program (an indexer, a virus scanner, a copy) has a file open. So do file systems of
a network, and every system refuses to remove a folder into which another program is writing.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from minigpt.system.terminal import complain, one_line
from minigpt.system.waiting import progress

PATIENCE = 5.0  # seconds for which something refused is tried again
WINDOWS = {5: errno.EACCES, 32: errno.EACCES, 33: errno.EACCES, 112: errno.ENOSPC}  # refused, in use, locked, full
FOR_A_MOMENT = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.ETXTBSY, errno.ENOTEMPTY, errno.EEXIST)


class Refused(OSError):
    """The system has refused a rename or a removal for PATIENCE seconds."""


def error_number(code: int) -> int:
    """The errno of an error that a library names by the system's own number, which is another one on Windows."""
    return WINDOWS.get(code, code) if sys.platform == "win32" else code


def rename(old: Path, new: Path) -> None:
    """Rename a file or a folder; a file or an empty folder that has the new name is replaced (not by Windows).

    Raises Refused; other OSErrors are raised at once.
    """
    patiently(lambda: os.replace(old, new), f"{old} cannot be renamed to {new.name}")


def remove(path: Path, patience: float | None = None) -> None:
    """Remove a file, or a folder with all that is in it, if it is there. Raises as `rename` does."""

    def call() -> None:
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except FileNotFoundError as error:
            if os.path.lexists(path):  # somebody else removes what is in it
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY)) from error

    patiently(call, f"{path} cannot be removed", patience)


def discard(path: Path, warns: bool = True) -> None:
    """`remove` for what nobody needs: raises no OSError. What stays is told in a line, or, untold, tried only once."""
    try:
        remove(path, None if warns else 0.0)
    except OSError as error:
        if warns:
            complain(one_line(f"warning: {path} stays there: {error}"))


def patiently(call: Callable[[], None], problem: str, patience: float | None = None) -> None:
    """Make a call, again and again while the system refuses it. Raises Refused, which begins with `problem`."""
    patience = PATIENCE if patience is None else patience
    deadline = time.monotonic() + patience

    def tries() -> Iterator[None]:
        pause = 0.01
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in FOR_A_MOMENT:
                    raise
                if time.monotonic() >= deadline:
                    tried = f"tried for {patience:g} s: does another program have it open?"
                    refused = Refused(f"{problem}: {error.strerror or error} ({tried})")
                    refused.errno = error.errno
                    raise refused from error
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
            yield

    for _ in progress(tries(), f"{problem} yet"):
        pass
