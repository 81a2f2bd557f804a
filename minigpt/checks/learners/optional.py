"""What the arguments do that a call may leave out: masks, switches, other inputs.

Each gets values of its type. It was tried if the output stays what it was; a mask is also asked to hide what it says.

B batch, T query positions, S key positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.learners.cached import CACHES, parameters_of
from minigpt.checks.learners.calls import MASKS, PADS, Way, constant, is_mask
from minigpt.checks.learners.calls import X as INPUT
from minigpt.checks.learners.program import Inputs, axis_of, moved, same
from minigpt.checks.learners.tables import MEANT, Moment, Value, mask_of, meaning_of
from minigpt.checks.reading.structure import Broken

HIDDEN = 2  # the token that a mask hides, of the first text
SHAPES = ("(B, S)", "(B, 1, 1, S)", "(B, 1, T, S)", "(B, T, S)", "(B, 1, S)", "(T, S)", "(1, 1, T, S)", "(B)")
MEND = "masked_fill(mask == 0, -inf) before the softmax, for every way through the program"
Call = Callable[[Inputs, Value], Tensor]


def optional(thing: Any, way: Way, inputs: Inputs, left: dict[str, int]) -> tuple[set[str], list[Broken]]:
    """(Those of the arguments `left`, by name with a line, that could be tried, the first law that one breaks)."""
    tried = set[str]()
    for entry in parameters_of(thing):
        if entry.name not in left or CACHES.search(entry.name.lower()):
            continue

        def call(inputs: Inputs, value: Value, name: str = entry.name) -> Tensor:
            return replace(way, settings={**way.settings, name: value}).run(thing, inputs)

        y, called_mask = way.run(thing, inputs), is_mask(entry) or bool(PADS.search(entry.name.lower()))
        if not called_mask and any(stays(call, inputs, y, value) for value in values_of(entry)):
            tried.add(entry.name)
        elif called_mask or entry.default is None:
            slips = list(masks(call, inputs, y, entry.name))
            if slips and slips[0]:
                return tried, [Broken("a mask hides what it says", slips[0], "no change", MEND, left[entry.name])]
            tried |= {entry.name} if slips else set()
    return tried, []


def values_of(entry: inspect.Parameter) -> list[Value]:
    """What a switch, a layer or another input may be."""
    return [constant(True)] if entry.default is False else [INPUT, constant(nn.Identity())]


def stays(call: Call, inputs: Inputs, y: Tensor, value: Value) -> bool:
    """Whether the output is what it was."""
    with suppress(Exception):  # the learner's code: anything
        return same(call(inputs, value), y)
    return False


def masks(call: Call, inputs: Inputs, y: Tensor, name: str) -> Iterator[str]:
    """Yields once what a mask does wrong, "" if nothing; nothing where no mask was found that hides nothing.

    A mask that hides one token of one text: no other token changes with it, and nothing changes in the other text.
    """
    slips, runs, acts = list[str](), False, False
    other = {key: instead_of(x) for key, x in inputs.items()}
    for shape, meant in product(SHAPES, MEANT):
        with suppress(Exception):  # the learner's code: anything
            if not same(call(inputs, Value("", lambda now: padding(now, meant, shape, False))), y):  # noqa: B023
                continue
            hides = Value("", lambda now: padding(now, meant, shape, True))  # noqa: B023
            one, changed = call(inputs, hides), call(other, hides)
            runs, acts = True, acts or not same(one, y)
            if not bool(moved(one, y)[0, HIDDEN + 1 :].any()):
                own = moved(changed, one)[0, HIDDEN] or not one.isfinite().all()  # else its output is hidden
                words = f"`{name}` hides the query of token {HIDDEN}, and not its key"
                slips += [words] if bool(own) and bool(moved(one, y)[0, HIDDEN]) else []
                continue
            seen, spread = moved(changed, one)[0, HIDDEN + 1 :], "B" in shape and bool(moved(one, y)[1:].any())
            if not bool(seen.any()) and not spread:
                yield ""
                return
            token = HIDDEN + 1 + int(seen.long().argmax())
            slips.append(f"text 1 changes with what `{name}` hides in text 0" if spread else
                         f"token {token} changes with token {HIDDEN}, which `{name}` hides")  # fmt: skip
    if runs and not acts and MASKS.search(name.lower()) and "ids" not in inputs:
        yield f"whatever `{name}` hides, the output is the same"
    elif slips or any(stays(call, inputs, y, causal(meant, shape)) for shape, meant in product(SHAPES[:-1], MEANT)):
        yield slips[0] if slips else ""


def causal(meant: str, shape: str) -> Value:
    """A causal mask: perhaps the program has none of its own beside it."""
    return Value("", lambda now: mask_of(meant, shape, now))


def padding(now: Moment, meant: str, shape: str, hides: bool) -> Tensor:
    """A mask that hides nothing, or one token, in the first text where each text has a mask of its own."""
    sizes = {"B": now.B, "T": now.T, "S": now.S, "1": 1}
    if shape == "(B)":  # the lengths of the texts
        return torch.tensor([HIDDEN if hides else now.S, *[now.S] * (now.B - 1)])
    seen = torch.ones([sizes[axis] for axis in shape.strip("()").split(", ")])
    first = seen[:1] if shape[1] == "B" else seen
    first[..., HIDDEN] = float(not hides)
    return meaning_of(meant, seen)


def instead_of(x: Tensor) -> Tensor:
    """A text with another token where one is hidden."""
    other = x.clone()
    at = other.narrow(axis_of(x), HIDDEN, 1)
    at.copy_(at.flip(-1) * 1.5 + 0.3 if x.is_floating_point() else x.narrow(axis_of(x), 0, 1))
    return other
