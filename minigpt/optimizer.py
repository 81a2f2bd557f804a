"""Optimizers: how gradients become steps. `adamw` for everything, or `muon` for the matrices inside the blocks.

Each kind says which parameters go to which of torch's own optimizers; learning rates are multiplied by one schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.config import Component, NonNegative, Positive, Rate
from minigpt.model import GPT
from minigpt.strict_yaml import UserError

MEMORY = {torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}, torch.optim.Muon: {"momentum_buffer"}}  # a parameter


class Optimizer(Component):
    """One or more of torch's optimizers that step together."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        learning_rate: Positive = 1e-3
        """The largest learning rate, reached after the warm-up."""
        weight_decay: NonNegative = 0.1
        """How fast matrices shrink toward zero (decoupled, arXiv 1711.05101); vectors never do."""
        beta1: Rate = 0.9
        """How long AdamW remembers gradients."""
        beta2: Rate = 0.99
        """How long AdamW remembers the squares of gradients."""

    def __init__(self, config: Any, model: GPT):
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.parts = self.make_parts(config, model)
        self.base_rates = [[group["lr"] for group in part.param_groups] for part in self.parts]

    def make_parts(self, config: Any, model: GPT) -> list[torch.optim.Optimizer]:
        """Which parameters go to which optimizer."""
        raise TypeError(f"{type(self).__name__} must define make_parts(config, model)")

    def step(self, factor: float) -> None:
        """One step with every learning rate multiplied by `factor`, then the gradients are dropped."""
        for part, rates in zip(self.parts, self.base_rates):
            for group, rate in zip(part.param_groups, rates):
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """What the optimizers remember, as tensors named `parameter|key`."""
        return {
            f"{self.names[parameter]}|{key}": value
            for part in self.parts
            for parameter, memory in part.state.items()
            for key, value in memory.items()
        }

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`. Raises UserError for anything that these optimizers would not remember."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owner = {p: part for part in self.parts for group in part.param_groups for p in group["params"]}
        keys: dict[str, set[str]] = {}
        for name, value in tensors.items():
            parameter_name, _, key = name.rpartition("|")
            if parameter_name not in parameters:
                raise UserError(f"the optimizer's state names {parameter_name!r}, which this model has not")
            parameter = parameters[parameter_name]
            keys.setdefault(parameter_name, set()).add(key)
            shape = torch.Size() if key == "step" else parameter.shape
            if value.shape != shape or not value.is_floating_point():
                found = f"{tuple(value.shape)} of {value.dtype}"
                raise UserError(f"the optimizer's state {name!r} is {found}, expected {tuple(shape)} of a float type")
            device = value.device if key == "step" and not _fused(parameter) else parameter.device
            owner[parameter].state[parameter][key] = value.to(device)
        for parameter_name, there in keys.items():
            expected = MEMORY.get(type(owner[parameters[parameter_name]]), there)
            if there != expected:
                odd = ", ".join(sorted(there ^ expected))
                raise UserError(f"the optimizer's state of {parameter_name!r} lacks, or has too much: {odd}")


class AdamW(Optimizer, kind="adamw"):
    """Adam with decoupled weight decay on matrices only ("Decoupled Weight Decay Regularization", arXiv 1711.05101)."""

    def make_parts(self, config: AdamW.Config, model: GPT) -> list[torch.optim.Optimizer]:
        return [adamw(model.parameters(), config.learning_rate, config)]


class Muon(Optimizer, kind="muon"):
    """Momentum whose steps are made orthogonal, for the matrices inside the blocks; AdamW for the rest.

    Every direction of a matrix moves equally far in a step, so a small model needs a fraction of AdamW's steps
    (K. Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024; arXiv 2502.16982).
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Optimizer.Config):
        learning_rate: Positive = 0.02
        """The largest learning rate of the matrices inside the blocks."""
        weight_decay: NonNegative = 0.0
        """How fast matrices shrink toward zero; vectors never do."""
        momentum: Rate = 0.95
        """How long past gradients of the matrices are remembered."""
        adamw_learning_rate: Positive = 3e-3
        """The largest learning rate of everything else: embeddings, norms, constants and the head."""

    def make_parts(self, config: Muon.Config, model: GPT) -> list[torch.optim.Optimizer]:
        matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        parts: list[torch.optim.Optimizer] = [adamw(others, config.adamw_learning_rate, config)]
        if matrices:
            decay, momentum = config.weight_decay, config.momentum
            parts.append(torch.optim.Muon(matrices, lr=config.learning_rate, weight_decay=decay, momentum=momentum))
        return parts


def adamw(parameters: Iterable[nn.Parameter], learning_rate: float, config: Optimizer.Config) -> torch.optim.AdamW:
    """AdamW with decay on matrices only, in one fused kernel where the device has it."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0},
    ]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=learning_rate, betas=(config.beta1, config.beta2), fused=_fused(every[0]))


def _fused(parameter: Tensor) -> bool:
    return parameter.device.type in ("cpu", "cuda", "mps")


def schedule(step: int, steps: int, warmup: int, shape: str, final: float) -> float:
    """What the learning rates are multiplied by at `step` of `steps`: a linear warm-up, then a fall to `final`.

    `shape` is "cosine" (arXiv 1608.03983), "linear" or "constant". The first step of a warm-up is not zero.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    if shape == "constant":
        return 1.0
    left = 1 - progress if shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return final + (1 - final) * left
