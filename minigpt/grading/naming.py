"""Decides whether an answer is right, or which bug it has, by exact equality with the reference under some knobs.

An approximate match names nothing. An answer is right if it equals the reference on every probe. A bug is named if the
answer equals the reference with that bug on every probe; two bugs at once are named in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from minigpt.grading.bind import Binding
from minigpt.grading.clock import Budget
from minigpt.grading.outputs import Expected, Outputs, equal, text_of
from minigpt.grading.target import Bug, Convention, Knobs, Sizes, Target, fill

LARGEST_LOOSE = 100.0  # inputs with a larger factor: float32 has no precision left in the softmax
LIKELY = 2  # so many first readings are tried with every convention and bug before the others
SINGLES, PAIRS = 5_000, 5_000  # budgets in evaluations of the reference: independent of the machine's load


@dataclass(eq=False)
class Reading:
    """One way to read an answer: its sizes, its roles, and how it was called."""

    target: Target
    sizes: Sizes
    binding: Binding
    outputs: Outputs
    expected: Expected
    budget: Budget
    loose: bool = False
    silent: dict[str, bool] = field(default_factory=dict)
    """Whether a setting changes nothing for one token, by the text of its knobs; shared by all readings."""
    shown: dict[str, Knobs] = field(default_factory=dict)
    """The fewest knobs that compute the same for one token, by the text of all knobs; shared by all readings."""
    even: bool = False
    """Whether inputs with fewer queries than keys are left out."""
    at_once: bool = False
    """Whether inputs in chunks are left out."""
    compared: list[int] = field(default_factory=list, init=False)
    """The numbers of the probes that are compared; computed once."""
    masked: bool = False
    """Whether the check passes the mask: then the only possible mask bug is that the answer does not use it."""

    def order(self) -> list[int]:
        """The numbers of the probes, from shortest to largest: the first ones rule out most readings cheaply."""
        return self.outputs.order

    def length(self, number: int) -> int:
        """The number of queries of a probe."""
        return next(iter(self.outputs.probes[number].inputs.values())).shape[1]

    def usable(self) -> list[int]:
        """The numbers of the probes that are compared."""
        if not self.compared:
            self.compared += [
                number
                for number in self.order()
                if not (self.loose and self.outputs.probes[number].size > LARGEST_LOOSE)
                and not (self.at_once and self.outputs.probes[number].chunks)
                and not (self.outputs.probes[number].optional and (self.even or self.takes_no_fewer()))
            ]
        return self.compared

    def takes_no_fewer(self) -> bool:
        """Whether fewer queries than keys raise or give another shape: then no probe with fewer queries is compared."""
        if self.outputs.no_fewer is None:
            optional = [number for number, probe in enumerate(self.outputs.probes) if probe.optional]
            self.outputs.no_fewer = any(not self.has_shape(number) for number in optional)
        return self.outputs.no_fewer

    def has_shape(self, number: int) -> bool:
        """Whether the answer's output for a probe has the shape of the right output."""
        theirs, right = self.outputs[number], self.expected.output(number, self.binding, {})
        return not isinstance(theirs, Exception) and right is not None and theirs.shape == right.shape

    def agrees(self, knobs: Knobs, number: int) -> bool:
        """Whether the answer equals the reference with these knobs on one probe."""
        self.budget.spend()
        expected = self.expected.output(number, self.binding, knobs)
        if expected is None:
            return isinstance(self.outputs[number], Exception)
        return equal(self.outputs[number], expected, self.outputs.probes[number], self.loose)

    def is_silent(self, setting: Knobs, base: Knobs, shortest: int) -> bool:
        """Whether a setting, added to the base, changes nothing in the output for the shortest probe.

        With one token every weight is 1: bugs in the weights do not show there, bugs in the values do.
        """
        key, merged = text_of(setting), merge(base, setting)
        if key not in self.silent and merged is not None and self.has_roles_for(base, shortest):
            self.silent[key] = self.are_alike(base, merged, shortest)
        return self.silent.get(key, False)

    def unlikely(self, knobs: Knobs, conventions: Sequence[Convention]) -> tuple[bool, bool]:
        """Sort key of conventions, the likelier first: (a role is missing, the output for one token differs)."""
        return not self.has_roles_for(knobs, self.usable()[0]), not self.right_for_one_token(knobs, conventions)

    def has_roles_for(self, knobs: Knobs, number: int) -> bool:
        """Whether the reference with these knobs finds all the parameters that it needs."""
        return self.expected.output(number, self.binding, knobs, alone=True) is not None

    def shows(self, knobs: Knobs, conventions: Sequence[Convention], shortest: int) -> Knobs:
        """The knobs of none, one or both of two conventions: the fewest that equal both on the shortest probe."""
        if self.is_silent(knobs, {}, shortest):
            return {}
        key = text_of(knobs)
        if key not in self.shown:
            alone = [each.knobs for each in conventions if len(conventions) == 2]
            self.shown[key] = next((fewer for fewer in alone if self.are_alike(fewer, knobs, shortest)), knobs)
        return self.shown[key]

    def are_alike(self, first: Knobs, second: Knobs, number: int) -> bool:
        """Whether the reference computes the same with either of two settings on one probe."""
        one, other = (self.expected.output(number, self.binding, knobs, alone=True) for knobs in (first, second))
        return one is not None and other is not None and equal(other, one, self.outputs.probes[number])

    def right_for_one_token(self, knobs: Knobs, conventions: Sequence[Convention] = ()) -> bool:
        """Whether the answer equals the reference with these knobs of these conventions on the shortest probe."""
        shortest = self.usable()[0]
        shown = self.shows(knobs, conventions, shortest)
        key = self.looks(shown, text_of(shown))
        if key not in self.outputs.told:
            self.outputs.told[key] = self.agrees(shown, shortest)
        return self.outputs.told[key]

    def looks(self, shown: Knobs, text: str) -> tuple[object, ...]:
        """A key, equal for readings that the shortest probe cannot distinguish; `text` is `text_of(shown)`."""
        return self.expected.number, self.loose, text, self.expected.alike(self.binding, shown, text)

    def equals(self, knobs: Knobs) -> bool:
        """Whether the answer equals the reference with these knobs on every probe."""
        first, *others = self.usable()
        order = [others[0], first, *others[1:]] if others else [first]  # one token distinguishes few bugs
        return not self.budget.over and all(self.agrees(knobs, number) for number in order)


@dataclass
class Found:
    """The result for an answer: the reading, and the knobs with their bugs and conventions."""

    reading: Reading
    knobs: Knobs
    bugs: list[Bug] = field(default_factory=list)
    conventions: list[Convention] = field(default_factory=list)
    either: list[Bug] = field(default_factory=list)
    """Other bugs that give the same numbers as the first one with the sizes of this answer."""


def settled(found: Found) -> Found:
    """A copy of `found` in which the harmless bugs are moved to the conventions."""
    notes = [Convention(bug.knobs, fill(bug.sentence, found.reading.sizes)) for bug in found.bugs if bug.harmless]
    left = [bug for bug in found.bugs if not bug.harmless]
    return replace(found, bugs=left, conventions=[*found.conventions, *notes], either=found.either if left else [])


def merge(first: Knobs, second: Knobs) -> Knobs | None:
    """Both settings at once; None where they set the same knob to different values."""
    if any(first[name] != second[name] for name in set(first) & set(second)):
        return None
    return {**first, **second}


def bases(target: Target) -> Iterator[tuple[Knobs, list[Convention]]]:
    """Yields the knobs of no convention, of each one, and of each pair, with the conventions themselves."""
    yield {}, []
    for convention in target.conventions:
        yield convention.knobs, [convention]
    for first, second in combinations(target.conventions, 2):
        if not set(first.knobs) & set(second.knobs):
            yield {**first.knobs, **second.knobs}, [first, second]


def missing_bugs(reading: Reading) -> list[Bug]:
    """The bugs that missing roles mean."""
    return [bug for bug in lacking(reading) if isinstance(bug, Bug)]


def lacking(reading: Reading) -> list[Bug | Convention]:
    """The bugs and the conventions that missing roles mean."""
    return [reading.target.without[role] for role in reading.binding.missing]


def accept(readings: Sequence[Reading]) -> Found | None:
    """The first reading under which the answer is right, or right in another convention; None if there is none."""
    if not readings:
        return None
    whole = [reading for reading in readings if not missing_bugs(reading) and not reading.binding.faults]
    groups: dict[tuple[tuple[str, int], ...], list[Reading]] = {}
    for reading in whole:
        groups.setdefault(tuple(reading.sizes.items()), []).append(reading)
    for number, group in enumerate(groups.values()):
        for knobs, conventions in bases(readings[0].target):
            if (number and len(conventions) > 1) or group[0].budget.over:
                break  # unlikely sizes: pairs of conventions are not tried
            for reading in right_for_one_token(group, knobs, conventions):
                if reading.equals(knobs):
                    without = [entry for entry in lacking(reading) if isinstance(entry, Convention)]
                    return Found(reading, knobs, [], [*conventions, *without])
    return None


def right_for_one_token(group: Sequence[Reading], knobs: Knobs, conventions: Sequence[Convention]) -> list[Reading]:
    """The readings that are right for the shortest probe; those that it cannot distinguish share one result."""
    shown = group[0].shows(knobs, conventions, group[0].usable()[0])
    text, right = text_of(shown), dict[tuple[object, ...], bool]()
    chosen = []
    for reading in group:
        look = id(reading.outputs), reading.looks(shown, text)
        if look not in right:
            right[look] = reading.right_for_one_token(knobs, conventions)
        chosen += [reading] if right[look] else []
    return chosen


def name_one(readings: Sequence[Reading]) -> Found | None:
    """The first reading under which the answer has one bug (besides those that its missing roles mean), or None.

    The order: every reading without a convention, the first LIKELY readings with every convention, then the others.
    """
    if not readings or readings[0].budget.over:
        return None
    first, *others = bases(readings[0].target)
    likeliest = [(base, reading) for reading in readings[:LIKELY] for base in others]
    likeliest.sort(key=lambda pair: pair[1].unlikely(*pair[0]))
    tried = [(first, reading) for reading in readings], [
        *likeliest, *((base, reading) for reading in readings[LIKELY:] for base in others)
    ]  # fmt: skip
    left = readings[0].budget.left
    for some in tried:
        readings[0].budget.left = left  # one budget, shared by all readings
        for (knobs, conventions), reading in some:
            own = missing_bugs(reading)
            if (own or reading.binding.faults) and reading.equals(knobs):
                return Found(reading, knobs, own, conventions)
            if found := name_in(reading, knobs):
                hits = [bug for bug, _ in found]
                return Found(reading, found[0][1], [*own, hits[0]], conventions, hits[1:])
    return None


def name_in(reading: Reading, base: Knobs) -> list[tuple[Bug, Knobs]]:
    """All bugs with which the reference equals the answer in this reading, with their settings."""
    found, shortest = [], reading.usable()[0]
    if reading.budget.over:
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
    """Two bugs at once, in the likeliest reading; None if no pair fits.

    With one token every weight is 1, so the shortest probe separates bugs in the values from bugs in the weights, and
    not every pair must be tried.
    """
    if found := pair_in(reading):
        knobs, bugs = found
        return Found(reading, knobs, [*missing_bugs(reading), *bugs])
    return None


def pair_in(reading: Reading) -> tuple[Knobs, list[Bug]] | None:
    """The first pair of bugs with which the reference equals the answer; the more common pairs are tried first."""
    order = reading.usable()
    if len(order) < 2:
        return None
    plain = reading.agrees({}, order[0])
    silent, loud = list[Ranked](), list[Ranked]()
    for rank, bug, setting in ranked(reading.target.bugs):
        (silent if reading.agrees(setting, order[0]) else loud).append((rank, bug, setting))
    pairs = [*combinations(silent, 2)] if plain else [*product(silent, loud), *combinations(loud, 2)]
    conventions = [convention.knobs for convention in reading.target.conventions]
    reading.budget.left = PAIRS // 4 if reading.target.takes == ("ids",) else PAIRS  # a model is slow
    for (_, first, one), (_, second, other) in sorted(pairs, key=lambda pair: pair[0][0] + pair[1][0]):
        both = None if first is second else merge(one, other)
        if both is not None and both not in conventions and reading.agrees(both, order[1]) and reading.equals(both):
            return both, [first, second]
        if reading.budget.over:
            return None
    return None


Ranked = tuple[int, Bug, Knobs]


def ranked(bugs: Sequence[Bug]) -> Iterator[Ranked]:
    """Yields (rank, bug, setting). The rank is the place among bugs of the same knobs, which list common ones first."""
    counted: dict[tuple[str, ...], int] = {}
    for bug in bugs:
        for extra, setting in enumerate(bug.settings()[:2]):
            family = tuple(sorted(bug.knobs))
            if not extra:
                counted[family] = counted.get(family, -1) + 1
            yield counted[family] + 6 * extra, bug, setting
