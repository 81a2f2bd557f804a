"""Is a difference real? The mean difference of pairs of runs with the same seed, and its confidence interval.

The runs of a pair see the same batches and start from the same random numbers. Much of their noise is the same, and it
cancels in the difference. The confidence interval is Student's ("The probable error of a mean", 1908).

scipy would be a large dependency for one quantile. A test compares ours with scipy's values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences with its 95 % confidence interval."""

    mean: float
    low: float | None  # None: one pair has no variance, so it has no interval
    high: float | None
    pairs: int

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired(ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE) -> Difference:
    """The mean of ours - theirs over all pairs, with its confidence interval. Raises ValueError if there is no pair."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n = len(differences)
    if n == 0:
        raise ValueError("there is no pair to compare")
    mean = math.fsum(differences) / n
    if n == 1:
        return Difference(mean, None, None, 1)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (n - 1)
    margin = t_quantile((1 + confidence) / 2, n - 1) * math.sqrt(variance / n)
    return Difference(mean, mean - margin, mean + margin, n)


def t_cdf(t: float, degrees: int) -> float:
    """P(X <= t) of Student's t-distribution, `degrees` of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine if degrees % 2 else 1.0), 0.0
    for k in range(2 + degrees % 2, degrees + 1, 2):  # cos + 2/3 cos^3 + ... or 1 + 1/2 cos^2 + 1 3 / 2 4 cos^4 + ...
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total  # P(-t <= X <= t), signed
    return (1 + inside) / 2


def t_quantile(p: float, degrees: int) -> float:
    """The t with P(X <= t) = p, for 0.5 <= p < 1, by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < p else (low, middle)
    return high
