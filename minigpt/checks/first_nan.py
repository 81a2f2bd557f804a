"""Where NaN comes from: the first operation that makes NaN from numbers, its operands, and the line of code.

with FirstNaN() as first:
    attention(x)
first.location     # "0 / 0 in my_attention.py:14", or "" where no NaN was made
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

TORCH = Path(torch.__file__).parent


class FirstNaN(TorchFunctionMode):
    """Observes every operation inside the `with`; it is slow, and changes nothing."""

    location = ""  # the operation and its line
    kind = ""  # "0 / 0", "infinity * 0", ... or the operation's name

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.location and is_nan(out) and not any(map(is_nan, args)):
            self.kind = explain(func.__name__, args, out)
            self.location = f"{self.kind} in {line_of_code()}"
        return out


def is_nan(value: Any) -> bool:
    """Whether a tensor, or one of several, contains NaN."""
    if isinstance(value, (tuple, list)):
        return any(map(is_nan, value))
    return isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any())


def explain(name: str, args: tuple[Any, ...], out: Any) -> str:
    """The operation at the first NaN with its operands, such as "0 / 0", or only its name."""
    sign = next((sign for word, sign in (("div", "/"), ("mul", "*"), ("sub", "-"), ("add", "+")) if word in name), "")
    if sign and "mat" not in name and len(args) >= 2 and isinstance(out, Tensor):
        first, second = (torch.as_tensor(arg).to(out).expand_as(out)[out.isnan()][0].item() for arg in args[:2])
        left, right = (second, first) if name.startswith("__r") else (first, second)
        return f"{_plain(left)} {sign} {_plain(right)}"
    if "softmax" in name and bool((args[0] == -torch.inf).any()):
        return "softmax of a row that is -inf throughout"
    return name.strip("_")


def _plain(number: float) -> str:
    return {float("inf"): "infinity", float("-inf"): "-infinity", 0.0: "0"}.get(number, f"{number:.3g}")


def line_of_code() -> str:
    """The file and line that called torch: the innermost that is neither torch's nor this file's."""
    frames = [f for f in traceback.extract_stack() if f.filename != __file__ and TORCH not in Path(f.filename).parents]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
