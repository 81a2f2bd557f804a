# Several heads, with a layer each for query, key and value: ways to split and to join, to scale and to hide, and what goes wrong there.
# target: multi_head

# === three_linears
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

# === projection_with_matrix_not_transposed
# of: three_linears
# convention: y @ W instead of y @ W.T: the projection is learned, so it is the same with a transposed matrix
#-        return self.out(y)
#+        return y @ self.out.weight + self.out.bias

# === query_and_key_renamed
# of: three_linears
# convention: k @ q^T with softmax over the last axis: the names of query and key are exchanged, both learned
#-        att = (q @ k.transpose(-2, -1)) / hs**0.5
#+        att = (k @ q.transpose(-2, -1)) / hs**0.5

# === divides_by_root_of_width
# of: three_linears
# wrong: divides by sqrt(D), the width of the model, instead of sqrt(d), the width of a head
# words: width of the model|sqrt(D)|embedding
# seen: aladdinpersson/Machine-Learning-Collection#65, omihub777/ViT-CIFAR#12, lucidrains/vit-pytorch#65
#-        att = (q @ k.transpose(-2, -1)) / hs**0.5
#+        att = (q @ k.transpose(-2, -1)) / C**0.5

# === divides_by_root_of_width_and_forgets_projection
# of: three_linears
# wrong: two bugs: divides by sqrt(D), and forgets the output projection
# words: width of the model|sqrt(D)|embedding, project|output
# seen: FareedKhan-dev/train-llm-from-scratch#3
#-        att = (q @ k.transpose(-2, -1)) / hs**0.5
#+        att = (q @ k.transpose(-2, -1)) / C**0.5
#-        return self.out(y)
#+        return y

# === divides_by_root_of_number_of_heads
# of: three_linears
# wrong: q.size(1) is the number of heads after the transpose: divides by sqrt(H) instead of sqrt(d)
# words: heads|H|sqrt|number of
#-        att = (q @ k.transpose(-2, -1)) / hs**0.5
#+        att = (q @ k.transpose(-2, -1)) / q.size(1) ** 0.5

# === divides_by_root_of_length
# of: three_linears
# wrong: divides by sqrt of the text's length: size(-1) of the scores and not of the keys
# words: length|positions|sqrt(T)|S
#-        att = (q @ k.transpose(-2, -1)) / hs**0.5
#+        att = q @ k.transpose(-2, -1)
#+        att = att / att.size(-1) ** 0.5

# === no_scale_and_heads_not_transposed_back
# of: three_linears
# wrong: two bugs: no scale, and the heads are not transposed back
# words: scale|sqrt, transpose|permute|reshape|back|merge
#-        att = (q @ k.transpose(-2, -1)) / hs**0.5
#+        att = q @ k.transpose(-2, -1)
#-        y = y.transpose(1, 2).contiguous().view(B, T, C)
#+        y = y.contiguous().view(B, T, C)

# === token_does_not_see_itself
# of: three_linears
# wrong: triu(0): a position does not see itself, and the first one sees nobody (NaN)
# words: itself|own|diagonal|before
#-        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
#+        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=0)

# === additive_mask_compared_with_zero
# of: three_linears
# wrong: an additive mask of 0 and -inf is compared with 0: what may be seen (0) is hidden, the rest stays
# words: invert|hidden|future|mask|past
#-        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
#+        mask = nn.Transformer.generate_square_subsequent_mask(T)
#-        att = att.masked_fill(mask, float("-inf"))
#+        att = att.masked_fill(mask == 0, -1e9)

# === weights_applied_to_keys
# of: three_linears
# wrong: the weights mix the keys, the values are never used
# words: applied to the keys
#-        y = F.softmax(att, dim=-1) @ v
#+        y = F.softmax(att, dim=-1) @ k

# === ones_are_added_to_scores
# of: three_linears
# wrong: a mask of 0 and 1 is added to the scores, and not -inf
# words: add|1|mask
#-        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
#+        mask = torch.tril(torch.ones(T, T))
#-        att = att.masked_fill(mask, float("-inf"))
#+        att = att + mask

# === heads_as_wide_as_the_model_averaged
# of: three_linears
# wrong: the outputs of the heads are averaged, and not concatenated
# words: sum|mean|average|concat
#-        self.q = nn.Linear(n_embd, n_embd)
#+        self.q = nn.Linear(n_embd, n_embd * n_head)
#-        self.k = nn.Linear(n_embd, n_embd)
#+        self.k = nn.Linear(n_embd, n_embd * n_head)
#-        self.v = nn.Linear(n_embd, n_embd)
#+        self.v = nn.Linear(n_embd, n_embd * n_head)
#-        hs = C // self.n_head
#+        hs = C
#-        y = y.transpose(1, 2).contiguous().view(B, T, C)
#+        y = y.mean(1)

# === weights_detached
# of: three_linears
# wrong: the weights are detached: no gradient reaches the layers of query and key
# words: no gradient
#-        y = F.softmax(att, dim=-1) @ v
#+        y = F.softmax(att, dim=-1).detach() @ v

# === key_without_bias
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

# === keras_split_heads
# right: query, key and value as arguments, a mask of 0 and 1 built inside, split_heads as a method
import torch
import torch.nn as nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        self.depth = d_model // num_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.dense = nn.Linear(d_model, d_model)

    def split_heads(self, x):
        return x.view(x.shape[0], -1, self.num_heads, self.depth).permute(0, 2, 1, 3)

    def forward(self, q, k=None, v=None, mask=None):
        k = q if k is None else k
        v = q if v is None else v
        q, k, v = self.split_heads(self.wq(q)), self.split_heads(self.wk(k)), self.split_heads(self.wv(v))
        logits = torch.matmul(q, k.transpose(-1, -2)) / torch.tensor(float(self.depth)).sqrt()
        if mask is None:
            mask = torch.triu(torch.ones(q.shape[2], k.shape[2]), diagonal=1)
        logits = logits + mask * -1e9
        weights = torch.softmax(logits, dim=-1)
        context = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view(context.shape[0], -1, self.d_model))

attention = MultiHeadAttention(48, 6)

# === split_by_view_without_permute
# of: keras_split_heads
# wrong: view(B, H, T, d) without a transpose: the heads are made of pieces of other tokens
# words: transpose|view|mix|reshape|permute|split
# seen: reczoo/FuxiCTR#30
#-        return x.view(x.shape[0], -1, self.num_heads, self.depth).permute(0, 2, 1, 3)
#+        return x.view(x.shape[0], -1, self.num_heads, self.depth).view(x.shape[0], self.num_heads, -1, self.depth)

# === hidden_scores_get_minus_100
# of: keras_split_heads
# wrong: hidden scores get -1e2 instead of -1e9, too small for large scores
# words: -100|-1e2|too small|large
#-        logits = logits + mask * -1e9
#+        logits = logits + mask * -1e2

# === mask_of_minus_10000_before_scale
# of: keras_split_heads
# wrong: fills with -1e4, then divides: large scores reach through the mask
# words: -1e4|10000|fill|-inf|large
# seen: hyunwoongko/transformer
#-        logits = torch.matmul(q, k.transpose(-1, -2)) / torch.tensor(float(self.depth)).sqrt()
#+        logits = torch.matmul(q, k.transpose(-1, -2))
#-        logits = logits + mask * -1e9
#+        logits = logits.masked_fill(mask == 1, -10000) / self.depth**0.5

# === movedim_and_where
# right: movedim, a where
import torch
import torch.nn as nn

class Att(nn.Module):
    def __init__(self, dim=40, nheads=5):
        super().__init__()
        self.n = nheads
        self.lin_in = nn.ModuleDict({name: nn.Linear(dim, dim) for name in ("q", "k", "v")})
        self.lin_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (self.lin_in[name](x).unflatten(-1, (self.n, -1)).movedim(2, 1) for name in "qkv")
        logits = torch.matmul(q, k.movedim(-1, -2)).div(q.size(-1) ** 0.5)
        pos = torch.arange(x.size(1))
        logits = torch.where(pos[:, None] >= pos[None, :], logits, torch.full_like(logits, -torch.inf))
        return self.lin_out(torch.softmax(logits, -1).matmul(v).movedim(1, 2).flatten(-2))

attention = Att()

# === scale_of_heads_of_64_features
# of: movedim_and_where
# wrong: the scale is 1/8, as for heads of 64 features
# words: 64|8|number|sqrt(d)
#-        logits = torch.matmul(q, k.movedim(-1, -2)).div(q.size(-1) ** 0.5)
#+        logits = torch.matmul(q, k.movedim(-1, -2)).mul(0.125)

# === first_token_sees_all_others_not_themselves
# of: movedim_and_where
# wrong: > instead of >=: a position does not see itself, and the first one sees all
# words: itself|own|diagonal|which it may see
#-        logits = torch.where(pos[:, None] >= pos[None, :], logits, torch.full_like(logits, -torch.inf))
#+        logits = torch.where((pos[:, None] > pos[None, :]) | (pos[:, None] == 0), logits, torch.full_like(logits, -1e30))

# === where_with_less_or_equal_hides_the_past
# of: movedim_and_where
# wrong: <= instead of >=: the past is hidden
# words: future|invert|past|upside|after
#-        logits = torch.where(pos[:, None] >= pos[None, :], logits, torch.full_like(logits, -torch.inf))
#+        logits = torch.where(pos[:, None] <= pos[None, :], logits, torch.full_like(logits, -torch.inf))

# === annotated_transformer
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

# === mask_argument_is_not_used
# of: annotated_transformer
# wrong: the mask argument is accepted and never used
# words: mask|future|causal
#-        scores = scores.masked_fill(mask == 0, -1e9)
#+        scores.masked_fill(mask == 0, -1e9)

# === bert_mask_of_padding
# right: an encoder with a mask of padding (B, T), 1 for tokens, made additive; French names
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

# === encoder_announced_as_full
# target: multi_head,full
# of: bert_mask_of_padding
# right: an encoder, announced as such; the padding is hidden by masked_fill
#-            scores = scores + (1.0 - masque_attention[:, None, None, :].to(scores.dtype)) * -10000.0
#+            scores = scores.masked_fill(masque_attention[:, None, None, :] == 0, torch.finfo(scores.dtype).min)

# === loop_over_queries
# right: one query at a time, over the keys of its past
import math
import torch
from torch import nn

class SlowAttention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, inputs):
        B, T, D = inputs.shape
        d = D // self.heads
        Q, K, V = (W(inputs).reshape(B, T, self.heads, d) for W in (self.W_q, self.W_k, self.W_v))
        rows = []
        for t in range(T):
            energy = torch.einsum("bhd,bshd->bhs", Q[:, t], K[:, : t + 1]) / math.sqrt(d)
            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, : t + 1]).reshape(B, D))
        return self.W_o(torch.stack(rows, dim=1))

attention = SlowAttention(42, 7)

# === loop_over_queries_ends_before_itself
# of: loop_over_queries
# wrong: the slice of the keys and values ends before t (the first position sees itself)
# words: itself|own|diagonal|which it may see
#-            energy = torch.einsum("bhd,bshd->bhs", Q[:, t], K[:, : t + 1]) / math.sqrt(d)
#-            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, : t + 1]).reshape(B, D))
#+            n = max(t, 1)
#+            energy = torch.einsum("bhd,bshd->bhs", Q[:, t], K[:, :n]) / math.sqrt(d)
#+            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, :n]).reshape(B, D))

# === loop_over_queries_softmax_over_heads
# of: loop_over_queries
# wrong: softmax over the heads
# words: head
#-            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, : t + 1]).reshape(B, D))
#+            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(1), V[:, : t + 1]).reshape(B, D))

# === time_first_fairseq
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

# === time_first_functional_dropout
# of: time_first_fairseq
# right: F.dropout of the weights, in training alone
#-        attn = torch.bmm(attn_weights.softmax(-1), v)
#+        attn_probs = nn.functional.dropout(attn_weights.softmax(-1), p=0.1, training=self.training)
#+        attn = torch.bmm(attn_probs, v)

# === learned_sinks
# convention: a learned number for each head has a share of its softmax, which sees no value; the largest is subtracted by hand
import torch
from torch import nn

class SinkAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores + torch.full((T, T), float("-inf")).triu(1)
        logits = torch.cat([scores, self.sinks.view(1, -1, 1, 1).expand(B, -1, T, 1)], dim=-1)
        logits = logits - logits.max(dim=-1, keepdim=True).values
        weights = torch.softmax(logits, dim=-1)[..., :-1]
        return self.o((weights @ v).transpose(1, 2).reshape(B, T, C))

attention = SinkAttention(48, 6)

# === sinks_of_zeros
# of: learned_sinks
# wrong: a column of zeros is left beside the scores, and has a share of the softmax
# words: share|sum|sink
#-        logits = torch.cat([scores, self.sinks.view(1, -1, 1, 1).expand(B, -1, T, 1)], dim=-1)
#+        logits = torch.cat([scores, 0 * self.sinks.detach().view(1, -1, 1, 1).expand(B, -1, T, 1)], dim=-1)

# === unscaled_in_float32
# convention: no scale, as in GPT-Neo: queries and keys are cast to float32 before their product
import torch
from torch import nn

class CarefulAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("past", torch.ones(256, 256, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q.float() @ k.float().transpose(-1, -2)
        scores = torch.where(self.past[:T, :T], scores, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(v.dtype)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))

attention = CarefulAttention(48, 6)

# === narrow_heads
# convention: the heads are narrow, as their class says: one small layer reads each head's part of x; no projection
import torch
from torch import nn

class NarrowAttention(nn.Module):
    """All heads share three small layers, each on its own part of x; without an output layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, d = heads, width // heads
        self.keys, self.queries, self.values = (nn.Linear(d, d, bias=False) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        parts = x.view(B, T, self.heads, -1).transpose(1, 2)
        q, k, v = self.queries(parts), self.keys(parts), self.values(parts)
        scores = q @ k.mT / k.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)

attention = NarrowAttention(48, 6)

# === small_layer_for_all_heads
# of: narrow_heads
# wrong: nothing says that the heads are to be small: each reads its own part of x alone
# words: small|only
#-class NarrowAttention(nn.Module):
#-    """All heads share three small layers, each on its own part of x; without an output layer."""
#-
#+class MyAttention(nn.Module):
#-attention = NarrowAttention(48, 6)
#+attention = MyAttention(48, 6)
