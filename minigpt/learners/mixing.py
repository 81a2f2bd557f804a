"""Functions of queries, keys, values and gates, compared with the mixing of a kind: its features, scale and gates.

B batch, H heads, T positions, W numbers of a token, d width of a query, a key and a value.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.attention.linear.recurrent import Recurrent, features
from minigpt.learners.calls import LAYOUTS, tensors
from minigpt.learners.kinds import NEAR, OPTIONS, SECONDS, Compared, Match, built, edited
from minigpt.learners.matching import PROBES, Learner, probe

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

    def __init__(self, kind: Attention, given: Given, prepare: tuple[bool, ...], gates: tuple[tuple[int, bool], ...]):
        super().__init__()
        self.inner, self.given, self.prepare, self.gates = kind, given, prepare, gates

    def forward(self, x: Tensor) -> Tensor:
        (query, key, value, *others), kind = self.given.parts(x), self.inner
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
            given = Given(call, layout, forms)
            learner = Learner(given, nn.Module(), given.H * sum(given.sizes))
            try:
                learner.answers = {T: given(probe(T, learner.D)) for T in PROBES}
            except Exception as error:  # the learner's code: anything
                why = f"it raises {type(error).__name__}: {error}"
                continue
            for match in mixings(name, given, learner, sizes):
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
    said = edited(name, tried[:8], time.process_time() + SECONDS)
    return said or Compared("cannot tell", [f"{len(tried)} ways to read its arguments as those of {name} were tried"])


def mixings(name: str, given: Given, learner: Learner, sizes: Mapping[str, Any]) -> Iterator[Match]:
    """The mixing of a kind with every reading of a function's arguments."""
    plain = Attention.kinds[name].Config()
    chosen: dict[str, Any] = {"block_size": 64} | ({"n_head": given.H} if hasattr(plain, "n_head") else {})
    for option in NEEDS:
        value = next((value for size, value in sizes.items() if re.search(OPTIONS[option], size)), None)
        if value is not None and hasattr(plain, option):
            chosen[option] = type(getattr(plain, option) or value)(value)
    kind, places = built(name, chosen, given.H * given.d), range(len(given.gates))
    for prepare in product((True, False), repeat=2) if isinstance(kind, Recurrent) else [(False, False)]:
        for order in permutations(places) if kind else ():
            for logs in product(*(((False,) if given.gates[place][1] else (False, True)) for place in order)):
                yield Match(Mixing(kind, given, prepare, tuple(zip(order, logs))), [], learner, begins=True)
