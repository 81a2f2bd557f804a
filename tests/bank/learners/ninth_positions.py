"""A ninth lot of learners' programs: rotary, ALiBi, windows, caches, linear attention."""

# === ninth_rotary_split
# target: multi_head,rotary
# right: HF-like module, rotation with tensor_split, optional position_ids, always returns a tuple
import torch
from torch import nn


class LlamaStyleConfig:
    def __init__(self, hidden_size=48, num_attention_heads=6, rope_theta=10000.0, attention_bias=False):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.rope_theta = rope_theta
        self.attention_bias = attention_bias


def turn(x):
    # (first half, second half) -> (-second, first)
    first, second = x.tensor_split(2, dim=-1)
    return torch.cat((second.neg(), first), dim=-1)


def rotate_qk(q, k, cos, sin, head_axis=1):
    cos, sin = cos.unsqueeze(head_axis), sin.unsqueeze(head_axis)
    return tuple(t * cos + turn(t) * sin for t in (q, k))


class RotaryAttention(nn.Module):
    def __init__(self, config: LlamaStyleConfig):
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        d, b = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(d, d, bias=b)
        self.k_proj = nn.Linear(d, d, bias=b)
        self.v_proj = nn.Linear(d, d, bias=b)
        self.o_proj = nn.Linear(d, d, bias=b)

    def _cos_sin(self, position_ids, dtype):
        exps = torch.arange(0, self.head_dim, 2, device=position_ids.device).to(dtype) / self.head_dim
        inv_freq = 1.0 / self.config.rope_theta**exps
        freqs = position_ids[..., None].to(dtype) * inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()

    def forward(self, hidden_states, position_ids=None, output_attentions=False):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        T = q.shape[2]
        if position_ids is None:
            position_ids = torch.arange(T, device=q.device).unsqueeze(0)
        q, k = rotate_qk(q, k, *self._cos_sin(position_ids, q.dtype))
        w = q @ k.transpose(2, 3) * self.head_dim**-0.5
        w = w + torch.triu(torch.full_like(w[0, 0], torch.finfo(w.dtype).min), 1)
        w = nn.functional.softmax(w, dim=-1)
        y = self.o_proj((w @ v).transpose(1, 2).flatten(2))
        return (y, w) if output_attentions else (y, None)


attention = RotaryAttention(LlamaStyleConfig(hidden_size=48, num_attention_heads=6))

# === ninth_rotary_complex
# target: multi_head,rotary
# right: complex multiplication in double, packed qkv, table not a buffer
import torch
import torch.nn as nn
import torch.nn.functional as F


def unit_phasors(dim: int, length: int, theta: float = 10000.0):
    speed = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * speed
    return torch.complex(angle.cos(), angle.sin())


class RoPEAttention(nn.Module):
    """Rotation by complex multiplication, neighbouring features are one number."""

    def __init__(self, dim, n_heads, max_seq_len=256):
        super().__init__()
        self.n_heads = n_heads
        self.hd = dim // n_heads
        self.wqkv = nn.Linear(dim, dim * 3, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.phasors = unit_phasors(self.hd, max_seq_len)

    def rot(self, x):  # (B, T, H, D)
        z = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
        f = self.phasors[: x.shape[1]].to(x.device)[None, :, None, :]
        return torch.view_as_real(z * f).flatten(3).type_as(x)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.wqkv(x).view(B, T, 3, self.n_heads, self.hd).unbind(2)
        q, k = self.rot(q), self.rot(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))

# === ninth_rotary_gptj
# target: multi_head,rotary
# right: GPT-J manner: rotates in the (B,T,H,D) layout, masks before dividing by sqrt(d)
"""GPT-J flavoured attention: rotate every two, keys and queries only."""
import torch
import torch.nn as nn


def sin_cos_table(T, dim, dtype, device):
    rate = 10000 ** (-torch.arange(0, dim, 2, dtype=dtype, device=device) / dim)
    angle = torch.einsum("t,f->tf", torch.arange(T, dtype=dtype, device=device), rate)
    return angle.sin(), angle.cos()


def quarter_turn(x):
    pairs = x.unflatten(-1, (-1, 2))
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)


def twice(m):
    # a b c -> a a b b c c
    return m.repeat_interleave(2, dim=-1)


class GPTJAttention(nn.Module):
    def __init__(self, embed_dim, num_attention_heads):
        super().__init__()
        self.h = num_attention_heads
        self.d = embed_dim // num_attention_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.scale_attn = self.d ** 0.5

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.h, self.d)
        k = self.k_proj(x).view(b, t, self.h, self.d)
        v = self.v_proj(x).view(b, t, self.h, self.d)

        sin, cos = sin_cos_table(t, self.d, x.dtype, x.device)
        sin = twice(sin)[None, :, None, :]
        cos = twice(cos)[None, :, None, :]
        q = q * cos + quarter_turn(q) * sin
        k = k * cos + quarter_turn(k) * sin

        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)
        w = torch.matmul(q, k.transpose(-1, -2))
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        w = torch.where(causal, w, torch.finfo(w.dtype).min)
        w = torch.softmax(w / self.scale_attn, dim=-1)
        out = torch.matmul(w, v).permute(0, 2, 1, 3).contiguous().view(b, t, -1)
        return self.out_proj(out)


attention = GPTJAttention(48, 6)

# === ninth_rotary_mixed_tables
# target: multi_head,rotary
# wrong: angles are laid out with repeat_interleave (a a b b) while rotate_half pairs feature i with i + d/2; use torch.cat([freqs, freqs], -1) (or the pairwise rotation). Wrong under both conventions.
# words: pairs are halves
import torch
import torch.nn as nn
import torch.nn.functional as F


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        self.dim = dim
        self.base = base

    def forward(self, x):
        """x: (batch, heads, seq, dim) -> rotated by position"""
        n = x.shape[-2]
        i = torch.arange(0, self.dim, 2, device=x.device, dtype=x.dtype)
        inv_freq = 1.0 / (self.base ** (i / self.dim))
        t = torch.arange(n, device=x.device, dtype=x.dtype)
        freqs = torch.outer(t, inv_freq).repeat_interleave(2, dim=-1)
        return x * freqs.cos() + self.rotate_half(x) * freqs.sin()

    @staticmethod
    def rotate_half(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([-b, a], dim=-1)


class RotarySelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.rope = RotaryEmbedding(dim // heads)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q, k = self.rope(q), self.rope(k)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))

# === ninth_rotary_of_heads
# target: multi_head,rotary
# wrong: RoPE is applied before transpose(1, 2), so the head index is taken as position; transpose q and k to (B, H, T, D) first.
# words: number of the head
import torch
import torch.nn as nn
import torch.nn.functional as F


def build_rope_cache(seq_len, dim, base=10_000, dtype=torch.float32, device=None):
    theta = base ** (-torch.arange(0, dim, 2, dtype=dtype, device=device) / dim)
    angles = torch.arange(seq_len, dtype=dtype, device=device)[:, None] * theta[None, :]
    angles = torch.cat([angles, angles], dim=-1)
    return torch.cos(angles), torch.sin(angles)


def apply_rope(x):
    seq_len, dim = x.shape[-2], x.shape[-1]
    cos, sin = build_rope_cache(seq_len, dim, dtype=x.dtype, device=x.device)
    half = dim // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + rotated * sin


class CausalAttentionWithRoPE(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q = self.W_q(x).view(B, T, self.n_heads, self.d_head)
        k = self.W_k(x).view(B, T, self.n_heads, self.d_head)
        v = self.W_v(x).view(B, T, self.n_heads, self.d_head)

        q = apply_rope(q).transpose(1, 2)
        k = apply_rope(k).transpose(1, 2)
        v = v.transpose(1, 2)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.W_o(y.transpose(1, 2).contiguous().view(B, T, -1))


attention = CausalAttentionWithRoPE(48, 6)

# === ninth_alibi_six_heads
# target: multi_head,alibi
# right: slopes for 6 heads by the recipe of the ALiBi authors (4 of n=4, then 2 of n=8), plain list not a buffer
import math

import torch
import torch.nn as nn


def head_slopes(n):
    """The authors' recipe when n is no power of two: take the slopes of the
    power of two below, then every other slope of the power of two above."""
    geometric = lambda m: [2.0 ** (-8.0 * (i + 1) / m) for i in range(m)]
    p = 1 << (n.bit_length() - 1)
    return geometric(p) + geometric(2 * p)[::2][: n - p]


class AlibiAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.slopes = head_slopes(n_heads)

    def forward(self, x):
        B, T, C = x.shape
        H = self.n_heads
        q, k, v = [t.view(B, T, H, C // H).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]
        pos = torch.arange(T, device=x.device)
        dist = pos[None, :] - pos[:, None]          # j - i, <= 0 in the past
        m = torch.tensor(self.slopes, dtype=x.dtype, device=x.device).view(H, 1, 1)
        bias = (m * dist).masked_fill(dist > 0, float("-inf"))
        att = torch.softmax(q @ k.mT / math.sqrt(C // H) + bias, dim=-1)
        return self.out((att @ v).transpose(1, 2).reshape(B, T, C))


attention = AlibiAttention(48, 6)

# === ninth_alibi_bloom
# target: multi_head,alibi
# right: bias = slope * key position only (softmax shift invariance), baddbmm, fused qkv per head
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

# === ninth_alibi_sign
# target: multi_head,alibi
# wrong: the bias is added with the wrong sign (slope * (i - j) >= 0), which favours distant tokens; subtract it.
# words: sign of the bias
import torch
import torch.nn as nn
import torch.nn.functional as F


class ALiBiMultiHeadAttention(nn.Module):
    """Multi-head attention with linear biases (Press et al., 2022)."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (d_model // num_heads) ** -0.5
        self.kqv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)

        ratio = 2 ** (-8 / num_heads)
        slopes = torch.tensor([ratio ** (i + 1) for i in range(num_heads)], dtype=torch.float64)
        self.register_buffer("m", slopes.view(num_heads, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq_len, d = x.shape
        key, query, value = self.kqv(x).chunk(3, dim=-1)
        split = lambda t: t.view(batch, seq_len, self.num_heads, -1).transpose(1, 2)
        key, query, value = split(key), split(query), split(value)

        i = torch.arange(seq_len, device=x.device)
        relative = (i[:, None] - i[None, :]).clamp(min=0)
        bias = (self.m * relative).to(x.dtype)

        score = query @ key.transpose(-1, -2) * self.scale + bias
        score = score.masked_fill(i[None, :] > i[:, None], float("-inf"))
        attn = F.softmax(score, dim=-1)
        out = (attn @ value).transpose(1, 2).reshape(batch, seq_len, d)
        return self.out(out)


attention = ALiBiMultiHeadAttention(64, 8)

# === ninth_alibi_first_slope
# target: multi_head,alibi
# wrong: slopes start at exponent 0 (2^(-8h/n), h from 0: 1, .., ) instead of 2^(-8/n), .., 2^-8; use h + 1.
# words: slopes
import torch
import torch.nn as nn
import torch.nn.functional as F


def alibi_slopes(num_heads):
    # geometric sequence of the paper: 2^(-8/n), 2^(-16/n), ..., 2^(-8)
    return torch.tensor([2 ** (-8 * h / num_heads) for h in range(num_heads)])


class AttentionALiBi(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.query = nn.Linear(embed_dim, embed_dim)
        self.key = nn.Linear(embed_dim, embed_dim)
        self.value = nn.Linear(embed_dim, embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, t, e = x.size()
        q = self.query(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

        rel = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        bias = alibi_slopes(self.num_heads)[:, None, None] * rel
        bias = bias.masked_fill(rel > 0, float("-inf")).to(x)

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.proj(y.transpose(1, 2).reshape(b, t, e))

# === ninth_window_band
# target: multi_head,window=4
# right: band by tril and triu(1 - window), SDPA with a boolean keep mask, optional padding mask
import torch
import torch.nn as nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """Causal attention in which a token sees the last `window` tokens, itself included."""

    def __init__(self, dim: int, num_heads: int, window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def band(self, n, device):
        ones = torch.ones(n, n, dtype=torch.bool, device=device)
        return ones.tril().triu(1 - self.window)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        keep = self.band(n, x.device)[None, None]
        if mask is not None:  # (b, n) True = token
            keep = keep & mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.to_out(y.transpose(1, 2).flatten(2))

# === ninth_window_unfold
# target: multi_head,window=4
# right: left padding and unfold: each query gathers only its window
import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    """Longformer-like, causal: gathers for every query only its own window.

    Left padding + unfold, so the cost is T * window and not T * T.
    """

    def __init__(self, d_model, n_heads, window_size=4):
        super().__init__()
        self.h = n_heads
        self.w = window_size
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def windows(self, t):
        # (B, H, T, D) -> (B, H, T, D, w); window t covers t-w+1 .. t
        return F.pad(t, (0, 0, self.w - 1, 0)).unfold(2, self.w, 1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.h, C // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = self.windows(k), self.windows(v)
        s = torch.einsum("bhtd,bhtdw->bhtw", q, k) / (C // self.h) ** 0.5
        where = torch.arange(T, device=x.device)[:, None] + torch.arange(1 - self.w, 1, device=x.device)
        s = s.masked_fill(where < 0, float("-inf"))
        y = torch.einsum("bhtw,bhtdw->bhtd", s.softmax(-1), v)
        return self.o(y.transpose(1, 2).reshape(B, T, C))

# === ninth_window_open_future
# target: multi_head,window=4
# wrong: the window mask tests only (rows - cols) < window, so all future tokens are visible; also require cols <= rows.
# words: future is not hidden
import math

import torch
import torch.nn as nn


class CausalSlidingWindowAttention(nn.Module):
    """
    Mistral-style sliding window attention for a decoder.

    Each query attends to itself and the `window_size - 1` tokens before it.
    """

    def __init__(self, embed_dim, num_heads, window_size=4):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.window_size = window_size

        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _create_window_mask(self, seq_len, device):
        rows = torch.arange(seq_len, device=device).unsqueeze(1)
        cols = torch.arange(seq_len, device=device).unsqueeze(0)
        return (rows - cols) < self.window_size

    def forward(self, x):
        batch_size, seq_len, _ = x.shape

        def shape(t):
            return t.view(batch_size, seq_len, self.num_heads, self.head_dim).transpose(1, 2)

        q, k, v = shape(self.q_proj(x)), shape(self.k_proj(x)), shape(self.v_proj(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        mask = self._create_window_mask(seq_len, x.device)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(weights, v)
        out = out.transpose(1, 2).contiguous().view(batch_size, seq_len, self.embed_dim)
        return self.out_proj(out)

# === ninth_cache_past_kv
# target: multi_head,cache
# right: additive mask argument, returns y or (y, present) by use_cache, last T rows of the S x S triangle
from typing import Optional, Tuple

import torch
import torch.nn as nn


class CachedSelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(
        self,
        x: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
        past_kv: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        if past_kv is not None:
            k = torch.cat((past_kv[0], k), dim=-2)
            v = torch.cat((past_kv[1], v), dim=-2)
        present = (k, v) if use_cache else None

        S = k.size(-2)
        att = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim**0.5
        # GPT-2's trick: take the last T rows of the big triangle
        bias = torch.ones(S, S, dtype=torch.bool, device=x.device).tril()[S - T : S, :S]
        att = att.masked_fill(~bias, torch.finfo(att.dtype).min)
        if mask is not None:
            att = att + mask
        att = att.softmax(dim=-1)
        y = torch.matmul(att, v).transpose(1, 2).contiguous().view(B, T, C)
        y = self.c_proj(y)
        return (y, present) if use_cache else y


attention = CachedSelfAttention(48, 6)

# === ninth_cache_buffers
# target: multi_head,cache
# right: preallocated buffers (batch <= 4, length <= 64), attention over the whole buffer with unwritten slots masked, no_grad forward (inference only, no gradients)
import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCacheAttention(nn.Module):
    """Pre-allocated cache in registered buffers, filled at start_pos (in the manner of inference code)."""

    def __init__(self, dim, n_heads, max_batch_size=4, max_seq_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        shape = (max_batch_size, n_heads, max_seq_len, self.head_dim)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)
        self.register_buffer(
            "causal_mask", torch.tril(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool)), persistent=False
        )

    @torch.no_grad()
    def forward(self, x, start_pos=0):
        B, T, C = x.shape
        q, k, v = (
            w(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        self.k_cache[:B, :, start_pos : start_pos + T] = k
        self.v_cache[:B, :, start_pos : start_pos + T] = v
        # the whole buffer goes into attention, slots not yet written are masked
        mask = self.causal_mask[start_pos : start_pos + T]
        y = F.scaled_dot_product_attention(q, self.k_cache[:B], self.v_cache[:B], attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))

# === ninth_cache_ring
# target: multi_head,window=4,cache
# right: rolling buffer of window slots filled token by token; order in the ring does not matter; the cache object is mutated
"""Sliding-window attention with a rolling buffer (Mistral's drawing, one token at a time)."""
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class RingCache:
    size: int
    pos: int = 0
    k: Optional[torch.Tensor] = field(default=None, repr=False)
    v: Optional[torch.Tensor] = field(default=None, repr=False)

    def put(self, k, v):  # (B, H, D)
        if self.k is None:
            self.k = k.new_zeros(*k.shape[:2], self.size, k.shape[-1])
            self.v = torch.zeros_like(self.k)
        slot = self.pos % self.size
        self.k = self.k.clone()
        self.v = self.v.clone()
        self.k[:, :, slot] = k
        self.v[:, :, slot] = v
        self.pos += 1

    def get(self):
        n = min(self.pos, self.size)
        return self.k[:, :, :n], self.v[:, :, :n]


class RollingAttention(nn.Module):
    def __init__(self, dim: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache: Optional[RingCache] = None):
        B, T, C = x.shape
        cache = RingCache(self.window) if cache is None else cache
        q, k, v = self.in_proj(x).view(B, T, 3, self.heads, C // self.heads).unbind(2)
        outs = []
        for t in range(T):
            cache.put(k[:, t], v[:, t])
            K, V = cache.get()  # order in the ring is no matter: no positions in the scores
            w = torch.softmax((K @ q[:, t, :, :, None]).squeeze(-1) / (C // self.heads) ** 0.5, dim=-1)
            outs.append((w[:, :, None] @ V).flatten(1))
        return self.out_proj(torch.stack(outs, 1)), cache


attention = RollingAttention(48, 6, window=4)

# === ninth_cache_corner
# target: multi_head,cache
# wrong: is_causal=True with a cache aligns the mask to the top left, so new tokens see only the oldest keys; use a mask shifted by the cached length, e.g. ones(T, S).tril(S - T). Without cache it is right.
# words: upper left corner
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    """Multi-head causal attention with an optional kv cache.

    usage:
        y, cache = attn(prompt)            # prefill
        y, cache = attn(new_tokens, cache) # continue
    """

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x, cache=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        if cache is not None:
            past_k, past_v = cache
            k = torch.cat([past_k, k], dim=2)
            v = torch.cat([past_v, v], dim=2)

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y), (k, v)


attention = CausalSelfAttention(48, 6)

# === ninth_cache_rotary_restarts
# target: multi_head,rotary,cache
# wrong: positions of new tokens always start at 0 in the rotation although a cache is given; use arange(past, past + T). Without cache it is right.
# words: positions start at 0
import torch
import torch.nn as nn


def rope(x, positions, base=10000.0):
    # x: (B, H, T, D), half-split
    D = x.shape[-1]
    inv = base ** (-torch.arange(0, D, 2, dtype=x.dtype, device=x.device) / D)
    ang = positions.to(x.dtype)[:, None] * inv
    c, s = ang.cos(), ang.sin()
    x1, x2 = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1)


class RotaryCachedAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def heads(self, t):
        B, T, C = t.shape
        return t.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2)

    def forward(self, x, mask=None, past_kv=None, use_cache=False):
        B, T, C = x.shape
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        past = 0 if past_kv is None else past_kv[0].shape[2]

        positions = torch.arange(T, device=x.device)
        q, k = rope(q, positions), rope(k, positions)

        if past_kv is not None:
            k = torch.cat([past_kv[0], k], dim=2)
            v = torch.cat([past_kv[1], v], dim=2)

        scores = q @ k.transpose(-2, -1) / (C // self.n_heads) ** 0.5
        i = torch.arange(past, past + T, device=x.device)[:, None]
        j = torch.arange(past + T, device=x.device)[None, :]
        scores = scores.masked_fill(j > i, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        y = scores.softmax(-1) @ v
        y = self.o(y.transpose(1, 2).reshape(B, T, C))
        return (y, (k, v)) if use_cache else y

# === ninth_cache_last_call
# target: multi_head,cache
# wrong: the returned cache holds only the K, V of the last call instead of all; return {"k": keys, "v": values} (seen from the third call on; first continuation is right).
# words: only what the last call brought
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, x, cache=None):
        """cache: dict with "k" and "v" of the tokens seen so far, or None"""
        Q = self.split_heads(self.W_q(x))
        K = self.split_heads(self.W_k(x))
        V = self.split_heads(self.W_v(x))

        keys, values = K, V
        if cache:
            keys = torch.cat([cache["k"], K], dim=2)
            values = torch.cat([cache["v"], V], dim=2)
        new_cache = {"k": K, "v": V}

        n_new, n_all = Q.size(2), keys.size(2)
        mask = torch.ones(n_new, n_all, dtype=torch.bool, device=x.device).tril(n_all - n_new)
        scores = Q @ keys.transpose(-2, -1) / self.d_k ** 0.5
        scores = scores.masked_fill(~mask, -1e9)
        out = F.softmax(scores, dim=-1) @ values
        out = out.transpose(1, 2).contiguous().view(x.size(0), -1, self.d_model)
        return self.W_o(out), new_cache

# === ninth_linear_outer
# target: linear_attention
# right: prefix sums of outer products, normaliser without eps
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """Katharopoulos et al. 2020: phi(x) = elu(x) + 1, prefix sums instead of a softmax."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum('bhnd,bhne->bhnde', k, v).cumsum(dim=2)
        z = 1 / torch.einsum('bhnd,bhnd->bhn', q, k.cumsum(dim=2))
        out = torch.einsum('bhnd,bhnde,bhn->bhne', q, kv, z)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


attention = CausalLinearAttention(48, heads=6)

# === ninth_linear_relu
# target: linear_attention
# convention: recurrent step function and a loop, feature map relu, eps 1e-6 in the denominator
import torch


def linear_attention_step(q, k, v, state, eps=1e-6):
    """one token of the recurrent ("transformers are RNNs") form

    q, k: (B, H, D)   v: (B, H, M)
    state: (S, Z) with S: (B, H, D, M) and Z: (B, H, D)
    """
    S, Z = state
    q = torch.relu(q)
    k = torch.relu(k)
    S = S + k.unsqueeze(-1) * v.unsqueeze(-2)
    Z = Z + k
    num = torch.einsum("bhd,bhdm->bhm", q, S)
    den = (q * Z).sum(-1, keepdim=True) + eps
    return num / den, (S, Z)


def linear_attention(q, k, v, state=None):
    """q, k, v: (B, H, T, D) -> out (B, H, T, M) and the state to go on with"""
    B, H, T, D = q.shape
    M = v.shape[-1]
    if state is None:
        state = (q.new_zeros(B, H, D, M), q.new_zeros(B, H, D))
    ys = []
    for t in range(T):
        y, state = linear_attention_step(q[:, :, t], k[:, :, t], v[:, :, t], state)
        ys.append(y)
    return torch.stack(ys, dim=2), state

# === ninth_linear_all_keys
# target: linear_attention
# wrong: the normaliser uses the sum of all keys (future included) while the numerator is causal; use K.cumsum(dim=1) with "nlhd,nlhd->nlh".
# words: normaliser sums over all keys
import torch
import torch.nn as nn
import torch.nn.functional as F


def elu_feature_map(x):
    return F.elu(x) + 1


class LinearSelfAttention(nn.Module):
    """Causal multi-head linear attention, O(N) in the length of the sequence."""

    def __init__(self, d_model: int, n_heads: int, eps: float = 1e-6):
        super().__init__()
        self.n_heads = n_heads
        self.eps = eps
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        N, L, C = x.shape
        H = self.n_heads
        Q = elu_feature_map(self.q_proj(x).view(N, L, H, -1))
        K = elu_feature_map(self.k_proj(x).view(N, L, H, -1))
        V = self.v_proj(x).view(N, L, H, -1)

        # Compute the KV state of every position
        KV = torch.cumsum(torch.einsum("nlhd,nlhm->nlhmd", K, V), dim=1)

        # Compute the normalizer
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)

        out = torch.einsum("nlhd,nlhmd,nlh->nlhm", Q, KV, Z)
        return self.out_proj(out.reshape(N, L, C))


attention = LinearSelfAttention(48, 6)

# === ninth_linear_read_late
# target: linear_attention
# wrong: the state is updated with the current chunk before it is read, so the current chunk counts twice and leaks its future; update S and z after out.append.
# words: before the chunk
import torch


def chunked_linear_attention(q, k, v, chunk_size=4):
    """Causal linear attention with phi = exp, worked off chunk by chunk.

    Inside a chunk the quadratic form, for everything before it the state.
    q, k, v: (batch, heads, time, dim)
    """
    q, k = q.exp(), k.exp()
    b, h, t, d = q.shape
    S = torch.zeros(b, h, d, v.shape[-1], dtype=q.dtype, device=q.device)
    z = torch.zeros(b, h, d, dtype=q.dtype, device=q.device)
    out = []
    for s in range(0, t, chunk_size):
        qc, kc, vc = q[:, :, s:s + chunk_size], k[:, :, s:s + chunk_size], v[:, :, s:s + chunk_size]

        # update the running state
        S = S + kc.transpose(-1, -2) @ vc
        z = z + kc.sum(dim=2)

        # past chunks
        num = qc @ S
        den = (qc * z.unsqueeze(2)).sum(-1, keepdim=True)

        # this chunk
        A = torch.tril(qc @ kc.transpose(-1, -2))
        num = num + A @ vc
        den = den + A.sum(-1, keepdim=True)

        out.append(num / den)
    return torch.cat(out, dim=2)
