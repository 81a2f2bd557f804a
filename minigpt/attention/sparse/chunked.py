"""Chunks: the text is cut every c positions, and a query sees the past of its own chunk only.

    weights_t = softmax over s of (q_t . k_s / sqrt(d)),   floor(s / c) = floor(t / c), s <= t

Llama 4 (Meta, 2025; there is no paper; `attention_chunk_size` in transformers). New against the sliding window: what
is seen does not move with the query but starts again in each chunk, so the first position of a chunk sees itself alone,
and layers of this kind carry nothing from one chunk into the next, however many they are. Other layers have to: in
Llama 4 every fourth layer sees everything.

Cost: T c d / 2 for a training pass (`fast/windows.py`; T^2 d as written here), at most c d for a written token. Cache:
the keys and values of the current chunk, 2 c G d numbers at most. Used by Llama 4.

B batch, G key heads, T query positions, S key positions, c chunk, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minigpt.attention.cache import ChunkCache, Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.config.options import Count


class Chunked(GroupedQuery, kind="chunked"):
    """Grouped queries that see the past of their own chunk of `chunk` positions."""

    order_blind = False  # positions before the chunk are not seen
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "chunk >= T", own={"chunk": 1000}),
        Edge("sliding_window", "each sees itself alone", own={"chunk": 1}, other={"window": 1}),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        chunk: Count | None = None
        """How many positions a chunk has; by default half of the context."""

    config: Chunked.Config

    def __init__(self, config: Chunked.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.chunk = config.chunk or max(1, model.block_size // 2)

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        chunk = torch.arange(S, device=device) // self.chunk  # (S,)
        return super().mask(T, S, device) & (chunk[S - T :, None] == chunk)  # (T, S)

    def make_cache(self, length: int) -> Past:
        return ChunkCache(self.chunk) if self.chunk < length else super().make_cache(length)
