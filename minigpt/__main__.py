"""The commands of an installed minigpt: `minigpt train ...` does what `python scripts/train.py ...` does in a checkout.

minigpt                                     # lists them
python -m minigpt train --config tiny.yaml
torchrun --nproc-per-node 2 -m minigpt train --config tiny.yaml
"""

from __future__ import annotations

import ast
import runpy
import sys

from minigpt.system.errors import meant
from minigpt.system.places import SCRIPTS
from minigpt.system.terminal import complain, give_up
from minigpt.system.version import __version__, commit

BEGINNING = "begin"  # what the scripts share; no command


def main() -> None:
    """Run the script that the first argument names as Python does: imports are looked up in its folder first."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    names = [path.stem for path in sorted(SCRIPTS.glob("*.py")) if path.stem != BEGINNING]
    if name in ("-h", "--help"):
        say("\n".join(overview(names)))
    elif name == "--version":
        say(f"minigpt {__version__} ({commit() or 'of an unknown commit'})")
    elif name not in names:
        complain(f"error: there is no command {name!r}{meant(name, names)} (known: {', '.join(names)})")
        sys.exit(2)
    else:
        del sys.argv[1]
        sys.path.insert(0, str(SCRIPTS))
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


def say(text: str) -> None:
    """Print a text. Ends as `command.py` does where nobody reads on."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        give_up(sys.stdout)
        sys.exit(141)


def overview(names: list[str]) -> list[str]:
    """A line for each command: its name, and the first sentence of its file."""
    width = max(map(len, names))
    lines = [f"  {name:{width}}  {first_line(name)}" for name in names]
    return ["The commands of minigpt; --help behind one of them lists its options:", *lines]


def first_line(name: str) -> str:
    """What the file of a command says that it is."""
    text = ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0]


if __name__ == "__main__":
    main()
