"""Check a program that you wrote or found: is it right, and if not, which law does it break, in which line?

python scripts/check.py my_attention.py                       # what is it right as, or nearest to?
python scripts/check.py my_attention.py --lines               # what each line of it makes
python scripts/check.py model.py::CausalSelfAttention         # one class of a file
python scripts/check.py my_attention.py --as multi_head,rotary
python scripts/check.py --exercise rotary my/rotary.py        # an exercise (python scripts/exercises.py --out my)
python scripts/check.py my                                    # all exercises in a folder
python scripts/check.py class --csv class.csv                 # a folder of such folders: a table
python scripts/check.py class --page class.html --reports back   # with the answers to lessons; a page for each learner

The exit code is 0 if everything is right, else 2.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.checks.laws.target import SORTS
from minigpt.checks.learners.confined import grade
from minigpt.learning.answers import answers_of, class_page, in_short, learner_page, report_names
from minigpt.learning.classroom import grade_all, learners, one_exercise, table, tasks_of, write_csv
from minigpt.learning.exercises import EXERCISES
from minigpt.learning.languages import LANGUAGES, use_language
from minigpt.seeing.document import check_place, write_page
from minigpt.system.errors import UserError
from minigpt.system.terminal import shows_colors
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Print the report on one file, or the table of a folder."""
    name, _, part = arguments.file.partition("::")
    file, exercise = Path(name), arguments.exercise
    if exercise or file.is_dir():
        alone = "--exercise" if exercise else "a folder of exercises"
        given = {"--as": arguments.target, "--csv": exercise and arguments.csv, f"::{part}": part}
        given |= {"--lines": file.is_dir() and arguments.lines}
        for option in (option for option, value in given.items() if value):
            raise UserError(f"{option} and {alone}: give one of them")
    for option, path in (("--csv", arguments.csv), ("--page", arguments.page), ("--reports", arguments.reports)):
        if path and (exercise or not file.is_dir()):
            raise UserError(f"{option}: is for a folder of exercises; {file} is none")
    if arguments.page:
        check_place(arguments.page)
    use_language(arguments.language)
    if exercise:
        grade_of_one = one_exercise(file, exercise, arguments.lines)
        say(str(grade_of_one))
        arguments.exit_code = 0 if grade_of_one.right else 2
    elif file.is_dir():
        tasks = tasks_of(file)
        grades, answers = grade_all(tasks), answers_of(tasks)
        say(table(grades))
        if arguments.csv:
            short = {who: {n: in_short(given) for n, given in own.items()} for who, own in answers.items()}
            write_csv(grades, arguments.csv, short)
        if arguments.page:
            say(f"wrote {write_page(arguments.page, class_page(grades, answers))}")
        if arguments.reports:
            arguments.reports.mkdir(parents=True, exist_ok=True)
            by_learner = learners(grades)
            for who, name in report_names(list(by_learner)).items():
                write_page(arguments.reports / name, learner_page(who, by_learner[who], answers.get(who, {})))
            say(f"wrote {len(by_learner)} reports into {arguments.reports}")
        arguments.exit_code = 0 if all(each.right for each in grades) else 2
    else:
        report = grade(file, arguments.target or "", part, arguments.lines)
        say(report.text(shows_colors()))
        arguments.exit_code = report.exit_code


if __name__ == "__main__":
    parser = command.parser("Check a program: is it right, and if not, which law does it break, in which line?")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a Python file with a module or a function, or FILE::NAME; or a folder of exercises",
    )
    parser.add_argument(
        "--as", dest="target", metavar="TARGET",
        help=f"what it should be; by default what it is nearest to. One of {', '.join(SORTS)}, or an attention of "
        "minigpt; options behind it: rotary, alibi, window=4, cache, full, as in multi_head,rotary"
    )  # fmt: skip
    parser.add_argument("--lines", action="store_true", help="show each line of the file beside what it makes")
    parser.add_argument("--exercise", metavar="NAME", help=f"the file is this exercise: {', '.join(EXERCISES)}")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table of a folder into this file too")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write what a class has answered and handed in as a page"
    )
    parser.add_argument("--reports", type=Path, metavar="DIR", help="write a page for each learner into this folder")
    parser.add_argument("--language", choices=list(LANGUAGES), default="en", help="of the page and the reports")
    arguments = parser.parse_args()
    code = command.execute(main, arguments)
    sys.exit(code or arguments.exit_code)
