"""Records of training steps. Between two log lines the losses stay on the device; then they are read together.

Reading a number from a GPU waits until the number is computed, and meanwhile nothing new is queued. So the device
itself skips a step whose loss or gradient is not finite, and all steps after it. When the numbers are read, the model
is as the step before the skipped ones has left it.
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

PAUSES = {"cuda": 0.1}  # seconds between log lines; on other devices a loss is read after each step


class Diverged(Exception):
    """The loss or the gradient is not finite. The optimizer did not step."""


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

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the norm of the gradient are finite."""
        return math.isfinite(self.loss + self.grad_norm)


class Unread:
    """The steps whose losses have not been read from the device yet."""

    def __init__(self) -> None:
        self.steps: list[tuple[Record, Tensor, Tensor]] = []  # a record without loss and norm; both, () each
        self.bad: Tensor | None = None  # (): 1 once a loss or norm was not finite

    def add(self, step: int, loss: Tensor, lr: float, norm: Tensor, tokens: int) -> None:
        """Keep a step; its loss and the gradient's norm, (), stay on the device."""
        self.steps.append((Record(step, math.nan, lr, math.nan, tokens), loss, norm))

    def skip(self) -> Tensor:
        """(): 1 if a loss or norm so far is not finite, else 0. Call it after each step that is not read."""
        _, loss, norm = self.steps[-1]
        bad = (~(loss + norm).isfinite()).float()  # ()
        self.bad = bad if self.bad is None else torch.maximum(self.bad, bad)
        return self.bad

    def read(self) -> list[Record]:
        """The records of these steps; this waits for the device, once.

        Raises Diverged for the first step whose loss or norm is not finite.
        """
        records = self._numbers()
        for record in records:
            if not record.is_finite:
                what = f"the loss is {record.loss}, the gradient's length {record.grad_norm}"
                raise Diverged(f"step {record.step}: {what}; lower the learning rate")
        self.steps.clear()
        return records

    def before(self, step: int) -> list[Record]:
        """The records of the steps before `step`, up to the first whose loss or norm is not finite."""
        return list(takewhile(lambda record: record.is_finite and record.step < step, self._numbers()))

    def _numbers(self) -> list[Record]:
        if not self.steps:
            return []
        pairs = torch.stack([number for _, *both in self.steps for number in both]).view(-1, 2)  # (steps, 2)
        return [
            replace(record, loss=loss, grad_norm=norm) for (record, *_), (loss, norm) in zip(self.steps, pairs.tolist())
        ]


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
