"""The ways to read an answer: every call that returns something, with every binding of its parameters.

Bugs are searched for in some of them only. Measurements from outside choose these: does a later token change an earlier
row, does one sequence of the batch change another?
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.bind import Binding, bindings, units_of
from minigpt.grading.call import Call, calls
from minigpt.grading.clock import Budget
from minigpt.grading.forms import Unit
from minigpt.grading.heads_call import given_calls, has_heads
from minigpt.grading.lines import uses_float32
from minigpt.grading.load import Answer
from minigpt.grading.naming import SINGLES, Reading
from minigpt.grading.outputs import Expected, Outputs
from minigpt.grading.report import Report
from minigpt.grading.sizes import attribute, possible_sizes
from minigpt.grading.target import Knobs, Probe, Sizes, Target
from minigpt.grading.whole import FEW, is_model, likely, model_bindings, model_calls, model_sizes, prepared

MOST_READINGS, MOST_NATURAL, MOST_SIZES = 400, 4, 4
MANY = 8  # bindings


@dataclass
class Attempt:
    """An answer, and everything that is known about it so far."""

    answer: Answer
    target: Target
    report: Report
    budget: Budget
    """The budget of the search for a reading that is right."""
    errors: list[str] = field(default_factory=list)
    plain: bool = False
    """Whether a call with nothing but the target's inputs raised: that error is the answer's own."""
    readings: list[Reading] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    silent: dict[str, bool] = field(default_factory=dict)
    """Which settings of the knobs change nothing for one token; computed once."""
    shown: dict[str, Knobs] = field(default_factory=dict)
    """The fewest knobs of two conventions that compute the same for one token; computed once."""
    agreeing: list[Reading] = field(default_factory=list)
    """For a block or a model: the readings that are right for one token."""
    right: bool = False
    """Whether one of `agreeing` is right for every probe."""
    homeless: list[str] = field(default_factory=list)
    natural: list[list[Reading]] = field(default_factory=list)
    """The readings in which bugs are searched for, by call."""
    alone: list[Reading] = field(default_factory=list)
    """The readings with one sequence at a time."""

    @property
    def thing(self) -> Any:
        """The function or the module."""
        return self.answer.thing


def find_readings(attempt: Attempt) -> None:
    """Fills `attempt.readings`: every call that returns something, with every binding. Raises CannotCall."""
    thing, attempt.target = attempt.thing, prepared(attempt.thing, attempt.target)
    target = attempt.target
    called: dict[object, list[tuple[Call, Outputs]]] = {}  # of the sizes, only D changes an answer's output
    for sizes in model_sizes(thing, target) if is_model(target) else possible_sizes(thing, target):
        attempt.answer.clock.look()
        if "W" in target.sizes and "H" in target.sizes and decided(attempt, sizes):
            continue
        key = tuple(sizes.items()) if is_model(target) else sizes["D"] if target.roles else 0
        if key not in called:
            listed = calls_of(thing, target, sizes)
            called[key] = working_calls(attempt, listed, target.probes(sizes))
        working = called[key]
        if not working:
            continue
        found = find_bindings(attempt, sizes, working[0][1])
        expected = Expected(target, sizes, working[0][1].probes, len(found) > MANY)
        agreeing = likely(expected, found, working) if "W" in target.sizes and found else []
        few = found[:FEW] if "W" in target.sizes else found
        pairs = agreeing or [(binding, call, outputs) for binding in few for call, outputs in working]
        expected.many = len({binding.number for binding, _, _ in pairs}) > MANY
        new = [
            Reading(target, sizes, b, outputs, expected, attempt.budget, silent=attempt.silent, shown=attempt.shown)
            for b, _, outputs in pairs
        ]
        attempt.readings += new
        attempt.calls += [call for _, call, _ in pairs]
        attempt.agreeing += new if agreeing else []
        attempt.right |= bool(agreeing) and any(reading.equals({}) for reading in new)
        attempt.calls = attempt.calls or [call for call, _ in working]


def calls_of(thing: Any, target: Target, sizes: Sizes) -> Iterable[Call]:
    """Every way to call an answer to this target."""
    if is_model(target):
        return model_calls(thing, target, sizes)
    return given_calls(thing, target) if has_heads(target) else calls(thing, target)


def decided(attempt: Attempt, sizes: Sizes) -> bool:
    """Whether a block or a model need not be read with these sizes.

    Its parameters have many readings. One token distinguishes the right one from the wrong ones, but not the number of
    heads: other numbers of heads are tried if the module does not say how many it has.
    """
    named = attribute(attempt.thing, "H") if isinstance(attempt.thing, nn.Module) else []
    tried = any(reading.sizes["H"] in named for reading in attempt.readings)
    same = any(reading.sizes["H"] == sizes["H"] for reading in attempt.agreeing)
    return attempt.right or same or (tried and sizes["H"] not in named)


def working_calls(attempt: Attempt, listed: Iterable[Call], probes: Sequence[Probe]) -> list[tuple[Call, Outputs]]:
    """The calls that return something for the first probe; most other layouts only if the first one fails."""
    working: list[tuple[Call, Outputs]] = []
    for call in listed:
        if working and call.protocol == "token":  # only if nothing else works: token by token, positions are hidden
            continue
        outputs = Outputs(runner(attempt, call), probes, attempt.answer.float32 and has_tables(attempt.target))
        first = outputs[0]
        if isinstance(first, Exception):
            attempt.errors.append(explain(first, attempt.answer.path))
            attempt.plain |= call.plain
        elif not working or call.layout in (working[0][0].layout, "(T, B, D)", "(B, T, H, D)", "(B, T, H, d)"):
            working.append((call, outputs))
    return working


def has_tables(target: Target) -> bool:
    """Whether an answer may multiply by a table such as sines and cosines. (A mask's numbers are exact in float32.)"""
    return is_model(target) or target.name == "rotary" or target.options.rotary or target.options.alibi


def runner(attempt: Attempt, call: Call) -> Any:
    """A function that runs the answer on a probe; an answer with a cache is copied for every probe."""

    def run(probe: Probe) -> Tensor:
        thing = attempt.thing
        if probe.chunks or (call.protocol == "kept" and attempt.target.options.cache):
            with suppress(Exception):  # a module that keeps weights from a call cannot be copied
                thing = copy.deepcopy(thing)
        return call.run(thing, probe)

    return run


def find_bindings(attempt: Attempt, sizes: Sizes, outputs: Outputs) -> list[Binding]:
    """The ways to assign roles to the parameters so that every parameter that changes the output has one."""
    if not isinstance(attempt.thing, nn.Module) or not attempt.target.roles:
        return [Binding({}, [], (), ())]
    target, kept = attempt.target, attempt.answer.kept

    def used(unit: Unit) -> bool:  # depends on D and V only: a model is read with many sizes
        key = ("used", sizes["D"], sizes.get("V", 0), *map(id, unit.parameters))
        if key not in kept:
            kept[key] = matters(unit, outputs)
        return bool(kept[key])

    if is_model(target):
        listed = model_bindings(attempt.thing, target, sizes, used)
        return [binding for binding in listed if all(role in target.without for role in binding.missing)]
    named = tuple((axis, size) for axis, size in sizes.items() if axis != "window")
    key = ("bindings", target.roles, named, *target.without)
    if key not in kept:  # the same with or without positions
        kept[key] = ways_to_bind(attempt, sizes, used)
    found, homeless = kept[key]
    attempt.homeless += homeless
    complete = [binding for binding in found if not binding.missing]
    return list(complete or found)[:MOST_READINGS]


def ways_to_bind(attempt: Attempt, sizes: Sizes, used: Callable[[Unit], bool]) -> tuple[list[Binding], list[str]]:
    """The ways to assign roles to the parameters of a module, and the parameters that fit no role, in words."""
    target, copies = attempt.target, [sizes[axis] for axis in ("H", "G") if axis in sizes]
    found, homeless = list[Binding](), list[str]()
    for units in units_of(attempt.thing, copies):
        idle = {unit.name for unit in units if not used(unit)}
        here = bindings(units, target.roles, sizes, idle, target.without)
        found += [binding for binding in here if all(role in target.without for role in binding.missing)]
        if not here:
            homeless += [describe(unit) for unit in units if unit.name not in idle]
    return found, homeless


def matters(unit: Unit, outputs: Outputs) -> bool:
    """Whether the output of the first probe changes with a unit's numbers."""
    before = outputs[0]
    saved = [parameter.detach().clone() for parameter in unit.parameters]
    for parameter in unit.parameters:
        parameter.copy_(parameter * 1.5 + 0.37 * torch.rand_like(parameter))
    try:
        after = outputs.run(outputs.probes[0])
    except Exception:  # the learner's code may raise anything
        return True
    finally:
        for parameter, old in zip(unit.parameters, saved):
            parameter.copy_(old)
    assert isinstance(before, Tensor)
    return after.shape != before.shape or not alike(after, before)


def describe(unit: Unit) -> str:
    """A unit with its shape."""
    assert unit.weight is not None
    return f"{unit.name or 'weight'} {tuple(unit.weight.shape)}"


def loosened(readings: Sequence[Reading]) -> list[Reading]:
    """Copies with the tolerance of float32, of the readings whose answers compute something in float32."""
    watched: dict[int, bool] = {}
    for reading in readings:
        outputs = reading.outputs
        if id(outputs) not in watched:
            watched[id(outputs)] = outputs.float32 or uses_float32(partial(outputs.run, outputs.probes[0]))
    budget = replace(readings[0].budget, left=SINGLES) if readings else Budget(0)
    chosen = [reading for reading in readings if watched[id(reading.outputs)]]
    return [Reading(r.target, r.sizes, r.binding, r.outputs, r.expected, budget, loose=True, at_once=r.at_once)
            for r in chosen]  # fmt: skip


def natural_readings(attempt: Attempt) -> list[list[Reading]]:
    """The readings in which bugs are searched for, by call: the likeliest bindings of each.

    The first sizes come first. With one token bugs in the weights do not show, so the bindings that are right there
    are likely.
    """
    found = []
    for call in natural_calls(attempt):
        readings = [reading for reading, other in zip(attempt.readings, attempt.calls) if other is call]
        chosen = list[Reading]()
        for sizes in list(dict.fromkeys(tuple(reading.sizes.items()) for reading in readings))[:MOST_SIZES]:
            here = [reading for reading in readings if tuple(reading.sizes.items()) == sizes]
            agreeing = [reading for reading in here if reading.right_for_one_token({})]
            likely = [*agreeing[:MOST_NATURAL], *([] if is_model(attempt.target) else here[:2])]
            chosen += dict.fromkeys(likely) if agreeing else here[:12]
        left = SINGLES // 4 if is_model(attempt.target) else SINGLES
        budget = Budget(left, attempt.answer.clock, naming=True)
        for reading in chosen:
            reading.budget, reading.masked = budget, call.masked
        found.append(chosen)
    return found


def natural_calls(attempt: Attempt) -> list[Call]:
    """The calls that the learner may have intended, the likeliest first.

    If sequences of the batch change each other, the first axis may be the position. If the check passes the mask, its
    meaning may be the one with which no later token changes an earlier row.
    """
    outputs = {call: reading.outputs for reading, call in zip(attempt.readings, attempt.calls)}
    calls = [call for call in outputs if mixes_positions(outputs[call])] or list(outputs)
    apart = [call for call in calls if not mixes(outputs[call])]
    layout = (apart or calls)[0].layout
    here = [call for call in calls if call.layout == layout or has_heads(attempt.target)]  # with heads, any is likely
    meanings = {
        (call.layout, call.mask): call for call in reversed(here)
    }  # the first shape of each meaning that can be called
    tried = sorted(meanings.values(), key=lambda call: (leaks(outputs[call]), not call.masked, here.index(call)))
    return tried[:3]


def mixes(outputs: Outputs) -> bool:
    """Whether a sequence of the batch changes the output of another one, in the first probe."""
    before = outputs[0]
    assert isinstance(before, Tensor)
    first = changed(outputs, lambda x: torch.cat((x[:1].flip(1), x[1:])))
    last = changed(outputs, lambda x: torch.cat((x[:1], x[1:].flip(1))))
    if first is None or last is None:
        return False
    return not alike(first[1:], before[1:]) or not alike(last[:1], before[:1])


def changed(outputs: Outputs, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The output for the first probe with changed inputs; None where it raises or has another shape."""
    probe, before = outputs.probes[0], outputs[0]
    try:
        after = outputs.run(Probe(probe.name, {n: change(x) for n, x in probe.inputs.items()}, 1.0, probe.chunks))
    except Exception:  # the learner's code may raise anything
        return None
    assert isinstance(before, Tensor)
    return after if after.shape == before.shape and after.dim() > 1 else None


def mixes_positions(outputs: Outputs) -> bool:
    """Whether one position changes the output of another, in the first probe; one head never changes another."""
    before = outputs[0]
    assert isinstance(before, Tensor)
    first = changed(outputs, lambda x: torch.cat((x[:, :1].flip(0), x[:, 1:]), dim=1))
    last = changed(outputs, lambda x: torch.cat((x[:, :-1], x[:, -1:].flip(0)), dim=1))
    if first is None or last is None:
        return True
    return not alike(first[:, 1:], before[:, 1:]) or not alike(last[:, :-1], before[:, :-1])


def alike(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding."""
    return torch.allclose(first, second, rtol=1e-9, atol=1e-12, equal_nan=True)


def leaks(outputs: Outputs) -> bool:
    """Whether a later token changes an earlier row, in the first probe."""

    def other_end(x: Tensor) -> Tensor:
        return torch.cat((x[:, :-1], x[:, -1:].flip(0)), dim=1)

    before, after = outputs[0], changed(outputs, other_end)
    assert isinstance(before, Tensor)
    return after is None or not alike(after[:, :-1], before[:, :-1])


def call_of(attempt: Attempt, reading: Reading) -> Call:
    """The call of a reading, also of a loosened one."""
    for other, call in zip(attempt.readings, attempt.calls):
        if other.outputs is reading.outputs:
            return call
    return attempt.calls[0]


def explain(error: BaseException, path: Path | None) -> str:
    """An error in one line, with the line of the learner's file."""
    text = " ".join(str(error).split())[:300]
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if path and frame.filename == str(path)
    ]
    return f"{type(error).__name__}: {text}" + (f" (line {lines[-1]})" if lines else "")
