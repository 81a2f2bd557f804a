"""Another attention in a trained model: one table and one page of how much loss each swap costs.

python scripts/swap.py --run tiny
python scripts/swap.py --run smollm2 --text my.txt                                  # a run without a text of its own
python scripts/swap.py --run smollm2 --text my.txt --steps 8 --only "window 64"     # and after 8 steps of training

The rows are those of configs/swaps.yaml, or of --config. If it was stopped, the same command continues.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys

from minigpt import command
from minigpt.comparison.page import page_of_swaps
from minigpt.comparison.summary import aligned
from minigpt.comparison.swaps import Swaps, SwapsConfig
from minigpt.config import options as config
from minigpt.fast.threads import use_threads
from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.terminal import one_line
from minigpt.training.report import say
from minigpt.training.run import newest_run, open_run

WITHOUT_STEPS = ("training.device", "training.threads")  # these say how the text is read, too


def main(arguments: argparse.Namespace) -> None:
    """Measure what is missing, print the table and write the page."""
    if arguments.steps < 0:
        raise UserError(f"--steps: expected at least 0, found {arguments.steps}")
    check_effects(arguments.overrides, arguments.steps)
    settings = config.load(SwapsConfig, arguments.config, arguments.overrides)
    use_threads(settings.training.threads)
    source = open_run(newest_run(arguments.run))
    swaps = Swaps(source, settings, arguments.text, arguments.steps, say, arguments.name)
    say(f"text: {swaps.corpus.description}")
    try:
        swaps.run(arguments.only)
    finally:
        if swaps.measurement(swaps.rows[0]) is not None:
            command_line = command.typed()
            write_whole(swaps.folder / "page.html", page_of_swaps(swaps, command_line))
    say("")
    say("\n".join([*aligned(swaps.table()), *filter(None, ["", one_line(swaps.judged()[1])])]))
    say(f"\n{swaps.folder / 'page.html'} shows the results; the same command goes on where it was stopped")


def check_effects(overrides: list[str], steps: int) -> None:
    """Raises UserError for a training option without --steps, and for training.max_steps, which --steps sets."""
    for key in (override.partition("=")[0] for override in overrides):
        if key == "training.max_steps":
            raise UserError("training.max_steps: --steps says how many; give that")
        trains = key == "training_length" or key.startswith("training.")
        command.effect(key, trains and key not in WITHOUT_STEPS, "--steps", steps > 0)


if __name__ == "__main__":
    parser = command.parser("Measure how much loss another attention costs in a trained model.")
    parser.add_argument("--run", default="", metavar="RUN", help=command.RUN)
    parser.add_argument("--text", default="", metavar="FILE", help="the text to read (default: the run's own)")
    parser.add_argument("--config", default="swaps.yaml", metavar="FILE", help="the rows (default: configs/swaps.yaml)")
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="also train each model for N steps")
    only = "measure this row, and the model as it is, and no other; may be given several times"
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=only)
    parser.add_argument("--name", default="", help="folder in runs/swap/ (default: the run's name)")
    arguments, overrides = parser.parse_known_args()
    command.no_leftovers(parser, overrides, "pieces=16")
    arguments.overrides = overrides
    sys.exit(command.execute(main, arguments))
