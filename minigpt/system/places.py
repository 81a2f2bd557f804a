"""Where things are, in a checkout and in an installed package; and how a command is called there.

a checkout:   minigpt/      scripts/            configs/            data/
installed:    minigpt/      minigpt/scripts/    minigpt/configs/    the user's cache folder
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
CHECKOUT = None if (PACKAGE / "scripts").is_dir() else PACKAGE.parent
"""The folder of the checkout; None where the package is installed without one."""
SCRIPTS = (CHECKOUT or PACKAGE) / "scripts"
CONFIGS = (CHECKOUT or PACKAGE) / "configs"
PICTURES = (CHECKOUT or Path()) / "data" / "pictures"  # of the README


def data_folder() -> Path:
    """The folder of downloads and caches: MINIGPT_DATA, that of the checkout, or a cache folder of this user's."""
    if named := os.environ.get("MINIGPT_DATA"):
        return Path(named)
    if CHECKOUT:
        return CHECKOUT / "data"
    usual = {"win32": "~/AppData/Local", "darwin": "~/Library/Caches"}.get(sys.platform, "~/.cache")
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    return Path(os.path.expanduser(os.environ.get(variable) or usual)) / "minigpt"


def _called() -> str:
    """How this command was called, with {} for its name; in a notebook, as it would be called beside it."""
    typed = Path(sys.argv[0] if sys.argv else "")
    if typed.stem == "minigpt":
        return "minigpt {}"
    if typed == PACKAGE / "__main__.py":
        return "python -m minigpt {}"
    if typed.suffix == ".py" and typed.parent.absolute() == SCRIPTS:
        path = str(typed.parent / "{}.py")
        return f'python "{path}"' if " " in path else f"python {path}"
    return "python scripts/{}.py" if CHECKOUT else "minigpt {}"


CALLED = _called()


def command(name: str, launcher: str = "") -> str:
    """How a command is called here: `python scripts/NAME.py`, or `minigpt NAME`; or by a launcher, such as torchrun."""
    if launcher:
        program = "-m minigpt {}" if CALLED.startswith("minigpt") else CALLED.removeprefix("python ")
        return f"{launcher} {program.format(name)}"
    return CALLED.format(name)


def as_called(text: str) -> str:
    """A text that names commands as they are called in a checkout, with each as it is called here."""
    return re.sub(r"python scripts/(\w+)\.py", lambda match: command(match[1]), text)


def with_extra(name: str) -> str:
    """The command that installs an extra of this project."""
    return f'pip install -e ".[{name}]"' if CHECKOUT else f'pip install "minigpt[{name}]"'
