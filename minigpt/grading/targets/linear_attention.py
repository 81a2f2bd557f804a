"""Linear attention ("Transformers are RNNs", arXiv 2006.16236): positive features instead of a softmax.

The weight of key s for query t is phi(q_t) . phi(k_s), divided by the sum over the past; phi is elu + 1. The sums over
the past fit into a state, so the matrix form and the recurrent form give the same numbers. A module reads x; a plain
function is given queries, keys and values.

B batch, H heads, T query positions, S key positions, D model width, d width of a key, e width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.grading.probes import numbers, pair_probes, sequence_probes
from minigpt.grading.target import (
    Bug,
    Convention,
    Knobs,
    Options,
    Parameters,
    Probe,
    Role,
    Sizes,
    Steps,
    Target,
    only,
)
from minigpt.grading.targets.linear_chunks import chunk_bugs, seen_by

SCALES = (0.3, 2.0)  # elu(x) + 1 loses precision where x is far below zero
EPSILONS = (1e-10, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3)
SHIFTED: dict[str, Callable[[Tensor], Tensor]] = {
    f"relu + {eps:g}": partial(lambda eps, x: x.relu() + eps, eps) for eps in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)
}
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "elu + 1": lambda x: F.elu(x) + 1,
    "none": lambda x: x,
    "elu": lambda x: F.elu(x),
    "relu": lambda x: x.relu(),
    "relu + 1": lambda x: x.relu() + 1,
    "exp": lambda x: x.exp(),
    "softmax": lambda x: x.softmax(dim=-1),
    "softplus": lambda x: F.softplus(x),
    **SHIFTED,
    "sigmoid": lambda x: x.sigmoid(),
    "square": lambda x: x.square(),
    "silu": lambda x: F.silu(x),
    "twice": lambda x: F.elu(F.elu(x) + 1) + 1,
    "softmax over positions": lambda x: x.softmax(dim=-2),
}


def project(x: Tensor, parameters: Parameters, name: str) -> Tensor:
    """x (B, T, D) -> (B, H, T, d) by a role (H, d, D)."""
    weight, bias = parameters[name], parameters.get(f"{name}_bias")
    joined = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())  # (B, T, H d)
    return joined.unflatten(-1, weight.shape[:2]).transpose(1, 2)  # (B, H, T, d)


def carried(x: Tensor, knobs: Knobs, kind: str) -> Tensor:
    """Running sums over the positions (dim 2); the knob `carry` does not reset them between sequences."""
    sums = x.cumsum(dim=2)  # (B, H, T, ...)
    if knobs.get("carry") in ("both", kind):
        sums = sums + sums[:, :, -1:].cumsum(dim=0) - sums[:, :, -1:]  # (B, H, T, ...)
    return sums


def numerator(query: Tensor, key: Tensor, value: Tensor, products: Tensor, seen: Tensor, knobs: Knobs) -> Tensor:
    """The weighted sum of the values: (B, H, T, e). `products` is (B, H, T, S), `seen` (T, S)."""
    outer = knobs.get("outer")
    if outer == "elementwise":
        return query * (key * value).cumsum(dim=2)
    if outer == "transposed":
        return ((query @ value.mT) * seen) @ key
    if "axis" in knobs:
        memory = (key[..., :, None] * value[..., None, :]).cumsum(dim=knobs["axis"])  # (B, H, T, d, e)
        return (query[..., None, :] @ memory).squeeze(-2)
    if knobs.get("carry") in ("both", "state"):
        memory = carried(key[..., :, None] * value[..., None, :], knobs, "state")  # (B, H, T, d, e)
        return (query[..., None, :] @ memory).squeeze(-2)
    if "fill" in knobs:
        return products.masked_fill(~seen, knobs["fill"]) @ value
    return (products * seen) @ value


def denominator(query: Tensor, key: Tensor, raw: tuple[Tensor, Tensor], products: Tensor, seen: Tensor,
                knobs: Knobs) -> Tensor:  # fmt: skip
    """What each row is divided by: (B, H, T, 1). `raw` are query and key before the feature map."""
    T, d = query.shape[2], query.shape[3]
    t = torch.arange(1, T + 1, dtype=query.dtype)[:, None]  # (T, 1)
    ways: dict[str, Callable[[], Tensor]] = {
        "past": lambda: (products * seen).sum(dim=-1, keepdim=True),
        "none": lambda: torch.ones_like(t),
        "count": lambda: t,
        "T": lambda: torch.full_like(t, T),
        "sqrt(d)": lambda: torch.full_like(t, math.sqrt(d)),
        "columns": lambda: (products * seen).sum(dim=-2)[..., None],
        "keys": lambda: key.cumsum(dim=2).sum(dim=-1, keepdim=True),
        "raw key": lambda: (query * raw[1].cumsum(dim=2)).sum(dim=-1, keepdim=True),
        "raw query": lambda: (raw[0] * key.cumsum(dim=2)).sum(dim=-1, keepdim=True),
        "features": lambda: query * key.cumsum(dim=2),
        "heads": lambda: (products * seen).sum(dim=(1, 3))[:, None, :, None],
        "length": lambda: (products * seen).norm(dim=-1, keepdim=True),
        "root": lambda: (products * seen).sum(dim=-1, keepdim=True).sqrt(),
        "times": lambda: 1 / (products * seen).sum(dim=-1, keepdim=True),
        "axis": lambda: (query * key.cumsum(dim=knobs["axis"])).sum(dim=-1, keepdim=True),
        "carried": lambda: (query * carried(key, knobs, "normaliser")).sum(dim=-1, keepdim=True),
    }
    kind = "carried" if knobs.get("carry") in ("both", "normaliser") else knobs.get("by", "past")
    kind = "axis" if "axis" in knobs else kind
    if "fill" in knobs:
        return products.masked_fill(~seen, knobs["fill"]).sum(dim=-1, keepdim=True)
    return ways[kind]() + knobs.get("eps", 0.0)


def inputs(probe: Probe, parameters: Parameters, knobs: Knobs) -> tuple[Tensor, Tensor, Tensor]:
    """query (B, H, T, d), key (B, H, S, d) and value (B, H, S, e), before the feature map."""
    given = probe.inputs
    if "x" not in given:
        query, key, value = (given[name][:, None] for name in ("query", "key", "value"))  # H = 1
    else:
        query, key, value = (project(given["x"], parameters, name) for name in ("query", "key", "value"))
        if knobs.get("heads") == "one":
            query, key, value = (z.transpose(1, 2).flatten(2)[:, None] for z in (query, key, value))  # (B, 1, T, D)
    value = {"value": value, "key": key, "query": query}[knobs.get("value", "value")]
    return query, key, value


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """x (B, T, D), or query, key and value -> every step to the output (B, T, D) or (B, T, e)."""
    query, key, value = inputs(probe, parameters, knobs)
    raw, T, d = (query, key), query.shape[2], query.shape[3]
    if knobs.get("scale") == "before":
        query = query / math.sqrt(d)  # (B, H, T, d)
    if knobs.get("scale") == "both before":
        query, key = query / math.sqrt(d), key / math.sqrt(d)  # (B, H, T, d) twice
    common = knobs.get("feature", "elu + 1")
    query, key = FEATURES[knobs.get("query", common)](query), FEATURES[knobs.get("key", common)](key)
    value = FEATURES[knobs.get("values", "none")](value)  # (B, H, T, e)
    products = query @ key.mT  # (B, H, T, S)
    seen = seen_by(knobs.get("sees", "right"), T)  # (T, S)
    divided = seen_by(knobs.get("divides", knobs.get("sees", "right")), T)  # (T, S)
    steps = {"features of the query": query, "features of the key": key, "products": products}
    if "softmax" in knobs:
        fill = {"keys": -torch.inf, "zeros": 0.0, "open": None}[knobs["softmax"]]
        hidden = products if fill is None else products.masked_fill(seen == 0, fill)  # (B, H, T, S)
        out = hidden.softmax(dim=-1) @ value  # (B, H, T, e)
    else:
        mask = seen.bool() if "fill" in knobs else seen
        top = numerator(query, key, value, products, mask, knobs)  # (B, H, T, e)
        below = denominator(query, key, raw, products, mask if "fill" in knobs else divided, knobs)  # (B, H, T, 1)
        steps |= {"sums over the past": top, "normalisers": below}
        out = top / below  # (B, H, T, e)
    if "empty" in knobs:
        out = out.where(~out.isnan(), value if knobs["empty"] == "value" else torch.zeros_like(value))  # (B, H, T, e)
    if knobs.get("scale") == "late":
        out = out / math.sqrt(d)
    return steps | {"output": finish(probe, out, parameters)}


def finish(probe: Probe, out: Tensor, parameters: Parameters) -> Tensor:
    """(B, H, T, e) -> (B, T, D) by the output projection (D, H, e), if there is one; (B, T, e) for a function."""
    if "x" not in probe.inputs:
        return out[:, 0]
    joined = out.transpose(1, 2).flatten(2)  # (B, T, H e)
    if "output" not in parameters:
        return joined
    return F.linear(joined, parameters["output"].flatten(1), parameters.get("output_bias"))


PHI = "phi(x) = F.elu(x) + 1, on queries and on keys"
DIVIDE = "divide row t by phi(q_t) . (the sum of phi(k_s) over s <= t)"
UPDATE = "at each t: state += outer(phi(k_t), v_t); total += phi(k_t); then out = phi(q_t) @ state / (phi(q_t) @ total)"
TRIL = "products * torch.ones(T, T).tril(), before the sum of each row is taken"

FEATURE_BUGS = [
    Bug({"feature": "none"}, "the feature map is missing: products of raw queries and keys can be negative, and a "
        "row's sum can be near zero", PHI),
    Bug({"query": "none"}, "the feature map is applied to the keys only: the queries stay raw", PHI),
    Bug({"key": "none"}, "the feature map is applied to the queries only: the keys stay raw", PHI),
    Bug({"feature": "elu"}, "the feature map is elu without + 1: its features can be negative", PHI),
    Bug({"query": "elu"}, "the + 1 is missing on the queries: elu alone can be negative", PHI),
    Bug({"key": "elu"}, "the + 1 is missing on the keys: elu alone can be negative", PHI),
    Bug({"feature": "relu"}, "the feature map is relu, not elu + 1: features that are zero give no gradient, and a row "
        "of them is divided by zero", PHI,
        ({"feature": "relu", "empty": "zero"},)),
    Bug({"feature": "relu", "eps": 1e-6}, "the feature map is relu, as in EfficientViT (arXiv 2205.14756), with an "
        "epsilon in the normaliser; unlike those of elu + 1, features that are zero give no gradient", "",
        tuple({"feature": "relu", "eps": eps} for eps in EPSILONS if eps != 1e-6), harmless=True),
    Bug({"feature": "relu + 1"}, "the feature map is relu + 1, not elu + 1: below zero all inputs look the same", PHI),
    Bug({"feature": "softmax"}, "the feature map is a softmax over the features, not elu + 1", PHI),
    Bug({"query": "softmax"}, "the feature map of the queries is a softmax over the features, not elu + 1", PHI),
    Bug({"feature": "sigmoid"}, "the feature map is a sigmoid, not elu + 1", PHI),
    Bug({"feature": "square"}, "the feature map is the square, not elu + 1", PHI),
    Bug({"feature": "silu"}, "the feature map is silu, not elu + 1: it can be negative", PHI),
    Bug({"feature": "twice"}, "the feature map is applied twice", PHI),
    Bug({"values": "elu + 1"}, "the feature map is applied to the values too: they must stay as they are", PHI),
    Bug({"scale": "before"}, "the queries are divided by sqrt(d) = sqrt({d}) before the feature map: there is no exp "
        "here that would need it", "leave the scale out"),
    Bug({"scale": "both before"}, "queries and keys are divided by sqrt(d) = sqrt({d}) before the feature map: there "
        "is no exp here that would need it", "leave the scale out"),
    Bug({"scale": "late"}, "the output is divided by sqrt(d) = sqrt({d}): the rows no longer sum to one",
        "leave the scale out"),
]  # fmt: skip

NORMALISER_BUGS = [
    Bug({"by": "none"}, "the normaliser is missing: the weights of a row do not sum to one", DIVIDE),
    Bug({"by": "count"}, "each row is divided by the number of tokens, t + 1, not by the sum of its weights", DIVIDE),
    Bug({"by": "T"}, "each row is divided by T, not by the sum of its weights", DIVIDE),
    Bug({"by": "sqrt(d)"}, "each row is divided by sqrt(d) = sqrt({d}), not by the sum of its weights", DIVIDE),
    Bug({"by": "columns"}, "the weights are divided by the sums of the columns, not of the rows", DIVIDE),
    Bug({"by": "keys"}, "the normaliser is the sum of the keys' features; the query is left out of it", DIVIDE),
    Bug({"by": "raw key"}, "the normaliser sums the raw keys: the feature map is missing there", DIVIDE),
    Bug({"by": "raw query"}, "the normaliser takes the raw query: the feature map is missing there", DIVIDE),
    Bug({"by": "length"}, "each row is divided by its length (norm), not by its sum", DIVIDE),
    Bug({"by": "times"}, "the output is multiplied by the normaliser, not divided by it", DIVIDE),
    Bug({"by": "root"}, "each row is divided by the square root of its sum", DIVIDE),
    Bug({"divides": "none"}, "the normaliser sums over all keys, later ones too: it is not causal, and rows do not sum "
        "to one", TRIL),
    Bug({"divides": "strict"}, "the normaliser is one step behind: it leaves the token itself out", UPDATE,
        tuple({"divides": "strict", "eps": eps} for eps in EPSILONS)),
    Bug({"divides": "itself"}, "the normaliser holds the newest key only: it is overwritten, not summed up", UPDATE),
    Bug({"eps": 1.0}, "1 is added to the normaliser: rows sum to less than one", DIVIDE),
    Bug({"eps": 0.1}, "0.1 is added to the normaliser, which is too much: rows sum to less than one", DIVIDE,
        ({"eps": 0.01},)),
    Bug({"softmax": "keys"}, "there is still a softmax over the products of features: linear attention divides by "
        "their sum", DIVIDE, ({"softmax": "zeros"}, {"softmax": "open"})),
    Bug({"fill": -torch.inf}, "hidden products become -inf and are summed: there is no exp here that turns them to 0",
        TRIL, ({"fill": -1e9}, {"fill": -1e4})),
]  # fmt: skip

STATE_BUGS = [
    Bug({"sees": "none"}, "it is not causal: the sum of key-value products runs over the whole sequence", TRIL),
    Bug({"sees": "none", "divides": "right"}, "the state is summed over the whole sequence, later tokens too; only "
        "the normaliser is causal", TRIL),
    Bug({"sees": "strict"}, "a position does not see itself: the state is read before the token is added to it", UPDATE,
        ({"sees": "strict", "empty": "zero"}, {"sees": "strict", "empty": "value"},
         *({"sees": "strict", "eps": eps} for eps in EPSILONS))),
    Bug({"sees": "strict", "divides": "right"}, "the state is read before the token is added, the normaliser after: "
        "a position divides by a weight that it does not use", UPDATE,
        tuple({"sees": "strict", "divides": "right", "eps": eps} for eps in EPSILONS)),
    Bug({"sees": "ahead"}, "every position also sees the next token: tril(1) instead of tril()", TRIL),
    Bug({"sees": "inverted"}, "the mask is upside down: a position sees itself and what comes after it", TRIL),
    Bug({"sees": "itself"}, "a position sees only itself: state and normaliser are overwritten, not summed up", UPDATE),
    Bug({"sees": "itself", "divides": "right"}, "the state holds the newest token only: it is overwritten, not summed "
        "up, while the normaliser is", UPDATE),
    *chunk_bugs(),
    Bug({"axis": 0}, "the sums run over the batch (dim=0), not over the positions", UPDATE),
    Bug({"carry": "both"}, "state and normaliser are not set back to zero between the sequences of the batch",
        "start with zeros for every sequence"),
    Bug({"carry": "state"}, "the state is not set back to zero between the sequences of the batch",
        "start with zeros for every sequence"),
    Bug({"carry": "normaliser"}, "the normaliser is not set back to zero between the sequences of the batch",
        "start with zeros for every sequence"),
]  # fmt: skip

SQUARE_BUGS = [  # where keys and values have the same width
    Bug({"value": "key"}, "the keys are summed up where the values should be", "outer(phi(k_t), v_t)"),
    Bug({"value": "query"}, "the queries are summed up where the values should be", "outer(phi(k_t), v_t)"),
    Bug({"outer": "transposed"}, "the state is transposed: outer(v, k) instead of outer(k, v), so queries are compared "
        "with values", "state += k[:, None] * v[None, :], then q @ state"),
    Bug({"outer": "elementwise"}, "key and value are multiplied elementwise: the state must be the matrix of all their "
        "products", "state += k[:, None] * v[None, :]",
        ({"outer": "elementwise", "by": "features"}, {"outer": "elementwise", "by": "none"})),
    Bug({"by": "features"}, "the normaliser is not summed over the features: each column has another one", DIVIDE),
]  # fmt: skip

HEAD_BUGS = [
    Bug({"axis": 1}, "the sums run over the heads, not over the positions: cumsum has the wrong dim", UPDATE),
    Bug({"heads": "one"}, "the features are not split into {H} heads: queries and keys are compared over all {H*d}",
        "view(B, T, {H}, {d}).transpose(1, 2)"),
    Bug({"by": "heads"}, "the normaliser sums over the heads too: each head must have its own", DIVIDE),
]  # fmt: skip

EFFICIENT = {"query": "softmax", "key": "softmax over positions", "sees": "none", "by": "none",
             "feature": "none", "eps": 0.0}  # fmt: skip
CONVENTIONS = [
    Convention(
        EFFICIENT,
        "it is efficient attention (arXiv 1812.01243): a softmax of the queries over the features, of "
        "the keys over all positions, so that it is not causal",
    ),
    *(
        Convention({"feature": kind}, f"the feature map is {kind}, not elu + 1: it is positive too")
        for kind in ("exp", "softplus", *SHIFTED)
    ),
    *(
        Convention({"eps": eps}, f"{eps:g} is added to the normaliser, which this check leaves out")
        for eps in (1e-6, *(eps for eps in EPSILONS if eps != 1e-6))
    ),
]


def tiny() -> tuple[Sizes, Parameters, Probe]:
    """Three tokens of two features."""
    given = {
        "query": [[1.0, 0.0], [0.0, 2.0], [1.0, -1.0]],
        "key": [[1.0, -1.0], [2.0, 0.0], [0.0, 1.0]],
        "value": [[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]],
    }
    tensors = {name: torch.tensor([rows], dtype=torch.float64) for name, rows in given.items()}  # (1, 3, 2)
    return {"B": 1, "T": 3, "d": 2, "e": 2, "H": 1}, {}, Probe("three tokens", tensors)


def tiny_module() -> tuple[Sizes, Parameters, Probe]:
    """Three tokens of two features, for a module in which queries, keys and values are x."""
    eye = torch.eye(2, dtype=torch.float64)[None]  # (1, 2, 2)
    x = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, -1.0]]], dtype=torch.float64)  # (1, 3, 2)
    sizes = {"B": 1, "T": 3, "D": 2, "H": 1, "G": 1, "d": 2, "e": 2}
    return sizes, dict.fromkeys(("query", "key", "value"), eye), Probe("three tokens", {"x": x})


def function_probes(sizes: Sizes) -> list[Probe]:
    """Queries, keys and values of three lengths and two more scales."""
    names = ("query", "key", "value")
    probes = [probe for probe in pair_probes(sizes, names) if probe.size == 1 and not probe.optional]
    more = [
        Probe(f"inputs times {scale:g}",
              {name: numbers(2, 11, sizes["e" if name == "value" else "d"], seed=77 + i) * scale
               for i, name in enumerate(names)}, scale)
        for scale in SCALES
    ]  # fmt: skip
    return probes + more


def function_target(right: str, options: Options) -> Target:
    """linear_attention(query, key, value): (B, T, d), (B, T, d), (B, T, e) -> (B, T, e)."""
    return Target(
        "linear_attention",
        right,
        ("query", "key", "value"),
        reference,
        function_probes,
        {"B": 2, "T": 11, "d": 7, "e": 5, "H": 1, "G": 1, "D": 7},
        [*FEATURE_BUGS, *NORMALISER_BUGS, *STATE_BUGS],
        CONVENTIONS,
        options=options,
        tiny=tiny,
    )


ROLES = (
    Role("query", ("H", "d"), ("D",), ("query", "queries", "q", "wq", "w_q", "q_proj", "qkv", "c_attn")),
    Role("key", ("H", "d"), ("D",), ("key", "keys", "k", "wk", "w_k", "k_proj", "qkv", "kv", "c_attn")),
    Role("value", ("H", "d"), ("D",), ("value", "values", "v", "wv", "w_v", "v_proj", "qkv", "kv", "c_attn")),
    Role("output", ("D",), ("H", "d"), ("output", "out", "o", "wo", "proj", "projection", "c_proj"), needed=False),
)


def linear_attention(options: Options) -> Target:
    """A module x (B, T, D) -> (B, T, D), with one head or several, with or without an output projection."""
    only("linear_attention", options)
    right = "the values of the past, weighted by phi(q) . phi(k) and divided by the weights' sum; phi(x) = elu(x) + 1"
    return Target(
        "linear_attention",
        right,
        ("x",),
        reference,
        partial(sequence_probes, scales=SCALES),
        {"B": 2, "T": 11, "D": 15, "H": 3, "G": 3, "d": 5, "e": 5},
        [*FEATURE_BUGS, *NORMALISER_BUGS, *STATE_BUGS, *SQUARE_BUGS, *HEAD_BUGS],
        CONVENTIONS,
        ROLES,
        options,
        tiny=tiny_module,
        function=function_target(right, options),
    )
