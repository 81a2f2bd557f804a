# Functions and loops in the manner of other fields.
# target: found

# === time_first_with_given_matrices
# convention: (T, B, D) and three matrices as arguments, with asserts behind it
import torch
T, B, D, d = 9, 4, 16, 8
X = torch.randn(T, B, D)
Wq, Wk, Wv = (torch.randn(D, d) / D**0.5 for _ in range(3))

def causal_head(X, Wq, Wk, Wv):
    """X[t, b, :] is what text b says at time t."""
    Q, K, V = X @ Wq, X @ Wk, X @ Wv
    n = X.shape[0]
    S = torch.einsum("tbi,sbi->tsb", Q, K) / Wq.shape[1] ** 0.5
    S = torch.where(torch.ones(n, n).tril()[:, :, None] > 0, S, -torch.inf)
    return torch.einsum("tsb,sbi->tbi", torch.softmax(S, dim=1), V)

Y = causal_head(X, Wq, Wk, Wv)
assert torch.allclose(Y[0], X[0] @ Wv, atol=1e-6)
Z = X.clone()
Z[5:] += 1
assert torch.allclose(causal_head(Z, Wq, Wk, Wv)[:5], Y[:5], atol=1e-6)

# === matrices_in_a_named_tuple
# right: another function makes them, with a window among them
from typing import NamedTuple
import torch

class Params(NamedTuple):
    wq: torch.Tensor
    wk: torch.Tensor
    wv: torch.Tensor
    wo: torch.Tensor
    window: int

def init(D, H, window, generator=None):
    r = lambda *s: torch.randn(*s, generator=generator) * D**-0.5
    return Params(r(D, H, D // H), r(D, H, D // H), r(D, H, D // H), r(H, D // H, D), window)

def swa(p, x):
    q, k, v = (torch.einsum("btd,dhk->bthk", x, w) for w in (p.wq, p.wk, p.wv))
    ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    logits = torch.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
    w = torch.where(ones.tril() & ones.triu(1 - p.window), logits, -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshk,hkd->btd", w, v, p.wo)

# === maximum_taken_out_of_torch
# right: loops over single numbers, and a maximum that is a Python float
import math
import torch

class SlowAttention(torch.nn.Module):
    def __init__(self, n_in, n_key, n_out):
        super().__init__()
        self.A, self.B = (torch.nn.Parameter(torch.randn(n_in, n_key)) for _ in range(2))
        self.C, self.n_key = torch.nn.Parameter(torch.randn(n_in, n_out)), n_key

    def sentence(self, words):
        keys, values, answers = [], [], []
        for word in words:
            keys.append(word @ self.B)
            values.append(word @ self.C)
            logits = [(word @ self.A * key).sum() / math.sqrt(self.n_key) for key in keys]
            biggest = max(one.item() for one in logits)
            exps = [torch.exp(one - biggest) for one in logits]
            answers.append(sum(e / sum(exps) * v for e, v in zip(exps, values)))
        return torch.stack(answers)

    def forward(self, sentences):
        return torch.stack([self.sentence(one) for one in sentences])

# === tiles_of_sixteen
# right: an online softmax whose tiles are longer than the text that is read
import torch

def tiled_attention(q, k, v, tile=16):
    T, d = q.shape[-2:]
    o, l = torch.zeros_like(q), q.new_zeros(*q.shape[:-1], 1)
    m = torch.full_like(l, -torch.inf)
    for start in range(0, T, tile):
        s = q @ k[..., start : start + tile, :].mT / d**0.5
        hidden = torch.arange(start, min(start + tile, T)) > torch.arange(T)[:, None]
        s = s.masked_fill(hidden, -1e30)
        new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, turn = (s - new).exp().masked_fill(hidden, 0.0), (m - new).exp()
        l, m = l * turn + p.sum(-1, keepdim=True), new
        o = o * turn + p @ v[..., start : start + tile, :]
    return o / l

# === tiles_that_are_not_rescaled
# of: tiles_of_sixteen
# wrong: only the sum is rescaled when the maximum grows
# words: rescaled
#-        o = o * turn + p @ v[..., start : start + tile, :]
#+        o = o + p @ v[..., start : start + tile, :]

# === mean_with_counts_of_eight_bits
# wrong: the counts are bytes, which wrap around at 128
# words: token 127|300
import torch

def running_mean(x):
    triangle = torch.ones(x.shape[1], x.shape[1], dtype=torch.int8).tril_()
    count = triangle.sum(dim=-1, keepdim=True, dtype=triangle.dtype)
    return triangle.to(x.dtype).div_(count) @ x

# === mean_written_into_its_input
# wrong: mean is x itself, and is written to
# words: input
import torch

def running_mean(x):
    mean = x
    for t in range(1, x.shape[1]):
        mean[:, t] = mean[:, t - 1] + (x[:, t] - mean[:, t - 1]) / (t + 1)
    return mean

# === mean_taken_through_numpy
# wrong: x is detached
# words: gradient
import numpy as np
import torch

def running_mean(x):
    X = x.detach().cpu().numpy()
    return torch.from_numpy(np.tri(X.shape[1]) / np.arange(1, X.shape[1] + 1)[:, None] @ X).to(x.dtype)

# === one_einsum_with_the_index_of_the_query
# wrong: the weights are added up, and each token gets its own value
# words: added up
import torch
from torch import nn

class Einsum(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.qkv, self.out = H, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).unbind(2)
        w = torch.einsum("bthd,bshd->bhts", q, k) / (D // self.H) ** 0.5
        w = w.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf).softmax(-1)
        return self.out(torch.einsum("bhts,bthd->bthd", w, v).reshape(B, T, D))
