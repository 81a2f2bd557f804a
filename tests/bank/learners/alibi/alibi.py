# Attention with linear biases (ALiBi): slopes for any number of heads, biases by distance or by key, in buffers and functions.
# target: multi_head,alibi

# === alibi_by_distance
# right: slopes 2^(-8 i / H), minus slope times distance
import torch
from torch import nn

class AlibiAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("m", 2.0 ** (-8 * torch.arange(1, h + 1) / h))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        pos = torch.arange(t)
        bias = -self.m[:, None, None] * (pos[:, None] - pos[None, :])
        s = q @ k.mT / (d // self.h) ** 0.5 + bias
        s = s.masked_fill(pos[:, None] < pos[None, :], -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = AlibiAttention(60, 5)

# === alibi_bias_is_positive
# of: alibi_by_distance
# wrong: the bias is positive: far tokens are preferred
# words: sign|far|positive|minus
#-        bias = -self.m[:, None, None] * (pos[:, None] - pos[None, :])
#+        bias = self.m[:, None, None] * (pos[:, None] - pos[None, :])

# === alibi_slopes_from_zero
# of: alibi_by_distance
# wrong: the exponents begin at 0: slopes 2^(-8 i / H) for i = 0, 1, ...: the first slope is 1
# words: slope
# seen: paiml/aprender#2143
#-        self.register_buffer("m", 2.0 ** (-8 * torch.arange(1, h + 1) / h))
#+        self.register_buffer("m", 2.0 ** (-8 * torch.arange(h) / h))

# === alibi_bias_is_divided_too
# of: alibi_by_distance
# wrong: the bias is added before the division, so it is divided by sqrt(d) too
# words: sqrt|scale|divide|slope|before the division
#-        s = q @ k.mT / (d // self.h) ** 0.5 + bias
#+        s = (q @ k.mT + bias) / (d // self.h) ** 0.5

# === alibi_one_slope_for_all_heads
# of: alibi_by_distance
# wrong: one slope for all heads
# words: slope|head
#-        bias = -self.m[:, None, None] * (pos[:, None] - pos[None, :])
#+        bias = -self.m[0] * (pos[:, None] - pos[None, :])

# === alibi_added_after_softmax
# of: alibi_by_distance
# wrong: the bias is added after the softmax
# words: after|softmax
#-        s = q @ k.mT / (d // self.h) ** 0.5 + bias
#+        s = q @ k.mT / (d // self.h) ** 0.5
#-        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
#+        return self.out(((s.softmax(-1) + bias.tril()) @ v).transpose(1, 2).reshape(b, t, d))

# === alibi_slopes_are_half_powers
# of: alibi_by_distance
# wrong: slopes 1/2, 1/4, 1/8, ... for any number of heads: right for 8 heads only
# words: slope
#-        self.register_buffer("m", 2.0 ** (-8 * torch.arange(1, h + 1) / h))
#+        self.register_buffer("m", 2.0 ** -torch.arange(1.0, h + 1))

# === alibi_of_mpt_by_key
# right: MPT: the bias depends on the key alone: a constant of a row changes nothing
import math
from typing import Optional

import torch
import torch.nn as nn

def gen_slopes(n_heads: int, alibi_bias_max: int = 8) -> torch.Tensor:
    _n_heads = 2 ** math.ceil(math.log2(n_heads))
    m = torch.arange(1, _n_heads + 1, dtype=torch.float32)
    m = m.mul(alibi_bias_max / _n_heads)
    slopes = 1.0 / torch.pow(2, m)
    if _n_heads != n_heads:
        slopes = torch.concat([slopes[1::2], slopes[::2]])[:n_heads]
    return slopes.view(1, n_heads, 1, 1)

class MPTAttention(nn.Module):
    """Bias depends on the key position only: softmax does not see a constant added to a row,
    so slope * (j - (T-1)) is the same as slope * (j - i)."""

    def __init__(self, d_model: int, n_heads: int, softmax_scale: Optional[float] = None):
        super().__init__()
        self.n_heads = n_heads
        self.softmax_scale = softmax_scale or 1 / math.sqrt(d_model / n_heads)
        self.Wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.register_buffer("slopes", gen_slopes(n_heads), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        query, key, value = self.Wqkv(x).chunk(3, dim=2)
        q = query.view(b, s, self.n_heads, -1).permute(0, 2, 1, 3)
        k = key.view(b, s, self.n_heads, -1).permute(0, 2, 3, 1)
        v = value.view(b, s, self.n_heads, -1).permute(0, 2, 1, 3)
        attn_weight = q.matmul(k) * self.softmax_scale
        attn_bias = torch.arange(1 - s, 1, dtype=x.dtype, device=x.device).view(1, 1, 1, s) * self.slopes
        attn_weight = attn_weight + attn_bias
        causal_mask = attn_weight.new_ones(s, s, dtype=torch.bool).tril()
        attn_weight = attn_weight.masked_fill(~causal_mask.view(1, 1, s, s), torch.finfo(q.dtype).min)
        out = torch.softmax(attn_weight, dim=-1).matmul(v)
        return self.out_proj(out.permute(0, 2, 1, 3).flatten(2))

# === alibi_of_bloom_baddbmm
# right: BLOOM: the bias depends on the key alone, baddbmm, a joined layer head by head
import math

import torch
from torch import nn

class BloomishAttention(nn.Module):
    """ALiBi as in BLOOM: the bias is slope * key position.

    The softmax does not care about a constant per row, so this equals
    slope * (j - i).
    """

    def __init__(self, hidden_size: int, n_head: int):
        super().__init__()
        self.n_head, self.head_dim = n_head, hidden_size // n_head
        assert n_head & (n_head - 1) == 0, "power of two, please"
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def build_alibi(self, T, like):
        base = math.pow(2.0, -8.0 / self.n_head)
        powers = torch.arange(1, 1 + self.n_head, device=like.device, dtype=like.dtype)
        slopes = torch.pow(torch.tensor(base, device=like.device, dtype=like.dtype), powers)
        return slopes[:, None, None] * torch.arange(T, device=like.device, dtype=like.dtype)[None, None, :]

    def forward(self, x):
        B, T, C = x.shape
        fused = self.query_key_value(x).view(B, T, self.n_head, 3, self.head_dim)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
        q = q.transpose(1, 2).reshape(B * self.n_head, T, self.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(B * self.n_head, self.head_dim, T)
        v = v.transpose(1, 2).reshape(B * self.n_head, T, self.head_dim)
        alibi = self.build_alibi(T, x).expand(-1, 1, T).repeat(B, 1, 1)
        scores = alibi.expand(-1, T, T).baddbmm(q, k, beta=1.0, alpha=self.head_dim**-0.5)
        scores = scores.view(B, self.n_head, T, T)
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1),
                                    torch.finfo(x.dtype).min)
        p = scores.softmax(dim=-1).view(B * self.n_head, T, T)
        ctx = torch.bmm(p, v).view(B, self.n_head, T, self.head_dim)
        return self.dense(ctx.permute(0, 2, 1, 3).reshape(B, T, C))

# === alibi_function_heads_before_time
# right: function giving the bias (H,T,T) = -slope*(i-j) with -inf for the future, slopes 2^(-8h/H), power-of-two heads
import torch

def alibi_slopes(n_heads):
    # 1/2, 1/4, ..., 1/256 for eight heads
    return torch.tensor([2 ** (-8 * (h + 1) / n_heads) for h in range(n_heads)])

def alibi_bias(n_heads, T):
    i = torch.arange(T)[:, None]
    j = torch.arange(T)[None, :]
    bias = -alibi_slopes(n_heads)[:, None, None] * (i - j)
    return bias.masked_fill(j > i, float("-inf"))

def alibi_attention(q, k, v):
    """q, k, v: (B, H, T, D)"""
    B, H, T, D = q.shape
    scores = q @ k.transpose(-2, -1) / D ** 0.5 + alibi_bias(H, T).to(q)
    return scores.softmax(dim=-1) @ v

# === alibi_distances_clamped_to_zero
# of: alibi_function_heads_before_time
# wrong: the distances are clamped to 0 for the whole past: no bias is left
# words: nothing is added|no positions
#-    bias = -alibi_slopes(n_heads)[:, None, None] * (i - j)
#+    bias = -alibi_slopes(n_heads)[:, None, None] * (i - j).clamp(max=0)

# === alibi_module_of_given_heads
# right: a module of q, k, v with its biases in a buffer
import torch
import torch.nn as nn

class ALiBi(nn.Module):
    """Attention with linear biases, 'train short, test long'."""

    def __init__(self, n_heads, max_len=256):
        super().__init__()
        m = 2.0 ** (-8.0 / n_heads * torch.arange(1, n_heads + 1))
        pos = torch.arange(max_len)
        dist = (pos[:, None] - pos[None, :]).float()  # i - j
        self.register_buffer("bias", -m[:, None, None] * dist)
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len)).bool())

    def forward(self, q, k, v):
        # (B, H, T, D)
        T = q.size(-2)
        s = q @ k.mT / q.size(-1) ** 0.5
        s = s + self.bias[:, :T, :T]
        s = s.masked_fill(~self.mask[:T, :T], float("-inf"))
        return torch.softmax(s, dim=-1) @ v
