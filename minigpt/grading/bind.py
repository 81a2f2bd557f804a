"""Which of the learner's parameters plays which role: all are overwritten with known numbers, and the numbers decide.

A unit is a weight with its bias: a linear layer, a list of them (one a head), or a bare parameter. A binding takes a
form for each unit, so that every role is filled once. The likeliest by name come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.forms import Form, Unit, forms
from minigpt.grading.load import matrix_shape
from minigpt.grading.probes import numbers
from minigpt.grading.target import Parameters, Role, Sizes

MOST = 3000  # bindings that are looked at


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
    copies = [other for other in own if other != key and own[other].dim() == 2 and own[key].dim() == 3
              and own[other].shape[0] in own[key].shape and re.match("(?i)b", other)]  # fmt: skip
    if len(copies) == 1 and own[copies[0]].shape[1] in own[key].shape:
        return copies[0]
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


def bindings(units: Sequence[Unit], roles: Sequence[Role], sizes: Sizes, idle: set[str]) -> list[Binding]:
    """All ways to fill the roles, the likeliest first. Units in `idle` do not change the output and may be left out."""
    found: list[tuple[float, list[int], Binding]] = []
    choices = [sorted(forms(unit, roles, sizes), key=lambda form: -form.score) for unit in units]
    for places in assignments(units, choices, idle):
        chosen = [listed[place] if place < len(listed) else None for listed, place in zip(choices, places)]
        total = sum(form.score if form else -1.0 for form in chosen)
        found.append((total, places, make_binding(units, chosen, roles, sizes)))
        if len(found) >= MOST:
            break
    found.sort(key=lambda one: (len(one[2].missing), len(one[2].faults), -one[0], one[1]))
    return [binding for _, _, binding in found]


def assignments(units: Sequence[Unit], choices: list[list[Form]], idle: set[str]) -> Iterator[list[int]]:
    """The place of a form among the choices of every unit, no role twice; one behind the last leaves an idle unit out.

    Units with the fewest choices are placed first, so that what fits nowhere is seen early.
    """
    order = sorted(range(len(units)), key=lambda number: len(choices[number]))

    def extend(depth: int, filled: frozenset[str], places: dict[int, int]) -> Iterator[list[int]]:
        if depth == len(order):
            yield [places[number] for number in range(len(order))]
            return
        number = order[depth]
        for place, form in enumerate(choices[number]):
            if filled.isdisjoint(form.roles):
                yield from extend(depth + 1, filled.union(form.roles), {**places, number: place})
        if units[number].name in idle:
            yield from extend(depth + 1, filled, {**places, number: len(choices[number])})

    yield from extend(0, frozenset(), {})


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
