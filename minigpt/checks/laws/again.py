"""What was read, computed again by a kind of ours: the proof that the reading is right, on texts of any length.

A law says what the numbers of one short text are made of. Here queries, keys and values are computed from the
parameters that were read, our own kind mixes them, and what was read makes the output of that. Equal numbers on other
texts, on long ones and on one token show that nothing was overlooked: a table that ends, a state that is kept.

N tokens, B batch, H heads, T positions, D width of x, d width of a query, e width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minigpt.attention.position import Alibi, Position, Rotary, Shape
from minigpt.checks.laws.law import SLOPES, Wanted
from minigpt.checks.laws.turning import BASES, sides, turns
from minigpt.checks.reading.meanings import Atom, Param, Token
from minigpt.checks.reading.structure import Found
from minigpt.checks.reading.values import NotGiven, Values


@dataclass
class Head:
    """One head, as it was read at one token: the numbers of its query, of its key and of its values, and its mixtures.

    Rotated features stand first, in pairs, the fastest pair first.
    """

    query: list[int]
    key: list[int]
    values: list[int]
    mixtures: list[int]
    scale: float
    """By what its scores are multiplied; factors inside queries and keys count there."""
    bias: float
    """By how much its score of the first token is lowered."""


def heads(attention: Found, place: Token) -> tuple[list[Head], float]:
    """The heads as they were read at a token, those with the lowest bias first.

    Beside them the share of a query's features that are rotated.
    """
    of, listed, rotated = attention.of, dict[int, Head](), pairs(attention)
    for mixture in (one for row in sorted(attention.rows[place]) for one in of.numbers_in(row)):
        weight, value = own_term(attention, mixture, place)
        if Param in of.kinds(of[weight].group):
            raise NotGiven("a learned sink")
        if extra := [change for change, _ in attention.score(weight).extra if change != "times"]:
            raise NotGiven({"tanh": "a soft cap", "by": "a temperature"}.get(extra[0], "a learned bias"))
        query, key = of.query(weight), of.key(weight)
        head = attention.query_heads[query]
        if head not in listed:
            places = range(len(of.numbers_in(query)))
            order = [*rotated.get(head, []), *(i for i in places if i not in rotated.get(head, []))]
            rows = [[of.numbers_in(row)[i] for i in order] for row in (query, key)]
            listed[head] = Head(rows[0], rows[1], [], [], attention.score(weight).scale, lowered(attention, head))
        listed[head].values.append(value)
        listed[head].mixtures.append(mixture)
    share = max((len(order) for order in rotated.values()), default=0) / len(next(iter(listed.values())).query)
    return sorted(listed.values(), key=lambda head: head.bias), share


def own_term(attention: Found, mixture: int, token: Token) -> tuple[int, int]:
    """The weight that a token gives to itself in a mixture, and its own value. Raises NotGiven."""
    for weight, value in attention.of.terms(mixture):
        if attention.of.tokens(value) == (token,):
            return weight, value
    raise NotGiven("a token that does not see itself")


def lowered(attention: Found, head: int) -> float:
    """By how much a head's score of the first token is lowered most, beside that of the query's own token."""
    of, by_query = attention.of, dict[int, list[tuple[int, float]]]()
    for weight in attention.weights:
        if attention.query_head(weight) == head:
            key = of.tokens(of.key(weight))[0][1]
            by_query.setdefault(of.query(weight), []).append((key, attention.score(weight).added))
    return min(min(row)[1] - max(row)[1] for row in by_query.values())


def pairs(attention: Found) -> dict[int, list[int]]:
    """For each head the places of its rotated pairs, each in the direction in which it is rotated. Raises NotGiven."""
    order, (_, rows, owners) = dict[int, list[int]](), sides(attention)[0]
    for row, before in zip(attention.query_rows, rows):
        if row != before and (norm := attention.norms.norm(attention.numbers(row))) and norm.gain:
            raise NotGiven("a norm with weights behind a rotation")  # these would have to be rotated, too
    for (head, pair), angles in sorted(turns(attention, rows, owners).items()):
        first, second, *_ = [angle for _, angle in sorted(angles.items())]
        order.setdefault(head, []).extend(pair if math.sin(second - first) > 0 else pair[::-1])
    return order


def positions(wanted: Wanted, rotated: float, base: float = 0.0) -> list[Position]:
    """What the kind's position may be: with ALiBi either formula of the slopes, with rotary the share of features."""
    shape = Shape()
    if rotated:
        bases = (base,) if base else (wanted.rotary,) if wanted.rotary else BASES
        return [Rotary(Rotary.Config(base=base, share=rotated), shape, 0) for base in bases]
    if isinstance(wanted.kind.position, Alibi):
        return [Alibi(Alibi.Config(slopes=slopes), shape, 0) for slopes in SLOPES]
    return [wanted.kind.position]


def again(attention: Found, wanted: Wanted, parameters: Mapping[str, Tensor]) -> Iterator[Callable[[Tensor], Tensor]]:
    """What was read as functions x (B, T, D) -> (B, T, D), one for each formula that is right; for any T.

    They may raise NotGiven.
    """
    place = min(attention.rows)
    if attention.positions:
        raise NotGiven("learned positions")
    if attention.rounded:
        raise NotGiven("rounded angles")
    of, (listed, rotated) = attention.of, heads(attention, place)
    columns = dict[int, Tensor]()
    leaves = {number: atom.place for number, atom in enumerate(of.all) if isinstance(atom, Atom) and atom.op == "input"}

    def run(position: Position, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        flat = x.flatten(0, 1)  # (N, D)
        inputs = {atom: flat[:, j] for atom, j in leaves.items()}
        computed, kind = Values(of, inputs, parameters, B * T, columns).of_number, copy(wanted.kind)
        kind.position = position
        rows = zip(*((head.query, head.key, head.values) for head in listed))
        stacked = (torch.stack([torch.stack([*map(computed, numbers)], -1) for numbers in each], 1) for each in rows)
        query, key, value = (one.unflatten(0, (B, T)).transpose(1, 2) for one in stacked)  # (B, H, T, d or e) each
        scales = torch.tensor([head.scale / kind.scale(query) for head in listed])
        query, key = (position.rotate(one, 0) for one in (query * scales[:, None, None], key))
        order = position.bias(query, key)[:, -1, 0].argsort(stable=True)  # the kind's heads, the lowest bias first
        query, key, value = (torch.empty_like(one).index_copy(1, order, one) for one in (query, key, value))
        mixed = kind.mix(query, key, value)[:, order].transpose(1, 2).flatten(0, 1)  # (N, H, e)
        mixtures = {one: mixed[:, h, j] for h, head in enumerate(listed) for j, one in enumerate(head.mixtures)}
        output = Values(of, inputs | mixtures, parameters, B * T, columns).of_number
        return torch.stack([output(number) for number in attention.output[place].tolist()], -1).unflatten(0, (B, T))

    for position in positions(wanted, rotated, attention.base):
        yield partial(run, position)
