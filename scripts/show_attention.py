"""Show the attention weights of every layer and head of a trained model for a text.

python scripts/show_attention.py --prompt "Mia was a shy fox. She met Tom."     # in the terminal
python scripts/show_attention.py --prompt "Mia was a shy fox." --layer 4 --head 3 --out head.svg
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import shutil
import sys
from pathlib import Path

import torch
from torch import Tensor

from minigpt import command
from minigpt.seeing.maps import Map, picture_form, sums, write_maps
from minigpt.seeing.numbers import costs, far_outside
from minigpt.seeing.pictures import heat_map
from minigpt.system import places
from minigpt.system.counting import selected_heads
from minigpt.system.errors import UserError
from minigpt.training.report import say
from minigpt.training.run import Run, load, newest_run


def main(arguments: argparse.Namespace) -> None:
    """Draw the attention maps of a prompt in the terminal, or into the file of --out."""
    if not arguments.prompt:
        raise UserError("--prompt: give a text to look at")
    if arguments.out:
        picture_form(arguments.out)  # before the model is loaded
    run = load(newest_run(arguments.run), "cpu", overrides=arguments.overrides)
    command.special(run, arguments)
    every, labels = run.maps(arguments.prompt), run.labels(arguments.prompt)
    heads = [sum(one.layer == layer and not one.part for one in every) for layer in range(len(run.model.blocks))]
    wanted = selected_heads(heads, arguments.layer, arguments.head)
    layers = {layer for layer, _ in wanted}
    maps = [one for one in every if (one.layer, one.head) in wanted or (one.head is None and one.layer in layers)]
    count = f"{len(maps)} map{'s' if len(maps) > 1 else ''}"
    if arguments.out:
        write_maps(maps, labels, arguments.out)
    else:
        draw(maps, labels)
    if outside := far_outside(read(run, arguments.prompt), run.usual_loss(), run.tokenizer):
        say(outside)
    if arguments.out:
        say(f"wrote {arguments.out}: open it to see {count}; rows are queries, columns are keys")
    else:
        more = f"as a picture: --out maps.svg; every number: {places.command('explore')}"
        say(f"{count} above; only one: --layer 1 --head 2; {more}")


@torch.no_grad()
def read(run: Run, text: str) -> Tensor:
    """The `costs` of a text: (2, T - 1)."""
    ids = run.context_ids(text)  # (1, T)
    return costs(run.model(ids)[0, :-1], ids[0, 1:])  # (2, T - 1)


def draw(maps: list[Map], labels: list[str]) -> None:
    """Draw maps in the terminal, one below the other."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for one in maps:
        signs = ", digits are negative weights in tenths of it" if one.signed else ""
        rows = f"{found}, each as it says at its right" if (found := sums(one.weights)) else "each row sums to 1"
        gates = ", and what its output is multiplied by" if one.gate is not None else ""
        note = f"{one.note}; " if one.note else ""
        large = f"@ is a row's largest weight{signs}"
        say(f"{one.title}: {note}rows are queries, columns are keys; {large}; {rows}{gates}\n")
        say(heat_map(one.weights, labels, width, one.gate) + "\n")


if __name__ == "__main__":
    parser = command.parser("Show the attention weights of every layer and head for a text." + command.SWAPS)
    parser.add_argument("--run", default="", metavar="RUN", help=command.RUN)
    parser.add_argument("--prompt", default="", help="the text to look at")
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer, counted from 1")
    parser.add_argument("--head", type=int, metavar="N", help="only this head of each layer, counted from 1")
    command.add_special(parser)
    out = "draw a picture, .svg, .png or .pdf (both by matplotlib), and not in the terminal"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    arguments = command.parse(parser)
    sys.exit(command.execute(main, arguments))
