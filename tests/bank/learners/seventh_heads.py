"""A seventh lot of learners' programs: means, weights, dot products, one head, many heads, grouped queries."""

# === seventh_multi_head_drops
# target: multi_head
# wrong: F.dropout is called without training=self.training, so attention dropout stays on in eval mode
# words: dropout is active
import torch
import torch.nn as nn
import torch.nn.functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size=128, attn_pdrop=0.1):
        super().__init__()
        self.key = nn.Linear(n_embd, n_embd)
        self.query = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.attn_pdrop = attn_pdrop
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))
        self.n_head = n_head

    def forward(self, x, layer_past=None):
        B, T, C = x.size()
        k = self.key(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = self.query(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float('-inf'))
        att = F.softmax(att, dim=-1)
        att = F.dropout(att, self.attn_pdrop)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)

if __name__ == "__main__":
    net = CausalSelfAttention(48, 6).eval()
    x = torch.randn(1, 5, 48)
    print(net(x)[0, -1, :4])

# === seventh_multi_head_list
# target: multi_head
# right: Karpathy's list of heads (ModuleList), concatenation, projection with bias, dropout, causal
import torch
import torch.nn as nn
from torch.nn import functional as F

block_size = 64
dropout = 0.1

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
    """ multiple heads of self-attention in parallel """
    def __init__(self, n_embd, num_heads):
        super().__init__()
        head_size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))

attention = MultiHeadAttention(48, 6)

# === seventh_head_script
# target: single_head
# right: script with tensors at module level, causal head without class or function
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
B, T, C = 4, 8, 32
head_size = 16
x = torch.randn(B, T, C)

key = nn.Linear(C, head_size, bias=False)
query = nn.Linear(C, head_size, bias=False)
value = nn.Linear(C, head_size, bias=False)

k = key(x)
q = query(x)
wei = q @ k.transpose(-2, -1) * head_size ** -0.5   # (B, T, T)

tril = torch.tril(torch.ones(T, T))
wei = wei.masked_fill(tril == 0, float('-inf'))
wei = F.softmax(wei, dim=-1)

v = value(x)
out = wei @ v
print(out.shape)

# === seventh_mean_german
# target: running_mean
# right: cumsum divided by counts, layout (T,B,C) time first, German names
import torch

def laufender_mittelwert(eingabe):
    # eingabe: (Zeit, Batch, Merkmale)
    zeit = eingabe.shape[0]
    summe = torch.cumsum(eingabe, dim=0)
    anzahl = torch.arange(1, zeit + 1, dtype=eingabe.dtype).view(-1, 1, 1)
    return summe / anzahl

# === seventh_head_strict
# target: single_head
# wrong: triu with diagonal 0 hides the present position too, so each token sees only the strict past
# words: cannot see itself
import torch
import torch.nn as nn

class SelfAttention(nn.Module):
    def __init__(self, emb_dim, head_dim, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(emb_dim, head_dim, bias=qkv_bias)
        self.W_key = nn.Linear(emb_dim, head_dim, bias=qkv_bias)
        self.W_value = nn.Linear(emb_dim, head_dim, bias=qkv_bias)

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        attn_scores = queries @ keys.transpose(1, 2)
        mask = torch.triu(torch.ones(num_tokens, num_tokens, device=x.device), diagonal=0)
        attn_scores = attn_scores.masked_fill(mask.bool(), -1e9)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return attn_weights @ values

attention = SelfAttention(48, 12)

# === seventh_mean_matrix
# target: running_mean
# right: lower-triangular averaging matrix, causal mean over positions 0..t, layout (B,T,C)
import torch

def bow(x):
    """bag of words: every position is the mean of itself and everything before it"""
    B, T, C = x.shape
    wei = torch.tril(torch.ones(T, T, device=x.device, dtype=x.dtype))
    wei = wei / wei.sum(1, keepdim=True)
    xbow = wei @ x   # (T,T) @ (B,T,C) -> (B,T,C)
    return xbow

if __name__ == "__main__":
    torch.manual_seed(1337)
    x = torch.randn(4, 8, 2)
    print(bow(x)[0])

# === seventh_head_values_from_keys
# target: single_head
# wrong: the values come from the key projection (copy-paste); the value layer is never used
# words: applied to the keys
import torch
import torch.nn as nn
import math

class Tete(nn.Module):
    """une tete d'attention causale"""
    def __init__(self, dim_entree, dim_tete):
        super().__init__()
        self.dim_tete = dim_tete
        self.vers_q = nn.Linear(dim_entree, dim_tete)
        self.vers_k = nn.Linear(dim_entree, dim_tete)
        self.vers_v = nn.Linear(dim_entree, dim_tete)

    def forward(self, x):
        q = self.vers_q(x)
        k = self.vers_k(x)
        v = self.vers_k(x)
        s = torch.einsum('btd,bsd->bts', q, k) / math.sqrt(self.dim_tete)
        t = x.shape[1]
        futur = torch.arange(t)[None, :] > torch.arange(t)[:, None]
        s = s.masked_fill(futur, float('-inf'))
        return torch.einsum('bts,bsd->btd', s.softmax(-1), v)

attention = Tete(48, 8)

# === seventh_multi_head_nanogpt
# target: multi_head
# right: nanoGPT CausalSelfAttention with config dataclass, fused c_attn, flash path or manual path
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
    dropout: float = 0.0
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
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            att = F.softmax(att, dim=-1)
            att = self.attn_dropout(att)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        return y

attention = CausalSelfAttention(GPTConfig())

# === seventh_mean_softmax
# target: running_mean
# right: softmax of zeros under a causal mask (uniform attention), (B,T,C)
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalAverage(nn.Module):
    """version 3 of the lecture: softmax over a row of zeros and -inf"""

    def __init__(self, block_size):
        super().__init__()
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T = x.size(-2)
        wei = torch.zeros((T, T), device=x.device)
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return wei @ x


attention = CausalAverage(64)

# === seventh_multi_query
# target: grouped_query
# right: multi-query: one k and one v head broadcast over all query heads, fused kv projection, causal
import torch
from torch import nn

class MultiQueryAttention(nn.Module):
    """Shazeer 2019, one write-head is all you need"""
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * self.d_head)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).unflatten(-1, (self.n_heads, self.d_head))
        k, v = self.kv(x).split(self.d_head, dim=-1)
        att = torch.einsum("bthd,bsd->bhts", q, k) / self.d_head ** 0.5
        att = att + torch.full((t, t), float("-inf"), device=x.device).triu(1)
        y = torch.einsum("bhts,bsd->bthd", att.softmax(dim=-1), v)
        return self.out(y.flatten(-2))

attention = MultiQueryAttention(48, 6)

# === seventh_attend_vmap
# target: attend
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

# === seventh_weights_mask_late
# target: attention_weights
# wrong: the causal mask multiplies the probabilities after the softmax and they are not renormalised, so rows do not sum to one
# words: after the softmax
import torch

def get_attn(query, key):
    dim = query.shape[-1]
    dots = torch.einsum('... i d, ... j d -> ... i j', query, key) * (dim ** -0.5)
    i, j = dots.shape[-2:]
    causal_mask = torch.ones(i, j, device=query.device).tril(j - i)
    attn = dots.softmax(dim=-1)
    attn = attn * causal_mask
    return attn

# === seventh_multi_head_viewed
# target: multi_head
# wrong: q, k, v are viewed directly as (B,H,T,D) without going through (B,T,H,D) and transposing, so heads mix different positions
# words: view(B, H, T, d)
import math
import torch
import torch.nn as nn

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h = n_heads
        self.d_k = d_model // n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        B, T, _ = x.shape
        return x.view(B, self.h, T, self.d_k)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.split_heads(self.wq(x)), self.split_heads(self.wk(x)), self.split_heads(self.wv(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.d_k)
        mask = torch.ones(T, T, device=x.device).tril()
        scores = scores.masked_fill(mask == 0, float("-inf"))
        ctx = torch.softmax(scores, -1) @ v
        ctx = ctx.transpose(1, 2).contiguous().view(B, T, C)
        return self.wo(ctx)

attention = MultiHeadSelfAttention(48, 6)

# === seventh_attend_polarity
# target: attend
# wrong: wrong mask polarity: a mask that is True for the future is given to F.scaled_dot_product_attention, where True means "may attend", so every query sees only later tokens
# words: inverted
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

def attn(q, k, v):
    """causal attention, (batch, heads, time, dim)"""
    T = q.shape[2]
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return sdpa(q, k, v, attn_mask=future)

# === seventh_grouped_scale
# target: grouped_query
# wrong: the scale uses d_model // num_kv_heads instead of the real head dimension
# words: D/G
import torch
import torch.nn as nn

class SharedKVAttention(nn.Module):
    def __init__(self, d_model=48, num_q_heads=6, num_kv_heads=2):
        super().__init__()
        self.hq, self.hkv = num_q_heads, num_kv_heads
        self.dh = d_model // num_q_heads
        self.scale = (d_model // num_kv_heads) ** -0.5
        self.Wq = nn.Linear(d_model, d_model, bias=False)
        self.Wkv = nn.Linear(d_model, 2 * num_kv_heads * self.dh, bias=False)
        self.Wo = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q = self.Wq(x).view(B, T, self.hkv, self.hq // self.hkv, self.dh).permute(0, 2, 3, 1, 4)
        k, v = self.Wkv(x).view(B, T, 2, self.hkv, 1, self.dh).permute(2, 0, 3, 4, 1, 5)
        att = (q @ k.transpose(-1, -2)) * self.scale
        keep = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))
        att = att.masked_fill(~keep, float('-inf')).softmax(dim=-1)
        y = (att @ v).permute(0, 3, 1, 2, 4).reshape(B, T, C)
        return self.Wo(y)

attention = SharedKVAttention(48, 6, 2)

# === seventh_multi_head_bert
# target: multi_head
# right: BERT/HF style: bidirectional, attention_mask (B,T) with 1 = real token turned into an additive mask, French names
import math
import torch
from torch import nn

class AutoAttention(nn.Module):
    """Attention bidirectionnelle facon BERT (avec projection de sortie)."""
    def __init__(self, config):
        super().__init__()
        self.nb_tetes = config["nb_tetes"]
        self.dim_tete = config["dim"] // config["nb_tetes"]
        self.requete = nn.Linear(config["dim"], config["dim"])
        self.cle = nn.Linear(config["dim"], config["dim"])
        self.valeur = nn.Linear(config["dim"], config["dim"])
        self.sortie = nn.Linear(config["dim"], config["dim"])
        self.dropout = nn.Dropout(config.get("dropout", 0.1))

    def separer(self, x):
        return x.view(*x.shape[:-1], self.nb_tetes, self.dim_tete).permute(0, 2, 1, 3)

    def forward(self, etats, masque_attention=None):
        q, k, v = self.separer(self.requete(etats)), self.separer(self.cle(etats)), self.separer(self.valeur(etats))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.dim_tete)
        if masque_attention is not None:
            scores = scores + (1.0 - masque_attention[:, None, None, :].to(scores.dtype)) * -10000.0
        probas = self.dropout(nn.functional.softmax(scores, dim=-1))
        contexte = torch.matmul(probas, v).permute(0, 2, 1, 3).contiguous()
        return self.sortie(contexte.view(*contexte.shape[:-2], -1))

if __name__ == "__main__":
    couche = AutoAttention({"dim": 48, "nb_tetes": 6}).eval()
    print(couche(torch.randn(2, 5, 48), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])).shape)

# === seventh_head_matrices
# target: single_head
# right: raw nn.Parameter matrices used as x @ W, one sequence (T,C) without batch, causal additive mask, float32 softmax
import torch
import torch.nn as nn

class Kopf(nn.Module):
    def __init__(self, d_ein, d_kopf):
        super().__init__()
        self.W_q = nn.Parameter(torch.randn(d_ein, d_kopf) / d_ein ** 0.5)
        self.W_k = nn.Parameter(torch.randn(d_ein, d_kopf) / d_ein ** 0.5)
        self.W_v = nn.Parameter(torch.randn(d_ein, d_kopf) / d_ein ** 0.5)

    def forward(self, folge):
        # folge: (T, d_ein)
        q, k, v = folge @ self.W_q, folge @ self.W_k, folge @ self.W_v
        punkte = q @ k.mT / q.shape[-1] ** 0.5
        T = folge.shape[-2]
        maske = torch.triu(torch.full((T, T), float("-inf")), diagonal=1)
        gewichte = torch.softmax((punkte + maske).float(), dim=-1).type_as(q)
        return gewichte @ v

attention = Kopf(48, 16)

# === seventh_multi_head_detached
# target: multi_head
# wrong: the attention weights are detached before being used, so no gradient reaches the query and key weights (the forward numbers are right)
# words: no gradient
import torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.attention_weights = None

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)
        X = X.permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, X):
        queries = self.transpose_qkv(self.W_q(X))
        keys = self.transpose_qkv(self.W_k(X))
        values = self.transpose_qkv(self.W_v(X))
        scores = torch.bmm(queries, keys.transpose(1, 2)) / queries.shape[-1] ** 0.5
        steps = torch.arange(X.shape[1])
        scores[:, steps[:, None] < steps[None, :]] = -1e6
        # keep them for the heat maps
        self.attention_weights = nn.functional.softmax(scores, dim=-1).detach()
        output = torch.bmm(self.attention_weights, values)
        return self.W_o(self.transpose_output(output))

if __name__ == "__main__":
    mha = MultiHeadAttention(48, 6)
    mha(torch.randn(2, 5, 48)).sum().backward()

# === seventh_multi_head_joined
# target: multi_head
# wrong: the head outputs (B,H,T,D) are reshaped to (B,T,C) without transposing back first, which mixes positions and heads
# words: joined without transpose
import torch
import torch.nn as nn
import torch.nn.functional as F

class MHA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = map(lambda t: t.reshape(b, n, self.heads, -1).transpose(1, 2), qkv)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.reshape(b, n, d)
        return self.to_out(out)

attention = MHA(48, 6)

# === seventh_attend_blockwise
# target: attend
# right: blockwise causal attention with online softmax, (B,H,T,D)
import math
import torch

def tiled_attention(Q, K, V, block=4):
    *lead, N, d = Q.shape
    O = torch.zeros_like(V)
    scale = 1 / math.sqrt(d)
    for i0 in range(0, N, block):
        i1 = min(i0 + block, N)
        Qi = Q[..., i0:i1, :] * scale
        acc = torch.zeros(*lead, i1 - i0, V.shape[-1])
        l = torch.zeros(*lead, i1 - i0, 1)
        m = torch.full((*lead, i1 - i0, 1), float('-inf'))
        rows = torch.arange(i0, i1)[:, None]
        for j0 in range(0, i1, block):
            j1 = min(j0 + block, N)
            S = Qi @ K[..., j0:j1, :].transpose(-1, -2)
            cols = torch.arange(j0, j1)[None, :]
            S = S.masked_fill(cols > rows, float('-inf'))
            m_new = torch.maximum(m, S.amax(-1, keepdim=True))
            P = torch.exp(S - m_new)
            alpha = torch.exp(m - m_new)
            l = alpha * l + P.sum(-1, keepdim=True)
            acc = alpha * acc + P @ V[..., j0:j1, :]
            m = m_new
        O[..., i0:i1, :] = acc / l
    return O

if __name__ == "__main__":
    q, k, v = torch.randn(3, 1, 2, 10, 8)
    ref = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    print((tiled_attention(q, k, v) - ref).abs().max())

# === seventh_mean_strict
# target: running_mean
# wrong: the slice stops before the current position, so position t is averaged over 0..t-1 without itself
# words: itself
import torch

def running_mean(x):
    # x is (B, T, C); out[b, t] is the mean of all tokens up to t, t included
    B, T, C = x.shape
    out = torch.zeros((B, T, C))
    for b in range(B):
        for t in range(T):
            prev = x[b, :max(t, 1)]
            out[b, t] = torch.mean(prev, 0)
    return out

if __name__ == "__main__":
    print(running_mean(torch.arange(10.).view(1, 5, 2)))

# === seventh_head_scale
# target: single_head
# wrong: scores are scaled by the embedding width C instead of the head size
# words: sqrt(D)
import torch
import torch.nn as nn
import torch.nn.functional as F

class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size=64):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        # compute attention scores ("affinities")
        wei = q @ k.transpose(-2, -1) * C**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)

if __name__ == "__main__":
    h = Head(32, 8)
    print(h(torch.randn(2, 10, 32)).shape)

# === seventh_grouped_tiled
# target: grouped_query
# convention: key heads are tiled (0,1,0,1,...) instead of repeated: the same up to the order of the query heads
import torch
import torch.nn as nn
import torch.nn.functional as F

class GroupedQueryAttention(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads=2):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.group_size = num_heads // num_kv_heads
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        # query heads g*group_size ... (g+1)*group_size-1 share kv head g
        k, v = (z.repeat(1, self.group_size, 1, 1) for z in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).contiguous().view(b, t, -1)
        return self.o_proj(out)

attention = GroupedQueryAttention(48, 6)

# === seventh_grouped_llama
# target: grouped_query
# right: LLaMA style repeat_kv (each kv head serves consecutive query heads), causal, no rotary, no bias
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )

class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
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
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = torch.triu(torch.full((seqlen, seqlen), float("-inf"), device=x.device), diagonal=1)
        scores = F.softmax((scores + mask).float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))

attention = Attention(48, 6)

# === seventh_multi_head_inverted
# target: multi_head
# wrong: inverted mask: the allowed (lower triangular) scores are filled with -1e9, so only the future is attended
# words: inverted
import torch
import torch.nn as nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super(MultiHeadAttention, self).__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x):
        bs, n, _ = x.size()
        split = lambda t: t.view(bs, n, self.num_heads, self.d_k).transpose(1, 2)
        Q, K, V = split(self.W_q(x)), split(self.W_k(x)), split(self.W_v(x))
        attn_scores = torch.matmul(Q, K.transpose(-2, -1)) / self.d_k ** 0.5
        nopeak_mask = torch.tril(torch.ones(1, n, n)).bool()
        attn_scores = attn_scores.masked_fill(nopeak_mask, -1e9)
        attn_probs = torch.softmax(attn_scores, dim=-1)
        out = torch.matmul(attn_probs, V).transpose(1, 2).contiguous().view(bs, n, self.d_model)
        return self.W_o(out)

attention = MultiHeadAttention(48, 6)

# === seventh_grouped_sdpa
# target: grouped_query
# right: SDPA with enable_gqa=True, causal, fused qkv with different widths
import torch
import torch.nn as nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, n_embd, n_head, n_query_groups):
        super().__init__()
        self.n_head, self.n_query_groups = n_head, n_query_groups
        self.head_size = n_embd // n_head
        self.qkv = nn.Linear(n_embd, (n_head + 2 * n_query_groups) * self.head_size, bias=False)
        self.proj = nn.Linear(n_head * self.head_size, n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.size()
        hs = self.head_size
        q, k, v = self.qkv(x).split((self.n_head * hs, self.n_query_groups * hs, self.n_query_groups * hs), dim=-1)
        q = q.view(B, T, -1, hs).transpose(1, 2)
        k = k.view(B, T, -1, hs).transpose(1, 2)
        v = v.view(B, T, -1, hs).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, -1))

attention = GQA(48, 6, 3)

# === seventh_head_karpathy
# target: single_head
# right: Karpathy's Head with tril buffer, dropout, no bias, scale by head size, causal (B,T,C)->(B,T,hs)
import torch
import torch.nn as nn
from torch.nn import functional as F

block_size = 32
dropout = 0.2

class Head(nn.Module):
    """ one head of self-attention """

    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)   # (B,T,hs)
        q = self.query(x) # (B,T,hs)
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        out = wei @ v
        return out

attention = Head(48, 8)

# === seventh_grouped_einsum
# target: grouped_query
# right: function on q (B,T,H,D) and k, v (B,T,G,D); five-index einsum, consecutive query heads share a kv head, causal
import torch

def grouped_query_attention(q, k, v):
    B, T, H, D = q.shape
    G = k.shape[2]
    R = H // G
    q = q.reshape(B, T, G, R, D) * D ** -0.5
    sim = torch.einsum("btgrd,bsgd->bgrts", q, k)
    allowed = torch.arange(T)[:, None] >= torch.arange(T)[None]
    sim = sim.masked_fill(~allowed, float("-inf"))
    out = torch.einsum("bgrts,bsgd->btgrd", sim.softmax(-1), v)
    return out.reshape(B, T, H, D)

if __name__ == "__main__":
    q, k, v = torch.randn(2, 7, 6, 8), torch.randn(2, 7, 2, 8), torch.randn(2, 7, 2, 8)
    print(grouped_query_attention(q, k, v).shape)

# === seventh_attend_online
# target: attend
# wrong: online softmax: the output accumulator is not rescaled by exp(m_old - m_new) when the running maximum changes
# words: running maximum
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
            out = out + p @ vc
            run_max = new_max
        return out / run_sum

attention = OnlineSoftmaxAttention(4)

# === seventh_weights_by_hand
# target: attention_weights
# right: NumPy habit: softmax written by hand with max subtraction, causal, where(-1e9), (B,T,D)
import numpy as np
import torch

def softmax(z, axis=-1):
    z = z - z.max(axis, keepdim=True).values
    e = torch.exp(z)
    return e / e.sum(axis, keepdim=True)

def causal_weights(q, k):
    d_k = q.shape[-1]
    scores = torch.matmul(q, k.swapaxes(-1, -2)) / np.sqrt(d_k)
    n = q.shape[-2]
    keep = torch.from_numpy(np.tri(n, dtype=bool))
    scores = torch.where(keep, scores, torch.tensor(-1e9))
    return softmax(scores)

# === seventh_multi_head_flax
# target: multi_head
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

# === seventh_attend_scaled_twice
# target: attend
# wrong: scaled twice: q is multiplied by 1/sqrt(d) and F.scaled_dot_product_attention divides by sqrt(d) again
# words: twice
import torch
import torch.nn.functional as F

def causal_attention(q, k, v):
    # (B, nh, T, hs)
    q = q * (q.size(-1) ** -0.5)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)

if __name__ == '__main__':
    q = torch.randn(2, 4, 16, 32)
    print(causal_attention(q, q, q).shape)

# === seventh_multi_head_fairseq
# target: multi_head
# right: fairseq layout (T,B,C), heads folded into the batch with bmm, causal additive mask
import torch
from torch import nn

class MultiheadAttention(nn.Module):
    """Causal self-attention, input shape: Time x Batch x Channel"""

    def __init__(self, embed_dim, num_heads, bias=True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x):
        tgt_len, bsz, embed_dim = x.size()
        q = self.q_proj(x) * self.scaling
        k = self.k_proj(x)
        v = self.v_proj(x)
        q, k, v = (t.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1) for t in (q, k, v))
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        future = torch.triu(torch.zeros(tgt_len, tgt_len).fill_(float("-inf")), 1).to(x)
        attn_weights += future.unsqueeze(0)
        attn = torch.bmm(attn_weights.softmax(-1), v)
        attn = attn.transpose(0, 1).reshape(tgt_len, bsz, embed_dim)
        return self.out_proj(attn)

attention = MultiheadAttention(48, 6)

# === seventh_weights_over_queries
# target: attention_weights
# wrong: softmax runs over the query axis (dim=-2), so the columns and not the rows sum to one
# words: over the queries
import torch
import torch.nn.functional as F

def attention_weights(q, k):
    """(B, T, D), (B, T, D) -> (B, T, T), not causal"""
    scale = q.size(-1) ** 0.5
    scores = q @ k.transpose(-2, -1) / scale
    return F.softmax(scores, dim=-2)

if __name__ == "__main__":
    w = attention_weights(torch.randn(2, 5, 16), torch.randn(2, 5, 16))
    print(w.shape)

# === seventh_attend_annotated
# target: attend
# right: annotated-transformer form: mask 0 = hidden, returns (output, weights); no mask means full attention
import math
import torch

def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn

def subsequent_mask(size):
    "Mask out subsequent positions."
    attn_shape = (1, size, size)
    return torch.triu(torch.ones(attn_shape), diagonal=1).type(torch.uint8) == 0

def example():
    q = torch.randn(2, 4, 6, 8)
    out, p = attention(q, q, q, mask=subsequent_mask(6))
    print(out.shape, p[0, 0, 0])

if __name__ == "__main__":
    example()

# === seventh_mean_over_length
# target: running_mean
# wrong: the running sum is divided by the whole length T instead of the number of tokens seen so far
# words: T = 
import torch
from torch import nn

class CumulativeMean(nn.Module):
    def __init__(self, time_dim=1):
        super().__init__()
        self.time_dim = time_dim

    def forward(self, x):
        total = x.cumsum(dim=self.time_dim)
        n = x.shape[self.time_dim]
        counts = torch.full((n,), float(n), device=x.device)
        shape = [1] * x.dim()
        shape[self.time_dim] = n
        return total / counts.view(shape)

attention = CumulativeMean()

# === seventh_multi_head_torch
# target: multi_head
# right: wrapper around nn.MultiheadAttention (batch_first) with boolean mask, True = hidden, causal
import torch
import torch.nn as nn

class CausalMHA(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, max_len=256):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.ones(max_len, max_len), diagonal=1).bool())

    def forward(self, x):
        n = x.shape[1]
        out, _ = self.mha(x, x, x, attn_mask=self.mask[:n, :n], need_weights=False)
        return out

attention = CausalMHA(48, 6)

# === seventh_weights_float32
# target: attention_weights
# right: q and k as (B,T,H,D), result (B,H,T,S), causal, float32 softmax, additive mask
import math
import torch
import torch.nn as nn


class AttentionScores(nn.Module):
    def __init__(self, head_dim, is_causal=True):
        super().__init__()
        self.scale = 1.0 / math.sqrt(head_dim)
        self.is_causal = is_causal

    def forward(self, q, k):
        logits = torch.einsum("bqhd,bkhd->bhqk", q * self.scale, k)
        if self.is_causal:
            t, s = logits.shape[-2:]
            bias = torch.full((t, s), torch.finfo(torch.float32).min, device=q.device).triu(s - t + 1)
            logits = logits.float() + bias
        return logits.softmax(dim=-1, dtype=torch.float32).to(q.dtype)


attention = AttentionScores(8)

# === seventh_attend_flash
# target: attend
# wrong: is_causal=True of SDPA aligns the mask to the upper left corner where there are fewer queries than keys, flash-attn to the lower right
# words: upper left corner
import torch
import torch.nn.functional as F

def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=True):
    """drop-in for flash_attn.flash_attn_func on CPU. q, k, v: (batch, seqlen, nheads, headdim)"""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale)
    return o.transpose(1, 2).contiguous()

# === seventh_weights_by_length
# target: attention_weights
# wrong: the scores are divided by the root of the sequence length instead of the root of the head size
# words: sqrt(T)
import torch
import torch.nn as nn

class Pesos(nn.Module):
    # pesos de atencion causal, entradas (lote, tiempo, dim)
    def __init__(self, max_len=128):
        super().__init__()
        self.register_buffer('mascara', torch.ones(max_len, max_len).tril().bool())

    def forward(self, q, k):
        d_k = q.size(1)
        puntajes = torch.bmm(q, k.permute(0, 2, 1)) / d_k ** 0.5
        T = q.size(1)
        puntajes.masked_fill_(self.mascara[:T, :T].logical_not(), float('-inf'))
        return puntajes.softmax(-1)

attention = Pesos()

# === seventh_weights_french
# target: attention_weights
# right: one sequence without batch, no causal mask by default; optional mask with True = may attend
import torch

def poids_attention(requetes, cles, masque=None):
    """requetes (n, d), cles (m, d) -> poids (n, m); masque[i, j] vrai si i peut regarder j"""
    n, d = requetes.shape
    scores = requetes @ cles.T * d ** -0.5
    if masque is not None:
        scores = scores.masked_fill(~masque, -torch.inf)
    return torch.softmax(scores, dim=1)

if __name__ == "__main__":
    r, c = torch.randn(4, 8), torch.randn(6, 8)
    p = poids_attention(r, c)
    print(p.shape, p.sum(1))

# === seventh_head_encoder
# target: single_head
# right: bidirectional (encoder) head, packed qkv with bias, time first (T,B,C), square output
import torch
from torch import nn

class EncoderHead(nn.Module):
    """Bidirectional self-attention with one head. Input and output: (T, B, C), as in fairseq."""
    def __init__(self, d_model: int):
        super().__init__()
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.scaling = d_model ** -0.5

    def forward(self, x):
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.transpose(0, 1) * self.scaling
        k = k.permute(1, 2, 0)
        v = v.transpose(0, 1)
        probs = torch.softmax(torch.bmm(q, k), dim=2)
        return torch.bmm(probs, v).transpose(0, 1)

if __name__ == "__main__":
    head = EncoderHead(24)
    print(head(torch.randn(10, 2, 24)).shape)

# === seventh_grouped_values_tiled
# target: grouped_query
# wrong: keys are repeated with repeat_interleave but values with repeat, so weights and values of different kv heads are combined
# words: tiled
import torch
from torch import nn

class GQAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.nh, self.nkv = cfg['heads'], cfg['kv_heads']
        self.hd = cfg['dim'] // cfg['heads']
        self.q = nn.Linear(cfg['dim'], self.nh * self.hd)
        self.k = nn.Linear(cfg['dim'], self.nkv * self.hd)
        self.v = nn.Linear(cfg['dim'], self.nkv * self.hd)
        self.o = nn.Linear(self.nh * self.hd, cfg['dim'])

    def forward(self, x):
        B, T, _ = x.shape
        rep = self.nh // self.nkv
        q = self.q(x).reshape(B, T, self.nh, self.hd)
        k = self.k(x).reshape(B, T, self.nkv, self.hd).repeat_interleave(rep, dim=2)
        v = self.v(x).reshape(B, T, self.nkv, self.hd).repeat(1, 1, rep, 1)
        w = torch.einsum('bqhd,bkhd->bhqk', q, k) * self.hd ** -0.5
        w = w.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
        y = torch.einsum('bhqk,bkhd->bqhd', w, v)
        return self.o(y.reshape(B, T, -1))

if __name__ == '__main__':
    net = GQAttention(dict(dim=64, heads=8, kv_heads=2))
    print(net(torch.randn(2, 10, 64)).shape)
