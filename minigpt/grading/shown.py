"""What is shown of a wrong answer: the smallest input on which it is wrong, and the line of the first wrong number."""

from __future__ import annotations

from contextlib import suppress

from torch import Tensor

from minigpt.grading.example import IN_WORDS, show_function, show_output, show_steps
from minigpt.grading.lines import Place, locate, record, source_line
from minigpt.grading.naming import Found, Reading
from minigpt.grading.readings import Attempt
from minigpt.grading.target import Probe


def example(attempt: Attempt, found: Found) -> str:
    """The smallest input that shows it."""
    reading = found.reading
    with suppress(Exception):  # an example is a help; the verdict stands without it
        if not attempt.target.roles:
            return show_function(attempt.target, reading.outputs.run) or outputs_of(reading)
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

    return show_output(reading.outputs.run, target, expected, reading.outputs.probes[first_that_differs(reading)])


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
        attempt.report.line, attempt.report.step = where.line, IN_WORDS.get(where.step, where.step)
        attempt.report.code = source_line(path, where.line)


def first_that_differs(reading: Reading) -> int:
    """The smallest probe on which the answer is wrong."""
    for number in reading.usable():
        if reading.length(number) > 1 and not reading.agrees({}, number):
            return number
    return 0
