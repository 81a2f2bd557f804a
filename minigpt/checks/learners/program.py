"""A program and one way to call it; texts to call it with; and what it calls of torch, line by line.

B batch, T positions, D model width, H heads, d width of a head.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from minigpt.checks.learners.verdict import frames_in

MIDDLE, LONG = 40, 300  # tokens
DEAREST = 0.1  # seconds of processor time for the longest text
SAME = 2e-6  # the largest difference between equal outputs, as a part of the largest number; float32 may be inside
MOST = 5000  # the most results of a program that are kept
CUTS = ("detach", "detach_", "item", "tolist", "numpy", "__float__", "data")  # they end a gradient
Inputs = Mapping[str, Tensor]


@dataclass
class Program:
    """A program, and one way to call it."""

    thing: Any
    run: Callable[..., Tensor]
    """The output of a thing for inputs in the canonical layout."""
    inputs: Inputs
    """In float64, a batch of two or more: x (B, T, D); query, key, value (B, H, T, d); ids (B, T)."""
    path: str = ""
    causal: bool = True
    reach: int | None = None
    """How many tokens a token sees, its own included. None: all; 0: not known."""
    numbers: frozenset[int] = frozenset()
    """The whole numbers that its constructor was given."""

    def __call__(self, inputs: Inputs, thing: Any = None) -> Tensor:
        """The output for these inputs."""
        return self.run(self.thing if thing is None else thing, inputs)

    @property
    def module(self) -> nn.Module:
        """The program as a module; a function has no parameters."""
        return self.thing if isinstance(self.thing, nn.Module) else nn.Module()

    def text(self, T: int, B: int = 1, seed: int = 1) -> dict[str, Tensor]:
        """Other inputs, of T tokens."""
        draw, texts = torch.Generator().manual_seed(seed), dict[str, Tensor]()
        for name, x in self.inputs.items():
            shape = [{0: B, axis_of(x): T}.get(axis, size) for axis, size in enumerate(x.shape)]
            new = texts[name] = torch.empty(shape, dtype=x.dtype)
            new.normal_(generator=draw) if x.is_floating_point() else new.random_(int(x.max()) + 1, generator=draw)
        return texts

    @cached_property
    def longest(self) -> tuple[int, Exception | None]:
        """(The longest text that is tried, up to LONG tokens; what one more token raises, if that was the reason)."""
        low, high, error, T = next(x.shape[axis_of(x)] for x in self.inputs.values()), LONG + 1, None, MIDDLE
        self.longest_output = self(self.text(low))
        while low < T < high:
            began = time.process_time()
            try:
                self.longest_output, low = self(self.text(T)), T
            except Exception as raised:  # the learner's code: anything
                error, high = raised, T
            dear = max(1.0, DEAREST / (time.process_time() - began + 1e-6)) ** 0.5  # time grows as T^2 at most
            T = (low + high) // 2 if error else min(LONG, int(T * dear))
        return low, error

    longest_output: Tensor = field(init=False)
    """What it gives for that text."""

    def announces(self, T: int) -> bool:
        """Whether T is a number, or the size of a table, that the program or its constructors hold."""
        held: list[Any] = list(self.numbers)
        for part in self.thing.modules() if isinstance(self.thing, nn.Module) else [self.thing]:
            own = getattr(part, "__dict__", {})
            if not isinstance(part, nn.Linear):
                held += [*own.values(), *getattr(own.get("config"), "__dict__", {}).values()]
                held += [*own.get("_buffers", {}).values(), *own.get("_parameters", {}).values()]
                held += getattr(getattr(part, "forward", part), "__globals__", {}).values()
                with suppress(TypeError, ValueError):
                    held += [one.default for one in inspect.signature(type(part)).parameters.values()]
        tables = [one for one in held if isinstance(one, Tensor)]
        return any(type(one) is int and one == T for one in held) or any(T in one.shape for one in tables)


def axis_of(x: Tensor) -> int:
    """The axis of the tokens: of (B, T), (B, T, D) and (B, H, T, d)."""
    return 2 if x.dim() == 4 else 1


def tokens(inputs: Inputs, first: int, last: int) -> dict[str, Tensor]:
    """The tokens from `first` to before `last`."""
    return {name: x.narrow(axis_of(x), first, last - first) for name, x in inputs.items()}


def with_tokens(inputs: Inputs, other: Inputs, places: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
    """A batch of the inputs, and after it one with the tokens of another from `first` to before `last` for each."""

    def spliced(x: Tensor, new: Tensor, first: int, last: int) -> Tensor:
        here = torch.arange(x.shape[axis_of(x)])
        here = (here >= first) & (here < last)
        return torch.where(here.view(-1, *[1] * (x.dim() - axis_of(x) - 1)), new, x)

    return {name: torch.cat([x, *(spliced(x, other[name], *place) for place in places)]) for name, x in inputs.items()}


def scaled(inputs: Inputs, scale: float) -> dict[str, Tensor]:
    """Inputs that are larger; ids stay."""
    return {name: x * scale if x.is_floating_point() else x for name, x in inputs.items()}


def cut(y: Tensor, like: Tensor) -> Tensor:
    """The first part of y, of the shape of another."""
    return y[tuple(slice(size) for size in like.shape)] if y.dim() == like.dim() else y


def same(x: Tensor, y: Tensor, part: float = SAME) -> bool:
    """Whether two outputs differ by less than a part of their largest number."""
    if x.shape != y.shape:
        return False
    return torch.allclose(x.double(), y.double(), rtol=0, atol=part * largest(y), equal_nan=True)


def largest(y: Tensor) -> float:
    """The size of the largest number that is finite."""
    return max(1e-6, float(y.double().nan_to_num(0, 0, 0).abs().max())) if y.numel() else 1.0


def moved(x: Tensor, y: Tensor, part: float = SAME) -> Tensor:
    """Which tokens of a text differ: (B, T), from outputs (B, T, ...) or (B, H, T, ...)."""
    away = (x - y).abs().movedim(axis_of(y), 1).flatten(2).amax(2) if y.dim() > 2 else (x - y).abs()
    return away.nan_to_num(torch.inf) > part * largest(y)


class Steps(TorchFunctionMode):
    """Notes what a program calls of torch: the line, the name and the result; and where it writes into `watched`."""

    def __init__(self, path: str, watched: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.path, self.written, self.cut = path, 0, 0
        self.watched = [(x, x.detach().clone()) for x in watched]
        self.noted: list[tuple[int, str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        line, name = line_in(self.path), getattr(func, "__name__", "")
        if not self.written and not all(torch.equal(x, old) for x, old in self.watched):
            self.written = line
        if name == "__get__":  # of a property, such as x.data
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        learns = any(isinstance(one, Tensor) and one.requires_grad for one in args)
        gone = isinstance(result, Tensor) and result.is_floating_point() and not result.requires_grad
        if not self.cut and learns and (name in CUTS or gone):
            self.cut = line
        if isinstance(result, Tensor) and not is_functorch_wrapped_tensor(result) and len(self.noted) < MOST:
            self.noted.append((line, name, result.detach().clone()))
        return result


def line_in(path: str) -> int:
    """The line of a file that is running, in its innermost call; 0 if none is."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == path:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def first_line(one: Steps, other: Steps) -> int:
    """The line of the first result that is not the same in two calls, as far as both have it."""
    for (line, name, x), (_, others, y) in zip(one.noted, other.noted):
        if name != others:
            return 0
        if line and x.dtype == y.dtype and x.dim() == y.dim() and not same(cut(x, y), cut(y, x)):
            return line
    return 0


def line_of(error: Exception, path: str) -> int:
    """The line of a file that raised an error; 0: none."""
    return next((frame.lineno or 0 for frame in reversed(frames_in(error, Path(path)))), 0)
