"""Which of the learner's parameters plays which role: all are overwritten with known numbers, and the output decides.

A unit is a weight with its bias: a linear layer, a list of linear layers (one per head), or a bare parameter. A form is
one way to read a unit as roles. A binding chooses one form for each unit, so that every role is filled once. Bindings
whose parameter names fit the roles best come first.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.forms import Form, Unit, forms
from minigpt.grading.load import matrix_shape
from minigpt.grading.probes import numbers
from minigpt.grading.target import Role, Sizes

MOST, MOST_MADE = 3000, 400  # the most bindings that are scored, and the most that are made
NUMBERS = count()


@dataclass
class Binding:
    """One assignment of the parameters to the roles."""

    parameters: dict[str, Tensor]
    how: list[str]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    faults: tuple[tuple[str, str], ...] = ()
    number: int = field(default_factory=lambda: next(NUMBERS))
    """Unique in this Python process."""
    names: tuple[str, ...] = ()
    """The keys of `parameters`, sorted."""
    identities: dict[tuple[str, ...], tuple[object, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = tuple(sorted(self.parameters))

    def tensors(self, names: tuple[str, ...]) -> tuple[object, ...]:
        """A key: equal for two bindings that have the same `self.names` and the same tensors under `names`."""
        if names not in self.identities:
            self.identities[names] = self.names, *(id(self.parameters[name]) for name in names)
        return self.identities[names]


def overwrite(module: nn.Module) -> None:
    """Overwrite every parameter with known random numbers. Scores stay near one, and so do the weights of norms."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            drawn = numbers(*parameter.shape, seed=1000 + number)
            if parameter.dim() < 2:
                drawn = 0.3 * drawn + (parameter.double().mean() == 1).double()  # a norm's weight starts at one
            else:
                drawn = drawn * max(parameter.shape[-1], 1) ** -0.5
            parameter.copy_(drawn)


def units_of(module: nn.Module, copies: Sequence[int]) -> list[list[Unit]]:
    """The units, in one or two ways: a list of equal layers is one unit with a copy per head, or several units."""
    single = list(single_units(module))
    stacked = stack(single, copies)
    return [stacked, single] if len(stacked) != len(single) else [single]


def single_units(module: nn.Module) -> Iterator[Unit]:
    """A unit for every weight with its bias, in the order of definition."""
    seen = set[int]()
    for name, inner in module.named_modules():
        own = {key: value for key, value in inner.named_parameters(recurse=False) if id(value) not in seen}
        seen |= {id(value) for value in own.values()}
        biases = {bias_name(key, own) for key, value in own.items() if value.dim() >= 3}  # (H, d) may be one of them
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
    """The names of a norm's weight and bias: the two vectors of a module that has nothing else. None otherwise."""
    if len(own) != 2 or len({value.shape for value in own.values()}) != 1:
        return None
    biases = [key for key in own if re.split(r"[_\d]", key.lower())[0] in ("bias", "beta", "b", "shift", "offset")]
    return (next(key for key in own if key != biases[0]), biases[0]) if len(biases) == 1 else None


def bias_name(key: str, own: dict[str, Any]) -> str:
    """The name of a bare weight's bias: b_q for W_q; b for W, if there is no other weight. "" if it has none."""
    copies = [other for other in own if other != key and own[other].dim() == 2 and own[key].dim() == 3
              and own[other].shape[0] in own[key].shape and re.match("(?i)b", other)]  # fmt: skip
    if len(copies) == 1 and own[copies[0]].shape[1] in own[key].shape:
        return copies[0]
    stem = re.sub(r"(?i)^(w|weight)_?|_?(weight|kernel|matrix)$", "", key)
    if not stem and sum(value.dim() >= 2 for value in own.values()) > 1:
        return ""
    for other in own:
        vector = own[other].dim() == 1 or own[other].dim() < own[key].dim() in (3, 4)
        if vector and other != key and stem == re.sub(r"(?i)^(b|bias)_?|_?bias$", "", other):
            return other
    return ""


def stack(single: list[Unit], copies: Sequence[int]) -> list[Unit]:
    """Join layers whose names differ in one number only into one unit (copies, ...), if `copies` holds their number."""
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


def bindings(
    units: Sequence[Unit], roles: Sequence[Role], sizes: Sizes, idle: set[str], spare: Container[str] = ()
) -> list[Binding]:
    """The likeliest ways to fill the roles, best first. Units in `idle` do not change the output: they may stay out.

    Bindings in which a role is missing that is not in `spare` come last.
    """
    found: list[tuple[bool, int, int, float, bool, list[int]]] = []
    choices = [sorted(forms(unit, roles, sizes), key=lambda form: -form.score) for unit in units]
    needed = [role.name for role in roles if role.needed]
    for places, filled in assignments(units, choices, idle):
        chosen = [listed[place] for listed, place in zip(choices, places) if place < len(listed)]
        total = sum(form.score for form in chosen) - (len(units) - len(chosen))
        missing = [name for name in needed if name not in filled]
        faults = len({form.fault for form in chosen if form.fault})
        turned = [", transposed" in form.how for form in chosen if form.turns]
        found.append((not all(name in spare for name in missing), len(missing), faults,
                      -total, 0 < sum(turned) < len(turned), places))  # fmt: skip
        if len(found) >= MOST:
            break
    best = [[listed[place] if place < len(listed) else None for listed, place in zip(choices, places)]
            for *_, places in sorted(found)[:MOST_MADE]]  # fmt: skip
    return [make_binding(units, chosen, roles, sizes) for chosen in best]


def assignments(
    units: Sequence[Unit], choices: list[list[Form]], idle: set[str]
) -> Iterator[tuple[list[int], frozenset[str]]]:
    """Yields (the index of the chosen form for each unit, the roles that these forms fill), with no role twice.

    An index one past the last form leaves an idle unit out. Units with the fewest forms are placed first: a dead end
    shows early.
    """
    order = sorted(range(len(units)), key=lambda number: len(choices[number]))

    def extend(depth: int, filled: frozenset[str], places: list[int]) -> Iterator[tuple[list[int], frozenset[str]]]:
        if depth == len(order):
            yield [*places], filled
            return
        number = order[depth]
        for place, form in enumerate(choices[number]):
            if filled.isdisjoint(form.roles):
                places[number] = place
                yield from extend(depth + 1, filled.union(form.roles), places)
        if units[number].name in idle:
            places[number] = len(choices[number])
            yield from extend(depth + 1, filled, places)

    yield from extend(0, frozenset(), [0] * len(units))


def make_binding(units: Sequence[Unit], chosen: Sequence[Form | None], roles: Sequence[Role], sizes: Sizes) -> Binding:
    """The binding that these forms make; None leaves a unit out."""
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
