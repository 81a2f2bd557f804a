"""RMSNorm: divides every vector by its root mean square ("Root Mean Square Layer Normalization", arXiv 1910.07467).

It keeps the residual stream, and queries and keys, at one scale. New against LayerNorm: no mean is subtracted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-6  # keeps a vector of zeros from being divided by zero


class RMSNorm(nn.Module):
    """x (..., d) -> (..., d), of the dtype of x; with `weights`, it learns a scale for each feature."""

    def __init__(self, d: int, weights: bool = True, epsilon: float = EPSILON):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(d)) if weights else None

    def forward(self, x: Tensor) -> Tensor:
        precise = x.to(torch.promote_types(x.dtype, torch.float32))  # (..., d)
        y = precise * torch.rsqrt(precise.square().mean(dim=-1, keepdim=True) + self.epsilon)  # (..., d)
        return (y if self.weight is None else y * self.weight).to(x.dtype)  # (..., d)


class HeadNorm(RMSNorm):
    """RMSNorm of queries or keys (B, H, T, d) -> (B, H, T, d): of each head, or with `whole` of all H d features."""

    def __init__(self, H: int, d: int, whole: bool, epsilon: float):
        super().__init__(H * d if whole else d, epsilon=epsilon)
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        if not self.whole:
            return super().forward(x)  # (B, H, T, d)
        together = super().forward(x.transpose(1, 2).flatten(2))  # (B, T, H d)
        return together.unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)  # (B, H, T, d)
