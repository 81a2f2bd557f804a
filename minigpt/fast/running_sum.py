"""Averages as running sums: O(T) to train instead of O(T^2), and a sum and a count as the only cache.

If a position biases the scores, dropout drops weights, or the mean is not causal, this is not a plain mean, and the
textbook's form is used.

B batch, T query positions, S key positions, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.attention import Attention, KVCache, Past, State
from minigpt.attention.averages.average import Average
from minigpt.attention.averages.average_loop import AverageLoop
from minigpt.attention.averages.average_matrix import AverageMatrix
from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.fast.guard import faster


def is_plain_mean(self: Average) -> bool:
    """Whether this is the mean of the past, each position counted alike."""
    causal = getattr(self.config, "causal", True)
    return causal and not (self.position.acts_by("bias") or (self.training and self.dropout > 0))


def mix(self: Average, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The mean of each position and all before it: (B, 1, T, D)."""
    if not is_plain_mean(self):
        return Attention.mix(self, query, key, value)
    total, count = running_sum(value)  # (B, 1, S, D), (S, 1)
    return (total / count).to(value.dtype)[:, :, -query.shape[2] :]  # (B, 1, T, D)


def recall(self: Average, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """`mix` while decoding, from the sum of the past: (B, 1, T, D)."""
    if not isinstance(past, State):
        return Attention.recall(self, query, key, value, past)
    total, count = running_sum(value)  # (B, 1, T, D), (T, 1)
    count = count + past.length
    for before in past.tensors:
        total = total + before
    past.replace((total[:, :, -1:],), value.shape[2])  # (B, 1, 1, D)
    return (total / count).to(value.dtype)  # (B, 1, T, D)


def make_cache(self: Average, length: int) -> Past:
    """A cache with the sum alone, or with all values if this is not a plain mean."""
    return State() if is_plain_mean(self) else KVCache(length)


def running_sum(value: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of each position and all before it, (..., T, D), in float32 at least, and their number, (T, 1)."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    return value.cumsum(dim=-2, dtype=dtype), torch.arange(1, value.shape[-2] + 1, device=value.device)[:, None]


for _kind in (AverageLoop, AverageMatrix, AverageSoftmax):
    for _form in (mix, recall, make_cache):
        faster(_kind, _form.__name__, "running sums", needs=("qkv",))(_form)
