"""Objectives: what a training makes small, as one number for each target.

The loop adds these numbers up, and divides by the number of targets in the whole batch: micro-batches and processes
change nothing. A validation loss is the next token's cross-entropy whatever the objective, so that runs compare.

    class Focal(NextToken, kind="focal"):                       # --plugin focal.py training.objective=focal
        def loss(self, logits, targets):
            losses = super().loss(logits, targets)              # (B, T)
            return (1 - (-losses).exp()) ** 2 * losses          # (B, T): what is known already counts less

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.config.options import Component, NonNegative, Rate
from minigpt.system.errors import UserError
from minigpt.text.dataset import IGNORED, Dataset

ROUNDING = 1e-4  # allowed error of a loss in float32, relative to the largest


class Objective(Component):
    """The base of all objectives."""

    reads_other_targets: ClassVar[bool] = False  # the loss of a position depends on the targets of others
    needs_answers: ClassVar[bool] = False  # it is refused where every token of the text is a target

    def __init__(self, config: Any):
        self.config = config

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each target in nats, (B, T), for float32 logits (B, T, V) and targets (B, T): 0 if IGNORED."""
        raise TypeError(f"{type(self).__name__} must define loss(logits, targets)")


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of logits (B, T, V) and each of the targets (B, T), in nats: (B, T), 0 where one is IGNORED."""
    losses = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )  # (B T,)
    return losses.view_as(targets)


class NextToken(Objective, kind="next_token"):
    """Cross-entropy: how surprised the model is by each next token."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets)  # (B, T)


class Answers(NextToken, kind="answers"):
    """The same on answers only. A text of which they are known, as of a task, has no other targets, so that this is
    what `next_token` does there; of any other text it would train on everything, and is refused instead."""

    needs_answers = True


class LabelSmoothing(Objective, kind="label_smoothing"):
    """A share of each target is spread evenly over the vocabulary ("Rethinking the Inception Architecture", arXiv
    1512.00567), so that no logit is driven to infinity."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Objective.Config):
        smoothing: Rate = 0.1
        """The share that is spread."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets, self.config.smoothing)  # (B, T)


class ZLoss(Objective, kind="z_loss"):
    """Cross-entropy, and weight log(Z)^2, where Z is what the softmax divides by: it keeps the logits from drifting
    together ("PaLM", arXiv 2204.02311)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Objective.Config):
        weight: NonNegative = 1e-4
        """What the square is multiplied by."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        squares = logits.logsumexp(dim=-1).square() * (targets != IGNORED)  # (B, T)
        return cross_entropy(logits, targets) + self.config.weight * squares  # (B, T)


class TwoAhead(Objective, kind="two_ahead"):
    """Each position is asked for the token after the next one, too. In "Better & Faster Large Language Models via
    Multi-token Prediction" (arXiv 2404.19737) each of them has a head of its own. Here all is shared, the head and its
    logits too, so that the best prediction is a mixture of both tokens: with a large weight, the next one suffers."""

    reads_other_targets = True

    @dataclass(frozen=True, kw_only=True)
    class Config(Objective.Config):
        weight: NonNegative = 0.1
        """What the loss of the second token is multiplied by."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        second = F.pad(targets[:, 1:], (0, 1), value=IGNORED).masked_fill(targets == IGNORED, IGNORED)  # (B, T)
        return cross_entropy(logits, targets) + self.config.weight * cross_entropy(logits, second)  # (B, T)


def check_answers(objective: Objective.Config, dataset: Dataset) -> None:
    """Raises UserError for an objective that needs answers, and a text of which none are known."""
    if objective.component.needs_answers and dataset.answer_mask is None:
        hint = "choose a source with answers, such as data.source=recall, or training.objective=next_token"
        raise UserError(f"training.objective: {objective.component.kind}: this text has no answers: {hint}")


def check_objective(config: Objective.Config, V: int) -> None:
    """Raises UserError for an objective that breaks a rule: a law of the sum over a batch, or of a resumed run."""
    objective, dice = config.component(config), torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(4, 6, V, generator=dice)).requires_grad_()  # (B, T, V)
    targets = torch.randint(V, (4, 6), generator=dice)  # (B, T)
    targets[0, 2:], targets[1, 0], targets[3] = IGNORED, IGNORED, IGNORED
    losses = objective.loss(logits, targets)  # (B, T)

    def demand(holds: object, problem: str) -> None:
        if not holds:
            raise UserError(f"training.objective: {config.component.kind}: {problem}")

    def equal(one: Tensor, other: Tensor) -> bool:
        return bool((one - other).abs().max() <= ROUNDING * losses.abs().max())

    shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
    demand(shape == targets.shape, f"loss returned {shape}, expected (B, T) = (4, 6), one number for each target")
    demand(losses.isfinite().all(), "the loss is not finite")
    demand(losses.requires_grad, "no gradient reaches the logits: a detach, an argmax?")
    demand(torch.equal(losses, objective.loss(logits, targets)), "the loss is not the same twice")
    demand(not losses[targets == IGNORED].any(), "the loss is not 0 where the target is IGNORED (-100)")
    halves = torch.cat([objective.loss(logits[rows], targets[rows]) for rows in (slice(2), slice(2, 4))])  # (B, T)
    demand(equal(halves, losses), "the mean over two halves of a batch is not that of the whole: add no rows up")
    for target in (IGNORED, (int(targets[2, 3]) + 1) % V) if not objective.reads_other_targets else ():
        others = targets.clone()  # (B, T)
        others[2, 3] = target
        same = others == targets  # (B, T)
        problem = "the loss of a position depends on the targets of others: if it is meant, reads_other_targets = True"
        demand(equal(objective.loss(logits, others)[same], losses[same]), problem)
