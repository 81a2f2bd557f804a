"""Objectives: against formulas in float64, exact over micro-batches, and refused where they break the sum over a batch.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_trainings import BLOCK, make_dataset, make_model, settings
from torch import Tensor

from minigpt.system.errors import UserError
from minigpt.text.dataset import IGNORED
from minigpt.training.fake import simulate
from minigpt.training.loop import BatchLoss, accumulate, added_up, compiled, evaluate
from minigpt.training.memory import Job
from minigpt.training.objective import Objective, check_objective


def negative(log_p: Tensor, targets: Tensor) -> Tensor:
    return -(log_p * F.one_hot(targets, log_p.shape[-1])).sum(-1)  # (B, T)


FORMULAS: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "next_token": ({}, lambda logits, targets, there: negative(logits.log_softmax(-1), targets)),
    "answers": ({}, lambda logits, targets, there: negative(logits.log_softmax(-1), targets)),
    "label_smoothing": (
        {"smoothing": 0.3},
        lambda logits, targets, there: (
            0.7 * negative(logits.log_softmax(-1), targets) - 0.3 * logits.log_softmax(-1).mean(-1)
        ),
    ),
    "z_loss": (
        {"weight": 0.5},
        lambda logits, targets, there: (
            negative(logits.log_softmax(-1), targets) + 0.5 * logits.exp().sum(-1).log() ** 2
        ),
    ),
    "two_ahead": (
        {"weight": 0.25},
        lambda logits, targets, there: (
            negative(logits.log_softmax(-1), targets)
            + 0.25 * negative(logits.log_softmax(-1), targets.roll(-1, 1)) * there.roll(-1, 1) * (torch.arange(7) < 6)
        ),
    ),
}
OBJECTIVES = [Objective.kinds[kind].Config(**options) for kind, (options, _) in FORMULAS.items()]
KINDS = {"ids": lambda config: config.component.kind}


def batch(V: int = 11) -> tuple[Tensor, Tensor]:
    """Logits (B, T, V) and targets (B, T), some of them IGNORED: at the end, in the middle, all of a row."""
    logits, targets = 3 * torch.randn(5, 7, V, dtype=torch.float64), torch.randint(V, (5, 7))
    targets[0, 3:], targets[1, 2], targets[3] = IGNORED, IGNORED, IGNORED
    return logits, targets


def test_every_objective_has_a_formula() -> None:
    assert FORMULAS.keys() == Objective.kinds.keys()


@pytest.mark.parametrize("config", OBJECTIVES, **KINDS)
def test_it_is_its_formula_with_its_gradient(config: Any) -> None:
    logits, targets = batch()
    there, (a, b) = targets != IGNORED, (logits.clone().requires_grad_() for _ in range(2))
    losses = config.component(config).loss(a, targets)
    expected = FORMULAS[config.component.kind][1](b, targets.clamp(min=0), there) * there
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    losses.sum().backward(), expected.sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", OBJECTIVES, **KINDS)
def test_what_training_adds_up_is_the_sum_of_its_losses(config: Any) -> None:
    """Also for next_token and answers, whose sum is made in one kernel."""
    logits, targets = batch()
    total = added_up(lambda ids: logits.float(), config)(targets, targets)
    torch.testing.assert_close(total, config.component(config).loss(logits.float(), targets).sum())


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("config", OBJECTIVES, **KINDS)
def test_micro_batches_add_up_to_the_whole_batch(config: Any, size: int) -> None:
    x, y = torch.randint(30, (2, 5, BLOCK))
    y[0, 3:], y[1, 1:], y[4, :] = IGNORED, IGNORED, IGNORED

    def trained(size: int | None) -> tuple[float, list[Tensor]]:
        model, options = make_model(), settings(micro_batch_size=size, objective=config)
        loss = accumulate(model, x, y, options, BatchLoss(model, compiled(model, options))).item()
        return loss, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    (whole, expected), (loss, gradients) = trained(None), trained(size)
    assert loss == pytest.approx(whole, rel=1e-6)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_validation_loss_is_the_next_tokens_with_all_of_them(tmp_path: Any) -> None:
    dataset, model = make_dataset(tmp_path, "the cat sat on the mat. " * 30), make_model()
    losses = {evaluate(model, dataset, "val", settings(objective=config)) for config in OBJECTIVES}
    assert len(losses) == 1


@pytest.mark.slow
def test_a_plan_counts_what_it_keeps() -> None:
    model = make_model().config
    peaks = [simulate(Job(model, 5000, settings(batch_size=256, objective=config))).peak for config in OBJECTIVES]
    by_kind = dict(zip(FORMULAS, peaks))
    assert by_kind["next_token"] == by_kind["answers"] < by_kind["two_ahead"]


@pytest.mark.slow
@pytest.mark.usefixtures("captured")
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler about torch
@pytest.mark.parametrize("config", OBJECTIVES, **KINDS)
def test_compiled_it_is_the_same(config: Any) -> None:
    x, y = torch.randint(30, (2, 4, BLOCK))
    y[0, 3:] = IGNORED
    model, options = make_model(), settings(compile=True, objective=config)
    loss = accumulate(model, x, y, options, BatchLoss(model, compiled(model, options))).item()
    plain = accumulate(model, x, y, options, BatchLoss(model, added_up(model, config))).item()
    assert loss == pytest.approx(plain, rel=1e-5)


# ---- the check before the first step ----


@pytest.mark.parametrize("V", [2, 65, 50257])
@pytest.mark.parametrize("config", OBJECTIVES, **KINDS)
def test_those_that_ship_pass_the_check(config: Any, V: int) -> None:
    check_objective(config, V)


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    return Objective.kinds["next_token"](None).loss(logits, targets)  # type: ignore[no-any-return]


COUNT = iter(range(10**9))
WRONG: dict[str, Callable[[Tensor, Tensor], Any]] = {
    r"loss returned \(\), expected \(B, T\) = \(4, 6\)": lambda x, y: losses_of(x, y).mean(),
    r"loss returned float, expected \(B, T\)": lambda x, y: 1.0,
    r"the loss is not finite": lambda x, y: losses_of(x, y) / 0,
    r"no gradient reaches the logits": lambda x, y: losses_of(x.detach(), y),
    r"the loss is not the same twice": lambda x, y: losses_of(x, y) * (1 + next(COUNT)),
    r"the loss is not 0 where the target is IGNORED": lambda x, y: losses_of(x, y) + 0.1,
    r"the mean over two halves of a batch is not that of the whole": lambda x, y: losses_of(x, y) / (y >= 0).sum(),
    r"the loss of a position depends on the targets of others": lambda x, y: (
        losses_of(x, y) / (y >= 0).sum(1, keepdim=True).clamp(min=1)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_one_is_named(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objective, "kinds", dict(Objective.kinds))

    class Mine(Objective, kind="mine"):
        def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
            return WRONG[message](logits, targets)  # type: ignore[no-any-return]

    with pytest.raises(UserError, match=r"^training\.objective: mine: " + message):
        check_objective(Mine.Config(), 9)


def test_other_targets_may_be_read_where_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objective, "kinds", dict(Objective.kinds))

    class Mine(Objective.kinds["two_ahead"], kind="mine"):  # type: ignore[misc]
        reads_other_targets = False

    with pytest.raises(UserError, match="depends on the targets of others: if it is meant, reads_other_targets = True"):
        check_objective(Mine.Config(), 9)
