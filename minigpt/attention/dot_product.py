"""Scores that look: every token is compared with every other, x @ x^T, with nothing learned.

New against the averages: the weights depend on the tokens. Query, key and value are all x, and the scores stay
unscaled, so a token mostly sees itself: x . x is the largest of its products.
"""

from torch import Tensor

from minigpt.attention.base import SoftmaxAttention


class DotProduct(SoftmaxAttention, kind="dot_product"):
    """query = key = value = x (`qkv` of the base), and the scores as they are."""

    def scale(self, query: Tensor) -> float:
        return 1.0
