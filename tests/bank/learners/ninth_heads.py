"""A ninth lot of learners' programs: means, weights, dot products, one head, many heads, grouped queries."""

# === ninth_mean_loops
# target: running_mean
# right: triple Python loop with a running sum, German comments, entry point mean_so_far
# Aufgabe 1 - Mittelwert ueber alle bisherigen Tokens
import torch


def mean_so_far(x):
    B, T, C = x.shape
    res = torch.zeros_like(x)
    for b in range(B):
        for c in range(C):
            summe = x[b, 0, c] * 0
            for t in range(T):
                summe = summe + x[b, t, c]
                res[b, t, c] = summe / (t + 1)
    return res


if __name__ == "__main__":
    x = torch.arange(6.0).view(1, 3, 2)
    print(mean_so_far(x))

# === ninth_mean_log_triangle
# target: running_mean
# right: mask as log(tril): log 0 = -inf, then softmax
"""Causal averaging written as attention with uniform scores.

log(1) = 0 where we may look, log(0) = -inf where we may not.  After the
softmax every row is uniform over the past.
"""
import torch


def causal_average(x: torch.Tensor) -> torch.Tensor:
    n = x.size(-2)
    lower = torch.ones(n, n, dtype=x.dtype, device=x.device).tril()
    scores = lower.log()
    return torch.softmax(scores, dim=1) @ x


running_mean = causal_average

# === ninth_mean_columns
# target: running_mean
# wrong: the lower triangle is normalised over dim 0 (columns) instead of rows; use torch.sum(a, 1, keepdim=True).
# words: columns
import torch

# bag-of-words context: position t gets the average of positions 0..t,
# all at once with one matrix multiplication


def bow_matmul(x):
    B, T, C = x.shape
    a = torch.tril(torch.ones(T, T, dtype=x.dtype, device=x.device))
    a = a / torch.sum(a, 0, keepdim=True)
    return a @ x  # (T, T) @ (B, T, C) -> (B, T, C)


def check():
    torch.manual_seed(1337)
    x = torch.randn(4, 8, 2)
    out = bow_matmul(x)
    assert out.shape == x.shape
    print(out[0])


if __name__ == "__main__":
    check()

# === ninth_attend_key_length
# target: attend,full
# wrong: the scores are scaled by sqrt of the key length (k.shape[-2]) instead of the depth; use k.shape[-1] (unseen when length == depth).
# words: T, the number of tokens
import torch


def scaled_dot_product_attention(q, k, v, mask=None):
    """Ported from the TensorFlow tutorial.

    q, k, v: (..., seq_len, depth)
    mask: broadcastable to (..., seq_len_q, seq_len_k), 1 = hide this key

    Returns output only.
    """
    # tf.matmul(q, k, transpose_b=True)
    logits = torch.matmul(q, k.transpose(-2, -1))

    # tf.cast(tf.shape(k)[...], tf.float32)
    depth = torch.tensor(k.shape[-2], dtype=q.dtype)
    logits = logits / torch.sqrt(depth)

    if mask is not None:
        logits = logits + mask.to(logits.dtype) * -1e9

    weights = torch.softmax(logits, dim=-1)
    return torch.matmul(weights, v)


attention = scaled_dot_product_attention

# === ninth_attend_flax
# target: attend,full
# right: flax manner: the query is scaled, an additive bias is the mask, value width may differ, returns a tuple
from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Optional[Tensor] = None,
    *,
    precision: Optional[torch.dtype] = None,
) -> Tuple[Tensor, Tensor]:
    """Flax-flavoured attention.

    Args:
      query: ``[batch..., q_length, depth]``
      key:   ``[batch..., kv_length, depth]``
      value: ``[batch..., kv_length, v_depth]``
      bias:  added to the logits (use -inf or a large negative to mask)

    Returns:
      ``(context, weights)``
    """
    assert query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    assert query.shape[-1] == key.shape[-1]
    assert key.shape[-2] == value.shape[-2]

    depth = query.shape[-1]
    # as in flax: the query is scaled, not the logits
    query = query * depth**-0.5
    logits = torch.einsum("...qd,...kd->...qk", query, key)
    if bias is not None:
        logits = logits + bias
    if precision is not None:
        logits = logits.to(precision)
    weights = torch.softmax(logits, dim=-1).to(value.dtype)
    context = torch.einsum("...qk,...kd->...qd", weights, value)
    return context, weights

# === ninth_attend_tiles_causal
# target: attend
# convention: FlashAttention-like two-level tiling, online softmax, future tiles skipped; value width must equal key width; causal by default
import math

import torch


def flash_forward(Q, K, V, Br=4, Bc=3):
    """FlashAttention (Alg. 1, order of loops as in v2), causal, pure torch.

    Q, K, V: (..., N, d).  Nothing of size N x N is ever made.
    """
    N, d = Q.shape[-2:]
    S_len = K.shape[-2]
    O = torch.zeros_like(Q)

    for i0 in range(0, N, Br):
        i1 = min(i0 + Br, N)
        Qi = Q[..., i0:i1, :] / math.sqrt(d)
        acc = torch.zeros_like(Qi)
        m = torch.full(Qi.shape[:-1] + (1,), -math.inf, dtype=Q.dtype, device=Q.device)
        l = torch.zeros_like(m)

        for j0 in range(0, S_len, Bc):
            if j0 > i1 - 1:
                break  # whole tile lies in the future
            j1 = min(j0 + Bc, S_len)
            S = Qi @ K[..., j0:j1, :].mT
            rows = torch.arange(i0, i1, device=Q.device)[:, None]
            cols = torch.arange(j0, j1, device=Q.device)[None, :]
            S = S.masked_fill(cols > rows, -math.inf)

            m_new = torch.maximum(m, S.amax(-1, keepdim=True))
            P = torch.exp(S - m_new)
            alpha = torch.exp(m - m_new)
            l = alpha * l + P.sum(-1, keepdim=True)
            acc = alpha * acc + P @ V[..., j0:j1, :]
            m = m_new

        O[..., i0:i1, :] = acc / l
    return O


attention = flash_forward

# === ninth_attend_not_rescaled
# target: attend,full
# wrong: the output accumulator is not rescaled when the running maximum grows (only row_sum is); use out = out * correction + p @ v_blk (seen only with more than block_size=4 keys).
# words: does not rescale
import torch


def tiled_attention(q, k, v, block_size=4):
    """
    Online softmax attention over key/value blocks (not causal).

    q, k, v: [batch, heads, seq, dim]
    """
    b, h, n, d = q.shape
    scale = d ** -0.5

    out = torch.zeros_like(q)
    row_max = torch.full((b, h, n, 1), float("-inf"), dtype=q.dtype, device=q.device)
    row_sum = torch.zeros((b, h, n, 1), dtype=q.dtype, device=q.device)

    for start in range(0, k.shape[2], block_size):
        k_blk = k[:, :, start:start + block_size]
        v_blk = v[:, :, start:start + block_size]

        s = (q @ k_blk.transpose(-1, -2)) * scale

        blk_max = s.max(dim=-1, keepdim=True).values
        new_max = torch.maximum(row_max, blk_max)
        p = torch.exp(s - new_max)

        correction = torch.exp(row_max - new_max)
        row_sum = row_sum * correction + p.sum(dim=-1, keepdim=True)
        out = out + p @ v_blk
        row_max = new_max

    return out / row_sum

# === ninth_weights_keys_first
# target: attention_weights,full
# right: Julia order inside: scores kept as (keys, queries), softmax over dim -2, turned round at the end; cross lengths allowed
# Coming from Julia (Flux.jl / NNlib): there features are the FIRST axis and
# the attention scores are laid out (keys, queries), softmax over dims=1.
# I keep that order inside and only turn it round at the end.
import torch


def dot_product_attention_scores(q, k):
    qT = q.transpose(-1, -2)                 # (d, Lq)
    kT = k.transpose(-1, -2)                 # (d, Lk)
    logits = kT.transpose(-1, -2) @ (qT / qT.size(-2) ** 0.5)   # (Lk, Lq)
    α = torch.softmax(logits, dim=-2)        # over the keys
    return α.transpose(-1, -2)               # (Lq, Lk), rows sum to one


weights = dot_product_attention_scores

# === ninth_weights_numpy
# target: attention_weights
# right: numpy tril mask through torch.where and a hand-made stable softmax
import numpy as np
import torch


def _softmax(z):
    z = z - z.max(dim=-1, keepdim=True).values
    e = torch.exp(z)
    return e / e.sum(dim=-1, keepdim=True)


def causal_attention_weights(q, k):
    """Returns the (.., T, T) matrix of attention probabilities.

    Translated line by line from my numpy notebook (np.tril -> torch).
    """
    d = q.shape[-1]
    T = q.shape[-2]
    scores = q @ k.swapaxes(-1, -2)
    scores = scores / np.sqrt(d)
    allowed = torch.from_numpy(np.tril(np.ones((T, T)))).to(q.device)
    scores = torch.where(allowed == 1, scores, torch.full_like(scores, -np.inf))
    return _softmax(scores)

# === ninth_weights_zeroed
# target: attention_weights
# wrong: the future is zeroed after the softmax and rows are not renormalised, so they do not sum to one; mask with -inf before the softmax (or divide by the row sum).
# words: mask after the softmax
import torch
import torch.nn.functional as F


def get_attention_weights(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """
    Compute causal self-attention weights.

    Args:
        query: Tensor of shape (batch_size, seq_len, d_k)
        key:   Tensor of shape (batch_size, seq_len, d_k)

    Returns:
        Tensor of shape (batch_size, seq_len, seq_len). Row i holds the
        probabilities with which position i attends to the positions 0..i.
    """
    d_k = query.size(-1)
    seq_len = query.size(1)

    # Step 1: raw scores
    scores = torch.bmm(query, key.transpose(1, 2)) / (d_k ** 0.5)

    # Step 2: normalize
    weights = F.softmax(scores, dim=-1)

    # Step 3: zero out the future
    mask = torch.tril(torch.ones(seq_len, seq_len, device=query.device))
    weights = weights.masked_fill(mask == 0, 0.0)

    return weights


weights = get_attention_weights

# === ninth_head_of_globals
# target: single_head
# right: sizes are module globals, constructor without arguments, head smaller than the model then proj back; dropout 0.2 (use eval)
import torch
import torch.nn as nn
from torch.nn import functional as F

n_embd = 48
head_size = 16
block_size = 64
dropout = 0.2


class Head(nn.Module):
    """ exercise 4: a single causal head, back to the model width at the end """

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.proj = nn.Linear(head_size, n_embd)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * head_size**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return self.dropout(self.proj(wei @ v))


attention = Head()

# === ninth_head_joined_keys
# target: single_head
# right: keys and values from one matrix to_kv, query scaled instead of scores, no softmax-input -inf but finfo min, optional padding mask
import torch
from torch import nn


def exists(v):
    return v is not None


def default(v, d):
    return v if exists(v) else d


class Attention(nn.Module):
    """one head, causal; keys and values come from one matrix"""

    def __init__(self, dim, dim_head=None):
        super().__init__()
        inner = default(dim_head, dim)
        self.scale = inner ** -0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, mask=None):
        n, device = x.shape[1], x.device
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        sim = torch.einsum('b i d, b j d -> b i j', q * self.scale, k)
        neg = -torch.finfo(sim.dtype).max
        if exists(mask):  # (b, n), True = real token
            sim = sim.masked_fill(~mask[:, None, :], neg)
        sim = sim.masked_fill(torch.ones((n, n), dtype=torch.bool, device=device).triu(1), neg)
        return self.to_out(torch.einsum('b i j, b j d -> b i d', sim.softmax(dim=-1), v))

# === ninth_head_bilinear
# target: single_head
# right: bare parameters, scores as a bilinear form W_Q W_K^T, and W_V W_O multiplied first; d_v differs from d_k; softmax by logsumexp
"""Single-head attention with bare parameters, the row-vector way round."""
import torch
import torch.nn as nn


class OneHead(nn.Module):
    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(d_model, d_k) / d_model**0.5)
        self.W_K = nn.Parameter(torch.randn(d_model, d_k) / d_model**0.5)
        self.W_V = nn.Parameter(torch.randn(d_model, d_v) / d_model**0.5)
        self.W_O = nn.Parameter(torch.randn(d_v, d_model) / d_v**0.5)

    def forward(self, X):
        T, d_k = X.shape[-2], self.W_K.shape[1]
        # x_i W_Q W_K^T x_j^T : the "QK circuit" as one bilinear form
        qk = self.W_Q @ self.W_K.T
        A = torch.einsum("...id,de,...je->...ij", X, qk, X) / d_k**0.5
        A = A + torch.full((T, T), float("-inf"), dtype=X.dtype).triu(1)
        A = (A - A.logsumexp(-1, keepdim=True)).exp()
        # and the "OV circuit"
        ov = self.W_V @ self.W_O
        return A @ (X @ ov)


attention = OneHead(48, 12, 20)

# === ninth_head_sees_next
# target: single_head
# wrong: the look-ahead mask is tril(diagonal=1), so every token also sees the next one; use diagonal=0.
# words: next token
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttentionHead(nn.Module):
    """Masked self-attention (decoder), single head.

    Every position may look at itself and at everything before it.
    """

    def __init__(self, d_model, max_len=128):
        super(SelfAttentionHead, self).__init__()
        self.d_model = d_model
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)
        look_ahead = torch.tril(torch.ones(max_len, max_len), diagonal=1)
        self.register_buffer("look_ahead", look_ahead.bool(), persistent=False)

    def forward(self, x):
        T = x.size(1)
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        scores = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(self.d_model)
        scores = scores.masked_fill(~self.look_ahead[:T, :T], float("-inf"))
        attn = F.softmax(scores, dim=-1)
        return self.out(torch.matmul(attn, v))

# === ninth_multi_head_by_head
# target: multi_head
# right: fused qkv laid out per head (q,k,v of head 0, then head 1, ..), SDPA is_causal with a manual fallback
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 128
    n_head: int = 6
    n_embd: int = 48
    dropout: float = 0.0
    bias: bool = True


class CausalSelfAttention(nn.Module):

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.flash = hasattr(F, 'scaled_dot_product_attention')

    def forward(self, x):
        B, T, C = x.size()
        # fused per head: (q, k, v) of head 0, then of head 1, ...  (megatron / neox order)
        qkv = self.c_attn(x).view(B, T, self.n_head, 3 * C // self.n_head)
        q, k, v = qkv.transpose(1, 2).split(C // self.n_head, dim=-1)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0,
                                               is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            att = att.masked_fill(torch.ones(T, T, device=x.device).triu(1).bool(), float('-inf'))
            y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.c_proj(y)


attention = CausalSelfAttention(GPTConfig(n_embd=48, n_head=6))

# === ninth_multi_head_torch
# target: multi_head
# right: sequence-first inside, additive -inf mask from generate_square_subsequent_mask
import torch
from torch import nn


class CausalMHA(nn.Module):
    """Thin wrapper around nn.MultiheadAttention (sequence first inside)."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout)

    def forward(self, x):
        seq = x.transpose(0, 1)  # (T, B, C)
        n = seq.shape[0]
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=x.device, dtype=x.dtype)
        y, _ = self.mha(seq, seq, seq, attn_mask=mask, need_weights=False)
        return y.transpose(0, 1)

# === ninth_multi_head_sums
# target: multi_head
# right: no concat: every head has its own output matrix and the results are summed, plus one bias
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.ModuleDict({n: nn.Linear(d_in, d_out, bias=False) for n in "qkv"})

    def forward(self, x):
        q, k, v = (self.qkv[n](x) for n in "qkv")
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class MultiHeadAttention(nn.Module):
    """sum over heads instead of concat: each head has its own piece of W_O"""

    def __init__(self, d_model, n_heads):
        super().__init__()
        d_head = d_model // n_heads
        self.heads = nn.ModuleList([Head(d_model, d_head) for _ in range(n_heads)])
        self.outs = nn.ModuleList([nn.Linear(d_head, d_model, bias=False) for _ in range(n_heads)])
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        y = self.bias
        for h, o in zip(self.heads, self.outs):
            y = y + o(h(x))
        return y

# === ninth_multi_head_merged
# target: multi_head
# wrong: heads are merged with contiguous().view(b, s, c) without transposing (b, heads, s, d) back first; use ctx.transpose(1, 2).contiguous().view(b, s, c).
# words: joined without transpose
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        assert hidden_size % num_heads == 0, "hidden_size must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads

        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def _split(self, t):
        b, s, _ = t.shape
        return t.view(b, s, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, hidden_states):
        b, s, c = hidden_states.shape
        q = self._split(self.q_proj(hidden_states))
        k = self._split(self.k_proj(hidden_states))
        v = self._split(self.v_proj(hidden_states))

        scores = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim ** -0.5
        causal = torch.triu(torch.ones(s, s, dtype=torch.bool, device=q.device), diagonal=1)
        scores = scores.masked_fill(causal, torch.finfo(scores.dtype).min)
        probs = F.softmax(scores, dim=-1)

        ctx = torch.matmul(probs, v)            # (b, heads, s, head_dim)
        ctx = ctx.contiguous().view(b, s, c)    # merge heads
        return self.o_proj(ctx)


attention = MultiHeadSelfAttention(48, 6)

# === ninth_multi_head_adds_ones
# target: multi_head
# wrong: the float 0/1 triangle is given as attn_mask, which is ADDED to the scores, so the future gets +1 and is not hidden; make it bool (True = hide) or -inf.
# words: add 1 to the scores of the future
import torch
import torch.nn as nn


class MaskedMultiHeadAttention(nn.Module):
    """Decoder self-attention: no position sees a later one."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def make_mask(self, x):
        size = x.size(1)
        # 1 above the diagonal = the future
        return torch.triu(torch.ones(size, size, dtype=x.dtype, device=x.device), diagonal=1)

    def forward(self, x):
        out, weights = self.attn(x, x, x, attn_mask=self.make_mask(x))
        return out

# === ninth_grouped_expand
# target: grouped_query
# right: kv heads repeated by unsqueeze/expand in the (B,T,H,D) layout before the transpose
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 48
    n_heads: int = 6
    n_kv_heads: Optional[int] = None


def share_heads(t: torch.Tensor, times: int) -> torch.Tensor:
    """(batch, len, kv, dim) -> (batch, len, kv * times, dim); each kv head `times` times in a row"""
    batch, length, _, dim = t.shape
    return t.unsqueeze(3).expand(-1, -1, -1, times, -1).reshape(batch, length, -1, dim)


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

    def forward(self, x: torch.Tensor):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        keys = share_heads(xk, self.n_rep).transpose(1, 2)
        values = share_heads(xv, self.n_rep).transpose(1, 2)
        out = F.scaled_dot_product_attention(xq.transpose(1, 2), keys, values, is_causal=True)
        out = out.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(out)


attention = Attention(ModelArgs(dim=48, n_heads=6, n_kv_heads=2))

# === ninth_multi_query_einsum
# target: grouped_query
# right: multi-query with per-head einsum parameters, output parameter stored (heads, dim, k); default heads=8 (give heads=6 for width 48)
import torch
from torch import nn, einsum


class MultiQueryAttention(nn.Module):
    # Shazeer 2019, "One write-head is all you need", appendix style einsums

    def __init__(self, dim, heads=8):
        super().__init__()
        k = dim // heads
        self.P_q = nn.Parameter(torch.randn(heads, dim, k) * dim ** -0.5)
        self.P_k = nn.Parameter(torch.randn(dim, k) * dim ** -0.5)
        self.P_v = nn.Parameter(torch.randn(dim, k) * dim ** -0.5)
        self.P_o = nn.Parameter(torch.randn(heads, dim, k) * dim ** -0.5)

    def forward(self, X):
        n = X.shape[1]
        Q = einsum('bnd,hdk->bhnk', X, self.P_q)
        K = einsum('bmd,dk->bmk', X, self.P_k)
        V = einsum('bmd,dv->bmv', X, self.P_v)
        logits = einsum('bhnk,bmk->bhnm', Q, K) / K.shape[-1] ** 0.5
        future = torch.arange(n)[:, None] < torch.arange(n)
        weights = logits.masked_fill(future.to(X.device), -1e30).softmax(-1)
        O = einsum('bhnm,bmv->bhnv', weights, V)
        return einsum('bhnv,hdv->bnd', O, self.P_o)

# === ninth_grouped_values_tiled
# target: grouped_query
# wrong: keys are repeated with repeat_interleave but values tiled with repeat, so a query head uses the keys of one group and the values of another; use repeat_interleave for v too.
# words: tiled
import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    """GQA: `num_heads` query heads share `num_kv_heads` key/value heads."""

    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int):
        super().__init__()
        if num_heads % num_kv_heads != 0:
            raise ValueError("num_heads must be a multiple of num_kv_heads")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.groups = num_heads // num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.q = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, L, E = x.shape
        q = self.q(x).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(B, L, self.num_kv_heads, self.head_dim).transpose(1, 2)

        # every key/value head serves a whole group of query heads
        k = k.repeat_interleave(self.groups, dim=1)
        v = v.repeat(1, self.groups, 1, 1)

        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(B, L, E))


attention = GroupedQueryAttention(48, 6, 2)

# === ninth_grouped_reshaped
# target: grouped_query
# wrong: k and v are reshaped straight to (B, n_kv, T, hd), which mixes positions and heads (and leaks the future) for n_kv > 1; reshape to (B, T, n_kv, hd) and transpose(1, 2) (harmless for n_kv_heads=1, the default).
# words: keys and values alone are split
import torch
import torch.nn as nn
import torch.nn.functional as F


class GQA(nn.Module):
    def __init__(self, d_model, n_heads, n_kv_heads=1):
        super().__init__()
        self.nh, self.nkv = n_heads, n_kv_heads
        self.hd = d_model // n_heads
        self.wq = nn.Linear(d_model, self.nh * self.hd)
        self.wkv = nn.Linear(d_model, 2 * self.nkv * self.hd)
        self.wo = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.nh, self.hd).transpose(1, 2)
        k, v = self.wkv(x).split(self.nkv * self.hd, dim=-1)
        k = k.reshape(B, self.nkv, T, self.hd)
        v = v.reshape(B, self.nkv, T, self.hd)
        # (B, nkv, group, T, hd) so that the kv heads broadcast
        q = q.view(B, self.nkv, self.nh // self.nkv, T, self.hd)
        att = q @ k.unsqueeze(2).transpose(-2, -1) / self.hd ** 0.5
        att = att + torch.full((T, T), float("-inf"), device=x.device).triu(1)
        y = F.softmax(att, -1) @ v.unsqueeze(2)
        y = y.flatten(1, 2).transpose(1, 2).reshape(B, T, C)
        return self.wo(y)
