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
    ends = [Attention.kinds[name] for name in (step.kind, step.edge.to)]
    names = []
    for name, position in Position.kinds.items():
        made = position(position.Config(), ModelConfig())
        left_out = {any(made.acts_by(method) for method in end.unsuited) for end in ends}
        if len(left_out) == 1 and not any(map(made.acts_by, step.edge.without)):
            names.append(name)
    return names


def gap(step: Step, position: str = "none", fast: bool = False) -> float:
    """How far the two ends of an edge are apart, values and gradients, relative to the largest number of each.

    Each end has two layers, one after the other, for kinds that read the layer below.
    """
    edge = step.edge
    mine = layers({"kind": step.kind, **edge.mine}, position, seed=1)
    theirs = layers({"kind": edge.to, **edge.theirs}, position, seed=2)
    for ours, other in zip(mine, theirs):
        copy_weights(ours, other)
        if edge.prepare is not None:
            with torch.no_grad():
                edge.prepare(ours, other)
        for layer in (ours, other):
            make_fast(layer, fast)
    shared = [equal_weights(ours, other) for ours, other in zip(mine, theirs)]
    x = edge.size * torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))  # (B, T, D)
    found = [results(stack, x, shared) for stack in (mine, theirs)]
    return max(far(a, b) for a, b in zip(*found, strict=True))


def layers(attention: dict[str, object], position: str, seed: int) -> list[Attention]:
    """LAYERS layers of a kind with options, in float64 and evaluation mode."""
    shape = {"n_layer": LAYERS, "n_embd": D, "block_size": 16, "position": position, "attention": attention}
    config = from_dict(ModelConfig, shape)
    noise = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = [config.layer_attention(i).component(config.layer_attention(i), config, i) for i in range(LAYERS)]
    for layer in made:
        layer.double().eval()
        for parameter in layer.parameters():
            parameter.data += STIR * torch.randn(parameter.shape, dtype=torch.float64, generator=noise)
    return made


@torch.no_grad()
def copy_weights(mine: Attention, theirs: Attention) -> None:
    """Every parameter that has the same name and shape in both gets the values that it has in `mine`."""
    known = dict(mine.named_parameters())
    for name, parameter in theirs.named_parameters():
        if name in known and known[name].shape == parameter.shape:
            parameter.copy_(known[name])


def equal_weights(mine: Attention, theirs: Attention) -> list[str]:
    """The names of the parameters that both have, with equal values: their gradients are to be equal too."""
    known = dict(mine.named_parameters())
    others = dict(theirs.named_parameters())
    return [name for name in known if name in others and torch.equal(known[name], others[name])]


def results(stack: list[Attention], x: Tensor, shared: list[list[str]]) -> list[Tensor]:
    """The output of the layers for x (B, T, D), and the gradients of x and of the parameters that are shared."""
    x = x.clone().requires_grad_()
    stream = x  # (B, T, D)
    for layer, past in zip(stack, chain([Past() for _ in stack])):
        stream = stream + layer(stream, past)  # (B, T, D)
    output = stream - x  # (B, T, D)
    direction = torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(4))  # (B, T, D)
    wanted = [x, *(dict(layer.named_parameters())[name] for layer, names in zip(stack, shared) for name in names)]
    grads = torch.autograd.grad((output * direction).sum(), wanted, allow_unused=True)
    return [output.detach(), *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads))]


def far(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest number; infinite where something is not a number."""
    largest = torch.maximum(ours.abs().max(), theirs.abs().max()).clamp(min=ZERO)
    return float(((ours - theirs).abs().max() / largest).nan_to_num(torch.inf))


def path(steps: Iterable[Step], start: str, end: str) -> list[Step]:
    """The shortest path of edges, each in either direction, from one kind to another; empty if there is none."""
    ways: dict[str, list[Step]] = {start: []}
    queue, steps = deque([start]), list(steps)
    while queue:
        here = queue.popleft()
        for step in steps:
            for one, other in ((step.kind, step.edge.to), (step.edge.to, step.kind)):
                if one == here and other not in ways:
                    ways[other] = [*ways[here], step]
                    queue.append(other)
    return ways.get(end, [])


def family(kind: type[Attention]) -> str:
    """The folder of a kind's file; for a plugin's kind, the name of the file."""
    parts = kind.__module__.split(".")
    return parts[2] if parts[:2] == ["minigpt", "attention"] else parts[-1]
