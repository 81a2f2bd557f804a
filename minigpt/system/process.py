"""How one Python process starts another: with its own folders of modules, and never with the current folder."""

from __future__ import annotations

import os
import sys

IGNORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # a Ctrl-C is for the process that asked


def python_command(statement: str, *arguments: str) -> list[str]:
    """The command of a process that executes a statement and imports from the folders that this process imports from.

    `python -m` and `python -c` look into the current folder first, where a stray torch.py or queue.py would be taken
    for the real one. (Python 3.11 has `-P` against that, 3.10 has not.) Here `sys.path` is replaced before anything
    is imported.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {folders!a}; {statement}", *arguments]
