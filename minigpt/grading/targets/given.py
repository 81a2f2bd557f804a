"""Functions of given heads: attention of query, key and value that are already split into heads, and rotary alone.

In the probes and in the outputs the heads are the third axis; the call permutes the axes to what the answer takes.

B batch, T query positions, S key positions, H query heads, G key heads, d width of a query and a key, e of a value.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from minigpt.grading.probes import BATCH, LENGTHS, SCALES, numbers, tokens
from minigpt.grading.target import Bug, Knobs, Options, Parameters, Probe, Sizes, Steps, Target, only
from minigpt.grading.targets import pairs
from minigpt.grading.targets.head_bugs import SINKS, grouped_bugs, window_bugs
from minigpt.grading.targets.heads import share
from minigpt.grading.targets.pairs import NO_MODEL, value_bugs
from minigpt.grading.targets.rotation import (
    ALIBI_CONVENTIONS,
    ROTARY_CONVENTIONS,
    alibi,
    alibi_bugs,
    rotary_bugs,
    rotate,
)
from minigpt.grading.targets.score_bugs import (
    compare_bugs,
    corner_bugs,
    exchange_bug,
    head_score_bugs,
    mask_bugs,
    online_bug,
    scale_bugs,
    softmax_bugs,
)
from minigpt.grading.targets.scores import weigh

MANY = {"B": 2, "T": 11, "D": 70, "H": 5, "G": 5, "d": 14, "e": 14, "given": 1}
GROUPED = {"B": 2, "T": 11, "D": 240, "H": 20, "G": 5, "d": 12, "e": 12, "given": 1}


def heads_probes(sizes: Sizes, options: Options) -> list[Probe]:
    """query (B, T, H, d), key (B, S, G, d) and value (B, S, G, e): as many queries as keys, larger ones, then fewer."""

    def inputs(T: int, S: int, scale: float = 1.0) -> dict[str, Tensor]:
        drawn = [numbers(BATCH, n, sizes[heads], sizes[width], seed=10 * T + S + seed) for seed, (n, heads, width)
                 in enumerate([(T, "H", "d"), (S, "G", "d"), (S, "G", "e")])]  # fmt: skip
        return {"query": drawn[0] * scale, "key": drawn[1] * scale, "value": drawn[2]}

    probes = [Probe(tokens(T), inputs(T, T)) for T in LENGTHS]
    probes += [Probe(f"inputs times {scale:g}", inputs(11, 11, scale), scale) for scale in SCALES]
    fewer = () if options.rotary else (5, 1)
    return probes + [Probe(f"{T} {'query' if T == 1 else 'queries'}, 11 keys", inputs(T, 11), optional=True)
                     for T in fewer]  # fmt: skip


def heads_reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options) -> Steps:
    """query (B, T, H, d), key (B, S, G, d), value (B, S, G, e) -> every step to the output (B, T, H, e)."""
    query, key, value = (probe.inputs[name].transpose(1, 2) for name in ("query", "key", "value"))  # (B, H, T, d)
    if options.rotary:
        query, key, value = rotate(query, key, value, 0, sizes, knobs)
    T, H, S = query.shape[2], query.shape[1], key.shape[2]
    bias = alibi(T, S, H, knobs) if options.alibi else None  # (H, T, S)
    keys = share(key, H, knobs.get("share_keys", knobs.get("share", "right")))  # (B, H, S, d)
    values = share(value, H, knobs.get("share_values", knobs.get("share", "right")))  # (B, H, S, e)
    steps = weigh(query, keys, {**sizes, "B": len(query), "d": query.shape[-1]}, knobs, options, bias)
    weights = steps["weights"].mT if "transposed" in knobs else steps["weights"]  # (B, H, T, S)
    mixed = weights @ {"value": values, "key": keys, "query": query}[knobs.get("value", "value")]  # (B, H, T, e)
    return {**steps, "output": mixed.transpose(1, 2)}


def heads_bugs(options: Options, grouped: bool) -> list[Bug]:
    """What can go wrong where the heads are given."""
    scales = [bug for bug in scale_bugs() if bug.knobs.get("scale") not in NO_MODEL]
    shared = [bug for bug in grouped_bugs() if bug.knobs.get("scale") != "D/G"] if grouped else []
    values = [bug for bug in value_bugs() if bug.knobs != {"value": "query"} or not grouped]
    softmaxes = softmax_bugs()
    if options.window:  # all rows hide keys: -inf / -inf is NaN, as in other bugs
        softmaxes = [replace(bug, knobs=bug.forms[0]) if bug.knobs == {"softmax": "sum"} else bug for bug in softmaxes]
    exchanged = [] if options.alibi or options.window or options.rotary else [exchange_bug()]
    return [
        *([] if options.full else mask_bugs()),
        *([] if options.full or options.rotary else corner_bugs()),
        *scales, *softmaxes, *compare_bugs(), *exchanged, *head_score_bugs(), *values, *shared, online_bug(),
        *(window_bugs() if options.window else []),
        *(alibi_bugs() if options.alibi else []),
        *(turned_bugs() if options.rotary else []),
    ]  # fmt: skip


def heads_given(name: str, options: Options, grouped: bool = False) -> Target:
    """attend(query, key, value): (B, H, T, d), (B, G, S, d), (B, G, S, e) -> (B, H, T, e)."""
    only(name, options, "rotary", "alibi", "window", "full")
    return Target(
        name,
        "in every head: softmax of query @ key^T / sqrt(d), the future hidden, times the values",
        ("query", "key", "value"),
        partial(heads_reference, options=options),
        partial(heads_probes, options=options),
        {**(GROUPED if grouped else MANY), "window": options.window},
        heads_bugs(options, grouped),
        [
            *(ROTARY_CONVENTIONS if options.rotary else []),
            *(ALIBI_CONVENTIONS if options.alibi else []),
            *(SINKS if options.window else []),
        ],
        options=options,
    )


def turning_probes(sizes: Sizes) -> list[Probe]:
    """query and key (B, T, H, d)."""
    return [Probe(tokens(T), {name: numbers(BATCH, T, sizes["H"], sizes["d"], seed=20 * T + number)
                              for number, name in enumerate(("query", "key"))}) for T in LENGTHS]  # fmt: skip


def turning_reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """query and key (B, T, H, d) -> both rotated, joined along the heads (B, T, 2 H, d)."""
    query, key = (probe.inputs[name].transpose(1, 2) for name in ("query", "key"))  # (B, H, T, d)
    query, key, _ = rotate(query, key, key, 0, sizes, knobs)
    return {"output": torch.cat((query, key), dim=1).transpose(1, 2)}


def products(turned: Tensor) -> Tensor:
    """Rotated queries and keys, joined along the heads (B, T, 2 H, d) -> their products (B, H, T, T)."""
    query, key = turned.transpose(1, 2).chunk(2, dim=1)  # (B, H, T, d) each
    return query @ key.mT


def products_reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """query and key (B, T, H, d) -> the products of both, rotated: (B, H, T, T)."""
    return {"products": products(turning_reference(probe, parameters, sizes, knobs)["output"])}


def turned_bugs() -> list[Bug]:
    """The bugs of rotary that a function of given heads can have: it does not know the width of the model."""
    left = [bug for bug in rotary_bugs() if bug.knobs.get("rotates") != "over all heads"]
    return [bug for bug in left if bug.knobs.get("frequencies") != "2i/D"]


def turning_bugs() -> list[Bug]:
    """The bugs of a rotation alone: unlike in an attention, an equal rotation of all positions can be seen."""
    left = [bug for bug in turned_bugs() if bug.knobs.get("rotates") not in ("none", "values too")]
    nothing = Bug({"rotates": "none"}, "nothing is rotated", "rotate by the angles of the positions (T, d)")
    heads = Bug({"position": "head"}, "the heads are taken for the positions: head h is rotated by h times the angles",
                "the angles of the positions run along the axis of T")  # fmt: skip
    batch = Bug({"position": "batch"}, "the sequences of the batch are taken for the positions",
                "the angles of the positions run along the axis of T")  # fmt: skip
    return [nothing, heads, batch, *left]


def turning(options: Options, d: int = 14) -> Target:
    """rotate(query, key), or rotate(x) of one of them: (B, H, T, d) -> (B, H, T, d)."""
    only("rotary", options)
    return Target(
        "rotary",
        "pairs of features turn by position * 10000^(-2i/d)",
        ("query", "key"),
        turning_reference,
        turning_probes,
        {**MANY, "H": 3, "G": 3, "d": d, "D": 3 * d},
        turning_bugs(),
        ROTARY_CONVENTIONS,
        options=options,
    )


def attend(options: Options) -> Target:
    """The target attend(query, key, value): one head, or with rotary or ALiBi several heads."""
    return heads_given("attend", options) if options.alibi or options.rotary else pairs.attend(options)


def given(target: Target) -> Target | None:
    """The target for a function of given heads instead of a module of x; None if there is no such target."""
    if target.options.cache or target.name not in ("multi_head", "grouped_query"):
        return None
    return heads_given(target.name, target.options, target.name == "grouped_query")
