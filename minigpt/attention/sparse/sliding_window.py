"""A sliding window: a query sees the last w positions only.

    weights_t = softmax over s of (q_t . k_s / sqrt(d)),   t - w < s <= t

"Longformer" (arXiv 2004.05150) has it in both directions, and causal in its character models, as in "Mistral 7B"
(arXiv 2310.06825). New against grouped queries: the mask. The view grows with every layer: after n layers a token can
depend on the n (w - 1) tokens before it.

Cost: T w d for a training pass (`fast/windows.py`; T^2 d as written here), and w d for a written token. Cache: a ring
of the last w keys and values, 2 w G d numbers however long the text. Mistral 7B has it in every layer; Gemma 2 and 3
and gpt-oss have layers with a window and layers without.

B batch, H query heads, G key heads, T query positions, S key positions, w window, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minigpt.attention.cache import Past, WindowCache
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.config.options import Count


class SlidingWindow(GroupedQuery, kind="sliding_window"):
    """Grouped queries that see the last `window` positions."""

    order_blind = False  # near positions are seen, far ones are not
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "window >= T", own={"window": 1000}),
        Edge("grouped_query", "window >= T", own={"window": 1000, "n_kv_head": 2}, other={"n_kv_head": 2}),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        window: Count | None = None
        """How many positions a query sees, its own included; by default a quarter of the context."""

    config: SlidingWindow.Config

    def __init__(self, config: SlidingWindow.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.window = config.window or max(1, model.block_size // 4)

    def near(self, T: int, S: int, device: torch.device) -> Tensor:
        """Whether key s is within the window of query t, or after it: (T, S)."""
        return distance(T, S, device) < self.window  # (T, S)

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) & self.near(T, S, device)  # (T, S)

    def make_cache(self, length: int) -> Past:
        return WindowCache(self.window) if self.window < length else super().make_cache(length)
