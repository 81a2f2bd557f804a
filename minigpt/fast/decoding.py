"""A copy of a model for writing one token at a time, when memory bandwidth and the calls themselves set the speed.

    prepared = prepare(run.model, "int8")
    for token in generate(prepared, ids, config): ...

Linear layers contain most of the weights, so they are replaced from outside, for every kind of attention.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.config.options import Component
from minigpt.fast.joined import as_one, has_hooks, join, joinable, parts_to_join
from minigpt.fast.packed import Weights, exchanged, packs
from minigpt.fast.switch import make_fast
from minigpt.model.gpt import GPT, Cache
from minigpt.model.sampling import SamplingConfig


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(SamplingConfig):
    """How text is sampled, and how the weights are stored for it."""

    weights: Weights = "float32"
    """How the model's weights are stored while it writes: bfloat16 and int8 are faster and slightly less exact."""


JOINED, IN_BLOCKS, DIRECT_CALLS, NO_ONEDNN = "joined layers", "weights in blocks", "direct calls", "no oneDNN"
TRICKS = (JOINED, IN_BLOCKS, DIRECT_CALLS, NO_ONEDNN)  # can be turned off by name, besides those of `switch`


def hidden_without_onednn(self: GPT, ids: Tensor, cache: Cache | None = None) -> Tensor:
    """`GPT.hidden`. torch hands GELU and other small operations to oneDNN, whose call takes longer than they do."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return type(self).hidden(self, ids, cache)
    finally:
        torch._C._set_mkldnn_enabled(before)


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """The output of the norm for x, by a direct call of torch's function."""
    return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def make_direct(module: nn.Module) -> nn.Module:
    """Call a module without torch's check for hooks, if it has none: a call takes half the time."""
    vars(module).update(module._modules, **module._parameters)  # found as attributes, without a search
    kind = type(module)
    call: Callable[..., Any] = layer_norm if kind.forward is nn.LayerNorm.forward else kind.forward
    if "forward" in vars(module).get("faster", ()):
        call = vars(module).pop("forward").__func__
    if not has_hooks(module):
        if (kind, call) not in DIRECT:
            DIRECT[kind, call] = called_by(kind, call)
        module.__class__ = DIRECT[kind, call]
    return module


def called_by(kind: type[nn.Module], call: Callable[..., Any]) -> type[nn.Module]:
    """A class like `kind`, whose instances are called by a function: it keeps the name that a config chooses it by."""
    subclass = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__call__": call})
    if issubclass(kind, Component):
        subclass.kind = kind.kind  # type: ignore[attr-defined]
    return subclass


DIRECT: dict[tuple[type[nn.Module], Callable[..., Any]], type[nn.Module]] = {}


class NoDropout(nn.Module):
    """Dropout in evaluation mode: the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@torch.no_grad()
def prepare(model: GPT, weights: Weights = "float32", without: Collection[str] = ()) -> GPT:
    """A model for decoding that writes the same text as `model`. It shares the parameters of `model`, except those of
    linear layers, whose weights it copies: joined where layers have one input, in blocks where that is faster on a CPU.

    "bfloat16" and "int8" read a half and a quarter of the bytes, and change the logits slightly; `Run.loss_with`
    measures by how much. On a CPU, all other parameters stay in float32, in which torch's attention is faster there;
    where no kernel takes such a mixture, they are in bfloat16 too. `without` names TRICKS to leave out.
    """
    packed, memo = packs(weights, model.tokens.weight), {id(tensor): tensor.detach() for tensor in made_by(model)}
    if weights == "float32" or packed:
        decoder = copy.deepcopy(model, memo | {id(parameter): parameter for parameter in model.parameters()})
    else:
        decoder = copy.deepcopy(model, memo).to(torch.bfloat16)
    if "faster" not in vars(decoder):
        make_fast(decoder)
    lone = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear and not has_hooks(layer)}
    for name, module in model.named_modules():
        names = [f"{name}.{part}" for part in parts_to_join(module)]
        layers = [lone[name] for name in names if name in lone]
        if len(layers) == len(names) and joinable(layers) and JOINED not in without:
            one = as_one(layers) if IN_BLOCKS in without else exchanged(as_one(layers), weights, packed)
            join(decoder.get_submodule(name), one if DIRECT_CALLS in without else make_direct(one))
            for part in names:
                del lone[part]
    for name, layer in lone.items():
        if IN_BLOCKS not in without:
            decoder.set_submodule(name, exchanged(layer, weights, packed))
    for name, module in list(decoder.named_modules()):
        if type(module) is nn.Dropout:
            decoder.set_submodule(name, NoDropout())
    for module in decoder.modules():
        if DIRECT_CALLS not in without:
            make_direct(module)
    if packed and NO_ONEDNN not in without:
        vars(decoder)["hidden"] = MethodType(hidden_without_onednn, decoder)
    return decoder.eval()


def made_by(model: nn.Module) -> list[Tensor]:
    """Tensors that a model computed and stored, such as its last attention map: torch does not deepcopy them."""
    values, tensors = [value for module in model.modules() for value in vars(module).values()], list[Tensor]()
    while values:
        value = values.pop()
        if isinstance(value, Tensor) and not value.is_leaf:
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            values += value
        elif isinstance(value, dict):
            values += value.values()
    return tensors
