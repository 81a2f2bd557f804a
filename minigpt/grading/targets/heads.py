"""Attention as a module: one head, many heads, grouped queries; with rotary, ALiBi, a window and a cache.

B batch, T query positions, S key positions, D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from minigpt.grading.probes import cache_probes, sequence_probes
from minigpt.grading.target import Convention, Knobs, Options, Parameters, Probe, Role, Sizes, Steps, Target, only
from minigpt.grading.targets import head_bugs
from minigpt.grading.targets.rotation import ALIBI_CONVENTIONS, ROTARY_CONVENTIONS, alibi, frequencies
from minigpt.grading.targets.scores import weigh

ROLES = (
    Role("query", ("H", "d"), ("D",), ("query", "q", "wq", "queries", "qs", "toqueries")),
    Role("key", ("G", "d"), ("D",), ("key", "k", "wk", "keys", "ks", "tokeys")),
    Role("value", ("G", "e"), ("D",), ("value", "v", "wv", "values", "vs", "tovalues")),
    Role("output", ("D",), ("H", "e"), ("out", "o", "output", "wo", "project", "proj", "projection", "dense", "fc",
                                        "unify", "unifyheads")),
)  # fmt: skip
Kept = head_bugs.Kept


def project(x: Tensor, parameters: Parameters, role: str, knobs: Knobs) -> Tensor:
    """x (B, T, D) -> (B, T, rows) by the matrix of a role; x itself if the role is missing."""
    if role not in parameters:
        return x
    weight, bias = parameters[role], parameters.get(f"{role}_bias")
    bias = None if role in knobs.get("no_bias", ()) else bias
    how = role in knobs.get("transposed", ()), role in knobs.get("activated", ())
    if role == "output":
        return linear(x, weight.flatten(1), bias, *how)
    return heads_of(x, weight, bias, *how, tuple(each._version for each in (x, weight, bias) if each is not None))


def linear(x: Tensor, matrix: Tensor, bias: Tensor | None, transposed: bool, activated: bool) -> Tensor:
    """x (B, T, columns) times a matrix (rows, columns), and a bias of any shape: (B, T, rows)."""
    y = x @ (matrix if transposed else matrix.mT)  # (B, T, rows)
    y = y if bias is None else y + bias.flatten()
    return y.relu() if activated else y


@lru_cache(maxsize=1024)
def heads_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool, activated: bool, versions: tuple[int, ...]
) -> Tensor:
    """x (B, T, D) -> queries, keys or values (B, T, n d). Cached: hundreds of settings of other knobs need the same."""
    return linear(x, weight.flatten(0, 1), bias, transposed, activated)


@lru_cache(maxsize=1024)
def split(flat: Tensor, n: int, how: str) -> Tensor:
    """(B, T, n d) -> (B, n, T, d)."""
    B, T, width = flat.shape
    if how == "view":
        return flat.reshape(B, n, T, width // n)
    if how == "features_first":
        return flat.view(B, T, width // n, n).permute(0, 3, 1, 2)
    if how == "overlap":
        return flat.unfold(2, width // n, 1)[:, :, :n].transpose(1, 2)
    if how == "turned":
        return flat.transpose(1, 2).reshape(B, n, T, width // n)
    return flat.view(B, T, n, width // n).transpose(1, 2)


def join(mixed: Tensor, how: str) -> Tensor:
    """(B, H, T, d) -> (B, T, H d)."""
    B, H, T, d = mixed.shape
    axes = {
        "right": (0, 2, 1, 3),
        "view": (0, 1, 2, 3),
        "features_first": (0, 2, 3, 1),
        "turned": (0, 1, 3, 2),
        "turned_heads": (0, 3, 1, 2),
        "all_turned": (0, 3, 2, 1),
        "sequence_first": (2, 0, 1, 3),
        "heads_first": (1, 0, 2, 3),
    }[how]
    return mixed.permute(axes).reshape(B, T, H * d)


@lru_cache(maxsize=1024)
def share(x: Tensor, H: int, how: str) -> Tensor:
    """Repeats the heads of keys or values (B, G, S, d) for H query heads: (B, H, S, d)."""
    B, G, S, d = x.shape
    if how == "tile":
        return x.repeat(1, H // G, 1, 1)
    if how == "first":
        return x[:, :1].expand(B, H, S, d)
    if how == "last":
        return x[:, -1:].expand(B, H, S, d)
    if how == "mean":
        return x.mean(dim=1, keepdim=True).expand(B, H, S, d)
    if how == "features":
        return x.transpose(1, 2).flatten(2).repeat_interleave(H // G, dim=-1).view(B, S, H, d).transpose(1, 2)
    if how == "times":
        return x.repeat_interleave(H // G, dim=2).reshape(B, H, S, d)
    if how == "reversed":
        return x.flip(1).repeat_interleave(H // G, dim=1)
    if how == "shifted":
        return x.roll(1, dims=1).repeat_interleave(H // G, dim=1)
    if how == "padded":
        return torch.cat((x, x.new_zeros(B, H - G, S, d)), dim=1)
    return x.repeat_interleave(H // G, dim=1)


def layer(
    x: Tensor, start: int, past: Kept | None, given: tuple[Parameters, Sizes, Knobs, Options]
) -> tuple[Steps, Kept]:
    """x (B, T, D), whose first position is `start` -> all steps, and the keys and values to keep."""
    parameters, sizes, knobs, options = given
    H, G, steps = sizes["H"], sizes["G"], Steps()
    read = dict.fromkeys(("query", "key", "value"), x) | knobs.get("reads", {})  # (B, T, D) each
    flat = {role: project(z, parameters, role, knobs) for role, z in read.items()}  # (B, T, H d), (B, T, G d)
    source = knobs.get("values", "value")
    flat["value"] = x if source == "x" else flat[source]
    how = knobs.get("split", "right")
    ways = {role: how if role in knobs.get("split_only", role) else "right" for role in flat}
    query = split(flat["query"], H, ways["query"])  # (B, H, T, d)
    key, value = split(flat["key"], G, ways["key"]), split(flat["value"], G, ways["value"])  # (B, G, T, d)
    if "fused" in knobs:
        query, key, value = head_bugs.fused(flat, H, knobs["fused"])
    if knobs.get("head_axis"):
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))  # (B, T, H, d)
    steps |= {"query": query, "key": key, "value": value}
    if options.rotary:
        query, key, value = head_bugs.rotated(query, key, value, start, past, sizes, knobs)
        steps |= {"frequencies": frequencies(knobs.get("frequencies", "2i/d"), sizes["d"], sizes["D"])}
        steps |= {"rotated query": query, "rotated key": key}
    all_keys, all_values, kept = head_bugs.append(key, value, past, knobs)
    all_keys = head_bugs.rotated_again(all_keys, sizes, knobs) if options.rotary else all_keys
    kept = (all_keys, kept[1]) if knobs.get("rotates") == "past again" else kept
    T, S = query.shape[2], all_keys.shape[2]
    bias = alibi(T, S, query.shape[1], knobs) if options.alibi else None
    if start and "chunk_mask" in knobs:
        knobs = {**knobs, "mask": knobs["chunk_mask"]}
    keys = share(all_keys, query.shape[1], knobs.get("share_keys", knobs.get("share", "right")))  # (B, H, S, d)
    values = share(all_values, query.shape[1], knobs.get("share_values", knobs.get("share", "right")))
    steps |= weigh(query, keys, {**sizes, "B": x.shape[0]}, knobs, options, bias)
    weights = steps["weights"].mT if knobs.get("mix") == "transposed" else steps["weights"]  # (B, H, T, S)
    mixed = weights @ values  # (B, H, T, d)
    if "one_head" in knobs:
        mixed = mixed[:, knobs["one_head"], None].expand_as(mixed)
    steps["mixed"] = mixed
    if "head_order" in knobs:
        mixed = mixed[:, list(knobs["head_order"])]
    mixed = mixed.transpose(1, 2) if knobs.get("head_axis") else mixed
    merged = join(mixed, knobs.get("merge", "right"))  # (B, T, H d)
    steps["merged"] = merged
    steps["output"] = finish(merged, x, parameters, knobs)
    return steps, kept


def finish(merged: Tensor, x: Tensor, parameters: Parameters, knobs: Knobs) -> Tensor:
    """The output projection: (B, T, H d) -> (B, T, D)."""
    how = knobs.get("end", "right")
    if how == "none":
        return merged
    if how == "cut":  # where the heads together are wider than the model
        return merged[..., : x.shape[-1]]  # (B, T, D)
    y = project(merged, parameters, "output", knobs)  # (B, T, D)
    if how == "twice":
        return project(y, parameters, "output", knobs)
    if how == "residual":
        return x + y
    if how == "softmax":
        return y.softmax(dim=-1)
    return y


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options) -> Steps:
    """x (B, T, D) -> every step to the output (B, T, D); for a probe in chunks, the joined outputs of all chunks."""
    x, given = probe.inputs["x"], (parameters, sizes, knobs, options)  # (B, T, D)
    if knobs.get("batch") == "joined":
        steps, _ = layer(x.reshape(1, -1, x.shape[2]), 0, None, given)
        return {**steps, "output": steps["output"].view(x.shape[0], x.shape[1], -1)}
    if not probe.chunks:
        return layer(x, 0, None, given)[0]
    outputs, past, start = [], None, 0
    for T in probe.chunks:
        steps, past = layer(x[:, start : start + T], start, past, (parameters, sizes, {**knobs, "chunk": T}, options))
        outputs.append(steps["output"])
        start += T
    return {**steps, "output": torch.cat(outputs, dim=1)}


def tiny(H: int, G: int, options: Options) -> tuple[Sizes, Parameters, Probe]:
    """Three tokens of H d features, d = 2 or with rotary 4; the matrices hold small integers."""
    d = 4 if options.rotary else 2
    sizes = {"B": 1, "T": 3, "D": H * d, "H": H, "G": G, "d": d, "e": d}
    D, parameters = sizes["D"], dict[str, Tensor]()
    for number, role in enumerate(ROLES):
        rows, columns = role.rows(sizes), role.columns(sizes)
        places = torch.arange(rows)[:, None] + number * torch.arange(columns)  # (rows, columns)
        parameters[role.name] = ((places % (D + 1)) % 3 - 1.0).double().reshape(role.shape(sizes))
    x = ((torch.arange(3)[:, None] * 2 + torch.arange(D) * 3) % 5 - 1.0).double()[None]  # (1, 3, D)
    chunks = (2, 1) if options.cache else ()
    return sizes, parameters, Probe("three tokens", {"x": x}, chunks=chunks)


MILLION = Convention({"fill": -1e6}, "hidden scores become -1e6, as in Dive into Deep Learning: enough, as long as all "
                     "scores stay far below a million")  # fmt: skip


def conventions(options: Options, many: bool, grouped: bool) -> list[Convention]:
    """Other ways that are right too."""
    found = [
        Convention({"split": "features_first"}, "the features of the heads are interleaved: a head has every H-th"),
        Convention({"merge": "features_first"}, "the heads' outputs are interleaved before the projection: the same up "
                   "to the order of its columns"),
    ] if many else []  # fmt: skip
    if grouped and not options.alibi:
        found.append(Convention({"share": "tile"}, "key heads are tiled (1, 2, 1, 2) instead of repeated (1, 1, 2, 2): "
                                "the same up to the order of the query heads"))  # fmt: skip
    found += ROTARY_CONVENTIONS if options.rotary else []
    found += [] if options.full else [MILLION]
    found += head_bugs.SINKS if options.window else []
    return found + (ALIBI_CONVENTIONS if options.alibi else [])


def module(name: str, sizes: Sizes, right: str, options: Options) -> Target:
    """A target that is an `nn.Module`: x (B, T, D) -> (B, T, D)."""
    only(name, options, "rotary", "alibi", "window", "cache", "full")
    sizes = {**sizes, "window": options.window}
    many, grouped = sizes["H"] > 1, sizes["G"] < sizes["H"]
    return Target(
        name,
        right,
        ("x",),
        partial(reference, options=options),
        cache_probes if options.cache else sequence_probes,
        sizes,
        head_bugs.all_bugs(options, many, grouped),
        conventions(options, many, grouped),
        ROLES,
        options,
        head_bugs.without(many),
        partial(tiny, 2 if many else 1, 1 if grouped or not many else 2, options),
    )


def single_head(options: Options) -> Target:
    """One head with an output projection."""
    sizes = {"B": 2, "T": 11, "D": 23, "H": 1, "G": 1, "d": 14, "e": 14}
    return module(
        "single_head", sizes, "one head: queries, keys and values of x, attention, output projection", options
    )


def multi_head(options: Options) -> Target:
    """H heads of width D / H."""
    sizes = {"B": 2, "T": 11, "D": 70, "H": 5, "G": 5, "d": 14, "e": 14}
    return module("multi_head", sizes, "H heads side by side, joined by an output projection", options)


def grouped_query(options: Options) -> Target:
    """H heads of queries over G heads of keys and values."""
    sizes = {"B": 2, "T": 11, "D": 240, "H": 20, "G": 5, "d": 12, "e": 12}
    return module("grouped_query", sizes, "H query heads, of which H/G each share a head of keys and values", options)


WEIGHS = {"mask", "scale", "scale_at", "softmax", "hide", "fill", "compare", "split", "split_only", "head_axis"}


def weights_reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options) -> Steps:
    """x (B, T, D) -> the steps to the weights (B, H, T, T); (B, T, T) where there is one head."""
    steps = reference(probe, parameters, sizes, knobs, options)
    weights = steps["weights"]  # (B, H, T, T)
    kept = {name: step for name, step in steps.items() if name not in ("mixed", "merged", "output", "value", "weights")}
    return {**kept, "weights": weights[:, 0] if sizes["H"] == 1 else weights}


def weights_of_heads(options: Options) -> Target:
    """A module that returns its weights: x (B, T, D) -> (B, T, T) of one head, (B, H, T, T) of several."""
    sizes = {"B": 2, "T": 11, "D": 70, "H": 5, "G": 5, "d": 14, "e": 14, "window": options.window}
    return Target(
        "attention_weights",
        "softmax of query @ key^T / sqrt(d), the future hidden, with query and key from x",
        ("x",),
        partial(weights_reference, options=options),
        sequence_probes,
        sizes,
        [
            bug
            for bug in head_bugs.all_bugs(options, many=True, grouped=False)
            if set(bug.knobs) <= WEIGHS and "value" not in bug.knobs.get("split_only", "")
        ],
        conventions(options, many=True, grouped=False)[:1],
        ROLES[:2],
        options,
    )
