"""Rotary positions as products of complex numbers, with angles from a table.

A pair of features is a complex number x, and x e^{i angle} is the same pair rotated: one complex product in place of
four products, a sum and a difference. The table is made once, not in every layer of every step.

B batch, H heads, T positions, d width of a head, n pairs that are rotated.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from minigpt.attention.position import Rotary, waves
from minigpt.fast.guard import faster


@faster(Rotary, "rotate", "complex rotary")
def rotate(self: Rotary, x: Tensor, start: int) -> Tensor:
    """Rotate queries or keys x (B, H, T, d), whose first position is `start`."""
    T, d = x.shape[2:]
    if torch.compiler.is_compiling():  # torch's compiler supports real numbers only
        return Rotary.rotate(self, x, start)
    precise = torch.promote_types(x.dtype, torch.float32)
    rounded = -(-(start + T) // 256) * 256  # decoding needs one more position each time: make few tables
    turns = table(self.config, rounded, d, precise, x.device).narrow(0, start, T)  # (T, n)
    n = turns.shape[1]
    if not n:
        return x  # a share of less than two features
    y = x[..., : 2 * n].to(precise)  # (B, H, T, 2n)
    if y.stride(3) != 1 or math.gcd(2, y.storage_offset(), *y.stride()[:3]) == 1:
        y = y.contiguous()  # complex numbers begin at even places
    pairs = torch.view_as_complex(y.view(*y.shape[:3], n, 2))  # (B, H, T, n)
    rotated = torch.view_as_real(pairs * turns).flatten(3).to(x.dtype)  # (B, H, T, 2n)
    return rotated if 2 * n == d else torch.cat((rotated, x[..., 2 * n :]), dim=-1)  # (B, H, T, d)


@lru_cache(maxsize=16)
def table(config: Rotary.Config, length: int, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """e^{i angle} of the first positions, complex numbers whose parts are of `dtype`: (length, n)."""
    with torch.inference_mode(False):  # the table outlives the call, and may be needed for training later
        cos, sin = waves(config, 0, length, d, device)  # (length, n) each
        return torch.complex(cos.to(dtype), sin.to(dtype))
