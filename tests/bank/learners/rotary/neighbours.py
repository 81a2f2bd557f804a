# Attention with rotary positions where neighbours 2i and 2i + 1 are paired: slices, repeat_interleave, complex numbers, other orders and signs.
# target: multi_head,rotary

# === pairs_by_slices
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

# === positions_from_one
# of: pairs_by_slices
# convention: positions count from 1; only distances matter
#-        ang = torch.arange(x.shape[1])[:, None, None] * self.freq
#+        ang = torch.arange(1, x.shape[1] + 1)[:, None, None] * self.freq

# === positions_count_the_batch
# of: pairs_by_slices
# wrong: positions count the batch: arange(x.shape[0]), so that every token of a sequence has the same angle
# words: batch|sequence|position
#-        ang = torch.arange(x.shape[1])[:, None, None] * self.freq
#+        ang = torch.arange(x.shape[0])[:, None, None, None] * self.freq

# === values_rotated_and_root_of_width
# of: pairs_by_slices
# wrong: two bugs: the values are rotated too, and the scores are divided by sqrt(D)
# words: value, width of the model|sqrt(D)|embedding
#-        q, k = self.rope(q), self.rope(k)
#-        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
#+        q, k, v = self.rope(q), self.rope(k), self.rope(v)
#+        s = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(x.shape[-1])

# === values_are_rotated_too
# of: pairs_by_slices
# wrong: the values are rotated too
# words: value
#-        q, k = self.rope(q), self.rope(k)
#+        q, k, v = self.rope(q), self.rope(k), self.rope(v)

# === only_queries_are_rotated
# of: pairs_by_slices
# wrong: only the query is rotated
# words: key|only the quer
#-        q, k = self.rope(q), self.rope(k)
#+        q = self.rope(q)

# === even_features_overwritten
# of: pairs_by_slices
# wrong: in place: the even features are overwritten before the odd ones read them
# words: overwrit|in place|first|already|odd
#-        out = torch.empty_like(x)
#+        out = x = x.clone()

# === query_by_neighbours_key_by_halves
# of: pairs_by_slices
# wrong: the query is rotated by neighbours, the key by halves
# words: rotary|rope|rotation, interleav|half|pair|mismatch|differ|same
#-    def forward(self, x):  # (B, T, H, d)
#+    def forward(self, x, even=slice(0, None, 2), odd=slice(1, None, 2)):  # (B, T, H, d)
#-        out[..., 0::2] = x[..., 0::2] * ang.cos() - x[..., 1::2] * ang.sin()
#-        out[..., 1::2] = x[..., 0::2] * ang.sin() + x[..., 1::2] * ang.cos()
#+        out[..., even] = x[..., even] * ang.cos() - x[..., odd] * ang.sin()
#+        out[..., odd] = x[..., even] * ang.sin() + x[..., odd] * ang.cos()
#-        q, k = self.rope(q), self.rope(k)
#+        half = q.shape[-1] // 2
#+        q, k = self.rope(q), self.rope(k, slice(None, half), slice(half, None))

# === gptj_rotate_every_two
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

# === tables_for_halves_turned_by_neighbours
# of: gptj_rotate_every_two
# wrong: tables for halves, turned by neighbours
# words: angles stand in halves|halves
#-    return m.repeat_interleave(2, dim=-1)
#+    return torch.cat((m, m), dim=-1)

# === pairs_not_merged_back
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

# === sine_and_cosine_exchanged
# of: pairs_not_merged_back
# convention: sine and cosine are exchanged in query and key alike
#-    return torch.cat((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1)
#+    return torch.cat((e * th.sin() - o * th.cos(), e * th.cos() + o * th.sin()), -1)

# === rotated_along_heads
# of: pairs_not_merged_back
# wrong: rotated as (B, T, H, d) along dim -2: the angle grows with the number of the head, not with the position
# words: head|position|cancel
# seen: mlfoundations/open_lm#4, facebookresearch/xformers#841
#-        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
#+        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).unbind(2)
#-        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(rope(q).transpose(1, 2), rope(k).transpose(1, 2), v.transpose(1, 2), is_causal=True)

# === sine_of_odd_features_missing
# of: pairs_not_merged_back
# wrong: the second half of a pair lacks its sine: x1 cos - x2 sin, x2 cos
# words: sin|rotat|second|odd
#-    return torch.cat((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1)
#+    return torch.cat((e * th.cos() - o * th.sin(), o * th.cos()), -1)

# === query_and_key_turn_backwards
# of: pairs_not_merged_back
# convention: query and key both turn the other way: their angle has the other sign, which a reordering undoes
#-def rope(x):
#+def rope(x, sign):
#-    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
#-    e, o = x[..., ::2], x[..., 1::2]
#-    return torch.cat((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1)
#+    th = sign * torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
#+    c = torch.polar(torch.ones_like(th), th)
#+    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * c).flatten(-2)
#-        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(rope(q, -1), rope(k, -1), v, is_causal=True)

# === query_and_key_turn_against_each_other
# of: query_and_key_turn_backwards
# wrong: the query turns one way and the key the other: the angle grows with the sum of the positions
# words: direction|opposite|sum|sign
#-        y = F.scaled_dot_product_attention(rope(q, -1), rope(k, -1), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(rope(q, 1), rope(k, -1), v, is_causal=True)

# === values_rotated_with_the_joined_tensor
# of: query_and_key_turn_backwards
# wrong: queries, keys and values are rotated together before they are taken apart
# words: value
#-        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
#+        q, k, v = rope(self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4), 1)
#-        y = F.scaled_dot_product_attention(rope(q, -1), rope(k, -1), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

# === rotated_before_heads_are_split
# of: query_and_key_turn_backwards
# wrong: rotated before the heads are split: frequencies of the whole width, so most heads hardly turn
# words: head|split|width|frequenc|before
#-        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
#-        y = F.scaled_dot_product_attention(rope(q, -1), rope(k, -1), v, is_causal=True)
#+        q, k, v = self.qkv(x).chunk(3, -1)
#+        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in (rope(q, 1), rope(k, 1), v))
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

# === complex_numbers
# right: torch.polar and view_as_complex, in (B, T, H, d)
import torch
import torch.nn as nn
import torch.nn.functional as F

def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)] / dim))
    t = torch.arange(end)
    return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))

def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.reshape(*xk.shape[:-1], -1, 2))
    f = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    return torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f).flatten(3)

class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.freqs_cis = precompute_freqs_cis(dim // n_heads, 64)

    def forward(self, x):
        bsz, seqlen, dim = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, self.n_heads, dim // self.n_heads) for w in (self.wq, self.wk, self.wv))
        xq, xk = apply_rotary_emb(xq, xk, self.freqs_cis[:seqlen])
        y = F.scaled_dot_product_attention(xq.transpose(1, 2), xk.transpose(1, 2), xv.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(bsz, seqlen, -1))

attention = Attention(48, 6)

# === complex_numbers_in_float32
# of: complex_numbers
# right: complex64 inside: rotation in float32
#-    xq_ = torch.view_as_complex(xq.reshape(*xq.shape[:-1], -1, 2))
#+    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
#-    xk_ = torch.view_as_complex(xk.reshape(*xk.shape[:-1], -1, 2))
#+    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
#-    return torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f).flatten(3)
#+    return torch.view_as_real(xq_ * f).flatten(3).type_as(xq), torch.view_as_real(xk_ * f).flatten(3).type_as(xk)

# === conjugate_for_the_keys
# of: complex_numbers
# wrong: the conjugate is taken for the keys, as in a product of complex numbers: they turn the other way
# words: opposite|direction|sum
#-    return torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f).flatten(3)
#+    return torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f.conj()).flatten(3)

# === exponent_i_over_d
# of: complex_numbers
# wrong: arange(dim // 2) / dim: the exponent lacks the 2
# words: i/d
#-    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)] / dim))
#+    freqs = 1.0 / (theta ** (torch.arange(0, dim // 2) / dim))

# === angles_taken_for_degrees
# of: complex_numbers
# wrong: the angles are taken for degrees
# words: degree|180
#-    return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))
#+    return torch.polar(torch.ones(end, dim // 2), torch.deg2rad(torch.outer(t, freqs)))
