"""The judges of everything that is no attention alone, by the name of the target; and what a program is nearest to.

B batch, T positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minigpt.laws.block import judge_block
from minigpt.laws.law import Judged, Wanted, step_of
from minigpt.laws.loss import judge_loss
from minigpt.laws.means import judge_mean
from minigpt.laws.model import judge_gpt
from minigpt.laws.parts import judge_mlp, judge_norm
from minigpt.reading.meanings import Atom, Exp, Meanings, Mixture, Score, Weight
from minigpt.reading.reading import Reading
from minigpt.reading.shadows import Ids
from minigpt.reading.structure import Broken, Strange
from minigpt.reading.values import inner

Judge = Callable[[Reading, Ids, Wanted], Judged]


@dataclass(frozen=True)
class WantedLoss(Wanted):
    """What a loss should be. Its logits (B, T, V) are the text of the reading, unless they are `logits`."""

    ids: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.int64))
    """The tokens (B, T) whose logits they are."""
    targets: Tensor | None = None
    """The next tokens (B, T); None: the ids are all that it is given."""
    logits: Ids | None = None
    pads: bool = False
    """Whether it leaves out the token 0, which stands for padding."""
    smoothing: float = 0.0
    shifts: bool = False
    """Whether the targets may as well be the ids, which it shifts by one."""


def loss(reading: Reading, output: Ids, wanted: Wanted) -> Judged:
    """A loss, one number; `wanted` says which ids and targets it was given. Raises Ends."""
    assert isinstance(wanted, WantedLoss)
    logits = reading.inputs if wanted.logits is None else wanted.logits
    assert logits is not None
    if output.size > 1:
        return Judged([Broken("the loss is one number", "the losses of all tokens are returned; their mean is missing",
                              "their mean", "reduction='mean', or .mean()", reading.of.made_at[int(output.flat[0])])],
                      [], 2)  # fmt: skip
    return judge_loss(reading, int(output.flat[0]), logits, wanted.ids, wanted.targets, wanted, wanted.pads,
                      wanted.smoothing, wanted.shifts)  # fmt: skip


def without_steps(judge: Judge) -> Judge:
    """A judge for which a step that is not known breaks a law."""

    def judged(reading: Reading, output: Ids, wanted: Wanted) -> Judged:
        try:
            return judge(reading, output, wanted)
        except Strange as step:
            return Judged([step_of(step)], [], 2)

    return judged


JUDGES: Mapping[str, Judge] = {
    "running_mean": without_steps(judge_mean), "norm": without_steps(judge_norm), "mlp": without_steps(judge_mlp),
    "block": without_steps(judge_block), "gpt": without_steps(judge_gpt), "loss": without_steps(loss),
}  # fmt: skip
"""For each target what the laws say of the meanings of what a program returned: x (B, T, D) -> (B, T, D), ids (B, T) ->
logits (B, T, V), a loss. `wanted` is, for a block and a GPT, what the attention inside should be; for a loss a
WantedLoss. They raise Ends where the reading ends."""


def recognise(reading: Reading, output: Ids) -> str:
    """What a program of x is nearest to: running_mean, norm, mlp, block, or softmax for an attention."""
    of, numbers = reading.of, set(output.ravel().tolist())
    if any(isinstance(one, Weight | Exp) and of.is_kind(one.score, Score) and len(of.tokens(one.score)) > 1
           for one in of.all):  # fmt: skip
        return "block" if is_block(of, output[0, -1].tolist()) else "softmax"
    if any(of.is_kind(number, Mixture) for number in numbers):
        return "running_mean"
    return "mlp" if any(isinstance(one, Atom) and is_layer(of, one) for one in of.all) else "norm"


def is_block(of: Meanings, numbers: list[int]) -> bool:
    """Whether there is more than an attention in a row: x itself, or a layer that reads what an attention made."""
    for _, atom in inner(of, numbers, lambda one: is_layer(of, of[one])):
        below = inner(of, of.numbers_in(atom.row), lambda one: False) if is_layer(of, atom) else iter(())
        if atom.op == "input" or any(Mixture in of.kinds(one.row) for _, one in below):
            return True
    return False


def is_layer(of: Meanings, atom: Atom) -> bool:
    """Whether an atom is a linear map of several numbers."""
    return atom.op == "linear" and len(of.numbers_in(atom.row)) > 1
