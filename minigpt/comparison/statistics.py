"""Is a difference real? The mean difference of pairs, and its confidence interval.

The runs of a pair see the same batches and start from the same random numbers, or two models read the same text. Much
of their noise is the same, and it cancels in the difference. The confidence interval is Student's ("The probable error
of a mean", 1908).

Many differences are judged together. Of ten equal variants with three seeds, at least one has an interval without zero
in 31 % of comparisons, so "better" and "worse" are said with Holm's correction ("A simple sequentially rejective
multiple test procedure", Scandinavian Journal of Statistics 6, 1979): all of these words of a table are right with a
probability of at least 95 %. The intervals are those of single differences.

scipy would be a large dependency for one quantile. A test compares ours with scipy's values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
USUAL = 2  # standard deviations of its pairs: a difference that one would want to see


@dataclass(frozen=True)
class Estimate:
    """A mean, such as that of paired differences, with its 95 % confidence interval."""

    mean: float
    low: float | None  # None: one value has no variance, so it has no interval
    high: float | None
    pairs: int  # how many values
    p: float | None = None  # of a mean of zero, two-sided; None as for `low`

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero: the judgement of a difference that is the only one."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def deviations(self) -> float:
        """How many standard deviations of the values the mean is from zero; infinite where there is no spread."""
        if self.low is None or self.low == self.mean:
            return math.inf
        error = (self.mean - self.low) / t_quantile((1 + CONFIDENCE) / 2, self.pairs - 1)
        return abs(self.mean) / (error * math.sqrt(self.pairs))


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
    error = math.sqrt(variance / n)
    margin = t_quantile((1 + CONFIDENCE) / 2, n - 1) * error
    return Estimate(mean, mean - margin, mean + margin, n, p_value(mean, error, n - 1))


def p_value(mean: float, error: float, degrees: int) -> float:
    """The probability of a mean at least as far from zero, if the true one is zero; `error` is its standard error."""
    return max(0.0, 2 * (1 - t_cdf(abs(mean) / error, degrees))) if error > 0 else float(mean == 0)


def paired(values: Sequence[float], base: Sequence[float], weights: Sequence[float] | None = None) -> Estimate:
    """The mean of values - base over all pairs, as `estimate` gives it."""
    return estimate([a - b for a, b in zip(values, base, strict=True)], weights)


# ---- many differences together ----


def holm(differences: Sequence[Estimate]) -> list[tuple[float | None, bool]]:
    """Of each of these differences, all that are judged together: Holm's adjusted p, and whether it is shown.

    The smallest of n values of p is multiplied by n, the next by n - 1, and so on; none becomes less than the one
    before. One without an interval is not among them. A single difference is shown as by its interval.
    """
    known = sorted((d.p, index) for index, d in enumerate(differences) if d.p is not None)
    adjusted, least = dict[int, float](), 0.0
    for rank, (p, index) in enumerate(known):
        adjusted[index] = least = max(least, min(1.0, (len(known) - rank) * p))
    return [
        (adjusted.get(index), difference.excludes_zero and adjusted[index] <= 1 - CONFIDENCE)
        for index, difference in enumerate(differences)
    ]


def least_shown(pairs: int, comparisons: int) -> float:
    """How many standard deviations of its pairs a difference must have, to be shown first among so many comparisons."""
    return t_quantile(1 - (1 - CONFIDENCE) / (2 * comparisons), pairs - 1) / math.sqrt(pairs)


def pairs_for(deviations: float, comparisons: int) -> int:
    """How many pairs show a difference of so many standard deviations in four of five cases, at least two.

    It must be above `least_shown` by Student's quantile of 0.8.
    """
    pairs, power = 2, 0.8
    while least_shown(pairs, comparisons) + t_quantile(power, pairs - 1) / math.sqrt(pairs) > deviations:
        pairs += 1
    return pairs


def judged(comparisons: int, pairs: int, noun: str = "seeds") -> str:
    """What the words of several comparisons mean, as sentences, and how many more pairs they need; "" for one."""
    if comparisons < 2 or pairs < 2:
        return ""
    words = f"These are {comparisons} comparisons, judged together with Holm's correction: in 95 % of such tables,"
    words += " nothing is called different that is equal."
    if pairs < (needed := pairs_for(USUAL, comparisons)):
        words += f" With {pairs} {noun} that takes a difference of {least_shown(pairs, comparisons):.1f} standard"
        words += f" deviations of its pairs; {needed} {noun} show one of {USUAL} in four of five cases."
    return words


# ---- Student's distribution ----


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


@lru_cache(maxsize=1024)
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
