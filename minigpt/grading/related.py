"""Tries other targets than the one that the learner named: with positions, with shared key heads, with one head.

They are tried only if nothing was found for the named target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minigpt.grading.call import CannotCall
from minigpt.grading.clock import Budget
from minigpt.grading.load import Answer
from minigpt.grading.naming import SINGLES, Reading, accept
from minigpt.grading.readings import Attempt, find_readings, loosened
from minigpt.grading.report import Report
from minigpt.grading.target import Target
from minigpt.grading.targets import find_target
from minigpt.system.errors import UserError

NAMES = {"multi_head": ("multi_head", "grouped_query", "single_head"), "grouped_query": ("grouped_query", "multi_head")}
POSITIONS = ("", ",rotary", ",alibi")


def related(target: Target) -> Iterator[Target]:
    """Yields the other targets that the learner may have meant, the likeliest first."""
    for position in POSITIONS:
        for name in NAMES.get(target.name, (target.name,)):
            if (name == target.name and not position) or (position and (target.options.rotary or target.options.alibi)):
                continue
            try:
                yield find_target(f"{name}{target.options}{position}")
            except UserError:  # it has no such option
                continue


def right_as(answer: Answer, target: Target) -> str:
    """ "right" if an answer is right for this target, "at once" if it is right only without chunks, else ""."""
    attempt = Attempt(answer, target, Report("cannot tell", str(target)), Budget(SINGLES, answer.clock))
    try:
        find_readings(attempt)
    except CannotCall:
        return ""
    if accepted(attempt.readings):
        return "right"
    whole = [replace(reading, at_once=True) for reading in attempt.readings]
    return "at once" if target.options.cache and accepted(whole) else ""


def accepted(readings: list[Reading]) -> bool:
    """Whether one of these readings is right."""
    return bool(readings) and bool(accept(readings) or accept(loosened(readings[:60])))
