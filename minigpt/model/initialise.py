"""How weights start: as their own module set them, or, if it left them as torch drew them, as in GPT-2.

A module may set its weights in any way: by `torch.nn.init`, by `weight.data.fill_`, by an `nn.Parameter` of its own.
So the numbers themselves are compared: a weight is initialised here only if it still holds what torch drew for a fresh
`nn.Linear` or `nn.Embedding`. Tensors from which a parametrisation computes a weight belong to no such layer, and stay.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LAYERS = (nn.Linear, nn.Embedding)
DRAWS = {layer.reset_parameters.__code__ for layer in LAYERS}  # the code of torch that draws a layer's weights


class Draws(TorchFunctionMode):
    """Knows the weights that torch has drawn for linear layers and embeddings, in this thread and inside the `with`.

    torch asks a mode before each of its functions, so it is seen when a layer is drawn, and when that is done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums = set[float]()
        self.layer: nn.Module | None = None  # is being drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = layer_being_drawn(sys._getframe(1))
        if layer is not self.layer:
            self.finish()
            self.layer = layer
        return func(*args, **(kwargs or {}))

    def finish(self) -> None:
        """Record the weights of the layer that was drawn last, before anybody can change them."""
        if self.layer is not None:
            self.sums.update(map(checksum, self.layer.parameters(recurse=False)))
        self.layer = None

    def __contains__(self, parameter: object) -> bool:
        assert isinstance(parameter, Tensor)
        self.finish()
        return checksum(parameter) in self.sums


def layer_being_drawn(frame: FrameType | None) -> nn.Module | None:
    """The layer whose weights torch draws in one of the calls that have led to `frame`."""
    while frame is not None and frame.f_code not in DRAWS:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


def initialise(model: nn.Module, initialised: Container[Tensor], n_layer: int) -> None:
    """Initialise all parameters that are still as torch drew them, as in GPT-2: weights normal, biases zero. Those that
    were made equal, such as the keys of `self.key.load_state_dict(self.query.state_dict())`, stay equal.
    """
    started = dict[float, Tensor]()
    for name, parameter in layer_parameters(model):
        if parameter not in initialised:
            continue
        before = checksum(parameter)
        if before in started and started[before].shape == parameter.shape:
            parameter.data.copy_(started[before])
        else:
            start(name, parameter, n_layer)
            started[before] = parameter


def layer_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of linear layers and embeddings by name, in the order in which they are drawn."""
    for name, module in model.named_modules():
        for kind, parameter in module.named_parameters(recurse=False) if isinstance(module, LAYERS) else ():
            yield f"{name}.{kind}", parameter


def start(name: str, parameter: Tensor, n_layer: int) -> None:
    """Initialise one parameter as in GPT-2."""
    layer, _, kind = name.rpartition(".")
    if kind == "bias":
        nn.init.zeros_(parameter)
    else:
        nn.init.normal_(parameter, std=0.02 / (2 * n_layer) ** 0.5 if layer.endswith("project") else 0.02)


@torch.no_grad()
def checksum(parameter: Tensor) -> float:
    """The sum of all numbers, different for any two draws. NaN, which equals nothing, if the parameter has none."""
    empty = parameter.is_meta or nn.parameter.is_lazy(parameter) or not parameter.numel()
    return float("nan") if empty else parameter.float().sum().item()
