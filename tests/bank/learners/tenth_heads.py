"""A tenth lot of learners' programs: means, weights, one head, many heads, grouped queries."""

# === tenth_mean_running_total
# target: running_mean
# right: plain loop over tokens with a running total divided by step+1
# Week 1 warm up: replace every token by the mean of the tokens seen so far.
# (no matrices yet, I want to see the loop first)
import torch


def mean_of_past(seq):
    """seq: batch x time x channels"""
    total = torch.zeros_like(seq[:, 0])
    outs = []
    for step, token in enumerate(seq.unbind(dim=1)):
        total = total + token
        outs.append(total / (step + 1))
    return torch.stack(outs, dim=1)


if __name__ == "__main__":
    toy = torch.arange(12.).reshape(1, 6, 2)
    print(mean_of_past(toy))

# === tenth_mean_column_sums
# target: running_mean
# wrong: lower-triangular weights are normalised over the columns (sum(0)) instead of the rows, so no row is an average
# words: column|row|dim|axis|normal
import torch


def causal_average(x):
    # same thing as the loop, but as one matmul
    # x is (batch, time, features)
    n = x.shape[1]
    lower = torch.tril(torch.ones(n, n, dtype=x.dtype, device=x.device))
    lower = lower / lower.sum(0, keepdim=True)
    return lower @ x


attention = causal_average

# === tenth_dot_product_raw_scores
# target: dot_product
# right: raw unscaled scores q.k^T by einsum for any number of leading axes, says that scaling and softmax come later
"""Step 2 of my notes: compare all the queries with all the keys."""
import torch
from torch import Tensor


def similarity(queries: Tensor, keys: Tensor) -> Tensor:
    """(..., n, d) and (..., m, d)  ->  (..., n, m), entry [i, j] is <q_i, k_j>.

    No scaling and no softmax here, those come in the next step.
    """
    assert queries.shape[-1] == keys.shape[-1], "feature sizes differ"
    return torch.einsum("...nd,...md->...nm", queries, keys)


if __name__ == "__main__":
    q, k = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    s = similarity(q, k)
    assert torch.allclose(s[1, 3, 2], (q[1, 3] * k[1, 2]).sum(), atol=1e-5)
    print("ok", s.shape)

# === tenth_weights_log_space
# target: attention_weights
# right: log space: additive -inf mask, logsumexp by hand, exp at the end
import math
import torch


def log_softmax_by_hand(s):
    return s - torch.logsumexp(s, dim=-1, keepdim=True)


def weights_from(q, k):
    """Row i says how token i spreads its attention over tokens 0..i.

    Everything is kept as log probabilities until the very last line.
    """
    T, d = q.shape[-2:]
    future = torch.full((T, T), -math.inf, dtype=q.dtype, device=q.device).triu(1)
    logits = q @ k.mT / math.sqrt(d) + future
    return log_softmax_by_hand(logits).exp()


attention = weights_from

# === tenth_weights_softmax_over_queries
# target: attention_weights
# wrong: softmax over dim=1 of (batch,query,key), the queries, so columns sum to one and not rows
# words: softmax|dim|axis
# attention weights from scratch, after the blog post
import torch
import torch.nn.functional as F

def attention_weights(query, key):
    # query, key: [batch, seq, dim]
    dim = query.size(-1)
    seq = query.size(1)
    scores = torch.bmm(query, key.transpose(1, 2)) / dim ** 0.5      # [batch, seq, seq]
    causal = torch.ones(seq, seq, dtype=torch.bool, device=query.device).tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    probs = F.softmax(scores, dim=1)
    return probs


if __name__ == '__main__':
    torch.manual_seed(0)
    w = attention_weights(torch.randn(2, 4, 8), torch.randn(2, 4, 8))
    print(w[0])

# === tenth_weights_mask_after_softmax
# target: attention_weights
# wrong: mask multiplied in after the softmax without renormalising; rows do not sum to one and the future leaks through the denominator
# words: mask, softmax|renormal|sum|after
import torch

def attn_matrix(Q, K):
    d_k = Q.shape[-1]
    S = Q @ K.transpose(-1, -2)
    S = S / d_k ** .5
    A = torch.softmax(S, dim=-1)
    # tokens must not look ahead -> kill the upper triangle
    T = S.shape[-1]
    keep = torch.tril(torch.ones(T, T)).to(A)
    return A * keep

attention = attn_matrix

# === tenth_attend_online_blocks
# target: attend
# right: flash-attention style online softmax over blocks of keys, loops over blocks
"""Trying to understand flash attention: same answer, but the (T, T) matrix is never built.

For each block of queries walk over the blocks of keys, keeping for each query row
  m : biggest score met so far
  l : sum of exp(score - m)
  acc : sum of exp(score - m) * value
"""
import torch


def blockwise_attention(q, k, v, block=3):
    # q, k, v: (batch, heads, time, head_dim)
    n = q.size(2)
    scale = q.size(3) ** -0.5
    out = torch.empty_like(v)
    for i0 in range(0, n, block):
        qi = q[:, :, i0:i0 + block] * scale
        rows = torch.arange(i0, i0 + qi.size(2), device=q.device)
        m = qi.new_full(qi.shape[:3], float("-inf"))
        l = qi.new_zeros(qi.shape[:3])
        acc = torch.zeros_like(v[:, :, i0:i0 + block])
        for j0 in range(0, i0 + qi.size(2), block):
            kj = k[:, :, j0:j0 + block]
            vj = v[:, :, j0:j0 + block]
            cols = torch.arange(j0, j0 + kj.size(2), device=q.device)
            s = qi @ kj.transpose(2, 3)
            s = torch.where(rows[:, None] >= cols[None, :], s, float("-inf"))
            m_new = torch.maximum(m, s.amax(-1))
            p = torch.exp(s - m_new.unsqueeze(-1))
            shrink = torch.exp(m - m_new)
            l = l * shrink + p.sum(-1)
            acc = acc * shrink.unsqueeze(-1) + p @ vj
            m = m_new
        out[:, :, i0:i0 + block] = acc / l.unsqueeze(-1)
    return out


if __name__ == "__main__":
    import torch.nn.functional as F
    q, k, v = torch.randn(3, 1, 2, 10, 4).unbind(0)
    print((blockwise_attention(q, k, v) - F.scaled_dot_product_attention(q, k, v, is_causal=True)).abs().max())

# === tenth_attend_jax_layout
# target: attend
# convention: q k v and result are (B,T,H,D), heads third as in jax.nn.dot_product_attention; SDPA is_causal inside
import torch.nn.functional as F


def dot_product_attention(query, key, value):
    """Like jax.nn.dot_product_attention: all of them are [B, T, N, H] (heads third)."""
    query, key, value = (t.swapaxes(1, 2) for t in (query, key, value))
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out.swapaxes(1, 2)


attention = dot_product_attention

# === tenth_attend_sees_next
# target: attend
# wrong: mask off by one: i+1 >= j lets every token see the next one
# words: mask|future|causal|ahead
import torch


def attend(q, k, v):
    """
    q, k, v: (B, n_heads, T, head_size), already split
    """
    T = q.shape[2]
    pos = torch.arange(T, device=q.device)
    # query position down, key position across
    allowed = pos[:, None] + 1 >= pos[None, :]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    scores = torch.where(allowed, scores, torch.tensor(float("-inf"), dtype=q.dtype))
    w = scores.softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", w, v)

# === tenth_attend_fill_tiny
# target: attend
# wrong: future filled with 1e-9 (about zero) instead of -1e9, so it is not masked
# words: mask|inf|1e-9|future
import math
import torch
import torch.nn.functional as F


def scaled_attention(q, k, v, dropout=None):
    "Compute scaled dot product attention, causal. q k v are (batch, h, time, d_k)"
    d_k = q.size(-1)
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    t = scores.size(-1)
    subsequent = torch.triu(torch.ones(1, 1, t, t, device=q.device), diagonal=1)
    scores = scores.masked_fill(subsequent == 1, 1e-9)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, v)


attention = scaled_attention

# === tenth_single_bare_matrices
# target: single_head
# right: raw nn.Parameter matrices (in,out) with separate biases and an IGNORE buffer
import torch
from torch import nn


class OneHead(nn.Module):
    """A single causal attention head with plain matrices, x @ W."""

    def __init__(self, width, head_width):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(width, head_width) / width ** 0.5)
        self.W_K = nn.Parameter(torch.randn(width, head_width) / width ** 0.5)
        self.W_V = nn.Parameter(torch.randn(width, head_width) / width ** 0.5)
        self.b_Q = nn.Parameter(torch.zeros(head_width))
        self.b_K = nn.Parameter(torch.zeros(head_width))
        self.b_V = nn.Parameter(torch.zeros(head_width))
        self.register_buffer("IGNORE", torch.tensor(-torch.inf), persistent=False)

    def forward(self, resid):
        Q = resid @ self.W_Q + self.b_Q
        K = resid @ self.W_K + self.b_K
        V = resid @ self.W_V + self.b_V
        pattern = (Q @ K.transpose(-2, -1)) / K.shape[-1] ** 0.5
        above = torch.ones_like(pattern[0], dtype=torch.bool).triu(diagonal=1)
        pattern = pattern.masked_fill(above, self.IGNORE).softmax(-1)
        return pattern @ V


attention = OneHead(48, 16)

# === tenth_single_scale_channels
# target: single_head
# wrong: scaled by the embedding width (channels**-0.5) instead of the head size
# words: scale|sqrt
import torch
import torch.nn as nn
from torch.nn import functional as F

emb_dim = 48
head_size = 8
context = 64


class SelfAttentionHead(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.keys = nn.Linear(emb_dim, head_size, bias=False)
        self.queries = nn.Linear(emb_dim, head_size, bias=False)
        self.values = nn.Linear(emb_dim, head_size, bias=False)
        self.register_buffer('mask', torch.tril(torch.ones(context, context)).bool())

    def forward(self, x):
        batch, steps, channels = x.shape
        k, q, v = self.keys(x), self.queries(x), self.values(x)
        # scaled attention: keeps the variance of the scores near 1
        att = q @ k.transpose(-2, -1) * channels ** -0.5
        att = att.masked_fill(~self.mask[:steps, :steps], float('-inf'))
        att = F.softmax(att, dim=-1)
        return att @ v


if __name__ == "__main__":
    head = SelfAttentionHead(head_size)
    print(head(torch.randn(2, 10, emb_dim)).shape)

# === tenth_single_value_is_key
# target: single_head
# wrong: values are computed with the key projection (copy-paste), to_v is never used
# words: value
import torch
import torch.nn as nn


class SingleHead(nn.Module):
    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.to_q = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.to_k = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.to_v = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        num_tokens = x.shape[1]
        q = self.to_q(x)
        k = self.to_k(x)
        v = self.to_k(x)
        scores = q @ k.transpose(1, 2)
        mask = torch.triu(torch.ones(num_tokens, num_tokens, device=x.device), diagonal=1).bool()
        scores.masked_fill_(mask, -torch.inf)
        weights = torch.softmax(scores / self.d_out ** 0.5, dim=-1)
        return weights @ v


attention = SingleHead(48, 12)

# === tenth_multi_list_of_heads
# target: multi_head
# right: ModuleList of single heads with their own projections, concatenated and mixed
import torch
import torch.nn as nn


class Head(nn.Module):
    """my single head from last week"""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.q = nn.Linear(n_in, n_out)
        self.k = nn.Linear(n_in, n_out)
        self.v = nn.Linear(n_in, n_out)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        # can_see[i, j]: may token i see token j
        can_see = torch.ones(x.size(1), x.size(1), device=x.device).tril() > 0
        s = q.matmul(k.transpose(1, 2)).div(q.size(-1) ** 0.5)
        s[:, ~can_see] = float('-inf')
        return s.softmax(2).matmul(v)


class ManyHeads(nn.Module):
    """just run the heads next to each other and mix the results"""

    def __init__(self, n_embd, n_heads):
        super().__init__()
        assert n_embd % n_heads == 0
        self.heads = nn.ModuleList(Head(n_embd, n_embd // n_heads) for _ in range(n_heads))
        self.mix = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.mix(torch.cat([h(x) for h in self.heads], dim=-1))


attention = ManyHeads(48, 6)

# === tenth_multi_jax_vmap
# target: multi_head
# right: JAX style: dict of per-head 3D weights, single example functions vmapped over heads and batch, output as a sum over heads
"""Multi-head attention the JAX way: params are a dict, one example at a time, vmap for the batch."""
from functools import partial

import torch
from torch.func import vmap


def init_mha(gen, d_model, n_heads):
    d_head = d_model // n_heads

    def glorot(*shape):
        return torch.randn(*shape, generator=gen) * (2.0 / (shape[0] + shape[-1])) ** 0.5

    return {
        "w_q": glorot(n_heads, d_model, d_head),
        "w_k": glorot(n_heads, d_model, d_head),
        "w_v": glorot(n_heads, d_model, d_head),
        "w_o": glorot(n_heads, d_head, d_model),
    }


def one_head(x, w_q, w_k, w_v, w_o):
    # x: (T, D); returns this head's contribution to the output
    T = x.shape[0]
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    logits = q @ k.T * (q.shape[-1] ** -0.5)
    mask = torch.tril(torch.ones(T, T, dtype=torch.bool))
    logits = torch.where(mask, logits, -torch.inf)
    return torch.softmax(logits, dim=-1) @ v @ w_o


def mha_single(params, x):
    per_head = vmap(partial(one_head, x))(
        params["w_q"], params["w_k"], params["w_v"], params["w_o"]
    )
    return per_head.sum(dim=0)


def mha(params, x):
    """x: (B, T, D)"""
    return vmap(mha_single, in_dims=(None, 0))(params, x)


if __name__ == "__main__":
    params = init_mha(torch.Generator().manual_seed(0), 48, 6)
    print(mha(params, torch.randn(2, 9, 48)).shape)

# === tenth_multi_einsum_dense
# target: multi_head
# right: TF/Keras style EinsumDense kernels (d,n,h) with biases, query scaled before, additive -1e9 mask
import torch
from torch import nn


class EinsumDense(nn.Module):
    """small stand-in for tf.keras.layers.EinsumDense, because my old model used it"""

    def __init__(self, equation, kernel_shape, bias_shape):
        super().__init__()
        self.equation = equation
        self.kernel = nn.Parameter(torch.empty(kernel_shape))
        self.bias = nn.Parameter(torch.zeros(bias_shape))
        nn.init.normal_(self.kernel, std=0.05)

    def forward(self, inputs):
        return torch.einsum(self.equation, inputs, self.kernel) + self.bias


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        key_dim = d_model // num_heads
        self.key_dim = key_dim
        self.query_dense = EinsumDense("btd,dnh->btnh", (d_model, num_heads, key_dim), (num_heads, key_dim))
        self.key_dense = EinsumDense("btd,dnh->btnh", (d_model, num_heads, key_dim), (num_heads, key_dim))
        self.value_dense = EinsumDense("btd,dnh->btnh", (d_model, num_heads, key_dim), (num_heads, key_dim))
        self.output_dense = EinsumDense("btnh,nhd->btd", (num_heads, key_dim, d_model), (d_model,))

    def forward(self, inputs):
        query = self.query_dense(inputs) * (1.0 / float(self.key_dim) ** 0.5)
        key = self.key_dense(inputs)
        value = self.value_dense(inputs)

        # T = query length, S = key length
        scores = torch.einsum("bsnh,btnh->bnts", key, query)
        n = inputs.shape[1]
        i = torch.arange(n)[:, None]
        j = torch.arange(n)
        adder = (1.0 - (i >= j).to(scores.dtype)) * -1e9
        probs = torch.softmax(scores + adder, dim=-1)
        context = torch.einsum("bnts,bsnh->btnh", probs, value)
        return self.output_dense(context)


attention = MultiHeadAttention(48, 6)

# === tenth_multi_neox_fused
# target: multi_head
# convention: fused qkv weight laid out per head [q0 k0 v0 | q1 k1 v1 ...] as in GPT-NeoX
import torch
import torch.nn as nn
import torch.nn.functional as F


class NeoStyleAttention(nn.Module):
    # the fused projection is laid out head by head: [q0 k0 v0 | q1 k1 v1 | ...]
    def __init__(self, hidden_size: int, num_attention_heads: int):
        super().__init__()
        self.nh = num_attention_heads
        self.hs = hidden_size // num_attention_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        b, t, c = hidden_states.size()
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(b, t, self.nh, 3 * self.hs).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.dense(y)


attention = NeoStyleAttention(48, 6)

# === tenth_multi_plain_class
# target: multi_head
# convention: time-first (T,B,D) input and output; plain class with __call__ and a dict of tensors, (T,B*H,d) baddbmm
"""Self attention for sequences stored time first, (T, B, D), like the old nn.LSTM default."""
import math
import torch


class SelfAttention:
    """Not an nn.Module on purpose: just four matrices and __call__."""

    names = ("q", "k", "v", "o")

    def __init__(self, dim, heads, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.heads = heads
        self.W = {n: torch.randn(dim, dim, generator=g) / math.sqrt(dim) for n in self.names}

    def _split(self, x):
        T, B, D = x.shape
        # (T, B, H, d) -> every (batch, head) pair is its own little problem
        return x.reshape(T, B * self.heads, D // self.heads).transpose(0, 1)

    def __call__(self, x):
        T, B, D = x.shape
        q, k, v = (self._split(x @ self.W[n]) for n in "qkv")
        bias = torch.zeros(T, T, dtype=x.dtype)
        bias[torch.triu_indices(T, T, 1).unbind()] = -math.inf
        att = torch.baddbmm(bias.expand(B * self.heads, T, T), q, k.transpose(1, 2), alpha=1 / math.sqrt(q.shape[-1]))
        y = att.softmax(-1) @ v
        return y.transpose(0, 1).reshape(T, B, D) @ self.W["o"]


if __name__ == "__main__":
    layer = SelfAttention(48, 6)
    print(layer(torch.randn(11, 3, 48)).shape)

# === tenth_multi_wraps_torch
# target: multi_head
# right: wraps nn.MultiheadAttention(batch_first=True) with a correct boolean mask (True = blocked)
import torch
from torch import nn


class TorchMHA(nn.Module):
    """No need to write it all yourself: wrap the layer of PyTorch and give it the causal mask."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, bias=True, batch_first=True)

    def forward(self, x):
        T = x.shape[1]
        # for nn.MultiheadAttention True means "not allowed"
        blocked = torch.arange(T)[None, :] > torch.arange(T)[:, None]
        y, _ = self.inner(x, x, x, attn_mask=blocked.to(x.device), need_weights=False)
        return y


attention = TorchMHA(48, 6)

# === tenth_multi_mask_inverted
# target: multi_head
# wrong: boolean mask of the future given to SDPA, where True means attend: mask inverted, tokens see only the future
# words: mask, invert|revers|future|opposite|polarity|flip
import torch
import torch.nn as nn
import torch.nn.functional as F


class MHA(nn.Module):
    def __init__(self, dim, n_head, max_len=256):
        super().__init__()
        self.n_head = n_head
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        # upper triangle = the future
        self.register_buffer("causal_mask", torch.triu(torch.ones(max_len, max_len, dtype=torch.bool), diagonal=1))

    def forward(self, x):
        bsz, seqlen, dim = x.shape
        xq, xk, xv = [
            w(x).view(bsz, seqlen, self.n_head, -1).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        ]
        mask = self.causal_mask[:seqlen, :seqlen]
        out = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask)
        out = out.transpose(1, 2).reshape(bsz, seqlen, dim)
        return self.wo(out)


attention = MHA(48, 6)

# === tenth_multi_view_split
# target: multi_head
# wrong: heads split with view(bs,h,sl,d_k) directly (and merged with view) instead of view + transpose, which mixes time and channels
# words: view|reshape|transpose|head
import math
import torch
import torch.nn as nn


class MultiHead(nn.Module):

    def __init__(self, d_model, heads):
        super(MultiHead, self).__init__()
        self.d_model = d_model
        self.h = heads
        self.d_k = d_model // heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        bs, sl, _ = x.size()
        # split in h heads
        q = self.q_linear(x).view(bs, self.h, sl, self.d_k)
        k = self.k_linear(x).view(bs, self.h, sl, self.d_k)
        v = self.v_linear(x).view(bs, self.h, sl, self.d_k)

        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        mask = torch.tril(torch.ones(sl, sl, device=x.device))
        scores = scores.masked_fill(mask == 0, -1e9)
        scores = torch.softmax(scores, dim=-1)
        output = torch.matmul(scores, v)

        # back to (bs, sl, d_model)
        concat = output.view(bs, sl, self.d_model)
        return self.out(concat)


attention = MultiHead(48, 6)

# === tenth_multi_stride_heads
# target: multi_head
# convention: channels dealt to heads with stride H (channel c belongs to head c % H), split and merged consistently
import torch
from torch import nn


class Attention(nn.Module):
  """Channels are dealt out to heads like cards: channel c belongs to head c % H."""

  def __init__(self, dim, H):
    super().__init__()
    self.H = H
    self.qkv = nn.Linear(dim, dim * 3, bias=False)
    self.o = nn.Linear(dim, dim, bias=False)

  def deal(self, t):
    B, T, C = t.shape
    return t.view(B, T, C // self.H, self.H).permute(0, 3, 1, 2)

  def collect(self, t):
    return t.permute(0, 2, 3, 1).flatten(2)

  def forward(self, x):
    q, k, v = map(self.deal, self.qkv(x).chunk(3, -1))
    logits = q @ k.mT / q.shape[-1]**.5
    logits += torch.full_like(logits, -torch.inf).triu(1)
    return self.o(self.collect(logits.softmax(-1) @ v))


attention = Attention(48, 6)

# === tenth_multi_dropout_always
# target: multi_head
# wrong: F.dropout without training=self.training: dropout also in eval mode
# words: dropout
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalAttention(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.2, bias=True):
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.attn_in = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.attn_out = nn.Linear(n_embd, n_embd, bias=bias)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.attn_in(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        not_yet = torch.ones(T, T, dtype=torch.bool, device=x.device).triu_(1)
        att = att.masked_fill(not_yet, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = F.dropout(att, p=self.dropout)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.attn_out(y)


attention = CausalAttention(48, 6)

# === tenth_multi_heads_overlap
# target: multi_head
# wrong: per-head slices h:h+head_size (missing * head_size): the heads overlap and most channels are never used
# words: head|slice
# multi head attention with a plain python loop over heads, easiest to read
import torch
import torch.nn as nn


class LoopedHeads(nn.Module):
    def __init__(self, size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = size // num_heads
        self.make_q = nn.Linear(size, size)
        self.make_k = nn.Linear(size, size)
        self.make_v = nn.Linear(size, size)
        self.make_out = nn.Linear(size, size)

    def forward(self, x):
        n = x.shape[1]
        Q, K, V = self.make_q(x), self.make_k(x), self.make_v(x)
        blocked = torch.triu(torch.ones(n, n, device=x.device), 1) == 1
        results = []
        for h in range(self.num_heads):
            lo, hi = h, h + self.head_size
            q, k, v = Q[:, :, lo:hi], K[:, :, lo:hi], V[:, :, lo:hi]
            s = (q @ k.transpose(1, 2)) / self.head_size ** 0.5
            s = s.masked_fill(blocked, float("-inf"))
            results.append(torch.softmax(s, dim=2) @ v)
        return self.make_out(torch.cat(results, dim=2))


if __name__ == "__main__":
    m = LoopedHeads(48, 6)
    print(m(torch.randn(2, 7, 48)).shape)   # torch.Size([2, 7, 48])

# === tenth_multi_scaled_twice
# target: multi_head
# wrong: q is scaled by 1/sqrt(d) and SDPA scales again, so scores are divided by d
# words: scale|sqrt|twice
from dataclasses import dataclass

import torch
from torch import Tensor, nn
import torch.nn.functional as F


@dataclass
class AttnConfig:
    dim: int = 48
    heads: int = 6
    bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def split_heads(t: Tensor, heads: int) -> Tensor:
    return t.unflatten(-1, (heads, -1)).transpose(-3, -2)


def join_heads(t: Tensor) -> Tensor:
    return t.transpose(-3, -2).flatten(-2)


class FastAttention(nn.Module):
    def __init__(self, cfg: AttnConfig):
        super().__init__()
        self.cfg = cfg
        self.to_qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=cfg.bias)
        self.to_out = nn.Linear(cfg.dim, cfg.dim, bias=cfg.bias)
        self.scale = cfg.head_dim ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(t, self.cfg.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        q = q * self.scale
        # fused kernel instead of my own softmax
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(join_heads(out))


if __name__ == "__main__":
    layer = FastAttention(AttnConfig())
    print(layer(torch.randn(1, 8, 48)).shape)

# === tenth_multi_encoder
# target: multi_head,full
# right: honest encoder, not causal: all tokens see all, optional padding mask
"""Encoder self-attention (BERT exercise). Every token sees every token, except padding."""
import math
import torch
from torch import nn


class EncoderSelfAttention(nn.Module):
    def __init__(self, hidden=48, heads=6, p_drop=0.1):
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.drop = nn.Dropout(p_drop)

    def to_heads(self, t):
        return t.view(t.shape[0], t.shape[1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (B, T), 1 for real tokens and 0 for padding"""
        q = self.to_heads(self.query(hidden_states))
        k = self.to_heads(self.key(hidden_states))
        v = self.to_heads(self.value(hidden_states))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        probs = self.drop(scores.softmax(dim=-1))
        ctx = (probs @ v).permute(0, 2, 1, 3).flatten(2)
        return self.dense(ctx)

# === tenth_grouped_fused_kv
# target: grouped_query
# right: fused kv projection, repeat_interleave of both, SDPA; 6 query heads and 2 kv heads
import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        assert n_heads % n_kv_heads == 0
        self.n_heads, self.n_kv = n_heads, n_kv_heads
        self.hd = dim // n_heads
        self.q_proj = nn.Linear(dim, n_heads * self.hd, bias=False)
        self.kv_proj = nn.Linear(dim, 2 * n_kv_heads * self.hd, bias=False)
        self.o_proj = nn.Linear(n_heads * self.hd, dim, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.n_heads, self.hd).transpose(1, 2)
        k, v = self.kv_proj(x).view(B, T, 2, self.n_kv, self.hd).unbind(2)
        share = self.n_heads // self.n_kv
        k = k.transpose(1, 2).repeat_interleave(share, dim=1)
        v = v.transpose(1, 2).repeat_interleave(share, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


attention = GroupedQueryAttention(48, 6, 2)

# === tenth_grouped_two_axes
# target: grouped_query
# right: no repetition: weights and queries carry (group, query-in-group) axes, einsum throughout; 3 kv heads
"""GQA without ever copying keys or values: give the queries an extra axis instead.

b batch, t/s time of query/key, g group (= kv head), r queries per group, d head dim
"""
import torch
from torch import nn, einsum


class GQA(nn.Module):
    def __init__(self, width: int, q_heads: int = 6, kv_heads: int = 3):
        super().__init__()
        d = width // q_heads
        self.g, self.r, self.d = kv_heads, q_heads // kv_heads, d
        self.wq = nn.Parameter(torch.randn(width, kv_heads, q_heads // kv_heads, d) * width ** -0.5)
        self.wk = nn.Parameter(torch.randn(width, kv_heads, d) * width ** -0.5)
        self.wv = nn.Parameter(torch.randn(width, kv_heads, d) * width ** -0.5)
        self.wo = nn.Parameter(torch.randn(kv_heads, q_heads // kv_heads, d, width) * width ** -0.5)

    def forward(self, x):
        q = einsum("btw,wgrd->btgrd", x, self.wq)
        k = einsum("bsw,wgd->bsgd", x, self.wk)
        v = einsum("bsw,wgd->bsgd", x, self.wv)
        logits = einsum("btgrd,bsgd->bgrts", q, k).mul(self.d ** -0.5)
        t = torch.arange(x.shape[1], device=x.device)
        logits = logits.masked_fill(t[None, :] > t[:, None], float("-inf"))
        w = logits.softmax(dim=-1)
        y = einsum("bgrts,bsgd->btgrd", w, v)
        return einsum("btgrd,grdw->btw", y, self.wo)

# === tenth_grouped_values_tiled
# target: grouped_query
# wrong: keys are repeat_interleaved but values are tiled with repeat, so most heads pair keys of one group with values of another
# words: repeat|interleave, value|head|order|group|mismatch
import torch
import torch.nn as nn


class GQAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int, num_kv_heads: int = 2):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.num_rep = num_heads // num_kv_heads
        self.head_dim = d_model // num_heads
        self.Wq = nn.Linear(d_model, num_heads * self.head_dim)
        self.Wk = nn.Linear(d_model, num_kv_heads * self.head_dim)
        self.Wv = nn.Linear(d_model, num_kv_heads * self.head_dim)
        self.Wo = nn.Linear(num_heads * self.head_dim, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q = self.Wq(x).reshape(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.Wk(x).reshape(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.Wv(x).reshape(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)

        # copy the kv heads so that there are as many as query heads
        k = torch.repeat_interleave(k, self.num_rep, dim=1)
        v = v.repeat(1, self.num_rep, 1, 1)

        mask = torch.tril(torch.ones(n, n, device=x.device)).view(1, 1, n, n)
        att = (q @ k.transpose(-2, -1)) * (self.head_dim ** -0.5)
        att = att.masked_fill(mask == 0, float("-inf"))
        att = torch.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).reshape(b, n, d)
        return self.Wo(y)


attention = GQAttention(48, 6)

# === tenth_grouped_both_tiled
# target: grouped_query
# convention: keys and values both tiled, query head h uses kv head h % G; consistent, own head_dim allowed
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa


def tile_heads(kv, n):
    # (B, G, T, D) -> (B, n*G, T, D); order is g0 g1 .. g0 g1 .. so query head h uses kv head h % G
    B, G, T, D = kv.shape
    return kv[:, None].expand(B, n, G, T, D).reshape(B, n * G, T, D)


class SharedKV(nn.Module):
    def __init__(self, dim, heads, kv_heads, head_dim=None):
        super().__init__()
        head_dim = head_dim or dim // heads
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q = nn.Linear(dim, heads * head_dim)
        self.k = nn.Linear(dim, kv_heads * head_dim)
        self.v = nn.Linear(dim, kv_heads * head_dim)
        self.out = nn.Linear(heads * head_dim, dim)

    def forward(self, x):
        q = self.q(x).unflatten(2, (self.heads, self.head_dim)).transpose(1, 2)
        k = self.k(x).unflatten(2, (self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v(x).unflatten(2, (self.kv_heads, self.head_dim)).transpose(1, 2)
        times = self.heads // self.kv_heads
        y = sdpa(q, tile_heads(k, times), tile_heads(v, times), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


if __name__ == "__main__":
    net = SharedKV(48, 6, 2, head_dim=10)
    print(net(torch.randn(2, 8, 48)).shape)
