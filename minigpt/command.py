"""What the scripts share: plugins, and how an end of any kind becomes an exit code and one clear line.

0 done; 1 a bug of ours; 2 a mistake in the input or in a plugin; 3 the loss diverged; 4 a checkpoint refused;
5 input/output; 129 a closed terminal (SIGHUP); 130 Ctrl-C (SIGINT); 141 a closed pipe (SIGPIPE); 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from minigpt.inspection.blame import blame
from minigpt.runs.checkpoint import CheckpointError
from minigpt.system.errors import ConfigError, UserError
from minigpt.system.plugin import PLUGINS, load_plugin
from minigpt.system.signals import ENDING, SIGPIPE, Stopped, Terminated, receive_signals
from minigpt.system.terminal import complain, give_up, one_line
from minigpt.training import distributed
from minigpt.training.records import Diverged

if TYPE_CHECKING:
    from minigpt.runs.run import Run

atexit.register(gc.freeze)  # saves 0.3 s at exit, in which Python would search all of torch for garbage
NO_MEMORY = re.compile("can't allocate memory|out of memory", re.IGNORECASE)  # torch's words, in a RuntimeError

SWAPS = " Anything like model.attention=average_softmax swaps that in the (last) run."  # swap.py


class Parser(argparse.ArgumentParser):
    """argparse's, but a mistake is reported in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help lists the options)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        finish(one_line(message or ""))
        sys.exit(status)


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with what every script understands."""
    made = Parser(description=description, allow_abbrev=False)
    made.add_argument(
        "--plugin", action="append", default=[], type=Path, metavar="FILE", help="a Python file with kinds of your own"
    )
    made.add_argument("--debug", action="store_true", help="show a traceback with an error")
    return made


def a_path(text: str) -> Path:
    """A path of an option; "" is none: it would be the folder that one is in."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found nothing")
    return Path(text)


def execute(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Load the plugins, run `main`, and answer with an exit code. Anything wrong is one line on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in any terminal: what its encoding lacks is escaped
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
    """Print a last line on stderr; signals and streams that fail print nothing more while Python exits."""
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
    """The exit code of an end, and its line."""
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
    plugin = blame(error)
    if isinstance(error, OSError):
        return 5, f"input/output error: {plugin or error}"
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        what = plugin or " ".join(str(error).split())[-200:] or "Python could not have more"
        return 2, f"error: not enough memory ({what}): lower training.batch_size, model.block_size or model.n_embd"
    if plugin:
        return 2, f"error: {plugin} (--debug shows all calls)"
    ours = "".join(f", or a mistake in {path}" for path in PLUGINS.values())
    return 1, f"this is a bug{ours} ({type(error).__name__}: {error}); --debug shows where, please report it"


def resuming(run: Path) -> str:
    """The command that goes on with a run, with as many processes as there are, on as many machines."""
    world = distributed.started()[1]
    here = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's: the processes of this machine
    each = int(here) if re.fullmatch("[1-9][0-9]{0,4}", here) and world % int(here) == 0 else world
    machines = f"--nnodes {world // each} " * (each < world)
    program = f"torchrun {machines}--nproc-per-node {each}" if world > 1 else "python"
    return f"{program} scripts/train.py --resume {shlex.quote(str(run))}"


def add_special(made: argparse.ArgumentParser) -> None:
    """The option of the commands that read a prompt."""
    help = "<|endoftext|> and the like are tokens, not plain text"
    made.add_argument("--special", action="store_true", help=help)


def special(run: Run, arguments: argparse.Namespace, prompt: str | None = None) -> None:
    """After --special, a run reads the names of special tokens as tokens. Says which words only look like one.

    Raises UserError for a run without special tokens.
    """
    if not arguments.special:
        return
    if not run.tokenizer.special_tokens:
        raise UserError(f"--special: the tokenizer of {run.folder}, {run.tokenizer.kind}, has no special tokens")
    from minigpt.text.misspelt import misspelt  # it is loaded where there is a run, and not with every command

    for line in misspelt(arguments.prompt if prompt is None else prompt, run.tokenizer.special_tokens):
        complain(line)
    run.marked = True


def effect(option: str, given: bool, other: str, there: bool) -> None:
    """Raises UserError for an option that has no effect without another one, which is not there."""
    if given and not there:
        raise UserError(f"{option} has no effect without {other}: give {other} as well, or leave it out")


def one_permission(arguments: argparse.Namespace) -> None:
    """Raises UserError for --allow-leak beside --skip-checks, which asks nothing that could be allowed."""
    if arguments.allow_leak and arguments.skip_checks:
        raise UserError("--allow-leak and --skip-checks: give one of them; unchecked, a model may see the future too")


def is_override(argument: str | None) -> bool:
    """Whether what follows an option is `group.key=value`, not the option's own value (the path /a=b/runs/tiny)."""
    return argument is not None and bool(re.match(r"\w+(\.\w+)*=", argument)) and not Path(argument).exists()


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of a command that opens a run; what is like `model.attention=average_softmax` is `overrides`."""
    arguments, overrides = made.parse_known_args()
    no_leftovers(made, overrides, "model.attention=average_softmax")
    arguments.overrides = overrides
    return arguments


def no_leftovers(
    made: argparse.ArgumentParser, overrides: Sequence[str], example: str = "training.max_steps=50"
) -> None:
    """Refuse an argument that is neither an option nor `group.key=value`."""
    for argument in overrides:
        if argument.startswith("-") or "=" not in argument:
            made.error(f"unrecognised argument {argument!r} (options are set as in {example})")
