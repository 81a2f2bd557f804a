# Masks, lengths and caches that a caller may leave out, where nobody said what a program is.
# target: found

# === padding_under_another_name
# right: an optional table (B, T) of tokens that are no padding
import torch
import torch.nn as nn

class Padded(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, real=None):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        if real is not None:
            seen = seen & real[:, None, None, :]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

# === padding_of_queries
# of: padding_under_another_name
# wrong: the padding is applied to the axis of the queries
# words: query
#-            seen = seen & real[:, None, None, :]
#+            seen = seen & real[:, None, :, None]

# === padding_that_is_thrown_away
# of: padding_under_another_name
# wrong: masked_fill makes a new tensor, which nobody keeps
# words: the same|output
#-    def forward(self, x, real=None):
#+    def forward(self, x, attention_mask=None):
#-        if real is not None:
#-            seen = seen & real[:, None, None, :]
#-        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
#+        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
#+        if attention_mask is not None:
#+            scores.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(q.dtype).min)

# === padding_behind_the_softmax
# of: padding_under_another_name
# wrong: padded tokens have their share of the softmax
# words: hides
#-            seen = seen & real[:, None, None, :]
#-        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
#-        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))
#+            v = v * real[:, None, :, None]
#+        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
#+        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

# === lengths_with_heads_in_the_batch
# right: the lengths of the texts, and a batch of B * H for bmm
import torch
from torch import nn

class Lengths(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.H, self.d = num_heads, hidden_size // num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden_size, hidden_size) for _ in range(4))

    def fold(self, t):
        return t.view(*t.shape[:2], self.H, self.d).transpose(1, 2).reshape(-1, t.shape[1], self.d)

    def forward(self, x, lengths=None):
        B, T, D = x.shape
        hidden = torch.ones(B, T, T, dtype=torch.bool).triu(1)
        if lengths is not None:
            hidden = hidden | (torch.arange(T) >= lengths[:, None])[:, None]
        energy = torch.bmm(self.fold(self.q(x)), self.fold(self.k(x)).mT) / self.d**0.5
        energy = energy.masked_fill(hidden.repeat_interleave(self.H, 0), float("-inf"))
        y = torch.bmm(energy.softmax(-1), self.fold(self.v(x)))
        return self.o(y.view(B, self.H, T, self.d).transpose(1, 2).reshape(B, T, D))

# === lengths_of_another_text
# of: lengths_with_heads_in_the_batch
# wrong: the masks are tiled, while heads stand inside a text
# words: text
#-        energy = energy.masked_fill(hidden.repeat_interleave(self.H, 0), float("-inf"))
#+        energy = energy.masked_fill(hidden.repeat(self.H, 1, 1), float("-inf"))

# === step_with_a_preallocated_cache
# right: start() makes buffers, step() takes one token, and forward whole texts
import torch
from torch import nn

class Static(nn.Module):
    def __init__(self, width, heads, max_len=128):
        super().__init__()
        self.heads, self.dk, self.max_len = heads, width // heads, max_len
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def split(self, x):
        return self.qkv(x).reshape(*x.shape[:2], 3, self.heads, self.dk).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        a = q @ k.mT / self.dk**0.5 + torch.full((T, T), -torch.inf).triu(1)
        return self.out((a.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def start(self, B):
        self.n, self.K = 0, self.qkv.weight.new_zeros(B, self.heads, self.max_len, self.dk)
        self.V = torch.zeros_like(self.K)

    @torch.no_grad()
    def step(self, x):
        q, k, v = self.split(x)
        self.K[:, :, self.n], self.V[:, :, self.n] = k[:, :, 0], v[:, :, 0]
        self.n += 1
        a = q @ self.K[:, :, : self.n].mT / self.dk**0.5
        return self.out((a.softmax(-1) @ self.V[:, :, : self.n]).transpose(1, 2).flatten(2))

# === step_sees_empty_slots
# of: step_with_a_preallocated_cache
# wrong: a new token also attends to the empty slots of the buffer, whose scores are 0
# words: not|other|sink|softmax
#-        a = q @ self.K[:, :, : self.n].mT / self.dk**0.5
#-        return self.out((a.softmax(-1) @ self.V[:, :, : self.n]).transpose(1, 2).flatten(2))
#+        a = q @ self.K.mT / self.dk**0.5
#+        return self.out((a.softmax(-1) @ self.V).transpose(1, 2).flatten(2))

# === window_with_a_rolling_cache
# right: the cache keeps the last keys behind those of the new tokens; a config in a named tuple
import math
from typing import NamedTuple
import torch
from torch import nn

class Config(NamedTuple):
    hidden_size: int = 64
    num_heads: int = 4
    sliding_window: int = 8

class SlidingCache:
    def __init__(self, window):
        self.window, self.seen, self.k, self.v = window, 0, None, None

    def update(self, k, v):
        if self.k is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v = k[:, :, -self.window :], v[:, :, -self.window :]
        return k, v

class Sliding(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg, self.d = cfg, cfg.hidden_size // cfg.num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(cfg.hidden_size, cfg.hidden_size) for _ in range(4))

    def forward(self, x, cache: SlidingCache | None = None):
        T, start = x.shape[1], 0
        q, k, v = (f(x).view(*x.shape[:2], -1, self.d).transpose(1, 2) for f in (self.q, self.k, self.v))
        if cache is not None:
            start, cache.seen = cache.seen, cache.seen + T
            k, v = cache.update(k, v)
        distance = torch.arange(start, start + T)[:, None] - torch.arange(start + T - k.shape[2], start + T)
        seen = (distance >= 0) & (distance < self.cfg.sliding_window)
        a = (q @ k.mT / math.sqrt(self.d)).masked_fill(~seen, -torch.inf).softmax(-1)
        return self.o((a @ v).transpose(1, 2).reshape(x.shape))

# === rolling_cache_cropped_too_early
# of: window_with_a_rolling_cache
# wrong: the cache is cut to the window before the first of several new tokens has seen it
# words: sees|older
#-        return k, v
#+        return self.k, self.v

# === gpt_with_a_dict_for_each_layer
# right: the caches are a list of dicts that the blocks fill
import torch
from torch import nn
import torch.nn.functional as F

class Heads(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.qkv, self.out = H, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, cache=None):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = cache["k"] = torch.cat([cache.get("k", k[:, :, :0]), k], 2)
            v = cache["v"] = torch.cat([cache.get("v", v[:, :, :0]), v], 2)
        seen = torch.ones(T, k.shape[2], dtype=torch.bool).tril(k.shape[2] - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.transpose(1, 2).reshape(B, T, D))

class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.n1, self.n2, self.attn = nn.LayerNorm(D), nn.LayerNorm(D), Heads(D, H)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, cache=None):
        x = x + self.attn(self.n1(x), cache)
        return x + self.mlp(self.n2(x))

class GPT(nn.Module):
    def __init__(self, vocab=50, context=64, D=48, H=4, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, D), nn.Embedding(context, D)
        self.blocks = nn.ModuleList(Block(D, H) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, vocab)

    def forward(self, idx, caches=None):
        past = caches[0]["k"].shape[2] if caches and caches[0] else 0
        x = self.tok(idx) + self.pos(torch.arange(past, past + idx.shape[1]))
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i])
        return self.head(self.norm(x))

# === positions_begin_again_behind_the_caches
# of: gpt_with_a_dict_for_each_layer
# wrong: the position embeddings begin with 0 in every call
# words: position
#-        x = self.tok(idx) + self.pos(torch.arange(past, past + idx.shape[1]))
#+        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
