"""Finds the attention in a program that was read: from its output back to the weights, queries, keys and values.

A `Found` says what stands where attention expects something. What stands elsewhere ends the reading: an operation that
attention does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from minigpt.checks.reading.meanings import (
    HIDES,
    Atom,
    Const,
    Exp,
    Feature,
    Mixture,
    Param,
    Score,
    Token,
    Total,
    Weight,
)
from minigpt.checks.reading.norms import Norms
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.values import inner


class Ends(Exception):
    """The reading ends: `op` at `line` is no step of attention; `where` says what was expected there."""

    def __init__(self, op: str, line: int, where: str) -> None:
        super().__init__(f"line {line}: {op}, where {where}")
        self.op, self.line, self.where = op, line, where


class Strange(Ends):
    """A step that was read, and that attention does not have."""


@dataclass(frozen=True)
class Broken:
    """Where a law is broken: the law, what was found, what was expected, how to mend it, and the line."""

    law: str
    actual: str
    expected: str
    mend: str
    line: int
    row: str = ""
    """The numbers that show it."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.actual}, not {self.expected}"


@dataclass(frozen=True)
class Note(Broken):
    """A law that is broken in a way that is right in another convention. Who asks decides whether it is allowed."""

    convention: str = ""


@dataclass
class Found:
    """The attention in one reading. `output`: the meanings (B, T, D) of what the program returned."""

    reading: Reading
    output: Ids
    projected: bool = False
    width: int = 0
    """The model width D of the text."""
    is_inside: bool = False
    """Whether it is a part of a bigger program, so that its input is not the text."""
    makes: str = "output"
    """What the program returns: output, weights, scores or rows (of queries)."""
    first: int = 0
    """The position of the first query: with fewer queries than keys these are the last ones."""
    used: set[int] = field(default_factory=set)
    """The numbers of parameters that went into the output."""
    known_leaves: dict[int, frozenset[int]] = field(default_factory=dict)
    row_units: dict[int, frozenset[int]] = field(default_factory=dict)
    known_norms: dict[int, int] = field(default_factory=dict)
    most_added: dict[int, float] = field(default_factory=dict)
    looked_at: set[tuple[int, int]] = field(default_factory=set)
    rows_looked_at: set[int] = field(default_factory=set)
    rotated: set[int] = field(default_factory=set)
    rounded: bool = False
    """Whether the tables of rotary positions are: no kind of ours computes the same from them."""
    base: float = 0.0
    """The base of rotary frequencies, if it is another than those that are usual."""
    positions: set[str] = field(default_factory=set)
    """The names of learned positions, of which a short text needs a part."""

    def __post_init__(self) -> None:
        self.of, self.norms = self.reading.of, Norms(self.reading)

    @classmethod
    def inside(cls, reading: Reading, output: Ids) -> Found:
        """The attention inside a bigger program. `output` (B, T, D): features that are projections of mixtures.

        Its input is what its queries are made of, whatever that is: `inputs` are the units of these features, `width`
        their number. Raises Ends if the output is no projection of mixtures.
        """
        attention = cls(reading, output, is_inside=True)
        attention.width = len(next(iter(attention.input_rows), ()))
        return attention

    @cached_property
    def rows(self) -> dict[tuple[int, int], set[int]]:
        """For each place (b, t) of the output: the rows of mixtures that were projected to it."""
        B, T = self.output.shape[:2]
        return {(b, t): self.projection(self.output[b, t].tolist()) for b in range(B) for t in range(T)}

    @cached_property
    def inputs(self) -> frozenset[int]:
        """The units of the features that the layers read: those of the text, or of what was made of it first."""
        for row in (self.query_rows[0], self.key_rows[0]):
            atom = self.layer(next(self.atoms(row)))
            if atom:
                of_queries = self.input_rows[: None if self.is_inside else 1]
                rows = of_queries if row == self.query_rows[0] else [self.of.numbers_in(atom.row)]
                return frozenset(self.of.unit(number) for one in rows for number in one)
        return frozenset()

    def layer(self, number: int) -> Atom | None:
        """The linear map by which an atom is made: before its bias was added, before it was normed; None: it is x."""
        nearest = inner(self.of, self.of.numbers_in(self.of[number].row), self.norms.layer_of)
        behind = (self.norms.layer_of(one) for one, _ in nearest)
        return self.norms.layer_of(number) or next((layer for layer in behind if layer), None)

    def take(self, row: int) -> None:
        """Note the parameters of a row, once."""
        if row not in self.rows_looked_at:
            self.rows_looked_at.add(row)
            numbers = self.of.numbers_in(row) if Param in self.of.kinds(row) else ()
            self.used.update(one for one in numbers if self.of.is_kind(one, Param))

    def use(self, number: int) -> None:
        """Note the parameters that go into an atom, once for each unit; those of learned positions at each token."""
        atom: Atom = self.of[number]
        place = self.of.unit(number), atom.column
        if place in self.looked_at:
            return
        self.looked_at.add(place)
        self.take(atom.column)
        rows = self.of.numbers_in(atom.row) if atom.row not in self.rows_looked_at else ()
        self.take(atom.row)
        for part in (self.of[number] for number in rows):
            for one, _ in part.terms if isinstance(part, Feature) else ():
                self.use(one)

    def leaves(self, number: int) -> frozenset[int]:
        """The linear maps, or given features, that an atom is made of in the end."""
        if number not in self.known_leaves:
            atom: Atom = self.of[number]
            numbers = self.of.numbers_in(atom.row)
            is_layer = atom.op == "input" or (atom.op == "linear" and len(numbers) > 1)
            made_of = [] if is_layer else [one for one in numbers if self.of.is_kind(one, Feature)]
            leaves = frozenset[int]().union(*map(self.leaves_of, made_of)) if made_of else frozenset((number,))
            self.known_leaves[number] = leaves
        return self.known_leaves[number]

    def leaves_of(self, number: int) -> frozenset[int]:
        """The same for a feature."""
        return frozenset().union(*(self.leaves(atom) for atom, _ in self.of[number].terms))

    def projection(self, numbers: list[int]) -> set[int]:
        """The rows of mixtures from which the numbers of one token's output are made."""
        rows, bare = set[int](), list[int]()
        for number in numbers:
            if atoms := self.of.layers_of_heads(number):
                self.projected = True
                for atom in atoms:
                    self.take(atom.column)
                rows.add(atoms[-1].row)
            elif self.of.is_kind(number, Mixture):
                bare.append(number)
            else:
                rows.add(self.of.row(self.projected_from(number)))
        return rows | ({self.of.row(bare)} if bare else set())

    def projected_from(self, number: int) -> list[int]:
        """The mixtures that a number of the output is a linear map of; several maps may be added: one for each head."""
        meaning = self.of[number]
        if not isinstance(meaning, Feature):
            if isinstance(meaning, Mixture):
                raise Strange("heads are added without a projection", self.of.made_at[number], "a projection of each")
            self.ends(number, "the output is expected")
        mixtures = list[int]()
        for one, factor in meaning.terms:
            atom: Atom = self.of[one]
            if abs(factor - 1) > 1e-6:
                words = f"the output is multiplied by {factor:.4g}"
                raise Strange(words, self.of.made_at[number], "the output as it is")
            self.take(atom.column)
            inner = self.of.numbers_in(atom.row)
            if atom.op == "linear" and all(self.of.is_kind(other, Mixture) for other in inner):
                self.projected = True
                mixtures += inner
            elif atom.op in ("sum", "bias"):
                for other in inner:
                    is_heads = atom.op == "bias" and self.of.is_kind(other, Mixture)
                    mixtures += [other] if is_heads else self.projected_from(other)
            else:
                self.ends_in(atom, one, "a projection of the heads is expected")
        return mixtures

    def ends_in(self, atom: Atom, number: int, where: str) -> None:
        """Raise that an atom, or the number that it is made of, is no step of attention."""
        inner = next((one for one in self.of.numbers_in(atom.row) if self.of.is_kind(one, Feature)), -1)
        inside: Atom = self.of[self.of[inner].terms[0][0]] if inner >= 0 and atom.op == "linear" else atom
        line = self.of.made_at[inner if inside is not atom else number]
        step = {"input": "the input x", "linear": "a linear layer", "sum": "a sum"}.get(inside.op, inside.op)
        raise Strange(f"{step} stands here", line, where)

    def ends(self, number: int, where: str) -> None:
        """Raise that the reading ends at a number."""
        meaning = self.of[number]
        if isinstance(meaning, Score):
            raise Strange("scores stand here: there is no softmax", self.of.made_at[number], where)
        if isinstance(meaning, Const):
            lost = self.reading.operations.lost
            raise Ends("a constant" if not lost else "a number taken out of torch", lost, where)
        op = self.of.word(number)
        if isinstance(meaning, Feature):
            op = self.of[meaning.terms[0][0]].op if len(meaning.terms) == 1 else "a sum"
        raise Ends(op, self.of.line_of(number), where)

    @cached_property
    def mixtures(self) -> list[int]:
        """All mixtures, once each."""
        rows = (row for rows in self.rows.values() for row in sorted(rows))
        return list(dict.fromkeys(one for row in rows for one in self.of.numbers_in(row)))

    @cached_property
    def weights(self) -> list[int]:
        """All weights, once each, but those of rows in which all is hidden. Raises Ends where there are none."""
        weights = dict[int, None]()
        if self.makes == "scores":
            for number in set(self.output.ravel().tolist()) - {self.of.zero}:
                if not self.of.is_kind(number, Score, Const):
                    self.ends(number, "a score is expected")
            return [number for number in dict.fromkeys(self.output.ravel().tolist()) if self.of.is_kind(number, Score)]
        if self.makes == "weights":
            weights = dict.fromkeys(self.output.ravel().tolist())
        else:
            for mixture in self.mixtures:
                if not self.of.is_kind(mixture, Mixture):
                    self.ends(mixture, "a mixture of values is expected")
                weights |= dict.fromkeys(self.of.numbers_in(self.of[mixture].weights))
        for weight in weights:
            if self.is_whole(weight):
                raise Strange(
                    "the weights of a query are added up, to 1, before they meet a value: nothing is mixed",
                    self.of.made_at[weight],
                    "each weight with the value of its key: bhts,bhsd->bhtd",
                )
            if self.of.is_kind(weight, Total):
                raise Strange("numbers are added to the weights, after the softmax", self.of.made_at[weight],
                              "weights as the softmax gives them; add before the softmax")  # fmt: skip
            if self.of.is_kind(weight, Score):
                log = "less" in dict(self.of[weight].extra)
                raise Strange("the values are weighed by the logarithm of the weights: log_softmax" if log else
                              "the values are weighed by the scores: there is no softmax", self.of.made_at[weight],
                              "by the softmax of the scores")  # fmt: skip
            if not self.of.is_kind(weight, Weight, Exp, Const):
                self.ends(weight, "a weight is expected")
        computed = [weight for weight in weights if not self.of.is_kind(weight, Const)]
        seen = [weight for weight in computed if self.of.is_kind(self.of[weight].score, Score)]
        if not seen:
            self.ends(next(iter(weights)), "weights are expected")
        return [weight for weight in seen if not self.is_blind(weight)]

    def is_whole(self, number: int) -> bool:
        """Whether a number is the sum of all weights of a softmax."""
        parts = self.of.numbers_in(self.of[number].parts) if self.of.is_kind(number, Total) else ()
        groups = {self.of[one].group for one in parts if self.of.is_kind(one, Weight)}
        return len(groups) == 1 and len(parts) == len(self.of.numbers_in(groups.pop()))

    @cached_property
    def first_weights(self) -> list[int]:
        """The first weight of each softmax: what is asked of its scores holds for all of its weights."""
        first = dict[int, int]()
        for weight in self.weights:
            first.setdefault(self.of[weight].group, weight)
        return list(first.values())

    @property
    def beside(self) -> set[int]:
        """The learned numbers beside queries and keys: sinks, and what is added to scores or multiplies them."""
        sinks = {one for weight in self.first_weights for one in self.of.numbers_in(self.of[weight].group)}
        extra = {one for weight in self.weights for _, one in self.score(weight).extra if type(one) is int}
        return {one for one in sinks | extra if self.of.is_kind(one, Param)}

    def is_blind(self, weight: int) -> bool:
        """Whether all scores of a weight's group are hidden."""
        meaning = self.of[weight]
        scores = self.of.numbers_in(meaning.group) if isinstance(meaning, Weight) else ()
        return bool(scores) and all(not isinstance(one, Exp) and getattr(one, "added", getattr(one, "value", HIDES))
                                    <= HIDES for one in map(self.of.__getitem__, scores))  # fmt: skip

    def line(self, number: int) -> int:
        """The line at which a number was made."""
        return self.of.made_at[number]

    def numbers(self, row: int) -> tuple[int, ...]:
        """The numbers of a row."""
        return self.of.numbers_in(row)

    def tokens(self, number: int) -> tuple[Token, ...]:
        """The tokens of a number or of a row."""
        return self.of.tokens(number)

    def is_kind(self, number: int, *kinds: type) -> bool:
        """Whether a number is of one of these classes."""
        return self.of.is_kind(number, *kinds)

    def line_of_product(self, weight: int) -> int:
        """The line at which query and key of a weight were multiplied."""
        score = self.score(weight)
        plain = Score(score.left, score.right)
        return self.of.made_at[self.of.numbers[Score].get(plain, weight)]

    def line_of_score(self, weight: int) -> int:
        """The line at which a weight's score was last changed."""
        return self.of.made_at[weight if self.makes == "scores" else self.of[weight].score]

    def score(self, weight: int) -> Score:
        """The score of a weight; of a score itself."""
        score: Score = self.of[weight if self.makes == "scores" else self.of[weight].score]
        return score

    def common(self, weight: int) -> float:
        """The most that is added to a score of a weight's softmax: added to all, it changes nothing."""
        group = self.of[weight].group if self.of.is_kind(weight, Weight) else -1
        if group not in self.most_added:
            scores = [self.of[one] for one in self.of.numbers_in(group)] if group >= 0 else []
            self.most_added[group] = max((one.added for one in scores if isinstance(one, Score)), default=0.0)
        return self.most_added[group]

    def lowered(self, weight: int) -> float:
        """What is added to the score of a weight, less what is added to the highest of its softmax."""
        return self.score(weight).added - self.common(weight)

    def atoms(self, row: int) -> Iterator[int]:
        """The atoms of a row of features."""
        for number in self.of.numbers_in(row):
            for atom, _ in self.of[number].terms:
                yield atom

    def units(self, row: int) -> frozenset[int]:
        """What a row of features is made of, whatever its token: equal for one head's rows of all tokens."""
        if row not in self.row_units:
            self.row_units[row] = frozenset(self.of.unit(atom) for atom in self.atoms(row))
        return self.row_units[row]

    def sides(self, weight: int) -> tuple[int, int]:
        """The rows of the query and of the key of a weight, or of a score that a function returns."""
        if self.makes == "scores":
            score: Score = self.of[weight]
            exchanged = self.given_as(score.left) == "keys" and self.given_as(score.right) == "queries"
            return (score.right, score.left) if exchanged else (score.left, score.right)
        return self.of.sides(weight)

    @cached_property
    def returned_rows(self) -> list[int]:
        """The rows of features that a function of queries, or of queries and keys, returns: (B, T, H, d)."""
        return list(dict.fromkeys(map(self.of.row, self.output.reshape(-1, self.output.shape[-1]).tolist())))

    @cached_property
    def query_rows(self) -> list[int]:
        """The rows of all queries."""
        if self.makes == "rows":
            return [row for row in self.returned_rows if self.given_as(row) != "keys"]
        return list(dict.fromkeys(self.sides(weight)[0] for weight in self.weights))

    @cached_property
    def key_rows(self) -> list[int]:
        """The rows of all keys."""
        if self.makes == "rows":
            return [row for row in self.returned_rows if self.given_as(row) == "keys"]
        return list(dict.fromkeys(self.sides(weight)[1] for weight in self.weights))

    @cached_property
    def values(self) -> list[int]:
        """The features of all values."""
        if self.makes != "output":
            return []
        return list(dict.fromkeys(one for m in self.mixtures for one in self.of.numbers_in(self.of[m].features)))

    def given_feature(self, row: int) -> tuple[str, int, int]:
        """Which given feature a row begins with: its name, head and place; ("", 0, 0) if it is not given."""
        numbers = [number for number in self.of.numbers_in(row) if self.of.is_kind(number, Feature)]
        for leaf in self.leaves_of(numbers[0]) if numbers else ():
            atom: Atom = self.of[leaf]
            if atom.op == "input" and self.of.is_kind(atom.place, Param):
                name, head, place = self.of[atom.place].made_of
                return name, head, place
        return "", 0, 0

    def given_as(self, row: int) -> str:
        """Of what a row of given features is: queries, keys or values."""
        return {"query": "queries", "key": "keys", "value": "values"}.get(self.given_feature(row)[0], "")

    def partners(self) -> dict[int, int]:
        """The head of keys that each head of queries meets."""
        if self.makes == "rows":
            by_number = {self.given_feature(row)[1]: head for row, head in (self.key_heads or self.query_heads).items()}
            return {head: by_number[self.given_feature(row)[1]] for row, head in self.query_heads.items()}
        return {self.query_head(weight): self.key_head(weight) for weight in self.weights}

    def is_biased(self, number: int) -> bool:
        """Whether an atom is a linear map, or a given feature, plus a bias, and nothing else."""
        atom: Atom = self.of[number]
        inner = self.of.numbers_in(atom.row)
        if atom.op != "bias" or len(inner) != 1 or not self.of.is_kind(inner[0], Feature):
            return False
        terms = self.of[inner[0]].terms
        return len(terms) == 1 and (self.leaves(terms[0][0]) == {terms[0][0]} or self.is_biased(terms[0][0]))

    def is_text(self, row: int) -> bool:
        """Whether a row is a token of the text as it is, not a feature that a layer made."""
        return bool(self.width) and all(self.of[atom].op == "input" for atom in self.atoms(row))

    def unnormed(self, row: int) -> int:
        """The row of numbers of which a norm made a row; itself if no norm did."""
        before = self.normed(row)
        return before if before and row not in self.rotated else row

    def bare(self, row: int) -> int:
        """The features that sums of few of them, as a rotation makes, are made of, without their factors."""
        tokens = self.of.tokens(row)
        return self.of.row(self.of.bare(atom, tokens) for atom in dict.fromkeys(self.atoms(row)))

    def normed(self, row: int) -> int:
        """The row of numbers of which a norm made a row; 0 if no norm did."""
        if row in self.known_norms:
            return self.known_norms[row]
        rows = [one for rows in (self.query_rows, self.key_rows) if row in rows for one in rows
                if self.units(one) == self.units(row)] or [row]  # fmt: skip
        before = rows
        if any(len(getattr(self.of[number], "terms", ())) > 1 for one in rows for number in self.of.numbers_in(one)):
            self.rotated.update(rows)
            before = [self.of.row(sorted(self.of.numbers_in(self.bare(one)))) for one in rows]
        bases = self.norm_of([self.of.numbers_in(one) for one in before])
        for one, base in zip(rows, bases or [()] * len(rows)):
            self.known_norms[one] = self.of.row(base) if base else 0
        return self.known_norms[row]

    def norm_of(self, rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The rows of which a norm, with weights or without, made these rows, one for each token; [] if none did."""
        bases = [list(dict.fromkeys(self.norms.bases(row))) for row in rows]
        norm = self.norms.norm(rows[0]) if min(map(len, bases)) == max(map(len, bases)) > 0 else None
        return [each[bases[0].index(norm.base)] for each in bases] if norm else []

    @property
    def text(self) -> frozenset[int]:
        """The units of the text that the program was given."""
        inputs = self.reading.inputs
        return frozenset(map(self.of.unit, inputs[0, 0].tolist())) if inputs is not None else frozenset()

    def steps_before(self) -> Iterator[tuple[str, str]]:
        """What is done to the text before the layers read it, as conventions and words. Raises Strange."""
        rows = self.input_rows
        text = self.reading.inputs
        for _ in range(4):
            if text is None or {self.of.unit(number) for number in rows[0]} == self.text:
                return
            if before := self.norm_of(rows):
                yield "norm first", "x is normed first"
            else:
                before = self.without_positions(rows)
                yield "positions first", "positions are added to x first"
            rows = before

    def without_positions(self, rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The rows before numbers were added that differ by position alone. Raises Strange."""
        first = self.of[rows[0][0]].terms[0][0]
        several = any(len(self.of[number].terms) != 1 for row in rows for number in row)
        if several or self.of[first].op not in ("bias", "sum"):
            raise Strange(f"x is changed by {self.of[first].op} first", self.of.made_at[rows[0][0]], "x as it is")
        self.positions.update(name for one in self.of.numbers_in(self.of[first].column)
                              for name in self.of.names(one))  # fmt: skip
        added_to = [[self.of.numbers_in(self.of[self.of[number].terms[0][0]].row) for number in row] for row in rows]
        return [tuple(next(one for one in each if self.of.is_kind(one, Feature)) for each in row) for row in added_to]

    @cached_property
    def input_rows(self) -> list[tuple[int, ...]]:
        """The rows that the layers of the queries read, one for each token; joined where each head reads its own."""
        rows = dict[tuple[Token, ...], dict[int, None]]()
        for row in self.query_rows:
            if atom := self.layer(next(self.atoms(row))):
                rows.setdefault(self.of.tokens(row), {})[atom.row] = None
        joined = [[one for row in read for one in self.of.numbers_in(row)] for read in rows.values()]
        return [tuple(numbers) if len(set(numbers)) == len(numbers) else self.of.numbers_in(next(iter(read)))
                for numbers, read in zip(joined, rows.values())]  # fmt: skip

    def grouped(self, rows: list[int]) -> dict[int, int]:
        """The number of the head that each row belongs to: rows of one head have units in common, at some tokens."""
        heads = self.joined({row: self.units(row) for row in rows})
        places = {frozenset(self.tokens(row) for row in rows if heads[row] == head) for head in heads.values()}
        if len(places) > 1:  # the norm of a rotated row has other units at the first token, which is not turned
            ends = self.joined({row: self.ends_of(row) for row in rows})
            return ends if len(set(ends.values())) > 1 else heads
        return heads

    def ends_of(self, row: int) -> frozenset[int]:
        """The units of the linear maps, or given features, that a row is made of in the end."""
        return frozenset(self.of.unit(leaf) for number in self.of.numbers_in(row) for leaf in self.leaves_of(number))

    def joined(self, units: dict[int, frozenset[int]]) -> dict[int, int]:
        """The number of the set that each row belongs to, where rows that share a unit are in one set."""
        sets = list[set[int]]()
        for some in dict.fromkeys(units.values()):
            same = [one for one in sets if one & some]
            for one in same[1:]:
                sets.remove(one)
            if same:
                same[0].update(some, *same[1:])
            else:
                sets.append(set(some))
        owner = {unit: number for number, one in enumerate(sets) for unit in one}
        return {row: owner[next(iter(some))] if some else -1 for row, some in units.items()}

    @cached_property
    def query_heads(self) -> dict[int, int]:
        """The head of each row of queries."""
        return self.grouped(self.query_rows)

    @cached_property
    def key_heads(self) -> dict[int, int]:
        """The head of keys of each row of keys."""
        return self.grouped(self.key_rows)

    @property
    def heads(self) -> range:
        """The heads, by number, in the order in which they were met."""
        return range(len(set(self.query_heads.values())))

    def query_head(self, weight: int) -> int:
        """The head of a weight."""
        return self.query_heads.get(self.sides(weight)[0], -1)

    def key_head(self, weight: int) -> int:
        """The head of keys of a weight."""
        return self.key_heads.get(self.sides(weight)[1], -1)

    def head_of_mixture(self, mixture: int) -> int:
        """The head of a mixture; -1 if its weights are constants."""
        return next((self.query_heads[row] for weight in self.of.numbers_in(self.of[mixture].weights)
                     if (row := self.of.query(weight)) in self.query_heads), -1)  # fmt: skip

    def line_of_row(self, row: int) -> int:
        """The line at which numbers first stood in this row, along any axis; else the line of the last of them."""
        numbers = self.of.numbers_in(row)
        for result in self.reading.results:
            ids = result.ids
            for axis in [axis for axis, size in enumerate(ids.shape) if size == len(numbers)]:
                fibres = ids.swapaxes(axis, -1).reshape(-1, len(numbers))
                if result.line and bool((fibres == numbers).all(-1).any()):
                    return result.line
        return max((self.of.made_at[number] for number in numbers), default=0)
