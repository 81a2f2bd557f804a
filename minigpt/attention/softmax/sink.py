"""A sink: one more score in each softmax, which takes a share of the weight and hands over nothing.

    weights[t, s] = exp(score[t, s]) / (exp(sink) + sum over j <= t of exp(score[t, j]))

A head can attend to no token: its rows sum to less than one. A model that is trained without a sink uses its first
token as one ("Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453).
Paper: "gpt-oss-120b & gpt-oss-20b Model Card" (arXiv 2508.10925). A sink of zero is the softmax of E. Miller's
"Attention Is Off By One" (2023); the sinks start there and are learned.
New against multi_head: one learned number for each head, in `normalise`.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used by gpt-oss.

B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead


def closed(sink: Sink, multi_head: MultiHead) -> None:
    """A sink that takes nothing."""
    sink.sink.fill_(-1e4)  # exp of this is 0


class Sink(MultiHead, kind="sink"):
    """Multi-head attention in which a head may attend to no token."""

    rows_sum_to_one = False
    edges = (Edge("multi_head", "sink -> -inf", prepare=closed),)

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.sink = nn.Parameter(torch.zeros(config.n_head))  # (H,)

    def normalise(self, scores: Tensor) -> Tensor:
        B, H, T, _ = scores.shape
        sink = self.sink.to(scores.dtype)[:, None, None].expand(B, H, T, 1)  # (B, H, T, 1)
        return torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]  # (B, H, T, S)
