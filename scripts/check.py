"""Check an attention that you wrote: is it right, and if not, what is wrong, in which line.

python scripts/check.py my_attention.py                       # many heads
python scripts/check.py my_attention.py --as multi_head,rotary
python scripts/check.py my_functions.py --as attend

The file is best ended with a line like `attention = MyAttention(48, 6)`, so that nothing has to be guessed.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.grading.child import grade
from minigpt.grading.targets import TARGETS
from minigpt.runs.report import say


def main(arguments: argparse.Namespace) -> None:
    """Print the report on one file."""
    report = grade(arguments.file, arguments.target)
    say(str(report))
    arguments.exit_code = report.exit_code


if __name__ == "__main__":
    parser = command.parser("Check an attention that you wrote, and name the bug.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a Python file with a module or a function")
    parser.add_argument(
        "--as", dest="target", default="multi_head", metavar="TARGET",
        help=f"one of {', '.join(TARGETS)}; options of a "
        "module behind it: rotary, alibi, window=4, cache, full, as in multi_head,rotary"
    )  # fmt: skip
    arguments = parser.parse_args()
    code = command.execute(main, arguments)
    sys.exit(code or arguments.exit_code)
