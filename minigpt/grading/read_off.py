"""What can be read off a module before it is compared: its blocks, its activation, its norms, a gate, post-norm.

Each of these is a convention, and so many at once would be looked for in vain.

D model width, W width of the MLP's hidden layer.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from minigpt.grading.probes import numbers
from minigpt.grading.target import Convention, Knobs, Parameters, Probe, Reference, Sizes, Steps, Target
from minigpt.grading.targets import block, mlp
from minigpt.grading.targets.norm import normalised

FEWEST = 4  # matrices in a block: query, key and value joined, an output projection, two of an MLP
EPSILONS = ("eps", "epsilon", "variance_epsilon")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks in order; one that is used in several layers stands there several times. None found: []."""

    def wide(module: nn.Module | None) -> bool:
        return module is not None and sum(p.dim() >= 2 for p in module.parameters()) >= FEWEST

    for inner in model.modules():
        if isinstance(inner, (nn.ModuleList, nn.Sequential)):
            listed = [child for child in inner._modules.values() if child is not None]
            if listed and all(wide(child) for child in listed):
                return listed
    for inner in model.modules():
        for first in inner.children():
            alike = [child for child in inner._modules.values() if type(child) is type(first) and child is not None]
            embeds = any(isinstance(part, nn.Embedding) for part in first.modules())
            if len(alike) > 1 and wide(first) and not embeds:
                return alike
    return []


def settle(thing: Any, target: Target, settled: list[Convention]) -> Target:
    """The target with the conventions that can be read off a module: its activation, its norms, their epsilon."""
    if not isinstance(thing, nn.Module) or target.name not in ("block", "gpt", "mlp", "norm"):
        return target
    if target.name != "norm" and gated(thing):
        usual, *others = mlp.gate_conventions()
        settled.append(usual)
        target = replace(target, roles=(*target.roles, mlp.GATE), conventions=[*others, *target.conventions],
                         bugs=[*target.bugs, *mlp.gate_bugs()])  # fmt: skip
    options = {convention.knobs.get("activation"): convention for convention in target.conventions}
    if (word := activation(thing)) in options:
        settled.append(options[word])
    norms = [inner for inner in thing.modules() if "norm" in type(inner).__name__.lower()]
    if target.name != "mlp" and norms:
        if all("rms" in type(inner).__name__.lower() for inner in norms):
            settled += [convention for convention in target.conventions if convention.knobs == {"norm": "rms"}]
        seen = [behaviour for inner in norms for behaviour in [norm_behaviour(inner)]]
        if {kind for kind, _ in seen} == {"rms"}:
            settled += [one for one in target.conventions if one.knobs == {"norm": "rms"} and one not in settled]
        found = {value for inner in norms for value in epsilons(inner)} or {eps for _, eps in seen}
        if len(found) == 1 and 0 < (eps := found.pop()) <= 1e-4 and eps != 1e-5:
            settled.append(Convention({"eps": eps}, f"the norm's epsilon is {eps:.1g}; nn.LayerNorm's is 1e-5"))
    layers = [inner for inner in thing.modules() if isinstance(inner, nn.TransformerEncoderLayer)]
    if layers and not any(inner.norm_first for inner in layers):
        inside = {id(norm) for inner in layers for norm in inner.modules()}
        bare = target.name == "gpt" and all(id(norm) in inside for norm in norms)  # no norm before the head
        knobs = {**block.POST.knobs, "final": "none"} if bare else block.POST.knobs
        settled += [one for one in target.conventions if one.knobs == knobs]
    assumed = {name: value for convention in settled for name, value in convention.knobs.items()}
    left = [convention for convention in target.conventions if convention not in settled]
    reference = partial(assume, target.reference, assumed)
    return replace(target, reference=reference, conventions=left, settled=settled) if settled else target


def activation(thing: nn.Module) -> str:
    """The activation of a module, as its layers or the source of its classes say; "gelu" where they do not."""
    parts = [inner for inner in thing.modules() if not type(inner).__module__.startswith("torch.")]
    text = "".join(source(type(inner)) for inner in parts)
    kinds = {type(inner) for inner in thing.modules()}
    if "tanh" in text or any(isinstance(inner, nn.GELU) and inner.approximate == "tanh" for inner in thing.modules()):
        return "tanh gelu"
    given = {getattr(inner, "activation", None) for inner in thing.modules()}  # of nn.TransformerEncoderLayer
    if F.relu in given:
        return "relu"
    relu = nn.ReLU in kinds or re.search(r"\brelu\b", text) is not None
    return "relu" if relu and nn.GELU not in kinds and "gelu" not in text.lower() else "gelu"


def source(kind: type) -> str:
    """The source of a class, "" where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def assume(reference: Reference, assumed: Knobs, probe: Probe, parameters: Parameters, sizes: Sizes,
           knobs: Knobs) -> Steps:  # fmt: skip
    """The reference with some knobs set, unless they are given."""
    return reference(probe, parameters, sizes, {**assumed, **knobs})


def epsilons(norm: nn.Module) -> list[float]:
    """The epsilon that a norm keeps; RMSNorm's None is that of the type."""
    if isinstance(norm, nn.RMSNorm) and norm.eps is None:
        return [torch.finfo(torch.float64).eps]
    return [value for name in EPSILONS if isinstance(value := getattr(norm, name, None), float)]


def norm_behaviour(norm: nn.Module) -> tuple[str, float]:
    """What a norm of the file's own computes, ("rms", 1e-6), or ("", 0.0) where it is none that is known."""
    vectors = [one.detach() for one in norm.parameters()]
    if type(norm).__module__.startswith("torch.") or not vectors or any(one.dim() != 1 for one in vectors):
        return "", 0.0
    x = 0.01 * numbers(1, 4, len(vectors[0]), seed=5)  # (1, 4, D): small, so that epsilon counts
    try:
        y = norm(x)
    except Exception:  # the learner's code: anything
        return "", 0.0
    for kind, eps in product(("layer", "rms"), (1e-5, 1e-6, 1e-8, 1e-12)):
        flat = normalised(x, kind, eps)  # (1, 4, D)
        for gain, *bias in permutations(vectors):
            if torch.allclose(y.double(), flat * gain + (bias[0] if bias else 0.0), rtol=1e-5, atol=1e-9):
                return kind, eps
    return "", 0.0


def gated(thing: nn.Module) -> bool:
    """Whether the MLP of a module has two matrices (W, D) and one (D, W), or nothing but these joined."""
    first = (blocks_of(thing) or [thing])[0]
    shapes = [tuple(parameter.shape) for parameter in first.parameters() if parameter.dim() == 2]
    apart = any(n != m and shapes.count((n, m)) == 2 and shapes.count((m, n)) == 1 for n, m in shapes)
    return apart or any(n == 2 * k and shapes.count((m, k)) == 1 and k != m for n, m in shapes for _, k in shapes)
