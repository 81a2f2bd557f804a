"""What arguments beside the inputs get: causal masks of every meaning and shape, tables of angles of rotary positions.

B batch, T query positions, S key positions, D model width, H heads, d width of a head.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from minigpt.checks.learners.sizes import meaning, place_of

TURNED = ("halves", "neighbours", "once", "half")  # the angles of a table: twice one after the other, each twice, or
# d / 2; or those of half of a head, twice one after the other
PLACED = ((0, 1), (None, 0, 1), (None, None, 0, 1), (None, 0, None, 1), (0, None, 1))  # axes (positions, angles)
FIRST = {"cis|complex": "complex", "angle|theta": "angles", "freq": "complex|angles"}  # what a name says of its form


@dataclass(frozen=True)
class Moment:
    """What is known when a call is made: T new positions from `start` on, S so far."""

    B: int
    T: int
    S: int
    start: int
    sizes: Mapping[str, int]
    first: Tensor
    """The first input, in the program's layout."""

    def places(self, rows: int = 0) -> Tensor:
        """The positions of the new tokens: (T,), or (rows, T)."""
        positions = torch.arange(self.start, self.start + self.T)
        return positions.expand(rows, -1).clone() if rows else positions

    def full(self, flag: bool) -> Tensor:
        """A mask of padding (B, S) that says the same of every position."""
        return torch.full((self.B, self.S), flag)


@dataclass(frozen=True)
class Value:
    """What an argument gets."""

    text: str
    make: Callable[[Moment], Any]
    guessed: bool = False
    """Whether nothing says what the argument is."""


MEANT = ("true keeps", "added, 0 and -inf", "true hides", "1 keeps, 0 hides")


def meaning_of(meant: str, seen: Tensor) -> Tensor:
    """A mask that says, in words given, what is seen: 1, and what is hidden: 0."""
    return {"true keeps": seen.bool(), "true hides": ~seen.bool(), "1 keeps, 0 hides": seen}.get(meant, seen.log())


def mask_of(meant: str, shape: str, now: Moment) -> Tensor:
    """The causal mask, what it says and its axes given in words."""
    mask = meaning_of(meant, torch.ones(now.T, now.S).tril(now.S - now.T))  # (T, S)
    sizes = {"B": now.B, "T": now.T, "S": now.S, "1": 1}
    axes = [sizes[axis] for axis in shape.strip("()").split(", ")]
    return mask.reshape(axes) if shape.endswith("1)") else mask.expand(axes).clone()


def angles(now: Moment, every: bool, form: str, axes: Sequence[int | None]) -> Tensor:
    """The angles of rotary positions, one for each pair of features. `every`: of all positions so far."""
    d, first = now.sizes["d"], 0 if every else now.start
    table = torch.arange(first, now.start + now.T)[:, None] * 10_000.0 ** (-torch.arange(0, d, 2) / d)  # (T, d / 2)
    table = {
        "halves": table.repeat(1, 2),
        "neighbours": table.repeat_interleave(2, -1),
        "half": table[:, ::2].repeat(1, 2),
    }.get(form, table)
    return table[tuple(slice(None) if axis is not None else None for axis in axes)]


KINDS: Mapping[str, Callable[[Tensor], Any]] = {
    "complex": lambda x: torch.polar(torch.ones_like(x), x),
    "cos and sin": lambda x: torch.stack([x.cos(), x.sin()], -1),
    "pair": lambda x: (x.cos(), x.sin()), "angles": lambda x: x, "cos": torch.cos, "sin": torch.sin,
}  # fmt: skip


def tables(names: list[str], thing: Any) -> list[Mapping[str, Value]]:
    """The tables of cos and sin, the likeliest first: those that the file makes, then every usual form.

    One argument gets a pair, complex numbers or angles.
    """
    choices: list[Mapping[str, Value]] = []
    for every, form, axes in product((False, True), TURNED, PLACED):
        text = f"{form}, axes {axes}" + (", of all positions" if every else "")

        def value(kind: str, at: tuple[Any, ...] = (every, form, axes), text: str = text) -> Value:
            return Value(f"{kind}, {text}", lambda now: KINDS[kind](angles(now, *at)))

        if len(names) > 1:
            choices.append({name: value("sin" if "sin" in name.lower() or (i and "cos" not in name.lower()) else "cos")
                            for i, name in enumerate(names)})  # fmt: skip
        else:
            choices += [{names[0]: value(kind)} for kind in list(KINDS)[0 if form == "once" else 2 : 4]]
    words = next((forms for word, forms in FIRST.items() if re.search(word, names[0].lower())), "pair|cos")
    return [*from_file(names, thing), *sorted(choices, key=lambda one: not re.match(words, one[names[0]].text))]


def from_file(names: list[str], thing: Any) -> Iterator[Mapping[str, Value]]:
    """Yields tables that a function of the same file makes, of a number of positions and of the width of a head."""
    place = place_of(thing)
    for maker in list(vars(sys.modules.get(place, re)).values()):
        if not inspect.isfunction(maker) or maker is thing or maker.__module__ != place:
            continue
        needed = [one.name for one in inspect.signature(maker).parameters.values() if one.default is one.empty]
        axes = [meaning(name) or ("T" if re.match(r"end$|n$|num|max|t$|size", name.lower()) else "") for name in needed]
        if len(needed) > 3 or not set(axes) <= {"D", "d", "T", "base", "device", "H"} or not {"D", "d"} & set(axes):
            continue

        def tables_at(now: Moment, maker: Any = maker, needed: list[str] = needed, axes: list[str] = axes) -> list[Any]:
            d = {"D": now.sizes["d"]} if "H" not in axes else {}
            known = {"T": now.S, "base": 10_000.0, "device": "cpu", **now.sizes, **d}
            result = maker(**{name: known[axis] for name, axis in zip(needed, axes)})
            pieces = [rows_of(one, now) for one in (result if isinstance(result, (tuple, list)) else [result])]
            if len(pieces) not in (len(names), 2):
                raise TypeError("another number of tables")
            return pieces if len(names) == len(pieces) else [tuple(pieces)]

        for_each = [partial(lambda now, i, make: make(now)[i], i=i, make=tables_at) for i in range(len(names))]
        yield {name: Value(f"made by {maker.__name__}", make) for name, make in zip(names, for_each)}


def rows_of(table: Tensor, now: Moment) -> Tensor:
    """The rows of a table of S positions that belong to the new ones."""
    axis = next((axis for axis, size in enumerate(table.shape) if size == now.S), None)
    return table if axis is None or now.T == now.S else table.narrow(axis, now.S - now.T, now.T)
