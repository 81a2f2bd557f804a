"""The graph of kinds: each edge says under which options one kind computes what another computes.

The edges stand in the files of the kinds (`attention/edge.py`). `gap` makes both ends with random weights in float64
and measures how far their outputs and gradients are apart: rounding for an identity, the stated error for a limit.

B batch, T positions, D model width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.attention import Attention, Past, Position
from minigpt.attention.edge import Edge
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.model.config import ModelConfig
from minigpt.model.gpt import chain

ROUNDING = 1e-9  # what an identity may be off in float64, relative to the largest number
B, T, D, LAYERS = 2, 11, 16, 2
ZERO = 1e-4  # smaller values are noise around zero, as in the gradient of a constant that is added to all keys
STIR = 0.3  # the size of the noise on every parameter, so that no zero hides what it multiplies


@dataclass(frozen=True)
class Step:
    """An edge and the kind in whose file it stands."""

    kind: str
    edge: Edge

    @property
    def is_limit(self) -> bool:
        """Whether the kinds are only approximately equal."""
        return self.edge.error > 0

    def __str__(self) -> str:
        sign = "~" if self.is_limit else "="
        return f"{self.kind} {sign} {self.edge.to} ({self.edge.when})"


def all_steps() -> list[Step]:
    """Every edge of every kind, in the order of the kinds."""
    return [Step(name, edge) for name, kind in Attention.kinds.items() for edge in vars(kind).get("edges", ())]


def positions_of(step: Step) -> list[str]:
    """The positions with which an edge must hold: both ends use them, or neither does; without its exceptions."""
    kinds = [Attention.kinds[name] for name in (step.kind, step.edge.to)]
    names = []
    for name, position in Position.kinds.items():
        acts_by = position(position.Config(), ModelConfig()).acts_by
        left_out = {any(map(acts_by, kind.unsuited)) for kind in kinds}
        if len(left_out) == 1 and not any(map(acts_by, step.edge.without)):
            names.append(name)
    return names


def gap(step: Step, position: str = "none", fast: bool = False) -> float:
    """How far the two ends of an edge are apart, values and gradients, relative to the largest number of each.

    Each end has two layers, one after the other, for kinds that read the layer below.
    """
    edge = step.edge
    left_layers = layers({"kind": step.kind, **edge.own}, position, seed=1)
    right_layers = layers({"kind": edge.to, **edge.other}, position, seed=2)
    for left, right in zip(left_layers, right_layers):
        copy_weights(left, right)
        if edge.prepare is not None:
            with torch.no_grad():
                edge.prepare(left, right)
        for layer in (left, right):
            make_fast(layer, fast)
    shared = list(map(equal_weights, left_layers, right_layers))
    x = edge.size * torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))  # (B, T, D)
    left_results, right_results = (results(end, x, shared) for end in (left_layers, right_layers))
    return max(relative_difference(a, b) for a, b in zip(left_results, right_results, strict=True))


def layers(attention: dict[str, object], position: str, seed: int) -> list[Attention]:
    """LAYERS layers of a kind with options, in float64 and evaluation mode."""
    shape = {"n_layer": LAYERS, "n_embd": D, "block_size": 16, "position": position, "attention": attention}
    config = from_dict(ModelConfig, shape)
    noise = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attentions = [config.layer_attention(i).component(config.layer_attention(i), config, i) for i in range(LAYERS)]
    for layer in attentions:
        layer.double().eval()
        for parameter in layer.parameters():
            parameter.data += STIR * torch.randn(parameter.shape, dtype=torch.float64, generator=noise)
    return attentions


@torch.no_grad()
def copy_weights(left: Attention, right: Attention) -> None:
    """Every parameter that has the same name and shape in both gets the values that it has in `left`."""
    parameters = dict(left.named_parameters())
    for name, parameter in right.named_parameters():
        if name in parameters and parameters[name].shape == parameter.shape:
            parameter.copy_(parameters[name])


def equal_weights(left: Attention, right: Attention) -> list[str]:
    """The names of the parameters that both have, with equal values: their gradients are to be equal too."""
    left_weights, right_weights = dict(left.named_parameters()), dict(right.named_parameters())
    shared = left_weights.keys() & right_weights.keys()
    return [name for name in left_weights if name in shared and torch.equal(left_weights[name], right_weights[name])]


def results(attentions: list[Attention], x: Tensor, shared: list[list[str]]) -> list[Tensor]:
    """The output of the layers for x (B, T, D), and the gradients of x and of the parameters that are shared."""
    x = x.clone().requires_grad_()
    stream = x  # (B, T, D)
    for layer, past in zip(attentions, chain([Past() for _ in attentions])):
        stream = stream + layer(stream, past)  # (B, T, D)
    output = stream - x  # (B, T, D)
    direction = torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(4))  # (B, T, D)
    weights = [dict(layer.named_parameters())[name] for layer, names in zip(attentions, shared) for name in names]
    inputs = [x, *weights]
    grads = torch.autograd.grad((output * direction).sum(), inputs, allow_unused=True)
    return [output.detach(), *(torch.zeros_like(w) if g is None else g for w, g in zip(inputs, grads))]


def relative_difference(left: Tensor, right: Tensor) -> float:
    """The largest difference, relative to the largest number; infinite where something is not a number."""
    largest = torch.maximum(left.abs().max(), right.abs().max()).clamp(min=ZERO)
    return float(((left - right).abs().max() / largest).nan_to_num(torch.inf))


def path(steps: Iterable[Step], start: str, end: str) -> list[Step]:
    """The shortest path of edges, each in either direction, from one kind to another; empty if there is none."""
    paths: dict[str, list[Step]] = {start: []}
    queue, steps = deque([start]), list(steps)
    while queue:
        kind = queue.popleft()
        for step in steps:
            for source, target in ((step.kind, step.edge.to), (step.edge.to, step.kind)):
                if source == kind and target not in paths:
                    paths[target] = [*paths[kind], step]
                    queue.append(target)
    return paths.get(end, [])


def family(kind: type[Attention]) -> str:
    """The folder of a kind's file; for a plugin's kind, the name of the file."""
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["minigpt", "attention"] else parts[-1]
