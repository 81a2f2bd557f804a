"""Functions of queries, keys, values and gates, compared with the mixing of a kind: its features, scale and gates; and
linear attention, of functions and of modules, by its measured weights.

Linear attention is linear in the values, so the weights can be measured. Of a function they are what it returns for
one-hot values; of a module they are the solution of linear equations, once its values and its projection are found.

B batch, H heads, T positions, D model width, W numbers of a token, d width of a query, a key and a value.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, permutations, product
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.attention.linear.recurrent import Recurrent, features
from minigpt.checks.laws import linear
from minigpt.checks.learners.calls import LAYOUTS, tensors
from minigpt.checks.learners.kinds import (
    NEAR,
    OPTIONS,
    SECONDS,
    Compared,
    Match,
    as_large,
    built,
    edited,
    heads_of,
    shapes_of,
)
from minigpt.checks.learners.matching import FIRST, PROBES, Choice, Learner, Run, cheapest, choices, differences, probe
from minigpt.checks.reading.structure import Broken

NEEDS = ("window", "chunk", "block", "k", "cap", "stride", "sinks")  # sizes that a function may ask for
GATES = "beta|gate|g$|g_|alpha|decay|forget|log|gk"
ONE_HEAD = "(B, T, d)"
FORMS = ("(B, H, T, d)", "(B, T, H, d)", ONE_HEAD)  # of LAYOUTS, those that are tried


@dataclass
class Given:
    """How a function is called: its gates, each for a head or for a channel, as shares or as their logarithms."""

    function: Callable[..., Any]
    layout: str
    gates: tuple[tuple[bool, bool], ...] = ()
    """Of each gate: whether each channel has one, and whether it is a logarithm."""
    d: int = 4

    @property
    def H(self) -> int:
        """How many heads there are."""
        return 1 if self.layout == ONE_HEAD else 2

    @property
    def sizes(self) -> list[int]:
        """How many numbers of a token and a head are its query, key, value, and each gate."""
        return [self.d] * 3 + [self.d if wide else 1 for wide, _ in self.gates]

    def parts(self, x: Tensor) -> list[Tensor]:
        """x (B, T, W) -> query, key, value (B, H, T, d) each, then the gates (B, H, T) or (B, H, T, d)."""
        parts = list(x.unflatten(-1, (self.H, -1)).transpose(1, 2).split(self.sizes, -1))
        for place, (wide, is_log) in enumerate(self.gates, start=3):
            gate = (parts[place] if wide else parts[place][..., 0]) + 1
            parts[place] = nn.functional.logsigmoid(gate) if is_log else gate.sigmoid()
        return parts

    def __call__(self, x: Tensor) -> Tensor:
        """What the function returns: (B, T, H e)."""
        there, back = LAYOUTS[self.layout]
        y = back(tensors(self.function(*map(there, self.parts(x))))[0])  # (B, H, T, e)
        return y.transpose(1, 2).flatten(2).double()


class Mixing(nn.Module):
    """The mixing of a kind as a module of one text: x (B, T, W) holds queries, keys, values and gates side by side.

    `prepare`: what the kind does to queries and keys first: their features, their scale. `gates`: for each gate of the
    kind the number of the learner's, and whether its logarithm is taken.
    """

    def __init__(self, kind: Attention, caller: Given, prepare: tuple[bool, ...], gates: tuple[tuple[int, bool], ...]):
        super().__init__()
        self.inner, self.caller, self.prepare, self.gates = kind, caller, prepare, gates

    def forward(self, x: Tensor) -> Tensor:
        (query, key, value, *others), kind = self.caller.parts(x), self.inner
        gates = [others[place].log() if is_log else others[place] for place, is_log in self.gates]
        if isinstance(kind, Recurrent):
            featured, scaled = self.prepare
            if featured:
                query, key = (features(one, kind.config.features) for one in (query, key))
            query = query * kind.scale() if scaled else query
            gates = gates or [kind.gates(x.new_zeros(*x.shape[:2], kind.n_head * kind.d))]  # the same for all tokens
        key = torch.cat((key, *(one if one.dim() == 4 else one[..., None] for one in gates)), -1)
        return kind.mix(query, key, value).transpose(1, 2).flatten(2)  # (B, T, H e)


@torch.no_grad()
def compared_function(name: str, function: Callable[..., Any]) -> Compared:
    """What a function of queries, keys, values and gates is, as the mixing of a kind."""
    more = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD][3:]
    sizes = {one.name: one.default if isinstance(one.default, (int, float)) and one.default else 3 for one in more
             if any(re.search(OPTIONS[need], one.name) for need in NEEDS)}  # fmt: skip
    others = [one for one in more if one.name not in sizes]
    gates = [one for one in others if one.default is one.empty or (one.default is None and re.match(GATES, one.name))]
    call, tried, why = partial(function, **sizes), list[Match](), "it could not be called"
    for layout in FORMS:
        for forms in product(((False, False), (False, True), (True, True), (True, False)), repeat=len(gates)):
            caller = Given(call, layout, forms)
            learner = Learner(caller, nn.Module(), caller.H * sum(caller.sizes))
            try:
                learner.answers = {T: caller(probe(T, learner.D)) for T in PROBES}
            except Exception as error:  # the learner's code: anything
                why = f"it raises {type(error).__name__}: {error}"
                continue
            for match in mixings(name, caller, learner, sizes):
                try:
                    match.measure()
                except (RuntimeError, IndexError):  # these gates do not fit the kind
                    continue
                if match.depth == 1.0 and match.apart() < NEAR:
                    return Compared("right", [f"called with {layout}"] * (layout != FORMS[0]), depth=1.0)
                tried.append(match)
    if not tried:
        return Compared("cannot tell", [why])
    tried = sorted(tried, key=lambda one: (-one.depth, one.difference))
    comparison = edited(name, tried[:8], time.process_time() + SECONDS)
    some = f"{len(tried)} ways to read its arguments as those of {name} were tried"
    return comparison or Compared("cannot tell", [some])


def mixings(name: str, caller: Given, learner: Learner, sizes: Mapping[str, Any]) -> Iterator[Match]:
    """The mixing of a kind with every reading of a function's arguments."""
    plain = Attention.kinds[name].Config()
    options: dict[str, Any] = {"block_size": 64} | ({"n_head": caller.H} if hasattr(plain, "n_head") else {})
    for option in NEEDS:
        value = next((value for size, value in sizes.items() if re.search(OPTIONS[option], size)), None)
        if value is not None and hasattr(plain, option):
            options[option] = type(getattr(plain, option) or value)(value)
    kind, places = built(name, options, caller.H * caller.d), range(len(caller.gates))
    for prepare in product((True, False), repeat=2) if isinstance(kind, Recurrent) else [(False, False)]:
        for order in permutations(places) if kind else ():
            for logs in product(*(((False,) if caller.gates[place][1] else (False, True)) for place in order)):
                yield Match(Mixing(kind, caller, prepare, tuple(zip(order, logs))), [], learner, begins=True)


# ---- linear attention, by its measured weights ----

Text = Callable[[int], tuple[Tensor, ...]]
"""T -> query, key, value (B, H, T, d) each, and the output of the program."""


def by_weights(weights: Tensor, text: Text, project: Run = lambda mixed: mixed) -> Compared:
    """The laws, asked of measured weights (B, H, T, T), then texts of other lengths. `project`: of (B, H, T, d)."""
    query, key, *_ = text(weights.shape[-1])
    measured = linear.Weights(weights.flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1))
    for broken in linear.broken(measured):
        return Compared("wrong", [], broken, 0.5)
    for T in (weights.shape[-1], 1, 3, 40):
        *inputs, y = text(T)
        mixed = project(measured.attended(*(one.flatten(0, 1) for one in inputs)).unflatten(0, inputs[0].shape[:2]))
        if float(differences(mixed.flatten(1, -2), y.flatten(1, -2)).max()) > NEAR:
            actual = f"of {T} tokens the output is not their weights times the values"
            return Compared("wrong", [], Broken("values are mixed as they are", actual, "the same for every length",
                                                "leave values as they are", 0))  # fmt: skip
    return Compared("right", measured.notes, depth=1.0)


@torch.no_grad()
def linear_function(run: Callable[[Tensor, Tensor, Tensor], Tensor], H: int = 2, d: int = 7) -> Compared:
    """What a function of queries, keys and values (B, H, T, d) is, as linear attention."""

    def inputs(T: int) -> list[Tensor]:
        return [probe(T, 3 * H * d)[:2].view(2, T, 3, H, d)[:, :, one].transpose(1, 2) for one in range(3)]

    query, key, value = inputs(d)
    weights = run(query, key, torch.eye(d, dtype=query.dtype).expand_as(value))  # (2, H, d, d)
    return by_weights(weights, lambda T: (*inputs(T), run(*inputs(T))))


@torch.no_grad()
def linear_module(run: Run, module: nn.Module, D: int, numbers: Mapping[str, float] = {}) -> Compared:
    """What a module is, as linear attention."""
    learner = Learner(run, module, D, dict(numbers))
    widths = dict.fromkeys([D, *(size // n for ids in learner.ids.values() for size in ids.shape for n in (1, 3))])
    tried = list[Compared]()
    for H, width in product(dict.fromkeys((*heads_of(learner), 1)), widths):  # `head` may be a width
        options = {"n_head": H, "head_dim": max(width // H, 1), "block_size": 64, "layer": 0}
        kind = built("linear", options, D) if width % H == 0 else None
        if kind and as_large(kind, learner) and (comparison := as_linear(kind, learner, H)):
            tried.append(comparison)
            if comparison.verdict == "right":
                return comparison
    if tried:
        return tried[0]
    alone, half = run(probe(FIRST, D)[:, FIRST // 2 :]).double(), run(probe(FIRST, D)).double()[:, FIRST // 2 :]
    if float(differences(alone, half).max()) < 1e-12:
        actual = "a token does not see what came before: the sums run over the heads or the features, not over time"
        law, mend = "a token sees itself and what came before", "cumsum along the axis of the positions"
        return Compared("wrong", [], Broken(law, actual, "all that came before", mend, 0))
    return Compared("cannot tell", ["its values and its projection were not found: " + shapes_of(learner)])


def as_linear(kind: Any, learner: Learner, H: int) -> Compared | None:
    """What a module is, by the values and the projection with which its output is a mixture; None if none are."""
    by_layer, N, T = choices(kind, learner, H), len(learner.flat), max(min(kind.d - 2, 8), 2)
    x, first = probe(T, learner.D), None
    y = learner.run(x).double()
    for ends in islice(cheapest([by_layer["value"], by_layer["project"]], (), N, time.process_time() + 0.5), 60):
        Match(kind, ends, learner).put()
        value = kind.value(x).unflatten(-1, (H, -1))  # (2, T, H, e)
        columns = torch.einsum("bshe, dhe -> bdhs", value, kind.project.weight.unflatten(1, (H, -1))).flatten(2)
        rest = (y - kind.project.bias).mT  # (2, D, T)
        solved = torch.linalg.lstsq(columns, rest).solution  # (2, H S, T)
        if float((columns @ solved - rest).abs().max()) < 1e-7 * float(y.abs().max()):
            break
    else:
        return None
    weights = solved.unflatten(1, (H, T)).permute(0, 1, 3, 2)
    value_of, project = (layer_of(one, learner) for one in ends)
    for inner in islice(cheapest([by_layer["query"], by_layer["key"]], ends, N, time.process_time() + 0.3), 6):
        layers = [*(layer_of(one, learner) for one in inner), value_of]

        def text(T: int, layers: list[Run] = layers) -> tuple[Tensor, ...]:
            x = probe(T, learner.D)
            parts = [layer(x).unflatten(-1, (H, -1)).transpose(1, 2) for layer in layers]
            return (*parts, learner.run(x).double())

        judgement = by_weights(weights, text, lambda mixed: project(mixed.transpose(1, 2).flatten(2)))
        if judgement.verdict == "right":
            judgement.notes = list(dict.fromkeys((*(one.how for one in (*inner, *ends) if one.how), *judgement.notes)))
            return judgement
        first = first or judgement
    return first or Compared("cannot tell", ["its queries and keys were not found"])


def layer_of(choice: Choice, learner: Learner) -> Run:
    """The layer that a choice makes."""
    weight, *bias = (learner.flat[ids] for ids in choice.ids.values())
    return lambda x: nn.functional.linear(x, weight, *bias)
