"""The mean of the past, three ways: a loop, a triangular matrix, a softmax of masked zeros.

Nothing is learned: there are no queries and no keys (their width is zero), and the values are the inputs themselves.
All three are equal, cost O(T) to train by a running sum (the loop stays a loop: it is the lesson), and decode from a
sum and a count, O(1) a token. With a position that biases the scores (alibi) they become a decaying mean.

B batch, T query positions, S key positions, D model width.
"""

import torch
from torch import Tensor

from minigpt.attention import ladder
from minigpt.attention.base import Attention, SoftmaxAttention, shortcut
from minigpt.attention.cache import KVCache, Past, State
from minigpt.attention.position import distance


class Average(Attention):
    """What the three share: their inputs, and the running sum that makes them fast."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        nothing = x.new_empty(x.shape[0], 1, x.shape[1], 0)  # (B, 1, T, 0)
        return nothing, nothing, x.unsqueeze(1)  # the value is (B, 1, T, D)

    def decay(self, query: Tensor, key: Tensor) -> Tensor:
        """How much of each position is left: (1, T, S), ones unless the position biases the scores."""
        bias = self.position.bias(query, key)
        return query.new_ones(1, query.shape[2], key.shape[2]) if bias is None else bias.exp().to(query.dtype)

    @property
    def plain(self) -> bool:
        """Whether this is the plain mean, which a running sum can make: causal, no decay, no dropout of weights."""
        causal = getattr(self.config, "causal", True)
        return causal and not (self.position.acts_by("bias") or (self.training and self.dropout > 0))

    @shortcut(needs=("qkv",))
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.plain:
            return Attention.mix(self, query, key, value)
        total, count = running_sum(value)  # (B, 1, S, D), (S, 1)
        return (total / count).to(value.dtype)[:, :, -query.shape[2] :]  # (B, 1, T, D)

    @shortcut(needs=("qkv",))
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        if not isinstance(past, State):
            return Attention.recall(self, query, key, value, past)
        total, count = running_sum(value)  # (B, 1, T, D), (T, 1)
        count = count + past.length
        for before in past.tensors:
            total = total + before
        past.replace((total[:, :, -1:],), value.shape[2])  # (B, 1, 1, D)
        return (total / count).to(value.dtype)  # (B, 1, T, D)

    @shortcut(needs=("qkv",))
    def make_cache(self, length: int) -> Past:
        return State() if self.plain else KVCache(length)


def running_sum(value: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of each position and all before it, (..., T, D), and how many they are, (T, 1); in float32 at least."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    return value.cumsum(dim=-2, dtype=dtype), torch.arange(1, value.shape[-2] + 1, device=value.device)[:, None]


class AverageLoop(Average, kind="average_loop"):
    """Position by position, as one would say it."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        B, T, S, decay = query.shape[0], query.shape[2], key.shape[2], self.decay(query, key)
        weights = query.new_zeros(B, 1, T, S)
        for t in range(T):
            seen = S - T + t + 1
            weights[:, :, t, :seen] = decay[:, t, :seen] / decay[:, t, :seen].sum(dim=-1, keepdim=True)
        return weights  # (B, 1, T, S)

    @shortcut(needs=("qkv",))
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.plain:
            return Attention.mix(self, query, key, value)
        return ladder.average_loop(value)[:, :, -query.shape[2] :]  # (B, 1, T, D)

    recall, make_cache = Average.recall, Average.make_cache


class AverageMatrix(Average, kind="average_matrix"):
    """A triangle of ones, each row divided by its sum."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        past = distance(query.shape[2], key.shape[2], query.device) >= 0  # (T, S)
        triangle = self.decay(query, key).masked_fill(~past, 0.0)  # (1, T, S)
        weights = triangle / triangle.sum(dim=-1, keepdim=True)  # (1, T, S)
        return weights.expand(query.shape[0], 1, -1, -1)  # (B, 1, T, S)

    mix, recall, make_cache = Average.mix, Average.recall, Average.make_cache  # the same mean, made the same way


class AverageSoftmax(SoftmaxAttention, Average, kind="average_softmax"):
    """The softmax of scores that are all zero, the future filled with -inf: the form that can learn to choose."""

    def scale(self, query: Tensor) -> float:
        return 1.0  # the scores are products of width zero, so all zero; 1/sqrt(0) is not a number

    mix, recall, make_cache = Average.mix, Average.recall, Average.make_cache
