"""Queries in parts, each with the keys up to its end: for kinds without a fused kernel.

The textbook's form computes T^2 scores, and the mask removes the half that lies in the future. A part of c queries gets
only the keys and values up to its last query, as if it continued a cache, so T (T + c) / 2 scores are computed. A soft
cap also needs fewer passes over its scores: scale and cap divide the queries instead, the tanh works in place, and one
operation multiplies by the cap and adds the mask.

Selective attention is not here: it would compute its votes, (S, S), again for each part, which costs more than the
parts save.

B batch, H query heads, G key heads, T query positions, S key positions, d width of a query, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Attention, SoftmaxAttention
from minigpt.attention.base import repeat_kv
from minigpt.attention.softmax.path import Path
from minigpt.attention.softmax.sigmoid import Sigmoid
from minigpt.attention.softmax.soft_cap import SoftCap
from minigpt.attention.softmax.sparsemax import Sparsemax
from minigpt.attention.softmax.stick_breaking import StickBreaking
from minigpt.attention.softmax.synthesizer import Synthesizer
from minigpt.attention.softmax.talking_heads import TalkingHeads
from minigpt.attention.sparse.block_top_k import BlockTopK
from minigpt.attention.sparse.indexer import Indexer
from minigpt.attention.sparse.native_sparse import NativeSparse
from minigpt.attention.sparse.top_k import TopK
from minigpt.fast import kernels
from minigpt.fast.flexible import best
from minigpt.fast.guard import faster

SIZE = 128  # queries in a part; of 64, 128 and 256 the fastest at 1,024 positions, as measured for each of these kinds
PARTS = "queries in parts"
Mix = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def mix(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values: (B, H, T, e)."""
    return in_parts(self, Attention.mix, query, key, value)


def in_parts(self: SoftmaxAttention, mix: Mix, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values, by a `mix` for each part: (B, H, T, e)."""
    if query.shape[2] <= SIZE:
        return mix(self, query, key, value)
    return torch.cat([mix(self, *part) for part in parts(self, query, key, value)], dim=2)


def parts(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """At most SIZE queries (B, H, c, d), with the keys and values (B, G, S', ...) up to the last of them."""
    T, before = query.shape[2], key.shape[2] - query.shape[2]
    size = SIZE if self.config.causal else T
    for start in range(0, T, size):
        end = min(start + size, T)
        yield query[:, :, start:end], key[:, :, : before + end], value[:, :, : before + end]


def capped(self: SoftCap, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values with capped scores, without parts: (B, H, T, e)."""
    (H, T), S, cap = query.shape[1:3], key.shape[2], self.config.cap
    if key.shape[1] < H:
        key, value = repeat_kv(key, H), repeat_kv(value, H)  # (B, H, S, d), (B, H, S, e)
    scores = (query * (self.scale(query) / cap)) @ key.mT  # (B, H, T, S)
    barrier = torch.where(self.mask(T, S, query.device), 0.0, -torch.inf).to(scores.dtype)  # (T, S)
    if kernels.has_bias(self):
        barrier = (barrier + self.bias(query, key)).to(scores.dtype)  # (H, T, S)
    weights = torch.add(barrier, scores.tanh_(), alpha=cap).softmax(dim=-1)  # (B, H, T, S)
    weights = F.dropout(weights, self.dropout, self.training)  # (B, H, T, S)
    return weights.to(value.dtype) @ value  # (B, H, T, e)


def mix_capped(self: SoftCap, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values: (B, H, T, e)."""
    return in_parts(self, capped, query, key, value)


@faster(Indexer, "mix", PARTS, supports=("scale", "bias"))
def mix_indexed(self: Indexer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values (B, H, T, e), and the indexer's own loss, which is a mean over the queries."""
    if self.training and torch.is_grad_enabled():
        losses = [self.loss_of_the_choice(q, k) * q.shape[2] for q, k, _ in parts(self, query, key, value)]
        self.own_loss = torch.stack(losses).sum() / query.shape[2]
    return mix(self, query, key, value)


faster(SoftCap, "mix", PARTS, supports=("scale", "bias"))(best(mix_capped))
for _kind in (BlockTopK, NativeSparse, Path, Sigmoid, Sparsemax, StickBreaking, Synthesizer, TalkingHeads, TopK):
    faster(_kind, "mix", PARTS, supports=("scale", "bias"))(mix)
