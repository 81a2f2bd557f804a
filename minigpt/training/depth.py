"""What a deep model allocates, computed from shallow models with the same layers.

A step of a deep model allocates what a step of a shallow one does, and more for each further layer: in the forward
pass, in the backward pass, and in every loop over parameters. The logs of two shallow models show what a layer adds,
and where. The log of a third one checks this: it must be as predicted from the two. Then the log of the deep model is
predicted event by event, and its peak is exact.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice

from torch import nn

from minigpt.model.gpt import GPT


@dataclass(frozen=True)
class Event:
    """Some bytes are allocated, or freed."""

    key: Hashable  # equal for the same operation in each layer and at each depth
    part: str  # the part that has the bytes, such as weights or activations
    bytes: int  # negative if they are freed


def depths(model: GPT, adapted: Iterable[str] = ()) -> tuple[int, int, int] | None:
    """The numbers of layers of three shallow models that have the first layers of `model`; None: it is shallow itself.

    Two layers are alike if their modules, parameters and options are equal and the same modules get adapters
    (`adapted`: their names). Layers may repeat with a period, such as three of one kind and one of another; the first
    layer may differ.
    """
    options = [model.config.layer_attention(layer) for layer in range(len(model.blocks))]
    adapters: list[set[str]] = [set() for _ in options]
    for name in adapted:
        _, layer, module = name.split(".", 2)  # blocks.9.attention.query
        adapters[int(layer)].add(module)
    alike = list(zip(map(signature, model.blocks), options, adapters))
    n = len(alike)
    period = next(p for p in range(1, n + 1) if alike[1 : n - p] == alike[1 + p :])
    first = 1 + (n - 1) % period + period
    numbers = first, first + period, first + 2 * period
    return numbers if 2 * sum(numbers) <= 3 * n else None


def signature(module: nn.Module) -> list[Hashable]:
    """The types and `extra_repr` of a module's submodules, and the shapes and dtypes of its parameters, by name."""
    kinds = [(name, type(each), each.extra_repr()) for name, each in module.named_modules()]
    return [*kinds, *((name, each.shape, each.dtype) for name, each in module.named_parameters())]


def extrapolated(logs: list[list[Event]], times: int) -> list[Event] | None:
    """The log of a model with n + `times` * p layers, from `logs` of models with n, n + p and n + 2 p layers.

    None if the second log is not the first with insertions, or the third not the first with these insertions twice.
    """
    short, long, longer = logs
    for enough in ENOUGH:
        inserted = insertions(short, long, enough)
        if inserted is not None and with_insertions(short, long, inserted, 2) == longer:
            return with_insertions(short, long, inserted, times)
    return None


ENOUGH = (1 << 60, 64, 32, 16, 8)  # events, tried in this order; the third log shows which is right
Insertions = list[tuple[int, int, int]]  # index in the short log, index in the long log, number of events


def insertions(short: list[Event], long: list[Event], enough: int) -> Insertions | None:
    """Where `long` has events that `short` does not have. None if the logs differ in other ways too.

    Each insertion is the shortest after which `enough` events agree, or else the one after which the most agree. For a
    layer that is inserted among equal layers, several places are possible: the one where events have equal sizes is
    taken.
    """
    a, b = [event.key for event in short], [event.key for event in long]
    inserted, i, j, before = Insertions(), 0, 0, 0
    while True:
        same = common(a, i, b, j)
        i, j = i + same, j + same
        if j == len(b):
            return inserted if i == len(a) else None
        surplus = (len(b) - j) - (len(a) - i)
        if surplus <= 0:
            return None
        alike = [min(enough, common(a, i, b, j + size)) for size in range(1, surplus + 1)]
        size = 1 + alike.index(max(alike))
        back = 0
        for k in range(1, min(i - before, size) + 1):
            if b[j - k] != b[j - k + size]:
                break
            if short[i - k].bytes != long[j - k].bytes:
                back = k
        inserted.append((i - back, j - back, size))
        j, before = j + size, i


def common(a: list[Hashable], i: int, b: list[Hashable], j: int) -> int:
    """The length of the common beginning of a[i:] and b[j:]."""
    pairs = zip(islice(a, i, None), islice(b, j, None))
    return next((count for count, (x, y) in enumerate(pairs) if x != y), min(len(a) - i, len(b) - j))


def with_insertions(short: list[Event], long: list[Event], inserted: Insertions, times: int) -> list[Event]:
    """`short` with each insertion `times` times; where a size in `long` differs, `times` the difference is added."""
    events, i, j = list[Event](), 0, 0

    def upto(end: int) -> None:
        for a, b in zip(short[i:end], long[j : j + end - i]):
            events.append(Event(a.key, a.part, a.bytes + times * (b.bytes - a.bytes)))

    for index, start, size in inserted:
        upto(index)
        i, j = index, start + size
        events.extend(times * long[start : start + size])
    upto(len(short))
    return events
