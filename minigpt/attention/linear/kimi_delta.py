"""Kimi delta attention: Gated DeltaNet in which each channel of a key fades at a rate of its own.

    S_t = A_t S_(t-1) + b_t k_t (v_t - k_t A_t S_(t-1))'        A_t = diag(exp(-exp(r) softplus(W2 W1 x_t + c)))

"Kimi Linear: An Expressive, Efficient Attention Architecture" (arXiv 2510.26692). New against Gated DeltaNet: a decay
for each of the d channels, as in gated linear attention. With equal decays it is Gated DeltaNet, with small b it is
gated linear attention. By default no decay falls below e^-5.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: Kimi Linear, three layers of four.

The paper's layer in a model of width 128 without biases (`published.py`); its gate is a sigmoid of rank e:

    {kind: kimi_delta, convolution: 4, value_silu: true, gate: true, norm_weights: true, norm_epsilon: 1e-5,
     write_bias: false, random_decays: true, bounded: false}

B batch, H heads, T positions, D model width, d width of a query and a key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.linear.delta_net import DeltaNet, weak_writes
from minigpt.attention.linear.gated_delta_net import GatedDeltaNet, nothing_forgotten
from minigpt.attention.linear.gated_linear import ROOT
from minigpt.attention.linear.published import random_rates, random_steps
from minigpt.attention.linear.recurrent import FASTEST, Recurrent
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import split_heads


def same_decays(kimi_delta: Any, gated_delta_net: Any) -> None:
    """Every channel has the decay of its head in the other kind: the first H of the d inner features are the heads."""
    H, d = kimi_delta.n_head, kimi_delta.d
    kimi_delta.down.weight[:H] = gated_delta_net.forget.weight
    nn.init.zeros_(kimi_delta.forget.weight)
    for head in range(H):
        kimi_delta.forget.weight[head * d : (head + 1) * d, head] = 1
    kimi_delta.forget.bias.copy_(gated_delta_net.forget.bias.repeat_interleave(d))


def weak_writes_and_its_gates(kimi_delta: Any, gated_linear: Any) -> None:
    """Weak writes, and equal gates: log sigmoid(z) / 16 = -softplus(-z) / 16."""
    weak_writes(kimi_delta, gated_linear)
    nn.init.constant_(kimi_delta.rate, -math.log(ROOT))
    gated_linear.down.weight[: kimi_delta.d] = kimi_delta.down.weight
    nn.init.zeros_(gated_linear.up.weight)
    gated_linear.up.weight[:, : kimi_delta.d] = -kimi_delta.forget.weight
    gated_linear.up.bias.copy_(-kimi_delta.forget.bias)


class KimiDelta(GatedDeltaNet, kind="kimi_delta"):
    """A key has 1 + d gates. The projection to the gates of the channels has rank d."""

    unsuited: ClassVar[Mapping[str, str]] = {
        **Recurrent.unsuited,
        "rotate": "a rotation mixes two channels that fade at different rates",
    }
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("gated_delta_net", "the decays of a head are alike", prepare=same_decays),
        Edge("delta_net", "a = 1", prepare=nothing_forgotten),
        Edge("gated_linear", "b -> 0", other={"features": "unit"}, prepare=weak_writes_and_its_gates, error=1e-4),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GatedDeltaNet.Config):
        without = ("features", "n_key_head")
        bounded: bool = True
        """Whether no decay falls below e^-5, so that chunks can divide by it; the paper's have no bound."""

    config: KimiDelta.Config

    def __init__(self, config: KimiDelta.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        start = self.forget.bias.data.repeat_interleave(self.d)  # (H d,): each channel as its head
        self.down = nn.Linear(model.n_embd, self.d, bias=False)
        self.forget = nn.Linear(self.d, config.n_head * self.d)
        self.forget.bias.data.copy_(start)
        if config.random_decays:
            self.rate.data.copy_(random_rates(config.n_head))
            self.forget.bias.data.copy_(random_steps(config.n_head * self.d))
        if config.gate:
            self.gate_down = nn.Linear(model.n_embd, self.e, bias=False)
            self.gate = nn.Linear(self.e, config.n_head * self.e, bias=model.bias)

    def gates(self, x: Tensor) -> Tensor:
        strength = DeltaNet.gates(self, x)  # (B, H, T, 1)
        forget = F.softplus(split_heads(self.forget(self.down(x)), self.n_head).to(strength.dtype))  # (B, H, T, d)
        decays = -self.rate.exp()[:, None, None] * forget  # (B, H, T, d)
        decays = decays.clamp(min=FASTEST) if self.config.bounded else decays  # (B, H, T, d)
        return torch.cat((strength, decays), dim=-1)  # (B, H, T, 1 + d)

    def gates_of_output(self, x: Tensor) -> Tensor:
        return split_heads(self.gate(self.gate_down(x)), self.n_head).sigmoid()  # (B, H, T, e)
