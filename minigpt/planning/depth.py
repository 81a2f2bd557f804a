"""What a deep model allocates, from shallow ones of the same layers.

A step of a deep model does what a step of a shallow one does, with more layers in between: in the forward pass, in the
backward pass, wherever parameters are looped over. Two shallow models show where and what that is, and a third one
must be what follows from them. Then the log of the deep model is written down event by event, and its peak is exact.
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

    key: Hashable  # what is equal for the same operation in each layer, and at each depth
    part: str  # of the model, or of what it computes
    bytes: int  # freed: below 0


def depths(model: GPT, adapted: Iterable[str] = ()) -> tuple[int, int, int] | None:
    """How many layers three shallow models have whose layers begin as those of a model do; None: it is shallow itself.

    Layers are alike if their modules, parameters and options are, and which of their modules get adapters (`adapted`,
    by name); they may repeat after some, and the first may differ.
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
    found = first, first + period, first + 2 * period
    return found if 2 * sum(found) <= 3 * n else None


def signature(module: nn.Module) -> list[Hashable]:
    """The kinds of the modules within one, what they say of their options, and the shapes of its parameters."""
    kinds = [(name, type(each), each.extra_repr()) for name, each in module.named_modules()]
    return [*kinds, *((name, each.shape, each.dtype) for name, each in module.named_parameters())]


def deepened(logs: list[list[Event]], times: int) -> list[Event] | None:
    """The log of a model that has as many layers more than the first of three as `times` the second has.

    None if the second log is not the first with insertions, or the third not the first with these twice.
    """
    short, long, longer = logs
    for enough in ENOUGH:
        places = insertions(short, long, enough)
        if places is not None and with_insertions(short, long, places, 2) == longer:
            return with_insertions(short, long, places, times)
    return None


ENOUGH = (1 << 60, 64, 32, 16, 8)  # events; the third log says which is right
Places = list[tuple[int, int, int]]  # where in the short log, where in the long one, how many events


def insertions(short: list[Event], long: list[Event], enough: int) -> Places | None:
    """Where a log has more than a shorter one. None: elsewhere they differ as well.

    An insertion is the shortest after which `enough` events are the same, or the one after which the most are.
    Of a layer that is inserted among equal ones the place is not unique: it is such that events have equal sizes.
    """
    a, b = [event.key for event in short], [event.key for event in long]
    found, i, j, before = Places(), 0, 0, 0
    while True:
        same = common(a, i, b, j)
        i, j = i + same, j + same
        if j == len(b):
            return found if i == len(a) else None
        left = (len(b) - j) - (len(a) - i)
        if left <= 0:
            return None
        alike = [min(enough, common(a, i, b, j + size)) for size in range(1, left + 1)]
        size = 1 + alike.index(max(alike))
        back = 0
        for k in range(1, min(i - before, size) + 1):
            if b[j - k] != b[j - k + size]:
                break
            if short[i - k].bytes != long[j - k].bytes:
                back = k
        found.append((i - back, j - back, size))
        j, before = j + size, i


def common(a: list[Hashable], i: int, b: list[Hashable], j: int) -> int:
    """How many are the same from a[i] and b[j] on."""
    pairs = zip(islice(a, i, None), islice(b, j, None))
    return next((count for count, (x, y) in enumerate(pairs) if x != y), min(len(a) - i, len(b) - j))


def with_insertions(short: list[Event], long: list[Event], places: Places, times: int) -> list[Event]:
    """`short` with each insertion so many times; what is of another size in `long` grows with each."""
    made, i, j = list[Event](), 0, 0

    def upto(end: int) -> None:
        for a, b in zip(short[i:end], long[j : j + end - i]):
            made.append(Event(a.key, a.part, a.bytes + times * (b.bytes - a.bytes)))

    for place, start, size in places:
        upto(place)
        i, j = place, start + size
        made.extend(times * long[start : start + size])
    upto(len(short))
    return made
