"""Compare attentions, or anything else that a config can say: fairly, with intervals, and as a page to look at.

python scripts/compare.py --config ladder.yaml                            # the rungs of the ladder
python scripts/compare.py --config ladder.yaml compare.match=parameters   # the same with equal parameters
python scripts/compare.py --config positions.yaml                         # how a model is told where a token stands

The same command goes on where it was stopped.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import shlex
import sys

from minigpt import command
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.summary import table
from minigpt.comparison.variants import load_comparison
from minigpt.runs.report import say


def main(arguments: argparse.Namespace) -> None:
    """Train what is not trained yet, and say what came of it."""
    comparison = load_comparison(arguments.config, arguments.overrides, arguments.name)
    said = shlex.join(["python", "scripts/compare.py", *sys.argv[1:]])
    summary = Experiment(comparison, arguments.plugin, arguments.allow_leak).run(said)
    say("")
    say(table(summary))
    say(f"\n{comparison.folder / 'page.html'} shows it; results.json and results.csv beside it hold the numbers")


if __name__ == "__main__":
    parser = command.parser("Compare variants of a model, fairly.")
    parser.add_argument("--config", required=True, metavar="FILE", help="a comparison, by path or name in configs/")
    parser.add_argument("--name", default="", help="folder in runs/compare/ (default: the config's name)")
    parser.add_argument("--allow-leak", action="store_true", help="compare even what sees the future")
    arguments, overrides = parser.parse_known_args()
    command.no_leftovers(parser, overrides)
    arguments.overrides = overrides
    sys.exit(command.execute(main, arguments))
