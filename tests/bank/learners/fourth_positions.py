"""Learners' programs, a fourth lot: rotary, ALiBi, windows, means, linear attention, functions."""

# === fourth_rope_module
# target: multi_head,rotary
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

# === fourth_rope_unsqueezed_wrong
# target: multi_head,rotary
# wrong: the tables have no axis for the heads: (1, 1, H...) the angle grows with the head
# words: head|position
# like: fourth_rope_module
#-        self.register_buffer("cos", emb.cos()[None, :, None, :])
#-        self.register_buffer("sin", emb.sin()[None, :, None, :])
#+        self.register_buffer("cos", emb.cos()[None, None, :, :])
#+        self.register_buffer("sin", emb.sin()[None, None, :, :])
#-        n = x.shape[1]
#-        return x * self.cos[:, :n] + self.rotate_half(x) * self.sin[:, :n]
#+        n = x.shape[2]
#+        return x * self.cos[:, :, :n] + self.rotate_half(x) * self.sin[:, :, :n]

# === fourth_rope_stacked_table
# target: multi_head,rotary
# wrong: the table is stacked for neighbours, the turning is by halves
# words: halves
# like: fourth_rope_module
#-        emb = torch.cat((freqs, freqs), dim=-1)
#+        emb = torch.stack((freqs, freqs), dim=-1).flatten(-2)

# === fourth_rope_base_1000
# target: multi_head,rotary
# wrong: the base is 1000
# words: 1000 instead
# like: fourth_rope_module
#-    def __init__(self, dim, max_len=64, base=10000):
#+    def __init__(self, dim, max_len=64, base=1000):

# === fourth_rope_dim_of_model
# target: multi_head,rotary
# wrong: the exponents are those of the model's width, cut to the head's
# words: width of the model|2i/D
# like: fourth_rope_module
#-        freqs = torch.outer(torch.arange(max_len).float(), inv_freq)
#+        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / 48))
#+        freqs = torch.outer(torch.arange(max_len).float(), inv_freq)

# === fourth_rope_half_sign
# target: multi_head,rotary
# wrong: rotate_half returns (x2, -x1) for the keys only: they turn the other way
# words: opposite|direction
# like: fourth_rope_module
#-    def forward(self, x):
#-        n = x.shape[1]
#-        return x * self.cos[:, :n] + self.rotate_half(x) * self.sin[:, :n]
#+    def forward(self, x, sign=1):
#+        n = x.shape[1]
#+        return x * self.cos[:, :n] + sign * self.rotate_half(x) * self.sin[:, :n]
#-        q, k = self.rotary(q), self.rotary(k)
#+        q, k = self.rotary(q), self.rotary(k, -1)

# === fourth_rope_twice
# target: multi_head,rotary
# wrong: the fused tensor is rotated before it is unbound and again after: values too, and twice
# words: twice|values
# like: fourth_rope_module
#-        q, k = self.rotary(q), self.rotary(k)
#+        q, k = self.rotary(self.rotary(q)), self.rotary(self.rotary(k))

# === fourth_rope_complex
# target: multi_head,rotary
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

# === fourth_rope_complex_conjugate
# target: multi_head,rotary
# wrong: the conjugate is taken for the keys, as in a product of complex numbers: they turn the other way
# words: opposite|direction|sum
# like: fourth_rope_complex
#-    return torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f).flatten(3)
#+    return torch.view_as_real(xq_ * f).flatten(3), torch.view_as_real(xk_ * f.conj()).flatten(3)

# === fourth_rope_complex_arange
# target: multi_head,rotary
# wrong: arange(dim // 2) / dim: the exponent lacks the 2
# words: i/d
# like: fourth_rope_complex
#-    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)] / dim))
#+    freqs = 1.0 / (theta ** (torch.arange(0, dim // 2) / dim))

# === fourth_rope_degrees
# target: multi_head,rotary
# wrong: the angles are taken for degrees
# words: degree|180
# like: fourth_rope_complex
#-    return torch.polar(torch.ones(end, dim // 2), torch.outer(t, freqs))
#+    return torch.polar(torch.ones(end, dim // 2), torch.deg2rad(torch.outer(t, freqs)))

# === fourth_alibi_buffer
# target: multi_head,alibi
# right: slopes by the authors' function, the bias is a buffer
import math
import torch
from torch import nn

def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]

class AlibiAttention(nn.Module):
    def __init__(self, dim, heads, length=64):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        rel = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        bias = torch.tensor(get_slopes(heads)).view(-1, 1, 1) * rel
        self.register_buffer("bias", bias.masked_fill(rel > 0, -torch.inf))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :t, :t])
        return self.proj(y.transpose(1, 2).flatten(2))

attention = AlibiAttention(48, 6)

# === fourth_alibi_absolute
# target: multi_head,alibi
# wrong: the distance has the wrong sign: far tokens are preferred
# words: sign|far
# like: fourth_alibi_buffer
#-        bias = torch.tensor(get_slopes(heads)).view(-1, 1, 1) * rel
#+        bias = -torch.tensor(get_slopes(heads)).view(-1, 1, 1) * rel

# === fourth_alibi_slope_halves
# target: multi_head,alibi
# wrong: the slopes are 1/2, 1/4, ...: right for 8 heads only
# words: 8 heads|1/2
# like: fourth_alibi_buffer
#-        bias = torch.tensor(get_slopes(heads)).view(-1, 1, 1) * rel
#+        bias = torch.tensor([2.0 ** -(h + 1) for h in range(heads)]).view(-1, 1, 1) * rel

# === fourth_alibi_after_softmax
# target: multi_head,alibi
# wrong: the bias is added to the weights
# words: after the softmax
# like: fourth_alibi_buffer
#-        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :t, :t])
#+        a = q @ k.mT / q.shape[-1] ** 0.5
#+        bias = self.bias[:, :t, :t]
#+        a = a.masked_fill(bias.isinf(), -torch.inf).softmax(-1) + bias.masked_fill(bias.isinf(), 0.0)
#+        y = a @ v

# === fourth_window_sdpa
# target: multi_head,window=4
# right: a band made by tril and triu, for SDPA
import torch
from torch import nn

class Banded(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.to_qkv, self.to_out = nn.Linear(width, width * 3, bias=False), nn.Linear(width, width)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        band = torch.ones(n, n).tril().triu(1 - self.window).bool()
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.to_out(y.transpose(1, 2).flatten(2))

attention = Banded(48, 6, window=4)

# === fourth_window_narrow
# target: multi_head,window=4
# wrong: triu(2 - window): three tokens only
# words: narrow
# like: fourth_window_sdpa
#-        band = torch.ones(n, n).tril().triu(1 - self.window).bool()
#+        band = torch.ones(n, n).tril().triu(2 - self.window).bool()

# === fourth_window_future
# target: multi_head,window=4
# wrong: the band reaches ahead as far as back
# words: future
# like: fourth_window_sdpa
#-        band = torch.ones(n, n).tril().triu(1 - self.window).bool()
#+        band = torch.ones(n, n).tril(self.window - 1).triu(1 - self.window).bool()

# === fourth_mean_flip
# target: running_mean
# right: logcumsum-free: a cumulative sum by matmul with a lower triangle of 1/(t+1)
import torch

def average(x):
    T = x.size(-2)
    L = torch.tril(torch.ones(T, T, dtype=x.dtype)) * (1.0 / torch.arange(1, T + 1, dtype=x.dtype)).unsqueeze(1)
    return L @ x

# === fourth_mean_broadcast
# target: running_mean
# wrong: 1/(s+1) is laid over the columns: token s counts 1/(s+1) everywhere
# words: column
# like: fourth_mean_flip
#-    L = torch.tril(torch.ones(T, T, dtype=x.dtype)) * (1.0 / torch.arange(1, T + 1, dtype=x.dtype)).unsqueeze(1)
#+    L = torch.tril(torch.ones(T, T, dtype=x.dtype)) * (1.0 / torch.arange(1, T + 1, dtype=x.dtype)).unsqueeze(0)

# === fourth_mean_prefix
# target: running_mean
# right: a list of means of prefixes
import torch

def running_mean(x):
    return torch.stack([x[:, :i].mean(1) for i in range(1, x.shape[1] + 1)], dim=1)

# === fourth_mean_prefix_axis
# target: running_mean
# wrong: the mean of the prefix goes over the batch too
# words: batch|sequences
# like: fourth_mean_prefix
#-    return torch.stack([x[:, :i].mean(1) for i in range(1, x.shape[1] + 1)], dim=1)
#+    return torch.stack([x[:, :i].mean((0, 1)).expand(len(x), -1) for i in range(1, x.shape[1] + 1)], dim=1)

# === fourth_attend_bool
# target: attend
# right: logsumexp in place of a softmax
import torch

def attend(q, k, v):
    s = torch.einsum("...td,...sd->...ts", q, k) * q.size(-1) ** -0.5
    T, S = s.shape[-2:]
    s = s + torch.triu(torch.full((T, S), -torch.inf), S - T + 1)
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v

# === fourth_attend_logsumexp_axis
# target: attend
# wrong: logsumexp over all queries and keys
# words: all queries|over all
# like: fourth_attend_bool
#-    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v
#+    return torch.exp(s - torch.logsumexp(s, (-2, -1), keepdim=True)) @ v

# === fourth_attend_triu_corner
# target: attend
# wrong: triu(1): the queries are taken for the first positions
# words: corner|upper left
# like: fourth_attend_bool
#-    s = s + torch.triu(torch.full((T, S), -torch.inf), S - T + 1)
#+    s = s + torch.triu(torch.full((T, S), -torch.inf), 1)

# === fourth_linear_chunked
# target: linear_attention
# right: a module, recurrent state kept as a running einsum, eps
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        z = 1 / (torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2)) + 1e-6)
        y = torch.einsum("bhtd,bhtde,bht->bhte", q, kv, z)
        return self.to_out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(36, 4)

# === fourth_linear_sum_not_cumsum
# target: linear_attention
# wrong: the normaliser sums all keys: z sees the future
# words: normaliser
# like: fourth_linear_chunked
#-        z = 1 / (torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2)) + 1e-6)
#+        z = 1 / (torch.einsum("bhtd,bhd->bht", q, k.sum(2)) + 1e-6)

# === fourth_linear_relu
# target: linear_attention
# convention: relu in place of elu + 1, with an epsilon in the normaliser
# like: fourth_linear_chunked
#-        q, k = F.elu(q) + 1, F.elu(k) + 1
#+        q, k = F.relu(q), F.relu(k)
