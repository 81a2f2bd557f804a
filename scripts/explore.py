"""Look into a trained model: one HTML page shows how it reads a text, with all attention weights and their computation.

python scripts/explore.py --prompt "Mia was a shy fox. She met Tom." --open
python scripts/explore.py --run runs/tiny --prompt "Mia was a shy fox." --out page.html
python scripts/explore.py --prompt "Mia was a shy fox." model.attention=average_softmax       # another attention in it

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
    if not arguments.prompt:
        raise UserError("--prompt: give a text to look at")
    if arguments.out:
        check_place(arguments.out)
    run = load(newest_run(arguments.run), "cpu", overrides=arguments.overrides)
    command.special(run, arguments)
    use_threads_to_sample(sum(count_parameters(run.model).values()))
    page = run.explore(arguments.prompt, arguments.out, made_by=command.typed())
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
        "--out", type=Path, metavar="FILE", help="where the page goes (default: explorer.html in the run)"
    )
    command.add_special(parser)
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    sys.exit(command.execute(main, command.parse(parser)))
