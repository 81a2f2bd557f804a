"""The ways to read a parameter: as one role, or as several roles that are joined in it (query, key and value in one
matrix, in any of the usual orders)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import combinations, permutations

import torch
from torch import Tensor, nn

from minigpt.grading.target import Role, Sizes

READ = ("query", "key", "value", "gate", "up")  # roles that read the same x: a parallel block may join them all
WRITTEN = ("output", "down")  # roles that write the same x
Part = tuple[str, Tensor, Tensor | None]


@dataclass
class Unit:
    """A weight (rows, columns) and its bias (rows), as in a linear layer; a bare parameter may have more axes."""

    name: str
    weight: Tensor | None
    bias: Tensor | None
    oriented: bool
    """Whether the rows are certainly the outputs, as in nn.Linear."""
    parameters: tuple[nn.Parameter, ...]


@dataclass(frozen=True)
class Form:
    """One reading of a unit."""

    given: tuple[Part, ...] | Callable[[], tuple[Part, ...]]  # or a function that makes them: few are needed
    how: str
    score: float
    fault: tuple[str, str] | None = None  # a sentence and its fix: this reading is a bug by itself
    taken: tuple[str, ...] = ()  # the roles that are taken from a matrix

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """(role, weight (*out, *into), bias (*out) or None) for each role."""
        return self.given() if callable(self.given) else self.given

    @cached_property
    def turns(self) -> bool:
        """Whether the form reads a matrix. In one file usually all matrices are transposed, or none is."""
        return bool(self.taken) or any(w.dim() > 1 and not role.endswith("_bias") for role, w, _ in self.parts)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles that it fills."""
        return self.taken or tuple(role for role, _, _ in self.parts)


@lru_cache(maxsize=4096)
def score(name: str, role: Role) -> float:
    """How well a parameter's name fits a role."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    words = re.split(r"[^a-z0-9]+", spaced)
    for rank, word in enumerate(role.words):
        if word in words:
            return 4 - 0.2 * rank + 0.5 * (word == words[-1])
    return 1.0 if any(len(word) > 2 and word in spaced for word in role.words) else 0.0


def forms(unit: Unit, roles: Sequence[Role], sizes: Sizes) -> list[Form]:
    """All forms of a unit."""
    assert unit.weight is not None
    found: list[Form] = []
    weight = unit.weight
    if weight.dim() == 1:
        for role in roles:
            if weight.numel() != role.rows(sizes):
                continue
            if not role.into:
                part = (role.name, weight, unit.bias)
                found.append(Form((part,), f"{unit.name} = {role.name}", score(unit.name, role)))
                if len(roles) == 1 and unit.bias is None:  # a single norm, whose bias is a unit of its own
                    bias = (f"{role.name}_bias", weight, None)
                    found.append(Form((bias,), f"{unit.name} = bias of {role.name}", -0.5))
            elif unit.bias is None:
                part = (f"{role.name}_bias", weight.reshape(tuple(sizes[axis] for axis in role.out)), None)
                found.append(Form((part,), f"{unit.name} = bias of {role.name}", score(unit.name, role) - 0.5))
        return found
    matrices = [(weight, "")] if unit.oriented else [(weight, ""), (weight.mT, ", transposed")]
    for matrix, turned in matrices:
        if matrix.dim() == 2:
            found += matrix_forms(unit, matrix, turned, roles, sizes)
        elif matrix.dim() == 3:
            found += stacked_forms(unit, matrix, turned, roles, sizes)
    if not unit.oriented and weight.dim() >= 3:
        found += bare_forms(unit, weight, roles, sizes)
    if not unit.oriented and weight.dim() == 4:
        found += [form for one in counted_twice(unit, weight, sizes) for form in forms(one, roles, sizes)]
    return found


def counted_twice(unit: Unit, weight: Tensor, sizes: Sizes) -> Iterator[Unit]:
    """A bare parameter of four axes, two of which count the heads: (D, G, H / G, d) as (D, H, d)."""
    for first, second in combinations(range(4), 2):
        if weight.shape[first] * weight.shape[second] == sizes.get("H"):
            joined = weight.movedim(second, first + 1).flatten(first, first + 1)
            bias = unit.bias.flatten(0, 1) if unit.bias is not None and unit.bias.dim() == 3 else unit.bias
            yield Unit(unit.name, joined, bias, False, unit.parameters)


def take(unit: Unit, matrix: Tensor, role: Role, rows: Tensor, sizes: Sizes) -> Part:
    """A role from these rows of a matrix."""
    weight = matrix[rows].reshape(role.shape(sizes))
    bias = None
    if unit.bias is not None and unit.bias.numel() == matrix.shape[0]:
        bias = unit.bias.flatten()[rows].reshape(tuple(sizes[axis] for axis in role.out))
    return role.name, weight, bias


def taken(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], rows: Sequence[Tensor], sizes: Sizes,
          score: float, how: str = "") -> Form:  # fmt: skip
    """A form of roles that are rows of one matrix; the rows are copied only when `parts` is first used."""
    names = tuple(role.name for role in roles)

    def parts() -> tuple[Part, ...]:
        return tuple(take(unit, matrix, role, each.flatten(), sizes) for role, each in zip(roles, rows))

    return Form(parts, f"{unit.name} = {'+'.join(names)}{turned}{how}", score, taken=names)


def matrix_forms(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A matrix (rows, columns) as one role, or as several joined ones."""
    fitting = [role for role in roles if role.into and role.columns(sizes) == matrix.shape[1]]
    for role in fitting:
        if role.rows(sizes) == matrix.shape[0]:
            rows = torch.arange(matrix.shape[0])
            yield taken(unit, matrix, turned, [role], [rows], sizes, score(unit.name, role))
    read = [role for role in fitting if role.name in READ]
    for chosen in [
        *permutations(fitting, 2),
        *permutations(fitting, 3),
        *permutations(read, 4),
        *permutations(read, 5),
    ]:
        if sum(role.rows(sizes) for role in chosen) == matrix.shape[0] and len({r.into for r in chosen}) == 1:
            yield from joined_forms(unit, matrix, turned, chosen, sizes)
    if [role.name for role in roles] == ["query", "key"] and sizes["H"] == 1 and unit.bias is None:
        yield from bilinear(unit, matrix, turned, roles, sizes)
    yield from side_by_side(unit, matrix, turned, [role for role in roles if role.name in WRITTEN], sizes)
    yield from faulty_forms(unit, matrix, turned, roles, sizes)


def bilinear(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A matrix (D, D) that stands for query and key together: the scores are x A x^T, A = Wq^T Wk.

    Not for a matrix with the name of a query or a key: there the other one is missing.
    """
    if matrix.shape == (sizes["D"], sizes["D"]) and not any(score(unit.name, role) for role in roles):
        alone = torch.eye(sizes["D"], dtype=matrix.dtype)  # (D, D)
        parts = (("query", matrix[None], None), ("key", alone[None], None))  # (1, D, D) each
        yield Form(parts, f"{unit.name} = query and key together, x A x^T{turned}", -1.0)


def side_by_side(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """Two roles in one matrix (D, H d + W) whose input is two joined vectors; its bias is added once."""
    for first, second in permutations(roles, 2):
        n = first.columns(sizes)
        alike = first.rows(sizes) == second.rows(sizes) == matrix.shape[0]
        if alike and n + second.columns(sizes) == matrix.shape[1]:
            parts = (
                (first.name, matrix[:, :n].reshape(first.shape(sizes)), unit.bias),
                (second.name, matrix[:, n:].reshape(second.shape(sizes)), None),
            )
            how = f"{unit.name} = {first.name}+{second.name}{turned}, side by side"
            yield Form(parts, how, 2.0 - 0.5 * (first.name != WRITTEN[0]))


def joined_forms(unit: Unit, matrix: Tensor, turned: str, chosen: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """Several roles in one matrix: one after the other, or head by head."""
    names, usual = [role.name for role in chosen], [*("query", "key", "value"), *(role.name for role in chosen)]
    rank = sum(score(unit.name, role) for role in chosen) / 10 - 1.5 * (names != sorted(names, key=usual.index))
    every = torch.arange(matrix.shape[0])
    form = partial(taken, unit, matrix, turned, chosen, sizes=sizes)
    yield form(every.split([role.rows(sizes) for role in chosen]), score=3 + rank)
    if len({role.heads(sizes) for role in chosen}) == 1 and len(chosen[0].out) == 2:
        H, d = (sizes[axis] for axis in chosen[0].out)
        n, mixed = len(chosen), partial(form, score=2 + rank)
        yield mixed(every.view(H, n, d).unbind(1), how=", head by head")
        yield mixed(every.view(H, d, n).unbind(2), how=", head by head, one feature of each")
        yield mixed(every.view(d, n, H).permute(1, 2, 0).unbind(), how=", feature by feature")
        yield mixed(every.view(d, H, n).permute(2, 1, 0).unbind(), how=", feature by feature, heads first")
    elif set(names) == {"query", "key", "value"} and "G" in chosen[-1].out and sizes["d"] == sizes.get("e", sizes["d"]):
        H, G, d = sizes["H"], sizes["G"], sizes["d"]
        grouped = every.view(G, H // G + 2, d)
        at = {"query": grouped[:, : H // G], "key": grouped[:, H // G], "value": grouped[:, H // G + 1]}
        yield form([at[name] for name in names], score=1 + rank, how=", group by group")


SHARED = (
    "all heads have the same matrix: the list holds one head {H} times, as in [Head()] * H",
    "[Head() for _ in range(H)] makes H of them",
)
NARROW = (
    "each head sees only its own {d} of the {D} features, through one small matrix (d, d) that all heads share",
    "project x (B, T, D) with nn.Linear(D, H * d), then split the heads",
)
SUMMED = (
    "the outputs of the heads are added instead of joined: the projection reads d = {d} numbers, not H d = {H*d}",
    "torch.cat(heads, dim=-1), and nn.Linear(H * d, D)",
)


AVERAGED = (
    "the outputs of the heads are averaged instead of joined: the projection reads d = {d} numbers, not H d = {H*d}",
    SUMMED[1],
)


def faulty_forms(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """Readings that are bugs by themselves: one matrix for all heads."""
    for role in roles:
        heads = sizes[role.out[0]] if len(role.out) == 2 else 0
        if heads > 1 and role.into == ("D",) and matrix.shape == (sizes[role.out[1]], sizes["D"]):
            bias = None if unit.bias is None else unit.bias.expand(heads, -1)
            part = (role.name, matrix.expand(heads, *matrix.shape), bias)
            yield Form((part,), f"{unit.name} = {role.name} of every head{turned}", score(unit.name, role), SHARED)
        if heads > 1 and role.into == ("D",) and matrix.shape == (sizes[role.out[1]],) * 2:
            weight = torch.block_diag(*[matrix] * heads)  # (H d, H d)
            if weight.shape[1] == sizes["D"]:
                bias = None if unit.bias is None else unit.bias.expand(heads, -1)
                part = (role.name, weight.view(role.shape(sizes)), bias)
                yield Form((part,), f"{unit.name} = {role.name} of every head{turned}", score(unit.name, role), NARROW)
        joined = len(role.into) == 2 and role.into[0] == "H" and sizes["H"] > 1  # an output projection's
        if joined and matrix.shape == (role.rows(sizes), sizes[role.into[1]]):
            weight = matrix[:, None].expand(-1, sizes["H"], -1)  # (D, H, d)
            for factor, fault in ((1, SUMMED), (1 / sizes["H"], AVERAGED)):
                part = (role.name, weight * factor, unit.bias)
                yield Form((part,), f"{unit.name} = {role.name}", score(unit.name, role), fault)


def stacked_forms(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A matrix for each head, (copies, rows, columns), as a role of as many heads, or as several joined roles."""
    copies, rows, columns = matrix.shape
    fitting = []
    for role in roles:
        out, into = (tuple(sizes[a] for a in axes) for axes in (role.out, role.into))
        if len(out) == 2 and out[0] == copies and columns == role.columns(sizes):
            fitting.append(role)
            if out[1] == rows:
                bias = unit.bias if unit.bias is not None and unit.bias.shape == out else None
                part = (role.name, matrix.reshape(role.shape(sizes)), bias)
                yield Form((part,), f"{unit.name} = {role.name}, a head each{turned}", score(unit.name, role))
        if len(into) == 2 and into[0] == copies and into[1] == columns and role.rows(sizes) == rows:
            part = (role.name, matrix.transpose(0, 1).reshape(role.shape(sizes)), None)
            if unit.bias is not None:
                part = (role.name, part[1], unit.bias.sum(dim=0) if unit.bias.dim() == 2 else unit.bias)
            yield Form((part,), f"{unit.name} = {role.name}, a head each{turned}", score(unit.name, role))
    for count in (2, 3):
        for chosen in permutations(fitting, count):
            width = sizes[chosen[0].out[1]]
            if rows == width * count and len({role.heads(sizes) for role in chosen}) == 1:
                parts = []
                for i, role in enumerate(chosen):
                    bias = None if unit.bias is None else unit.bias[:, i * width : (i + 1) * width]
                    parts.append((role.name, matrix[:, i * width : (i + 1) * width], bias))
                names = "+".join(role.name for role in chosen)
                yield Form(tuple(parts), f"{unit.name} = {names}, a head each{turned}", 2.0)


def bare_forms(unit: Unit, weight: Tensor, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A bare parameter of three axes in any order, or of three or four axes, one of which counts joined roles."""
    if weight.dim() == 3:
        for role in roles:
            shape = role.shape(sizes)
            for axes in permutations(range(3)) if len(shape) == 3 else ():
                if tuple(weight.shape[axis] for axis in axes) == shape and axes not in ((0, 1, 2), (0, 2, 1)):
                    out = shape[: len(role.out)]
                    bias = unit.bias if unit.bias is not None and tuple(unit.bias.shape) == out else None
                    part = (role.name, weight.permute(axes), bias)
                    yield Form((part,), f"{unit.name} = {role.name}", score(unit.name, role) - 0.1)
    yield from joined_bare_forms(unit, weight, roles, sizes)


def joined_bare_forms(unit: Unit, weight: Tensor, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A bare parameter of three or four axes, one of which counts joined roles."""
    for axis in [axis for axis in range(weight.dim()) if weight.shape[axis] in (2, 3)]:
        pieces = weight.unbind(axis)
        biases = [*unit.bias] if unit.bias is not None and len(unit.bias) == len(pieces) else [None] * len(pieces)
        for axes in permutations(range(weight.dim() - 1)):
            turned = [piece.permute(axes) for piece in pieces]
            fitting = [role for role in roles if role.into and has_shape(turned[0], role, sizes)]
            for chosen in permutations(fitting, len(pieces)):
                parts = tuple(
                    (role.name, piece.reshape(role.shape(sizes)),
                     bias.reshape(role.heads(sizes)) if bias is not None and bias.numel() == role.rows(sizes) else None)
                    for role, piece, bias in zip(chosen, turned, biases)
                )  # fmt: skip
                names = [role.name for role in chosen]
                usual = names == sorted(names, key=[*READ, *(role.name for role in roles)].index)
                yield Form(parts, f"{unit.name} = {'+'.join(names)}", 0.5 + usual)


def has_shape(weight: Tensor, role: Role, sizes: Sizes) -> bool:
    """Whether a weight has a role's axes, or its rows and columns."""
    return tuple(weight.shape) in (role.shape(sizes), (role.rows(sizes), role.columns(sizes)))
