"""The explorer: one HTML file in which a trained model reads a text, with every weight and every step to it.

    explore(model, tokenizer, ids, {"run": "tiny"}).save("page.html")

The file loads nothing from anywhere: it can be opened without a network, mailed, and put into a notebook.

T positions of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.model import GPT, count_parameters
from minigpt.seeing.document import asset, document, write_page
from minigpt.seeing.numbers import Layer, Numbers, look, token_text
from minigpt.seeing.pack import STEPS, fitting
from minigpt.system.errors import UserError
from minigpt.system.places import as_called
from minigpt.system.waiting import heartbeat
from minigpt.text.languages.language import Language
from minigpt.text.tokenizer import Tokenizer

SCRIPTS = "unpack", *(f"explorer-{part}" for part in ("numbers", "words", "maps", "steps", "parts")), "explorer"
TALL = 900  # pixels of the frame in a notebook


@dataclass(frozen=True)
class Page:
    """The page, and where it was saved. In a notebook, the last line of a cell shows it."""

    html: str
    path: Path = Path()
    outside: str = ""  # a sentence where the text is far outside what the model was trained on

    def save(self, path: str | Path) -> Page:
        """The same page, saved. Raises UserError if the folder is missing, or if another file is there."""
        return replace(self, path=write_page(Path(path), self.html))

    def __repr__(self) -> str:
        return f"a page of {len(self.html):,} characters: open {self.path}"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, whose script cannot reach the notebook."""
        frame = f'sandbox="allow-scripts" width="100%" height="{TALL}" style="border:0" title="minigpt explorer"'
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'


def explore(
    model: GPT,
    tokenizer: Tokenizer,
    ids: Tensor,
    facts: Mapping[str, str] | None = None,
    language: Language | None = None,
    command: str = "",
    usual: float | None = None,
) -> Page:
    """The page for ids (1, T).

    `facts` come first in its list of facts. If the text is from `language`, the ideal reader of that language is shown
    beside the model. `command` is the command line that made the page. `usual` is the loss on validation text in nats a
    token, with which a text is compared that may be far outside (`numbers.far_outside`). Raises UserError for an empty
    text, for one that does not fit into the context or onto a page, and if the model's weights overflow.
    """
    length, context = ids.shape[1], model.config.block_size
    if not length:
        raise UserError("the text is empty: give at least one token to look at")
    if length > context:
        raise UserError(f"the text has {length:,} tokens; the context holds {context:,}")
    numbers = look(model, tokenizer, ids, language, usual)
    with heartbeat("packing the page"):
        packed, left_out = fitting(numbers)
    data = described(numbers, tokenizer, left_out)
    data |= {"facts": [*(facts or {}).items(), *facts_of(model, numbers)], "command": command}
    body, style = as_called(asset("explorer.html")), asset("explorer.css")
    scripts = [asset(f"{name}.js") for name in SCRIPTS]
    html = document("Who attends to whom", body, style, scripts, {"data": data, "arrays": packed})
    return Page(html, outside=numbers.outside)


def facts_of(model: GPT, numbers: Numbers) -> list[tuple[str, str]]:
    """The (name, value) pairs at the top of the page."""
    kinds = dict.fromkeys(layer.kind for layer in numbers.layers)
    layers = [(attention, attention.config.position or model.config.position) for attention in model.attentions()]
    embedded = [model.config.position] if model.position.acts_by("embed") else []
    positions = ", ".join(dict.fromkeys(p.component.kind for p in (*embedded, *(position for _, position in layers))))
    not_used = ", ".join(dict.fromkeys(a.kind for a, position in layers if a.leaves_out(position.component)))
    facts = [("attention", ", ".join(kinds)), ("position", positions + (f" (not in {not_used})" if not_used else ""))]
    facts += [("layers", str(len(numbers.layers))), ("parameters", f"{sum(count_parameters(model).values()):,}")]
    if not len(numbers.surprise):
        return facts
    loss = f"{float(numbers.surprise.mean()):.3f} nats a {numbers.unit}"
    ideal = numbers.reading.ideal[1:] if numbers.reading else []
    if len(ideal) == len(numbers.surprise) and all(ideal):
        loss += f" (the ideal reader's: {-float(torch.tensor(ideal, dtype=torch.float64).log().mean()):.3f})"
    return [*facts, ("loss here", loss)]


def described(numbers: Numbers, tokenizer: Tokenizer, left_out: list[str]) -> dict[str, Any]:
    """The data of a page except its arrays, as JSON values."""
    head, position = numbers.telling()
    reading = numbers.reading
    return {
        "tokens": numbers.tokens,
        "unit": numbers.unit,
        "outside": numbers.outside,
        "layers": [layer_data(layer, left_out) for layer in numbers.layers],
        "worth": [round(worth, 6) for worth in numbers.worth.tolist()],
        "habits": [habit for layer in numbers.layers for habit in habits(layer.weights)],
        "next": [next_tokens(numbers, tokenizer, t) for t in range(len(numbers.tokens))],
        "lens": [
            [[token_text(tokenizer, id), round(p, 5)] for id, p in zip(*row)]
            for row in zip(numbers.lens_top.tolist(), numbers.lens_chance.tolist())
        ],
        "reader": {"ideal": reading.ideal, "takes": reading.takes} if reading else None,
        "start": {"head": head, "token": position},
        "missing": f"To keep this page small, it was made without {' and without '.join(left_out)}."
        if left_out
        else "",
    }


def layer_data(layer: Layer, left_out: list[str]) -> dict[str, Any]:
    """The data of a layer for the page's script, as JSON values."""
    return {
        "kind": layer.kind,
        "summary": layer.summary,
        "heads": len(layer.weights),
        "law": layer.law,
        "sink": None if layer.sink is None else [round(sink, 6) for sink in layer.sink.tolist()],
        "query": layer.query is not None and STEPS not in left_out,
        "scale": layer.scale,
        "sums": layer.sums_to_one,
        "signed": layer.signed,
        "steps": [] if STEPS in left_out else list(layer.steps),
        "gates": list(layer.gates),
        "made_of": {} if STEPS in left_out else sums_data(layer),
        "product": [] if STEPS in left_out else layer.product,
        "notes": layer.notes,
        "gated": layer.head_gates is not None,
    }


def sums_data(layer: Layer) -> dict[str, dict[str, list[float]]]:
    """{step: {a step of which it is the sum: its factor in each head}}, as JSON values."""
    return {
        step: {name: [round(x, 6) for x in factor.tolist()] for name, factor in parts.items()}
        for step, parts in layer.sums.items()
    }


def next_tokens(numbers: Numbers, tokenizer: Tokenizer, t: int) -> list[list[Any]]:
    """[token, its probability, the ideal reader's or None] for the likeliest tokens after position t."""
    support = numbers.reading.support[t + 1] if numbers.reading and t + 1 < len(numbers.reading.support) else None
    rows: list[list[Any]] = []
    for id, p in zip(numbers.top[t].tolist(), numbers.chance[t].tolist()):
        token = token_text(tokenizer, id)
        rows.append([token, round(p, 6), None if support is None else support.get(token, 0.0)])
    return rows


def habits(weights: Tensor) -> list[list[float]]:
    """For each head of weights (H, T, T), five means over the text: the share of |weights| on the token itself, on the
    one before, and on the first; how many tokens it sees at once (exp of the entropy); how many tokens back it looks.
    """
    T = weights.shape[-1]
    size = weights.abs()  # (H, T, T)
    share = size / size.sum(dim=-1, keepdim=True).clamp(min=1e-30)  # (H, T, T)
    behind = (torch.arange(T)[:, None] - torch.arange(T)).abs().float()  # (T, T)
    itself = share.diagonal(dim1=1, dim2=2).mean(dim=1)  # (H,)
    before = share.diagonal(-1, dim1=1, dim2=2).sum(dim=1) / max(T - 1, 1)  # (H,)
    many = torch.special.entr(share).sum(dim=-1).exp().mean(dim=1)  # (H,)
    back = (share * behind).sum(dim=-1).mean(dim=1)  # (H,)
    rows = torch.stack((itself, before, share[:, :, 0].mean(dim=1), many, back), dim=1)  # (H, 5)
    return [[round(x, 4) for x in row] for row in rows.tolist()]
