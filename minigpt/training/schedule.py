"""Schedules: how the learning rates change, as one factor that multiplies all of them.

    factor = (step + 1) / (warmup + 1)            while step < warmup: the first step is not zero
             final + (1 - final) * remaining      after it; `remaining` falls from 1 to 0

A kind defines `remaining`, or for more `after_warmup` or `factor`. A factor is a function of the step, the number of
steps and the options alone: then a resumed run computes what an uninterrupted one does.

    class Halving(Schedule, kind="halving"):                    # --plugin halving.py training.schedule=halving
        def remaining(self, progress):
            return 0.5 ** (10 * progress)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from minigpt.config.options import Component, Range
from minigpt.system.errors import UserError

CHECKED = 1000  # steps of a schedule, at most, on which it is checked


class Schedule(Component):
    """The base of all schedules. `warmup` and `final` are `training.warmup_steps` and `training.final_rate`."""

    def __init__(self, config: Any, warmup: int, final: float):
        self.config, self.warmup, self.final = config, warmup, final

    def factor(self, step: int, steps: int) -> float:
        """The factor at `step` (0 is the first) of `steps`: a linear warm-up to 1, then `after_warmup`."""
        return (step + 1) / (self.warmup + 1) if step < self.warmup else self.after_warmup(step, steps)

    def after_warmup(self, step: int, steps: int) -> float:
        """The factor at a step after the warm-up: a fall to `final`, which stays beyond `steps`."""
        progress = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        return self.final + (1 - self.final) * self.remaining(progress)

    def remaining(self, progress: float) -> float:
        """How much of the fall is left, from 1 to 0, after this fraction of the steps behind the warm-up."""
        raise TypeError(f"{type(self).__name__} must define remaining(progress)")


class Cosine(Schedule, kind="cosine"):
    """Half a period of a cosine ("SGDR", arXiv 1608.03983)."""

    def remaining(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


class Linear(Schedule, kind="linear"):
    """A straight line."""

    def remaining(self, progress: float) -> float:
        return 1 - progress


class Constant(Schedule, kind="constant"):
    """No fall."""

    def after_warmup(self, step: int, steps: int) -> float:
        return 1.0


class WarmupStableDecay(Schedule, kind="warmup_stable_decay"):
    """No fall until the last part of the steps, then a straight line ("MiniCPM", arXiv 2404.06395)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Schedule.Config):
        decay: Annotated[float, Range(0, 1, open_low=True)] = 0.2
        """The fraction of the steps after the warm-up in which it falls."""

    def remaining(self, progress: float) -> float:
        return min(1.0, (1 - progress) / self.config.decay)


class InverseRoot(Schedule, kind="inverse_root"):
    """One over the root of the step ("Attention Is All You Need", arXiv 1706.03762). It does not need to know the end:
    more steps do not change those before them."""

    def after_warmup(self, step: int, steps: int) -> float:
        return math.sqrt((self.warmup + 1) / (step + 1))


def check_schedule(config: Schedule.Config, warmup: int, final: float, steps: int) -> None:
    """Raises UserError for a factor that is no finite number of at least 0, or not the same twice.

    Two instances are asked, one from the first step to the last and one back, as a resumed run begins in the middle.
    """
    first, second = (config.component(config, warmup, final) for _ in range(2))
    numbers = sorted({*range(0, steps, -(-steps // CHECKED)), steps - 1})
    forth = [first.factor(step, steps) for step in numbers]
    back = [second.factor(step, steps) for step in reversed(numbers)][::-1]
    for step, factor, again in zip(numbers, forth, back):
        call = f"training.schedule: {config.component.kind}: factor({step}, {steps})"
        if type(factor) not in (int, float) or not 0 <= factor < math.inf:
            raise UserError(f"{call} is {factor}: expected a finite number of at least 0")
        if factor != again:
            rule = "it may depend on the step, the number of steps and the options alone"
            raise UserError(f"{call} is {factor}, and {again} when it is asked in another order: {rule}")
