"""Talking heads: before and after the softmax, each head mixes in what the other heads found.

    score[h] := sum over g of before[h, g] score[g]        weights[h] := sum over g of after[h, g] softmax(score[g])

Paper: "Talking-Heads Attention" (arXiv 2003.02436). Both matrices start at random, with a variance of 1/H. If both are
the identity, it is multi_head.
New against multi_head: two H x H matrices. Weights can be negative, and rows need not sum to one. The mixing needs all
weights in memory, so there is no fused kernel for it.

Cost: T^2 (D + H^2) for a text, T (D + H^2) for a written token. Cache: 2 D numbers a token. Used by CaiT.

B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead


def silent(talking_heads: TalkingHeads, multi_head: MultiHead) -> None:
    """No head mixes in another one."""
    for matrix in (talking_heads.before, talking_heads.after):
        nn.init.eye_(matrix)


class TalkingHeads(MultiHead, kind="talking_heads"):
    """Multi-head attention whose heads share scores and weights."""

    rows_sum_to_one = weights_nonnegative = False
    edges = (Edge("multi_head", "before = after = identity", prepare=silent),)

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        H = config.n_head
        self.before = nn.Parameter(torch.randn(H, H) / H**0.5)  # (H, H)
        self.after = nn.Parameter(torch.randn(H, H) / H**0.5)  # (H, H)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return talk(self.before, super().scores(query, key))  # (B, H, T, S)

    def normalise(self, scores: Tensor) -> Tensor:
        return talk(self.after, super().normalise(scores))  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        steps = super().stages(query, key)  # (B, H, T, S) each
        own, softmaxes = super().scores(query, key), super().normalise(steps["masked"])  # (B, H, T, S) each
        weights = {"weights": steps.pop("weights")}
        return one_by_one("score", self.before, own) | steps | one_by_one("softmax", self.after, softmaxes) | weights


def one_by_one(name: str, mixing: Tensor, heads: Tensor) -> dict[str, Tensor]:
    """Each of the heads (B, H, T, S), and how much of it goes into each head by mixing (H, H), for `stages`."""
    stages = dict[str, Tensor]()
    for g, head in enumerate(heads.split(1, dim=1)):  # (B, 1, T, S)
        stages |= {f"{name} {g + 1}": head, f"x {name} {g + 1}": mixing[:, g].expand(heads.shape[:2])}  # (B, H)
    return stages


def talk(mixing: Tensor, heads: Tensor) -> Tensor:
    """Row h of mixing (H, H) says how much of each head (B, H, T, S) goes into head h: (B, H, T, S)."""
    return torch.einsum("hg, bgts -> bhts", mixing.to(heads.dtype), heads)  # (B, H, T, S)
