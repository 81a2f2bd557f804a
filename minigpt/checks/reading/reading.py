"""Reads a program: runs it once, and follows every operation with a shadow beside each number.

    with Reading("my_attention.py") as reading:
        reading.text(x)                  # x (B, T, D): each number becomes a feature of its token
        reading.parameters(module)
        y = module(x)
    reading.shadows.ids(y)               # what each number of the output is

Every step is noted with the line of the program's file that made it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.checks.reading.algebra import Algebra
from minigpt.checks.reading.meanings import Atom, Meanings, Param
from minigpt.checks.reading.operations import COMPARES, FILLS, MOVES, PRODUCTS, RULES, Operations
from minigpt.checks.reading.shadows import Ids, Shadows

WHOLE = {"matmul", "linear", "einsum", "softmax", "scaled_dot_product_attention", "tensordot", "inner", "layer_norm",
         "rms_norm", "chunk", "reshape", "narrow", "cross_entropy_loss", "nll_loss_nd", "nll_loss"}  # fmt: skip
"""Operations that torch does not take apart by itself in inference mode."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's search for cycles, which goes through all meanings again and again: half of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass(frozen=True)
class Made:
    """What one operation made: its line, its name, and the meanings of its result."""

    line: int
    op: str
    ids: Ids
    sources: tuple[bytes, ...] = ()
    """Of a product of matrices: what it multiplies."""


class Reading(TorchDispatchMode):
    """One reading of a program. `path` is its file."""

    def __init__(self, path: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self.outside = path, id(sys._getframe(1))
        self.of = Meanings()
        self.shadows = Shadows(self.of)
        self.operations = Operations(Algebra(self.of), self.shadows)
        self.tensors: dict[str, Tensor] = {}
        """The parameters by name."""
        self.results: list[Made] = []
        self.names: dict[str, int] = {}
        self.apart = False
        """Whether an operation is being taken apart into others."""
        self.input_storages: set[int] = set()
        """The storages that the caller made."""
        self.inputs: Ids | None = None
        """The meanings of the text, (B, T, D)."""
        self.in_float32 = set[int]()
        """The lines of products of matrices that were cast to float32."""
        self.overwritten = 0
        """The line at which one of them was written over."""
        self.around = ExitStack()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks: no, for it would import its compiler, which takes a second, to leave this class alone."""
        return False

    def __enter__(self) -> Reading:
        if not self.apart:
            self.around.enter_context(uncollected())
            self.around.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            self.around.enter_context(sdpa_kernel(SDPBackend.MATH))
            for name in ("__enter__", "__exit__"):  # inference mode would keep torch from taking operations apart
                self.around.callback(setattr, torch.inference_mode, name, getattr(torch.inference_mode, name))
                setattr(torch.inference_mode, name, lambda *args: None)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if not self.apart:
            self.around.close()

    def text(self, x: Tensor) -> None:
        """Each number of x (B, T, D) becomes a feature of its token."""
        self.inputs = self.given_as("input", x, range(x.shape[2]))

    def ids(self, ids: Tensor) -> None:
        """Each id of ids (B, T) becomes a number of its token: a row of a table that is picked by it is one, too."""
        self.given_as("id", ids, range(1))

    def heads(self, name: str, x: Tensor) -> None:
        """Each number of x (B, T, H, d), given queries, keys or values, becomes a feature of its token."""
        H, d = x.shape[2:]
        self.given_as("input", x, [self.of(Param((name, h, j))) for h in range(H) for j in range(d)])

    def given_as(self, op: str, x: Tensor, places: Sequence[int]) -> Ids:
        """The meanings of x (B, T, ...): the numbers of a token are atoms with these places."""
        atoms = [Atom(op, self.of.nothing, self.of.nothing, place) for place in places]
        atoms_of = [self.of.feature((token,), atom) for token in np.ndindex(*x.shape[:2]) for atom in atoms]
        ids = np.array(atoms_of, dtype=np.int64).reshape(x.shape)
        self.shadows.write(x, ids)
        return ids

    def parameters(self, module: nn.Module) -> None:
        """Each number of a parameter becomes one that is known by its name and its place."""
        for name, parameter in module.named_parameters():
            if self.shadows.has(parameter) or not parameter.numel():
                continue
            self.names[name], self.tensors[name] = parameter.numel(), parameter.detach()
            ids = self.of.params(name, parameter.numel())
            self.shadows.write(parameter.data, ids.reshape(parameter.shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        listed = [*args, *kwargs.values()]
        inputs = [one for arg in listed for one in (arg if isinstance(arg, (list, tuple)) else [arg])]
        if not any(self.shadows.has(one) for one in inputs):
            return func(*args, **kwargs)
        self.of.line = self.running_line()
        name = func.overloadpacket.__name__
        self.operations.func = func
        if name in ("where", "masked_fill", "masked_fill_") and len(args) == 3 and (
            by_value := self.operations.by_value(name, args)) is not None:  # fmt: skip
            out = func(*args, **kwargs)
            self.note(out, name, by_value, ())
            return out
        if name in MOVES or name in FILLS:
            out = self.move(func, name, args, kwargs)
            if not self.of.line and isinstance(out, Tensor):
                self.input_storages.add(out.untyped_storage()._cdata)
            return out
        if name in WHOLE:
            self.apart = True
            try:
                with self:
                    return func.decompose(*args, **kwargs)
            finally:
                self.apart = False
        if name in ("squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "detach_"):
            return func(*args, **kwargs)  # another view of the same numbers
        changes = func._schema.is_mutable and isinstance(args[0], Tensor)
        if changes:
            self.write_over(args[0])
        name_of_rule = name.removesuffix("_") if changes else name
        rule = RULES.get(name_of_rule, Operations.no_rule)
        ids = rule(self.operations, name_of_rule, args, kwargs) if changes else None
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, (list, tuple)) else out
        if not isinstance(first, Tensor):
            self.operations.lost = self.operations.lost or (self.of.line if name == "_local_scalar_dense" else 0)
            return out
        memories = [one.untyped_storage()._cdata for one in inputs if isinstance(one, Tensor)]
        if not changes and first.untyped_storage()._cdata in memories:  # a view: its shadows are there
            for one in (out if first is not out else [out]) if not first.is_complex() else ():
                self.results.append(Made(self.of.line, name, self.shadows.ids(one)))
            return out
        ids = ids if changes else rule(self.operations, name, args, kwargs)
        if ids is None and (name in COMPARES or first.dtype == torch.bool):
            return out
        if ids is None:
            ids = self.operations.unknown(name, args, kwargs, first)
            for which, other in enumerate(out[1:] if first is not out else [], start=1):
                if isinstance(other, Tensor) and other.is_floating_point() and other.numel():
                    self.note(other, name, self.operations.unknown(name, args, kwargs, other, which), ())
        sources = [one for one in inputs if self.shadows.has(one)] if name in PRODUCTS else []
        self.in_float32.update({self.of.line} if sources and first.dtype == torch.float32 else ())
        self.note(first, name, ids, tuple(self.shadows.ids(one).tobytes() for one in sources))
        return out

    def note(self, out: Tensor, name: str, ids: Ids, sources: tuple[bytes, ...]) -> None:
        """Keep what an operation made."""
        self.shadows.write(out, ids)
        real = ids.reshape((*out.shape, -1))[..., 0] if out.is_complex() else ids
        self.results.append(Made(self.of.line, name, real, sources))

    def move(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operation that moves numbers, done to the numbers and to their shadows."""
        if name in FILLS and name.endswith("_"):
            self.write_over(args[0])
            self.shadows.make(args[0])
        one = self.operations.moves(func, name, args, kwargs)
        parts = [one(part) for part in ((0, 1) if isinstance(args[0], Tensor) and args[0].is_complex() else (0,))]
        out = func(*args, **kwargs)
        if name.endswith("_") or not isinstance(out, Tensor):
            self.results.append(Made(self.of.line, name, self.shadows.ids(args[0])))
            return out
        shadow = torch.stack(parts, -1) if len(parts) == 2 else parts[0]
        if out.untyped_storage()._cdata not in self.shadows.storages:
            self.shadows.make(out)
            self.shadows.at(out).copy_(shadow)
        index = {"embedding": args[1:2], "index_select": args[2:3], "index": args[1:2]}.get(name, ())
        listed = list(index[0]) if index and isinstance(index[0], (list, tuple)) else list(index)
        if len(listed) == 1 and self.shadows.has(listed[0]) and self.shadows.has(args[0]):
            self.shadows.write(out, self.operations.picked(args, self.shadows.ids(out), listed[0]))
        self.results.append(Made(self.of.line, name, self.shadows.ids(out)))
        return out

    def write_over(self, x: Tensor) -> None:
        """Note where the program writes into what its caller made."""
        if self.of.line and x.untyped_storage()._cdata in self.input_storages:
            self.overwritten = self.overwritten or self.of.line

    def running_line(self) -> int:
        """The line of the program's file that is running; 0 if none is."""
        frame = sys._getframe(2)
        while frame is not None and id(frame) != self.outside:  # a cell may hold the program, and call the checker
            if frame.f_code.co_filename == self.path:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return 0
