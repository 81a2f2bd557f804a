"""Gated DeltaNet: the state fades, and then a token replaces what is left of the value of its key.

    S_t = a_t S_(t-1) + b_t k_t (v_t - k_t a_t S_(t-1))'        a_t = exp(-exp(r) softplus(W x_t + c))

"Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv 2412.06464). New against DeltaNet: Mamba-2's decay a_t,
which fades the whole state, where a write replaces the value of one key; new against Mamba-2: the write. With decays of
one it is DeltaNet, with small b it is Mamba-2.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: Qwen3-Next, Qwen3.5, three layers of four.

The paper's layer in a model of width 128 without biases (`published.py`); Qwen3-Next's has half as many heads of keys:

    {kind: gated_delta_net, n_head: 3, head_dim: 32, value_dim: 64, convolution: 4, value_silu: true, gate: true,
     norm_weights: true, norm_epsilon: 1e-5, write_bias: false, random_decays: true}

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.linear.delta_net import DeltaNet, replaced
from minigpt.attention.linear.published import random_rates, random_steps
from minigpt.attention.linear.recurrent import opposite_of_softplus, products
from minigpt.attention.linear.retention import slow_decays
from minigpt.attention.position import Shape


def nothing_forgotten(gated_delta_net: Any, delta_net: Any) -> None:
    """exp(rate) is zero, so every decay is one."""
    nn.init.constant_(gated_delta_net.rate, -1e3)


def writes_that_are_steps(gated_delta_net: Any, mamba2: Any) -> None:
    """The strength of a write is Mamba-2's step: near 0, sigmoid equals softplus. A large rate undoes the factor."""
    mamba2.step.weight.mul_(0.1)
    nn.init.constant_(mamba2.step.bias, -14)
    nn.init.constant_(mamba2.rate, 11)
    gated_delta_net.rate.copy_(mamba2.rate)
    for layer in (gated_delta_net.write, gated_delta_net.forget):
        layer.load_state_dict(mamba2.step.state_dict())
    for kind in (gated_delta_net, mamba2):
        kind.value.weight.mul_(1e6)
        kind.value.bias.mul_(1e6)


class GatedDeltaNet(DeltaNet, kind="gated_delta_net"):
    """A key has two gates: how much is replaced, and the logarithm of the decay."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("delta_net", "a = 1", prepare=nothing_forgotten),
        Edge("mamba2", "b -> 0, and is the step", {}, {"features": "unit"}, writes_that_are_steps, error=1e-4),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(DeltaNet.Config):
        without: ClassVar[tuple[str, ...]] = ("features",)
        random_decays: bool = False
        """Whether decays start as the paper's: rates up to 16, steps of 0.001 to 0.1; by default as retention's."""

    config: GatedDeltaNet.Config

    def __init__(self, config: GatedDeltaNet.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.forget = nn.Linear(model.n_embd, config.n_head)
        self.rate = nn.Parameter(torch.zeros(config.n_head))  # (H,): exp(rate) is one
        self.forget.bias.data.copy_(opposite_of_softplus(-slow_decays(config.n_head)))  # (H,): as retention at first
        if config.random_decays:
            self.rate.data.copy_(random_rates(config.n_head, lowest=0))
            self.forget.bias.data.copy_(random_steps(config.n_head))

    def gates(self, x: Tensor) -> Tensor:
        strength = super().gates(x)  # (B, H, T, 1)
        forget = F.softplus(self.forget(x).to(strength.dtype)).mT[..., None]  # (B, H, T, 1)
        return torch.cat((strength, -self.rate.exp()[:, None, None] * forget), dim=-1)  # (B, H, T, 2)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        key, gates = self.ungated(key)  # (B, H, S, d), (B, H, S, g)
        strength, log_decay = gates[..., :1], gates[..., 1:]  # (B, H, S, 1), (B, H, S, g - 1)
        return replaced(products(query, key, log_decay), products(key, key, log_decay), strength)  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        decay = key[..., self.d + 1 :].exp().mean(dim=-1)  # (B, H, S)
        return {"kept": decay, **super().stages(query, key)}

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key, log_decay = key[..., : self.d + 1], key[..., self.d + 1 :]  # (B, H, d + 1), (B, H, g - 1)
        return super().advance(state * log_decay.exp()[..., None], query, key, value)  # (B, H, d, e), (B, H, e)
