"""What a number of a program can be. Equal meanings are one object with one number, so they are compared as integers.

A feature is a number of one token. A score is a product of features of two tokens. A softmax makes weights of scores,
weights times features are a mixture, and a projection of mixtures is a feature again, of the query's token: so whole
blocks can be read. B batch, T positions; a token is (row of the batch, position).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

Token = tuple[int, int]
HIDES = -8e3  # a score that is as low has no weight beside ordinary ones, in float32 too


class Const(NamedTuple):
    """A number that depends on no input and no parameter."""

    value: float


class Param(NamedTuple):
    """A number made of parameters alone: what it is made of, and a factor."""

    made_of: tuple[Any, ...]
    factor: float = 1.0


class Row(NamedTuple):
    """Some numbers in order."""

    numbers: tuple[int, ...]


class Atom(NamedTuple):
    """How a feature is made, for one token: an operation on a row of numbers of that token."""

    op: str  # input, linear, bias, sum, product, or the name of a torch function
    row: int  # a Row
    column: int  # a Row: the parameters of a linear map, or none
    place: int = 0  # which of the numbers that the operation makes


class Feature(NamedTuple):
    """A number of a token: a few atoms with factors. Several tokens: a number in which tokens are mixed up."""

    tokens: tuple[Token, ...]
    terms: tuple[tuple[int, float], ...]


class Score(NamedTuple):
    """The dot product of two rows of features, times a scale, plus a constant; `extra`: what else was done to it."""

    left: int  # a Row of features
    right: int
    scale: float = 1.0
    added: float = 0.0
    extra: tuple[Any, ...] = ()


class Largest(NamedTuple):
    """The largest of some scores, which a softmax subtracts first; or the log of the sum of their exponentials."""

    parts: int  # a Row
    is_log: bool = False


Shifts = tuple[tuple[int, float], ...]


class Shift(NamedTuple):
    """A sum of Largests, each with a factor: what is subtracted from all scores of a row alike."""

    terms: Shifts


class Exp(NamedTuple):
    """The exponential of a score plus a shift; without a score (the empty row) of the shift alone."""

    score: int
    factor: float = 1.0
    shift: Shifts = ()


class Total(NamedTuple):
    """A sum of exponentials or of weights, in order."""

    parts: int  # a Row
    factor: float = 1.0


class Weight(NamedTuple):
    """A score's share of its group: the scores over which the softmax ran, without those that are hidden."""

    score: int
    group: int  # a Row
    factor: float = 1.0


class Mixture(NamedTuple):
    """A sum of features of several tokens, each times its weight (a Weight, an Exp or a Const)."""

    weights: int  # a Row
    features: int  # a Row
    factor: float = 1.0


class Other(NamedTuple):
    """A number that no step of attention makes: here the reading ends."""

    op: str
    line: int


Meaning = Const | Param | Row | Atom | Feature | Score | Largest | Shift | Exp | Total | Weight | Mixture | Other


class Meanings:
    """All meanings of one reading, by number. `line` is the line that is running, `made_at` says where each began."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.numbers = defaultdict[type, dict[Any, int]](dict)
        """The numbers of the meanings of each class."""
        self.made_at: list[int] = []
        self.is_const = bytearray()
        self.line = 0
        self.units: dict[int, int] = {}
        self.row_kinds: dict[int, frozenset[type]] = {}
        self.known_tokens: dict[int, tuple[Token, ...]] = {}
        self.left_is_query: dict[int, bool | None] = {}
        self.known_sides: dict[int, tuple[int, int]] = {}
        self.query_units: set[int] = set()
        self.products: dict[int, int] = {}
        """For features that are products of one token's features: the number that stands in the tensor."""
        self.subtracted: dict[int, set[int]] = {}
        """For each group the scores whose largest was subtracted from all of it."""
        self.unshifted: set[int] = set()
        """The groups of which exponentials were taken as they are: they overflow."""
        self.functions: dict[str, Any] = {}
        """What computes an atom, by its op: values of its numbers -> values of all its places."""
        self.again: dict[tuple[int, int], int] = {}
        """For a row, and a column of parameters that other rows of the same token met before: how many did."""
        self.new_groups: dict[int, None] = {}
        """The groups of weights that were made since a query was last asked for."""
        self.zero, self.one, self.nothing = self(Const(0.0)), self(Const(1.0)), self(Row(()))

    def __call__(self, meaning: Meaning) -> int:
        """The number of a meaning."""
        known = self.numbers[kind := meaning.__class__]
        number = known.get(meaning)
        if number is None:
            number = known[meaning] = len(self.all)
            self.all.append(meaning)
            self.made_at.append(self.line)
            self.is_const.append(kind is Const)
            if kind is Weight:
                self.new_groups[meaning.group] = None  # type: ignore[union-attr]
        return number

    def params(self, name: str, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of all numbers of a parameter."""
        new, first = [Param((name, place)) for place in range(count)], len(self.all)
        self.numbers[Param].update(zip(new, range(first, first + count)))
        self.all += new
        self.made_at += [self.line] * count
        self.is_const += bytes(count)
        return np.arange(first, first + count)

    def __getitem__(self, number: int) -> Any:
        return self.all[number]

    def word(self, number: int) -> str:
        """What a number is, in one word: an operation that no step makes, else its class."""
        meaning = self.all[number]
        return str(meaning.op) if isinstance(meaning, Other) else type(meaning).__name__.lower()

    def line_of(self, number: int) -> int:
        """The line at which a number was made."""
        return int(getattr(self.all[number], "line", self.made_at[number]))

    def is_kind(self, number: int, *kinds: type) -> bool:
        """Whether a meaning is of one of these classes."""
        return isinstance(self.all[number], kinds)

    def const(self, value: float) -> int:
        """The number of a constant. Values that differ by rounding only are one."""
        return self(Const(float(f"{value:.11g}") + 0.0))

    def feature(self, tokens: tuple[Token, ...], atom: Atom, factor: float = 1.0) -> int:
        """The number of a feature that is one atom."""
        return self(Feature(tokens, ((self(atom), factor),)))

    def bare(self, atom: int, tokens: tuple[Token, ...] = ()) -> int:
        """The number of a feature that is one atom, by its number."""
        return self(Feature(tokens, ((atom, 1.0),)))

    def names(self, number: int) -> tuple[str, ...]:
        """The names of the parameters that a parameter is made of."""
        return names_of(self.all[number].made_of)

    def gain(self, number: int) -> float:
        """The factor of a feature; of a rotated one the length of its factors."""
        return math.sqrt(sum(factor**2 for _, factor in self.all[number].terms))

    def hidden(self, number: int) -> bool:
        """Whether a score is so low that its weight is 0."""
        meaning = self.all[number]
        return bool(getattr(meaning, "added", getattr(meaning, "value", 0.0)) <= HIDES)

    def layers_of_heads(self, number: int) -> list[Atom]:
        """The linear map of mixtures that made a number, what an attention gives, after its biases; [] if none did."""
        atoms, meaning = list[Atom](), self.all[number]
        while isinstance(meaning, Feature) and len(meaning.terms) == 1 and meaning.terms[0][1] == 1.0:
            atom: Atom = self.all[meaning.terms[0][0]]
            atoms.append(atom)
            if atom.op != "bias":
                return atoms if atom.op == "linear" and self.kinds(atom.row) == {Mixture} else []
            meaning = self.all[self.numbers_in(atom.row)[0]]
        return []

    def row(self, numbers: Iterable[int]) -> int:
        """The number of a row of numbers."""
        return self(Row(tuple(numbers)))

    def numbers_in(self, row: int) -> tuple[int, ...]:
        """The numbers of a row."""
        return self.all[row].numbers

    def terms(self, mixture: int) -> list[tuple[int, int]]:
        """The terms of a mixture: pairs of a weight and a feature."""
        meaning = self.all[mixture]
        return list(zip(self.numbers_in(meaning.weights), self.numbers_in(meaning.features)))

    def kinds(self, row: int) -> frozenset[type]:
        """The classes of the numbers in a row."""
        if row not in self.row_kinds:
            self.row_kinds[row] = frozenset(type(self.all[number]) for number in self.numbers_in(row))
        return self.row_kinds[row]

    def tokens(self, number: int) -> tuple[Token, ...]:
        """The tokens that a number or a row is of: for scores both sides; for a mixture those of its queries."""
        meaning = self.all[number]
        if isinstance(meaning, Feature):
            return meaning.tokens
        if number not in self.known_tokens:
            self.known_tokens[number] = tuple(sorted(set(self.tokens_of(meaning))))
        return self.known_tokens[number]

    def tokens_of(self, meaning: Any) -> Iterator[Token]:
        """The same for a meaning, one by one."""
        match meaning:
            case Row(numbers):
                for number in numbers:
                    yield from self.tokens(number)
            case Score(left, right):
                yield from self.tokens(left) + self.tokens(right)
            case Exp(score) | Weight(score):
                yield from self.tokens(score)
            case Mixture(weights, features):
                queries = [token for weight in self.numbers_in(weights) for token in self.tokens(self.query(weight))]
                yield from queries or self.tokens(features)

    def query(self, weight: int) -> int:
        """The row of a weight's query: the side that all scores of its group share. An empty row for a constant."""
        return self.sides(weight)[0]

    def key(self, weight: int) -> int:
        """The row of a weight's key."""
        return self.sides(weight)[1]

    def sides(self, weight: int) -> tuple[int, int]:
        """Query and key of a weight."""
        if weight in self.known_sides:
            return self.known_sides[weight]
        meaning = self.all[weight]
        if not isinstance(meaning, Weight | Exp) or not isinstance(score := self.all[meaning.score], Score):
            return self.nothing, self.nothing
        group = meaning.group if isinstance(meaning, Weight) else self.row((meaning.score,))
        sides = (score.left, score.right) if self.query_is_left(group) else (score.right, score.left)
        if self.left_is_query[group] is not None:  # else it may be known later
            self.known_sides[weight] = sides
        return sides

    def query_is_left(self, group: int) -> bool:
        """Whether the left rows of a group's scores are the query: they are the same in all of them.

        Where one key is seen both sides are the same in all: there the query is what is a query elsewhere.
        """
        for other in (*self.new_groups, group):
            if other not in self.left_is_query:
                scores = self.scores_in(other)
                lefts, rights = {score.left for score in scores}, {score.right for score in scores}
                self.left_is_query[other] = None
                if max(len(lefts), len(rights)) > 1:
                    self.left_is_query[other] = is_left = len(lefts) == 1 or len(rights) > 1
                    self.query_units |= {self.unit(row) for row in (lefts if is_left else rights)}
        self.new_groups.clear()
        if (known := self.left_is_query[group]) is not None:
            return known
        (score, *_) = self.scores_in(group)
        return self.unit(score.right) not in self.query_units

    def scores_in(self, group: int) -> list[Score]:
        """The scores of a group, of which some may be exponentials still."""
        listed = [self.all[number] for number in self.numbers_in(group)]
        listed = [self.all[one.score] if isinstance(one, Exp) else one for one in listed]
        return [one for one in listed if isinstance(one, Score)]

    def unit(self, number: int) -> int:
        """The same for every token: two features have one unit if they are made in one way, of two tokens perhaps."""
        unit = self.units.get(number)
        if unit is None:
            inner = self.without_constant(number)
            unit = self.unit(inner) if inner else self(Param(("unit", *self.unit_of(self.all[number]))))
            self.units[number] = unit
        return unit

    def without_constant(self, number: int) -> int:
        """The atom to which an atom adds a constant, such as a sine of the position, 0 at some; 0 for others."""
        meaning = self.all[number]
        if not isinstance(meaning, Atom) or meaning.op != "sum" or len(row := self.numbers_in(meaning.row)) != 2:
            return 0
        inner = [self.all[one] for one in row if not self.is_kind(one, Const)]
        single = len(inner) == 1 and isinstance(inner[0], Feature) and len(inner[0].terms) == 1
        return inner[0].terms[0][0] if single else 0

    def unit_of(self, meaning: Any) -> tuple[Any, ...]:
        """What makes up a meaning, without its token."""
        match meaning:
            case Feature(_, terms):
                return tuple(sorted({self.unit(atom) for atom, _ in terms}))
            case Atom(op, row, column, place):
                if op == "bias":  # a learned position is another number at each token
                    return "bias", self.unit(row), *(self.names(one) for one in self.numbers_in(column))
                if op == "linear" and (many := len(self.numbers_in(row))) > 1:  # a layer is known by its parameters
                    return "linear", many, column, self.again.get((row, column), 0)
                return op, self.unit(row), column, place
            case Row(numbers):
                return "row", *(self.unit(number) for number in numbers)
            case Mixture(_, features):  # the weights of a first token have no rotation that a unit could tell
                return "mixture", self.unit(self.numbers_in(features)[0])
            case Weight(score) | Exp(score):
                return "weight", self.unit(score)
            case Score(left, right):
                return "score", frozenset((self.unit(left), self.unit(right)))
            case Const():
                return ("const",)
        return (meaning,)


def names_of(made_of: Any) -> tuple[str, ...]:
    """The names of the parameters that a number is made of."""
    if isinstance(made_of, str):
        return (made_of,)
    return tuple(name for part in made_of if isinstance(part, (tuple, str)) for name in names_of(part))
