"""Processes that take themselves for those of another system: Python imports `imitated/SYSTEM/sitecustomize.py` first.

So do the processes that they start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from running import ROOT, SCRIPTS, WAITING, Ended, environment

IMITATED = Path(__file__).with_name("imitated")
ENCODING = {"windows": "cp1252", "network": "utf-8"}  # of what is printed into a pipe
ONE_AFTER_ANOTHER = """
import os, runpy, minigpt.command, minigpt.training.start
system = os if hasattr(os, "fork") else sys.modules["sitecustomize"].plain  # with what the imitation takes away
for words in {commands}:
    if not (child := system.fork()):
        sys.argv = [str(word) for word in words]
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    assert not system.waitpid(child, 0)[1], words
"""


def like(system: str, *words: object, cwd: Path) -> Ended:
    """Run Python with these words in a process that imitates a system, to its end."""
    paths = [str(IMITATED / system), str(SCRIPTS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = environment(PYTHONPATH=os.pathsep.join(paths), MINIGPT_DATA=str(cwd / "data"))
    env |= {"PYTHONIOENCODING": ENCODING[system]}
    if system == "windows":
        env |= {"PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "ignore::EncodingWarning"}  # those of torch
    ended = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300
    )
    out, err = (each.decode(ENCODING[system]) for each in (ended.stdout, ended.stderr))
    return Ended(ended.returncode, out.replace("\r\n", "\n"), WAITING.sub("", err.replace("\r\n", "\n")))


def commands_like(system: str, *commands: tuple[str, ...], cwd: Path, code: str = "") -> Ended:
    """Run scripts of ours one after another in forks of one such process, then `code`: torch is imported once."""
    each = [(str(SCRIPTS / name), *words) for name, *words in commands]
    return like(system, "-c", "import sys\n" + ONE_AFTER_ANOTHER.format(commands=each) + code, cwd=cwd)
