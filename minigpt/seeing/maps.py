"""Attention maps of many heads as one picture: SVG without any extra; the same as PNG and PDF with the extra `plot`.

Labels always have the same size: if the tokens of a text do not fit at an axis, its words are shown, or every second
word, and so on. Each map says what its rows sum to, unless that is 1.

T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.base import SoftmaxAttention
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.seeing.drawing import THEMES, Canvas, shortened
from minigpt.seeing.pictures import can_plot, paint, small_png, visible
from minigpt.seeing.trace import MixCall, sums_of, tracing
from minigpt.system.counting import layer_name
from minigpt.system.errors import UserError
from minigpt.system.folder import as_bytes
from minigpt.system.places import with_extra
from minigpt.system.waiting import interruptible

MOST_MAPS = 256  # of one picture
COLUMNS = 4  # maps beside each other
LONGEST_WORD = 12  # characters of a label
WIDTH, GAP, LETTER, LINE = 960, 16, 14, 13  # of an SVG, in pixels: LETTER is for a line of a title, LINE for a label

Label = tuple[float, str]  # a place on an axis, in tokens, and the text there


@dataclass(frozen=True)
class Map:
    """One head's attention in a text, or a part of it, on the CPU."""

    weights: Tensor  # (T, S)
    layer: int  # both are indices
    head: int | None  # None: a part that all heads of the layer share
    kind: type[Attention]
    part: str = ""  # the name of a part of which the weights are made; "" for the weights
    note: str = ""  # what the head is, and how its weights are made of the parts
    gate: Tensor | None = None  # (T,): what the head's output is multiplied by

    @property
    def name(self) -> str:
        """Which head it is."""
        return layer_name(self.layer, self.head)

    @property
    def title(self) -> str:
        """Which head of which kind it is, and which part of it."""
        return f"{self.name}{f': {self.part}' if self.part else ''} ({self.kind.kind})"

    @property
    def signed(self) -> bool:
        """Whether there may be weights below zero."""
        return not (self.part or self.kind.weights_nonnegative) or bool((self.weights < 0).any())

    def facts(self, width: int) -> list[str]:
        """What stands below the name of a map, in lines of so many characters."""
        gated = "" if self.gate is None else f"output x {self.gate.min():.2g} to {self.gate.max():.2g}"
        return wrap("; ".join(filter(None, (self.kind.kind, self.part, self.note, sums(self.weights), gated))), width)


@torch.no_grad()
def read_maps(model: GPT, ids: Tensor) -> list[Map]:
    """The maps of a text (1, T), T at most `block_size`: the weights of each head, and before them their parts."""
    with eval_mode(model), tracing(model) as trace:
        model(ids)
    layers = zip(model.attentions(), trace.weights, trace.calls)  # `weights` refuses a layer that has none
    return [
        head_map for i, (attention, _, calls) in enumerate(layers) for head_map in _maps_of(attention, i, calls[-1])
    ]


def _maps_of(attention: Attention, layer: int, call: MixCall) -> Iterator[Map]:
    kind, H = type(attention), call.weights.shape[1]
    usual = kind.stages in (Attention.stages, SoftmaxAttention.stages)  # no sums, and maps that need not be made again
    stages = {} if usual else {name: each.cpu() for name, each in attention.stages(call.query, call.key).items()}
    summands = sums_of(stages)
    parts = {name: stages[name][0] for name in summands.get("weights", {})}  # (1 or H, T, T) each
    shared = {name: maps[0] for name, maps in parts.items() if len(maps) < H}  # (T, T) each
    yield from (Map(weights, layer, None, kind, name) for name, weights in shared.items())
    for head, weights in enumerate(call.weights[0].cpu()):  # (T, T)
        yield from (Map(maps[head], layer, head, kind, name) for name, maps in parts.items() if name not in shared)
        factors = {step: {name: float(f[0, head]) for name, f in parts.items()} for step, parts in summands.items()}
        gate = None if call.head_gates is None else call.head_gates[0, head].cpu()  # (T,)
        note = "; ".join(filter(None, (attention.head_note(head), *map(in_words, factors, factors.values()))))
        yield Map(weights, layer, head, kind, note=note, gate=gate)


def in_words(step: str, factors: Mapping[str, float]) -> str:
    """A step as a sum: "weights = softmax - 0.62 x other softmax"."""
    text = ""
    for name, factor in factors.items():
        sign = " - " if factor < 0 else " + " if text else " "
        text += sign + ("" if abs(factor) == 1 else f"{abs(factor):.3g} x ") + name
    return f"{step} ={text}"


def sums(weights: Tensor) -> str:
    """What the rows of weights (T, S) sum to, in words; "" where each row sums to 1."""
    totals = weights.double().sum(dim=-1)  # (T,)
    if torch.allclose(totals, torch.ones_like(totals), atol=1e-3):
        return ""
    return f"rows sum to {totals.min():.2g} to {totals.max():.2g}"


def axis_labels(tokens: Sequence[str], most: int) -> list[Label]:
    """At most `most` labels for an axis of tokens: the tokens, or the words, each at its middle, or every k-th word."""
    if len(tokens) <= most:
        return [(index, visible(token)) for index, token in enumerate(tokens)]
    words = list[tuple[int, int, str]]()  # first token, last token, text
    in_word = False
    for index, token in enumerate(tokens):
        if token.strip():
            begins_word = not in_word or token[0].isspace()
            first, before = (index, "") if begins_word else (words[-1][0], words.pop()[2])
            words.append((first, index, before + token.strip()))
        in_word = bool(token) and not token[-1].isspace()
    names = [((first + last) / 2, visible(shortened(text, LONGEST_WORD))) for first, last, text in words]
    return names[:: max(1, ceil(len(names) / most))]


def rows_of(maps: Sequence[Map]) -> list[list[Map]]:
    """The rows of a picture: each layer begins a new one, and each head with parts of its own.

    Raises UserError for more than MOST_MAPS maps.
    """
    if len(maps) > MOST_MAPS:
        how = "choose by --layer 3, --head 4, or both; in Python layer=2, head=3"
        raise UserError(f"{len(maps)} maps: too many for one picture (at most {MOST_MAPS}): {how}")
    groups = dict[Any, list[Map]]()
    apart = {head_map.layer for head_map in maps if head_map.part and head_map.head is not None}
    for head_map in maps:
        groups.setdefault((head_map.layer, head_map.head if head_map.layer in apart else None), []).append(head_map)
    return [group[start : start + COLUMNS] for group in groups.values() for start in range(0, len(group), COLUMNS)]


# ---- SVG ----


def maps_svg(maps: Sequence[Map], tokens: Sequence[str]) -> str:
    """The maps of a text as SVG, on a white ground: the more opaque a cell the larger its weight, with a scale below.

    Raises UserError for more than MOST_MAPS maps.
    """
    rows, most = rows_of(maps), max(1.0, *(float(head_map.weights.abs().max()) for head_map in maps))
    columns = max(map(len, rows))
    room = WIDTH // columns - 2 * GAP
    side = min(room - 100, max(320, LINE * len(tokens))) if len(maps) == 1 else min(room - 50, 320)
    labels = axis_labels(tokens, side // LINE)
    edge = 14 + 6 * max(len(name) for _, name in labels)  # pixels for a label
    title_height = 6 + LETTER * (1 + max(len(head_map.facts((side + edge) // 6)) for head_map in maps))
    width, height = columns * (side + edge + GAP) + GAP, side + edge + title_height + GAP
    bottom, canvas = GAP + len(rows) * height, Canvas(THEMES["light"])
    for row, row_maps in enumerate(rows):
        for column, head_map in enumerate(row_maps):
            with canvas.group(transform=f"translate({GAP + column * (side + edge + GAP)} {GAP + row * height})"):
                draw_map(canvas, head_map, labels, side, edge, title_height, most)
    with canvas.group(transform=f"translate({GAP} {bottom})"):
        draw_scale(canvas, most, any(head_map.signed for head_map in maps))
    title = "attention: " + ", ".join(head_map.title for head_map in maps)
    return canvas.svg(max(width, 420), bottom + 50, title, font_size=11)


def draw_map(
    canvas: Canvas, head_map: Map, labels: Sequence[Label], side: int, edge: int, title: int, most: float
) -> None:
    """One map, `side` pixels wide, with labels of `edge` and a title of `title` pixels; `most` is the opaque weight."""
    top, (T, S) = title + edge, head_map.weights.shape
    canvas.text(0, 12, head_map.name, font_size=13, font_weight=600)
    for line, text in enumerate(head_map.facts((side + edge) // 6), 2):
        canvas.text(0, LETTER * line, text, "soft")
    upward = any(len(name) > 1 for _, name in labels)
    for index, name in labels:
        x, y = edge + (index + 0.5) * side / S, top + (index + 0.5) * side / T
        if upward:
            canvas.upward(x + 4, top - 6, name)
        else:
            canvas.text(x, top - 6, name, anchor="middle")
        canvas.text(edge - 6, y + 4, name, anchor="end")
    canvas.pixels(edge, top, side, small_png(head_map.weights, most))


def draw_scale(canvas: Canvas, most: float, signed: bool) -> None:
    """What the shades mean: five weights with their colours, and what rows and columns are."""
    canvas.text(0, 12, "weight")
    for index, share in enumerate([-1.0, -0.25, 0.0, 0.25, 1.0] if signed else [0.0, 0.05, 0.25, 0.5, 1.0]):
        x, fill = 52 + 66 * index, "heat" if share < 0 else "above"
        canvas.box(x, 0, 20, 15, fill, fill_opacity=abs(share) ** 0.5, stroke="edge")
        canvas.text(x + 24, 12, f"{share * most:.3g}")
    legend = "each row is a query, each column a key" + ("; orange is below zero" if signed else "")
    canvas.text(0, 36, legend, "soft")


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows as what a cell returns, and that `save` writes to a file."""

    svg: str

    def save(self, path: str | Path) -> None:
        """Write the SVG. Raises OSError."""
        Path(path).write_bytes(as_bytes(self.svg))

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"a picture ({len(self.svg):,} bytes of SVG): a notebook shows it, save(path) writes it"


# ---- PNG and PDF ----


def picture_form(path: Path) -> str:
    """The form of a picture by the ending of its path: "svg", or "png" and "pdf" through matplotlib.

    Raises UserError for another ending, a missing folder, and without matplotlib.
    """
    form = path.suffix.lower().lstrip(".")
    if form not in ("svg", "png", "pdf"):
        raise UserError(f"{path}: the ending says what is written: expected .svg, .png or .pdf")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}: make it first")
    if form != "svg" and not can_plot():
        raise UserError(f"{path}: PNG and PDF need matplotlib: {with_extra('plot')}; .svg needs nothing")
    return form


def write_maps(maps: Sequence[Map], tokens: Sequence[str], path: Path) -> None:
    """Write the maps to a file, in the form that its ending names.

    Raises UserError as `picture_form` does, and for more than MOST_MAPS maps.
    """
    form, picture = picture_form(path), maps_svg(maps, tokens)
    if form == "svg":
        return Picture(picture).save(path)
    interruptible(lambda: paint(picture, path), "drawing")
