"""Check an attention that you wrote: is it right, and if not, what is wrong, in which line.

python scripts/check.py my_attention.py                       # many heads
python scripts/check.py my_attention.py --as multi_head,rotary
python scripts/check.py my_functions.py --as attend
python scripts/check.py --exercise rotary my/rotary.py        # an exercise (python scripts/exercises.py --out my)
python scripts/check.py my                                    # all exercises in a folder
python scripts/check.py class --csv class.csv                 # a folder of such folders: a table

End the file with a line like `attention = MyAttention(48, 6)`, so that nothing has to be guessed. The exit code
is 0 if everything is right, else 2.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.grading.classroom import grade_all, one_exercise, table, tasks_of, write_csv
from minigpt.grading.confined import grade
from minigpt.grading.exercises import EXERCISES
from minigpt.grading.targets import TARGETS
from minigpt.runs.report import say
from minigpt.system.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    """Print the report on one file, or the table of a folder."""
    file, exercise = arguments.file, arguments.exercise
    if exercise or file.is_dir():
        alone = "--exercise" if exercise else "a folder of exercises"
        for option, given in (("--as", arguments.target is not None), ("--csv", exercise and arguments.csv)):
            if given:
                raise UserError(f"{option} and {alone}: give one of them")
    if arguments.csv and not file.is_dir():
        raise UserError(f"--csv: is for a folder of exercises; {file} is none")
    if exercise:
        grade_of_one = one_exercise(file, exercise)
        say(str(grade_of_one))
        arguments.exit_code = 0 if grade_of_one.right else 2
    elif file.is_dir():
        grades = grade_all(tasks_of(file))
        say(table(grades))
        if arguments.csv:
            write_csv(grades, arguments.csv)
        arguments.exit_code = 0 if all(each.right for each in grades) else 2
    else:
        report = grade(file, arguments.target or "multi_head")
        say(str(report))
        arguments.exit_code = report.exit_code


if __name__ == "__main__":
    parser = command.parser("Check an attention that you wrote, and name the bug.")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a Python file with a module or a function; or a folder of exercises"
    )
    parser.add_argument(
        "--as", dest="target", metavar="TARGET",
        help=f"(default: multi_head) one of {', '.join(TARGETS)}; options of a "
        "module behind it: rotary, alibi, window=4, cache, full, as in multi_head,rotary"
    )  # fmt: skip
    parser.add_argument("--exercise", metavar="NAME", help=f"the file is this exercise: {', '.join(EXERCISES)}")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table of a folder into this file too")
    arguments = parser.parse_args()
    code = command.execute(main, arguments)
    sys.exit(code or arguments.exit_code)
