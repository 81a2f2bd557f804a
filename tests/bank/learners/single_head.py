"""Learners' programs: one head with an output projection, as a module."""

# === head_plain
# target: single_head
# right: three Linears, a buffer with a triangle, a projection
import torch
import torch.nn as nn
from torch.nn import functional as F

class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size=64):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.proj = nn.Linear(head_size, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return self.proj(wei @ self.value(x))

attention = Head(48, 20)

# === head_parameters
# target: single_head
# right: matrices as Parameters, x @ W instead of Linear, no bias
import math
import torch
from torch import nn

class SelfAttention(nn.Module):
    def __init__(self, dim, d_k):
        super().__init__()
        self.W_q = nn.Parameter(torch.randn(dim, d_k) / math.sqrt(dim))
        self.W_k = nn.Parameter(torch.randn(dim, d_k) / math.sqrt(dim))
        self.W_v = nn.Parameter(torch.randn(dim, d_k) / math.sqrt(dim))
        self.W_o = nn.Parameter(torch.randn(d_k, dim) / math.sqrt(d_k))

    def forward(self, x):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        scores = q @ k.transpose(1, 2) / math.sqrt(self.W_k.shape[1])
        n = x.shape[1]
        scores[:, torch.triu(torch.ones(n, n), 1).bool()] = -math.inf
        return torch.softmax(scores, 2) @ v @ self.W_o

attention = SelfAttention(44, 18)

# === head_fused
# target: single_head
# right: one Linear for q, k and v; chunk; SDPA
import torch.nn.functional as F
from torch import nn

class OneHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.to_qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))

attention = OneHead(26)

# === head_time_first
# target: single_head
# right: (T, B, D) layout
import torch, math
from torch import nn

class Attn(nn.Module):
    """x: (seq_len, batch, d_model)"""
    def __init__(self, d_model):
        super().__init__()
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)
        self.d = d_model

    def forward(self, x):
        L = x.shape[0]
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        s = torch.einsum("ibd,jbd->bij", q, k) / math.sqrt(self.d)
        s = s.masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), float("-inf"))
        return self.wo(torch.einsum("bij,jbd->ibd", s.softmax(-1), v))

attention = Attn(30)

# === head_same_layer_twice
# target: single_head
# wrong: the query is made by the key's layer; self.query is never used
# words: quer|key
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.proj = nn.Linear(head_size, n_embd, bias=False)

    def forward(self, x):
        T = x.shape[1]
        k = self.key(x)
        q = self.key(x)
        v = self.value(x)
        wei = q @ k.mT / k.shape[-1] ** 0.5
        wei = wei.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        return self.proj(wei.softmax(-1) @ v)

attention = Head(48, 20)

# === head_width_of_model
# target: single_head
# wrong: divides by sqrt(48), the width of the model, instead of sqrt(20), the width of the head
# words: width of the model|sqrt(D)|embedding|48
# seen: Graylab/DL4Proteins-notebooks#12
import torch
import torch.nn as nn
import torch.nn.functional as F

class Head(nn.Module):
    def __init__(self, emb, hs):
        super().__init__()
        self.key = nn.Linear(emb, hs, bias=False)
        self.query = nn.Linear(emb, hs, bias=False)
        self.value = nn.Linear(emb, hs, bias=False)
        self.proj = nn.Linear(hs, emb)

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        return self.proj(F.softmax(wei, dim=-1) @ v)

attention = Head(48, 20)

# === head_value_is_x
# target: single_head
# wrong: the weights mix x itself: the value layer is never used
# words: value
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        v = self.v(x)
        t = x.size(1)
        a = self.q(x) @ self.k(x).transpose(-1, -2) / x.size(-1) ** 0.5
        a = a.masked_fill(torch.ones(t, t).triu(1) == 1, float("-inf")).softmax(-1)
        return self.o(a @ x)

attention = Head(34)

# === head_without_projection
# target: single_head
# wrong: the output projection is made and never applied
# words: project|output
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        t = x.size(1)
        q, k, v = self.query(x), self.key(x), self.value(x)
        a = q @ k.mT * x.size(-1) ** -0.5
        a = a.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf).softmax(-1)
        out = a @ v
        return out

attention = Head(34)

# === head_drops_in_eval
# target: single_head
# wrong: F.dropout drops in evaluation too, since training=True is its default
# words: dropout|random|evaluation|eval
# seen: karpathy/nanoGPT#240
import torch
import torch.nn.functional as F
from torch import nn

class Head(nn.Module):
    def __init__(self, dim, p=0.1):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)
        self.p = p

    def forward(self, x):
        y = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), dropout_p=self.p, is_causal=True)
        return self.proj(y)

attention = Head(34)

# === head_softmax_queries
# target: single_head
# wrong: softmax over the queries (dim=1) instead of the keys
# words: quer|column|dim|axis
# seen: labmlai/annotated_deep_learning_paper_implementations#146
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.qkv = nn.Linear(c, c * 3)
        self.output = nn.Linear(c, c)
        self.scale = c**-0.5

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        attn = torch.einsum("bid,bjd->bij", q, k) * self.scale
        attn = attn.masked_fill(torch.triu(torch.ones(n, n), 1) > 0, -1e30)
        attn = attn.softmax(dim=1)
        return self.output(torch.einsum("bij,bjd->bid", attn, v))

attention = Attention(38)

# === head_key_transposed_weights
# target: single_head
# wrong: the weights are transposed before they meet the values
# words: transpos|column|key|future
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q = nn.Linear(c, c)
        self.k = nn.Linear(c, c)
        self.v = nn.Linear(c, c)
        self.o = nn.Linear(c, c)

    def forward(self, x):
        n, c = x.shape[1:]
        s = self.q(x) @ self.k(x).mT / c**0.5
        w = s.masked_fill(torch.triu(torch.ones(n, n), 1) > 0, -torch.inf).softmax(-1)
        return self.o(torch.einsum("bij,bic->bjc", w, self.v(x)))

attention = Head(22)
