"""Mamba-2: retention in which each token chooses how much is forgotten, and how strongly it is written.

    d_t = softplus(W x_t + c)        a_t = exp(-exp(r) d_t)        S_t = a_t S_(t-1) + d_t k_t v_t'

"Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality"
(arXiv 2405.21060); its C, B and x are the query, key and value here. New against retention: the step d_t, computed from
the token, sets both how much is forgotten and how strongly the token is written; with d_t = 1 it is retention.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: Nemotron-H, Granite 4, Zamba2, Bamba.

The paper's layer in a model of width 128 without biases (`published.py`). All heads share one B and C; D x, a multiple
of the token's own value, is added; the norm is behind the gate, over all heads that share a key:

    {kind: mamba2, n_head: 8, head_dim: 64, value_dim: 32, n_key_head: 1, convolution: 4, value_silu: true, gate: true,
     skip: true, scaled: false, norm_weights: true, norm_epsilon: 1e-5, random_decays: true}

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
from minigpt.attention.linear.published import random_rates, random_steps
from minigpt.attention.linear.recurrent import Features, Recurrent, opposite_of_softplus
from minigpt.attention.linear.retention import Retention, slow_decays
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Shape, distance


def steps_of_one(mamba2: Any, retention: Any) -> None:
    """Every step is one, and each head has the decay that it has in retention."""
    nn.init.zeros_(mamba2.step.weight)
    nn.init.constant_(mamba2.step.bias, math.log(math.expm1(1)))
    mamba2.rate.copy_((-slow_decays(mamba2.n_head)).log())


class GroupNorm(nn.Module):
    """RMSNorm of the heads that share a key together, G groups of them: (B, H, T, e) -> (B, H, T, e)."""

    def __init__(self, G: int, features: int, epsilon: float):
        super().__init__()
        self.G, self.norm = G, RMSNorm(features, weights=False, epsilon=epsilon)
        self.weight = nn.Parameter(torch.ones(features))  # (H e,)

    def forward(self, x: Tensor) -> Tensor:
        B, H, T, e = x.shape
        normed = self.norm(x.transpose(1, 2).reshape(B, T, self.G, -1))  # (B, T, G, H / G e)
        return (normed.view(B, T, H, e) * self.weight.view(H, e)).transpose(1, 2).to(x.dtype)  # (B, H, T, e)


class Mamba2(Retention, kind="mamba2"):
    """A key has two gates: the logarithm of the decay, and the step."""

    convolution_bias = True

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("retention", "every step is one", {"features": "identity"}, prepare=steps_of_one),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Retention.Config):
        without: ClassVar[tuple[str, ...]] = ("decay",)
        features: Features = "silu"
        scaled: bool = True
        """Whether queries are divided by sqrt(d); the paper's are not."""
        skip: bool = False
        """Whether each head adds a learned multiple of a token's own value, as the paper's D x."""
        random_decays: bool = False
        """Whether decays start as the paper's: rates of 1 to 16, steps of 0.001 to 0.1; by default as retention's."""

    config: Mamba2.Config

    def __init__(self, config: Mamba2.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.step = nn.Linear(model.n_embd, config.n_head)
        self.rate = nn.Parameter(torch.zeros(config.n_head))  # (H,): exp(rate) is one
        self.step.bias.data.copy_(opposite_of_softplus(-slow_decays(config.n_head)))  # (H,): forgets as retention does
        if config.random_decays:
            self.rate.data.copy_(random_rates(config.n_head))
            self.step.bias.data.copy_(random_steps(config.n_head))
        if config.skip:
            self.skip = nn.Parameter(torch.ones(config.n_head))  # (H,)
        if config.norm_weights:
            groups = config.n_key_head or config.n_head
            self.norm = GroupNorm(groups, config.n_head * self.e, config.norm_epsilon)

    def gates(self, x: Tensor) -> Tensor:
        step = self.step(x).to(torch.promote_types(x.dtype, torch.float32))  # (B, T, H)
        step = F.softplus(step).mT[..., None]  # (B, H, T, 1)
        return torch.cat((-self.rate.exp()[:, None, None] * step, step), dim=-1)  # (B, H, T, 2)

    def scale(self) -> float:
        return super().scale() if self.config.scaled else 1.0

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        weights = super().weights(query, key)  # (B, H, T, S)
        if not self.config.skip:
            return weights
        own = distance(query.shape[2], key.shape[2], key.device) == 0  # (T, S)
        return weights + self.skip[:, None, None] * own  # (B, H, T, S)

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        state, mixed = super().advance(state, query, key, value)  # (B, H, d, e), (B, H, e)
        return state, mixed + self.skip[:, None] * value if self.config.skip else mixed

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        return {"written": key[..., self.d + 1], **super().stages(query, key)}  # (B, H, S), ...

    def ungated(self, key: Tensor) -> tuple[Tensor, Tensor]:
        key, gates = super().ungated(key)  # (..., d), (..., 2)
        return key * gates[..., 1:2], gates[..., :1]  # (..., d), (..., 1)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        opened = mixed * self.gates_of_output(x) if self.config.gate else mixed  # (B, H, T, e)
        return Recurrent.output(self, opened, x)  # (B, T, D): the norm is after the gate
