"""The MLP of a block: what each position computes on its own from what attention has gathered. `gelu`, `gelu_tanh`,
`relu2`, and with a gate `swiglu`, `geglu`, `geglu_tanh`.

The kinds differ in their non-linearity; a kind of your own replaces `activation`, or `__init__` and `forward` too.

B batch, T positions, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention import Shape
from minigpt.config.options import Component, Size


class MLP(nn.Module, Component):
    """A wider hidden layer, a non-linearity, and back: (B, T, D) -> (B, T, D).

    With a gate, a second hidden layer goes through the non-linearity, and the first is multiplied by it (arXiv
    2002.05202).
    """

    gated: ClassVar[bool] = False

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        width: Size | None = None
        """Hidden units; by default 4 n_embd, and 8/3 n_embd with a gate, which is a third matrix."""

    def __init__(self, config: MLP.Config, model: Shape):
        super().__init__()
        self.config, D = config, model.n_embd
        width = config.width or (8 * D // 3 if self.gated else 4 * D)
        self.up = nn.Linear(D, width, bias=model.bias)
        if self.gated:
            self.gate = nn.Linear(D, width, bias=model.bias)
        self.project = nn.Linear(width, D, bias=model.bias)

    def activation(self, hidden: Tensor) -> Tensor:
        """The non-linearity: (B, T, width) -> (B, T, width)."""
        raise TypeError(f"{type(self).__name__} must define activation(hidden)")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)  # (B, T, width)
        hidden = self.activation(self.gate(x)) * hidden if self.gated else self.activation(hidden)  # (B, T, width)
        return self.project(hidden)  # (B, T, D)


class GELU(MLP, kind="gelu"):
    """x times the probability that a standard normal number is below x (arXiv 1606.08415), computed exactly."""

    def activation(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden)  # (B, T, width)


class TanhGELU(MLP, kind="gelu_tanh"):
    """GELU with that probability approximated by a tanh, as in GPT-2's own code: off by 0.0005 at most."""

    def activation(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden, approximate="tanh")  # (B, T, width)


class SquaredReLU(MLP, kind="relu2"):
    """The square of what is above zero ("Primer", arXiv 2109.08668)."""

    def activation(self, hidden: Tensor) -> Tensor:
        return F.relu(hidden).square()  # (B, T, width)


class SwiGLU(MLP, kind="swiglu"):
    """A gate of x sigmoid(x) (arXiv 2002.05202; Llama, arXiv 2302.13971)."""

    gated = True

    def activation(self, hidden: Tensor) -> Tensor:
        return F.silu(hidden)  # (B, T, width)


class GeGLU(GELU, kind="geglu"):
    """A gate of GELU (arXiv 2002.05202)."""

    gated = True


class TanhGeGLU(TanhGELU, kind="geglu_tanh"):
    """A gate of GELU by tanh (Gemma, arXiv 2403.08295)."""

    gated = True
