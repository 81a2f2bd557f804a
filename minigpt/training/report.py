"""What a training prints and logs: a progress bar on a terminal, plain lines elsewhere, and its log files."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm import tqdm

from minigpt.fast.threads import sharing_note
from minigpt.seeing.pictures import curve_svg, smooth
from minigpt.system.folder import fsync, is_at, write_whole
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.terminal import complain, give_up, printable
from minigpt.system.waiting import progress, progress_bar
from minigpt.training import distributed
from minigpt.training.loop import History
from minigpt.training.records import Record

LINES = 20  # plain lines in a whole run
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]"  # without tqdm's estimate of the time left
LINE, LONGEST_LINE = {"step": int}, 1 << 16  # of metrics.jsonl: required keys, most bytes

Say = Callable[[str], None]  # prints a line


def say(text: str) -> None:
    """Print a line. Raises BrokenPipeError if the reader of stdout has closed it.

    A stdout that cannot be written to (a full disk, a closed terminal) is reported once on stderr, and not used again.
    """
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up(sys.stdout)
        complain(f"warning: stdout: {error}; nothing more is printed")


def say_once(text: str) -> None:
    """`say` in the first of several processes. Raises UserError for wrong variables of torchrun."""
    (say if distributed.rank() == 0 else silent)(text)


def silent(text: str) -> None:
    """Prints nothing: of several processes, only the first prints."""


class Log:
    """Appends texts to a file, each completely or not at all.

    A full disk is reported once, and the training goes on without these lines. Raises OSError only when the file cannot
    be opened at all.
    """

    def __init__(self, path: Path, say: Say):
        self.path, self.say, self.failed = path, say, False
        self.file = path.open("a+b", buffering=0)

    def write(self, text: str) -> None:
        """Append a text."""
        data, size = text.encode("utf-8"), os.fstat(self.file.fileno()).st_size
        try:
            if (written := self.file.write(data)) != len(data):
                raise OSError(f"only {written} of {len(data)} bytes could be written")
        except OSError as error:
            with contextlib.suppress(OSError):
                self.file.truncate(size)
            if not self.failed:
                self.say(f"warning: {self.path}: {error}; training goes on without these lines")
            self.failed = True

    def sync(self) -> None:
        """Wait until the lines are on disk. A file that somebody removed or replaced meanwhile is written again."""
        try:
            if not is_at(self.path, self.file.fileno()):
                self.file.seek(0)
                write_whole(self.path, self.file.read())
                self.close()
                self.file = self.path.open("a+b", buffering=0)
                self.say(f"warning: {self.path}: it was removed or replaced, and is written again")
            fsync(self.file.fileno(), self.path.name)
        except OSError as error:
            self.say(f"warning: {self.path}: {error}; training goes on")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class Reporter:
    """Shows how a training goes. Its speed is that of the last 20 steps, without evaluations and samples."""

    def __init__(self, start: int, steps: int, eval_every: int, prints: bool = True, objective: str = ""):
        self.objective = objective  # the name of another training loss than the next token's, else ""
        self.loss = objective or "loss"
        self.prints, self.steps, self.eval_every, self.val_loss = prints, steps, eval_every, float("nan")
        self.evaluations: list[float] = []  # the seconds of each
        self.reader_left = False  # whether the reader of stdout has closed it
        self.recent: deque[Record] = deque(maxlen=20)
        self.began, self.start = perf_counter(), start
        self.bar = progress_bar(prints, total=steps, initial=start, unit="step", bar_format=BAR)
        self.bar.set_description("training")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self.prints:
            return
        try:
            with tqdm.external_write_mode(file=sys.stdout):
                say(text)
        except BrokenPipeError:
            self.reader_left = True

    @property
    def tokens_per_second(self) -> float:
        """Training speed over the last steps."""
        return sum(record.tokens for record in self.recent) / sum(record.seconds for record in self.recent)

    def step(self, record: Record, skipped: int = 0) -> None:
        """Count a step and show it. `skipped`: how many steps of the training so far were skipped."""
        self.recent.append(record)
        self.bar.update()
        if note := sharing_note():
            self.say(note)
        losses = [r.loss for r in self.recent if math.isfinite(r.loss)]
        loss = sum(losses) / len(losses) if losses else math.nan
        pace = [f"{self.tokens_per_second:,.0f} tokens/s", self.left(record.step)]
        pace += [f"{skipped:,} skipped"] * bool(skipped)
        self.bar.set_postfix_str(
            f"{self.loss} {loss:.3f}, val {self.val_loss:.3f}, lr {record.lr:.2g}, {', '.join(pace)}",
            refresh=False,
        )
        if self.bar.disable and (record.step % max(1, self.steps // LINES) == 0 or record.step == self.start + 1):
            self.say(
                f"step {record.step:>{len(str(self.steps))}}/{self.steps}  {self.loss} {loss:.4f}  lr {record.lr:.2e}  "
                f"{'  '.join(pace)}"
            )

    def left(self, step: int) -> str:
        """The time left after a step, as text: seconds, and evaluations until the first one has been timed."""
        if step == self.steps:
            return "0 s left"
        to_come = -(-self.steps // self.eval_every) - step // self.eval_every  # there is one after the last step too
        seconds = (perf_counter() - self.began - sum(self.evaluations)) / (step - self.start) * (self.steps - step)
        if not self.evaluations:
            return f"{seconds:.0f} s and {to_come} evaluation{'s' if to_come > 1 else ''} left"
        return f"{seconds + to_come * sum(self.evaluations) / len(self.evaluations):.0f} s left"

    @contextlib.contextmanager
    def timing_an_evaluation(self) -> Iterator[None]:
        """Time an evaluation, for `left`; an evaluation that raises does not count."""
        began = perf_counter()
        yield
        self.evaluations.append(perf_counter() - began)

    def evaluated(self, step: int, since: int, train_loss: float, val_loss: float, also: str) -> None:
        """Show the mean training loss since the last evaluation, at step `since` (0: there was none), the exact
        validation loss, and what is `also` to say: how far it is above the best possible loss, or the bits a byte."""
        self.val_loss = val_loss
        beside = f" ({also})" if also else ""
        trained = f"training loss {f'({self.objective}) ' * bool(self.objective)}{train_loss:.4f} since step {since}"
        self.say(f"step {step}: {trained}, validation loss {val_loss:.4f}{beside}")

    def close(self) -> None:
        """Stop the bar."""
        self.bar.close()


def metrics_of(record: Record, history: History) -> dict[str, float]:
    """The line of metrics.jsonl for a step, without its evaluation.

    In float16 it has the scale of the loss, and the number of steps that were skipped so far; a skipped step lacks
    those of its numbers that are not finite.
    """
    line = {
        "step": record.step,
        "train/loss": record.loss,
        "lr": record.lr,
        "grad_norm": record.grad_norm,
        "tokens": history.tokens,
        "tokens_per_second": round(record.tokens / record.seconds, 1),
        "seconds": round(history.seconds, 4),
    }
    if record.scale is not None:
        line |= {"loss_scale": record.scale, "skipped": history.skipped}
    return {name: value for name, value in line.items() if math.isfinite(value)}


def loss_curves(metrics: Path, title: str) -> str:
    """The losses in a metrics.jsonl as SVG."""
    lines = read_metrics(metrics)
    curves = {
        "training": smooth([(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]),
        "validation": [(line["step"], line["val/loss"]) for line in lines if "val/loss" in line],
    }
    return curve_svg({name: curve for name, curve in curves.items() if curve}, title, "step")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl. Damaged ones, as after a crash or on a full disk, are left out."""
    if not path.exists():
        return []
    records = []
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(LONGEST_LINE), b"")
        for text in progress(lines, f"reading {path.name}", unit="lines"):
            with contextlib.suppress(ValueError):
                line = parse_json(text)
                if has_form(line, {str: float}) and has_form(line, LINE):
                    records.append(line)
    return records
