# ruff: noqa: E501
"""Right answers in the styles that learners write, and what one change each makes of them.

A mutant is (style, what is replaced, by what, words of the sentence that must be given).
"""

from __future__ import annotations

TARGETS = {
    "mh": "multi_head",
    "sh": "single_head",
    "gq": "grouped_query",
    "rot": "multi_head,rotary",
    "alibi": "multi_head,alibi",
    "attend": "attend",
    "weights": "attention_weights",
    "mean": "running_mean",
    "dot": "dot_product",
    "win": "multi_head,window=4",
    "cache": "multi_head,cache",
    "cacherot": "multi_head,rotary,cache",
}
"""The target of a style, by the first word of its name."""

STYLES: dict[str, str] = {}

STYLES["alibi_ok"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.d = H, D // H
        self.qkv = nn.Linear(D, 3 * D); self.o = nn.Linear(D, D)
        self.register_buffer("m", torch.tensor([2 ** (-8 * (i + 1) / H) for i in range(H)]))
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.H, -1).transpose(1, 2) for y in self.qkv(x).split(D, -1))
        pos = torch.arange(T)
        s = q @ k.mT * self.d ** -0.5 + self.m[:, None, None] * (pos[None] - pos[:, None])
        s = s.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D))
attention = A(60, 6)
"""

STYLES["attend_ok"] = """
import math, torch
def attention(Q, K, V, mask=None):
    scores = Q @ K.transpose(-1, -2) / math.sqrt(Q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(scores, dim=-1) @ V
"""

STYLES["cache_dict"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def forward(self, x, cache=None):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, self.H, -1).transpose(1, 2) for l in (self.q, self.k, self.v))
        if cache is not None:
            if "k" in cache:
                k = torch.cat((cache["k"], k), 2); v = torch.cat((cache["v"], v), 2)
            cache["k"], cache["v"] = k, v
        S = k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D))
attention = A(48, 6)
"""

STYLES["cache_kept"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H; self.k_cache = None; self.v_cache = None
        self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def forward(self, x, use_cache=False):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, self.H, -1).transpose(1, 2) for l in (self.q, self.k, self.v))
        if use_cache:
            if self.k_cache is not None:
                k = torch.cat((self.k_cache, k), 2); v = torch.cat((self.v_cache, v), 2)
            self.k_cache, self.v_cache = k, v
        S = k.shape[2]
        mask = torch.arange(S)[None] <= torch.arange(S - T, S)[:, None]
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D))
attention = A(48, 6)
"""

STYLES["cache_kind"] = """
from minigpt.attention import MultiHead
class Mine(MultiHead, kind="mine_mh2"):
    pass
"""

STYLES["cache_tuple"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def forward(self, x, cache=None):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, self.H, -1).transpose(1, 2) for l in (self.q, self.k, self.v))
        if cache is not None:
            k = torch.cat((cache[0], k), 2); v = torch.cat((cache[1], v), 2)
        S = k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D)), (k, v)
attention = A(48, 6)
"""

STYLES["cacherot_tuple"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def rope(self, x, start):
        d, T = x.shape[-1], x.shape[2]
        f = torch.outer(torch.arange(start, start + T).double(), 10000 ** (-torch.arange(0, d, 2).double() / d))
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * f.cos() - b * f.sin(), a * f.sin() + b * f.cos()), -1).flatten(-2)
    def forward(self, x, past=None):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, self.H, -1).transpose(1, 2) for l in (self.q, self.k, self.v))
        start = 0 if past is None else past[0].shape[2]
        q, k = self.rope(q, start), self.rope(k, start)
        if past is not None:
            k = torch.cat((past[0], k), 2); v = torch.cat((past[1], v), 2)
        S = k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D)), (k, v)
attention = A(60, 6)
"""

STYLES["dot_ok"] = """
import torch
def dot_product(x):
    T = x.shape[-2]
    w = x @ x.transpose(-1, -2)
    w = w.masked_fill(torch.tril(torch.ones(T, T)) == 0, float('-inf'))
    return torch.softmax(w, -1) @ x
"""

STYLES["gq_llama"] = """
import torch
from torch import nn
import torch.nn.functional as F
def repeat_kv(x, n_rep):
    b, s, h, d = x.shape
    return x[:, :, :, None, :].expand(b, s, h, n_rep, d).reshape(b, s, h * n_rep, d)
class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
    def forward(self, x):
        b, s, _ = x.shape
        q = self.wq(x).view(b, s, self.n_heads, self.head_dim)
        k = repeat_kv(self.wk(x).view(b, s, self.n_kv_heads, self.head_dim), self.n_heads // self.n_kv_heads)
        v = repeat_kv(self.wv(x).view(b, s, self.n_kv_heads, self.head_dim), self.n_heads // self.n_kv_heads)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, s, -1))
attention = Attention(96, 12, 4)
"""

STYLES["gq_tile"] = """
import torch
from torch import nn
class GQA(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__()
        self.h, self.g, self.d = num_heads, num_kv_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model); self.kv_proj = nn.Linear(d_model, 2 * self.g * self.d); self.out = nn.Linear(d_model, d_model)
    def forward(self, x):
        B, T, D = x.shape
        q = self.q_proj(x).view(B, T, self.h, self.d).transpose(1, 2)
        k, v = self.kv_proj(x).chunk(2, -1)
        k = k.view(B, T, self.g, self.d).transpose(1, 2).repeat(1, self.h // self.g, 1, 1)
        v = v.view(B, T, self.g, self.d).transpose(1, 2).repeat(1, self.h // self.g, 1, 1)
        s = q @ k.mT / self.d ** 0.5
        s = s.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.out((s @ v).transpose(1, 2).reshape(B, T, D))
"""

STYLES["mean_1d"] = """
import torch
def running_mean(x):
    out = []
    for t in range(len(x)):
        out.append(x[: t + 1].mean(0))
    return torch.stack(out)
"""

STYLES["mean_ok"] = """
import torch
def average(x):
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[None, :, None]
"""

STYLES["mh_2d"] = """
import torch
from torch import nn
class A(nn.Module):
    
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
    def forward(self, x):
        T, D = x.shape
        sp = lambda y: y.view(T, self.H, D // self.H).transpose(0, 1)
        q, k, v = sp(self.q(x)), sp(self.k(x)), sp(self.v(x))
        s = q @ k.mT / (D // self.H) ** 0.5
        s.masked_fill_(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(0, 1).reshape(T, D))
attention = A(48, 6)
"""

STYLES["mh_blind"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.z = b; self.l4 = nn.Linear(a, a); self.l1 = nn.Linear(a, a); self.l3 = nn.Linear(a, a); self.l2 = nn.Linear(a, a)
    def forward(self, x):
        B, T, D = x.shape
        f = lambda l: l(x).view(B, T, self.z, -1).transpose(1, 2)
        s = f(self.l1) @ f(self.l2).mT / (D // self.z) ** 0.5
        s = s.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.l4((s @ f(self.l3)).transpose(1, 2).reshape(B, T, D))
attention = A(48, 6)
"""

STYLES["mh_conv1d"] = """
import torch
from torch import nn
class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(nx, nf)); self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)
    def forward(self, x): return x @ self.weight + self.bias
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H; self.c_attn = Conv1D(3 * D, D); self.c_proj = Conv1D(D, D)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.H, -1).transpose(1, 2) for y in self.c_attn(x).split(D, 2))
        w = q @ k.transpose(-1, -2) / (D // self.H) ** 0.5
        w = w.masked_fill(~torch.tril(torch.ones(T, T, dtype=torch.bool)), -1e9).softmax(-1)
        return self.c_proj((w @ v).transpose(1, 2).reshape(B, T, D))
attention = A(48, 6)
"""

STYLES["mh_dh"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, n_heads):
        super().__init__()
        self.n = n_heads; self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def forward(self, x):
        B, T, D = x.shape
        f = lambda y: y.view(B, T, D // self.n, self.n).permute(0, 3, 1, 2)
        q, k, v = f(self.q(x)), f(self.k(x)), f(self.v(x))
        s = (q @ k.mT) / q.shape[-1] ** 0.5
        s = s.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.o((s @ v).permute(0, 2, 3, 1).reshape(B, T, D))
attention = A(48, 6)
"""

STYLES["mh_einsum"] = """
import torch
from torch import nn, einsum
class MultiHead(nn.Module):
    def __init__(self, dim=48, heads=6):
        super().__init__()
        d = dim // heads
        self.wq = nn.Parameter(torch.randn(heads, dim, d))
        self.wk = nn.Parameter(torch.randn(heads, dim, d))
        self.wv = nn.Parameter(torch.randn(heads, dim, d))
        self.wo = nn.Parameter(torch.randn(heads, d, dim))
        self.d = d
    def forward(self, x):
        q = einsum("btc,hcd->bhtd", x, self.wq)
        k = einsum("btc,hcd->bhtd", x, self.wk)
        v = einsum("btc,hcd->bhtd", x, self.wv)
        s = einsum("bhtd,bhsd->bhts", q, k) / self.d ** 0.5
        T = x.shape[1]
        s = s + torch.full((T, T), float("-inf")).triu(1)
        return einsum("bhts,bhsd,hdc->btc", s.softmax(-1), v, self.wo)
attention = MultiHead()
"""

STYLES["mh_float"] = """
import torch
from torch import nn
import torch.nn.functional as F
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.qkv = nn.Linear(D, 3*D); self.proj = nn.Linear(D, D)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).split(D, -1)
        q, k, v = (y.view(B, T, self.H, -1).transpose(1, 2) for y in (q, k, v))
        s = q @ k.mT * (D // self.H) ** -0.5
        m = torch.tril(torch.ones(T, T, dtype=torch.bool))
        s = torch.where(m, s, torch.finfo(s.dtype).min)
        w = F.softmax(s.float(), -1).to(q.dtype)
        return self.proj((w @ v).transpose(1, 2).reshape(B, T, D))
attention = A(48, 6)
"""

STYLES["mh_loop"] = """
import torch, math
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.d = H, D // H
        self.Wq = nn.ParameterList([nn.Parameter(torch.randn(D, self.d)) for _ in range(H)])
        self.Wk = nn.ParameterList([nn.Parameter(torch.randn(D, self.d)) for _ in range(H)])
        self.Wv = nn.ParameterList([nn.Parameter(torch.randn(D, self.d)) for _ in range(H)])
        self.Wo = nn.Parameter(torch.randn(D, D))
    def forward(self, x):
        outs = []
        B, T, D = x.shape
        for h in range(self.H):
            q, k, v = x @ self.Wq[h], x @ self.Wk[h], x @ self.Wv[h]
            out = torch.zeros_like(v)
            for b in range(B):
                for t in range(T):
                    s = torch.stack([q[b, t] @ k[b, j] for j in range(t + 1)]) / math.sqrt(self.d)
                    w = torch.softmax(s, 0)
                    out[b, t] = sum(w[j] * v[b, j] for j in range(t + 1))
            outs.append(out)
        return torch.cat(outs, -1) @ self.Wo
attention = A(48, 6)
"""

STYLES["mh_lucid"] = """
import torch
from torch import nn
class Attention(nn.Module):
    def __init__(self, dim, heads=6, dim_head=8, dropout=0.):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        dots = q @ k.transpose(-1, -2) * self.scale
        i, j = dots.shape[-2:]
        mask = torch.ones(i, j, dtype=torch.bool).triu(j - i + 1)
        dots = dots.masked_fill(mask, -torch.finfo(dots.dtype).max)
        out = (dots.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
attention = Attention(40, 6, 8)
"""

STYLES["mh_mhaplain"] = """
from torch import nn
attention = nn.MultiheadAttention(48, 6, batch_first=True)
"""

STYLES["mh_minigpt"] = """
from minigpt.attention import MultiHead
class Mine(MultiHead, kind="mine_mh"):
    def normalise(self, scores):
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)
"""

STYLES["mh_rasbt"] = """
import torch
import torch.nn as nn
class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))
    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)
"""

STYLES["mh_sdpa"] = """
import torch
import torch.nn.functional as F
from torch import nn
class MultiHead(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)
    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))
attention = MultiHead(48, 6)
"""

STYLES["mh_tbd"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self):
        super().__init__(); self.m = nn.MultiheadAttention(48, 6)
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
        return self.m(x, x, x, attn_mask=mask)[0]
attention = A()
"""

STYLES["mh_vit"] = """
import torch
from torch import nn
class MultiHead(nn.Module):
    # fused, head by head
    def __init__(self, dim, heads):
        super().__init__()
        self.num_heads = heads
        self.head_dim = dim // heads
        self.qkv_proj = nn.Linear(dim, 3 * dim)
        self.o_proj = nn.Linear(dim, dim)
    def forward(self, x, mask=None, return_attention=False):
        B, T, D = x.size()
        qkv = self.qkv_proj(x).reshape(B, T, self.num_heads, 3 * self.head_dim).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        a = torch.matmul(q, k.transpose(-2, -1)) / self.head_dim ** 0.5
        if mask is not None:
            a = a.masked_fill(mask == 0, -9e15)
        a = a.softmax(-1)
        y = (a @ v).permute(0, 2, 1, 3).reshape(B, T, D)
        o = self.o_proj(y)
        return (o, a) if return_attention else o
attention = MultiHead(48, 6)
"""

STYLES["rot_complex"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.d = H, D // H
        self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def rope(self, x):
        B, T, H, d = x.shape
        freqs = 1.0 / (10000 ** (torch.arange(0, d, 2) / d))
        cis = torch.polar(torch.ones(T, d // 2), torch.outer(torch.arange(T).to(freqs.dtype), freqs))
        xc = torch.view_as_complex(x.reshape(B, T, H, d // 2, 2))
        return torch.view_as_real(xc * cis[None, :, None]).flatten(3)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, self.H, self.d) for l in (self.q, self.k, self.v))
        q, k = self.rope(q), self.rope(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        s = q @ k.mT * self.d ** -0.5
        s = s.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D))
attention = A(60, 6)
"""

STYLES["rot_hf"] = """
import torch
from torch import nn
def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)
class A(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.d = H, D // H
        self.qkv = nn.Linear(D, 3 * D); self.o = nn.Linear(D, D)
        inv = 1.0 / (10000 ** (torch.arange(0, self.d, 2).float() / self.d))
        self.register_buffer("inv", inv)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, self.H, -1).transpose(1, 2) for y in self.qkv(x).split(D, -1))
        f = torch.outer(torch.arange(T).float(), self.inv)
        e = torch.cat((f, f), -1)
        q, k = (y * e.cos() + rotate_half(y) * e.sin() for y in (q, k))
        s = q @ k.mT * self.d ** -0.5
        s = s.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D))
attention = A(60, 6)
"""

STYLES["sh_karpathy"] = """
import torch
from torch import nn
from torch.nn import functional as F
n_embd, block_size, dropout = 32, 64, 0.2
class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        B,T,C = x.shape
        k = self.key(x); q = self.query(x)
        wei = q @ k.transpose(-2,-1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        return wei @ self.value(x)
head = Head(13)
"""

STYLES["sh_proj"] = """
import torch
from torch import nn
class SingleHead(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.W_q = nn.Parameter(torch.randn(d_model, d_k)); self.W_k = nn.Parameter(torch.randn(d_model, d_k)); self.W_v = nn.Parameter(torch.randn(d_model, d_k))
        self.W_o = nn.Parameter(torch.randn(d_k, d_model))
    def forward(self, x):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        s = q @ k.transpose(-1, -2) / self.W_q.shape[1] ** .5
        T = x.size(-2)
        s = s.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), float("-inf"))
        return s.softmax(-1) @ v @ self.W_o
"""

STYLES["weights_ok"] = """
import torch
def attention_weights(query, key):
    T, S = query.shape[-2], key.shape[-2]
    s = query @ key.mT * query.shape[-1] ** -0.5
    return s.masked_fill(torch.arange(S)[None] > torch.arange(T)[:, None] + S - T, -torch.inf).softmax(-1)
"""

STYLES["win_ok"] = """
import torch
from torch import nn
class A(nn.Module):
    def __init__(self, D, H, window):
        super().__init__()
        self.H, self.window = H, window
        self.q = nn.Linear(D, D); self.k = nn.Linear(D, D); self.v = nn.Linear(D, D); self.o = nn.Linear(D, D)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (l(x).view(B, T, self.H, -1).transpose(1, 2) for l in (self.q, self.k, self.v))
        m = torch.ones(T, T, dtype=torch.bool)
        m = m.tril() & m.triu(-(self.window - 1))
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~m, -torch.inf).softmax(-1)
        return self.o((s @ v).transpose(1, 2).reshape(B, T, D))
attention = A(48, 6, 4)
"""

MUTANTS = [
    ("mh_rasbt", "keys.shape[-1]**0.5", "self.d_out**0.5", "sqrt(D)"),
    ("mh_rasbt", "attn_scores / keys.shape[-1]**0.5", "attn_scores", "not scaled"),
    ("mh_rasbt", "attn_scores / keys.shape[-1]**0.5", "attn_scores / keys.shape[-1]", "by d ="),
    ("mh_rasbt", "attn_scores / keys.shape[-1]**0.5", "attn_scores * keys.shape[-1]**0.5", "multiply the scores"),
    ("mh_rasbt", "attn_scores / keys.shape[-1]**0.5", "attn_scores / self.num_heads**0.5", "sqrt(H)"),
    ("mh_rasbt", "diagonal=1", "diagonal=0", "cannot see itself"),
    ("mh_rasbt", "diagonal=1", "diagonal=2", "next token"),
    (
        "mh_rasbt",
        "torch.triu(torch.ones(context_length, context_length), diagonal=1)",
        "torch.tril(torch.ones(context_length, context_length))",
        "inverted",
    ),
    (
        "mh_rasbt",
        "torch.triu(torch.ones(context_length, context_length), diagonal=1)",
        "torch.tril(torch.ones(context_length, context_length), diagonal=-1)",
        "upside down",
    ),
    (
        "mh_rasbt",
        "attn_scores.masked_fill_(mask_bool, -torch.inf)",
        "attn_scores.masked_fill(mask_bool, -torch.inf)",
        "no causal mask",
    ),
    ("mh_rasbt", "-torch.inf)", "0)", "become 0"),
    ("mh_rasbt", "-torch.inf)", "1e-9)", "1e-9"),
    ("mh_rasbt", "-torch.inf)", "-1e4)", "-10000"),
    ("mh_rasbt", "-torch.inf)", "-100.0)", "-100:"),
    ("mh_rasbt", "-torch.inf)", "1e9)", "+1e9"),
    ("mh_rasbt", "dim=-1)", "dim=-2)", "over the queries"),
    ("mh_rasbt", "dim=-1)", "dim=1)", "over the heads"),
    ("mh_rasbt", "dim=-1)", "dim=0)", "over the batch"),
    (
        "mh_rasbt",
        "torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)",
        "torch.sigmoid(attn_scores / keys.shape[-1]**0.5)",
        "sigmoid",
    ),
    ("mh_rasbt", "(attn_weights @ values).transpose(1, 2)", "(attn_weights @ values)", "without transpose(1, 2)"),
    ("mh_rasbt", "(attn_weights @ values)", "(attn_weights @ keys)", "applied to the keys"),
    ("mh_rasbt", "return self.out_proj(context_vec)", "return context_vec", "never used"),
    ("mh_rasbt", "queries @ keys.transpose(2, 3)", "keys @ keys.transpose(2, 3)", "key @ key^T"),
    ("mh_rasbt", "queries @ keys.transpose(2, 3)", "queries @ queries.transpose(2, 3)", "query @ query^T"),
    (
        "mh_rasbt",
        "self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)",
        "self.W_value(x).view(b, self.num_heads, num_tokens, self.head_dim)",
        "the values alone",
    ),
    (
        "mh_rasbt",
        "view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)",
        "view(b, self.num_heads, num_tokens, self.head_dim)",
        "split with view",
    ),
    (
        "mh_rasbt",
        "queries @ keys.transpose(2, 3)",
        "queries @ keys.reshape(b, self.num_heads, self.head_dim, num_tokens)",
        "reshaped to",
    ),
    ("mh_rasbt", "values = self.W_value(x)", "values = self.W_key(x)", "applied to the keys"),
    (
        "mh_rasbt",
        "attn_weights = self.dropout(attn_weights)",
        "attn_weights = nn.functional.dropout(attn_weights, 0.1)",
        "dropout is active",
    ),
    ("mh_rasbt", "return self.out_proj(context_vec)", "return self.out_proj(context_vec) + x", "x is added"),
    (
        "mh_rasbt",
        "attn_weights = self.dropout(attn_weights)",
        "attn_weights = torch.softmax(self.dropout(attn_weights), -1)",
        "two softmaxes",
    ),
    (
        "mh_rasbt",
        "attn_scores.masked_fill_(mask_bool, -torch.inf)\n        attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)",
        "attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1).masked_fill(mask_bool, 0.0)",
        "after the softmax",
    ),
    (
        "mh_rasbt",
        "attn_scores.masked_fill_(mask_bool, -torch.inf)\n        attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)",
        "attn_weights = torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1).masked_fill(mask_bool, 0.0)\n        attn_weights = attn_weights / attn_weights.sum(-1, keepdim=True)",
        "divide by the sum",
    ),
    (
        "mh_rasbt",
        "torch.softmax(attn_scores / keys.shape[-1]**0.5, dim=-1)",
        "torch.exp(attn_scores / keys.shape[-1]**0.5); attn_weights = attn_weights / attn_weights.sum(-1, keepdim=True)",
        "overflows",
    ),
    ("mh_rasbt", "keys.shape[-1]**0.5", "8", "8, which"),
    ("mh_sdpa", "is_causal=True", "is_causal=False", "no causal mask"),
    ("mh_sdpa", "is_causal=True", "attn_mask=torch.ones(t, t).triu(1).bool()", "inverted"),
    ("mh_sdpa", "is_causal=True", "attn_mask=torch.ones(t, t).tril()", "mask of ones and zeros"),
    ("mh_sdpa", "is_causal=True", "is_causal=True, scale=c ** -0.5", "sqrt(D)"),
    ("mh_sdpa", "y.transpose(1, 2).flatten(2)", "y.reshape(b, t, c)", "without transpose"),
    ("mh_sdpa", "q, k, v = qkv.unbind(0)", "q, k, v = qkv.unbind(0); v = k", "applied to the keys"),
    ("mh_einsum", "bhts,bhsd,hdc", "bhst,bhsd,hdc", "transposed"),
    ("mh_einsum", ".triu(1)", ".triu(0)", "cannot see itself"),
    ("mh_einsum", "/ self.d ** 0.5", "* self.d ** 0.5", "multiply"),
    ("mh_einsum", "s.softmax(-1)", "s.softmax(-2)", "over the queries"),
    ("mh_blind", "(D // self.z) ** 0.5", "D ** 0.5", "sqrt(D)"),
    ("mh_blind", ".transpose(1, 2).reshape(B, T, D)", ".reshape(B, T, D)", "without transpose"),
    ("mh_vit", "self.head_dim ** 0.5", "D ** 0.5", "sqrt(D)"),
    ("mh_vit", "mask == 0", "mask == 5", "no causal mask"),
    ("mh_vit", "-9e15", "-1e3", "-1000"),
    ("mh_2d", ".transpose(0, 1).reshape(T, D)", ".reshape(T, D)", "without transpose"),
    ("mh_loop", "/ math.sqrt(self.d)", "/ math.sqrt(D)", "sqrt(D)"),
    (
        "mh_float",
        "w = F.softmax(s.float(), -1).to(q.dtype)",
        "w = F.softmax(s.float(), -2).to(q.dtype)",
        "over the queries",
    ),
    ("sh_proj", "self.W_q.shape[1] ** .5", "1", "not scaled"),
    ("sh_proj", ".tril()", ".tril(-1)", "cannot see itself"),
    (
        "gq_llama",
        "k = repeat_kv(self.wk(x).view(b, s, self.n_kv_heads, self.head_dim), self.n_heads // self.n_kv_heads)",
        "k = self.wk(x).view(b, s, self.n_kv_heads, self.head_dim).repeat(1, 1, self.n_heads // self.n_kv_heads, 1)",
        "keys are tiled",
    ),
    ("gq_llama", "is_causal=True", "is_causal=True, scale=(self.head_dim * self.n_kv_heads) ** -0.5", "sqrt(G d)"),
    ("rot_complex", "q, k = self.rope(q), self.rope(k)", "q = self.rope(q)", "only the queries"),
    ("rot_complex", "q, k = self.rope(q), self.rope(k)", "pass", "nothing is rotated"),
    (
        "rot_complex",
        "q, k, v = (l(x).view(B, T, self.H, self.d) for l in (self.q, self.k, self.v))\n        q, k = self.rope(q), self.rope(k)",
        "q, k, v = (l(x).view(B, T, self.H, self.d) for l in (self.q, self.k, self.v))\n        q, k, v = self.rope(q), self.rope(k), self.rope(v)",
        "values are rotated",
    ),
    ("rot_complex", "torch.arange(0, d, 2) / d", "torch.arange(0, d // 2) / d", "i/d"),
    ("rot_complex", "torch.arange(0, d, 2) / d", "torch.arange(0, d, 2) / (d * H)", "2i/D"),
    ("rot_complex", "torch.arange(0, d, 2) / d", "2 * torch.arange(0, d, 2) / d", "4i/d"),
    ("rot_complex", "1.0 / (10000", "1.0 * (10000", "+2i/d"),
    ("rot_complex", "1.0 / (10000", "1.0 / (1000", "1000 instead"),
    ("rot_hf", "torch.cat((-b, a), -1)", "torch.cat((b, a), -1)", "minus"),
    ("rot_hf", "torch.cat((f, f), -1)", "f.repeat_interleave(2, -1)", "halves"),
    ("alibi_ok", "pos[None] - pos[:, None]", "pos[:, None] - pos[None]", "sign of the bias"),
    ("alibi_ok", "2 ** (-8 * (i + 1) / H)", "2 ** (-8 * i / H)", "h = 0"),
    ("alibi_ok", "2 ** (-8 * (i + 1) / H)", "2.0 ** -(i + 1)", "1/2, 1/4"),
    ("alibi_ok", "+ self.m[:, None, None] * (pos[None] - pos[:, None])", "", "nothing is added"),
    ("attend_ok", "Q.size(-1)", "K.size(-2)", "sqrt(T)"),
    ("attend_ok", "torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)", "over the queries"),
    ("attend_ok", "@ V", "@ K", "applied to the keys"),
    ("attend_ok", "Q @ K.transpose(-1, -2)", "K @ Q.transpose(-1, -2)", "key @ query"),
    ("attend_ok", "/ math.sqrt(Q.size(-1))", "", "not scaled"),
    ("weights_ok", "+ S - T", "", "upper left"),
    ("weights_ok", "+ S - T", "+ T - S", "wrong way"),
    ("weights_ok", ">", ">=", "itself"),
    ("mean_ok", "torch.arange(1, x.shape[1] + 1)", "torch.arange(x.shape[1])", "by t"),
    ("mean_ok", "/ torch.arange(1, x.shape[1] + 1)[None, :, None]", "/ x.shape[1]", "by T"),
    ("mean_1d", ": t + 1]", ": t]", "leaves itself out"),
    ("dot_ok", "== 0", "== 1", "inverted"),
    ("win_ok", "-(self.window - 1)", "-self.window", "one too wide"),
    ("win_ok", "m = m.tril() & m.triu(-(self.window - 1))", "m = m.tril()", "no window"),
    ("win_ok", "m.tril() & ", "m.tril(self.window - 1) & ", "into the future"),
    ("cache_tuple", ".tril(S - T)", ".tril()", "upper left"),
    (
        "cache_tuple",
        "reshape(B, T, D)), (k, v)",
        "reshape(B, T, D)), (k[:, :, -T:], v[:, :, -T:])",
        "last call brought",
    ),
    ("cache_tuple", "reshape(B, T, D)), (k, v)", "reshape(B, T, D)), (v, k)", "exchanges"),
    (
        "cache_tuple",
        "reshape(B, T, D)), (k, v)",
        "reshape(B, T, D)), (cache if cache is not None else (k, v))",
        "first call brought",
    ),
    ("cache_tuple", "if cache is not None:", "if False:", "not used"),
    ("cache_tuple", ".tril(S - T)", ".tril(S - T if S == T else S)", "no mask"),
    ("cacherot_tuple", "past[0].shape[2]", "0", "start at 0"),
    ("cacherot_tuple", "else past[0].shape[2]", "else past[0].shape[2] - 1", "too small"),
    ("cacherot_tuple", "else past[0].shape[2]", "else past[0].shape[2] + T", "behind the new"),
    ("cacherot_tuple", "self.rope(k, start)", "k", "only the queries"),
    ("cacherot_tuple", "10000 **", "1000 **", "base is 1000"),
    ("mh_conv1d", "(D // self.H) ** 0.5", "(D // self.H)", "by d ="),
    ("mh_loop", "j in range(t + 1)]", "j in range(T)]", "after the softmax"),
    (
        "mh_sdpa",
        "permute(2, 0, 3, 1, 4)",
        "reshape(3, b, self.heads, t, c // self.heads)",
        "reshaped to (3, B, H, T, d)",
    ),
    ("sh_proj", "self.W_q.shape[1] ** .5", "self.W_q.shape[0] ** .5", "sqrt(D)"),
    ("sh_karpathy", "k.shape[-1]**-0.5", "C**-0.5", "sqrt(D)"),
    ("mean_ok", "x.cumsum(1)", "x.cumsum(0)", "along the batch"),
    ("attend_ok", "torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=1)", "right for one sequence"),
]
