"""The kinds of attention as a tree: what each one is, with which option, and what it adds.

python scripts/kinds.py                        # all of them
python scripts/kinds.py multi_head             # one: formula, papers, options, and its edges as measured now
python scripts/kinds.py --readme               # write the table and the pictures of minigpt/attention/README.md
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys

from minigpt import command
from minigpt.seeing.catalogue import as_markdown, as_svg, as_text, describe
from minigpt.seeing.drawing import THEMES
from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.places import CHECKOUT, PACKAGE, PICTURES
from minigpt.training.report import say

README = PACKAGE / "attention" / "README.md"
MARK = "<!-- python scripts/kinds.py --readme -->\n"


def main(arguments: argparse.Namespace) -> None:
    """Print the tree or one kind, or write the table and the pictures."""
    if arguments.readme and arguments.name:
        raise UserError("a kind and --readme: give one of them; --readme writes the table of all")
    if arguments.readme and CHECKOUT is None:
        raise UserError("--readme: it writes into a checkout, and this minigpt is installed without one")
    if arguments.readme:
        before, _, after = README.read_text(encoding="utf-8").split(MARK)
        write_whole(README, f"{before}{MARK}{as_markdown()}\n{MARK}{after}")
        say(f"wrote {README}")
        for name, theme in THEMES.items():
            write_whole(PICTURES / f"kinds-{name}.svg", as_svg(theme))
            say(f"wrote {PICTURES / f'kinds-{name}.svg'}")
    else:
        say(describe(arguments.name) if arguments.name else as_text())


if __name__ == "__main__":
    parser = command.parser("Show the kinds of attention, and where one equals another.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a kind to look at closely")
    parser.add_argument("--readme", action="store_true", help="write the table and pictures of minigpt/attention")
    arguments = parser.parse_args()
    sys.exit(command.execute(main, arguments))
