"""The mean of the past as one product: a triangle of ones, each row divided by its sum.

    out = A x,    A[t, s] = 1 / t for s <= t, and 0 for later s

New against the loop: all positions at once.
Cost and cache: those of the loop. Used in lessons.

B batch, T query positions, S key positions.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from minigpt.attention.averages.average import Average
from minigpt.attention.edge import Edge
from minigpt.attention.position import distance


class AverageMatrix(Average, kind="average_matrix"):
    """The weights are a lower triangle."""

    edges: ClassVar[tuple[Edge, ...]] = (Edge("average_loop", "always"),)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        past = distance(query.shape[2], key.shape[2], query.device) >= 0  # (T, S)
        triangle = self.decay(query, key).masked_fill(~past, 0.0)  # (1, T, S)
        weights = triangle / triangle.sum(dim=-1, keepdim=True)  # (1, T, S)
        return weights.expand(query.shape[0], 1, -1, -1)  # (B, 1, T, S)
