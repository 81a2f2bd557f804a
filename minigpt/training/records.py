"""Records of training steps. Between two log lines the losses stay on the device; then they are read together.

Reading a number from a GPU waits until the number is computed, and meanwhile nothing new is queued. So the device
itself skips a step whose loss or gradient is not finite, and all steps after it. When the numbers are read, the model
is as the step before the skipped ones has left it. In float16 such a step is skipped alone, and the next one has a
smaller scale of the loss (`precision.py`); only where that no longer helps, training has diverged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from time import perf_counter

import torch
from torch import Tensor

from minigpt.training import distributed
from minigpt.training.precision import LEAST, LossScale

PAUSES = {"cuda": 0.1}  # seconds between log lines; on other devices a loss is read after each step


class Diverged(Exception):
    """The loss or the gradient is not finite, in float16 at any scale. The optimizer did not step."""


@dataclass(frozen=True)
class Record:
    """What one step did."""

    step: int  # how many steps are done
    loss: float  # nats a token, mean over the batch, before the step
    lr: float  # learning rate: of all parameters, or of the matrices if these have their own
    grad_norm: float  # before clipping
    tokens: int  # in this step
    seconds: float = 0.0  # of this step; for steps whose losses were read together, their mean
    newest: bool = True  # the model is as this step left it; else later steps were taken before this loss was read
    scale: float | None = None  # of the loss in this step; None: its gradient was not scaled
    skipped: bool = False  # nothing was stepped: the gradient was beyond float16

    @property
    def diverged(self) -> bool:
        """Whether this step, and so the training, cannot be taken."""
        if self.scale is None:
            return not math.isfinite(self.loss + self.grad_norm)
        return self.skipped and self.scale <= LEAST


class Unread:
    """The steps whose losses have not been read from the device yet."""

    def __init__(self, scale: LossScale | None = None):
        """`scale`: of the loss, in float16."""
        self.scale = scale
        self.steps: list[tuple[Record, list[Tensor]]] = []  # a record without its numbers; these, () each
        self.bad: Tensor | None = None  # (): 1 once a loss or norm was not finite; in float16, of the latest step alone

    def add(self, step: int, loss: Tensor, lr: float, norm: Tensor, tokens: int) -> None:
        """Keep a step; its loss and the gradient's norm, (), stay on the device. In float16 the scale is updated."""
        numbers = [loss, norm]
        if self.scale is not None:
            self.bad = self.scale.skips(loss, norm)  # ()
            numbers += [self.scale.scale.clone(), self.bad]
            self.scale.update(self.bad)
        self.steps.append((Record(step, math.nan, lr, math.nan, tokens), numbers))

    def skip(self) -> Tensor | None:
        """(): 1 if the latest step must change nothing, else 0. None: its numbers were read, and are finite."""
        if self.scale is not None:
            return self.bad
        if not self.steps:
            return None
        _, (loss, norm) = self.steps[-1]
        bad = (~(loss + norm).isfinite()).float()  # ()
        self.bad = bad if self.bad is None else torch.maximum(self.bad, bad)
        return self.bad

    def read(self) -> list[Record]:
        """The records of these steps; this waits for the device, once.

        Raises Diverged for the first step that cannot be taken.
        """
        records = self._numbers()
        for record in records:
            if record.diverged:
                problem = f"the loss is {record.loss}, the gradient's length {record.grad_norm}"
                hint = "lower the learning rate"
                if record.scale is not None:
                    problem = f"{problem}, though the loss scale of float16 has fallen to {record.scale:g}"
                    hint = f"{hint}, or use training.precision=float32"
                raise Diverged(f"step {record.step}: {problem}; {hint}")
        self.steps.clear()
        return records

    def before(self, step: int) -> list[Record]:
        """The records of the steps before `step`, up to the first that cannot be taken."""
        return list(takewhile(lambda record: not record.diverged and record.step < step, self._numbers()))

    def _numbers(self) -> list[Record]:
        if not self.steps:
            return []
        numbers = torch.stack([number for _, each in self.steps for number in each])  # (2 or 4 a step,)
        records = list[Record]()
        for (record, _), (loss, norm, *scaled) in zip(self.steps, numbers.view(len(self.steps), -1).tolist()):
            scale, skipped = scaled or (None, 0.0)
            records.append(replace(record, loss=loss, grad_norm=norm, scale=scale, skipped=skipped == 1.0))
        return records


def timed(records: list[Record], seconds: float) -> Iterator[Record]:
    """The records with their times; the steps took `seconds` together."""
    for record in records:
        yield replace(record, seconds=seconds / len(records), newest=record is records[-1])


class Lines:
    """Says when a log line is due: some time after the last one, and at the same step in all processes."""

    def __init__(self, device: torch.device):
        self.device, self.last = device, -math.inf

    def due(self) -> bool:
        """Whether a log line is due now; if so, the pause begins again."""
        pause = PAUSES.get(self.device.type, 0.0)
        if pause and not distributed.largest(perf_counter() - self.last >= pause):
            return False
        self.last = perf_counter()
        return True
