"""Triton's kernels without a GPU: `python interpreted.py T e` holds `triton_chunks.py` against `chunks.py` on a CPU.

Triton's interpreter runs a kernel on CPU tensors. Two things of fla-core need a GPU all the same: its search for the
fastest settings, of which the first are taken here, and loop counters that are Triton's numbers. Prints a line of JSON
for each form: the largest difference of each result and gradient, relative to its largest number.

B batch, H heads, T positions, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.nn.functional as F
from fla.ops import gated_delta_rule, gla, kda, simple_gla  # noqa: F401 (before they are changed)
from triton.runtime.autotuner import Autotuner

from minigpt.fast.chunks import chunked
from minigpt.fast.triton_chunks import in_kernels

B, H, d = 1, 2, 32
FORMS = {"sum": (0, 0), "fading": (1, 0), "channels": (d, 0), "delta": (0, 1), "gated delta": (1, 1), "kimi": (d, 1)}


class Counter(int):
    """A loop counter with the method that the kernels call."""

    def to(self, dtype: Any) -> Counter:
        return self


def arithmetic(name: str) -> Any:
    """An operation of int whose result is a Counter, where it is a number."""

    def operation(self: Counter, other: Any) -> Any:
        result = getattr(int, name)(self, other)
        return Counter(result) if isinstance(result, int) else result

    return operation


def counting(*limits: int) -> Iterator[Counter]:
    """`range`, of Counters."""
    yield from map(Counter, range(*limits))


def first_settings(self: Any, *arguments: Any, **named: Any) -> Any:
    """Run a kernel with the first of its settings."""
    return self.fn.run(*arguments, **{**named, **self.configs[0].kwargs})


def prepare() -> None:
    """Make the kernels run on CPU tensors."""
    for operator in ("add", "sub", "mul", "floordiv", "mod"):
        for name in (f"__{operator}__", f"__r{operator}__"):
            setattr(Counter, name, arithmetic(name))
    for name, module in list(sys.modules.items()):
        if name.startswith("fla"):
            for thing in list(vars(module).values()):
                if isinstance(thing, type) and issubclass(thing, Autotuner):
                    thing.run = first_settings
        if name.startswith("fla.ops"):
            vars(module)["range"] = counting


def differences(T: int, e: int, decays: int, strengths: int) -> list[float]:
    """Of what is read, the last state, and the gradients of everything that comes in."""
    inputs: list[Any] = [torch.randn(B, H, T, d) * d**-0.5, F.normalize(torch.randn(B, H, T, d), dim=-1)]
    inputs += [torch.randn(B, H, T, e), torch.randn(B, H, d, e)]
    inputs += [-0.5 * torch.rand(B, H, T, decays) if decays else None, torch.rand(B, H, T, 1) if strengths else None]
    leaves = [x.requires_grad_() for x in inputs if x is not None]
    found = []
    for form in (chunked, in_kernels):
        results = form(*inputs)
        total = sum((result * torch.ones_like(result).cumsum(2).sin()).sum() for result in results)
        found.append([*results, *torch.autograd.grad(total, leaves)])  # type: ignore[arg-type]
    return [((a - b).abs().max() / a.abs().max()).item() for a, b in zip(*found)]


if __name__ == "__main__":
    torch.manual_seed(0)
    prepare()
    for name, gates in FORMS.items():
        print(json.dumps({name: differences(int(sys.argv[1]), int(sys.argv[2]), *gates)}), flush=True)
