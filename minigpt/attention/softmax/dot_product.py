"""Dot products: every token is compared with every other, x @ x^T, and nothing is learned.

    weights_t = softmax over s <= t of x_t . x_s,    out_t = sum over s of weights_ts x_s

New against the averages: the weights depend on the tokens. Query, key and value are all x. As they are, the scores are
too large: behind a norm |x|^2 = D, so a token sees itself alone, and without itself the one other that resembles it
most. `scaled` divides them by sqrt(D), which brings the products of different tokens to a variance of one (arXiv
1706.03762), and with `include_self: false` a token sees only the others.
Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token, x as key and as value. Used in lessons.

T query positions, S key positions, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.edge import Edge
from minigpt.attention.position import distance


class DotProduct(SoftmaxAttention, kind="dot_product"):
    """query = key = value = x (`qkv` of the base)."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("average_softmax", "x small, so that every score is near 0", size=1e-3, error=1e-4),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(SoftmaxAttention.Config):
        include_self: bool = True
        """Whether a position may look at itself. The first one, which has nothing else to look at, always does."""
        scaled: bool = False
        """Whether the scores are divided by sqrt(D), as those of all kinds with learned keys are."""

    config: DotProduct.Config

    def scale(self, query: Tensor) -> float:
        return super().scale(query) if self.config.scaled else 1.0

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        mask = super().mask(T, S, device)  # (T, S)
        if self.config.include_self:
            return mask
        others = mask & (distance(T, S, device) != 0)  # (T, S)
        return others | (mask & ~others.any(dim=-1, keepdim=True))  # (T, S)
