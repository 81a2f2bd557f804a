# The weights alone, of given queries and keys or of x: masks for fewer queries than keys, softmax by hand, scores divided wrongly or too late.
# target: attention_weights

# === last_queries_of_all_positions
# right: the queries are the last T of S positions
import math
import torch

def attention_weights(q, k):
    T, S = q.size(-2), k.size(-2)
    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    i = torch.arange(S - T, S).unsqueeze(1)
    j = torch.arange(S).unsqueeze(0)
    return att.masked_fill(j > i, -math.inf).softmax(-1)

attention = attention_weights

# === weights_divided_by_d
# of: last_queries_of_all_positions
# wrong: divides by d, not by sqrt(d)
# words: sqrt|square root|scale|divide
#-    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
#+    att = q @ k.transpose(-2, -1) / q.size(-1)

# === weights_multiplied_by_root
# of: last_queries_of_all_positions
# wrong: multiplies by sqrt(d) instead of dividing
# words: multipl|sqrt(d)
#-    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
#+    att = q @ k.transpose(-2, -1) * math.sqrt(q.size(-1))

# === weights_divided_by_root_of_length
# of: last_queries_of_all_positions
# wrong: size(-2) is the number of positions: divides by sqrt(S) instead of sqrt(d)
# words: positions|length|S|T, sqrt|divide|scale
#-    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
#+    att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-2))

# === weights_divided_after_softmax
# of: last_queries_of_all_positions
# wrong: divides by sqrt(d) after the softmax
# words: after|softmax
#-    att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
#+    att = q @ k.transpose(-2, -1)
#-    return att.masked_fill(j > i, -math.inf).softmax(-1)
#+    return att.masked_fill(j > i, -math.inf).softmax(-1) / math.sqrt(q.size(-1))

# === scores_multiplied_by_mask
# of: last_queries_of_all_positions
# wrong: the scores are multiplied by the mask before the softmax: the future gets the score 0, not -inf
# words: 0|zero|multipl
#-    return att.masked_fill(j > i, -math.inf).softmax(-1)
#+    return (att * (j <= i)).softmax(-1)

# === weights_softmax_over_queries
# of: last_queries_of_all_positions
# wrong: the softmax runs over the queries instead of the keys
# words: queries, softmax
#-    return att.masked_fill(j > i, -math.inf).softmax(-1)
#+    return att.masked_fill(j > i, -math.inf).softmax(-2)

# === weights_without_the_token_itself
# of: last_queries_of_all_positions
# wrong: j >= i hides the token itself (and leaves the first row uniform)
# words: cannot see itself
#-    return att.masked_fill(j > i, -math.inf).softmax(-1)
#+    return att.masked_fill(j >= i, -1e9).softmax(-1)

# === weights_of_the_future
# of: last_queries_of_all_positions
# wrong: the mask is transposed: each query sees itself and the future
# words: upside down
#-    return att.masked_fill(j > i, -math.inf).softmax(-1)
#+    return att.masked_fill(j < i, -math.inf).softmax(-1)

# === weights_mask_at_upper_left
# of: last_queries_of_all_positions
# wrong: queries are counted from 0: the mask is at the upper left corner where there are fewer queries than keys
# words: upper left corner
#-    i = torch.arange(S - T, S).unsqueeze(1)
#+    i = torch.arange(T).unsqueeze(1)

# === weights_zeroed_after_softmax
# of: last_queries_of_all_positions
# wrong: weights of the future are zeroed after the softmax, and the rest is not normalised again
# words: after the softmax
#-    return att.masked_fill(j > i, -math.inf).softmax(-1)
#+    return att.softmax(-1).masked_fill(j > i, 0.0)

# === stable_softmax_by_hand
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

# === weights_masked_after_exp
# of: stable_softmax_by_hand
# wrong: the triangle comes after exp: where scores are large, all of the past is 0, and 0/0
# words: after exp|after the softmax, large scores
#-    s = s + torch.zeros(T, S).masked_fill(torch.ones(T, S).triu(S - T + 1).bool(), float("-inf"))
#-    s = s - s.amax(dim=-1, keepdim=True)
#-    e = torch.exp(s)
#+    s = s - s.amax(dim=-1, keepdim=True)
#+    e = torch.exp(s).tril(S - T)

# === maximum_not_taken_off
# of: stable_softmax_by_hand
# wrong: the maximum is not taken off: exp of large scores overflows
# words: overflow|maximum|nan|large
#-    s = s - s.amax(dim=-1, keepdim=True)
#-    e = torch.exp(s)
#+    e = torch.exp(s)

# === keys_in_rows_turned_at_the_end
# target: attention_weights,full
# right: Julia order inside: scores kept as (keys, queries), softmax over dim -2, turned round at the end; cross lengths allowed
# Coming from Julia (Flux.jl / NNlib): there features are the FIRST axis and
# the attention scores are laid out (keys, queries), softmax over dims=1.
# I keep that order inside and only turn it round at the end.
import torch

def dot_product_attention_scores(q, k):
    qT = q.transpose(-1, -2)                 # (d, Lq)
    kT = k.transpose(-1, -2)                 # (d, Lk)
    logits = kT.transpose(-1, -2) @ (qT / qT.size(-2) ** 0.5)   # (Lk, Lq)
    α = torch.softmax(logits, dim=-2)        # over the keys
    return α.transpose(-1, -2)               # (Lq, Lk), rows sum to one

weights = dot_product_attention_scores

# === row_by_row
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

# === optional_mask_without_batch
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

# === module_of_x_by_baddbmm
# right: baddbmm with the mask as bias and scale as alpha, finfo.min mask (BLOOM style)
import math
import torch
from torch import nn

class AttentionProbs(nn.Module):
    """Only the probabilities: x (B, T, hidden) -> (B, num_heads, T, T), causal."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        B, T, _ = hidden_states.shape
        nh, hd = self.num_heads, self.head_dim
        q = self.query(hidden_states).view(B, T, nh, hd).transpose(1, 2).reshape(B * nh, T, hd)
        k = self.key(hidden_states).view(B, T, nh, hd).permute(0, 2, 3, 1).reshape(B * nh, hd, T)
        neg = torch.finfo(q.dtype).min
        bias = torch.triu(torch.full((T, T), neg, dtype=q.dtype, device=q.device), diagonal=1)
        scores = torch.baddbmm(bias.expand(B * nh, T, T), q, k, beta=1.0, alpha=self.inv_norm_factor)
        probs = scores.view(B, nh, T, T).softmax(-1)
        return probs

weights = AttentionProbs(48, 6)

# === weights_dropped_always
# of: module_of_x_by_baddbmm
# wrong: weights are dropped in evaluation too
# words: dropout
#-        probs = scores.view(B, nh, T, T).softmax(-1)
#+        probs = nn.functional.dropout(scores.view(B, nh, T, T).softmax(-1), 0.2)

# === one_matrix_for_query_and_key
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

# === zero_scores_taken_for_hidden
# wrong: the triangle puts zeros, and every score that is 0 is hidden then, also one that is seen
# words: 0
import torch

def causal_weights(q, k):
    s = torch.einsum("...td,...sd->...ts", q, k) / q.size(-1) ** 0.5
    s = torch.tril(s, k.size(-2) - q.size(-2))
    return torch.where(s == 0, -torch.inf, s).softmax(-1)

# === powers_of_two
# wrong: the softmax is one of powers of 2, without the factor log2(e)
# words: exp2|powers of 2
import torch

def attention_weights(q, k):
    T = q.shape[-2]
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)

# === powers_of_two_with_log2_e
# of: powers_of_two
# right: a softmax of powers of 2, of scores times log2(e)
#-    powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
#+    powers = torch.exp2((scores - scores.amax(-1, keepdim=True)) * 1.4426950408889634)
