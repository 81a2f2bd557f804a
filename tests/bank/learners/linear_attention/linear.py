# Linear attention: masked products of features, running sums, states token by token or in chunks, feature maps, and their slips.
# target: linear_attention

# === masked_product_of_features
# right: a masked product of features, rows divided by their sums
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        w = (q @ k.mT).tril()
        y = (w @ v) / w.sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = LinearAttention(48, 6)

# === linear_without_normaliser
# of: masked_product_of_features
# wrong: the sum is not divided by the features' sum
# words: normal|divid|sum
# seen: lucidrains/performer-pytorch#40
#-        y = (w @ v) / w.sum(-1, keepdim=True)
#+        y = w @ v

# === linear_multiplied_by_normaliser
# of: masked_product_of_features
# wrong: multiplies by the denominator instead of dividing by it
# words: multipl|normal|divid
# seen: lucidrains/performer-pytorch#40
#-        y = (w @ v) / w.sum(-1, keepdim=True)
#+        y = (w @ v) * w.sum(-1, keepdim=True)

# === linear_without_mask
# of: masked_product_of_features
# wrong: no mask: keys of the whole text are summed
# words: future|causal|whole|all
#-        w = (q @ k.mT).tril()
#+        w = q @ k.mT

# === elu_without_one
# of: masked_product_of_features
# wrong: elu without + 1: the features can be negative
# words: feature|elu|+ 1|+1|negative
#-        q, k = F.elu(q) + 1, F.elu(k) + 1
#+        q, k = F.elu(q), F.elu(k)

# === features_of_keys_alone
# of: masked_product_of_features
# wrong: the feature map is applied to the keys and not to the queries
# words: quer|feature
#-        q, k = F.elu(q) + 1, F.elu(k) + 1
#+        k = F.elu(k) + 1

# === running_sums_of_outer_products
# of: masked_product_of_features
# right: running sums of outer products, an epsilon in the normaliser
#-    def __init__(self, d, h):
#+    def __init__(self, dim, heads):
#-        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
#+        self.heads = heads
#+        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
#-        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
#+        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
#-        w = (q @ k.mT).tril()
#-        y = (w @ v) / w.sum(-1, keepdim=True)
#-        return self.out(y.transpose(1, 2).reshape(b, t, d))
#+        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
#+        z = 1 / (torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2)) + 1e-6)
#+        y = torch.einsum("bhtd,bhtde,bht->bhte", q, kv, z)
#+        return self.to_out(y.transpose(1, 2).reshape(b, t, d))
#-attention = LinearAttention(48, 6)
#+attention = LinearAttention(36, 4)

# === relu_features_with_epsilon
# of: running_sums_of_outer_products
# convention: relu in place of elu + 1, with an epsilon in the normaliser
#-        q, k = F.elu(q) + 1, F.elu(k) + 1
#+        q, k = F.relu(q), F.relu(k)

# === normaliser_of_all_keys
# of: running_sums_of_outer_products
# wrong: the normaliser sums all keys: z sees the future
# words: normaliser
#-        z = 1 / (torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2)) + 1e-6)
#+        z = 1 / (torch.einsum("bhtd,bhd->bht", q, k.sum(2)) + 1e-6)

# === running_sums_over_heads
# of: running_sums_of_outer_products
# wrong: cumsum over the heads' axis instead of time
# words: head|axis|dim|time
#-        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
#+        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(1)
#-        z = 1 / (torch.einsum("bhtd,bhtd->bht", q, k.cumsum(2)) + 1e-6)
#+        z = 1 / (torch.einsum("bhtd,bhtd->bht", q, k.cumsum(1)) + 1e-6)

# === state_token_by_token
# right: a state that is updated token by token
import torch
from torch import nn
import torch.nn.functional as F

class Recurrent(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        B, T, D = x.shape
        e = D // self.heads
        q = (F.elu(self.wq(x)) + 1).view(B, T, self.heads, e)
        k = (F.elu(self.wk(x)) + 1).view(B, T, self.heads, e)
        v = self.wv(x).view(B, T, self.heads, e)
        S, z, ys = x.new_zeros(B, self.heads, e, e), x.new_zeros(B, self.heads, e), []
        for t in range(T):
            S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
            z = z + k[:, t]
            num = torch.einsum("bhd,bhde->bhe", q[:, t], S)
            den = (q[:, t] * z).sum(-1, keepdim=True)
            ys.append(num / den)
        return self.wo(torch.stack(ys, 1).reshape(B, T, D))

attention = Recurrent(48, 6)

# === state_read_before_update
# of: state_token_by_token
# wrong: the state is read before it is updated: a token does not see itself
# words: itself|own|after|update|before|current
#-            S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
#-            z = z + k[:, t]
#-            num = torch.einsum("bhd,bhde->bhe", q[:, t], S)
#-            den = (q[:, t] * z).sum(-1, keepdim=True)
#-            ys.append(num / den)
#+            num = torch.einsum("bhd,bhde->bhe", q[:, t], S)
#+            den = (q[:, t] * z).sum(-1, keepdim=True) + 1e-6
#+            ys.append(num / den)
#+            S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
#+            z = z + k[:, t]

# === state_in_and_out_as_named_tuple
# right: recurrence with NamedTuple state, elu+1 written out, S stored transposed (v k^T)
from typing import NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
from torch import Tensor

class State(NamedTuple):
    s: Tensor  # (B, H, Dv, Dk)
    z: Tensor  # (B, H, Dk)

class RecurrentLinearAttention(nn.Module):
    """Linear attention with an explicit state, feature map elu(.) + 1.

    y, state = layer(x)            # a whole sequence
    y, state = layer(x_next, state)  # continue from there
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)

    @staticmethod
    def feature(u: Tensor) -> Tensor:
        # elu(u) + 1, written out
        return torch.where(u > 0, u + 1, torch.exp(u.clamp(max=0)))

    def forward(self, x: Tensor, state: Optional[State] = None) -> Tuple[Tensor, State]:
        B, T, D = x.shape
        if state is None:
            state = State(x.new_zeros(B, self.n_heads, self.d_head, self.d_head),
                          x.new_zeros(B, self.n_heads, self.d_head))
        s, z = state
        ys = []
        for xt in x.unbind(dim=1):
            q = self.feature(self.q(xt)).view(B, self.n_heads, self.d_head)
            k = self.feature(self.k(xt)).view(B, self.n_heads, self.d_head)
            v = self.v(xt).view(B, self.n_heads, self.d_head)
            s = s + v[..., :, None] @ k[..., None, :]
            z = z + k
            y = (s @ q[..., None]).squeeze(-1) / (z * q).sum(-1, keepdim=True)
            ys.append(self.o(y.reshape(B, D)))
        return torch.stack(ys, dim=1), State(s, z)

# === function_with_a_state
# right: a function with a running state, elu + 1 as feature map
import torch
import torch.nn.functional as F

def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.zeros(*k.shape[:-2], k.size(-1), v.size(-1), dtype=v.dtype)
    z = torch.zeros_like(k[..., 0, :])
    out = []
    for t in range(q.size(-2)):
        state = state + k[..., t, :, None] * v[..., t, None, :]
        z = z + k[..., t, :]
        top = torch.einsum("...d,...de->...e", q[..., t, :], state)
        bottom = (q[..., t, :] * z).sum(-1, keepdim=True)
        out.append(top / bottom)
    return torch.stack(out, dim=-2)

# === state_read_before_update_but_not_its_sum
# of: function_with_a_state
# wrong: the token's own key and value enter the state after it is read, but not z
# words: itself|own|before|late
#-        state = state + k[..., t, :, None] * v[..., t, None, :]
#-        z = z + k[..., t, :]
#-        top = torch.einsum("...d,...de->...e", q[..., t, :], state)
#+        z = z + k[..., t, :]
#+        top = torch.einsum("...d,...de->...e", q[..., t, :], state)
#+        state = state + k[..., t, :, None] * v[..., t, None, :]

# === divided_by_number_of_tokens
# of: function_with_a_state
# wrong: the normaliser is the number of tokens
# words: normalis|divide|number of
#-        out.append(top / bottom)
#+        out.append(top / (t + 1))

# === function_time_before_heads
# right: cumsum of outer products (no loop), feature map elu+1, (B,T,H,D) with einsum, eps in the denominator
import torch
from torch.nn.functional import elu

def causal_linear_attention(queries, keys, values, eps=1e-6):
    # layout N L H E, like the fast-transformers library
    Q = elu(queries) + 1.0
    K = elu(keys) + 1.0
    KV = torch.einsum("nlhe,nlhm->nlhem", K, values).cumsum(dim=1)   # memory hungry but clear
    Z = 1 / (torch.einsum("nlhe,nlhe->nlh", Q, K.cumsum(dim=1)) + eps)
    return torch.einsum("nlhe,nlhem,nlh->nlhm", Q, KV, Z)

if __name__ == "__main__":
    q, k, v = (torch.randn(2, 12, 4, 8) for _ in range(3))
    print(causal_linear_attention(q, k, v).shape)

# === step_function_with_relu_and_state
# convention: recurrent step function and a loop, feature map relu, eps 1e-6 in the denominator
import torch

def linear_attention_step(q, k, v, state, eps=1e-6):
    """one token of the recurrent ("transformers are RNNs") form

    q, k: (B, H, D)   v: (B, H, M)
    state: (S, Z) with S: (B, H, D, M) and Z: (B, H, D)
    """
    S, Z = state
    q = torch.relu(q)
    k = torch.relu(k)
    S = S + k.unsqueeze(-1) * v.unsqueeze(-2)
    Z = Z + k
    num = torch.einsum("bhd,bhdm->bhm", q, S)
    den = (q * Z).sum(-1, keepdim=True) + eps
    return num / den, (S, Z)

def linear_attention(q, k, v, state=None):
    """q, k, v: (B, H, T, D) -> out (B, H, T, M) and the state to go on with"""
    B, H, T, D = q.shape
    M = v.shape[-1]
    if state is None:
        state = (q.new_zeros(B, H, D, M), q.new_zeros(B, H, D))
    ys = []
    for t in range(T):
        y, state = linear_attention_step(q[:, :, t], k[:, :, t], v[:, :, t], state)
        ys.append(y)
    return torch.stack(ys, dim=2), state

# === exp_features_in_chunks_column_of_ones
# right: chunked with a carried state, exp feature map, a column of ones in v as normaliser
import torch
import torch.nn as nn

class ChunkedLinear(nn.Module):
    def __init__(self, dim, head, chunk=4):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * head, bias=False)
        self.proj = nn.Linear(head, dim)
        self.chunk = chunk

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q.exp(), k.exp()
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        state = 0
        ys = []
        for qc, kc, vc in zip(q.split(self.chunk, 1), k.split(self.chunk, 1), v.split(self.chunk, 1)):
            y = torch.tril(qc @ kc.mT) @ vc
            if torch.is_tensor(state):
                y = y + qc @ state
            state = state + kc.mT @ vc
            ys.append(y)
        y = torch.cat(ys, 1)
        return self.proj(y[..., :-1] / y[..., -1:])

attention = ChunkedLinear(24, 12)

# === chunks_with_a_state
# right: chunked causal form (state between chunks, masked product inside), elu+1, normalised, (B,T,H,D)
import torch
import torch.nn.functional as F

def chunked_linear_attention(q, k, v, chunk=4):
    q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
    B, T, H, D = q.shape
    state = torch.zeros(B, H, D, v.shape[-1])
    norm = torch.zeros(B, H, D)
    pieces = []
    for s in range(0, T, chunk):
        qc, kc, vc = q[:, s:s + chunk], k[:, s:s + chunk], v[:, s:s + chunk]
        inner = torch.einsum("bthd,bshd->bhts", qc, kc).tril()
        num = torch.einsum("bthd,bhde->bthe", qc, state) + torch.einsum("bhts,bshe->bthe", inner, vc)
        den = torch.einsum("bthd,bhd->bth", qc, norm) + inner.sum(-1).transpose(1, 2)
        pieces.append(num / den[..., None])
        state = state + torch.einsum("bshd,bshe->bhde", kc, vc)
        norm = norm + kc.sum(1)
    return torch.cat(pieces, dim=1)

# === state_of_chunks_updated_before_it_is_read
# of: chunks_with_a_state
# wrong: the state takes in the chunk before it is read: the chunk counts twice, with its future
# words: before the chunk|chunk|twice
#-        pieces.append(num / den[..., None])
#-        state = state + torch.einsum("bshd,bshe->bhde", kc, vc)
#-        norm = norm + kc.sum(1)
#+        pieces.append(num / den[..., None])
#-        num = torch.einsum("bthd,bhde->bthe", qc, state) + torch.einsum("bhts,bshe->bthe", inner, vc)
#+        state = state + torch.einsum("bshd,bshe->bhde", kc, vc)
#+        norm = norm + kc.sum(1)
#+        num = torch.einsum("bthd,bhde->bthe", qc, state) + torch.einsum("bhts,bshe->bthe", inner, vc)

# === efficient_attention_not_causal
# right: bidirectional "efficient attention" (Shen): softmax of q over features, of k over time, q (k^T v), no denominator needed
import torch
import torch.nn as nn

class EfficientAttention(nn.Module):
    """Shen et al. 2018, not causal: E(Q,K,V) = rho_q(Q) (rho_k(K)^T V)"""
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, d // self.heads).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        q = q.softmax(dim=-1)
        k = k.softmax(dim=-2)
        context = k.transpose(-1, -2) @ v
        out = q @ context
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))

attention = EfficientAttention(48, 6)

# === state_in_and_out
# right: a text continues with the pair (sums of outer products, sums of keys) that the call before returned
import torch
from torch import nn

class Recurrent(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, state=None):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        outer, keys = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2), k.cumsum(2)
        if state is not None:
            outer, keys = outer + state[0].unsqueeze(2), keys + state[1].unsqueeze(2)
        y = torch.einsum("bhtd,bhtde->bhte", q, outer) / (q * keys).sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D)), (outer[:, :, -1], keys[:, :, -1])

attention = Recurrent(48, 6)

# === state_forgets_what_it_was_given
# of: state_in_and_out
# wrong: the sum of keys that is returned is that of the last chunk alone: from the third chunk on rows are divided by too little
# words: chunks
#-        return self.out(y.transpose(1, 2).reshape(B, T, D)), (outer[:, :, -1], keys[:, :, -1])
#+        return self.out(y.transpose(1, 2).reshape(B, T, D)), (outer[:, :, -1], k.sum(2))

# === step_of_one_token
# right: a function of one token's query, key and value (B, H, d) and a state, which it returns
import torch

def linear_attention_step(q, k, v, state=None):
    q, k = torch.relu(q) + 0.1, torch.relu(k) + 0.1
    S, z = state if state is not None else (0, 0)
    S, z = S + k[..., :, None] * v[..., None, :], z + k
    return (q[..., None, :] @ S)[..., 0, :] / (q * z).sum(-1, keepdim=True), (S, z)

# === step_without_key_sum
# of: step_of_one_token
# wrong: the sum of the keys is not handed on: each token is divided by its own key alone
# words: sum|normal|divid
#- (S, z)
#+ (S, 0 * z)

# === state_of_the_batch_before
# wrong: the state of one text is where the next text begins
# words: second time|left behind|state
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.S = heads, None
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).unbind(2)  # (B, T, H, d)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        S = 0 if self.S is None or len(self.S) != B else self.S
        out = []
        for t in range(T):
            S = S + k[:, t, :, :, None] * v[:, t, :, None, :]
            y = (q[:, t, :, None] @ S)[:, :, 0]
            out.append(y[..., :-1] / y[..., -1:])
        self.S = S.detach()
        return self.out(torch.stack(out, 1).flatten(2))
