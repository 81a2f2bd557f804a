"""What a reader can turn: the weights of a few tokens, and what they become at other settings.

    turn("the weights", tokens, query=query, key=key, factor=1 / 8**0.5, mask="the past")

On the page each named setting is a knob, and the picture follows (`attention.js` computes the same). In a terminal and
a notebook the picture stands at the settings that were given: change them in the code and run it again.

T tokens, H heads, d features of a query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import torch
from torch import Tensor

from minigpt.attention.position import angles, apply_rotary, distance
from minigpt.learning.languages import text
from minigpt.learning.output import Output
from minigpt.learning.pictures import bars, matrix
from minigpt.learning.tape import live

MASKS = {  # how far ahead and how far back a token sees
    "the past": (0, 99),
    "everything": (99, 99),
    "one too far": (1, 99),
    "the last two": (0, 1),
    "not itself": (-1, 99),
}
POSITIONS = ("none", "alibi", "rotary")
SLIDERS = {  # a setting that is a number: the label of its knob, lowest, highest, step
    "factor": ("scores, times", 0.0, 4.0, 0.01),
    "temperature": ("temperature", 0.05, 4.0, 0.05),
    "raised": ("the score that is raised", -4.0, 8.0, 0.1),
}
LABELS = {"width": "features of a vector", "heads": "heads", "mask": "a token sees", "position": "position"}
SLOPE = 0.5  # of ALiBi, in every head


def attend(
    query: Tensor, key: Tensor, *, factor: float = 1.0, temperature: float = 1.0, raised: float | None = None,
    raises: int = 0, width: int | None = None, heads: int = 1, mask: str = "everything", position: str = "none",
) -> Tensor:  # fmt: skip
    """The weights of queries (T, d) on keys (S, d) at some settings, in float64: (H, T, S).

    raised: the number that is added to the scores with token `raises`. width: only the first features count.
    """
    query, key = (
        each.double()[:, : width or None].unflatten(-1, (heads, -1)).transpose(0, 1) for each in (query, key)
    )  # (H, T, d) each
    T, S = query.shape[1], key.shape[1]
    if position == "rotary":
        theta = angles(0, S, query.shape[-1], 10_000.0, key.device)  # (S, d // 2)
        query, key = (apply_rotary(each[None], theta.cos(), theta.sin())[0] for each in (query, key))
    scores = query @ key.mT * factor  # (H, T, S)
    if position == "alibi":
        scores = scores - SLOPE * distance(T, S).abs()
    if raised is not None:
        scores = scores.index_add(-1, torch.tensor([raises]), torch.full((heads, T, 1), raised).double())
    (ahead, back), away = MASKS[mask], distance(T, S)  # (T, S)
    visible_mask = (away >= -ahead) & (away <= back)
    visible_mask |= ~visible_mask.any(dim=-1, keepdim=True) & (away == 0)  # who sees nobody sees itself
    return (scores / temperature).masked_fill(~visible_mask, -torch.inf).softmax(dim=-1)


def turn(
    title: str, tokens: Sequence[str], *, query: Tensor, key: Tensor, value: Tensor | None = None,
    row: int | None = None, raises: int = 0, **settings: Any,
) -> Output:  # fmt: skip
    """The weights at some settings of `attend`, as tables, or those of one row as bars; on the page with knobs.

    value (T, e): what the tokens hand over; the mixtures are shown too.
    """
    weights = attend(query, key, raises=raises, **settings)  # (H, T, S)
    pictures = [
        matrix(head, tokens, tokens, f"{title}, {text('head {number}', number=number)}" if len(weights) > 1 else title)
        for number, head in enumerate(weights, start=1)
    ]
    if row is not None:
        pictures = [bars(dict(zip(tokens, weights[0, row].tolist())), title)]
    if value is not None:
        names = [str(number + 1) for number in range(value.shape[-1])]
        pictures.append(matrix((weights[0] @ value.double()), tokens, names, text("the mixtures of the values")))
    data = {
        "title": title,
        "tokens": list(tokens),
        "query": query.tolist(),
        "key": key.tolist(),
        "value": None if value is None else value.tolist(),
        "row": row,
        "raises": raises,
        "settings": settings,
        "knobs": [knob(name, setting, query.shape[-1]) for name, setting in settings.items()],
        "masks": MASKS,
        "live": live([query, key, *([] if value is None else [value])]),
    }
    inside = "\n".join(picture.html for picture in pictures)
    html = f'<div class="turn" data-turn="{escape(json.dumps(data, ensure_ascii=False))}">{inside}</div>'
    return Output("\n\n".join(picture.text for picture in pictures), html)


def knob(name: str, setting: Any, d: int) -> dict[str, Any]:
    """The knob of a setting: a slider with its range, or one of several values."""
    if name in SLIDERS:
        label, low, high, step = SLIDERS[name]
        return {"name": name, "label": text(label), "low": low, "high": high, "step": step}
    divisors = [n for n in (1, 2, 4, 8, 16, 32, 64) if d % n == 0]
    by_name: dict[str, Sequence[Any]] = {"width": divisors, "heads": divisors[:-1]}
    choices = (by_name | {"mask": list(MASKS), "position": POSITIONS})[name]
    return {"name": name, "label": text(LABELS[name]), "choices": [[each, text(str(each))] for each in choices]}


def turn_through(label: str, pictures: Mapping[str, Output], start: str) -> Output:
    """Pictures that were computed in advance, one for each position of a knob; a terminal and a notebook show all."""
    inside = "".join(
        f'<div class="frame" data-at="{escape(name)}"><p class="at">{escape(f"{label}: {name}")}</p>{each.html}</div>'
        for name, each in pictures.items()
    )
    html = f'<div class="frames" data-label="{escape(label)}" data-start="{escape(start)}">{inside}</div>'
    return Output("\n\n".join(f"{label}: {name}\n{each.text}" for name, each in pictures.items()), html)
