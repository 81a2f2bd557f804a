"""Positions inside an attention: rotary and ALiBi, with knobs, and what goes wrong with them.

B batch, H heads, T query positions, S key positions, d width of a head, n = d // 2 pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from minigpt.grading.target import Bug, Convention, Knobs, Sizes, alike
from minigpt.grading.targets.scores import distances

BASE = 10_000.0


@cache
def frequencies(kind: str, d: int, D: int) -> Tensor:
    """The angle of each pair per position, in radians: (n,). Right is base^(-2i/d)."""
    i = torch.arange(d // 2, dtype=torch.float64)  # (n,)
    kinds: dict[str, Callable[[], Tensor]] = {
        "2i/d": lambda: BASE ** (-2 * i / d),
        "2i/D": lambda: BASE ** (-2 * i / D),
        "i/d": lambda: BASE ** (-i / d),
        "4i/d": lambda: BASE ** (-4 * i / d),
        "(2i-2)/d": lambda: BASE ** (-(2 * i - 2) / d),
        "(2i+2)/d": lambda: BASE ** (-(2 * i + 2) / d),
        "2(i//2)/d": lambda: BASE ** (-2 * (i // 2) / d),
        "positive": lambda: BASE ** (2 * i / d),
        "one": lambda: torch.ones_like(i),
        "exp": lambda: torch.exp(-2 * i / d),
        "2 pi": lambda: 2 * torch.pi * BASE ** (-2 * i / d),
        "inverse": lambda: 1 / (BASE * 2 * i / d).clamp(min=1),
        "reversed": lambda: (BASE ** (-2 * i / d)).flip(0),
        "twice": lambda: 2 * BASE ** (-2 * i / d),
        "degrees": lambda: torch.pi / 180 * BASE ** (-2 * i / d),
        "half": lambda: BASE ** (-2 * i / d) / 2,
        "100": lambda: 100.0 ** (-2 * i / d),
        "1000": lambda: 1000.0 ** (-2 * i / d),
        "100000": lambda: 100_000.0 ** (-2 * i / d),
        "500000": lambda: 500_000.0 ** (-2 * i / d),
        "1000000": lambda: 1_000_000.0 ** (-2 * i / d),
    }
    return kinds[kind]()


def partner(x: Tensor, kind: str) -> Tensor:
    """The factor of the sine, in the shape of x: the other feature of each pair, with a minus for the first."""
    even, odd, half = x[..., 0::2], x[..., 1::2], x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    kinds: dict[str, Callable[[], Tensor]] = {
        "neighbours": lambda: torch.stack((-odd, even), dim=-1).flatten(-2),
        "halves": lambda: torch.cat((-second, first), dim=-1),
        "neighbours plus": lambda: torch.stack((odd, even), dim=-1).flatten(-2),
        "halves plus": lambda: torch.cat((second, first), dim=-1),
        "neighbours minus": lambda: torch.stack((-odd, -even), dim=-1).flatten(-2),
        "halves minus": lambda: torch.cat((-second, -first), dim=-1),
        "itself": lambda: x,
        "halves of pairs": lambda: torch.cat((-odd, even), dim=-1),
        "first only": lambda: torch.stack((-odd, 0 * even), dim=-1).flatten(-2),
        "halves first only": lambda: torch.cat((-second, 0 * first), dim=-1),
        "second only": lambda: torch.stack((0 * odd, even), dim=-1).flatten(-2),
        "halves second only": lambda: torch.cat((0 * second, first), dim=-1),
    }
    return kinds[kind]()


OVERWRITTEN = {"overwritten": "", "halves overwritten": "halves "}


@cache
def tables(positions: range, kind: str, d: int, D: int, backwards: bool, table: str) -> tuple[Tensor, Tensor]:
    """The cosines and sines of all angles, (T, d) each: each pair has two equal columns, as neighbours or as halves."""
    theta = torch.tensor(positions, dtype=torch.float64)[:, None] * frequencies(kind, d, D)  # (T, n)
    theta = -theta if backwards else theta
    theta = theta.repeat_interleave(2, dim=-1) if table == "neighbours" else torch.cat((theta, theta), dim=-1)  # (T, d)
    return theta.cos(), theta.sin()


def turn(x: Tensor, positions: range, sizes: Sizes, knobs: Knobs, backwards: bool = False) -> Tensor:
    """Rotate x (..., T, d) by its T positions. Raises RuntimeError if d is too small for `share_of_d`."""
    if share := knobs.get("share_of_d"):  # only the first d / share features of a head are rotated
        n = x.shape[-1] // share // 2 * 2  # whole pairs
        if not n:
            raise RuntimeError("a head is too narrow for a share of its features")
        first = turn(x[..., :n], positions, sizes, {**knobs, "share_of_d": 0}, backwards)  # (..., T, n)
        return torch.cat((first, x[..., n:]), dim=-1)
    d = x.shape[-1]
    backwards = backwards != ("direction" in knobs)
    kind, table = knobs.get("frequencies", "2i/d"), knobs.get("table", "neighbours")
    cos, sin = tables(positions, kind, d, sizes["D"], backwards, table)  # (T, d) each
    pair = knobs.get("pairs", "neighbours")
    if pair == "sine only":
        return partner(x, "neighbours") * sin
    if pair == "cosine only":
        return x * cos
    if pair == "added":
        return x + sin
    if pair in OVERWRITTEN:  # the second feature of a pair reads the rotated first one
        once = x * cos + partner(x, f"{OVERWRITTEN[pair]}first only") * sin  # (..., T, d)
        return once + partner(once, f"{OVERWRITTEN[pair]}second only") * sin
    turned = x * cos + partner(x, pair) * sin  # (..., T, d)
    if "part" in knobs:
        return torch.cat((turned[..., : d // 2], x[..., d // 2 :]), dim=-1)
    return turned


def rotate(query: Tensor, key: Tensor, value: Tensor, start: int, sizes: Sizes, knobs: Knobs) -> tuple[Tensor, ...]:
    """query (B, H, T, d), key and value (B, G, T, d), all rotated as the knobs say."""
    T, which = query.shape[2], knobs.get("rotates", "both")
    positions = range(start, start + T)
    if "position" in knobs:
        return (*by_something_else(query, key, knobs["position"], sizes, knobs), value)
    if which == "over all heads":  # before the heads are split
        joined = [x.transpose(1, 2).flatten(2) for x in (query, key)]  # (B, T, H d) and (B, T, G d)
        wide = [turn(x, positions, sizes, knobs) for x in joined]
        query, key = (w.unflatten(2, x.shape[1::2]).transpose(1, 2) for w, x in zip(wide, (query, key)))
        return query, key, value
    first, second = ({**knobs, **knobs.get(f"{side} alone", {})} for side in ("query", "key"))
    late = {"query": (1, 0), "key": (0, 1)}.get(knobs.get("late", ""), (0, 0))
    if which in ("both", "query", "values too", "opposite", "twice"):
        query = turn(query, range(start + late[0], start + late[0] + T), sizes, first)
    if which in ("both", "key", "values too", "opposite", "twice"):
        key = turn(key, range(start + late[1], start + late[1] + T), sizes, second, which == "opposite")
    if which == "values too":
        value = turn(value, positions, sizes, knobs)
    return query, key, value


def by_something_else(query: Tensor, key: Tensor, what: str, sizes: Sizes, knobs: Knobs) -> tuple[Tensor, ...]:
    """query and key (B, H, T, d), rotated by the index of the head or of the sequence instead of the position."""
    axis = {"head": 1, "batch": 0}[what]
    turned = []
    for x in (query, key):
        turned.append(turn(x.transpose(axis, 2), range(x.shape[axis]), sizes, knobs).transpose(axis, 2))
    return tuple(turned)


ANGLES = "angle of pair i at position t: t * 10000 ** (-2 * i / d), i = 0, 1, ..., d/2 - 1"


EXPONENTS = {
    "2i/D": "2i/D = 2i/{D}: the width of the model instead of 2i/d = 2i/{d}, the width of a head",
    "i/d": "i/d instead of 2i/d: the same as a base of 100",
    "4i/d": "4i/d instead of 2i/d: arange(0, d, 2) already counts in twos",
    "(2i-2)/d": "(2i - 2)/d instead of 2i/d: i starts at 0 here, and at 1 in the paper's formula",
    "(2i+2)/d": "(2i + 2)/d instead of 2i/d: i starts at 0",
    "2(i//2)/d": "2(i // 2)/d instead of 2i/d: two pairs each turn alike",
}
WRONG_ANGLES = {
    **{kind: f"the exponents of the angles are {words}" for kind, words in EXPONENTS.items()},
    "positive": "the exponents are +2i/d instead of -2i/d: the pairs turn faster and faster",
    "one": "every pair turns by the same angle, 1 a position",
    "exp": "the angles are exp(-2i/d): the logarithm of the base, 10000, is missing",
    "2 pi": "the angles are 2 pi times too large",
    "degrees": "the angles are taken for degrees and divided by 180 / pi",
    "twice": "the angles are twice too large: rotated twice, or position times 2",
    "half": "the angles are half as large as they should be",
    "1000": "the base is 1000 instead of 10000",
    "100000": "the base is 100000 instead of 10000",
    "inverse": "the base is multiplied by 2i/d instead of raised to it",
}


def rotary_bugs() -> list[Bug]:
    """What goes wrong with rotary: what is rotated, by which angles, and in which pairs."""
    return [
        Bug({"rotates": "none"}, "the attention has no positions: nothing is rotated, or query and key of a head are "
            "rotated alike at every position (by the number of the head, say, where it is taken for the position)",
            "rotate query and key (B, H, T, d), split into heads already, by the angles of their positions (T, d)",
            ({"position": "head"}, {"position": "batch"}), equal="no positions"),
        Bug({"rotates": "query"}, "only the queries are rotated, not the keys", "rotate both by their own positions"),
        Bug({"rotates": "key"}, "only the keys are rotated, not the queries", "rotate both by their own positions"),
        Bug({"rotates": "values too"}, "the values are rotated too", "rotate queries and keys only"),
        Bug({"rotates": "opposite"}, "queries and keys turn in opposite directions: the scores depend on the sum of "
            "the positions instead of their difference", "the same rotation for both"),
        Bug({"rotates": "over all heads"}, "you rotate before the heads are split: the exponents run over the whole "
            "width instead of over d = {d} in every head", "split the heads first, then rotate"),
        *alike("frequencies", WRONG_ANGLES, ANGLES),
        *pair_bugs(),
        *side_bugs(),
    ]  # fmt: skip


HALVES: Knobs = {"pairs": "halves", "table": "halves"}


def side_bugs() -> list[Bug]:
    """What goes wrong where queries and keys are not rotated in the same way."""
    same = "one function that rotates both, with the same pairs, angles and positions"
    pairs = (
        "rotary turns query and key in different pairs, {} interleaved (2i, 2i + 1), {} by halves (i, i + d/2): the "
    )
    pairs += "scores do not depend on the distance"
    return [
        Bug({"key alone": HALVES}, pairs.format("the query", "the key"), same),
        Bug({"query alone": HALVES}, pairs.format("the key", "the query"), same),
        Bug({"late": "query"}, "the queries are rotated by positions that are one more than those of the keys", same,
            ({"late": "query", **HALVES},)),
        Bug({"late": "key"}, "the keys are rotated by positions that are one more than those of the queries", same,
            ({"late": "key", **HALVES},)),
    ]  # fmt: skip


def pair_bugs() -> list[Bug]:
    """What goes wrong where a pair of features is rotated."""
    return [
        Bug({"table": "halves"}, "the pairs are neighbours (2i, 2i + 1), but the angles stand in halves: cat((a, a)); "
            "neighbours turn by different angles", "a.repeat_interleave(2, dim=-1) for neighbours"),
        Bug({"pairs": "halves"}, "the pairs are halves (i, i + d/2), but the angles stand in neighbours: "
            "repeat_interleave(2)", "torch.cat((a, a), dim=-1) for halves"),
        Bug({"pairs": "neighbours plus"}, "the minus is missing: (a cos + b sin, b cos + a sin) is no rotation",
            "(a cos - b sin, b cos + a sin)", ({"pairs": "halves plus", "table": "halves"},)),
        Bug({"pairs": "neighbours minus"}, "there is a minus in both features of a pair: (a cos - b sin, b cos - a "
            "sin) is no rotation", "(a cos - b sin, b cos + a sin)", ({"pairs": "halves minus", "table": "halves"},)),
        Bug({"pairs": "itself"}, "x is multiplied by cos + sin: the other feature of the pair is not used",
            "(a cos - b sin, b cos + a sin)", ({"pairs": "itself", "table": "halves"},)),
        Bug({"pairs": "halves of pairs"}, "the rotated features are joined in another order than they were taken apart",
            "torch.stack((a, b), dim=-1).flatten(-2) undoes x[..., 0::2], x[..., 1::2]"),
        Bug({"pairs": "sine only"}, "the part with the cosine is missing", "(a cos - b sin, b cos + a sin)"),
        Bug({"pairs": "cosine only"}, "the part with the sine is missing", "(a cos - b sin, b cos + a sin)",
            ({"pairs": "cosine only", "table": "halves"},)),
        Bug({"pairs": "first only"}, "the sine is missing in the second feature of each pair: (a cos - b sin, b cos)",
            "(a cos - b sin, b cos + a sin)", ({"pairs": "halves first only", "table": "halves"},)),
        Bug({"pairs": "second only"}, "the sine is missing in the first feature of each pair: (a cos, b cos + a sin)",
            "(a cos - b sin, b cos + a sin)", ({"pairs": "halves second only", "table": "halves"},)),
        Bug({"pairs": "overwritten"}, "the first feature of each pair is overwritten before the second one reads it: "
            "b cos + a sin takes the new a", "compute both from the old a and b, then put them together",
            ({"pairs": "halves overwritten", "table": "halves"},)),
        Bug({"part": True}, "only the first half of the features of a head is rotated", "rotate all {d//2} pairs",
            ({"part": True, "pairs": "halves", "table": "halves"},)),
    ]  # fmt: skip


ROTARY_CONVENTIONS = [
    Convention({"pairs": "halves", "table": "halves"}, "rotary pairs feature i with i + d/2 (as Hugging Face's Llama), "
               "not neighbours: the same up to the order of the features"),
    Convention({"direction": True}, "rotary turns the other way round: the same up to a sign"),
    Convention({"frequencies": "reversed"}, "the last pair turns fastest: the same up to the order of the features"),
    Convention({"share_of_d": 2}, "only the first half of each head's features is rotated, as in GPT-NeoX with "
               "rotary_pct=0.5"),
    Convention({"share_of_d": 4}, "only the first quarter of each head's features is rotated, as in GPT-NeoX with "
               "rotary_pct=0.25"),
    Convention({"frequencies": "500000"}, "rotary has the base 500000 (as Llama 3) instead of 10000"),
    Convention({"frequencies": "1000000"}, "rotary has the base 1000000 instead of 10000"),
]  # fmt: skip


def slopes(kind: str, H: int) -> Tensor:
    """The slope of every head: (H,). Right is 2^(-8h/H), h = 1, ..., H."""
    h = torch.arange(1, H + 1, dtype=torch.float64)
    near = 2 ** (H.bit_length() - 1)  # the largest power of two up to H
    kinds: dict[str, Callable[[], Tensor]] = {
        "right": lambda: 2 ** (-8 * h / H),
        "from zero": lambda: 2 ** (-8 * (h - 1) / H),
        "one": lambda: torch.full_like(h, 2 ** (-8 / H)),
        "ones": lambda: torch.ones_like(h),
        "halves": lambda: 2.0**-h,
        "linear": lambda: h / H,
        "inverse": lambda: 1 / h,
        "e": lambda: torch.exp(-8 * h / H),
        "-8/h": lambda: 2 ** (-8 / h),
        "positive": lambda: 2 ** (8 * h / H),
        "whole": lambda: 2.0 ** -(8 * h // H),
        "reversed": lambda: (2 ** (-8 * h / H)).flip(0),
        "closest": lambda: torch.cat((2 ** (-8 * h[:near] / near), 2 ** (-4 * h / near)[::2][: H - near])),
    }
    return kinds[kind]()


def alibi(T: int, S: int, H: int, knobs: Knobs) -> Tensor:
    """What is added to the scores: (H, T, S)."""
    far = distances(T, S).double()  # (T, S)
    far = {"right": far, "square": far**2, "root": far.clamp(min=0).sqrt(), "log": (far.clamp(min=0) + 1).log(),
           "backwards": -far, "none": 0 * far, "capped": far.clamp(max=1)}[knobs.get("far", "right")]  # fmt: skip
    return -slopes(knobs.get("slopes", "right"), H)[:, None, None] * far  # (H, T, S)


SLOPES = "2 ** (-8 * h / H) for h = 1, ..., H"
BIAS = "scores / sqrt(d) - slope * (t - s)"
WRONG_SLOPES = {
    "from zero": "the slopes start at h = 0: the first head has slope 1 instead of 2^(-8/{H})",
    "one": "the slopes are one for all heads, 2^(-8/{H})",
    "ones": "the slopes are 1 in every head: there are none",
    "halves": "the slopes are 1/2, 1/4, 1/8, ...: right for 8 heads only, here there are {H}",
    "linear": "the slopes are h/H: they grow evenly instead of falling geometrically",
    "inverse": "the slopes are 1/h instead of falling geometrically",
    "e": "the slopes are powers of e, exp(-8h/{H}), instead of 2",
    "-8/h": "the slopes are 2^(-8/h) instead of 2^(-8h/{H}): multiply and divide are exchanged",
    "positive": "the slopes are 2^(+8h/{H}): the sign of the exponent is wrong",
    "whole": "the slopes have whole exponents: 8h // {H} rounds down",
}


def alibi_bugs() -> list[Bug]:
    """What goes wrong with ALiBi."""
    return [
        Bug({"far": "none"}, "nothing is added to the scores: the attention has no positions", BIAS),
        *alike("slopes", WRONG_SLOPES, SLOPES),
        Bug({"far": "backwards"}, "the sign of the bias is wrong: tokens far away are preferred", BIAS),
        Bug({"far": "square"}, "the bias grows with the square of the distance", BIAS),
        Bug({"far": "root"}, "the bias grows with the root of the distance", BIAS),
        Bug({"far": "log"}, "the bias grows with the logarithm of the distance", BIAS),
        Bug({"far": "capped"}, "the bias is the same for all earlier tokens: the distance is not used", BIAS),
        Bug({"bias_at": "before_scale"}, "the bias is added before the division by sqrt(d) and is divided too", BIAS),
        Bug({"bias_at": "times"}, "the scores are multiplied by the bias instead of added to it", BIAS),
        Bug(
            {"bias_at": "after_softmax"},
            "the bias is added after the softmax",
            BIAS,
            ({"bias_at": "after_softmax_seen"},),
        ),
    ]


ALIBI_CONVENTIONS = [
    Convention({"slopes": "reversed"}, "the slopes stand in the other order: the same up to the order of the heads"),
    Convention({"slopes": "closest"}, "the slopes are those of the ALiBi authors' code for a number of heads that is "
               "no power of two"),
]  # fmt: skip
