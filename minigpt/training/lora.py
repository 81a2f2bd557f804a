"""LoRA: the loaded weights are frozen, and a product of two thin matrices, which is trained, is added to some of them.

    output = x W^T + alpha / rank * x A^T B^T,    A (rank, in) random, B (out, rank) zero at the start

Paper: "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685). Only A and B have gradients and an
optimizer's state, which take most of the memory of a training. The adapters are those of the package peft. Merging
replaces W by W + alpha / rank * B A: the model has its original layers and names again. It needs no package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from minigpt.config.options import Count, Options, Range
from minigpt.fast.joined import has_hooks
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.system.places import with_extra

BASE, A, B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"  # peft's names


@dataclass(frozen=True, kw_only=True)
class LoRAConfig(Options):
    """Adapters beside the linear layers of the blocks."""

    rank: Annotated[int, Range(1, 4096)] = 8
    """The rank of the product, which is the width of the two thin matrices."""
    alpha: Count = 16
    """Their product is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("query", "value")
    """The names of the layers that get adapters, such as query, key, value, project, mlp.project, or in one block alone
    blocks.9.mlp.project; by default those of the paper."""


def adapted_layers(model: GPT, config: LoRAConfig) -> dict[str, nn.Linear]:
    """The layers that get adapters, by name. Raises UserError for a target that the model does not have, and for a
    layer whose output is not its input times a weight of its own: an adapter could not be merged into it."""
    linear = {f"blocks.{name}": m for name, m in model.blocks.named_modules() if isinstance(m, nn.Linear)}
    matches = {target: [name for name in linear if f".{name}".endswith(f".{target}")] for target in config.targets}
    for target, names in matches.items():
        if not names:
            layers = ", ".join(dict.fromkeys(name.split(".", 2)[2] for name in linear))
            raise UserError(f"training.lora.targets: no layer of this model is called {target!r} (there are: {layers})")
    adapted = {name: layer for name, layer in linear.items() if any(name in names for names in matches.values())}
    for name, layer in adapted.items():
        if type(layer).forward is not nn.Linear.forward or has_hooks(layer) or is_parametrized(layer):
            problem = "has a forward, a hook or a parametrisation of its own, which merging its adapter would change"
            raise UserError(f"training.lora.targets: {name} {problem}; name other layers")
    return adapted


def adapter_parameters(model: GPT, config: LoRAConfig) -> int:
    """How many numbers the adapters have; the model may be on the meta device."""
    layers = adapted_layers(model, config).values()
    return sum(config.rank * (layer.in_features + layer.out_features) for layer in layers)


def add_adapters(model: GPT, config: LoRAConfig, seed: int) -> None:
    """Put adapters into a model; all its other parameters are frozen. Raises UserError without peft."""
    names = list(adapted_layers(model, config))
    try:
        from peft import LoraConfig, inject_adapter_in_model  # takes seconds
    except ImportError:
        raise UserError(f"training.lora needs the package peft: {with_extra('lora')}") from None
    torch.manual_seed(seed)
    inject_adapter_in_model(LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=names), model)


def merged(tensors: Mapping[str, Tensor], config: LoRAConfig) -> dict[str, Tensor]:
    """The tensors of a model with adapters -> those of a model without. Raises ValueError if they do not fit together.

    Weights of adapted layers become W (out, in) + alpha / rank * B (out, rank) A (rank, in); all others stay.
    """
    plain = [name for name in tensors if ".lora_" not in name]
    weights = {name.replace(BASE, "."): tensors[name] for name in plain}
    layers = {name.removesuffix(A).removesuffix(B) for name in tensors if ".lora_" in name}
    for layer in sorted(layers):
        down, up, weight = tensors.get(layer + A), tensors.get(layer + B), weights.get(f"{layer}.weight")
        if down is None or up is None or weight is None or {down.ndim, up.ndim, weight.ndim} != {2}:
            raise ValueError(f"{layer}: an adapter without its other half, or without its layer")
        fits = weight.shape == (len(up), down.shape[1]) and up.shape[1] == len(down) == config.rank
        if not fits or not down.dtype == up.dtype == weight.dtype or not weight.is_floating_point():
            raise ValueError(f"{layer}: an adapter of another size or type than its layer")
        weights[f"{layer}.weight"] = weight + config.alpha / config.rank * (up @ down)  # (out, in)
    if len(weights) < len(plain):
        raise ValueError("a layer is there twice, with an adapter and without one")
    return weights


@torch.no_grad()
def merge(model: GPT, config: LoRAConfig) -> None:
    """Add the adapters of a model to its weights, in place, and remove them."""
    weights = merged(dict(model.named_parameters()), config)
    adapted = {name: m.base_layer for name, m in model.named_modules() if hasattr(m, "base_layer")}
    for name, layer in adapted.items():
        layer.weight.copy_(weights[f"{name}.weight"])
        model.set_submodule(name, layer)
    model.requires_grad_(True)
