"""Stick-breaking: the nearest key takes its share first, and each one further back a share of what is left.

    weights[t, s] = b[t, s] product over s < j < t of (1 - b[t, j]),    b = sigmoid(score)

The most recent match gets the most weight, so that no position is needed. The share that no key takes is lost: rows sum
to less than one.
Paper: "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study" (arXiv 2410.17980), where a
token does not see itself, and the first token sees nothing. With `include_self` a token takes the first share itself.
New against sigmoid: a key gets only what nearer keys left. If all b are small, nearly all is left: this is sigmoid.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used in IBM's research models.

B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.edge import Edge
from minigpt.attention.position import distance
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.sigmoid import Sigmoid


def faint(stick_breaking: StickBreaking, sigmoid: Sigmoid) -> None:
    """All scores are lower by 30, and the projections undo most of the factor."""
    sigmoid.offset.zero_()
    for layer in (stick_breaking, sigmoid):
        d = layer.query.out_features // layer.n_head
        for part, sign in ((layer.query, 1), (layer.key, -1)):
            part.weight[::d] = 0.0
            part.bias[::d] = sign * (30 * d**0.5) ** 0.5
        layer.project.weight.mul_(math.exp(27.0))


class StickBreaking(MultiHead, kind="stick_breaking"):
    """Multi-head attention in which near keys come before far ones."""

    rows_sum_to_one = order_blind = False
    edges = (
        Edge(
            "sigmoid",
            "scores -> -inf, own token seen",
            own={"include_self": True},
            prepare=faint,
            error=1e-8,
            size=0.1,
            without=("rotate",),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        include_self: bool = False
        """Whether a position also attends to itself; it then takes the first share."""

    config: StickBreaking.Config

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        mask = super().mask(T, S, device)  # (T, S)
        return mask if self.config.include_self else mask & (distance(T, S, device) != 0)  # (T, S)

    def normalise(self, scores: Tensor) -> Tensor:
        precise = scores.to(torch.promote_types(scores.dtype, torch.float32))  # (B, H, T, S)
        return (F.logsigmoid(precise) + self.nearer(precise)).exp().to(scores.dtype)  # (B, H, T, S)

    def nearer(self, scores: Tensor) -> Tensor:
        """ln of what the keys after each one leave, from scores (B, H, T, S), -inf in the future: (B, H, T, S)."""
        log_rest = F.logsigmoid(-scores)[..., 1:]  # (B, H, T, S - 1): ln (1 - b) of keys 1 to S - 1
        return F.pad(log_rest.flip(-1).cumsum(dim=-1).flip(-1), (0, 1))  # (B, H, T, S): the sum over the keys after s

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        steps = super().stages(query, key)
        weights, masked = steps.pop("weights"), steps["masked"]  # (B, H, T, S) each
        return {**steps, "share": masked.sigmoid(), "left": self.nearer(masked).exp(), "weights": weights}
