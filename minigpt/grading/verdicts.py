"""Writes the verdict into the report: right, wrong with a named bug, wrong without a name, or out of time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from torch import nn

from minigpt.grading.clock import Budget, Clock, TimeIsUp
from minigpt.grading.example import show_function
from minigpt.grading.forms import score
from minigpt.grading.habits import SINGLE, habits, in_training, without_gradient, wrong_in_float32
from minigpt.grading.measure import measure
from minigpt.grading.naming import SINGLES, Found, Reading, merge
from minigpt.grading.own_losses import judge_losses
from minigpt.grading.readings import Attempt, call_of, explain
from minigpt.grading.report import Report
from minigpt.grading.shown import example, outputs_of, place
from minigpt.grading.target import Bug, fill

UNCHECKED = ["training mode (dropout)", "bfloat16"]
UNCHECKED_OF_CACHES = ["whether it writes into its input", "whether a text leaves something behind for the next"]
NOT_RIGHT = "it is not what the target computes"
NO_NAME = f"{NOT_RIGHT}, and none of the known mistakes gives these numbers"
PARTS = {"gpt": "block or --as multi_head", "block": "multi_head or --as mlp"}  # what can be checked alone


def say_how(attempt: Attempt, reading: Reading) -> None:
    """Reports how the answer was called and read."""
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
        report.notes.append("there is float32 inside: compared with its precision, and not for the largest inputs")
    if call.note:
        report.notes.append(call.note)
    for number, probe in enumerate(reading.outputs.probes):
        value = reading.outputs.kept.get(number)
        if probe.optional and isinstance(value, Exception):
            report.notes.append(f"for {probe.name} it raises {explain(value, attempt.answer.path)}")
            break
    report.unchecked += UNCHECKED
    if "cache" not in str(attempt.target) and attempt.target.roles:
        report.unchecked.append("the cache")


def right(attempt: Attempt, found: Found) -> None:
    """Reports an answer that equals the reference on every probe: right, unless a check of `habits.py` finds a bug."""
    report, call = attempt.report, call_of(attempt, found.reading)
    say_how(attempt, found.reading)
    spoiled = habits(attempt.thing, call, found.reading)
    single = wrong_in_float32(attempt.thing, call, found.reading)
    spoiled += [SINGLE] if single else []
    spoiled += trained(attempt, found)
    spoiled += without_gradient(attempt.thing, call, found.reading) if attempt.target.roles else []
    report.unchecked += ["float32"] if single is None else []
    report.unchecked += UNCHECKED_OF_CACHES if attempt.target.options.cache else []
    report.notes += hidden_scales(found)
    if spoiled:
        report.verdict, report.names, report.fixes = "wrong", [spoiled[0].sentence], [spoiled[0].fix]
        return
    settled = [one for one in attempt.target.settled if not set(one.knobs) & set(found.knobs)]
    report.names = [convention.note for convention in (*settled, *found.conventions)]
    if call.note:
        report.names.append(call.note)
        report.notes.remove(call.note)
    report.verdict = "right, in another convention" if report.names else "right"
    judge_losses(attempt, found.reading)


def trained(attempt: Attempt, found: Found) -> list[Bug]:
    """The bug in training mode, if any; the report says if training mode was not checked."""
    report, thing = attempt.report, attempt.thing
    if not isinstance(thing, nn.Module) or not attempt.target.roles:
        return []
    try:
        bug = in_training(thing, call_of(attempt, found.reading), found.reading, found.knobs)
    except Exception:  # the learner's code may raise anything
        return []
    finally:
        thing.eval()
    report.unchecked[report.unchecked.index(UNCHECKED[0])] = "how much dropout drops"
    return [bug] if bug else []


def hidden_scales(found: Found) -> list[str]:
    """A note on a wrong scale that equals the right one for exactly these sizes, such as sqrt(H) where d = H."""
    same = list[str]()
    reading = replace(found.reading, budget=Budget(SINGLES, found.reading.budget.clock))
    for bug in reading.target.bugs:
        other = set(bug.knobs) == {"scale"} and bug.knobs["scale"] not in ("8", "integer")  # numbers, not other sizes
        setting = merge(found.knobs, bug.knobs) if other else None
        if setting is not None and reading.equals(setting):
            same.append(fill(bug.sentence, reading.sizes))
    d = reading.sizes.get("d")
    return [f"with this width of a head, d = {d}, it would look the same if {sentence}: try other sizes"
            for sentence in same[:1]]  # fmt: skip


def wrong(attempt: Attempt, found: Found) -> None:
    """Reports one or more named bugs."""
    report, reading = attempt.report, found.reading
    sizes = reading.sizes
    say_how(attempt, reading)
    report.verdict = "wrong"
    faults = [Bug({}, sentence, fix) for sentence, fix in reading.binding.faults]
    for bug in [*faults, *found.bugs]:
        report.names.append(never_used(attempt, reading) if bug.knobs == {"end": "none"} else "")
        report.names[-1] = report.names[-1] or fill(bug.sentence, sizes)
        report.fixes.append(fill(bug.fix, sizes))
    others = [bug for bug in found.either if not bug.equal or bug.equal != found.bugs[-1].equal]
    if others:
        report.names[-1] += f"; or, which these sizes cannot tell from it: {fill(others[0].sentence, sizes)}"
    report.notes += [convention.note for convention in found.conventions]
    place(attempt, reading, found)
    report.example = example(attempt, found)
    judge_losses(attempt, reading)


def never_used(attempt: Attempt, reading: Reading) -> str:
    """The sentence on a parameter without effect that was read as the output projection against its name; else ""."""
    taken = [entry.partition(" = ")[0] for entry in reading.binding.how if entry.partition(" = ")[2] == "output"]
    for name in taken:
        likeliest = max(attempt.target.roles, key=lambda role: score(name, role))
        if likeliest.name != "output" and score(name, likeliest):
            return f"the {likeliest.name} layer, `{name}`, is never used: its numbers do not change the output"
    return ""


def unnamed(attempt: Attempt, readings: Sequence[Reading]) -> None:
    """Reports a wrong answer that no known bug explains, with what can be measured from outside."""
    report, reading = attempt.report, readings[0]
    say_how(attempt, reading)
    if attempt.homeless and not reading.binding.how:
        report.names = unplaced(attempt)
        return
    report.verdict, report.measured = "wrong", True
    with suppress(Exception, TimeIsUp):  # the measurement is optional: the verdict stands without it
        report.names = measure(reading)
    if not report.names:
        report.names = [NO_NAME]
    place(attempt, reading, None)
    with suppress(Exception):
        tiny = show_function(attempt.target, reading.outputs.run) if not attempt.target.roles else ""
        report.example = tiny or outputs_of(reading)


def unplaced(attempt: Attempt) -> list[str]:
    """Why the check cannot tell: some parameters fit no role."""
    listed = ", ".join(dict.fromkeys(attempt.homeless)) or "its parameters"
    return [f"no way was found to read {listed} as {', '.join(role.name for role in attempt.target.roles)}"]


def out_of_time(report: Report, clock: Clock) -> Report:
    """The report if the time ended before it was certain that the answer is right or wrong."""
    names = [f"after {clock.used:.1f} s of processor time it was not certain whether it is right: it equals none of "
             "the conventions that were tried in that time"]  # fmt: skip
    return Report("cannot tell", report.target, report.file, names, how=report.how[:1], notes=report.notes)


def search_ended(report: Report, clock: Clock) -> None:
    """Reports that an answer is wrong, and that the time ended before the mistake was named."""
    parts = PARTS.get(report.target.partition(",")[0])
    more = f"; its parts can be checked alone, with --as {parts}" if parts else ""
    report.names = [name for name in report.names if name != NO_NAME] or [NOT_RIGHT]
    report.notes.insert(
        0, f"the search for the name of the mistake was ended after {clock.used:.1f} s of processor time{more}"
    )
