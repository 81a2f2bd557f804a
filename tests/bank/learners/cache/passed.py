# Attention with a cache that goes in and comes out: pairs of keys and values, the inputs themselves, rotary at the offset, one token at a time.
# target: multi_head,cache

# === past_and_present
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

# === cache_mask_at_upper_left
# of: past_and_present
# wrong: the mask of a chunk is aligned to the upper left: the new tokens are taken for the first ones
# words: offset|upper|left|first|chunk|position|S - T
#-        a = a.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), float("-inf"))
#+        a = a.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(), float("-inf"))

# === cache_prepends_new_keys
# of: past_and_present
# wrong: the new keys are put before the old ones
# words: order|before|front|prepend|append
#-            k = torch.cat((layer_past[0], k), dim=-2)
#+            k = torch.cat((k, layer_past[0]), dim=-2)
#-            v = torch.cat((layer_past[1], v), dim=-2)
#+            v = torch.cat((v, layer_past[1]), dim=-2)

# === cache_without_mask_for_chunks
# of: past_and_present
# wrong: with a past there is no mask at all: right token by token, but within a chunk the future is seen
# words: chunk|future|mask|causal
#-        a = a.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), float("-inf"))
#+        if layer_past is None:
#+            a = a.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(s - t), float("-inf"))

# === cache_hands_on_the_newest_alone
# of: past_and_present
# wrong: only the newest keys are handed on, so a token sees its own chunk and the one before
# words: only|forget|last|newest|previous|older|overwritten
#-        if layer_past is not None:
#+        present = (k, v)
#+        if layer_past is not None:
#-        return self.c_proj(y), (k, v)
#+        return self.c_proj(y), present

# === cache_hands_on_keys_as_values
# of: past_and_present
# wrong: the keys are handed on twice: later tokens mix keys instead of values
# words: value
#-        return self.c_proj(y), (k, v)
#+        return self.c_proj(y), (k, k)

# === past_and_present_as_dicts
# of: past_and_present
# right: a dict goes in, another comes out
#-            k = torch.cat((layer_past[0], k), dim=-2)
#+            k = torch.cat((layer_past["k"], k), dim=-2)
#-            v = torch.cat((layer_past[1], v), dim=-2)
#+            v = torch.cat((layer_past["v"], v), dim=-2)
#-        return self.c_proj(y), (k, v)
#+        return self.c_proj(y), {"k": k, "v": v}

# === cache_appends_values_to_keys
# of: past_and_present_as_dicts
# wrong: the new values are appended to the cached keys
# words: keys twice
#-            v = torch.cat((layer_past["v"], v), dim=-2)
#+            v = torch.cat((layer_past["k"], v), dim=-2)

# === hf_past_key_value_and_flags
# right: past_key_value tuples and use_cache, as in Hugging Face's models
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4))

    def _shape(self, t, n, b):
        return t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states, past_key_value=None, output_attentions=False, use_cache=False):
        bsz, q_len, _ = hidden_states.size()
        query = self._shape(self.q_proj(hidden_states), q_len, bsz)
        key = self._shape(self.k_proj(hidden_states), -1, bsz)
        value = self._shape(self.v_proj(hidden_states), -1, bsz)
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        past_key_value = (key, value) if use_cache else None
        kv_len = key.size(2)
        w = torch.matmul(query, key.transpose(2, 3)) / self.head_dim**0.5
        causal = torch.arange(kv_len)[None, :] > torch.arange(kv_len - q_len, kv_len)[:, None]
        w = w.masked_fill(causal, torch.finfo(w.dtype).min)
        w = nn.functional.softmax(w, dim=-1)
        out = torch.matmul(w, value).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), (w if output_attentions else None), past_key_value

attention = Attention(48, 6)

# === cached_values_in_another_order
# of: hf_past_key_value_and_flags
# wrong: the cached values are concatenated the other way round
# words: value
#-            value = torch.cat([past_key_value[1], value], dim=2)
#+            value = torch.cat([value, past_key_value[1]], dim=2)

# === mask_and_past_and_use_cache
# right: additive mask argument, returns y or (y, present) by use_cache, last T rows of the S x S triangle
from typing import Optional, Tuple

import torch
import torch.nn as nn

class CachedSelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(
        self,
        x: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
        past_kv: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

        if past_kv is not None:
            k = torch.cat((past_kv[0], k), dim=-2)
            v = torch.cat((past_kv[1], v), dim=-2)
        present = (k, v) if use_cache else None

        S = k.size(-2)
        att = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim**0.5
        # GPT-2's trick: take the last T rows of the big triangle
        bias = torch.ones(S, S, dtype=torch.bool, device=x.device).tril()[S - T : S, :S]
        att = att.masked_fill(~bias, torch.finfo(att.dtype).min)
        if mask is not None:
            att = att + mask
        att = att.softmax(dim=-1)
        y = torch.matmul(att, v).transpose(1, 2).contiguous().view(B, T, C)
        y = self.c_proj(y)
        return (y, present) if use_cache else y

attention = CachedSelfAttention(48, 6)

# === cache_with_rotary_offset
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

# === cache_rotary_restarts_at_zero
# of: cache_with_rotary_offset
# wrong: rotary angles start at 0 in every call
# words: offset|position|start|angle
# seen: pytorch/executorch#2010
#-def rope(x, start):
#+def rope(x):
#-    th = torch.arange(start, start + T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
#+    th = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
#-        start = 0 if past is None else past[0].shape[2]

#-        q, k = rope(q, start), rope(k, start)
#+        q, k = rope(q), rope(k)

# === cache_keys_rotated_again
# of: cache_with_rotary_offset
# wrong: the keys of the past are rotated again with each call
# words: again|twice
#-        q, k = rope(q, start), rope(k, start)
#+        q = rope(q, start)
#-        s = k.shape[2]
#+        k = rope(k, 0)
#+        s = k.shape[2]

# === cache_of_inputs_with_rotary
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

# === function_of_one_token_and_dict
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

# === step_function_of_parameters
# right: pure function step(params, x_t, cache) -> (y_t, cache); the cache is a tuple (k, v) grown by cat, one head, x_t is (B, C)
import torch

def init_params(d, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(d, d, generator=g) / d ** 0.5 for n in ("wq", "wk", "wv", "wo")}

def attend_full(params, x):
    """x: [B, T, D], all at once"""
    q, k, v = x @ params["wq"], x @ params["wk"], x @ params["wv"]
    T = x.shape[1]
    s = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    s = torch.where(torch.tril(torch.ones(T, T)) > 0, s, -torch.inf)
    return torch.softmax(s, -1) @ v @ params["wo"]

def step(params, x_t, cache=None):
    """x_t: [B, D]; returns the output for this token and the new cache"""
    q, k, v = x_t @ params["wq"], x_t @ params["wk"], x_t @ params["wv"]
    k, v = k[:, None], v[:, None]
    if cache is not None:
        k = torch.cat([cache[0], k], 1)
        v = torch.cat([cache[1], v], 1)
    p = torch.softmax(torch.einsum("bd,btd->bt", q, k) / q.shape[-1] ** 0.5, dim=-1)
    return torch.einsum("bt,btd->bd", p, v) @ params["wo"], (k, v)
