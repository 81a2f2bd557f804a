"""Decoding of kinds in which a token changes the cache of earlier ones: PaTH moves keys, selective attention votes.

The textbook's cache keeps the original keys, and all changes are computed again for each token: T^2 d numbers. Here the
changed numbers are kept: the keys as they have been moved so far, or the sum of the votes against each. A token then
costs T d, and the cache is that of multi-head attention (with one more number for the votes), as in both papers.

B batch, H heads, T new positions, S key positions, d width of a query.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Attention, KVCache, Past, SoftmaxAttention
from minigpt.attention.softmax.path import Path
from minigpt.attention.softmax.selective import Selective
from minigpt.fast.guard import faster

SUPPORTED = ("scale", "bias", "normalise")


class Rewritten(KVCache):
    """A cache of keys that are moved in place, or of keys and the votes against them."""

    def __init__(self, capacity: int):
        super().__init__(capacity)
        self.votes: Tensor | None = None  # (B, 1, 1, capacity)


def make_cache(self: Path | Selective, length: int) -> Past:
    """An empty cache. Without a causal mask it is a plain KVCache, with which `recall` uses the textbook's form."""
    return Rewritten(length) if self.config.causal else KVCache(length)


def one_by_one(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Queries, keys and values (B, H, T, ...), a position at a time: (B, H, 1, ...) each."""
    return zip(*(part.split(1, dim=2) for part in parts))


def read(self: Path | Selective, scores: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The mean of the values for one query, which sees all keys, and its scores (B, H, 1, S): (B, H, 1, e)."""
    weights = F.dropout(self.normalise(scores + self.bias(query, key)), self.dropout, self.training)  # (B, H, 1, S)
    return weights.to(value.dtype) @ value


@faster(Path, "recall", "rewritten keys", supports=SUPPORTED)
def recall_path(self: Path, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """Each token moves the kept keys, and adds its own key: (B, H, T, e)."""
    if not isinstance(past, Rewritten):
        return Attention.recall(self, query, key, value, past)
    d, mixed, precise = query.shape[3], list[Tensor](), torch.promote_types(query.dtype, torch.float32)
    for q, k, v in one_by_one(query.to(precise), key.to(precise), value):
        k, w, b = k.split((d, d, 1), dim=-1)  # (B, H, 1, d) twice, (B, H, 1, 1)
        keys, values = past.append(k, v)  # (B, H, S, d), (B, H, S, e)
        before = keys[:, :, :-1]
        before -= b * (before @ w.mT) * w
        mixed.append(read(self, SoftmaxAttention.scores(self, q, keys), q, keys, values))
    return torch.cat(mixed, dim=2)


@faster(Selective, "recall", "rewritten keys", supports=SUPPORTED, needs=("qkv",))  # the first query also votes
def recall_selective(self: Selective, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """Each token uses the votes of earlier tokens, and then adds its own votes: (B, H, T, e)."""
    if not isinstance(past, Rewritten):
        return Attention.recall(self, query, key, value, past)
    d, mixed, precise = query.shape[3], list[Tensor](), torch.promote_types(query.dtype, torch.float32)
    if past.votes is None:
        past.votes = query.new_zeros(query.shape[0], 1, 1, past.capacity, dtype=precise)
    for q, k, v in one_by_one(query, key[..., :d], value):
        keys, values = past.append(k, v)  # (B, H, S, d), (B, H, S, e)
        scores = SoftmaxAttention.scores(self, q, keys)  # (B, H, 1, S)
        votes = past.votes[..., : past.length]  # (B, 1, 1, S)
        mixed.append(read(self, scores - votes, q, keys, values))
        votes[..., 1:-1] += scores[:, :1, :, 1:-1].relu()  # none against the first token, none against itself
    return torch.cat(mixed, dim=2)


for _kind in (Path, Selective):
    faster(_kind, "make_cache", "rewritten keys", supports=SUPPORTED)(make_cache)
