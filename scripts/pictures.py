"""Make the pictures of the README, each for a light and a dark page: data/pictures/NAME-THEME.svg.

python scripts/train.py --config tiny.yaml
python scripts/compare.py --config ladder.yaml
python scripts/compare.py --config staircase.yaml
python scripts/pictures.py
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path
from typing import Any

from minigpt import command
from minigpt.comparison.staircase import staircase_svg
from minigpt.seeing.drawing import THEMES
from minigpt.seeing.figures import bars_svg, map_svg, readers_svg
from minigpt.system import places
from minigpt.system.counting import layer_name, selected_heads
from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.strict_json import has_form, parse_json
from minigpt.training.report import say
from minigpt.training.run import load, newest_run

BARS = "Validation loss of each kind of attention, in nats a character above the floor"
READERS = "A new story, as each of them reads it: colour marks improbable characters"
STAIRS = Path("runs/compare/staircase/results.json")
FORM = {
    "forgetful": float,
    "variants": [{"variant": str, "above": float}],
    "example": {"text": str, "ideal": [float], "forgetful": [float], "variants": {str: {"probabilities": [float]}}},
}
STAIRCASE = {
    "rungs": [str],
    "tasks": [{"task": str, "question": str}],
    "cells": [{"rung": str, "task": str, "values": [float], "solved": bool}],
}


def main(arguments: argparse.Namespace) -> None:
    """Draw each picture in each theme."""
    what = "of a comparison on the built-in stories, each run of it done"
    found = read_results(arguments.comparison / "results.json", FORM, what, "ladder.yaml")
    run = load(newest_run(arguments.run), "cpu", overrides=arguments.overrides)
    maps, labels = run.attention(arguments.prompt), run.labels(arguments.prompt)
    ((layer, head),) = selected_heads([len(heads) for heads in maps], arguments.layer, arguments.head)
    weights, title = maps[layer][head], f"Attention weights: {layer_name(layer, head)}"  # (T, T)
    above = {row["variant"]: row["above"] for row in found["variants"]}
    example = found["example"]
    readers = {"ideal reader": example["ideal"]}
    readers |= {name: look["probabilities"] for name, look in example["variants"].items()}
    stairs = None
    if STAIRS.exists():
        stairs = read_results(STAIRS, STAIRCASE, "of a staircase", "staircase.yaml")
    else:
        say(f"note: no {STAIRS}: {places.command('compare')} --config staircase.yaml")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        pictures = {
            "ladder": bars_svg(above, BARS, ("knows the grammar, remembers nothing", found["forgetful"]), theme),
            "attention": map_svg(weights, labels, title, theme),
            "readers": readers_svg(example["text"], readers, READERS, theme),
        }
        if stairs is not None:
            pictures["staircase"] = staircase_svg(stairs, theme)
        for what, picture in pictures.items():
            write_whole(arguments.out / f"{what}-{name}.svg", picture)
            say(f"wrote {arguments.out / f'{what}-{name}.svg'}: {len(picture):,} bytes")


def read_results(path: Path, form: Any, what: str, config: str) -> dict[str, Any]:
    """The results of a comparison. Raises UserError."""
    try:
        found = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: {places.command('compare')} --config {config}") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not has_form(found, form):
        raise UserError(f"{path}: not the results {what}")
    return dict(found)


if __name__ == "__main__":
    parser = command.parser("Make the pictures of the README." + command.SWAPS)
    parser.add_argument("--run", default="tiny", metavar="RUN", help="the run whose attention is shown (default: tiny)")
    ladder, pictures = Path("runs/compare/ladder"), places.PICTURES
    parser.add_argument("--comparison", type=Path, default=ladder, metavar="DIR", help=f"default: {ladder}")
    parser.add_argument("--prompt", default="Mia was a shy fox. She met Tom.", help="the text that is looked at")
    parser.add_argument("--layer", type=int, default=3, metavar="N", help="counted from 1 (default: 3)")
    parser.add_argument("--head", type=int, default=1, metavar="N", help="counted from 1 (default: 1)")
    parser.add_argument("--out", type=Path, default=pictures, metavar="DIR", help="default: data/pictures")
    sys.exit(command.execute(main, command.parse(parser)))
