# Only the rotation of query and key: a function of one of them or of both, tables given or made, a module with an offset.
# target: multi_head,rotary

# === rotation_of_one_by_halves
# right: HF rotate_half (half-split) as a function on one tensor (B,H,T,D), base 10000, positions from 0
import torch

def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)

def apply_rotary(x, base=10000.0):
    dim, seq = x.shape[-1], x.shape[-2]
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(seq).float()
    freqs = torch.outer(t, inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return x * emb.cos() + rotate_half(x) * emb.sin()

# === rotation_by_halves_of_tables_for_neighbours
# of: rotation_of_one_by_halves
# wrong: tables for neighbours, turned by halves
# words: halves, neighbours
#-    emb = torch.cat((freqs, freqs), dim=-1)
#+    emb = freqs.repeat_interleave(2, dim=-1)

# === rotation_matrices_of_the_paper
# right: explicit rotation matrices of the paper, one (d,d) block matrix per position, einsum, (B,T,d)
import math

import torch

def rotation_matrix(m, d, base=10000):
    """R_m of the RoFormer paper, equation (15)."""
    R = torch.zeros(d, d)
    for i in range(d // 2):
        angle = m * base ** (-2 * i / d)
        c, s = math.cos(angle), math.sin(angle)
        R[2 * i, 2 * i] = c
        R[2 * i, 2 * i + 1] = -s
        R[2 * i + 1, 2 * i] = s
        R[2 * i + 1, 2 * i + 1] = c
    return R

def rotary(q, k):
    # slow, but it's the formula
    T, d = q.shape[1], q.shape[2]
    R = torch.stack([rotation_matrix(m, d) for m in range(T)])  # (T, d, d)
    return torch.einsum("tij,btj->bti", R, q), torch.einsum("tij,btj->bti", R, k)

if __name__ == "__main__":
    q = torch.randn(1, 1, 4).expand(1, 6, 4)
    a, b = rotary(q, q)
    print(a @ b.transpose(1, 2))   # same along every diagonal

# === rotation_module_with_offset
# right: nn.Module with cached buffers and an offset for decoding, half-split pairs, (B,T,H,D)
from typing import Tuple

import torch
from torch import nn

class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, max_seq_len: int = 256, base: float = 10000.0):
        super().__init__()
        half = head_dim // 2
        freq = torch.exp(-torch.log(torch.tensor(base)) * torch.arange(half) / half)
        ang = torch.arange(max_seq_len)[:, None] * freq[None]
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def rotate(self, x: torch.Tensor, offset: int) -> torch.Tensor:
        T = x.shape[1]
        cos = self.cos[offset:offset + T, None, :]
        sin = self.sin[offset:offset + T, None, :]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, q: torch.Tensor, k: torch.Tensor, offset: int = 0) -> Tuple[torch.Tensor, torch.Tensor]:
        """(B, T, H, D) each; offset: how many tokens came before (with a KV cache)"""
        return self.rotate(q, offset), self.rotate(k, offset)

# === rotation_with_two_minus
# of: rotation_module_with_offset
# wrong: a minus in both halves: no rotation
# words: minus in both
#-        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
#+        return torch.cat([a * cos - b * sin, b * cos - a * sin], dim=-1)

# === rotation_with_exponent_i_over_d
# of: rotation_module_with_offset
# wrong: the exponent is i/d instead of 2i/d
# words: i/d instead of 2i/d
#-        freq = torch.exp(-torch.log(torch.tensor(base)) * torch.arange(half) / half)
#+        freq = torch.exp(-torch.log(torch.tensor(base)) * torch.arange(half) / head_dim)

# === rotation_complex_table_given
# right: Meta LLaMA complex numbers (interleaved pairs), q and k as (B,T,H,D), freqs_cis passed in
import torch

def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    t = torch.arange(end)
    freqs = torch.outer(t, freqs).float()
    return torch.polar(torch.ones_like(freqs), freqs)

def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.view(1, xq_.shape[1], 1, xq_.shape[-1])
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)

if __name__ == "__main__":
    q, k = torch.randn(2, 1, 5, 4, 8)
    a, b = apply_rotary_emb(q, k, precompute_freqs_cis(8, 5))
    print(a.shape, b.shape)

# === rotation_any_leading_axes
# right: neighbouring pairs in real numbers with stack and flatten, any leading axes, French comments
import torch

def encodage_rotatif(x, base=10_000):
    """Tourne chaque paire (x[2i], x[2i+1]) de l'angle position * base^(-2i/d).   x: (..., T, d)"""
    T, d = x.shape[-2], x.shape[-1]
    i = torch.arange(d // 2, dtype=x.dtype, device=x.device)
    frequence = base ** (-2 * i / d)
    position = torch.arange(T, dtype=x.dtype, device=x.device)
    angle = position[:, None] * frequence[None, :]      # (T, d/2)
    c, s = torch.cos(angle), torch.sin(angle)
    pair, impair = x[..., 0::2], x[..., 1::2]
    tourne = torch.stack([pair * c - impair * s, pair * s + impair * c], dim=-1)
    return tourne.flatten(-2)

def rope(q, k):
    return encodage_rotatif(q), encodage_rotatif(k)

# === rotation_overwrites_in_place
# of: rotation_any_leading_axes
# wrong: in place: odd features are made of even ones already overwritten, and the caller's q and k change
# words: overwritten|written over
#-    tourne = torch.stack([pair * c - impair * s, pair * s + impair * c], dim=-1)
#-    return tourne.flatten(-2)
#+    x[..., 0::2] = pair * c - impair * s
#+    x[..., 1::2] = pair * s + impair * c
#+    return x

# === rotation_by_two_by_two_matrices
# target: rotary
# right: explicit 2x2 rotation matrices over neighbouring channel pairs
"""Rotary embedding written with real 2x2 rotation matrices, slow but nothing to remember.

Token t, channel pair (2j, 2j+1) is turned by the angle t / base**(2j / d).
"""
import torch

def rotation_matrix(angle):
    """angle: any shape -> the same shape with two more axes (2, 2)"""
    c, s = torch.cos(angle), torch.sin(angle)
    top = torch.stack([c, -s], dim=-1)
    bottom = torch.stack([s, c], dim=-1)
    return torch.stack([top, bottom], dim=-2)

def rotary(x, base=10_000.0):
    # x: (batch, heads, time, d)
    *lead, T, d = x.shape
    if d % 2:
        raise ValueError("need an even number of channels")
    j = torch.arange(d // 2, dtype=x.dtype, device=x.device)
    t = torch.arange(T, dtype=x.dtype, device=x.device)
    R = rotation_matrix(t[:, None] / base ** (2 * j / d))       # (T, d/2, 2, 2)
    pairs = x.reshape(*lead, T, d // 2, 2, 1)
    return (R @ pairs).reshape(*lead, T, d)

# === rotation_with_evens_first
# target: rotary
# convention: pairs (even, odd), output holds all rotated evens first then the odds; consistent for q and k
import torch

def apply_rotary_emb(x, base=10000.0):
    """x: (B, H, T, D). Pairs are (even, odd) channels.

    All the rotated evens come out first and then the rotated odds. q and k get the
    same shuffle, so q.k does not care.
    """
    T, D = x.shape[-2:]
    inv_freq = base ** -(torch.arange(0, D, 2, device=x.device).double() / D)
    theta = torch.arange(T, device=x.device).double().outer(inv_freq)
    sin, cos = theta.sin().to(x.dtype), theta.cos().to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)

attention = apply_rotary_emb

# === rotation_without_minus
# target: rotary
# of: rotation_of_one_by_halves
# wrong: rotate_half without the minus: no rotation
# words: sign|minus|negat|rotat
#-    return torch.cat((-x2, x1), dim=-1)
#+    return torch.cat((x2, x1), dim=-1)

# === rotation_of_half_of_each_head
# right: partial rotary (first half of the head only, GPT-NeoX pct 0.5, half-split), module with cached cos/sin, x is (B,H,T,D)
import torch
import torch.nn as nn

class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, rotary_pct=0.5, max_position=256, base=10000):
        super().__init__()
        self.rot = int(head_dim * rotary_pct)
        exponent = torch.arange(0, self.rot, 2, dtype=torch.float32) / self.rot
        inv_freq = base ** (-exponent)
        angle = torch.arange(max_position, dtype=torch.float32)[:, None] * inv_freq[None, :]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x, offset=0):
        T = x.size(-2)
        c, s = self.cos[offset:offset + T], self.sin[offset:offset + T]
        xr, xp = x[..., :self.rot], x[..., self.rot:]
        a, b = xr.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, a * s + b * c, xp], dim=-1)

rotary = RotaryEmbedding(16)

# === object_that_rotates_from_a_start
# target: rotary
# right: a plain class; the angles are kept by start and length, and its method `rotate` takes both
import torch

class Angles:
    def __init__(self, base=1e4):
        self.base, self.known = base, {}

    def angles(self, start, length, width):
        key = (start, length, width)
        if key not in self.known:
            places = torch.arange(start, start + length, dtype=torch.float64)
            self.known[key] = torch.outer(places, self.base ** -(torch.arange(0, width, 2) / width))
        return self.known[key]

    def rotate(self, x, start):
        phi = self.angles(start, x.shape[-2], x.shape[-1]).to(x)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * phi.cos() - b * phi.sin(), a * phi.sin() + b * phi.cos()), -1).flatten(-2)

# === angles_kept_by_length_alone
# of: object_that_rotates_from_a_start
# wrong: angles are kept by length alone: a text that goes on gets those of its beginning
# words: start
#-        key = (start, length, width)
#+        key = (length, width)

# === matrices_of_a_helper
# target: rotary
# right: a helper makes the matrix of one position, in lists; the rotation is another function, of x and a start
import math
import torch

def matrix(place, width):
    rows = [[float(i == j) for j in range(width)] for i in range(width)]
    for i in range(0, width, 2):
        phi = place / 10000 ** (i / width)
        rows[i][i], rows[i][i + 1] = math.cos(phi), -math.sin(phi)
        rows[i + 1][i], rows[i + 1][i + 1] = math.sin(phi), math.cos(phi)
    return rows

def turn(x, start):
    turns = torch.tensor([matrix(start + t, x.shape[-1]) for t in range(x.shape[-2])], dtype=x.dtype)
    return (turns @ x.unsqueeze(-1)).squeeze(-1)

# === own_tables_of_the_other_pairing
# target: attend,rotary
# wrong: halves are rotated by tables for neighbours, unless the caller brings other tables
# words: neighbours|pair
import torch

def tables(T, d):
    angle = torch.outer(torch.arange(T), 10000.0 ** (-torch.arange(0, d, 2) / d)).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()

def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin

def attention(q, k, v, cos=None, sin=None):
    T, d = q.shape[-2:]
    cos, sin = tables(T, d) if cos is None else (cos, sin)
    s = turn(q, cos, sin) @ turn(k, cos, sin).mT / d**0.5
    return s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v
