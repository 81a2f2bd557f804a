"""Softmax attention in one kernel: scores, mask, softmax and mean without the (T, S) weights ever being in memory.

"FlashAttention" (arXiv 2205.14135), in torch's version. A kind that changes only `scale`, `bias` or `mask` keeps it.

B batch, H query heads, G key heads, T query positions, S key positions, d width of a query, e width of a value.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Past, SoftmaxAttention
from minigpt.attention.base import repeat_kv
from minigpt.attention.position import Position
from minigpt.fast.guard import faster


@faster(SoftmaxAttention, "mix", "fused attention", supports=("scale", "bias", "mask"))
def mix(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weighted mean of the values: (B, H, T, e)."""
    T, S = query.shape[2], key.shape[2]
    if explicit_is_faster(query, key):
        return explicit(self, query, key, value)
    bias = self.bias(query, key) if has_bias(self) else None  # (H, T, S)
    triangle = type(self).mask is SoftmaxAttention.mask and self.config.causal and bias is None
    if triangle and T in (1, S):
        mask = None  # the kernel's own mask aligns to the upper left: right for T = S; for T = 1 none is needed
    else:
        mask = self.mask(T, S, query.device)  # (T, S)
    if bias is not None and mask is not None:
        mask = bias.masked_fill(~mask, -torch.inf).to(query.dtype)  # (H, T, S)
    return fused(self, query, key, value, mask)


@faster(SoftmaxAttention, "recall", "fused attention", supports=("scale",))
def recall(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """The same for one new token, which sees all positions: the kernel needs neither mask nor bias: (B, H, T, e)."""
    key, value = past.append(key, value)  # (B, G, S, d), (B, G, S, e)
    unwatched = getattr(self.mix, "__func__", None) is mix and not self.training  # by an edit, a trace or dropout
    unbiased = type(self.position).bias is Position.bias
    if unbiased and unwatched and query.shape[1:3] == (key.shape[1], 1) and key.shape == value.shape:
        return F.scaled_dot_product_attention(query, key, value, scale=self.scale(query))
    return self.mix(query, key, value)


def has_bias(self: SoftmaxAttention) -> bool:
    """Whether anything is added to the scores."""
    return self.position.acts_by("bias") or type(self).bias is not SoftmaxAttention.bias


def fused(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The kernel: (B, H, T, e). `mask` is true or finite where a query may see a key; None is the causal mask of T = S,
    or a single query that sees all keys."""
    (B, H, T, d), G, e, scale = query.shape, key.shape[1], value.shape[3], self.scale(query)
    if mask is None and T == 1 and G < H:  # query heads that share a key head become positions: no key is copied
        query = query.reshape(B, G, -1, d)  # (B, G, H/G, d)
    elif G < H:
        key, value = repeat_kv(key, H), repeat_kv(value, H)  # (B, H, S, d), (B, H, S, e)
    if d != e and query.device.type == "cpu":  # the kernel for CPUs takes equal widths only
        query, key, value = (F.pad(x, (0, max(d, e) - x.shape[3])) for x in (query, key, value))
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=self.dropout if self.training else 0.0,  # the kernel drops in evaluation mode too
        is_causal=mask is None and T > 1,
        scale=scale,
    )
    mixed = mixed if mixed.shape[1] == H else mixed.reshape(B, H, T, -1)  # (B, H, T, max(d, e))
    return mixed[..., :e] if d > e else mixed  # (B, H, T, e)


def explicit_is_faster(query: Tensor, key: Tensor) -> bool:
    """Whether plain products beat the fused kernel: on a CPU in bfloat16, for 2 to 512 positions.

    Measured by `scripts/benchmark.py attention`; the kernel's backward pass there is several times slower.
    """
    T, S = query.shape[2], key.shape[2]
    return T > 1 and S <= 512 and query.dtype == torch.bfloat16 and query.device.type == "cpu"


def explicit(self: SoftmaxAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The textbook's products, with the scale on the smaller factor, and a mask that is added: it needs no gradient."""
    H, T, S = query.shape[1], query.shape[2], key.shape[2]
    if key.shape[1] < H:
        key, value = repeat_kv(key, H), repeat_kv(value, H)  # (B, H, S, d), (B, H, S, e)
    scores = (query * self.scale(query)) @ key.mT  # (B, H, T, S)
    if has_bias(self):
        scores = scores + self.bias(query, key)
    barrier = torch.where(self.mask(T, S, query.device), 0.0, -torch.inf).to(scores.dtype)  # (T, S)
    weights = F.dropout((scores + barrier).softmax(dim=-1), self.dropout, self.training)  # (B, H, T, S)
    return weights.to(value.dtype) @ value  # (B, H, T, e)
