"""The order of the search for bugs: the likeliest calls and readings first, two bugs at once last.

Each search has a budget. No search begins after the clock of the check has ended the time for naming bugs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minigpt.grading.clock import Budget
from minigpt.grading.meant import AS_MANY
from minigpt.grading.measure import by_measuring
from minigpt.grading.naming import SINGLES, Found, Reading, name_one, name_two
from minigpt.grading.readings import loosened
from minigpt.grading.whole import is_model

Natural = Sequence[Sequence[Reading]]  # readings by call


def find(natural: Natural, alone: Sequence[Reading], two: bool) -> Found | None:
    """One bug under any call, one bug by measuring, or two at once. After the time for naming: harmless bugs only."""
    for readings in natural:
        if found := name_one(readings) or name_one(loosened(readings[:2])):
            return found
    if found := by_measuring(natural) or (find_two(natural, alone) if two else None):
        return found
    return find_harmless(natural) if natural[0][0].budget.clock.ends_naming else None


def find_harmless(natural: Natural) -> Found | None:
    """The harmless bugs, with which the answer is right: they decide the verdict, and name no mistake."""
    for readings in [readings for readings in natural if readings]:
        first = readings[0]
        bugs = [bug for bug in first.target.bugs if bug.harmless or bug.knobs == AS_MANY.knobs]
        left = SINGLES // 16 if is_model(first.target) else SINGLES  # a model takes long
        target, budget = replace(first.target, bugs=bugs), Budget(left, first.budget.clock)
        likely = [replace(reading, target=target, budget=budget) for reading in readings]
        if found := name_one(likely) or name_one(loosened(likely[:2])) or name_two(likely[0]):
            return found
    return None


def find_two(natural: Natural, alone: Sequence[Reading]) -> Found | None:
    """Two bugs under the likeliest call; else one bug with as many queries as keys, or with one sequence at a time."""
    return name_two(natural[0][0]) or name_one(with_as_many_queries(natural[0])) or name_one(alone)


def with_as_many_queries(readings: Sequence[Reading]) -> list[Reading]:
    """The readings without the inputs that have fewer queries than keys; [] if there are no such inputs."""
    optional = any(probe.optional for reading in readings for probe in reading.outputs.probes)
    budget = replace(readings[0].budget, left=SINGLES)
    return [replace(reading, even=True, budget=budget) for reading in readings if optional]
