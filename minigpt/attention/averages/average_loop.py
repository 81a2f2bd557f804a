"""The mean of the past by a loop over the positions.

    out_t = (x_1 + ... + x_t) / t

The first rung of the ladder, with which the others are compared: no queries, no keys, and nothing is learned.
Cost: T^2 D for a text, T D for a written token; as a running sum T D and D (`fast/running_sum.py`). Cache: D numbers a
token; as a running sum D numbers in all. Used in lessons: the mean shows which tokens came, but not in which order.

T query positions, S key positions, D model width.
"""

from __future__ import annotations

from torch import Tensor

from minigpt.attention.averages.average import Average


class AverageLoop(Average, kind="average_loop"):
    """Row t is divided by its sum, for t = 0, 1, ..."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        B, T, S, decay = query.shape[0], query.shape[2], key.shape[2], self.decay(query, key)
        weights = query.new_zeros(B, 1, T, S)
        for t in range(T):
            end = S - T + t + 1
            weights[:, :, t, :end] = decay[:, t, :end] / decay[:, t, :end].sum(dim=-1, keepdim=True)
        return weights  # (B, 1, T, S)
