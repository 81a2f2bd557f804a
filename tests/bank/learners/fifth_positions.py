"""Learners' programs, a fifth lot, by an author who has not seen the checker: rotary, ALiBi, windows, caches."""

# === fifth_alibi_bloom
# target: multi_head,alibi
# right: the bias is slope * key position (bloom), equal under the softmax; F.scaled_dot_product_attention with a float mask
import torch
from torch import nn
import torch.nn.functional as F

def build_alibi(n_head, T):
    base = 2.0 ** (-8.0 / n_head)
    slopes = base ** torch.arange(1, n_head + 1)
    return slopes.view(n_head, 1, 1) * torch.arange(T).view(1, 1, T)

class BloomAttention(nn.Module):
    def __init__(self, hidden_size, n_head):
        super().__init__()
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=True)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(0.0)

    def forward(self, hidden_states):
        b, t, c = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(b, t, self.num_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        mask = torch.full((t, t), float("-inf")).triu(1) + build_alibi(self.num_heads, t)
        ctx = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None])
        return self.dense(ctx.transpose(1, 2).reshape(b, t, c))

attention = BloomAttention(48, 8)

# === fifth_rotary_by_heads
# target: multi_head,rotary
# wrong: the positions are taken along the heads axis, because the rotation expects (B, h, T, d) and gets (B, T, h, d)
# words: number of the head
import torch
import torch.nn as nn
import torch.nn.functional as F

def rope(x, base=10000):
    n, d = x.size(-2), x.size(-1)
    half = d // 2
    freqs = base ** (-torch.arange(half).float() / half)
    ang = torch.arange(n).float()[:, None] * freqs[None, :]
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat([x1 * ang.cos() - x2 * ang.sin(), x1 * ang.sin() + x2 * ang.cos()], dim=-1)

class SelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.q = nn.Linear(n_embd, n_embd)
        self.k = nn.Linear(n_embd, n_embd)
        self.v = nn.Linear(n_embd, n_embd)
        self.o = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, self.n_head, -1)
        k = self.k(x).view(B, T, self.n_head, -1)
        v = self.v(x).view(B, T, self.n_head, -1)
        q, k = rope(q), rope(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).contiguous().view(B, T, C))

attention = SelfAttention(36, 3)

# === fifth_cache_rotary_from_zero
# target: multi_head,rotary,cache
# wrong: the rotary positions of the new tokens start from 0 again although there is a cache
# words: start at 0
import torch
from torch import nn

def rot(x):
    T, d = x.shape[-2:]
    ang = torch.outer(torch.arange(T).float(), 10000.0 ** (-torch.arange(0, d, 2) / d))
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(ang), ang)).flatten(-2)

class Achtung(nn.Module):
    def __init__(self, breite, koepfe):
        super().__init__()
        self.koepfe = koepfe
        self.ein = nn.Linear(breite, 3 * breite, bias=False)
        self.aus = nn.Linear(breite, breite, bias=False)

    def forward(self, x, speicher=None):
        b, t, c = x.shape
        q, k, v = self.ein(x).view(b, t, 3, self.koepfe, -1).permute(2, 0, 3, 1, 4)
        q, k = rot(q), rot(k)
        if speicher is not None:
            k = torch.cat([speicher[0], k], -2)
            v = torch.cat([speicher[1], v], -2)
        s = k.shape[-2]
        p = q @ k.mT / q.shape[-1] ** 0.5
        p = p + torch.full((t, s), float('-inf')).triu(s - t + 1)
        y = p.softmax(-1) @ v
        return self.aus(y.transpose(1, 2).flatten(2)), (k, v)

attention = Achtung(32, 4)

# === fifth_rotary_half
# target: multi_head,rotary
# right: HF-like rotate_half with cos and sin doubled by cat
import torch
from torch import nn

def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)

def apply_rotary_pos_emb(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos()[:, None], emb.sin()[:, None]

class ModelAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=True)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=True)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=True)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim)

    def forward(self, hidden_states, position_ids=None):
        bsz, q_len, _ = hidden_states.size()
        if position_ids is None:
            position_ids = torch.arange(q_len, device=hidden_states.device)[None]
        shape = (bsz, q_len, self.num_heads, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = self.rotary_emb(position_ids)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        attn = torch.matmul(q, k.transpose(2, 3)) * self.head_dim ** -0.5
        causal = torch.full((q_len, q_len), torch.finfo(attn.dtype).min).triu(1)
        attn = nn.functional.softmax(attn + causal, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), attn

attention = ModelAttention(32, 4)

# === fifth_window_function
# target: attend,window=3
# right: window of w keys, itself included, given q, k, v
import torch
import torch.nn.functional as F

def sliding_window_attention(q, k, v, window=3):
    T = q.size(-2)
    i = torch.arange(T)[:, None]
    j = torch.arange(T)[None, :]
    mask = (j <= i) & (i - j < window)
    scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5
    scores = scores.masked_fill(~mask, float('-inf'))
    return F.softmax(scores, dim=-1) @ v

attention = sliding_window_attention

# === fifth_rotary_complex
# target: multi_head,rotary
# right: complex numbers on neighbouring pairs, heads in dim 2
import torch
import torch.nn as nn
import torch.nn.functional as F

def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end)
    freqs = torch.outer(t, freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)

def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis[None, :, None, :]
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)

class RotaryAttention(nn.Module):
    def __init__(self, dim, n_heads, max_len=128):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_len)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = [w(x).view(B, T, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv)]
        q, k = apply_rotary_emb(q, k, self.freqs_cis[:T])
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))

attention = RotaryAttention(48, 6)

# === fifth_rotary_wrong_table
# target: multi_head,rotary
# wrong: cos and sin are laid out for neighbouring pairs while rotate_half pairs the two halves
# words: halves
import torch
from torch import nn

def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)

class Attn(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        dh = dim // heads
        self.scale = dh ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.register_buffer('inv_freq', 1.0 / (10000 ** (torch.arange(0, dh, 2).float() / dh)))

    def rotary(self, t):
        n = t.shape[-2]
        freqs = torch.einsum('i,j->ij', torch.arange(n).type_as(self.inv_freq), self.inv_freq)
        freqs = freqs.repeat_interleave(2, dim=-1)
        return t * freqs.cos() + rotate_half(t) * freqs.sin()

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        q, k = self.rotary(q), self.rotary(k)
        sim = torch.einsum('bhid,bhjd->bhij', q, k) * self.scale
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        attn = sim.masked_fill(mask, -torch.finfo(sim.dtype).max).softmax(dim=-1)
        out = torch.einsum('bhij,bhjd->bhid', attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))

attention = Attn(32)

# === fifth_rotary_partial
# target: multi_head,rotary
# right: partial rotary: only the first half of each head's channels is rotated, by halves
import torch
from torch import nn
from dataclasses import dataclass

@dataclass
class Cfg:
    d: int = 48
    h: int = 3
    rotary_pct: float = 0.5
    base: float = 10000.

class PartialRotary(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h = cfg.h
        self.hd = cfg.d // cfg.h
        self.rd = int(self.hd * cfg.rotary_pct)
        self.query_key_value = nn.Linear(cfg.d, 3 * cfg.d)
        self.dense = nn.Linear(cfg.d, cfg.d)
        self.register_buffer('inv', cfg.base ** (-torch.arange(0, self.rd, 2) / self.rd))

    def rot(self, x):
        r, p = x[..., :self.rd], x[..., self.rd:]
        ang = torch.arange(x.shape[-2], device=x.device)[:, None] * self.inv
        a, b = r.chunk(2, -1)
        return torch.cat([a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin(), p], -1)

    def forward(self, x):
        B, T, C = x.shape
        # (B, T, heads, 3 * hd)
        q, k, v = self.query_key_value(x).view(B, T, self.h, 3 * self.hd).transpose(1, 2).chunk(3, -1)
        q, k = self.rot(q), self.rot(k)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(y.transpose(1, 2).reshape(B, T, C))

attention = PartialRotary(Cfg())

# === fifth_cache_one_token
# target: multi_head,cache
# right: a function of one token's q, k, v and a dict cache, one token at a time without a mask
import torch

def paso(q, k, v, memoria):
    """q, k, v: (B, h, 1, d); memoria: dict"""
    if "k" in memoria:
        memoria["k"] = torch.cat([memoria["k"], k], dim=2)
        memoria["v"] = torch.cat([memoria["v"], v], dim=2)
    else:
        memoria["k"], memoria["v"] = k, v
    s = (q * memoria["k"]).sum(-1, keepdim=True) / q.shape[-1] ** 0.5
    p = s.softmax(dim=2)
    y = (p * memoria["v"]).sum(dim=2, keepdim=True)
    return y, memoria

attention = paso

# === fifth_window_unfolded
# target: multi_head,window=5
# right: unfold of padded keys and values, so that scores have shape (B, h, T, w)
import torch
import torch.nn as nn
import torch.nn.functional as F

class LocalAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.h, self.w = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        pad = (0, 0, self.w - 1, 0)
        k = F.pad(k, pad).unfold(2, self.w, 1)   # (B, h, T, d, w)
        v = F.pad(v, pad).unfold(2, self.w, 1)
        s = torch.einsum('bhtd,bhtdw->bhtw', q, k) * q.shape[-1] ** -0.5
        pos = torch.arange(T)[:, None] - (self.w - 1) + torch.arange(self.w)[None, :]
        s = s.masked_fill(pos < 0, float('-inf'))
        y = torch.einsum('bhtw,bhtdw->bthd', s.softmax(-1), v)
        return self.out(y.reshape(B, T, D))

attention = LocalAttention(32, 4, 5)

# === fifth_cache_of_inputs
# target: multi_head,rotary,cache
# right: cache keeps the inputs x and recomputes keys and values; rotary with the right offset
import torch
from torch import nn
import torch.nn.functional as F

class RotaryCached(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.register_buffer('f', 10000 ** (-torch.arange(0, d // h, 2) / (d // h)))

    def rot(self, z, p):
        a = p[:, None] * self.f
        x, y = z.chunk(2, -1)
        return torch.cat([x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()], -1)

    def forward(self, x, past=None):
        full = x if past is None else torch.cat([past, x], dim=1)
        B, S, D = full.shape
        T = x.shape[1]
        pos = torch.arange(S)
        heads = lambda z: z.view(B, -1, self.h, D // self.h).transpose(1, 2)
        k, v = map(heads, self.kv(full).chunk(2, -1))
        q = self.rot(heads(self.q(x)), pos[S - T:])
        k = self.rot(k, pos)
        ok = pos[None, :] <= pos[S - T:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok)
        return self.o(y.transpose(1, 2).reshape(B, T, D)), full

attention = RotaryCached(32, 4)

# === fifth_window_matrices_given
# target: single_head,window=4
# right: loop over queries with slices of the last w keys, (T, C)
import torch

def fenster(x, Wq, Wk, Wv, breite):
    q, k, v = x @ Wq, x @ Wk, x @ Wv
    zeilen = []
    for t in range(len(x)):
        von = max(0, t - breite + 1)
        p = torch.softmax(k[von:t + 1] @ q[t] / q.shape[1] ** 0.5, 0)
        zeilen.append(p @ v[von:t + 1])
    return torch.stack(zeilen)

attention = fenster

# === fifth_cache_layer_past
# target: multi_head,cache
# right: layer_past like GPT-2, returns (out, present)
import torch
import torch.nn as nn
import torch.nn.functional as F

class GPT2Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def split_heads(self, x):
        return x.view(*x.shape[:-1], self.n_head, -1).permute(0, 2, 1, 3)

    def forward(self, x, layer_past=None):
        q, k, v = map(self.split_heads, self.c_attn(x).chunk(3, dim=-1))
        if layer_past is not None:
            past_key, past_value = layer_past
            k = torch.cat((past_key, k), dim=-2)
            v = torch.cat((past_value, v), dim=-2)
        present = (k, v)
        nd, ns = q.size(-2), k.size(-2)
        w = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        i = torch.arange(nd)[:, None]
        j = torch.arange(ns)
        m = i >= j - ns + nd
        w = torch.where(m, w, torch.tensor(-1e10))
        a = F.softmax(w, dim=-1) @ v
        a = a.permute(0, 2, 1, 3).flatten(2)
        return self.c_proj(a), present

attention = GPT2Attention(48, 6)

# === fifth_alibi_far_favoured
# target: multi_head,alibi
# wrong: the sign is reversed: far keys are favoured
# words: sign
import torch
import torch.nn as nn

class AlibiSelfAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.to_q, self.to_k, self.to_v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.to_o = nn.Linear(d, d)
        self.register_buffer('m', 2.0 ** (-8.0 / h * torch.arange(1, h + 1)))

    def forward(self, x):
        B, T, D = x.shape
        q = self.to_q(x).view(B, T, self.h, -1).transpose(1, 2)
        k = self.to_k(x).view(B, T, self.h, -1).transpose(1, 2)
        v = self.to_v(x).view(B, T, self.h, -1).transpose(1, 2)
        r = torch.arange(T, device=x.device)
        dist = r[:, None] - r[None, :]
        s = q @ k.mT / (D // self.h) ** 0.5
        s = s + self.m.view(-1, 1, 1) * dist
        s = s.masked_fill(dist < 0, float('-inf'))
        y = torch.softmax(s, dim=-1) @ v
        return self.to_o(y.transpose(1, 2).reshape(B, T, D))

attention = AlibiSelfAttention(32, 4)

# === fifth_cache_preallocated
# target: multi_head,cache
# right: preallocated buffers with start_pos, heads-last cache
import math
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, n_heads, max_batch=4, max_len=32):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_len, n_heads, self.head_dim), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_len, n_heads, self.head_dim), persistent=False)

    @torch.inference_mode()
    def forward(self, x, start_pos=0):
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        k = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        v = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        self.cache_k[:bsz, start_pos : start_pos + seqlen] = k
        self.cache_v[:bsz, start_pos : start_pos + seqlen] = v
        keys = self.cache_k[:bsz, : start_pos + seqlen].transpose(1, 2)
        values = self.cache_v[:bsz, : start_pos + seqlen].transpose(1, 2)
        scores = torch.matmul(q.transpose(1, 2), keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = torch.full((seqlen, seqlen), float("-inf")).triu(1)
        mask = torch.hstack([torch.zeros((seqlen, start_pos)), mask])
        scores = torch.softmax(scores + mask, dim=-1)
        out = (scores @ values).transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out)

attention = Attention(32, 4)

# === fifth_alibi_function
# target: attend,alibi
# right: function of given q, k, v in heads-last layout
import torch

def alibi_attention(q, k, v):
    """q, k, v: (batch, time, heads, dim)"""
    b, t, h, d = q.shape
    m = torch.pow(2.0, -8.0 * torch.arange(1, h + 1) / h)
    i = torch.arange(t).reshape(t, 1)
    j = torch.arange(t).reshape(1, t)
    s = torch.einsum('bihd,bjhd->bhij', q, k) / d ** 0.5
    s = s - m[None, :, None, None] * (i - j).abs()
    s = torch.where(j > i, float('-inf'), s)
    return torch.einsum('bhij,bjhd->bihd', torch.softmax(s, -1), v)

attention = alibi_attention

# === fifth_alibi_divided
# target: multi_head,alibi
# wrong: the bias is added before the division by sqrt(d), so the slopes shrink too
# words: divided
import torch
import torch.nn as nn

def slopes(h):
    return torch.tensor([1 / 2 ** (8 / h * (n + 1)) for n in range(h)])

class Atn(nn.Module):
    def __init__(self, width, heads, bias=False):
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, width, bias=bias)
        self.v = nn.Linear(width, width, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        b, t, w = x.shape
        q = self.q(x).reshape(b, t, self.heads, self.head_width)
        k = self.k(x).reshape(b, t, self.heads, self.head_width)
        v = self.v(x).reshape(b, t, self.heads, self.head_width)
        scores = torch.einsum('bqhd,bkhd->bhqk', q, k)
        pos = torch.arange(t)
        alibi = (pos[None, :] - pos[:, None]) * slopes(self.heads)[:, None, None]
        scores = (scores + alibi) / self.head_width ** 0.5
        scores = scores.masked_fill(pos[None, :] > pos[:, None], float('-inf'))
        out = torch.einsum('bhqk,bkhd->bqhd', scores.softmax(-1), v)
        return self.o(out.reshape(b, t, w))

attention = Atn(32, 4)

# === fifth_rotary_of_values
# target: multi_head,rotary
# wrong: the values are rotated too
# words: values are rotated
import torch
import torch.nn as nn
import torch.nn.functional as F

class RoPE(nn.Module):
    def __init__(self, d, max_len=256, base=10_000):
        super().__init__()
        theta = 1. / base ** (torch.arange(0, d, 2).float() / d)
        ang = torch.outer(torch.arange(max_len).float(), theta)
        self.register_buffer('cos', ang.cos().repeat(1, 2))
        self.register_buffer('sin', ang.sin().repeat(1, 2))

    def forward(self, x):
        T, d = x.shape[-2:]
        neg = torch.cat([-x[..., d // 2:], x[..., :d // 2]], dim=-1)
        return x * self.cos[:T] + neg * self.sin[:T]

class RotaryMHA(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.rope = RoPE(d_model // heads)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3 * self.heads, -1).transpose(1, 2)
        q, k, v = self.rope(qkv).chunk(3, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

attention = RotaryMHA(32, 4)

# === fifth_alibi_from_zero
# target: multi_head,alibi
# wrong: the slopes start at 2^0: the head index counts from 0
# words: h = 0
import torch
from torch import nn
from torch.nn import functional as F

class SesgoLineal(nn.Module):
    def __init__(self, dim, cabezas):
        super().__init__()
        self.cabezas = cabezas
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.salida = nn.Linear(dim, dim, bias=False)

    def sesgo(self, T):
        pendientes = torch.tensor([2 ** (-8 * c / self.cabezas) for c in range(self.cabezas)])
        distancia = torch.arange(T)[None] - torch.arange(T)[:, None]
        s = pendientes[:, None, None] * distancia[None]
        return s + torch.triu(torch.full((T, T), float('-inf')), 1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (z.view(B, T, self.cabezas, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.sesgo(T))
        return self.salida(y.transpose(1, 2).reshape(B, T, C))

attention = SesgoLineal(64, 8)

# === fifth_alibi_buffer
# target: multi_head,alibi
# right: bias -slope * (i - j), slopes 2^(-8/h), in a buffer
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class ALiBiAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=64):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        slopes = torch.tensor([2 ** (-8 * (i + 1) / n_heads) for i in range(n_heads)])
        pos = torch.arange(max_len)
        dist = (pos[:, None] - pos[None, :]).clamp(min=0)
        bias = -slopes[:, None, None] * dist
        bias = bias.masked_fill(pos[None, :] > pos[:, None], float('-inf'))
        self.register_buffer('bias', bias)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(C // self.n_heads) + self.bias[:, :T, :T]
        y = F.softmax(att, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, C))

attention = ALiBiAttention(32, 4)

# === fifth_window_one_more
# target: multi_head,window=4
# wrong: off by one: window + 1 keys are seen
# words: too wide
import torch
import torch.nn as nn
from torch.nn import functional as F

class SlidingWindowAttention(nn.Module):
    def __init__(self, n_embd, n_head, window_size=4):
        super().__init__()
        self.n_head = n_head
        self.window_size = window_size  # number of positions a token sees, itself included
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = [t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v)]
        i = torch.arange(T, device=x.device).unsqueeze(1)
        j = torch.arange(T, device=x.device).unsqueeze(0)
        blocked = (j > i) | (i - j > self.window_size)
        att = q @ k.transpose(-2, -1) / (C // self.n_head) ** 0.5
        att = F.softmax(att.masked_fill(blocked, float('-inf')), dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)

attention = SlidingWindowAttention(48, 6)

# === fifth_window_both_sides
# target: attend,window=4
# wrong: the window is symmetric, |i - j| < w, and so sees the future
# words: future
import torch

def local_attn(q, k, v, w=4):
    n, d = q.shape[-2:]
    idx = torch.arange(n)
    near = (idx[:, None] - idx[None, :]).abs() < w
    logits = torch.einsum('...id,...jd->...ij', q, k) * d ** -0.5
    logits = torch.where(near, logits, -torch.inf)
    p = torch.softmax(logits, dim=-1)
    return torch.einsum('...ij,...jd->...id', p, v), p

attention = local_attn

# === fifth_cache_corner
# target: multi_head,cache
# wrong: the mask is tril of (T, S) at the upper left corner, so with a cache the queries see only the first keys
# words: corner
import torch
import torch.nn as nn
import torch.nn.functional as F

class CachedAttention(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head = n_head
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, kv_cache=None):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_head, -1).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_head, -1).transpose(1, 2)
        if kv_cache is not None:
            k = torch.cat([kv_cache[0], k], dim=2)
            v = torch.cat([kv_cache[1], v], dim=2)
        S = k.size(2)
        mask = torch.tril(torch.ones(T, S, device=x.device))
        att = (q @ k.transpose(-2, -1)) / (C // self.n_head) ** 0.5
        att = att.masked_fill(mask == 0, float('-inf'))
        y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.wo(y), (k, v)

attention = CachedAttention(48, 6)

# === fifth_window_chunks
# target: multi_head,window=3
# wrong: chunks i // w == j // w instead of a sliding window
# words: blocks
import torch
from torch import nn

class VentanaDeslizante(nn.Module):
    """ cada token mira los ultimos `ventana` tokens """
    def __init__(self, dim, cabezas, ventana):
        super().__init__()
        self.cabezas, self.ventana = cabezas, ventana
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        f = lambda capa: capa(x).view(B, T, self.cabezas, -1).transpose(1, 2)
        q, k, v = f(self.q), f(self.k), f(self.v)
        t = torch.arange(T)
        visible = (t[None] <= t[:, None]) & (t[None] // self.ventana == t[:, None] // self.ventana)
        s = q @ k.mT / q.shape[-1] ** 0.5
        s.masked_fill_(~visible, float('-inf'))
        y = s.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(B, T, D))

attention = VentanaDeslizante(32, 4, 3)

# === fifth_alibi_six_heads
# target: multi_head,alibi
# right: heads not a power of two: slopes interpolated as in the paper's code
import math
import torch
from torch import nn

def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]
    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]

class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("slopes", torch.tensor(get_slopes(heads)).view(heads, 1, 1))

    def forward(self, x):
        B, N, D = x.shape
        split = lambda z: z.view(B, N, self.h, -1).transpose(1, 2)
        q, k, v = split(self.wq(x)), split(self.wk(x)), split(self.wv(x))
        rel = torch.arange(N)[None, :] - torch.arange(N)[:, None]
        scores = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5 + self.slopes * rel
        scores = scores.masked_fill(rel > 0, float("-inf"))
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

attention = Attn(48, 6)

# === fifth_rotary_from_one
# target: multi_head,rotary
# right: positions counted from 1 (only differences matter), pairs by strided slices
import torch
import torch.nn as nn

def drehen(z, basis=10000.0):
    # z: (B, h, T, d)
    T, d = z.shape[-2:]
    pos = torch.arange(1, T + 1, dtype=z.dtype, device=z.device)
    freq = torch.exp(-torch.arange(0, d, 2, dtype=z.dtype) / d * torch.log(torch.tensor(basis)))
    w = pos[:, None] * freq
    c, s = w.cos(), w.sin()
    gerade, ungerade = z[..., 0::2], z[..., 1::2]
    neu = torch.empty_like(z)
    neu[..., 0::2] = gerade * c - ungerade * s
    neu[..., 1::2] = ungerade * c + gerade * s
    return neu

class DrehAufmerksamkeit(nn.Module):
    def __init__(self, breite, koepfe):
        super().__init__()
        self.koepfe = koepfe
        self.qkv = nn.Linear(breite, 3 * breite, bias=False)
        self.raus = nn.Linear(breite, breite, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.koepfe, c // self.koepfe).permute(2, 0, 3, 1, 4)
        q, k = drehen(q), drehen(k)
        p = q @ k.mT / (c // self.koepfe) ** 0.5
        p = p.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
        return self.raus((p @ v).transpose(1, 2).flatten(2))

attention = DrehAufmerksamkeit(32, 4)

# === fifth_window_mistral
# target: multi_head,window=4
# right: mistral-like module, mask by tril and triu with log, heads
import torch
from torch import nn
import torch.nn.functional as F
from dataclasses import dataclass

@dataclass
class ModelArgs:
    dim: int = 32
    n_heads: int = 4
    sliding_window: int = 4

class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        xq, xk, xv = (f(x).view(B, T, self.args.n_heads, self.head_dim).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        tensor = torch.full((T, T), fill_value=1.0)
        mask = torch.tril(tensor, diagonal=0)
        mask = torch.triu(mask, diagonal=-self.args.sliding_window + 1)
        mask = torch.log(mask)
        y = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))

attention = Attention(ModelArgs())

# === fifth_cache_last_only
# target: multi_head,cache
# wrong: the returned cache holds only the new keys and values, so the earlier past is lost after the second call
# words: overwritten
import torch
import torch.nn as nn
import torch.nn.functional as F

class LlamaLikeAttention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, past_key_value=None, use_cache=True):
        bsz, q_len, _ = hidden_states.size()
        view = (bsz, q_len, self.num_heads, self.head_dim)
        query = self.q_proj(hidden_states).view(view).transpose(1, 2)
        key = self.k_proj(hidden_states).view(view).transpose(1, 2)
        value = self.v_proj(hidden_states).view(view).transpose(1, 2)
        present = (key, value) if use_cache else None
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        kv_len = key.shape[2]
        mask = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out = out.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), present

attention = LlamaLikeAttention()
