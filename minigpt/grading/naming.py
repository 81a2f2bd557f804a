"""Is it right, and if not, what is wrong: by exact equality with the reference under some setting of its knobs.

Nothing is ever named because it is near. An answer is right where it equals the reference on every probe; a bug is
named where the answer equals the reference with that bug on every probe; two bugs at once likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import torch
from torch import Tensor

from minigpt.grading.bind import Binding
from minigpt.grading.target import Bug, Convention, Knobs, Probe, Sizes, Target, fill

STRICT, LOOSE = 1e-11, 3e-6  # float64; float32 somewhere inside
LARGEST_LOOSE = 100.0  # inputs times more than this leave nothing of float32's precision in a softmax
LIKELY = 2  # readings of which every convention is tried with every bug, before the others
SINGLES, PAIRS = 5_000, 5_000  # evaluations of the reference, so that a name does not depend on the machine's load


def tolerance(probe: Probe, loose: bool) -> float:
    """The largest relative difference. Errors of the scores grow with the square of the inputs."""
    return LOOSE * max(1.0, probe.size**2) if loose else STRICT * max(1.0, probe.size**2 / 10)


def equal(answer: Tensor | Exception, expected: Tensor, probe: Probe, loose: bool = False) -> bool:
    """Whether two outputs agree, with NaN and infinities in the same places."""
    if isinstance(answer, Exception) or answer.shape != expected.shape:
        return False
    answer = answer.to(expected.dtype)
    finite = expected.isfinite()
    if not torch.equal(finite, answer.isfinite()):
        return False
    if not bool(finite.all()):
        odd = ~finite
        if not torch.equal(expected[odd].nan_to_num(0.0), answer[odd].nan_to_num(0.0)):
            return False
        answer, expected = answer[finite], expected[finite]
    if not expected.numel():
        return True
    largest = float(expected.abs().max())
    return float((answer - expected).abs().max()) <= tolerance(probe, loose) * max(largest, 1e-300)


@dataclass(eq=False)
class Outputs:
    """What an answer returns for each probe, computed when it is first asked for."""

    run: Callable[[Probe], Tensor]
    probes: Sequence[Probe]
    float32: bool = False
    """Whether the answer was built with tables in float32."""
    kept: dict[int, Tensor | Exception] = field(default_factory=dict)
    no_fewer: bool | None = None
    """Whether it takes no fewer queries than keys; None where that was not asked yet."""
    order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        keys = [(bool(p.chunks), p.size, next(iter(p.inputs.values())).shape[1]) for p in self.probes]
        self.order = sorted(range(len(keys)), key=keys.__getitem__)

    def __getitem__(self, number: int) -> Tensor | Exception:
        if number not in self.kept:
            try:
                self.kept[number] = self.run(self.probes[number])
            except Exception as error:  # the learner's code: anything
                self.kept[number] = error
        return self.kept[number]


@dataclass(eq=False)
class Reading:
    """One way to read an answer: its sizes, its roles, and how it was called."""

    target: Target
    sizes: Sizes
    binding: Binding
    outputs: Outputs
    budget: list[int]
    loose: bool = False
    plain: dict[str, bool] = field(default_factory=dict)
    silent: dict[str, bool] = field(default_factory=dict)
    """Which settings change nothing where there is one token, by the text of their knobs; shared by all readings."""
    shown: dict[str, Knobs] = field(default_factory=dict)
    """What one token shows of two conventions at once, by the text of their knobs; shared by all readings."""
    even: bool = False
    """Whether inputs with fewer queries than keys are left out."""
    at_once: bool = False
    """Whether inputs in chunks are left out."""
    masked: bool = False
    """Whether the mask comes from outside; nothing can be wrong with it then, but that it is not used."""

    def order(self) -> list[int]:
        """The probes from the shortest to the largest: the first ones tell most readings apart for little."""
        return self.outputs.order

    def length(self, number: int) -> int:
        """The number of queries of a probe."""
        return next(iter(self.outputs.probes[number].inputs.values())).shape[1]

    def usable(self) -> list[int]:
        """The probes that are compared."""
        return [
            number
            for number in self.order()
            if not (self.loose and self.outputs.probes[number].size > LARGEST_LOOSE)
            and not (self.at_once and self.outputs.probes[number].chunks)
            and not (self.outputs.probes[number].optional and (self.even or self.takes_no_fewer()))
        ]

    def takes_no_fewer(self) -> bool:
        """Whether an input with fewer queries than keys raises, or gives another shape: then none of them is asked."""
        if self.outputs.no_fewer is None:
            optional = [number for number, probe in enumerate(self.outputs.probes) if probe.optional]
            self.outputs.no_fewer = any(not self.has_shape(number) for number in optional)
        return self.outputs.no_fewer

    def has_shape(self, number: int) -> bool:
        """Whether the answer's output for a probe has the right one's shape."""
        probe, theirs = self.outputs.probes[number], self.outputs[number]
        right = self.target.output(probe, self.binding.parameters, self.sizes, {})
        return not isinstance(theirs, Exception) and theirs.shape == right.shape

    def agrees(self, knobs: Knobs, number: int) -> bool:
        """Whether the answer equals the reference with these knobs on one probe."""
        probe = self.outputs.probes[number]
        self.budget[0] -= 1
        try:
            expected = self.target.output(probe, self.binding.parameters, self.sizes, knobs)
        except (RuntimeError, KeyError, IndexError, ValueError):  # these knobs need another shape, or a missing role
            return isinstance(self.outputs[number], Exception)
        return equal(self.outputs[number], expected, probe, self.loose)

    def is_silent(self, setting: Knobs, base: Knobs, shortest: int) -> bool:
        """Whether a setting changes nothing for the shortest probe, besides what the base does.

        With one token every weight is 1: bugs on the way of the weights are silent there, those of the values are not.
        """
        key, merged = text_of(setting), merge(base, setting)
        if key in self.silent or merged is None:
            return self.silent.get(key, False)
        probe, given = self.outputs.probes[shortest], (self.binding.parameters, self.sizes)
        try:
            right = self.target.output(probe, *given, base)
        except (RuntimeError, KeyError, IndexError, ValueError):  # the base needs a role that is missing
            return False
        try:
            self.silent[key] = equal(self.target.output(probe, *given, merged), right, probe)
        except (RuntimeError, KeyError, IndexError, ValueError):  # this setting needs another shape
            self.silent[key] = False
        return self.silent[key]

    def has_roles_for(self, knobs: Knobs) -> bool:
        """Whether the reference with these knobs finds all the parameters that it needs."""
        try:
            self.target.output(self.outputs.probes[self.usable()[0]], self.binding.parameters, self.sizes, knobs)
        except (RuntimeError, KeyError, IndexError, ValueError):
            return False
        return True

    def shows(self, knobs: Knobs, conventions: Sequence[Convention], shortest: int) -> Knobs:
        """The fewest of two conventions that compute the same as both for the shortest probe."""
        if self.is_silent(knobs, {}, shortest):
            return {}
        key = text_of(knobs)
        if key not in self.shown:
            alone = [each.knobs for each in conventions if len(conventions) == 2]
            self.shown[key] = next((fewer for fewer in alone if self.are_alike(fewer, knobs, shortest)), knobs)
        return self.shown[key]

    def are_alike(self, first: Knobs, second: Knobs, number: int) -> bool:
        """Whether the reference computes the same with either of two settings on one probe."""
        probe, given = self.outputs.probes[number], (self.binding.parameters, self.sizes)
        try:
            return equal(self.target.output(probe, *given, first), self.target.output(probe, *given, second), probe)
        except (RuntimeError, KeyError, IndexError, ValueError):  # one of them needs another shape, or a missing role
            return False

    def right_for_one_token(self, knobs: Knobs, conventions: Sequence[Convention] = ()) -> bool:
        """Whether the answer equals the reference with these knobs, those of the conventions, on the shortest probe."""
        shortest = self.usable()[0]
        shown = self.shows(knobs, conventions, shortest)
        key = text_of(shown) if shown else ""
        if key not in self.plain:
            self.plain[key] = self.agrees(shown, shortest)
        return self.plain[key]

    def equals(self, knobs: Knobs) -> bool:
        """Whether the answer equals the reference with these knobs on every probe."""
        first, *others = self.usable()
        order = [others[0], first, *others[1:]] if others else [first]  # one token alone tells few bugs apart
        return self.budget[0] > 0 and all(self.agrees(knobs, number) for number in order)


@dataclass
class Found:
    """What an answer turned out to be."""

    reading: Reading
    knobs: Knobs
    bugs: list[Bug] = field(default_factory=list)
    conventions: list[Convention] = field(default_factory=list)
    either: list[Bug] = field(default_factory=list)
    """Other bugs that the sizes of this answer cannot tell from the first."""


def settled(found: Found) -> Found:
    """The same with the harmless bugs among its conventions."""
    notes = [Convention(bug.knobs, fill(bug.sentence, found.reading.sizes)) for bug in found.bugs if bug.harmless]
    left = [bug for bug in found.bugs if not bug.harmless]
    return replace(found, bugs=left, conventions=[*found.conventions, *notes], either=found.either if left else [])


def text_of(knobs: Knobs) -> str:
    """The same text for the same knobs, in whatever order."""
    return repr(sorted(knobs.items(), key=str))


def merge(first: Knobs, second: Knobs) -> Knobs | None:
    """Both settings at once; None where they set the same knob to different values."""
    if any(first[name] != second[name] for name in set(first) & set(second)):
        return None
    return {**first, **second}


def bases(target: Target) -> Iterator[tuple[Knobs, list[Convention]]]:
    """No convention, each one, and each two of them."""
    yield {}, []
    for convention in target.conventions:
        yield convention.knobs, [convention]
    for first, second in combinations(target.conventions, 2):
        if not set(first.knobs) & set(second.knobs):
            yield {**first.knobs, **second.knobs}, [first, second]


def missing_bugs(reading: Reading) -> list[Bug]:
    """What the roles that nothing fills mean."""
    return [bug for bug in lacking(reading) if isinstance(bug, Bug)]


def lacking(reading: Reading) -> list[Bug | Convention]:
    """The bugs and the conventions that missing roles mean."""
    return [reading.target.without[role] for role in reading.binding.missing]


def accept(readings: Sequence[Reading]) -> Found | None:
    """The first reading under which the answer is right, or right in another convention."""
    if not readings:
        return None
    whole = [reading for reading in readings if not missing_bugs(reading) and not reading.binding.faults]
    groups: dict[tuple[tuple[str, int], ...], list[Reading]] = {}
    for reading in whole:
        groups.setdefault(tuple(reading.sizes.items()), []).append(reading)
    for number, group in enumerate(groups.values()):
        for knobs, conventions in bases(readings[0].target):
            if number and len(conventions) > 1:
                break  # unlikely sizes: no two conventions at once
            for reading in group:
                if reading.right_for_one_token(knobs, conventions) and reading.equals(knobs):
                    without = [entry for entry in lacking(reading) if isinstance(entry, Convention)]
                    return Found(reading, knobs, [], [*conventions, *without])
    return None


def name_one(readings: Sequence[Reading]) -> Found | None:
    """The first reading under which the answer has one bug (beside those of the reading itself).

    Every reading without a convention, then the likeliest under every convention, and then the others.
    """
    if not readings:
        return None
    first, *others = bases(readings[0].target)
    likeliest = [(base, reading) for reading in readings[:LIKELY] for base in others]
    likeliest.sort(key=lambda pair: (not pair[1].has_roles_for(pair[0][0]), not pair[1].right_for_one_token(*pair[0])))
    tried = [(first, reading) for reading in readings], [
        *likeliest, *((base, reading) for reading in readings[LIKELY:] for base in others)
    ]  # fmt: skip
    budget = readings[0].budget[0]
    for some in tried:
        readings[0].budget[0] = budget  # shared by all
        for (knobs, conventions), reading in some:
            own = missing_bugs(reading)
            if (own or reading.binding.faults) and reading.equals(knobs):
                return Found(reading, knobs, own, conventions)
            if found := name_in(reading, knobs):
                hits = [bug for bug, _ in found]
                return Found(reading, found[0][1], [*own, hits[0]], conventions, hits[1:])
    return None


def name_in(reading: Reading, base: Knobs) -> list[tuple[Bug, Knobs]]:
    """All bugs that the answer equals in this reading, with their settings."""
    found, shortest = [], reading.usable()[0]
    if reading.budget[0] <= 0:
        return []
    plain = reading.right_for_one_token(base)
    for bug in reading.target.bugs:
        if reading.masked and bug.knobs.get("mask", "none") != "none":
            continue
        for setting in bug.settings():
            merged = merge(base, setting)
            if merged is None or reading.is_silent(setting, base, shortest) != plain:
                continue
            if reading.equals(merged):
                found.append((bug, merged))
                break
    return found


def name_two(reading: Reading) -> Found | None:
    """Two bugs at once, in the likeliest reading.

    With one token every weight is 1, so the shortest probe tells bugs on the way of the values from bugs on the way of
    the weights, and no full product is needed.
    """
    if found := pair_in(reading):
        knobs, bugs = found
        return Found(reading, knobs, [*missing_bugs(reading), *bugs])
    return None


def pair_in(reading: Reading) -> tuple[Knobs, list[Bug]] | None:
    """The first pair of bugs that the answer equals in this reading, the more common ones first."""
    order = reading.usable()
    if len(order) < 2:
        return None
    plain = reading.agrees({}, order[0])
    silent, loud = list[Ranked](), list[Ranked]()
    for rank, bug, setting in ranked(reading.target.bugs):
        (silent if reading.agrees(setting, order[0]) else loud).append((rank, bug, setting))
    pairs = [*combinations(silent, 2)] if plain else [*product(silent, loud), *combinations(loud, 2)]
    conventions = [convention.knobs for convention in reading.target.conventions]
    reading.budget[0] = PAIRS // 4 if reading.target.takes == ("ids",) else PAIRS  # a model takes long
    for (_, first, one), (_, second, other) in sorted(pairs, key=lambda pair: pair[0][0] + pair[1][0]):
        both = None if first is second else merge(one, other)
        if both is not None and both not in conventions and reading.agrees(both, order[1]) and reading.equals(both):
            return both, [first, second]
        if reading.budget[0] <= 0:
            return None
    return None


Ranked = tuple[int, Bug, Knobs]


def ranked(bugs: Sequence[Bug]) -> Iterator[Ranked]:
    """Bugs with their places among those that set the same knobs: the more common ones come first in every list."""
    counted: dict[tuple[str, ...], int] = {}
    for bug in bugs:
        for extra, setting in enumerate(bug.settings()[:2]):
            family = tuple(sorted(bug.knobs))
            if not extra:
                counted[family] = counted.get(family, -1) + 1
            yield counted[family] + 6 * extra, bug, setting
