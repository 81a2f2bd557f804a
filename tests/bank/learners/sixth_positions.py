"""A sixth lot of learners' programs: rotary, ALiBi, caches, linear attention."""

# === sixth_rotary_values
# target: multi_head,rotary
# wrong: The rotation is applied to v as well as to q and k
# words: values are rotated
import torch
import torch.nn as nn
import torch.nn.functional as F


def rope(x):
    # x: (B, H, T, D)
    T, D = x.shape[-2:]
    theta = 1.0 / 10000 ** (torch.arange(0, D, 2, device=x.device).float() / D)
    m = torch.arange(T, device=x.device).float()
    ang = torch.outer(m, theta)
    cos, sin = ang.cos(), ang.sin()
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class RotaryAttention(nn.Module):
    """Causal self-attention with rotary position embedding (RoPE)."""

    def __init__(self, dim=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k, v = rope(qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

# === sixth_rotary_halves_neighbours
# target: multi_head,rotary
# wrong: cos and sin are laid out for neighbouring pairs (repeat_interleave) but rotate_half pairs the two halves, so pairs turn by two different angles
# words: halves, neighbours
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim, base=10000, max_len=512):
        super().__init__()
        inv_freq = 1.0 / base ** (torch.arange(0, dim, 2) / dim)
        t = torch.arange(max_len)
        freqs = torch.einsum("i,j->ij", t.float(), inv_freq)
        emb = freqs.repeat_interleave(2, dim=-1)
        self.register_buffer("cos_cached", emb.cos()[None, None])
        self.register_buffer("sin_cached", emb.sin()[None, None])

    @staticmethod
    def rotate_half(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([-b, a], dim=-1)

    def forward(self, q, k):
        # q, k: [batch, heads, seq, head_dim]
        n = q.shape[2]
        cos, sin = self.cos_cached[:, :, :n], self.sin_cached[:, :, :n]
        q = q * cos + self.rotate_half(q) * sin
        k = k * cos + self.rotate_half(k) * sin
        return q, k

# === sixth_rotary_halves
# target: multi_head,rotary
# right: half-split (NeoX/Hugging Face) pairs: rotate_half, cos/sin of concatenated angles, (B,H,T,D)
import torch


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def build_cos_sin(seq_len, dim, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(seq_len).float()
    freqs = torch.outer(t, inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos(), emb.sin()


def apply_rotary_pos_emb(q, k):
    """q, k: (batch, heads, time, head_dim), positions 0..time-1"""
    cos, sin = build_cos_sin(q.shape[-2], q.shape[-1])
    cos, sin = cos.to(q), sin.to(q)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

# === sixth_rotary_matrices
# target: multi_head,rotary
# right: explicit rotation matrices of the paper, one (d,d) block matrix per position, einsum, (B,T,d)
import math

import torch


def rotation_matrix(m, d, base=10000):
    """R_m of the RoFormer paper, equation (15)."""
    R = torch.zeros(d, d)
    for i in range(d // 2):
        angle = m * base ** (-2 * i / d)
        c, s = math.cos(angle), math.sin(angle)
        R[2 * i, 2 * i] = c
        R[2 * i, 2 * i + 1] = -s
        R[2 * i + 1, 2 * i] = s
        R[2 * i + 1, 2 * i + 1] = c
    return R


def rotary(q, k):
    # slow, but it's the formula
    T, d = q.shape[1], q.shape[2]
    R = torch.stack([rotation_matrix(m, d) for m in range(T)])  # (T, d, d)
    return torch.einsum("tij,btj->bti", R, q), torch.einsum("tij,btj->bti", R, k)


if __name__ == "__main__":
    q = torch.randn(1, 1, 4).expand(1, 6, 4)
    a, b = rotary(q, q)
    print(a @ b.transpose(1, 2))   # same along every diagonal

# === sixth_rotary_module
# target: multi_head,rotary
# right: nn.Module with cached buffers and an offset for decoding, half-split pairs, (B,T,H,D)
from typing import Tuple

import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, max_seq_len: int = 256, base: float = 10000.0):
        super().__init__()
        half = head_dim // 2
        freq = torch.exp(-torch.log(torch.tensor(base)) * torch.arange(half) / half)
        ang = torch.arange(max_seq_len)[:, None] * freq[None]
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def rotate(self, x: torch.Tensor, offset: int) -> torch.Tensor:
        T = x.shape[1]
        cos = self.cos[offset:offset + T, None, :]
        sin = self.sin[offset:offset + T, None, :]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, q: torch.Tensor, k: torch.Tensor, offset: int = 0) -> Tuple[torch.Tensor, torch.Tensor]:
        """(B, T, H, D) each; offset: how many tokens came before (with a KV cache)"""
        return self.rotate(q, offset), self.rotate(k, offset)

# === sixth_rotary_complex
# target: multi_head,rotary
# right: neighbouring pairs as complex numbers (Meta llama), (B,T,H,D), freqs_cis given
import torch


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    t = torch.arange(end, dtype=torch.float32)
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis[None, :, None, :]  # (1, T, 1, D/2)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


if __name__ == "__main__":
    q = torch.randn(2, 6, 4, 8)
    k = torch.randn(2, 6, 4, 8)
    f = precompute_freqs_cis(8, 6)
    a, b = apply_rotary_emb(q, k, f)
    print(a.shape, b.shape)

# === sixth_rotary_french
# target: multi_head,rotary
# right: neighbouring pairs in real numbers with stack and flatten, any leading axes, French comments
import torch


def encodage_rotatif(x, base=10_000):
    """Tourne chaque paire (x[2i], x[2i+1]) de l'angle position * base^(-2i/d).   x: (..., T, d)"""
    T, d = x.shape[-2], x.shape[-1]
    i = torch.arange(d // 2, dtype=x.dtype, device=x.device)
    frequence = base ** (-2 * i / d)
    position = torch.arange(T, dtype=x.dtype, device=x.device)
    angle = position[:, None] * frequence[None, :]      # (T, d/2)
    c, s = torch.cos(angle), torch.sin(angle)
    pair, impair = x[..., 0::2], x[..., 1::2]
    tourne = torch.stack([pair * c - impair * s, pair * s + impair * c], dim=-1)
    return tourne.flatten(-2)


def rope(q, k):
    return encodage_rotatif(q), encodage_rotatif(k)

# === sixth_rotary_two_minus
# target: multi_head,rotary
# wrong: The second half uses a minus sign too (b*cos - a*sin), so it is no rotation: lengths and relative positions are lost
# words: minus in both
import torch


def rope_angles(T, D, theta=10000.0):
    inv = theta ** (-torch.arange(0, D, 2).float() / D)
    return torch.arange(T).float()[:, None] * inv[None, :]


def rotate(x, ang):
    # x: (B, H, T, D)
    a, b = x.chunk(2, dim=-1)
    cos, sin = ang.cos(), ang.sin()
    return torch.cat((a * cos - b * sin, b * cos - a * sin), dim=-1)


def apply_rope(q, k):
    ang = rope_angles(q.size(2), q.size(3)).to(q.device)
    return rotate(q, ang), rotate(k, ang)

# === sixth_rotary_in_place
# target: multi_head,rotary
# wrong: The rotation is done in place through views: the odd entries are computed from the even ones already overwritten, and the caller's q and k are changed
# words: overwritten
import torch


def rotary(q, k, base=10000.0):
    """Rotary position embedding. q, k: (batch, time, heads, dim), pairs are (0,1), (2,3), ..."""
    T, d = q.shape[1], q.shape[-1]
    pos = torch.arange(T, dtype=torch.float32)
    freq = base ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angle = pos[:, None] * freq
    cos = torch.cos(angle)[:, None, :]
    sin = torch.sin(angle)[:, None, :]
    for x in (q, k):
        x_even = x[..., 0::2]
        x_odd = x[..., 1::2]
        x[..., 0::2] = x_even * cos - x_odd * sin
        x[..., 1::2] = x_even * sin + x_odd * cos
    return q, k


if __name__ == "__main__":
    q, k = rotary(torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8))
    print(q.shape, k.shape)

# === sixth_alibi_any_heads
# target: multi_head,alibi
# right: slopes also for a number of heads that is no power of two (the paper's rule), (B,T,H,D) function
import math

import torch


def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


def attention_with_linear_biases(q, k, v):
    """q, k, v: batch x time x heads x dim"""
    b, t, h, d = q.shape
    slopes = torch.tensor(get_slopes(h), dtype=q.dtype, device=q.device)
    logits = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(d)
    distance = torch.arange(t, device=q.device).view(1, t) - torch.arange(t, device=q.device).view(t, 1)  # j - i <= 0
    logits = logits + slopes.view(1, h, 1, 1) * distance
    logits = logits.masked_fill(distance > 0, float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", logits.softmax(-1), v)

# === sixth_alibi_sign
# target: multi_head,alibi
# wrong: The sign of the bias is wrong: +slope*(i-j) favours the farthest tokens
# words: sign of the bias
import torch
import torch.nn as nn


class ALiBi(nn.Module):
    """Attention with linear biases, 'train short, test long'."""

    def __init__(self, n_heads, max_len=256):
        super().__init__()
        m = 2.0 ** (-8.0 / n_heads * torch.arange(1, n_heads + 1))
        pos = torch.arange(max_len)
        dist = (pos[:, None] - pos[None, :]).float()  # i - j
        self.register_buffer("bias", m[:, None, None] * dist)
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len)).bool())

    def forward(self, q, k, v):
        # (B, H, T, D)
        T = q.size(-2)
        s = q @ k.mT / q.size(-1) ** 0.5
        s = s + self.bias[:, :T, :T]
        s = s.masked_fill(~self.mask[:T, :T], float("-inf"))
        return torch.softmax(s, dim=-1) @ v

# === sixth_alibi_clamped
# target: multi_head,alibi
# wrong: The distances j-i are clamped with min=0, which makes them zero for the whole past: no bias is left
# words: nothing is added|no positions
import torch
from torch import Tensor


def slopes(heads: int) -> Tensor:
    return torch.tensor([2.0 ** (-(h + 1) * 8.0 / heads) for h in range(heads)])


def relative_positions(n: int) -> Tensor:
    r = torch.arange(n)
    # keep only one side of the diagonal, the other one is masked anyway
    return (r[None, :] - r[:, None]).clamp(min=0)


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal ALiBi attention, tensors of shape (batch, heads, n, d)."""
    h, n, d = q.shape[-3:]
    logits = torch.einsum("...id,...jd->...ij", q, k) / d ** 0.5
    logits = logits + slopes(h)[:, None, None] * relative_positions(n)
    keep = torch.ones(n, n).tril().bool()
    logits = torch.where(keep, logits, torch.tensor(float("-inf")))
    return logits.softmax(-1) @ v

# === sixth_alibi_keys_only
# target: multi_head,alibi
# right: bias slope*j that depends on the key only (as in the authors' code: equal after the softmax), module with projections
import torch
import torch.nn as nn


class AlibiAttention(nn.Module):
    def __init__(self, d_model=32, n_heads=4, max_len=128):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        start = 2 ** (-8 / n_heads)
        slopes = torch.tensor([start ** (i + 1) for i in range(n_heads)])
        # adding slope * j is the same as subtracting slope * (i - j): softmax doesn't mind a constant per row
        alibi = slopes.view(n_heads, 1, 1) * torch.arange(max_len).view(1, 1, max_len)
        future = torch.triu(torch.full((max_len, max_len), float("-inf")), 1)
        self.register_buffer("attn_bias", alibi + future)  # (H, max_len, max_len)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_heads, -1).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.attn_bias[:, :T, :T])
        return self.out_proj(out.transpose(1, 2).flatten(2))

# === sixth_alibi_function
# target: multi_head,alibi
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

# === sixth_cache_dict_grouped
# target: multi_head,cache
# right: dict cache changed in place by the layer (mutable cache object), rotary continued at the cache's length, grouped heads, (B,T,H,D)
import torch
from torch import nn
import torch.nn.functional as F


def rope(x, start):
    B, T, H, D = x.shape
    pos = torch.arange(start, start + T, device=x.device)
    inv = 10000 ** (-torch.arange(0, D, 2, device=x.device) / D)
    ang = (pos[:, None] * inv)[None, :, None, :]
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat([a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()], -1)


class Attention(nn.Module):
    def __init__(self, dim=32, n_head=4, n_kv=2):
        super().__init__()
        self.n_head, self.n_kv, self.hd = n_head, n_kv, dim // n_head
        self.q = nn.Linear(dim, n_head * self.hd, bias=False)
        self.k = nn.Linear(dim, n_kv * self.hd, bias=False)
        self.v = nn.Linear(dim, n_kv * self.hd, bias=False)
        self.o = nn.Linear(n_head * self.hd, dim, bias=False)

    def forward(self, x, cache=None):
        """cache: an empty dict at the beginning of a text; the layer fills it"""
        B, T, C = x.shape
        past = cache["k"].shape[1] if cache else 0
        q = rope(self.q(x).view(B, T, self.n_head, self.hd), past)
        k = rope(self.k(x).view(B, T, self.n_kv, self.hd), past)
        v = self.v(x).view(B, T, self.n_kv, self.hd)
        if cache is not None:
            if cache:
                k = torch.cat([cache["k"], k], dim=1)
                v = torch.cat([cache["v"], v], dim=1)
            cache["k"], cache["v"] = k, v
        rep = self.n_head // self.n_kv
        kk = k.repeat_interleave(rep, dim=2).transpose(1, 2)
        vv = v.repeat_interleave(rep, dim=2).transpose(1, 2)
        rows = torch.arange(past, past + T, device=x.device)[:, None]
        mask = torch.arange(k.shape[1], device=x.device)[None, :] <= rows
        y = F.scaled_dot_product_attention(q.transpose(1, 2), kk, vv, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))

# === sixth_cache_positions_zero
# target: multi_head,cache
# wrong: With a cache the rotary positions start again at 0 for the new tokens instead of at the length of the past
# words: start at 0|length of the cache
import torch
import torch.nn as nn
import torch.nn.functional as F


def apply_rope(x, base=10000.0):
    # x: (B, H, T, D)
    T, D = x.shape[-2:]
    freqs = base ** (-torch.arange(0, D, 2, device=x.device) / D)
    ang = torch.arange(T, device=x.device)[:, None] * freqs
    ang = torch.cat([ang, ang], dim=-1)
    x1, x2 = x.chunk(2, dim=-1)
    return x * ang.cos() + torch.cat([-x2, x1], dim=-1) * ang.sin()


class RopeAttention(nn.Module):
    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, past_key_value=None):
        """returns (output, (keys, values)); give the pair back with the next tokens"""
        b, t, c = x.shape
        q, k, v = [z.view(b, t, self.n_heads, -1).transpose(1, 2) for z in self.qkv_proj(x).chunk(3, dim=-1)]
        q, k = apply_rope(q), apply_rope(k)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        n = k.size(2)
        mask = torch.ones(t, n, dtype=torch.bool, device=x.device).tril(n - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c)), (k, v)

# === sixth_cache_without_itself
# target: multi_head,cache
# wrong: The step reads the cache only up to pos (exclusive), so the newest token's own key and value are left out
# words: no weight to itself
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4, max_batch=8, max_seq=64):
        super().__init__()
        self.n_heads, self.hd = n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_seq, n_heads, self.hd), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_seq, n_heads, self.hd), persistent=False)

    def forward(self, x, start_pos=None):
        """start_pos=None: the whole text at once. Otherwise x is one new token at position start_pos."""
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.hd)
        k = self.wk(x).view(B, T, self.n_heads, self.hd)
        v = self.wv(x).view(B, T, self.n_heads, self.hd)
        if start_pos is None:
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        else:
            self.cache_k[:B, start_pos:start_pos + T] = k.detach()
            self.cache_v[:B, start_pos:start_pos + T] = v.detach()
            end = max(start_pos, 1)
            keys = self.cache_k[:B, :end].transpose(1, 2)
            values = self.cache_v[:B, :end].transpose(1, 2)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))

# === sixth_cache_hf
# target: multi_head,cache
# right: Hugging-Face-like forward(hidden_states, layer_past=None, use_cache=False) -> (output, present); mask moved by the past's length
import torch
from torch import nn


class GPT2LikeAttention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4, max_positions=128, attn_pdrop=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.split_size = hidden_size
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.register_buffer(
            "bias", torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool)).view(
                1, 1, max_positions, max_positions), persistent=False)

    def _attn(self, query, key, value):
        w = torch.matmul(query, key.transpose(-1, -2)) / (self.head_dim ** 0.5)
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length: key_length, :key_length]
        w = torch.where(causal_mask, w, torch.finfo(w.dtype).min)
        w = self.attn_dropout(nn.functional.softmax(w, dim=-1))
        return torch.matmul(w, value)

    def _split_heads(self, t):
        return t.view(*t.size()[:-1], self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, hidden_states, layer_past=None, use_cache=False):
        query, key, value = self.c_attn(hidden_states).split(self.split_size, dim=2)
        query, key, value = map(self._split_heads, (query, key, value))
        if layer_past is not None:
            past_key, past_value = layer_past
            key = torch.cat((past_key, key), dim=-2)
            value = torch.cat((past_value, value), dim=-2)
        present = (key, value) if use_cache else None
        out = self._attn(query, key, value).permute(0, 2, 1, 3).contiguous()
        out = self.c_proj(out.view(*out.size()[:-2], self.split_size))
        return out, present

# === sixth_cache_step_function
# target: multi_head,cache
# right: pure function step(params, x_t, cache) -> (y_t, cache); the cache is a tuple (k, v) grown by cat, one head, x_t is (B, C)
import torch


def init_params(d, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(d, d, generator=g) / d ** 0.5 for n in ("wq", "wk", "wv", "wo")}


def attend_full(params, x):
    """x: [B, T, D], all at once"""
    q, k, v = x @ params["wq"], x @ params["wk"], x @ params["wv"]
    T = x.shape[1]
    s = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    s = torch.where(torch.tril(torch.ones(T, T)) > 0, s, -torch.inf)
    return torch.softmax(s, -1) @ v @ params["wo"]


def step(params, x_t, cache=None):
    """x_t: [B, D]; returns the output for this token and the new cache"""
    q, k, v = x_t @ params["wq"], x_t @ params["wk"], x_t @ params["wv"]
    k, v = k[:, None], v[:, None]
    if cache is not None:
        k = torch.cat([cache[0], k], 1)
        v = torch.cat([cache[1], v], 1)
    p = torch.softmax(torch.einsum("bd,btd->bt", q, k) / q.shape[-1] ** 0.5, dim=-1)
    return torch.einsum("bt,btd->bd", p, v) @ params["wo"], (k, v)

# === sixth_cache_step_method
# target: multi_head,cache
# right: preallocated buffers in the module with a position pointer, step(x_t) one token at a time, reset(); forward is uncached
import math

import torch
import torch.nn as nn


class CachedAttention(nn.Module):
    def __init__(self, dim=32, heads=4, max_len=64):
        super().__init__()
        self.heads, self.hd, self.max_len = heads, dim // heads, max_len
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.pos = 0
        self.k_cache = None
        self.v_cache = None

    def _split(self, x):
        B, T, C = x.shape
        return [t.view(B, T, self.heads, self.hd).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]

    def reset(self, batch_size):
        self.pos = 0
        self.k_cache = torch.zeros(batch_size, self.heads, self.max_len, self.hd)
        self.v_cache = torch.zeros(batch_size, self.heads, self.max_len, self.hd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self._split(x)
        att = q @ k.transpose(2, 3) / math.sqrt(self.hd)
        att = att.masked_fill(torch.ones(T, T, device=x.device).triu(1).bool(), float("-inf"))
        return self.out((att.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

    @torch.no_grad()
    def step(self, x):
        """x: (B, 1, C), the newest token only"""
        B, _, C = x.shape
        q, k, v = self._split(x)
        self.k_cache[:, :, self.pos] = k[:, :, 0]
        self.v_cache[:, :, self.pos] = v[:, :, 0]
        self.pos += 1
        att = q @ self.k_cache[:, :, :self.pos].transpose(2, 3) / math.sqrt(self.hd)
        return self.out((att.softmax(-1) @ self.v_cache[:, :, :self.pos]).transpose(1, 2).reshape(B, 1, C))


if __name__ == "__main__":
    m = CachedAttention()
    x = torch.randn(2, 10, 32)
    m.reset(2)
    y = torch.cat([m.step(x[:, t:t + 1]) for t in range(10)], 1)
    print((y - m(x)).abs().max())

# === sixth_cache_corner
# target: multi_head,cache
# wrong: With a past the mask tril(T_new, T_all) isn't moved by the past's length, so a new token sees only the first keys
# words: upper left corner
import torch
from torch import nn


class Aufmerksamkeit(nn.Module):
    """Mehrkopf-Aufmerksamkeit mit Speicher fuer Schluessel und Werte."""

    def __init__(self, breite=32, koepfe=4):
        super().__init__()
        self.koepfe = koepfe
        self.qkv = nn.Linear(breite, 3 * breite)
        self.aus = nn.Linear(breite, breite)

    def forward(self, x, speicher=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.koepfe, C // self.koepfe).permute(2, 0, 3, 1, 4).unbind(0)
        if speicher is not None:
            k = torch.cat((speicher["k"], k), dim=2)
            v = torch.cat((speicher["v"], v), dim=2)
        speicher = {"k": k, "v": v}
        punkte = q @ k.transpose(-2, -1) / (C // self.koepfe) ** 0.5
        maske = torch.tril(torch.ones(T, k.shape[2], device=x.device)).bool()
        punkte = punkte.masked_fill(~maske, float("-inf"))
        y = punkte.softmax(-1) @ v
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.aus(y), speicher

# === sixth_linear_outer
# target: linear_attention
# right: cumsum of outer products (no loop), feature map elu+1, (B,T,H,D) with einsum, eps in the denominator
import torch
from torch.nn.functional import elu


def causal_linear_attention(queries, keys, values, eps=1e-6):
    # layout N L H E, like the fast-transformers library
    Q = elu(queries) + 1.0
    K = elu(keys) + 1.0
    KV = torch.einsum("nlhe,nlhm->nlhem", K, values).cumsum(dim=1)   # memory hungry but clear
    Z = 1 / (torch.einsum("nlhe,nlhe->nlh", Q, K.cumsum(dim=1)) + eps)
    return torch.einsum("nlhe,nlhem,nlh->nlhm", Q, KV, Z)


if __name__ == "__main__":
    q, k, v = (torch.randn(2, 12, 4, 8) for _ in range(3))
    print(causal_linear_attention(q, k, v).shape)

# === sixth_linear_normaliser
# target: linear_attention
# wrong: The numerator is cumulative but the normaliser sums phi(k) over the whole text, so outputs aren't means and depend on the future
# words: normaliser sums over all
import torch
import torch.nn.functional as F


def feature_map(x):
    return F.elu(x) + 1


def linear_attn(q, k, v):
    """Causal linear attention, all tensors (batch, heads, time, dim)."""
    q = feature_map(q)
    k = feature_map(k)
    kv = torch.einsum("bhtd,bhte->bhtde", k, v)
    kv = torch.cumsum(kv, dim=2)
    num = torch.einsum("bhtd,bhtde->bhte", q, kv)
    k_sum = k.sum(dim=2)
    den = torch.einsum("bhtd,bhd->bht", q, k_sum)
    return num / den.unsqueeze(-1)

# === sixth_linear_whole_text
# target: linear_attention
# wrong: The state K^T V and the normaliser are sums over the whole text, so it isn't causal although the class says so
# words: not causal
import torch
from torch import nn
import torch.nn.functional as F


class CausalLinearAttention(nn.Module):
    """O(n) attention for language models: compute K^T V first, then multiply with Q."""

    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        q = F.elu(q) + 1
        k = F.elu(k) + 1
        context = k.transpose(-2, -1) @ v                                  # (b, h, d, d)
        norm = q @ k.sum(dim=-2).unsqueeze(-1)                             # (b, h, n, 1)
        out = (q @ context) / (norm + 1e-6)
        out = out.transpose(1, 2).reshape(b, n, c)
        return self.to_out(out)

# === sixth_linear_loop
# target: linear_attention
# right: elu(x)+1, loop over time with the state S and normaliser z ('transformers are RNNs'), (B,H,T,D) function
import torch
import torch.nn.functional as F


def phi(x):
    return F.elu(x) + 1


def linear_attention(q, k, v):
    """out_t = phi(q_t) S_t / phi(q_t) z_t with S_t = sum_{s<=t} phi(k_s) v_s^T and z_t = sum_{s<=t} phi(k_s)"""
    B, H, T, D = q.shape
    q, k = phi(q), phi(k)
    S = torch.zeros(B, H, D, v.shape[-1], dtype=q.dtype, device=q.device)
    z = torch.zeros(B, H, D, dtype=q.dtype, device=q.device)
    out = []
    for t in range(T):
        S = S + k[:, :, t, :, None] * v[:, :, t, None, :]
        z = z + k[:, :, t]
        num = torch.einsum("bhd,bhde->bhe", q[:, :, t], S)
        den = torch.einsum("bhd,bhd->bh", q[:, :, t], z)
        out.append(num / den[..., None])
    return torch.stack(out, dim=2)

# === sixth_linear_square
# target: linear_attention
# right: quadratic form with a tril mask and row sums, elu+1, module with projections, German names
import torch
import torch.nn as nn
import torch.nn.functional as F


class LineareAufmerksamkeit(nn.Module):
    def __init__(self, breite=32, koepfe=4, eps=1e-6):
        super().__init__()
        self.koepfe = koepfe
        self.eps = eps
        self.q = nn.Linear(breite, breite, bias=False)
        self.k = nn.Linear(breite, breite, bias=False)
        self.v = nn.Linear(breite, breite, bias=False)
        self.o = nn.Linear(breite, breite)

    def forward(self, x):
        B, T, C = x.shape

        def koepfe(y):
            return y.reshape(B, T, self.koepfe, -1).transpose(1, 2)

        q, k, v = koepfe(self.q(x)), koepfe(self.k(x)), koepfe(self.v(x))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        A = (q @ k.transpose(-1, -2)).tril()        # kein softmax, nur die Vergangenheit
        A = A / (A.sum(dim=-1, keepdim=True) + self.eps)
        y = (A @ v).transpose(1, 2).reshape(B, T, C)
        return self.o(y)
