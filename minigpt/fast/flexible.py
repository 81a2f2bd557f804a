"""Capped scores and masks in one kernel of a GPU: torch's FlexAttention (arXiv 2412.05496), in training.

torch compiles the kernel when it is first used, which takes seconds, and again for each new length of a text. So it is
used for texts of whole blocks only, and where gradients are wanted: decoding has another length with every token.

B batch, H query heads, G key heads, T positions, d width of a query, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from minigpt.attention import SoftmaxAttention
from minigpt.attention.base import repeat_kv
from minigpt.fast import kernels

DEVICES = {"cuda"}  # an H100: equal, and faster for all but `chunked`, which keeps its own form
BLOCK = 128  # positions; where the mask allows nothing in a block of queries and keys, the kernel skips it
LEAST = 2 * BLOCK
Mix = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
_masks: WeakKeyDictionary[SoftmaxAttention, dict[int, Any]] = WeakKeyDictionary()


def usable(self: SoftmaxAttention, query: Tensor, key: Tensor) -> bool:
    """Whether the kernel computes this: query (B, H, T, d), key (B, G, T, d)."""
    T, grad = query.shape[2], torch.is_grad_enabled() and query.requires_grad
    whole = key.shape[2] == T and T % BLOCK == 0 and T >= LEAST
    plain = not kernels.has_bias(self) and not (self.training and self.dropout)
    return query.device.type in DEVICES and whole and plain and grad and not torch.compiler.is_compiling()


@lru_cache(maxsize=1)
def kernel() -> Any:
    """The compiled kernel. Its import takes a second."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def blocks_of(self: SoftmaxAttention, T: int, device: torch.device) -> Any:
    """The mask of a layer over T positions, as blocks that are seen wholly, in part, or not at all."""
    from torch.nn.attention.flex_attention import create_block_mask

    masks = _masks.setdefault(self, {})
    if T not in masks:
        mask = self.mask(T, T, device)  # (T, T)
        masks[T] = create_block_mask(lambda b, h, t, s: mask[t, s], None, None, T, T, device=device, BLOCK_SIZE=BLOCK)
    return masks[T]


def best(own: Mix) -> Mix:
    """The kernel of a GPU where it can be used, else a `mix` of our own."""

    def mix(self: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (flexible if usable(self, query, key) else own)(self, query, key, value)

    mix.own = own  # type: ignore[attr-defined]
    return mix


def flexible(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values, with capped scores if the config has a cap: (B, H, T, e)."""
    cap: Any = getattr(self.config, "cap", None)
    H, T = query.shape[1:3]
    if key.shape[1] < H:
        key, value = repeat_kv(key, H), repeat_kv(value, H)  # (B, H, T, d), (B, H, T, e)

    def capped(score: Tensor, *indices: Tensor) -> Tensor:
        capped: Tensor = cap * torch.tanh(score / cap)
        return capped

    mask, scale = blocks_of(self, T, query.device), self.scale(query)
    mixed: Tensor = kernel()(query, key, value, None if cap is None else capped, mask, scale)
    return mixed  # (B, H, T, e)
