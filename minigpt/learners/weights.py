"""Linear attention, by its measured weights: of functions of queries, keys and values, and of modules.

The output is linear in the values. Of a function the weights are what it returns for one-hot values; of a module they
are the solution of linear equations, once its values and its projection are found.

B batch, H heads, T positions, D model width, d width of a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.laws import linear
from minigpt.learners.kinds import NEAR, Compared, Match, as_large, built, heads_of, shapes_of
from minigpt.learners.matching import FIRST, Choice, Learner, Run, cheapest, choices, differences, probe
from minigpt.reading.structure import Broken

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
            what = f"of {T} tokens the output is not their weights times the values"
            return Compared("wrong", [], Broken("values are mixed as they are", what, "the same for every length",
                                                "leave values as they are", 0))  # fmt: skip
    return Compared("right", measured.notes, depth=1.0)


@torch.no_grad()
def linear_function(run: Callable[[Tensor, Tensor, Tensor], Tensor], H: int = 2, d: int = 7) -> Compared:
    """What a function of queries, keys and values (B, H, T, d) is, as linear attention."""

    def given(T: int) -> list[Tensor]:
        return [probe(T, 3 * H * d)[:2].view(2, T, 3, H, d)[:, :, one].transpose(1, 2) for one in range(3)]

    query, key, value = given(d)
    weights = run(query, key, torch.eye(d, dtype=query.dtype).expand_as(value))  # (2, H, d, d)
    return by_weights(weights, lambda T: (*given(T), run(*given(T))))


@torch.no_grad()
def linear_module(run: Run, module: nn.Module, D: int, numbers: Mapping[str, float] = {}) -> Compared:
    """What a module is, as linear attention."""
    learner = Learner(run, module, D, dict(numbers))
    widths = dict.fromkeys([D, *(size // n for ids in learner.ids.values() for size in ids.shape for n in (1, 3))])
    tried = list[Compared]()
    for H, width in product(dict.fromkeys((*heads_of(learner), 1)), widths):  # `head` may be a width
        options = {"n_head": H, "head_dim": max(width // H, 1), "block_size": 64, "layer": 0}
        kind = built("linear", options, D) if width % H == 0 else None
        if kind and as_large(kind, learner) and (said := as_linear(kind, learner, H)):
            tried.append(said)
            if said.verdict == "right":
                return said
    if tried:
        return tried[0]
    alone, half = run(probe(FIRST, D)[:, FIRST // 2 :]).double(), run(probe(FIRST, D)).double()[:, FIRST // 2 :]
    if float(differences(alone, half).max()) < 1e-12:
        what = "a token does not see what came before: the sums run over the heads or the features, not over time"
        law, mend = "a token sees itself and what came before", "cumsum along the axis of the positions"
        return Compared("wrong", [], Broken(law, what, "all that came before", mend, 0))
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
