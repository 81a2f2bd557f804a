# The mean of all tokens so far: loops, triangles, softmax of zeros, running sums; sums over the wrong axis or divided by the wrong number.
# target: running_mean

# === loop_over_batch_and_time
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

# === mean_without_the_token_itself
# of: loop_over_batch_and_time
# wrong: the mean of position t leaves out t itself
# words: itself|own|before|which it may see
#-            xprev = x[b, : t + 1]  # (t+1, C)
#+            xprev = x[b, : max(t, 1)]  # (t+1, C)

# === list_of_means_of_prefixes
# right: a list of means of prefixes
import torch

def running_mean(x):
    return torch.stack([x[:, :i].mean(1) for i in range(1, x.shape[1] + 1)], dim=1)

# === mean_of_prefix_over_the_batch
# of: list_of_means_of_prefixes
# wrong: the mean of the prefix goes over the batch too
# words: batch|sequences
#-    return torch.stack([x[:, :i].mean(1) for i in range(1, x.shape[1] + 1)], dim=1)
#+    return torch.stack([x[:, :i].mean((0, 1)).expand(len(x), -1) for i in range(1, x.shape[1] + 1)], dim=1)

# === mean_updated_by_each_token
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

# === newest_token_counts_half
# of: mean_updated_by_each_token
# wrong: the mean of the mean so far and the new token: the newest counts half, the oldest hardly
# words: half|newest|recent|last|weight
#-    m = torch.zeros_like(x[:, 0])
#+    m = x[:, 0]
#-        m = m + (x[:, t] - m) / (t + 1)
#+        m = m + (x[:, t] - m) / 2

# === running_total
# right: plain loop over tokens with a running total divided by step+1
# Week 1 warm up: replace every token by the mean of the tokens seen so far.
# (no matrices yet, I want to see the loop first)
import torch

def mean_of_past(seq):
    """seq: batch x time x channels"""
    total = torch.zeros_like(seq[:, 0])
    outs = []
    for step, token in enumerate(seq.unbind(dim=1)):
        total = total + token
        outs.append(total / (step + 1))
    return torch.stack(outs, dim=1)

if __name__ == "__main__":
    toy = torch.arange(12.).reshape(1, 6, 2)
    print(mean_of_past(toy))

# === triangle_over_its_sum
# right: a triangle of ones, and keepdim
import torch

def average(x):
    T = x.shape[-2]
    wei = torch.tril(torch.ones(T, T))
    wei = wei / wei.sum(1, keepdim=True)
    return wei @ x

attention = average

# === columns_normalised
# of: triangle_over_its_sum
# wrong: sum(0): the columns are normalised, not the rows
# words: columns
#-    wei = wei / wei.sum(1, keepdim=True)
#+    wei = wei / wei.sum(0, keepdim=True)

# === sum_without_keepdim
# of: triangle_over_its_sum
# wrong: sum(1) without keepdim: the division broadcasts over the columns, not the rows
# words: column|keepdim
#-    wei = wei / wei.sum(1, keepdim=True)
#+    wei = wei / wei.sum(1)

# === mean_of_the_future
# of: triangle_over_its_sum
# wrong: triu instead of tril: the mean of a position and its future
# words: future|after|later|triu
#-    wei = torch.tril(torch.ones(T, T))
#+    wei = torch.triu(torch.ones(T, T))

# === sum_and_not_mean
# of: triangle_over_its_sum
# wrong: the rows are not divided by their sums: a running sum, not a mean
# words: sum|divid|normal
#-    wei = wei / wei.sum(1, keepdim=True)
#-    return wei @ x
#+    return wei @ x

# === triangle_times_counts
# right: a lower triangle whose rows are 1/(t + 1)
import torch

def average(x):
    T = x.size(-2)
    L = torch.tril(torch.ones(T, T, dtype=x.dtype)) * (1.0 / torch.arange(1, T + 1, dtype=x.dtype)).unsqueeze(1)
    return L @ x

# === einsum_of_a_triangle
# right: einsum, and rows divided by their numbers
import torch

def mean_of_past(tokens):
    n = tokens.shape[1]
    w = (torch.arange(n)[:, None] >= torch.arange(n)[None, :]).float()
    w /= torch.arange(1, n + 1)[:, None]
    return torch.einsum("ij,bjd->bid", w, tokens)

attention = mean_of_past

# === softmax_of_zeros
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
# of: softmax_of_zeros
# right: -1e9 in place of -inf is the same here: every row has a key
#-    wei = wei.masked_fill(tril == 0, float('-inf'))
#+    wei = wei.masked_fill(tril == 0, -1e9)

# === softmax_of_columns
# of: softmax_of_zeros
# wrong: softmax(dim=0): the columns sum to one, not the rows
# words: column|dim|axis|queries
#-    wei = F.softmax(wei, dim=-1)
#+    wei = F.softmax(wei, dim=0)

# === masked_with_zero
# of: softmax_of_zeros
# wrong: the mask fills in 0 instead of -inf, so the future keeps its share
# words: zero|0|future|mask|later
#-    wei = wei.masked_fill(tril == 0, float('-inf'))
#+    wei = wei.masked_fill(tril == 0, 0)

# === running_sum_over_count
# right: a running sum divided by how many were summed
import torch

def avg(x):
    n = torch.arange(1, x.size(1) + 1)
    return x.cumsum(1) / n[None, :, None]

attention = avg

# === running_sum_over_length
# of: running_sum_over_count
# wrong: divides by T, the length of the whole text, instead of t + 1
# words: T|length|number, divid|mean
#-    return x.cumsum(1) / n[None, :, None]
#+    return x.cumsum(1) / x.size(1)

# === running_sum_over_batch
# of: running_sum_over_count
# wrong: the running sum goes over the batch (dim 0) and not over time
# words: batch|dim|axis|sequences
#-    return x.cumsum(1) / n[None, :, None]
#+    return x.cumsum(0) / n[None, :, None]

# === running_sum_over_features
# of: running_sum_over_count
# wrong: cumsum along the features
# words: feature|axis|dim|along
#-    return x.cumsum(1) / n[None, :, None]
#+    return x.cumsum(-1) / n[None, :, None]

# === counts_one_too_many
# of: running_sum_over_count
# wrong: divides by t + 2: off by one
# words: divid|count|sum|t + 2|row
#-    n = torch.arange(1, x.size(1) + 1)
#+    n = torch.arange(2, x.size(1) + 2)

# === module_with_running_ones
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

# === softmax_of_new_zeros
# right: the scores are new zeros of x plus a triangle of -inf; the softmax of constants is mixed by an einsum with spaces
import torch

def mean_so_far(x):
    n = x.shape[-2]
    closed = torch.full((n, n), float("-inf"), dtype=x.dtype).triu(1)
    share = torch.softmax(x.new_zeros((n, n)) + closed, dim=-1)
    return torch.einsum("t s, b s c -> b t c", share, x)

# === comes_out_in_float32
# wrong: x is cast to float32 and stays so: float64 in, float32 out
# words: float32
import torch

def running_mean(x):
    x = x.to(torch.float32)
    counts = torch.arange(1, x.shape[1] + 1)
    return x.cumsum(1) / counts[:, None]

# === lambdas_and_vmap
# right: the weights are a lambda of two positions, mapped over all of them
import torch
from torch.func import vmap

share = lambda t, s: torch.where(s <= t, 1 / (t + 1), torch.zeros_like(t))
table = lambda at: vmap(vmap(share, (None, 0)), (0, None))(at, at)

def prefix_mean(x):
    return table(torch.arange(x.shape[1], dtype=x.dtype)) @ x
