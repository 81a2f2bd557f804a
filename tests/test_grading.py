"""The checker: what its inputs can tell apart, and that every sentence is given where it is true."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from minigpt.grading.grade import grade_answer
from minigpt.grading.load import Answer
from minigpt.grading.outputs import equal
from minigpt.grading.target import Bug, Knobs, Options, Probe, Target, fill
from minigpt.grading.targets import TARGETS, find_target, given
from minigpt.grading.targets.loss import loss_target

BEHIND = {  # targets that an answer's arguments announce
    "multi_head of given heads": given.given(find_target("multi_head")),
    "grouped_query of given heads": given.given(find_target("grouped_query")),
    "multi_head,window=4 of given heads": given.given(find_target("multi_head,window=4")),
    "attention_weights of a module": find_target("attention_weights").module,
    "loss with padding": loss_target(Options(), ["logits", "targets"], pad=True),
    "loss of the ids with padding": loss_target(Options(), ["logits", "ids"], pad=True),
}
ANNOUNCED = [*TARGETS, "multi_head,rotary", "multi_head,alibi", "multi_head,window=4", "multi_head,rotary,cache",
             "attend,alibi", "attend,rotary", *BEHIND]  # fmt: skip


@cache
def target_named(announced: str) -> Target:
    target = BEHIND.get(announced) or find_target(announced)
    assert target is not None
    return target


@cache
def probes_for(announced: str) -> list[Probe]:
    """The inputs, drawn once: what the reference computes of the same ones alone is kept."""
    target = target_named(announced)
    return list(target.probes(target.sizes))


@cache
def parameters_for(announced: str) -> dict[str, Tensor]:
    """Random matrices and biases for every role."""
    target, generator, drawn = target_named(announced), torch.Generator().manual_seed(7), {}
    for role in target.roles:
        shape = role.shape(target.sizes)
        weight = torch.randn(*shape, dtype=torch.float64, generator=generator)
        drawn[role.name] = weight / math.sqrt(role.columns(target.sizes)) if role.into else 1 + 0.3 * weight
        out = shape[: len(role.out)]
        drawn[f"{role.name}_bias"] = 0.3 * torch.randn(*out, dtype=torch.float64, generator=generator)
    return drawn


def outputs(announced: str, knobs: Knobs) -> list[Tensor | None]:
    """What the reference with these knobs returns for every probe; None for fewer queries than it can take."""
    target, found = target_named(announced), list[Tensor | None]()
    for probe in probes_for(announced):
        try:
            found.append(target.output(probe, parameters_for(announced), target.sizes, knobs))
        except RuntimeError:
            assert probe.optional or probe.chunks
            found.append(None)
    return found


def same(first: list[Tensor | None], second: list[Tensor | None], probes: list[Probe]) -> bool:
    """Whether the check, which leaves out what raises, could not tell the two apart."""
    pairs = zip(first, second, probes)
    return all(equal(a, b, probe) for a, b, probe in pairs if a is not None and b is not None)


def settings(target: Target) -> list[tuple[Bug, Knobs]]:
    return [(bug, setting) for bug in target.bugs for setting in bug.settings()]


LONG = ("gpt", "multi_head,rotary,cache")  # seconds
MARKED = [pytest.param(each, marks=pytest.mark.slow) if each in LONG else each for each in ANNOUNCED]


@pytest.mark.parametrize("announced", MARKED)
def test_every_bug_can_be_seen_and_no_two_sentences_look_alike(announced: str) -> None:
    target = target_named(announced)
    probes, right = probes_for(announced), outputs(announced, {})
    assert all(value is not None and value.isfinite().all() for value in right)
    seen: list[tuple[Bug, list[Tensor | None], float]] = []
    for bug, setting in settings(target):
        wrong = outputs(announced, setting)
        assert not same(wrong, right, probes), f"invisible: {bug.sentence} {setting}"
        total = float(torch.cat([x.flatten() for x in wrong[:3] if x is not None]).nan_to_num().sum())
        for other, theirs, their_total in seen:
            if abs(total - their_total) > 1e-6 * abs(total):
                continue  # different for sure
            alike = other is not bug and not (bug.equal and bug.equal == other.equal)
            assert not (alike and same(wrong, theirs, probes)), f"{setting}: {bug.sentence} looks like {other.sentence}"
        seen.append((bug, wrong, total))


@pytest.mark.parametrize("announced", ANNOUNCED)
def test_conventions_are_not_the_reference_itself(announced: str) -> None:
    probes, right = probes_for(announced), outputs(announced, {})
    for convention in target_named(announced).conventions:
        assert not same(outputs(announced, convention.knobs), right, probes), convention.note


@pytest.mark.parametrize("announced", ANNOUNCED)
def test_sentences_are_filled_with_numbers(announced: str) -> None:
    target = target_named(announced)
    for bug in target.bugs:
        assert "{" not in fill(bug.sentence + bug.fix, target.sizes)
    sentences = [bug.sentence for bug in target.bugs]
    assert len(sentences) == len(set(sentences))


MODULES = ["single_head", "multi_head", "grouped_query", "multi_head,rotary", "multi_head,alibi", "multi_head,window=4"]


class Wrapped(nn.Module):
    """The reference with knobs, as a learner's module. In a bank of real answers it would prove nothing; here it shows
    that every sentence can be reached through calls, bindings and all other sentences."""

    def __init__(self, target: Target, knobs: Knobs):
        super().__init__()
        self.target, self.knobs = [target], [knobs]  # in lists: no modules
        self.n_head, self.n_kv_head, self.head_dim = (target.sizes[axis] for axis in "HGd")
        for role in target.roles:
            layer = nn.Linear(role.columns(target.sizes), role.rows(target.sizes))
            setattr(self, role.name, layer)

    def forward(self, x: Tensor) -> Tensor:
        (target,), (knobs,), given = self.target, self.knobs, dict[str, Tensor]()
        for role in target.roles:
            layer, shape = getattr(self, role.name), role.shape(target.sizes)
            given[role.name] = layer.weight.view(shape)
            given[f"{role.name}_bias"] = layer.bias.view(shape[: len(role.out)])
        return target.output(Probe("any", {"x": x}), given, target.sizes, knobs)


@pytest.mark.slow
@pytest.mark.parametrize("announced", MODULES)
def test_every_sentence_is_given_where_it_is_true(announced: str, whole: bool) -> None:
    target = find_target(announced)
    for bug in target.bugs if whole else target.bugs[::16]:
        report = grade_answer(Answer(Wrapped(target, bug.knobs), "checked: the reference with a bug"), target)
        assert report.verdict == ("right, in another convention" if bug.harmless else "wrong"), (bug, report)
        assert fill(bug.sentence, target.sizes) in report.names[0] or bug.equal, (bug, report)
