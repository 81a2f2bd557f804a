"""Train kinds of attention at several sizes, fit a power law, and predict the loss of the size that was held out.

python scripts/scaling.py                                                     # configs/scaling.yaml
python scripts/scaling.py --name three scaling.hold_out=2 scaling.seeds="[1, 2, 3, 4]"
python scripts/scaling.py --name tuned "training.optimizer.learning_rate=[0.01, 0.02, 0.04]"   # a grid: all are tried
python scripts/scaling.py --plugin mine.py --name mine kinds="{multi head: {}, mine: {model.attention: mine}}"

If it was stopped, the same command continues.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys

from minigpt import command
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.figures import write_figures
from minigpt.comparison.sizes import load_scaling, refuse_fewer_kinds, refuse_other_settings
from minigpt.system.errors import UserError
from minigpt.system.folder import first_lines
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Train the runs that are missing, print the table and write the page."""
    scaling = load_scaling(arguments.config, arguments.overrides, arguments.name, say)
    experiment = Experiment(scaling, arguments.plugin, False, skip_checks=arguments.skip_checks)
    refuse_other_settings(scaling, experiment.jobs(), experiment.trials())
    refuse_fewer_kinds(scaling)
    summary, failures = experiment.finish(command.typed())
    say("")
    say(experiment.report.in_words(summary))
    if arguments.figures is not None:
        write_figures(summary, arguments.figures, say)
    say(f"\n{scaling.folder / 'page.html'} shows the results; results.json and results.csv have the numbers")
    if failures:
        raise UserError(f"{'; '.join(first_lines(failures))}; the same command tries the failed runs again")


if __name__ == "__main__":
    parser = command.parser("Train kinds of attention at several sizes, and fit how their loss falls.")
    default = "the experiment: a path, or a name of minigpt's (default: scaling.yaml)"
    parser.add_argument("--config", default="scaling.yaml", metavar="FILE", help=default)
    parser.add_argument("--name", default="", help="folder in runs/scaling/ (default: the config's name)")
    figures = "also write the chart as growth-light.svg and growth-dark.svg into this folder"
    parser.add_argument("--figures", type=command.a_path, metavar="DIR", help=figures)
    parser.add_argument("--skip-checks", action="store_true", help="train without checking the models first")
    arguments, overrides = parser.parse_known_args()
    command.no_leftovers(parser, overrides)
    arguments.overrides = overrides
    sys.exit(command.execute(main, arguments))
