"""Learners' programs, a third lot, written before its author had seen the list of bugs or the bank: positions."""

# === third_hf_rotary
# target: multi_head,rotary
# right: Hugging Face: rotate_half, cos and sin caches as buffers
import torch
import torch.nn.functional as F
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_position=256, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        freqs = torch.outer(torch.arange(max_position, dtype=torch.float64), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, seq_len):
        return self.cos_cached[:seq_len], self.sin_cached[:seq_len]


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class HFAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.size()
        shape = (bsz, q_len, self.num_heads, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = self.rotary_emb(q_len)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))


attention = HFAttention(48, 6)

# === third_hf_interleaved_cache
# target: multi_head,rotary
# wrong: the table is made for neighbouring pairs (repeat_interleave), the turning is by halves
# words: half|halves|interleave|pair
# like: third_hf_rotary
#-        emb = torch.cat((freqs, freqs), dim=-1)
#+        emb = freqs.repeat_interleave(2, dim=-1)

# === third_hf_base_1000
# target: multi_head,rotary
# wrong: the base is 1000
# words: base|1000|expected
# like: third_hf_rotary
#-    def __init__(self, dim, max_position=256, base=10000.0):
#+    def __init__(self, dim, max_position=256, base=1000.0):

# === third_hf_key_sign
# target: multi_head,rotary
# wrong: the keys turn in the other direction
# words: direction|sum
# like: third_hf_rotary
#-        k = k * cos + rotate_half(k) * sin
#+        k = k * cos - rotate_half(k) * sin

# === third_alibi
# target: multi_head,alibi
# right: ALiBi with slopes for any number of heads, built in forward
import math

import torch
from torch import nn


def slopes(n):
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + slopes(2 * closest)[0::2][: n - closest]


class ALiBiAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.kqv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.register_buffer("m", torch.tensor(slopes(num_heads)).view(num_heads, 1, 1))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.kqv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, -1).transpose(1, 2)
        k = k.view(B, T, self.num_heads, -1).permute(0, 2, 3, 1)
        v = v.view(B, T, self.num_heads, -1).transpose(1, 2)
        pos = torch.arange(T)
        distance = (pos[None, :] - pos[:, None]).clamp(max=0)
        score = q @ k / math.sqrt(self.kqv.in_features // self.num_heads) + self.m * distance
        score = score.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        out = score.softmax(-1) @ v
        return self.out(out.transpose(1, 2).reshape(B, T, C))


attention = ALiBiAttention(48, 6)

# === third_alibi_scaled
# target: multi_head,alibi
# wrong: the bias is divided by sqrt(d) with the scores
# words: bias|slope
# like: third_alibi
#-        score = q @ k / math.sqrt(self.kqv.in_features // self.num_heads) + self.m * distance
#+        score = (q @ k + self.m * distance) / math.sqrt(self.kqv.in_features // self.num_heads)

# === third_window
# target: multi_head,window=4
# right: a sliding window by two triangles, given to SDPA
import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    def __init__(self, dim, n_head, window):
        super().__init__()
        self.n_head, self.window = n_head, window
        self.to_qkv = nn.Linear(dim, dim * 3)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        ones = torch.ones(n, n, dtype=torch.bool)
        keep = ones.tril() & ones.triu(1 - self.window)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.to_out(y.transpose(1, 2).reshape(b, n, c))


attention = LocalAttention(48, 6, 4)

# === third_window_one_more
# target: multi_head,window=4
# wrong: the window has five tokens
# words: window|5
# like: third_window
#-        keep = ones.tril() & ones.triu(1 - self.window)
#+        keep = ones.tril() & ones.triu(-self.window)

# === third_window_blocks
# target: multi_head,window=4
# wrong: fixed blocks of four instead of a sliding window
# words: block
# like: third_window
#-        keep = ones.tril() & ones.triu(1 - self.window)
#+        block = torch.arange(n) // self.window
#+        keep = ones.tril() & (block[:, None] == block[None, :])

# === third_cache_inside
# target: multi_head,cache
# right: the cache is kept inside the module and emptied by reset_cache
import torch
import torch.nn as nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h = n_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.cache_k, self.cache_v = None, None

    def reset_cache(self):
        self.cache_k, self.cache_v = None, None

    def forward(self, x, use_cache=False):
        B, T, D = x.shape
        q, k, v = [f(x).view(B, T, self.h, D // self.h).transpose(1, 2) for f in (self.W_q, self.W_k, self.W_v)]
        if use_cache:
            if self.cache_k is not None:
                k = torch.cat([self.cache_k, k], dim=2)
                v = torch.cat([self.cache_v, v], dim=2)
            self.cache_k, self.cache_v = k, v
        S = k.size(2)
        mask = torch.ones(T, S, dtype=torch.bool).triu(diagonal=S - T + 1)
        att = (q @ k.mT / (D // self.h) ** 0.5).masked_fill(mask, -torch.inf).softmax(-1)
        return self.W_o((att @ v).transpose(1, 2).reshape(B, T, D))


attention = CachedAttention(48, 6)

# === third_cache_inside_corner
# target: multi_head,cache
# wrong: the mask is aligned to the upper left corner
# words: corner|align|mask
# like: third_cache_inside
#-        mask = torch.ones(T, S, dtype=torch.bool).triu(diagonal=S - T + 1)
#+        mask = torch.ones(T, S, dtype=torch.bool).triu(diagonal=1)

# === third_cache_inside_last_only
# target: multi_head,cache
# wrong: the values of the past are not stored: the cache of values holds the last chunk tiled
# words: value
# like: third_cache_inside
#-                v = torch.cat([self.cache_v, v], dim=2)
#+                v = torch.cat([v, self.cache_v], dim=2)

# === third_cache_passed
# target: multi_head,rotary,cache
# right: past_key_value goes in and out, rotary by complex numbers at the offset of the past
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head, self.hd = n_head, n_embd // n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def rope(self, x, start):
        inv = 10000 ** -(torch.arange(0, self.hd, 2, dtype=torch.float64) / self.hd)
        angles = torch.arange(start, start + x.size(2), dtype=torch.float64)[:, None] * inv
        z = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2).to(x.dtype)

    def forward(self, x, past_key_value=None):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.n_head, self.hd).transpose(1, 2) for y in self.c_attn(x).split(C, dim=2))
        start = past_key_value[0].size(2) if past_key_value is not None else 0
        q, k = self.rope(q, start), self.rope(k, start)
        if past_key_value is not None:
            k = torch.cat((past_key_value[0], k), dim=2)
            v = torch.cat((past_key_value[1], v), dim=2)
        rows = torch.arange(start, start + T)[:, None]
        keep = torch.arange(start + T)[None, :] <= rows
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), (k, v)


attention = Attn(48, 6)

# === third_cache_passed_turned_again
# target: multi_head,rotary,cache
# wrong: the keys of the past are rotated again with each call
# words: again|twice
# like: third_cache_passed
#-        q, k = self.rope(q, start), self.rope(k, start)
#-        if past_key_value is not None:
#-            k = torch.cat((past_key_value[0], k), dim=2)
#-            v = torch.cat((past_key_value[1], v), dim=2)
#+        q = self.rope(q, start)
#+        if past_key_value is not None:
#+            k = torch.cat((past_key_value[0], k), dim=2)
#+            v = torch.cat((past_key_value[1], v), dim=2)
#+        k = self.rope(k, 0)

# === third_cache_passed_from_zero
# target: multi_head,rotary,cache
# wrong: with a cache the positions start at 0 again
# words: position|offset
# like: third_cache_passed
#-        q, k = self.rope(q, start), self.rope(k, start)
#+        q, k = self.rope(q, 0), self.rope(k, 0)

# === third_linear_state
# target: linear_attention
# right: a function with a running state, elu + 1 as feature map
import torch
import torch.nn.functional as F


def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.zeros(*k.shape[:-2], k.size(-1), v.size(-1), dtype=v.dtype)
    z = torch.zeros_like(k[..., 0, :])
    out = []
    for t in range(q.size(-2)):
        state = state + k[..., t, :, None] * v[..., t, None, :]
        z = z + k[..., t, :]
        top = torch.einsum("...d,...de->...e", q[..., t, :], state)
        bottom = (q[..., t, :] * z).sum(-1, keepdim=True)
        out.append(top / bottom)
    return torch.stack(out, dim=-2)

# === third_linear_state_late
# target: linear_attention
# wrong: the token's own key and value enter the state after it is read, but not z
# words: itself|own|before|late
# like: third_linear_state
#-        state = state + k[..., t, :, None] * v[..., t, None, :]
#-        z = z + k[..., t, :]
#+        z = z + k[..., t, :]
#-        out.append(top / bottom)
#+        out.append(top / bottom)
#+        state = state + k[..., t, :, None] * v[..., t, None, :]

# === third_linear_no_z
# target: linear_attention
# wrong: the normaliser is the number of tokens
# words: normalis|divide|number of
# like: third_linear_state
#-        out.append(top / bottom)
#+        out.append(top / (t + 1))
