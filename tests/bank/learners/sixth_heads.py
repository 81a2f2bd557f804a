"""A sixth lot of learners' programs: means, weights, one head, many heads, grouped queries."""

# === sixth_weights_over_queries
# target: attention_weights
# wrong: The softmax runs over the query axis (dim=1 of (B,T_query,T_key)) instead of over the keys
# words: queries, softmax
import torch
import torch.nn.functional as F


def get_attention(q, k):
    """
    q: (batch, seq, dim)
    k: (batch, seq, dim)
    returns how much each query looks at each key, (batch, seq_q, seq_k)
    """
    seq = q.shape[1]
    scores = q @ k.mT / q.shape[2] ** 0.5
    mask = torch.tril(torch.ones(seq, seq))
    scores = scores.masked_fill(mask == 0, -1e9)
    attn = F.softmax(scores, dim=1)
    return attn

# === sixth_weights_flax
# target: attention_weights
# wrong: a mask (T, S) by the numbers of queries and keys from 0 on: aligned to the upper left corner where there are fewer queries than keys
# words: upper left corner
import torch


def dot_product_attention_weights(query, key):
    """Like flax.linen.dot_product_attention_weights, with the causal mask built in.

    query: [batch, q_length, num_heads, qk_depth]
    key:   [batch, kv_length, num_heads, qk_depth]
    returns [batch, num_heads, q_length, kv_length]
    """
    depth = query.shape[-1]
    query = query / torch.sqrt(torch.tensor(depth, dtype=query.dtype))
    logits = torch.einsum("...qhd,...khd->...hqk", query, key)
    q_idx = torch.arange(query.shape[-3])
    k_idx = torch.arange(key.shape[-3])
    allowed = q_idx[:, None] >= k_idx[None, :]
    big_neg = torch.finfo(logits.dtype).min
    logits = torch.where(allowed, logits, big_neg)
    return torch.softmax(logits, dim=-1)

# === sixth_weights_french
# target: attention_weights
# right: softmax written by hand with the maximum taken away, one text (T,d), French names
import torch


def poids_attention(requetes, cles):
    """Poids d'attention causale. requetes et cles: (longueur, dimension)."""
    longueur, dimension = requetes.shape
    scores = requetes @ cles.T / dimension ** 0.5
    # un mot ne regarde jamais ceux qui viennent apres lui
    visible = torch.ones(longueur, longueur).tril().bool()
    scores[~visible] = float("-inf")
    # softmax stable: on enleve le maximum de chaque ligne
    scores = scores - scores.max(dim=1, keepdim=True).values
    e = scores.exp()
    return e / e.sum(dim=1, keepdim=True)


if __name__ == "__main__":
    q = torch.randn(5, 4)
    c = torch.randn(5, 4)
    p = poids_attention(q, c)
    print(p)
    print(p.sum(1))

# === sixth_weights_triu
# target: attention_weights
# wrong: a mask (T, S) of torch.triu: aligned to the upper left corner where there are fewer queries than keys
# words: upper left corner
import math

import torch


def attention_weights(q, k):
    """q, k: (batch, time, dim) -> (batch, time, time), every row sums to one."""
    d = q.size(-1)
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(d)
    future = torch.triu(torch.ones(q.size(1), k.size(1), dtype=torch.bool, device=q.device), diagonal=1)
    scores = scores.masked_fill(future, -torch.inf)
    return torch.softmax(scores, dim=-1)

# === sixth_weights_late_mask
# target: attention_weights
# wrong: the triangle is multiplied in after exp: where scores are large all of the past is 0, and 0/0
# words: after the softmax, large scores
import torch


def weights(q, k):
    # (B, nh, T, hs) each.  Scaling both by d^-1/4 is the same as the product by d^-1/2, but safer in half precision
    s = q.shape[-1] ** -0.25
    att = (q * s) @ (k * s).transpose(-2, -1)
    att = att - att.amax(dim=-1, keepdim=True)
    att = att.exp()
    T = att.shape[-1]
    att = att * torch.tril(torch.ones(T, T, dtype=att.dtype, device=att.device))
    return att / att.sum(dim=-1, keepdim=True)

# === sixth_weights_after_softmax
# target: attention_weights
# wrong: The mask is multiplied in after the softmax and the rows are not normalised again, so rows don't sum to one and depend on the future
# words: after the softmax
import torch
from torch import nn


class AttentionWeights(nn.Module):
    def __init__(self, max_len=128):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(max_len, max_len)))

    def forward(self, q, k):
        # q, k: batch, heads, time, features
        t, d = q.shape[-2:]
        a = torch.einsum("bhtd,bhsd->bhts", q, k) / d ** 0.5
        a = a.softmax(dim=-1)
        a = a * self.mask[:t, :t]   # nobody may look ahead
        return a


if __name__ == "__main__":
    q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    print(AttentionWeights()(q, k))

# === sixth_weights_einsum
# target: attention_weights
# right: (B,H,T,D) einsum, additive float mask made with torch.full(finfo.min).triu(1)
import torch
from torch import Tensor


def make_causal_bias(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    bias = torch.full((n, n), torch.finfo(dtype).min, dtype=dtype, device=device)
    return bias.triu(1)


def attn_probs(q: Tensor, k: Tensor) -> Tensor:
    """(b, h, i, d), (b, h, j, d) -> (b, h, i, j)"""
    scale = q.shape[-1] ** -0.5
    sim = torch.einsum("b h i d, b h j d -> b h i j", q * scale, k)
    sim = sim + make_causal_bias(q.shape[-2], q.dtype, q.device)
    return sim.softmax(dim=-1)

# === sixth_weights_scale_inverse
# target: attention_weights
# wrong: The scale is the wrong way round: dividing by d**-0.5 multiplies the scores by sqrt(d)
# words: multiply the scores by sqrt
import torch


def causal_attention_weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scaled dot-product attention weights of shape (B, H, T, T)."""
    head_dim = q.size(-1)
    scale = head_dim ** -0.5
    logits = torch.matmul(q, k.transpose(-2, -1)) / scale
    T = logits.size(-1)
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    logits = logits.masked_fill(~mask, float("-inf"))
    return logits.softmax(-1)

# === sixth_head_config
# target: single_head
# right: fused qkv Linear and chunk, dataclass config, -inf additive mask built on the fly
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class HeadConfig:
    d_model: int = 24
    d_head: int = 8
    bias: bool = False


class OneHead(nn.Module):
    def __init__(self, cfg: HeadConfig = HeadConfig()):
        super().__init__()
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_head, bias=cfg.bias)
        self.out = nn.Linear(cfg.d_head, cfg.d_model, bias=cfg.bias)

    def forward(self, x):
        n = x.shape[-2]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        causal = torch.zeros(n, n, device=x.device).masked_fill(
            torch.arange(n, device=x.device)[None, :] > torch.arange(n, device=x.device)[:, None], float("-inf"))
        p = torch.softmax(q @ k.transpose(-1, -2) / self.cfg.d_head ** 0.5 + causal, dim=-1)
        return self.out(p @ v)


if __name__ == "__main__":
    m = OneHead()
    print(m(torch.randn(2, 5, 24)).shape)

# === sixth_head_lecture
# target: single_head
# right: Karpathy-lecture Head: key/query/value Linear without bias, tril buffer, dropout on the weights
import torch
import torch.nn as nn
from torch.nn import functional as F

# hyperparameters
n_embd = 32
block_size = 16
dropout = 0.2


class Head(nn.Module):
    """ one head of self-attention """

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)    # (B,T,hs)
        q = self.query(x)  # (B,T,hs)
        # affinities
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return wei @ v

# === sixth_head_columns
# target: single_head
# right: column convention of linear-algebra texts: X is (d, T), a column is a token, scores K^T Q, softmax down the columns
import torch


def attention_columns(X, W_Q, W_K, W_V):
    """Every COLUMN of X is one token's vector, as in the videos with the animated matrices.

    X: (d_model, T);   W_Q, W_K: (d_k, d_model);   W_V: (d_v, d_model);   result: (d_v, T)
    """
    Q = W_Q @ X
    K = W_K @ X
    V = W_V @ X
    d_k, T = K.shape
    S = K.T @ Q / d_k ** 0.5            # S[i, j]: how much key i matters to query j
    later = torch.ones(T, T).tril(-1).bool()   # key i comes after query j
    S = S.masked_fill(later, float("-inf"))
    A = S.softmax(dim=0)                # columns sum to one
    return V @ A


if __name__ == "__main__":
    torch.manual_seed(0)
    d, T, dk = 6, 4, 3
    X = torch.randn(d, T)
    print(attention_columns(X, torch.randn(dk, d), torch.randn(dk, d), torch.randn(d, d)).shape)

# === sixth_head_unscaled
# target: single_head
# wrong: The scale 1/sqrt(d_k) is stored in __init__ but never used in forward
# words: not scaled
import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledDotProductHead(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V, from the paper."""

    def __init__(self, d_model, d_k):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_k, bias=False)
        self.scale = d_k ** -0.5

    def forward(self, x):
        Q, K, V = self.w_q(x), self.w_k(x), self.w_v(x)
        attn = torch.matmul(Q, K.transpose(-2, -1))
        L = x.size(1)
        attn = attn.masked_fill(torch.triu(torch.ones(L, L, device=x.device), 1).bool(), -1e9)
        attn = F.softmax(attn, dim=-1)
        return torch.matmul(attn, V)

# === sixth_head_buffer_cut
# target: single_head
# wrong: The tril buffer is cut as [-T:, :T], so for a text shorter than block_size every token sees ahead
# words: no causal mask
import math

import torch
import torch.nn as nn


class AttentionHead(nn.Module):
    def __init__(self, n_embd=32, head_size=8, block_size=64, attn_pdrop=0.1):
        super().__init__()
        self.head_size = head_size
        self.c_attn = nn.Linear(n_embd, 3 * head_size)
        self.attn_drop = nn.Dropout(attn_pdrop)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T = x.size(1)
        q, k, v = self.c_attn(x).split(self.head_size, dim=2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(self.head_size))
        att = att.masked_fill(self.bias[-T:, :T] == 0, float("-inf"))
        att = self.attn_drop(torch.softmax(att, dim=-1))
        return att @ v

# === sixth_head_sdpa
# target: single_head
# right: uses F.scaled_dot_product_attention with is_causal=True, with biases and an output projection
import torch
from torch import nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim: int, dropout: float = 0.0):
        super().__init__()
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)
        self.dropout = dropout

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.o_proj(y)

# === sixth_head_added_bool
# target: single_head
# wrong: The mask is boolean but is added to the scores, so the future gets +1 instead of -inf and is seen
# words: add 1 to the scores
import torch
from torch import nn


class CausalHead(nn.Module):
    def __init__(self, emb_size, head_size, context_length=64):
        super().__init__()
        self.W_query = nn.Linear(emb_size, head_size, bias=False)
        self.W_key = nn.Linear(emb_size, head_size, bias=False)
        self.W_value = nn.Linear(emb_size, head_size, bias=False)
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1).bool()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, num_tokens, _ = x.shape
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores = attn_scores / keys.shape[-1] ** 0.5 + self.mask[:num_tokens, :num_tokens]
        attn_weights = torch.softmax(attn_scores, dim=-1)
        return attn_weights @ values

# === sixth_head_loop
# target: single_head
# right: loop over positions so that no mask is needed, Chinese names in pinyin, function on q,k,v of one text
import torch


def zhu_yi_li(chaxun, jian, zhi):
    """Danyi tou de zhuyili. chaxun (Q), jian (K), zhi (V): (changdu, weidu)."""
    changdu, weidu = chaxun.shape
    jieguo = []
    for i in range(changdu):
        # di i ge ci zhi kan 0..i
        fenshu = (jian[:i + 1] @ chaxun[i]) / weidu ** 0.5
        quanzhong = torch.softmax(fenshu, dim=0)
        jieguo.append(quanzhong @ zhi[:i + 1])
    return torch.stack(jieguo)


if __name__ == "__main__":
    q, k, v = (torch.randn(6, 8) for _ in range(3))
    daan = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    print((zhu_yi_li(q, k, v) - daan).abs().max())

# === sixth_head_mask_inverted
# target: single_head
# wrong: torch's attn_mask means True = may look, but the file passes the mask of the future (True = forbidden), so only the future is seen
# words: inverted
import torch
import torch.nn.functional as F


def single_head(x, wq, wk, wv):
    """x: (B, T, C), weights (C, D). Causal self attention with one head."""
    q = x @ wq
    k = x @ wk
    v = x @ wv
    T = x.shape[1]
    # mask out the upper triangle
    mask = torch.triu(torch.ones(T, T, device=x.device), diagonal=1).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

# === sixth_heads_mingpt
# target: multi_head
# right: minGPT-like CausalSelfAttention: c_attn, c_proj, bias buffer (1,1,T,T), dataclass config, two dropouts
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    n_embd: int = 48
    n_head: int = 4
    block_size: int = 32
    attn_pdrop: float = 0.1
    resid_pdrop: float = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)
        ones = torch.ones(config.block_size, config.block_size)
        self.register_buffer("bias", torch.tril(ones)[None, None])

    def forward(self, x):
        B, T, C = x.size()
        hs = C // self.n_head
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, hs).transpose(1, 2)
        k = k.view(B, T, self.n_head, hs).transpose(1, 2)
        v = v.view(B, T, self.n_head, hs).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(hs)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))

# === sixth_heads_torch
# target: multi_head
# right: wraps nn.MultiheadAttention(batch_first=True) with a bool mask True = forbidden, which is that module's convention
import torch
import torch.nn as nn


class CausalAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, max_len: int = 512) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.register_buffer("attn_mask", torch.triu(torch.ones(max_len, max_len, dtype=torch.bool), diagonal=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seq_len = x.size(1)
        # nn.MultiheadAttention: True means "not allowed to attend"
        out, _ = self.mha(x, x, x, attn_mask=self.attn_mask[:seq_len, :seq_len], need_weights=False)
        return out

# === sixth_heads_annotated
# target: multi_head
# right: annotated-transformer-like: forward(query, key, value, mask), clones of Linear, mask given by the caller (1 = may look)
import copy
import math

import torch
import torch.nn as nn


def clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


def subsequent_mask(size):
    "True where a position may be attended to."
    return torch.triu(torch.ones(1, size, size), diagonal=1) == 0


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return p_attn @ value, p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)  # the same for all heads
        n = query.size(0)
        query, key, value = (
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value)))
        x, self.attn = attention(query, key, value, mask, self.dropout)
        x = x.transpose(1, 2).reshape(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


if __name__ == "__main__":
    mha = MultiHeadedAttention(4, 32)
    x = torch.randn(2, 7, 32)
    print(mha(x, x, x, subsequent_mask(7)).shape)

# === sixth_heads_keras
# target: multi_head
# right: Keras-like layer: num_heads, key_dim, lazily built weights (D,H,K) with biases, call(query, value, use_causal_mask)
import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """My torch copy of the Keras layer. Build happens at the first call."""

    def __init__(self, num_heads, key_dim, use_bias=True):
        super().__init__()
        self.num_heads, self.key_dim, self.use_bias = num_heads, key_dim, use_bias
        self.built = False

    def build(self, dim):
        H, K = self.num_heads, self.key_dim
        for name in ("query", "key", "value"):
            kernel = nn.Parameter(torch.empty(dim, H, K))
            nn.init.normal_(kernel, std=1 / math.sqrt(dim))
            self.register_parameter(name + "_kernel", kernel)
            self.register_parameter(name + "_bias", nn.Parameter(torch.zeros(H, K)))
        self.output_kernel = nn.Parameter(torch.randn(H, K, dim) / math.sqrt(H * K))
        self.output_bias = nn.Parameter(torch.zeros(dim))
        self.built = True

    def _project(self, x, name):
        y = torch.einsum("btd,dhk->bthk", x, getattr(self, name + "_kernel"))
        return y + getattr(self, name + "_bias")

    def call(self, query, value, key=None, use_causal_mask=False, return_attention_scores=False):
        if not self.built:
            self.build(query.shape[-1])
        key = value if key is None else key
        q, k, v = self._project(query, "query"), self._project(key, "key"), self._project(value, "value")
        scores = torch.einsum("bqhk,bshk->bhqs", q / math.sqrt(self.key_dim), k)
        if use_causal_mask:
            q_len, s_len = scores.shape[-2:]
            keep = torch.arange(s_len)[None, :] <= torch.arange(q_len)[:, None]
            scores = scores + (~keep) * -1e9
        probs = scores.softmax(-1)
        out = torch.einsum("bhqs,bshk->bqhk", probs, v)
        out = torch.einsum("bqhk,hkd->bqd", out, self.output_kernel) + self.output_bias
        return (out, probs) if return_attention_scores else out

    def forward(self, x):
        return self.call(x, x, use_causal_mask=True)

# === sixth_heads_vmap
# target: multi_head
# right: JAX-minded: a dict of parameters (D,H,K), pure function on one sequence, torch.vmap for the batch
import torch


def init(seed, d_model=32, n_heads=4):
    g = torch.Generator().manual_seed(seed)
    d_head = d_model // n_heads
    def w(*shape):
        return torch.randn(*shape, generator=g) * d_model ** -0.5
    return dict(wq=w(d_model, n_heads, d_head), wk=w(d_model, n_heads, d_head),
                wv=w(d_model, n_heads, d_head), wo=w(n_heads, d_head, d_model))


def mha(params, x):
    """x: [T, D], a single example; use `batched` for a batch"""
    T = x.shape[0]
    q = torch.einsum("td,dhk->htk", x, params["wq"])
    k = torch.einsum("td,dhk->htk", x, params["wk"])
    v = torch.einsum("td,dhk->htk", x, params["wv"])
    logits = torch.einsum("hqk,hsk->hqs", q, k) / q.shape[-1] ** 0.5
    mask = torch.tril(torch.ones(T, T, dtype=torch.bool))
    logits = torch.where(mask[None], logits, torch.tensor(-1e30))
    probs = torch.softmax(logits, -1)
    heads = torch.einsum("hqs,hsk->qhk", probs, v)
    return torch.einsum("qhk,hkd->qd", heads, params["wo"])


batched = torch.vmap(mha, in_dims=(None, 0))

if __name__ == "__main__":
    p = init(0)
    print(batched(p, torch.randn(3, 10, 32)).shape)

# === sixth_heads_keys_mixed
# target: multi_head
# wrong: The weights are applied to the keys (attn @ k); v is computed and never used
# words: applied to the keys
import torch
from torch import nn, Tensor


class MHA(nn.Module):
    def __init__(self, dim: int, heads: int = 4):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q = self.wq(x).unflatten(-1, (self.h, self.d))
        k = self.wk(x).unflatten(-1, (self.h, self.d))
        v = self.wv(x).unflatten(-1, (self.h, self.d))
        s = torch.einsum("bihd,bjhd->bhij", q, k) * self.d ** -0.5
        s = s.masked_fill(~torch.ones(t, t, dtype=torch.bool, device=x.device).tril(), float("-inf"))
        p = s.softmax(-1)
        o = torch.einsum("bhij,bjhd->bihd", p, k)
        return self.wo(o.flatten(2))

# === sixth_heads_softmax_heads
# target: multi_head
# wrong: The softmax is over dim=1, which is the heads' axis of (B,H,T,T), not the keys
# words: over the heads
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Kopf-parallele Aufmerksamkeit (Tutorial Teil 3)"""

    def __init__(self, breite=32, koepfe=4):
        super().__init__()
        self.koepfe = koepfe
        self.frage = nn.Linear(breite, breite)
        self.schluessel = nn.Linear(breite, breite)
        self.wert = nn.Linear(breite, breite)
        self.ausgang = nn.Linear(breite, breite)

    def teile(self, z):
        b, t, c = z.shape
        return z.view(b, t, self.koepfe, c // self.koepfe).transpose(1, 2)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.teile(self.frage(x)), self.teile(self.schluessel(x)), self.teile(self.wert(x))
        punkte = q @ k.transpose(2, 3) / math.sqrt(q.size(-1))
        maske = torch.tril(torch.ones(t, t, device=x.device))
        punkte = punkte.masked_fill(maske == 0, -1e9)
        gewichte = F.softmax(punkte, dim=1)
        y = (gewichte @ v).transpose(1, 2).reshape(b, t, c)
        return self.ausgang(y)

# === sixth_heads_join
# target: multi_head
# wrong: The heads' outputs (B,H,T,D) are reshaped to (B,T,C) without transposing back, so times and heads are mixed
# words: joined without transpose
import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, bias=False, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.proj = nn.Linear(n_embd, n_embd, bias=bias)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x).reshape(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, nh, T, hs)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        y = y.reshape(B, T, C)  # re-assemble all heads
        return self.proj(y)

# === sixth_heads_view
# target: multi_head
# wrong: q, k and v are viewed straight to (B, H, T, D) without a transpose, so heads and times are mixed
# words: split with view
import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        batch, seq, _ = x.shape
        return x.view(batch, self.num_heads, seq, self.head_dim)

    def forward(self, x):
        batch, seq, d_model = x.shape
        Q = self.split_heads(self.W_q(x))
        K = self.split_heads(self.W_k(x))
        V = self.split_heads(self.W_v(x))
        scores = Q @ K.transpose(-2, -1) / self.head_dim ** 0.5
        mask = torch.triu(torch.ones(seq, seq, device=x.device), diagonal=1).bool()
        scores = scores.masked_fill(mask, float("-inf"))
        out = F.softmax(scores, dim=-1) @ V
        out = out.view(batch, seq, d_model)
        return self.W_o(out)


if __name__ == "__main__":
    print(MultiHeadAttention(16, 4)(torch.randn(2, 5, 16)).shape)

# === sixth_heads_list
# target: multi_head
# right: a ModuleList of single heads, concatenated and projected (Karpathy lecture)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size, dropout):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        T = x.shape[1]
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ v


class MultiHeadAttention(nn.Module):
    """ multiple heads of self-attention in parallel """

    def __init__(self, num_heads=4, head_size=8, n_embd=32, block_size=64, dropout=0.0):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, head_size, block_size, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))

# === sixth_heads_x_transformers
# target: multi_head
# right: x-transformers-like Attention(dim, dim_head, heads): inner dim differs from dim, to_q / to_kv / to_out, triu(j-i+1)
import torch
from torch import nn, einsum


def exists(val):
    return val is not None


def max_neg_value(tensor):
    return -torch.finfo(tensor.dtype).max


class Attention(nn.Module):
    def __init__(self, dim, dim_head=64, heads=8, causal=True, dropout=0.):
        super().__init__()
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.causal = causal
        inner_dim = dim_head * heads
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x, context=None):
        b, n, _, h = *x.shape, self.heads
        kv_input = context if exists(context) else x
        q = self.to_q(x)
        k, v = self.to_kv(kv_input).chunk(2, dim=-1)
        q, k, v = map(lambda t: t.reshape(b, t.shape[1], h, -1).permute(0, 2, 1, 3), (q, k, v))

        dots = einsum('b h i d, b h j d -> b h i j', q, k) * self.scale
        if self.causal and not exists(context):
            i, j = dots.shape[-2:]
            mask = torch.ones((i, j), device=x.device, dtype=torch.bool).triu_(j - i + 1)
            dots = dots.masked_fill(mask, max_neg_value(dots))
        attn = self.dropout(dots.softmax(dim=-1))
        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        out = out.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.to_out(out)

# === sixth_heads_fairseq
# target: multi_head
# right: fairseq-like: time-first (T,B,C), heads folded into the batch, bmm, q scaled before the product
import torch
from torch import nn


class MultiheadSelfAttention(nn.Module):
    """Input shape: Time x Batch x Channel. Always causal (decoder self attention)."""

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.dropout = dropout
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x):
        tgt_len, bsz, embed_dim = x.size()
        q = self.q_proj(x) * self.scaling
        k = self.k_proj(x)
        v = self.v_proj(x)

        def fold(t):
            return t.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)

        q, k, v = fold(q), fold(k), fold(v)
        attn_weights = torch.bmm(q, k.transpose(1, 2))          # (B*H, T, T)
        buf = torch.triu(torch.full((tgt_len, tgt_len), float("-inf"), device=x.device), 1)
        attn_weights = torch.softmax(attn_weights + buf.unsqueeze(0), dim=-1)
        attn_probs = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn = torch.bmm(attn_probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)

# === sixth_grouped_fused
# target: grouped_query
# right: litgpt-like: one fused qkv Linear ordered group by group (q_per_kv + 2), expand of k and v
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    n_embd: int = 32
    n_head: int = 4
    n_query_groups: int = 2
    bias: bool = True

    @property
    def head_size(self):
        return self.n_embd // self.n_head


class CausalSelfAttention(nn.Module):
    def __init__(self, config: Config = Config()) -> None:
        super().__init__()
        shape = (config.n_head + 2 * config.n_query_groups) * config.head_size
        self.attn = nn.Linear(config.n_embd, shape, bias=config.bias)
        self.proj = nn.Linear(config.n_head * config.head_size, config.n_embd, bias=config.bias)
        self.config = config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        cfg = self.config
        q_per_kv = cfg.n_head // cfg.n_query_groups
        total_qkv = q_per_kv + 2  # each group has its queries, one key and one value
        qkv = self.attn(x).view(B, T, cfg.n_query_groups, total_qkv, cfg.head_size)
        qkv = qkv.permute(0, 2, 3, 1, 4)  # (B, G, total_qkv, T, hs)
        q, k, v = qkv.split((q_per_kv, 1, 1), dim=2)
        k = k.expand(B, cfg.n_query_groups, q_per_kv, T, cfg.head_size)
        v = v.expand(B, cfg.n_query_groups, q_per_kv, T, cfg.head_size)
        q = q.reshape(B, -1, T, cfg.head_size)
        k = k.reshape(B, -1, T, cfg.head_size)
        v = v.reshape(B, -1, T, cfg.head_size)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=cfg.head_size ** -0.5)
        y = y.transpose(1, 2).reshape(B, T, cfg.n_head * cfg.head_size)
        return self.proj(y)

# === sixth_grouped_function
# target: grouped_query
# right: pure function on q (B,H,T,D), k and v (B,Hkv,T,D): q viewed as groups, no copies
import torch


def grouped_query_attention(q, k, v):
    """Query head h uses key/value head h // (H / Hkv)."""
    B, H, T, D = q.shape
    Hkv = k.shape[1]
    G = H // Hkv
    q = q.reshape(B, Hkv, G, T, D)
    scores = torch.einsum("bkgtd,bksd->bkgts", q, k) * D ** -0.5
    mask = torch.arange(T).unsqueeze(0) > torch.arange(T).unsqueeze(1)
    scores = scores.masked_fill(mask.to(q.device), float("-inf"))
    out = torch.einsum("bkgts,bksd->bkgtd", scores.softmax(-1), v)
    return out.reshape(B, H, T, D)

# === sixth_grouped_times
# target: grouped_query
# wrong: k and v are repeated along the time axis with repeat_interleave and then viewed as more heads, which mixes times
# words: along the positions
import torch


def gqa(q, k, v):
    """q: (B, n_head, T, hs), k and v: (B, n_kv_head, T, hs)."""
    B, n_head, T, hs = q.shape
    n_rep = n_head // k.size(1)
    # make as many kv heads as there are query heads
    k = k.repeat_interleave(n_rep, dim=2).view(B, n_head, T, hs)
    v = v.repeat_interleave(n_rep, dim=2).view(B, n_head, T, hs)
    att = q @ k.transpose(-2, -1) / hs ** 0.5
    causal = torch.tril(torch.ones(T, T, device=q.device, dtype=torch.bool))
    att = att.masked_fill(~causal, float("-inf")).softmax(dim=-1)
    return att @ v


if __name__ == "__main__":
    q = torch.randn(1, 8, 10, 16)
    k = torch.randn(1, 2, 10, 16)
    v = torch.randn(1, 2, 10, 16)
    print(gqa(q, k, v).shape)

# === sixth_grouped_tiled_values
# target: grouped_query
# wrong: Keys are repeated head by head (repeat_interleave) but values in turns (repeat), so most heads mix with another group's values
# words: values tiled
import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model=64, num_heads=8, num_kv_groups=2):
        super().__init__()
        assert num_heads % num_kv_groups == 0
        self.num_heads, self.num_kv_groups = num_heads, num_kv_groups
        self.head_dim = d_model // num_heads
        self.group_size = num_heads // num_kv_groups
        self.W_query = nn.Linear(d_model, num_heads * self.head_dim, bias=False)
        self.W_key = nn.Linear(d_model, num_kv_groups * self.head_dim, bias=False)
        self.W_value = nn.Linear(d_model, num_kv_groups * self.head_dim, bias=False)
        self.out_proj = nn.Linear(num_heads * self.head_dim, d_model, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        queries = self.W_query(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        keys = self.W_key(x).view(b, n, self.num_kv_groups, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, n, self.num_kv_groups, self.head_dim).transpose(1, 2)
        # every group of queries shares one key and one value head
        keys = keys.repeat_interleave(self.group_size, dim=1)
        values = values.repeat(1, self.group_size, 1, 1)
        ctx = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out_proj(ctx.transpose(1, 2).reshape(b, n, -1))

# === sixth_grouped_llama
# target: grouped_query
# right: llama-like: wq/wk/wv/wo, repeat_kv by expand and reshape on (B,T,Hkv,D), no bias, no rotary
import math

import torch
import torch.nn.functional as F
from torch import nn


def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    """torch.repeat_interleave(x, dim=2, repeats=n_rep)"""
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim).reshape(
        bs, slen, n_kv_heads * n_rep, head_dim)


class Attention(nn.Module):
    def __init__(self, dim=32, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        keys = repeat_kv(xk, self.n_rep).transpose(1, 2)
        values = repeat_kv(xv, self.n_rep).transpose(1, 2)
        xq = xq.transpose(1, 2)
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
        mask = torch.triu(mask, diagonal=1)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim) + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)

# === sixth_grouped_one_key_head
# target: grouped_query
# right: multi-query attention (one key/value head), einsum as in Shazeer's paper
import torch
from torch import nn


class MultiQueryAttention(nn.Module):
    """One write-head is all you need: all heads share a single key and value."""

    def __init__(self, d, h, k):
        super().__init__()
        self.P_q = nn.Parameter(torch.randn(h, d, k) / d ** 0.5)
        self.P_k = nn.Parameter(torch.randn(d, k) / d ** 0.5)
        self.P_v = nn.Parameter(torch.randn(d, k) / d ** 0.5)
        self.P_o = nn.Parameter(torch.randn(h, d, k) / (h * k) ** 0.5)
        self.k = k

    def forward(self, X):
        Q = torch.einsum("bnd,hdk->bhnk", X, self.P_q)
        K = torch.einsum("bmd,dk->bmk", X, self.P_k)
        V = torch.einsum("bmd,dv->bmv", X, self.P_v)
        n = X.shape[1]
        logits = torch.einsum("bhnk,bmk->bhnm", Q, K) / self.k ** 0.5
        mask = torch.zeros(n, n, device=X.device)
        mask[torch.triu_indices(n, n, offset=1).unbind()] = float("-inf")
        weights = torch.softmax(logits + mask, dim=-1)
        O = torch.einsum("bhnm,bmv->bhnv", weights, V)
        return torch.einsum("bhnv,hdv->bnd", O, self.P_o)


if __name__ == "__main__":
    print(MultiQueryAttention(16, 4, 8)(torch.randn(2, 6, 16)).shape)

# === sixth_grouped_one_ahead
# target: grouped_query
# wrong: The mask is tril(diagonal=1), one too far: every token sees the next one
# words: next token
import torch
import torch.nn as nn


class MQA(nn.Module):
    """Multi query attention (Falcon / PaLM style). One k and one v for all heads."""

    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.query_key_value = nn.Linear(hidden_size, hidden_size + 2 * self.head_dim)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.query_key_value(x).split([c, self.head_dim, self.head_dim], dim=-1)
        q = q.view(b, t, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        k, v = k.unsqueeze(1), v.unsqueeze(1)
        scores = (q * self.head_dim ** -0.5) @ k.transpose(-1, -2)
        keep = torch.tril(torch.ones(t, t, device=x.device), diagonal=1)
        scores = scores.masked_fill(keep == 0, torch.finfo(scores.dtype).min)
        out = scores.softmax(-1) @ v
        return self.dense(out.permute(0, 2, 1, 3).reshape(b, t, c))

# === sixth_mean_loops
# target: running_mean
# right: Karpathy-lecture double loop over batch and time, (B,T,C), script with a toy example at module level plus a function
import torch

torch.manual_seed(1337)
B, T, C = 4, 8, 2  # batch, time, channels


def bag_of_words(x):
    # we want xbow[b,t] = mean_{i<=t} x[b,i]
    B, T, C = x.shape
    xbow = torch.zeros((B, T, C))
    for b in range(B):
        for t in range(T):
            xprev = x[b, :t + 1]  # (t+1, C)
            xbow[b, t] = torch.mean(xprev, 0)
    return xbow


if __name__ == "__main__":
    x = torch.randn(B, T, C)
    print(x[0])
    print(bag_of_words(x)[0])

# === sixth_mean_columns
# target: running_mean
# wrong: The triangular matrix is divided by its column sums (dim=0) instead of its row sums, so rows are not means
# words: columns
import torch


def weights(T):
    wei = torch.tril(torch.ones(T, T))
    wei = wei / wei.sum(0, keepdim=True)
    return wei


def average_matrix(x):
    # (T, T) @ (B, T, C) ----> (B, T, C)
    return weights(x.shape[1]) @ x


if __name__ == "__main__":
    torch.manual_seed(42)
    x = torch.randint(0, 10, (1, 3, 2)).float()
    print(x)
    print(average_matrix(x))

# === sixth_mean_time_first
# target: running_mean
# right: incremental update of the mean (Welford), one loop over time, time-first (T,B,C)
import torch


def online_mean(seq):
    """seq: time x batch x channels, as RNN people like it.

    mean_t = mean_{t-1} + (x_t - mean_{t-1}) / t        (t counts from 1)
    """
    mean = torch.zeros_like(seq[0])
    out = []
    for t, x_t in enumerate(seq, start=1):
        mean = mean + (x_t - mean) / t
        out.append(mean)
    return torch.stack(out, dim=0)


if __name__ == "__main__":
    s = torch.randn(5, 2, 3)
    assert torch.allclose(online_mean(s)[-1], s.mean(0), atol=1e-6)
    print("ok")

# === sixth_mean_counts
# target: running_mean
# right: cumsum over counts, type hints, JAX-minded pure function on (batch, length, features)
from __future__ import annotations

import torch
from torch import Tensor


def prefix_mean(inputs: Tensor) -> Tensor:
    """Mean over every prefix.

    Args:
      inputs: float array of shape [batch, length, features].

    Returns:
      An array of the same shape; position t is the mean of positions 0..t inclusive.
    """
    length = inputs.shape[1]
    counts = torch.arange(1, length + 1, dtype=inputs.dtype, device=inputs.device)
    return torch.cumsum(inputs, dim=1) / counts[None, :, None]

# === sixth_mean_matrix
# target: running_mean
# right: matrix form: lower-triangular ones divided by row sums, one text (T,C), no batch
"""Running averages as one matrix product (my notes from lecture 6)."""
import torch


def averaging_matrix(n):
    W = torch.ones(n, n).tril()
    return W / W.sum(dim=1, keepdim=True)


def running_average(X):
    """X has one row per word. Row i of the answer is the mean of rows 0..i of X."""
    W = averaging_matrix(len(X)).to(X)
    return W @ X


if __name__ == "__main__":
    X = torch.tensor([[2.0, 7.0], [6.0, 4.0], [6.0, 5.0]])
    print(averaging_matrix(3))
    print(running_average(X))

# === sixth_mean_by_length
# target: running_mean
# wrong: The cumulative sum is divided by the full length T everywhere instead of by the number of tokens so far
# words: by T
import torch
import torch.nn as nn


class CausalMean(nn.Module):
    """The simplest token mixer: the average of everything up to here. Fast, since it's one cumsum."""

    def forward(self, x):
        B, T, C = x.shape
        return x.cumsum(dim=1) / T

# === sixth_mean_softmax
# target: running_mean
# right: softmax of a zero matrix with -inf above the diagonal, works for any leading axes
import torch
from torch.nn import functional as F


def causal_mean_softmax(x):
    # x: (..., T, C)
    T = x.shape[-2]
    tril = torch.tril(torch.ones(T, T, device=x.device))
    wei = torch.zeros(T, T, dtype=x.dtype, device=x.device)
    wei = wei.masked_fill(tril == 0, float('-inf'))  # the past can't talk to the future
    wei = F.softmax(wei, dim=-1)
    return wei @ x

# === sixth_mean_buffer
# target: running_mean
# right: nn.Module with a registered buffer of the finished weights, German names
import torch
import torch.nn as nn


class LaufenderMittelwert(nn.Module):
    """Jedes Wort bekommt den Durchschnitt von sich selbst und allen Woertern davor."""

    def __init__(self, max_laenge=256):
        super().__init__()
        dreieck = torch.tril(torch.ones(max_laenge, max_laenge))
        anzahl = torch.arange(1, max_laenge + 1).unsqueeze(1)
        self.register_buffer("gewichte", dreieck / anzahl)

    def forward(self, eingabe):
        stapel, laenge, kanaele = eingabe.shape
        gewichte = self.gewichte[:laenge, :laenge]
        return gewichte @ eingabe


if __name__ == "__main__":
    schicht = LaufenderMittelwert(16)
    print(schicht(torch.arange(6.0).view(1, 6, 1)).flatten())  # 0, .5, 1, 1.5, ...

# === sixth_mean_hides_past
# target: running_mean
# wrong: The mask hides the past instead of the future (tril(-1) entries get -inf), so every token averages itself and what follows
# words: upside down|after it
import torch
import torch.nn.functional as F


def promedio(x):
    """Promedio de cada palabra con las anteriores, usando softmax."""
    n = x.size(-2)
    puntajes = torch.zeros(n, n, device=x.device)
    mascara = torch.tril(torch.ones(n, n, device=x.device), diagonal=-1).bool()
    puntajes = puntajes.masked_fill(mascara, float("-inf"))
    pesos = F.softmax(puntajes, dim=-1)
    return pesos @ x


if __name__ == "__main__":
    print(promedio(torch.eye(4)))
