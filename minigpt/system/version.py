"""Which program this is: its version, and the commit of its source."""

from __future__ import annotations

import subprocess
from functools import cache

from minigpt.system.places import CHECKOUT, PACKAGE

__version__ = "0.1.0"
COMMIT = PACKAGE / "system" / "commit.txt"  # in what was built from a repository; a repository has none


@cache
def commit() -> str | None:
    """The commit of the source, with -dirty where its files were changed since; None where nothing tells."""
    if COMMIT.is_file():
        return COMMIT.read_text(encoding="utf-8").strip()
    if CHECKOUT is None or not (CHECKOUT / ".git").exists():
        return None
    words = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None  # there is no git, or it refuses another user's folder
