"""A target: what a learner was asked to write, as one reference with knobs, and the bugs that it can have.

The reference is a plain function in float64. It computes the right result with no knobs; every knob makes one thing
wrong. A `Bug` is a setting of the knobs with a sentence: if the learner's numbers equal those of the reference with
these knobs on every probe, the sentence is true. A `Convention` is a setting that is right, too.

    SCALE = Bug({"scale": "D"}, "you divide by sqrt(D) = sqrt({D}), the width of the model, instead of sqrt(d)", "...")

A new target is a function `Options -> Target` in a file of `targets/`, entered in `targets/__init__.py`. The names of
the sizes: B batch, T query positions, S key positions, D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from minigpt.system.errors import UserError

Knobs = Mapping[str, Any]
Sizes = Mapping[str, int]
Steps = dict[str, Tensor]  # every intermediate result by its name, in order; the last one is the output
Parameters = Mapping[str, Tensor]  # by role: "query" (*out, *into) and, if there is one, "query_bias" (*out)


@dataclass(frozen=True)
class Role:
    """A matrix that a target needs, (*out, *into), with an optional bias (*out); a vector if `into` is ()."""

    name: str
    out: tuple[str, ...]
    into: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Parts of the names that learners use, the surest first; they only order the search."""
    needed: bool = True
    """False: a right answer may lack this parameter; the reference then gets no entry for it."""

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """(*out, *into) as numbers."""
        return tuple(sizes[axis] for axis in (*self.out, *self.into))

    def rows(self, sizes: Sizes) -> int:
        """The number of outputs."""
        return math.prod(sizes[axis] for axis in self.out)

    def heads(self, sizes: Sizes) -> tuple[int, ...]:
        """The axes of the outputs as numbers: (heads, width of a head), or (width,)."""
        return tuple(sizes[axis] for axis in self.out)

    def columns(self, sizes: Sizes) -> int:
        """The number of inputs."""
        return math.prod(sizes[axis] for axis in self.into)


@dataclass(frozen=True)
class Bug:
    """One thing that is wrong. `sentence` and `fix` may hold {D}, {H}, {d}, ... and expressions like {D//G}."""

    knobs: Knobs
    sentence: str
    fix: str
    forms: tuple[Knobs, ...] = ()
    """Other settings for which the same sentence is true: hidden by -1e9 rather than -inf, for example."""
    equal: str = ""
    """Not empty: bugs with the same word give the same output on every input, so either sentence is true."""
    harmless: bool = False
    """True: the sentence names a convention: with other parameters the right answer computes the same, or published
    models do so. Unlike a `Convention`, it is tried only if nothing else was found."""

    def settings(self) -> tuple[Knobs, ...]:
        """All settings of the knobs that this sentence describes."""
        return (self.knobs, *self.forms)


def alike(knob: str, sentences: Mapping[str, str], fix: str) -> list[Bug]:
    """A bug for each wrong value of one knob; all have the same fix."""
    return [Bug({knob: value}, sentence, fix) for value, sentence in sentences.items()]


@dataclass(frozen=True)
class Convention:
    """Another way that is right as well; it passes with a note."""

    knobs: Knobs
    note: str


@dataclass(frozen=True)
class Probe:
    """One input of a target. `size` is the factor that it was multiplied by; the tolerance depends on it."""

    name: str
    inputs: Mapping[str, Tensor]
    size: float = 1.0
    chunks: tuple[int, ...] = ()
    """The lengths of the chunks in which the input is passed, with a cache; (): all at once."""
    optional: bool = False
    """True: a learner's answer may raise here (fewer queries than keys); that is a note and no bug."""


@dataclass(frozen=True)
class Options:
    """The options that follow the name of a target, as in `multi_head,rotary,window=4`."""

    rotary: bool = False
    alibi: bool = False
    window: int = 0
    cache: bool = False
    full: bool = False
    """No causal mask: every position sees every other."""

    def __str__(self) -> str:
        given = [name for name in ("rotary", "alibi", "cache", "full") if getattr(self, name)]
        return "".join(f",{word}" for word in [*given, *([f"window={self.window}"] if self.window else [])])


Reference = Callable[[Probe, Parameters, Sizes, Knobs], Steps]


@dataclass(frozen=True)
class Target:
    """What a learner is asked to write."""

    name: str
    right: str
    """What a right answer computes, in a sentence."""
    takes: tuple[str, ...]
    """The inputs by name: ("x",), ("query", "key", "value"), ("ids",)."""
    reference: Reference
    probes: Callable[[Sizes], Sequence[Probe]]
    sizes: Sizes
    """The sizes that the check uses if it may choose them."""
    bugs: Sequence[Bug]
    conventions: Sequence[Convention] = ()
    roles: tuple[Role, ...] = ()
    """Empty: a plain function, which has no parameters."""
    options: Options = field(default_factory=Options)
    without: Mapping[str, Bug | Convention] = field(default_factory=dict)
    """What a missing role means, for roles that the reference can do without: "output": no output projection."""
    tiny: Callable[[], tuple[Sizes, Parameters, Probe]] | None = None
    """Three tokens with numbers for a calculation by hand, to show a bug on."""
    settled: Sequence[Convention] = ()
    """Conventions that were read off the answer: the reference has them already, and the report says so."""
    module: Target | None = None
    """The target of x that is used if the answer is a module with parameters instead of a function."""
    function: Target | None = None
    """The target of queries, keys and values that is used if the answer is a plain function instead of a module."""

    def __str__(self) -> str:
        return f"{self.name}{self.options}"

    def output(self, probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Tensor:
        """What the reference with these knobs returns for a probe."""
        *_, last = self.reference(probe, parameters, sizes, knobs).values()
        return last


def fill(text: str, sizes: Sizes) -> str:
    """The sentence with the numbers of these sizes: "{D}" is the width, "{D//G}" a quotient."""

    def number(found: re.Match[str]) -> str:
        value = eval(found[1], {"__builtins__": {}}, dict(sizes))  # our own sentences, never a learner's
        return str(value)

    return re.sub(r"\{([^{}]+)\}", number, text)


def read_options(words: Sequence[str]) -> Options:
    """["rotary", "window=4"] -> Options. Raises UserError."""
    options = Options()
    for word in words:
        name, _, value = word.strip().partition("=")
        if name == "window" and value.isdigit() and int(value) > 0:
            options = replace(options, window=int(value))
        elif name in ("rotary", "alibi", "cache", "full") and not value:
            options = replace(options, **{name: True})
        else:
            raise UserError(f"{word!r}: expected rotary, alibi, cache, full or window=N")
    if options.full and (options.cache or options.window):
        raise UserError("full attention has no window and no cache: leave one of them out")
    return options


def only(name: str, options: Options, *known: str) -> None:
    """Raises UserError if `options` has an option that the target does not know."""
    given = [word for word in ("rotary", "alibi", "window", "cache", "full") if getattr(options, word)]
    if unknown := [word for word in given if word not in known]:
        raise UserError(f"{name} has no option {unknown[0]}; it has {', '.join(known) or 'none'}")
