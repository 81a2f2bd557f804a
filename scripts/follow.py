"""Follow x through an attention: every function of minigpt that runs, and how many lines there are to read.

python scripts/follow.py                                        # multi_head with rotary
python scripts/follow.py --attention average_loop --position none
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys

from minigpt import command
from minigpt.attention import Attention, Position
from minigpt.seeing.reading import table
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Print a line for each file, and the sum."""
    lines, _, _ = table(arguments.attention, arguments.position)
    say("\n".join(lines))


if __name__ == "__main__":
    parser = command.parser("How much there is to read between an attention's x and its output.")
    parser.add_argument("--attention", default="multi_head", choices=sorted(Attention.kinds), help="a kind")
    parser.add_argument("--position", default="rotary", choices=sorted(Position.kinds), help="a position")
    arguments = parser.parse_args()
    sys.exit(command.execute(main, arguments))
