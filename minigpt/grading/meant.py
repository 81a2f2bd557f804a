"""What was announced, and what may have been meant: for some names the answer itself says which.

`attention_weights` of a module are those of x; `linear_attention` of a function has its queries given. A dot product of
query, key and value is `attend`, where it is right as that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from minigpt.grading.call import calls, parameters_of
from minigpt.grading.naming import SINGLES, Outputs, Reading, accept
from minigpt.grading.readings import Attempt, loosened
from minigpt.grading.report import Report
from minigpt.grading.target import Bug, Options, Target
from minigpt.grading.targets import find_target
from minigpt.system.errors import UserError

SCALED = (
    "it takes query, key and value and divides by sqrt(d), as `attend`; the rung `dot_product` leaves them unscaled"
)


def meant(thing: Any, target: Target) -> list[Target]:
    """The targets that an answer is held against, the announced one first."""
    if target.function and not isinstance(thing, nn.Module):
        return [target.function]
    if target.module and isinstance(thing, nn.Module) and any(True for _ in thing.parameters()):
        return [target.module]
    if target.name == "dot_product" and target.options == Options():
        letters = {entry.name[0].lower() for entry in parameters_of(thing)[:3]}
        return [target, find_target("attend")] if letters == set("qkv") else [target]
    return [target]


def best(reports: list[Report]) -> Report:
    """The report that says most: right, else the fewest bugs with a name, else a measurement."""
    first = reports[0]
    chosen = min(reports, key=lambda report: (not report.verdict.startswith("right"), report.verdict == "cannot tell",
                                              report.measured, len(report.names)))  # fmt: skip
    if chosen is not first:
        chosen.notes.append(f"checked as {chosen.target}: it takes query, key and value")
        if chosen.verdict == "right":
            chosen.verdict, chosen.names = "right, in another convention", [SCALED]
    return chosen


ONE_SEQUENCE = Bug({}, "it is right for one sequence (T, D), but wrong for a batch (B, T, D): an axis is counted from "
                   "the front", "count axes from the end: dim=-1, x.shape[-2], transpose(-2, -1)")  # fmt: skip


def unannounced(attempt: Attempt) -> str:
    """The name of a target that the answer is right for: the same with rotary or ALiBi, or for all positions."""
    target = attempt.target
    if not target.roles or target.options != Options():
        return ""
    for option in ("rotary", "alibi", "full"):
        try:
            other = find_target(f"{target.name},{option}")
        except UserError:  # the target has no such option
            return ""
        readings = [Reading(other, r.sizes, r.binding, r.outputs, [SINGLES // 4]) for r in attempt.readings[:40]]
        if accept(readings) or accept(loosened(readings)):
            return str(other)
    return ""


def one_sequence(attempt: Attempt) -> list[Reading]:
    """The reading of a function that takes one sequence (T, D) at a time, where it also took a batch."""
    target, taken = attempt.target, {call.layout for call in attempt.calls}
    if target.roles or "(T, D)" in taken:
        return []
    found = []
    for call in calls(attempt.thing, target):
        outputs = Outputs(partial(call.run, attempt.thing), target.probes(target.sizes))
        if call.layout == "(T, D)" and isinstance(outputs[0], Tensor):
            found.append(Reading(target, target.sizes, attempt.readings[0].binding, outputs, [SINGLES]))
            attempt.readings.append(found[-1])
            attempt.calls.append(call)
    return found
