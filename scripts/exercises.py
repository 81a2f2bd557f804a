"""Write the exercises into a folder: a file each, with the signature and the shapes, in which you write the rest.

python scripts/exercises.py --out my                     # my/running_mean_loop.py, ..., my/linear_attention.py
python scripts/check.py --exercise multi_head my/multi_head.py
python scripts/exercises.py --hint multi_head            # if you are stuck; in German with --language de
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.learning.exercises import hand_out, hint
from minigpt.learning.languages import LANGUAGES, use_language
from minigpt.system import places
from minigpt.system.errors import UserError
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Write the files, or print a hint."""
    use_language(arguments.language)
    if arguments.hint and arguments.out is not None:
        raise UserError("--hint and --out: give one of them")
    if arguments.hint:
        say(hint(arguments.hint))
        return
    if arguments.out is None:
        raise UserError("--out DIR: give a folder for the exercises (or --hint NAME)")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise UserError(f"--out {arguments.out}: is no folder")
    written, kept = hand_out(arguments.out)
    if kept:
        say(f"kept as they are: {', '.join(path.name for path in kept)}")
    say(f"wrote {len(written)} exercises into {arguments.out}; check them: {places.command('check')} {arguments.out}")


if __name__ == "__main__":
    parser = command.parser("Write the exercises into a folder.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder; files that are there stay as they are")
    parser.add_argument("--hint", metavar="NAME", help="print the hint of an exercise")
    parser.add_argument("--language", choices=list(LANGUAGES), default="en", help="of their texts")
    arguments = parser.parse_args()
    sys.exit(command.execute(main, arguments))
