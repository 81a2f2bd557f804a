"""Bugs that the outputs alone do not show: dropout in evaluation mode, writing into the input, state that earlier calls
leave behind, another computation in training mode or in float32, a parameter without a gradient.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.grading.call import Call
from minigpt.grading.closed import Closed
from minigpt.grading.lines import bag, pieces, same
from minigpt.grading.naming import Reading
from minigpt.grading.outputs import equal
from minigpt.grading.target import Bug, Knobs, Probe

RANDOM = Bug({}, "two calls in evaluation mode differ: dropout is active where it should not be",
             "nn.Dropout, or F.dropout(weights, p, training=self.training)")  # fmt: skip
WRITES = Bug({}, "it writes into its input: the caller's tensor is changed after the call",
             "use masked_fill, not masked_fill_, and x = x + y, not x += y")  # fmt: skip
REMEMBERS = Bug({}, "the same input gives another output after other inputs: something is left behind by earlier calls",
                "keep nothing in self between calls but a cache that the caller asked for")  # fmt: skip


DETACHED = ("no gradient reaches {names}: the numbers are right, but it never learns",
            "leave out detach(), .data and no_grad() on the way from the parameters to the output")  # fmt: skip
TRAINS = Bug({}, "it is right in evaluation, and computes something else in training, also with nothing dropped",
             "the same in both modes: only dropout depends on self.training")  # fmt: skip
DROPS_SCORES = Bug({}, "dropout is applied to the scores, before the softmax: a score that becomes 0 hides nothing",
                   "drop the weights: F.dropout(scores.softmax(dim=-1), p, self.training)")  # fmt: skip
SINGLE = Bug(
    {},
    "it is right in float64 and wrong in float32, in which models are trained: a number is too large or small for it",
    "hide with -inf or torch.finfo(scores.dtype).min, and keep all factors near one",
)


def wrong_in_float32(thing: Any, call: Call, reading: Reading) -> bool | None:
    """Whether the output in float32 differs by far more than rounding; None if it cannot be computed."""
    probe, expected = reading.outputs.probes[0], reading.outputs[0]
    assert isinstance(expected, Tensor)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        module = copy.deepcopy(thing).float() if isinstance(thing, nn.Module) else thing
        inputs = {name: x.float() if x.is_floating_point() else x for name, x in probe.inputs.items()}
        found = call.run(module, Probe(probe.name, inputs, probe.size, probe.chunks))
    except Exception:  # the learner's code: a table that was built in float64, for example
        return None
    finally:
        torch.set_default_dtype(default)
    return not torch.allclose(found.double(), expected.double(), rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


def drops(thing: Any, call: Call, probe: Probe) -> Bug | None:
    """The bug of an answer whose output is random in evaluation mode."""
    first, second = call.run(thing, probe), call.run(thing, probe)
    return None if torch.allclose(first, second, equal_nan=True) else RANDOM


def habits(thing: Any, call: Call, reading: Reading) -> list[Bug]:
    """REMEMBERS or WRITES, if the answer has this bug; else []."""
    probe, first = reading.outputs.probes[0], reading.outputs[0]
    assert isinstance(first, Tensor)
    if probe.chunks:
        return []
    if not torch.allclose(call.run(thing, probe), first, rtol=1e-9, atol=1e-12, equal_nan=True):
        return [REMEMBERS]
    return [WRITES] if writes(thing, call, probe) else []


def writes(thing: Any, call: Call, probe: Probe) -> bool:
    """Whether a call changes the tensors that it is given."""
    given: list[tuple[Tensor, Tensor]] = []

    class Watched(dict[str, Tensor]):
        """Inputs whose clones are kept, to look at them after the call."""

        def __getitem__(self, name: str) -> Any:
            return Kept(super().__getitem__(name), given)

    call.run(thing, Probe(probe.name, Watched(probe.inputs), probe.size))
    return any(not torch.equal(before, after) for before, after in given)


class Undropped(TorchFunctionMode):
    """Turns dropout off, and keeps in `given` the tensors that it would change in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is F.dropout or func is torch.dropout:
            p = named.get("p", args[1] if len(args) > 1 else 0.5)
            training = named.get("training", named.get("train", args[2] if len(args) > 2 else True))
            x: Tensor = args[0] if args else named["input"]
            if p and training:
                self.given.append(x.detach().clone())
            return x
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward) and "dropout_p" in named:
            named["dropout_p"] = 0.0
        if func is F.multi_head_attention_forward and "training" in named:
            named["training"] = False
        return func(*args, **named)


def in_training(thing: Any, call: Call, reading: Reading, knobs: Knobs) -> Bug | None:
    """The bug of an answer in training mode with dropout turned off; None if it has none.

    Raises ValueError if the answer draws other random numbers, and what the learner's code raises.
    """
    number = next(n for n in reading.order() if reading.length(n) > 1 and not reading.outputs.probes[n].chunks)
    probe, expected = reading.outputs.probes[number], reading.outputs[number]
    assert isinstance(expected, Tensor)
    module = copy.deepcopy(thing).train()
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    with Undropped() as watch:
        found = call.run(module, probe)
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    if not torch.equal(before[0], after[0]) or before[1:] != after[1:]:
        raise ValueError("it draws random numbers in a way of its own, such as for whole paths")
    if not equal(found, expected, probe, loose=reading.loose):
        return TRAINS
    steps = reading.target.reference(probe, reading.binding.parameters, reading.sizes, knobs)
    names = [name for name in steps if name.split(": ")[-1] in ("products", "scores", "masked scores")]
    scores = [bag(piece) for name in names for piece in pieces(steps[name])]
    return DROPS_SCORES if any(same(bag(x), score) for x in watch.given for score in scores) else None


def without_gradient(thing: Any, call: Call, reading: Reading) -> list[Bug]:
    """The bug of a module in which no gradient reaches a matrix that changes the output; [] if there is none."""
    probe = reading.outputs.probes[0]
    if not isinstance(thing, nn.Module) or isinstance(thing, Closed) or probe.chunks:
        return []
    idle = tuple(reading.binding.unused)
    named = {name: one for name, one in thing.named_parameters() if one.requires_grad and one.dim() > 1}
    named = {name: one for name, one in named.items() if not (idle and name.startswith(idle))}
    try:
        with torch.enable_grad():
            output = call.run(thing, probe)
            weights = torch.rand_like(output)
            found = torch.autograd.grad((output * weights).sum(), list(named.values()), allow_unused=True)
    except Exception:  # the learner's code: it writes into what a gradient needs, for example
        return []
    lost = [name.removesuffix(".weight") for name, one in zip(named, found) if one is None or not bool(one.any())]
    return [Bug({}, DETACHED[0].format(names=", ".join(lost)), DETACHED[1])] if lost else []


class Kept:
    """A tensor whose clone is remembered."""

    def __init__(self, tensor: Tensor, given: list[tuple[Tensor, Tensor]]):
        self.tensor, self.given = tensor, given

    def clone(self) -> Tensor:
        """A copy, which the answer gets."""
        copy = self.tensor.clone()
        self.given.append((self.tensor, copy))
        return copy
