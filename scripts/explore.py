"""Look into a trained model: one HTML page shows how it reads a text, with all attention weights and their computation.

python scripts/explore.py --prompt "Mia was a shy fox. She met Tom." --open
python scripts/explore.py --run runs/tiny --prompt "Mia was a shy fox." --out page.html
python scripts/explore.py --prompt "Mia was a shy fox." model.attention=average_softmax       # another attention in it
python scripts/explore.py --whole --open                        # the whole model, on a text of the run's own language
python scripts/explore.py --whole --live --out model.html       # the page holds the weights, and reads any text
python scripts/explore.py --whole --run tiny --beside mine      # two runs beside each other

The page needs no network and no server: it opens from the disk, and can be mailed.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
import webbrowser
from pathlib import Path

from minigpt import command
from minigpt.fast.threads import use_threads_to_sample
from minigpt.model import count_parameters
from minigpt.seeing.document import check_place
from minigpt.system.errors import UserError
from minigpt.training.report import say
from minigpt.training.run import load, newest_run


def main(arguments: argparse.Namespace) -> None:
    """Make the page of a prompt, and open it if asked to."""
    if not arguments.prompt and not arguments.whole:
        raise UserError("--prompt: give a text to look at")
    if not arguments.whole and (arguments.live or arguments.beside):
        raise UserError("--live and --beside are of the page of the whole model: give --whole too")
    if arguments.out:
        check_place(arguments.out)
    run = load(newest_run(arguments.run), "cpu", overrides=arguments.overrides)
    command.special(run, arguments)
    use_threads_to_sample(sum(count_parameters(run.model).values()))
    beside = load(newest_run(arguments.beside), "cpu") if arguments.beside else None
    made_by = command.typed()
    page = run.explore(arguments.prompt, arguments.out, made_by, arguments.whole, arguments.live, beside)
    if page.outside:
        say(page.outside)
    say(f"wrote {page.path}: {page.path.stat().st_size:,} bytes; open it in a browser")
    if arguments.open and not webbrowser.open(page.path.absolute().as_uri()):
        raise UserError(f"--open: no browser was found; open {page.path} yourself")


if __name__ == "__main__":
    parser = command.parser("Make a page on which a trained model reads a text." + command.SWAPS)
    parser.add_argument("--run", default="", metavar="RUN", help=command.RUN)
    parser.add_argument("--prompt", default="", metavar="TEXT", help="the text to look at")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the page goes (default: explorer.html or whole.html in the run)"
    )
    parser.add_argument("--whole", action="store_true", help="show the whole model as a flow, from text to next token")
    parser.add_argument("--live", action="store_true", help="with --whole: put the weights into the page")
    parser.add_argument("--beside", default="", metavar="RUN", help="with --whole: another run beside it")
    command.add_special(parser)
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    sys.exit(command.execute(main, command.parse(parser)))
