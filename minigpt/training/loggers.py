"""Loggers beside metrics.jsonl: TensorBoard and trackio. Each is an extra, and imported only where a config names it.

    python scripts/train.py --config tiny.yaml training.loggers="[tensorboard, trackio]"
    tensorboard --logdir runs                  # reads runs/tiny/tensorboard/
    trackio show --project minigpt             # reads trackio's own folder, TRACKIO_DIR

Both write files on this machine and send nothing. They get the lines of metrics.jsonl, and a resumed run continues the
same log: TensorBoard drops what was logged after the checkpoint, trackio keeps it. If a logger fails, a warning is
printed, and the training goes on without it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from minigpt.system.errors import UserError
from minigpt.system.places import with_extra
from minigpt.training.report import Say

PROJECT = "minigpt"  # trackio's project


class Logger(Protocol):
    """What receives metrics."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter  # torch leaves it untyped
        self.writer = make(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar for each value."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class Trackio:
    """A run of the project `minigpt` in trackio's local database, named after the folder and a hash of its path."""

    def __init__(self, folder: Path, step: int):
        trackio: Any = importlib.import_module("trackio")
        self.trackio, self.quiet = trackio, io.StringIO()  # quiet: what it prints, which is not about the training
        place = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:6]
        with redirect_stdout(self.quiet):
            resume = "allow" if step else "never"
            trackio.init(PROJECT, f"{folder.name}-{place}", resume=resume, embed=False)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """All values of a step at once."""
        self.trackio.log(dict(values), step=step)

    def close(self) -> None:
        """Wait until everything is in the database."""
        with redirect_stdout(self.quiet):
            self.trackio.finish()


LOGGERS: dict[str, Callable[[Path, int], Logger]] = {"tensorboard": TensorBoard, "trackio": Trackio}


def check_loggers(names: Sequence[str] | None) -> None:
    """Raises UserError for a logger whose package is not installed."""
    for name in names or ():
        try:
            installed = importlib.util.find_spec(name) is not None
        except ValueError:  # a test removed it from this process
            installed = False
        if not installed:
            raise UserError(f"training.loggers: {name} is not installed: {with_extra(name)}")


class Loggers:
    """The loggers of a run that has done `step` steps. An error in a logger does not stop the training."""

    def __init__(self, names: Sequence[str] | None, folder: Path, step: int, say: Say):
        self.say, self.open = say, dict[str, Logger]()
        for name in names or ():
            self._try(name, lambda name=name: self.open.update({name: LOGGERS[name](folder, step)}))  # type: ignore[misc]

    def write(self, line: Mapping[str, float]) -> None:
        """Log a line of metrics.jsonl."""
        values = {name: value for name, value in line.items() if name != "step"}
        for name, logger in list(self.open.items()):
            self._try(name, partial(logger.write, int(line["step"]), values))

    def close(self) -> None:
        """Write what is left."""
        for name, logger in list(self.open.items()):
            self._try(name, logger.close)

    def _try(self, name: str, call: Callable[[], None]) -> None:
        """Call a logger. If it fails, say so and leave it out from here on."""
        try:
            call()
        except Exception as error:
            self.open.pop(name, None)
            why = f"{type(error).__name__}: {error}"
            self.say(f"warning: the logger {name} failed ({why}); training goes on without it")
