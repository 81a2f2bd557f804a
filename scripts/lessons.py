"""The lessons: ten minutes each, from a mean to your own attention. Predict, then see.

python scripts/lessons.py                       # lists them
python scripts/lessons.py 1                     # one of them, here; it asks for your guesses
python scripts/lessons.py --notebooks my        # all of them as notebooks: my/lesson_01_average.ipynb, ...
python scripts/lessons.py --html lessons.html   # all of them as one page, for a browser
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.fast.threads import use_threads
from minigpt.learning.as_notebook import write_notebooks
from minigpt.learning.as_page import page
from minigpt.learning.course import lesson_of, lessons, walk_through
from minigpt.seeing.document import check_place, write_page
from minigpt.system import places
from minigpt.system.errors import UserError
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """List the lessons, go through one, or write them all."""
    if sum(x is not None for x in (arguments.number, arguments.notebooks, arguments.html)) > 1:
        raise UserError("a number, --notebooks and --html: give one of them")
    use_threads(1)  # the models are tiny
    if arguments.number is not None:
        walk_through(lesson_of(arguments.number))
    elif arguments.notebooks is not None:
        if arguments.notebooks.exists() and not arguments.notebooks.is_dir():
            raise UserError(f"--notebooks {arguments.notebooks}: is no folder")
        written, existing = write_notebooks(arguments.notebooks)
        if existing:
            say(f"kept as they are: {', '.join(path.name for path in existing)}")
        say(f"wrote {len(written)} notebooks into {arguments.notebooks}")
    elif arguments.html is not None:
        check_place(arguments.html)  # before the minutes that the lessons take
        html = page()
        say(f"wrote {write_page(arguments.html, html)}: {len(html.encode()):,} bytes")
    else:
        for lesson in lessons():
            say(f"{lesson.number:>3}  {lesson.title}")
        say(f"\n{places.command('lessons')} 1 goes through the first one")


if __name__ == "__main__":
    parser = command.parser("Go through a lesson, or write all of them as notebooks or as a page.")
    parser.add_argument("number", nargs="?", type=int, metavar="N", help="the lesson to go through; without it: a list")
    parser.add_argument("--notebooks", type=Path, metavar="DIR", help="write them as notebooks into this folder")
    parser.add_argument("--html", type=Path, metavar="FILE", help="run them all, and write one page")
    sys.exit(command.execute(main, parser.parse_args()))
