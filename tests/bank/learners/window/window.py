# A token sees the last few tokens: bands of triangles, distances, unfolded keys, slices; windows too long, too short, on both sides.
# target: multi_head,window=4

# === window_by_distance
# right: unflatten, boolean mask from delta; works without a batch axis
import torch
import torch.nn as nn
import torch.nn.functional as F

class SlidingWindowAttention(nn.Module):
    """Causal; position i sees i-window+1 .. i."""

    def __init__(self, dim, num_heads, window):
        super().__init__()
        self.num_heads, self.window = num_heads, window
        self.v = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.q = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        *lead, n, c = x.shape
        split = lambda t: t.unflatten(-1, (self.num_heads, c // self.num_heads)).transpose(-3, -2)
        i = torch.arange(n, device=x.device)
        delta = i.unsqueeze(1) - i
        allowed = (delta >= 0) & (delta < self.window)
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), attn_mask=allowed)
        return self.o(y.transpose(-3, -2).flatten(-2))

attention = SlidingWindowAttention(48, 6, window=4)

# === window_on_both_sides
# of: window_by_distance
# wrong: |i - j| < window: the window reaches into the future as well
# words: future|side|causal|later
# seen: huggingface/transformers#39408
#-        delta = i.unsqueeze(1) - i
#+        delta = (i.unsqueeze(1) - i).abs()

# === window_with_open_future
# of: window_by_distance
# wrong: only i - j < window is asked for: the whole future is seen
# words: future is not hidden
#-        allowed = (delta >= 0) & (delta < self.window)
#+        allowed = delta < self.window

# === window_of_fixed_blocks
# of: window_by_distance
# wrong: blocks instead of a sliding window: the first of a block sees only itself
# words: block|chunk|slid
#-        allowed = (delta >= 0) & (delta < self.window)
#+        allowed = (delta >= 0) & (i.unsqueeze(1) // self.window == i // self.window)

# === window_never_used
# of: window_by_distance
# wrong: the window is stored and never used
# words: window|all|whole|full
# seen: proger/hippogriff#7
#-        allowed = (delta >= 0) & (delta < self.window)
#+        allowed = delta >= 0

# === mistral_log_of_a_band
# right: mistral-like module, mask by tril and triu with log, heads
import torch
from torch import nn
import torch.nn.functional as F
from dataclasses import dataclass

@dataclass
class ModelArgs:
    dim: int = 32
    n_heads: int = 4
    sliding_window: int = 4

class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        xq, xk, xv = (f(x).view(B, T, self.args.n_heads, self.head_dim).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        tensor = torch.full((T, T), fill_value=1.0)
        mask = torch.tril(tensor, diagonal=0)
        mask = torch.triu(mask, diagonal=-self.args.sliding_window + 1)
        mask = torch.log(mask)
        y = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1))

attention = Attention(ModelArgs())

# === window_one_too_long
# of: mistral_log_of_a_band
# wrong: triu(-window): the window is one position too long
# words: one|long|window|5
# seen: ml-explore/mlx-lm#390, huggingface/transformers#26792
#-        mask = torch.triu(mask, diagonal=-self.args.sliding_window + 1)
#+        mask = torch.triu(mask, diagonal=-self.args.sliding_window)

# === band_for_sdpa
# right: a band made by tril and triu, for SDPA
import torch
from torch import nn

class Banded(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.to_qkv, self.to_out = nn.Linear(width, width * 3, bias=False), nn.Linear(width, width)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        band = torch.ones(n, n).tril().triu(1 - self.window).bool()
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=band)
        return self.to_out(y.transpose(1, 2).flatten(2))

attention = Banded(48, 6, window=4)

# === window_one_too_short
# of: band_for_sdpa
# wrong: triu(2 - window): the window is one position too short
# words: narrow
#-        band = torch.ones(n, n).tril().triu(1 - self.window).bool()
#+        band = torch.ones(n, n).tril().triu(2 - self.window).bool()

# === window_with_the_sign_lost
# of: band_for_sdpa
# wrong: triu(window - 1): the sign is lost, and with the diagonal put back a token sees itself only
# words: itself|only|sign|window
#-        band = torch.ones(n, n).tril().triu(1 - self.window).bool()
#+        band = torch.ones(n, n).tril().triu(self.window - 1).bool() | torch.eye(n, dtype=torch.bool)

# === band_and_padding_mask
# right: band by tril and triu(1 - window), SDPA with a boolean keep mask, optional padding mask
import torch
import torch.nn as nn
import torch.nn.functional as F

class SlidingWindowAttention(nn.Module):
    """Causal attention in which a token sees the last `window` tokens, itself included."""

    def __init__(self, dim: int, num_heads: int, window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def band(self, n, device):
        ones = torch.ones(n, n, dtype=torch.bool, device=device)
        return ones.tril().triu(1 - self.window)

    def forward(self, x, mask=None):
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        keep = self.band(n, x.device)[None, None]
        if mask is not None:  # (b, n) True = token
            keep = keep & mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.to_out(y.transpose(1, 2).flatten(2))

# === unfolded_keys_of_a_window_of_five
# target: multi_head,window=5
# right: unfold of padded keys and values, so that scores have shape (B, h, T, w)
import torch
import torch.nn as nn
import torch.nn.functional as F

class LocalAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.h, self.w = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        pad = (0, 0, self.w - 1, 0)
        k = F.pad(k, pad).unfold(2, self.w, 1)   # (B, h, T, d, w)
        v = F.pad(v, pad).unfold(2, self.w, 1)
        s = torch.einsum('bhtd,bhtdw->bhtw', q, k) * q.shape[-1] ** -0.5
        pos = torch.arange(T)[:, None] - (self.w - 1) + torch.arange(self.w)[None, :]
        s = s.masked_fill(pos < 0, float('-inf'))
        y = torch.einsum('bhtw,bhtdw->bthd', s.softmax(-1), v)
        return self.out(y.reshape(B, T, D))

attention = LocalAttention(32, 4, 5)

# === flash_attention_left_window
# right: flash-attn convention window_size=(left, 0): left previous tokens plus the present one (i-j <= left), (B,T,H,D)
import torch

def local_attention(q, k, v, left=3):
    """q, k, v: (batch, seqlen, heads, dim). window_size=(left, 0) as in flash_attn: `left` tokens back and the token itself."""
    T = q.shape[1]
    s = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    delta = torch.arange(T).view(-1, 1) - torch.arange(T).view(1, -1)
    s = torch.where((delta >= 0) & (delta <= left), s, torch.tensor(float("-inf")))
    return torch.einsum("bhts,bshd->bthd", torch.softmax(s, dim=-1), v)

if __name__ == "__main__":
    q, k, v = torch.randn(3, 2, 10, 4, 8).unbind(0)
    print(local_attention(q, k, v).shape)

# === sinks_seen_too_early
# of: flash_attention_left_window
# wrong: the first tokens are always seen, also by those before them
# words: sink|first 2 tokens
#-def local_attention(q, k, v, left=3):
#+def local_attention(q, k, v, left=3, n_sink=2):
#-    s = torch.where((delta >= 0) & (delta <= left), s, torch.tensor(float("-inf")))
#+    s = torch.where((delta >= 0) & (delta <= left) | (torch.arange(T) < n_sink), s, torch.tensor(float("-inf")))

# === window_by_slices_of_keys
# target: single_head,window=4
# right: loop over queries with slices of the last w keys, (T, C)
import torch

def fenster(x, Wq, Wk, Wv, breite):
    q, k, v = x @ Wq, x @ Wk, x @ Wv
    zeilen = []
    for t in range(len(x)):
        von = max(0, t - breite + 1)
        p = torch.softmax(k[von:t + 1] @ q[t] / q.shape[1] ** 0.5, 0)
        zeilen.append(p @ v[von:t + 1])
    return torch.stack(zeilen)

attention = fenster
