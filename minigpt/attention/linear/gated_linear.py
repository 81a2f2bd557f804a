"""Gated linear attention: each channel of a key forgets at a rate of its own, which each token chooses.

    a_t = sigmoid(W2 W1 x_t + c)^(1/16)        S_t = diag(a_t) S_(t-1) + k_t v_t'

"Gated Linear Attention Transformers with Hardware-Efficient Training" (arXiv 2312.06635). New against Mamba-2: a gate
for each of the d channels instead of one for each head, and the gate does not change how strongly a token is written;
new against retention: the gate is computed from the token. With equal, constant gates it is retention. The exponent
1/16 keeps gates near one, so that most of the past is remembered; by default no gate falls below e^-5.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: GLA; HGRN2 and Kimi Linear also have a gate for each channel, computed in other ways.

The paper's layer in a model of width 128 without biases (`published.py`):

    {kind: gated_linear, head_dim: 16, value_dim: 32, gate: true, norm_weights: true, norm_epsilon: 1e-5,
     bounded: false}

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, r rank of the gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.linear.recurrent import FASTEST, Recurrent
from minigpt.attention.linear.retention import Retention, slow_decays
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import split_heads

RANK, ROOT = 16, 16


def bias_for(decay: Tensor) -> Tensor:
    """The bias for which sigmoid(bias)^(1/16) is exp(decay)."""
    return torch.logit((decay * ROOT).exp())


def same_gates(gated_linear: Any, retention: Any) -> None:
    """For every token, each channel has the decay that its head has in retention."""
    nn.init.zeros_(gated_linear.up.weight)
    gated_linear.up.bias.copy_(bias_for(slow_decays(gated_linear.n_head)).repeat_interleave(gated_linear.d))


def open_gates(gated_linear: Any, retention: Any) -> None:
    """Nothing is forgotten."""
    nn.init.zeros_(gated_linear.up.weight)
    nn.init.constant_(gated_linear.up.bias, 1e9)


class GatedLinear(Retention, kind="gated_linear"):
    """A key has d gates, one for each of its channels."""

    unsuited: ClassVar[Mapping[str, str]] = {
        **Recurrent.unsuited,
        "rotate": "a rotation mixes two channels that forget at different rates",
    }
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("retention", "the gates of a head are alike and constant", prepare=same_gates),
        Edge("retention", "every gate is one", other={"decay": "none"}, prepare=open_gates),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Retention.Config):
        without = ("decay", "convolution", "value_silu", "n_key_head")
        bounded: bool = True
        """Whether no gate falls below e^-5, so that chunks can divide by it; the paper's have no bound."""

    config: GatedLinear.Config

    def __init__(self, config: GatedLinear.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.down = nn.Linear(model.n_embd, RANK, bias=False)
        self.up = nn.Linear(RANK, config.n_head * self.d)
        start = bias_for(slow_decays(config.n_head))  # (H,): forgets as retention does
        self.up.bias.data.copy_(start.repeat_interleave(self.d))  # (H d,)

    def gates(self, x: Tensor) -> Tensor:
        gates = split_heads(self.up(self.down(x)), self.n_head)  # (B, H, T, d)
        precise = gates.to(torch.promote_types(x.dtype, torch.float32))  # (B, H, T, d)
        decays = F.logsigmoid(precise) / ROOT  # (B, H, T, d)
        return decays.clamp(min=FASTEST) if self.config.bounded else decays  # (B, H, T, d)
