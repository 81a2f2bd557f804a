"""Is a difference real? Pairs of runs that shared a seed, their mean difference, and how sure it is.

Two runs with the same seed saw the same batches from weights drawn alike, so much of the luck of a run is the same in
both and drops out of their difference. The interval is Student's ("The probable error of a mean", 1908).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of some paired differences, and the interval that holds its true value in 95 of 100 comparisons."""

    mean: float
    low: float | None  # None: one pair shows no spread, so nothing is known about its luck
    high: float | None
    pairs: int

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired(ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """The mean of ours - theirs, pair by pair, with its interval. Raises ValueError where there is no pair."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n = len(differences)
    if n == 0:
        raise ValueError("there is no pair to compare")
    mean = math.fsum(differences) / n
    if n == 1:
        return Difference(mean, None, None, 1)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (n - 1)
    reach = t_quantile((1 + confidence) / 2, n - 1) * math.sqrt(variance / n)
    return Difference(mean, mean - reach, mean + reach, n)


def t_cdf(t: float, degrees: int) -> float:
    """P(X <= t) for Student's t with a whole number of degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine if degrees % 2 else 1.0), 0.0
    for k in range(2 + degrees % 2, degrees + 1, 2):  # cos + 2/3 cos^3 + ... or 1 + 1/2 cos^2 + 1 3 / 2 4 cos^4 + ...
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total  # P(-t <= X <= t), signed
    return (1 + inside) / 2


def t_quantile(p: float, degrees: int) -> float:
    """The t below which X lies with probability p, 0.5 <= p < 1, by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < p else (low, middle)
    return high
