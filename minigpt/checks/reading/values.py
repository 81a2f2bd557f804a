"""The values of features: what a feature of one token is, as a function of others that are given.

A feature is made of atoms, each an operation on numbers of its token. So a norm or an activation is read by computing
it for other numbers: what it is shows in its values, in whatever way it is written.

N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from minigpt.checks.reading.meanings import Atom, Const, Feature, Meanings, Param, Score

OWN: dict[str, Callable[[Tensor], Tensor]] = {  # rows (N, n) -> (N, places)
    "sum": lambda rows: rows.sum(1, keepdim=True),
    "bias": lambda rows: rows.sum(1, keepdim=True),
    "product": lambda rows: (rows[:, : rows.shape[1] // 2] * rows[:, rows.shape[1] // 2 :]).sum(1, keepdim=True),
    "dot": lambda rows: (rows[:, : rows.shape[1] // 2] * rows[:, rows.shape[1] // 2 :]).sum(1, keepdim=True),
    "quotient": lambda rows: rows[:, :1] / rows[:, 1:],
    "logsumexp": lambda rows: rows.logsumexp(1, keepdim=True),
    "amax": lambda rows: rows.amax(1, keepdim=True),
    "softmax": lambda rows: rows.softmax(1),
    "exp": lambda rows: rows.exp(),
}


class NotGiven(Exception):
    """A value depends on a number that is not given."""


class Values:
    """The values (N,) of numbers, where those of some atoms and parameters are given."""

    def __init__(self, of: Meanings, inputs: Mapping[int, Tensor], parameters: Mapping[str, Tensor], N: int,
                 columns: dict[int, Tensor] | None = None) -> None:  # fmt: skip
        """`inputs`: the values (N,) of atoms and mixtures; `columns`: known rows of parameters, the same for all N."""
        self.of, self.N = of, N
        self.parameters = {name: tensor.reshape(-1).to(torch.float64) for name, tensor in parameters.items()}
        self.columns = columns if columns is not None else {}
        self.atoms, self.rows, self.places_of = dict(inputs), dict[int, Tensor](), dict[tuple[str, int], Tensor]()
        self.numbers = dict[int, Tensor]()

    def of_row(self, row: int) -> Tensor:
        """The values of a row: (N, n)."""
        if row not in self.rows:
            self.rows[row] = torch.stack([self.of_number(number) for number in self.of.numbers_in(row)], 1)
        return self.rows[row]

    def of_column(self, column: int) -> Tensor:
        """The values of a row of parameters (n,), all at once where they are of one parameter."""
        if column not in self.columns:
            listed = [self.of[number] for number in self.of.numbers_in(column)]
            params = [one for one in listed if isinstance(one, Param) and isinstance(one.made_of[-1], int)]
            names = {one.made_of[0] for one in params}
            if len(params) == len(listed) and len(names) == 1 and (name := names.pop()) in self.parameters:
                factors = torch.tensor([one.factor for one in params], dtype=torch.float64)
                self.columns[column] = self.parameters[name][[one.made_of[1] for one in params]] * factors
            else:
                self.columns[column] = self.of_row(column)[0]
        return self.columns[column]

    def of_number(self, number: int) -> Tensor:
        """The values of one number: (N,). Raises NotGiven."""
        if number in self.atoms:
            return self.atoms[number]
        if number not in self.numbers:
            self.numbers[number] = self.of_meaning(self.of[number])
        return self.numbers[number]

    def of_meaning(self, meaning: Any) -> Tensor:
        """The values of a meaning: (N,). Raises NotGiven."""
        match meaning:
            case Const(value):
                return torch.full((self.N,), value, dtype=torch.float64)
            case Param(made_of, factor):
                return (factor * self.parameter(made_of)).expand(self.N)
            case Feature(_, terms):
                return torch.stack([factor * self.of_atom(atom) for atom, factor in terms]).sum(0)
            case Score(left, right, scale, added, extra) if not extra:
                return (self.of_row(left) * self.of_row(right)).sum(1) * scale + added
        raise NotGiven(type(meaning).__name__.lower())

    def of_atom(self, number: int) -> Tensor:
        """The values of an atom: (N,)."""
        if number not in self.atoms:
            atom: Atom = self.of[number]
            if atom.op == "linear":
                value = self.of_row(atom.row) @ self.of_column(atom.column)
            elif atom.op == "bias":
                value = self.of_row(atom.row)[:, 0] + self.of_row(atom.column)[:, 0]
            else:
                value = self.places(atom.op, atom.row)[:, atom.place]
            self.atoms[number] = value
        return self.atoms[number]

    def places(self, op: str, row: int) -> Tensor:
        """All numbers that an operation makes of a row: (N, places)."""
        if (op, row) not in self.places_of:
            function = OWN.get(op) or self.of.functions.get(op)
            if function is None:
                raise NotGiven(op)
            self.places_of[op, row] = function(self.of_row(row)).to(torch.float64)
        return self.places_of[op, row]

    def parameter(self, made_of: tuple[Any, ...]) -> Tensor:
        """The value of a parameter, or of a number that is made of parameters alone."""
        if len(made_of) == 2 and isinstance(made_of[1], int):
            if made_of[0] not in self.parameters:
                raise NotGiven(str(made_of[0]))
            return self.parameters[made_of[0]][made_of[1]]
        op, *parts = made_of
        if op == "const":
            return torch.tensor(float(parts[0]), dtype=torch.float64)
        function = OWN.get(op) or self.of.functions.get(op)
        if function is None:
            raise NotGiven(op)
        values = [torch.tensor(one[1]) if one[0] == "const" else self.parameter(one[0]) * one[1] for one in parts]
        return function(torch.stack([value.to(torch.float64) for value in values])[None])[0, 0]


def inner(of: Meanings, numbers: Iterable[int], stop: Callable[[int], object]) -> Iterator[tuple[int, Atom]]:
    """The atoms that numbers are made of, nearest first, each once; what is behind an atom where `stop` is left out."""
    queue, seen, known = list(numbers), set[int](), set[int]()
    for number in queue:
        if number in known:
            continue
        known.add(number)
        meaning = of[number]
        rows = [meaning.left, meaning.right] if isinstance(meaning, Score) else []
        for one in [atom for atom, _ in meaning.terms] if isinstance(meaning, Feature) else []:
            if one not in seen:
                seen.add(one)
                yield one, of[one]
                rows += [] if stop(one) else [of[one].row]
        queue += [other for row in rows for other in of.numbers_in(row)]
