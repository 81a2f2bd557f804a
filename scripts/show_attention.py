"""Show the attention weights of every layer and head of a trained model for a text.

python scripts/show_attention.py --prompt "Mia was a shy fox. She met Tom."     # a PNG in the run's folder
python scripts/show_attention.py --prompt "Mia was a shy fox." --layer 4 --head 3 --out head.svg

Without the extra `plot` (pip install -e ".[plot]") the maps are drawn in the terminal; with it, --text does that too.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import shutil
import sys
from pathlib import Path

from minigpt import command
from minigpt.inspection.maps import sums, write_maps
from minigpt.inspection.pictures import can_plot, heat_map
from minigpt.runs.report import say
from minigpt.runs.run import load, newest_run
from minigpt.seeing.document import place_of
from minigpt.system.counting import chosen
from minigpt.system.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    """Draw the attention maps of a prompt: as a picture if matplotlib is installed or --out given, else as text."""
    if not arguments.prompt:
        raise UserError("--prompt: give a text to look at")
    if arguments.out and arguments.text:
        raise UserError("--out and --text: give one of them")
    run = load(newest_run(arguments.run), "cpu", overrides=arguments.overrides)
    command.special(run, arguments)
    every, labels = run.maps(arguments.prompt), run.labels(arguments.prompt)
    heads = [sum(one.layer == layer for one in every) for layer in range(len(run.model.blocks))]
    wanted = chosen(heads, arguments.layer, arguments.head)
    maps = [one for one in every if (one.layer, one.head) in wanted]
    if arguments.out or (can_plot() and not arguments.text):
        path = arguments.out or place_of(run.folder, "attention.png", run.overrides)
        write_maps(maps, labels, path)
        say(f"wrote {path}: {len(maps)} maps; rows are queries, columns are keys")
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for one in maps:
        signs = ", digits are negative weights in tenths of it" if one.signed else ""
        rows = f"{found}, each as it says at its right" if (found := sums(one.weights)) else "each row sums to 1"
        say(f"{one.title}: rows are queries, columns are keys; @ is a row's largest weight{signs}; {rows}\n")
        say(heat_map(one.weights, labels, width) + "\n")


if __name__ == "__main__":
    parser = command.parser("Show the attention weights of every layer and head for a text." + command.SWAPS)
    parser.add_argument("--run", default="", metavar="RUN", help="folder or name of a run (default: the newest)")
    parser.add_argument("--prompt", default="", help="the text to look at")
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer, counted from 1")
    parser.add_argument("--head", type=int, metavar="N", help="only this head of each layer, counted from 1")
    command.add_special(parser)
    out = "the picture: .png, .pdf (both by matplotlib) or .svg (default: attention.png in the run)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    parser.add_argument("--text", action="store_true", help="draw in the terminal even where pictures can be made")
    arguments = command.parse(parser)
    sys.exit(command.execute(main, arguments))
