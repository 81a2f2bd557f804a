"""Several linear layers of one input, made by one product of all their weights, which takes less time than several.

B batch, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MANY = 64  # rows, from which it pays to lay the weights side by side each time


def side_by_side(x: Tensor, *layers: nn.Linear) -> Tensor:
    """What the layers make of x (B, T, D), one beside the other: (B, T, sum of widths).

    Layers of another make, and layers that somebody watches or has changed from outside, are called one by one.
    """
    joined: tuple[tuple[nn.Module, ...], nn.Module] | None = vars(layers[0]).get("joined")
    if joined is not None and joined[0] == layers:  # they lie side by side already: `decoding.prepare`
        made: Tensor = joined[1](x)
        return made
    if x.shape[0] * x.shape[1] < MANY or not joinable(layers):
        return torch.cat([layer(x) for layer in layers], dim=-1)
    return F.linear(x, *joined_weights(layers))


def joined_weights(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weights (sum of widths, D) and biases (sum of widths) of the layers as of one."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return torch.cat(weights), torch.cat(biases) if biases else None


def joinable(layers: Sequence[nn.Module]) -> bool:
    """Whether these are linear layers of one input, as they were made, all with biases or all without."""
    if any(type(layer) is not nn.Linear or watched(layer) for layer in layers):
        return False
    return len({(layer.in_features, layer.bias is None) for layer in layers}) == 1


def watched(module: nn.Module) -> bool:
    """Whether somebody looks on when a module is called, or has put something else in place of its `forward`."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)
