"""Write text with a trained model.

python scripts/sample.py --prompt "Mia was a shy fox."           # from the newest run
python scripts/sample.py --run runs/tiny --temperature 0 --max-tokens 300
python scripts/sample.py --run tiny@best                         # its checkpoint of the lowest validation loss
python scripts/sample.py --run tiny model.attention=average_softmax      # another attention in that model
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path
from typing import get_args

from minigpt import command
from minigpt.config.options import hints
from minigpt.fast.decoding import DecodingConfig
from minigpt.fast.packed import Weights
from minigpt.fast.threads import sharing_note, use_threads_to_sample
from minigpt.model import count_parameters
from minigpt.system.errors import ConfigError, UserError
from minigpt.system.folder import read_start
from minigpt.system.terminal import complain, printable
from minigpt.training.run import Run, load, newest_run

LONGEST = 1 << 20  # bytes of a prompt


def main(arguments: argparse.Namespace) -> None:
    """Stream one or more continuations of the prompt."""
    prompt = read_prompt(arguments)
    command.effect("--special", arguments.special, "--prompt", prompt != "")
    if arguments.plain and arguments.weights not in (None, "float32"):
        raise UserError("--plain and --weights: give one of them; the textbook's forms compute with float32")
    if arguments.num_samples < 1:
        raise UserError(f"--num-samples: expected at least 1, found {arguments.num_samples}")
    run = load(newest_run(arguments.run), arguments.device, fast=not arguments.plain, overrides=arguments.overrides)
    command.special(run, arguments, prompt)
    given = {k: value for k, value in vars(arguments).items() if k in hints(DecodingConfig) and value is not None}
    if arguments.weights not in (None, "float32"):  # not from a config, which must not make this command open a text
        complain(loss_change(run, arguments.weights))
    use_threads_to_sample(sum(count_parameters(run.model).values()))
    shown = printable if sys.stdout.isatty() else str  # a file gets the raw text
    first_seed = given.pop("seed", run.config.sampling.seed)
    for number in range(arguments.num_samples):
        if number:
            print("---")
        try:
            pieces = run.stream(prompt, not arguments.no_cache, seed=first_seed + number, **given)
        except ConfigError as error:
            options = [
                (where.replace("DecodingConfig.", "--").replace("_", "-"), what) for where, what in error.mistakes
            ]
            raise ConfigError(options) from None
        print(shown(prompt), end="", flush=True)
        for piece in pieces:
            print(shown(piece), end="", flush=True)
        print()
    if note := sharing_note():
        complain(note)


def loss_change(run: Run, weights: Weights) -> str:
    """How weights of fewer bits change the validation loss, as one line."""
    try:
        plain, other = run.loss_with(weights)
    except (UserError, OSError) as error:
        return f"{weights} weights: the change in loss was not measured ({error})"
    return f"{weights} weights: validation loss {plain:.4f} -> {other:.4f} ({other - plain:+.4f})"


def read_prompt(arguments: argparse.Namespace) -> str:
    """The prompt from the command line or from a file."""
    if arguments.prompt_file is None:
        return arguments.prompt
    if arguments.prompt:
        raise UserError("--prompt and --prompt-file: give one of them")
    if not arguments.prompt_file.exists():
        raise UserError(f"--prompt-file {arguments.prompt_file}: no such file")
    if len(raw := read_start(arguments.prompt_file, LONGEST + 1)) > LONGEST:
        raise UserError(f"--prompt-file {arguments.prompt_file}: more than {LONGEST:,} bytes; give its end")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"--prompt-file {arguments.prompt_file}: not UTF-8 at byte {error.start}") from None


if __name__ == "__main__":
    parser = command.parser("Write text with a trained model." + command.SWAPS)
    parser.add_argument("--run", default="", metavar="RUN", help=command.RUN)
    parser.add_argument("--prompt", default="", help="the text to continue")
    parser.add_argument("--prompt-file", type=Path, metavar="FILE", help="the same from a UTF-8 file")
    command.add_special(parser)
    parser.add_argument("--max-tokens", type=int, metavar="N", help="how many tokens to write")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest that reach P together")
    parser.add_argument("--min-p", type=float, metavar="P", help="draw from tokens P times as likely as the likeliest")
    parser.add_argument("--seed", type=int, metavar="N", help="equal seeds draw equal text")
    parser.add_argument("--num-samples", type=int, default=1, metavar="N", help="samples, each with the next seed")
    parser.add_argument("--stop", metavar="TEXT", help="end before this text")
    parser.add_argument("--no-cache", action="store_true", help="recompute the whole context for every token")
    parser.add_argument("--plain", action="store_true", help="compute by the textbook's forms only: slower, and equal")
    parser.add_argument(
        "--weights", choices=get_args(Weights), help="keep the weights in fewer bits: faster, less exact"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"], help="where to compute")
    arguments = command.parse(parser)
    sys.exit(command.execute(main, arguments))
