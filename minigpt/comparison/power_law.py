"""Fits a power law to losses by size, L(N) = E + A N^-alpha (arXiv 2001.08361, 2203.15556), or says why there is none.

E is the floor where it is known, and is fitted where it is not. The fit is least squares in logarithms: of L - E where
E is known, of L where it is not. Intervals are Student's t intervals, from the scatter of the sizes around the curve:
the noise of the seeds widens them, and so do losses that follow no power law. A bootstrap over five sizes would give
intervals that are too narrow.

n sizes   p constants: log A, alpha, and E where it is fitted
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from minigpt.comparison.statistics import CONFIDENCE, t_quantile

Numbers = npt.NDArray[np.float64]
LEAST_SHARE = 0.97  # a curve that explains less of the variance of the logarithms is not called a law
STEEPER = 2.5  # the exponents of two parts of one power law do not differ by more than this factor
GRID = np.geomspace(0.01, 4.0, 60)  # of alpha, where E is fitted


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    def __contains__(self, other: float) -> bool:
        return self.low <= other <= self.high


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law. If `trouble` is not empty, it says why the losses follow none: ignore the numbers."""

    log_A: float
    alpha: Interval
    E: Interval  # low = value = high where E is known
    known: bool  # whether E is known
    scatter: float  # standard deviation of the logarithms around the curve, n - p degrees of freedom
    share: float  # of the variance of the logarithms that the curve explains
    degrees: int  # n - p
    covariance: Numbers  # (p, p)
    trouble: str = ""

    def at(self, N: float) -> float:
        """The loss of the curve at size N."""
        return self.E.value + math.exp(self.log_A - self.alpha.value * math.log(N))

    def predict(self, N: float) -> Interval:
        """The predicted loss at size N, with the interval of a new measurement (not only of the curve)."""
        fitted = self.at(N)
        slope = _slopes(np.array([N]), self.log_A, self.alpha.value, self.E.value, self.known)[0]  # (p,)
        spread = math.sqrt(float(slope @ self.covariance @ slope) + self.scatter**2)
        factor = math.exp(min(50.0, t_quantile((1 + CONFIDENCE) / 2, self.degrees) * spread))
        floor = self.E.value if self.known else 0.0
        return Interval(fitted, floor + (fitted - floor) / factor, floor + (fitted - floor) * factor)


def fit(sizes: Sequence[float], losses: Sequence[float], floor: float | None) -> PowerLaw | str:
    """The power law of these losses at these ascending sizes, or one line that says why none can be fitted.

    `floor` is E; None: E is fitted too.
    """
    N, L = np.array(sizes, dtype=np.float64), np.array(losses, dtype=np.float64)  # (n,) each
    constants = 2 if floor is not None else 3
    if len(N) < constants + 2:
        return f"too few sizes: {len(N)} for {constants} constants; an interval needs {constants + 2} or more"
    if floor is not None and float(L.min()) <= floor:
        return f"the curve has reached the floor: at {N[int(L.argmin())]:,.0f} parameters nothing is left above it"
    if floor is None:
        (E, log_A, alpha), logs = _free(N, L), np.log(L)  # logs (n,)
    else:  # a straight line
        E, logs = floor, np.log(L - floor)  # (n,)
        slope, log_A = map(float, np.polyfit(np.log(N), logs, 1))
        alpha = -slope
    curve = E + np.exp(log_A - alpha * np.log(N))  # (n,)
    residuals = logs - np.log(curve - E if floor is not None else curve)  # (n,)
    degrees = len(N) - constants
    scatter = math.sqrt(float(residuals @ residuals) / degrees)
    total = float(((logs - logs.mean()) ** 2).sum())
    J = _slopes(N, log_A, alpha, E, floor is not None)  # (n, p)
    covariance = scatter**2 * np.linalg.pinv(J.T @ J)  # (p, p)
    margins = t_quantile((1 + CONFIDENCE) / 2, degrees) * np.sqrt(np.diag(covariance))  # (p,)
    end = 0.0 if floor is not None else margins[2]  # of E, to both sides
    law = PowerLaw(
        log_A=log_A,
        alpha=Interval(alpha, float(alpha - margins[1]), float(alpha + margins[1])),
        E=Interval(E, max(0.0, float(E - end)), float(E + end)),
        known=floor is not None,
        scatter=scatter,
        share=1 - float(residuals @ residuals) / total if total > 0 else 0.0,
        degrees=degrees,
        covariance=covariance,
    )
    return replace(law, trouble=_trouble(law, N, L))


def _free(N: Numbers, L: Numbers) -> tuple[float, float, float]:
    """E, log A and alpha where E is fitted: the alpha of a grid with the least error, then of finer grids around it."""
    grid = GRID
    for _ in range(5):
        fits = [(_of_alpha(N, L, alpha), alpha) for alpha in grid]
        (_, E, log_A), alpha = min(fits, key=lambda fitted: fitted[0][0])
        grid = np.geomspace(alpha / (grid[1] / grid[0]), alpha * (grid[1] / grid[0]), 15)
    return E, log_A, float(alpha)


def _of_alpha(N: Numbers, L: Numbers, alpha: float) -> tuple[float, float, float]:
    """The squared error of log L for one alpha, and the E and log A that minimise it, with E >= 0 and A > 0.

    First the least squares of relative errors, then Gauss-Newton steps on log L. E is zero where the first would make E
    negative or A not positive.
    """
    fall = N**-alpha  # (n,)
    E, A = np.linalg.lstsq(np.stack([1 / L, fall / L], axis=1), np.ones_like(L), rcond=None)[0]
    if E < 0 or A <= 0:
        E, A = 0.0, math.exp(float((np.log(L) - np.log(fall)).mean()))
    for _ in range(3):  # Gauss-Newton steps on log L; E stays at least zero
        curve = E + A * fall  # (n,)
        if E == 0 or float(curve.min()) <= 0:
            break
        J = np.stack([1 / curve, fall / curve], axis=1)  # (n, 2)
        step = np.linalg.lstsq(J, np.log(L / curve), rcond=None)[0]
        E, A = max(0.0, E + step[0]), max(1e-12, A + step[1])
    residuals = np.log(L / np.maximum(E + A * fall, 1e-300))  # (n,)
    return float(residuals @ residuals), float(E), math.log(A)


def _slopes(N: Numbers, log_A: float, alpha: float, E: float, known: bool) -> Numbers:
    """The derivatives (n, p) of the fitted logarithm (see above) by log A, alpha and, where it is fitted, E."""
    above = np.exp(log_A - alpha * np.log(N))  # (n,)
    share = np.ones_like(N) if known else above / (E + above)  # (n,)
    columns = [share, -np.log(N) * share] + ([] if known else [1 / (E + above)])
    return np.stack(columns, axis=1)  # (n, p)


def _trouble(law: PowerLaw, N: Numbers, L: Numbers) -> str:
    """Why the losses follow no power law; "" if every check passes."""
    if law.alpha.low <= 0:
        span = f"{law.alpha.low:.2f} to {law.alpha.high:.2f}"
        reason = "these sizes do not determine an exponent" if law.share > 0.5 else "the exponent may be zero"
        return f"no power law shown: {reason} ({span})"
    above = L - law.E.value  # (n,)
    between = law.known and float(above.min()) > 0
    exponents = -np.diff(np.log(above)) / np.diff(np.log(N)) if between else np.array([])  # between neighbours (n - 1,)
    if law.share < LEAST_SHARE:
        span = f"from {exponents.min():.2f} to {exponents.max():.2f}" if between else ""
        of_neighbours = f"; between neighbours the exponent goes {span}" if span else ""
        return f"no power law: the curve explains {law.share:.0%} of how the loss changes{of_neighbours}"
    if between:
        halves = slice(0, len(N) // 2 + 1), slice(len(N) // 2, None)
        first, last = (-float(np.polyfit(np.log(N[half]), np.log(above[half]), 1)[0]) for half in halves)
        if min(first, last) <= 0 or max(first, last) > STEEPER * min(first, last):
            sizes = f"{first:.2f} in the smaller half of the sizes, {last:.2f} in the larger"
            return f"no power law: the exponent is {sizes}"
    return ""


def loose(law: PowerLaw) -> bool:
    """Whether the sizes hardly determine a fitted E: its interval is wider than a quarter of its value."""
    return not law.known and law.E.high - law.E.low > 0.25 * max(law.E.value, 1e-9)
