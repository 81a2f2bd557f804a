"""One check from beginning to end: call, bind, accept or name, measure, and say it.

Each step is taken only where the one before found nothing. A name is given only for an exact equality; a parameter
that matters and finds no place makes the verdict "cannot tell", never "wrong".
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.bind import Binding, Unit, bindings, overwrite, units_of
from minigpt.grading.call import Call, CannotCall, calls
from minigpt.grading.example import show_function, show_output, show_steps
from minigpt.grading.habits import habits
from minigpt.grading.lines import Place, locate, record, source_line
from minigpt.grading.load import Answer
from minigpt.grading.measure import measure
from minigpt.grading.naming import SINGLES, Found, Outputs, Reading, accept, name_one, name_two
from minigpt.grading.report import Report
from minigpt.grading.sizes import possible_sizes
from minigpt.grading.target import Bug, Probe, Sizes, Target, fill

MOST_READINGS = 400
UNCHECKED = "training mode (dropout), bfloat16"


@dataclass
class Attempt:
    """An answer with everything that has been found out about it."""

    answer: Answer
    target: Target
    report: Report
    errors: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    homeless: list[str] = field(default_factory=list)

    @property
    def thing(self) -> Any:
        """The function or the module."""
        return self.answer.thing


def grade_answer(answer: Answer, target: Target) -> Report:
    """The report on a function or a module. Runs the learner's code in this process."""
    if target.function and not isinstance(answer.thing, nn.Module):
        target = target.function
    report = Report("cannot tell", str(target), str(answer.path or ""), how=[answer.how])
    attempt = Attempt(answer, target, report)
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # small tensors: threads would only wait for each other
    try:
        with torch.no_grad():
            judge(attempt)
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)
    return report


def judge(attempt: Attempt) -> None:
    """Fill in the report."""
    thing, target, report = attempt.thing, attempt.target, attempt.report
    if isinstance(thing, nn.Module):
        thing.eval()
        thing.double()
        overwrite(thing)
    try:
        find_readings(attempt)
    except CannotCall as error:
        report.names = [f"{error}"]
        return
    if not attempt.calls:
        raised(attempt)
        return
    if not attempt.readings:
        report.names = unplaced(attempt)
        return
    found = accept(attempt.readings)
    if found is None and (loose := [loosened(reading) for reading in attempt.readings]):
        found = accept(loose)
    if found:
        right(attempt, found)
        return
    natural = natural_readings(attempt)
    found = name_one(natural) or name_one([loosened(reading) for reading in natural[:4]]) or name_two(natural)
    if found:
        wrong(attempt, found)
    else:
        unnamed(attempt, natural)
    del target


def find_readings(attempt: Attempt) -> None:
    """Every call that returns something, with every binding of its parameters."""
    thing, target = attempt.thing, attempt.target
    for sizes in possible_sizes(thing, target):
        probes = target.probes(sizes)
        working = []
        for call in calls(thing, target):
            outputs = Outputs(runner(attempt, call), probes)
            first = outputs[0]
            if isinstance(first, Exception):
                attempt.errors.append(explain(first, attempt.answer.path))
            else:
                working.append((call, outputs))
        if not working:
            continue
        for binding in find_bindings(attempt, sizes, working[0][1]):
            for call, outputs in working:
                attempt.readings.append(Reading(target, sizes, binding, outputs, [SINGLES]))
                attempt.calls.append(call)
        attempt.calls = attempt.calls or [call for call, _ in working]


def runner(attempt: Attempt, call: Call) -> Any:
    """Runs the answer; a cache gets a fresh copy for every probe."""

    def run(probe: Probe) -> Tensor:
        thing = attempt.thing
        if probe.chunks:
            with suppress(Exception):  # a module that keeps weights from a call cannot be copied
                thing = copy.deepcopy(thing)
        return call.run(thing, probe)

    return run


def find_bindings(attempt: Attempt, sizes: Sizes, outputs: Outputs) -> list[Binding]:
    """The ways to give the parameters roles in which every parameter that matters has one."""
    if not isinstance(attempt.thing, nn.Module) or not attempt.target.roles:
        return [Binding({}, [], (), ())]
    copies = [sizes[axis] for axis in ("H", "G") if axis in sizes]
    found = list[Binding]()
    for units in units_of(attempt.thing, copies):
        idle = {unit.name for unit in units if not matters(unit, outputs)}
        here = bindings(units, attempt.target.roles, sizes, idle)
        found += [binding for binding in here if all(role in attempt.target.without for role in binding.missing)]
        if not here:
            attempt.homeless += [describe(unit) for unit in units if unit.name not in idle]
    complete = [binding for binding in found if not binding.missing]
    return (complete or found)[:MOST_READINGS]


def matters(unit: Unit, outputs: Outputs) -> bool:
    """Whether the output of the first probe changes with a unit's numbers."""
    before = outputs[0]
    saved = [parameter.detach().clone() for parameter in unit.parameters]
    for parameter in unit.parameters:
        parameter.copy_(parameter * 1.5 + 0.37 * torch.rand_like(parameter))
    try:
        after = outputs.run(outputs.probes[0])
    except Exception:  # the learner's code: anything
        return True
    finally:
        for parameter, old in zip(unit.parameters, saved):
            parameter.copy_(old)
    assert isinstance(before, Tensor)
    return not torch.allclose(after, before, rtol=1e-9, atol=1e-12, equal_nan=True)


def describe(unit: Unit) -> str:
    """A unit with its shape."""
    assert unit.weight is not None
    return f"{unit.name or 'weight'} {tuple(unit.weight.shape)}"


def loosened(reading: Reading) -> Reading:
    """The same reading for an answer with float32 inside."""
    return Reading(reading.target, reading.sizes, reading.binding, reading.outputs, [SINGLES], loose=True)


def natural_readings(attempt: Attempt) -> list[Reading]:
    """The readings in which a bug is looked for: with the mask that hides the most, and the likeliest bindings.

    Where the mask comes from outside, a call in which later tokens change earlier rows was given a mask in a meaning
    that the answer does not have, or the answer does not use it.
    """
    pairs = list(zip(attempt.readings, attempt.calls))
    blind = [(reading, call) for reading, call in pairs if not leaks(reading)]
    chosen = blind or [(reading, call) for reading, call in pairs if not call.masked] or pairs
    return [reading for reading, _ in chosen]


def leaks(reading: Reading) -> bool:
    """Whether a later token changes an earlier row, in the first probe."""
    probe, before = reading.outputs.probes[0], reading.outputs[0]
    inputs = {name: x.clone() for name, x in probe.inputs.items()}
    for x in inputs.values():
        x[:, -1:] = x[:, -1:].flip(0) if not x.is_floating_point() else x[:, -1:] + 1.0
    try:
        after = reading.outputs.run(Probe(probe.name, inputs, probe.size))
    except Exception:  # the learner's code: anything
        return True
    assert isinstance(before, Tensor)
    if after.shape != before.shape or after.dim() < 2:
        return True
    return not torch.allclose(after[:, :-1], before[:, :-1], rtol=1e-9, atol=1e-12, equal_nan=True)


def call_of(attempt: Attempt, reading: Reading) -> Call:
    """The call of a reading, also of a loosened one."""
    for other, call in zip(attempt.readings, attempt.calls):
        if other.outputs is reading.outputs:
            return call
    return attempt.calls[0]


def say_how(attempt: Attempt, reading: Reading) -> None:
    """How it was called and read."""
    call = call_of(attempt, reading)
    shown = {"D": "the width", "H": "heads", "G": "key heads", "d": "the width of a head"}
    sizes = [f"{axis} = {reading.sizes[axis]} ({words})" for axis, words in shown.items() if axis in reading.sizes]
    report = attempt.report
    report.how.append(call.how)
    if attempt.target.roles:
        report.how.append(f"sizes: {', '.join(sizes)}")
        report.how.append(f"parameters: {'; '.join(reading.binding.how)}")
    if reading.binding.unused:
        report.notes.append(f"not used by the output: {', '.join(reading.binding.unused)}")
    if reading.loose:
        report.notes.append("there is float32 inside: compared to 3e-6, and only for inputs times 8 at most")
    if call.note:
        report.notes.append(call.note)
    for number, probe in enumerate(reading.outputs.probes):
        value = reading.outputs.kept.get(number)
        if probe.optional and isinstance(value, Exception):
            report.notes.append(f"for {probe.name} it raises {explain(value, attempt.answer.path)}")
            break
    report.unchecked.append(UNCHECKED)
    if "cache" not in str(attempt.target) and attempt.target.roles:
        report.unchecked.append("the cache")


def right(attempt: Attempt, found: Found) -> None:
    """Equal on every probe: right, unless a habit spoils it."""
    report, call = attempt.report, call_of(attempt, found.reading)
    say_how(attempt, found.reading)
    spoiled = habits(attempt.thing, call, found.reading)
    if spoiled:
        report.verdict, report.names, report.fixes = "wrong", [spoiled[0].sentence], [spoiled[0].fix]
        return
    report.names = [convention.note for convention in found.conventions]
    if call.note:
        report.names.append(call.note)
        report.notes.remove(call.note)
    report.verdict = "right, in another convention" if report.names else "right"


def wrong(attempt: Attempt, found: Found) -> None:
    """A bug with a name."""
    report, reading = attempt.report, found.reading
    sizes = reading.sizes
    say_how(attempt, reading)
    report.verdict = "wrong"
    faults = [Bug({}, sentence, fix) for sentence, fix in reading.binding.faults]
    for bug in [*faults, *found.bugs]:
        report.names.append(fill(bug.sentence, sizes))
        report.fixes.append(fill(bug.fix, sizes))
    others = [bug for bug in found.either if not bug.equal or bug.equal != found.bugs[-1].equal]
    if others:
        report.names[-1] += f"; or, which these sizes cannot tell from it: {fill(others[0].sentence, sizes)}"
    report.notes += [convention.note for convention in found.conventions]
    place(attempt, reading, found)
    report.example = example(attempt, found)


def example(attempt: Attempt, found: Found) -> str:
    """The smallest input that shows it."""
    reading = found.reading
    with suppress(Exception):  # an example is a help; the verdict stands without it
        if not attempt.target.roles:
            return show_function(attempt.target, reading.outputs.run)
        if shown := show_steps(attempt.target, found.knobs):
            return shown
    with suppress(Exception):
        return outputs_of(reading)
    return ""


def outputs_of(reading: Reading) -> str:
    """The answer's own output beside the right one, for three tokens."""
    target = reading.target

    def expected(probe: Probe) -> Tensor:
        return target.output(probe, reading.binding.parameters, reading.sizes, {})

    return show_output(reading.outputs.run, target, expected, reading.outputs.probes[0])


def place(attempt: Attempt, reading: Reading, found: Found | None) -> None:
    """The line of the first wrong number."""
    path = attempt.answer.path
    if path is None:
        return
    with suppress(Exception):  # a line is a help; the verdict stands without it
        shown = first_that_differs(reading)
        probe = reading.outputs.probes[shown]
        results = record(path, lambda: reading.outputs.run(probe))
        parameters, sizes = reading.binding.parameters, reading.sizes
        good = attempt.target.reference(probe, parameters, sizes, {})
        bad = attempt.target.reference(probe, parameters, sizes, found.knobs) if found else None
        where: Place = locate(results, good, bad)
        attempt.report.line, attempt.report.step = where.line, where.step
        attempt.report.code = source_line(path, where.line)


def first_that_differs(reading: Reading) -> int:
    """The smallest probe on which the answer is wrong."""
    for number in reading.usable():
        if reading.length(number) > 1 and not reading.agrees({}, number):
            return number
    return 0


def unnamed(attempt: Attempt, readings: Sequence[Reading]) -> None:
    """Wrong, and no sentence fits: what can be measured from outside is said."""
    report, reading = attempt.report, readings[0]
    say_how(attempt, reading)
    if attempt.homeless and not reading.binding.how:
        report.names = unplaced(attempt)
        return
    report.verdict, report.measured = "wrong", True
    with suppress(Exception):  # a measurement is a help; the verdict stands without it
        report.names = measure(reading)
    if not report.names:
        report.names = ["it is not what the target computes, and none of the known mistakes gives these numbers"]
    place(attempt, reading, None)
    with suppress(Exception):
        tiny = show_function(attempt.target, reading.outputs.run) if not attempt.target.roles else ""
        report.example = tiny or outputs_of(reading)


def unplaced(attempt: Attempt) -> list[str]:
    """Why nothing can be said: parameters without a place."""
    listed = ", ".join(dict.fromkeys(attempt.homeless)) or "its parameters"
    return [f"no way was found to read {listed} as {', '.join(role.name for role in attempt.target.roles)}"]


def raised(attempt: Attempt) -> None:
    """It cannot be called: an answer in the file is wrong then; one that was built here cannot be told."""
    report = attempt.report
    report.verdict = "cannot tell" if attempt.answer.how.startswith("built") else "wrong"
    first = attempt.errors[0] if attempt.errors else "nothing came back"
    report.names = [f"it raises {first}"]
    report.notes = [f"tried: {len(attempt.errors)} ways to call it"]


def explain(error: BaseException, path: Path | None) -> str:
    """An error in one line, with the line of the learner's file."""
    text = " ".join(str(error).split())[:300]
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if path and frame.filename == str(path)
    ]
    return f"{type(error).__name__}: {text}" + (f" (line {lines[-1]})" if lines else "")
