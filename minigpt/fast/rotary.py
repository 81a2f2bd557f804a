"""Rotary positions as products of complex numbers, with angles from a table.

A pair of features is a complex number x, and x e^{i angle} is the same pair rotated: one product in place of four, a
sum and a difference. The table is made once, not in every layer of every step.

B batch, H heads, T positions, d width of a head, n pairs.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from minigpt.attention.position import Rotary, angles
from minigpt.fast.guard import faster


@faster(Rotary, "rotate", "complex rotary")
def rotate(self: Rotary, x: Tensor, start: int) -> Tensor:
    """Rotate queries or keys x (B, H, T, d), whose first position is `start`."""
    T, d = x.shape[2:]
    if d % 2 or torch.compiler.is_compiling():  # torch's compiler knows real numbers only
        return Rotary.rotate(self, x, start)
    precise = torch.promote_types(x.dtype, torch.float32)
    rounded = -(-(start + T) // 256) * 256  # decoding asks for one more each time: make few tables, not many
    waves = table(rounded, d, self.config.base, precise, x.device).narrow(0, start, T)  # (T, n)
    y = x.to(precise)
    if y.stride(3) != 1 or math.gcd(2, y.storage_offset(), *y.stride()[:3]) == 1:
        y = y.contiguous()  # complex numbers begin at even places
    pairs = torch.view_as_complex(y.view(*y.shape[:3], -1, 2))  # (B, H, T, n)
    return torch.view_as_real(pairs * waves).flatten(3).to(x.dtype)  # (B, H, T, d)


@lru_cache(maxsize=16)
def table(length: int, d: int, base: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """e^{i angle} of the first positions, complex numbers whose parts are of `dtype`: (length, n)."""
    with torch.inference_mode(False):  # the table outlives the call, and may be needed for training later
        theta = angles(0, length, d, base, device)  # (length, n)
        return torch.complex(theta.cos().to(dtype), theta.sin().to(dtype))
