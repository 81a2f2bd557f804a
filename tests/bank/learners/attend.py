"""Learners' programs: attention weights of a query and a key, and attention with values, as plain functions."""

# === weights_plain
# target: attention_weights
# right: scores, a mask for the last T of S positions, softmax
import math
import torch

def attention_weights(q, k):
    T, S = q.size(-2), k.size(-2)
    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    i = torch.arange(S - T, S).unsqueeze(1)
    j = torch.arange(S).unsqueeze(0)
    return att.masked_fill(j > i, -math.inf).softmax(-1)

attention = attention_weights

# === weights_scaled_query
# target: attention_weights
# right: the query is scaled, and not the scores
import torch

def attn_probs(query, key):
    query = query * query.shape[-1] ** -0.5
    scores = torch.einsum("...td,...sd->...ts", query, key)
    T, S = scores.shape[-2:]
    keep = torch.ones(T, S).tril(S - T) > 0
    scores = torch.where(keep, scores, torch.tensor(float("-inf")))
    return torch.nn.functional.softmax(scores, dim=-1)

attention = attn_probs

# === weights_softmax_by_hand
# target: attention_weights
# right: a stable softmax by hand: the maximum is subtracted, which changes nothing
import torch

def probs(q, k):
    d = q.shape[-1]
    s = (q / d**0.25) @ (k / d**0.25).mT
    T, S = s.shape[-2], s.shape[-1]
    s = s + torch.zeros(T, S).masked_fill(torch.ones(T, S).triu(S - T + 1).bool(), float("-inf"))
    s = s - s.amax(dim=-1, keepdim=True)
    e = torch.exp(s)
    return e / e.sum(dim=-1, keepdim=True)

attention = probs

# === weights_divide_by_d
# target: attention_weights
# wrong: divides by d, not by sqrt(d)
# words: sqrt|square root|scale|divide
import torch

def attention_weights(q, k):
    T, S = q.shape[-2], k.shape[-2]
    s = q @ k.mT / q.shape[-1]
    s = s.masked_fill(torch.ones(T, S).tril(S - T) == 0, float("-inf"))
    return s.softmax(-1)

attention = attention_weights

# === weights_scaled_after_softmax
# target: attention_weights
# wrong: divides by sqrt(d) after the softmax
# words: after|softmax
import math, torch

def attention_weights(q, k):
    T, S = q.shape[-2], k.shape[-2]
    s = q @ k.mT
    s = s.masked_fill(torch.ones(T, S).tril(S - T) == 0, float("-inf"))
    return s.softmax(-1) / math.sqrt(q.shape[-1])

attention = attention_weights

# === weights_multiply_by_sqrt
# target: attention_weights
# wrong: multiplies by sqrt(d) instead of dividing
# words: multipl|sqrt(d)
import torch

def attention_weights(q, k):
    T, S = q.shape[-2], k.shape[-2]
    s = (q @ k.mT) * (q.shape[-1] ** 0.5)
    s = s.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), float("-inf"))
    return s.softmax(-1)

attention = attention_weights

# === weights_multiply_by_mask_first
# target: attention_weights
# wrong: the scores are multiplied by the mask before the softmax: the future gets the score 0, not -inf
# words: 0|zero|multipl
import torch

def attention_weights(q, k):
    T, S = q.shape[-2], k.shape[-2]
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s * torch.ones(T, S).tril(S - T)
    return torch.softmax(s, dim=-1)

attention = attention_weights

# === weights_scaled_by_text
# target: attention_weights
# wrong: size(-2) is the number of positions: divides by sqrt(S) instead of sqrt(d)
# words: positions|length|S|T, sqrt|divide|scale
import math
import torch
import torch.nn.functional as F

def attention_weights(q, k):
    T, S = q.shape[-2], k.shape[-2]
    dk = k.size(-2)
    s = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(dk)
    mask = torch.tril(torch.ones(T, S), diagonal=S - T)
    return F.softmax(s.masked_fill(mask == 0, float("-inf")), dim=-1)

attention = attention_weights

# === attend_plain
# target: attend
# right: from the paper, word for word
import math
import torch

def scaled_dot_product(q, k, v):
    d_k = q.size()[-1]
    attn_logits = torch.matmul(q, k.transpose(-2, -1))
    attn_logits = attn_logits / math.sqrt(d_k)
    T, S = attn_logits.shape[-2:]
    causal = torch.tril(torch.ones(T, S), diagonal=S - T)
    attn_logits = attn_logits.masked_fill(causal == 0, -9e15)
    attention = torch.softmax(attn_logits, dim=-1)
    return torch.matmul(attention, v)

attention = scaled_dot_product

# === attend_sdpa_own_mask
# target: attend
# right: SDPA with a mask of its own, aligned to the lower right
import torch
import torch.nn.functional as F

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

attention = attend

# === attend_online_softmax
# target: attend
# right: key by key with a running maximum, as flash attention does
import torch

def flash_like(q, k, v):
    T, S, d = q.shape[-2], k.shape[-2], q.shape[-1]
    m = torch.full(q.shape[:-1], float("-inf"))
    l = torch.zeros(q.shape[:-1])
    acc = torch.zeros(*q.shape[:-1], v.shape[-1])
    where = torch.arange(T) + S - T
    for j in range(S):
        s = (q * k[..., j : j + 1, :]).sum(-1) / d**0.5
        s = torch.where(where >= j, s, torch.tensor(float("-inf")))
        new = torch.maximum(m, s)
        old_share = torch.exp(m - new).nan_to_num(0.0)
        p = torch.exp(s - new).nan_to_num(0.0)
        l = l * old_share + p
        acc = acc * old_share[..., None] + p[..., None] * v[..., j : j + 1, :]
        m = new
    return acc / l[..., None]

attention = flash_like

# === attend_einsum
# target: attend
# right: einsum throughout; bias of -inf added
import torch

def attend(query, key, value):
    S, T = key.shape[-2], query.shape[-2]
    logits = torch.einsum("...qc,...kc->...qk", query, key) * (query.shape[-1] ** -0.5)
    bias = torch.full((T, S), float("-inf")).triu(1 + S - T)
    w = torch.softmax(logits + bias, dim=-1)
    return torch.einsum("...qk,...kc->...qc", w, value)

attention = attend

# === attend_lecture_tril
# target: attend
# wrong: torch.ones(T, S).tril() is aligned to the upper left: with T < S the queries are taken for the first ones
# words: S - T|upper|first|left|offset|position
import torch

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    wei = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    tril = torch.ones(T, S).tril()
    wei = wei.masked_fill(tril == 0, float("-inf"))
    return wei.softmax(dim=-1) @ v

attention = attend

# === attend_is_causal
# target: attend
# wrong: is_causal=True of SDPA aligns the mask to the upper left: wrong for T < S
# words: S - T|upper|first|left|offset|position
# seen: gittensor-ai-lab/sparkinfer#3, Dao-AILab/flash-attention#380
import torch.nn.functional as F

def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)

attention = attend

# === attend_sdpa_inverted
# target: attend
# wrong: SDPA's bool mask says who MAY be seen; here true means hidden
# words: invert|hidden|hide|keep|future|true
import torch
import torch.nn.functional as F

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)

attention = attend

# === attend_no_scale
# target: attend
# wrong: the scores are not divided by sqrt(d)
# words: scale|divide|sqrt
import torch

def attend(Q, K, V):
    T, S = Q.shape[-2], K.shape[-2]
    A = Q @ K.mT
    A = A.masked_fill(torch.ones(T, S).tril(S - T) == 0, float("-inf"))
    return A.softmax(-1) @ V

attention = attend

# === attend_sees_next
# target: attend
# wrong: tril(1) lets every position see the next one
# words: next|one later|one too|1
import torch

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    s = q @ k.mT / q.shape[-1] ** 0.5
    see = torch.ones(T, S).tril(diagonal=S - T + 1)
    return s.masked_fill(see == 0, float("-inf")).softmax(-1) @ v

attention = attend

# === attend_small_fill
# target: attend
# wrong: fills with -100 instead of -inf: large scores reach through
# words: -100|large|-inf
import torch

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s.masked_fill(torch.ones(T, S).tril(S - T) == 0, -100.0)
    return s.softmax(-1) @ v

attention = attend

# === attend_forgets_result
# target: attend
# wrong: masked_fill without an assignment does nothing: no mask
# words: mask|future|causal
import torch

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    mask = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    scores.masked_fill(mask, float("-inf"))
    return scores.softmax(-1) @ v

attention = attend

# === attend_softmax_without_dim
# target: attend
# wrong: softmax(0) sums over the first axis of the batch
# words: batch|dim|axis
# seen: FudanNLP/fastNLP#254
import torch

def attend(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(T, S).triu(S - T + 1).bool(), -1e9)
    return torch.softmax(scores, 0) @ v

attention = attend
