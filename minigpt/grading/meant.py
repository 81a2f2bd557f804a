"""The target that was announced (`--as`), and the targets that the answer fits: some names are ambiguous.

For `attention_weights` and `linear_attention`, a module takes x; a function takes queries, keys and, for the latter,
values. A `dot_product` of query, key and value may be `attend`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from minigpt.grading.arguments import ARGUMENTS
from minigpt.grading.call import calls, parameters_of
from minigpt.grading.clock import Budget
from minigpt.grading.closed import Plain
from minigpt.grading.heads_call import has_heads, needed_tensors
from minigpt.grading.naming import SINGLES, Found, Reading, accept
from minigpt.grading.outputs import Expected, Outputs
from minigpt.grading.readings import Attempt, loosened
from minigpt.grading.report import Report
from minigpt.grading.target import Bug, Convention, Options, Probe, Target
from minigpt.grading.targets import find_target
from minigpt.grading.targets.given import given, products, products_reference, turning
from minigpt.grading.targets.pairs import scores
from minigpt.system.errors import UserError

SCALED = "it takes query, key and value and divides by sqrt(d), as `attend`; `dot_product` does not divide the products"


NOT_CAUSAL = re.compile(r"(?i)\bbi-?dire[ck]?[ct]?[ct]ion|\b(not|non|un)[ -]?causal|\bno causal|\bencoder\b|"
                        r"\b(no|without( an?y?)?)( attention)? mask|\bunmasked|\bcross[- ]attention|\bvalid_?len|"
                        r"\bkey_padding_mask\s*[:=,)]")  # fmt: skip
KEYS = re.compile(r"(?i)^k|key|_k$|schl|cl[eé]s?$|clave|chiav")  # names of arguments that hold the keys
AS_MANY_TEXT = re.compile(r"(?i)\bmust (both )?(be )?(equal|the same|match)|\b(same|equal) (sequence )?length|"
                          r"\bsame number of|\bas many (queries|keys)|\bself[- ]attention|\bsame shape|"
                          r"\b(all|each)( of them| three)? (are|is|have|has)( the)?( shape)? ?[(\[]")  # fmt: skip
ONE_SHAPE = re.compile(r"(?i)\bq\w*\s*,\s*k\w*\s*(,|,? and)\s*v\w*\s*:\s*[(\[]")  # q, k, v: (B, T, d)


def meant(thing: Any, target: Target, numbers: Mapping[str, int] | None = None) -> list[Target]:
    """The targets that an answer is compared with, the likeliest first.

    `numbers`: the arguments that a module without parameters was built with. If the source says that all positions see
    each other, the same targets without a mask come last.
    """
    found = [resized(one, numbers or {}) for one in read_as(thing, target)]
    if not says_full(thing) or target.options.full or target.options.cache or target.options.window:
        return found
    for one in list(found):
        with suppress(UserError):  # the target has no such option
            full = find_target(f"{one},full")
            found.append(replace(full, sizes=one.sizes))
    return found


def says_full(thing: Any) -> bool:
    """Whether the source of an answer says that every position sees every other."""
    return NOT_CAUSAL.search(text_of(thing)) is not None


def text_of(thing: Any) -> str:
    """The source of a function or of a module's class; "" where there is none."""
    try:
        kind = thing.kind if isinstance(thing, Plain) else type(thing)
        return inspect.getsource(thing if inspect.isfunction(thing) else kind)
    except (OSError, TypeError):
        return ""


def resized(target: Target, numbers: Mapping[str, int]) -> Target:
    """A target of given heads, with the width d for which a module without parameters was built (`numbers`)."""
    by = {axis: next((numbers[name] for name in names if name in numbers), 0) for axis, names in ARGUMENTS.items()}
    d = by["d"] or (by["D"] // by["H"] if by["H"] else by["D"])
    if "d" not in target.sizes or target.roles or d < 2:
        return target
    e = d if target.sizes.get("e") == target.sizes["d"] else target.sizes["e"]
    return replace(target, sizes={**target.sizes, "d": d, "e": e, "D": target.sizes["H"] * d})


def read_as(thing: Any, target: Target) -> list[Target]:
    """The targets that the arguments of an answer fit, the likeliest first."""
    if target.function and not isinstance(thing, nn.Module):
        return [target.function]
    if target.module and isinstance(thing, nn.Module) and any(True for _ in thing.parameters()):
        return [target.module]
    if others := of_given_heads(thing, target):
        return [*others, target]
    if target.name == "dot_product" and target.options == Options() and not isinstance(thing, nn.Module):
        names = [entry.name for entry in needed_tensors(thing)]
        if len(names) == 2 and KEYS.search(names[1]):
            return [scores(target.options), find_target("attention_weights")]
        return [target, find_target("attend")] if len(names) == 3 else [target]
    return [target]


def of_given_heads(thing: Any, target: Target) -> list[Target]:
    """The targets of an answer without parameters that takes queries, keys and values, or rotates tensors; or []."""
    if not target.roles or (isinstance(thing, nn.Module) and any(True for _ in thing.parameters())):
        return []
    names = [entry.name.lower() for entry in needed_tensors(thing)]
    letters = {name[0] for name in names[:3]}
    if letters == set("qkv") or (len(names) == 3 and not letters & set("qkvx")):
        if target.name == "single_head" and not target.options.cache:
            return [find_target(f"attend{target.options}")]
        return [other for other in [given(target)] if other]
    turns = target.options.rotary and not target.options.cache and 0 < len(names) < 3
    if turns:
        return [turning(Options(), d) for d in (target.sizes["d"], target.sizes["D"])]
    return []


def best(reports: list[Report]) -> Report:
    """The report that says most: right, else the fewest bugs with a name, else a measurement."""

    def rank(report: Report) -> tuple[object, ...]:
        wrong = report.verdict == "wrong"
        raises = wrong and report.names[0].startswith("it raises")  # it is not called in this way
        untold = report.verdict == "cannot tell"
        return not report.verdict.startswith("right"), untold, raises, report.measured, len(report.names)

    first, chosen = reports[0], min(reports, key=rank)
    if chosen is not first and ",full" in chosen.target:
        note = f"it is not causal, as its text says: checked as {chosen.target}"
        if chosen.verdict.startswith("right"):
            chosen.verdict, chosen.names = "right, in another convention", [note, *chosen.names]
        else:
            chosen.notes.append(note)
    elif chosen is not first:
        chosen.notes.append(f"checked as {chosen.target}, for its arguments")
        if chosen.verdict == "right":
            said = SCALED if chosen.target == "attend" else f"it is right as {chosen.target}, which was not announced"
            chosen.verdict, chosen.names = "right, in another convention", [said]
    return chosen


ONE_SEQUENCE = Bug({}, "it is right for one sequence (T, D), but wrong for a batch (B, T, D): an axis is counted from "
                   "the front", "count axes from the end: dim=-1, x.shape[-2], transpose(-2, -1)")  # fmt: skip


def unannounced(attempt: Attempt) -> str:
    """The name of the same target without a mask ("full"), if the answer is right for it; "" otherwise."""
    target = attempt.target
    if not target.roles or target.options != Options():
        return ""
    try:
        other = find_target(f"{target.name},full")
    except UserError:  # the target has no such option
        return ""
    full, budget = dict[int, Expected](), Budget(SINGLES // 4, attempt.answer.clock)
    readings = []
    for r in attempt.readings[:40]:
        expected = full.setdefault(id(r.expected), Expected(other, r.sizes, r.expected.probes))
        readings.append(Reading(other, r.sizes, r.binding, r.outputs, expected, budget))
    return str(other) if accept(readings) or accept(loosened(readings)) else ""


AS_MANY = Convention({"mask": "corner"}, "it is written for as many queries as keys; with fewer, as with a cache, "
                     "query t would be taken for position t")  # fmt: skip


def as_many_queries_only(thing: Any, found: Found) -> Found:
    """A mask that is wrong only for fewer queries than keys is a convention, no bug, if the function never reads the
    number of keys, or if its source says that there are as many queries as keys."""
    left = [bug for bug in found.bugs if bug.knobs != AS_MANY.knobs]
    if len(left) == len(found.bugs) or found.reading.target.takes[0] != "query":
        return found
    if asks_for_keys(thing) and not AS_MANY_TEXT.search(text_of(thing)) and not of_one_shape(thing, found):
        return found
    return replace(found, bugs=left, conventions=[*found.conventions, AS_MANY], either=found.either if left else [])


def of_one_shape(thing: Any, found: Found) -> bool:
    """Whether the source gives queries, keys and values one shape, and the function raised for other values."""
    sizes = found.reading.sizes
    wide = "given" not in sizes and sizes.get("e") == sizes.get("d")  # `as_wide` in grade.py makes them equal
    return wide and ONE_SHAPE.search(text_of(thing)) is not None


def asks_for_keys(thing: Any) -> bool:
    """Whether the source of a function reads the shape, size or length of anything but its first argument; True if the
    source is not known, or reads none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return True
    first = parameters_of(thing)[0].name
    asked = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ("shape", "size")
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    asked += [node.args[0] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "len"]
    return not asked or any(not (isinstance(value, ast.Name) and value.id == first) for value in asked)


def one_sequence(attempt: Attempt) -> list[Reading]:
    """The reading in which a function that also takes a batch gets one sequence (T, D) at a time; [] if it cannot."""
    target, taken = attempt.target, {call.layout for call in attempt.calls}
    if target.roles or has_heads(target) or "(T, D)" in taken:
        return []
    found = []
    for call in calls(attempt.thing, target):
        outputs = Outputs(partial(call.run, attempt.thing), target.probes(target.sizes))
        if call.layout == "(T, D)" and isinstance(outputs[0], Tensor):
            expected, budget = Expected(target, target.sizes, outputs.probes), Budget(SINGLES, attempt.answer.clock)
            found.append(Reading(target, target.sizes, attempt.readings[0].binding, outputs, expected, budget))
            attempt.readings.append(found[-1])
            attempt.calls.append(call)
    return found


SHUFFLED = Convention({}, "its features come out in another order, or with other signs: the products of queries and "
                      "keys are the same, as long as both are rotated by it")  # fmt: skip
MOVED = Convention({}, "it is not the usual rotation, as where positions start elsewhere, but the products of queries "
                   "and keys are the same, as long as both are rotated by it")  # fmt: skip


def by_products(attempt: Attempt) -> Found | None:
    """Accept a `rotary` answer if the products of its rotated queries and keys are right; None if they are not."""
    if attempt.target.name != "rotary":
        return None
    target = replace(attempt.target, reference=products_reference, bugs=[])
    pairs = list(zip(attempt.readings, attempt.calls))
    for reading, call in pairs:
        run = partial(run_products, call.run)
        outputs = Outputs(partial(run, attempt.thing), reading.outputs.probes, reading.outputs.float32)
        expected = Expected(target, reading.sizes, outputs.probes)
        budget = Budget(SINGLES, attempt.answer.clock)
        other = Reading(target, reading.sizes, reading.binding, outputs, expected, budget)
        if found := accept([other]) or accept(loosened([other])):
            attempt.readings.append(other)
            attempt.calls.append(replace(call, run=run))
            probe, theirs = outputs.probes[0], reading.outputs[0]
            right = attempt.target.output(probe, {}, reading.sizes, found.knobs)  # (B, T, 2 H, d)
            same = isinstance(theirs, Tensor) and sizes_of(theirs).allclose(sizes_of(right), rtol=1e-5, atol=1e-5)
            return replace(found, conventions=[*found.conventions, SHUFFLED if same else MOVED])
    return None


def run_products(run: Callable[[Any, Probe], Tensor], thing: Any, probe: Probe) -> Tensor:
    """The products (B, H, T, T) of the rotated queries and keys that an answer returns."""
    return products(run(thing, probe))


def sizes_of(turned: Tensor) -> Tensor:
    """The absolute values of the features of each head, sorted: (B, T, 2 H, d)."""
    return turned.abs().sort(dim=-1).values
