# Kinds with more than the plain ones, which are right where nobody asked for another.
# target: found

# === bias_for_each_distance
# convention: T5's learned bias for each distance
import torch
from torch import nn

class Relative(nn.Module):
    def __init__(self, D, H, max_distance=16):
        super().__init__()
        self.H, self.qkv, self.out = H, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.table = nn.Embedding(max_distance, H)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).permute(2, 0, 3, 1, 4)
        back = torch.arange(T)[:, None] - torch.arange(T)
        bias = self.table(back.clamp(0, self.table.num_embeddings - 1)).permute(2, 0, 1)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
        return self.out((scores.masked_fill(back < 0, -torch.inf).softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

# === cap_on_the_scores
# of: bias_for_each_distance
# convention: Gemma 2's cap
#-        self.table = nn.Embedding(max_distance, H)
#+        self.cap = 30.0
#-        bias = self.table(back.clamp(0, self.table.num_embeddings - 1)).permute(2, 0, 1)
#-        scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
#+        scores = self.cap * torch.tanh(q @ k.mT / q.shape[-1] ** 0.5 / self.cap)

# === cosines_with_a_temperature
# convention: queries and keys of length one, and a learned number for each head
import torch
from torch import nn
import torch.nn.functional as F

class CosineAttention(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.qkv, self.out = H, nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
        self.sharp = nn.Parameter(torch.full((H, 1, 1), 2.0))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.sharp.exp()
        scores = scores.masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

# === length_one_over_the_heads
# of: cosines_with_a_temperature
# wrong: F.normalize without dim goes over the heads
# words: quotient|heads
#-        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.sharp.exp()
#+        scores = F.normalize(q) @ F.normalize(k).mT * self.sharp.exp()

# === length_one_over_the_positions
# of: cosines_with_a_temperature
# wrong: F.normalize without dim goes over the positions
# words: later
#-        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).permute(2, 0, 3, 1, 4)
#-        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.sharp.exp()
#+        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).unbind(2)
#+        q, k, v = (y.transpose(1, 2) for y in (F.normalize(q), F.normalize(k), v))
#+        scores = q @ k.mT * self.sharp.exp()

# === queries_and_keys_begin_with_zeros
# of: cosines_with_a_temperature
# wrong: two factors that begin with zeros never get a gradient
# words: zeros
#-        self.H, self.qkv, self.out = H, nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
#-        self.sharp = nn.Parameter(torch.full((H, 1, 1), 2.0))
#+        self.H, self.v, self.out = H, nn.Linear(D, D), nn.Linear(D, D)
#+        self.q, self.k = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
#+        nn.init.zeros_(self.q.weight)
#+        nn.init.zeros_(self.k.weight)
#-        q, k, v = self.qkv(x).view(B, T, 3, self.H, -1).permute(2, 0, 3, 1, 4)
#-        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.sharp.exp()
#+        q, k, v = (f(x).view(B, T, self.H, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
#+        scores = q @ k.mT / q.shape[-1] ** 0.5

# === block_with_a_window
# convention: post-norm, SiLU, and a window that the block was given
import torch
from torch import nn
import torch.nn.functional as F

class LocalBlock(nn.Module):
    def __init__(self, width=48, heads=4, window=3):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - self.window)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(b, n, e))

    def forward(self, x):
        x = self.n1(x + self.attend(x))
        return self.n2(x + self.mlp(x))

# === block_normed_over_the_positions
# of: block_with_a_window
# wrong: the second norm is written by hand, over the wrong axis
# words: later|other tokens
#-        return self.n2(x + self.mlp(x))
#+        x = x + self.mlp(x)
#+        return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt() * self.n2.weight + self.n2.bias
