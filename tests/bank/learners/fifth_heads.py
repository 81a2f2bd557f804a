"""Learners' programs, a fifth lot, by an author who has not seen the checker: functions, one head, many heads, grouped queries."""

# === fifth_attend_divides_late
# target: attend
# wrong: the division by sqrt(d) comes after the softmax, so the weights sum to 1/sqrt(d)
# words: after the softmax
import torch, math

def aufmerksamkeit(q, k, v):
    T = q.shape[-2]
    punkte = q @ k.mT
    maske = torch.zeros(T, T)
    maske[torch.ones(T, T).triu(1).bool()] = -torch.inf
    gewichte = torch.softmax(punkte + maske, -1) / math.sqrt(q.shape[-1])
    return gewichte @ v

attention = aufmerksamkeit

# === fifth_attend_jax
# target: attend
# right: jax translation, heads last layout (B, T, H, D), loop free, mask broadcast from iota
import torch
from torch import Tensor

def dot_product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """query, key, value: [batch, length, heads, dim]"""
    depth = query.shape[-1]
    query = query / depth ** 0.5
    weights = torch.einsum("...qhd,...khd->...hqk", query, key)
    idx = torch.arange(query.shape[-3])
    mask = idx[:, None] >= idx[None, :]
    big_neg = torch.finfo(weights.dtype).min
    weights = torch.where(mask, weights, big_neg)
    weights = torch.softmax(weights, dim=-1)
    return torch.einsum("...hqk,...khd->...qhd", weights, value)

attention = dot_product_attention

# === fifth_head_time_first
# target: single_head
# right: time first layout (T, B, C), weights also returned; score matrix has keys in rows and the softmax runs over them
import torch
import torch.nn as nn

class SeqFirstHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.Q = nn.Linear(d, d)
        self.K = nn.Linear(d, d)
        self.V = nn.Linear(d, d)
        self.O = nn.Linear(d, d)

    def forward(self, x):
        T, B, d = x.shape
        q, k, v = self.Q(x), self.K(x), self.V(x)
        s = torch.einsum('sbd,tbd->bst', k, q) / d ** 0.5
        ok = torch.triu(torch.ones(T, T)).bool()
        s = s.masked_fill(~ok, float('-inf'))
        a = s.softmax(dim=-2)
        out = torch.einsum('bst,sbd->tbd', a, v)
        return self.O(out), a.transpose(1, 2)

attention = SeqFirstHead(16)

# === fifth_one_matrix_of_four_axes
# target: multi_head
# right: one einsum weight (d, 3, h, dh) and an output weight (h, dh, d)
import torch
from torch import nn, einsum

class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        dh = d // h
        self.W = nn.Parameter(torch.randn(d, 3, h, dh) * d**-0.5)
        self.U = nn.Parameter(torch.randn(h, dh, d) * d**-0.5)
        self.b = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = einsum('btd,dchk->cbthk', x, self.W)
        s = einsum('bihk,bjhk->hbij', q, k) / self.W.shape[-1]**0.5
        s = s + torch.full((n, n), float('-inf')).triu(1)
        p = s.softmax(-1)
        return einsum('hbij,bjhk,hkd->bid', p, v, self.U) + self.b

attention = MHA(32, 4)

# === fifth_head_root_of_length
# target: single_head
# wrong: the scores are divided by the root of the sequence length instead of the head size
# words: number of tokens
import math
from dataclasses import dataclass
import torch
import torch.nn as nn

@dataclass
class HeadConfig:
    n_embd: int = 32
    head_size: int = 16
    bias: bool = True

class CausalHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.qkv = nn.Linear(config.n_embd, 3 * config.head_size, bias=config.bias)
        self.c_proj = nn.Linear(config.head_size, config.n_embd, bias=config.bias)
        self.head_size = config.head_size

    def forward(self, x):
        q, k, v = self.qkv(x).split(self.head_size, dim=2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(1)))
        T = x.size(1)
        bias = torch.tril(torch.ones(T, T)).view(1, T, T)
        att = att.masked_fill(bias == 0, float('-inf'))
        att = att.softmax(-1)
        return self.c_proj(att @ v)

attention = CausalHead(HeadConfig())

# === fifth_heads_interleaved
# target: multi_head
# right: heads are interleaved: channel c belongs to head c % h, in split and merge; own transposing layer; (out, weights)
import torch
import torch.nn as nn

class Matriz(nn.Module):
    def __init__(self, entra, sale):
        super().__init__()
        self.w = nn.Parameter(torch.randn(sale, entra) / entra ** 0.5)

    def forward(self, x):
        return x @ self.w.t()

class AtencionMultiple(nn.Module):
    def __init__(self, canales, cabezas):
        super().__init__()
        self.cabezas = cabezas
        self.consulta = Matriz(canales, canales)
        self.clave = Matriz(canales, canales)
        self.valor = Matriz(canales, canales)
        self.salida = Matriz(canales, canales)

    def separar(self, z):
        lote, largo, canales = z.shape
        z = z.view(lote, largo, canales // self.cabezas, self.cabezas)
        return z.permute(0, 3, 1, 2)

    def forward(self, x):
        q, k, v = map(self.separar, (self.consulta(x), self.clave(x), self.valor(x)))
        puntajes = torch.matmul(q, k.transpose(2, 3)) / q.size(-1) ** 0.5
        largo = x.size(1)
        futuro = torch.arange(largo)[None, :] > torch.arange(largo)[:, None]
        puntajes[..., futuro] = float('-inf')
        pesos = torch.softmax(puntajes, dim=-1)
        y = (pesos @ v).permute(0, 2, 3, 1).flatten(2)
        return self.salida(y), pesos

attention = AtencionMultiple(24, 3)

# === fifth_attend_plain
# target: attend
# right: plain masked attention of q, k, v
import math
import torch
import torch.nn.functional as F

def scaled_dot_product(q, k, v):
    d_k = q.size()[-1]
    attn_logits = torch.matmul(q, k.transpose(-2, -1))
    attn_logits = attn_logits / math.sqrt(d_k)
    T = q.size(-2)
    mask = torch.tril(torch.ones(T, T))
    attn_logits = attn_logits.masked_fill(mask == 0, -9e15)
    attention = F.softmax(attn_logits, dim=-1)
    values = torch.matmul(attention, v)
    return values, attention

attention = scaled_dot_product

# === fifth_attend_over_queries
# target: attend
# wrong: the softmax runs over the query dimension
# words: queries
import torch
import torch.nn.functional as F

def attend(q, k, v):
    B, T, d = q.shape
    scores = torch.bmm(q, k.transpose(1, 2)) / d**0.5
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, float('-inf'))
    w = F.softmax(scores, dim=1)
    return torch.bmm(w, v)

attention = attend

# === fifth_weights_row_by_row
# target: attention_weights
# right: row by row, each row a softmax over its prefix only
import torch

def pesos(q, k):
    """q, k: (T, d)  ->  (T, T)"""
    T, d = q.shape
    W = torch.zeros(T, T)
    for i in range(T):
        puntajes = k[: i + 1] @ q[i] / d ** 0.5
        W[i, : i + 1] = torch.softmax(puntajes, dim=0)
    return W

attention = pesos

# === fifth_mean_columns_from_the_right
# target: running_mean
# right: matrix of ones normalised by columns and used transposed from the right, (T, C) without a batch
import torch

def mittelwert(x):
    T, C = x.shape
    M = torch.triu(torch.ones(T, T))
    M = M / M.sum(dim=0, keepdim=True)
    return (x.T @ M).T

attention = mittelwert

# === fifth_weights_transposed_mask
# target: attention_weights
# wrong: the mask is transposed: each query sees itself and the future
# words: upside down
import torch
import torch.nn.functional as F

def get_weights(query, key):
    L, S = query.size(-2), key.size(-2)
    logits = query @ key.transpose(-2, -1) / (query.size(-1) ** 0.5)
    row = torch.arange(L).unsqueeze(1)
    col = torch.arange(S).unsqueeze(0)
    logits = logits.masked_fill(col < row, float('-inf'))
    return F.softmax(logits, dim=-1)

attention = get_weights

# === fifth_heads_listed
# target: multi_head
# right: list of head modules, outputs concatenated
import torch
import torch.nn as nn
import torch.nn.functional as F

class Head(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.key = nn.Linear(dim, size, bias=False)
        self.query = nn.Linear(dim, size, bias=False)
        self.value = nn.Linear(dim, size, bias=False)

    def forward(self, x, mask):
        w = self.query(x) @ self.key(x).mT / self.key.out_features ** 0.5
        w = F.softmax(w.masked_fill(mask, float('-inf')), dim=-1)
        return w @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(dim, dim // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        t = x.shape[-2]
        mask = ~torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        out = torch.cat([h(x, mask) for h in self.heads], dim=-1)
        return self.drop(self.proj(out))

attention = MultiHeadAttention(30, 5)

# === fifth_mean_loop
# target: running_mean
# right: loop over time, unbatched or batched
import torch

def running_average(x):
    # x: (B, T, C)
    B, T, C = x.shape
    xbow = torch.zeros((B, T, C))
    for b in range(B):
        for t in range(T):
            xprev = x[b, :t+1]
            xbow[b, t] = torch.mean(xprev, 0)
    return xbow

attention = running_average

# === fifth_head_masked_late
# target: single_head
# wrong: the mask is multiplied in after the softmax and the rows are not normalised again
# words: after the softmax
import torch
from torch import nn

class OneHead(nn.Module):
    def __init__(self, c, h):
        super().__init__()
        self.Wq = nn.Parameter(torch.empty(c, h))
        self.Wk = nn.Parameter(torch.empty(c, h))
        self.Wv = nn.Parameter(torch.empty(c, h))
        self.Wo = nn.Parameter(torch.empty(h, c))
        for p in self.parameters():
            nn.init.xavier_uniform_(p)

    def forward(self, x):
        q = x @ self.Wq
        k = x @ self.Wk
        v = x @ self.Wv
        a = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        a = a * torch.ones_like(a).tril()
        return a @ v @ self.Wo

attention = OneHead(18, 9)

# === fifth_grouped_repeat_kv
# target: grouped_query
# right: llama-like repeat_kv
import math
import torch
from torch import nn
import torch.nn.functional as F

def repeat_kv(x: torch.Tensor, n_rep: int) -> torch.Tensor:
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )

class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
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
        keys = repeat_kv(xk, self.n_heads // self.n_kv_heads).transpose(1, 2)
        values = repeat_kv(xv, self.n_heads // self.n_kv_heads).transpose(1, 2)
        xq = xq.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = torch.full((seqlen, seqlen), float("-inf")).triu(1)
        scores = F.softmax((scores + mask).float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values).transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)

attention = Attention(48, 6, 2)

# === fifth_weights_always_dropped
# target: attention_weights
# wrong: functional dropout is applied to the weights always, also in evaluation
# words: dropout
import torch
import torch.nn as nn
import torch.nn.functional as F

class Weights(nn.Module):
    def __init__(self, n_embd, head_size, block_size=64, dropout=0.2):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.p = dropout

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        return F.dropout(wei, self.p)

attention = Weights(32, 16)

# === fifth_head_joined_vkq
# target: single_head
# right: a joined layer in the order v, k, q with F.scaled_dot_product_attention
import torch
from torch import nn
import torch.nn.functional as F

class EinKopf(nn.Module):
    def __init__(self, breite, kopf):
        super().__init__()
        self.vkq = nn.Linear(breite, 3 * kopf)
        self.aus = nn.Linear(kopf, breite)
        self.rest = nn.Identity()

    def forward(self, eingabe):
        v, k, q = self.vkq(eingabe).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.rest(self.aus(y))

attention = EinKopf(20, 10)

# === fifth_flash_or_manual
# target: multi_head
# right: nanoGPT-like, flash or manual
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

class CausalSelfAttention(nn.Module):

    def __init__(self, n_embd, n_head, block_size=64, dropout=0.0, bias=True):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head = n_head
        self.n_embd = n_embd
        self.flash = False
        if not self.flash:
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size))
                                        .view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            att = F.softmax(att, dim=-1)
            att = self.attn_dropout(att)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))

attention = CausalSelfAttention(48, 6)

# === fifth_weights_bilinear
# target: attention_weights
# right: weights with the bilinear form x A x^T, one raw matrix for query and key together
import torch
from torch import nn

class Bilinear(nn.Module):
    """ p(j | i) from one matrix A = Wq Wk^T """
    def __init__(self, n_embd, d_head):
        super().__init__()
        self.A = nn.Parameter(torch.randn(n_embd, n_embd) / n_embd)
        self.d_head = d_head

    def forward(self, x):
        T = x.size(1)
        logits = torch.einsum('bic,cd,bjd->bij', x, self.A, x)
        logits = logits / self.d_head ** .5
        keep = torch.arange(T).view(1, -1) <= torch.arange(T).view(-1, 1)
        logits = logits.masked_fill(~keep, -torch.inf)
        return (logits - logits.logsumexp(-1, keepdim=True)).exp()

attention = Bilinear(16, 8)

# === fifth_head_keys_for_values
# target: single_head
# wrong: the weights are multiplied with the keys instead of with the values
# words: keys
import torch
import torch.nn as nn
import torch.nn.functional as F

class SelfAttention(nn.Module):
    def __init__(self, embed_dim, head_dim):
        super().__init__()
        self.to_q = nn.Linear(embed_dim, head_dim, bias=False)
        self.to_k = nn.Linear(embed_dim, head_dim, bias=False)
        self.to_v = nn.Linear(embed_dim, head_dim, bias=False)
        self.to_out = nn.Linear(head_dim, embed_dim)
        self.scale = head_dim ** -0.5

    def forward(self, x):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        sim = torch.einsum('b i d, b j d -> b i j', q, k) * self.scale
        i, j = sim.shape[-2:]
        causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = torch.einsum('b i j, b j d -> b i d', attn, k)
        return self.to_out(out)

attention = SelfAttention(32, 16)

# === fifth_grouped_scale_of_width
# target: grouped_query
# wrong: the scale is the root of the model width, not of the head size
# words: sqrt(D)
import torch
from torch import nn

class G(nn.Module):
    def __init__(s, D, H, K):
        super().__init__()
        s.D, s.H, s.K, s.E = D, H, K, D // H
        s.q = nn.Parameter(torch.randn(D, H, s.E) * D**-.5)
        s.k = nn.Parameter(torch.randn(D, K, s.E) * D**-.5)
        s.v = nn.Parameter(torch.randn(D, K, s.E) * D**-.5)
        s.o = nn.Parameter(torch.randn(H, s.E, D) * D**-.5)

    def forward(s, x):
        B, T, D = x.shape
        q = torch.einsum('btd,dhe->bhte', x, s.q)
        k = torch.einsum('btd,dhe->bhte', x, s.k).repeat_interleave(s.H // s.K, 1)
        v = torch.einsum('btd,dhe->bhte', x, s.v).repeat_interleave(s.H // s.K, 1)
        a = torch.einsum('bhie,bhje->bhij', q, k) * D ** -0.5
        a = a.masked_fill(torch.ones(T, T).tril() == 0, -float('inf'))
        a = a.softmax(-1)
        return torch.einsum('bhij,bhje,hed->bid', a, v, s.o)

attention = G(32, 4, 2)

# === fifth_grouped_five_axes
# target: grouped_query
# right: no repeat: five-dimensional einsum, one joined layer with queries first
import torch
import torch.nn as nn

class GQA(nn.Module):
    def __init__(self, d_model, G, R):
        # G groups of keys, R queries in each
        super().__init__()
        self.G, self.R = G, R
        self.d = d_model // (G * R)
        self.inp = nn.Linear(d_model, self.d * G * (R + 2))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.inp(x).split([self.d*self.G*self.R, self.d*self.G, self.d*self.G], -1)
        q = q.reshape(b, t, self.G, self.R, self.d)
        k = k.reshape(b, t, self.G, self.d)
        v = v.reshape(b, t, self.G, self.d)
        s = torch.einsum('bigrd,bjgd->bgrij', q * self.d**-0.5, k)
        i = torch.arange(t, device=x.device)
        s = torch.where(i[:, None] >= i, s, -torch.inf)
        y = torch.einsum('bgrij,bjgd->bigrd', s.softmax(-1), v)
        return self.out(y.flatten(2))

attention = GQA(48, 3, 2)

# === fifth_weights_corner
# target: attention_weights
# wrong: a mask (T, S) of torch.tril: aligned to the upper left corner where there are fewer queries than keys
# words: upper left corner
import torch
import torch.nn.functional as F

@torch.no_grad()
def attn_map(q, k):
    wei = q @ k.transpose(-2, -1) * q.shape[-1]**-0.5
    tril = torch.tril(torch.ones(q.shape[-2], k.shape[-2]))
    wei = wei.masked_fill(tril == 0, float('-inf'))
    return F.softmax(wei, dim=-1)

attention = attn_map

# === fifth_split_by_view
# target: multi_head
# wrong: the split into heads views (B, T, C) straight as (B, h, T, dh), mixing positions into heads
# words: split
import torch
import torch.nn as nn

class MultiKopf(nn.Module):
    def __init__(self, dim, koepfe):
        super().__init__()
        self.k = koepfe
        self.d = dim // koepfe
        self.frage = nn.Linear(dim, dim)
        self.schluessel = nn.Linear(dim, dim)
        self.wert = nn.Linear(dim, dim)
        self.ausgang = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q = self.frage(x).view(b, self.k, t, self.d)
        k = self.schluessel(x).view(b, self.k, t, self.d)
        v = self.wert(x).view(b, self.k, t, self.d)
        a = q @ k.transpose(2, 3) / self.d ** 0.5
        maske = torch.tril(torch.ones(t, t, device=x.device)).bool()
        a = torch.where(maske, a, float('-inf')).softmax(dim=-1)
        y = (a @ v).transpose(1, 2).reshape(b, t, c)
        return self.ausgang(y)

attention = MultiKopf(32, 4)

# === fifth_grouped_two_orders
# target: grouped_query
# wrong: keys use repeat_interleave and values use repeat, so a query head reads values of another key head
# words: tiled
import torch
import torch.nn as nn
import torch.nn.functional as F

class GroupedQueryAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads, num_kv_groups):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.num_kv_groups = num_kv_groups
        self.group_size = num_heads // num_kv_groups
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, num_kv_groups * self.head_dim, bias=False)
        self.W_value = nn.Linear(d_in, num_kv_groups * self.head_dim, bias=False)
        self.out_proj = nn.Linear(d_out, d_out, bias=False)

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        keys = self.W_key(x).view(b, num_tokens, self.num_kv_groups, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_kv_groups, self.head_dim).transpose(1, 2)
        keys = keys.repeat_interleave(self.group_size, dim=1)
        values = values.repeat(1, self.group_size, 1, 1)
        attn_scores = queries @ keys.transpose(2, 3)
        mask = torch.triu(torch.ones(num_tokens, num_tokens, device=x.device), diagonal=1).bool()
        attn_scores = attn_scores.masked_fill(mask, -torch.inf)
        attn_weights = torch.softmax(attn_scores / self.head_dim**0.5, dim=-1)
        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.reshape(b, num_tokens, -1)
        return self.out_proj(context_vec)

attention = GroupedQueryAttention(48, 48, 6, 3)

# === fifth_one_head_listed
# target: multi_head
# wrong: the list of heads repeats one and the same module, so all heads share their weights
# words: same matrix
import torch
import torch.nn as nn
from torch.nn import functional as F

class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k, q, v = self.key(x), self.query(x), self.value(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        return F.softmax(wei, dim=-1) @ v

class MultiHeadAttention(nn.Module):
    def __init__(self, n_embd, num_heads, block_size=32):
        super().__init__()
        head_size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, head_size, block_size)] * num_heads)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.proj(out)

attention = MultiHeadAttention(48, 6)

# === fifth_weights_scaled_query
# target: attention_weights
# right: module with query and key layers, scale folded into the query, softmax in float32
import torch
import torch.nn as nn

class AttentionScores(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xq = xq * self.head_dim ** -0.5
        scores = torch.matmul(xq.transpose(1, 2), xk.permute(0, 2, 3, 1))
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
        mask = torch.triu(mask, diagonal=1)
        return torch.softmax((scores + mask).float(), dim=-1).type_as(x)

attention = AttentionScores(32, 4)

# === fifth_head_lecture
# target: single_head
# right: lecture style head with output projection
import torch
import torch.nn as nn
from torch.nn import functional as F

n_embd = 32
block_size = 16
dropout = 0.1

class Head(nn.Module):
    """ one head of self-attention """

    def __init__(self, head_size):
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
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return self.proj(wei @ v)

attention = Head(16)

# === fifth_mean_divided_by_T
# target: running_mean
# wrong: the cumulative sum is divided by T instead of by the number of positions so far
# words: by T
import torch as th

def media_movil(entrada):
    lote, largo, canales = entrada.shape
    suma = th.cumsum(entrada, dim=1)
    cuenta = th.full((largo, 1), largo, dtype=entrada.dtype)
    return suma / cuenta

attention = media_movil

# === fifth_head_dict
# target: single_head
# right: a dict of raw (in, out) weights and a function on (T, C)
import torch

D, H = 24, 12
g = torch.Generator().manual_seed(3)
P = {
    "Wq": torch.randn(D, H, generator=g) / D**0.5,
    "Wk": torch.randn(D, H, generator=g) / D**0.5,
    "Wv": torch.randn(D, H, generator=g) / D**0.5,
    "Wo": torch.randn(H, D, generator=g) / H**0.5,
}

def attn(x, params=P):
    q, k, v = (x @ params[n] for n in ("Wq", "Wk", "Wv"))
    s = q @ k.T / H**0.5
    s = s + torch.triu(torch.ones_like(s) * float("-inf"), 1)
    return torch.softmax(s, -1) @ v @ params["Wo"]

attention = attn

# === fifth_mean_of_columns
# target: running_mean
# wrong: the lower triangular matrix is normalised over its columns (dim 0) instead of its rows
# words: columns
import torch

def bag_of_words(x):
    B, T, C = x.shape
    wei = torch.tril(torch.ones(T, T))
    wei = wei / wei.sum(0, keepdim=True)
    return wei @ x  # (T, T) @ (B, T, C) -> (B, T, C)

attention = bag_of_words

# === fifth_attend_online
# target: attend
# right: key blocks with an online softmax
import torch

BLOCK = 4

def flash(Q, K, V):
    # Q, K, V: (..., N, d)
    N, d = Q.shape[-2:]
    scale = d ** -0.5
    O = torch.zeros_like(V)
    m = torch.full(Q.shape[:-1] + (1,), float("-inf"))
    l = torch.zeros(Q.shape[:-1] + (1,))
    rows = torch.arange(N)[:, None]
    for start in range(0, N, BLOCK):
        stop = min(start + BLOCK, N)
        S = (Q * scale) @ K[..., start:stop, :].transpose(-1, -2)
        cols = torch.arange(start, stop)[None, :]
        S = torch.where(cols <= rows, S, torch.tensor(float("-inf")))
        m_new = torch.maximum(m, S.amax(-1, keepdim=True))
        alpha = torch.exp(m - m_new)
        P = torch.exp(S - m_new)
        l = alpha * l + P.sum(-1, keepdim=True)
        O = alpha * O + P @ V[..., start:stop, :]
        m = m_new
    return O / l

attention = flash

# === fifth_mean_softmax
# target: running_mean
# right: softmax of an additive -inf mask
import torch
from torch.nn import functional as F

torch.manual_seed(1337)

def version3(x):
    T = x.size(-2)
    wei = torch.full((T, T), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
    wei = F.softmax(wei, dim=-1)
    return torch.einsum("ts,bsc->btc", wei, x)

attention = version3

# === fifth_grouped_one_key_head
# target: grouped_query
# right: multi-query, one key head broadcast, F.scaled_dot_product_attention with an explicit boolean mask
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

class MultiQuery(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.kv = nn.Linear(hidden, 2 * (hidden // heads), bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)

    def forward(self, h):
        B, T, D = h.shape
        q = self.q(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(h)[:, None].chunk(2, -1)
        k = k.expand(-1, self.heads, -1, -1)
        v = v.expand(-1, self.heads, -1, -1)
        allow = torch.ones(T, T, dtype=torch.bool, device=h.device).tril()
        y = sdpa(q, k, v, attn_mask=allow)
        return self.o(y.transpose(1, 2).flatten(2))

attention = MultiQuery(32, 4)

# === fifth_grouped_no_mask
# target: grouped_query
# wrong: no causal mask at all: is_causal is not passed
# words: no causal mask
import torch
import torch.nn.functional as F
from torch import nn

class Atencion(nn.Module):
    def __init__(self, dim, n_q, n_kv):
        super().__init__()
        self.n_q, self.n_kv, self.dh = n_q, n_kv, dim // n_q
        self.proy_q = nn.Linear(dim, n_q * self.dh)
        self.proy_k = nn.Linear(dim, n_kv * self.dh)
        self.proy_v = nn.Linear(dim, n_kv * self.dh)
        self.proy_o = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q = self.proy_q(x).view(B, T, self.n_q, self.dh).transpose(1, 2)
        k = self.proy_k(x).view(B, T, self.n_kv, self.dh).transpose(1, 2)
        v = self.proy_v(x).view(B, T, self.n_kv, self.dh).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, enable_gqa=True)
        return self.proy_o(y.transpose(1, 2).reshape(B, T, C))

attention = Atencion(32, 4, 2)

# === fifth_dot_masked_late
# target: dot_product
# wrong: masked after exp, and the row's maximum may be a hidden one: all of the past becomes 0, and 0/0, where scores are large
# words: 0/0
import torch

def self_attend(x):
    n, d = x.shape
    s = x @ x.t() * d ** -0.5
    s = s - s.max(dim=1, keepdim=True).values
    e = s.exp().tril()
    return (e / e.sum(1, keepdim=True)) @ x

attention = self_attend

# === fifth_joined_by_view
# target: multi_head
# wrong: the heads are merged by view without the transpose back
# words: joined
import torch
from torch import nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x).reshape(B, T, 3, self.n_heads, C // self.n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.reshape(B, T, C)
        return self.out(y)

attention = Attention(40, 5)

# === fifth_grouped_tiled
# target: grouped_query
# right: query head i uses key head i % n_kv (interleaved groups), in a loop over heads on (T, C)
import torch
import torch.nn as nn

class ConfigA:
    hidden_size = 24
    num_attention_heads = 6
    num_key_value_heads = 3

class LoopGQA(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        d = config.hidden_size
        self.hd = d // config.num_attention_heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, self.hd * config.num_key_value_heads, bias=False)
        self.v_proj = nn.Linear(d, self.hd * config.num_key_value_heads, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(self, hidden_states):
        qs = self.q_proj(hidden_states).split(self.hd, dim=-1)
        ks = self.k_proj(hidden_states).split(self.hd, dim=-1)
        vs = self.v_proj(hidden_states).split(self.hd, dim=-1)
        T = hidden_states.shape[-2]
        outs = []
        for i, q in enumerate(qs):
            k = ks[i % len(ks)]
            v = vs[i % len(vs)]
            s = q @ k.transpose(-1, -2) / self.hd ** 0.5
            s = s.masked_fill(torch.ones(T, T).triu(1) == 1, -1e30)
            outs.append(s.softmax(-1) @ v)
        return self.o_proj(torch.cat(outs, -1))

attention = LoopGQA(ConfigA())

# === fifth_mean_module
# target: running_mean
# right: cumulative sum divided by the counts, as a module without parameters
import torch
from torch import nn

class CausalMean(nn.Module):
    def __init__(self, dim=1):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        total = x.cumsum(self.dim)
        n = torch.ones_like(x).cumsum(self.dim)
        return total / n

attention = CausalMean()
