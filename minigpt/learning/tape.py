"""What torch computes in a cell, operation by operation, so that the page computes it again from other numbers.

    # %% live        in a lesson: the tables of this cell are live on the page

A table that nothing live leads to is an input: its numbers can be changed. A table or bars that were computed from
inputs follow them. The page (`replay.js`) carries out the same operations, in double precision; how a lesson says it in
Python, in a loop or by a function, makes no difference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SCRIPT = Path(__file__).with_name("replay.js").read_text(encoding="utf-8")
OPERATIONS = set(re.findall(r"^  (\w+): \(", SCRIPT, re.M))  # those of aten that the page has
MOST_INPUTS = 36  # numbers of a table that can be changed
MOST_NUMBERS = 1024  # of a result on the way

_current: Tape | None = None


@dataclass(frozen=True)
class Place:
    """The number of a node, in place of a tensor among arguments."""

    number: int


@dataclass(frozen=True)
class Node:
    """A tensor as it was, and the operation that it is the result of; without one it is a constant."""

    shape: tuple[int, ...]
    data: Sequence[float] | None  # None: too many
    operation: str = ""
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    part: int | None = None  # of an operation with several results

    @property
    def sources(self) -> list[int]:
        """The numbers of the nodes that it was computed from."""
        return [each.number for each in _flat(self.arguments) if isinstance(each, Place)]


class Tape(TorchDispatchMode):
    """Notes all operations of the live cells of a lesson; later cells go on with the tensors of earlier ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes, self.inputs = list[Node](), set[int]()
        self.live = set[int]()  # in a live picture
        self._numbers = dict[tuple[Any, ...], int]()
        self._kept = list[Tensor]()  # so that no other tensor gets their memory

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What is computed inside the `with` is noted, and pictures that are made there are live."""
        global _current
        _current = self
        try:
            with self:
                yield
        finally:
            _current = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments, name, options = self._noted(args), func._schema.name.partition("::")[2], kwargs or {}
        results = func(*args, **options)
        several = isinstance(results, (list, tuple))
        for part, tensor in enumerate(results if several else [results]):
            if isinstance(tensor, Tensor):
                self._number_of(tensor, name, arguments, options, part if several else None)
        return results

    def _noted(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return Place(self._number_of(argument))
        return [self._noted(each) for each in argument] if isinstance(argument, (list, tuple)) else argument

    def _number_of(self, tensor: Tensor, *operation: Any) -> int:
        """The number of a tensor's node, which is made if there is none."""
        key = _key(tensor)
        if key not in self._numbers:
            older = [Place(number) for (memory, *_), number in self._numbers.items() if memory == key[0]]
            operation = operation or (("written", older) if older else ())  # which the page cannot do
            data = list(_flat([tensor.tolist()])) if tensor.numel() <= MOST_NUMBERS else None
            self.nodes.append(Node(tuple(tensor.shape), data, *operation))
            self._kept.append(tensor)
            self._numbers[key] = len(self.nodes) - 1
        return self._numbers[key]

    def following(self) -> tuple[set[int], set[int]]:
        """The nodes that are inputs or computed from them by the page; and those that it cannot compute, but should."""
        computed, beyond = set(self.inputs), set[int]()
        for number, node in enumerate(self.nodes):
            sources = set(node.sources)
            if number in self.inputs or not sources & (computed | beyond):
                continue
            small = all(self.nodes[each].data is not None for each in (number, *sources))
            known = small and node.operation in OPERATIONS and not sources & beyond
            known &= not any(isinstance(each, str) for each in node.options.values())  # how to round
            (computed if known else beyond).add(number)
        return computed, beyond

    def shows(self, tensors: Sequence[Tensor], may_be_input: bool) -> dict[str, Any] | None:
        """What a picture of tensors says to the page; None if it is not live."""
        numbers = [self._number_of(each) for each in tensors]
        computed, beyond = self.following()
        if may_be_input and not {*numbers} & (computed | beyond) and 0 < tensors[0].numel() <= MOST_INPUTS:
            self.inputs.add(numbers[0])
            computed.add(numbers[0])
        if not {*numbers} & computed or {*numbers} & beyond:
            return None
        self.live |= {*numbers}
        return {"nodes": numbers, "input": may_be_input and numbers[0] in self.inputs}

    def as_data(self) -> dict[str, Any]:
        """What the page needs: the inputs, the operations on them, and the constants that these need."""
        operations, computed = dict[int, Any](), self.following()[0]
        constants = {number: _numbers(self.nodes[number]) for number in self.live - computed}
        for number in sorted(computed - self.inputs):
            node = self.nodes[number]
            operations[number] = [node.operation, _as_json(node.arguments), _as_json(node.options), node.part]
            constants |= {each: _numbers(self.nodes[each]) for each in node.sources if each not in computed}
        inputs = {number: _numbers(self.nodes[number]) for number in sorted(self.inputs)}
        return {"inputs": inputs, "operations": operations, "constants": constants}


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from _flat(value) if isinstance(value, list) else [value]


def _key(tensor: Tensor) -> tuple[Any, ...]:
    """What tells a tensor from others: its memory, its shape, and how often it was written to."""
    memory = tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.stride()
    return *memory, tuple(tensor.shape), tensor.dtype, tensor._version


def _numbers(node: Node) -> dict[str, Any]:
    return {"shape": node.shape, "data": _as_json(node.data)}


def _as_json(value: Any) -> Any:
    """An argument as JSON: a tensor is {"node": number}, infinity a text, and what is no number, as a dtype, null."""
    if isinstance(value, Place):
        return {"node": value.number}
    if isinstance(value, Mapping):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("inf", "Infinity")
    return value if isinstance(value, (bool, int, float)) else None


def live(tensors: Sequence[Tensor], may_be_input: bool = False) -> dict[str, Any] | None:
    """What a picture of these tensors says to the page; None where it is not live, as outside of a live cell."""
    return _current.shows(tensors, may_be_input) if _current is not None else None
