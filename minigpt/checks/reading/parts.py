"""What a program is made of: streams of features to which attentions, MLPs and norms add, read back from its output.

A stream is a sum of nodes, a vector of D features for each token: the text, embeddings, and what the parts return. A
part reads a stream, or its norm. What a norm or an activation is shows in its values, in whatever way it is written.

B batch, T positions, D width of a stream, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from minigpt.checks.reading.meanings import Atom, Const, Feature, Mixture, Other, Param, Score
from minigpt.checks.reading.norms import N, Norm, Norms
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Ends, Found
from minigpt.checks.reading.values import NotGiven, Values, inner

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "GELU": F.gelu,
    "GELU by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "GELU by sigmoid": lambda x: x * (1.702 * x).sigmoid(),
    "ReLU": F.relu,
    "squared ReLU": lambda x: F.relu(x) ** 2,
    "SiLU": F.silu,
    "a sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky ReLU": F.leaky_relu,
    "ELU": F.elu,
    "SELU": F.selu,
    "softplus": F.softplus,
    "Mish": F.mish,
    "GELU twice": lambda x: F.gelu(F.gelu(x)),
    "GELU with erf(x) in place of erf(x / sqrt(2))": lambda x: 0.5 * x * (1 + torch.erf(x)),
    "GELU without its 1 +": lambda x: 0.5 * x * torch.erf(x * 0.5**0.5),
    "GELU without its factor 0.5": lambda x: 2 * F.gelu(x),
    "GELU by tanh without x^3": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * x)),
    "GELU by tanh without the root of 2 / pi": lambda x: 0.5 * x * (1 + torch.tanh(2 / torch.pi * cubic(x, 0.044715))),
    "GELU by tanh with 0.44715 in place of 0.044715": lambda x: (
        0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * cubic(x, 0.44715)))
    ),
    "the normal distribution function, GELU without its x": torch.special.ndtr,
    "h + GELU(h): the hidden layer is added to its activations": lambda x: x + F.gelu(x),
    "h * SiLU(h): one layer is its own gate": lambda x: x * F.silu(x),
    "h * GELU(h): the hidden layer is multiplied by its activations": lambda x: x * F.gelu(x),
}
GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of the gate and the hidden layer
    **{f"a gate with {name}": lambda p, q, act=act: act(p) * q for name, act in ACTIVATIONS.items()},  # type: ignore[misc]
    "SiLU of both factors": lambda p, q: F.silu(p) * F.silu(q),
    "SiLU of the product of gate and hidden layer": lambda p, q: F.silu(p * q),
    "gate and hidden layer added": lambda p, q: F.silu(p) + q,
}


def cubic(x: Tensor, factor: float) -> Tensor:
    """x plus a factor times its cube."""
    return x + factor * x**3


@dataclass(frozen=True)
class Hidden:
    """Numbers that are a function of linear maps of one row: a hidden layer with its activation."""

    base: tuple[int, ...]
    act: str
    """A key of ACTIVATIONS or GATES, or "" for another function."""
    gated: bool
    width: int


@dataclass(eq=False)
class Node:
    """One summand of streams: x, embedding, parameter, constant, norm, attention, mlp, linear, activation or other."""

    kind: str
    row: tuple[int, ...]
    line: int
    names: frozenset[str] = frozenset()
    """The parameters that it is made with."""
    reads: list[dict[Node, float]] = field(default_factory=list)
    norm: Norm | None = None
    hidden: Hidden | None = None
    op: str = ""
    """The operation that made another node."""
    attention: Found | None = None
    ends: Ends | None = None


Stream = dict[Node, float]


class Parts(Norms):
    """The parts of a program. `output` (B, T, D): what it returned, or what its last layer reads."""

    def __init__(self, reading: Reading, output: Ids) -> None:
        super().__init__(reading)
        self.output = output
        self.nodes: dict[Any, Node] = {}
        self.streams: dict[tuple[int, ...], Stream] = {}
        self.biases = set[str]()
        """The names of vectors that are added to a stream."""

    def stream(self, row: tuple[int, ...]) -> Stream:
        """The sum of nodes that a row of features of one token is."""
        if row not in self.streams:
            self.streams[row] = self.summed(row)
        return self.streams[row]

    def summed(self, row: tuple[int, ...]) -> Stream:
        """The same, worked out: the summands of each feature, put together by what made them."""
        for number in row:
            if isinstance(meaning := self.of[number], Other):
                raise Ends(meaning.op, meaning.line, "a step of a block is expected")
        groups: dict[Any, dict[int, tuple[int, float]]] = {}
        for place, number in enumerate(row):
            for key, leaf, factor in self.leaves(number):
                while place in groups.get(key, {}) and groups[key][place][0] != leaf:
                    key = (*key, "another")
                before = groups.setdefault(key, {}).get(place, (leaf, 0.0))[1]
                groups[key][place] = leaf, before + factor
        stream, attentions = Stream(), dict[int, list[tuple[tuple[int, ...], float]]]()
        for key, listed in groups.items():
            leaves, factors = tuple(leaf for leaf, _ in listed.values()), {round(one, 9) for _, one in listed.values()}
            whole = list(listed) == list(range(len(row))) and len(factors) == 1
            factor = factors.pop()
            if key[0] == "heads" and whole:
                attentions.setdefault(self.read_by(leaves[0]), []).append((leaves, factor))
            elif key[0] == "parameter" and self.reading.names.get(key[1]) == len(row):
                self.biases.update(key[1:])
            elif whole or key[0] == "constant":
                node = self.node(key, leaves)
                stream[node] = stream.get(node, 0.0) + factor
            else:
                stream[Node("other", leaves, self.line(leaves[0]))] = factor
        if any(node.kind == "other" for node in stream) and not attentions and self.norm(row):
            return {self.node(("norm",), row): 1.0}
        for listed_heads in attentions.values():
            added = zip(*(leaves for leaves, _ in listed_heads))
            leaves = tuple(self.total(one) for one in added)
            stream[self.node(("attention",), leaves)] = listed_heads[0][1]
        return stream

    def total(self, numbers: tuple[int, ...]) -> int:
        """The sum of some features."""
        first, *others = numbers
        for other in others:
            first = self.algebra.add(first, other)
        return first

    def line(self, number: int) -> int:
        """The line at which a number was made."""
        return self.of.made_at[number]

    def leaves(self, number: int, factor: float = 1.0) -> Iterator[tuple[Any, int, float]]:
        """The summands of a feature: a key that all features of a row have in common, the summand, and its factor."""
        meaning = self.of[number]
        if isinstance(meaning, Param):
            yield ("parameter", *self.of.names(number)), number, factor
        elif isinstance(meaning, Const):
            yield ("constant",), number, factor
        elif isinstance(meaning, Score):
            yield from self.leaves(self.algebra.as_feature(number), factor)
        elif not isinstance(meaning, Feature):
            yield ("heads",), number, factor * getattr(meaning, "factor", 1.0)
        for one, times in meaning.terms if isinstance(meaning, Feature) else ():
            atom: Atom = self.of[one]
            leaf, scaled = self.of.bare(one, meaning.tokens), factor * times
            if atom.op == "sum":
                for part in self.of.numbers_in(atom.row):
                    yield from self.leaves(part, scaled)
            elif atom.op == "bias" and not self.is_leaf(self.of.numbers_in(atom.row)[0]):
                for part in (*self.of.numbers_in(atom.row), *self.of.numbers_in(atom.column)):
                    yield from self.leaves(part, scaled)
            else:
                yield from self.keyed(atom, leaf, scaled)

    def is_leaf(self, number: int) -> bool:
        """Whether a bias that is added to a number belongs to it: to a layer or to a norm, not to a stream."""
        meaning = self.of[number]
        if isinstance(meaning, Score):
            return True
        if not isinstance(meaning, Feature) or len(meaning.terms) != 1:
            return False
        atom: Atom = self.of[meaning.terms[0][0]]
        both = atom.op == "linear" and self.of.kinds(atom.row) == {Feature, Mixture}
        return atom.op not in ("embedding", "input", "sum", "bias") and not both

    def keyed(self, atom: Atom, leaf: int, factor: float) -> Iterator[tuple[Any, int, float]]:
        """One summand with its key. A layer that reads mixtures and features at once is two of them."""
        layer = self.layer(leaf)
        if layer is None:
            name = self.of.names(self.of.numbers_in(atom.column)[0]) if atom.op == "embedding" else ()
            yield ("scaled" if atom.op == "linear" else atom.op, *name), leaf, factor
        elif Mixture not in self.of.kinds(layer.row):
            yield ("linear", layer.row), leaf, factor
        elif self.of.kinds(layer.row) == {Mixture}:
            yield ("heads", layer.row), leaf, factor
        else:
            pairs = list(zip(self.of.numbers_in(layer.row), self.of.numbers_in(layer.column)))
            for is_mixture in (True, False):
                some = [pair for pair in pairs if self.of.is_kind(pair[0], Mixture) == is_mixture]
                row, column = (self.of.row(side) for side in zip(*some))
                part = self.of.feature(self.of.tokens(leaf), Atom("linear", row, column))
                yield ("heads" if is_mixture else "linear", row), part, factor

    def node(self, key: Any, leaves: tuple[int, ...]) -> Node:
        """The node that a row of summands is."""
        known = key[:2] if key[0] in ("parameter", "constant") else leaves
        if known not in self.nodes:
            node = self.nodes[known] = self.read(key[0], leaves)
            node.names = node.names or self.names_in(leaves[:1])
            node.names |= frozenset(key[1:]) if key[0] in ("embedding", "parameter") else frozenset()
        return self.nodes[known]

    def read(self, op: str, leaves: tuple[int, ...]) -> Node:
        """What a row of summands is."""
        line = self.line(leaves[0])
        if op in ("input", "embedding", "parameter", "constant"):
            return Node("x" if op == "input" else op, leaves, line)
        if op == "attention":
            return self.attention(leaves, line)
        if op == "linear":
            layer = self.layer(leaves[0])
            assert layer is not None
            row = self.of.numbers_in(layer.row)
            norm = self.norm(row)
            hidden = None if norm else self.hidden(row)
            if hidden is None:
                return Node("linear", leaves, line, reads=[self.stream(row)])
            names = self.names_in(leaves[:1]) | self.names_in(row[:1], set(hidden.base))
            return Node("mlp", leaves, line, names, [self.stream(hidden.base)], hidden=hidden)
        if norm := self.norm(leaves):
            return Node("norm", leaves, line, self.names_in(leaves[:1], set(norm.base)), [self.stream(norm.base)], norm)
        if hidden := self.hidden(leaves):
            return Node("activation", leaves, line, reads=[self.stream(self.before(leaves))], hidden=hidden)
        return Node("other", leaves, line, op=self.algebra.op(leaves[0]))

    def before(self, leaves: tuple[int, ...]) -> tuple[int, ...]:
        """The layers that an activation is applied to."""
        below = (inner(self.of, [leaf], self.layer_of) for leaf in leaves)
        atoms = (next(atom for atom, _ in each if self.layer_of(atom)) for each in below)
        return tuple(self.of.bare(atom, self.of.tokens(leaves[0])) for atom in atoms)

    def names_in(self, numbers: tuple[int, ...], base: set[int] | None = None) -> frozenset[str]:
        """The names of the parameters that numbers are made with, down to the numbers in `base`, or to layers."""
        ends = {atom for number in base or () for atom, _ in getattr(self.of[number], "terms", ())}
        listed = list[int]()
        for one, atom in inner(self.of, numbers, lambda one: one in ends or (not base and self.layer_of(one))):
            bias = self.of.numbers_in(atom.row) if atom.op == "bias" else ()
            layers = [layer for number in bias if (layer := self.layer(number))]
            rows = [] if one in ends else [atom.column, *(layer.column for layer in layers)]
            rows += [] if self.layer_of(one) or one in ends else [atom.row]
            listed += [number for row in rows for number in self.of.numbers_in(row)]
        return frozenset(name for one in listed if self.of.is_kind(one, Param) for name in self.of.names(one))

    # what an activation is

    def hidden(self, row: tuple[int, ...]) -> Hidden | None:
        """The hidden layer that a row is: one function of one linear map, or of two, for each number; None if not."""
        p, q = torch.linspace(-4, 4, N + 1, dtype=torch.float64)[:-1] + 0.13, torch.linspace(3, -2, N).double()
        bases, values, gated = set[int](), list[Tensor](), False
        for number in row:
            layers = {atom: layer for atom, _ in inner(self.of, [number], self.layer_of)
                      if (layer := self.layer_of(atom))}  # fmt: skip
            if not 1 <= len(layers) <= 2 or any(Mixture in self.of.kinds(one.row) for one in layers.values()):
                if len(layers) != len(row) or self.algebra.op(row[0]) != "softmax":
                    return None
                read = self.of.numbers_in(next(iter(layers.values())).row)
                return Hidden(read, "a softmax over the hidden layer", False, len(row))
            bases |= {one.row for one in layers.values()}
            gated |= len(layers) == 2
            try:
                values.append(Values(self.of, dict(zip(layers, (p, q))), {}, N).of_number(number))
            except NotGiven:
                return None
        if len(bases) > 1:
            return None
        base = self.of.numbers_in(bases.pop())
        act = self.named(values, p, q, gated)
        return Hidden(base, act, gated, len(row))

    def named(self, values: list[Tensor], p: Tensor, q: Tensor, gated: bool) -> str:
        """The name of a function of p, or of p and q, all of whose values are given; "" for an unknown one."""
        if any(bool((one - values[0]).abs().max() > 1e-9) for one in values):
            return ""
        known = [(name, one) for name, act in GATES.items() for one in (act(p, q), act(q, p))] if gated else [
            (name, act(p)) for name, act in ACTIVATIONS.items()]  # fmt: skip
        return next((name for name, one in known if bool((one - values[0]).abs().max() < 1e-6)), "")

    # what an attention is

    def read_by(self, number: int) -> int:
        """The unit of the row that the queries of a projection of mixtures are made of."""
        layer = self.layer(number)
        mixture = number if layer is None else self.of.numbers_in(layer.row)[0]
        weight = self.of.numbers_in(self.of[mixture].weights)[0] if self.of.is_kind(mixture, Mixture) else -1
        query = self.of.numbers_in(self.of.query(weight))[:1] if weight >= 0 else ()
        layers = (self.layer_of(atom) for atom, _ in inner(self.of, query, self.layer_of))
        return next((self.of.unit(layer.row) for layer in layers if layer), 0)

    def attention(self, leaves: tuple[int, ...], line: int) -> Node:
        """The attention whose projection a row is."""
        node, names = Node("attention", leaves, line), [self.names_in(leaves[:1])]
        try:
            node.attention = Found.inside(self.reading, self.everywhere(leaves))
            attention = node.attention
            values = [self.of.row((value,)) for value in attention.values]
            token = self.of.tokens(attention.query_rows[0])
            sides = [[row for row in side if self.of.tokens(row) == token]
                     for side in (attention.query_rows, attention.key_rows, values)]  # fmt: skip
            names += [self.names_in(self.of.numbers_in(row)[:1]) for side in sides for row in side]
            names.append(frozenset(name for one in attention.beside for name in self.of.names(one)))
            for row in (row for side in sides for row in side[:1]):
                layer = attention.layer(next(attention.atoms(row)))
                if layer:
                    node.reads.append(self.stream(self.of.numbers_in(layer.row)))
        except Ends as error:
            node.ends = error
        node.names = frozenset().union(*names)
        return node

    def everywhere(self, leaves: tuple[int, ...]) -> Ids:
        """The same projection for all tokens: (B, T, D)."""
        ids = self.output.astype("int64")
        ids = ids[..., : len(leaves)].copy() if ids.shape[-1] >= len(leaves) else ids.repeat(len(leaves), -1)
        for place, leaf in enumerate(leaves):
            by_token = self.alike(leaf)
            for b, t in ((b, t) for b in range(ids.shape[0]) for t in range(ids.shape[1])):
                if (b, t) not in by_token:
                    raise Ends("an attention of some tokens", self.line(leaf), "one of all tokens is expected")
                ids[b, t, place] = by_token[b, t]
        return ids[..., : len(leaves)]

    def atoms_of(self, number: int) -> Iterator[int]:
        """The atoms of a feature, those of a long sum one by one; none for anything else."""
        for one, _ in self.of[number].terms if self.of.is_kind(number, Feature) else ():
            atom: Atom = self.of[one]
            for part in self.of.numbers_in(atom.row) if atom.op == "sum" else ():
                yield from self.atoms_of(part)
            yield from () if atom.op == "sum" else (one,)

    def alike(self, leaf: int) -> dict[tuple[int, int], int]:
        """The numbers of all tokens that are made as one is."""
        terms = list(self.atoms_of(leaf))
        numbers: dict[tuple[int, int], int] = {}
        if not terms:
            return {self.of.tokens(one)[0]: one for one in self.mixtures.get(self.of.unit(leaf), [])}
        for one in terms:
            layer = self.layer(self.of.bare(one, self.of.tokens(leaf)))
            by_token = dict[tuple[int, int], list[Atom]]()
            for atom in self.projections.get(layer.column, []) if layer else []:
                by_token.setdefault(self.of.tokens(atom.row)[0], []).append(atom)
            own = [atom.row for atom in by_token.get(self.of.tokens(leaf)[0], [])]
            rank = own.index(layer.row) if layer and layer.row in own else 0  # a layer may be used several times
            for token, atoms in by_token.items():
                number = self.of.feature((token,), atoms[min(rank, len(atoms) - 1)])
                numbers[token] = self.algebra.add(numbers[token], number) if token in numbers else number
        return numbers

    @cached_property
    def projections(self) -> dict[int, list[Atom]]:
        """The linear maps of mixtures, by the column of their parameters; of mixed rows the part of the mixtures."""
        maps: dict[int, list[Atom]] = {}
        for atom in [one for one in self.of.all if isinstance(one, Atom) and one.op == "linear"]:
            kinds = self.of.kinds(atom.row)
            if Mixture in kinds:
                pairs = zip(self.of.numbers_in(atom.row), self.of.numbers_in(atom.column))
                some = [pair for pair in pairs if self.of.is_kind(pair[0], Mixture)]
                row, column = (self.of.row(side) for side in zip(*some))
                maps.setdefault(column, []).append(Atom("linear", row, column))
        return maps

    @cached_property
    def mixtures(self) -> dict[int, list[int]]:
        """The mixtures by their units."""
        by_unit: dict[int, list[int]] = {}
        for number, one in enumerate(list(self.of.all)):
            if isinstance(one, Mixture):
                by_unit.setdefault(self.of.unit(number), []).append(number)
        return by_unit
