"""How long a check may take: what is said when the time for a name is over, and when the time for a verdict is."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from minigpt.grading.bind import bindings, overwrite, units_of
from minigpt.grading.clock import Budget, Clock, TimeIsUp
from minigpt.grading.confined import Limits
from minigpt.grading.grade import grade_answer, in_double
from minigpt.grading.load import Answer
from minigpt.grading.outputs import Expected, equal
from minigpt.grading.report import Report
from minigpt.grading.targets import find_target


class Attention(nn.Module):
    """Right where `scale` is a half; where `turned`, the matrix of the queries is used transposed."""

    def __init__(self, scale: float = 0.5, turned: bool = False) -> None:
        super().__init__()
        self.n_head, self.scale, self.turned = 3, scale, turned
        self.query, self.key, self.value, self.output = (nn.Linear(12, 12) for _ in range(4))

    def project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return x @ layer.weight + layer.bias if self.turned else layer(x)  # (B, T, D)

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        read = self.project(self.query, x), self.key(x), self.value(x)  # (B, T, D) each
        query, key, value = (y.view(B, T, 3, 4).transpose(1, 2) for y in read)  # (B, H, T, d) each
        scores = query @ key.mT * self.scale  # (B, H, T, T)
        hidden = torch.ones(T, T).triu(1).bool()  # (T, T)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ value  # (B, H, T, d)
        return self.output(mixed.transpose(1, 2).reshape(B, T, D))  # (B, T, D)


def check(module: nn.Module, used: float) -> Report:
    """The report, where this share of a very long time is used already."""
    clock = Clock(1e6, time.process_time() - used * 1e6)
    return grade_answer(Answer(module, "checked here", clock=clock), find_target("multi_head"))


def test_a_check_has_five_seconds() -> None:
    assert Limits().processor_seconds == Clock().seconds == 5


def test_a_bug_is_named_while_there_is_time() -> None:
    report = check(Attention(scale=1.0), used=0.0)
    assert report.verdict == "wrong" and "not scaled" in report.names[0]


def test_late_a_wrong_answer_is_still_wrong_and_the_report_says_why_it_has_no_name() -> None:
    report = check(Attention(scale=1.0), used=0.8)
    assert report.verdict == "wrong"
    assert "not scaled" not in str(report)
    assert "the search for the name of the mistake was ended after 8000" in str(report)


def times(query: Tensor, key: Tensor) -> Tensor:
    """Weights of a dot product, times what nobody multiplies with."""
    hidden = torch.ones(query.shape[1], key.shape[1]).triu(1).bool()  # (T, S)
    return (query @ key.mT).masked_fill(hidden, -torch.inf).softmax(dim=-1) * 1.037  # (B, T, S)


def test_without_a_name_after_a_whole_search_nothing_is_said_of_its_end() -> None:
    report = grade_answer(Answer(times, "checked here"), find_target("attention_weights"))
    assert report.verdict == "wrong" and report.measured and "ended after" not in str(report)


def test_late_a_right_answer_is_still_right_also_in_a_convention_that_is_found_among_the_bugs() -> None:
    assert check(Attention(), used=0.8).verdict == "right"
    report = check(Attention(turned=True), used=0.8)
    assert report.verdict == "right, in another convention"
    assert "transposed" in " ".join(report.names)


def test_too_late_for_a_verdict_nothing_is_called_wrong_or_right() -> None:
    for module in (Attention(scale=1.0), Attention()):
        report = check(module, used=0.96)
        assert report.verdict == "cannot tell"
        assert "it was not certain whether it is right" in report.names[0]


def test_a_budget_ends_by_comparisons_and_by_the_clock() -> None:
    late = Clock(100.0, time.process_time() - 80.0)
    assert Budget(0).over and not Budget(1).over
    assert Budget(1, late, naming=True).over and not Budget(1, late).over
    Budget(1, late).spend()
    try:
        Budget(1, Clock(100.0, time.process_time() - 99.0)).spend()
    except TimeIsUp:
        return
    raise AssertionError("it went on")


def test_what_one_token_does_not_tell_apart_is_computed_once_and_is_the_same() -> None:
    target, module = find_target("multi_head,rotary"), Attention().double()
    overwrite(module)
    sizes = {**target.sizes, "D": 12, "H": 3, "G": 3, "d": 4, "e": 4}
    (units,) = units_of(module, [3])
    found = bindings(units, target.roles, sizes, set())
    expected = Expected(target, sizes, target.probes(sizes), many=True)
    assert len(found) == 24
    settings = [bug.knobs for bug in target.bugs][::5]

    def compare() -> None:
        probe = expected.probes[expected.shortest]
        for knobs in settings:
            for binding in found:
                direct = expected.compute(expected.shortest, binding.parameters, knobs)
                once = expected.output(expected.shortest, binding, knobs)
                assert (direct is None) == (once is None)
                assert direct is None or once is None or equal(once, direct, probe)

    in_double(compare)
    computed = {id(value) for value in expected.kept.values()}
    assert len(computed) < len(settings) * len(found) / 1.5
