# Several heads by einsum, with weights of three axes or four, as functions of a dict, by vmap, as a plain class, as a kind of minigpt.
# target: multi_head

# === flax_kernels
# right: JAX/Flax habit: weights of shape (C,H,D) and (H,D,C) with einsum, kwargs, causal
import torch
from torch import nn

class MultiHeadDotProductAttention(nn.Module):
    def __init__(self, *, features: int, num_heads: int):
        super().__init__()
        d = features // num_heads
        init = lambda *s: nn.Parameter(torch.randn(*s) * features ** -0.5)
        self.query_kernel = init(features, num_heads, d)
        self.key_kernel = init(features, num_heads, d)
        self.value_kernel = init(features, num_heads, d)
        self.out_kernel = init(num_heads, d, features)

    def __call__(self, inputs):
        q = torch.einsum('btc,chd->bthd', inputs, self.query_kernel)
        k = torch.einsum('btc,chd->bthd', inputs, self.key_kernel)
        v = torch.einsum('btc,chd->bthd', inputs, self.value_kernel)
        q = q / q.shape[-1] ** 0.5
        logits = torch.einsum('bqhd,bkhd->bhqk', q, k)
        big_neg = torch.finfo(logits.dtype).min
        mask = torch.tril(torch.ones(logits.shape[-2:], dtype=torch.bool))
        logits = torch.where(mask, logits, big_neg)
        probs = torch.softmax(logits, dim=-1)
        ctx = torch.einsum('bhqk,bkhd->bqhd', probs, v)
        return torch.einsum('bqhd,hdc->bqc', ctx, self.out_kernel)

if __name__ == "__main__":
    layer = MultiHeadDotProductAttention(features=48, num_heads=6)
    print(layer(torch.randn(2, 9, 48)).shape)

# === einsum_mask_over_heads_and_keys
# of: flax_kernels
# wrong: (B, T, H, S) scores: the triangle is laid over heads and keys
# words: mask|head
#-        logits = torch.einsum('bqhd,bkhd->bhqk', q, k)
#+        logits = torch.einsum('bqhd,bkhd->bqhk', q, k)
#-        ctx = torch.einsum('bhqk,bkhd->bqhd', probs, v)
#+        ctx = torch.einsum('bqhk,bkhd->bqhd', probs, v)

# === keras_weights_built_at_first_call
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

# === einsum_and_additive_buffer
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

# === einsum_sums_over_queries
# of: einsum_and_additive_buffer
# wrong: the einsum of weights and values sums over the queries
# words: transpose
#-        out = einsum("b h i j, b h j d -> b h i d", attn, v)
#+        out = einsum("b h j i, b h j d -> b h i d", attn, v)

# === additive_buffer_hides_the_token_itself
# of: einsum_and_additive_buffer
# wrong: triu(0) hides the token itself as well
# words: itself|own|diagonal
#-        self.register_buffer("bias", torch.full((max_len, max_len), float("-inf")).triu(1))
#+        self.register_buffer("bias", torch.full((max_len, max_len), -1e9).triu(0))

# === parameter_dict_and_softmax_by_hand
# right: matrices (D, D) in a ParameterDict, x @ W, biases apart
import math
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.weights = nn.ParameterDict({n: nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim)) for n in ("q", "k", "v", "o")})
        self.biases = nn.ParameterDict({n: nn.Parameter(torch.zeros(dim)) for n in ("q", "k", "v", "o")})

    def lin(self, name, x):
        return x @ self.weights[name] + self.biases[name]

    def forward(self, x):
        b, n, c = x.shape
        heads = lambda y: y.reshape(b, n, self.heads, c // self.heads).swapaxes(1, 2)
        q, k, v = heads(self.lin("q", x)), heads(self.lin("k", x)), heads(self.lin("v", x))
        s = (q / math.sqrt(math.sqrt(c / self.heads))) @ (k / math.sqrt(math.sqrt(c / self.heads))).swapaxes(2, 3)
        s -= 1e30 * torch.triu(torch.ones(n, n), 1)
        p = torch.exp(s - s.max(dim=-1, keepdim=True).values)
        p = p / p.sum(-1, keepdim=True)
        return self.lin("o", (p @ v).swapaxes(1, 2).reshape(b, n, c))

attention = Attention(44, 4)

# === divided_by_sums_of_columns
# of: parameter_dict_and_softmax_by_hand
# wrong: the exponentials are divided by the sums of the columns
# words: column|quer
#-        p = p / p.sum(-1, keepdim=True)
#+        p = p / p.sum(-2, keepdim=True)

# === fourth_root_of_query_alone
# of: parameter_dict_and_softmax_by_hand
# wrong: only the query is divided by the fourth root
# words: fourth|sqrt
#-        s = (q / math.sqrt(math.sqrt(c / self.heads))) @ (k / math.sqrt(math.sqrt(c / self.heads))).swapaxes(2, 3)
#+        s = (q / math.sqrt(math.sqrt(c / self.heads))) @ k.swapaxes(2, 3)

# === values_are_x_itself
# of: parameter_dict_and_softmax_by_hand
# wrong: the values are x itself, cut into heads
# words: value
#-        q, k, v = heads(self.lin("q", x)), heads(self.lin("k", x)), heads(self.lin("v", x))
#+        q, k, v = heads(self.lin("q", x)), heads(self.lin("k", x)), heads(x)

# === divided_by_sum_of_all_weights
# of: parameter_dict_and_softmax_by_hand
# wrong: the exponentials are divided by the sum of all of them, not row by row
# words: row|sum|all
#-        p = torch.exp(s - s.max(dim=-1, keepdim=True).values)
#+        p = torch.exp(s - s.amax(dim=(-2, -1), keepdim=True))
#-        p = p / p.sum(-1, keepdim=True)
#+        p = p / p.sum((-2, -1), keepdim=True)

# === vmap_over_batch_and_heads
# right: vmap over batch and heads of a function for one head
import torch
from torch import nn
from torch.func import vmap

def one(q, k, v):
    s = (q @ k.T) / q.shape[1] ** 0.5
    i = torch.arange(len(q))
    return torch.softmax(torch.where(i[:, None] < i[None], -torch.inf, s), 1) @ v

class Mapped(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.i, self.o = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.i(x).unflatten(2, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        return self.o(vmap(vmap(one))(q, k, v).transpose(1, 2).flatten(2))

attention = Mapped(40, 5)

# === vmap_token_does_not_see_itself
# of: vmap_over_batch_and_heads
# wrong: i <= j hides the token itself, and nan_to_num the first row
# words: itself|own|diagonal
#-    return torch.softmax(torch.where(i[:, None] < i[None], -torch.inf, s), 1) @ v
#+    return torch.softmax(torch.where(i[:, None] <= i[None], -torch.inf, s), 1).nan_to_num() @ v

# === jax_dict_and_vmap
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

# === plain_class_time_first
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

# === kind_of_minigpt
# right: a kind of minigpt, written from the base
import torch
from torch import nn

from minigpt.attention import SoftmaxAttention

class Mine(SoftmaxAttention, kind="bank_plugin_kind"):
    def __init__(self, config, model, layer=0):
        super().__init__(config, model, layer)
        self.heads = 4
        self.qkv_layer = nn.Linear(model.n_embd, 3 * model.n_embd, bias=model.bias)
        self.project = nn.Linear(model.n_embd, model.n_embd, bias=model.bias)

    def qkv(self, x, past):
        B, T, D = x.shape
        q, k, v = self.qkv_layer(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        return self.position.rotate(q, past.length), self.position.rotate(k, past.length), v

    def output(self, mixed, x):
        return self.project(mixed.transpose(1, 2).flatten(2))
