"""One check from beginning to end: call the answer, bind its parameters, accept it or name its bug, measure, report.

A bug is named only where the answer equals the reference with this bug; it is measured only where no name was found. A
parameter that changes the output and fits no role makes the verdict "cannot tell", never "wrong".
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from minigpt.grading.bind import overwrite
from minigpt.grading.call import CannotCall, is_mask, parameters_of
from minigpt.grading.chunks import cache_argument
from minigpt.grading.clock import Budget, TimeIsUp
from minigpt.grading.closed import as_module
from minigpt.grading.habits import drops
from minigpt.grading.load import Answer, build
from minigpt.grading.meant import (
    ONE_SEQUENCE,
    as_many_queries_only,
    best,
    by_products,
    meant,
    one_sequence,
    unannounced,
)
from minigpt.grading.measure import AT_ONCE
from minigpt.grading.naming import SINGLES, Found, accept, settled
from minigpt.grading.own_losses import right_so_far
from minigpt.grading.readings import Attempt, find_readings, loosened, natural_readings
from minigpt.grading.related import related, right_as
from minigpt.grading.report import Report
from minigpt.grading.search import find, find_two
from minigpt.grading.target import Target
from minigpt.grading.targets import find_target
from minigpt.grading.verdicts import out_of_time, right, search_ended, unnamed, unplaced, wrong
from minigpt.system.errors import UserError

T = TypeVar("T")
WIDE = "its values must be as wide as its keys: with others it raises"


def grade_answer(answer: Answer, target: Target) -> Report:
    """The report on a function or a module. Runs the learner's code in this process."""
    attempts = list(held_against(answer, target))
    report = best([attempt.report for attempt in attempts])
    for build_another in answer.others:
        if report.verdict != "cannot tell" or right_so_far(report):
            break
        with suppress(Exception):  # the learner's code: anything
            another = build_another()
            another.float32, another.clock = another.float32 | answer.float32, answer.clock
            others = list(held_against(another, target))
            other = best([attempt.report for attempt in others])
            attempts, report = (attempts, report) if other.verdict == "cannot tell" else (others, other)
    if report.measured or report.verdict == "cannot tell" or several(report):
        report = as_another(answer, target, report)
    if report.measured and any(with_two(attempt) for attempt in attempts):
        report = best([attempt.report for attempt in attempts])
    if report.measured and answer.clock.ends_naming:
        search_ended(report, answer.clock)
    if answer.guessed and report.measured and AT_ONCE not in report.names[0]:
        report.verdict, report.measured = "cannot tell", False
        report.names = ["it is not what was expected, but its sizes had to be guessed: end the file with a line like "
                        "`attention = MyAttention(48, 6)`"]  # fmt: skip
    return report


def several(report: Report) -> bool:
    """Whether a report names several bugs. That the answer is right as another target is then more likely."""
    return report.verdict == "wrong" and len(report.names) > 1


def as_another(answer: Answer, target: Target, report: Report) -> Report:
    """The report on an answer as a related target, if it is right as that; else the report that is given."""
    here = isinstance(answer.thing, nn.Module) and target.roles and not right_so_far(report)
    try:
        return next((found for other in related(target) if here and (found := as_related(answer, target, other))),
                    report)  # fmt: skip
    except TimeIsUp:
        return out_of_time(report, answer.clock)


def as_related(answer: Answer, target: Target, other: Target) -> Report | None:
    """The report on an answer that is right as another target, at least without its cache; None on any other."""
    with suppress(Exception):  # the learner's code: anything
        if not in_double(partial(right_as, answer, other)):
            return None
        attempt = grade_as(answer, other)
        found = with_two(attempt) or attempt.report
        if found.verdict.startswith("right"):
            found.verdict = "right, in another convention"
            found.names.insert(0, f"it is right as {other}: announce it with --as {other}")
            return found
        if found.verdict == "wrong" and not found.measured:
            found.notes.append(f"checked as {other}, which it is as long as nothing is cached; announced was {target}")
            return found
    return None


def held_against(answer: Answer, target: Target) -> Iterator[Attempt]:
    """Compare an answer with every target that may be meant, up to the first as which it is right."""
    for one in meant(answer.thing, target, answer.numbers):
        attempt = as_wide(answer, one, grade_as(answer, one))
        yield attempt
        if attempt.report.exit_code == 0:
            return


def as_wide(answer: Answer, target: Target, attempt: Attempt) -> Attempt:
    """The attempt; for a function that raises only if values are not as wide as keys, an attempt with equal widths."""
    names = attempt.report.names
    if "e" not in target.sizes or target.roles or not names or not names[0].startswith("it raises"):
        return attempt
    other = grade_as(answer, replace(target, sizes={**target.sizes, "e": target.sizes["d"]}))
    if other.report.names and other.report.names[0].startswith("it raises"):
        return attempt
    other.report.notes.append(WIDE)
    return other


def grade_as(answer: Answer, target: Target) -> Attempt:
    """Compare an answer with this one target."""
    report = Report("cannot tell", str(target), str(answer.path or ""), how=[answer.how])
    attempt = Attempt(answer, target, report, Budget(SINGLES, answer.clock))
    try:
        in_double(partial(judge, attempt))
    except TimeIsUp:
        attempt.report = out_of_time(report, answer.clock)
        if attempt.readings:
            attempt.report.notes = [f"compared: {len(attempt.readings)} readings of its parameters and ways to call it"]
    return attempt


def with_two(attempt: Attempt) -> Report | None:
    """Search a cache whose bug has no name for two bugs at once. Returns the new report; None if nothing is found."""
    if not attempt.report.measured or not attempt.target.options.cache or attempt.answer.clock.ends_naming:
        return None
    found = in_double(partial(find_two, attempt.natural, attempt.alone))
    if found is None:
        return None
    old, notes = attempt.report, [note for note in attempt.report.notes if note == WIDE]
    attempt.report = Report("wrong", old.target, old.file, how=[attempt.answer.how], notes=notes)
    in_double(partial(say, attempt, found))
    return attempt.report


def in_double(do: Callable[[], T]) -> T:
    """Call `do` with float64 as the default type, without gradients, in one thread: tensors are small."""
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # several would only wait for each other
    try:
        with torch.no_grad():
            return do()
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)


def judge(attempt: Attempt) -> None:
    """Check an answer as one target, and fill in the report."""
    thing, report = attempt.thing, attempt.report
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
    outputs = attempt.readings[0].outputs
    if not attempt.target.options.cache and (random := drops(attempt.thing, attempt.calls[0], outputs.probes[0])):
        report.verdict, report.names, report.fixes = "wrong", [random.sentence], [random.fix]
        report.notes = ["nothing else can be compared while the output is random"]
        return
    found = accept(attempt.readings) or accept(loosened(attempt.readings[:60])) or by_products(attempt)
    if found:
        right(attempt, found)
        return
    if never_handed_over(attempt):
        return
    attempt.natural, attempt.alone = natural_readings(attempt), one_sequence(attempt)
    if accept(attempt.alone):
        report.verdict, report.names, report.fixes = "wrong", [ONE_SEQUENCE.sentence], [ONE_SEQUENCE.fix]
        report.how.append(attempt.calls[0].how)
        return
    soon = not attempt.target.options.cache  # related targets come first: many caches are right as one
    if found := find(attempt.natural, attempt.alone, two=soon):
        say(attempt, found)
    elif other := unannounced(attempt):
        report.names = [f"it is right as {other}: if that is meant, announce it with --as {other}"]
        report.how.append(attempt.calls[0].how)
    else:
        unnamed(attempt, attempt.natural[0])


def say(attempt: Attempt, found: Found) -> None:
    """Fill in the report on what was found: bugs, or conventions (harmless bugs)."""
    found = settled(as_many_queries_only(attempt.thing, found))
    if mask := never_masked(attempt, found):
        attempt.report.verdict = "cannot tell"
        attempt.report.names = [
            f"it takes a mask as `{mask}`, and no way was found to give it one; without one, nothing is masked"
        ]
        return
    (wrong if found.bugs or found.reading.binding.faults else right)(attempt, found)


def never_handed_over(attempt: Attempt) -> bool:
    """Whether a cache is an argument, and no way was found to make one. The report then says this."""
    name = cache_argument(parameters_of(attempt.thing))
    if not attempt.target.options.cache or not name or any(call.protocol != "kept" for call in attempt.calls):
        return False
    attempt.report.names = [
        f"it takes a cache as `{name}`, and no way was found to give it one: return the new cache beside the output, "
        f"or give the module a method make_cache()"
    ]
    tried = dict.fromkeys(error for error in attempt.errors)
    attempt.report.notes = [f"tried, and raised: {error}" for error in tried]
    return True


def never_masked(attempt: Attempt, found: Found) -> str:
    """The argument for a mask, if no call could pass one and the missing mask is the only bug; "" otherwise."""
    masks = [entry.name for entry in parameters_of(attempt.thing) if is_mask(entry)]
    missing = [bug.knobs for bug in found.bugs] == [{"mask": "none"}] and not attempt.target.options.full
    return masks[0] if masks and missing and not any(call.masked for call in attempt.calls) else ""


def raised(attempt: Attempt) -> None:
    """The report where every call raises: "wrong"; "cannot tell" if the check had to guess how to build or call it."""
    report = attempt.report
    bare = bool(attempt.target.roles) and not isinstance(attempt.thing, nn.Module)  # its parameters were not found
    ours = attempt.answer.how.startswith("built") or "with matrices" in attempt.answer.how
    guessed = ours or not attempt.plain or bare
    report.verdict = "cannot tell" if guessed else "wrong"
    first = attempt.errors[0] if attempt.errors else "nothing came back"
    report.names = [f"it raises {first}"]
    report.notes = [f"tried: {len(attempt.errors)} ways to call it"]


def check_here(thing: Any, announced: str) -> Report:
    """Check something in this process; a module is copied first, so that its parameters do not change.

    Raises UserError for an object that cannot be checked, or cannot be copied.
    """
    target = find_target(announced)
    path = source_of(thing)
    if isinstance(thing, type):
        return grade_answer(build(thing, target, path), target)
    if not isinstance(thing, nn.Module) and not inspect.isroutine(thing):
        module, name = as_module(copy.deepcopy(thing)), type(thing).__name__
        if module is None:
            raise UserError(f"{name} cannot be checked: expected a function, a module or a class with `__call__`")
        return grade_answer(Answer(module, f"checked: {name}", path), target)
    answer = Answer(thing, f"checked: {type(thing).__name__ if isinstance(thing, nn.Module) else thing.__name__}", path)
    if not isinstance(thing, nn.Module):
        return grade_answer(answer, target)
    answer.float32 = any(parameter.dtype != torch.float64 for parameter in thing.parameters())
    try:
        answer.thing = copy.deepcopy(thing)
    except Exception:  # the module keeps tensors of an earlier pass
        raise UserError(f"{type(thing).__name__} cannot be copied: build a fresh one for the check") from None
    return grade_answer(answer, target)


def source_of(thing: Any) -> Path | None:
    """The file in which a function or a module's forward was written; a notebook's cell is one too."""
    function = getattr(thing, "forward", thing)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return Path(code.co_filename) if code else None
