"""RMSNorm: every vector is brought to a root mean square of one ("Root Mean Square Layer Normalization", 1910.07467).

It keeps the residual stream at one scale, and queries and keys from growing without end.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

EPSILON = 1e-6  # keeps a vector of zeros from being divided by zero


class RMSNorm(nn.RMSNorm):
    """torch's, over the last dimension, and faster on a CPU: x (..., d) -> (..., d), in the type of what arrives.

    torch has no kernel of its own for it there, and its way back through all the parts takes three times as long.
    """

    def __init__(self, d: int, weights: bool = True):
        super().__init__(d, eps=EPSILON, elementwise_affine=weights)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.rms_norm(x, self.normalized_shape, self.weight, EPSILON)
        return rms_norm(x) if self.weight is None else rms_norm(x) * self.weight.to(x.dtype)


def rms_norm(x: Tensor) -> Tensor:
    """x (..., d) at a root mean square of one."""
    if x.device.type != "cpu":
        return F.rms_norm(x, x.shape[-1:], None, EPSILON)
    y: Tensor = ToOne.apply(x) if torch.is_grad_enabled() else bring_to_one(x)[0].to(x.dtype)  # type: ignore[no-untyped-call]
    return y


def bring_to_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., d) at a root mean square of one, and what it was multiplied by, (..., 1); in float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    factor = torch.rsqrt(length.square() / x.shape[-1] + EPSILON)  # (..., 1)
    return x * factor, factor


class ToOne(torch.autograd.Function):
    """`bring_to_one` with its way back by hand: y = f x, so dx = f (dy - y mean(y dy)), the mean over the vector."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y, factor = bring_to_one(x)  # (..., d), (..., 1)
        ctx.save_for_backward(y, factor)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        y, factor = ctx.saved_tensors
        given = dy.to(y.dtype)
        shared = (y * given).mean(dim=-1, keepdim=True)  # (..., 1)
        return (torch.addcmul(given, y, shared, value=-1) * factor).to(dy.dtype)
