"""Train kinds of attention at several sizes, fit a power law, and predict the loss of the size that was held out.

python scripts/scaling.py                                                     # configs/scaling.yaml
python scripts/scaling.py --name three scaling.hold_out=2 scaling.seeds="[1, 2, 3, 4]"
python scripts/scaling.py --plugin mine.py --name mine kinds="{multi head: {}, mine: {model.attention: mine}}"

If it was stopped, the same command continues.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import json
import shlex
import sys
from pathlib import Path

from minigpt import command
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.growth import csv_rows, lines, sentences, summarise
from minigpt.comparison.growth_chart import picture
from minigpt.comparison.growth_page import page
from minigpt.comparison.sizes import Scaling, load_scaling, refuse_fewer_kinds, refuse_other_settings
from minigpt.comparison.summary import aligned, to_csv
from minigpt.inspection.figures import THEMES
from minigpt.runs.report import say
from minigpt.system.errors import UserError
from minigpt.system.folder import first_lines, write_whole
from minigpt.system.terminal import one_line


def main(arguments: argparse.Namespace) -> None:
    """Train the runs that are missing, print the table and write the page."""
    scaling = load_scaling(arguments.config, arguments.overrides, arguments.name, say)
    experiment = Experiment(scaling, arguments.plugin, False, skip_checks=arguments.skip_checks)
    refuse_other_settings(scaling, experiment.jobs(), experiment.trials())
    refuse_fewer_kinds(scaling)
    with experiment.alone():
        notes, failures = experiment.train()
        write(scaling, experiment, notes, arguments.figures)
    if failures:
        raise UserError(f"{'; '.join(first_lines(failures))}; the same command tries the failed runs again")


def write(scaling: Scaling, experiment: Experiment, notes: list[str], figures: Path | None) -> None:
    """Print the table, and write the page and the figures."""
    said = shlex.join(["python", "scripts/scaling.py", *sys.argv[1:]])
    results = [(job, result) for job, result, _ in experiment.results() if result]
    trained = experiment.comparison  # with what trials have chosen
    assert isinstance(trained, Scaling)
    summary = summarise(trained, results, said, notes, experiment.tuning)
    folder = scaling.folder
    write_whole(folder / "results.json", json.dumps(summary, indent=1, allow_nan=False))
    write_whole(folder / "results.csv", to_csv(csv_rows(summary)))
    write_whole(folder / "page.html", page(summary))
    say("")
    say("\n".join([*aligned(lines(summary)), "", *map(one_line, sentences(summary))]))
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for theme in THEMES:
            write_whole(figures / f"growth-{theme}.svg", picture(summary, theme))
    say(f"\n{folder / 'page.html'} shows the results; results.json and results.csv have the numbers")


if __name__ == "__main__":
    parser = command.parser("Train kinds of attention at several sizes, and fit how their loss falls.")
    default = "the experiment, by path or name in configs/ (default: scaling.yaml)"
    parser.add_argument("--config", default="scaling.yaml", metavar="FILE", help=default)
    parser.add_argument("--name", default="", help="folder in runs/scaling/ (default: the config's name)")
    figures = "also write the chart as growth-light.svg and growth-dark.svg into this folder"
    parser.add_argument("--figures", type=command.a_path, metavar="DIR", help=figures)
    parser.add_argument("--skip-checks", action="store_true", help="train without checking the models first")
    arguments, overrides = parser.parse_known_args()
    command.no_leftovers(parser, overrides)
    arguments.overrides = overrides
    sys.exit(command.execute(main, arguments))
