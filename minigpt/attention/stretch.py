"""Rotary positions for texts longer than those of the training: pairs rotate more slowly. `linear`, `llama3`, `yarn`.

A model that was trained on texts of n tokens has never seen the angles of position n and beyond. Divided by a factor,
the angles of `factor` n positions are those that it has seen; but neighbouring positions then differ less. So the
later rules do not change the fast pairs, which distinguish neighbours, and slow the others, which have not made a whole
turn in n positions:

    angle := angle (share + (1 - share) / factor)      share = 1 for fast pairs, 0 for slow ones, linear between them

T positions, n pairs of features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from minigpt.attention.position import Stretch, angles
from minigpt.config.options import Count, Positive, Range
from minigpt.system.errors import Mistake


class Linear(Stretch, kind="linear"):
    """Every pair is slowed alike, as if positions lay closer together ("Extending Context Window of Large Language
    Models via Positional Interpolation", arXiv 2306.15595)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Stretch.Config):
        factor: Annotated[float, Range(1)] = 2.0
        """How many times more slowly the pairs rotate."""

        def share(self, frequencies: Tensor, base: float) -> Tensor:
            """How much of its speed each pair keeps, from 0 to 1, for frequencies (n,) in radians a position: (n,)."""
            return torch.zeros_like(frequencies)

        def length(self) -> float:
            """What the lengths of queries and keys are multiplied by."""
            return 1.0

        def waves(self, theta: Tensor, base: float) -> tuple[Tensor, Tensor]:
            frequencies = angles(1, 1, 2 * theta.shape[1], base, theta.device)[0]  # (n,): the angles of position 1
            share = self.share(frequencies, base)  # (n,)
            slowed = theta * (share + (1 - share) / self.factor)  # (T, n)
            return self.length() * slowed.cos(), self.length() * slowed.sin()


class Llama3(Linear, kind="llama3"):
    """How many turns a pair makes in the texts of the training decides how much it is slowed: the rule of Llama 3.1
    ("The Llama 3 Herd of Models", arXiv 2407.21783; the numbers are those of its code)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Linear.Config):
        factor: Annotated[float, Range(1)] = 8.0
        low: Positive = 1.0
        """Pairs that make fewer turns are slowed by the whole factor."""
        high: Positive = 4.0
        """Pairs that make more turns keep their speed."""
        original: Count = 8192
        """How many positions the texts of the training had."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.high <= self.low:
                yield "high", f"{self.high:g} turns are not more than `low`, {self.low:g}: make it larger"

        def share(self, frequencies: Tensor, base: float) -> Tensor:
            turns = self.original / (2 * math.pi) * frequencies  # (n,)
            return ((turns - self.low) / (self.high - self.low)).clamp(0, 1)  # (n,)


class Yarn(Linear, kind="yarn"):
    """`share` is linear in the index of the pair, and queries and keys are made a little longer, so that a softmax over
    more keys stays as sharp ("YaRN: Efficient Context Window Extension of Large Language Models", arXiv 2309.00071; the
    first and last index of the linear part are whole numbers, as in its code)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Linear.Config):
        factor: Annotated[float, Range(1)] = 4.0
        original: Count = 4096
        """How many positions the texts of the training had."""
        beta_fast: Positive = 32.0
        """The pair that makes this many turns is the last to keep its speed."""
        beta_slow: Positive = 1.0
        """The pair that makes this many turns is the first to be slowed by the whole factor."""
        attention_factor: Positive | None = None
        """What queries and keys are multiplied by; by default 1 + 0.1 ln(factor)."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.beta_fast <= self.beta_slow:
                yield "beta_fast", f"{self.beta_fast:g} turns are not more than `beta_slow`, {self.beta_slow:g}"

        def share(self, frequencies: Tensor, base: float) -> Tensor:
            n = len(frequencies)
            once = math.log(self.original / (2 * math.pi))  # the logarithm of the turns of the fastest pair
            ends = self.beta_fast, self.beta_slow
            fast, slow = (n * (once - math.log(turns)) / math.log(base) for turns in ends)
            first, last = max(math.floor(fast), 0), min(math.ceil(slow), 2 * n - 1)
            pair = torch.arange(n, dtype=frequencies.dtype, device=frequencies.device)  # (n,)
            return 1 - ((pair - first) / max(last - first, 0.001)).clamp(0, 1)  # (n,): a step where first = last

        def length(self) -> float:
            return 1 + 0.1 * math.log(self.factor) if self.attention_factor is None else self.attention_factor
