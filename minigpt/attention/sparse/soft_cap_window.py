"""A soft cap within a sliding window: a query sees the last w positions, and no score leaves (-cap, cap).

    weights_t = softmax over s of cap tanh(q_t . k_s / sqrt(d) / cap),   t - w < s <= t

Every second layer of "Gemma 2: Improving Open Language Models at a Practical Size" (arXiv 2408.00118), with a cap of 50
and a window of 4096; the layers between are `soft_cap`. New against the sliding window: the scores, by `soft_cap`.

Cost: T w d for a training pass (`fast/windows.py`; T^2 d as written here), and w d for a written token. Cache: a ring
of the last w keys and values, 2 w G d numbers however long the text. Used by Gemma 2.

B batch, H query heads, G key heads, T query positions, S key positions, w window, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.softmax.soft_cap import SoftCap
from minigpt.attention.sparse.sliding_window import SlidingWindow


class SoftCapWindow(SoftCap, SlidingWindow, kind="soft_cap_window"):
    """The scores are those of `soft_cap`, and the mask is that of `sliding_window`."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("soft_cap", "window >= T", own={"window": 1000, "cap": 2.0}, other={"cap": 2.0}),
        Edge("sliding_window", "cap -> inf", own={"window": 3, "cap": 1e6}, other={"window": 3}, error=1e-5),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(SoftCap.Config, SlidingWindow.Config):
        pass

    config: SoftCapWindow.Config

    def make_cache(self, length: int) -> Past:
        return super().make_cache(length)  # repeated for `fast/guard.py`: with a cap the ring is right too
