"""What the report shows of a wrong answer: the smallest input with the bug, and the line of the first wrong number."""

from __future__ import annotations

from contextlib import suppress

from torch import Tensor

from minigpt.grading.clock import TimeIsUp
from minigpt.grading.example import IN_WORDS, show_function, show_output, show_steps
from minigpt.grading.lines import Place, locate, record, source_line
from minigpt.grading.naming import Found, Reading
from minigpt.grading.readings import Attempt
from minigpt.grading.target import Knobs, Probe


def example(attempt: Attempt, found: Found) -> str:
    """The smallest input that shows the bug, as text; "" if none can be made."""
    reading = found.reading
    with suppress(Exception, TimeIsUp):  # the example is optional: the verdict stands without it
        if not attempt.target.roles:
            return show_function(attempt.target, reading.outputs.run) or outputs_of(reading)
        if shown := show_steps(attempt.target, found.knobs):
            return shown
    with suppress(Exception, TimeIsUp):
        return outputs_of(reading, usual(found))
    return ""


def usual(found: Found | None) -> Knobs:
    """The knobs of the conventions of an answer: with them the reference is right."""
    return {name: value for one in found.conventions for name, value in one.knobs.items()} if found else {}


def outputs_of(reading: Reading, base: Knobs | None = None) -> str:
    """The answer's own output beside the right one, for three tokens."""
    target, knobs = reading.target, base or {}

    def expected(probe: Probe) -> Tensor:
        return target.output(probe, reading.binding.parameters, reading.sizes, knobs)

    probe = reading.outputs.probes[first_that_differs(reading, knobs)]
    return show_output(reading.outputs.run, target, expected, probe)


def place(attempt: Attempt, reading: Reading, found: Found | None) -> None:
    """Writes the line of the first wrong number into the report."""
    path = attempt.answer.path
    if path is None:
        return
    with suppress(Exception, TimeIsUp):  # the line is optional: the verdict stands without it
        shown = first_that_differs(reading, usual(found))
        probe = reading.outputs.probes[shown]
        results = record(path, lambda: reading.outputs.run(probe))
        parameters, sizes = reading.binding.parameters, reading.sizes
        good = attempt.target.reference(probe, parameters, sizes, usual(found))
        bad = attempt.target.reference(probe, parameters, sizes, found.knobs) if found else None
        where: Place = locate(results, good, bad)
        attempt.report.line, attempt.report.step = where.line, IN_WORDS.get(where.step, where.step)
        attempt.report.code = source_line(path, where.line)


def first_that_differs(reading: Reading, base: Knobs) -> int:
    """The number of the smallest probe, with more than one query, on which the answer is wrong; else 0."""
    for number in reading.usable():
        if reading.length(number) > 1 and not reading.agrees(base, number):
            return number
    return 0
