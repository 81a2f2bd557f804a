"""One check from beginning to end: call, bind, accept or name, measure, and say it.

Each step is taken only where the one before found nothing. A name is given only for an exact equality; a parameter
that matters and finds no place makes the verdict "cannot tell", never "wrong".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
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
from minigpt.grading.example import show_function
from minigpt.grading.forms import score
from minigpt.grading.habits import SINGLE, drops, habits, in_training, without_gradient, wrong_in_float32
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
from minigpt.grading.measure import AT_ONCE, by_measuring, measure
from minigpt.grading.naming import (
    SINGLES,
    Found,
    Reading,
    accept,
    merge,
    name_one,
    name_two,
    settled,
)
from minigpt.grading.own_losses import judge_losses, right_so_far
from minigpt.grading.readings import Attempt, call_of, explain, find_readings, loosened, natural_readings
from minigpt.grading.related import related, right_as
from minigpt.grading.report import Report
from minigpt.grading.shown import example, outputs_of, place
from minigpt.grading.target import Bug, Target, fill
from minigpt.grading.targets import find_target
from minigpt.system.errors import UserError

T = TypeVar("T")
UNCHECKED = ["training mode (dropout)", "bfloat16"]
UNCHECKED_OF_CACHES = ["whether it writes into its input", "whether a text leaves something behind for the next"]


def grade_answer(answer: Answer, target: Target) -> Report:
    """The report on a function or a module. Runs the learner's code in this process."""
    report = best(list(held_against(answer, target)))
    for build_another in answer.others:
        if report.verdict != "cannot tell" or right_so_far(report):
            break
        with suppress(Exception):  # the learner's code: anything
            another = build_another()
            another.float32 |= answer.float32
            other = best(list(held_against(another, target)))
            report = report if other.verdict == "cannot tell" else other
    if report.measured or report.verdict == "cannot tell":
        report = as_another(answer, target, report)
    if answer.guessed and report.measured and AT_ONCE not in report.names[0]:
        report.verdict, report.measured = "cannot tell", False
        report.names = ["it is not what was expected, but its sizes had to be guessed: end the file with a line like "
                        "`attention = MyAttention(48, 6)`"]  # fmt: skip
    return report


def as_another(answer: Answer, target: Target, report: Report) -> Report:
    """The report on an answer of which nothing could be said: where it is right as a related target, that is said."""
    here = isinstance(answer.thing, nn.Module) and target.roles and not right_so_far(report)
    for other in related(target) if here else ():
        with suppress(Exception):  # the learner's code: anything
            if not in_double(partial(right_as, answer, other)):
                continue
            found = grade_as(answer, other)
            if found.verdict.startswith("right"):
                found.verdict = "right, in another convention"
                found.names.insert(0, f"it is right as {other}: announce it with --as {other}")
                return found
            if found.verdict == "wrong" and not found.measured:
                found.notes.append(
                    f"checked as {other}, which it is as long as nothing is cached; announced was {target}"
                )
                return found
    return report


def held_against(answer: Answer, target: Target) -> Iterator[Report]:
    """The reports on an answer to everything that may have been meant, up to the first that is right."""
    for one in meant(answer.thing, target, answer.numbers):
        report = as_wide(answer, one, grade_as(answer, one))
        yield report
        if report.exit_code == 0:
            return


def as_wide(answer: Answer, target: Target, report: Report) -> Report:
    """The report on a function that raises where values are not as wide as keys: what it does where they are."""
    if "e" not in target.sizes or target.roles or not report.names or not report.names[0].startswith("it raises"):
        return report
    other = grade_as(answer, replace(target, sizes={**target.sizes, "e": target.sizes["d"]}))
    if other.names and other.names[0].startswith("it raises"):
        return report
    other.notes.append("its values must be as wide as its keys: with others it raises")
    return other


def grade_as(answer: Answer, target: Target) -> Report:
    """The report on an answer to this very target."""
    report = Report("cannot tell", str(target), str(answer.path or ""), how=[answer.how])
    in_double(partial(judge, Attempt(answer, target, report)))
    return report


def in_double(do: Callable[[], T]) -> T:
    """What is done in float64, without gradients, in one thread: tensors are small."""
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # others would only wait for each other
    try:
        with torch.no_grad():
            return do()
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)


def judge(attempt: Attempt) -> None:
    """Fill in the report."""
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
    natural = natural_readings(attempt)
    alone = one_sequence(attempt)
    if accept(alone):
        report.verdict, report.names, report.fixes = "wrong", [ONE_SEQUENCE.sentence], [ONE_SEQUENCE.fix]
        report.how.append(attempt.calls[0].how)
        return
    if found := find_bugs(natural) or name_one(alone) or by_measuring(natural):
        found = settled(as_many_queries_only(attempt.thing, found))
        if mask := never_masked(attempt, found):
            report.names = [
                f"it takes a mask as `{mask}`, and no way was found to give it one; without it, there is none"
            ]
            return
        (wrong if found.bugs or found.reading.binding.faults else right)(attempt, found)
    elif other := unannounced(attempt):
        report.names = [f"it is right as {other}: if that is meant, announce it with --as {other}"]
        report.how.append(attempt.calls[0].how)
    else:
        unnamed(attempt, natural[0])


def find_bugs(natural: Sequence[Sequence[Reading]]) -> Found | None:
    """One bug under any call, or two under the likeliest; then one that is seen with as many queries as keys.

    Of a mask that we gave, nothing can be wrong.
    """
    for readings in natural:
        if found := name_one(readings) or name_one(loosened(readings[:2])):
            return found
    return name_two(natural[0][0]) or name_one(with_as_many_queries(natural[0]))


def with_as_many_queries(readings: Sequence[Reading]) -> list[Reading]:
    """The readings without the inputs that have fewer queries than keys; [] where there are none."""
    optional = any(probe.optional for reading in readings for probe in reading.outputs.probes)
    return [replace(reading, even=True, budget=[SINGLES], plain={}) for reading in readings if optional]


def never_handed_over(attempt: Attempt) -> bool:
    """Whether a cache is an argument, and no way was found to make one: then nothing can be said of it."""
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
    """The argument for a mask that no call could give, where nothing but the mask is missing; "" otherwise."""
    masks = [entry.name for entry in parameters_of(attempt.thing) if is_mask(entry)]
    missing = [bug.knobs for bug in found.bugs] == [{"mask": "none"}] and not attempt.target.options.full
    return masks[0] if masks and missing and not any(call.masked for call in attempt.calls) else ""


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
    """Equal on every probe: right, unless a habit spoils it."""
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
    """What is wrong in training mode; the report says if that could not be told, or was not asked."""
    report, thing = attempt.report, attempt.thing
    if not isinstance(thing, nn.Module) or not attempt.target.roles:
        return []
    try:
        bug = in_training(thing, call_of(attempt, found.reading), found.reading, found.knobs)
    except Exception:  # the learner's code: anything
        return []
    finally:
        thing.eval()
    report.unchecked[report.unchecked.index(UNCHECKED[0])] = "how much dropout drops"
    return [bug] if bug else []


def hidden_scales(found: Found) -> list[str]:
    """Wrong scales that are equal to the right one with these very sizes: such as sqrt(H) where d = H."""
    reading, same = found.reading, list[str]()
    reading.budget = [SINGLES]
    for bug in reading.target.bugs:
        other = set(bug.knobs) == {"scale"} and bug.knobs["scale"] not in ("8", "integer")  # numbers, not other sizes
        setting = merge(found.knobs, bug.knobs) if other else None
        if setting is not None and reading.equals(setting):
            same.append(fill(bug.sentence, reading.sizes))
    d = reading.sizes.get("d")
    return [f"with this width of a head, d = {d}, it would look the same if {sentence}: try other sizes"
            for sentence in same[:1]]  # fmt: skip


def wrong(attempt: Attempt, found: Found) -> None:
    """A bug with a name."""
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
    """What to say where a parameter without effect stands for the output projection, though its name says otherwise."""
    taken = [entry.partition(" = ")[0] for entry in reading.binding.how if entry.partition(" = ")[2] == "output"]
    for name in taken:
        likeliest = max(attempt.target.roles, key=lambda role: score(name, role))
        if likeliest.name != "output" and score(name, likeliest):
            return f"the {likeliest.name} layer, `{name}`, is never used: its numbers do not change the output"
    return ""


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
    bare = bool(attempt.target.roles) and not isinstance(attempt.thing, nn.Module)  # where are its parameters?
    ours = attempt.answer.how.startswith("built") or "with matrices" in attempt.answer.how
    guessed = ours or not attempt.plain or bare
    report.verdict = "cannot tell" if guessed else "wrong"
    first = attempt.errors[0] if attempt.errors else "nothing came back"
    report.names = [f"it raises {first}"]
    report.notes = [f"tried: {len(attempt.errors)} ways to call it"]


def check_here(thing: Any, announced: str) -> Report:
    """Check something in this process; a module is copied first, so that its parameters stay."""
    target = find_target(announced)
    path = source_of(thing)
    if isinstance(thing, type) and issubclass(thing, nn.Module):
        return grade_answer(build(thing, target, path), target)
    answer = Answer(thing, f"checked: {type(thing).__name__ if isinstance(thing, nn.Module) else thing.__name__}", path)
    if not isinstance(thing, nn.Module):
        return grade_answer(answer, target)
    answer.float32 = any(parameter.dtype != torch.float64 for parameter in thing.parameters())
    try:
        answer.thing = copy.deepcopy(thing)
    except Exception:  # it keeps tensors of an earlier pass
        raise UserError(f"{type(thing).__name__} cannot be copied: build a fresh one for the check") from None
    return grade_answer(answer, target)


def source_of(thing: Any) -> Path | None:
    """The file in which a function or a module's forward was written; a notebook's cell is one too."""
    function = getattr(thing, "forward", thing)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return Path(code.co_filename) if code else None
