"""The laws of rotary positions: by which angles queries and keys are rotated, read off the factors of their features.

A rotated pair is two features of two atoms each, c a - s b and s a + c b: a matrix of factors for each token. A score
depends on the product of a query's and a key's matrix alone, so only differences of angles are judged: positions may
begin anywhere, a table of angles may have any form.

T positions, d width of a head, n = d // 2 pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from minigpt.attention.position import angles
from minigpt.checks.laws.law import Saw, Wanted, law
from minigpt.checks.laws.words import angles_in_words, matrix_in_words
from minigpt.checks.reading.meanings import Token
from minigpt.checks.reading.structure import Found

Pair = tuple[int, int]  # two places of a row
Turns = dict[tuple[int, Pair], dict[Token, float]]  # of each head and pair: the angle of each token
ROUNDED = 2.0**-17  # 1 less the cosine of 2^-8: what is left of an angle whose cosine and sine have 8 bits
BASES = (10_000.0, 500_000.0, 1_000_000.0)  # if rotary was not announced


@law("a pair of features is rotated", "write a cos - b sin, and beside it a sin + b cos, of the features as they were")
def rotations(attention: Found, wanted: Wanted) -> Iterator[Saw]:
    """A pair of features is multiplied by [[cos, -sin], [sin, cos]]."""
    for _, rows, heads in sides(attention):
        for _, pair, row, (a, b, c, d) in matrices(attention, rows, heads):
            if unlike_rotation([a, b, c, d]) > 1e-6:
                yield Saw(attention.line_of_row(row), f"the pair {pair} is multiplied by [[{a:.3f}, {b:.3f}], "
                          f"[{c:.3f}, {d:.3f}]]{matrix_in_words(a, b, c, d)}",
                          "by [[cos, -sin], [sin, cos]]")  # fmt: skip


@law("all pairs of queries and keys are rotated", "rotate queries and keys, each in all of its d / 2 pairs")
def all_rotated(attention: Found, wanted: Wanted) -> Iterator[Saw]:
    """Queries and keys are rotated, in all pairs of features; unless no positions are wanted."""
    line = attention.line_of_row(attention.query_rows[-1])
    counts = {side: len({pair for _, pair in turns(attention, rows, heads)}) for side, rows, heads in sides(attention)}
    d = len(attention.numbers(attention.query_rows[0]))
    if not any(counts.values()):
        if wanted.rotary:
            yield Saw(line, "nothing is rotated: the attention has no positions",
                      "queries and keys rotated by their angles")  # fmt: skip
        return
    for side, count in counts.items():
        if not count:
            yield Saw(line, f"the {side} are not rotated: 0 pairs of the {side} are", f"{d // 2}, as in the others")
    if not wanted.rotary:
        yield Saw(line, "queries and keys are rotated (rotary)", "queries and keys as the layers make them", "",
                  "rotary")  # fmt: skip
    if max(counts.values()) < d // 2:
        yield Saw(line, f"{2 * max(counts.values())} of {d} features are rotated", "all", "", "partial rotary")


@law("the angle between query and key is their distance times a frequency",
     "one rotation (rotary) for queries and keys: position * base^(-2i/d), in the same pairs")  # fmt: skip
def distances(attention: Found, wanted: Wanted) -> Iterator[Saw]:
    """The angle between a query and a key is their distance times the pair's frequency."""
    queries, *others = (turns(attention, rows, heads) for _, rows, heads in sides(attention))
    keys, line = others[0] if others else queries, attention.line_of_row(attention.query_rows[-1])
    order = sorted({pair for _, pair in queries})
    if not order:
        return
    if {pair for _, pair in keys} != set(order):
        other = sorted({pair for _, pair in keys})
        yield Saw(line, f"queries and keys are rotated in different pairs: the queries in {order[:3]}, the keys in "
                  f"{other[:3]} (interleaved and by halves)", "in the same pairs")  # fmt: skip
        return
    partners = attention.partners()
    bases = (wanted.rotary,) if wanted.rotary else BASES
    if (own := own_base(queries, order)) and misfit(queries, keys, partners, order, own) is None:
        attention.base = own
        yield Saw(line, f"the base of the frequencies is {own:.0f}, as for longer texts", f"{bases[0]:.0f}", "", "base")
        return
    wrong = [misfit(queries, keys, partners, order, base) for base in bases]
    rotated = (one for _, rows, heads in sides(attention) for one in matrices(attention, rows, heads))
    lengths = [math.hypot(a, c) for _, _, _, (a, _, c, _) in rotated]
    uneven = max(lengths) - min(lengths) > 1e-6 * max(lengths)  # else the angles are rounded: far off at late positions
    near = (misfit(queries, keys, partners, order, base, ROUNDED) for base in bases)
    if None not in wrong and uneven and None in near:
        attention.rounded = True
        yield Saw(line, "cosines and sines are rounded, as in a table in bfloat16", "exact ones", "", "rounded")
    elif wrong[0] is not None and None not in wrong:
        (head, pair), (_, t), (_, s), between, right = wrong[0]
        where = f"in the pair {pair} the query of token {t} and the key of token {s} are {between:.4f} apart"
        words = why(attention, queries, keys, (head, partners[head]), order, wanted.rotary or BASES[0])
        yield Saw(line, where + (f": {words}" if words else ""), f"{t} - {s} times the frequency = {right:.4f}")


def own_base(queries: Turns, order: list[Pair]) -> float:
    """The base of the frequencies, by the second pair, if it is so many ten thousands, as for long texts; else 0."""
    head = next(iter(queries))[0]
    angles_of_two = [angle for _, angle in sorted(queries[head, order[min(1, len(order) - 1)]].items())][:2]
    step = abs(angles_of_two[-1] - angles_of_two[0])  # base^(-1 / n)
    base = float(f"{step ** -len(order):.6g}") if step else 0.0
    slips = (BASES[0] ** 2,)  # the exponent is 4i/d
    return base if base > BASES[0] and base % BASES[0] == 0 and base not in slips else 0.0


Misfit = tuple[tuple[int, Pair], Token, Token, float, float]


def misfit(queries: Turns, keys: Turns, partners: dict[int, int], order: list[Pair], base: float,
           allowed: float = 1e-9) -> Misfit | None:  # fmt: skip
    """The first head, pair, query and key whose angle is not distance times frequency; None if all are right."""
    frequencies = angles(0, 2, 2 * len(order), base, torch.device("cpu"))[1].tolist()
    for (head, pair), by_token in queries.items():
        for (b, t), angle in by_token.items():
            for (other, s), key_angle in keys[partners[head], pair].items():
                between, right = angle - key_angle, (t - s) * frequencies[order.index(pair)]
                if b == other and max(math.cos(between - right), math.cos(between + right)) < 1 - allowed:
                    return (head, pair), (b, t), (b, s), between, right
    return None


def why(attention: Found, queries: Turns, keys: Turns, heads: tuple[int, int], order: list[Pair], base: float) -> str:
    """What is wrong with the angles, in words; "" if no formula fits."""
    steps = []
    for table, head in zip((queries, keys), heads):
        first, second = sorted(table[head, order[0]])[:2]
        if second != (first[0], first[1] + 1):
            return ""
        steps.append([table[head, pair][second] - table[head, pair][first] for pair in order])
    if all(math.cos(a + b) > 1 - 1e-9 for a, b in zip(*steps)) and any(math.cos(a - b) < 1 - 1e-9
           for a, b in zip(*steps)):  # fmt: skip
        return "queries and keys turn in opposite directions: the scores depend on the sum of the positions"
    if words := angles_in_words(steps[0], base, attention.width, len(attention.heads)):
        return words
    by_token = {t: angle for (_, t), angle in sorted(keys[heads[1], order[0]].items())}
    tokens, step = sorted(by_token), by_token[min(by_token) + 1] - by_token[min(by_token)]
    jump = next((t for t in tokens[1:] if math.cos(by_token[t] - by_token[t - 1] - step) < 1 - 1e-9), 0)
    if jump and math.cos(by_token[jump] - by_token[tokens[0]]) > 1 - 1e-9:
        return f"the positions start at 0 again at token {jump}: in every call, not at the length of the cache"
    if jump:
        return f"the positions jump at token {jump}"
    frequencies = angles(0, 2, 2 * len(order), base, torch.device("cpu"))[1].tolist()
    if all(math.cos(a - b) > 1 - 1e-9 for a, b in zip(steps[0], frequencies)):
        return "queries and keys are rotated by different positions: those of one are some more than those of the other"
    return "the frequencies run over all heads: rotated before the heads are split" if len(attention.heads) > 1 else ""


def sides(attention: Found) -> list[tuple[str, list[int], dict[int, int]]]:
    """Queries and keys: their rows, before a norm, and the head of each."""
    both = [("queries", attention.query_rows, attention.query_heads), ("keys", attention.key_rows, attention.key_heads)]
    return [(side, [attention.unnormed(row) for row in rows], {attention.unnormed(row): heads[row] for row in rows})
            for side, rows, heads in both if rows]  # fmt: skip


def turns(attention: Found, rows: list[int], heads: dict[int, int]) -> Turns:
    """The angle of each head, pair and token."""
    table: Turns = {}
    for head, pair, row, (a, _, c, _) in matrices(attention, rows, heads):
        table.setdefault((head, pair), {})[attention.tokens(row)[0]] = math.atan2(c, a)
    return table


def matrices(
    attention: Found, rows: list[int], heads: dict[int, int]
) -> Iterator[tuple[int, Pair, int, tuple[float, ...]]]:
    """Head, pair, row and the factors (a at i, b at i, a at j, b at j) of each pair of features, units a and b."""
    of, units = attention.of, attention.of.unit
    for head in dict.fromkeys(heads.values()):
        own = [row for row in rows if heads[row] == head]
        terms = [[getattr(of[number], "terms", ()) for number in of.numbers_in(row)] for row in own]
        factors = [[{units(atom): factor for atom, factor in one} for one in row] for row in terms]
        width = min(map(len, factors))
        places = [set().union(*(row[place] for row in factors)) for place in range(width)]
        for i in range(width):
            for j in range(i + 1, width):
                if len(places[i] | places[j]) == 2 and (places[i] & places[j]):
                    a, b = sorted(places[i] | places[j])
                    orders = [[tuple(row[at].get(unit, 0.0) for at in (i, j) for unit in order) for row in factors]
                              for order in ((a, b), (b, a))]  # fmt: skip
                    best = min(orders, key=lambda factors_of: (round(sum(map(unlike_rotation, factors_of)), 6) > 0,
                                                         -abs(factors_of[0][0]) - abs(factors_of[0][3])))  # fmt: skip
                    for row, matrix in zip(own, best):
                        yield head, (i, j), row, matrix


def unlike_rotation(matrix: list[float] | tuple[float, ...]) -> float:
    """How far a matrix [a, b, c, d] is from a multiple of a rotation."""
    a, b, c, d = matrix
    return abs(a - d) + abs(b + c)
