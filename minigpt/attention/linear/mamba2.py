"""Mamba-2: retention in which each token chooses how much is forgotten, and how strongly it is written.

    d_t = softplus(W x_t + c)        a_t = exp(-exp(r) d_t)        S_t = a_t S_(t-1) + d_t k_t v_t'

"Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality"
(arXiv 2405.21060); its C, B and x are the query, key and value here. New against retention: the step d_t, computed from
the token, sets both how much is forgotten and how strongly the token is written; with d_t = 1 it is retention. The
paper's short convolution, its gate on the output and its skip connection are left out, and each head has its own keys.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: Nemotron-H, Granite 4, Zamba2, Bamba.

B batch, H heads, T positions, D model width, d width of a query and a key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.linear.recurrent import Features, opposite_of_softplus
from minigpt.attention.linear.retention import Retention, slow_decays
from minigpt.attention.position import Shape


def steps_of_one(mine: Any, retention: Any) -> None:
    """Every step is one, and each head has the decay that it has in retention."""
    nn.init.zeros_(mine.step.weight)
    nn.init.constant_(mine.step.bias, math.log(math.expm1(1)))
    mine.rate.copy_((-slow_decays(mine.n_head)).log())


class Mamba2(Retention, kind="mamba2"):
    """A key has two gates: the logarithm of the decay, and the step."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("retention", "every step is one", {"features": "identity"}, prepare=steps_of_one),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Retention.Config):
        without = ("decay",)
        features: Features = "silu"

    def __init__(self, config: Mamba2.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.step = nn.Linear(model.n_embd, config.n_head)
        self.rate = nn.Parameter(torch.zeros(config.n_head))  # (H,): exp(rate) is one
        self.step.bias.data.copy_(opposite_of_softplus(-slow_decays(config.n_head)))  # (H,): forgets as retention does

    def gates(self, x: Tensor) -> Tensor:
        step = self.step(x).to(torch.promote_types(x.dtype, torch.float32))  # (B, T, H)
        step = F.softplus(step).mT[..., None]  # (B, H, T, 1)
        return torch.cat((-self.rate.exp()[:, None, None] * step, step), dim=-1)  # (B, H, T, 2)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        return {"written": key[..., self.d + 1], **super().stages(query, key)}  # (B, H, S), ...

    def ungated(self, key: Tensor) -> tuple[Tensor, Tensor]:
        key, gates = super().ungated(key)  # (..., d), (..., 2)
        return key * gates[..., 1:2], gates[..., :1]  # (..., d), (..., 1)
