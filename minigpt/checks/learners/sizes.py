"""What an argument or an attribute means, by its name, and the small sizes that a stranger's class is built with.

B batch, T longest text, D model width, H query heads, G key heads, d width of a head, W hidden width of an MLP,
V vocabulary, L layers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn

SIZES: Mapping[str, int] = {"D": 32, "H": 4, "G": 2, "d": 8, "W": 64, "T": 64, "V": 50, "L": 2, "window": 4, "B": 4}
OTHERS = ((48, 6, 3), (64, 8, 2), (80, 10, 5), (64, 4, 2))  # (D, H, G) that are tried where the usual ones do not fit
CONSTANTS = {"drop": 0.1, "bias": True, "causal": True, "eps": 1e-5, "base": 10_000.0, "device": "cpu", "number": 0}
LETTERS = {"D": "D", "C": "D", "E": "D", "k": "D", "H": "H", "h": "H", "G": "G", "d": "d", "T": "T", "L": "T", "N": "T",
           "V": "V", "B": "B", "b": "B", "W": "window", "w": "window", "p": "drop", "F": "W"}  # fmt: skip
TABLES = re.compile(r"(?i)freq|cos|sin\b|sin_|_sin|cis|rope|rotary|angle|table|theta|phase|position_embeddings|pos_emb")
MEANINGS = [(axis, re.compile(words)) for axis, words in (  # the first that fits counts
    ("device", r"^device$"),
    ("base", r"(^|_)(base|theta)$"),
    ("drop", r"drop|^p_|prob$"),
    ("", r"(^|_)(tie|rotary|rope|word)_"),
    ("d", r"^kv_channels$|^n_elem$|^(rotary|rope)_dim$|(dim|size|width|emb\w*|d)_per_head$"),
    ("", r"(^|_)(per|ratio|mult|multiplier|factor|rep|std|scale|scaling|rate|lr|iters?|freqs?)(_|$)(?!.*drop)|fn$"),
    ("bias", r"bias$"),
    ("causal", r"causal|autoregressive|decoder$|^masked$|^use_mask$|^mask$"),
    ("eps", r"eps|epsilon"),
    ("number", r"^(layer|block)?_?(idx|index|number|num|id|i)$|^layer$|^seed$|^rank$"),
    ("V", r"vocab|^n_tokens$|^num_tokens$"),
    ("L", r"^(n|num|number_of|nb)?_?(hidden_)?(layers?|blocks)$|^depth$|layers_count"),
    ("window", r"(^|_)window(_size)?$|sliding"),
    ("B", r"batch(_size)?$|^bsz?$|^max_batch"),
    ("G", r"(kv|key|value|keys|k|v|key_value)_?n?_?(heads?|groups?)$|^h_kv$|^n(um)?_kv$|^(n|num|nb)?_?(query_)?groups$"
          r"|^kv_n_head$|^kv_?h$"),
    ("d", r"heads?_?(dim|dims|size|width|features)$|(dim|size|width|d)(_per)?_?heads?$|^d_?[kvqh]$|^key_dim$|"
          r"^value_dim$|^hd$|^hs$|dim_k|dim_v"),
    ("H", r"^(n|num|number|nb|nr|no|max|count|of|q|query|queries|attn|attention|self|total|_|anzahl)*_?"
          r"(n?heads?|kopf|koepfe|tetes?|cabezas)(_?(count|num|number))?$|^nh$"),
    ("W", r"(^|_)(ff|ffn|mlp|inner|intermediate|feed_?forward|fc|expand\w*)(_|$)|^d_?ff$|^dff$|^d_hidden$"),
    ("T", r"(^|_)(block|ctx|context|seq|sequence|len|length|positions?|pos|max_t|seqlen|maxlen)(_|$)|^nctx$|^t_max$"
          r"|^max_seq|max_len"),
    ("D", r"model|emb|(^|_)dims?(_|$)|width|hidden|channels|features|residual|n_state$|"
          r"^(size|nf|ndim|nx|d_x|normalized_shape|[cd]_in|[cd]_out|input(_size)?)$"),
)]  # fmt: skip


@cache
def meaning(name: str) -> str:
    """The size or the constant that a name stands for, "D" for example; "" if it is unknown."""
    if name in LETTERS:
        return LETTERS[name]
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")
    return next((axis for axis, words in MEANINGS if words.search(plain)), "")


def whole(D: int) -> int:
    """A number of heads that divides D into even widths."""
    return next((H for H in (6, 4, 8, 5, 3, 2) if D % H == 0 and (D // H) % 2 == 0), 1)


def sizes(D: int = 0, H: int = 0, G: int = 0, **others: int) -> dict[str, int]:
    """All sizes, where some are given: D and H decide on the width of a head."""
    D = D or SIZES["D"]
    H = H or whole(D)
    G = G or next(G for G in (3, 2, 5, 1) if H % G == 0 and (G < H or H == 1))
    return {**SIZES, "D": D, "H": H, "G": G, "d": max(D // H, 1), "W": 2 * D, **others}


def stored(thing: Any, axis: str) -> list[int]:
    """The whole numbers that a module, its parts, their configs, else its file store under names with this meaning."""
    parts: list[Any] = list(thing.modules()) if isinstance(thing, nn.Module) else [thing]
    parts += [value for part in parts for name, value in vars(part).items() if isinstance(value, dict) or (
        (hasattr(value, "__dict__") or hasattr(value, "_asdict")) and not callable(value)
        and not isinstance(value, Tensor))]  # fmt: skip
    inside = [part if isinstance(part, dict) else part._asdict() if hasattr(part, "_asdict") else vars(part)
              for part in parts]  # fmt: skip
    numbers = [value for each in inside for name, value in each.items()
             if type(value) is int and value > 0 and meaning(str(name)) == axis]  # fmt: skip
    if not numbers:
        file = vars(sys.modules.get(place_of(thing), re))
        numbers = [value for name, value in file.items() if type(value) is int and value > 0 and meaning(name) == axis]
    return list(dict.fromkeys(numbers))


def widths(thing: nn.Module) -> list[int]:
    """Widths D of the input that a module may take, the likeliest first."""
    layers = [part.in_features for part in thing.modules() if isinstance(part, nn.Linear)]
    shapes = sorted((tuple(one.shape) for one in thing.parameters()), key=lambda shape: len(shape) == 1)
    axes = [size for shape in shapes for i, size in enumerate(shape) if size > 1 or i < 2]  # those of matrices first
    numbers = stored(thing, "D")
    named = [value for value in numbers if value in axes]
    joined = [D * H for D in layers[:1] for H in stored(thing, "H")[:1]]  # of small layers, one head each
    return list(dict.fromkeys([*named, *layers[:1], *joined, *numbers[:1], *axes]))[:5]


def sizes_of(thing: Any) -> Iterator[dict[str, int]]:
    """Yields the sizes that a module may have, for each width D that it may take."""
    for D in widths(thing) or stored(thing, "D")[:2] or [SIZES["D"]]:
        H = next(iter(stored(thing, "H")), 0)
        G = next(iter(stored(thing, "G")), H)
        d = next(iter(stored(thing, "d")), 0)
        H = H or (D // d if d and D % d == 0 else whole(D))
        d = d or max(D // H, 1)
        tables = [part for part in thing.modules() if isinstance(part, nn.Embedding)]
        V = next(iter([*stored(thing, "V"), *(part.num_embeddings for part in tables)]), SIZES["V"])
        yield {"B": 2, "D": D, "H": H, "G": G or H, "d": d, "e": d, "V": V}


def given_widths(thing: Any) -> list[tuple[int, int]]:
    """The widths d of given heads, and how many: those that a module was built for, by its numbers and tables."""
    parts = list(thing.modules()) if isinstance(thing, nn.Module) else []
    numbers = {meaning(name) for part in parts for name, value in vars(part).items() if type(value) is int}
    tables = [size for part in parts for one in part.buffers(recurse=False) for size in one.shape[-1:]]
    biases = [one.shape[-3] for part in parts for one in part.buffers(recurse=False) if one.dim() > 2]
    H = next((one for one in (*stored(thing, "H"), *biases) if one > 1), 3) if parts else 3
    own = next(sizes_of(thing)) if parts else {}
    named = [(own["d"], own["H"]), (own["D"], H)] if {"D", "d"} & numbers else []
    return list(dict.fromkeys([*named, *((n, H) for size in tables for n in (size, 2 * size)), (8, H)]))[:4]


def place_of(thing: Any) -> str:
    """The name of the Python module in which a function, or the class of a module, was defined."""
    place = getattr(thing, "place", None)
    return place if isinstance(place, str) else (type(thing) if isinstance(thing, nn.Module) else thing).__module__
