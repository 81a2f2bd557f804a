"""Learners' programs: multi-head attention with rotary positions, with ALiBi, with a sliding window."""

# === rotary_complex
# target: multi_head,rotary
# right: pairs of neighbours as complex numbers
import torch
from torch import nn
import torch.nn.functional as F

def precompute(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    return torch.polar(torch.ones(end, dim // 2), torch.outer(torch.arange(end).float(), freqs).to(torch.get_default_dtype()))

class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def rope(self, x):
        c = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        f = precompute(x.shape[-1], x.shape[2])
        return torch.view_as_real(c * f).flatten(-2).type_as(x)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))

attention = Attn(48, 6)

# === rotary_halves
# target: multi_head,rotary
# convention: rotate_half: feature i is paired with i + d/2
import torch
from torch import nn
import torch.nn.functional as F

def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)

class RotaryAttention(nn.Module):
    def __init__(self, hidden, heads, base=10000):
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.o_proj = nn.Linear(hidden, hidden)
        inv = 1.0 / (base ** (torch.arange(0, self.head_dim, 2) / self.head_dim))
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, h):
        b, t, _ = h.shape
        q, k, v = (p(h).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        freqs = torch.outer(torch.arange(t), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos(), emb.sin()
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))

attention = RotaryAttention(60, 6)

# === rotary_pairs_by_slices
# target: multi_head,rotary
# right: even and odd features by slices; angles from exp of a log
import math
import torch
from torch import nn

class Rope(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("freq", torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d)))

    def forward(self, x):  # (B, T, H, d)
        ang = torch.arange(x.shape[1])[:, None, None] * self.freq
        out = torch.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * ang.cos() - x[..., 1::2] * ang.sin()
        out[..., 1::2] = x[..., 0::2] * ang.sin() + x[..., 1::2] * ang.cos()
        return out

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.rope = h, Rope(d // h)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(2, (self.h, -1)) for w in (self.wq, self.wk, self.wv))
        q, k = self.rope(q), self.rope(k)
        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
        t = x.shape[1]
        s = s.masked_fill(torch.ones(t, t).triu(1) == 1, -math.inf)
        return self.wo(torch.einsum("bhts,bshd->bthd", s.softmax(-1), v).flatten(2))

attention = MHA(48, 6)

# === rotary_from_one
# target: multi_head,rotary
# convention: positions count from 1; only distances matter
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    B, H, T, d = x.shape
    pos = torch.arange(1, T + 1)
    theta = pos[:, None] / 10000 ** (2 * torch.arange(d // 2) / d)
    x = x.view(B, H, T, d // 2, 2)
    a, b = x[..., 0], x[..., 1]
    return torch.stack([a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()], -1).view(B, H, T, d)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(rope(q.contiguous()), rope(k.contiguous()), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(56, 7)

# === rotary_values_too
# target: multi_head,rotary
# wrong: the values are rotated too
# words: value
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k, v = rope(qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_query_only
# target: multi_head,rotary
# wrong: only the query is rotated
# words: key|only the quer
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q = rope(q)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_over_heads
# target: multi_head,rotary
# wrong: rotated as (B, T, H, d) along dim -2: the angle grows with the number of the head, not with the position
# words: head|position|cancel
# seen: mlfoundations/open_lm#4, facebookresearch/xformers#841
import torch
from torch import nn
import torch.nn.functional as F

def rope(x, seq_dim=-2):
    n, d = x.shape[seq_dim], x.shape[-1]
    inv = 10000 ** (-torch.arange(0, d, 2) / d)
    f = torch.einsum("i,j->ij", torch.arange(n).to(inv), inv)
    cos, sin = torch.cat((f, f), -1).cos(), torch.cat((f, f), -1).sin()
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).unbind(2)
        q, k = rope(q), rope(k)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_sign
# target: multi_head,rotary
# wrong: rotate_half without the minus: a reflection and not a rotation
# words: minus|sign|rotation|rotate
import torch
from torch import nn
import torch.nn.functional as F

def swap(x):
    a, b = x.chunk(2, -1)
    return torch.cat((b, a), -1)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        n = d // self.h
        th = torch.arange(t)[:, None] * 10000 ** (-torch.arange(0, n, 2) / n)
        th = torch.cat((th, th), -1)
        q, k = q * th.cos() + swap(q) * th.sin(), k * th.cos() + swap(k) * th.sin()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_mixed_layouts
# target: multi_head,rotary
# wrong: rotate_half pairs i with i + d/2, but the angles are repeated for neighbours (repeat_interleave)
# words: pair|halves|neighbo|interleave|layout|angle
import torch
from torch import nn
import torch.nn.functional as F

def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        n = d // h
        self.register_buffer("inv_freq", 10000 ** (-torch.arange(0, n, 2) / n))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        f = torch.outer(torch.arange(t).to(x.dtype), self.inv_freq).repeat_interleave(2, dim=-1)
        q, k = q * f.cos() + rotate_half(q) * f.sin(), k * f.cos() + rotate_half(k) * f.sin()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_exponent
# target: multi_head,rotary
# wrong: the exponent is i/d instead of 2i/d: as if the base were 100
# words: exponent|base|frequenc|2i|2 i
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    T, d = x.shape[-2:]
    inv = 1.0 / 10000 ** (torch.arange(d // 2) / d)
    th = torch.arange(T)[:, None] * inv
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_before_split
# target: multi_head,rotary
# wrong: rotated before the heads are split: frequencies of the whole width, so most heads hardly turn
# words: head|split|width|frequenc|before
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = rope(self.wq(x)), rope(self.wk(x)), self.wv(x)
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_not_merged_back
# target: multi_head,rotary
# convention: neighbours are paired, the turned parts are concatenated: query and key are reordered alike, so the products are the same
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.cat((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_opposite
# target: multi_head,rotary
# wrong: the query turns one way and the key the other: the angle grows with the sum of the positions
# words: direction|opposite|sum|sign
import torch
from torch import nn
import torch.nn.functional as F

def rope(x, sign):
    T, d = x.shape[-2:]
    th = sign * torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    c = torch.polar(torch.ones_like(th), th)
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * c).flatten(-2)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rope(q, 1), rope(k, -1), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === rotary_forgot_sin_term
# target: multi_head,rotary
# wrong: the second half of a pair lacks its sine: x1 cos - x2 sin, x2 cos
# words: sin|rotat|second|odd
import torch
from torch import nn
import torch.nn.functional as F

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), o * th.cos()), -1).flatten(-2)

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === alibi_plain
# target: multi_head,alibi
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

# === alibi_by_key_index
# target: multi_head,alibi
# right: slope times the number of the key: a row's constant changes nothing
import math
import torch
from torch import nn
import torch.nn.functional as F

class Attn(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        ratio = 2 ** (-8 / num_heads)
        self.slopes = torch.tensor([ratio ** (i + 1) for i in range(num_heads)])

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (w(x).view(B, T, self.num_heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        alibi = self.slopes.view(1, -1, 1, 1) * torch.arange(T).view(1, 1, 1, -1)
        mask = alibi + torch.full((T, T), -math.inf).triu(1)
        return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype)).transpose(1, 2).reshape(B, T, D))

attention = Attn(42, 7)

# === alibi_positive
# target: multi_head,alibi
# wrong: the bias is positive: far tokens are preferred
# words: sign|far|positive|minus
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        m = 2.0 ** (-8 * torch.arange(1, self.h + 1) / self.h)
        i = torch.arange(t)
        s = q @ k.mT / (d // self.h) ** 0.5 + m[:, None, None] * (i[:, None] - i)
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(60, 5)

# === alibi_from_zero
# target: multi_head,alibi
# wrong: the exponents begin at 0: slopes 2^(-8 i / H) for i = 0, 1, ...: the first slope is 1
# words: slope
# seen: paiml/aprender#2143
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.slopes = torch.tensor([2 ** (-8 * i / h) for i in range(h)])

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        i = torch.arange(t)
        s = q @ k.mT / (d // self.h) ** 0.5 - self.slopes.to(x.dtype)[:, None, None] * (i[:, None] - i)
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(60, 5)

# === alibi_scaled
# target: multi_head,alibi
# wrong: the bias is added before the division, so it is divided by sqrt(d) too
# words: sqrt|scale|divide|slope
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        m = 2.0 ** (-8 * torch.arange(1, self.h + 1) / self.h)
        i = torch.arange(t)
        s = (q @ k.mT - m[:, None, None] * (i[:, None] - i)) / (d // self.h) ** 0.5
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(60, 5)

# === alibi_one_slope
# target: multi_head,alibi
# wrong: one slope for all heads
# words: slope|head
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        i = torch.arange(t)
        s = q @ k.mT / (d // self.h) ** 0.5 - 2 ** (-8 / self.h) * (i[:, None] - i)
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(60, 5)

# === alibi_after_softmax
# target: multi_head,alibi
# wrong: the bias is added after the softmax
# words: after|softmax
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        m = 2.0 ** (-8 * torch.arange(1, self.h + 1) / self.h)
        i = torch.arange(t)
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        w = s.softmax(-1) - (m[:, None, None] * (i[:, None] - i)).tril()
        return self.out((w @ v).transpose(1, 2).reshape(b, t, d))

attention = A(60, 5)

# === alibi_half_powers
# target: multi_head,alibi
# wrong: slopes 1/2, 1/4, 1/8, ... for any number of heads: right for 8 heads only
# words: slope
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        m = torch.tensor([1 / 2 ** (i + 1) for i in range(self.h)])
        dist = torch.arange(t)[:, None] - torch.arange(t)
        s = q @ k.mT / (d // self.h) ** 0.5 - m.to(x.dtype)[:, None, None] * dist
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(60, 5)

# === window_plain
# target: multi_head,window=4
# right: the last four positions, its own included
import torch
from torch import nn
import torch.nn.functional as F

class LocalAttention(nn.Module):
    def __init__(self, dim, heads, window=4):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        ones = torch.ones(t, t, dtype=torch.bool)
        mask = ones.tril() & ones.triu(-(self.window - 1))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, d))

attention = LocalAttention(48, 6, window=4)

# === window_gather
# target: multi_head,window=4
# right: unfold: every query meets exactly four keys
import torch
from torch import nn
import torch.nn.functional as F

class Sliding(nn.Module):
    def __init__(self, dim, heads, window_size=4):
        super().__init__()
        self.h, self.w = heads, window_size
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.h, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        pad = (0, 0, self.w - 1, 0)
        k, v = F.pad(k, pad).unfold(2, self.w, 1), F.pad(v, pad).unfold(2, self.w, 1)  # (b, h, t, hd, w)
        s = torch.einsum("bhtd,bhtdw->bhtw", q, k) / q.shape[-1] ** 0.5
        there = torch.arange(t)[:, None] + torch.arange(self.w) >= self.w - 1
        s = s.masked_fill(~there, -torch.inf)
        y = torch.einsum("bhtw,bhtdw->bhtd", s.softmax(-1), v)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

attention = Sliding(40, 5)

# === window_one_more
# target: multi_head,window=4
# wrong: triu(-window): the window is one position too long
# words: one|long|window|5
# seen: ml-explore/mlx-lm#390, huggingface/transformers#26792
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h, window=4):
        super().__init__()
        self.h, self.window, self.qkv, self.out = h, window, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        mask = torch.tril(torch.ones(t, t)) * torch.triu(torch.ones(t, t), diagonal=-self.window)
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(mask == 0, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(48, 6, window=4)

# === window_both_sides
# target: multi_head,window=4
# wrong: the window reaches into the future as well
# words: future|side|causal|later
# seen: huggingface/transformers#39408
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h, window=4):
        super().__init__()
        self.h, self.window, self.qkv, self.out = h, window, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        dist = (torch.arange(t)[:, None] - torch.arange(t)).abs()
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(dist >= self.window, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(48, 6, window=4)

# === window_chunks
# target: multi_head,window=4
# wrong: blocks of four instead of a sliding window: the first of a block sees only itself
# words: block|chunk|slid
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, d, h, window=4):
        super().__init__()
        self.h, self.window, self.qkv, self.out = h, window, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        i = torch.arange(t)
        see = (i[:, None] >= i) & (i[:, None] // self.window == i // self.window)
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(~see, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = A(48, 6, window=4)

# === window_ignored
# target: multi_head,window=4
# wrong: the window is stored and never used
# words: window|all|whole|full
# seen: proger/hippogriff#7
import torch
from torch import nn
import torch.nn.functional as F

class A(nn.Module):
    def __init__(self, d, h, window=4):
        super().__init__()
        self.h, self.window, self.qkv, self.out = h, window, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = A(48, 6, window=4)

# === rotary_backwards
# target: multi_head,rotary
# convention: query and key both turn the other way: their angle has the other sign, which a reordering undoes
# like: rotary_opposite
#-        y = F.scaled_dot_product_attention(rope(q, 1), rope(k, -1), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(rope(q, -1), rope(k, -1), v, is_causal=True)

# === rotary_sine_and_cosine
# target: multi_head,rotary
# convention: sine and cosine are exchanged in query and key alike
# like: rotary_exponent
#-    inv = 1.0 / 10000 ** (torch.arange(d // 2) / d)
#+    inv = 1.0 / 10000 ** (2 * torch.arange(d // 2) / d)
#-    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)
#+    return torch.stack((e * th.sin() - o * th.cos(), e * th.cos() + o * th.sin()), -1).flatten(-2)

# === rotary_base_1000
# target: multi_head,rotary
# wrong: the base is 1000 and not 10000: a zero is missing
# words: base|1000|frequenc
# like: rotary_halves
#-    def __init__(self, hidden, heads, base=10000):
#+    def __init__(self, hidden, heads, base=1000):

# === rotary_positions_of_batch
# target: multi_head,rotary
# wrong: positions count the batch: arange(x.shape[0]), so that every token of a sequence has the same angle
# words: batch|sequence|position
# like: rotary_pairs_by_slices
#-        ang = torch.arange(x.shape[1])[:, None, None] * self.freq
#+        ang = torch.arange(x.shape[0])[:, None, None, None] * self.freq

# === rotary_degrees
# target: multi_head,rotary
# wrong: the angles are taken for degrees and converted
# words: degree|frequenc|angle|radian|factor
# like: rotary_pairs_by_slices
#-        ang = torch.arange(x.shape[1])[:, None, None] * self.freq
#+        ang = torch.deg2rad(torch.arange(x.shape[1])[:, None, None] * self.freq)

# === rotary_and_width
# target: multi_head,rotary
# wrong: two bugs: the values are rotated too, and the scores are divided by sqrt(D)
# words: value, width of the model|sqrt(D)|embedding
# like: rotary_pairs_by_slices
#-        q, k = self.rope(q), self.rope(k)
#+        q, k, v = self.rope(q), self.rope(k), self.rope(v)
#-        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
#+        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(x.shape[-1])

# === rotary_overwrites
# target: multi_head,rotary
# wrong: in place: the even features are overwritten before the odd ones read them
# words: overwrit|in place|first|already|odd
# like: rotary_query_only
#-    e, o = x[..., ::2], x[..., 1::2]
#-    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)
#+    x = x.clone()
#+    e, o = x[..., ::2], x[..., 1::2]
#+    x[..., ::2] = e * th.cos() - o * th.sin()
#+    x[..., 1::2] = e * th.sin() + o * th.cos()
#+    return x
#-        q = rope(q)
#+        q, k = rope(q), rope(k)

# === window_sign
# target: multi_head,window=4
# wrong: triu(window - 1): the sign is lost, and with the diagonal put back a token sees itself only
# words: itself|only|sign|window
# like: window_plain
#-        mask = ones.tril() & ones.triu(-(self.window - 1))
#+        mask = ones.tril() & ones.triu(self.window - 1) | torch.eye(t, dtype=torch.bool)
