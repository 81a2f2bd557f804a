"""The targets: what a learner can be asked to write, by name."""

from __future__ import annotations

from collections.abc import Callable

from minigpt.grading.target import Options, Target, read_options
from minigpt.grading.targets import block, given, gpt, heads, linear_attention, means, mlp, norm, pairs
from minigpt.grading.targets.loss import loss_target
from minigpt.system.errors import UserError

TARGETS: dict[str, Callable[[Options], Target]] = {
    "running_mean": means.running_mean,
    "dot_product": pairs.dot_product,
    "attention_weights": pairs.attention_weights,
    "attend": given.attend,
    "single_head": heads.single_head,
    "multi_head": heads.multi_head,
    "grouped_query": heads.grouped_query,
    "rotary": given.turning,
    "linear_attention": linear_attention.linear_attention,
    "mlp": mlp.mlp,
    "norm": norm.norm_target,
    "loss": loss_target,
    "block": block.block,
    "gpt": gpt.gpt,
}


def find_target(text: str) -> Target:
    """The target of "multi_head" or "multi_head,rotary,window=4". Raises UserError."""
    name, *words = text.split(",")
    if name not in TARGETS:
        raise UserError(f"{name!r} is no target; there are: {', '.join(TARGETS)}")
    return TARGETS[name](read_options(words))
