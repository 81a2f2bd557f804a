"""Blocks of keys: a query reads its own block, and the blocks that match it best as a whole.

    match of block i = q_t . (the mean of its keys) / sqrt(d)
    weights_t = softmax over s <= t in the own block and the k - 1 best blocks before it

"MoBA: Mixture of Block Attention" (arXiv 2502.13189). New against top-k: whole blocks of m keys are chosen, by their
mean key, so that a choice costs T / m products instead of T, and the keys that are read lie side by side in memory. The
choice has no parameters of its own: training changes the keys and queries so that the right blocks match. Here the
match is computed as the mean of the products, which equals the product with the mean key; a position that biases the
scores also biases the match.

Cost: T k m d for a training pass with a kernel for blocks (here masked, T^2 d), and (T / m + k m) d for a written
token with block means that are kept (here T d). Cache: 2 G d numbers a token. Used in Kimi's models of long context.

B batch, H heads, T query positions, S key positions, N blocks of m positions, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.sparse.choice import best
from minigpt.attention.sparse.top_k import TopK
from minigpt.config.options import Count


def matches_itself_best(block_top_k: BlockTopK, top_k: TopK) -> None:
    """Queries equal keys, and all have one length, so that each query matches its own key best."""
    for layer in (block_top_k, top_k):
        layer.key.load_state_dict(layer.query.state_dict())
        for norm in (layer.query_norm, layer.key_norm):
            norm.weight.fill_(1)  # type: ignore[operator]


class BlockTopK(GroupedQuery, kind="block_top_k"):
    """Grouped queries over the `k` best blocks of `block` positions, their own among them."""

    order_blind = False  # which keys form a block depends on their positions
    chooses = True
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "all blocks", own={"k": 1000}),
        Edge("chunked", "k = 1: its own block", own={"k": 1, "block": 4}, other={"chunk": 4}),
        Edge(
            "top_k",
            "blocks of one, and each matches itself best",
            own={"block": 1, "k": 3, "qk_norm": True},
            other={"k": 3, "qk_norm": True},
            prepare=matches_itself_best,
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        meaning: ClassVar[dict[str, str]] = {"k": "blocks"}

        block: Count | None = None
        """How many positions a block has; by default a sixteenth of the context, and at least two."""
        k: Count = 3
        """How many blocks a query reads, its own included."""

    config: BlockTopK.Config

    def __init__(self, config: BlockTopK.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.block = config.block or max(2, model.block_size // 16)

    def normalise(self, scores: Tensor) -> Tensor:
        (T, S), m = scores.shape[2:], self.block
        blocks = F.pad(scores, (0, -S % m), value=-torch.inf).unflatten(3, (-1, m))  # (B, H, T, N, m)
        number = torch.arange(S, device=scores.device) // m  # (S,): the block of each position
        own = number[S - T :, None] == number[::m]  # (T, N)
        match = blocks.mean(dim=-1).masked_fill(own, torch.inf)  # (B, H, T, N): -inf where the block has not ended
        visible = best(match, self.config.k)[..., number]  # (B, H, T, S)
        return super().normalise(scores.masked_fill(~visible, -torch.inf))  # (B, H, T, S)
