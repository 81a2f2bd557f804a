"""The listing: each line of a program beside what it makes, and the law that is broken at the line where it breaks.

The axes of a tensor are named by what changes along them, not by their sizes: B the text, T the token (of the query), S
the token of the key, H the head, d the features of a head, D those of all heads or of x.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from minigpt.checks.reading.meanings import (
    Atom,
    Const,
    Exp,
    Feature,
    Largest,
    Mixture,
    Other,
    Param,
    Score,
    Shift,
    Total,
    Weight,
)
from minigpt.checks.reading.reading import Made, Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Broken, Ends, Found

MOST = 3  # descriptions beside one line
WIDTH = 60  # columns for the code


@dataclass(frozen=True)
class Look:
    """What is to be told of one number: its text, its token, the token of its key, its head, and the rest."""

    text: int
    token: int
    key: int
    head: int
    units: frozenset[int] = frozenset()


@dataclass
class Names:
    """What the features of a program are called: by their units, once its attention was found."""

    reading: Reading
    attention: Found | None
    roles: dict[int, tuple[str, int]] = field(default_factory=dict)
    """unit of an atom -> (queries, keys or values; the number of the head)."""

    def __post_init__(self) -> None:
        self.of = self.reading.of
        if self.attention is None or self.attention.makes == "rows":
            self.attention = None  # a rotation has no heads
            return
        with suppress(Ends):
            return self.name_all(self.attention)
        self.attention = None  # the reading ended before the heads

    def name_all(self, attention: Found) -> None:
        """Name the features of an attention that was read to its end."""
        named = set[object]()  # tokens have units in common
        for weight in attention.weights:
            for role, row in zip(("queries", "keys"), attention.sides(weight)):
                for atom in attention.atoms(row) if attention.units(row) not in named else ():
                    self.name(atom, role, attention.query_head(weight))
                named.add(attention.units(row))
        for mixture in attention.mixtures if attention.makes == "output" else ():
            for weight, value in self.of.terms(mixture):
                if self.of.unit(value) not in named and (query := self.of.query(weight)) in attention.query_heads:
                    named.add(self.of.unit(value))
                    for atom, _ in self.of[value].terms:
                        self.name(atom, "values", attention.query_heads[query])

    def name(self, number: int, role: str, head: int) -> None:
        """Name an atom, and the one before its bias was added."""
        self.roles.setdefault(self.of.unit(number), (role, head))
        atom: Atom = self.of[number]
        if atom.op == "bias":
            for inner in self.of.numbers_in(atom.row):
                for one, _ in self.of[inner].terms:
                    self.name(one, role, head)

    def role(self, number: int) -> tuple[str, int]:
        """What a feature is, and of which head; "" if that is not known."""
        meaning = self.of[number]
        if isinstance(meaning, Feature):
            return self.roles.get(self.of.unit(meaning.terms[0][0]), ("", -1))
        return "", -1

    def head(self, row: int) -> int:
        """The number of the head that a row of queries or keys belongs to; -1 if it is not known."""
        numbers = self.of.numbers_in(row)
        return self.role(numbers[0])[1] if numbers else -1

    def look(self, number: int) -> Look:
        """What is to be told of one number."""
        meaning = self.of[number]
        if isinstance(meaning, Exp | Weight):
            return self.look(meaning.score)
        if isinstance(meaning, Score) and meaning.left != self.of.nothing:
            sides = [meaning.left, meaning.right]
            if self.role(self.of.numbers_in(meaning.left)[0])[0] == "keys":
                sides.reverse()
            (b, t), (_, s) = (self.of.tokens(side)[0] for side in sides)
            return Look(b, t, s, self.head(sides[0]))
        b, t = (self.of.tokens(number) or ((-1, -1),))[0]
        if isinstance(meaning, Mixture):
            weight, value = self.of.terms(number)[0]
            return Look(b, t, -1, self.head(self.of.query(weight)), self.units(value))
        return Look(b, t, -1, self.role(number)[1], self.units(number))

    def units(self, number: int) -> frozenset[int]:
        """What makes up a feature, whatever its token: the parameters of linear maps, the units of other atoms."""
        atoms = [(one, self.of[one]) for one, _ in getattr(self.of[number], "terms", ())]
        return frozenset(atom.column if atom.column != self.of.nothing else self.of.unit(one) for one, atom in atoms)

    def axes(self, ids: Ids) -> str:
        """The shape, with the names of its axes: "(B 2, H 6, T 7, d 8)"."""
        return f"({', '.join(f'{self.axis(ids, axis)} {size}'.strip() for axis, size in enumerate(ids.shape))})"

    def axis(self, ids: Ids, axis: int) -> str:
        """The name of an axis, by what changes along it; "?" where tokens and features change together."""
        fibres = np.moveaxis(ids, axis, -1).reshape(-1, ids.shape[axis])
        rows = [[one for one in fibre if not self.of.is_kind(one, Const, Param, Largest, Shift, Total)]
                for fibre in fibres[-9:].tolist()]  # fmt: skip
        fibre = max(rows, key=len, default=[])
        looks = [self.look(number) for number in fibre if not self.of.is_kind(number, Other)]
        names = ("text", "token", "key", "head")
        changes = {name for name in names if len({getattr(look, name) for look in looks}) > 1}
        if len({look.units for look in looks}) > 1 and not frozenset.intersection(*(look.units for look in looks)):
            changes.add("unit")
        if not changes:
            return ""
        if ("token" in changes and changes <= {"token", "key"}) or changes == {"text"} or changes == {"key"}:
            return "T" if "token" in changes else "B" if changes == {"text"} else "S"
        if changes <= {"head", "unit"}:
            heads = [look.head for look in looks]
            whole = len(set(heads)) < len(heads)
            return "d" if "head" not in changes and heads[0] >= 0 else "D" if whole else "H"
        if changes == {"text", "token"}:
            return "B T"
        return "B H" if changes == {"text", "head", "unit"} or changes == {"text", "head"} else "?"

    def describe(self, listed: Sequence[int]) -> str:
        """What these numbers are, in words."""
        kinds = {type(self.of[number]) for number in listed} - {Const}
        for kind, words in ((Other, "not read from here on"), (Exp, "exponentials of the scores"), (Param, ""),
                            (Total, "sums over the keys"), (Largest, "the largest score of each query")):  # fmt: skip
            if kind in kinds:
                return words
        if Weight in kinds:
            return "weights over the keys"
        if Score in kinds:
            return self.scores([number for number in listed if self.of.is_kind(number, Score)], listed)
        if Mixture in kinds:
            return self.of_heads(
                "mixtures of values", {self.look(number).head for number in listed if self.of.is_kind(number, Mixture)}
            )
        return self.features([number for number in listed if self.of.is_kind(number, Feature)])

    def of_heads(self, words: str, heads: set[int]) -> str:
        """With the head, if it is one of several."""
        several = self.attention is not None and len(self.attention.heads) > 1
        return f"{words} of head {heads.pop()}" if len(heads) == 1 and several and -1 not in heads else words

    def scores(self, scores: Sequence[int], listed: Sequence[int]) -> str:
        """Scores: scaled or not, hidden or not."""
        first: Score = self.of[scores[0]]
        row = self.of.numbers_in(first.left)
        factor = first.scale * self.of.gain(row[0]) * self.of.gain(self.of.numbers_in(first.right)[0])
        hidden = any(self.of.hidden(one) for one in listed if self.of.is_kind(one, Const, Score))
        scaled = ("scaled" if abs(factor - len(row) ** -0.5) < 1e-6 else "not scaled yet" if factor == 1
                  else f"times {factor:.4g}")  # fmt: skip
        return f"scores, {scaled}" + (", hidden where the mask says" if hidden else "")

    def features(self, features: Sequence[int]) -> str:
        """Features: x, queries, keys, values, the output."""
        of, roles = self.of, dict[str, set[int]]()
        atoms = [(terms[0][0], len(terms) > 1) for terms in (of[number].terms for number in features)]
        for unit, op, several in dict.fromkeys((of.unit(atom), of[atom].op, several) for atom, several in atoms):
            role, head = self.roles.get(unit, ("", -1))
            role = role or {"input": "x", "linear": "a layer's output", "bias": "a layer's output"}.get(op, op)
            rotated = ", rotated" if several and role in ("queries", "keys") else ""
            roles.setdefault(role + rotated, set()).add(head)
        order = [name for name in roles if f"{name}, rotated" not in roles]
        if self.attention is not None and order == ["a layer's output"]:
            return "the output: a projection of the heads"
        return self.of_heads(" and ".join(order) if len(order) < 3 else "queries, keys and values",
                             set().union(*roles.values()))  # fmt: skip


def beside(reading: Reading, attention: Found | None) -> dict[int, list[str]]:
    """For each line what it makes, in words: of the same words the largest, without what a product only multiplies."""
    names, lines, known = Names(reading, attention), dict[int, dict[str, Made]](), dict[bytes, str]()
    for result in reading.results:
        if not result.line or not result.ids.size:
            continue
        texts = lines.setdefault(result.line, {})
        for words in [words for words, other in texts.items() if other.op != result.op
                      and other.ids.tobytes() in result.sources]:  # fmt: skip
            del texts[words]
        numbers = np.unique(result.ids)  # many operations only move them
        if (key := numbers.tobytes()) not in known:
            known[key] = names.describe(numbers.tolist())
        words = known[key]
        if words and (words != "x" or not texts) and (words not in texts or texts[words].ids.size <= result.ids.size):
            texts.pop(words, None)
            texts[words] = result
    return {line: [f"{names.axes(result.ids)} {words}" for words, result in [*texts.items()][-MOST:]]
            for line, texts in lines.items()}  # fmt: skip


def functions(file: Sequence[str], marked: set[int]) -> list[int]:
    """The lines of the functions of a file that hold one of these lines."""
    nodes = [node for node in ast.walk(ast.parse("".join(file))) if isinstance(node, ast.FunctionDef)]
    spans = [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in nodes]
    return sorted({line for span in spans if marked & {*span} for line in span})


def listing(path: Path, reading: Reading, attention: Found | None, laws: Sequence[Broken], color: bool = False,
            whole: bool = True) -> str:  # fmt: skip
    """Each line of a file beside what it makes; of the functions alone that make something, unless `whole`.

    The law that is broken stands below its line. The file may be a notebook's cell.
    """
    words_of, red, plain = beside(reading, attention), "\x1b[31m" if color else "", "\x1b[0m" if color else ""
    out, file = list[str](), linecache.getlines(str(path))
    numbers = range(1, len(file) + 1) if whole else functions(file, {*words_of, *(law.line for law in laws)})
    for number, code in ((number, file[number - 1].rstrip()) for number in numbers):
        if out and number - 1 not in numbers:
            out.append("")
        first, *others = words_of.get(number) or [""]
        if first and len(code) > WIDTH:
            first, others = "", [first, *others]
        out.append(f"{number:4} {code:{WIDTH}} {'| ' + first if first else ''}".rstrip())
        out += [f"{'':{WIDTH + 5}} | {other}" for other in others]
        for law in (law for law in laws if law.line == number):
            out.append(f"{red}     ^ {law.law}: {law.actual}, expected: {law.expected}. {law.mend}.{plain}")
            out += [f"{red}       {law.row}{plain}"] if law.row else []
    out += [f"{red}     {law.law}: {law.actual}, expected: {law.expected}. {law.mend}.{plain}" for law in laws
            if not law.line]  # fmt: skip
    return "\n".join(out)
