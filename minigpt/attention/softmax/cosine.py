"""Cosines: queries and keys are compared by direction alone, and one learned number says how sharply.

    score[t, s] = sharpness cos(query[t], key[s])

Paper: "Query-Key Normalization for Transformers" (arXiv 2010.04245), where the sharpness starts at log2(n^2 - n), n the
length of the texts: small enough that no random key gets all weight, and large enough that a matching key can.
New against multi_head: no score exceeds the sharpness, and there is no 1/sqrt(d). `qk_norm`, a later form of this idea,
learns a scale for each feature instead, and keeps 1/sqrt(d).

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used by Swin V2, which adds a bias.

B batch, T positions, H heads, d width of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead


def as_sharp(cosine: Cosine, multi_head: MultiHead) -> None:
    """The sharpness that equals `qk_norm` with scales of one: sqrt(d)."""
    cosine.sharpness.fill_((cosine.query.out_features / cosine.n_head) ** 0.5)
    for scale in (*multi_head.query_norm.parameters(), *multi_head.key_norm.parameters()):
        nn.init.ones_(scale)


class Cosine(MultiHead, kind="cosine"):
    """Multi-head attention that ignores the lengths of queries and keys."""

    edges = (
        Edge(
            "multi_head",
            "sharpness = sqrt(d): qk_norm",
            own={"n_head": 2},
            other={"n_head": 2, "qk_norm": True},
            prepare=as_sharp,
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        without = ("qk_norm", "qk_norm_epsilon", "scaled", "score_scale")

    config: Cosine.Config

    def __init__(self, config: Cosine.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        n, d = max(model.block_size, 2), self.query.out_features // config.n_head
        self.query_norm = self.key_norm = RMSNorm(d, weights=False)  # makes each vector as long as sqrt(d)
        self.sharpness = nn.Parameter(torch.tensor([math.log2(n * n - n)]))  # (1,)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)  # (B, H, T, d) each
        return query * self.sharpness.to(query.dtype), key, value

    def scale(self, query: Tensor) -> float:
        return 1 / query.shape[-1]
