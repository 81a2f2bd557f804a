"""Every layer mixes its values with those of the first layer. So deep layers can still read the token itself, however
the layers between have changed its vector.

    v := (1 - l) v + l v_first        l learned, one number a layer

"Value Residual Learning" (arXiv 2410.17897), where it is called ResFormer.
New against multi_head: the values. Queries, keys and weights do not change.
Cost: that of multi_head, O(T^2) in training and O(T) a written token.
Cache: keys and values, 2 D numbers a token a layer. The mixed values are kept, so the first layer's are not read again.
Used in: modded-nanogpt's record trainings.

B batch, H heads, T positions, d width of a head.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.system.errors import UserError


def take_nothing_of_the_first(value_residual: ValueResidual, multi_head: MultiHead) -> None:
    """The share l is zero."""
    if value_residual.share is not None:
        nn.init.zeros_(value_residual.share)


def hand_x_on(value_residual: ValueResidual, multi_head: MultiHead) -> None:
    """The first layer has values x + 1 and adds nothing to x, so the second layer's values are one matrix of x."""
    value = value_residual.value
    if value_residual.share is None:
        nn.init.eye_(value.weight)
        nn.init.ones_(value.bias)
        for parameter in (*value_residual.project.parameters(), multi_head.value.weight):
            nn.init.zeros_(parameter)
        multi_head.project.bias.copy_(-multi_head.project.weight @ multi_head.value.bias)  # it adds nothing either
    else:
        x_itself = torch.eye(*value.weight.shape).to(value.weight)  # (D, D)
        multi_head.value.weight.copy_(value.weight.lerp(x_itself, value_residual.share))
        multi_head.value.bias.copy_(value.bias.lerp(torch.ones_like(value.bias), value_residual.share))


class ValueResidual(MultiHead, kind="value_residual"):
    """The share l starts at a half, as in the paper."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "l = 0", prepare=take_nothing_of_the_first),
        Edge("multi_head", "a first layer whose values are x, and which adds nothing", prepare=hand_x_on),
    )

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.share = nn.Parameter(torch.tensor([0.5])) if layer else None  # (1,); the first layer has its own values

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        if self.share is not None:
            share = self.share.to(value.dtype)  # (1,)
            value = (1 - share) * value + share * first_value(value, past)  # (B, H, T, d)
        return query, key, value


def first_value(value: Tensor, past: Past) -> Tensor:
    """The values (B, H, T, d) of the first layer for the new positions. Raises UserError where they do not fit."""
    first = past
    while first.below is not None:
        first = first.below
    _, values = first.seen or (None, None)
    if values is None or values.shape != value.shape:
        source = "nothing" if values is None else f"values of the shape {tuple(values.shape)}"
        raise UserError(
            f"value_residual mixes its values, {tuple(value.shape)}, with the first layer's, which makes {source}; "
            f"let the first layer be of a kind with as many heads, of the same width"
        )
    return values
