"""What comes out when two meanings are added, multiplied or divided: the rules by which a program is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigpt.checks.reading.meanings import (
    HIDES,
    Atom,
    Const,
    Exp,
    Feature,
    Largest,
    Meanings,
    Mixture,
    Other,
    Param,
    Score,
    Shift,
    Shifts,
    Token,
    Total,
    Weight,
)

MOST_TERMS = 4  # a sum of more atoms is a new atom: a rotation has two
FEATURES = (Feature, Mixture)
SINGLE = [frozenset(one) for one in ((Feature,), (Mixture,), FEATURES)]
FEATURE, PARAM, CONST = frozenset((Feature,)), frozenset((Param,)), frozenset((Const,))
WEIGHTS = frozenset((Weight, Exp, Total, Score))


@dataclass
class Algebra:
    """The rules, and what they gave before."""

    of: Meanings
    products: dict[tuple[int, int], int] = field(default_factory=dict)
    columns: dict[int, tuple[int, float]] = field(default_factory=dict)
    met: dict[tuple[tuple[Token, ...], int], dict[int, int]] = field(default_factory=dict)
    """For a token and a column of parameters: the rows of the token that it was multiplied by, in order."""
    as_row: dict[int, int] = field(default_factory=dict)
    """For rows with products of features of one token: the row in which these are features."""

    def other(self, op: str, *numbers: int) -> int:
        """A number that no rule explains; the first such number among those that it is made of."""
        known = [number for number in numbers if self.of.is_kind(number, Other)]
        return known[0] if known else self.of(Other(op, self.of.line))

    def add(self, a: int, b: int) -> int:
        """a + b."""
        if a == self.of.zero or b == self.of.zero:
            return b if a == self.of.zero else a
        first, second = self.of[a], self.of[b]
        if isinstance(first, Feature) and isinstance(second, Param):
            return self.biased(a, b)
        match first, second:
            case Const(x), Const(y):
                return self.of.const(x + y)
            case Score(left, right, scale, added, extra), Const(y):
                return self.of(Score(left, right, scale, added + y, extra))
            case (Const(x), (Largest() | Shift())) | ((Largest() | Shift()), Const(x)) if x <= HIDES:
                return self.of.const(x)
            case ((Largest() | Shift()), (Largest() | Shift())):
                return self.shift(self.shifts(a) + self.shifts(b))
            case (Param(), (Largest() | Shift())):  # a sink beside the scores
                return self.add(self.of(Score(self.of.nothing, self.of.nothing, extra=(("plus", a),))), b)
            case Score(), Score() if self.share_a_factor(first, second):  # a rotation of what a norm made
                return self.add(self.as_feature(a), self.as_feature(b))
            case Score(), Score():
                return self.add_scores(first, second)
            case Score(left, right, scale, added, extra), (Largest() | Shift()):
                less = dict(extra).get("less", ())
                shift = self.of[self.shift(less + self.shifts(b))]
                terms = shift.terms if isinstance(shift, Shift) else ()
                extra = tuple(one for one in extra if one[0] != "less") + ((("less", terms),) if terms else ())
                return self.of(Score(left, right, scale, added, extra))
            case Score(left, right, scale, added, extra), Param() if not self.single(a):
                return self.of(Score(left, right, scale, added, (*extra, ("plus", b))))
            case Param(p, x), Param(q, y):
                return self.of(Param(("sum", *sorted(((p, x), (q, y)), key=repr))))
            case Feature(), Feature() if first.tokens == second.tokens:
                return self.merge(first, second)
            case ((Feature() | Mixture()), (Feature() | Mixture())) if all(
                self.of.is_kind(weight, Const) for one in (a, b) for weight, _ in self.terms(one)
            ):  # averages
                return self.mixture(self.terms(a) + self.terms(b))
            case Mixture(), Mixture() if first.factor == second.factor and self.of.unit(a) == self.of.unit(b):
                return self.mixture(self.of.terms(a) + self.of.terms(b), first.factor)
            case ((Exp() | Total() | Weight()), (Exp() | Total() | Weight() | Const())):
                return self.of(Total(self.of.row(self.parts(a) + self.parts(b))))
        if isinstance(first, Const | Param | Largest | Shift) and not isinstance(second, Const | Largest | Shift):
            return self.add(b, a)
        if isinstance(first, Const | Largest | Shift) or isinstance(second, Largest | Shift):
            return self.add(b, a) if isinstance(first, Const) and isinstance(second, Exp) else self.other("add", a, b)
        return self.new("bias" if isinstance(second, Param) else "sum", a, b)

    def merge(self, first: Feature, second: Feature) -> int:
        """The sum of two features of the same tokens: their atoms, if they are few."""
        factors = dict(first.terms)
        for atom, factor in second.terms:
            factors[atom] = factors.get(atom, 0.0) + factor
        terms = tuple(sorted((atom, factor) for atom, factor in factors.items() if factor))
        if not terms:
            return self.of.zero
        if len(terms) <= MOST_TERMS:
            return self.of(Feature(first.tokens, terms))
        each = list[int]()
        for atom, factor in terms:  # a sum that grows is one sum, not a sum in a sum
            inner = self.of.numbers_in(self.of[atom].row) if self.of[atom].op == "sum" and factor == 1.0 else ()
            each += inner or (self.of(Feature(first.tokens, ((atom, factor),))),)
        return self.of.feature(first.tokens, self.atom("sum", each))

    def share_a_factor(self, first: Score, second: Score) -> bool:
        """Whether two are products of features of one token that share one, such as 1 / its root mean square."""
        numbers = [{*self.of.numbers_in(one.left), *self.of.numbers_in(one.right)} for one in (first, second)]
        single = all(len(one) == 2 and self.single(self.of(score)) for one, score in zip(numbers, (first, second)))
        return single and len(numbers[0] & numbers[1]) == 1

    def add_scores(self, first: Score, second: Score) -> int:
        """The sum of two scores is a longer dot product."""
        factor = second.scale / first.scale
        left = self.of.numbers_in(first.left) + self.of.numbers_in(second.left)
        scaled = tuple(self.scale(number, factor) for number in self.of.numbers_in(second.right))
        right = self.of.numbers_in(first.right) + scaled
        return self.of(Score(self.of.row(left), self.of.row(right), first.scale, first.added + second.added,
                             first.extra + second.extra))  # fmt: skip

    def atom(self, op: str, row: Iterable[int], column: Iterable[int] = (), place: int = 0) -> Atom:
        """The atom that an operation makes of a row."""
        return Atom(op, self.of.row(row), self.of.row(column), place)

    def mixture(self, terms: Sequence[tuple[int, int]], factor: float = 1.0) -> int:
        """The sum of these terms, pairs of a weight and a feature."""
        weights, features = self.of.row(weight for weight, _ in terms), self.of.row(feature for _, feature in terms)
        return self.of(Mixture(weights, features, factor))

    def terms(self, number: int) -> list[tuple[int, int]]:
        """The terms of a mixture, each with the mixture's factor; a feature is one with the weight 1."""
        meaning = self.of[number]
        if isinstance(meaning, Feature):
            return [(self.of.one, number)]
        return [(self.scale(weight, meaning.factor), feature) for weight, feature in self.of.terms(number)]

    def parts(self, number: int) -> tuple[int, ...]:
        """The parts of a total; any other number is its only part."""
        meaning = self.of[number]
        return self.of.numbers_in(meaning.parts) if isinstance(meaning, Total) else (number,)

    def scale(self, number: int, factor: float) -> int:
        """A number times a constant."""
        if factor == 1.0 or (factor == 0.0 and not self.of.is_kind(number, Other)):
            return number if factor == 1.0 else self.of.zero
        meaning = self.of[number]
        match meaning:
            case Const(value):
                return self.of.const(value * factor)
            case Feature(tokens, terms):
                return self.of(Feature(tokens, tuple((atom, rounded(old * factor)) for atom, old in terms)))
            case Score(left, right, scale, added, (("less", terms),)):
                less = tuple((one, old * factor) for one, old in terms)
                return self.of(Score(left, right, rounded(scale * factor), added * factor, (("less", less),)))
            case Score(left, right, scale, added, extra):
                extra = (*extra, ("times", factor)) if extra else ()
                return self.of(Score(left, right, rounded(scale * factor), added * factor, extra))
            case Largest() | Shift():
                return self.shift(tuple((one, old * factor) for one, old in self.shifts(number)))
            case Param() | Exp() | Total() | Weight() | Mixture():
                return self.of(meaning._replace(factor=rounded(meaning.factor * factor)))
        return self.other("mul", number)

    def times(self, a: int, b: int) -> int:
        """a * b."""
        first, second = self.of[a], self.of[b]
        if isinstance(first, Const) or isinstance(second, Const):
            return self.scale(b, first.value) if isinstance(first, Const) else self.scale(a, second.value)
        for factor, number in ((first, b), (second, a)):
            if isinstance(factor, Exp) and factor.score == self.of.nothing and not self.of.is_kind(number, Feature):
                return self.rescaled(number, factor)
        match first, second:
            case Param(p, x), Param(q, y):
                return self.of(Param(("product", *sorted(((p, 1.0), (q, 1.0)), key=repr)), rounded(x * y)))
            case ((Weight() | Exp() | Total()), (Feature() | Mixture())):
                return self.mixed(a, b)
            case ((Feature() | Mixture()), (Weight() | Exp() | Total())):
                return self.mixed(b, a)
            case Feature(), Feature():
                return self.of(Score(self.of.row((a,)), self.of.row((b,))))
            case (Score(), Feature()) if not self.single(a):
                return self.mixture([(a, b)])
            case (Feature(), Score()) if not self.single(b):
                return self.mixture([(b, a)])
            case Score(), Param() if not self.single(a):
                return self.of(first._replace(extra=(*first.extra, ("by", b))))
            case Param(), Score() if not self.single(b):
                return self.times(b, a)
            case Param(p, x), _ if self.single(b):
                return self.linear((b,), (a,))
            case _, Param(q, y) if self.single(a):
                return self.linear((a,), (b,))
        return self.new("product", a, b)

    def shifts(self, number: int) -> Shifts:
        """A Largest or a Shift as terms."""
        meaning = self.of[number]
        return meaning.terms if isinstance(meaning, Shift) else ((number, 1.0),)

    def shift(self, terms: Shifts) -> int:
        """The sum of these terms: a Largest itself if it is one with the factor 1, zero if all cancel."""
        factors = dict[int, float]()
        for number, factor in terms:
            factors[number] = factors.get(number, 0.0) + factor
        left = tuple(sorted((number, factor) for number, factor in factors.items() if abs(factor) > 1e-9))
        if not left:
            return self.of.zero
        return left[0][0] if len(left) == 1 and left[0][1] == 1.0 else self.of(Shift(left))

    def exponential(self, score: int, factor: float, terms: Shifts) -> int:
        """e to a score plus a shift. Less the logarithm of the sum of its row it is a weight."""
        number = self.shift(terms)
        terms = self.shifts(number) if number != self.of.zero else ()
        if score == self.of.nothing and not terms:
            return self.of.const(factor)
        if len(terms) == 1 and terms[0][1] == -1.0 and self.of[terms[0][0]].is_log and score != self.of.nothing:
            return self.of(Weight(score, self.of[terms[0][0]].parts, factor))
        return self.of(Exp(score, factor, terms))

    def rescaled(self, number: int, by: Exp) -> int:
        """A number times e to a shift: what is summed or mixed already, when the running maximum grows."""
        meaning = self.of[number]
        match meaning:
            case Exp(score, factor, terms):
                return self.exponential(score, factor * by.factor, terms + by.shift)
            case Weight(score, group, factor):
                total = (self.of(Largest(group, True)), -1.0)
                return self.exponential(score, factor * by.factor, (total, *by.shift))
            case Total(parts, factor):
                parts = self.of.row(self.rescaled(part, by) for part in self.of.numbers_in(parts))
                return self.of(Total(parts, factor))
            case Mixture(_, _, factor):
                mixed = [(self.rescaled(weight, by), value) for weight, value in self.of.terms(number)]
                return self.mixture(mixed, factor)
            case Const(value):
                return self.exponential(self.of.nothing, value * by.factor, by.shift) if value else number
        return self.other("mul", number)

    def mixed(self, weight: int, feature: int) -> int:
        """A weight times a feature."""
        if not self.of.is_kind(weight, Weight, Exp, Total) or not self.of.is_kind(feature, Feature):
            return self.other("mul", weight, feature)
        return self.mixture([(weight, feature)])

    def single(self, number: int) -> bool:
        """Whether a number can stand for a feature: one, a mixture, or a product of two features of one token."""
        meaning = self.of[number]
        if isinstance(meaning, Score):
            is_square = meaning.left == meaning.right or len(self.of.numbers_in(meaning.left)) == 1
            return is_square and not meaning.extra and len(self.of.tokens(number)) == 1
        return isinstance(meaning, FEATURES)

    def as_feature(self, number: int) -> int:
        """A number of one token as a feature."""
        meaning = self.of[number]
        if isinstance(meaning, Score):
            row = self.of.numbers_in(meaning.left) + self.of.numbers_in(meaning.right)
            feature = self.of.feature(self.of.tokens(number), self.atom("product", row), meaning.scale)
            feature = self.new("sum", feature, self.of.const(meaning.added)) if meaning.added else feature
            self.of.products[feature] = number
            return feature
        return number

    def new(self, op: str, *numbers: int, place: int = 0) -> int:
        """A new feature that an operation makes of numbers of one token; otherwise the reading ends here."""
        features = tuple(self.as_feature(number) if self.of.is_kind(number, Score) and not self.of[number].extra and
                     len(self.of.tokens(number)) == 1 else number for number in numbers)  # fmt: skip
        if {Param} <= {type(self.of[number]) for number in features} <= {Param, Const}:
            parts = (meaning if isinstance(meaning := self.of[number], Param) else ("const", meaning.value)
                     for number in features)  # fmt: skip
            return self.of(Param((op, *map(tuple, parts)))) if not place else self.other(op, *numbers)
        tokens = {self.of.tokens(number) for number in features if self.of.is_kind(number, *FEATURES)}
        known = all(self.of.is_kind(number, Param, Const, *FEATURES) for number in features)
        if op == "bias" and self.of.is_kind(features[0], *FEATURES):
            return self.biased(*features)
        if not known or len(tokens) != 1 or len(next(iter(tokens))) != 1:
            return self.other(op, *numbers)
        return self.of.feature(next(iter(tokens)), self.atom(op, features, (), place))

    def places(self, op: str, row: tuple[int, ...], count: int) -> list[int]:
        """All features that an operation makes of a row of numbers of one token."""
        first = self.new(op, *row)
        meaning = self.of[first]
        if not isinstance(meaning, Feature) or count == 1:
            return [first] * count
        atom: Atom = self.of[meaning.terms[0][0]]
        return [self.of.feature(meaning.tokens, atom._replace(place=place)) for place in range(count)]

    def biased(self, number: int, bias: int) -> int:
        """A feature plus a parameter. A factor that both have is a factor of the sum: (x W + b) c."""
        meaning = self.of[number]
        factor = meaning.terms[0][1] if isinstance(meaning, Feature) and len(meaning.terms) == 1 else 1.0
        row, column = (number,), (bias,)
        if factor != 1.0:
            row, column = (self.scale(number, 1 / factor),), (self.scale(bias, 1 / factor),)
        return self.of.feature(self.of.tokens(number), self.atom("bias", row, column), factor)

    def linear(self, row: tuple[int, ...], column: tuple[int, ...]) -> int:
        """The product of a row of numbers of tokens with a column of parameters."""
        return self.linear_rows(self.of.row(row), self.of.row(column))

    def linear_rows(self, row: int, column: int) -> int:
        """The same for rows by number. A factor that all parameters have is a factor of the feature."""
        if self.of.kinds(row) - {Feature, Mixture}:
            if row not in self.as_row:
                self.as_row[row] = self.of.row(self.as_feature(number) for number in self.of.numbers_in(row))
            row = self.as_row[row]
        return self.linear_maps(row, (column,))[0]

    def linear_maps(self, row: int, columns: Sequence[int]) -> list[int]:
        """The same of a row of features with several columns."""
        of, tokens, features = self.of, self.of.tokens(row), list[int]()
        before = self.met.setdefault((tokens, columns[0]), {})
        rank = before.setdefault(row, len(before))
        for column in columns:
            if column not in self.columns:
                numbers = of.numbers_in(column)
                factors = {of[number].factor for number in numbers}
                factor = factors.pop() if len(factors) == 1 else 1.0
                pure = column if factor == 1.0 else of.row(self.scale(number, 1 / factor) for number in numbers)
                self.columns[column] = pure, factor
            pure, factor = self.columns[column]
            if rank:
                of.again[row, pure] = rank
            features.append(of.feature(tokens, Atom("linear", row, pure), factor))
        return features

    def dot(self, left: int, right: int) -> int:
        """The dot product of two rows of numbers."""
        of, zero = self.of, self.of.zero
        if (Const in of.kinds(left) and zero in of.numbers_in(left)) or (
            Const in of.kinds(right) and zero in of.numbers_in(right)):  # fmt: skip
            pairs = [(a, b) for a, b in zip(of.numbers_in(left), of.numbers_in(right)) if a != zero and b != zero]
            left, right = of.row(a for a, _ in pairs), of.row(b for _, b in pairs)
        kinds = of.kinds(left), of.kinds(right)
        if Score in kinds[0] | kinds[1] and kinds[0] & {Feature, Score} and kinds[1] & {Feature, Score}:
            left, right = self.as_features(left), self.as_features(right)
            kinds = of.kinds(left), of.kinds(right)
        if kinds == (FEATURE, FEATURE):
            return of(Score(*self.pulled(left, right)))
        if kinds == (PARAM, PARAM):
            numbers = of.numbers_in(left) + of.numbers_in(right)
            return of(Param(("dot", *((of[number].made_of, of[number].factor) for number in numbers))))
        if kinds[1] == PARAM and self.all_single(left):
            return self.linear_rows(left, right)
        if kinds[0] == PARAM and self.all_single(right):
            return self.linear_rows(right, left)
        for weights, values in ((left, right), (right, left)):
            if of.kinds(weights) <= {Weight, Exp} and Score in of.kinds(values) and self.all_single(values):
                return self.dot(weights, of.row(map(self.as_feature, of.numbers_in(values))))
        for weights, values in ((left, right), (right, left)):
            if of.kinds(values) == FEATURE and self.all_weights(weights):
                return of(Mixture(weights, values))
        if kinds in ((CONST, FEATURE), (FEATURE, CONST)):
            features, factors = (left, right) if kinds[0] == FEATURE else (right, left)
            if len(of.tokens(features)) == 1 and len(of.numbers_in(features)) > MOST_TERMS:
                return self.long_sum(features, factors)
        total = zero
        for a, b in zip(of.numbers_in(left), of.numbers_in(right)):
            total = self.add(total, self.times(a, b))
        return total

    def all_weights(self, row: int) -> bool:
        """Whether a row holds weights, or scores, of which some may be hidden."""
        kinds = self.of.kinds(row)
        if kinds == {Score, Const}:
            return all(self.of.hidden(one) for one in self.of.numbers_in(row) if self.of.is_kind(one, Const))
        return bool(kinds) and kinds <= WEIGHTS

    def long_sum(self, features: int, factors: int) -> int:
        """The sum of many features of one token, each times a constant; a sum of products with parameters is linear."""
        pairs = zip(self.of.numbers_in(features), self.of.numbers_in(factors))
        row = tuple(self.scale(number, self.of[factor].value) for number, factor in pairs)
        atoms = [self.of[terms[0][0]] for one in row if len(terms := self.of[one].terms) == 1]
        if len(atoms) == len(row) and all(
            atom.op == "linear" and len(self.of.numbers_in(atom.row)) == 1 for atom in atoms):  # fmt: skip
            columns = [self.scale(self.of.numbers_in(atom.column)[0], self.of[one].terms[0][1])
                       for atom, one in zip(atoms, row)]  # fmt: skip
            return self.linear(tuple(self.of.numbers_in(atom.row)[0] for atom in atoms), tuple(columns))
        return self.of.feature(self.of.tokens(features), self.atom("sum", row))

    def pulled(self, left: int, right: int) -> tuple[int, int]:
        """Two rows with the same dot product: (q W) x = q (W x), where q are features and x the token as it is."""
        for side, other in ((left, right), (right, left)):
            if self.op(self.of.numbers_in(other)[0]) != "input" or (
                    first := self.layer_of(self.of.numbers_in(side)[0])) is None:  # fmt: skip
                continue
            inner = self.of.numbers_in(first.row)
            layers = [self.layer_of(number) for number in self.of.numbers_in(side)]
            if self.op(inner[0]) in ("input", "") or any(one is None or one.row != first.row for one in layers):
                continue
            columns = zip(*(self.of.numbers_in(one.column) for one in layers if one is not None))
            row = self.of.row(self.linear_rows(other, self.of.row(column)) for column in columns)
            return (first.row, row) if side == left else (row, first.row)
        return left, right

    def op(self, number: int) -> str:
        """The operation that made a feature of one atom; "" for others."""
        meaning = self.of[number]
        return self.of[meaning.terms[0][0]].op if isinstance(meaning, Feature) and len(meaning.terms) == 1 else ""

    def layer_of(self, number: int) -> Atom | None:
        """The linear map that made a feature; None for others."""
        meaning = self.of[number]
        atom: Atom | None = self.of[meaning.terms[0][0]] if self.op(number) == "linear" else None
        return atom if atom is not None and meaning.terms[0][1] == 1.0 else None

    def as_features(self, row: int) -> int:
        """A row in which products of features of one token are features: a feature times a norm of its row."""
        if Score not in self.of.kinds(row) or not self.all_single(row) or self.of.kinds(row) == {Score, Const}:
            return row
        if len({self.of.tokens(number) for number in self.of.numbers_in(row)}) > 1:
            return row
        return self.of.row(self.as_feature(number) for number in self.of.numbers_in(row))

    def all_single(self, row: int) -> bool:
        """Whether each number of a row can stand for a feature."""
        kinds = self.of.kinds(row)
        return row in self.as_row or kinds <= {Feature, Mixture} or (kinds <= {Feature, Mixture, Score} and all(
            self.single(number) for number in self.of.numbers_in(row)))  # fmt: skip

    def over(self, a: int, b: int) -> int:
        """a / b."""
        first, second = self.of[a], self.of[b]
        match first, second:
            case _, Const(y):
                return self.scale(a, 1 / y if y else math.inf)
            case Const(0.0), _:
                return a
            case ((Exp() | Weight()), (Total() | Exp() | Weight())):
                return self.share(a, b)
            case _, Exp(score, factor, terms) if score == self.of.nothing:
                return self.times(a, self.exponential(score, 1 / factor, tuple((one, -by) for one, by in terms)))
            case Mixture(_, _, factor), (Total() | Exp()):
                shares = [(self.share(weight, b), feature) for weight, feature in self.of.terms(a)]
                return self.mixture(shares, factor)
        return self.new("quotient", a, b)

    def share(self, number: int, total: int) -> int:
        """An exponential, or a weight, divided by a sum: a weight, if the same was subtracted from all scores."""
        of = self.of
        parts = [part for part in self.parts(total) if not of.is_kind(part, Const) or abs(of[part].value) >= 1e-5]
        inner = self.of[parts[0]].factor if self.of.is_kind(parts[0], Exp, Weight) else 1.0
        whole = (of[total].factor if of.is_kind(total, Total) else 1.0) * inner
        shifts = {getattr(of[part], "shift", ()) for part in parts if not of.is_kind(part, Const)}
        meaning = of[number]
        if len(shifts | {getattr(meaning, "shift", ())}) > 1:  # not rescaled: the group keeps the exponentials
            return of(Weight(meaning.score, of.row(parts), meaning.factor / whole))
        group = of.row(of[part].score if of.is_kind(part, Exp, Weight) else of.nothing for part in parts)
        for term, _ in shifts.pop() if isinstance(meaning, Exp) else ():
            of.subtracted.setdefault(group, set()).update(of.numbers_in(of[term].parts))
        if isinstance(meaning, Weight):
            of.subtracted.setdefault(group, set()).update(of.numbers_in(meaning.group))
        elif group not in of.subtracted:
            of.unshifted.add(group)
        return of(Weight(meaning.score, group, rounded(meaning.factor / whole)))

    def lesser(self, score: int) -> Any:
        """What was subtracted from a score before the exponential: the largest of its row, or nothing."""
        if self.of.is_kind(score, Shift):  # it was subtracted from zero
            return "less", self.of[score].terms
        extra = self.of[score].extra if self.of.is_kind(score, Score) else ()
        return extra[-1] if extra and extra[-1][0] == "less" else None

    def without_lesser(self, score: int) -> int:
        """The score, or the sink, before the largest was subtracted."""
        if not self.lesser(score):
            return score
        meaning = self.of[score]
        if isinstance(meaning, Shift):
            return self.of.zero
        is_sink = meaning.left == self.of.nothing and meaning.extra[0][0] == "plus"
        return int(meaning.extra[0][1]) if is_sink else self.of(meaning._replace(extra=meaning.extra[:-1]))

    def exp(self, a: int) -> int:
        """e to the power of a number."""
        match self.of[a]:
            case Const(value):
                return self.of.const(math.exp(min(value, 700.0)))
            case Score(_, _, _, added):
                terms = self.lesser(a)[1] if self.lesser(a) else ()
                return self.of.zero if added <= HIDES else self.exponential(self.without_lesser(a), 1.0, terms)
            case Largest() | Shift():
                return self.exponential(self.of.nothing, 1.0, self.shifts(a))
        return self.new("exp", a)

    def log(self, a: int) -> int:
        """The logarithm of a sum of exponentials from which the same was subtracted."""
        parts = self.parts(a)
        shifts = {getattr(self.of[part], "shift", None) for part in parts}
        if not all(self.of.is_kind(part, Exp) for part in parts) or len(shifts) > 1:
            return self.new("log", a)
        group = self.of.row(self.of[part].score for part in parts)
        return self.shift(((self.of(Largest(group, True)), 1.0), *(shifts.pop() or ())))

    def softmax(self, row: Sequence[int]) -> list[int]:
        """The weights of a row of scores. Hidden ones have the weight 0; if all are hidden, all have a share."""
        if any(self.of.is_kind(number, *FEATURES) for number in row):
            return [self.new("softmax", *row, place=place) for place in range(len(row))]
        if len({self.lesser(number) for number in row if not self.of.hidden(number)}) == 1:
            row = [self.without_lesser(number) for number in row]  # what is subtracted from all changes nothing
        known = all(self.of.is_kind(number, Score, Const, Param) for number in row)
        if not known:
            return [self.other("softmax", *row)] * len(row)
        if all(self.of.hidden(number) for number in row):
            return [self.of(Weight(number, self.of.row(row))) for number in row]
        if all(self.of.is_kind(number, Const) for number in row):
            shares = [math.exp(self.of[number].value - max(self.of[one].value for one in row)) for number in row]
            return [self.of.const(share / sum(shares)) for share in shares]
        group = self.of.row(number for number in row if not self.of.hidden(number))
        return [self.of.zero if self.of.hidden(number) else self.of(Weight(number, group)) for number in row]

    def largest(self, row: Sequence[int], is_log: bool = False) -> int:
        """The largest of a row of scores, of running maxima, too; or the logarithm of the sum of their exponentials."""
        seen = [number for number in row if not self.of.hidden(number)]
        if not seen:
            return row[0]
        parts = list[int]()
        for number in seen:
            meaning = self.of[number]
            if isinstance(meaning, Largest) and meaning.is_log == is_log:
                parts += self.of.numbers_in(meaning.parts)
            elif isinstance(meaning, Score | Const | Param):
                parts.append(number)
            else:
                return self.new("logsumexp" if is_log else "amax", *row)
        if all(self.of.is_kind(part, Const) for part in parts):
            return self.of.const(max(self.of[part].value for part in parts))
        return self.of(Largest(self.of.row(dict.fromkeys(parts)), is_log))

    def is_running(self, number: int) -> bool:
        """Whether a number is a running maximum, a score, or what a running maximum begins with."""
        meaning = self.of[number]
        if isinstance(meaning, Const):
            return self.of.hidden(number)
        return isinstance(meaning, Largest | Shift) or (isinstance(meaning, Score) and not self.single(number))

    def function(self, op: str, *numbers: int) -> int:
        """A function of numbers, element by element."""
        if op in ("exp", "log") and len(numbers) == 1:
            return self.exp(numbers[0]) if op == "exp" else self.log(numbers[0])
        if op in ("maximum", "logaddexp") and any(map(self.is_running, numbers)):
            return self.largest(numbers, op == "logaddexp")
        meaning = self.of[numbers[0]]
        if op == "tanh" and isinstance(meaning, Score) and not self.single(numbers[0]):
            return self.of(meaning._replace(scale=1.0, extra=(*meaning.extra, ("tanh", meaning.scale))))
        if op == "neg":
            return self.scale(numbers[0], -1.0)
        return self.new(op, *numbers)


def rounded(value: float) -> float:
    """A factor to eleven digits, so that the same factor is equal by whatever steps it came."""
    return value if value in (1.0, -1.0) else float(f"{value:.11g}")
