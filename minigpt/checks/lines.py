"""The line of a user's file at which a kind breaks a law of attention: its forward is read on a short text.

Only laws that hold for every kind are asked, whatever it sees and however it scores. A kind that cannot be read, such
as a recurrence, has no line.

T positions, D model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from minigpt.attention import MultiHead
from minigpt.attention.position import NoPosition
from minigpt.checks.causality import LeakError
from minigpt.checks.laws import softmax
from minigpt.checks.laws.law import Law, Saw, Wanted, judged, law
from minigpt.checks.laws_of_attention import LawError, View
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.structure import Found
from minigpt.model.config import ModelConfig
from minigpt.model.gpt import GPT

T, MOST = 5, 128  # tokens of the text; the widest model that is read


@law("a token sees itself and what came before", "hide the scores of later tokens with -inf, before the softmax")
def ahead(attention: Found, wanted: Wanted) -> Iterator[Saw]:
    for weight in attention.weights:
        query, key = (attention.of.tokens(side)[0][1] for side in attention.sides(weight))
        if key > query:
            yield Saw(attention.of.made_at[weight], f"token {query} sees token {key}, which comes later",
                      "what came before")  # fmt: skip


EVERY: tuple[Law, ...] = (
    softmax.one_token,
    softmax.one_text,
    softmax.divided,
    softmax.one_query,
    softmax.over_the_keys,
    ahead,
    softmax.hides,
    softmax.all_mixed,
    softmax.joined,
)


@contextmanager
def with_the_line(model: GPT | None) -> Iterator[None]:
    """Adds to the message of a law that is broken the line of the user's file at which a reading sees it."""
    try:
        yield
    except (LawError, LeakError) as error:
        line = None if model is None else first_line(model)
        raise type(error)(f"{error}. {line}" if line else str(error)) from None


def first_line(model: GPT) -> str:
    """The first law that an attention of a user's own file breaks, with its line; "" if none is read there."""
    for index, attention in enumerate(model.attentions()):
        if not type(attention).__module__.startswith("minigpt.") and model.config.n_embd <= MOST:
            with suppress(Exception):  # the user's code, of which nothing is known, in a reading that may end
                if place := read(View(model, index), inspect.getsourcefile(type(attention)) or ""):
                    return place
    return ""


@torch.no_grad()
def read(view: View, path: str) -> str:
    """Read one attention of a model in float64."""
    D, dice = view.model.config.n_embd, torch.Generator().manual_seed(0)
    x = torch.randn(2, T, D, dtype=torch.float64, generator=dice)
    with Reading(path) as reading:
        reading.text(x)
        reading.parameters(view.layer)
        y = view.layer(x, view.past(x.clone()))  # (2, T, D)
    attention = Found(reading, reading.shadows.ids(y), width=D)
    config = MultiHead.Config(n_head=1)
    kind = MultiHead(config, ModelConfig(n_embd=D, position=NoPosition.Config(), attention=config))
    for broken in judged(attention, Wanted(kind, T, shares=0), EVERY).broken:
        if (line := broken.line or line_of_own(view, path)) and broken.law != "attention has no other steps":
            return f"{Path(path).name}:{line}: {broken.actual}, not {broken.expected}: {broken.mend}"
    return ""


def line_of_own(view: View, path: str) -> int:
    """Where this package made the numbers: the line at which the kind says which weights it has; 0 if it does not."""
    own = (getattr(type(view.layer), name, None) for name in ("mask", "normalise", "weights"))
    return next((one.__code__.co_firstlineno for one in own if one and one.__code__.co_filename == path), 0)
