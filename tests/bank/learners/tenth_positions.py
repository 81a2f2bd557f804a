"""A tenth lot of learners' programs: rotary, ALiBi, linear attention, windows, caches."""

# === tenth_rotary_complex
# target: multi_head,rotary
# right: complex-number rotary over neighbouring channels, recomputed each call
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_phases(head_dim, length, theta=10000.0):
    """unit complex numbers e^{i * t * w_j}, shape (length, head_dim / 2)"""
    w = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * w
    return torch.polar(torch.ones_like(angle), angle)


def turn(x, phases):
    # x: (B, T, H, D); neighbouring channels are (real, imaginary)
    z = torch.view_as_complex(x.to(torch.float64).unflatten(-1, (-1, 2)).contiguous())
    z = z * phases[None, :, None, :]
    return torch.view_as_real(z).flatten(-2).to(x.dtype)


class RotaryAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq = nn.Linear(d, d, bias=False)
        self.wk = nn.Linear(d, d, bias=False)
        self.wv = nn.Linear(d, d, bias=False)
        self.wo = nn.Linear(d, d, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        phases = make_phases(D // self.h, T)
        q = turn(self.wq(x).view(B, T, self.h, -1), phases)
        k = turn(self.wk(x).view(B, T, self.h, -1), phases)
        v = self.wv(x).view(B, T, self.h, -1)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.wo(y.transpose(1, 2).reshape(B, T, D))


attention = RotaryAttention(48, 6)

# === tenth_rotary_mixed_pairs
# target: multi_head,rotary
# wrong: q is rotated in interleaved pairs but k in half-split pairs, so scores no longer depend on relative position
# words: rotary|rope|rotation, interleav|half|pair|mismatch|differ|same
import torch
import torch.nn as nn


class Rope(nn.Module):
    def __init__(self, dim, base=10000, max_positions=512):
        super().__init__()
        freqs = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        ang = torch.outer(torch.arange(max_positions).float(), freqs)
        self.register_buffer("sin", ang.sin(), persistent=False)
        self.register_buffer("cos", ang.cos(), persistent=False)

    def forward(self, x, interleaved=False):
        # x: (b, h, t, d)
        t = x.shape[2]
        sin, cos = self.sin[:t], self.cos[:t]
        if interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
        else:
            a, b = x.chunk(2, dim=-1)
        ra = a * cos - b * sin
        rb = a * sin + b * cos
        if interleaved:
            return torch.stack((ra, rb), dim=-1).flatten(-2)
        return torch.cat((ra, rb), dim=-1)


class RopeAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.rope = Rope(self.head_dim)

    def forward(self, x):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        q = self.rope(q, interleaved=True)
        k = self.rope(k)
        scores = q @ k.transpose(2, 3) / self.head_dim ** 0.5
        mask = torch.full((t, t), float("-inf"), device=x.device)
        mask = torch.triu(mask, diagonal=1)
        probs = torch.softmax(scores + mask, dim=-1)
        y = (probs @ v).transpose(1, 2).contiguous().view(b, t, c)
        return self.out_proj(y)


attention = RopeAttention(48, 6)

# === tenth_rotary_over_heads
# target: multi_head,rotary
# wrong: rope is applied to (B,H,T,D) with tables along axis 1: every head is turned by its head number, positions are ignored
# words: rotary|rope|rotation|position, head|axis|dim|time
"""Attention with RoPE, second try."""
import math

import torch
from torch import nn


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def rope_tables(n, dim):
    inv = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
    t = torch.arange(n)[:, None] * inv[None]
    t = torch.cat((t, t), dim=-1)
    return t.cos(), t.sin()


def apply_rope(x):
    cos, sin = rope_tables(x.shape[1], x.shape[-1])
    cos = cos[None, :, None, :]
    sin = sin[None, :, None, :]
    return x * cos + rotate_half(x) * sin


class RoPEAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.Wqkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.Wqkv(x).view(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)         # 3 x (B, heads, T, head_dim)
        q, k = apply_rope(q), apply_rope(k)
        att = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        att = att.masked_fill(torch.ones(T, T, device=x.device).tril() == 0, -torch.inf)
        y = att.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


if __name__ == "__main__":
    print(RoPEAttention(48, 6)(torch.randn(2, 5, 48)).shape)

# === tenth_rotation_matrices
# target: rotary
# right: explicit 2x2 rotation matrices over neighbouring channel pairs
"""Rotary embedding written with real 2x2 rotation matrices, slow but nothing to remember.

Token t, channel pair (2j, 2j+1) is turned by the angle t / base**(2j / d).
"""
import torch


def rotation_matrix(angle):
    """angle: any shape -> the same shape with two more axes (2, 2)"""
    c, s = torch.cos(angle), torch.sin(angle)
    top = torch.stack([c, -s], dim=-1)
    bottom = torch.stack([s, c], dim=-1)
    return torch.stack([top, bottom], dim=-2)


def rotary(x, base=10_000.0):
    # x: (batch, heads, time, d)
    *lead, T, d = x.shape
    if d % 2:
        raise ValueError("need an even number of channels")
    j = torch.arange(d // 2, dtype=x.dtype, device=x.device)
    t = torch.arange(T, dtype=x.dtype, device=x.device)
    R = rotation_matrix(t[:, None] / base ** (2 * j / d))       # (T, d/2, 2, 2)
    pairs = x.reshape(*lead, T, d // 2, 2, 1)
    return (R @ pairs).reshape(*lead, T, d)

# === tenth_rotation_evens_first
# target: rotary
# convention: pairs (even, odd), output holds all rotated evens first then the odds; consistent for q and k
import torch


def apply_rotary_emb(x, base=10000.0):
    """x: (B, H, T, D). Pairs are (even, odd) channels.

    All the rotated evens come out first and then the rotated odds. q and k get the
    same shuffle, so q.k does not care.
    """
    T, D = x.shape[-2:]
    inv_freq = base ** -(torch.arange(0, D, 2, device=x.device).double() / D)
    theta = torch.arange(T, device=x.device).double().outer(inv_freq)
    sin, cos = theta.sin().to(x.dtype), theta.cos().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)


attention = apply_rotary_emb

# === tenth_rotation_no_minus
# target: rotary
# wrong: rotate_half without the minus sign: (x2, x1) instead of (-x2, x1), no rotation at all
# words: sign|minus|negat|rotat
import torch


def precompute(head_dim, seq_len, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, head_dim, 2).float() / head_dim))
    freqs = torch.einsum("i,j->ij", torch.arange(seq_len).float(), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos(), emb.sin()


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat([x[..., half:], x[..., :half]], dim=-1)


def rope(x):
    """rotate x (batch, heads, seq, head_dim) by its position"""
    cos, sin = precompute(x.shape[-1], x.shape[-2])
    cos, sin = cos.to(x), sin.to(x)
    return x * cos + rotate_half(x) * sin


if __name__ == "__main__":
    q = torch.randn(1, 2, 6, 8)
    print(rope(q).shape)
    print((rope(q)[:, :, 0] - q[:, :, 0]).abs().max())   # position 0 must stay as it is

# === tenth_alibi_one_buffer
# target: multi_head,alibi
# right: ALiBi with geometric slopes 2^(-8h/H), bias and causal mask in one buffer-made tensor
import torch
import torch.nn as nn


class AlibiAttention(nn.Module):
    """Multi-head attention, no position embedding: far keys get a penalty instead.

    head h (from 1) has slope 2 ** (-8 h / H)
    """

    def __init__(self, dim, H):
        super().__init__()
        self.H = H
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / H) for h in range(H)], dtype=torch.float64)
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, T):
        i = torch.arange(T)
        distance = i[:, None] - i[None, :]                       # how far back is the key
        penalty = -self.slopes[:, None, None] * distance
        return penalty.masked_fill(distance < 0, float("-inf"))  # (H, T, T)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.H, C // self.H).permute(2, 0, 3, 1, 4).unbind(0)
        s = q @ k.transpose(-1, -2) * (C // self.H) ** -0.5 + self.bias(T).to(x.dtype)
        y = s.softmax(dim=-1) @ v
        return self.out(y.permute(0, 2, 1, 3).reshape(B, T, C))


attention = AlibiAttention(48, 6)

# === tenth_alibi_bloom
# target: multi_head,alibi
# convention: BLOOM style bias slope*key position only (equal up to a row constant), slopes by the power-of-two recipe, bmm layout
"""ALiBi as in the BLOOM code: the bias only looks at the position of the key.

slope * j and slope * (j - i) differ by a constant in each row and the softmax removes it.
Slopes: the recipe of the paper's repo for head counts that are no power of two.
"""
import math

import torch
from torch import nn


def get_slopes(n):
    p = 2 ** math.floor(math.log2(n))
    first = [2 ** (-8 * (i + 1) / p) for i in range(p)]
    if p == n:
        return first
    extra = [2 ** (-4 * (i + 1) / p) for i in range(0, 2 * p, 2)]
    return first + extra[: n - p]


class BloomishAttention(nn.Module):
    def __init__(self, hidden, n_head):
        super().__init__()
        self.n_head = n_head
        self.head_dim = hidden // n_head
        self.q = nn.Linear(hidden, hidden)
        self.k = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x):
        b, t, _ = x.shape
        # batch and heads in one axis for bmm
        fold = lambda y: y.view(b, t, self.n_head, self.head_dim).transpose(1, 2).reshape(b * self.n_head, t, self.head_dim)
        q, k, v = fold(self.q(x)), fold(self.k(x)), fold(self.v(x))
        slopes = torch.tensor(get_slopes(self.n_head), dtype=x.dtype, device=x.device)
        alibi = slopes[:, None] * torch.arange(t, dtype=x.dtype, device=x.device)
        alibi = alibi.repeat(b, 1)[:, None, :]                  # (b*h, 1, t)
        scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=1 / math.sqrt(self.head_dim))
        hide = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        probs = scores.masked_fill(hide, torch.finfo(x.dtype).min).softmax(-1)
        y = torch.bmm(probs, v).view(b, self.n_head, t, self.head_dim)
        return self.dense(y.transpose(1, 2).reshape(b, t, -1))

# === tenth_alibi_sign
# target: multi_head,alibi
# wrong: sign of the ALiBi bias is positive: far tokens are favoured
# words: alibi|bias|slope|sign|distance
import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_bias(n_heads, T):
    start = 2 ** (-8 / n_heads)
    slopes = torch.tensor([start ** (i + 1) for i in range(n_heads)])
    pos = torch.arange(T)
    dist = (pos[:, None] - pos[None, :]).clamp(min=0)
    return slopes[:, None, None] * dist


class ALiBiMHA(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.in_proj(x).split(D, dim=-1)
        q, k, v = [z.reshape(B, T, self.n_heads, -1).transpose(1, 2) for z in (q, k, v)]
        bias = alibi_bias(self.n_heads, T).to(x)
        causal = torch.zeros(T, T, device=x.device, dtype=x.dtype)
        causal = causal.masked_fill(torch.ones(T, T, device=x.device).triu(1).bool(), float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias + causal)
        return self.out_proj(out.transpose(1, 2).reshape(B, T, D))


attention = ALiBiMHA(48, 6)

# === tenth_alibi_before_scale
# target: multi_head,alibi
# wrong: ALiBi bias is added before the division by sqrt(d), so the slopes shrink by sqrt(d)
# words: alibi|bias|slope, scale|sqrt|divid
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Causal self-attention with linear biases (ALiBi)"""

    def __init__(self, config):
        super().__init__()
        self.n_head = config["n_head"]
        self.d_head = config["n_embd"] // config["n_head"]
        self.q = nn.Linear(config["n_embd"], config["n_embd"], bias=False)
        self.k = nn.Linear(config["n_embd"], config["n_embd"], bias=False)
        self.v = nn.Linear(config["n_embd"], config["n_embd"], bias=False)
        self.o = nn.Linear(config["n_embd"], config["n_embd"], bias=False)
        m = torch.pow(2.0, -8.0 / self.n_head * torch.arange(1, self.n_head + 1, dtype=torch.float64))
        self.register_buffer("m", m.view(-1, 1, 1))

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, self.n_head, self.d_head).transpose(1, 2)
        k = self.k(x).view(B, T, self.n_head, self.d_head).transpose(1, 2)
        v = self.v(x).view(B, T, self.n_head, self.d_head).transpose(1, 2)
        rel = torch.arange(T)[None, :] - torch.arange(T)[:, None]     # <= 0 for the past
        att = q @ k.transpose(-2, -1)
        att = att + (self.m * rel).to(att.dtype)
        att = att / math.sqrt(self.d_head)
        att = att.masked_fill(rel > 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.o(y.transpose(1, 2).contiguous().view(B, T, C))


if __name__ == "__main__":
    layer = Attention({"n_head": 6, "n_embd": 48})
    print(layer(torch.randn(4, 12, 48)).shape)

# === tenth_linear_cumsum
# target: linear_attention
# right: elu+1 features, cumulative sums of k v^T and k by cumsum, whole module with projections
import torch
import torch.nn as nn
import torch.nn.functional as F


class LinearAttention(nn.Module):
    """Transformers are RNNs: exp(q.k) becomes phi(q).phi(k), so no T x T matrix is needed."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    @staticmethod
    def phi(x):
        return F.elu(x) + 1

    def forward(self, x):
        B, T, D = x.shape
        shape = (B, T, self.heads, D // self.heads)
        q = self.phi(self.to_q(x).view(shape))
        k = self.phi(self.to_k(x).view(shape))
        v = self.to_v(x).view(shape)
        kv = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(dim=1)
        z = k.cumsum(dim=1)
        top = torch.einsum("bthk,bthkv->bthv", q, kv)
        bottom = torch.einsum("bthk,bthk->bth", q, z)
        return self.to_out((top / bottom[..., None]).reshape(B, T, D))


attention = LinearAttention(48, 6)

# === tenth_linear_named_tuple
# target: linear_attention
# right: recurrent NamedTuple state, softplus feature map, function of split heads
"""Linear attention as a recurrence. The state is a matrix S and a vector z per head, its size does not grow."""
from typing import NamedTuple

import torch
import torch.nn.functional as F


class State(NamedTuple):
    S: torch.Tensor     # (B, H, D, Dv)
    z: torch.Tensor     # (B, H, D)


def feature(x):
    return F.softplus(x)


def step(state, q_t, k_t, v_t):
    fk = feature(k_t)
    fq = feature(q_t)
    state = State(state.S + fk.unsqueeze(-1) * v_t.unsqueeze(-2), state.z + fk)
    numerator = (fq.unsqueeze(-2) @ state.S).squeeze(-2)
    denominator = (fq * state.z).sum(-1, keepdim=True)
    return state, numerator / denominator


def linear_attention(q, k, v):
    """q, k, v: (B, H, T, D)"""
    B, H, T, D = q.shape
    state = State(q.new_zeros(B, H, D, v.shape[-1]), q.new_zeros(B, H, D))
    ys = []
    for t in range(T):
        state, y = step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        ys.append(y)
    return torch.stack(ys, dim=2)

# === tenth_linear_whole_normaliser
# target: linear_attention
# wrong: normaliser sums phi(k) over the whole sequence instead of the past: not causal and weights do not sum to one
# words: normali|denom|future|causal
import torch
import torch.nn as nn
import torch.nn.functional as F


class EluAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.project = nn.Linear(d_model, d_model)

    def heads(self, y):
        b, n, c = y.shape
        return y.view(b, n, self.n_heads, c // self.n_heads).transpose(1, 2)

    def forward(self, x):
        q = F.elu(self.heads(self.query(x))) + 1.0
        k = F.elu(self.heads(self.key(x))) + 1.0
        v = self.heads(self.value(x))
        # running sum of outer products = causal
        context = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        out = torch.einsum('bhnd,bhnde->bhne', q, context)
        # normalise
        denom = torch.einsum('bhnd,bhd->bhn', q, k.sum(dim=2))
        out = out / denom.unsqueeze(-1)
        return self.project(out.transpose(1, 2).flatten(2))


attention = EluAttention(48, 6)

# === tenth_linear_late_update
# target: linear_attention
# wrong: state is updated after it is used: a token does not attend to itself and the first output is only the bias
# words: update|itself|current|before|after
import torch
from torch import nn


class RecurrentLinearAttention(nn.Module):
    """causal linear attention, processed token by token like an RNN"""

    def __init__(self, dim, num_heads, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.eps = eps
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def phi(self, t):
        return torch.nn.functional.elu(t) + 1

    def forward(self, x):
        B, T, D = x.shape
        d = D // self.num_heads
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, d).unbind(2)
        q, k = self.phi(q), self.phi(k)
        memory = x.new_zeros(B, self.num_heads, d, d)
        norm = x.new_zeros(B, self.num_heads, d)
        outputs = []
        for t in range(T):
            num = torch.einsum("bhk,bhkv->bhv", q[:, t], memory)
            den = (q[:, t] * norm).sum(-1, keepdim=True) + self.eps
            outputs.append((num / den).reshape(B, D))
            memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            norm = norm + k[:, t]
        return self.out(torch.stack(outputs, dim=1))


if __name__ == "__main__":
    attn = RecurrentLinearAttention(48, 6)
    print(attn(torch.randn(2, 9, 48)).shape)

# === tenth_window_band_vqk
# target: multi_head,window=4
# right: band mask by tril & triu(-(w-1)), fused projection in the order v q k
import torch
import torch.nn as nn
import torch.nn.functional as F


def sliding_mask(n, w, device=None):
    """True where attention is allowed: the token itself and the w - 1 tokens before it"""
    ones = torch.ones(n, n, dtype=torch.bool, device=device)
    return ones.tril(0) & ones.triu(-(w - 1))


class SlidingWindowAttention(nn.Module):
    def __init__(self, dim, n_heads, window=4):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        # the fused matrix holds v first, then q, then k (that is how my checkpoint is)
        v, q, k = self.wqkv(x).split([D, D, D], dim=2)
        heads = lambda t: t.reshape(B, T, self.n_heads, D // self.n_heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            heads(q), heads(k), heads(v), attn_mask=sliding_mask(T, self.window, x.device)
        )
        return self.wo(y.transpose(1, 2).reshape(B, T, D))


if __name__ == "__main__":
    print(sliding_mask(7, 4).int())

# === tenth_window_unfold
# target: multi_head,window=4
# right: keys and values gathered with pad + unfold, only T x w scores are made
import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    """Only the last `w` keys (the own one included) are ever gathered: memory T * w, not T * T."""

    def __init__(self, dim, heads, w=4):
        super().__init__()
        self.heads, self.w = heads, w
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        H, d, w = self.heads, C // self.heads, self.w
        q = self.q(x).view(B, T, H, d)
        k, v = self.kv(x).view(B, T, 2, H, d).unbind(2)
        # w - 1 empty tokens in front, then every window of w tokens: (B, T, H, d, w)
        k = F.pad(k, (0, 0, 0, 0, w - 1, 0)).unfold(1, w, 1)
        v = F.pad(v, (0, 0, 0, 0, w - 1, 0)).unfold(1, w, 1)
        s = torch.einsum("bthd,bthdw->bthw", q, k) / d ** 0.5
        source = torch.arange(T)[:, None] + torch.arange(w) - (w - 1)      # position of each slot
        s = s.masked_fill((source < 0)[None, :, None, :].to(x.device), float("-inf"))
        y = torch.einsum("bthw,bthdw->bthd", s.softmax(-1), v)
        return self.o(y.reshape(B, T, C))


attention = LocalAttention(48, 6)

# === tenth_window_one_more
# target: multi_head,window=4
# wrong: window off by one: i-j > window is blocked, so 5 tokens are seen and not 4
# words: window
import math
import torch
from torch import nn


class WindowedSelfAttention(nn.Module):
    """Causal attention where a token sees `window` tokens: itself and the window-1 before."""

    def __init__(self, d_model, nhead, window=4, max_len=128):
        super().__init__()
        self.nhead = nhead
        self.q_lin = nn.Linear(d_model, d_model)
        self.k_lin = nn.Linear(d_model, d_model)
        self.v_lin = nn.Linear(d_model, d_model)
        self.o_lin = nn.Linear(d_model, d_model)
        i = torch.arange(max_len).unsqueeze(1)
        j = torch.arange(max_len).unsqueeze(0)
        too_new = j > i
        too_old = i - j > window
        self.register_buffer("blocked", too_new | too_old, persistent=False)

    def forward(self, x):
        n, length, dim = x.shape
        hd = dim // self.nhead

        def shape(t):
            return t.view(n, length, self.nhead, hd).transpose(1, 2)

        q, k, v = shape(self.q_lin(x)), shape(self.k_lin(x)), shape(self.v_lin(x))
        weights = q @ k.transpose(2, 3) / math.sqrt(hd)
        weights = weights.masked_fill(self.blocked[:length, :length], float("-inf"))
        weights = torch.softmax(weights, dim=-1)
        return self.o_lin((weights @ v).transpose(1, 2).reshape(n, length, dim))


attention = WindowedSelfAttention(48, 6)

# === tenth_cache_tuple
# target: multi_head,cache
# right: cache is a (k, v) tuple passed in and out; mask from absolute positions, works for chunks
"""Attention with a KV cache. y, cache = attn(x, cache): x may be the prompt or one new token."""
from typing import Optional, Tuple

import torch
from torch import nn, Tensor

Cache = Tuple[Tensor, Tensor]


class CachedAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, cache: Optional[Cache] = None) -> Tuple[Tensor, Cache]:
        B, new, D = x.shape
        q, k, v = (p(x).view(B, new, self.heads, -1).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)
        total = k.size(2)
        # the new queries are the last `new` of `total` positions
        where_q = torch.arange(total - new, total, device=x.device)
        where_k = torch.arange(total, device=x.device)
        visible = where_k[None, :] <= where_q[:, None]
        s = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        w = torch.where(visible, s, s.new_tensor(float("-inf"))).softmax(-1)
        y = (w @ v).transpose(1, 2).reshape(B, new, D)
        return self.o_proj(y), (k, v)

# === tenth_cache_sdpa_corner
# target: multi_head,cache
# wrong: SDPA is_causal=True with a cache aligns top-left: a single new query sees only the very first key
# words: mask|causal, cache|align|offset|diagonal
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedMHA(nn.Module):
    """Keeps the keys and values of everything it has seen; call reset() before a new text."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)
        self.reset()

    def reset(self):
        self.keys = None
        self.values = None

    def forward(self, x, use_cache=False):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_heads, -1).transpose(1, 2)
        k = k.view(B, T, self.n_heads, -1).transpose(1, 2)
        v = v.view(B, T, self.n_heads, -1).transpose(1, 2)
        if use_cache:
            if self.keys is not None:
                k = torch.cat([self.keys, k], dim=2)
                v = torch.cat([self.values, v], dim=2)
            self.keys, self.values = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


attention = CachedMHA(48, 6)

# === tenth_cache_rotary_restarts
# target: multi_head,rotary,cache
# wrong: rotary positions start again at 0 for every call, so all generated tokens get position 0 when the cache is used
# words: rotary|rope|rotation|position, cache|offset|start
"""RoPE + KV cache, following the llama inference posts."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def rope(x, base=10000.0):
    # x: (B, H, T, D)
    T, D = x.shape[-2], x.shape[-1]
    freq = base ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    ang = torch.arange(T, dtype=torch.float64)[:, None] * freq
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    x1, x2 = x[..., : D // 2], x[..., D // 2:]
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size=48, num_heads=6):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x, past_kv=None):
        bsz, q_len, _ = x.size()
        q = self.q_proj(x).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)

        q, k = rope(q), rope(k)

        if past_kv is not None:
            k = torch.cat([past_kv["k"], k], dim=2)
            v = torch.cat([past_kv["v"], v], dim=2)
        past_kv = {"k": k, "v": v}

        kv_len = k.shape[2]
        mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=x.device).tril(kv_len - q_len)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), past_kv


@torch.no_grad()
def generate_features(layer, x):
    """feed one token at a time"""
    past, ys = None, []
    for t in range(x.shape[1]):
        y, past = layer(x[:, t:t + 1], past)
        ys.append(y)
    return torch.cat(ys, dim=1)

# === tenth_cache_llama_buffers
# target: grouped_query,rotary,cache
# right: llama style preallocated cache buffers with start_pos, half-split rotary, 3 kv heads, grouped einsum
import torch
import torch.nn as nn


class Attention(nn.Module):
    """Grouped queries + rotary + preallocated cache. forward(x, start_pos)."""

    def __init__(self, dim, n_heads, n_kv_heads=3, max_batch=4, max_seq=64, theta=10000.0):
        super().__init__()
        self.hq, self.hkv = n_heads, n_kv_heads
        self.dh = dim // n_heads
        self.wq = nn.Linear(dim, self.hq * self.dh, bias=False)
        self.wk = nn.Linear(dim, self.hkv * self.dh, bias=False)
        self.wv = nn.Linear(dim, self.hkv * self.dh, bias=False)
        self.wo = nn.Linear(self.hq * self.dh, dim, bias=False)
        half = torch.arange(self.dh // 2, dtype=torch.float64)
        angles = torch.arange(max_seq, dtype=torch.float64)[:, None] * theta ** (-2 * half / self.dh)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1), persistent=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_seq, n_kv_heads, self.dh), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_seq, n_kv_heads, self.dh), persistent=False)

    def rot(self, x, start):
        stop = start + x.shape[1]
        c = self.cos[start:stop, None].to(x.dtype)
        s = self.sin[start:stop, None].to(x.dtype)
        left, right = x.tensor_split(2, -1)
        return x * c + torch.cat([-right, left], -1) * s

    def forward(self, x, start_pos=0):
        B, T, _ = x.shape
        end = start_pos + T
        q = self.rot(self.wq(x).view(B, T, self.hq, self.dh), start_pos)
        k = self.rot(self.wk(x).view(B, T, self.hkv, self.dh), start_pos)
        v = self.wv(x).view(B, T, self.hkv, self.dh)
        self.cache_k[:B, start_pos:end] = k.detach()
        self.cache_v[:B, start_pos:end] = v.detach()
        # old part from the cache, new part with its gradient
        k = torch.cat([self.cache_k[:B, :start_pos], k], dim=1)
        v = torch.cat([self.cache_v[:B, :start_pos], v], dim=1)

        group = self.hq // self.hkv
        q = q.view(B, T, self.hkv, group, self.dh)
        s = torch.einsum("btkgd,bskd->bkgts", q, k) / self.dh ** 0.5
        hidden = torch.ones(T, end, dtype=torch.bool, device=x.device).triu(start_pos + 1)
        w = s.masked_fill(hidden, float("-inf")).softmax(-1)
        y = torch.einsum("bkgts,bskd->btkgd", w, v)
        return self.wo(y.reshape(B, T, self.hq * self.dh))


attention = Attention(48, 6)
