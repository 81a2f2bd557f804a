"""An eighth lot of learners' programs: means, weights, dot products, one head, many heads, grouped queries."""

# === eighth_mean_loops
# target: running_mean
# right: zeros_like instead of zeros, double Python loop with torch.mean over the prefix
import torch

# exercise 1: every position gets the average of itself and everything before it (bag of words)

def bow_average(x):
    # x is (B, T, C)
    B, T, C = x.shape
    xbow = torch.zeros_like(x)
    for b in range(B):
        for t in range(T):
            xprev = x[b, : t + 1]  # (t+1, C)
            xbow[b, t] = torch.mean(xprev, 0)
    return xbow


running_mean = bow_average

# === eighth_mean_einsum
# target: running_mean
# right: boolean triangle divided by (row+1), einsum
import torch
from torch import Tensor


def causal_average_matrix(length: int, device=None, dtype=None) -> Tensor:
    """Lower-triangular matrix whose t-th row is (1/(t+1), ..., 1/(t+1), 0, ..., 0)."""
    row = torch.arange(length, device=device).unsqueeze(1)
    col = torch.arange(length, device=device).unsqueeze(0)
    keep = (col <= row).to(dtype or torch.get_default_dtype())
    return keep / (row + 1)


def running_mean(x: Tensor) -> Tensor:
    """(batch, time, channels) -> (batch, time, channels), mean over positions 0..t."""
    A = causal_average_matrix(x.size(1), device=x.device, dtype=x.dtype)
    return torch.einsum("ts,bsc->btc", A, x)

# === eighth_mean_columns
# target: running_mean
# wrong: wei.sum(0, keepdim=True) normalises the columns instead of the rows; should be wei.sum(1, keepdim=True)
# words: columns
import torch


def cumulative_mean(x):
    """Average of the current and all earlier tokens, with one matrix product.

    x: (batch, time, channels)
    """
    _, T, _ = x.shape
    wei = torch.tril(torch.ones(T, T, dtype=x.dtype, device=x.device))
    wei = wei / wei.sum(0, keepdim=True)
    return wei @ x  # (T, T) @ (B, T, C) -> (B, T, C)


running_mean = cumulative_mean

# === eighth_mean_log_triangle
# target: running_mean
# right: softmax of log(tril): log 1 = 0, log 0 = -inf, kept as a buffer
import torch
import torch.nn as nn


class RunningMean(nn.Module):
    """Mean over the prefix, phrased as attention with constant scores.

    log(1) = 0 and log(0) = -inf, so the log of the triangle is already the masked score matrix.
    """

    def __init__(self, max_len=256):
        super().__init__()
        scores = torch.tril(torch.ones(max_len, max_len)).log()
        self.register_buffer("scores", scores, persistent=False)

    def forward(self, x):
        n = x.shape[1]
        p = self.scores[:n, :n].softmax(dim=-1)
        return torch.matmul(p.to(x.dtype), x)

# === eighth_attend_annotated
# target: attend
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

# === eighth_attend_scaled_late
# target: attend
# wrong: the division by sqrt(d) is applied to the weights after the softmax instead of to the scores before it
# words: after the softmax
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
    attention_weights = F.softmax(scores, dim=-1) / d ** 0.5
    return torch.bmm(attention_weights, values)

# === eighth_attend_time_first
# target: attend
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

# === eighth_attend_masked_late
# target: attend
# wrong: the causal mask is applied after the softmax by zeroing weights, so rows do not sum to 1; mask the scores with -inf before the softmax
# words: mask after the softmax
import torch
import torch.nn.functional as F


def causal_attention(q, k, v):
    # q, k, v: (B, T, head_size)
    T, hs = q.shape[-2], q.shape[-1]
    wei = q @ k.transpose(-2, -1) * hs ** -0.5   # (B, T, T)
    wei = F.softmax(wei, dim=-1)
    # no peeking into the future
    tril = torch.tril(torch.ones(T, T, device=q.device))
    wei = wei.masked_fill(tril == 0, 0.0)
    return wei @ v


attention = causal_attention

# === eighth_attend_tiles
# target: attend
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

# === eighth_weights_stable
# target: attention_weights
# right: hand-written stable softmax, additive -inf triu mask
from math import sqrt

import torch


def attn_weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Causal attention pattern for (batch, heads, seq, d_head) queries and keys."""
    seq = q.size(2)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k).div(sqrt(q.size(3)))
    future = torch.full((seq, seq), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    scores = scores + future
    scores = scores - scores.max(dim=-1, keepdim=True).values
    e = scores.exp()
    return e / e.sum(dim=-1, keepdim=True)

# === eighth_weights_over_queries
# target: attention_weights
# wrong: softmax over dim=1 (the queries) instead of dim=2 / -1 (the keys)
# words: over the queries
import torch
import torch.nn as nn


def attention_weights(Q, K):
    """Return the (B, Tq, Tk) matrix of attention weights, no mask."""
    d_k = K.shape[-1]
    scores = torch.bmm(Q, K.permute(0, 2, 1)) / (d_k ** 0.5)
    return nn.Softmax(dim=1)(scores)


weights = attention_weights

# === eighth_weights_baddbmm
# target: attention_weights
# right: baddbmm with the mask as bias and scale as alpha, finfo.min mask (BLOOM style)
import math
import torch
from torch import nn


class AttentionProbs(nn.Module):
    """Only the probabilities: x (B, T, hidden) -> (B, num_heads, T, T), causal."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        B, T, _ = hidden_states.shape
        nh, hd = self.num_heads, self.head_dim
        q = self.query(hidden_states).view(B, T, nh, hd).transpose(1, 2).reshape(B * nh, T, hd)
        k = self.key(hidden_states).view(B, T, nh, hd).permute(0, 2, 3, 1).reshape(B * nh, hd, T)
        neg = torch.finfo(q.dtype).min
        bias = torch.triu(torch.full((T, T), neg, dtype=q.dtype, device=q.device), diagonal=1)
        scores = torch.baddbmm(bias.expand(B * nh, T, T), q, k, beta=1.0, alpha=self.inv_norm_factor)
        probs = scores.view(B, nh, T, T).softmax(-1)
        return probs


weights = AttentionProbs(48, 6)

# === eighth_weights_diagonal
# target: attention_weights
# wrong: triu diagonal=0 masks the token itself (and makes row 0 uniform over the future); should be diagonal=1
# words: cannot see itself
import torch


def causal_scores(queries, keys):
    """
    Attention weights of a decoder: each token attends to itself and the tokens before it.
    queries, keys: (batch, seq, dim)
    """
    n = queries.shape[1]
    att = queries.matmul(keys.transpose(1, 2)) / queries.shape[-1] ** 0.5
    mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=queries.device), diagonal=0)
    att = att.masked_fill(mask, torch.finfo(att.dtype).min)
    return torch.softmax(att, dim=-1)

# === eighth_head_parameters
# target: single_head
# right: nn.Parameter matrices, x @ W convention, no biases
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    """One causal head, plain weight matrices, x @ W convention."""

    def __init__(self, d_model, d_head):
        super().__init__()
        self.W_q = nn.Parameter(torch.randn(d_model, d_head) / d_model**0.5)
        self.W_k = nn.Parameter(torch.randn(d_model, d_head) / d_model**0.5)
        self.W_v = nn.Parameter(torch.randn(d_model, d_head) / d_model**0.5)
        self.W_o = nn.Parameter(torch.randn(d_head, d_model) / d_head**0.5)

    def forward(self, x):
        q = x @ self.W_q
        k = x @ self.W_k
        v = x @ self.W_v
        s = q @ k.transpose(-1, -2) / self.W_q.shape[1] ** 0.5
        t = x.shape[-2]
        s = s.masked_fill(~torch.ones(t, t, dtype=torch.bool, device=x.device).tril(), -torch.inf)
        return s.softmax(-1) @ v @ self.W_o


attention = SelfAttention(48, 16)

# === eighth_head_scale
# target: single_head
# wrong: scores scaled by C**-0.5 (the embedding width) instead of head_size**-0.5
# words: sqrt(D)
import torch
import torch.nn as nn
from torch.nn import functional as F


class Head(nn.Module):
    """ one head of self-attention, projected back to n_embd """

    def __init__(self, n_embd, head_size, block_size=64, dropout=0.1):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.proj = nn.Linear(head_size, n_embd)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)    # (B,T,hs)
        q = self.query(x)  # (B,T,hs)
        # compute attention scores ("affinities")
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        out = wei @ self.value(x)
        return self.proj(out)

# === eighth_head_convolutions
# target: single_head
# right: 1x1 Conv1d projections, softmax over the key dimension dim=2, mask by in-place index assignment
import torch, torch.nn as nn, torch.nn.functional as F

# 1x1 convolutions as the projections, the way vision people do it. causal single head.

def conv1x1(ni, nf, bias=True): return nn.Conv1d(ni, nf, kernel_size=1, bias=bias)

class ConvSelfAttention(nn.Module):
    def __init__(self, n_channels):
        super().__init__()
        self.q, self.k, self.v = [conv1x1(n_channels, n_channels, bias=False) for _ in range(3)]
        self.o = conv1x1(n_channels, n_channels)

    def forward(self, x):
        h = x.transpose(1, 2)                       # b, c, t
        q, k, v = self.q(h), self.k(h), self.v(h)
        scores = torch.bmm(q.transpose(1, 2), k) / q.shape[1] ** .5    # b, t, t
        t = x.shape[1]
        idx = torch.arange(t, device=x.device)
        scores[:, idx[:, None] < idx[None, :]] = -float('inf')
        beta = F.softmax(scores, dim=2)
        o = torch.bmm(v, beta.transpose(1, 2))      # b, c, t
        return self.o(o).transpose(1, 2)

# === eighth_head_keys_first
# target: single_head
# right: joined layer in the order k, q, v; -finfo.max mask; tuple returned
import torch
from torch import nn


class OneHeadAttention(nn.Module):
    """Single causal head; returns the output and the attention map."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.kqv = nn.Linear(dim, 3 * dim, bias=False)  # order: keys, queries, values
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor):
        k, q, v = self.kqv(x).split(self.dim, dim=-1)
        sim = torch.einsum("bid,bjd->bij", q, k) * self.dim**-0.5
        i, j = sim.shape[-2:]
        causal = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
        sim = sim.masked_fill(causal, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        y = torch.einsum("bij,bjd->bid", attn, v)
        return self.out(y), attn


attention = OneHeadAttention(48)

# === eighth_multi_head_nanogpt
# target: multi_head
# right: nanoGPT with flash path; attention dropout only in training
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 64
    n_head: int = 6
    n_embd: int = 48
    dropout: float = 0.1
    bias: bool = True


class CausalSelfAttention(nn.Module):

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        self.flash = hasattr(torch.nn.functional, 'scaled_dot_product_attention')
        if not self.flash:
            self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))
                                 .view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None,
                                               dropout_p=self.dropout if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            att = self.attn_dropout(F.softmax(att, dim=-1))
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))

# === eighth_multi_head_joined
# target: multi_head
# wrong: heads are merged without transposing back: needs (weights @ v).transpose(1, 2) before contiguous().view(b, n, d_model)
# words: joined without transpose
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.depth = d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def split_heads(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.split_heads(self.wq(x))
        k = self.split_heads(self.wk(x))
        v = self.split_heads(self.wv(x))
        logits = q @ k.transpose(2, 3) / math.sqrt(self.depth)
        look_ahead = torch.triu(torch.ones(n, n, device=x.device), diagonal=1).bool()
        logits = logits.masked_fill(look_ahead, float('-inf'))
        weights = F.softmax(logits, dim=-1)
        out = (weights @ v).contiguous().view(b, n, self.d_model)
        return self.dense(out)


attention = MultiHeadAttention(48, 6)

# === eighth_multi_head_gpt2
# target: multi_head
# right: Conv1D weights stored (in, out), key split already transposed, bool buffer mask, finfo.min
import torch
import torch.nn as nn


class Conv1D(nn.Module):
    """Linear layer whose weight is stored (in, out), as in the original GPT-2 checkpoint."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        size_out = x.size()[:-1] + (self.nf,)
        x = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return x.view(size_out)


class GPT2Attention(nn.Module):
    def __init__(self, nx, n_head, n_ctx=128, attn_pdrop=0.1, resid_pdrop=0.1):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones((n_ctx, n_ctx), dtype=torch.bool)).view(1, 1, n_ctx, n_ctx))
        self.n_head = n_head
        self.split_size = nx
        self.c_attn = Conv1D(3 * nx, nx)
        self.c_proj = Conv1D(nx, nx)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def split_heads(self, x, is_key=False):
        x = x.view(*x.size()[:-1], self.n_head, x.size(-1) // self.n_head)
        return x.permute(0, 2, 3, 1) if is_key else x.permute(0, 2, 1, 3)

    def merge_heads(self, x):
        x = x.permute(0, 2, 1, 3).contiguous()
        return x.view(*x.size()[:-2], x.size(-2) * x.size(-1))

    def forward(self, x):
        query, key, value = self.c_attn(x).split(self.split_size, dim=2)
        query = self.split_heads(query)
        key = self.split_heads(key, is_key=True)   # (batch, head, head_features, seq)
        value = self.split_heads(value)
        w = torch.matmul(query, key) / (value.size(-1) ** 0.5)
        nd, ns = w.size(-2), w.size(-1)
        w = torch.where(self.bias[:, :, ns - nd:ns, :ns], w, torch.finfo(w.dtype).min)
        w = self.attn_dropout(nn.Softmax(dim=-1)(w))
        a = self.merge_heads(torch.matmul(w, value))
        return self.resid_dropout(self.c_proj(a))


attention = GPT2Attention(48, 6)

# === eighth_multi_head_drops
# target: multi_head
# wrong: dropout_p=self.dropout is passed to scaled_dot_product_attention also in eval mode; should be dropout only if self.training else 0.0
# words: dropout is active
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class CausalMHSA(nn.Module):
    """Multi-head causal self-attention on the fused kernel."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.1, bias: bool = False) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.out_proj(y.transpose(1, 2).flatten(-2))

# === eighth_multi_head_list
# target: multi_head
# right: ModuleList of per-head modules, dropout from a module global
import torch
import torch.nn as nn
import torch.nn.functional as F

dropout = 0.1
block_size = 32


class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ v


class MultiHeadAttention(nn.Module):
    """ heads in a list, one after the other, results side by side """

    def __init__(self, n_embd, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))


attention = MultiHeadAttention(48, 6)

# === eighth_multi_head_lens
# target: multi_head
# right: TransformerLens style 3-D weights (head, d_model, d_head), biases, -1e5 mask buffer
import torch as t
from torch import nn


class Attention(nn.Module):
    """Interpretability style: one weight tensor per role, heads on the first axis."""

    IGNORE: t.Tensor

    def __init__(self, d_model: int, n_heads: int, init_range: float = 0.1):
        super().__init__()
        d_head = d_model // n_heads
        self.d_head = d_head
        self.W_Q = nn.Parameter(init_range * t.randn(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(init_range * t.randn(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(init_range * t.randn(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(init_range * t.randn(n_heads, d_head, d_model))
        self.b_Q = nn.Parameter(t.zeros(n_heads, d_head))
        self.b_K = nn.Parameter(t.zeros(n_heads, d_head))
        self.b_V = nn.Parameter(t.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(t.zeros(d_model))
        self.register_buffer("IGNORE", t.tensor(-1e5))

    def apply_causal_mask(self, attn_scores):
        ones = t.ones(attn_scores.size(-2), attn_scores.size(-1), device=attn_scores.device)
        return attn_scores.masked_fill(t.triu(ones, diagonal=1).bool(), self.IGNORE)

    def forward(self, normalized_resid_pre: t.Tensor) -> t.Tensor:
        x = normalized_resid_pre
        q = t.einsum("bpd,hde->bphe", x, self.W_Q) + self.b_Q
        k = t.einsum("bpd,hde->bphe", x, self.W_K) + self.b_K
        v = t.einsum("bpd,hde->bphe", x, self.W_V) + self.b_V
        attn_scores = t.einsum("bqhe,bkhe->bhqk", q, k)
        attn_pattern = self.apply_causal_mask(attn_scores / self.d_head**0.5).softmax(-1)
        z = t.einsum("bkhe,bhqk->bqhe", v, attn_pattern)
        return t.einsum("bqhe,hed->bqd", z, self.W_O) + self.b_O

# === eighth_grouped_values_tiled
# target: grouped_query
# wrong: v is expanded with repeat while k uses repeat_interleave, so keys and values of different groups are paired; v should use repeat_interleave(groups, dim=1)
# words: tiled
import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = dim // n_heads
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        groups = self.n_heads // self.n_kv_heads
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat(1, groups, 1, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


attention = GroupedQueryAttention(48, 6, 2)

# === eighth_grouped_llama
# target: grouped_query
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

# === eighth_multi_query_folded
# target: grouped_query
# right: joined layer (embed, head, head); heads folded into the time axis and bmm with one shared key
import torch
from torch import nn


class MultiQueryAttention(nn.Module):
    """n_head query heads, a single key head and a single value head (Shazeer 2019)."""

    def __init__(self, embed_dim, n_head):
        super().__init__()
        self.embed_dim, self.n_head = embed_dim, n_head
        self.head_dim = embed_dim // n_head
        self.c_attn = nn.Linear(embed_dim, embed_dim + 2 * self.head_dim)
        self.c_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden):
        B, T, _ = hidden.shape
        query, key, value = self.c_attn(hidden).split((self.embed_dim, self.head_dim, self.head_dim), dim=2)
        # fold the heads into the time axis: keys and values are shared by all of them
        query = query.reshape(B, T * self.n_head, self.head_dim) / self.head_dim ** 0.5
        att = torch.bmm(query, key.transpose(1, 2)).view(B, T, self.n_head, T)
        allowed = torch.ones(T, T, dtype=torch.bool, device=hidden.device).tril().view(1, T, 1, T)
        att = att.masked_fill(~allowed, torch.finfo(att.dtype).min).softmax(dim=-1)
        out = torch.bmm(att.view(B, T * self.n_head, T), value).view(B, T, self.embed_dim)
        return self.c_proj(out)


attention = MultiQueryAttention(48, 6)

# === eighth_grouped_scale
# target: grouped_query
# wrong: scale uses n_embd // n_kv_heads instead of the head width n_embd // n_query_heads
# words: D/G
import torch
import torch.nn as nn


class GQA(nn.Module):
    def __init__(self, n_embd, n_query_heads, n_kv_heads):
        super().__init__()
        assert n_query_heads % n_kv_heads == 0
        self.nq, self.nkv = n_query_heads, n_kv_heads
        self.hs = n_embd // n_query_heads
        self.query = nn.Linear(n_embd, self.nq * self.hs, bias=False)
        self.kv = nn.Linear(n_embd, 2 * self.nkv * self.hs, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        self.scale = (n_embd // n_kv_heads) ** -0.5

    def forward(self, x):
        b, t, c = x.shape
        g = self.nq // self.nkv
        q = self.query(x).view(b, t, self.nkv, g, self.hs)
        k, v = self.kv(x).view(b, t, 2, self.nkv, self.hs).unbind(2)
        s = torch.einsum('bikgd,bjkd->bkgij', q, k) * self.scale
        s = s.masked_fill(torch.ones(t, t, device=x.device).tril() == 0, float('-inf'))
        a = s.softmax(-1)
        o = torch.einsum('bkgij,bjkd->bikgd', a, v).reshape(b, t, c)
        return self.proj(o)

# === eighth_grouped_litgpt
# target: grouped_query
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
