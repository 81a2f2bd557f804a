"""What goes wrong in a module with heads: splitting and joining them, projections, shared key heads, the cache.

B batch, T query positions, S key positions, D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from minigpt.grading.target import Bug, Convention, Knobs, Options, Sizes
from minigpt.grading.targets.rotation import alibi_bugs, rotary_bugs, rotate, turn
from minigpt.grading.targets.score_bugs import (
    compare_bugs,
    corner_bugs,
    emptied,
    head_score_bugs,
    mask_bugs,
    scale_bugs,
    softmax_bugs,
)

SPLIT = "x.view(B, T, H, d).transpose(1, 2): (B, H, T, d)"
JOIN = "mixed.transpose(1, 2).reshape(B, T, H * d)"
SHARE = "key.repeat_interleave(H // G, dim=1)"
FUSED = ("(3, B, H, T, d)", "(B, 3, H, T, d)", "(B, H, T, 3 d)", "(3, B, T, H, d)")
Kept = tuple[Tensor, ...]  # past key and value, (B, G, S, d) each; for some bugs also the write position ()


def fused(flat: dict[str, Tensor], H: int, shape: str) -> tuple[Tensor, Tensor, Tensor]:
    """query, key and value (B, T, H d) -> (B, H, T, d) each, from a joined projection that is split wrongly."""
    joined = torch.cat(tuple(flat.values()), dim=2)  # (B, T, 3 H d)
    B, T, d = *joined.shape[:2], joined.shape[2] // 3 // H
    if shape == "(3, B, H, T, d)":
        query, key, value = joined.reshape(3, B, H, T, d)
    elif shape == "(B, 3, H, T, d)":
        query, key, value = joined.reshape(B, 3, H, T, d).unbind(1)
    elif shape == "(3, B, T, H, d)":
        query, key, value = joined.reshape(3, B, T, H, d).transpose(2, 3)
    else:
        query, key, value = joined.reshape(B, H, T, 3 * d).chunk(3, dim=-1)
    return query, key, value


def append(key: Tensor, value: Tensor, past: Kept | None, knobs: Knobs) -> tuple[Tensor, Tensor, Kept]:
    """The keys and values to attend to, and those that the cache keeps: (B, G, S, d) each."""
    how = knobs.get("cache", "right")
    if how in PLACES:
        return written(key, value, past, how)
    if how == "doubled" and "chunk" in knobs:
        key, value = torch.cat((key, key), dim=2), torch.cat((value, value), dim=2)  # (B, G, 2 T, d)
    if past is None:
        return (
            key,
            value,
            (key, key) if how == "keys twice" else (value, value) if how == "values twice" else (key, value),
        )
    old_key, old_value = past[::-1] if how == "exchanged" else past
    both = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)  # (B, G, S, d)
    if how == "not updated":
        return *both, past
    if how == "overwritten":
        return *both, (key, value)
    if how == "ignored":
        return key, value, (key, value)
    if how == "new first":
        both = torch.cat((key, old_key), dim=2), torch.cat((value, old_value), dim=2)
    if how == "stale values":
        both = both[0], torch.cat((old_value, old_value[:, :, -1:].expand_as(value)), dim=2)
    if how == "old values first":
        both = torch.cat((old_key, key), dim=2), torch.cat((value, old_value), dim=2)
    if how == "old keys first":
        both = torch.cat((key, old_key), dim=2), torch.cat((old_value, value), dim=2)
    if how == "keys twice":
        return *both, (both[0], both[0])
    if how == "values twice":
        return *both, (both[1], both[1])
    if how == "twice":
        return *both, (torch.cat((both[0], key), dim=2), torch.cat((both[1], value), dim=2))
    return *both, both


PLACES = ("counts calls", "counts the last")


def written(key: Tensor, value: Tensor, past: Kept | None, how: str) -> tuple[Tensor, Tensor, Kept]:
    """As `append`, for a cache that counts its write position wrongly and overwrites old keys and values."""
    T, place = key.shape[2], int(past[2]) if past else 0
    new = [key, value]  # (B, G, T, d) each
    if past:
        new = [torch.cat((old[:, :, :place], more, old[:, :, place + T :]), dim=2) for old, more in zip(past, new)]
    after = torch.tensor(place + 1 if how == "counts calls" else T)
    return new[0][:, :, : place + T], new[1][:, :, : place + T], (*new, after)


TURNS = ("rotates", "frequencies", "table", "pairs", "direction", "share_of_d", "part", "position", "late",
         "query alone", "key alone")  # fmt: skip


def rotated(
    query: Tensor, key: Tensor, value: Tensor, start: int, past: Kept | None, sizes: Sizes, knobs: Knobs
) -> tuple[Tensor, ...]:
    """query, key and value of positions from `start` on, (B, H, T, d) each, rotated as the knobs say."""
    T, how = query.shape[2], knobs.get("starts", "right")
    if knobs.get("rotates") == "past again":
        return turn(query, range(start, start + T), sizes, knobs), key, value
    if knobs.get("rotates") == "keys later":
        return turn(query, range(T), sizes, knobs), key, value
    begin = {"right": start, "zero": 0, "late": start + T if past else 0, "one early": max(start - 1, 0),
             "calls": start and 1, "place": int(past[2]) if past and len(past) > 2 else start,
             "one late": start + 1 if past else 0}[how]  # fmt: skip
    knobs = {**knobs, "rotates": "both"} if knobs.get("rotates") == "keys again" else knobs
    chosen = [(name, knobs[name]) for name in TURNS if name in knobs]
    fixed = tuple((name, tuple(value.items()) if isinstance(value, dict) else value) for name, value in chosen)
    return turned_once(query, key, value, begin, sizes["D"], fixed)


@lru_cache(maxsize=1024)
def turned_once(
    query: Tensor, key: Tensor, value: Tensor, start: int, D: int, knobs: tuple[tuple[str, object], ...]
) -> tuple[Tensor, ...]:
    """query, key and value (B, H, T, d), rotated. Cached: hundreds of settings of other knobs need the same."""
    given = {name: dict(value) if isinstance(value, tuple) else value for name, value in knobs}
    return rotate(query, key, value, start, {"D": D}, given)


def rotated_again(keys: Tensor, sizes: Sizes, knobs: Knobs) -> Tensor:
    """Keys (B, G, S, d) of past and present; some bugs rotate them (again) after they are joined."""
    if knobs.get("rotates") not in ("keys later", "keys again", "past again"):
        return keys
    return turn(keys, range(keys.shape[2]), sizes, knobs)


def split_bugs(grouped: bool) -> list[Bug]:
    """What goes wrong between (B, T, D) and (B, H, T, d)."""
    one = "{0} alone are split with view(B, H, T, d), which mixes positions and heads"
    joins = {
        "turned": "transpose(2, 3): (B, H, d, T)",
        "turned_heads": "permute(0, 3, 1, 2): (B, d, H, T)",
        "all_turned": "permute(0, 3, 2, 1): (B, d, T, H)",
        "sequence_first": "permute(2, 0, 1, 3): (T, B, H, d)",
        "heads_first": "permute(1, 0, 2, 3): (H, B, T, d)",
    }
    return [
        Bug({"split": "view"}, "the heads are split with view(B, H, T, d), which mixes positions and heads", SPLIT),
        Bug({"split": "turned"}, "the heads are split from (B, D, T) with reshape(B, H, T, d), which mixes positions "
            "and features", SPLIT),
        Bug({"split": "overlap"}, "the slices of the heads overlap: head h begins at feature h, not at h d = {d} h",
            "x[..., h * d : (h + 1) * d], or " + SPLIT),
        *(Bug({"split": "view", "split_only": role}, one.format(words), SPLIT)
          for role, words in (("query", "the queries"), ("key", "the keys"), ("value", "the values"),
                                 ("key and value", "keys and values"))),
        Bug({"merge": "view"}, "the heads are joined without transpose(1, 2): reshape(B, T, D) of (B, H, T, d) mixes "
            "positions and heads", JOIN),
        *(Bug({"merge": kind}, f"the heads are joined after {words}, so that positions are mixed", JOIN)
          for kind, words in joins.items()),
        *(Bug({"fused": shape}, f"the joined projection of query, key and value is reshaped to {shape}, which mixes "
              "positions and heads", "qkv.view(B, T, 3, H, d).permute(2, 0, 3, 1, 4)")
          for shape in (() if grouped else FUSED)),
        Bug({"head_axis": True, "mask": "none"}, "the heads attend to each other inside every position: transpose(1, "
            "2) is missing, (B, T, H, d) @ (B, T, d, H)", SPLIT, ({"head_axis": True},)),
        Bug({"one_head": 0}, "all heads give the result of the first one", "use every head once"),
        Bug({"one_head": -1}, "all heads give the result of the last one", "use every head once"),
    ]  # fmt: skip


def turned(what: str, *roles: str) -> Bug:
    """Square matrices that are used transposed. This is right, too: they are learned."""
    sentence = f"{what} used transposed, x @ W where nn.Linear computes x @ W.T: the same, since W is learned"
    return Bug({"transposed": roles}, sentence, "x @ W.T, or nn.Linear", harmless=True)


def projection_bugs(many: bool, grouped: bool) -> list[Bug]:
    """What goes wrong with the matrices; those of keys and values are square only if each query head has its own."""
    own = [
        turned("the matrices of query, key and value are", "query", "key", "value"),
        turned("the matrix of the keys is", "key"),
        turned("the matrix of the values is", "value"),
        turned("all four matrices are", "query", "key", "value", "output"),
        Bug({"end": "twice"}, "the output projection is applied twice", "once"),
        Bug({"values": "x"}, "the values are x itself: the value projection is not used", "value = self.value(x)"),
    ]  # fmt: skip
    square = [
        turned("the output projection is", "output"),
        turned("the matrix of the queries is", "query"),
        *([] if grouped else own),
    ] if many else []  # fmt: skip
    return [
        *square,
        Bug({"values": "key"}, "the weights are applied to the keys, not to the values", "weights @ value"),
        *([] if grouped else [Bug({"values": "query"}, "the weights are applied to the queries, not to the values",
                                  "weights @ value")]),
        Bug({"mix": "transposed"}, "the weights are used transposed: key s collects instead of query t",
            "weights @ value"),
        Bug({"end": "none"}, "the output projection is made, but never used", "return self.output(mixed)",
            ({"end": "cut"},)),
        Bug({"end": "residual"}, "x is added to the output: the residual connection belongs to the block",
            "return the projection alone"),
        Bug({"end": "softmax"}, "there is a softmax over the output", "return the projection alone"),
        Bug({"activated": ("output",)}, "there is a relu behind the output projection", "leave it out"),
        Bug({"activated": ("query", "key", "value")}, "there is a relu behind the projections of query, key and value",
            "leave it out"),
        Bug({"activated": ("value",)}, "there is a relu behind the projection of the values", "leave it out"),
        Bug({"no_bias": ("query",)}, "the bias of the query is not added", "self.query(x)"),
        Bug({"no_bias": ("value",)}, "the bias of the value is not added", "self.value(x)",
            equal="value bias" if not many else ""),
        Bug({"no_bias": ("output",)}, "the bias of the output projection is not added", "self.output(mixed)"),
        Bug({"no_bias": ("query", "key", "value")}, "the biases of query, key and value are not added",
            "self.query(x)"),
        Bug({"no_bias": ("query", "key", "value", "output")}, "no bias is added anywhere, though the module has them",
            "call the layers instead of multiplying with their weights"),
        Bug({"batch": "joined"}, "the batch is joined to one long sequence: later sequences see the earlier ones",
            "keep the batch as an axis of its own"),
    ]  # fmt: skip


def grouped_bugs() -> list[Bug]:
    """What goes wrong where query heads share heads of keys and values."""
    return [
        Bug({"share": "first"}, "all query heads use the first head of keys and values", SHARE),
        Bug({"share_keys": "first"}, "all query heads use the first head of the keys (each its own of the values)",
            SHARE),
        Bug({"share_values": "first"}, "all query heads use the first head of the values (each its own of the keys)",
            SHARE),
        Bug({"share": "last"}, "all query heads use the last head of keys and values", SHARE),
        Bug({"share": "mean"}, "the heads of keys and values are averaged", SHARE),
        Bug({"share": "features"}, "repeat_interleave repeats single features, not whole heads: it is applied before "
            "the heads are split", SHARE),
        Bug({"share": "times"}, "repeat_interleave goes along the positions (dim=2), and view makes heads of them: "
            "every head gets a piece of the text, each of its tokens {H//G} times", SHARE),
        Bug({"share": "reversed"}, "the heads of keys and values are used in reverse", SHARE),
        Bug({"share": "shifted"}, "every group uses the head of keys and values of the group before it", SHARE),
        Bug({"share": "padded"}, "only the first {G} query heads have keys and values; the others see zeros", SHARE),
        Bug({"share_keys": "tile"}, "keys are tiled (1, 2, 1, 2) and values repeated (1, 1, 2, 2): a head reads the "
            "values of another one's keys", SHARE + ", and the same for value"),
        Bug({"share_values": "tile"}, "keys are repeated (1, 1, 2, 2) and values tiled (1, 2, 1, 2): a head reads the "
            "values of another one's keys", SHARE + ", and the same for value"),
        Bug({"scale": "G"}, "you divide the scores by sqrt(G) = sqrt({G}), the number of key heads, instead of sqrt(d)",
            "divide by sqrt(d)"),
        Bug({"scale": "group"}, "you divide the scores by sqrt(H/G) = sqrt({H//G}) instead of sqrt(d)",
            "divide by sqrt(d)"),
        Bug({"scale": "G d"}, "you divide the scores by sqrt(G d) = sqrt({G*d}), the width of all keys, instead of "
            "sqrt(d) = sqrt({d})", "divide by sqrt(d)"),
        Bug({"scale": "D/G"}, "you divide the scores by sqrt(D/G) = sqrt({D//G}) instead of sqrt(D/H) = sqrt({d})",
            "divide by sqrt(d)"),
    ]  # fmt: skip


def window_bugs() -> list[Bug]:
    """What goes wrong with a sliding window."""
    near = "(distance >= 0) & (distance < window): the token itself counts"
    return [
        Bug({"mask": "no_window"}, "there is no window: all of the past is seen", near),
        Bug({"mask": "near"}, "the future is not hidden: the window only hides what lies {window} or more back", near),
        Bug({"mask": "window + 1"}, "the window is one too wide: the token itself and {window} before it", near),
        Bug({"mask": "window - 1"}, "the window is one too narrow: {window-1} tokens with the token itself", near),
        Bug({"mask": "both_sides"}, "the window reaches into the future: |distance| < window", near),
        Bug({"mask": "both_sides + 1"}, "the window reaches into the future: |distance| <= window", near),
        Bug({"mask": "blocks"}, "the past is cut into blocks of {window}: a block starts with nothing seen", near),
        Bug({"mask": "far_only"}, "the window is inverted: only what lies {window} or more back is seen", near,
            emptied(mask="far_only")),
        Bug({"mask": "first_keys"}, "only the first {window} tokens are seen, not the last", near),
        Bug({"mask": "strided"}, "every {window}-th token is seen instead of the last {window}", near),
        Bug({"mask": "past_window"}, "the window leaves out the token itself", near, emptied(mask="past_window")),
        Bug({"mask": "window_future"}, "the window looks ahead instead of back", near),
        *(Bug({"mask": f"sinks {n} early"}, f"the sinks, the first {n} tokens, are seen by all positions, also by "
              "those before them", "((distance < window) | (key < sinks)) & (distance >= 0)") for n in range(2, 5)),
    ]  # fmt: skip


SINKS = [Convention({"mask": f"sinks {n}"}, f"the first {n} tokens stay visible beside the window, as attention sinks "
                    "(StreamingLLM, arXiv 2309.17453)") for n in range(1, 5)]  # fmt: skip


PLACE_SENTENCES = {
    "counts calls": "the place in the cache grows by one in every call instead of by its T tokens: after a chunk of "
    "several tokens the next ones are written over it",
    "counts the last": "the place in the cache is set to the length of the last call instead of growing by it: later "
    "tokens are written over earlier ones",
}


def cache_bugs(options: Options) -> list[Bug]:
    """What goes wrong in decoding in chunks, with a cache."""
    keep = "key = torch.cat((past_key, key), dim=2), and keep that"
    offset = "the first new position is the number of positions in the cache"
    rotary = [
        Bug({"starts": "zero"}, "positions start at 0 in every call: the length of the cache is not added", offset),
        Bug({"starts": "late"}, "positions start behind the new tokens: the cache is counted after they were appended",
            offset),
        Bug({"starts": "one early"}, "with a cache, positions are one too small", offset),
        Bug({"starts": "one late"}, "with a cache, positions are one too large", offset),
        Bug({"rotates": "keys later"}, "queries are rotated from position 0 in every call, while keys have their own",
            offset),
        Bug({"rotates": "past again"}, "the keys of the past are rotated again in every call, and kept so",
            "rotate new keys once, before they are appended, or keep them as they were before the rotation"),
        Bug({"rotates": "keys again"}, "keys from the cache are rotated again in every call",
            "rotate new keys once, before they are appended"),
    ] if options.rotary else []  # fmt: skip
    return [
        *corner_bugs(),
        Bug({"chunk_mask": "none"}, "with a cache there is no mask: in a chunk of several tokens the earlier ones see "
            "the later ones", "the mask is needed whenever T > 1: tril(S - T)"),
        Bug({"cache": "not updated"}, "the cache keeps only what the first call brought", keep),
        Bug({"cache": "overwritten"}, "the cache keeps only what the last call brought: the rest is overwritten", keep),
        *(Bug({"cache": how}, sentence, "self.pos += T, with T = x.shape[1]", ({"cache": how, "starts": "place"},))
          for how, sentence in PLACE_SENTENCES.items()),
        Bug({"cache": "ignored"}, "the cache is not used: a call sees only its own tokens", keep),
        Bug({"cache": "new first"}, "new keys are put before the old ones: cat((new, old))", keep),
        Bug({"cache": "old values first"}, "new values are put before the old ones, and new keys behind them", keep),
        Bug({"cache": "old keys first"}, "new keys are put before the old ones, and new values behind them", keep),
        Bug({"cache": "exchanged"}, "the cache exchanges keys and values", keep),
        Bug({"cache": "keys twice"}, "the cache holds the keys twice: as the keys and as the values of the past", keep),
        Bug({"cache": "values twice"}, "the cache holds the values twice: as the keys and as the values of the past",
            keep),
        Bug({"cache": "doubled"}, "new keys and values are appended twice in every call", keep,
            ({"cache": "twice"},)),
        Bug({"cache": "stale values"}, "new values are not put into the cache: the last old one is used", keep),
        *rotary,
    ]  # fmt: skip


def all_bugs(options: Options, many: bool, grouped: bool) -> list[Bug]:
    """The bugs of a module with these options."""
    width = ("H", "H whole") if not many else ()
    scales = [bug for bug in scale_bugs() if bug.knobs.get("scale") not in width]
    scores = [*scales, *compare_bugs(), *softmax_bugs(), *projection_bugs(many, grouped)]
    if options.window:  # all rows hide keys: -inf / -inf is NaN, as in other bugs
        scores = [replace(bug, knobs=bug.forms[0]) if bug.knobs == {"softmax": "sum"} else bug for bug in scores]
    masks = [] if options.full else mask_bugs()
    return [
        *masks,
        *scores,
        *([*head_score_bugs(), *split_bugs(grouped)] if many else []),
        *(grouped_bugs() if grouped else []),
        *(rotary_bugs() if options.rotary else []),
        *(alibi_bugs() if options.alibi else []),
        *(window_bugs() if options.window else []),
        *(cache_bugs(options) if options.cache else []),
    ]


def without(many: bool) -> dict[str, Bug | Convention]:
    """What it means that a module has no matrix for a role. A single head may have no output projection."""
    project = "self.output = nn.Linear(H * d, D), and return self.output(joined)"
    return {
        "output": Bug({}, "there is no output projection: the heads are joined and returned as they are", project)
        if many
        else Convention({}, "the head has no output projection: it returns (B, T, d), for others to project"),
        "query": Bug({}, "there is no query projection: x itself is the query", "self.query = nn.Linear(D, H * d)"),
        "key": Bug({}, "there is no key projection: x itself is the key", "self.key = nn.Linear(D, H * d)"),
        "value": Bug({}, "there is no value projection: x itself is the value", "self.value = nn.Linear(D, H * d)"),
    }
