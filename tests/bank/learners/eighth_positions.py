"""An eighth lot of learners' programs: rotary, ALiBi, windows, caches, linear attention."""

# === eighth_rotary_hf
# target: multi_head,rotary
# right: HF rotate_half with cached cos/sin buffers; additive mask argument optional, causal by default
import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_position_embeddings=256, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        t = torch.arange(max_position_embeddings).float()
        freqs = torch.outer(t, inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, seq_len):
        return self.cos_cached[:seq_len], self.sin_cached[:seq_len]


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class RotaryAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim)

    def forward(self, hidden_states, attention_mask=None):
        bsz, q_len, hidden = hidden_states.size()
        shape = (bsz, q_len, self.num_heads, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = self.rotary_emb(q_len)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        attn = torch.matmul(q, k.transpose(2, 3)) / self.head_dim**0.5
        if attention_mask is None:
            attention_mask = torch.full((q_len, q_len), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
        attn = (attn + attention_mask).softmax(dim=-1)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, q_len, hidden)
        return self.o_proj(out)


attention = RotaryAttention(48, 6)

# === eighth_rotary_mixed_tables
# target: multi_head,rotary
# wrong: the angles are laid out with repeat_interleave (interleaved pairs) but rotate_half pairs the two halves; angles should be cat([angles, angles])
# words: pairs are halves
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope_cache(seq_len, dim, theta=10000.0):
    freqs = theta ** (-torch.arange(0, dim, 2).float() / dim)
    angles = torch.arange(seq_len).float()[:, None] * freqs[None, :]
    angles = torch.repeat_interleave(angles, 2, dim=-1)  # (seq_len, dim)
    return angles.cos(), angles.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class RoPEMultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=256):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.qkv = nn.Linear(d_model, d_model * 3, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        cos, sin = build_rope_cache(max_len, self.d_head)
        self.register_buffer('cos', cos)
        self.register_buffer('sin', sin)

    def rope(self, x):
        n = x.size(-2)
        return x * self.cos[:n] + rotate_half(x) * self.sin[:n]

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        q, k = self.rope(q), self.rope(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.permute(0, 2, 1, 3).reshape(b, n, d))

# === eighth_rotary_complex
# target: multi_head,rotary
# right: complex numbers (complex64, float32 inside), tables as plain attribute
import torch
import torch.nn as nn
import torch.nn.functional as F
from typing import Tuple


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end)
    freqs = torch.outer(t, freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)  # complex64


def apply_rotary_emb(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis[None, :, None, :]
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


class Attention(nn.Module):
    """Rotary attention, consecutive pairs as complex numbers."""

    def __init__(self, dim: int, n_heads: int, max_seq_len: int = 128):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_seq_len)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv))
        xq, xk = apply_rotary_emb(xq, xk, self.freqs_cis[:seqlen].to(x.device))
        xq, xk, xv = xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2)
        out = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))

# === eighth_rotary_of_heads
# target: multi_head,rotary
# wrong: rotary is applied to (B, T, H, D) before the transpose, so x.shape[-2] is the head axis and the angle is the head index; transpose to (B, H, T, D) first
# words: number of the head
import torch
from torch import nn
import torch.nn.functional as F


class Rotary(nn.Module):
    """Interleaved rotary embedding: pairs (0,1), (2,3), ... share one angle."""

    def __init__(self, dim, base=10000):
        super().__init__()
        self.register_buffer("inv_freq", base ** -(torch.arange(0, dim, 2).float() / dim))

    def forward(self, x):
        seq_len = x.shape[-2]
        t = torch.arange(seq_len, device=x.device, dtype=self.inv_freq.dtype)
        ang = torch.einsum("i,j->ij", t, self.inv_freq)
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class RotarySelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(width, width, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)
        self.to_out = nn.Linear(width, width)
        self.rotary = Rotary(width // heads)

    def forward(self, x):
        b, n, w = x.shape
        q = self.to_q(x).view(b, n, self.heads, -1)
        k = self.to_k(x).view(b, n, self.heads, -1)
        v = self.to_v(x).view(b, n, self.heads, -1)
        q, k = self.rotary(q), self.rotary(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(o.transpose(1, 2).reshape(b, n, w))


attention = RotarySelfAttention(48, 6)

# === eighth_rotary_neox
# target: multi_head,rotary
# right: GPT-NeoX: only the first half of each head is rotated; qkv joined head by head
import torch
import torch.nn as nn
import torch.nn.functional as F


class NeoXAttention(nn.Module):
    """GPT-NeoX attention. Only the first rotary_pct of every head is rotated (half-split pairs),
    the rest of the head passes through. The joined layer is ordered head by head: (q, k, v) for head 0, ..."""

    def __init__(self, hidden_size, num_attention_heads, rotary_pct=0.5, rotary_emb_base=10000):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.rotary_ndims = int(self.head_size * rotary_pct)
        inv_freq = 1.0 / (rotary_emb_base ** (torch.arange(0, self.rotary_ndims, 2).float() / self.rotary_ndims))
        self.register_buffer("inv_freq", inv_freq)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def _rotate(self, x):
        n = x.shape[-2]
        rot, rest = x[..., : self.rotary_ndims], x[..., self.rotary_ndims :]
        angle = torch.outer(torch.arange(n, device=x.device, dtype=self.inv_freq.dtype), self.inv_freq)
        cos, sin = angle.cos(), angle.sin()
        a, b = rot.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)

    def forward(self, hidden_states):
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(*qkv.shape[:-1], self.num_attention_heads, 3 * self.head_size).transpose(1, 2)
        query, key, value = qkv.split(self.head_size, dim=-1)
        query, key = self._rotate(query), self._rotate(key)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.dense(out.transpose(1, 2).flatten(2))

# === eighth_rotary_overwritten
# target: multi_head,rotary
# wrong: in-place edit: x_even is a view of x and is overwritten before the odd features are computed from it; take clones of x_even/x_odd (or write into a new tensor)
# words: overwritten
import torch
import torch.nn as nn


def rope_tables(length, dim, base=10_000.0):
    theta = base ** (-2 * torch.arange(dim // 2) / dim)
    m = torch.arange(length)[:, None]
    return torch.cos(m * theta), torch.sin(m * theta)


def apply_rope(x, cos, sin):
    """x: (B, H, T, D) with neighbouring features paired"""
    x = x.clone()
    x_even = x[..., 0::2]
    x_odd = x[..., 1::2]
    x[..., 0::2] = x_even * cos - x_odd * sin
    x[..., 1::2] = x_even * sin + x_odd * cos
    return x


class MultiHeadRoPE(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.d_k = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.output_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        heads = lambda y: y.view(B, T, self.h, self.d_k).transpose(1, 2)
        Q, K, V = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        cos, sin = rope_tables(T, self.d_k)
        cos, sin = cos.to(x), sin.to(x)
        Q, K = apply_rope(Q, cos, sin), apply_rope(K, cos, sin)
        scores = Q @ K.transpose(-2, -1) / self.d_k**0.5
        keep = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))
        A = scores.masked_fill(~keep, float("-inf")).softmax(-1)
        return self.output_proj((A @ V).transpose(1, 2).reshape(B, T, D))

# === eighth_alibi_recursive
# target: multi_head,alibi
# right: recursive slopes for head counts that are not a power of two; bias slope*(j-i)
import math
import torch
from torch import nn


def get_slopes(n):
    def get_slopes_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes_power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class ALiBiAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("slopes", torch.tensor(get_slopes(heads)).view(heads, 1, 1))

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.to_qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        pos = torch.arange(N, device=x.device)
        distance = (pos[None, :] - pos[:, None]).to(x.dtype)  # j - i, zero or negative in the past
        scores = q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5
        scores = scores + self.slopes * distance
        scores = scores.masked_fill(distance > 0, float("-inf"))
        out = scores.softmax(dim=-1) @ v
        return self.proj(out.transpose(1, 2).reshape(B, N, C))


attention = ALiBiAttention(48, 6)

# === eighth_alibi_sign
# target: multi_head,alibi
# wrong: sign of the bias: slopes * (i - j) rewards far keys; should be -slopes * (i - j)
# words: sign of the bias
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_slopes(num_heads):
    base = 2 ** math.floor(math.log2(num_heads))
    m = [2 ** (-8 * i / base) for i in range(1, base + 1)]
    if base < num_heads:
        m += [2 ** (-4 * i / base) for i in range(1, 2 * (num_heads - base) + 1, 2)]
    return torch.tensor(m)


class AlibiMultiHeadAttention(nn.Module):
    """Causal attention with linear biases: no position embeddings, far keys are penalised."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        self.register_buffer('m', alibi_slopes(num_heads))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = [f(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
                   for f in (self.query, self.key, self.value)]
        i = torch.arange(t, device=x.device)
        bias = self.m[:, None, None] * (i[:, None] - i[None, :])
        mask = torch.triu(torch.ones(t, t, device=x.device), 1).bool()
        bias = bias.masked_fill(mask, float('-inf')).to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, d))

# === eighth_alibi_mpt
# target: multi_head,alibi
# right: MPT: bias depends on the key position only (softmax shift invariance); MPT slope order equals the paper's
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

# === eighth_alibi_before_scale
# target: multi_head,alibi
# wrong: the ALiBi bias is added before the multiplication by 1/sqrt(hs), so the slopes are shrunk; add it after scaling the scores
# words: before the division
import math
import torch
import torch.nn as nn


def slopes(n):
    p = 2 ** int(math.log2(n))
    s = [2 ** (-8 * (h + 1) / p) for h in range(p)]
    s += [2 ** (-4 * (2 * h + 1) / p) for h in range(n - p)]
    return torch.tensor(s)


class AlibiAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.register_buffer("slopes", slopes(n_head)[:, None, None])

    def forward(self, x):
        B, T, C = x.size()
        hs = C // self.n_head
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, hs).transpose(1, 2)
        k = k.view(B, T, self.n_head, hs).transpose(1, 2)
        v = v.view(B, T, self.n_head, hs).transpose(1, 2)

        pos = torch.arange(T, device=x.device)
        alibi = -self.slopes * (pos[:, None] - pos[None, :]).clamp(min=0)
        att = (q @ k.transpose(-2, -1) + alibi) * (1.0 / math.sqrt(hs))
        att = att.masked_fill(pos[None, :] > pos[:, None], float('-inf'))
        att = torch.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.c_proj(y)


attention = AlibiAttention(48, 6)

# === eighth_window_delta
# target: multi_head,window=4
# right: unflatten, boolean mask from delta; works without a batch axis
import torch
import torch.nn as nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """Causal; position i sees i-window+1 .. i."""

    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.v = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.q = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        *lead, n, c = x.shape
        split = lambda t: t.unflatten(-1, (self.num_heads, c // self.num_heads)).transpose(-3, -2)
        i = torch.arange(n, device=x.device)
        delta = i.unsqueeze(1) - i
        allowed = (delta >= 0) & (delta < self.window)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), attn_mask=allowed)
        return self.o(y.transpose(-3, -2).flatten(-2))


attention = SlidingWindowAttention(48, 6, window=4)

# === eighth_window_one_more
# target: multi_head,window=4
# wrong: triu(diagonal=-sliding_window) lets a token see sliding_window+1 tokens; should be -(sliding_window - 1)
# words: one too wide
import torch
import torch.nn as nn


class LocalCausalAttention(nn.Module):
    """
    Sliding-window attention as in Mistral 7B.

    A token attends to at most `sliding_window` tokens: itself and the
    `sliding_window - 1` tokens before it.
    """

    def __init__(self, hidden_size: int, n_heads: int, sliding_window: int = 4):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = hidden_size // n_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def _mask(self, n, like):
        m = torch.ones(n, n, dtype=like.dtype, device=like.device)
        m = torch.tril(m, diagonal=0)
        m = torch.triu(m, diagonal=-self.sliding_window)
        return torch.log(m)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        w = q @ k.transpose(-1, -2) * self.head_dim ** -0.5 + self._mask(n, x)
        o = w.softmax(-1) @ v
        return self.o_proj(o.transpose(1, 2).reshape(b, n, -1))

# === eighth_window_both_sides
# target: multi_head,window=4
# wrong: abs() of the distance makes the window symmetric, so the window-1 next tokens are seen; the mask must also block j > i
# words: into the future
import torch
from torch import nn, einsum


class LocalAttention(nn.Module):
    """autoregressive attention restricted to the last `window_size` positions (current one included)"""

    def __init__(self, dim, heads, window_size):
        super().__init__()
        self.heads = heads
        self.window_size = window_size
        self.scale = (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias = False)
        self.to_kv = nn.Linear(dim, dim * 2, bias = False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, _, h = *x.shape, self.heads
        q, k, v = (self.to_q(x), *self.to_kv(x).chunk(2, dim = -1))
        q, k, v = map(lambda t: t.reshape(b, n, h, -1).permute(0, 2, 1, 3), (q, k, v))
        sim = einsum('b h i d, b h j d -> b h i j', q * self.scale, k)

        pos = torch.arange(n, device = x.device)
        dist = (pos[:, None] - pos[None, :]).abs()
        sim = sim.masked_fill(dist >= self.window_size, -torch.finfo(sim.dtype).max)

        attn = sim.softmax(dim = -1)
        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        out = out.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)


attention = LocalAttention(48, 6, window_size = 4)

# === eighth_window_unfold
# target: multi_head,window=4
# right: unfold of left-padded keys and values, padded slots masked, no (T,T) matrix
import torch
import torch.nn as nn
import torch.nn.functional as F


class UnfoldWindowAttention(nn.Module):
    """Window attention without the (T, T) matrix.

    Keys and values are padded on the left with window-1 zeros and unfolded, so each query meets
    exactly `window` keys, the last of which is its own. The padded slots are masked.
    """

    def __init__(self, embed, heads, window=4):
        super().__init__()
        self.embed, self.heads, self.window = embed, heads, window
        self.qkv = nn.Linear(embed, 3 * embed)
        self.out = nn.Linear(embed, embed)

    def forward(self, x):
        B, T, E = x.shape
        H, D, W = self.heads, E // self.heads, self.window
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, H, D) / D**0.5
        k = F.pad(k, (0, 0, W - 1, 0)).unfold(1, W, 1).reshape(B, T, H, D, W)
        v = F.pad(v, (0, 0, W - 1, 0)).unfold(1, W, 1).reshape(B, T, H, D, W)
        score = torch.einsum("bthd,bthdw->bthw", q, k)
        t = torch.arange(T, device=x.device)[:, None]
        w = torch.arange(W, device=x.device)[None, :]
        is_pad = t + w < W - 1
        score = score.masked_fill(is_pad[None, :, None, :], float("-inf"))
        y = torch.einsum("bthw,bthdw->bthd", score.softmax(-1), v)
        return self.out(y.reshape(B, T, E))

# === eighth_cache_nanogpt
# target: multi_head,cache
# right: concatenated cache, mask rows S-T:S of the buffer
import math
import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    """nanoGPT attention with a concatenated key/value cache.

    forward(x, past=None) -> (y, present); feed `present` back in as `past` with the next tokens.
    """

    def __init__(self, n_embd, n_head, block_size=128):
        super().__init__()
        self.n_head, self.n_embd = n_head, n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x, past=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if past is not None:
            past_k, past_v = past
            k = torch.cat((past_k, k), dim=2)
            v = torch.cat((past_v, v), dim=2)
        present = (k, v)
        S = k.size(2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.bias[S - T:S, :S] == 0, float('-inf'))
        y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y), present


attention = CausalSelfAttention(48, 6)

# === eighth_cache_corner
# target: multi_head,cache
# wrong: is_causal=True with a cache aligns the mask top-left, so a new token sees only the first keys; needs a mask shifted by the cache length (or none for one token)
# words: upper left corner
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    """Causal attention; pass kv_cache=(k, v) from the previous call when decoding."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, kv_cache=None):
        bsz, seq, dim = x.shape
        qkv = self.qkv_proj(x).view(bsz, seq, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            k = torch.cat([kv_cache[0], k], dim=-2)
            v = torch.cat([kv_cache[1], v], dim=-2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(bsz, seq, dim)
        return self.o_proj(out), (k, v)

# === eighth_cache_llama
# target: multi_head,cache
# right: llama.py preallocated cache with start_pos, mask by hstack of zeros, no mask for one token
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelArgs:
    dim: int = 48
    n_heads: int = 6
    n_kv_heads: int = 2
    max_batch_size: int = 4
    max_seq_len: int = 64
    rope_theta: float = 10000.0


class Attention(nn.Module):
    """forward(x, start_pos): x holds the tokens at positions start_pos, start_pos+1, ..."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.h, self.g = args.n_heads, args.n_kv_heads
        self.d = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, self.h * self.d, bias=False)
        self.wk = nn.Linear(args.dim, self.g * self.d, bias=False)
        self.wv = nn.Linear(args.dim, self.g * self.d, bias=False)
        self.wo = nn.Linear(self.h * self.d, args.dim, bias=False)
        cache = torch.zeros(args.max_batch_size, args.max_seq_len, self.g, self.d)
        self.register_buffer("cache_k", cache.clone(), persistent=False)
        self.register_buffer("cache_v", cache.clone(), persistent=False)
        freqs = args.rope_theta ** (-torch.arange(0, self.d, 2).float() / self.d)
        ang = torch.outer(torch.arange(args.max_seq_len).float(), freqs)
        self.register_buffer("cos", ang.cos()[:, None, :], persistent=False)
        self.register_buffer("sin", ang.sin()[:, None, :], persistent=False)

    def rope(self, x, start, n):
        cos, sin = self.cos[start : start + n], self.sin[start : start + n]
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        bsz, n, _ = x.shape
        q = self.rope(self.wq(x).view(bsz, n, self.h, self.d), start_pos, n)
        k = self.rope(self.wk(x).view(bsz, n, self.g, self.d), start_pos, n)
        v = self.wv(x).view(bsz, n, self.g, self.d)

        with torch.no_grad():
            self.cache_k[:bsz, start_pos : start_pos + n] = k
            self.cache_v[:bsz, start_pos : start_pos + n] = v
        if start_pos > 0:
            k = torch.cat([self.cache_k[:bsz, :start_pos], k], dim=1)
            v = torch.cat([self.cache_v[:bsz, :start_pos], v], dim=1)

        rep = self.h // self.g
        k = k.repeat_interleave(rep, dim=2).transpose(1, 2)
        v = v.repeat_interleave(rep, dim=2).transpose(1, 2)
        scores = q.transpose(1, 2) @ k.transpose(2, 3) / math.sqrt(self.d)
        if n > 1:
            mask = torch.full((n, n), float("-inf"), device=x.device).triu(1)
            mask = torch.hstack([torch.zeros((n, start_pos), device=x.device), mask]).type_as(x)
            scores = scores + mask
        out = F.softmax(scores, dim=-1) @ v
        return self.wo(out.transpose(1, 2).reshape(bsz, n, -1))

# === eighth_cache_rotary_restarts
# target: multi_head,cache
# wrong: rotary positions start again at 0 for every call; they should start at the cache length
# words: positions start at 0
import torch
import torch.nn as nn


def rotate(x, pos, base=10000.0):
    # half-split rotary, x: (B, H, T, D), pos: (T,)
    half = x.size(-1) // 2
    inv = base ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    ang = pos.to(x.dtype)[:, None] * inv
    c, s = ang.cos(), ang.sin()
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1)


class RotaryCacheAttention(nn.Module):
    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.hd = width // n_heads
        self.Wq = nn.Linear(width, width, bias=False)
        self.Wk = nn.Linear(width, width, bias=False)
        self.Wv = nn.Linear(width, width, bias=False)
        self.Wo = nn.Linear(width, width, bias=False)

    def forward(self, x, cache=None):
        B, T, W = x.shape
        q = self.Wq(x).view(B, T, self.n_heads, self.hd).transpose(1, 2)
        k = self.Wk(x).view(B, T, self.n_heads, self.hd).transpose(1, 2)
        v = self.Wv(x).view(B, T, self.n_heads, self.hd).transpose(1, 2)

        positions = torch.arange(T, device=x.device)
        q, k = rotate(q, positions), rotate(k, positions)
        if cache is not None:
            k = torch.cat([cache["k"], k], dim=2)
            v = torch.cat([cache["v"], v], dim=2)
        cache = {"k": k, "v": v}

        L = k.size(2)
        mask = torch.ones(T, L, dtype=torch.bool, device=x.device).tril(L - T)
        att = (q @ k.mT / self.hd ** 0.5).masked_fill(~mask, float("-inf")).softmax(-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, W)
        return self.Wo(y), cache


attention = RotaryCacheAttention(48, 6)

# === eighth_cache_counts_calls
# target: multi_head,cache
# wrong: self.pos += 1 instead of += T, so after a prompt of T > 1 tokens the next tokens overwrite the cache at the wrong place
# words: by one in every call
import torch
import torch.nn as nn
import torch.nn.functional as F


class StaticKVAttention(nn.Module):
    """Attention with a preallocated cache held in the module.

    Call reset() first, then forward(prompt, use_cache=True), then forward(token, use_cache=True) ...
    """

    def __init__(self, d_model, n_heads, max_batch=4, max_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)
        shape = (max_batch, n_heads, max_len, self.d_head)
        self.register_buffer('k_cache', torch.zeros(shape), persistent=False)
        self.register_buffer('v_cache', torch.zeros(shape), persistent=False)
        self.pos = 0

    def reset(self):
        self.pos = 0

    def forward(self, x, use_cache=False):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        start = 0
        if use_cache:
            start = self.pos
            self.k_cache[:B, :, start:start + T] = k.detach()
            self.v_cache[:B, :, start:start + T] = v.detach()
            k = self.k_cache[:B, :, :start + T]
            v = self.v_cache[:B, :, :start + T]
            self.pos += 1
        rows = torch.arange(start, start + T, device=x.device)[:, None]
        cols = torch.arange(start + T, device=x.device)[None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=cols <= rows)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


attention = StaticKVAttention(48, 6)

# === eighth_linear_cumsum
# target: linear_attention
# right: cumsum of outer products, normaliser with eps 1e-6 (deviation about 1e-7)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """Transformers are RNNs (Katharopoulos et al. 2020), feature map elu(x) + 1, prefix sums."""

    def __init__(self, d_model, n_heads, eps=1e-6):
        super().__init__()
        self.n_heads, self.eps = n_heads, eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)

    def forward(self, x):
        N, L, D = x.shape
        H = self.n_heads
        Q = F.elu(self.query_projection(x).view(N, L, H, -1)) + 1
        K = F.elu(self.key_projection(x).view(N, L, H, -1)) + 1
        V = self.value_projection(x).view(N, L, H, -1)
        Z = 1 / (torch.einsum("nlhi,nlhi->nlh", Q, K.cumsum(1)) + self.eps)
        KV = torch.einsum("nlhd,nlhm->nlhdm", K, V).cumsum(1)
        out = torch.einsum("nlhd,nlhdm,nlh->nlhm", Q, KV, Z)
        return self.out_projection(out.reshape(N, L, D))


attention = CausalLinearAttention(48, 6)

# === eighth_linear_read_first
# target: linear_attention
# wrong: S and z are updated after they are read, so a token does not see itself; update S and z first
# words: does not see itself
import torch
import torch.nn as nn
import torch.nn.functional as F


def phi(x):
    return F.elu(x) + 1


class LinearAttentionRNN(nn.Module):
    """Causal linear attention, run as a recurrence over the sequence.

    state S (B, H, D, D): sum of phi(k) v^T, normaliser z (B, H, D): sum of phi(k),
    both over the tokens up to and including the current one
    """

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q = phi(q).view(b, n, self.heads, self.dim_head)
        k = phi(k).view(b, n, self.heads, self.dim_head)
        v = v.view(b, n, self.heads, self.dim_head)
        S = x.new_zeros(b, self.heads, self.dim_head, self.dim_head)
        z = x.new_zeros(b, self.heads, self.dim_head)
        outs = []
        for t in range(n):
            num = torch.einsum('bhd,bhde->bhe', q[:, t], S)
            den = torch.einsum('bhd,bhd->bh', q[:, t], z) + 1e-6
            outs.append(num / den.unsqueeze(-1))
            S = S + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            z = z + k[:, t]
        y = torch.stack(outs, dim=1).reshape(b, n, d)
        return self.to_out(y)

# === eighth_linear_named_tuple
# target: linear_attention
# right: recurrence with NamedTuple state, elu+1 written out, S stored transposed (v k^T)
from typing import NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
from torch import Tensor


class State(NamedTuple):
    s: Tensor  # (B, H, Dv, Dk)
    z: Tensor  # (B, H, Dk)


class RecurrentLinearAttention(nn.Module):
    """Linear attention with an explicit state, feature map elu(.) + 1.

    y, state = layer(x)            # a whole sequence
    y, state = layer(x_next, state)  # continue from there
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)

    @staticmethod
    def feature(u: Tensor) -> Tensor:
        # elu(u) + 1, written out
        return torch.where(u > 0, u + 1, torch.exp(u.clamp(max=0)))

    def forward(self, x: Tensor, state: Optional[State] = None) -> Tuple[Tensor, State]:
        B, T, D = x.shape
        if state is None:
            state = State(x.new_zeros(B, self.n_heads, self.d_head, self.d_head),
                          x.new_zeros(B, self.n_heads, self.d_head))
        s, z = state
        ys = []
        for xt in x.unbind(dim=1):
            q = self.feature(self.q(xt)).view(B, self.n_heads, self.d_head)
            k = self.feature(self.k(xt)).view(B, self.n_heads, self.d_head)
            v = self.v(xt).view(B, self.n_heads, self.d_head)
            s = s + v[..., :, None] @ k[..., None, :]
            z = z + k
            y = (s @ q[..., None]).squeeze(-1) / (z * q).sum(-1, keepdim=True)
            ys.append(self.o(y.reshape(B, D)))
        return torch.stack(ys, dim=1), State(s, z)

# === eighth_linear_all_keys
# target: linear_attention
# wrong: the normaliser uses k.sum over the whole sequence (future included) instead of k.cumsum(dim=2)
# words: normaliser sums over all keys
import torch
from torch import nn
from torch.nn import functional as F


class LinearCausalAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _heads(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        q = F.elu(self._heads(self.q_proj(x))) + 1.0
        k = F.elu(self._heads(self.k_proj(x))) + 1.0
        v = self._heads(self.v_proj(x))
        # causal numerator: running sum of outer products
        kv = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)   # (B, H, T, D, D)
        num = (q.unsqueeze(-2) @ kv).squeeze(-2)
        # normaliser
        den = (q * k.sum(dim=2, keepdim=True)).sum(-1, keepdim=True)
        y = num / (den + 1e-6)
        return self.out_proj(y.transpose(1, 2).flatten(2))


attention = LinearCausalAttention(48, 6)
