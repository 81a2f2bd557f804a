"""Learners' programs: multi-head attention with a cache of keys and values, and linear attention with a state."""

# === cache_returned
# target: multi_head,cache
# right: past in, past out, as in GPT-2's code; the mask is aligned to the last positions
import torch
from torch import nn

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)

    def forward(self, x, layer_past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=-2)
            v = torch.cat((layer_past[1], v), dim=-2)
        s = k.shape[-2]
        a = q @ k.mT / (d // self.h) ** 0.5
        a = a.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), float("-inf"))
        y = (a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)
        return self.c_proj(y), (k, v)

attention = CachedAttention(48, 6)

# === cache_preallocated
# target: multi_head,cache
# right: buffers inside the module, written at start_pos
import torch
from torch import nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self, dim, n_heads, max_seq_len=64, max_batch=8):
        super().__init__()
        self.n_heads, hd = n_heads, dim // n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.register_buffer("cache_k", torch.zeros(max_batch, max_seq_len, n_heads, hd), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_seq_len, n_heads, hd), persistent=False)

    def forward(self, x, start_pos=0):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.n_heads, -1) for w in (self.wq, self.wk, self.wv))
        self.cache_k[:b, start_pos : start_pos + t] = k
        self.cache_v[:b, start_pos : start_pos + t] = v
        keys, values = self.cache_k[:b, : start_pos + t], self.cache_v[:b, : start_pos + t]
        mask = torch.arange(start_pos + t)[None, :] <= torch.arange(start_pos, start_pos + t)[:, None]
        y = F.scaled_dot_product_attention(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

attention = Attention(48, 6)

# === cache_dict
# target: multi_head,cache
# right: a dict that the module fills
import math
import torch
from torch import nn

class Attn(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, cache=None):
        B, T, D = x.shape
        split = lambda y: y.view(B, T, self.heads, D // self.heads).transpose(1, 2)
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        if cache is not None:
            if "k" in cache:
                k = torch.cat([cache["k"], k], dim=2)
                v = torch.cat([cache["v"], v], dim=2)
            cache["k"], cache["v"] = k, v
        S = k.size(2)
        scores = q @ k.transpose(2, 3) / math.sqrt(D // self.heads)
        scores = scores + torch.full((T, S), -math.inf).triu(S - T + 1)
        return self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(B, T, D))

attention = Attn(48, 6)

# === cache_inside_with_reset
# target: multi_head,cache
# right: the module remembers when use_cache is set; reset_cache forgets
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_in // num_heads
        self.W_query = nn.Linear(d_in, d_in, bias=False)
        self.W_key = nn.Linear(d_in, d_in, bias=False)
        self.W_value = nn.Linear(d_in, d_in, bias=False)
        self.out_proj = nn.Linear(d_in, d_in)
        self.cache_k = self.cache_v = None
        self.ptr = 0

    def reset_cache(self):
        self.cache_k = self.cache_v = None
        self.ptr = 0

    def forward(self, x, use_cache=False):
        b, n, d = x.shape
        k_new = self.W_key(x).view(b, n, self.num_heads, self.head_dim)
        v_new = self.W_value(x).view(b, n, self.num_heads, self.head_dim)
        q = self.W_query(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        start = 0
        if use_cache:
            start = self.ptr
            self.cache_k = k_new if self.cache_k is None else torch.cat([self.cache_k, k_new], dim=1)
            self.cache_v = v_new if self.cache_v is None else torch.cat([self.cache_v, v_new], dim=1)
            k_new, v_new = self.cache_k, self.cache_v
            self.ptr += n
        k, v = k_new.transpose(1, 2), v_new.transpose(1, 2)
        s = q @ k.transpose(2, 3) / self.head_dim**0.5
        hidden = torch.arange(start, start + n).unsqueeze(-1) < torch.arange(k.shape[2]).unsqueeze(0)
        s.masked_fill_(hidden, -torch.inf)
        return self.out_proj((torch.softmax(s, dim=-1) @ v).transpose(1, 2).contiguous().view(b, n, d))

attention = MultiHeadAttention(48, 6)

# === cache_upper_left
# target: multi_head,cache
# wrong: the mask of a chunk is aligned to the upper left: the new tokens are taken for the first ones
# words: offset|upper|left|first|chunk|position|S - T
import torch
from torch import nn

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        a = q @ k.mT / (d // self.h) ** 0.5
        a = a.masked_fill(torch.ones(t, k.shape[2]).tril() == 0, float("-inf"))
        return self.c_proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)), (k, v)

attention = CachedAttention(48, 6)

# === cache_prepends
# target: multi_head,cache
# wrong: the new keys are put before the old ones
# words: order|before|front|prepend|append
import torch
from torch import nn

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((k, past[0]), 2), torch.cat((v, past[1]), 2)
        s = k.shape[2]
        a = q @ k.mT / (d // self.h) ** 0.5
        a = a.masked_fill(torch.ones(t, s).tril(s - t) == 0, float("-inf"))
        return self.c_proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)), (k, v)

attention = CachedAttention(48, 6)

# === cache_without_mask
# target: multi_head,cache
# wrong: with a past there is no mask at all: right token by token, but within a chunk the future is seen
# words: chunk|future|mask|causal
import torch
from torch import nn
import torch.nn.functional as F

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d)), (k, v)

attention = CachedAttention(48, 6)

# === cache_is_causal
# target: multi_head,cache
# wrong: is_causal=True with one query and many keys: the new token sees the first key only
# words: first|is_causal|upper|left|offset|position
import torch
from torch import nn
import torch.nn.functional as F

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d)), (k, v)

attention = CachedAttention(48, 6)

# === cache_forgets_older
# target: multi_head,cache
# wrong: only the newest keys are handed on, so a token sees its own chunk and the one before
# words: only|forget|last|newest|previous|older
import torch
from torch import nn

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        present = (k, v)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).tril(s - t) == 0, float("-inf"))
        return self.c_proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)), present

attention = CachedAttention(48, 6)

# === cache_keys_twice
# target: multi_head,cache
# wrong: a slip of the pen: the keys are handed on twice, so later tokens mix keys instead of values
# words: value
import torch
from torch import nn

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        if past is not None:
            v = torch.cat((past[1], v), 2)
            k = torch.cat((past[0], k), 2)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).tril(s - t) == 0, float("-inf"))
        return self.c_proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)), (k, k)

attention = CachedAttention(48, 6)

# === cache_rotary_no_offset
# target: multi_head,rotary,cache
# wrong: rotary angles start at 0 for every chunk: cached tokens have other positions than the whole text
# words: offset|position|start|angle
# seen: pytorch/executorch#2010
import torch
from torch import nn

def rope(x):
    T, d = x.shape[-2:]
    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        q, k = rope(q), rope(k)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).tril(s - t) == 0, float("-inf"))
        return self.c_proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)), (k, v)

attention = CachedAttention(48, 6)

# === cache_rotary_right
# target: multi_head,rotary,cache
# right: the angles start at the length of the past
import torch
from torch import nn

def rope(x, start):
    T, d = x.shape[-2:]
    th = torch.arange(start, start + T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack((e * th.cos() - o * th.sin(), e * th.sin() + o * th.cos()), -1).flatten(-2)

class CachedAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past=None):
        b, t, d = x.shape
        start = 0 if past is None else past[0].shape[2]
        q, k, v = (y.view(b, t, self.h, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        q, k = rope(q, start), rope(k, start)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).tril(s - t) == 0, float("-inf"))
        return self.c_proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)), (k, v)

attention = CachedAttention(48, 6)

# === linear_parallel
# target: linear_attention
# right: a masked product of features, rows divided by their sums
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        w = (q @ k.mT).tril()
        y = (w @ v) / w.sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_recurrent
# target: linear_attention
# right: a state that is updated token by token
import torch
from torch import nn
import torch.nn.functional as F

class Recurrent(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        B, T, D = x.shape
        e = D // self.heads
        q = (F.elu(self.wq(x)) + 1).view(B, T, self.heads, e)
        k = (F.elu(self.wk(x)) + 1).view(B, T, self.heads, e)
        v = self.wv(x).view(B, T, self.heads, e)
        S, z, ys = x.new_zeros(B, self.heads, e, e), x.new_zeros(B, self.heads, e), []
        for t in range(T):
            S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
            z = z + k[:, t]
            num = torch.einsum("bhd,bhde->bhe", q[:, t], S)
            den = (q[:, t] * z).sum(-1, keepdim=True)
            ys.append(num / den)
        return self.wo(torch.stack(ys, 1).reshape(B, T, D))

attention = Recurrent(48, 6)

# === linear_cumsum_eps
# target: linear_attention
# right: cumulative sums, and a tiny number in the denominator
import torch
from torch import nn
import torch.nn.functional as F

class Linear(nn.Module):
    def __init__(self, dim, heads, eps=1e-12):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
        kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
        d_inv = 1.0 / (torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + self.eps)
        out = torch.einsum("bhnde,bhnd,bhn->bhne", kv, q, d_inv)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))

attention = Linear(48, 6)

# === linear_no_normaliser
# target: linear_attention
# wrong: the sum is not divided by the features' sum
# words: normal|divid|sum
# seen: lucidrains/performer-pytorch#40
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return self.out(((q @ k.mT).tril() @ v).transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_multiplies_normaliser
# target: linear_attention
# wrong: multiplies by the denominator instead of dividing by it
# words: multipl|normal|divid
# seen: lucidrains/performer-pytorch#40
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        d_inv = torch.einsum("...nd,...nd->...n", q, k.cumsum(dim=-2))
        context = torch.einsum("...nd,...ne->...nde", k, v).cumsum(dim=-3)
        y = torch.einsum("...nde,...nd,...n->...ne", context, q, d_inv)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_normalised_by_all
# target: linear_attention
# wrong: the denominator sums the keys of the whole text, the future included
# words: future|all|whole|causal|denominator|normal
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        num = (k[..., :, None] * v[..., None, :]).cumsum(2)
        den = (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
        y = (q[..., None, :] @ num).squeeze(-2) / den
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_not_causal
# target: linear_attention
# wrong: the state is the sum over the whole text: not causal
# words: future|causal|whole|all
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        y = q @ (k.mT @ v) / (q @ k.sum(2).unsqueeze(-1))
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_without_one
# target: linear_attention
# wrong: elu without + 1: the features can be negative
# words: feature|elu|+ 1|+1|negative
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q), F.elu(k)
        w = (q @ k.mT).tril()
        return self.out((w @ v / w.sum(-1, keepdim=True)).transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_key_only
# target: linear_attention
# wrong: the feature map is applied to the keys and not to the queries
# words: quer|feature
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        k = F.elu(k) + 1
        w = (q @ k.mT).tril()
        return self.out((w @ v / w.sum(-1, keepdim=True)).transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_late_update
# target: linear_attention
# wrong: the state is updated after it is read: a token does not see itself
# words: itself|own|after|update|before|current
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        S, z, out = 0, 0, []
        for i in range(t):
            kv = k[:, :, i, :, None] * v[:, :, i, None, :]
            if i == 0:
                S, z = kv, k[:, :, 0]
                out.append(v[:, :, 0])
                continue
            out.append(torch.einsum("bhd,bhde->bhe", q[:, :, i], S) / (q[:, :, i] * z).sum(-1, keepdim=True))
            S, z = S + kv, z + k[:, :, i]
        return self.out(torch.stack(out, 2).transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_cumsum_axis
# target: linear_attention
# wrong: cumsum over the heads' axis instead of time
# words: head|axis|dim|time
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        S = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(1)
        z = k.cumsum(1)
        y = torch.einsum("bhtd,bhtde->bhte", q, S) / (q * z).sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)
