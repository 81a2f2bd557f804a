"""What the scripts share: they load plugins, and turn every error and signal into an exit code and one line on stderr.

0 done; 1 a bug in minigpt; 2 a mistake in the input or in a plugin; 3 the loss diverged; 4 a checkpoint was refused;
5 an input/output error; 129 a closed terminal (SIGHUP); 130 Ctrl-C (SIGINT); 141 a closed pipe (SIGPIPE); 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from minigpt.checks.blame import blame
from minigpt.system import places
from minigpt.system.errors import ConfigError, UserError
from minigpt.system.plugin import PLUGINS, load_plugin
from minigpt.system.process import NO_MORE, no_more
from minigpt.system.signals import ENDING, SIGPIPE, Stopped, Terminated, receive_signals
from minigpt.system.terminal import command_line, complain, give_up, one_line
from minigpt.training import distributed
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.records import Diverged

if TYPE_CHECKING:
    from minigpt.training.run import Run

atexit.register(gc.freeze)  # saves 0.3 s at exit, in which Python would search all of torch for garbage
NO_MEMORY = re.compile("can't allocate memory|out of memory", re.IGNORECASE)  # torch's words, in a RuntimeError

RUN = "folder or name of a run (default: the newest); RUN@best and RUN@240 are checkpoints of it"
SWAPS = " Arguments such as model.attention=average_softmax swap parts of the (last) run."  # swap.py


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help lists the options)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        finish(one_line(message or ""))
        sys.exit(status)


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every script: --plugin and --debug."""
    parser = Parser(prog=places.command(Path(sys.argv[0]).stem), description=description, allow_abbrev=False)
    parser.add_argument(
        "--plugin", action="append", default=[], type=Path, metavar="FILE", help="a Python file with kinds of your own"
    )
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    return parser


def a_path(text: str) -> Path:
    """The path in an option. Raises ArgumentTypeError for "", which would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found nothing")
    return Path(text)


def execute(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Load the plugins, run `main`, and return the exit code. An error is one line on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escapes characters that the encoding lacks
    try:
        receive_signals()
        for path in arguments.plugin:
            load_plugin(path)
        main(arguments)
        sys.stdout.flush()
        code, line = 0, ""
    except BrokenPipeError:
        code, line = 141, ""
    except (Exception, KeyboardInterrupt) as error:
        if arguments.debug:
            complain(traceback.format_exc().rstrip())
        code, line = _explain(error)
        line = line if isinstance(error, ConfigError) else one_line(line)  # a config has a line for each mistake
    finish(line)
    return code


def finish(line: str) -> None:
    """Print the last line on stderr. After it, a signal or a stream that fails prints nothing while Python exits."""
    for signum in ENDING:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except OSError:
        give_up(sys.stdout)
    if line:
        complain(line)


def _explain(error: BaseException) -> tuple[int, str]:
    """The exit code for an error or a signal, and the line to print."""
    if isinstance(error, Terminated):
        return 128 + error.signum, "stopped"
    if isinstance(error, KeyboardInterrupt):
        return 130, "stopped"
    if isinstance(error, Stopped) and error.signum == SIGPIPE:
        return 141, ""
    if isinstance(error, Stopped):
        return 128 + error.signum, f"stopped by {error}; a checkpoint is written: {resuming(error.run)}"
    if isinstance(error, UserError):
        return 2, f"error: {error}"
    if isinstance(error, Diverged):
        return 3, f"diverged: {error}"
    if isinstance(error, CheckpointError):
        return 4, f"checkpoint refused: {error}"
    if no_more(error):
        return 2, f"error: {NO_MORE}"
    plugin = blame(error)
    if isinstance(error, OSError):
        return 5, f"input/output error: {plugin or error}"
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        detail = plugin or " ".join(str(error).split())[-200:] or "Python could not have more"
        return 2, f"error: not enough memory ({detail}): lower training.batch_size, model.block_size or model.n_embd"
    if plugin:
        return 2, f"error: {plugin} (--debug shows all calls)"
    ours = "".join(f", or a mistake in {path}" for path in PLUGINS.values())
    return 1, f"this is a bug{ours} ({type(error).__name__}: {error}); --debug shows where, please report it"


def resuming(run: Path) -> str:
    """The command that resumes a run, with the present number of processes and machines."""
    world = distributed.started()[1]
    here = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's: the processes of this machine
    each = int(here) if re.fullmatch("[1-9][0-9]{0,4}", here) and world % int(here) == 0 else world
    machines = f"--nnodes {world // each} " * (each < world)
    launcher = f"torchrun {machines}--nproc-per-node {each}" if world > 1 else ""
    return f"{places.command('train', launcher)} --resume {command_line([str(run)])}"


def typed() -> str:
    """The command line of this process, as it was typed."""
    return f"{places.command(Path(sys.argv[0]).stem)} {command_line(sys.argv[1:])}".strip()


def add_special(parser: argparse.ArgumentParser) -> None:
    """Add --special, an option of the commands that read a prompt."""
    help = "<|endoftext|> and the like are tokens, not plain text"
    parser.add_argument("--special", action="store_true", help=help)


def special(run: Run, arguments: argparse.Namespace, prompt: str | None = None) -> None:
    """With --special, a run reads the names of special tokens as tokens. Prints the words that only look like one.

    Raises UserError for a run without special tokens.
    """
    if not arguments.special:
        return
    if not run.tokenizer.special_tokens:
        raise UserError(f"--special: the tokenizer of {run.folder}, {run.tokenizer.kind}, has no special tokens")
    from minigpt.text.tokenizer import misspelt  # imported here: most commands do not need it

    for line in misspelt(arguments.prompt if prompt is None else prompt, run.tokenizer.special_tokens):
        complain(line)
    run.marked = True


def effect(option: str, is_given: bool, other: str, is_there: bool) -> None:
    """Raises UserError if `option` is given, and `other`, without which it has no effect, is not there."""
    if is_given and not is_there:
        raise UserError(f"{option} has no effect without {other}: give {other} as well, or leave it out")


def one_permission(arguments: argparse.Namespace) -> None:
    """Raises UserError for --allow-leak together with --skip-checks: without checks, nothing has to be allowed."""
    if arguments.allow_leak and arguments.skip_checks:
        raise UserError("--allow-leak and --skip-checks: give one of them; unchecked, a model may see the future too")


def is_override(argument: str | None) -> bool:
    """Whether the word after an option is `group.key=value`, and not the option's value, such as /a=b/runs/tiny."""
    return argument is not None and bool(re.match(r"\w+(\.\w+)*=", argument)) and not Path(argument).exists()


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of a command that opens a run; `overrides` has those like `model.attention=average_softmax`."""
    arguments, overrides = parser.parse_known_args()
    no_leftovers(parser, overrides, "model.attention=average_softmax")
    arguments.overrides = overrides
    return arguments


def no_leftovers(
    parser: argparse.ArgumentParser, overrides: Sequence[str], example: str = "training.max_steps=50"
) -> None:
    """Refuse an argument that is neither an option nor `group.key=value`."""
    for argument in overrides:
        if argument.startswith("-") or "=" not in argument:
            parser.error(f"unrecognised argument {argument!r} (options are set as in {example})")
