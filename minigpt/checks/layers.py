"""One layer of a model at a time: which are alike, so that one stands for all of them, and what a layer finds below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from minigpt.attention.cache import Past

INSIDE = ("_parameters", "_buffers", "_modules")  # attributes of a module, which are compared in another way


def alike(modules: Sequence[nn.Module]) -> list[list[int]]:
    """The indices of the modules in groups, those that are alike together, in the order of the first of each."""
    groups, different = list[list[int]](), list[list[Any]]()
    for index, module in enumerate(modules):
        own = contents(module)
        place = next((n for n, other in enumerate(different) if equal(own, other)), len(groups))
        if place == len(groups):
            groups.append([])
            different.append(own)
        groups[place].append(index)
    return groups


def contents(module: nn.Module) -> list[Any]:
    """What a module can branch on: the class, attributes, shapes of parameters and buffers of each of its parts."""
    listed = []
    for name, part in module.named_modules():
        cls = type(part).__mro__[is_parametrized(part)]  # torch makes a class for each layer with a parametrisation
        own = {key: value for key, value in vars(part).items() if key not in INSIDE}
        methods = {key: value.__func__ for key, value in own.items() if getattr(value, "__self__", None) is part}
        shapes = {key: (value.shape, value.dtype) for key, value in part.named_parameters(recurse=False)}
        buffers = {key: value.tolist() for key, value in part.named_buffers(recurse=False)}
        listed.append((name, cls, own | methods, shapes, buffers))
    return listed


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether two contents are equal; false where that cannot be told."""
    try:
        return one == other
    except (RuntimeError, TypeError, ValueError):  # `==` of tensors or arrays among the attributes is no bool
        return False


class AboveOthers(Past):
    """The past of a training pass of a layer whose layers below read x too, but only if this layer asks for them."""

    def __init__(self, read_below: Callable[[], Past | None]):
        self.lower: Past | None = None
        super().__init__()
        self.read_below = read_below

    @property
    def below(self) -> Past | None:
        """The past of the layer below, after its pass."""
        if self.lower is None:
            self.lower = self.read_below()
        return self.lower

    @below.setter
    def below(self, past: Past | None) -> None:
        self.lower = past
