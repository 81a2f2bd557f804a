"""Write text with a trained model.

python scripts/sample.py --prompt "Mia was a shy fox."           # from the newest run
python scripts/sample.py --run runs/tiny --temperature 0 --max-tokens 300
python scripts/sample.py --run tiny@best                         # its checkpoint of the lowest validation loss
python scripts/sample.py --run tiny model.attention=average_softmax      # another attention in that model
python scripts/sample.py --run chat --chat                               # a talk with a model that learned to talk
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from minigpt import command
from minigpt.config.options import hints
from minigpt.fast.decoding import DecodingConfig
from minigpt.fast.packed import Weights
from minigpt.fast.threads import sharing_note, use_threads_to_sample
from minigpt.model import count_parameters
from minigpt.system.errors import ConfigError, UserError
from minigpt.system.folder import read_start
from minigpt.system.signals import Terminated, receive_signals
from minigpt.system.terminal import complain, printable
from minigpt.text.talks import Turn
from minigpt.training.run import Run, load, newest_run

LONGEST = 1 << 20  # bytes of a prompt


def main(arguments: argparse.Namespace) -> None:
    """Stream one or more continuations of the prompt."""
    prompt = read_prompt(arguments)
    command.effect("--special", arguments.special, "--prompt", prompt != "")
    if arguments.chat and (prompt or arguments.num_samples > 1 or arguments.special):
        raise UserError("--chat: a talk begins with what you type: leave --prompt, --num-samples and --special out")
    command.effect("--system", arguments.system != "", "--chat", arguments.chat)
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
    if arguments.chat:
        return talk(run, arguments.system, not arguments.no_cache, given)
    shown = printable if sys.stdout.isatty() else str  # a file gets the raw text
    first_seed = given.pop("seed", run.config.sampling.seed)
    for number in range(arguments.num_samples):
        if number:
            print("---")
        with naming_options():
            pieces = run.stream(prompt, not arguments.no_cache, seed=first_seed + number, **given)
        print(shown(prompt), end="", flush=True)
        for piece in pieces:
            print(shown(piece), end="", flush=True)
        print()
    if note := sharing_note():
        complain(note)


@contextmanager
def naming_options() -> Iterator[None]:
    """Turns the mistakes of a DecodingConfig into those of this command's options."""
    try:
        yield
    except ConfigError as error:
        options = [(where.replace("DecodingConfig.", "--").replace("_", "-"), what) for where, what in error.mistakes]
        raise ConfigError(options) from None


def talk(run: Run, system: str, use_cache: bool, options: dict[str, Any]) -> None:
    """Answer one line after the other, until the lines end. Ctrl-C ends an answer, or, where none is written, the talk.

    An answer that was ended stays in the talk as far as it was written.
    """
    with naming_options():
        replace(run.config.sampling, **options)
    if note := run.talking.template.note:  # raises UserError for a run that does not talk
        complain(f"note: {note}")
    turns = [Turn("system", system)] if system else []
    while (line := ask()) is not None:
        if not line.strip():
            continue
        turns.append(Turn("user", line))
        written = list[str]()
        try:
            for piece in run.answer(turns, use_cache, **options):
                written.append(piece)
                print(printable(piece) if sys.stdout.isatty() else piece, end="", flush=True)
        except Terminated:
            raise
        except KeyboardInterrupt:
            receive_signals()
        except UserError as error:  # a character that the vocabulary lacks, or a turn that is too long
            complain(f"error: {error}")
        print(flush=True)
        if text := "".join(written).strip():
            turns.append(Turn("assistant", text))
        else:
            turns.pop()


def ask() -> str | None:
    """The next line that is typed; None at the end."""
    print("> " if sys.stdin.isatty() else "", end="", flush=True)
    line = sys.stdin.buffer.readline().decode(sys.stdin.encoding, "surrogateescape")  # what is no text is refused later
    return line.rstrip("\r\n") if line else None


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
    parser.add_argument("--chat", action="store_true", help="talk: a line is a question; Ctrl-C ends an answer")
    parser.add_argument("--system", default="", metavar="TEXT", help="what the system says first in that talk")
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
