"""Learners' programs, a third lot, written before its author had seen the list of bugs or the bank: heads."""

# === third_mha_wrapper
# target: multi_head
# right: nn.MultiheadAttention inside a wrapper, its causal mask made by generate_square_subsequent_mask
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1, batch_first=True)

    def forward(self, x):
        T = x.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T, device=x.device, dtype=x.dtype)
        out, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
        return out


attention = SelfAttention(48, 6)

# === third_mha_batch_first_forgotten
# target: multi_head
# convention: batch_first is left out and the mask is made for the first axis: x is (T, B, D)
# like: third_mha_wrapper
#-        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1, batch_first=True)
#+        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=0.1)
#-        T = x.size(1)
#+        T = x.size(0)

# === third_mha_mask_tril
# target: multi_head
# wrong: a boolean tril is passed as attn_mask of nn.MultiheadAttention, where True means hidden
# words: mask|future|later
# like: third_mha_wrapper
#-        mask = nn.Transformer.generate_square_subsequent_mask(T, device=x.device, dtype=x.dtype)
#+        mask = torch.ones(T, T, dtype=torch.bool).tril(-1)

# === third_mha_no_mask
# target: multi_head
# wrong: is_causal's mask is never passed: no mask
# words: future|later|mask
# like: third_mha_wrapper
#-        out, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
#+        out, _ = self.mha(x, x, x, need_weights=False)

# === third_sdpa
# target: multi_head
# right: fused qkv without bias, unflatten, F.scaled_dot_product_attention with is_causal
import torch
from torch import nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, p: float = 0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.p = p
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.in_proj(x).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        y = y.transpose(1, 2).flatten(2)
        return self.out_proj(y)


attention = CausalSelfAttention(48, 6)

# === third_sdpa_double_scale
# target: multi_head
# wrong: the query is scaled before SDPA, which scales again
# words: twice|by d |divide by d|1/d|instead of sqrt
# like: third_sdpa
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        q = q * q.size(-1) ** -0.5
#+        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)

# === third_sdpa_heads_not_back
# target: multi_head
# wrong: heads are joined without the transpose back
# words: transpose
# like: third_sdpa
#-        y = y.transpose(1, 2).flatten(2)
#+        y = y.reshape(x.shape)

# === third_sdpa_time_axis
# target: multi_head
# wrong: the transpose before SDPA is forgotten, so attention runs over the heads
# words: heads
# like: third_sdpa
#-        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
#+        q, k, v = qkv.unbind(2)
#-        y = y.transpose(1, 2).flatten(2)
#+        y = y.flatten(2)

# === third_sdpa_dropout_always
# target: multi_head
# wrong: dropout_p is passed to SDPA in evaluation too
# words: dropout
# like: third_sdpa
#-    def __init__(self, d_model: int, n_heads: int, p: float = 0.0):
#+    def __init__(self, d_model: int, n_heads: int, p: float = 0.2):
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)

# === third_sdpa_order
# target: multi_head
# convention: the arguments of SDPA are passed as q, v, k: keys and values of a joined layer are only renamed
# like: third_sdpa
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        attend = F.scaled_dot_product_attention
#+        y = attend(q, v, k, dropout_p=self.p if self.training else 0.0, is_causal=True)

# === third_einsum
# target: multi_head
# right: einsum with letters of its own, one parameter tensor a role, an additive mask from a buffer
import math

import torch
from torch import einsum, nn


class Attention(nn.Module):
    def __init__(self, dim, heads, max_len=256):
        super().__init__()
        dim_head = dim // heads
        self.scale = 1 / math.sqrt(dim_head)
        self.wq = nn.Parameter(torch.randn(heads, dim, dim_head) * dim**-0.5)
        self.wk = nn.Parameter(torch.randn(heads, dim, dim_head) * dim**-0.5)
        self.wv = nn.Parameter(torch.randn(heads, dim, dim_head) * dim**-0.5)
        self.wo = nn.Parameter(torch.randn(heads, dim_head, dim) * dim**-0.5)
        self.register_buffer("bias", torch.full((max_len, max_len), float("-inf")).triu(1))

    def forward(self, x):
        n = x.shape[-2]
        q = einsum("b n c, h c d -> b h n d", x, self.wq)
        k = einsum("b n c, h c d -> b h n d", x, self.wk)
        v = einsum("b n c, h c d -> b h n d", x, self.wv)
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        attn = (sim + self.bias[:n, :n]).softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return einsum("b h n d, h d c -> b n c", out, self.wo)


attention = Attention(48, 6)

# === third_einsum_softmax_queries
# target: multi_head
# wrong: the softmax runs over the queries
# words: quer
# like: third_einsum
#-        attn = (sim + self.bias[:n, :n]).softmax(dim=-1)
#+        attn = (sim + self.bias[:n, :n]).softmax(dim=-2)

# === third_einsum_transposed_weights
# target: multi_head
# wrong: the einsum of weights and values sums over the queries
# words: transpose
# like: third_einsum
#-        out = einsum("b h i j, b h j d -> b h i d", attn, v)
#+        out = einsum("b h j i, b h j d -> b h i d", attn, v)

# === third_einsum_triu_zero
# target: multi_head
# wrong: triu(0) hides the token itself as well
# words: itself|own|diagonal
# like: third_einsum
#-        self.register_buffer("bias", torch.full((max_len, max_len), float("-inf")).triu(1))
#+        self.register_buffer("bias", torch.full((max_len, max_len), -1e9).triu(0))

# === third_keras_style
# target: multi_head
# right: query, key and value as arguments, a mask of 0 and 1 built inside, split_heads as a method
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        self.depth = d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        return x.view(x.shape[0], -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, q, k=None, v=None, mask=None):
        k = q if k is None else k
        v = q if v is None else v
        q, k, v = self.split_heads(self.wq(q)), self.split_heads(self.wk(k)), self.split_heads(self.wv(v))
        logits = torch.matmul(q, k.transpose(-1, -2)) / torch.tensor(float(self.depth)).sqrt()
        if mask is None:
            mask = torch.triu(torch.ones(q.shape[2], k.shape[2]), diagonal=1)
        logits = logits + mask * -1e9
        weights = torch.softmax(logits, dim=-1)
        context = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(context.shape[0], -1, self.d_model))


attention = MultiHeadAttention(48, 6)

# === third_keras_keys_for_values
# target: multi_head
# wrong: the values are made by the layer of the keys
# words: value
# like: third_keras_style
#-        q, k, v = self.split_heads(self.wq(q)), self.split_heads(self.wk(k)), self.split_heads(self.wv(v))
#+        q, k, v = self.split_heads(self.wq(q)), self.split_heads(self.wk(k)), self.split_heads(self.wk(v))

# === third_keras_split_without_permute
# target: multi_head
# wrong: heads are split by view(B, H, T, d), without a permute
# words: view|transpose
# like: third_keras_style
#-        return x.view(x.shape[0], -1, self.num_heads, self.depth).permute(0, 2, 1, 3)
#+        return x.view(x.shape[0], self.num_heads, -1, self.depth)

# === third_keras_small_mask
# target: multi_head
# wrong: hidden scores get -1e2 instead of -1e9, too small for large scores
# words: -100|-1e2|too small|large
# like: third_keras_style
#-        logits = logits + mask * -1e9
#+        logits = logits + mask * -1e2

# === third_list_of_heads
# target: multi_head
# right: a head module and a list of them, as in lectures
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size=128):
        super().__init__()
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ v


class Multi(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


attention = Multi(48, 6)

# === third_list_same_head
# target: multi_head
# wrong: the list holds the same head six times
# words: same head|one head|share
# like: third_list_of_heads
#-        self.heads = nn.ModuleList([Head(n_embd, n_embd // n_head) for _ in range(n_head)])
#+        self.heads = nn.ModuleList([Head(n_embd, n_embd // n_head)] * n_head)

# === third_list_scale_channels
# target: multi_head
# wrong: scaled by the width of the model
# words: sqrt(d)|width of the model
# like: third_list_of_heads
#-        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
#+        wei = q @ k.transpose(-2, -1) * C**-0.5

# === third_list_mask_after_softmax
# target: multi_head
# wrong: masked with 0 after the softmax, without normalising again
# words: after the softmax
# like: third_list_of_heads
#-        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
#-        wei = self.dropout(F.softmax(wei, dim=-1))
#+        wei = self.dropout(F.softmax(wei, dim=-1))
#+        wei = wei * self.tril[:T, :T]

# === third_single_loops
# target: single_head
# right: a loop over positions, as with numpy
import numpy as np
import torch
from torch import nn


class LoopHead(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(D, D))
        self.Wk = nn.Parameter(torch.randn(D, D))
        self.Wv = nn.Parameter(torch.randn(D, D))
        self.Wo = nn.Parameter(torch.randn(D, D))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = x @ self.Wq, x @ self.Wk, x @ self.Wv
        rows = []
        for t in range(length):
            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(t + 1)]
            weights = torch.softmax(torch.stack(scores, dim=1), dim=1)
            rows.append((weights[:, :, None] * v[:, : t + 1]).sum(1))
        return torch.stack(rows, dim=1) @ self.Wo


attention = LoopHead(48)

# === third_single_loop_short
# target: single_head
# wrong: the loop stops one before the token itself, except for the first
# words: itself|own
# like: third_single_loops
#-            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(t + 1)]
#+            end = max(t, 1)
#+            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(end)]
#-            rows.append((weights[:, :, None] * v[:, : t + 1]).sum(1))
#+            rows.append((weights[:, :, None] * v[:, :end]).sum(1))

# === third_single_scale_length
# target: single_head
# wrong: divided by the root of the length
# words: length|sqrt(t)
# like: third_single_loops
#-            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(t + 1)]
#+            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(length) for s in range(t + 1)]

# === third_masks_argument
# target: attend
# right: a function with a mask argument of its own and dropout
import torch
import torch.nn.functional as F


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / d_k**0.5
    if mask is None:
        L, S = query.size(-2), key.size(-2)
        mask = torch.ones(L, S, dtype=torch.bool, device=query.device).tril(S - L)
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value)

# === third_attend_log
# target: attend
# wrong: log_softmax instead of softmax
# words: log
# like: third_masks_argument
#-    p_attn = F.softmax(scores, dim=-1)
#+    p_attn = F.log_softmax(scores, dim=-1)
#-    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
#+    scores = scores.masked_fill(~mask, -1e9)
