"""Attention sinks: a query sees the last w positions, and the first s of the text.

    weights_t = softmax over s' of (q_t . k_s' / sqrt(d)),   s' < s or t - w < s' <= t

"Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453). The weights of a softmax sum to one, and
trained models put the weight that they do not need on the first tokens. With a window alone these tokens are lost, and
a model that was trained without a window fails. New against the sliding window: the first `sinks` positions stay.

Cost: T (s + w) d for a training pass (`fast/windows.py`; T^2 d as written here), (s + w) d for a written token. Cache:
the first s and a ring of the last w keys and values, 2 (s + w) G d numbers. StreamingLLM adds it to models that were
trained without it.

As in the paper, a position that biases by distance (alibi) counts places in the cache: a sink is never farther than
s + w - 1 places away. Keys of rotary positions are kept as they were rotated, at their places in the text; the paper
rotates them again at their places in the cache, which matters only beyond the context of the training.

B batch, H query heads, G key heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minigpt.attention.cache import KVCache, Past, WindowCache
from minigpt.attention.edge import Edge
from minigpt.attention.position import distance
from minigpt.attention.softmax.selective import Selective
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.config.options import Natural


def voted_away(streaming: Streaming, selective: Selective) -> None:
    """Every token votes, with head 0, against all but the first token and itself: the first and the last two stay."""
    for layer in (streaming, selective):
        for part in (layer.query, layer.key):
            head = slice(0, part.out_features // streaming.n_head)
            part.weight[head], part.bias[head] = 0.0, 30.0


class Streaming(SlidingWindow, kind="streaming"):
    """A window, and the first `sinks` positions."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("sliding_window", "no sinks", own={"window": 3, "sinks": 0}, other={"window": 3}),
        Edge("multi_head", "window >= T", own={"window": 1000}),
        Edge("multi_head", "sinks >= T", own={"window": 1, "sinks": 1000}),
        Edge("multi_head", "window + sinks >= T", own={"window": 8, "sinks": 3}),
        Edge(
            "selective",
            "every token votes against all",
            own={"window": 2, "sinks": 1},
            prepare=voted_away,
            without=("rotate", "bias"),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(SlidingWindow.Config):
        sinks: Natural = 4
        """How many of the first positions every query sees."""

    config: Streaming.Config

    def near(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().near(T, S, device) | (torch.arange(S, device=device) < self.config.sinks)  # (T, S)

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        T, S, farthest = query.shape[2], key.shape[2], self.config.sinks + self.window - 1
        column = torch.arange(S, device=query.device)  # (S,)
        shifted = (column < self.config.sinks) & (distance(T, S, query.device) > farthest - column)  # (T, S)
        last = super().bias(query[:, :, -1:], key)  # (H, 1, S): for the distances S - 1, ..., 1, 0
        in_cache = last[:, :, (S - 1 - farthest + column).clamp(0, S - 1)]  # (H, 1, S): distance farthest - column
        return torch.where(shifted, in_cache, super().bias(query, key))  # (H, T, S)

    def make_cache(self, length: int) -> Past:
        size = self.config.sinks + self.window
        return WindowCache(self.window, self.config.sinks) if size < length else KVCache(length)
