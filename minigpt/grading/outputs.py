"""The outputs of an answer and of the reference, each computed once, and their comparison.

A search for a bug needs the same output of the reference many times: for every way to call an answer, and for readings
of its parameters that give the same output for one token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minigpt.grading.bind import NUMBERS, Binding
from minigpt.grading.target import Knobs, Probe, Sizes, Target

STRICT, LOOSE = 1e-11, 3e-6  # relative tolerances: all in float64; float32 somewhere inside
MOST_NUMBERS = 10_000_000  # of the reference's outputs that are kept at most: 80 MB
CANNOT = (RuntimeError, KeyError, IndexError, ValueError)  # the knobs do not fit the shapes, or a role is missing


def tolerance(probe: Probe, loose: bool) -> float:
    """The largest allowed relative difference. Errors of the scores grow with the square of the inputs."""
    return LOOSE * max(1.0, probe.size**2) if loose else STRICT * max(1.0, probe.size**2 / 10)


def equal(answer: Tensor | Exception, expected: Tensor, probe: Probe, loose: bool = False) -> bool:
    """Whether two outputs agree up to the tolerance, with NaN and infinities in the same places."""
    if isinstance(answer, Exception) or answer.shape != expected.shape:
        return False
    if not expected.numel():
        return True
    answer = answer.to(expected.dtype)
    largest, far = float(expected.abs().max()), float((answer - expected).abs().max())
    if math.isfinite(largest):
        return far <= tolerance(probe, loose) * max(largest, 1e-300)  # False if `answer` has NaN or inf
    return equal_where_finite(answer, expected, probe, loose)


def equal_where_finite(answer: Tensor, expected: Tensor, probe: Probe, loose: bool) -> bool:
    """Whether two outputs agree, if `expected` has NaN or infinities."""
    finite = expected.isfinite()
    if not torch.equal(finite, answer.isfinite()):
        return False
    if not torch.equal(expected[~finite].nan_to_num(0.0), answer[~finite].nan_to_num(0.0)):
        return False
    return not bool(finite.any()) or equal(answer[finite], expected[finite], probe, loose)


def text_of(knobs: Knobs) -> str:
    """A text for a setting of the knobs; the order of the knobs does not matter."""
    return repr(sorted(knobs.items(), key=str)) if len(knobs) > 1 else repr([*knobs.items()])


@dataclass(eq=False)
class Outputs:
    """What an answer returns for each probe, computed when it is first asked for."""

    run: Callable[[Probe], Tensor]
    probes: Sequence[Probe]
    float32: bool = False
    """Whether the answer was built with tables in float32."""
    kept: dict[int, Tensor | Exception] = field(default_factory=dict)
    told: dict[tuple[object, ...], bool] = field(default_factory=dict)
    """Whether the output for the shortest probe is right, by the key `Reading.looks`."""
    no_fewer: bool | None = None
    """Whether the answer cannot take fewer queries than keys; None if that was not tried yet."""
    order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = in_order(self.probes)

    def __getitem__(self, number: int) -> Tensor | Exception:
        if number not in self.kept:
            try:
                self.kept[number] = self.run(self.probes[number])
            except Exception as error:  # the learner's code may raise anything
                self.kept[number] = error
        return self.kept[number]


def in_order(probes: Sequence[Probe]) -> list[int]:
    """The numbers of the probes, from shortest to largest: the first ones rule out most readings cheaply."""
    lengths = [next(iter(probe.inputs.values())).shape[1] for probe in probes]
    keys = [(bool(probe.chunks), probe.size != 1, probe.size, T) for probe, T in zip(probes, lengths)]
    return sorted(range(len(keys)), key=keys.__getitem__)


@dataclass(eq=False)
class Expected:
    """The outputs of the reference for each probe, binding and setting of the knobs; None where it raises."""

    target: Target
    sizes: Sizes
    probes: Sequence[Probe]
    many: bool = False
    """Whether there are many bindings: then those that the shortest probe cannot distinguish share one output."""
    kept: dict[tuple[object, ...], Tensor | None] = field(default_factory=dict)
    numbers: int = 0
    """How many numbers are kept."""
    number: int = field(default_factory=lambda: next(NUMBERS))
    """A number of its own, unique in this Python process."""
    shown: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = field(default_factory=dict)
    """The parameters that change the output for the shortest probe, by setting and parameter names."""
    shortest: int = 0

    def __post_init__(self) -> None:
        self.shortest = in_order(self.probes)[0]

    def output(self, number: int, binding: Binding, knobs: Knobs, alone: bool = False) -> Tensor | None:
        """The output for a probe, None if the reference raises; see `many` for bindings that share one output.

        `alone`: the output is needed for one binding only, so bindings that compute the same are not searched for.
        """
        text = text_of(knobs)
        key: tuple[object, ...] = (number, text, binding.number)
        if key in self.kept:
            return self.kept[key]
        if self.numbers > MOST_NUMBERS:
            self.kept, self.numbers = {}, 0
        counted = number == self.shortest and not (alone and (text, binding.names) not in self.shown)
        alike = (text, self.alike(binding, knobs, text)) if counted else key
        if alike not in self.kept:
            self.kept[alike] = self.compute(number, binding.parameters, knobs)
        found = self.kept[key] = self.kept[alike]
        self.numbers += 0 if found is None else found.numel() + 50
        return found

    def alike(self, binding: Binding, knobs: Knobs, text: str) -> tuple[object, ...]:
        """A key, equal for bindings that the shortest probe cannot distinguish with these knobs, whose text is `text`.

        With one token every weight is 1, so the parameters of queries and keys do not change the output.
        """
        if not self.many:
            return (binding.number,)
        key = text, binding.names
        if key not in self.shown:
            before = self.output(self.shortest, binding, knobs, alone=True)
            self.shown[key] = self.counting(before, binding.parameters, knobs)
            self.kept[text, binding.tensors(self.shown[key])] = before
        return binding.tensors(self.shown[key])

    def compute(self, number: int, parameters: dict[str, Tensor], knobs: Knobs) -> Tensor | None:
        """The output for a probe; None if the reference raises one of CANNOT."""
        try:
            return self.target.output(self.probes[number], parameters, self.sizes, knobs)
        except CANNOT:
            return None

    def counting(self, before: Tensor | None, parameters: dict[str, Tensor], knobs: Knobs) -> tuple[str, ...]:
        """The parameters that change the output for the shortest probe, `before`, and perhaps some more."""

        def change(names: set[str]) -> bool:
            other = parameters | {name: 1.3 * parameters[name].flip(0) + 0.4 for name in names}
            after = self.compute(self.shortest, other, knobs)
            if before is None or after is None:
                return before is not after
            return not equal(after, before, self.probes[self.shortest])

        for known in dict.fromkeys(self.shown.values()):  # most settings have the same
            if set(known) <= set(parameters) and not change(set(parameters) - set(known)):
                return known
        stems: dict[str, set[str]] = {}  # all blocks at once
        for name in parameters:
            stems.setdefault(re.sub(r"\.\d+", "", name), set()).add(name)
        return tuple(sorted(name for names in stems.values() if change(names) for name in names))
