"""Show the attention weights of every layer and head of a trained model for a text.

python scripts/show_attention.py --prompt "Mia was a shy fox. She met Tom."     # a PNG in the run's folder

Without the extra `plot` (pip install -e ".[plot]") the maps are drawn in the terminal; with it, --text does that too.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.inspection.pictures import attention_png, can_plot, heat_map
from minigpt.runs.report import say
from minigpt.runs.run import load, newest_run
from minigpt.system.errors import UserError


def main(arguments: argparse.Namespace) -> None:
    """Draw the attention maps of a prompt: as a PNG if matplotlib is installed, else in the terminal."""
    if not arguments.prompt:
        raise UserError("--prompt: give a text to look at")
    if arguments.png and arguments.text:
        raise UserError("--png and --text: give one of them")
    run = load(newest_run(arguments.run), "cpu")
    maps, labels = run.attention(arguments.prompt), run.labels(arguments.prompt)
    kinds = [type(attention) for attention in run.model.attentions()]
    if arguments.png or (can_plot() and not arguments.text):
        path = arguments.png or run.folder / "attention.png"
        attention_png(maps, labels, kinds, path)
        say(f"wrote {path}: a row for each layer, a map for each head")
        return
    for layer, (weights, kind) in enumerate(zip(maps, kinds)):
        signs = "@ is the largest weight" if kind.weights_nonnegative else "digits are negative weights, in tenths"
        for head, head_weights in enumerate(weights):
            say(f"layer {layer}, head {head} ({kind.kind}): rows are queries, columns are keys, {signs}\n")
            say(heat_map(head_weights, labels) + "\n")


if __name__ == "__main__":
    parser = command.parser("Show the attention weights of every layer and head for a text.")
    parser.add_argument("--run", default="", metavar="RUN", help="folder or name of a run (default: the newest)")
    parser.add_argument("--prompt", default="", help="the text to look at")
    parser.add_argument(
        "--png", type=Path, metavar="FILE", help="where the picture goes (default: attention.png in the run)"
    )
    parser.add_argument("--text", action="store_true", help="draw in the terminal even where pictures can be made")
    arguments = parser.parse_args()
    sys.exit(command.execute(main, arguments))
