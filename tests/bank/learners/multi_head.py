"""Learners' programs: causal multi-head attention as a module."""

# === three_linears
# target: multi_head
# right: three Linears, view, transpose
import torch
import torch.nn as nn
import torch.nn.functional as F

class MyAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.q = nn.Linear(n_embd, n_embd)
        self.k = nn.Linear(n_embd, n_embd)
        self.v = nn.Linear(n_embd, n_embd)
        self.out = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        hs = C // self.n_head
        q = self.q(x).view(B, T, self.n_head, hs).transpose(1, 2)
        k = self.k(x).view(B, T, self.n_head, hs).transpose(1, 2)
        v = self.v(x).view(B, T, self.n_head, hs).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / hs**0.5
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        att = att.masked_fill(mask, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.out(y)

attention = MyAttention(48, 6)

# === config_object
# target: multi_head
# right: a config dataclass, one c_attn, split, a buffer called bias
import math
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F

@dataclass
class Config:
    embedding: int = 60
    heads: int = 5
    context: int = 128
    dropout: float = 0.2

class CausalAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        assert cfg.embedding % cfg.heads == 0
        self.c_attn = nn.Linear(cfg.embedding, 3 * cfg.embedding)
        self.c_proj = nn.Linear(cfg.embedding, cfg.embedding)
        self.attn_drop, self.resid_drop = nn.Dropout(cfg.dropout), nn.Dropout(cfg.dropout)
        self.register_buffer("bias", torch.ones(cfg.context, cfg.context).tril()[None, None])
        self.h, self.d = cfg.heads, cfg.embedding

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.reshape(b, t, self.h, -1).permute(0, 2, 1, 3) for y in self.c_attn(x).split(self.d, dim=2))
        a = q @ k.transpose(2, 3) / math.sqrt(self.d / self.h)
        a = a.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        a = self.attn_drop(F.softmax(a, dim=-1))
        return self.resid_drop(self.c_proj((a @ v).transpose(1, 2).flatten(2)))

attention = CausalAttention(Config())

# === list_of_heads
# target: multi_head
# right: a ModuleList of small heads, concatenated
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, dim, hs):
        super().__init__()
        self.key = nn.Linear(dim, hs, bias=False)
        self.query = nn.Linear(dim, hs, bias=False)
        self.value = nn.Linear(dim, hs, bias=False)

    def forward(self, x):
        T = x.shape[1]
        w = self.query(x) @ self.key(x).mT * self.key.out_features**-0.5
        w = w.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf")).softmax(-1)
        return w @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        dim = num_heads * head_size
        self.heads = nn.ModuleList([Head(dim, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))

attention = MultiHeadAttention(5, 9)

# === sdpa
# target: multi_head
# right: scaled_dot_product_attention, unflatten
import torch.nn as nn
import torch.nn.functional as F

class FastAttention(nn.Module):
    def __init__(self, dim, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.o(y.permute(0, 2, 1, 3).flatten(-2))

attention = FastAttention(42, 6, dropout=0.1)

# === einsum_weights
# target: multi_head
# right: weights of shape (H, D, d), einsum, no Linear at all
import torch
from torch import nn, einsum

class EinsumAttention(nn.Module):
    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        for w in self.parameters():
            nn.init.normal_(w, std=0.02)
        self.b_O = nn.Parameter(torch.zeros(d_model))

    def forward(self, resid):
        q = einsum("bpm,imh->bpih", resid, self.W_Q)
        k = einsum("bpm,imh->bpih", resid, self.W_K)
        v = einsum("bpm,imh->bpih", resid, self.W_V)
        scores = einsum("bqih,bkih->biqk", q, k) / self.W_Q.shape[-1] ** 0.5
        n = resid.shape[1]
        future = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        pattern = scores.masked_fill(future, -1e5 ** 3).softmax(-1)
        z = einsum("biqk,bkih->bqih", pattern, v)
        return einsum("bqih,ihm->bqm", z, self.W_O) + self.b_O

attention = EinsumAttention(36, 4, 7)

# === time_first
# target: multi_head
# right: (T, B, D), batch and heads folded together as PyTorch does
import torch
import torch.nn as nn

class MHA(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.num_heads = num_heads

    def forward(self, src):
        L, N, E = src.shape
        q, k, v = nn.functional.linear(src, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        hd = E // self.num_heads
        q = q.reshape(L, N * self.num_heads, hd).transpose(0, 1) * hd**-0.5
        k = k.reshape(L, N * self.num_heads, hd).transpose(0, 1)
        v = v.reshape(L, N * self.num_heads, hd).transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(L)
        w = torch.softmax(torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2)), dim=-1)
        out = torch.bmm(w, v).transpose(0, 1).reshape(L, N, E)
        return self.out_proj(out)

attention = MHA(40, 5)

# === mask_argument
# target: multi_head
# right: the caller gives the mask; 1 means: may look
import math
import torch
from torch import nn

class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = scores.softmax(dim=-1) @ value
        return self.linears[-1](x.transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))

attention = MultiHeadedAttention(6, 54)

# === torch_multihead
# target: multi_head
# right: a wrapper of nn.MultiheadAttention
import torch
from torch import nn

class Wrapped(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.mha = nn.MultiheadAttention(d, h, batch_first=True)

    def forward(self, x):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        y, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
        return y

attention = Wrapped(48, 4)

# === returns_weights_too
# target: multi_head
# right: returns the output and the weights
import torch
import torch.nn as nn

class Attn(nn.Module):
    def __init__(self, heads, dim_head, dim):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(0.1))

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        b, n, _ = q.shape
        q, k, v = [t.reshape(b, n, self.heads, -1).swapaxes(1, 2) for t in (q, k, v)]
        sim = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
        i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
        sim = sim.masked_fill((j > i), -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v).swapaxes(1, 2).reshape(b, n, -1)
        return self.to_out(out), attn

attention = Attn(heads=5, dim_head=6, dim=32)

# === heads_loop_slices
# target: multi_head
# right: a loop over heads, each on a slice of the columns
import torch
from torch import nn

class Simple(nn.Module):
    def __init__(self, width=45, heads=5):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.Q, self.K, self.V, self.O = [nn.Linear(width, width, bias=b) for b in (True, True, True, False)]

    def forward(self, x):
        Q, K, V = self.Q(x), self.K(x), self.V(x)
        n = x.shape[1]
        outs = []
        for h in range(self.heads):
            s = slice(h * self.size, (h + 1) * self.size)
            score = Q[..., s] @ K[..., s].mT / self.size**0.5
            for i in range(n):
                score[:, i, i + 1 :] = -float("inf")
            outs.append(torch.softmax(score, -1) @ V[..., s])
        return self.O(torch.cat(outs, -1))

attention = Simple()

# === heads_innermost
# target: multi_head
# convention: the heads are the fast index: view(B, T, d, H): the same with the features in another order
import torch
from torch import nn

class Inner(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.H, self.qkv, self.proj = H, nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = [y.view(B, T, C // self.H, self.H).permute(0, 3, 1, 2) for y in self.qkv(x).split(C, -1)]
        s = q @ k.mT * (C // self.H) ** -0.5
        s = s + torch.triu(torch.full((T, T), float("-inf")), 1)
        y = s.softmax(-1) @ v
        return self.proj(y.permute(0, 2, 3, 1).reshape(B, T, C))

attention = Inner(48, 6)

# === kq_renamed
# target: multi_head
# convention: k @ q^T with softmax over the last axis: the names of query and key are exchanged, both learned
import torch
from torch import nn

class Swapped(nn.Module):
    def __init__(self, C=48, H=6):
        super().__init__()
        self.H = H
        self.key, self.query, self.value, self.proj = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        f = lambda l: l(x).view(B, T, self.H, -1).transpose(1, 2)
        k, q, v = f(self.key), f(self.query), f(self.value)
        a = k @ q.transpose(-1, -2) / (C // self.H) ** 0.5
        a = a.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf")).softmax(dim=-1)
        return self.proj((a @ v).transpose(1, 2).reshape(B, T, C))

attention = Swapped()

# === no_bias_in_key
# target: multi_head
# right: a key without bias: a constant added to all scores of a row changes nothing (as in Whisper)
import torch
from torch import nn

class A(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x):
        n_batch, n_ctx, n_state = x.shape
        scale = (n_state // self.n_head) ** -0.25
        q = self.query(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = self.key(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = self.value(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k + torch.empty(n_ctx, n_ctx).fill_(-torch.inf).triu_(1)
        w = qk.softmax(dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))

attention = A(44, 4)

# === plugin_kind
# target: multi_head
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

# === sqrt_of_width
# target: multi_head
# wrong: divides by sqrt(D), the width of the model, instead of sqrt(d), the width of a head
# words: width of the model|sqrt(D)|embedding
# seen: aladdinpersson/Machine-Learning-Collection#65, omihub777/ViT-CIFAR#12, lucidrains/vit-pytorch#65
import torch
import torch.nn as nn

class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        N, L, _ = x.shape
        v = self.values(x).reshape(N, L, self.heads, self.head_dim)
        k = self.keys(x).reshape(N, L, self.heads, self.head_dim)
        q = self.queries(x).reshape(N, L, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k)
        energy = energy.masked_fill(torch.tril(torch.ones(L, L)) == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.embed_size ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", attention, v).reshape(N, L, self.embed_size)
        return self.fc_out(out)

attention = SelfAttention(48, 6)

# === view_without_transpose
# target: multi_head
# wrong: view(B, H, T, d) without a transpose: the heads are made of pieces of other tokens
# words: transpose|view|mix|reshape|permute
# seen: reczoo/FuxiCTR#30
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h, self.dk = h, d_model // h
        self.wq, self.wk, self.wv, self.wo = [nn.Linear(d_model, d_model) for _ in range(4)]

    def forward(self, x):
        B, T, D = x.shape
        q = self.wq(x).view(B, self.h, T, self.dk)
        k = self.wk(x).view(B, self.h, T, self.dk)
        v = self.wv(x).view(B, self.h, T, self.dk)
        s = q @ k.transpose(-2, -1) / self.dk**0.5
        s = s.masked_fill(torch.triu(torch.ones(T, T), 1).bool(), float("-inf"))
        o = (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)
        return self.wo(o)

attention = MHA(48, 6)

# === reshape_without_transpose_back
# target: multi_head
# wrong: the heads are not transposed back before the reshape: values of other tokens end up in a token
# words: transpose|permute|reshape|back|merge|concat
# seen: jsbaan/transformer-from-scratch#4, ajhalthor/Transformer-Neural-Network#1, 649453932/Chinese-Text-Classification-Pytorch#10
import math
import torch
import torch.nn.functional as F
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.num_heads, self.qkv_dim = num_heads, hidden_dim // num_heads
        self.qkv_proj = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)
        self.o_proj = nn.Linear(hidden_dim, hidden_dim, bias=False)

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv_proj(x).reshape(b, s, self.num_heads, 3 * self.qkv_dim).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.qkv_dim)
        scores = scores.masked_fill(torch.ones(s, s).tril() == 0, -torch.inf)
        values = F.softmax(scores, dim=-1) @ v
        return self.o_proj(values.reshape(b, s, h))

attention = MultiHeadAttention(48, 6)

# === softmax_over_heads
# target: multi_head
# wrong: softmax(dim=1) of (B, H, T, S) runs over the heads
# words: head
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1) * (d // self.h) ** -0.5
        a = a.masked_fill(torch.triu(torch.ones(t, t), 1) == 1, -1e9)
        a = torch.softmax(a, dim=1)
        return self.out((a @ v).transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === heads_attend_to_heads
# target: multi_head
# wrong: without a transpose, (B, T, H, d) @ (B, T, d, H): the heads of a token attend to one another
# words: head
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.dh = h, d // h
        self.q, self.k, self.v, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.h, self.dh)
        k = self.k(x).view(b, t, self.h, self.dh)
        v = self.v(x).view(b, t, self.h, self.dh)
        att = (q @ k.transpose(-2, -1)) / self.dh**0.5
        att = att.softmax(dim=-1)
        return self.o((att @ v).reshape(b, t, d))

attention = MHA(48, 6)

# === mask_before_scale_small
# target: multi_head
# wrong: fills with -1e4, then divides: large scores reach through the mask
# words: -1e4|10000|fill|-inf|large
# seen: hyunwoongko/transformer
import math
import torch
from torch import nn

class ScaleDotProductAttention(nn.Module):
    def forward(self, q, k, v, mask):
        score = q @ k.transpose(2, 3)
        score = score.masked_fill(mask == 0, -10000)
        return torch.softmax(score / math.sqrt(k.shape[-1]), -1) @ v

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.attention = ScaleDotProductAttention()
        self.w_q, self.w_k, self.w_v = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_concat = nn.Linear(d_model, d_model)

    def split(self, tensor):
        b, length, d_model = tensor.size()
        return tensor.view(b, length, self.n_head, d_model // self.n_head).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.w_q(x)), self.split(self.w_k(x)), self.split(self.w_v(x))
        mask = torch.tril(torch.ones(x.size(1), x.size(1)))
        out = self.attention(q, k, v, mask)
        b, head, length, d = out.size()
        return self.w_concat(out.transpose(1, 2).contiguous().view(b, length, head * d))

attention = MultiHeadAttention(48, 6)

# === no_mask
# target: multi_head
# wrong: no causal mask at all
# words: mask|future|causal
import torch.nn.functional as F
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === strict_mask
# target: multi_head
# wrong: tril(-1): a position does not see itself, and the first one sees nobody (NaN)
# words: itself|own|diagonal|before
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / (d // self.h) ** 0.5
        s = s.masked_fill(torch.ones(t, t).triu(0).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === additive_zero_one
# target: multi_head
# wrong: a mask of 0 and 1 is added to the scores, and not -inf
# words: add|1|mask
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (w(x).view(b, s, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        mask = torch.tril(torch.ones(s, s))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, d))

attention = MHA(48, 6)

# === dropout_before_softmax
# target: multi_head
# wrong: the scores are dropped (set to 0) before the softmax, which hides nothing
# words: dropout
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h, p=0.3):
        super().__init__()
        self.h, self.qkv, self.out, self.drop = h, nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Dropout(p)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / (d // self.h) ** 0.5
        s = s.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        s = self.drop(s)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === scale_of_heads
# target: multi_head
# wrong: q.size(1) is the number of heads after the transpose: divides by sqrt(H) instead of sqrt(d)
# words: heads|H|sqrt|number of
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d_model=48, n_heads=6):
        super().__init__()
        self.d_k, self.n_heads = d_model // n_heads, n_heads
        self.Wq, self.Wk, self.Wv, self.Wo = (nn.Linear(d_model, d_model) for _ in "qkvo")

    def forward(self, x):
        B, T, D = x.shape
        q = self.Wq(x).view(B, T, self.n_heads, self.d_k).transpose(1, 2)
        k = self.Wk(x).view(B, T, self.n_heads, self.d_k).transpose(1, 2)
        v = self.Wv(x).view(B, T, self.n_heads, self.d_k).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / torch.tensor(q.size(1)) ** 0.5
        scores = scores.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        return self.Wo((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(B, T, D))

attention = MHA()

# === scale_twice
# target: multi_head
# wrong: the query is scaled, and SDPA scales again
# words: twice|scale|two times|1/d|divide
import torch.nn.functional as F
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        q = q * (d // self.h) ** -0.5
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === projection_unused
# target: multi_head
# wrong: the output projection is defined and not applied
# words: project|output
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, c, hs):
        super().__init__()
        self.k, self.q, self.v = nn.Linear(c, hs, bias=False), nn.Linear(c, hs, bias=False), nn.Linear(c, hs, bias=False)

    def forward(self, x):
        t = x.shape[1]
        w = (self.q(x) @ self.k(x).mT) * self.k.out_features**-0.5
        return w.masked_fill(torch.ones(t, t).tril() == 0, float("-inf")).softmax(-1) @ self.v(x)

class Multi(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        self.heads = nn.ModuleList([Head(c, c // n) for _ in range(n)])
        self.proj = nn.Linear(c, c)

    def forward(self, x):
        return torch.cat([h(x) for h in self.heads], -1)

attention = Multi(48, 6)

# === list_scaled_by_c
# target: multi_head
# wrong: heads in a list, each divides by sqrt(C), the width of the model
# words: width of the model|sqrt(D)|embedding
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = torch.softmax(wei, dim=-1)
        return wei @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))

attention = MultiHeadAttention(48, 6)

# === heads_summed
# target: multi_head
# wrong: the outputs of the heads are averaged, and not concatenated
# words: sum|mean|average|concat
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v = nn.Linear(d, d * h), nn.Linear(d, d * h), nn.Linear(d, d * h)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.h, d).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = (q @ k.mT / d**0.5).masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        return self.o((s.softmax(-1) @ v).mean(1))

attention = MHA(24, 5)

# === value_without_layer
# target: multi_head
# wrong: the value is split from k: the same slice is used twice
# words: value|key
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.c_attn, self.c_proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.c_attn(x)
        q, k, v = qkv[..., :C], qkv[..., C : 2 * C], qkv[..., C : 2 * C]
        q, k, v = (z.view(B, T, self.h, C // self.h).transpose(1, 2) for z in (q, k, v))
        att = q @ k.transpose(-2, -1) * (C // self.h) ** -0.5
        att = att.masked_fill(torch.triu(torch.ones(T, T), 1) == 1, float("-inf"))
        return self.c_proj((att.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

attention = MHA(48, 6)

# === mask_on_wrong_axis
# target: multi_head
# wrong: (B, T, H, S) scores: the mask is laid over heads and keys by a broadcast of the wrong axes (heads are masked)
# words: mask|head
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).unbind(2)
        s = torch.einsum("bihd,bjhd->bihj", q, k) / (d // self.h) ** 0.5
        mask = torch.ones(self.h, t, dtype=torch.bool).triu(1)
        s = s.masked_fill(mask, -1e9)
        return self.out(torch.einsum("bihj,bjhd->bihd", s.softmax(-1), v).reshape(b, t, d))

attention = MHA(48, 6)

# === transposed_weights
# target: multi_head
# wrong: softmax(k q^T) over the queries' axis: rows and columns of the scores are exchanged under the same mask
# words: quer|key|column|transpos|axis|dim
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.mT / (d // self.h) ** 0.5
        s = s.masked_fill(~torch.ones(t, t).tril().bool(), -1e9)
        w = torch.softmax(s, dim=-2)
        return self.o((w @ v).transpose(1, 2).flatten(2))

attention = MHA(48, 6)

# === global_softmax
# target: multi_head
# wrong: the exponentials are divided by the sum of all of them, not row by row
# words: row|sum|all
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.o = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        e = torch.exp(s - s.amax(dim=(-2, -1), keepdim=True))
        w = e / e.sum(dim=(-2, -1), keepdim=True)
        return self.o((w @ v).transpose(1, 2).flatten(2))

attention = MHA(48, 6)

# === relu_on_projection
# target: multi_head
# wrong: a ReLU after each of q, k, v, which attention does not have
# words: relu|negative|activation|clip
import torch
import torch.nn.functional as F
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (F.relu(f(x)).view(b, t, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))

attention = MHA(48, 6)

# === residual_inside
# target: multi_head
# wrong: x is added inside the attention, so that a block would add it twice
# words: residual|add|x
import torch.nn.functional as F
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        return x + self.out(y)

attention = MHA(48, 6)

# === mask_for_longest_text
# target: multi_head
# wrong: the buffer is cut from its end: tril[-T:, :T] hides nothing for short texts
# words: mask|future|causal|offset
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h, ctx=64):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("tril", torch.tril(torch.ones(ctx, ctx)))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.mT * (d // self.h) ** -0.5
        s = s.masked_fill(self.tril[-t:, :t] == 0, float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))

attention = MHA(48, 6)

# === width_and_no_projection
# target: multi_head
# wrong: two bugs: divides by sqrt(D), and forgets the output projection
# words: width of the model|sqrt(D)|embedding, project|output
# seen: FareedKhan-dev/train-llm-from-scratch#3
import torch
import torch.nn as nn

class MHA(nn.Module):
    def __init__(self, n_embed, n_head):
        super().__init__()
        self.h = n_head
        self.query = nn.Linear(n_embed, n_embed, bias=False)
        self.key = nn.Linear(n_embed, n_embed, bias=False)
        self.value = nn.Linear(n_embed, n_embed, bias=False)
        self.proj = nn.Linear(n_embed, n_embed)

    def forward(self, x):
        B, T, C = x.shape
        split = lambda y: y.view(B, T, self.h, C // self.h).transpose(1, 2)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        w = q @ k.transpose(-2, -1) / (C**0.5)
        w = w.masked_fill(torch.tril(torch.ones(T, T)) == 0, float("-inf"))
        return (torch.softmax(w, dim=-1) @ v).transpose(1, 2).reshape(B, T, C)

attention = MHA(48, 6)

# === no_scale_and_merge
# target: multi_head
# wrong: two bugs: no scale, and the heads are not transposed back
# words: scale|sqrt, transpose|permute|reshape|back|merge
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).reshape(b, t, d))

attention = MHA(48, 6)

# === float_mask_read_as_bool
# target: multi_head
# wrong: an additive mask of 0 and -inf is compared with 0: what may be seen (0) is hidden, the rest stays
# words: invert|hidden|future|mask|past
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / (d // self.h) ** 0.5
        s = s.masked_fill(mask == 0, -1e9)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = MHA(48, 6)

# === batch_one_only
# target: multi_head
# wrong: reshape(1, ...) takes all sequences of a batch for one long one: right for a batch of one
# words: batch|sequence
import torch
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        shape, d = x.shape, x.shape[-1]
        q, k, v = self.qkv(x).reshape(1, -1, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        n = q.shape[2]
        s = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(shape))

attention = MHA(48, 6)

# === in_place_on_input
# target: multi_head
# wrong: x is scaled in place, so the caller's residual stream changes
# words: in place|input|x
import torch.nn.functional as F
from torch import nn

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.out = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(b, t, d))
        x += y
        return y

attention = MHA(48, 6)

# === time_first_softmax
# target: multi_head
# wrong: (T, B, D) layout: softmax over the queries' axis
# words: quer|column|axis|dim
# like: time_first
#-        w = torch.softmax(torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2)), dim=-1)
#+        w = torch.softmax(torch.baddbmm(mask.nan_to_num(neginf=-1e30).to(q.dtype), q, k.transpose(1, 2)), dim=1)

# === time_first_folded
# target: multi_head
# wrong: (T, B, D) layout: the heads are folded before the batch, and unfolded after it
# words: batch|fold|head|mix|order
# like: time_first
#-        out = torch.bmm(w, v).transpose(0, 1).reshape(L, N, E)
#+        out = torch.bmm(w, v).view(self.num_heads, N, L, hd).permute(2, 1, 0, 3).reshape(L, N, E)

# === einsum_letters
# target: multi_head
# wrong: two letters of an einsum are exchanged: the keys are weighed by the queries' sums (pattern transposed)
# words: transpos|quer|column|key|future
# like: einsum_weights
#-        z = einsum("biqk,bkih->bqih", pattern, v)
#+        z = einsum("bikq,bkih->bqih", pattern, v)

# === config_dropout_always
# target: multi_head
# wrong: the weights are dropped in evaluation too
# words: dropout|random|evaluation|eval
# seen: karpathy/nanoGPT#240
# like: config_object
#-        a = self.attn_drop(F.softmax(a, dim=-1))
#+        a = F.dropout(F.softmax(a, dim=-1), 0.2)

# === config_scale_of_context
# target: multi_head
# wrong: divides by sqrt of the text's length: size(-1) of the scores and not of the keys
# words: length|positions|sqrt(T)|S
# like: config_object
#-        a = q @ k.transpose(2, 3) / math.sqrt(self.d / self.h)
#+        a = q @ k.transpose(2, 3)
#+        a = a / math.sqrt(a.size(-1))

# === annotated_mask_ignored
# target: multi_head
# wrong: the mask argument is accepted and never used
# words: mask|future|causal
# like: mask_argument
#-            scores = scores.masked_fill(mask == 0, -1e9)
#+            scores.masked_fill(mask == 0, -1e9)

# === list_heads_one_missing
# target: multi_head
# wrong: the first head stands twice in the concatenation, the last one never
# words: head
# like: list_of_heads
#-        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))
#+        return self.proj(torch.cat([self.heads[0](x)] + [h(x) for h in self.heads[:-1]], dim=-1))

# === projection_by_matrix
# target: multi_head
# convention: y @ W instead of y @ W.T: the projection is learned, so it is the same with a transposed matrix
# like: three_linears
#-        return self.out(y)
#+        return y @ self.out.weight + self.out.bias

# === slices_overlap
# target: multi_head
# wrong: the slices of the heads overlap: head h begins at h, not at h d
# words: slice|head|overlap|feature
# like: heads_loop_slices
#-            s = slice(h * self.size, (h + 1) * self.size)
#+            s = slice(h, h + self.size)
