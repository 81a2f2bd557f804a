"""Windows and chunks by blocks: T (w + b) scores instead of T^2 in training. Decoding reads the ring buffer unsorted.

The text is cut into blocks of b positions. A block of queries gets its own keys, those of the block before it, and the
sinks: what its cache would hold. So the mask and the bias of the kind are right without change, and one call of the
fused kernel computes all blocks, as a batch. A chunk is a block that needs no other block.

B batch, H query heads, G key heads, T query positions, N blocks of b positions, s sinks, d and e widths of heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention, Past
from minigpt.attention.cache import WindowCache
from minigpt.attention.position import Alibi, Position
from minigpt.attention.sparse.chunked import Chunked
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.attention.sparse.soft_cap_window import SoftCapWindow
from minigpt.attention.sparse.streaming import Streaming
from minigpt.fast import kernels
from minigpt.fast.flexible import best
from minigpt.fast.guard import faster
from minigpt.fast.parts import mix_capped

NARROWEST = 64  # positions in a block: narrower ones are slower, as measured in windows of 16 to 128
FEWEST = 4  # blocks; with fewer, one masked call is as fast
Mix = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def mix(self: SlidingWindow, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values: (B, H, T, e)."""
    return by_blocks(self, kernels.mix, query, key, value)


def mix_capped_window(self: SoftCapWindow, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`mix` with capped scores, for which there is no fused kernel: (B, H, T, e)."""
    return by_blocks(self, mix_capped, query, key, value)


def by_blocks(self: SlidingWindow, mix: Mix, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values, by a `mix` for each block: (B, H, T, e)."""
    T, S, s = query.shape[2], key.shape[2], getattr(self.config, "sinks", 0)
    b = max(self.window, s, NARROWEST)
    if T != S or FEWEST * b > T or not (self.config.causal and counts_distances(self)):
        return mix(self, query, key, value)
    head, tail = 2 * b, T - T % b  # between them are whole blocks, which begin after the sinks
    first = mix(self, *(x[:, :, :head] for x in (query, key, value)))  # (B, H, 2b, e)
    near = (with_sinks(x, s, pairs(x[:, :, b:tail], b)) for x in (key, value))  # (B N, G, s + 2b, d), ... e)
    among = mix(self, blocks(query[:, :, head:tail], b), *near)  # (B N, H, b, e)
    among = joined(among, len(query))  # (B, H, N b, e)
    if tail == T:
        return torch.cat((first, among), dim=2)
    keys_values = (with_sinks(x, s, x[:, :, tail - b :]) for x in (key, value))  # (B, G, s + b + T - tail, d), ... e)
    return torch.cat((first, among, mix(self, query[:, :, tail:], *keys_values)), dim=2)


def mix_chunks(self: Chunked, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values: (B, H, T, e)."""
    parts, (T, S), b = (query, key, value), (query.shape[2], key.shape[2]), self.chunk
    if T != S or b < NARROWEST or 2 * b > T or not (self.config.causal and counts_distances(self)):
        return kernels.mix(self, *parts)
    tail = T - T % b  # the chunks up to here are whole
    mixed = kernels.mix(self, *(blocks(x[:, :, :tail], b) for x in parts))  # (B N, H, b, e)
    mixed = joined(mixed, len(query))  # (B, H, N b, e)
    if tail == T:
        return mixed
    return torch.cat((mixed, kernels.mix(self, *(x[:, :, tail:] for x in parts))), dim=2)


def counts_distances(self: Attention) -> bool:
    """Whether its position biases by the distance alone, so that the bias of a block by itself is right."""
    return type(self.position).bias in (Position.bias, Alibi.bias)


def joined(x: Tensor, B: int) -> Tensor:
    """The batch of blocks x (B N, H, b, d), joined to texts: (B, H, N b, d)."""
    return x.unflatten(0, (B, -1)).transpose(1, 2).flatten(2, 3)


def blocks(x: Tensor, b: int) -> Tensor:
    """x (B, H, N b, d) as a batch of blocks: (B N, H, b, d)."""
    return x.unflatten(2, (-1, b)).transpose(1, 2).flatten(0, 1)


def pairs(x: Tensor, b: int) -> Tensor:
    """Each block of x (B, G, (N + 1) b, d) except the first, with the one before it: (B N, G, 2 b, d)."""
    each = x.unflatten(2, (-1, b)).transpose(1, 2)  # (B, N + 1, G, b, d)
    return torch.cat((each[:, :-1], each[:, 1:]), dim=3).flatten(0, 1)


def with_sinks(x: Tensor, s: int, near: Tensor) -> Tensor:
    """The first s positions of x (B, G, T, d), then those `near`, (B N, G, n, d): (B N, G, s + n, d)."""
    first = x[:, :, :s].repeat_interleave(len(near) // len(x), dim=0)  # (B N, G, s, d)
    return torch.cat((first, near), dim=2) if s else near


def recall(self: SlidingWindow, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """One written token sees all that the ring holds, in any order: (B, H, 1, e)."""
    if not isinstance(past, WindowCache) or query.shape[2] > 1 or self.position.acts_by("bias"):
        return Attention.recall(self, query, key, value, past)
    keys, values = past.write(key, value)  # (B, G, S, d), (B, G, S, e)
    return kernels.fused(self, query, keys, values, None)


faster(SlidingWindow, "mix", "windows by blocks", supports=("scale",))(best(mix))
faster(Streaming, "mix", "windows by blocks", supports=("scale",))(mix)
for _kind in (SlidingWindow, Streaming):
    faster(_kind, "recall", "windows by blocks", supports=("scale",))(recall)
faster(SoftCapWindow, "mix", "windows by blocks", supports=("scale",))(best(mix_capped_window))
faster(Chunked, "mix", "windows by blocks", supports=("scale",))(mix_chunks)
