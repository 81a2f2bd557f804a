"""Learners' programs: the running mean by a loop, by a matrix, by a softmax; and dot products without parameters."""

# === loop_over_batch_and_time
# target: running_mean
# right: two loops and a slice
import torch


def running_mean(x):
    B, T, C = x.shape
    xbow = torch.zeros((B, T, C))
    for b in range(B):
        for t in range(T):
            xprev = x[b, : t + 1]  # (t+1, C)
            xbow[b, t] = torch.mean(xprev, 0)
    return xbow


attention = running_mean

# === cumsum_over_count
# target: running_mean
# right: a running sum divided by how many were summed
import torch

def avg(x):
    n = torch.arange(1, x.size(1) + 1)
    return x.cumsum(1) / n[None, :, None]

attention = avg

# === incremental_mean
# target: running_mean
# right: the mean is updated by each new token
import torch

def streaming(x):
    out = []
    m = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        m = m + (x[:, t] - m) / (t + 1)
        out.append(m)
    return torch.stack(out, dim=1)

attention = streaming

# === triangle_over_its_sum
# target: running_mean
# right: a triangle of ones, and keepdim
import torch

def average(x):
    T = x.shape[-2]
    wei = torch.tril(torch.ones(T, T))
    wei = wei / wei.sum(1, keepdim=True)
    return wei @ x

attention = average

# === einsum_of_a_triangle
# target: running_mean
# right: einsum, and rows divided by their numbers
import torch

def mean_of_past(tokens):
    n = tokens.shape[1]
    w = (torch.arange(n)[:, None] >= torch.arange(n)[None, :]).float()
    w /= torch.arange(1, n + 1)[:, None]
    return torch.einsum("ij,bjd->bid", w, tokens)

attention = mean_of_past

# === softmax_of_zeros
# target: running_mean
# right: zeros, -inf, softmax
import torch
import torch.nn.functional as F

def bow(x):
    B, T, C = x.shape
    tril = torch.tril(torch.ones(T, T))
    wei = torch.zeros((T, T))
    wei = wei.masked_fill(tril == 0, float('-inf'))
    wei = F.softmax(wei, dim=-1)
    return wei @ x

attention = bow

# === softmax_with_large_number
# target: running_mean
# right: -1e9 in place of -inf is the same here, since every row has a key
import torch

def average(x):
    T = x.shape[1]
    s = torch.zeros(T, T)
    s[torch.triu(torch.ones(T, T), diagonal=1).bool()] = -1e9
    return s.softmax(-1) @ x

attention = average

# === slice_stops_too_early
# target: running_mean
# wrong: the mean of position t leaves out t itself
# words: itself|own|before|which it may see
import torch

def average(x):
    out = torch.zeros_like(x)
    out[:, 0] = x[:, 0]
    for t in range(1, x.shape[1]):
        out[:, t] = x[:, :t].mean(dim=1)
    return out

attention = average

# === upper_triangle
# target: running_mean
# wrong: triu instead of tril: each position is the mean of itself and the future
# words: future|after|later|triu
import torch

def average(x):
    T = x.shape[1]
    w = torch.triu(torch.ones(T, T))
    w = w / w.sum(dim=1, keepdim=True)
    return w @ x

attention = average

# === sum_and_not_mean
# target: running_mean
# wrong: the rows are not divided by their sums: a running sum, not a mean
# words: sum|divid|normal
import torch

def average(x):
    T = x.shape[1]
    return torch.tril(torch.ones(T, T)) @ x

attention = average

# === divides_by_length
# target: running_mean
# wrong: divides by T, the length of the whole text, instead of t + 1
# words: T|length|number, divid|mean
import torch

def average(x):
    return torch.cumsum(x, dim=1) / x.shape[1]

attention = average

# === no_keepdim
# target: running_mean
# wrong: sum(1) without keepdim: the division broadcasts over the columns, not the rows
# words: column|keepdim
import torch

def average(x):
    T = x.shape[1]
    wei = torch.tril(torch.ones(T, T))
    wei = wei / wei.sum(1)
    return wei @ x

attention = average

# === softmax_of_columns
# target: running_mean
# wrong: softmax(dim=0): the columns sum to one, not the rows
# words: column|dim|axis|queries
import torch
from torch.nn import functional as F

def average(x):
    T = x.shape[1]
    tril = torch.tril(torch.ones(T, T))
    wei = torch.zeros((T, T)).masked_fill(tril == 0, float("-inf"))
    wei = F.softmax(wei, dim=0)
    return wei @ x

attention = average

# === fills_with_zero
# target: running_mean
# wrong: the mask fills in 0 instead of -inf, so the future keeps its share
# words: zero|0|future|mask|later
import torch

def average(x):
    T = x.shape[1]
    mask = torch.tril(torch.ones(T, T))
    wei = torch.zeros(T, T).masked_fill(mask == 0, 0)
    return torch.softmax(wei, dim=-1) @ x

attention = average

# === halves
# target: running_mean
# wrong: the mean of the mean so far and the new token: the newest counts half, the oldest hardly
# words: half|newest|recent|last|weight
import torch

def average(x):
    m = x[:, 0]
    out = [m]
    for t in range(1, x.shape[1]):
        m = (m + x[:, t]) / 2
        out.append(m)
    return torch.stack(out, 1)

attention = average

# === cumsum_over_batch
# target: running_mean
# wrong: the running sum goes over the batch (dim 0) and not over time
# words: batch|dim|axis|sequences
import torch

def average(x):
    count = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
    return x.cumsum(0) / count

attention = average

# === counts_one_too_many
# target: running_mean
# wrong: divides by t + 2: off by one
# words: divid|count|sum|t + 2|row
import torch

def average(x):
    T = x.shape[1]
    counts = torch.arange(2, T + 2).unsqueeze(-1)
    return x.cumsum(dim=1) / counts

attention = average

# === dot_product_plain
# target: dot_product
# right: x @ x^T, unscaled
import torch

def dot_product(x):
    T = x.shape[1]
    scores = x @ x.transpose(-2, -1)
    scores = scores.masked_fill(~torch.tril(torch.ones(T, T)).bool(), float("-inf"))
    return torch.softmax(scores, -1) @ x

attention = dot_product

# === dot_product_einsum_triu
# target: dot_product
# right: einsum, and an additive mask made with triu
import torch

def attn(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[1]
    sim = torch.einsum("bid,bjd->bij", x, x)
    sim = sim + torch.full((n, n), float("-inf")).triu(1)
    w = sim.softmax(dim=-1)
    return torch.einsum("bij,bjd->bid", w, x)

attention = attn

# === dot_product_loops
# target: dot_product
# right: a loop over queries, with a softmax written by hand
import torch

def dot_attention(x):
    out = torch.empty_like(x)
    for t in range(x.shape[1]):
        past = x[:, : t + 1]
        s = (past * x[:, t : t + 1]).sum(-1)
        s = s - s.max(dim=1, keepdim=True).values
        w = s.exp()
        w = w / w.sum(dim=1, keepdim=True)
        out[:, t] = (w.unsqueeze(-1) * past).sum(1)
    return out

attention = dot_attention

# === dot_product_masked_after
# target: dot_product
# wrong: the mask multiplies after the softmax, so rows no longer sum to one
# words: after|sum to|softmax
import torch

def dot_product(x):
    T = x.shape[1]
    w = (x @ x.mT).softmax(-1)
    w = w * torch.ones(T, T).tril()
    return w @ x

attention = dot_product

# === dot_product_inverted_mask
# target: dot_product
# wrong: the mask is inverted: the past is hidden and the future is seen
# words: future|invert|hides|mask
import torch

def dot_product(x):
    T = x.shape[1]
    s = x @ x.transpose(1, 2)
    tril = torch.tril(torch.ones(T, T), diagonal=-1)
    s = s.masked_fill(tril == 1, float("-inf"))
    return s.softmax(dim=-1) @ x

attention = dot_product

# === dot_product_no_mask
# target: dot_product
# wrong: no mask: every position sees the whole text
# words: mask|future|causal
import torch

def dot_product(x):
    return torch.softmax(x @ x.transpose(-1, -2), dim=-1) @ x

attention = dot_product

# === dot_product_softmax_of_queries
# target: dot_product
# wrong: softmax over the queries (dim 1) instead of the keys
# words: column|quer|dim|axis
# seen: labmlai/annotated_deep_learning_paper_implementations#146
import torch

def dot_product(x):
    T = x.shape[1]
    s = torch.einsum("btd,bsd->bts", x, x)
    s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
    return torch.einsum("bts,bsd->btd", s.softmax(dim=1), x)

attention = dot_product

# === dot_product_without_softmax
# target: dot_product
# wrong: no softmax: the raw scores weigh the values
# words: softmax
import torch

def dot_product(x):
    s = (x @ x.mT).tril()
    return s @ x

attention = dot_product
