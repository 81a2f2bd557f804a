"""Any kind of ours as a target: a learner's numbers are compared with those of the kind itself.

    compared("gated_delta_net", run, module)      # run: x (B, T, D) -> (B, T, D)

The kind is built with the learner's sizes, and each number of its parameters is one of the learner's: a whole one,
transposed, a part of a fused one, or several together. Names order what is tried, and numbers decide. First comes what
is needed for one token (values and projection in most kinds), then the rest. If nothing is equal, a change of one step
of the kind (`edits`) that makes it equal is the mistake.

B batch, T positions, D model width, H heads.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain, combinations, islice, product
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from minigpt.attention import Attention, SoftmaxAttention
from minigpt.attention.linear.recurrent import Recurrent
from minigpt.attention.position import NoPosition
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.checks.learners.edits import Edit, edits, those_that_run
from minigpt.checks.learners.matching import FIRST, PROBES, Choice, Learner, Run, cheapest, choices, differences, probe
from minigpt.checks.learners.sizes import meaning
from minigpt.checks.reading.structure import Broken
from minigpt.model.config import ModelConfig
from minigpt.system.errors import UserError

MOST = 10  # of the likeliest readings that are looked at where none is equal for one token
SECONDS = 0.5  # of processor time for the search
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)
EQUAL, NEAR = 1e-8, 1e-4  # of the largest number: the same, and the same but for an epsilon
MEANT = {"n_kv_head": "G", "window": "window", "head_dim": "d"}
OPTIONS = {  # what learners call the others
    "window": "window|^w$", "cap": "cap", "k": "^(top_?)?k$|top", "block": "block|chunk", "stride": "stride",
    "chunk": "chunk|block", "sinks": "sink", "n_index_head": "index|idx", "index_dim": "index|idx",
    "latent": "latent|rank|lora|^r$", "rotated": "rope|rot", "value_dim": "v", "writes": "write|house|^n$",
    "waves": "wave|state", "convolution": "conv", "strength": "max|range", "rank": "rank|^r$", "query_rank": "rank",
}  # fmt: skip
SMALL = range(1, FIRST)
MASKS, USUAL = ("window", "stride", "chunk", "block", "k", "sinks"), (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0)
MOVERS = ("__init__", "split_heads", "repeat_kv", "forward_hook")  # functions that compute nothing
SHAPED = ("block_size", "layer")
NO_OPTION = (*SHAPED, "unscaled", "lengths")
NO_EFFECT = ("random_decays", "qkv_bias", "project_bias", "write_bias", "qk_norm_epsilon", "score_scale")
AT_FAULT = {"scaled": "divide the scores by sqrt(d)", "causal": "hide the later tokens"}  # if they are switched
SAID_OF = {
    "unscaled": "queries are not divided by sqrt(d)",
    "lengths": "queries and keys are only scaled to length one",
}
NONE = NoPosition.Config()


@dataclass
class Compared:
    """What came of it."""

    verdict: str
    """right, wrong or cannot tell."""
    notes: list[str] = field(default_factory=list)
    """Conventions, and for "cannot tell" what was tried."""
    broken: Broken | None = None
    depth: float = 0.0
    """How much of the first probe is equal."""


# ---- the kind, with the learner's sizes and numbers ----


@dataclass(eq=False)
class Match:
    """A kind whose parameters are the learner's, and how far it equals the learner."""

    kind: Any
    assignment: list[Choice]
    learner: Learner
    options: dict[str, Any] = field(default_factory=dict)
    rest: list[list[Choice]] = field(default_factory=list)
    """What the layers can be that one token does not need."""
    begins: bool = False
    """Whether the two are equal for one token."""
    early: int | None = None
    """How many of the chosen layers one token needs; None: all."""
    depth: float = 0.0
    difference: float = math.inf
    overflows: bool = False
    exact: bool = False
    """Whether the first token is equal to the last digits."""

    def ends(self, end: float) -> Iterator[list[Choice]]:
        """The choices of the other layers, the likeliest first."""
        return cheapest(self.rest, self.assignment[: self.early], len(self.learner.flat), end)

    def put(self) -> None:
        """Give the kind the learner's numbers."""
        parameters = dict(self.kind.named_parameters())
        for choice in self.assignment:
            for name, ids in choice.ids.items():
                parameters[name].data = self.learner.flat[ids].view(parameters[name].shape)

    def is_named(self) -> bool:
        """Whether the learner's names say which parameter is which."""
        return sum(choice.cost for choice in self.assignment) < 2 * max(1, len(self.assignment))

    def whole(self) -> bool:
        """Whether each of the learner's numbers has a place in the kind."""
        N = len(self.learner.flat)
        return sum(choice.taken(N).bit_count() for choice in self.assignment) == N - 2

    def gaps(self, T: int = FIRST, put: bool = True) -> Tensor:
        """How far the two are from one another at each token of a probe: (2, T)."""
        if put:
            self.put()
        return differences(self.kind(probe(T, self.learner.D)), self.learner.answers[T])

    def is_same(self) -> bool:
        """Whether the two are equal on texts of ordinary numbers, the first probe first."""
        return all(self.gaps(T).max() < NEAR for T in sorted(self.learner.answers, key=lambda T: T != FIRST))

    def measure(self) -> None:
        """How much of the first probe is equal."""
        gaps = self.gaps()
        self.depth, self.difference = float((gaps < NEAR).double().mean()), float(gaps.max())
        self.exact = bool(gaps[:, 0].max() < EQUAL)

    def apart(self) -> float:
        """How far the two are from one another on all probes, and on a text of large numbers, the most."""
        self.difference = max(float(self.gaps(T).max()) for T in self.learner.answers)
        x = probe(7, self.learner.D, 40.0)
        y, other, answer = self.kind(x), self.kind(x * (1 + 1e-14)), self.learner.run(x).double()
        self.overflows = bool(y.isfinite().all() and not answer.isfinite().all())
        if y.isfinite().all() and not self.overflows and float(differences(other, y).max()) < 1e-10:
            self.difference = max(self.difference, float(differences(y, answer).max()))
        return self.difference

    def first_token(self, name: str) -> str:
        """The first token at which the two differ."""
        other = self.gaps().amax(0) > NEAR
        if not other.any():
            return f"its numbers are those of {name} in {FIRST} tokens, and others in longer or larger texts"
        return f"its numbers are those of {name} up to token {int(other.long().argmax()) - 1}, and others from then on"


def built(name: str, options: Mapping[str, Any], D: int) -> Any:
    """A kind with these options, in float64, among them the context, the layer, and two conventions of recurrent kinds;
    None where they do not fit."""
    kind = Attention.kinds[name]
    try:
        config = kind.Config(**{option: value for option, value in options.items() if option not in NO_OPTION})
        model = ModelConfig(n_embd=D, block_size=max(1, options["block_size"]), position=NONE, attention=config)
        attention: Any = kind(config, model, options.get("layer", 0)).double().eval()
    except (UserError, ValueError, RuntimeError, ZeroDivisionError):
        return None
    if options.get("unscaled"):
        attention.scale = lambda: 1.0
    if options.get("lengths"):
        attention.view = lambda projected, _, H: nn.functional.normalize(split_heads(projected, H), dim=-1)
    return attention


def values_of(name: str, learner: Learner) -> dict[str, list[Any]]:
    """What each option of a kind may be, the likeliest first: what the learner's names tell, its default, others."""
    kind, held = Attention.kinds[name], learner.numbers
    hints = get_type_hints(kind.Config, include_extras=True)
    whole, broken = ({n: v for n, v in held.items() if type(v) is type_} for type_ in (int, float))
    sizes = list(dict.fromkeys(size for ids in learner.ids.values() for size in ids.shape))
    contexts = [v for n, v in whole.items() if meaning(n) == "T"]
    values: dict[str, list[Any]] = {"n_head": heads_of(learner), "block_size": [*contexts, 64, *sizes],
              "layer": [0, *(v for n, v in whole.items() if "layer" in n or "depth" in n)]}  # fmt: skip
    for option in fields(kind.Config):
        name, default, hint = option.name, getattr(kind.Config(), option.name), hints[option.name]
        literal = next((one for one in (hint, *get_args(hint)) if get_origin(one) is Literal), None)
        named = {n: v for n, v in held.items()
                 if meaning(n) == MEANT.get(name, name) or re.search(OPTIONS.get(name, name), n.lower())}  # fmt: skip
        if name in ("position", "n_head", *kind.Config.without):
            continue
        if literal or isinstance(default, bool):
            values[name] = [default, *(get_args(literal) if literal else [not default])]
        elif "int" in str(hint):
            ints = [v for v in named.values() if type(v) is int]
            ints = [default, *ints] if name in ("block", "chunk") else [*ints, default]  # `block_size`: the context
            learner.named_options |= {name} if ints[0] != default else set()
            values[name] = [*ints, *(SMALL if name in MASKS else (*whole.values(), *sizes))]
        elif "float" in str(hint):
            floats = [v for n, v in named.items() if type(v) is float and not n.startswith("the number")]
            learner.named_options |= {name} if floats else set()
            usual = EPSILONS if "epsilon" in name else [v for v in (*broken.values(), *USUAL) if v > 0]
            values[name] = [*(v for v in floats if v > 0), default, *usual]
    return {option: list(dict.fromkeys(some)) for option, some in values.items()}


def variants(name: str, learner: Learner) -> Iterator[tuple[Attention, dict[str, Any]]]:
    """Kinds with as many numbers in matrices as the learner, each with its options: those that are told, then others.

    First come options that change how many there are, then for the first two that fit all others.
    """
    values = values_of(name, learner)
    heads = values.pop("n_head")
    heads = heads if "n_head" in Attention.kinds[name].Config.__dataclass_fields__ else [None]
    start, shaped, count = {option: some[0] for option, some in values.items()}, list[dict[str, Any]](), 0

    def fitting(options: dict[str, Any]) -> Iterator[tuple[Attention, dict[str, Any]]]:
        options = {option: value for option, value in (start | options).items() if value is not None}
        if (kind := built(name, options, learner.D)) and as_large(kind, learner):
            yield kind, options

    for many in range(3):
        for changed, H in product(changes(values, many, 500), heads) if not shaped else ():
            count += 1
            for kind, options in fitting({**changed, "n_head": H}) if count <= 600 else ():
                yield kind, options
                shaped.append(options)
    alike = {*SHAPED, *NO_EFFECT, *learner.named_options}
    values = {option: some for option, some in values.items() if option not in alike}
    if issubclass(Attention.kinds[name], Recurrent):
        values |= {"unscaled": [False, True], "lengths": [False, True]}
    switches = {option: some for option, some in values.items() if isinstance(some[0], (bool, str))}
    amounts = {option: some for option, some in values.items() if isinstance(some[-1], float) or option in MASKS}
    total = sum(one.numel() for one in learner.module.parameters())
    for first in shaped[:2]:
        sets = [one for some, many, most in ((switches, 1, 60), (amounts, 1, 80), (switches, 2, 60), (switches, 3, 40))
                for one in changes(some, many, most)]  # fmt: skip
        listed = [pair for changed in sets for pair in fitting(first | changed)]
        yield from sorted(listed, key=lambda pair: abs(sum(p.numel() for p in pair[0].parameters()) - total))


def changes(values: Mapping[str, list[Any]], many: int, most: int) -> Iterator[dict[str, Any]]:
    """So many options with another value than their first."""
    each = (dict(zip(names, other)) for names in combinations(values, many)
            for other in product(*(values[name][1:] for name in names)))  # fmt: skip
    return islice(each, most)


def as_large(kind: Attention, learner: Learner) -> bool:
    """Whether a kind's matrices have as many numbers as the learner's; it may lack the projection."""
    sizes = {name: one.numel() for name, one in kind.named_parameters() if one.dim() > 1 and min(one.shape) > 1}
    total = sum(sizes.values())
    parted = sum(size for name, size in sizes.items() if name in ("shares", "places"))
    return learner.matrices() in (total, total - sizes.get("project.weight", 0), total - parted)


def heads_of(learner: Learner) -> list[int]:
    """How many heads there may be: as its names say, or as the shapes of its parameters; else every divisor of D."""
    named = [v for n, v in learner.numbers.items() if meaning(n) == "H" and isinstance(v, int)]
    shapes = [size for ids in learner.ids.values() for size in ids.shape]
    divisors = [n for n in range(2, learner.D // 2 + 1) if learner.D % n == 0]
    return list(dict.fromkeys(named or [*(n for n in divisors if n in shapes), 1, *divisors]))[:8]


def matches(kind: Attention, options: dict[str, Any], learner: Learner, tries: int, end: float) -> Iterator[Match]:
    """The kind with the learner's numbers: for one token first, then for a text; the likeliest first."""
    H, likely = options.get("n_head", 1), tries > MOST
    key = (tuple((name, one.shape) for name, one in kind.named_parameters()), H)
    by_layer = learner.known[key] = learner.known.get(key) or choices(kind, learner, H)
    early = early_layers(kind, list(by_layer), learner.D)
    first, rest = [by_layer[one] for one in early], [some for one, some in by_layer.items() if one not in early]
    good, enough = 0, 8 if likely else 2
    if sum(some[0].cost for some in first if some) < 2 * len(first):  # the names tell
        tries, enough = min(tries, 40), 2
    for place, assignment in enumerate(islice(cheapest(first, (), len(learner.flat), end), tries)):
        match = Match(kind, assignment, learner, options, rest)
        match.begins = bool(match.gaps(1).max() < NEAR)
        good += match.begins
        if match.begins or place < (MOST if likely else 1):
            for others in islice(match.ends(end), (60 if likely else 12) if match.begins else 1):
                full = Match(kind, [*assignment, *others], learner, options, rest, match.begins, len(assignment))
                full.measure()
                yield full
                if full.depth == 1.0:
                    return
        if good == enough:
            return


def early_layers(kind: Attention, layers: list[str], D: int) -> list[str]:
    """The layers without which the output for one token cannot be computed."""
    parameters = dict(kind.named_parameters())
    with torch.enable_grad():
        y = kind(probe(1, D)).sin().sum()
        slopes = torch.autograd.grad(y, list(parameters.values()), allow_unused=True) if parameters else ()
    needed = [f"{name}." for name, slope in zip(parameters, slopes) if slope is not None and slope.abs().max() > 1e-9]
    return [layer for layer in layers if any(name.startswith(layer + ".") for name in needed)]


# ---- the verdict ----


@torch.no_grad()
def compared(name: str, run: Run, module: nn.Module, D: int, numbers: Mapping[str, float] = {}) -> Compared:
    """What a learner's module is, as the kind of this name. `run` calls it: (B, T, D) -> (B, T, D).

    `numbers`: numbers that the learner's file gives to its constructor.
    """
    state = {key: value.clone() for key, value in module.state_dict().items()}
    dice = torch.Generator().manual_seed(0)
    for parameter in module.parameters():  # no number is equal to another, and none is zero
        size = 0.3 if parameter.dim() < 2 else 0.5 * parameter.shape[-1] ** -0.5
        parameter.add_(size * torch.randn(parameter.shape, generator=dice, dtype=torch.float64).to(parameter.dtype))
    try:
        learner = Learner(run, module, D, dict(numbers))
        for T in PROBES:
            try:
                learner.answers[T] = run(probe(T, D)).double()
            except Exception as error:  # the learner's code: anything; it may have an end, a context
                if T <= FIRST:
                    return Compared("cannot tell", [f"with {T} tokens it raises {type(error).__name__}: {error}"])
        return judged(name, learner)
    finally:
        module.load_state_dict(state)


def judged(name: str, learner: Learner) -> Compared:
    """The verdict on a learner whose answers are there."""
    tried, start = list[Match](), time.process_time()
    for place, (kind, options) in enumerate(variants(name, learner)):
        for match in matches(kind, options, learner, 300 if place < 2 else MOST, start + SECONDS):
            if match.depth == 1.0 and match.apart() < NEAR and (match.whole() or not learner.unused()):
                return right(name, match)
            tried.append(match)
        if time.process_time() - start > SECONDS:
            break
    if not tried:
        return Compared("cannot tell", [f"its parameters are not those of {name}: " + shapes_of(learner)])
    if unused := learner.unused():
        actual = f"of {unused} nothing is used"
        return Compared("wrong", [], Broken("each parameter is used", actual, "all", "use it, or leave it out", 0))
    deepest = sorted(tried, key=lambda one: (not one.begins, -one.depth, one.difference))
    if comparison := edited(name, (*tried[:1], *deepest[:4], *tried[1:MOST]), start + 2 * SECONDS):
        return comparison
    best = deepest[0]
    if best.exact and best.is_named() and best.whole() and not unknown(name, learner.named_options):
        return Compared("wrong", [best.first_token(name)], depth=best.depth)
    some = f"{len(tried)} readings of its parameters as those of {name} were tried, and none computes the same"
    return Compared("cannot tell", [some, *([best.first_token(name)] if best.depth else [])])


def unknown(name: str, named_options: set[str]) -> bool:
    """Whether the kind has numbers that no name of the learner tells, such as a window or a cap."""
    config = Attention.kinds[name].Config
    numbers = {option for option, hint in get_type_hints(config).items()
               if "epsilon" not in option and ("float" in str(hint) or option in MASKS)}  # fmt: skip
    return bool(numbers & set(config.__dataclass_fields__) - {*named_options, *NO_EFFECT, *config.without})


def right(name: str, match: Match) -> Compared:
    """A learner that computes the same."""
    notes, law = list(dict.fromkeys(choice.how for choice in match.assignment if choice.how)), f"the steps of {name}"
    for option, value in match.options.items():
        usual = getattr(match.kind.Config(), option, False if option in SAID_OF else value)
        if option in AT_FAULT and isinstance(match.kind, SoftmaxAttention) and value != usual:
            actual = f"it computes {name} with {option} = {value}"
            return Compared("wrong", [], Broken(law, actual, f"{option} = {usual}", AT_FAULT[option], 0), 1.0)
        if isinstance(value, (bool, str)) and value != usual:
            notes.append(SAID_OF.get(option, f"{option} = {value}"))
    if match.overflows:
        notes.append("large inputs give no number: subtract the largest score before the exponential")
    if match.difference > EQUAL:
        off = f"{match.difference:.0e}"
        notes.append(f"equal but for {off} of its largest number, as with another epsilon, or in float32")
    return Compared("right", notes, depth=1.0)


def edited(name: str, tried: Sequence[Match], end: float) -> Compared | None:
    """A learner that computes what a kind computes with one step changed, for one token first; None: no such step."""
    for match in dict.fromkeys(tried):
        if edit := edit_of(match):
            law, actual, mend = f"the steps of {name}", f"it computes {name} as if {edit}", f"make it `{edit.old}`"
            mend = f"look for this step in your program, and {mend}"
            return Compared("wrong", [], Broken(law, actual, f"`{edit.old}`", mend, 0), match.depth)
        if time.process_time() > end:
            break
    return None


def edit_of(match: Match) -> Edit | None:
    """The change of a step of the kind that makes it equal to the learner."""
    kind, learner = match.kind, match.learner
    mixes: Attention = getattr(kind, "inner", kind)  # of a function
    for form in filter(None, (mixes.mix, by_token(mixes))):
        mixes.mix = form  # type: ignore[method-assign,assignment]
        match.put()
        steps = those_that_run(lambda: kind(probe(FIRST, learner.D)))
        steps = [one for one in steps if one.__name__ not in MOVERS and "cache" not in one.__module__]
        for edit in edits(tuple(sorted(steps, key=lambda one: one.__module__ != mixes.__module__))):
            if edit.change in ("another one", "exchanged") and not match.is_named():
                continue  # other parameters in these places may be the right ones
            with edit.applied(), suppress(Exception):  # a changed step may raise anything
                if match.gaps(1, put=False).max() > NEAR:
                    continue
                others = islice(match.ends(time.process_time() + 0.1), 60) if not match.begins and match.rest else ()
                full = (replace(match, assignment=[*match.assignment[: match.early], *one]) for one in others)
                if any(one.is_same() for one in chain([match], full)):
                    return edit
                match.put()
    return None


def by_token(kind: Attention) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The mixing of a recurrent kind, token by token; None for others."""
    if not isinstance(kind, Recurrent):
        return None

    def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        state, read = kind.empty(key[:, :, 0], value[:, :, 0]), list[Tensor]()
        for t in range(query.shape[2]):
            state, one = kind.advance(state, query[:, :, t], key[:, :, t], value[:, :, t])
            read.append(one)
        return torch.stack(read, 2)

    return mix


def shapes_of(learner: Learner) -> str:
    """The shapes of a learner's parameters."""
    return ", ".join(f"{name} {tuple(one.shape)}" for name, one in learner.module.named_parameters()) or "it has none"
