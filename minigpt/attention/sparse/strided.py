"""A stride: a query sees the last l positions, and every l-th before them.

    weights_t = softmax over s of (q_t . k_s / sqrt(d)),   t - s < l or (t - s) mod l = 0

"Generating Long Sequences with Sparse Transformers" (arXiv 1904.10509). New against the sliding window: in two layers
every position sees every earlier one, through a position that is near one of the two and a multiple of l away from the
other. With l = sqrt(T) a query sees about 2 sqrt(T) keys. The paper gives the two patterns to two layers or to two
heads, or merges them. Here each head has both patterns, as in the paper's merged head.

Cost: T sqrt(T) d for a training pass and sqrt(T) d for a written token with a kernel for blocks (here masked, T^2 d and
T d). Cache: all keys and values, since each is seen again, 2 D numbers a token. GPT-3 has "locally banded sparse"
layers like these between dense ones.

T query positions, S key positions, l stride, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.config.options import Count


class Strided(MultiHead, kind="strided"):
    """Multi-head attention to what is near and to every `stride`-th position."""

    order_blind = False  # the mask depends on positions
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "stride = 1", own={"stride": 1}),
        Edge("multi_head", "stride >= T", own={"stride": 1000}),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        stride: Count | None = None
        """How many positions are near, and how far apart the others are; by default the root of the context."""

    config: Strided.Config

    def __init__(self, config: Strided.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.stride = config.stride or round(model.block_size**0.5)

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        far = distance(T, S, device)  # (T, S)
        return super().mask(T, S, device) & ((far < self.stride) | (far % self.stride == 0))  # (T, S)
