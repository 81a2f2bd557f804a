"""The lessons: ten minutes each, from a mean to your own attention. Predict, then see.

python scripts/lessons.py                    # lists them
python scripts/lessons.py 1                  # one of them, here; it asks for your guesses
python scripts/lessons.py 5 --page           # as a page that asks, judges and answers: lessons/lesson_05_scale.html
python scripts/lessons.py --page             # all of them, with an index: lessons/index.html
python scripts/lessons.py --notebooks my     # all of them as notebooks: my/lesson_01_average.ipynb, ...
python scripts/lessons.py 5 --language de    # in German, also with --page and --notebooks
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.fast.threads import use_threads
from minigpt.learning.as_notebook import write_notebooks
from minigpt.learning.as_page import write_pages
from minigpt.learning.course import lesson_of, lessons, walk_through
from minigpt.learning.languages import LANGUAGES, speaks, use_language
from minigpt.system import places
from minigpt.system.errors import UserError
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """List the lessons, go through one, or write them all."""
    if arguments.notebooks is not None and (arguments.number is not None or arguments.page is not None):
        raise UserError("--notebooks writes all lessons as notebooks: give it without a number and without --page")
    for option, folder in (("--notebooks", arguments.notebooks), ("--page", arguments.page)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise UserError(f"{option} {folder}: is no folder")
    use_threads(1)  # the models are tiny
    use_language(arguments.language)
    if arguments.page is not None:
        chosen = lessons() if arguments.number is None else [lesson_of(arguments.number)]
        written = write_pages(arguments.page, chosen)
        say(f"wrote {written[-1]}: open it in a browser")
        english = [str(lesson.number) for lesson in chosen if not speaks(lesson.path.stem)]
        if english:
            say(f"not translated yet, so in English: {', '.join(english)}")
    elif arguments.number is not None:
        walk_through(lesson_of(arguments.number))
    elif arguments.notebooks is not None:
        written, existing = write_notebooks(arguments.notebooks)
        if existing:
            say(f"kept as they are: {', '.join(path.name for path in existing)}")
        say(f"wrote {len(written)} notebooks into {arguments.notebooks}")
    else:
        for lesson in lessons():
            say(f"{lesson.number:>3}  {lesson.title}")
        say(f"\n{places.command('lessons')} 1 goes through the first one")


if __name__ == "__main__":
    parser = command.parser("Go through a lesson, or write lessons as pages or notebooks.")
    parser.add_argument("number", nargs="?", type=int, metavar="N", help="the lesson; without it: a list, or all")
    parser.add_argument("--notebooks", type=Path, metavar="DIR", help="write them as notebooks into this folder")
    parser.add_argument(
        "--page", nargs="?", const=Path("lessons"), type=Path, metavar="DIR",
        help="run the lesson, or all, and write them as pages into this folder (lessons)",
    )  # fmt: skip
    parser.add_argument("--language", choices=list(LANGUAGES), default="en", help="of the texts, where translated")
    sys.exit(command.execute(main, parser.parse_args()))
