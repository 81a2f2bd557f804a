"""The k best: a query reads the k keys that match it best, and no others.

    weights_t = softmax over s in best_k(q_t . k_s / sqrt(d)) of the same scores

"Explicit Sparse Transformer" (arXiv 1912.11637). New against multi-head attention: the scores decide which keys are
seen, not the positions. A softmax gives every key some weight; here all but k keys have weight zero. The gradient flows
through the keys that were chosen, as if the choice were fixed.

Cost: as multi-head attention, T^2 d for a training pass and T d for a written token: all scores are computed to find
the best. Cache: 2 D numbers a token. Few models use it as it is; MoBA, NSA and DeepSeek's sparse attention
(`block_top_k`, `native_sparse`, `indexer`) choose by something cheaper than the scores.

B batch, H heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minigpt.attention.edge import Edge
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.sparse.choice import best
from minigpt.config.options import Count


class TopK(MultiHead, kind="top_k"):
    """Multi-head attention to the `k` best matches."""

    chooses = True
    edges: ClassVar[tuple[Edge, ...]] = (Edge("multi_head", "k >= T", own={"k": 1000}),)

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        k: Count = 4
        """How many keys a query reads."""

    config: TopK.Config

    def normalise(self, scores: Tensor) -> Tensor:
        return super().normalise(scores.masked_fill(~best(scores, self.config.k), -torch.inf))  # (B, H, T, S)
