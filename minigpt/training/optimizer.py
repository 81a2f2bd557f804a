"""Optimizers: how gradients become steps. `adamw` for everything, or `muon` for the matrices inside the blocks.

Each kind says which parameters are stepped by which rule; learning rates are multiplied by one schedule. The rules
have the interface of torch's optimizers; a kind of your own may use torch's optimizers as well. `AdamWRule` steps with
torch's kernel, and `MuonRule` as `torch.optim.Muon` does, in fewer iterations; but creating one of torch's optimizers
imports torch's compiler, which takes as long as importing torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as torch_adamw

from minigpt.config.options import Component, NonNegative, Positive, Rate
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.training.distributed import in_shards
from minigpt.training.precision import LossScale
from minigpt.training.sharding import like, local, on_owners

LOSS_SCALE = "loss_scale"  # the name of its state; those of parameters end in |key


class Rule:
    """Steps groups of parameters, and keeps a state for each of them."""

    state_keys: ClassVar[set[str]] = set()
    found_inf: Tensor | None = None  # (): where it is 1, a step changes nothing, as in torch's fused optimizers

    def __init__(self, groups: list[dict[str, Any]]):
        self.param_groups = [group for group in groups if group["params"]]
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @torch.no_grad()
    def step(self) -> None:
        """Step every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self.move(parameters, [p.grad for p in parameters], [self.state[p] for p in parameters], group)

    def move(
        self, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]
    ) -> None:
        """Step these parameters of one group, in place."""
        raise TypeError(f"{type(self).__name__} must define move(parameters, gradients, states, group)")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class AdamWRule(Rule):
    """Adam with decoupled weight decay (arXiv 1711.05101), by torch's kernel, fused where the device has that."""

    state_keys: ClassVar[set[str]] = {"step", "exp_avg", "exp_avg_sq"}

    def move(
        self, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]
    ) -> None:
        for parameter, state in zip(parameters, states):
            if not state:
                device = parameter.device if _fused(parameter) else None
                state["step"] = torch.zeros((), device=device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        torch_adamw(
            [local(parameter) for parameter in parameters],
            [local(gradient) for gradient in gradients],
            [local(state["exp_avg"]) for state in states],
            [local(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
            fused=_fused(parameters[0]),
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["beta1"],
            beta2=group["beta2"],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )


class MuonRule(Rule):
    """Momentum (Nesterov's) made orthogonal: each direction of a matrix moves equally far (K. Jordan, "Muon", 2024).

    The step of an m x n matrix is multiplied by sqrt(m / n) if m > n. Matrices of one shape are made orthogonal
    together. If each process holds some rows of a matrix, one process gathers the matrix (`sharding.on_owners`).
    """

    state_keys: ClassVar[set[str]] = {"momentum_buffer"}

    def move(
        self, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any]
    ) -> None:
        alike: dict[torch.Size, list[int]] = defaultdict(list)
        for i, parameter in enumerate(parameters):
            alike[parameter.shape].append(i)
        for (m, n), numbers in alike.items():
            nesterov = []
            for i in numbers:
                if not states[i]:
                    states[i]["momentum_buffer"] = torch.zeros_like(parameters[i])
                momentum = local(states[i]["momentum_buffer"])  # (m, n), or the rows of it that this process holds
                gradient = self.unless_skipped(local(gradients[i]), momentum)  # of the same shape
                momentum.lerp_(gradient, 1 - group["momentum"])
                nesterov.append(gradient.lerp(momentum, group["momentum"]))  # (m, n)
            if in_shards(parameters[numbers[0]]):
                steps: Iterable[Tensor] = on_owners(nesterov, m, orthogonal)
            else:
                steps = orthogonal(torch.stack(nesterov))  # (matrices, m, n)
            for i, step in zip(numbers, steps):
                if group["weight_decay"]:
                    local(parameters[i]).mul_(self.unless_skipped(1 - group["lr"] * group["weight_decay"], 1.0))
                step = self.unless_skipped(step, 0.0)
                local(parameters[i]).add_(step, alpha=-group["lr"] * max(1.0, m / n) ** 0.5)

    def unless_skipped(self, value: Any, otherwise: Any) -> Any:
        """`value`, or `otherwise` in a step that must change nothing (`found_inf` is 1)."""
        return value if self.found_inf is None else torch.where(self.found_inf == 1, otherwise, value)


NEWTON_SCHULZ = (
    (8.2193, -23.3375, 16.6266),
    (3.9641, -2.8377, 0.5158),
    (3.4369, -2.4752, 0.4761),
    (2.4901, -1.8343, 0.4368),
)


def orthogonal(matrices: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Matrices (k, m, n) with every singular value brought near 1 (0.75 to 1.2, if it was within 1/300 of the largest).

    Each iteration maps a singular value s to a s + b s^3 + c s^5. Its a, b and c are optimal for the range of values
    after the iteration before it ("The Polar Express", arXiv 2505.16932): four such iterations do what five equal ones
    of K. Jordan's do. All but the last allow for values that rounding makes 2 % too large, which would diverge
    otherwise. bfloat16 is precise enough, because only the directions count.
    """
    X = matrices.to(dtype)  # (k, m, n)
    X = X / X.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    tall = X.shape[1] > X.shape[2]
    for a, b, c in NEWTON_SCHULZ:
        A = X.mT @ X if tall else X @ X.mT  # (k, r, r), r the smaller of m and n
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)  # (k, r, r): bA + cAA
        X = torch.baddbmm(X, X, B, beta=a) if tall else torch.baddbmm(X, B, X, beta=a)  # (k, m, n): aX + BX
    return X.to(matrices.dtype)


class Optimizer(Component):
    """One or more rules, or optimizers of torch, that step together."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        learning_rate: Positive = 1e-3
        """The largest learning rate, reached after the warm-up."""
        weight_decay: NonNegative = 0.1
        """How fast matrices shrink toward zero (decoupled, arXiv 1711.05101); vectors never do."""
        beta1: Rate = 0.9
        """The decay rate of AdamW's mean of the gradients."""
        beta2: Rate = 0.99
        """The decay rate of AdamW's mean of the squared gradients."""

    def __init__(self, config: Any, model: GPT):
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.parts = self.make_parts(config, model)
        self.base_rates = [[group["lr"] for group in part.param_groups] for part in self.parts]
        self.loss_scale: LossScale | None = None  # in float16; it is kept with the state

    def make_parts(self, config: Any, model: GPT) -> Sequence[Rule | torch.optim.Optimizer]:
        """Which parameters are stepped by which rule."""
        raise TypeError(f"{type(self).__name__} must define make_parts(config, model)")

    @property
    def skips(self) -> bool:
        """Whether `step` accepts `skip`; false for rules and optimizers from elsewhere, which may not support it."""
        return type(self).step is Optimizer.step and all(type(part) in (AdamWRule, MuonRule) for part in self.parts)

    def step(self, factor: float, skip: Tensor | None = None) -> None:
        """One step with every learning rate multiplied by `factor`, then the gradients are dropped.

        `skip` (): where it is 1, parameters and state stay as they are. Its value is not read from the device.
        """
        for part, rates in zip(self.parts, self.base_rates):
            if self.skips:
                part.found_inf = skip  # type: ignore[union-attr]
            for group, rate in zip(part.param_groups, rates):
                group["lr"] = rate * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    @property
    def has_state(self) -> bool:
        """Whether there is a state after a step; false for torch's own optimizers, of which this is not known."""
        return any(isinstance(part, Rule) and part.state_keys for part in self.parts)

    def state(self) -> dict[str, Tensor]:
        """The state of every parameter, as tensors named `parameter|key`, and in float16 that of the loss scale."""
        state = {
            f"{self.names[parameter]}|{key}": value
            for part in self.parts
            for parameter, state in part.state.items()
            for key, value in state.items()
        }
        return state if self.loss_scale is None else state | {LOSS_SCALE: self.loss_scale.state}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`. Raises UserError for a state that these optimizers would not have.

        The tensors are copied: they may be parts of a mapped file, which Windows would not let anybody remove.
        """
        parameters = {name: parameter for parameter, name in self.names.items()}
        owner = {p: part for part in self.parts for group in part.param_groups for p in group["params"]}
        keys: dict[str, set[str]] = {}
        if (scale := tensors.get(LOSS_SCALE)) is not None:
            if scale.shape != (2,) or scale.dtype != torch.float32:
                raise UserError(f"the loss scale is {tuple(scale.shape)} of {scale.dtype}, expected (2,) of float32")
            self.loss_scale = LossScale(next(iter(self.names)).device)
            self.loss_scale.state.copy_(scale)
        for name, value in tensors.items():
            if name == LOSS_SCALE:
                continue
            parameter_name, _, key = name.rpartition("|")
            if parameter_name not in parameters:
                raise UserError(f"the optimizer's state names {parameter_name!r}, which this model does not have")
            parameter = parameters[parameter_name]
            part = owner[parameter]
            keys.setdefault(parameter_name, set()).add(key)
            shape = torch.Size() if key == "step" else parameter.shape
            if isinstance(part, Rule) and (value.shape != shape or not value.is_floating_point()):
                actual = f"{tuple(value.shape)} of {value.dtype}"
                raise UserError(f"the optimizer's state {name!r} is {actual}, expected {tuple(shape)} of a float type")
            device = value.device if key == "step" and not _fused(parameter) else parameter.device
            part.state[parameter][key] = like(parameter, value) if key != "step" else value.to(device, copy=True)
        for parameter_name, saved_keys in keys.items():
            part = owner[parameters[parameter_name]]
            expected = part.state_keys if isinstance(part, Rule) else saved_keys
            if saved_keys != expected:
                odd = ", ".join(sorted(saved_keys ^ expected))
                raise UserError(f"the optimizer's state of {parameter_name!r} lacks, or has too much: {odd}")


class AdamW(Optimizer, kind="adamw"):
    """Adam with decoupled weight decay on matrices only ("Decoupled Weight Decay Regularization", arXiv 1711.05101)."""

    def make_parts(self, config: AdamW.Config, model: GPT) -> list[Rule]:
        return [AdamWRule(adamw_groups(model.parameters(), config.learning_rate, config))]


class Muon(Optimizer, kind="muon"):
    """Momentum whose steps are made orthogonal, for the matrices inside the blocks; AdamW for the rest.

    Every direction of a matrix moves equally far in a step, so a small model needs a fraction of AdamW's steps
    (K. Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024; arXiv 2502.16982). That is meant for a
    matrix that multiplies vectors of features: the weight of a linear layer. A table of an embedding, or a parameter
    that a module makes itself, is stepped by AdamW unless the module's `muon` says otherwise (`feature_matrices`).
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Optimizer.Config):
        meaning: ClassVar[dict[str, str]] = {"learning_rate": "of matrices"}

        learning_rate: Positive = 0.02
        """The largest learning rate of the matrices inside the blocks."""
        weight_decay: NonNegative = 0.0
        """How fast matrices shrink toward zero; vectors never do."""
        momentum: Rate = 0.95
        """The decay rate of the mean of the matrices' gradients."""
        adamw_learning_rate: Positive = 3e-3
        """The largest learning rate of everything else: embeddings, norms, constants and the head."""

    def make_parts(self, config: Muon.Config, model: GPT) -> list[Rule]:
        matrices = feature_matrices(model.blocks)
        others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        parts: list[Rule] = [AdamWRule(adamw_groups(others, config.adamw_learning_rate, config))]
        rates = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "momentum": config.momentum}
        return [*parts, MuonRule([{"params": matrices, **rates}])] if matrices else parts


def feature_matrices(blocks: nn.Module) -> list[Tensor]:
    """The matrices that Muon steps: the weights of linear layers, and what a module's `muon` adds or takes away.

    `muon` is a dict from the name of a parameter to true or false, such as {"table": True, "mixing.weight": False}; the
    outermost module that names a parameter decides. Of a weight that a parametrisation computes, the matrices that it
    is computed from are meant. Raises UserError for a name that is not a parameter, and for true with a parameter that
    does not have two dimensions.
    """
    are_features: dict[Tensor, bool] = {}
    for module in blocks.modules():  # a module before its parts
        for name, wanted in getattr(module, "muon", {}).items():
            named = parameters_of(module, name)
            if not named and "muon" not in vars(type(module)):
                continue  # its parent names it, of a layer that it has replaced
            if not named or (wanted and all(parameter.ndim != 2 for parameter in named)):
                problem = f"{named[0].ndim} dimensions, expected 2" if named else "there is no such parameter"
                raise UserError(f"{type(module).__name__}.muon: {name!r}: {problem}")
            for parameter in named:
                are_features.setdefault(parameter, wanted and parameter.ndim == 2)
        for parameter in linear_matrices(module):
            are_features.setdefault(parameter, True)
    return [parameter for parameter in blocks.parameters() if are_features.get(parameter, False)]


def parameters_of(module: nn.Module, name: str) -> list[Tensor]:
    """The parameter of this name, or those from which a parametrisation computes it; [] if there are none."""
    path, _, last = name.rpartition(".")
    computed = f"{path}.parametrizations.{last}".lstrip(".")
    named = module.named_parameters(remove_duplicate=False)
    return [parameter for other, parameter in named if name == other or other.rpartition(".")[0] == computed]


def linear_matrices(module: nn.Module) -> list[Tensor]:
    """The matrices of a linear layer: its weight, or those from which a parametrisation computes it, such as two
    factors of low rank; vectors such as the lengths of a weight norm, (n, 1), are not among them."""
    if not isinstance(module, nn.Linear):
        return []
    direct = [parameter for parameter in module.parameters(recurse=False) if parameter.ndim == 2]
    return [*direct, *(p for p in parameters_of(module, "weight") if p.ndim == 2 and min(p.shape) > 1)]


def adamw_groups(parameters: Iterable[Tensor], learning_rate: float, config: Optimizer.Config) -> list[dict[str, Any]]:
    """The groups of an `AdamWRule`: only parameters of two dimensions or more have weight decay."""
    every = list(parameters)
    rates = {"lr": learning_rate, "beta1": config.beta1, "beta2": config.beta2}
    return [
        {"params": [p for p in every if p.ndim >= 2], "weight_decay": config.weight_decay, **rates},
        {"params": [p for p in every if p.ndim < 2], "weight_decay": 0.0, **rates},
    ]


def _fused(parameter: Tensor) -> bool:
    return parameter.device.type in ("cpu", "cuda", "mps")
