"""Which of the learner's parameters plays which role: all are overwritten with known numbers, and the numbers decide.

A unit is a weight with its bias: a linear layer, a list of them (one a head), or a bare parameter. A form is one way to
read a unit: as one role, or as several joined ones (query, key and value in one matrix, in any of the usual orders).
A binding takes a form for each unit, so that every role is filled once. The likeliest by name come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.load import matrix_shape
from minigpt.grading.probes import numbers
from minigpt.grading.target import Parameters, Role, Sizes

MOST = 3000  # bindings that are looked at
Rows = tuple[str, Tensor, Tensor]  # a role, its rows (rows,) in the unit's matrix, its columns (columns,)


@dataclass
class Unit:
    """A weight (rows, columns), seen as what a linear layer has, with its bias (rows)."""

    name: str
    weight: Tensor | None
    bias: Tensor | None
    oriented: bool
    """Whether rows are outputs for sure, as in nn.Linear."""
    parameters: tuple[nn.Parameter, ...]


@dataclass(frozen=True)
class Form:
    """One reading of a unit."""

    parts: tuple[tuple[str, Tensor, Tensor | None], ...]  # role, weight (*out, *into), bias (*out)
    how: str
    score: float
    fault: tuple[str, str] | None = None  # a sentence and its fix: this reading is a bug by itself

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that it fills."""
        return tuple(role for role, _, _ in self.parts)


@dataclass
class Binding:
    """All roles, filled."""

    parameters: Parameters
    how: list[str]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    faults: tuple[tuple[str, str], ...] = ()


def overwrite(module: nn.Module) -> None:
    """Put known random numbers into every parameter, of a size that keeps scores near one; norms stay near one."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            drawn = numbers(*parameter.shape, seed=1000 + number)
            if parameter.dim() < 2:
                drawn = 0.3 * drawn + (parameter.double().mean() == 1).double()  # a norm's weight starts at one
            else:
                drawn = drawn * max(parameter.shape[-1], 1) ** -0.5
            parameter.copy_(drawn)


def units_of(module: nn.Module, copies: Sequence[int]) -> list[list[Unit]]:
    """The units, in one or two readings: a list of equal layers may be one unit with a copy a head, or several."""
    single = list(single_units(module))
    stacked = stack(single, copies)
    return [stacked, single] if len(stacked) != len(single) else [single]


def single_units(module: nn.Module) -> Iterator[Unit]:
    """A unit for every weight with its bias, in the order of definition."""
    seen = set[int]()
    for name, inner in module.named_modules():
        own = {key: value for key, value in inner.named_parameters(recurse=False) if id(value) not in seen}
        seen |= {id(value) for value in own.values()}
        biases = {bias_name(key, own) for key, value in own.items() if value.dim() == 3}  # (H, d) may be one of them
        for key in [key for key, value in own.items() if value.dim() >= 2 and key not in biases]:
            bias = own.pop(key.replace("weight", "bias"), None) if "weight" in key else None
            bias = bias if bias is not None else own.pop(bias_name(key, own), None)
            weight = own.pop(key)
            label = name if key == "weight" else f"{name}.{key}".lstrip(".")
            oriented = isinstance(inner, (nn.Linear, nn.MultiheadAttention, nn.Conv1d))
            matrix = weight.view(matrix_shape(weight)) if isinstance(inner, nn.Conv1d) else weight
            used = (weight,) if bias is None else (weight, bias)
            yield Unit(label, matrix.detach(), None if bias is None else bias.detach(), oriented, used)
        if pair := norm_names(own):
            weight, bias = (own.pop(key) for key in pair)
            yield Unit(name, weight.detach(), bias.detach(), True, (weight, bias))
        for key, value in own.items():
            yield Unit(f"{name}.{key}".lstrip("."), value.detach(), None, False, (value,))


def norm_names(own: dict[str, nn.Parameter]) -> tuple[str, str] | None:
    """The names of a norm's weight and bias: the two vectors of a module that has nothing else."""
    if len(own) != 2 or len({value.shape for value in own.values()}) != 1:
        return None
    biases = [key for key in own if re.split(r"[_\d]", key.lower())[0] in ("bias", "beta", "b", "shift", "offset")]
    return (next(key for key in own if key != biases[0]), biases[0]) if len(biases) == 1 else None


def bias_name(key: str, own: dict[str, Any]) -> str:
    """The name of the bias that goes with a bare weight: W_q and b_q; W and b, where there is no other weight."""
    stem = re.sub(r"(?i)^(w|weight)_?|_?(weight|kernel|matrix)$", "", key)
    if not stem and sum(value.dim() >= 2 for value in own.values()) > 1:
        return ""
    for other in own:
        vector = own[other].dim() == 1 or own[other].dim() < own[key].dim() == 3
        if vector and other != key and stem == re.sub(r"(?i)^(b|bias)_?|_?bias$", "", other):
            return other
    return ""


def stack(single: list[Unit], copies: Sequence[int]) -> list[Unit]:
    """Layers whose names differ by one number only become one unit with a first axis of as many copies."""
    groups: dict[tuple[object, ...], list[Unit]] = {}
    for unit in single:
        shape = None if unit.weight is None else tuple(unit.weight.shape)
        starred: object = re.sub(r"(?<![a-zA-Z])\d+(?![a-zA-Z])", "*", unit.name, count=1)
        groups.setdefault((starred, shape, unit.bias is None), []).append(unit)
    made = []
    for (first, *_), members in groups.items():
        if len(members) in copies and len(members) > 1:
            weights = [unit.weight for unit in members if unit.weight is not None]
            biases = [unit.bias for unit in members if unit.bias is not None]
            parameters = tuple(parameter for unit in members for parameter in unit.parameters)
            made.append(Unit(str(first), torch.stack(weights), torch.stack(biases) if biases else None,
                             members[0].oriented, parameters))  # fmt: skip
        else:
            made += members
    return made


def score(name: str, role: Role) -> float:
    """How much a parameter's name sounds like a role."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    words = re.split(r"[^a-z0-9]+", spaced)
    for rank, word in enumerate(role.words):
        if word in words:
            return 4 - 0.2 * rank + 0.5 * (word == words[-1])
    return 1.0 if any(len(word) > 2 and word in spaced for word in role.words) else 0.0


def forms(unit: Unit, roles: Sequence[Role], sizes: Sizes) -> list[Form]:
    """All readings of a unit."""
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
                if len(roles) == 1 and unit.bias is None:  # a norm alone, whose bias has a name of its own
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
    return found


Part = tuple[str, Tensor, Tensor | None]


def take(unit: Unit, matrix: Tensor, role: Role, rows: Tensor, sizes: Sizes) -> Part:
    """A role from these rows of a matrix."""
    weight = matrix[rows].reshape(role.shape(sizes))
    bias = None
    if unit.bias is not None and unit.bias.numel() == matrix.shape[0]:
        bias = unit.bias.flatten()[rows].reshape(tuple(sizes[axis] for axis in role.out))
    return role.name, weight, bias


def matrix_forms(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A matrix (rows, columns) as one role, or as several joined ones."""
    fitting = [role for role in roles if role.into and role.columns(sizes) == matrix.shape[1]]
    for role in fitting:
        if role.rows(sizes) == matrix.shape[0]:
            part = take(unit, matrix, role, torch.arange(matrix.shape[0]), sizes)
            yield Form((part,), f"{unit.name} = {role.name}{turned}", score(unit.name, role))
    for count in (2, 3):
        for chosen in permutations(fitting, count):
            if sum(role.rows(sizes) for role in chosen) == matrix.shape[0] and len({r.into for r in chosen}) == 1:
                yield from joined_forms(unit, matrix, turned, chosen, sizes)
    yield from faulty_forms(unit, matrix, turned, roles, sizes)


def joined_forms(unit: Unit, matrix: Tensor, turned: str, chosen: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """Several roles in one matrix: one after the other, or head by head."""
    names, usual = [role.name for role in chosen], [*("query", "key", "value"), *(role.name for role in chosen)]
    rank = sum(score(unit.name, role) for role in chosen) / 10 - 1.5 * (names != sorted(names, key=usual.index))
    start, parts = 0, []
    for role in chosen:
        parts.append(take(unit, matrix, role, start + torch.arange(role.rows(sizes)), sizes))
        start += role.rows(sizes)
    words = f"{unit.name} = {'+'.join(names)}{turned}"
    yield Form(tuple(parts), words, 3 + rank)
    if len({role.heads(sizes) for role in chosen}) == 1 and len(chosen[0].out) == 2:
        H, d = (sizes[axis] for axis in chosen[0].out)
        n, index = len(chosen), torch.arange(matrix.shape[0])
        views = {
            "head by head": index.view(H, n, d).permute(1, 0, 2),
            "head by head, one feature of each": index.view(H, d, n).permute(2, 0, 1),
            "feature by feature": index.view(d, n, H).permute(1, 2, 0),
            "feature by feature, heads first": index.view(d, H, n).permute(2, 1, 0),
        }
        for how, view in views.items():
            split = tuple(take(unit, matrix, role, view[i].flatten(), sizes) for i, role in enumerate(chosen))
            yield Form(split, f"{words}, {how}", 2 + rank)
    elif set(names) == {"query", "key", "value"} and "G" in chosen[-1].out:
        H, G, d = sizes["H"], sizes["G"], sizes["d"]
        grouped = torch.arange(matrix.shape[0]).view(G, H // G + 2, d)
        at = {"query": grouped[:, : H // G], "key": grouped[:, H // G], "value": grouped[:, H // G + 1]}
        split = tuple(take(unit, matrix, role, at[role.name].flatten(), sizes) for role in chosen)
        yield Form(split, f"{words}, group by group", 1 + rank)


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
        if role.into == ("H", "d") and sizes["H"] > 1 and matrix.shape == (role.rows(sizes), sizes["d"]):
            weight = matrix[:, None].expand(-1, sizes["H"], -1)  # (D, H, d)
            for factor, fault in ((1, SUMMED), (1 / sizes["H"], AVERAGED)):
                part = (role.name, weight * factor, unit.bias)
                yield Form((part,), f"{unit.name} = {role.name}", score(unit.name, role), fault)


def stacked_forms(unit: Unit, matrix: Tensor, turned: str, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A matrix for each head, (copies, rows, columns): roles one of whose axes counts the copies."""
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
    """A bare parameter of three or four axes, in any order of them; the first of four counts joined roles."""
    if weight.dim() == 3:
        for role in roles:
            shape = role.shape(sizes)
            for axes in permutations(range(3)) if len(shape) == 3 else ():
                if tuple(weight.shape[axis] for axis in axes) == shape and axes not in ((0, 1, 2), (0, 2, 1)):
                    out = shape[: len(role.out)]
                    bias = unit.bias if unit.bias is not None and tuple(unit.bias.shape) == out else None
                    part = (role.name, weight.permute(axes), bias)
                    yield Form((part,), f"{unit.name} = {role.name}", score(unit.name, role) - 0.1)
    elif weight.dim() == 4:
        yield from joined_bare_forms(unit, weight, roles, sizes)


def joined_bare_forms(unit: Unit, weight: Tensor, roles: Sequence[Role], sizes: Sizes) -> Iterator[Form]:
    """A bare parameter of four axes, one of which counts joined roles."""
    for axis in [axis for axis in range(4) if weight.shape[axis] in (2, 3)]:
        pieces = weight.unbind(axis)
        for chosen in permutations([role for role in roles if len(role.shape(sizes)) == 3], len(pieces)):
            for axes in permutations(range(3)):
                turned = [piece.permute(axes) for piece in pieces]
                if all(piece.shape == role.shape(sizes) for piece, role in zip(turned, chosen)):
                    parts = tuple((role.name, piece, None) for role, piece in zip(chosen, turned))
                    yield Form(parts, f"{unit.name} = {'+'.join(role.name for role in chosen)}", 1.0)


def bindings(units: Sequence[Unit], roles: Sequence[Role], sizes: Sizes, idle: set[str]) -> list[Binding]:
    """All ways to fill the roles, the likeliest first. Units in `idle` do not change the output and may be left out."""
    found: list[tuple[float, Binding]] = []
    choices = [sorted(forms(unit, roles, sizes), key=lambda form: -form.score) for unit in units]
    for total, chosen in assignments(units, choices, idle):
        found.append((total, make_binding(units, chosen, roles, sizes)))
        if len(found) >= MOST:
            break
    found.sort(key=lambda pair: (len(pair[1].missing), len(pair[1].faults), -pair[0]))
    return [binding for _, binding in found]


def assignments(
    units: Sequence[Unit], choices: list[list[Form]], idle: set[str]
) -> Iterator[tuple[float, list[Form | None]]]:
    """A form for every unit, no role twice; None leaves an idle unit out."""

    def extend(number: int, filled: frozenset[str], chosen: list[Form | None], total: float) -> Iterator[Any]:
        if number == len(units):
            yield total, list(chosen)
            return
        for form in choices[number]:
            if not filled & set(form.roles):
                yield from extend(number + 1, filled | set(form.roles), [*chosen, form], total + form.score)
        if units[number].name in idle:
            yield from extend(number + 1, filled, [*chosen, None], total - 1.0)

    yield from extend(0, frozenset(), [], 0.0)


def make_binding(units: Sequence[Unit], chosen: Sequence[Form | None], roles: Sequence[Role], sizes: Sizes) -> Binding:
    """The parameters by role."""
    parameters: dict[str, Tensor] = {}
    for form in chosen:
        for role, weight, bias in form.parts if form else ():
            parameters[role] = weight.double()
            if bias is not None:
                parameters[f"{role}_bias"] = bias.double()
    missing = tuple(role.name for role in roles if role.needed and role.name not in parameters)
    unused = tuple(unit.name for unit, form in zip(units, chosen) if form is None)
    faults = tuple(dict.fromkeys(form.fault for form in chosen if form and form.fault))
    return Binding(parameters, [form.how for form in chosen if form], missing, unused, faults)
