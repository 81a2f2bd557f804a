"""Learners' programs: several query heads share a head of keys and values."""

# === repeat_interleave
# target: grouped_query
# right: repeat_interleave over the heads
import torch
import torch.nn as nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        self.nh, self.nkv, self.hd = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, n_heads * self.hd, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(n_heads * self.hd, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.nh, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        k = k.repeat_interleave(self.nh // self.nkv, dim=1)
        v = v.repeat_interleave(self.nh // self.nkv, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))

attention = GQA(48, 6, 2)

# === expand_and_reshape
# target: grouped_query
# right: expand over a new axis, then reshape, as Llama's code does
import torch
from torch import nn

def repeat_kv(x, n_rep):
    b, h, t, d = x.shape
    return x[:, :, None].expand(b, h, n_rep, t, d).reshape(b, h * n_rep, t, d)

class Attention(nn.Module):
    def __init__(self, dim=60, heads=6, kv_heads=3):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        hd = dim // heads
        self.q_proj = nn.Linear(dim, heads * hd)
        self.k_proj = nn.Linear(dim, kv_heads * hd)
        self.v_proj = nn.Linear(dim, kv_heads * hd)
        self.o_proj = nn.Linear(heads * hd, dim)

    def forward(self, x):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        k = repeat_kv(self.k_proj(x).view(b, t, self.kv_heads, -1).transpose(1, 2), self.heads // self.kv_heads)
        v = repeat_kv(self.v_proj(x).view(b, t, self.kv_heads, -1).transpose(1, 2), self.heads // self.kv_heads)
        a = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        return self.o_proj((a.softmax(-1) @ v).transpose(1, 2).flatten(2))

attention = Attention()

# === grouped_einsum
# target: grouped_query
# right: queries (B, T, G, R, d): no key is ever repeated
import torch
from torch import nn

class GroupedQueryAttention(nn.Module):
    def __init__(self, d, heads, groups):
        super().__init__()
        self.g, self.r, self.hd = groups, heads // groups, d // heads
        self.q = nn.Linear(d, d)
        self.kv = nn.Linear(d, 2 * groups * self.hd)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        B, T, D = x.shape
        q = self.q(x).view(B, T, self.g, self.r, self.hd)
        k, v = self.kv(x).view(B, T, 2, self.g, self.hd).unbind(2)
        s = torch.einsum("btgrd,bsgd->bgrts", q, k) * self.hd**-0.5
        s = s.masked_fill(torch.arange(T)[None, :] > torch.arange(T)[:, None], -torch.inf)
        y = torch.einsum("bgrts,bsgd->btgrd", s.softmax(-1), v)
        return self.o(y.reshape(B, T, D))

attention = GroupedQueryAttention(54, 6, 2)

# === multi_query
# target: grouped_query
# right: one key head for all, by broadcasting
import torch
from torch import nn

class MQA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.to_q, self.to_k, self.to_v, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, self.d), nn.Linear(dim, self.d), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q = self.to_q(x).reshape(b, n, self.heads, self.d).transpose(1, 2)
        k, v = self.to_k(x)[:, None], self.to_v(x)[:, None]
        s = q @ k.transpose(-1, -2) / self.d**0.5
        s = s + torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))

attention = MQA(50, 5)

# === tiled
# target: grouped_query
# convention: repeat (tile) instead of repeat_interleave for keys and values alike: the query heads in another order
import torch
import torch.nn as nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g, self.hd = h, g, d // h
        self.wq, self.wo = nn.Linear(d, d), nn.Linear(d, d)
        self.wk, self.wv = nn.Linear(d, g * self.hd), nn.Linear(d, g * self.hd)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.g, self.hd).transpose(1, 2).repeat(1, self.h // self.g, 1, 1)
        v = self.wv(x).view(b, t, self.g, self.hd).transpose(1, 2).repeat(1, self.h // self.g, 1, 1)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))

attention = GQA(48, 6, 2)

# === keys_interleaved_values_tiled
# target: grouped_query
# wrong: the keys are interleaved and the values tiled: a head reads the values of another group
# words: repeat|tile|interleave|group|value
import torch.nn as nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g, self.hd = h, g, d // h
        self.wq, self.wo = nn.Linear(d, d), nn.Linear(d, d)
        self.wk, self.wv = nn.Linear(d, g * self.hd), nn.Linear(d, g * self.hd)

    def forward(self, x):
        b, t, d = x.shape
        r = self.h // self.g
        q = self.wq(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.g, self.hd).transpose(1, 2).repeat_interleave(r, 1)
        v = self.wv(x).view(b, t, self.g, self.hd).transpose(1, 2).repeat(1, r, 1, 1)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))

attention = GQA(48, 6, 2)

# === repeats_before_transpose
# target: grouped_query
# wrong: the repeated keys are reshaped with the groups' axis in the wrong place: features of different heads are mixed
# words: mix|reshape|repeat|order|feature|group
import torch
import torch.nn as nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g, self.hd = h, g, d // h
        self.wq, self.wo = nn.Linear(d, d), nn.Linear(d, d)
        self.wk, self.wv = nn.Linear(d, g * self.hd), nn.Linear(d, g * self.hd)

    def widen(self, y):
        b, t, _ = y.shape
        y = y.repeat_interleave(self.h // self.g, dim=-1)  # features, not heads
        return y.view(b, t, self.h, self.hd).transpose(1, 2)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.h, self.hd).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, self.widen(self.wk(x)), self.widen(self.wv(x)), is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

attention = GQA(48, 6, 2)

# === first_group_only
# target: grouped_query
# wrong: k[:, :1] broadcasts: every query head uses the first key head, the others are never used
# words: first|one|group|key head|broadcast
import torch
from torch import nn

class GQA(nn.Module):
    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g, self.hd = h, g, d // h
        self.wq, self.wo = nn.Linear(d, d), nn.Linear(d, d)
        self.wk, self.wv = nn.Linear(d, g * self.hd), nn.Linear(d, g * self.hd)

    def forward(self, x):
        b, t, d = x.shape
        q = self.wq(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.g, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.g, self.hd).transpose(1, 2)
        k, v = k[:, :1].expand(-1, self.h, -1, -1), v[:, :1].expand(-1, self.h, -1, -1)
        s = (q @ k.mT / self.hd**0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = GQA(48, 6, 3)

# === scale_of_groups
# target: grouped_query
# wrong: divides by the square root of the keys' whole width, G d, instead of d
# words: G d|key|sqrt|scale|all
import torch
from torch import nn

class GQA(nn.Module):
    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g, self.hd = h, g, d // h
        self.wq, self.wo = nn.Linear(d, d), nn.Linear(d, d)
        self.wk, self.wv = nn.Linear(d, g * self.hd), nn.Linear(d, g * self.hd)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        scale = k.shape[-1] ** -0.5
        q = q.view(b, t, self.h, self.hd).transpose(1, 2)
        k = k.view(b, t, self.g, self.hd).transpose(1, 2).repeat_interleave(self.h // self.g, dim=1)
        v = v.view(b, t, self.g, self.hd).transpose(1, 2).repeat_interleave(self.h // self.g, dim=1)
        s = (q @ k.mT * scale).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = GQA(48, 6, 2)

# === repeats_time
# target: grouped_query
# convention: repeat_interleave on dim 1 of (B, T, G, d), and a reshape: it looks as if it repeated positions, and is a tiling of the heads
import torch
from torch import nn

class GQA(nn.Module):
    def __init__(self, d, h, g):
        super().__init__()
        self.h, self.g, self.hd = h, g, d // h
        self.wq, self.wo = nn.Linear(d, d), nn.Linear(d, d)
        self.wk, self.wv = nn.Linear(d, g * self.hd), nn.Linear(d, g * self.hd)

    def forward(self, x):
        b, t, d = x.shape
        r = self.h // self.g
        q = self.wq(x).view(b, t, self.h, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.g, self.hd).repeat_interleave(r, dim=1).reshape(b, t, self.h, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.g, self.hd).repeat_interleave(r, dim=1).reshape(b, t, self.h, self.hd).transpose(1, 2)
        s = (q @ k.mT / self.hd**0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = GQA(48, 6, 2)

# === meta_llama
# target: grouped_query,rotary
# right: the Llama of Meta: complex rotary, repeat_kv by expand, grouped queries
import math

import torch
import torch.nn.functional as F
from torch import nn


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, dtype=torch.float32)
    freqs = torch.outer(t.double(), freqs.double())
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x, freqs_cis):
    x_ = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).type_as(x)


def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim).reshape(bs, slen, n_kv_heads * n_rep, head_dim)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, max_seq_len=512):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_seq_len)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        freqs = self.freqs_cis[:seqlen]
        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)
        keys = repeat_kv(xk, self.n_rep)
        values = repeat_kv(xv, self.n_rep)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = torch.triu(torch.full((seqlen, seqlen), float("-inf")), diagonal=1)
        scores = F.softmax(scores + mask, dim=-1)
        output = torch.matmul(scores, values).transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)


attention = Attention(48, 6, 2)

# === meta_llama_values_turned
# target: grouped_query,rotary
# wrong: the values are rotated too
# words: value
# like: meta_llama
#-        keys = repeat_kv(xk, self.n_rep)
#+        xv = apply_rotary_emb(xv, freqs)
#+        keys = repeat_kv(xk, self.n_rep)

# === meta_llama_queries_only
# target: grouped_query,rotary
# wrong: only the queries are rotated
# words: key
# like: meta_llama
#-        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)
#+        xq = apply_rotary_emb(xq, freqs)

# === meta_llama_values_tiled
# target: grouped_query,rotary
# wrong: keys are repeated side by side, values are tiled
# words: value
# like: meta_llama
#-        values = repeat_kv(xv, self.n_rep)
#+        values = xv.repeat(1, 1, self.n_rep, 1)
