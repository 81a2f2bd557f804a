"""The judges of everything that is no attention alone, by the name of the target; and what a program is nearest to.

B batch, T positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from minigpt.laws.block import BLOCK_LAWS
from minigpt.laws.law import Judged, Wanted, step_of
from minigpt.laws.loss import judge_loss
from minigpt.laws.means import judge_mean
from minigpt.laws.model import judge_gpt
from minigpt.laws.parts import KNOWN, MLP_LAWS, NORM_LAWS, first_attention, judge_parts
from minigpt.reading.meanings import Atom, Exp, Meanings, Mixture, Score, Weight
from minigpt.reading.reading import Reading
from minigpt.reading.shadows import Ids
from minigpt.reading.structure import Ends, Strange
from minigpt.reading.values import inner

Judge = Callable[[Reading, Ids, Wanted], Judged]


def judge(whole: Judge, attends: bool, reading: Reading, output: Ids, wanted: Wanted) -> Judged:
    """What a judge says; where the reading ends after an attention that breaks a law, what breaks there.

    A step that is not known breaks a law. Raises Ends where the reading ends otherwise.
    """
    try:
        return whole(reading, output, wanted)
    except Ends as end:
        if attends and (early := first_attention(reading, output.shape[:2], wanted)):
            return early
        if isinstance(end, Strange):
            return Judged([step_of(end)], [], 2)
        raise


JUDGES: Mapping[str, Judge] = {
    "running_mean": partial(judge, judge_mean, False),
    "norm": partial(judge, partial(judge_parts, laws=NORM_LAWS, allows=KNOWN - {"no gain"}), True),
    "mlp": partial(judge, partial(judge_parts, laws=MLP_LAWS), True),
    "block": partial(judge, partial(judge_parts, laws=BLOCK_LAWS), True),
    "gpt": partial(judge, judge_gpt, True),
    "loss": partial(judge, judge_loss, False),
}
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
