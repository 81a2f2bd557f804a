"""How weights start: as their own module set them, or, if it left them as torch drew them, as in GPT-2.

A module may set its weights in any way: by `torch.nn.init`, by `weight.data.fill_`, by an `nn.Parameter` of its own.
So the numbers themselves are compared: a weight is initialised here only if it still holds what torch drew for a fresh
`nn.Linear` or `nn.Embedding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager

import torch
from torch import Tensor, nn

LAYERS = (nn.Linear, nn.Embedding)


@contextmanager
def noting_draws() -> Iterator[Set[float]]:
    """Record the checksums of all weights that torch draws for linear layers and embeddings made inside the `with`."""
    drawn, torchs = set[float](), {layer: layer.reset_parameters for layer in LAYERS}

    def noting(reset: Callable[..., None]) -> Callable[..., None]:
        def reset_parameters(self: nn.Module) -> None:
            reset(self)
            drawn.update(map(checksum, self.parameters(recurse=False)))

        return reset_parameters

    for layer, reset in torchs.items():
        layer.reset_parameters = noting(reset)  # type: ignore[method-assign]
    try:
        yield drawn
    finally:
        for layer, reset in torchs.items():
            layer.reset_parameters = reset  # type: ignore[method-assign]


def initialise(model: nn.Module, drawn: Set[float], n_layer: int) -> None:
    """Initialise all parameters that are still as torch drew them, as in GPT-2: weights normal, biases zero."""
    for name, parameter in layer_parameters(model):
        if checksum(parameter) in drawn:
            start(name, parameter, n_layer)


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
