"""A soft cap: a score cannot leave (-cap, cap), however long its query and its key are.

    score[t, s] = cap tanh(query[t] . key[s] / sqrt(d) / cap)

The softmax cannot become sharper than exp(2 cap) to 1, and training does not diverge through scores that grow.
Paper: "Gemma 2: Improving Open Language Models at a Practical Size" (arXiv 2408.00118), with a cap of 50; Grok-1
has 30. Gemma 3 has normalised queries and keys (`qk_norm`) in its place.
New against grouped_query: `scores`. What a position adds to them comes after the cap.

Cost: T^2 D for a text, T D for a written token. Cache: 2 G d numbers a token. Used by Gemma 2, Grok-1. torch's fused
kernel has no cap: the fast form computes the scores in parts, without most of the future ones (`fast/parts.py`).

B batch, H query heads, G key heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.edge import Edge
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.config.options import Positive


def values_as_they_come(soft_cap: SoftCap, average_softmax: AverageSoftmax) -> None:
    """Values and outputs are x itself."""
    for layer in (soft_cap.value, soft_cap.project):
        nn.init.zeros_(layer.bias)
        nn.init.eye_(layer.weight)


class SoftCap(GroupedQuery, kind="soft_cap"):
    """Grouped queries with scores between -cap and cap."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "cap -> inf", own={"cap": 1e6}, error=1e-5),
        Edge("average_softmax", "cap -> 0", own={"cap": 1e-9, "n_head": 1}, prepare=values_as_they_come, error=1e-6),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        cap: Positive = 50.0
        """The largest absolute value of a score."""

    config: SoftCap.Config

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return self.config.cap * (super().scores(query, key) / self.config.cap).tanh()  # (B, H, T, S)
