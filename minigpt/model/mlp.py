"""The MLP of a block: what each position computes on its own from what attention has gathered.

B batch, T positions, D model width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model.config import ModelConfig


class MLP(nn.Module):
    """A wider hidden layer, a non-linearity, and back: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.kind, D = config.mlp, config.n_embd
        width = config.mlp_width or (8 * D // 3 if config.mlp == "swiglu" else 4 * D)
        self.up = nn.Linear(D, width, bias=config.bias)
        if config.mlp == "swiglu":
            self.gate = nn.Linear(D, width, bias=config.bias)
        self.project = nn.Linear(width, D, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)  # (B, T, width)
        if self.kind == "swiglu":
            hidden = F.silu(self.gate(x)) * hidden  # (B, T, width)
        elif self.kind == "relu2":
            hidden = F.relu(hidden).square()  # (B, T, width)
        else:
            hidden = F.gelu(hidden)  # (B, T, width)
        return self.project(hidden)  # (B, T, D)
