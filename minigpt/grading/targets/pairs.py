"""Functions of given tensors: the dot product of x with itself, weights from query and key, and `attend`.

B batch, T query positions, S key positions, D width of a token, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from functools import partial

import torch

from minigpt.grading.probes import pair_probes, sequence_probes
from minigpt.grading.target import Bug, Convention, Knobs, Options, Parameters, Probe, Sizes, Steps, Target, only
from minigpt.grading.targets.head_bugs import window_bugs
from minigpt.grading.targets.heads import weights_of_heads
from minigpt.grading.targets.score_bugs import (
    compare_bugs,
    corner_bugs,
    exchange_bug,
    mask_bugs,
    online_bug,
    scale_bugs,
    softmax_bugs,
)
from minigpt.grading.targets.scores import weigh

PAIR_SIZES = {"B": 2, "T": 11, "d": 14, "e": 6, "D": 14, "H": 1, "G": 1}
NO_MODEL = ("D", "D whole", "H", "H whole", "3 D", "3 d", "2 d")  # scales that need heads or a model


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options, ends: str) -> Steps:
    """query (B, T, d), key (B, S, d), value (B, S, e), or x (B, T, D) for all -> weights (B, T, S), or (B, T, e)."""
    given = probe.inputs
    query = given.get("query", given.get("x"))  # (B, T, d)
    key, value = given.get("key", query), given.get("value", given.get("x"))  # (B, S, d), (B, S, e)
    assert query is not None and key is not None
    sizes = {**sizes, "B": query.shape[0], "d": query.shape[-1]}
    steps = weigh(query[:, None], key[:, None], sizes, knobs, options)
    weights = steps["weights"][:, 0]  # (B, T, S)
    if "transposed" in knobs:
        weights = weights.mT  # (B, S, T)
    if ends == "weights":
        return {**{name: step[:, 0] for name, step in steps.items()}, "weights": weights}
    assert value is not None
    taken = {"value": value, "key": key, "query": query, "batch": value.mean(dim=0, keepdim=True).expand_as(value)}
    output = weights @ taken[knobs.get("value", "value")]  # (B, T, e)
    return {**steps, "output": output + query if "residual" in knobs else output}


def pair_bugs(options: Options) -> list[Bug]:
    """What can go wrong where query and key are given."""
    windows = window_bugs() if options.window else []
    scales = [bug for bug in scale_bugs() if bug.knobs.get("scale") not in NO_MODEL]
    return [*scales, *mask_bugs(), *corner_bugs(), *softmax_bugs(), *compare_bugs(), exchange_bug(), *windows]


def value_bugs() -> list[Bug]:
    """What can go wrong after the weights."""
    mean = "weights @ value"
    return [
        Bug({"transposed": True}, "the weights are used transposed: key s collects instead of query t", mean),
        Bug({"value": "key"}, "the weights are applied to the keys, not to the values: weights @ key", mean),
        Bug({"value": "query"}, "the weights are applied to the queries, not to the values: weights @ query", mean),
    ]


def tiny_pairs(names: tuple[str, ...]) -> tuple[Sizes, Parameters, Probe]:
    """Three tokens of two features."""
    numbers = {
        "x": [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]],
        "query": [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]],
        "key": [[1.0, 1.0], [2.0, 0.0], [0.0, 1.0]],
        "value": [[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]],
    }
    inputs = {name: torch.tensor([numbers[name]], dtype=torch.float64) for name in names}  # (1, 3, 2)
    sizes = {"B": 1, "T": 3, "D": 2, "d": 2, "e": 2, "H": 1, "G": 1}
    return sizes | ({"unscaled": 1} if "x" in names else {}), {}, Probe("three tokens", inputs)


def attention_weights(options: Options) -> Target:
    """weights(query, key): (B, T, d), (B, S, d) -> (B, T, S)."""
    only("attention_weights", options, "full", "window")
    return Target(
        "attention_weights",
        "softmax of query @ key^T / sqrt(d), the future hidden",
        ("query", "key"),
        partial(reference, options=options, ends="weights"),
        partial(pair_probes, names=("query", "key")),
        PAIR_SIZES | {"window": options.window},
        pair_bugs(options),
        options=options,
        tiny=partial(tiny_pairs, ("query", "key")),
        module=weights_of_heads(options),
    )


def attend(options: Options) -> Target:
    """attend(query, key, value): (B, T, d), (B, S, d), (B, S, e) -> (B, T, e)."""
    only("attend", options, "full", "window")
    return Target(
        "attend",
        "softmax of query @ key^T / sqrt(d), the future hidden, times the values",
        ("query", "key", "value"),
        partial(reference, options=options, ends="output"),
        partial(pair_probes, names=("query", "key", "value")),
        PAIR_SIZES | {"window": options.window},
        [*pair_bugs(options), *value_bugs(), online_bug()],
        options=options,
        tiny=partial(tiny_pairs, ("query", "key", "value")),
    )


def dot_bugs() -> list[Bug]:
    """What can go wrong where query, key and value are x, and the scores are not scaled."""
    unscaled = "x @ x.mT as it is: this rung has no scale"
    scales = [
        Bug({"scale": "d whole"}, "you divide the scores by D = {D}; this rung leaves them unscaled", unscaled),
        Bug({"scale": "times"}, "you multiply the scores by sqrt(D); this rung leaves them unscaled", unscaled),
        Bug({"scale": "T"}, "you divide the scores by sqrt(T); this rung leaves them unscaled", unscaled),
        Bug({"scale": "T whole"}, "you divide the scores by T; this rung leaves them unscaled", unscaled),
    ]
    other = ("qq", "kk", "cosine", "distance", "sum", "unit query", "unit key")
    same = [bug for bug in compare_bugs() if bug.knobs.get("compare") not in other]
    unit = [Bug({"compare": f"unit {side}"}, f"x is normalised to length 1 where it is the {side}, not in the other "
                "factor of the product", "x @ x.mT") for side in ("key", "query")]  # fmt: skip
    cosine = Bug({"compare": "cosine"}, "x is normalised before the product: these are cosines", "x @ x.mT")
    far = Bug({"compare": "distance"}, "the scores are negative distances, not products", "x @ x.mT",
              ({"compare": "square_distance"},))  # fmt: skip
    transposed = Bug(
        {"transposed": True}, "the weights are used transposed: key s collects, not query t", "weights @ x"
    )
    masks = [bug for bug in mask_bugs() if bug.knobs.get("fill", 0) not in (-100.0, -1e3, -1e4)]  # x . x > 0
    return [*scales, *masks, *softmax_bugs(), *same, cosine, *unit, far, transposed]


def dot_product(options: Options) -> Target:
    """attend(x), where x is query, key and value: (B, T, D) -> (B, T, D)."""
    only("dot_product", options, "full", "window")
    return Target(
        "dot_product",
        "softmax of x @ x^T, unscaled, the future hidden, times x",
        ("x",),
        partial(reference, options=options, ends="output"),
        partial(sequence_probes, scales=(0.3, 8.0, 30.0, 1000.0)),
        {"B": 2, "T": 11, "D": 6, "d": 6, "e": 6, "H": 1, "G": 1, "unscaled": 1},
        dot_bugs(),
        [Convention({"scale": "d"}, "the scores are divided by sqrt(D); this rung leaves them unscaled")],
        options=options,
        tiny=partial(tiny_pairs, ("x",)),
    )


def scores_reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """query (B, T, d), key (B, S, d) -> their products (B, T, S)."""
    query, key = probe.inputs["query"], probe.inputs["key"]  # (B, T, d), (B, S, d)
    steps = weigh(query[:, None], key[:, None], {**sizes, "B": len(query)}, knobs, Options())
    return {"products": steps["masked scores" if "hidden" in knobs else "scores"][:, 0]}


def scores(options: Options) -> Target:
    """score(query, key): (B, T, d), (B, S, d) -> (B, T, S), where it is a function of both."""
    only("dot_product", options)
    unscaled = "query @ key.mT as it is: this rung has no scale"
    return Target(
        "dot_product",
        "query @ key^T, unscaled",
        ("query", "key"),
        scores_reference,
        partial(pair_probes, names=("query", "key")),
        PAIR_SIZES | {"unscaled": 1},
        [
            Bug({"scale": "d whole"}, "you divide the scores by d = {d}; this rung leaves them unscaled", unscaled),
            Bug({"scale": "times"}, "you multiply the scores by sqrt(d); this rung leaves them unscaled", unscaled),
            *(bug for bug in compare_bugs() if bug.knobs.get("compare") != "unit query"),
            exchange_bug(),
        ],
        [
            Convention({"scale": "d"}, "the scores are divided by sqrt(d); this rung leaves them unscaled"),
            Convention({"hidden": True}, "the future is hidden already; this rung leaves the scores as they are"),
        ],
        options=options,
        tiny=partial(tiny_pairs, ("query", "key")),
    )
