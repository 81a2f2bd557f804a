"""RMSNorm through the length of a vector.

On a CPU torch has no kernel of its own for RMSNorm, and the backward pass through its parts is slow; through the length
of a vector, for which there is one, it takes a third of the time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.norm import EPSILON, RMSNorm
from minigpt.fast.guard import faster


@faster(RMSNorm, "forward", "norm by length")
def forward(self: RMSNorm, x: Tensor) -> Tensor:
    """x (..., d) -> (..., d)."""
    weight = None if self.weight is None else self.weight.to(x.dtype)
    if x.device.type != "cpu":
        return F.rms_norm(x, x.shape[-1:], weight, EPSILON)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    y = (x * torch.rsqrt(length.square() / x.shape[-1] + EPSILON)).to(x.dtype)  # (..., d)
    return y if weight is None else y * weight
