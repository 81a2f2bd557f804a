"""The mean of the past as a softmax: all scores are zero, and the future is filled with -inf.

    weights_t = softmax over s <= t of 0

New against the matrix: in this form, scores that are not zero can give some positions more weight than others.
Cost and cache: those of the loop. Used in lessons.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from minigpt.attention.averages.average import Average
from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.edge import Edge


class AverageSoftmax(SoftmaxAttention, Average, kind="average_softmax"):
    """The scores are products of queries and keys of width zero."""

    edges: ClassVar[tuple[Edge, ...]] = (Edge("average_matrix", "always"),)

    def scale(self, query: Tensor) -> float:
        return 1.0  # 1/sqrt(0) is not a number
