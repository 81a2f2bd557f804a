"""A sigmoid for each score in place of a softmax over all: the keys do not compete.

    weights[t, s] = sigmoid(score[t, s] + offset)

A row can sum to anything from 0 to t + 1, so it can count: a mean cannot tell one match from two.
Paper: "Theory, Analysis, and Best Practices for Sigmoid Self-Attention" (arXiv 2409.04431). As there, the offset starts
at -ln(n), n the context: a row of n scores near zero then sums to about one. Here each head learns its own offset.
New against sink: every key has its own denominator, with itself and a sink only. With a low offset and a high sink both
denominators are constant, and the two kinds differ by a constant factor only.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used by Apple's sigmoid models.

B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.sink import Sink


def undivided(sigmoid: Sigmoid, sink: Sink) -> None:
    """Weights of exp(score - 30) in both, and projections that undo most of the factor."""
    sigmoid.offset.fill_(-30.0)
    sink.sink.fill_(30.0)
    for project in (sigmoid.project, sink.project):
        project.weight.mul_(math.exp(27.0))


class Sigmoid(MultiHead, kind="sigmoid"):
    """Multi-head attention whose weights do not compete."""

    rows_sum_to_one = False
    edges = (Edge("sink", "offset -> -inf, sink = -offset", prepare=undivided, error=1e-8, size=0.1),)

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.offset = nn.Parameter(torch.full((config.n_head,), -math.log(model.block_size)))  # (H,)

    def normalise(self, scores: Tensor) -> Tensor:
        return (scores + self.offset.to(scores.dtype)[:, None, None]).sigmoid()  # (B, H, T, S)
