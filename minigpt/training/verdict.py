"""What the evaluations of a training say: which step is the best, when patience ends, and how it went.

All of it follows from the list of evaluations, which every checkpoint holds. So a training that was killed and resumed
decides as one that was never stopped, and so do all processes of one training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from minigpt.config.options import Count, NonNegative, Options, Range

Evaluation = tuple[int, float, float]  # step, mean training loss since the evaluation before, validation loss


@dataclass(frozen=True, kw_only=True)
class KeepConfig(Options):
    """Which checkpoints are kept; the others are removed once a newer one is written."""

    newest: Count = 2
    """How many of the newest ones."""
    best: Annotated[int, Range(0, 1)] = 0
    """1: the one with the lowest validation loss too, RUN@best; each evaluation with a new lowest loss writes one."""


@dataclass(frozen=True, kw_only=True)
class StopConfig(Options):
    """Early stopping: training ends when the validation loss has not become better for a while.

    A schedule that falls until `max_steps` has not fallen to its end by then.
    """

    patience: Count = 5
    """How many evaluations in a row may be without a better loss."""
    least: NonNegative = 0.001
    """By how much, in nats a token, a loss must be below the last one that counted as better."""


def best_of(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """The evaluation with the lowest validation loss, the first of equal ones; None if there are none."""
    return min(evaluations, key=lambda evaluation: evaluation[2], default=None)


def out_of_patience(evaluations: Sequence[Evaluation], stop: StopConfig | None, warmup_steps: int) -> str:
    """Why training stops early after these evaluations, in words; "": it goes on.

    Counts from the first evaluation after the warm-up. As in Lightning's EarlyStopping, a loss is compared with the
    last one that counted as better, not with the lowest one, so that many small gains count in the end.
    """
    counted, best_step, waited = math.inf, 0, 0
    for step, _, loss in evaluations:
        if stop is not None and step >= warmup_steps:
            if loss < counted - stop.least:
                counted, best_step, waited = loss, step, 0
            else:
                waited += 1
    if stop is None or waited < stop.patience:
        return ""
    below = f"{stop.least:g} below {counted:.4f}, that of step {best_step}"
    return f"no validation loss of the last {waited} was more than {below} (training.stop)"


def better_before(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """The best evaluation, where its loss is lower than the last one by more than 1 %; else None."""
    best = best_of(evaluations)
    return best if best is not None and len(evaluations) > 2 and evaluations[-1][2] > 1.01 * best[2] else None


def verdict(evaluations: Sequence[Evaluation], left_of: Callable[[int], str] = lambda step: "") -> str:
    """Whether a training overfits, improves or has levelled off, in plain words; of a step that it names, `left_of`
    says what is left."""
    if len(evaluations) < 3:
        return "too few evaluations for a verdict (lower training.eval_every)"
    step, train_loss, val_loss = evaluations[-1]
    if best := better_before(evaluations):
        best_step, best_train, best_val = best
        rose = f"the validation loss rose from {best_val:.4f} to {val_loss:.4f} while the training loss fell"
        advice = f"raise model.dropout, give it more text, or train anew with training.max_steps={best_step}"
        if train_loss < best_train:
            return f"overfitting since step {best_step}: {rose}; {advice}{left_of(best_step)}"
        return f"getting worse since step {best_step}: both losses rose; lower the learning rate{left_of(best_step)}"
    earlier_step, _, earlier = max([e for e in evaluations[:-1] if e[0] <= 0.75 * step], default=evaluations[0])
    if val_loss < 0.99 * earlier:
        return f"still improving at step {step}: more steps would lower the validation loss further"
    return f"levelled off: the validation loss is within 1 % of what it was at step {earlier_step} ({earlier:.4f})"
