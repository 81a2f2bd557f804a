"""Compare attentions, or any other variants of a config, with confidence intervals and a page.

python scripts/compare.py --config staircase.yaml                         # which rung answers which question
python scripts/compare.py --config ladder.yaml                            # the rungs of the ladder on stories
python scripts/compare.py --config ladder.yaml compare.match=parameters   # the same with equal parameters
python scripts/compare.py --config positions.yaml                         # how a model is told where a token is
python scripts/compare.py --config ladder.yaml "training.optimizer.learning_rate=[0.02, 0.04]" --name rates  # a grid
python scripts/compare.py --config ladder.yaml --figures paper            # SVG, PDF and LaTeX; trains only missing runs

If it was stopped, the same command continues.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys

from minigpt import command
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.figures import write_figures
from minigpt.comparison.variants import load_comparison
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Train the runs that are missing and print the results."""
    command.one_permission(arguments)
    comparison = load_comparison(arguments.config, arguments.overrides, arguments.name, say, arguments.plugin)
    experiment = Experiment(comparison, arguments.plugin, arguments.allow_leak, skip_checks=arguments.skip_checks)
    summary = experiment.run(command.typed())
    say("")
    say(experiment.report.in_words(summary))
    if arguments.figures is not None:
        write_figures(summary, arguments.figures, say)
    say(f"\n{comparison.folder / 'page.html'} shows the results; results.json and results.csv have the numbers")


if __name__ == "__main__":
    parser = command.parser("Compare variants of a model on equal terms.")
    parser.add_argument("--config", required=True, metavar="FILE", help="a comparison: a path, or a name of minigpt's")
    parser.add_argument("--name", default="", help="folder in runs/compare/ (default: the config's name)")
    parser.add_argument("--allow-leak", action="store_true", help="train even a model that sees the future")
    parser.add_argument("--skip-checks", action="store_true", help="train without checking the models first")
    figures = "also write the charts as SVG and PDF (with matplotlib) and the tables as LaTeX into this folder"
    parser.add_argument("--figures", type=command.a_path, metavar="DIR", help=figures)
    arguments, overrides = parser.parse_known_args()
    command.no_leftovers(parser, overrides)
    arguments.overrides = overrides
    sys.exit(command.execute(main, arguments))
