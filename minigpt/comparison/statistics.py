"""Is a difference real? The mean difference of pairs, and its confidence interval.

The runs of a pair see the same batches and start from the same random numbers, or two models read the same text. Much
of their noise is the same, and it cancels in the difference. The confidence interval is Student's ("The probable error
of a mean", 1908).

scipy would be a large dependency for one quantile. A test compares ours with scipy's values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean, such as that of paired differences, with its 95 % confidence interval."""

    mean: float
    low: float | None  # None: one value has no variance, so it has no interval
    high: float | None
    pairs: int  # how many values

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def estimate(values: Sequence[float], weights: Sequence[float] | None = None) -> Estimate:
    """The mean of the values with its confidence interval. Raises ValueError if there is no value.

    With weights, such as the tokens of which a value is the mean, it is a ratio estimate (Cochran, "Sampling
    Techniques", 1977, 6.3).
    """
    n = len(values)
    if n == 0:
        raise ValueError("there is no pair to compare")
    weights = [1.0] * n if weights is None else weights
    total = sum(weights)
    mean = math.fsum(value * weight for value, weight in zip(values, weights)) / total
    if n == 1:
        return Estimate(mean, None, None, 1)
    deviations = (weight * n / total * (value - mean) for value, weight in zip(values, weights))
    variance = math.fsum(deviation**2 for deviation in deviations) / (n - 1)
    margin = t_quantile((1 + CONFIDENCE) / 2, n - 1) * math.sqrt(variance / n)
    return Estimate(mean, mean - margin, mean + margin, n)


def paired(values: Sequence[float], base: Sequence[float], weights: Sequence[float] | None = None) -> Estimate:
    """The mean of values - base over all pairs, as `estimate` gives it."""
    return estimate([a - b for a, b in zip(values, base, strict=True)], weights)


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


def between(interval: Iterable[float | None], form: str = ".2f") -> str:
    """A number, its lower and its upper end as text: 0.42 (0.38 to 0.46)."""
    mean, low, high = interval
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"


def mean_of_all(values: Sequence[float | None]) -> float | None:
    """The mean, exactly the value where all are equal; None if there is no value or one is None."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return known[0] if len(set(known)) == 1 else math.fsum(known) / len(known)  # a sum may change the last bit
