"""The norms of a block and of a model, with a knob for everything that goes wrong in one that is written by hand.

LayerNorm is from arXiv 1607.06450, RMSNorm from arXiv 1910.07467.

B batch, T positions, D model width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from minigpt.grading.probes import BATCH, numbers, sequence_probes
from minigpt.grading.target import (
    Bug,
    Convention,
    Knobs,
    Options,
    Parameters,
    Probe,
    Role,
    Sizes,
    Steps,
    Target,
    only,
)

EPSILON = 1e-5  # nn.LayerNorm's


def norm(x: Tensor, parameters: Parameters, name: str, knobs: Knobs, layer: str = "") -> Tensor:
    """x (B, T, D) -> normed (B, T, D). A knob with the norm's own name says which norm's weight is used, or "none"."""
    used = knobs.get(name, name)
    if used == "none":
        return x
    y = normalised(x, knobs.get("norm", "layer"), knobs.get("eps", EPSILON))  # (B, T, D)
    if "plain norms" in knobs:
        return y
    bias, gain = parameters.get(f"{used}{layer}_bias"), parameters[f"{used}{layer}"]  # (D) each
    y = y * (1 + gain if "gain around zero" in knobs else gain)  # (B, T, D)
    return y if bias is None else y + bias


def normalised(x: Tensor, kind: str, eps: float) -> Tensor:
    """x (B, T, D) with mean 0 and variance 1 over the features, or normed in another way (`kind`)."""
    if kind == "layer" and eps > 0:
        return F.layer_norm(x, x.shape[-1:], eps=eps)
    axes: dict[str, int | tuple[int, ...]] = {"positions": 1, "both": (1, 2), "batch": 0}
    over = axes.get(kind, -1)
    mean = x.mean(dim=over, keepdim=True)  # (B, T, 1)
    far = x - mean  # (B, T, D)
    variance = far.square().mean(dim=over, keepdim=True)  # (B, T, 1)
    D = x.shape[-1]
    ways: dict[str, Callable[[], Tensor]] = {
        "rms": lambda: x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt(),
        "rms of all": lambda: x * (x.square().mean() + eps).rsqrt(),
        "unit": lambda: F.normalize(x, dim=-1) * D**0.5,
        "unbiased": lambda: far / (variance * D / (D - 1) + eps).sqrt(),
        "outside": lambda: far / (variance.sqrt() + eps),
        "unbiased outside": lambda: far / ((variance * D / (D - 1)).sqrt() + eps),
        "no root": lambda: far / (variance + eps),
        "mean only": lambda: far,
        "mean left": lambda: x / (variance + eps).sqrt(),
        "length inside": lambda: x * (x.square().sum(dim=-1, keepdim=True) + eps).rsqrt(),
        "length": lambda: x / (x.norm(dim=-1, keepdim=True) + eps),
        "length at least": lambda: F.normalize(x, dim=-1),
    }
    return ways[kind]() if kind in ways else far / (variance + eps).sqrt()


LAYER = "F.layer_norm, or (x - mean) / sqrt(variance + 1e-5), both over the last axis, then * weight + bias"


def norm_bugs() -> list[Bug]:
    """What goes wrong inside a norm."""
    large = {0.1: "0.1", 0.01: "0.01"}
    return [
        Bug({"norm": "unbiased"}, "the norm divides by the variance over D - 1 = {D-1}, which x.var() gives; "
            "nn.LayerNorm divides by the one over D = {D}", "x.var(dim=-1, keepdim=True, unbiased=False)",
            ({"norm": "unbiased", "eps": 1e-6}, {"norm": "unbiased", "eps": 1e-8}, {"norm": "unbiased", "eps": 0.0})),
        Bug({"norm": "no root"}, "the norm divides by the variance, not by its root", LAYER),
        Bug({"norm": "mean only"}, "the norm subtracts the mean and divides by nothing", LAYER),
        Bug({"norm": "mean left"}, "the norm divides by the standard deviation but does not subtract the mean", LAYER),
        Bug({"norm": "length"}, "the norm divides by the length of x, which is sqrt(D) times too much", LAYER,
            ({"norm": "length at least"}, {"norm": "length", "eps": 1e-12}, {"norm": "length", "eps": 0.0},
             *({"norm": "length inside", "eps": eps} for eps in (1e-5, 1e-6, 1e-8)))),
        Bug({"norm": "positions"}, "the norm goes over the positions (dim=1), not over the features: later tokens "
            "are seen", LAYER),
        Bug({"norm": "both"}, "the norm goes over positions and features at once: later tokens are seen", LAYER),
        Bug({"norm": "batch"}, "the norm goes over the batch (dim=0), not over the features: sequences are mixed",
            LAYER),
        Bug({"eps": 0.0}, "the norm has no epsilon: a token whose features are all equal is divided by zero",
            "sqrt(variance + 1e-5)", ({"norm": "rms", "eps": 0.0},)),
        *(Bug({"eps": eps}, f"the norm's epsilon is {word}, which is too large: small inputs stay small",
              "sqrt(variance + 1e-5)", ({"norm": "rms", "eps": eps},)) for eps, word in large.items()),
        Bug({"eps": 1e-3}, "the norm's epsilon is 0.001, as Keras has it; nn.LayerNorm's is 1e-5", "", harmless=True),
        Bug({"norm": "rms", "eps": 1e-3}, "the norm is RMSNorm with an epsilon of 0.001; LLaMA's is 1e-6", "",
            harmless=True),
    ]  # fmt: skip


def norm_conventions() -> list[Convention]:
    """Norms that are right too."""
    return [
        Convention({"norm": "rms"}, "the norm is RMSNorm: no mean is subtracted, as in LLaMA"),
        Convention({"eps": 1e-6}, "the norm's epsilon is 1e-6; nn.LayerNorm's is 1e-5"),
        Convention({"norm": "unbiased outside", "eps": 1e-6}, "the norm divides by the standard deviation over D - 1, "
                   "plus 1e-6, as in the Annotated Transformer; nn.LayerNorm takes the one over D"),
        Convention({"norm": "outside"}, "the norm's epsilon is added behind the root"),
        Convention({"plain norms": True}, "the norms have no weight and no bias"),
    ]  # fmt: skip


def lone_bugs() -> list[Bug]:
    """What goes wrong in a norm that is an answer by itself."""
    return [
        *norm_bugs(),
        Bug({"norm": "rms of all"}, "the mean of the squares goes over all positions and the whole batch at once "
            "(mean() without dim): tokens see each other", "x.square().mean(dim=-1, keepdim=True)",
            ({"norm": "rms of all", "eps": 1e-6}, {"norm": "rms of all", "eps": 1e-8})),
        Bug({"plain norms": True}, "the weight (and the bias) of the norm are made, but never used",
            "normed * weight + bias", ({"plain norms": True, "norm": "rms"},)),
    ]  # fmt: skip


def lone_conventions() -> list[Convention]:
    """Norms that are right too, where the norm is the answer."""
    return [
        *(convention for convention in norm_conventions() if "plain norms" not in convention.knobs),
        Convention({"eps": 1e-8}, "the norm's epsilon is 1e-8; nn.LayerNorm's is 1e-5"),
        Convention(
            {"norm": "unbiased outside"},
            "the norm divides by the standard deviation over D - 1, plus 1e-5; nn.LayerNorm takes the one over D",
        ),
        Convention({"norm": "rms", "eps": 1e-6}, "the norm is RMSNorm with an epsilon of 1e-6, as in LLaMA"),
        Convention(
            {"norm": "unit"}, "x is divided by its length and multiplied by sqrt(D): RMSNorm without an epsilon"
        ),
        Convention({"gain around zero": True}, "the weight is kept around zero: 1 + weight multiplies, as in Gemma"),
    ]


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """x (B, T, D) -> normed (B, T, D)."""
    return {"output": norm(probe.inputs["x"], parameters, "weight", knobs)}


def probes(sizes: Sizes) -> list[Probe]:
    """Inputs x (B, T, D): three lengths, smaller and larger numbers, and tokens whose features are all zero."""
    x = numbers(BATCH, 5, sizes["D"], seed=3)  # (B, 5, D)
    x[0, 1], x[1, 2] = 0.0, 0.0
    return [*sequence_probes(sizes, scales=(0.01, 100.0)), Probe("tokens of zeros", {"x": x})]


def norm_target(options: Options) -> Target:
    """x (B, T, D) -> normed (B, T, D): LayerNorm; RMSNorm is right too."""
    only("norm", options)
    return Target(
        "norm",
        "LayerNorm: mean 0 and variance 1 over the features of every token, times a weight, plus a bias",
        ("x",),
        reference,
        probes,
        {"B": 2, "T": 11, "D": 24},
        lone_bugs(),
        lone_conventions(),
        (Role("weight", ("D",), (), ("weight", "gamma", "g", "gain", "scale", "w", "a", "alpha")),),
        options,
    )
