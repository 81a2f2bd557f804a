"""A gated output: each token says how much of what its heads found is let through, feature by feature.

    output = project(sigmoid(gate(x)) * mixed)

Paper: "Gated Attention for Large Language Models: Non-linearity, Sparsity, and Attention-Sink-Free" (arXiv 2505.06708):
of the places for a gate that the paper tried, this one, after the mean and before the projection, was the best.
New against multi_head: `output`. A gate can close a head that found nothing, so the first token need not be a sink; and
the gate makes the path from values to output non-linear. The gate starts near one half, as in the paper; training
corrects this factor.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used by Qwen3-Next, Qwen3.5.

B batch, T positions, H heads, D model width, d width of a head.
"""

from __future__ import annotations

from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead, split_heads


def opened(gated: Gated, multi_head: MultiHead) -> None:
    """A gate of one for every token."""
    gated.gate.weight.zero_()
    gated.gate.bias.fill_(100.0)


class Gated(MultiHead, kind="gated"):
    """Multi-head attention behind a gate for each feature."""

    edges = (Edge("multi_head", "gate = 1", prepare=opened),)

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Linear(model.n_embd, self.project.in_features, bias=model.bias)

    def gates_of_output(self, x: Tensor) -> Tensor:
        """What each feature of the output for x (B, T, D) is multiplied by: (B, H, T, d)."""
        return split_heads(self.gate(x), self.n_head).sigmoid()

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(self.gates_of_output(x) * mixed, x)  # (B, T, D)
