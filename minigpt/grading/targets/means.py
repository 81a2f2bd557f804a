"""The running mean: each position becomes the mean of itself and all before it (`ladder.average_loop`).

B batch, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minigpt.grading.probes import sequence_probes
from minigpt.grading.target import Bug, Knobs, Options, Parameters, Probe, Sizes, Steps, Target, only

FIX = "x[:, : t + 1].mean(dim=1) for position t"


def counts(T: int, kind: str) -> Tensor:
    """How often each position s counts for position t, before the division: (T, T)."""
    t, s = torch.arange(T)[:, None], torch.arange(T)  # (T, 1), (T,)
    chosen = {
        "past": s <= t,
        "all": s >= 0 * t,
        "others": s < t,
        "others but at first": (s < t) | ((t == 0) & (s == 0)),
        "one_more": s <= t + 1,
        "future": s >= t,
        "later": s > t,
        "last_two": (s <= t) & (s >= t - 1),
        "not_first": (s <= t) & (s > 0),
        "first": s == 0 * t,
        "itself": s == t,
        "before": s == t - 1,
    }[kind]
    return chosen.double()


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """x (B, T, D) -> the mean of the past (B, T, D)."""
    x = probe.inputs["x"]  # (B, T, D)
    T = x.shape[1]
    triangle = counts(T, knobs.get("sees", "past"))  # (T, T)
    t = torch.arange(T, dtype=x.dtype)[:, None]  # (T, 1)
    divisors: dict[str, Callable[[], Tensor]] = {
        "count": lambda: triangle.sum(dim=1, keepdim=True),
        "columns": lambda: triangle.sum(dim=0, keepdim=True),
        "rows as columns": lambda: triangle.sum(dim=1),
        "all": lambda: triangle.sum(),
        "nothing": lambda: torch.ones(T, 1, dtype=x.dtype),
        "T": lambda: torch.full((T, 1), float(T), dtype=x.dtype),
        "t": lambda: t,
        "t_or_1": lambda: t.clamp(min=1),
        "t + 2": lambda: t + 2,
        "sqrt": lambda: (t + 1).sqrt(),
    }
    weights = triangle / divisors[knobs.get("by", "count")]()  # (T, T)
    if "softmax" in knobs:
        fills = {"ones": triangle, "zeros": 0 * triangle}[knobs["softmax"]]  # (T, T)
        weights = fills.softmax(dim=1)  # (T, T)
    if "columns" in knobs:
        hidden = torch.zeros(T, T, dtype=x.dtype).masked_fill(triangle == 0, -torch.inf)
        weights = hidden.softmax(dim=0)  # (T, T)
    if "decay" in knobs:
        weights = decaying(T, knobs["decay"])
    if "empty" in knobs:  # rows that see no position: 0/0 above, here the number that replaces it
        weights = weights.nan_to_num(nan=knobs["empty"](T))
    if "transposed" in knobs:
        weights = weights.mT
    output = weights @ x  # (B, T, D)
    if "late" in knobs:  # sums first, then the division: x / 0 is infinite, where 0 / 0 in the matrix is not a number
        output = (triangle @ x) / divisors[knobs["by"]]()
    return {"weights": weights, "output": AFTER[knobs.get("after", "as it is")](output, x)}


def decaying(T: int, kind: str) -> Tensor:
    """Weights (T, T) of an exponential moving average: m_t = (m_{t-1} + x_t) / 2, starting from x_0 or from zero."""
    weights, row = [], torch.zeros(T, dtype=torch.float64)  # T of (T,)
    for t in range(T):
        new = torch.zeros(T, dtype=torch.float64).index_fill(0, torch.tensor([t]), 1.0)  # (T,)
        row = new if t == 0 and kind == "from_first" else (row + new) / 2
        weights.append(row)
    return torch.stack(weights)


def running_total(x: Tensor, reset: bool) -> Tensor:
    """Sums over t; without a reset, each sequence continues with the sum of the one before: (B, T, D)."""
    sums = x.cumsum(dim=1)  # (B, T, D)
    carried = sums[:, -1:].cumsum(dim=0) - sums[:, -1:]  # (B, 1, D)
    return sums if reset else sums + carried


def steps_of(x: Tensor) -> Tensor:
    """1, 2, ..., T as (T, 1)."""
    return torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]


AFTER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "as it is": lambda mean, x: mean,
    "features": lambda mean, x: x.cumsum(dim=2) / torch.arange(1, x.shape[2] + 1, dtype=x.dtype),
    "features_by_steps": lambda mean, x: x.cumsum(dim=2) / steps_of(x),
    "over_features": lambda mean, x: mean.mean(dim=2, keepdim=True).expand_as(mean),
    "over_batch": lambda mean, x: x.cumsum(dim=0) / torch.arange(1, len(x) + 1, dtype=x.dtype)[:, None, None],
    "over_batch_by_steps": lambda mean, x: x.cumsum(dim=0) / steps_of(x),
    "batch_mean": lambda mean, x: mean.mean(dim=0, keepdim=True).expand_as(mean),
    "first_sequence": lambda mean, x: mean[:1].expand_as(mean),
    "carried": lambda mean, x: running_total(x, reset=False) / steps_of(x),
    "first_zero": lambda mean, x: torch.cat((torch.zeros_like(mean[:, :1]), mean[:, 1:]), dim=1),
    "last_zero": lambda mean, x: torch.cat((mean[:, :-1], torch.zeros_like(mean[:, :1])), dim=1),
    "plus_x": lambda mean, x: mean + x,
    "minus_x": lambda mean, x: x - mean,
    "max": lambda mean, x: x.cummax(dim=1).values,
    "x": lambda mean, x: x,
    "floor": lambda mean, x: x.cumsum(dim=1) // steps_of(x),
}


def zero(T: int) -> float:
    """The weights of a row that sees no position: zero."""
    return 0.0


def even(T: int) -> float:
    """The weights of a row that sees no position: 1 / T, the mean of all, as if every score is -1e9."""
    return 1.0 / T


EMPTY = ({"empty": zero}, {"empty": even})


def empty(knobs: Knobs) -> tuple[Knobs, ...]:
    """Other forms of a bug whose rows see no position: instead of NaN, zero or the mean of all."""
    return tuple({**knobs, **form} for form in EMPTY)


BUGS = [
    Bug({"sees": "all"}, "every position gets the mean of all {T} positions, the later ones included", FIX),
    Bug({"sees": "others"}, "position t takes the mean of the positions before it and leaves itself out",
        "include position t: x[:, : t + 1], or tril() instead of tril(-1)",
        (*empty({"sees": "others"}), {"sees": "others but at first"})),
    Bug({"sees": "one_more"}, "position t also sees position t + 1: the slice or triangle is one too long",
        "x[:, : t + 1] ends with position t; tril() instead of tril(1)"),
    Bug({"sees": "future"}, "position t takes the mean of itself and all after it: the triangle is upside down",
        "tril() instead of triu()"),
    Bug({"sees": "later"}, "position t sees only what comes after it: the mask hides the past",
        "hide where tril() == 0, not where it is 1", empty({"sees": "later"})),
    Bug({"sees": "last_two"}, "each position takes the mean of itself and the one before it only", FIX),
    Bug({"sees": "not_first"}, "the first token is left out of every mean", "start the slice at 0",
        empty({"sees": "not_first"})),
    Bug({"sees": "first"}, "every position gets the first token", FIX),
    Bug({"after": "x"}, "the result is x itself: no mean is taken", FIX),
    Bug({"sees": "before"}, "every position gets the token before it", FIX, empty({"sees": "before"})),
    Bug({"by": "nothing"}, "you sum the past and do not divide by the number of tokens, t + 1",
        "divide row t by t + 1"),
    Bug({"by": "T"}, "you divide every sum by T = {T} instead of t + 1, the number of tokens that position t sees",
        "divide row t by t + 1"),
    Bug({"by": "t"}, "you divide the sum of t + 1 tokens by t: the first position is divided by zero",
        "divide row t by t + 1", ({"by": "t", "late": True},)),
    Bug({"by": "t_or_1"}, "you divide the sum of t + 1 tokens by t (by 1 at the first position)",
        "divide row t by t + 1"),
    Bug({"by": "t + 2"}, "you divide the sum of t + 1 tokens by t + 2", "divide row t by t + 1"),
    Bug({"by": "sqrt"}, "you divide the sum of t + 1 tokens by sqrt(t + 1)", "divide row t by t + 1"),
    Bug({"by": "all"}, "you divide by the sum of the whole triangle instead of the sum of each row",
        "triangle.sum(dim=-1, keepdim=True)"),
    Bug({"by": "columns"}, "you divide by the sums of the columns instead of the sums of the rows",
        "triangle.sum(dim=-1, keepdim=True)", ({"columns": True},)),
    Bug({"by": "rows as columns"}, "the numbers 1, ..., T divide the columns, not the rows: token s counts 1 / (s + 1) "
        "wherever it is seen", "keepdim=True, or [:, None]: the divisors are a column (T, 1)"),
    Bug({"softmax": "ones"}, "you take the softmax of the triangle of ones itself: hidden positions still get exp(0)",
        "fill the hidden positions with -inf: scores.masked_fill(tril == 0, -inf)"),
    Bug({"transposed": True}, "the weights are used transposed: column t is the mean of position t",
        "weights @ x, with row t for position t"),
    Bug({"decay": "from_first"}, "you halve at every step, m = (m + x_t) / 2: recent tokens count more",
        "m = m + (x_t - m) / (t + 1)", ({"decay": "from_zero"},)),
    Bug({"after": "features"}, "the running mean goes along the features (dim=2) instead of the positions (dim=1)",
        "dim=1 is the position", ({"after": "features_by_steps"},)),
    Bug({"after": "over_features"}, "the mean is taken over the positions and over the features: one number a position",
        "mean(dim=1) of (B, t + 1, D) keeps the features"),
    Bug({"after": "over_batch"}, "the running mean goes along the batch (dim=0) instead of the positions (dim=1)",
        "dim=1 is the position", ({"after": "over_batch_by_steps"},)),
    Bug({"after": "batch_mean"}, "sequences of the batch are averaged with each other", "mean over dim=1 only"),
    Bug({"after": "first_sequence"}, "every sequence of the batch gets the result of the first one",
        "use x[b], or x[:, : t + 1]"),
    Bug({"after": "carried"}, "the sum is not set back to zero between the sequences of the batch",
        "start a new sum for every sequence"),
    Bug({"after": "first_zero"}, "the first position stays zero: the loop starts at 1", "for t in range(T)"),
    Bug({"after": "last_zero"}, "the last position stays zero: the loop ends one too early", "for t in range(T)"),
    Bug({"after": "plus_x"}, "x is added to the mean", "return the mean alone"),
    Bug({"after": "minus_x"}, "you return x minus the mean", "return the mean alone"),
    Bug({"after": "max"}, "you take the maximum of the past, not the mean", FIX),
    Bug({"after": "floor"}, "you divide with //, which rounds down", "divide with /"),
]  # fmt: skip


def tiny() -> tuple[Sizes, Parameters, Probe]:
    """Three tokens of two features (the small example of the ladder's running mean)."""
    x = torch.tensor([[[8.0, 6.0], [5.0, 2.0], [4.0, 4.0]]], dtype=torch.float64)  # (1, 3, 2)
    return {"B": 1, "T": 3, "D": 2}, {}, Probe("three tokens", {"x": x})


def running_mean(options: Options) -> Target:
    """average(x): (B, T, D) -> (B, T, D)."""
    only("running_mean", options)
    return Target(
        "running_mean",
        "row t is the mean of x[0], ..., x[t]",
        ("x",),
        reference,
        sequence_probes,
        {"B": 2, "T": 11, "D": 7},
        BUGS,
        tiny=tiny,
    )
