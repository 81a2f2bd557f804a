"""Differential attention: one softmax minus a share of another, so that what both attend to alike cancels.

    weights = softmax(score) - lambda softmax(other score)
    lambda = exp(a . b) - exp(c . d) + start,    start = 0.8 - 0.6 exp(-0.3 layer)

a, b, c and d are learned vectors, near zero at first. Each head's output is RMS-normalised and multiplied by 1 - start,
so that the gradients are as large as those of multi_head.
Paper: "Differential Transformer" (arXiv 2410.05258). A head has two queries and two keys of width d and values of width
2 d, as many numbers as two heads of multi_head.
New against multi_head: two heads share their values, and one is subtracted. Weights can be negative.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used by Phi-4-mini-flash-reasoning.

B batch, T query positions, S key positions, H heads, D model width, d width of a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead, split_heads
from minigpt.system.errors import Mistake


def nothing_taken(differential: Differential, multi_head: MultiHead) -> None:
    """lambda = 0; each head of this kind equals two heads of multi_head with equal queries and keys."""
    differential.shares.zero_()
    differential.shares[1, :, 0] = math.log1p(differential.start) ** 0.5
    for name in ("query", "key"):
        for layer, twice in zip(getattr(differential, name).parameters(), getattr(multi_head, name).parameters()):
            heads = layer.unflatten(0, (differential.n_head, -1))  # (H, d, D) or (H, d)
            twice.copy_(heads.repeat_interleave(2, dim=0).flatten(0, 1))


class Differential(MultiHead, kind="differential"):
    """`n_head` heads of two queries and two keys each."""

    rows_sum_to_one = weights_nonnegative = False
    edges = (
        Edge(
            "multi_head",
            "lambda = 0, no norm",
            own={"n_head": 2, "head_norm": False},
            other={"n_head": 4},
            prepare=nothing_taken,
            without=("bias",),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        without = ("qk_norm", "qk_norm_epsilon")
        meaning: ClassVar[dict[str, str]] = {"head_dim": "of one of two queries"}

        head_norm: bool = True
        """Whether each head's output is RMS-normalised; the paper's ablation leaves that out."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            if self.head_dim is None and model.n_embd % (2 * self.n_head):
                heads = f"{self.n_head} heads of two queries each"
                yield "n_head", f"{heads} do not divide n_embd, {model.n_embd}; set head_dim or change one"

    config: Differential.Config

    def __init__(self, config: Differential.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D, H = model.n_embd, config.n_head
        d = config.head_dim or D // (2 * H)
        bias, project_bias = (model.bias if own is None else own for own in (config.qkv_bias, config.project_bias))
        self.query, self.key = (nn.Linear(D, H * d, bias=bias) for _ in range(2))
        self.other_query, self.other_key = (nn.Linear(D, H * d, bias=bias) for _ in range(2))
        self.value, self.project = nn.Linear(D, 2 * H * d, bias=bias), nn.Linear(2 * H * d, D, bias=project_bias)
        self.norm = RMSNorm(2 * d) if config.head_norm else None
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.shares = nn.Parameter(0.1 * torch.randn(2, 2, d))  # (2, 2, d): a and b, c and d

    def taken(self) -> Tensor:
        """lambda, the share of the other softmax that is subtracted: a number."""
        first, second = self.shares.to(torch.promote_types(self.shares.dtype, torch.float32)).prod(dim=1)  # (d,) each
        return first.sum().exp() - second.sum().exp() + self.start  # ()

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        H, start = self.n_head, past.length
        query = split_heads(torch.cat((self.query(x), self.other_query(x)), dim=-1), 2 * H)  # (B, 2H, T, d)
        key = split_heads(torch.cat((self.key(x), self.other_key(x)), dim=-1), 2 * H)  # (B, 2H, T, d)
        value = split_heads(self.value(x), H)  # (B, H, T, 2d)
        return self.position.rotate(query, start), self.position.rotate(key, start), value

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        first, second = map(super().weights, query.chunk(2, dim=1), key.chunk(2, dim=1))  # (B, H, T, S) each
        return first - self.taken().to(first.dtype) * second  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        first, second = map(super().weights, query.chunk(2, dim=1), key.chunk(2, dim=1))  # (B, H, T, S) each
        share = self.taken().expand(first.shape[:2])  # (B, H)
        parts = {"softmax": first, "x softmax": torch.ones_like(share), "other softmax": second}
        return {**parts, "x other softmax": -share, "weights": self.weights(query, key)}

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        if self.norm is not None:
            mixed = self.norm(mixed) * (1 - self.start)  # (B, H, T, 2d)
        return super().output(mixed, x)  # (B, T, D)
