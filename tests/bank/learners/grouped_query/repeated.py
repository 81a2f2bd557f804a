# Fewer heads for keys and values than for queries: keys repeated, expanded or tiled, or left to SDPA; Meta's Llama with rotary.
# target: grouped_query

# === repeat_interleave
# right: repeat_interleave over the heads
import torch
import torch.nn as nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads):
        super().__init__()
        self.nh, self.nkv, self.hd = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, n_heads * self.hd, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(n_heads * self.hd, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.nh, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
        k = k.repeat_interleave(self.nh // self.nkv, dim=1)
        v = v.repeat_interleave(self.nh // self.nkv, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))

attention = GQA(48, 6, 2)

# === repeated_before_transpose_is_a_tiling
# of: repeat_interleave
# convention: repeat_interleave on dim 1 of (B, T, G, d), and a reshape: it looks as if it repeated positions, and is a tiling of the heads
#-        k = self.wk(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
#-        v = self.wv(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
#-        k = k.repeat_interleave(self.nh // self.nkv, dim=1)
#-        v = v.repeat_interleave(self.nh // self.nkv, dim=1)
#+        r = self.nh // self.nkv
#+        k = self.wk(x).view(b, t, self.nkv, self.hd).repeat_interleave(r, dim=1).reshape(b, t, self.nh, self.hd).transpose(1, 2)
#+        v = self.wv(x).view(b, t, self.nkv, self.hd).repeat_interleave(r, dim=1).reshape(b, t, self.nh, self.hd).transpose(1, 2)

# === keys_interleaved_values_tiled
# of: repeat_interleave
# wrong: keys are interleaved and values tiled: a head reads the values of another group
# words: repeat|tile|interleave|group|value
#-        v = v.repeat_interleave(self.nh // self.nkv, dim=1)
#+        v = v.repeat(1, self.nh // self.nkv, 1, 1)

# === features_repeated_not_heads
# of: repeated_before_transpose_is_a_tiling
# wrong: the features of keys and values are repeated, then viewed as heads: features are mixed
# words: mix|reshape|repeat|order|feature|group
#-        k = self.wk(x).view(b, t, self.nkv, self.hd).repeat_interleave(r, dim=1).reshape(b, t, self.nh, self.hd).transpose(1, 2)
#-        v = self.wv(x).view(b, t, self.nkv, self.hd).repeat_interleave(r, dim=1).reshape(b, t, self.nh, self.hd).transpose(1, 2)
#+        k = self.wk(x).repeat_interleave(r, dim=-1).view(b, t, self.nh, self.hd).transpose(1, 2)
#+        v = self.wv(x).repeat_interleave(r, dim=-1).view(b, t, self.nh, self.hd).transpose(1, 2)

# === time_repeated_not_heads
# of: repeat_interleave
# wrong: keys and values are repeated along time, then viewed as more heads
# words: along the positions
#-        k = k.repeat_interleave(self.nh // self.nkv, dim=1)
#-        v = v.repeat_interleave(self.nh // self.nkv, dim=1)
#+        k = k.repeat_interleave(self.nh // self.nkv, dim=2).view(b, self.nh, t, self.hd)
#+        v = v.repeat_interleave(self.nh // self.nkv, dim=2).view(b, self.nh, t, self.hd)

# === first_key_head_for_all
# of: repeat_interleave
# wrong: k[:, :1] broadcasts: every query head uses the first key head, the others are never used
# words: first|one|group|key head|broadcast
#-        k = k.repeat_interleave(self.nh // self.nkv, dim=1)
#-        v = v.repeat_interleave(self.nh // self.nkv, dim=1)
#+        k, v = k[:, :1].expand(-1, self.nh, -1, -1), v[:, :1].expand(-1, self.nh, -1, -1)

# === keys_and_values_viewed_without_transpose
# of: repeat_interleave
# wrong: keys and values are viewed straight as (B, G, T, d): heads and positions are mixed
# words: keys and values alone are split|without a transpose
#-        k = self.wk(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
#+        k = self.wk(x).view(b, self.nkv, t, self.hd)
#-        v = self.wv(x).view(b, t, self.nkv, self.hd).transpose(1, 2)
#+        v = self.wv(x).view(b, self.nkv, t, self.hd)

# === llama_repeat_kv
# right: repeat_kv by expand + reshape before the transpose, additive -inf buffer mask
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

@dataclass
class ModelArgs:
    dim: int = 48
    n_heads: int = 6
    n_kv_heads: Optional[int] = 2
    max_seq_len: int = 128

def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """torch.repeat_interleave(x, dim=2, repeats=n_rep)"""
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )

class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_kv_heads = args.n_heads if args.n_kv_heads is None else args.n_kv_heads
        self.n_heads = args.n_heads
        self.n_rep = self.n_heads // self.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        mask = torch.full((1, 1, args.max_seq_len, args.max_seq_len), float("-inf"))
        self.register_buffer("mask", torch.triu(mask, diagonal=1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        keys = repeat_kv(xk, self.n_rep).transpose(1, 2)
        values = repeat_kv(xv, self.n_rep).transpose(1, 2)
        xq = xq.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores + self.mask[:, :, :seqlen, :seqlen]
        scores = F.softmax(scores, dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)

# === sdpa_enable_gqa
# right: SDPA with enable_gqa
import torch
from torch import nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wqkv = nn.Linear(dim, (n_heads + 2 * n_kv_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, L, _ = x.shape
        kv = self.n_kv_heads * self.head_dim
        q, k, v = self.wqkv(x).split([self.n_heads * self.head_dim, kv, kv], dim=-1)
        q = q.view(B, L, self.n_heads, self.head_dim).transpose(1, 2)
        k, v = (y.view(B, L, self.n_kv_heads, self.head_dim).transpose(1, 2) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(B, L, -1))

attention = GQA(96, 8, 2)

# === keys_and_values_tiled
# of: sdpa_enable_gqa
# convention: keys and values are both tiled with repeat
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        n = self.n_heads // self.n_kv_heads
#+        y = F.scaled_dot_product_attention(q, k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1), is_causal=True)

# === sdpa_scale_of_key_heads
# of: sdpa_enable_gqa
# wrong: the scale is that of D divided by the number of key heads
# words: D/G|sqrt(D
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=(96 // self.n_kv_heads) ** -0.5)

# === enable_gqa_without_is_causal
# of: sdpa_enable_gqa
# wrong: no causal mask at all: is_causal is not passed
# words: no causal mask
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

# === litgpt_joined_group_by_group
# right: lit-gpt joined layer: per group its queries, then one key, one value; expand
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

@dataclass
class Config:
    n_embd: int = 48
    n_head: int = 6
    n_query_groups: int = 2
    bias: bool = True

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

class CausalSelfAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        shape = (config.n_head + 2 * config.n_query_groups) * config.head_size
        # key, query, value projections for all heads, but in a batch
        self.attn = nn.Linear(config.n_embd, shape, bias=config.bias)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        qkv = self.attn(x)
        # assemble into a number of query groups: each group holds its queries, then one key, one value
        q_per_kv = self.config.n_head // self.config.n_query_groups
        total_qkv = q_per_kv + 2
        qkv = qkv.view(B, T, self.config.n_query_groups, total_qkv, self.config.head_size)
        qkv = qkv.permute(0, 2, 3, 1, 4)  # (B, n_query_groups, total_qkv, T, hs)
        q, k, v = qkv.split((q_per_kv, 1, 1), dim=2)
        if self.config.n_query_groups != self.config.n_head:
            k = k.expand(B, self.config.n_query_groups, q_per_kv, T, self.config.head_size)
            v = v.expand(B, self.config.n_query_groups, q_per_kv, T, self.config.head_size)
        q = q.reshape(B, -1, T, self.config.head_size)
        k = k.reshape(B, -1, T, self.config.head_size)
        v = v.reshape(B, -1, T, self.config.head_size)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.proj(y)

# === loop_with_heads_modulo
# right: query head i uses key head i % n_kv (interleaved groups), in a loop over heads on (T, C)
import torch
import torch.nn as nn

class ConfigA:
    hidden_size = 24
    num_attention_heads = 6
    num_key_value_heads = 3

class LoopGQA(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        d = config.hidden_size
        self.hd = d // config.num_attention_heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, self.hd * config.num_key_value_heads, bias=False)
        self.v_proj = nn.Linear(d, self.hd * config.num_key_value_heads, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(self, hidden_states):
        qs = self.q_proj(hidden_states).split(self.hd, dim=-1)
        ks = self.k_proj(hidden_states).split(self.hd, dim=-1)
        vs = self.v_proj(hidden_states).split(self.hd, dim=-1)
        T = hidden_states.shape[-2]
        outs = []
        for i, q in enumerate(qs):
            k = ks[i % len(ks)]
            v = vs[i % len(vs)]
            s = q @ k.transpose(-1, -2) / self.hd ** 0.5
            s = s.masked_fill(torch.ones(T, T).triu(1) == 1, -1e30)
            outs.append(s.softmax(-1) @ v)
        return self.o_proj(torch.cat(outs, -1))

attention = LoopGQA(ConfigA())

# === meta_llama
# target: grouped_query,rotary
# right: the Llama of Meta: complex rotary, repeat_kv by expand, grouped queries
import math

import torch
import torch.nn.functional as F
from torch import nn

def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end, dtype=torch.float32)
    freqs = torch.outer(t.double(), freqs.double())
    return torch.polar(torch.ones_like(freqs), freqs)

def apply_rotary_emb(x, freqs_cis):
    x_ = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).type_as(x)

def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim).reshape(bs, slen, n_kv_heads * n_rep, head_dim)

class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, max_seq_len=512):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.freqs_cis = precompute_freqs_cis(self.head_dim, max_seq_len)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        freqs = self.freqs_cis[:seqlen]
        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)
        keys = repeat_kv(xk, self.n_rep)
        values = repeat_kv(xv, self.n_rep)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = torch.triu(torch.full((seqlen, seqlen), float("-inf")), diagonal=1)
        scores = F.softmax(scores + mask, dim=-1)
        output = torch.matmul(scores, values).transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)

attention = Attention(48, 6, 2)

# === meta_llama_values_turned
# of: meta_llama
# wrong: the values are rotated too
# words: value
#-        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)
#+        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)
#+        xv = apply_rotary_emb(xv, freqs)

# === meta_llama_queries_only
# of: meta_llama
# wrong: only the queries are rotated
# words: key
#-        xq, xk = apply_rotary_emb(xq, freqs), apply_rotary_emb(xk, freqs)
#+        xq = apply_rotary_emb(xq, freqs)

# === meta_llama_values_tiled
# of: meta_llama
# wrong: keys are repeated side by side, values are tiled
# words: value
#-        values = repeat_kv(xv, self.n_rep)
#+        values = xv.repeat(1, 1, self.n_rep, 1)
