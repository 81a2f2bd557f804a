"""A law, and what a program should be: the kind of ours that it is held against."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.position import Alibi, Shape
from minigpt.checks.reading.reading import uncollected
from minigpt.checks.reading.structure import Broken, Ends, Found, Note, Strange

SLOPES: tuple[Literal["geometric", "bloom"], ...] = ("geometric", "bloom")
USUAL = frozenset({"rotary", "partial rotary", "alibi", "shared keys", "norm first", "positions first", "normed",
                   "bilinear", "no maximum", "nothing shared", "rounded", "learned sink",
                   "sharpened", "unscaled", "base", "in turn"})  # fmt: skip

UNASKED = frozenset(
    {"relative", "soft cap", "temperature", "attention alone"}
)  # right where nobody said what a program should be
NO_STEP = "attention has no other steps"
ON_PURPOSE = {
    "narrow": re.compile(r"(?i)(?<![.])narrow"),  # but x.narrow(...)
    "no projection": re.compile(r"(?i)(without|dispenses with|no) (an? |the |any )?(linear|output|final|projection)"),
}


def on_purpose(text: str) -> frozenset[str]:
    """The conventions that are bugs unless a program's text says that they are meant."""
    return frozenset(name for name, words in ON_PURPOSE.items() if words.search(text))


@dataclass(frozen=True)
class Wanted:
    """What a program should be: a kind of ours, and the number of tokens."""

    kind: SoftmaxAttention
    T: int
    shares: int = 1
    """How many query heads share a head of keys and values; 0: any number."""
    heads: int = 0
    """How many heads there are; 0: any number."""
    rotary: float = 0.0
    """The base of the rotary frequencies; 0: nothing is rotated."""
    projected: bool = True
    learned: bool = True
    """Whether queries, keys and values have layers of their own; False: they are x."""
    allows: frozenset[str] = USUAL
    """The names of the conventions in which a program may differ: see `Note`."""
    notes: list[Note] = field(default_factory=list)
    """What is right in another convention."""

    def visible(self) -> Tensor:
        """Who may look where: (T, T)."""
        return self.kind.mask(self.T, self.T, torch.device("cpu"))

    def biases(self, H: int, d: int) -> list[Tensor]:
        """What may be added to the scores of H heads, (H, T, T) each: with ALiBi, by either formula of the slopes."""
        empty = torch.zeros(1, H, self.T, d, dtype=torch.float64)
        return self.alibi(H, d) if isinstance(self.kind.position, Alibi) else [self.kind.bias(empty, empty)]

    def alibi(self, H: int, d: int) -> list[Tensor]:
        """What ALiBi adds to the scores of H heads, (H, T, T) each, by either formula of the slopes."""
        empty = torch.zeros(1, H, self.T, d, dtype=torch.float64)
        return [Alibi(Alibi.Config(slopes=slopes), Shape(), 0).bias(empty, empty) for slopes in SLOPES]


class Saw(NamedTuple):
    """Where a law is broken: the line, what was found, what was expected, and the numbers that show it."""

    line: int
    actual: str
    expected: str
    row: str = ""
    convention: str = ""
    """The name of the convention in which this is right; "" if it is wrong."""


F = TypeVar("F")  # what was read: Found for an attention, or another view of a reading
LawOf = Callable[[F, Wanted], Iterator[Broken]]
Law = LawOf[Found]


ALONE = set[str]()
"""The names of laws that, if they are broken, break no other: those that come later are asked, too."""


def law(sentence: str, mend: str, alone: bool = False) -> Callable[[Callable[[F, Wanted], Iterator[Saw]]], LawOf[F]]:
    """Make a law of a function that yields where its sentence is not true. The first place counts."""

    def make(look: Callable[[F, Wanted], Iterator[Saw]]) -> LawOf[F]:
        @wraps(look)
        def broken_at(subject: F, wanted: Wanted) -> Iterator[Broken]:
            for line, actual, expected, row, convention in look(subject, wanted):
                if not convention:
                    yield Broken(sentence, actual, expected, mend, line, row)
                    return
                yield Note(sentence, actual, expected, mend, line, row, convention)

        ALONE.update({sentence} if alone else ())
        return broken_at

    return make


class Judged(NamedTuple):
    """What the laws say: the broken ones, what is right in another convention, and how many are obeyed."""

    broken: list[Broken]
    notes: list[Note]
    depth: int


@uncollected()
def judged(subject: F, wanted: Wanted, laws: Sequence[LawOf[F]]) -> Judged:
    """Where a program first breaks a law. A deviation that `wanted` allows is a note, any other breaks the law.

    The laws stand in the order in which numbers are made: what is wrong first is the cause of what is wrong later.
    Raises Ends where the reading ends.
    """
    notes, broken, depth = dict[str, Note](), list[Broken](), len(laws) + 2
    for number, one in enumerate(laws, start=2):
        try:
            for place in one(subject, wanted):
                if isinstance(place, Note) and place.convention in wanted.allows:
                    notes.setdefault(place.convention, place)
                elif not broken or broken[-1].law != place.law:
                    broken.append(Broken(place.law, place.actual, place.expected, place.mend, place.line, place.row))
        except Strange as step:
            broken += [step_of(step)] if not broken else []
        except Ends:
            if not broken:
                raise
        depth = min(depth, number) if broken else depth
        if broken and broken[-1].law not in ALONE:
            break
    return Judged(broken, list(notes.values()), depth)


def step_of(step: Strange) -> Broken:
    """A step that attention does not have, as a broken law."""
    return Broken(NO_STEP, step.op, step.where, "leave it out, or say what it is", step.line)
