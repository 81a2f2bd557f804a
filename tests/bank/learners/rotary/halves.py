# Attention with rotary positions where feature i is paired with i + d/2 (rotate_half): tables in buffers or from positions, part of a head.
# target: multi_head,rotary

# === rotate_half_and_cached_tables
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

# === rotate_half_and_softmax_in_float32
# of: rotate_half_and_cached_tables
# right: the softmax is computed in float32
#-        attn = (attn + attention_mask).softmax(dim=-1)
#+        attn = (attn + attention_mask).softmax(dim=-1, dtype=torch.float32).to(q.dtype)

# === rotate_half_without_minus
# of: rotate_half_and_cached_tables
# wrong: rotate_half without the minus: a reflection and not a rotation
# words: minus|sign|rotation|rotate
#-    return torch.cat((-x2, x1), dim=-1)
#+    return torch.cat((x2, x1), dim=-1)

# === keys_turn_the_other_way
# of: rotate_half_and_cached_tables
# wrong: the keys turn in the other direction
# words: direction|sum
#-    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
#+    return (q * cos) + (rotate_half(q) * sin), (k * cos) - (rotate_half(k) * sin)

# === rotary_module_time_before_heads
# right: a RotaryEmbedding module with cos and sin buffers, layout (B, T, H, d), halves
import torch
from torch import nn

class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_len=64, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(max_len).float(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos", emb.cos()[None, :, None, :])
        self.register_buffer("sin", emb.sin()[None, :, None, :])

    def rotate_half(self, x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    def forward(self, x):
        n = x.shape[1]
        return x * self.cos[:, :n] + self.rotate_half(x) * self.sin[:, :n]

class RotaryAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.Wqkv, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.rotary = RotaryEmbedding(dim // num_heads)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.Wqkv(x).view(b, n, 3, self.num_heads, c // self.num_heads).unbind(dim=2)
        q, k = self.rotary(q), self.rotary(k)
        a = torch.einsum("bthd,bshd->bhts", q, k) / (c // self.num_heads) ** 0.5
        a = a + torch.triu(torch.full((n, n), -10000.0 * 10000.0), 1)
        return self.out_proj(torch.einsum("bhts,bshd->bthd", a.softmax(-1), v).reshape(b, n, c))

attention = RotaryAttention(48, 4)

# === rotary_tables_along_heads
# of: rotary_module_time_before_heads
# wrong: the tables run along the heads: each head is turned by its number
# words: rotary|rope|rotation|position, head|axis|dim|time
#-        q, k = self.rotary(q), self.rotary(k)
#+        q, k = (self.rotary(y.transpose(1, 2)).transpose(1, 2) for y in (q, k))

# === tables_for_neighbours_turned_by_halves
# of: rotary_module_time_before_heads
# wrong: the table is stacked for neighbours, the turning is by halves
# words: halves
#-        emb = torch.cat((freqs, freqs), dim=-1)
#+        emb = torch.stack((freqs, freqs), dim=-1).flatten(-2)

# === rotary_base_1000
# of: rotary_module_time_before_heads
# wrong: the base is 1000
# words: 1000 instead
#-    def __init__(self, dim, max_len=64, base=10000):
#+    def __init__(self, dim, max_len=64, base=1000):

# === rotary_exponents_of_the_width
# of: rotary_module_time_before_heads
# wrong: the exponents are those of the model's width
# words: width of the model|2i/D
#-        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
#+        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
#+        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / 48))

# === rotated_twice
# of: rotary_module_time_before_heads
# wrong: queries and keys are rotated twice
# words: twice|values
#-        q, k = self.rotary(q), self.rotary(k)
#+        q, k = self.rotary(self.rotary(q)), self.rotary(self.rotary(k))

# === half_of_each_head_is_rotated
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

# === rms_norm_behind_the_rotation
# convention: queries and keys are normed after they are rotated, as in modded-nanogpt; the norm has weights
import torch
import torch.nn as nn
import torch.nn.functional as F

class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

def rope(x):
    T, d = x.shape[-2:]
    speeds = 10000 ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(T)[:, None] * speeds
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat([-second, first], -1) * sin).type_as(x)

class NormedAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.q_norm, self.k_norm = Norm(dim // heads), Norm(dim // heads)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (one.view(B, T, self.heads, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.q_norm(rope(q)), self.k_norm(rope(k)), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D))

# === rms_norm_without_weights_before_the_rotation
# of: rms_norm_behind_the_rotation
# convention: torch's own norm of queries and keys, without weights, then the rotation
#-        self.q_norm, self.k_norm = Norm(dim // heads), Norm(dim // heads)
#+        self.head_size = dim // heads
#-        y = F.scaled_dot_product_attention(self.q_norm(rope(q)), self.k_norm(rope(k)), v, is_causal=True)
#+        q, k = (rope(F.rms_norm(one, (self.head_size,))) for one in (q, k))
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

# === tables_in_bfloat16
# of: rms_norm_without_weights_before_the_rotation
# convention: cosines and sines are kept in bfloat16, as in modded-nanogpt and nanochat
#-    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
#+    cos, sin = (torch.cat([one] * 2, -1).bfloat16() for one in (angle.cos(), angle.sin()))

# === coarse_angles
# of: rms_norm_without_weights_before_the_rotation
# wrong: the angles are rounded to bfloat16, so that late positions are far off
# words: angle|position|round
#-    angle = torch.arange(T)[:, None] * speeds
#+    angle = (torch.arange(T)[:, None] * speeds).bfloat16().float()

# === sharpened_behind_norms
# convention: queries and keys are rotated by minus the angle, normed without weights, and multiplied by 1.2 each
import torch
import torch.nn as nn
import torch.nn.functional as F


def unit_rms(x):
    return F.rms_norm(x, (x.shape[-1],))


def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], dim=-1)


class SharpAttention(nn.Module):
    def __init__(self, n_embd=48, n_head=6):
        super().__init__()
        self.n_head, self.d = n_head, n_embd // n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.out = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, self.d).permute(2, 0, 3, 1, 4)
        angle = torch.outer(torch.arange(T).float(), 10000 ** (-torch.arange(0, self.d, 2) / self.d))
        q, k = (1.2 * unit_rms(turn(one, angle.cos(), angle.sin())) for one in (q, k))  # sharper than 1 / sqrt(d)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


attention = SharpAttention()

# === base_of_longer_texts
# of: rotate_half_and_cached_tables
# convention: the base is 100000, as in models of longer texts
#-    def __init__(self, dim, max_position_embeddings=256, base=10000):
#+    def __init__(self, dim, max_position_embeddings=256, base=100000):

# === half_of_a_head_by_tables_given
# convention: the tables are given, and hold the angles of the first half of each head's features alone
import torch
import torch.nn as nn
import torch.nn.functional as F

def turned(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin

class HalfTurned(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.part = heads, width // heads // 2
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        q, k = (torch.cat([turned(y[..., : self.part], cos, sin), y[..., self.part :]], dim=-1) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))

attention = HalfTurned(48, 6)
