"""What the three averages share: there are no queries and no keys (their width is zero), and the values are x itself.

Nothing is learned, so every weight is 1 / (the number of positions seen). With a position that biases the scores
(alibi), the mean becomes a decaying mean.

B batch, T query positions, S key positions, D model width.
"""

from __future__ import annotations

from torch import Tensor

from minigpt.attention.base import Attention
from minigpt.attention.cache import Past


class Average(Attention):
    """The mean of each position and all before it."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        nothing = x.new_empty(x.shape[0], 1, x.shape[1], 0)  # (B, 1, T, 0)
        return nothing, nothing, x.unsqueeze(1)  # the value is (B, 1, T, D)

    def decay(self, query: Tensor, key: Tensor) -> Tensor:
        """How much each position counts in the mean: (1, T, S), ones unless the position biases the scores."""
        ones = query.new_ones(1, query.shape[2], key.shape[2])  # (1, T, S)
        return ones * self.position.bias(query, key).exp().to(query.dtype)
