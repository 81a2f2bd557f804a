# Functions of given queries, keys and values: fewer queries than keys, masks given, heads third, tiles with a running maximum.
# target: attend

# === from_the_paper
# right: from the paper, word for word
import math
import torch

def scaled_dot_product(q, k, v):
    d_k = q.size()[-1]
    attn_logits = torch.matmul(q, k.transpose(-2, -1))
    attn_logits = attn_logits / math.sqrt(d_k)
    T, S = attn_logits.shape[-2:]
    causal = torch.tril(torch.ones(T, S), diagonal=S - T)
    attn_logits = attn_logits.masked_fill(causal == 0, -9e15)
    attention = torch.softmax(attn_logits, dim=-1)
    return torch.matmul(attention, v)

attention = scaled_dot_product

# === mask_at_upper_left_corner
# of: from_the_paper
# wrong: torch.ones(T, S).tril() is aligned to the upper left: with T < S the queries are taken for the first ones
# words: S - T|upper|first|left|offset|position
#-    causal = torch.tril(torch.ones(T, S), diagonal=S - T)
#+    causal = torch.tril(torch.ones(T, S))

# === scores_not_divided
# of: from_the_paper
# wrong: the scores are not divided by sqrt(d)
# words: scale|divide|sqrt
#-    attn_logits = attn_logits / math.sqrt(d_k)
#-    T, S = attn_logits.shape[-2:]
#+    T, S = attn_logits.shape[-2:]

# === attend_sees_the_next_position
# of: from_the_paper
# wrong: the triangle begins one too late: every position sees the next one
# words: next|one later|one too|1
#-    causal = torch.tril(torch.ones(T, S), diagonal=S - T)
#+    causal = torch.tril(torch.ones(T, S), diagonal=S - T + 1)

# === filled_with_minus_100
# of: from_the_paper
# wrong: fills with -100 instead of -inf: large scores reach through
# words: -100|large|-inf
#-    attn_logits = attn_logits.masked_fill(causal == 0, -9e15)
#+    attn_logits = attn_logits.masked_fill(causal == 0, -100.0)

# === filled_with_almost_zero
# of: from_the_paper
# wrong: future filled with 1e-9 (about zero) instead of -1e9, so it is not masked
# words: mask|inf|1e-9|future
#-    attn_logits = attn_logits.masked_fill(causal == 0, -9e15)
#+    attn_logits = attn_logits.masked_fill(causal == 0, 1e-9)

# === masked_fill_not_assigned
# of: from_the_paper
# wrong: masked_fill without an assignment does nothing: no mask
# words: mask|future|causal
#-    attn_logits = attn_logits.masked_fill(causal == 0, -9e15)
#+    attn_logits.masked_fill(causal == 0, -9e15)

# === softmax_over_the_batch
# of: from_the_paper
# wrong: softmax(0) sums over the first axis of the batch
# words: batch|dim|axis
# seen: FudanNLP/fastNLP#254
#-    attention = torch.softmax(attn_logits, dim=-1)
#+    attention = torch.softmax(attn_logits, dim=0)

# === attend_softmax_over_queries
# of: from_the_paper
# wrong: the softmax runs over the query dimension
# words: queries
#-    attention = torch.softmax(attn_logits, dim=-1)
#+    attention = torch.softmax(attn_logits, dim=-2)

# === attend_masked_after_softmax
# of: from_the_paper
# wrong: weights of the future are zeroed after the softmax: rows do not sum to one
# words: mask after the softmax
#-    attn_logits = attn_logits.masked_fill(causal == 0, -9e15)
#-    attention = torch.softmax(attn_logits, dim=-1)
#+    attention = torch.softmax(attn_logits, dim=-1) * causal

# === sdpa_with_a_mask_of_its_own
# right: SDPA with a mask of its own, aligned to the lower right
import torch
import torch.nn.functional as F

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

attention = attend

# === sdpa_is_causal_for_fewer_queries
# of: sdpa_with_a_mask_of_its_own
# convention: is_causal=True of SDPA aligns the mask to the upper left: with fewer queries than keys the queries are the first ones
# seen: gittensor-ai-lab/sparkinfer#3, Dao-AILab/flash-attention#380
#-    T, S = q.shape[-2], k.shape[-2]
#-    mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
#-    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
#+    return F.scaled_dot_product_attention(q, k, v, is_causal=True)

# === sdpa_mask_true_where_hidden
# of: sdpa_with_a_mask_of_its_own
# wrong: SDPA's bool mask says who MAY be seen; here true means hidden
# words: invert|hidden|hide|keep|future|true
#-    mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
#+    mask = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)

# === sdpa_of_queries_scaled_before
# of: sdpa_with_a_mask_of_its_own
# wrong: the query is scaled, and SDPA scales again
# words: twice
#-    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
#+    return F.scaled_dot_product_attention(q * q.size(-1) ** -0.5, k, v, attn_mask=mask)

# === drop_in_for_flash_attention
# convention: is_causal=True of SDPA aligns the mask to the upper left corner where there are fewer queries than keys, flash-attn to the lower right
import torch
import torch.nn.functional as F

def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=True):
    """drop-in for flash_attn.flash_attn_func on CPU. q, k, v: (batch, seqlen, nheads, headdim)"""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale)
    return o.transpose(1, 2).contiguous()

# === time_first_causal_flag
# right: time-first tensors, scale folded into q, causal mask aligned bottom-right
import torch

def sdpa_time_first(q, k, v, causal=False):
    """Attention on (T, B, C) tensors, fairseq layout.

    q: (Tq, B, C)   k: (Tk, B, C)   v: (Tk, B, Cv)   ->   (Tq, B, Cv)
    """
    q = q * (q.shape[-1] ** -0.5)  # scale the query, cheaper than scaling the scores
    logits = torch.einsum("tbc,sbc->bts", q, k)
    if causal:
        tq, tk = logits.shape[-2:]
        future = torch.ones(tq, tk, dtype=torch.bool, device=q.device).triu(tk - tq + 1)
        logits = logits + torch.zeros_like(logits).masked_fill(future, float("-inf"))
    p = torch.softmax(logits, dim=2)
    return torch.einsum("bts,sbd->tbd", p, v)

attention = sdpa_time_first

# === annotated_function_with_mask
# right: Annotated Transformer, -1e9 mask, tuple returned; not causal without a mask
import math
import torch

def scaled_dot_product(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'. mask is 1 where a position may be looked at."
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn

attention = scaled_dot_product

# === own_mask_if_none_is_given
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

# === log_softmax_as_weights
# of: own_mask_if_none_is_given
# wrong: log_softmax instead of softmax
# words: log
#-    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
#-    p_attn = F.softmax(scores, dim=-1)
#+    scores = scores.masked_fill(~mask, -1e9)
#+    p_attn = F.log_softmax(scores, dim=-1)

# === flax_bias_and_precision
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

# === tensorflow_tutorial_mask
# target: attend,full
# right: ported from the TensorFlow tutorial: a mask of 1 hides
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
    depth = torch.tensor(k.shape[-1], dtype=q.dtype)
    logits = logits / torch.sqrt(depth)

    if mask is not None:
        logits = logits + mask.to(logits.dtype) * -1e9

    weights = torch.softmax(logits, dim=-1)
    return torch.matmul(weights, v)

attention = scaled_dot_product_attention

# === divided_by_root_of_key_length
# of: tensorflow_tutorial_mask
# wrong: the scores are scaled by sqrt of the key length (k.shape[-2]) instead of the depth
# words: T, the number of tokens
#-    depth = torch.tensor(k.shape[-1], dtype=q.dtype)
#+    depth = torch.tensor(k.shape[-2], dtype=q.dtype)

# === valid_lengths
# target: attend,full
# right: lengths of the texts hide the padding, as in Dive into Deep Learning
import torch
import torch.nn.functional as F

def dot_product_attention(queries, keys, values, valid_lens=None):
    """queries (b, n, d), keys (b, m, d), values (b, m, dv), valid_lens (b,) or None."""
    d = queries.shape[-1]
    scores = torch.bmm(queries, keys.transpose(1, 2))
    if valid_lens is not None:
        steps = torch.arange(keys.shape[1], device=keys.device)
        blocked = steps[None, None, :] >= valid_lens[:, None, None]
        scores = scores.masked_fill(blocked, float("-inf"))
    attention_weights = F.softmax(scores / d ** 0.5, dim=-1)
    return torch.bmm(attention_weights, values)

# === divided_after_the_softmax
# of: valid_lengths
# wrong: the division by sqrt(d) comes after the softmax, so the weights sum to 1/sqrt(d)
# words: after the softmax
#-    attention_weights = F.softmax(scores / d ** 0.5, dim=-1)
#+    attention_weights = F.softmax(scores, dim=-1) / d ** 0.5

# === logsumexp_for_a_softmax
# right: logsumexp in place of a softmax
import torch

def attend(q, k, v):
    s = torch.einsum("...td,...sd->...ts", q, k) * q.size(-1) ** -0.5
    T, S = s.shape[-2:]
    s = s + torch.triu(torch.full((T, S), -torch.inf), S - T + 1)
    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v

# === logsumexp_of_all_queries
# of: logsumexp_for_a_softmax
# wrong: logsumexp over all queries and keys
# words: all queries|over all
#-    return torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ v
#+    return torch.exp(s - torch.logsumexp(s, (-2, -1), keepdim=True)) @ v

# === two_vmaps
# right: JAX habit: one head on (T,D) lifted with two vmaps to (B,H,T,D), causal
import torch
from torch.func import vmap

def _single(q, k, v):
    t, d = q.shape
    logits = (q @ k.T) / d ** 0.5
    i = torch.arange(t)
    logits = torch.where(i[:, None] >= i[None, :], logits, float("-inf"))
    w = torch.exp(logits - torch.logsumexp(logits, dim=-1, keepdim=True))
    return w @ v

def dot_product_attention(q, k, v):
    over_heads = vmap(_single)
    return vmap(over_heads)(q, k, v)

# === module_with_online_softmax
# right: a module of q, k, v without parameters; keys in chunks, a running maximum, no causal mask
import torch
import torch.nn as nn

class OnlineSoftmaxAttention(nn.Module):
    """streaming over the keys in chunks, never builds the T x T matrix (no causal mask)"""
    def __init__(self, chunk=4):
        super().__init__()
        self.chunk = chunk

    def forward(self, q, k, v):
        q = q / q.shape[-1] ** 0.5
        run_max = torch.full(q.shape[:-1] + (1,), -float("inf"), device=q.device)
        run_sum = torch.zeros_like(run_max)
        out = torch.zeros(q.shape[:-1] + v.shape[-1:], device=q.device)
        for kc, vc in zip(k.split(self.chunk, dim=-2), v.split(self.chunk, dim=-2)):
            s = q @ kc.transpose(-2, -1)
            new_max = torch.maximum(run_max, s.max(dim=-1, keepdim=True).values)
            corr = torch.exp(run_max - new_max)
            p = torch.exp(s - new_max)
            run_sum = run_sum * corr + p.sum(-1, keepdim=True)
            out = out * corr + p @ vc
            run_max = new_max
        return out / run_sum

attention = OnlineSoftmaxAttention(4)

# === chunks_not_rescaled
# of: module_with_online_softmax
# wrong: the output is not rescaled when the running maximum grows, its sum is
# words: running maximum|rescale
#-            out = out * corr + p @ vc
#+            out = out + p @ vc

# === online_softmax_key_by_key
# right: key by key with a running maximum, as flash attention does
import torch

def flash_like(q, k, v):
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    m = torch.full(q.shape[:-1], float("-inf"))
    l = torch.zeros(q.shape[:-1])
    acc = torch.zeros(*q.shape[:-1], v.shape[-1])
    where = torch.arange(T) + S - T
    for j in range(S):
        s = (q * k[..., j : j + 1, :]).sum(-1) / d**0.5
        s = torch.where(where >= j, s, torch.tensor(float("-inf")))
        new = torch.maximum(m, s)
        old_share = torch.exp(m - new).nan_to_num(0.0)
        p = torch.exp(s - new).nan_to_num(0.0)
        l = l * old_share + p
        acc = acc * old_share[..., None] + p[..., None] * v[..., j : j + 1, :]
        m = new
    return acc / l[..., None]

attention = flash_like

# === online_softmax_in_tiles
# right: FlashAttention-2 tiles with running max and running sum
import torch

def tiled_attention(Q, K, V, causal: bool = False, block: int = 3):
    """FlashAttention-2 forward pass, keys in tiles, running max and running sum.

    Q (..., N, d), K (..., M, d), V (..., M, d).  With causal=True N must equal M.
    """
    N, d = Q.shape[-2:]
    M = K.shape[-2]
    m = Q.new_full(Q.shape[:-1] + (1,), float("-inf"))
    l = Q.new_zeros(Q.shape[:-1] + (1,))
    O = Q.new_zeros(Q.shape[:-1] + (V.shape[-1],))
    rows = torch.arange(N, device=Q.device)[:, None]
    for start in range(0, M, block):
        Kj = K[..., start : start + block, :]
        Vj = V[..., start : start + block, :]
        S = Q @ Kj.mT / d**0.5
        if causal:
            cols = torch.arange(start, start + Kj.shape[-2], device=Q.device)
            S = torch.where(rows >= cols, S, float("-inf"))
        m_new = torch.maximum(m, S.amax(-1, keepdim=True))
        P = torch.exp(S - m_new)
        alpha = torch.exp(m - m_new)
        l = alpha * l + P.sum(-1, keepdim=True)
        O = alpha * O + P @ Vj
        m = m_new
    return O / l

# === tiles_not_rescaled
# target: attend,full
# of: online_softmax_in_tiles
# wrong: the output is not rescaled when the running maximum grows, its sum is
# words: rescale
#-        O = alpha * O + P @ Vj
#+        O = O + P @ Vj

# === tiles_of_the_future_skipped
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

# === function_with_a_window_of_three
# target: attend,window=3
# right: window of w keys, itself included, given q, k, v
import torch
import torch.nn.functional as F

def sliding_window_attention(q, k, v, window=3):
    T = q.size(-2)
    i = torch.arange(T)[:, None]
    j = torch.arange(T)[None, :]
    mask = (j <= i) & (i - j < window)
    scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5
    scores = scores.masked_fill(~mask, float('-inf'))
    return F.softmax(scores, dim=-1) @ v

attention = sliding_window_attention

# === function_with_a_window_on_both_sides
# target: attend,window=4
# of: function_with_a_window_of_three
# wrong: the window is symmetric, |i - j| < w, and so sees the future
# words: future
#-    mask = (j <= i) & (i - j < window)
#+    mask = (i - j).abs() < window

# === function_with_alibi
# target: attend,alibi
# right: function of given q, k, v in heads-last layout
import torch

def alibi_attention(q, k, v):
    """q, k, v: (batch, time, heads, dim)"""
    b, t, h, d = q.shape
    m = torch.pow(2.0, -8.0 * torch.arange(1, h + 1) / h)
    i = torch.arange(t).reshape(t, 1)
    j = torch.arange(t).reshape(1, t)
    s = torch.einsum('bihd,bjhd->bhij', q, k) / d ** 0.5
    s = s - m[None, :, None, None] * (i - j).abs()
    s = torch.where(j > i, float('-inf'), s)
    return torch.einsum('bhij,bjhd->bihd', torch.softmax(s, -1), v)

attention = alibi_attention

# === window_left_and_right
# target: attend,window=5
# right: a window (left, right) as flash-attn has it: left tokens beside the query's own; also for fewer queries than keys
import torch
import torch.nn.functional as F

def windowed_attention(q, k, v, window_size):
    T, S, (left, _) = q.size(-2), k.size(-2), window_size
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    seen = (distance >= 0) & (distance <= left)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

# === window_left_out_in_chunks
# of: window_left_and_right
# seen: karpathy/nanochat#452
# wrong: where queries are fewer than keys, as with a cache, the window is left out
# words: window
#-    seen = (distance >= 0) & (distance <= left)
#+    seen = (distance >= 0) & ((distance <= left) | (T != S))
