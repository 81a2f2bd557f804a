"""From queries and keys to weights, with a knob for everything that goes wrong on the way.

B batch, H heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from minigpt.grading.target import Knobs, Options, Sizes, Steps


def scale(kind: str, sizes: Sizes, T: int, S: int) -> float:
    """What the scores are multiplied by. `kind` is the number whose root the scores are divided by, or a word."""
    return factor(kind, *(sizes.get(name, 1) for name in ("d", "D", "H", "G", "B")), T, S)


@cache
def factor(kind: str, d: int, D: int, H: int, G: int, B: int, T: int, S: int) -> float:
    """What the scores are multiplied by, for these sizes."""
    factors: dict[str, Callable[[], float]] = {
        "d": lambda: d**-0.5,
        "1": lambda: 1.0,
        "d whole": lambda: 1 / d,
        "D": lambda: D**-0.5,
        "D whole": lambda: 1 / D,
        "H": lambda: H**-0.5,
        "H whole": lambda: 1 / H,
        "G": lambda: G**-0.5,
        "group": lambda: (H / G) ** -0.5,
        "G d": lambda: (G * d) ** -0.5,
        "D/G": lambda: (D / G) ** -0.5,
        "2 d": lambda: (2 * d) ** -0.5,
        "3 D": lambda: (3 * D) ** -0.5,
        "3 d": lambda: (3 * d) ** -0.5,
        "d/2": lambda: (d // 2) ** -0.5,
        "d - 1": lambda: (d - 1) ** -0.5,
        "T": lambda: T**-0.5,
        "T whole": lambda: 1 / T,
        "S": lambda: S**-0.5,
        "S whole": lambda: 1 / S,
        "B": lambda: B**-0.5,
        "times": lambda: d**0.5,
        "times d": lambda: float(d),
        "fourth": lambda: d**-0.25,
        "square": lambda: float(d) ** -2,
        "three halves": lambda: d**-1.5,
        "8": lambda: 1 / 8,
        "integer": lambda: 1 / int(math.sqrt(d)),
        "minus": lambda: -(d**-0.5),
    }
    return factors[kind]()


def distances(T: int, S: int) -> Tensor:
    """The distance from query t, at position S - T + t, back to key s: (T, S)."""
    return torch.arange(S - T, S)[:, None] - torch.arange(S)  # (T, S)


@cache
def allowed(kind: str, T: int, S: int, window: int) -> Tensor:
    """Which keys a query sees: (T, S)."""
    far, s, t = distances(T, S), torch.arange(S), torch.arange(T)[:, None]  # (T, S), (S,), (T, 1)
    everyone = far == far  # (T, S)
    near = far < window if window else everyone  # (T, S)
    masks: dict[str, Callable[[], Tensor]] = {
        "right": lambda: (far >= 0) & near,
        "full": lambda: everyone,
        "none": lambda: everyone,
        "near": lambda: near,
        "strict": lambda: (far > 0) & near,
        "strict_first": lambda: ((far > 0) & near) | ((t + s == 0) & (far == 0)),
        "strict_open": lambda: ((far > 0) & near) | ((t == 0) & (far == -s)),
        "ahead": lambda: (far >= -1) & near,
        "inverted": lambda: far <= 0,
        "hides_past": lambda: far < 0,
        "not_itself": lambda: far != 0,
        "itself": lambda: far == 0,
        "two": lambda: (far >= 0) & (far < 2),
        "first_row": lambda: (far >= 0) | (t > 0),
        "corner": lambda: (t >= s) & near,
        "corner_strict": lambda: t > s,
        "other_corner": lambda: s <= t - (S - T),
        "last_corner": lambda: (far >= 1 - (S > T)) & near,
        "late": lambda: far >= (S - T),
        "no_window": lambda: far >= 0,
        "window + 1": lambda: (far >= 0) & (far <= window),
        "window - 1": lambda: (far >= 0) & (far < window - 1),
        "both_sides": lambda: far.abs() < window,
        "both_sides + 1": lambda: far.abs() <= window,
        "blocks": lambda: (far >= 0) & ((s // window) == ((t + S - T) // window)),
        "far_only": lambda: (far >= 0) & (far >= window),
        "first_keys": lambda: (far >= 0) & (s < window),
        "strided": lambda: (far >= 0) & (far % window == 0),
        "window_corner": lambda: (far >= 0) & (t - s < window),
        "past_window": lambda: (far > 0) & (far <= window),
        "window_future": lambda: (far <= 0) & (far > -window),
        "half_window": lambda: (far >= 0) & (far <= window // 2),
    }
    if kind.startswith("sinks"):  # all later queries see the first n keys; with "early", earlier ones too
        sinks = s < int(kind.split()[1])  # (S,)
        return (far >= 0) & (near | sinks) | (sinks & everyone & kind.endswith("early"))
    return masks[kind]()


def hide(scores: Tensor, seen: Tensor, knobs: Knobs) -> Tensor:
    """Scores (B, H, T, S), hidden where `seen` (T, S) is false."""
    how, value = knobs.get("hide", "fill"), knobs.get("fill", -math.inf)
    if how == "fill":
        return scores.masked_fill(~seen, value)
    if how == "add":
        return scores + torch.where(seen, 0.0, value)
    if how == "add_seen":
        return scores + seen.to(scores.dtype)
    if how == "add_hidden":
        return scores + (~seen).to(scores.dtype)
    if how == "subtract_seen":
        return scores - seen.to(scores.dtype)
    return scores  # "after": hidden after the softmax


def normalise(scores: Tensor, knobs: Knobs) -> Tensor:
    """Scores (B, H, T, S) -> weights."""
    how = knobs.get("softmax", "key")
    if how.startswith("online"):
        return not_rescaled(scores, int(how.split()[1]), how.endswith("both"))
    if how in ("key", "query", "head", "batch"):
        return scores.softmax(dim={"key": -1, "query": -2, "head": 1, "batch": 0}[how])
    ways: dict[str, Callable[[], Tensor]] = {
        "none": lambda: scores,
        "twice": lambda: scores.softmax(dim=-1).softmax(dim=-1),
        "log": lambda: scores.log_softmax(dim=-1),
        "sigmoid": lambda: scores.sigmoid(),
        "relu": lambda: scores.relu(),
        "tanh": lambda: scores.tanh(),
        "sum": lambda: scores / scores.sum(dim=-1, keepdim=True),
        "abs": lambda: scores / scores.abs().sum(dim=-1, keepdim=True),
        "sigmoid_sum": lambda: scores.sigmoid() / scores.sigmoid().sum(dim=-1, keepdim=True),
        "exp": lambda: scores.exp(),
        "naive": lambda: scores.exp() / scores.exp().sum(dim=-1, keepdim=True),
        "naive_query": lambda: scores.exp() / scores.exp().sum(dim=-2, keepdim=True),
        "stable_query": lambda: columns_of_exponentials(scores),
        "naive_all": lambda: scores.exp() / scores.exp().sum(dim=(-2, -1), keepdim=True),
        "flat": lambda: scores.flatten(2).softmax(dim=-1).view_as(scores),
        "flat_all": lambda: scores.flatten(1).softmax(dim=-1).view_as(scores),
        "one_more": lambda: one_more(scores),
        "max": lambda: torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0),
        "minus": lambda: (-scores).masked_fill(scores == -math.inf, -math.inf).softmax(dim=-1),
        "norm": lambda: scores / scores.norm(dim=-1, keepdim=True),
        "two": lambda: torch.pow(2.0, scores - scores.amax(dim=-1, keepdim=True)) /
        torch.pow(2.0, scores - scores.amax(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True),
    }  # fmt: skip
    return ways[how]()


def columns_of_exponentials(scores: Tensor) -> Tensor:
    """exp of scores (B, H, T, S) minus the largest of each row, divided by the sums of the columns."""
    grown = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (B, H, T, S)
    return grown / grown.sum(dim=-2, keepdim=True)


def not_rescaled(scores: Tensor, width: int, both: bool) -> Tensor:
    """An online softmax over blocks of `width` keys, (B, H, T, S), that never rescales its sums."""
    blocks = scores.split(width, dim=-1)
    largest = torch.stack([block.amax(dim=-1) for block in blocks], dim=-1).cummax(dim=-1).values  # (B, H, T, blocks)
    near = largest.repeat_interleave(width, dim=-1)[..., : scores.shape[-1]]  # (B, H, T, S)
    grown = (scores - near).exp()  # (B, H, T, S)
    below = grown if both else (scores - largest[..., -1:]).exp()  # (B, H, T, S)
    return grown / below.sum(dim=-1, keepdim=True)


def one_more(scores: Tensor) -> Tensor:
    """exp / (1 + sum of exp): a softmax with one more score, which is zero (B, H, T, S)."""
    zeros = torch.zeros_like(scores[..., :1])  # (B, H, T, 1)
    return torch.cat((scores, zeros), dim=-1).softmax(dim=-1)[..., :-1]


def compare(query: Tensor, key: Tensor, knobs: Knobs) -> Tensor:
    """query (B, H, T, d), key (B, H, S, d) -> scores (B, H, T, S), before the scale."""
    how = knobs.get("compare", "qk")
    if how == "qk":
        return query @ key.mT
    T, S = query.shape[2], key.shape[2]
    unit = torch.nn.functional.normalize
    ways: dict[str, Callable[[], Tensor]] = {
        "kq": lambda: (key @ query.mT)[..., :T, :],
        "kq_late": lambda: key @ query.mT,
        "qq": lambda: query @ query.mT,
        "kk": lambda: key[..., S - T :, :] @ key.mT,
        "cosine": lambda: unit(query, dim=-1, eps=1e-8) @ unit(key, dim=-1, eps=1e-8).mT,
        "distance": lambda: -torch.cdist(query, key),
        "square_distance": lambda: -(torch.cdist(query, key) ** 2),
        "unit query": lambda: unit(query, dim=-1, eps=1e-12) @ key.mT,
        "unit key": lambda: query @ unit(key, dim=-1, eps=1e-12).mT,
        "over heads": lambda: (query @ key.mT).sum(dim=1, keepdim=True).expand(-1, query.shape[1], -1, -1),
        "mean of heads": lambda: (query @ key.mT).mean(dim=1, keepdim=True).expand(-1, query.shape[1], -1, -1),
        "absolute": lambda: (query @ key.mT).abs(),
        "negative": lambda: -(query @ key.mT),
        "sum": lambda: query.sum(dim=-1, keepdim=True) + key.sum(dim=-1)[..., None, :],
        "reshaped": lambda: query @ key.reshape(*key.shape[:2], key.shape[3], key.shape[2]),
    }
    return ways[how]()


def weigh(
    query: Tensor, key: Tensor, sizes: Sizes, knobs: Knobs, options: Options, bias: Tensor | None = None
) -> Steps:
    """query (B, H, T, d), key (B, H, S, d), bias (H, T, S) of ALiBi -> every step to the weights (B, H, T, S)."""
    T, S = query.shape[2], key.shape[2]
    times, late = scale(knobs.get("scale", sizes_scale(options, sizes)), sizes, T, S), knobs.get("scale_at")
    scores = compare(query, key, knobs)  # (B, H, T, S)
    steps = {"products": scores}
    if bias is not None and knobs.get("bias_at") == "before_scale":
        scores = scores + bias
    if late is None:
        scores = scores * times
        steps["scores"] = scores
    if bias is not None and "bias_at" not in knobs:
        scores = scores + bias
        steps["scores with bias"] = scores
    if bias is not None and knobs.get("bias_at") == "times":
        scores = scores * bias
    if "cap" in knobs:
        scores = scores.clamp(-knobs["cap"], knobs["cap"])
    kind = knobs.get("mask", "full" if options.full else "right")
    if kind == "heads":  # laid over the wrong axes
        seen = allowed("corner", scores.shape[1], S, 0)[:, None]  # (H, 1, S)
    else:
        seen = allowed(kind, T, S, options.window)  # (T, S)
    masked = hide(scores, seen, knobs)  # (B, H, T, S)
    if late == "after_mask":
        masked = masked * times
    if kind not in ("full", "none") and masked is not scores:
        steps["masked scores"] = masked
    weights = normalise(masked, knobs)  # (B, H, T, S)
    if knobs.get("hide") == "after":
        weights = weights * seen
    if knobs.get("hide") == "after_renormalised":
        weights = weights * seen / (weights * seen).sum(dim=-1, keepdim=True)
    if knobs.get("hide") == "after_inf":
        weights = weights.masked_fill(~seen, knobs.get("fill", -math.inf))
    if "empty_rows" in knobs:
        weights = weights.nan_to_num(nan=0.0)
    if bias is not None and knobs.get("bias_at", "").startswith("after_softmax"):
        weights = weights + (bias * seen if knobs["bias_at"].endswith("seen") else bias)
    if late == "after_softmax":
        weights = weights * times
    if "add_identity" in knobs:
        weights = weights + torch.eye(T, S, dtype=weights.dtype)
    return steps | {"weights": weights}


def sizes_scale(options: Options, sizes: Sizes) -> str:
    """The right scale: 1/sqrt(d); where the sizes say `unscaled`, none."""
    return "1" if sizes.get("unscaled") else "d"
