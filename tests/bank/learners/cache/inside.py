# Attention whose module holds the cache: grown by cat, preallocated and written at a position, a ring, a step method.
# target: multi_head,cache

# === remembers_until_reset
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

# === remembers_by_itself
# right: called token by token, it remembers the past without being asked; reset() starts a new text
import torch
import torch.nn as nn

class StreamingAttention(nn.Module):
    """call it token by token; remembers the past by itself. reset() starts a new text"""
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = [nn.Linear(d, d) for _ in range(4)]
        self.reset()

    def reset(self):
        self.cache_k = None
        self.cache_v = None

    def forward(self, x):
        B, T, C = x.shape
        sp = lambda t: t.view(B, T, self.h, C // self.h).transpose(1, 2)
        q, k_new, v_new = sp(self.q(x)), sp(self.k(x)), sp(self.v(x))
        if self.cache_k is None:
            k, v = k_new, v_new
        else:
            k = torch.cat([self.cache_k, k_new], dim=2)
            v = torch.cat([self.cache_v, v_new], dim=2)
        self.cache_k, self.cache_v = k.detach(), v.detach()
        S = k.shape[2]
        att = q @ k.transpose(2, 3) / (C // self.h) ** 0.5
        att = att.masked_fill(torch.ones(T, S).triu(S - T + 1).bool(), float('-inf'))
        y = torch.softmax(att, -1) @ v
        return self.o(y.transpose(1, 2).reshape(B, T, C))

if __name__ == "__main__":
    net = StreamingAttention(32, 4)
    for t in range(5):
        y = net(torch.randn(1, 1, 32))
    print(y.shape)

# === remembers_the_newest_alone
# of: remembers_by_itself
# wrong: the cache keeps only the newest keys and values (overwritten, not appended), so from the third call on the earlier tokens are forgotten
# words: overwritten
#-        self.cache_k, self.cache_v = k.detach(), v.detach()
#+        self.cache_k, self.cache_v = k_new.detach(), v_new.detach()

# === preallocated_at_start_pos
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

# === forward_in_inference_mode
# of: preallocated_at_start_pos
# right: forward makes no gradients
#-    def forward(self, x, start_pos=0):
#+    @torch.inference_mode()
#+    def forward(self, x, start_pos=0):

# === preallocated_with_its_own_position
# right: buffers and a position in the module; reset() begins a new text
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
            self.pos += T
        rows = torch.arange(start, start + T, device=x.device)[:, None]
        cols = torch.arange(start + T, device=x.device)[None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=cols <= rows)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

attention = StaticKVAttention(48, 6)

# === position_counts_calls
# of: preallocated_with_its_own_position
# wrong: the position grows by one in every call, so that tokens after a longer chunk are written over it
# words: by one in every call
#-            self.pos += T
#+            self.pos += 1

# === whole_buffer_with_hidden_slots
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

# === gpt_fast_input_pos
# right: gpt-fast: input_pos is a tensor of positions, the module holds a KVCache module
import torch
from torch import nn
import torch.nn.functional as F

class KVCache(nn.Module):
    def __init__(self, batch, length, heads, d):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(batch, heads, length, d))
        self.register_buffer("v_cache", torch.zeros(batch, heads, length, d))

    def update(self, input_pos, k, v):
        self.k_cache[: k.shape[0], :, input_pos] = k
        self.v_cache[: k.shape[0], :, input_pos] = v
        return self.k_cache[: k.shape[0]], self.v_cache[: k.shape[0]]

class Attention(nn.Module):
    def __init__(self, dim, n_head, block_size=32):
        super().__init__()
        self.n_head, self.head_dim = n_head, dim // n_head
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.kv_cache = KVCache(4, block_size, n_head, self.head_dim)
        self.register_buffer("causal_mask", torch.tril(torch.ones(block_size, block_size, dtype=torch.bool)))

    def forward(self, x, input_pos=None):
        b, t, d = x.shape
        if input_pos is None:
            input_pos = torch.arange(t)
        q, k, v = (y.view(b, t, self.n_head, self.head_dim).transpose(1, 2) for y in self.wqkv(x).split(d, dim=-1))
        k, v = self.kv_cache.update(input_pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.causal_mask[None, None, input_pos])
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

attention = Attention(48, 6)

# === llama_complex_rotary_at_start_pos
# right: preallocated buffers written at start_pos, LLaMA style with complex rotary at absolute positions, batch up to 4
import math
import torch
import torch.nn as nn

class Attention(nn.Module):
    def __init__(self, dim, n_heads, max_batch=4, max_seq=64):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_seq, n_heads, self.head_dim), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_seq, n_heads, self.head_dim), persistent=False)
        f = 10000.0 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        f = torch.outer(torch.arange(max_seq).float(), f)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(f), f), persistent=False)

    def _rope(self, x, start):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        z = z * self.freqs_cis[start:start + x.shape[1]][None, :, None, :]
        return torch.view_as_real(z).flatten(-2).type_as(x)

    @torch.no_grad()
    def forward(self, x, start_pos=0):
        bsz, seqlen, _ = x.shape
        shape = (bsz, seqlen, self.n_heads, self.head_dim)
        xq, xk, xv = self.wq(x).view(shape), self.wk(x).view(shape), self.wv(x).view(shape)
        xq, xk = self._rope(xq, start_pos), self._rope(xk, start_pos)
        end = start_pos + seqlen
        self.cache_k[:bsz, start_pos:end] = xk
        self.cache_v[:bsz, start_pos:end] = xv
        q = xq.transpose(1, 2)
        keys = self.cache_k[:bsz, :end].transpose(1, 2)
        values = self.cache_v[:bsz, :end].transpose(1, 2)
        scores = q @ keys.transpose(2, 3) / math.sqrt(self.head_dim)
        if seqlen > 1:
            mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device).triu(1)
            mask = torch.hstack([torch.zeros((seqlen, start_pos), device=x.device), mask])
            scores = scores + mask
        out = torch.softmax(scores.float(), dim=-1).type_as(q) @ values
        return self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))

attention = Attention(48, 6)

# === step_method_with_position
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

# === step_leaves_out_the_newest_token
# of: step_method_with_position
# wrong: a step reads the cache up to its position alone: the newest token does not see itself
# words: no weight to itself
#-        self.pos += 1
#+        end, self.pos = max(self.pos, 1), self.pos + 1
#-        att = q @ self.k_cache[:, :, :self.pos].transpose(2, 3) / math.sqrt(self.hd)
#+        att = q @ self.k_cache[:, :, :end].transpose(2, 3) / math.sqrt(self.hd)
#-        return self.out((att.softmax(-1) @ self.v_cache[:, :, :self.pos]).transpose(1, 2).reshape(B, 1, C))
#+        return self.out((att.softmax(-1) @ self.v_cache[:, :, :end]).transpose(1, 2).reshape(B, 1, C))

# === grouped_rotary_cat_of_old_and_new
# target: grouped_query,rotary,cache
# right: llama style preallocated cache buffers with start_pos, half-split rotary, 3 kv heads, grouped einsum
import torch
import torch.nn as nn

class Attention(nn.Module):
    """Grouped queries + rotary + preallocated cache. forward(x, start_pos)."""

    def __init__(self, dim, n_heads, n_kv_heads=3, max_batch=4, max_seq=64, theta=10000.0):
        super().__init__()
        self.hq, self.hkv = n_heads, n_kv_heads
        self.dh = dim // n_heads
        self.wq = nn.Linear(dim, self.hq * self.dh, bias=False)
        self.wk = nn.Linear(dim, self.hkv * self.dh, bias=False)
        self.wv = nn.Linear(dim, self.hkv * self.dh, bias=False)
        self.wo = nn.Linear(self.hq * self.dh, dim, bias=False)
        half = torch.arange(self.dh // 2, dtype=torch.float64)
        angles = torch.arange(max_seq, dtype=torch.float64)[:, None] * theta ** (-2 * half / self.dh)
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1), persistent=False)
        self.register_buffer("cache_k", torch.zeros(max_batch, max_seq, n_kv_heads, self.dh), persistent=False)
        self.register_buffer("cache_v", torch.zeros(max_batch, max_seq, n_kv_heads, self.dh), persistent=False)

    def rot(self, x, start):
        stop = start + x.shape[1]
        c = self.cos[start:stop, None].to(x.dtype)
        s = self.sin[start:stop, None].to(x.dtype)
        left, right = x.tensor_split(2, -1)
        return x * c + torch.cat([-right, left], -1) * s

    def forward(self, x, start_pos=0):
        B, T, _ = x.shape
        end = start_pos + T
        q = self.rot(self.wq(x).view(B, T, self.hq, self.dh), start_pos)
        k = self.rot(self.wk(x).view(B, T, self.hkv, self.dh), start_pos)
        v = self.wv(x).view(B, T, self.hkv, self.dh)
        self.cache_k[:B, start_pos:end] = k.detach()
        self.cache_v[:B, start_pos:end] = v.detach()
        # old part from the cache, new part with its gradient
        k = torch.cat([self.cache_k[:B, :start_pos], k], dim=1)
        v = torch.cat([self.cache_v[:B, :start_pos], v], dim=1)

        group = self.hq // self.hkv
        q = q.view(B, T, self.hkv, group, self.dh)
        s = torch.einsum("btkgd,bskd->bkgts", q, k) / self.dh ** 0.5
        hidden = torch.ones(T, end, dtype=torch.bool, device=x.device).triu(start_pos + 1)
        w = s.masked_fill(hidden, float("-inf")).softmax(-1)
        y = torch.einsum("bkgts,bskd->btkgd", w, v)
        return self.wo(y.reshape(B, T, self.hq * self.dh))

attention = Attention(48, 6)

# === ring_of_window_slots
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
