# One head: layers, matrices, convolutions, a script, columns, loops, time first, masks of padding; the usual slips of a first attempt.
# target: single_head

# === three_layers_and_a_triangle
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

# === head_divides_by_root_of_width
# of: three_layers_and_a_triangle
# wrong: divides by sqrt(48), the width of the model, instead of sqrt(20), the width of the head
# words: width of the model|sqrt(D)|embedding|48
# seen: Graylab/DL4Proteins-notebooks#12
#-        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
#+        wei = q @ k.transpose(-2, -1) * C ** -0.5

# === head_divides_by_root_of_length
# of: three_layers_and_a_triangle
# wrong: the scores are divided by the root of the sequence length instead of the head size
# words: number of tokens
#-        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
#+        wei = q @ k.transpose(-2, -1) * k.shape[1] ** -0.5

# === head_not_scaled
# of: three_layers_and_a_triangle
# wrong: the scores are not divided by sqrt(d)
# words: not scaled
#-        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
#+        wei = q @ k.transpose(-2, -1)

# === head_zeros_after_softmax
# of: three_layers_and_a_triangle
# wrong: the mask is multiplied in after the softmax and the rows are not normalised again
# words: after the softmax
#-        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
#-        wei = F.softmax(wei, dim=-1)
#+        wei = F.softmax(wei, dim=-1) * self.tril[:T, :T]

# === head_sees_the_next_token
# of: three_layers_and_a_triangle
# wrong: tril(1): every token sees the next one too
# words: next token
#-        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
#+        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size), diagonal=1))

# === head_does_not_see_itself
# of: three_layers_and_a_triangle
# wrong: tril(-1): a token sees only the tokens before it
# words: cannot see itself
#-        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
#+        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size), diagonal=-1))
#-        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
#+        wei = wei.masked_fill(self.tril[:T, :T] == 0, -1e9)

# === triangle_cut_from_its_end
# of: three_layers_and_a_triangle
# wrong: the triangle is cut as [-T:, :T]: in a text shorter than block_size every token sees ahead
# words: no causal mask
#-        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
#+        wei = wei.masked_fill(self.tril[-T:, :T] == 0, float("-inf"))

# === head_queries_from_layer_of_keys
# of: three_layers_and_a_triangle
# wrong: the query is made by the key's layer; self.query is never used
# words: quer|key
#-        q = self.query(x)
#+        q = self.key(x)

# === head_values_from_layer_of_keys
# of: three_layers_and_a_triangle
# wrong: the values are made by the layer of the keys
# words: applied to the keys
#-        return self.proj(wei @ self.value(x))
#+        return self.proj(wei @ self.key(x))

# === head_weights_transposed
# of: three_layers_and_a_triangle
# wrong: the weights are transposed before they meet the values
# words: transpos|column|key|future
#-        return self.proj(wei @ self.value(x))
#+        return self.proj(wei.transpose(-2, -1) @ self.value(x))

# === lecture_head_without_projection
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

# === joined_layer_for_sdpa
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

# === sdpa_drops_always
# of: joined_layer_for_sdpa
# wrong: SDPA is given a dropout_p in evaluation too
# words: dropout|random|evaluation|eval
# seen: karpathy/nanoGPT#240
#-        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
#+        return self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True))

# === matrices_and_scores_filled_in_place
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

# === head_softmax_over_queries
# of: matrices_and_scores_filled_in_place
# wrong: softmax over the queries (dim=1) instead of the keys
# words: quer|column|dim|axis
# seen: labmlai/annotated_deep_learning_paper_implementations#146
#-        return torch.softmax(scores, 2) @ v @ self.W_o
#+        return torch.softmax(scores, 1) @ v @ self.W_o

# === bool_mask_is_added
# of: matrices_and_scores_filled_in_place
# wrong: a boolean mask is added to the scores: the future gets +1 and is seen
# words: add 1 to the scores
#-        scores[:, torch.triu(torch.ones(n, n), 1).bool()] = -math.inf
#+        scores = scores + torch.triu(torch.ones(n, n), 1).bool()

# === loops_as_with_numpy
# right: a loop over positions, as with numpy
import numpy as np
import torch
from torch import nn

class LoopHead(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.Wq = nn.Parameter(torch.randn(D, D))
        self.Wk = nn.Parameter(torch.randn(D, D))
        self.Wv = nn.Parameter(torch.randn(D, D))
        self.Wo = nn.Parameter(torch.randn(D, D))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = x @ self.Wq, x @ self.Wk, x @ self.Wv
        rows = []
        for t in range(length):
            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(t + 1)]
            weights = torch.softmax(torch.stack(scores, dim=1), dim=1)
            rows.append((weights[:, :, None] * v[:, : t + 1]).sum(1))
        return torch.stack(rows, dim=1) @ self.Wo

attention = LoopHead(48)

# === loop_stops_before_itself
# of: loops_as_with_numpy
# wrong: the loop stops one before the token itself, except for the first
# words: itself|own
#-            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(t + 1)]
#+            end = max(t, 1)
#+            scores = [(q[:, t] * k[:, s]).sum(-1) / np.sqrt(width) for s in range(end)]
#-            rows.append((weights[:, :, None] * v[:, : t + 1]).sum(1))
#+            rows.append((weights[:, :, None] * v[:, :end]).sum(1))

# === projection_never_applied
# of: loops_as_with_numpy
# wrong: the output projection is made and never applied
# words: project|output
#-        return torch.stack(rows, dim=1) @ self.Wo
#+        return torch.stack(rows, dim=1)

# === convolutions_as_projections
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

# === value_layer_never_used
# of: convolutions_as_projections
# wrong: the weights mix x itself: the value layer is never used
# words: value
#-        o = torch.bmm(v, beta.transpose(1, 2))      # b, c, t
#+        o = torch.bmm(h, beta.transpose(1, 2))      # b, c, t

# === dict_of_matrices_without_batch
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

# === bilinear_form_and_logsumexp
# right: bare parameters, scores as a bilinear form W_Q W_K^T, and W_V W_O multiplied first; d_v differs from d_k; softmax by logsumexp
"""Single-head attention with bare parameters, the row-vector way round."""
import torch
import torch.nn as nn

class OneHead(nn.Module):
    def __init__(self, d_model, d_k, d_v):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(d_model, d_k) / d_model**0.5)
        self.W_K = nn.Parameter(torch.randn(d_model, d_k) / d_model**0.5)
        self.W_V = nn.Parameter(torch.randn(d_model, d_v) / d_model**0.5)
        self.W_O = nn.Parameter(torch.randn(d_v, d_model) / d_v**0.5)

    def forward(self, X):
        T, d_k = X.shape[-2], self.W_K.shape[1]
        # x_i W_Q W_K^T x_j^T : the "QK circuit" as one bilinear form
        qk = self.W_Q @ self.W_K.T
        A = torch.einsum("...id,de,...je->...ij", X, qk, X) / d_k**0.5
        A = A + torch.full((T, T), float("-inf"), dtype=X.dtype).triu(1)
        A = (A - A.logsumexp(-1, keepdim=True)).exp()
        # and the "OV circuit"
        ov = self.W_V @ self.W_O
        return A @ (X @ ov)

attention = OneHead(48, 12, 20)

# === script_at_module_level
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

# === one_sequence_and_softmax_in_float32
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

# === encoder_head_time_first
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

# === tokens_in_columns
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

# === one_sequence_given_and_a_loop
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

# === function_of_matrices_given
# right: a function of x and three matrices, a mask of the future turned round for SDPA
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
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)

# === mask_of_the_future_given_to_sdpa
# of: function_of_matrices_given
# wrong: SDPA's mask means True = may look, and it is given the mask of the future
# words: inverted
#-    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)
#+    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
