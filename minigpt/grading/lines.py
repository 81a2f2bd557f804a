"""The line of the learner's file nearest to the first wrong number.

Every result of a torch function is recorded with the line of the learner's file that computed it, and compared with the
steps of the reference as a bag of numbers: shape and order do not count. Where a bug has a name, its first wrong step
is known; the line is the one whose result is that step. Without a name it is the line after the last right step.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minigpt.grading.target import Steps

MOST = 3000  # the most results that are kept
HIDDEN = -1e4  # stands for every hidden score, whatever it was filled with


@dataclass
class Result:
    """A result of one torch function."""

    line: int
    value: Tensor
    bag: Tensor


def bag(x: Tensor) -> Tensor:
    """The numbers of a tensor, sorted (n,); every hidden score becomes the same number."""
    flat = x.detach().double().flatten().nan_to_num(nan=12345.678, neginf=HIDDEN)
    return flat.clamp(min=HIDDEN).sort().values


def same(first: Tensor, second: Tensor) -> bool:
    """Whether two bags hold the same numbers."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-6, atol=1e-9)


class Recorder(TorchFunctionMode):
    """Records the results of torch functions that lines of one file compute."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.results: list[Result] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if result is None and args:  # x[t] = y
            result = args[0]
        wanted = isinstance(result, Tensor) and result.is_floating_point() and len(self.results) < MOST
        if wanted and (line := line_in(sys._getframe(1), self.path)):
            self.results.append(Result(line, result.detach().clone(), bag(result)))
        return result


class Float32(TorchFunctionMode):
    """Notices results with less precision than float64: then `seen` is True."""

    seen = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        real = isinstance(result, Tensor) and (result.is_floating_point() or result.is_complex())
        if real and result.dtype not in (torch.float64, torch.complex128):
            self.seen = True
        return result


def uses_float32(run: Callable[[], Any]) -> bool:
    """Whether a call computes something in less than float64."""
    watch = Float32()
    with watch:
        run()
    return watch.seen


def line_in(frame: FrameType | None, path: str) -> int:
    """The line of a file that is running, in the innermost frame of the file; 0 if there is none."""
    while frame is not None:
        if frame.f_code.co_filename == path:
            return frame.f_lineno
        frame = frame.f_back
    return 0


@dataclass
class Place:
    """A line of the learner's file."""

    line: int = 0
    step: str = ""


def record(path: Path, run: Callable[[], Any]) -> list[Result]:
    """The results of one call of the answer."""
    recorder = Recorder(str(path))
    with recorder:
        run()
    return recorder.results


def locate(results: list[Result], right: Steps, wrong: Steps | None) -> Place:
    """Where the first wrong number is computed, or line 0. `wrong`: the steps with the bug, if it has a name."""
    if wrong is not None and (place := first_wrong(results, right, wrong)):
        return place
    good = [bag(piece) for step in right.values() for piece in pieces(step)]
    last = -1
    for number, result in enumerate(results):
        if any(same(result.bag, step) for step in good):
            last = number
    after = [result.line for result in results[last + 1 :]]
    return Place(after[0], "") if after and last >= 0 else Place()


def first_wrong(results: list[Result], right: Steps, wrong: Steps) -> Place | None:
    """The line whose result is the first step that the bug changes; None if no result is."""
    for name, step in wrong.items():
        if name in right and identical(step, right[name]):
            continue
        for result in results:
            if identical(result.value, step):
                return Place(result.line, name)
        if name in right and same(bag(step), bag(right[name])):
            continue
        for piece in pieces(step):
            expected = bag(piece)
            for result in results:
                if same(result.bag, expected):
                    return Place(result.line, name)
    return None


def pieces(step: Tensor) -> list[Tensor]:
    """A step as a whole, and the parts that a loop over heads or sequences computes first."""
    found = [step]
    if step.dim() == 4:
        found += [step[:, 0], step[0, 0]]
    return [*found, step[0]] if step.dim() >= 3 else found


def identical(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are the same in every place, hidden scores aside."""
    if first.shape != second.shape:
        return False
    first, second = first.double().clamp(min=HIDDEN), second.double().clamp(min=HIDDEN)
    return torch.allclose(first, second, rtol=1e-6, atol=1e-9, equal_nan=True)


def source_line(path: Path, number: int) -> str:
    """The text of a line of a file, or of a notebook's cell."""
    return linecache.getline(str(path), number).strip()


__all__ = ["Place", "locate", "record", "source_line", "uses_float32"]
