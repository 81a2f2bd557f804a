"""Measures the constants of an MLP's activation from its outputs, where the form of the activation is known.

GELU and its tanh form are from arXiv 1606.08415.

B batch, T positions, D model width, W width of the hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.grading.naming import Reading
from minigpt.grading.outputs import equal
from minigpt.grading.target import Probe

Curve = Callable[[Tensor, Tensor], Tensor]  # hidden layer (B, T, W) and constants (n,) -> activations (B, T, W)
STEPS = 30
CURVES: dict[str, tuple[Curve, tuple[float, ...]]] = {  # form: (curve, its right constants)
    "0.5 x (1 + tanh({:.6g} (x + {:.6g} x^3)))": (
        lambda x, c: 0.5 * x * (1 + torch.tanh(c[0] * (x + c[1] * x**3))),
        ((2 / torch.pi) ** 0.5, 0.044715),
    ),
    "0.5 x (1 + erf({:.6g} x))": (lambda x, c: 0.5 * x * (1 + torch.erf(c[0] * x)), (0.5**0.5,)),
    "x sigmoid({:.6g} x)": (lambda x, c: x * (c[0] * x).sigmoid(), (1.702,)),
}


def measured_curve(reading: Reading) -> str:
    """A sentence: the constants of an MLP's activation, and the right ones; "" if its form is unknown."""
    given = reading.binding.parameters
    if reading.target.name != "mlp" or not {"up", "down"} <= set(given) or "gate" in given:
        return ""
    numbers = [number for number in reading.usable() if not isinstance(reading.outputs[number], Exception)]
    for form, (curve, right) in CURVES.items():
        found = fitted(reading, numbers[-1], curve, torch.tensor(right, dtype=torch.float64))
        if all(explains(reading, number, curve, found) for number in numbers):
            return f"measured: the activation is {form.format(*found.tolist())}; expected {form.format(*right)}"
    return ""


def output(reading: Reading, probe: Probe, curve: Curve, constants: Tensor) -> Tensor:
    """What an MLP with this activation returns: (B, T, D)."""
    given = reading.binding.parameters
    hidden = F.linear(probe.inputs["x"], given["up"], given.get("up_bias"))  # (B, T, W)
    return F.linear(curve(hidden, constants), given["down"], given.get("down_bias"))


def explains(reading: Reading, number: int, curve: Curve, constants: Tensor) -> bool:
    """Whether an activation with these constants gives what the answer returns for a probe."""
    probe = reading.outputs.probes[number]
    return equal(reading.outputs[number], output(reading, probe, curve, constants), probe, loose=True)


def fitted(reading: Reading, number: int, curve: Curve, constants: Tensor) -> Tensor:
    """The constants (n,) with which the output for a probe is nearest to the answer's (Gauss-Newton)."""
    probe, theirs, small = reading.outputs.probes[number], reading.outputs[number], 1e-6
    assert isinstance(theirs, Tensor)

    def away(constants: Tensor) -> Tensor:
        return (output(reading, probe, curve, constants) - theirs).flatten()  # (B T D,)

    for _ in range(STEPS):
        now = away(constants)  # (B T D,)
        slopes = [(away(constants + small * unit) - now) / small for unit in torch.eye(len(constants)).double()]
        step = torch.linalg.lstsq(torch.stack(slopes, dim=1), now[:, None]).solution[:, 0]  # (n,)
        while not away(constants - step).norm() <= now.norm() and step.norm() > 1e-12:
            step = step / 2
        constants = constants - step
    return constants
