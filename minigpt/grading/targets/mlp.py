"""The MLP of a block: a hidden layer four times as wide, GELU, and back.

GELU is from "Gaussian Error Linear Units" (arXiv 1606.08415).

B batch, T positions, D model width, W width of the hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.grading.probes import sequence_probes
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
    alike,
    only,
)

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "quick gelu": lambda x: x * (1.702 * x).sigmoid(),
    "relu": lambda x: x.relu(),
    "none": lambda x: x,
    "sigmoid": lambda x: x.sigmoid(),
    "tanh": lambda x: x.tanh(),
    "silu": lambda x: F.silu(x),
    "leaky": lambda x: F.leaky_relu(x),
    "elu": lambda x: F.elu(x),
    "square": lambda x: x.relu().square(),
    "softmax": lambda x: x.softmax(dim=-1),
    "twice": lambda x: F.gelu(F.gelu(x)),
    "erf without root": lambda x: 0.5 * x * (1 + torch.erf(x)),
    "erf without 1": lambda x: 0.5 * x * torch.erf(x * 0.5**0.5),
    "half missing": lambda x: 2 * F.gelu(x),
    "cube missing": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * x)),
    "tanh without root": lambda x: 0.5 * x * (1 + torch.tanh(2 / torch.pi * (x + 0.044715 * x**3))),
    "cdf": lambda x: torch.special.ndtr(x),
}
GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # gate and hidden layer, (B, T, W) each
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu": lambda gate, up: F.gelu(gate) * up,
    "sigmoid": lambda gate, up: gate.sigmoid() * up,
    "relu": lambda gate, up: gate.relu() * up,
    "none": lambda gate, up: gate * up,
    "both": lambda gate, up: F.silu(gate) * F.silu(up),
    "late": lambda gate, up: F.silu(gate * up),
    "sum": lambda gate, up: F.silu(gate) + up,
}


def feed(x: Tensor, parameters: Parameters, knobs: Knobs, layer: str = "") -> Steps:
    """x (B, T, D) -> the hidden layer (B, T, W) before and after its activation, and the output (B, T, D)."""

    def linear(x: Tensor, name: str, bias: bool = True) -> Tensor:
        given = parameters.get(f"{name}{layer}_bias") if bias else None
        return F.linear(x, parameters[f"{name}{layer}"], given)

    act = ACTIVATIONS[knobs.get("activation", "gelu")]
    place = knobs.get("acts", "hidden")
    hidden = linear(act(x) if place in ("input", "every") else x, "up")  # (B, T, W)
    active = act(hidden) if place not in ("input", "output") else hidden  # (B, T, W)
    if "gated" in knobs:
        gate = linear(x, "gate")  # (B, T, W)
        active = GATES[knobs["gated"]](gate, hidden)  # (B, T, W)
    active = {
        "": lambda: active,
        "residual": lambda: active + hidden,
        "product": lambda: active * hidden,
        "positions": lambda: active.mean(dim=1, keepdim=True).expand_as(active),
    }[knobs.get("hidden", "")]()
    out = linear(active, "down")  # (B, T, D)
    if place in ("output", "both", "every"):
        out = act(out)
    return {"hidden layer": hidden, "activations": active, "output": out}


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """x (B, T, D) -> (B, T, D)."""
    x = probe.inputs["x"]  # (B, T, D)
    steps = feed(x, parameters, knobs)
    out = {"": steps["output"], "residual": steps["output"] + x, "minus": -steps["output"], "x": x}
    return steps | {"output": out[knobs.get("after", "")]}


GELU = "F.gelu(hidden), between the two linear layers"
OTHERS = {
    "none": "there is no activation between the two linear layers: together they are one linear layer from {D} to {D}",
    "sigmoid": "the activation is a sigmoid, not GELU: all activations are positive",
    "tanh": "the activation is tanh, not GELU",
    "silu": "the activation is SiLU (swish), not GELU",
    "leaky": "the activation is leaky ReLU, not GELU",
    "elu": "the activation is ELU, not GELU",
    "softmax": "the activation is a softmax over the hidden layer, not GELU",
    "twice": "GELU is applied twice to the hidden layer",
}
EXACT = "gelu(x) = 0.5 x (1 + erf(x / sqrt(2)))"
TANH = "gelu(x) is about 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))"


def activation_bugs() -> list[Bug]:
    """What goes wrong between the two linear layers, in an MLP alone and in a block."""
    return [
        *alike("activation", OTHERS, GELU),
        Bug({"activation": "erf without root"}, "in GELU, erf(x) stands where erf(x / sqrt(2)) is needed", EXACT),
        Bug({"activation": "erf without 1"}, "in GELU the 1 + is missing: 0.5 x erf(x / sqrt(2))", EXACT),
        Bug({"activation": "half missing"}, "in GELU the factor 0.5 is missing: the activations are twice too large",
            EXACT),
        Bug({"activation": "cube missing"}, "in the tanh form of GELU the term 0.044715 x^3 is missing", TANH),
        Bug({"activation": "tanh without root"}, "in the tanh form of GELU, 2 / pi stands without its root", TANH),
        Bug({"activation": "cdf"}, "GELU without its x: the normal distribution function alone", EXACT),
        Bug({"acts": "output"}, "the activation comes after the second linear layer, not between the two", GELU),
        Bug({"acts": "input"}, "the activation is applied to the input of the first layer, not between the two",
            GELU),
        Bug({"acts": "both"}, "the activation is applied to the output too: the last layer must stay linear, or "
            "the MLP can hardly write negative numbers", "return the second linear layer's output as it is"),
        Bug({"acts": "every"}, "the activation is applied to the input and to the output too", GELU),
        Bug({"hidden": "residual"}, "the hidden layer is added to its own activations: gelu(h) + h", GELU),
        Bug({"hidden": "product"}, "the hidden layer is multiplied by its own activations: gelu(h) * h", GELU),
        Bug({"hidden": "positions"}, "the hidden layer is averaged over the positions: each must be computed on its "
            "own", GELU),
    ]  # fmt: skip


def gate_bugs() -> list[Bug]:
    """What goes wrong in an MLP with a gate: SwiGLU."""
    fix = "down(F.silu(gate(x)) * up(x))"
    return [
        Bug({"gated": "none"}, "the gate has no activation: gate(x) * up(x), where SiLU is missing", fix),
        Bug({"gated": "both"}, "SiLU is applied to both factors, the gate and the hidden layer", fix),
        Bug({"gated": "late"}, "SiLU is applied to the product of gate and hidden layer, not to the gate", fix),
        Bug({"gated": "sum"}, "gate and hidden layer are added instead of multiplied", fix),
    ]  # fmt: skip


def gate_conventions() -> list[Convention]:
    """Gates ("GLU Variants Improve Transformer", arXiv 2002.05202); the first is the usual one."""
    return [
        Convention({"gated": "silu"}, "the MLP has a gate: SwiGLU, as in LLaMA; GPT-2 has GELU without one"),
        Convention({"gated": "gelu"}, "the MLP has a gate with GELU: GeGLU"),
        Convention({"gated": "sigmoid"}, "the MLP has a gate with a sigmoid: GLU"),
        Convention({"gated": "relu"}, "the MLP has a gate with ReLU: ReGLU"),
    ]


def outer_bugs() -> list[Bug]:
    """What else goes wrong in an MLP that is an answer by itself."""
    return [
        Bug({"after": "residual"}, "x is added inside the MLP: the residual belongs to the block, which would add it "
            "twice", "return the second linear layer's output alone"),
        Bug({"after": "minus"}, "the output has the wrong sign", "return it without a minus"),
        Bug({"after": "x"}, "the MLP returns its input: what it computes is thrown away", "return the output"),
    ]  # fmt: skip


def activation_conventions() -> list[Convention]:
    """Activations that are right too."""
    return [
        Convention({"activation": "tanh gelu"}, "GELU in its tanh form, as in GPT-2's code; the exact one differs by "
                   "less than 0.0005"),
        Convention({"activation": "relu"}, "the activation is ReLU, as in the first Transformer; GPT-2 has GELU"),
        Convention({"activation": "square"}, "the activation is the square of ReLU, as in Primer (arXiv 2109.08668); "
                   "GPT-2 has GELU"),
        Convention({"activation": "quick gelu"}, "GELU as x sigmoid(1.702 x), which differs from it by at most 0.02"),
    ]  # fmt: skip


UP = ("up", "fc", "c_fc", "fc1", "linear1", "w1", "in", "expand", "lin1", "w3", "0")
DOWN = ("down", "proj", "c_proj", "fc2", "linear2", "w2", "out", "contract", "lin2", "project", "2")
GATE = Role("gate", ("W",), ("D",), ("gate", "w1", "gate_proj", "fc1", "linear1"))
ROLES = (Role("up", ("W",), ("D",), UP), Role("down", ("D",), ("W",), DOWN))


def tiny() -> tuple[Sizes, Parameters, Probe]:
    """Three tokens of one feature, and two hidden units."""
    x = torch.tensor([[[1.0], [-1.0], [2.0]]], dtype=torch.float64)  # (1, 3, 1)
    up, down = torch.tensor([[1.0], [-2.0]]).double(), torch.tensor([[1.0, 1.0]]).double()
    return {"B": 1, "T": 3, "D": 1, "W": 2}, {"up": up, "down": down}, Probe("three tokens", {"x": x})


def mlp(options: Options) -> Target:
    """x (B, T, D) -> (B, T, D)."""
    only("mlp", options)
    return Target(
        "mlp",
        "a linear layer to a width of 4 D, GELU, and a linear layer back to D",
        ("x",),
        reference,
        partial(sequence_probes, scales=(0.1, 8.0)),
        {"B": 2, "T": 11, "D": 7, "W": 28},
        [*activation_bugs(), *outer_bugs()],
        activation_conventions(),
        ROLES,
        options,
        tiny=tiny,
    )
