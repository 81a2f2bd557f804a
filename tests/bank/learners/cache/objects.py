# Attention that fills a cache it is given: a dict, an object with update, Hugging Face's DynamicCache.
# target: multi_head,cache

# === dict_filled_by_the_module
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

# === dict_of_grouped_keys_with_rotary
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

# === cache_object_with_update
# right: a cache class of its own, given to forward
import torch
from torch import nn

class KV:
    def __init__(self):
        self.k, self.v = None, None

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        return self.k, self.v

class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def new_cache(self):
        return KV()

    def forward(self, x, kv_cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            k, v = kv_cache.update(k, v)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t + 1).bool(), -torch.inf)
        return self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = Attn(48, 6)

# === cache_updated_twice
# of: cache_object_with_update
# wrong: the new keys and values are appended twice
# words: twice|double
#-        if kv_cache is not None:
#+        if kv_cache is not None:
#+            kv_cache.update(k, v)

# === cache_mask_one_diagonal_too_tight
# of: cache_object_with_update
# wrong: the mask of a chunk is one diagonal too tight: triu(s - t): a token does not see itself
# words: itself|own|diagonal
#-        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t + 1).bool(), -torch.inf)
#+        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t).bool(), -1e30)

# === dynamic_cache
# right: a DynamicCache class in the file, filled by update(key, value, layer)
import torch
from torch import nn
import torch.nn.functional as F

class DynamicCache:
    def __init__(self):
        self.key_cache, self.value_cache = [], []

    def get_seq_length(self, layer_idx=0):
        return self.key_cache[layer_idx].shape[-2] if len(self.key_cache) > layer_idx else 0

    def update(self, key, value, layer_idx):
        if len(self.key_cache) <= layer_idx:
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, layer_idx=0):
        super().__init__()
        self.n_heads, self.layer_idx = n_heads, layer_idx
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, past_key_values=None):
        B, T, D = x.shape
        q, k, v = (p(x).view(B, T, self.n_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        S = k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, D))

attention = SelfAttention(48, 6)

# === dynamic_cache_is_causal
# of: dynamic_cache
# wrong: is_causal=True with a cache: the mask is aligned to the upper left
# words: corner|upper left|is_causal
#-        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)

# === rolling_cache_of_a_window
# target: multi_head,window=4,cache
# right: an object that keeps what the next chunk can see: window - 1 positions before it
import torch
from torch import nn

class RollingKV:
    def __init__(self, window):
        self.window, self.at, self.kv = window, 0, None

    def push(self, kv):
        T = kv.shape[3]
        kv = kv if self.kv is None else torch.cat((self.kv, kv), 3)
        kv = kv[:, :, :, -(T + self.window - 1) :]
        self.kv, self.at = kv, self.at + T
        return kv

class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window=4):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        B, T, D = x.shape
        cache = RollingKV(self.window) if cache is None else cache
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        k, v = cache.push(torch.stack((k, v)))
        S = k.shape[2]
        gap = torch.arange(S - T, S)[:, None] - torch.arange(S)
        scores = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill((gap < 0) | (gap >= self.window), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

# === rolling_cache_trimmed_before_it_is_read
# of: rolling_cache_of_a_window
# wrong: the oldest keys go before the chunk has seen them: only its last query has the whole window
# words: window
#-        kv = kv[:, :, :, -(T + self.window - 1) :]
#+        kv = kv[:, :, :, -max(T, self.window) :]
