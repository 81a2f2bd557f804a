"""What an exercise's text promises and one call does not show: other heads, biases, positions, longer texts, chunks.

    for broken in asked_too(attention, "ana.py", "multi_head"): ...

The kind is built again for each further call of `ALSO`, and held against the contract of `minigpt.attention` and the
kind of ours that the exercise asks for.

B batch, T positions, S positions so far, D model width, H heads, G heads of keys and values, d width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention, Past
from minigpt.attention.position import NoPosition, Position, Rotary, Shape
from minigpt.checks.learners.program import line_of, moved, same
from minigpt.checks.learners.sizes import SIZES
from minigpt.checks.learners.verdict import what_it_raised
from minigpt.checks.reading.structure import Broken

AFTER = 3  # the position of the first token, where one text continues another
OURS = {"rotary": "multi_head", "cache": "multi_head", "window": "sliding_window", "linear_attention": "linear"}
COUNTED = ("multi_head", "grouped_query")  # exercises whose text says which layers there are


@dataclass(frozen=True)
class Also:
    """A further call of an exercise's kind."""

    width: int
    options: Mapping[str, Any] = field(default_factory=dict)
    bias: bool = True
    rotary: bool = True
    tokens: int = 8


ALSO = {  # the exercise: further calls
    "dot_product": (Also(6, rotary=False),),
    "single_head": (Also(10),),
    "multi_head": (Also(20, {"n_head": 5}), Also(18, {"n_head": 3}, tokens=70), Also(14, {"n_head": 7}, bias=False)),
    "grouped_query": (Also(36, {"n_head": 6, "n_kv_head": 3}, tokens=70), Also(20, {"n_head": 5, "n_kv_head": 1}),
                      Also(12, {"n_head": 3, "n_kv_head": 3}, bias=False)),
    "rotary": (Also(24, {"n_head": 2}, tokens=70),),
    "cache": (Also(18, {"n_head": 3}), Also(20, {"n_head": 5}, bias=False, tokens=70)),
    "window": (Also(18, {"n_head": 3, "window": 3}), Also(10, {"n_head": 1, "window": 9}, tokens=70)),
    "linear_attention": (Also(18, {"n_head": 3}, rotary=False),),
}  # fmt: skip


def built(kind: type[Attention], also: Also, position: type[Position], config: Any = None) -> Attention:
    """A kind in float64, in evaluation mode, by default with the options of a call."""
    shape: Any = Shape(n_embd=also.width, bias=also.bias, position=position.Config())
    return kind(config or kind.Config(**also.options), shape).double().eval()


def text_for(also: Also) -> Tensor:
    """A text for a call: (2, T, D)."""
    draw = torch.Generator().manual_seed(7)
    return torch.randn(2, also.tokens, also.width, dtype=torch.float64, generator=draw)  # (B, T, D)


def asked_of_all(thing: Any) -> list[Broken]:
    """What every kind that mixes by its weights promises, also where no exercise is named: fewer queries, chunks."""
    with suppress(Exception), torch.no_grad():  # the learner's code: anything
        if isinstance(thing, Attention) and type(thing).mix is Attention.mix:
            also = Also(SIZES["D"])
            return list(islice(chunked(built(type(thing), also, Rotary, thing.config), also), 1))
    return []


def asked_too(thing: Any, path: str, exercise: str) -> list[Broken]:
    """The first promise that an exercise's kind, or MultiHead with its position, does not keep; [] if it keeps all."""
    for also in ALSO.get(exercise, ()) if isinstance(thing, Attention) else ():
        try:
            with torch.no_grad():
                position = type(thing.position) if exercise == "rotary" else Rotary if also.rotary else NoPosition
                rotated, plain = (built(type(thing), also, one) for one in (position, NoPosition))
                plain.load_state_dict(rotated.state_dict())
                ours = built(Attention.kinds[OURS.get(exercise, exercise)], also, NoPosition)
                for broken in promises(rotated, plain, ours, also, exercise in COUNTED):
                    return [broken]
        except Exception as error:  # the learner's code: anything
            how = ", ".join(f"{name} = {value}" for name, value in {"n_embd": also.width, **also.options}.items())
            actual = f"with {how} and {also.tokens} tokens it raises {what_it_raised(error, Path(path))}"
            return [Broken("it runs with any sizes", actual, "an output", "ask x for its sizes", line_of(error, path))]
    return []


def promises(kind: Attention, plain: Attention, ours: Attention, also: Also, counted: bool) -> Iterator[Broken]:
    """What a kind does not keep of the contract. `plain`: without positions. `ours`: what the exercise asks for."""
    H, x, past = also.options.get("n_head", 1), text_for(also), Past()
    past.length = AFTER
    parts, expected = kind.qkv(x, past), ours.qkv(x, past)
    for name, part, right in zip(("query", "key", "value"), parts, expected):
        if part.shape != right.shape:
            actual = f"with n_head = {H} and n_embd = {also.width}, {name} is {tuple(part.shape)}"
            yield Broken("each head looks for itself", actual, f"{tuple(right.shape)}",
                         "take the number of heads from config.n_head, and d = D // n_head", 0)  # fmt: skip
    count, wanted = (sum(one.numel() for one in each.parameters()) for each in (kind, ours))
    if counted and count != wanted:
        actual = f"with n_embd = {also.width} and bias = {also.bias} the layers hold {count} numbers"
        yield Broken("the layers are those of the text", actual, f"{wanted}", "give each nn.Linear bias=model.bias", 0)
    flats = plain.qkv(x, Past())
    if not same(parts[2], flats[2]):
        yield Broken("positions turn queries and keys", "with rotary positions the values are turned, too",
                     "values as the layer makes them", "self.position.rotate is for query and key", 0)  # fmt: skip
    for name, part, flat in zip(("queries", "keys"), parts, flats):
        if not same(part, kind.position.rotate(flat, AFTER)):
            how = "as they were" if same(part, flat) else f"turned by other angles, in a text that goes on at {AFTER}"
            yield Broken("positions turn queries and keys", f"with rotary positions the {name} are {how}",
                         "turned from past.length on", "self.position.rotate(query, past.length), and the key alike",
                         0)  # fmt: skip
    whole = kind.position.rotate(flats[1], 0)  # of T positions; then as many from another one on
    later = kind.position.rotate(flats[1].roll(-AFTER, 2), AFTER)[:, :, :-AFTER]
    if not same(later, whole[:, :, AFTER:]):
        yield Broken("a text that goes on is turned on", f"a text that begins at start = {AFTER} gets the angles of "
                     "other positions", f"those of {AFTER}, {AFTER + 1}, ...", "make the angles for these positions: a "
                     "table that is kept is known by its start, too", 0)  # fmt: skip
    if counted and not same(plain.weights(*flats[:2]), ours.weights(*flats[:2])):
        yield Broken("a query head reads its own key head", "the weights of these queries and keys are others",
                     f"query head h with key head h // {H // expected[1].shape[1]}", "repeat_interleave, not repeat",
                     0)  # fmt: skip
    if (window := also.options.get("window")) and not same(plain.weights(*flats[:2]), ours.weights(*flats[:2])):
        yield Broken("a token sees itself and what came before", f"with window = {window} the weights are others than "
                     f"those of {window} keys", f"the query itself and {window - 1} before it",
                     "self.config.window says how many", 0)  # fmt: skip
    yield from chunked(kind, also)


def chunked(kind: Attention, also: Also) -> Iterator[Broken]:
    """What a kind does not keep where queries are fewer than keys, and where a text comes in chunks."""
    T, x = also.tokens, text_for(also)
    query, key, _ = kind.qkv(x, Past())
    for few in (1, 2):
        if not same(kind.weights(query[:, :, -few:], key), kind.weights(query, key)[:, :, -few:]):
            actual = f"with fewer queries than keys, {few} of {T}, the weights are other rows"
            yield Broken("queries may come alone", actual,
                         "the last rows of all weights", "the T queries are the last T of S positions: tril(S - T)",
                         0)  # fmt: skip

    def in_pieces(x: Tensor, lengths: tuple[int, ...]) -> Tensor:
        cache = kind.make_cache(T)
        return torch.cat([kind(one, cache) for one in x.split(list(lengths), dim=1)], dim=1)  # (B, T, D)

    cache, count = kind.make_cache(T), 0
    for one in x.split([3, 1, T - 4], dim=1):
        kind(one, cache)
        count += one.shape[1]
        if (length := getattr(cache, "length", count)) != count:
            actual = f"after {count} tokens the cache's length is {length}: the next ones get other positions"
            yield Broken("a cache counts its positions", actual, f"{count}", "self.length = self.keys.shape[2]", 0)
    for lengths in ((T - 3, 1, 1, 1), (1, 2, T - 5, 2), (1,) * T):
        pieces, whole, chunks = in_pieces(x, lengths), kind(x), f"in chunks of {'+'.join(map(str, lengths))} tokens"
        if not same(pieces, whole) and same(in_pieces(x[:1], lengths), whole[:1]):
            yield Broken("a text of a batch is what it is alone", f"{chunks}, the texts of a batch are mixed",
                         "each text by itself", "keep the batch as an axis: sum over no other text", 0)  # fmt: skip
        if not same(pieces, whole):
            token = int(moved(pieces, whole).nonzero()[0, 1])
            why = ("within a chunk: it is taken in before its own queries have read, or they see ahead" if
                   token < lengths[0] > 1 else "behind the first chunk: a part of what is kept is lost")  # fmt: skip
            chunks = chunks if len(lengths) < T else "one token at a time"
            actual = f"{chunks}, token {token} is another than at once: {why}"
            yield Broken("in chunks a text is what it is at once", actual, "the same", "keep all keys and values, the "
                         "oldest first, and count them in self.length", 0)  # fmt: skip
