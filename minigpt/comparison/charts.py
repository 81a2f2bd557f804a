"""The charts of a comparison as SVG: curves with the spread of their seeds, and differences with their intervals.

A chart is drawn for a width, and its labels keep their size: a phone gets a narrow chart, not a small one. Colours come
from an `Ink`: those of the page's themes, or plain ones for a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from minigpt.inspection.pictures import log_ticks, ticks

Summary = Mapping[str, Any]
Point = tuple[float, float]

BROAD, NARROW = 820, 358  # widths in pixels: of the page; of a phone, 390 less the page's margins
HEIGHT, LEFT, TOP, BOTTOM, ROW = 380, 56, 14, 44, 17
LONGEST = 26  # characters of a variant's name in a chart; tables show the whole name
LEAST = 1e-4  # nats above the floor; a smaller value is drawn at this one


@dataclass(frozen=True)
class Ink:
    """The colours of a chart. Where there are more curves than colours, the colours repeat with dashed lines."""

    ink: str
    soft: str
    faint: str
    curves: tuple[str, ...]

    def stroke(self, place: int) -> str:
        """The SVG attributes of curve number `place`."""
        dashed = ' stroke-dasharray="6 3"' if place >= len(self.curves) else ""
        return f'stroke="{self.colour(place)}"{dashed}'

    def colour(self, place: int) -> str:
        """The colour of curve number `place`."""
        return self.curves[place % len(self.curves)]


PAGE = Ink("var(--ink)", "var(--soft)", "var(--faint)", tuple(f"var(--c{i})" for i in range(8)))
PAPER = Ink(
    *("#1b1f24", "#57606a", "#d8dee4"),
    ("#2563eb", "#c2410c", "#15803d", "#7e22ce", "#be123c", "#0e7490", "#a16207", "#475569"),
)


@dataclass(frozen=True)
class Curve:
    """The compared loss of one variant by step: the mean over its seeds, and the lowest and the highest of them."""

    name: str
    points: Sequence[Point]
    spread: Sequence[tuple[float, float, float]]  # step, lowest, highest


@dataclass(frozen=True)
class Curves:
    """The curves of all variants but those whose loss is below the floor, which is impossible."""

    title: str
    curves: Sequence[Curve]
    forgetful: float | None  # the forgetful reader's loss above the floor
    logs: bool  # whether the axis is logarithmic

    @property
    def values(self) -> list[float]:
        """All losses that are drawn."""
        found = [y for curve in self.curves for _, low, high in curve.spread for y in (low, high)]
        return [self.drawn(y) for y in found] + ([] if self.forgetful is None else [self.forgetful])

    def drawn(self, y: float) -> float:
        """The value that is drawn for `y`: on a logarithmic axis, at least LEAST."""
        return max(y, LEAST) if self.logs else y


def curves_of(summary: Summary) -> Curves | None:
    """The curves of a summary, or None where no run has an evaluation."""
    logs = summary["metric"] == "above"
    rows = [row for row in summary["variants"] if row["curve"] and not row["impossible"]]
    curves = [Curve(r["variant"], [(p[0], p[2]) for p in r["curve"]], [(*p,) for p in r["spread"]]) for r in rows]
    what = "nats a character above the floor" if logs else "validation loss, nats a character"
    return Curves(what, curves, summary["forgetful"] if logs else None, logs) if curves else None


def shortened(name: str) -> str:
    """A variant's name as a label."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


# ---- curves ----


@dataclass(frozen=True)
class Frame:
    """Converts steps and values to pixels."""

    steps: Sequence[float]  # the ticks of both axes
    marks: Sequence[float]
    logs: bool
    right: float
    bottom: float

    def x(self, step: float) -> float:
        """Pixels from the left."""
        return LEFT + step / self.steps[-1] * (self.right - LEFT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        low, high, here = (math.log(v) if self.logs else v for v in (self.marks[0], self.marks[-1], value))
        return self.bottom - (here - low) / (high - low) * (self.bottom - TOP)


def curves_svg(found: Curves, width: int, ink: Ink) -> str:
    """The curves as SVG, `width` pixels wide, with names at the right, or below in a narrow chart."""
    below = width < 2 * NARROW
    lowest, highest = min(found.values), max(found.values)
    frame = Frame(
        ticks(0, max(x for curve in found.curves for x, _ in curve.points)),
        log_ticks(lowest, highest) if found.logs else ticks(lowest, highest),
        found.logs,
        width - (12 if below else 180),
        HEIGHT - BOTTOM - 80 * below,
    )
    names = [(shortened(curve.name), curve.points[-1][1]) for curve in found.curves]
    names += [] if found.forgetful is None else [("the forgetful reader", found.forgetful)]
    height = int(frame.bottom) + BOTTOM + (ROW * len(names) if below else 0)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [f'<svg {size} role="img" aria-label="curves: {escape(found.title)}, by step" font-size="12">']
    parts += _axes(frame, ink)
    for place, curve in enumerate(found.curves):
        parts += _curve(curve, found, frame, ink, place)
    if found.forgetful is not None:
        y = frame.y(found.forgetful)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{frame.right}" stroke-dasharray="2 4" stroke="{ink.ink}"/>')
    parts += _key_below(names, frame, ink) if below else _names_at_ends(names, found, frame, ink)
    return "\n".join([*parts, "</svg>"])


def _axes(frame: Frame, ink: Ink) -> Iterator[str]:
    for mark in frame.marks:
        yield f'<path stroke="{ink.faint}" d="M{LEFT} {frame.y(mark):.1f}H{frame.right}"/>'
        where = f'x="{LEFT - 8}" y="{frame.y(mark) + 4:.1f}" text-anchor="end"'
        yield f'<text fill="{ink.soft}" {where}>{mark:g}</text>'
    for step in frame.steps:
        where = f'x="{frame.x(step):.1f}" y="{frame.bottom + 18}" text-anchor="middle"'
        yield f'<text fill="{ink.soft}" {where}>{step:g}</text>'
    middle = (LEFT + frame.right) / 2
    yield f'<text fill="{ink.soft}" x="{middle:.0f}" y="{frame.bottom + 36}" text-anchor="middle">step</text>'


def _curve(curve: Curve, found: Curves, frame: Frame, ink: Ink, place: int) -> Iterator[str]:
    """The spread as a band and the mean as a line; for a single evaluation, a bar and a dot."""
    points = [(frame.x(step), frame.y(found.drawn(value))) for step, value in curve.points]
    edges = [(frame.x(step), frame.y(found.drawn(low)), frame.y(found.drawn(high))) for step, low, high in curve.spread]
    if len(points) == 1:
        (x, y), (_, bottom, top) = points[0], edges[0]
        x -= 7 * place  # bars of several variants beside each other
        ends = f"M{x - 4:.1f} {top:.1f}h8M{x:.1f} {top:.1f}V{bottom:.1f}M{x - 4:.1f} {bottom:.1f}h8"
        yield f'<path class="spread" d="{ends}" stroke-width="2" {ink.stroke(place)}/>'
        yield f'<circle class="mean" cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{ink.colour(place)}"/>'
        return
    band = [(x, low) for x, low, _ in edges] + [(x, high) for x, _, high in reversed(edges)]
    yield f'<polygon class="spread" points="{_joined(band)}" fill="{ink.colour(place)}" fill-opacity=".15"/>'
    line = f'fill="none" stroke-width="2" {ink.stroke(place)}'
    yield f'<polyline class="mean" points="{_joined(points)}" {line}/>'


def _joined(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _names_at_ends(names: Sequence[tuple[str, float]], found: Curves, frame: Frame, ink: Ink) -> Iterator[str]:
    """Each name at the end of its curve; they do not overlap."""
    lowest = TOP - 15.0
    ends = sorted((frame.y(found.drawn(value)), place) for place, (_, value) in enumerate(names))
    for y, place in ends:
        lowest = max(y + 4, lowest + 15)
        colour = ink.colour(place) if place < len(found.curves) else ink.ink
        yield f'<text x="{frame.right + 8}" y="{lowest:.1f}" fill="{colour}">{escape(names[place][0])}</text>'


def _key_below(names: Sequence[tuple[str, float]], frame: Frame, ink: Ink) -> Iterator[str]:
    """The legend: a row for each name, with a piece of its curve."""
    forgetful = f'stroke="{ink.ink}" stroke-dasharray="2 4"'
    for row, (name, _) in enumerate(names):
        y = frame.bottom + BOTTOM + ROW * row + 8
        stroke = forgetful if name == "the forgetful reader" else ink.stroke(row)
        yield f'<path d="M{LEFT - 40} {y - 4}h28" stroke-width="2" {stroke}/>'
        yield f'<text x="{LEFT - 4}" y="{y}" fill="{ink.ink}">{escape(name)}</text>'


# ---- differences ----


def differences_svg(rows: Sequence[Mapping[str, Any]], width: int, ink: Ink) -> str:
    """A forest plot: for each variant, the difference to the baseline as a dot and its confidence interval as a bar.

    `rows` are the rows of a summary that have a difference. A name stands at the left of its bar, or above where the
    picture is narrow.
    """
    above = width < 2 * NARROW
    left, right, step = (14, width - 14, 44) if above else (220, width - 20, 28)
    found = [row["difference"] for row in rows]
    ends = [0.0, *(d[key] for d in found for key in ("low", "mean", "high") if d[key] is not None)]
    low, high, bottom = min(ends), max(ends), step * len(rows) + 6
    room = (high - low or 1.0) * 0.05

    def across(value: float) -> float:
        return left + (value - low + room) / (high - low + 2 * room) * (right - left)

    size = f'viewBox="0 0 {width} {bottom + 28}" width="{width}" height="{bottom + 28}"'
    parts = [f'<svg {size} role="img" aria-label="differences to the baseline, with intervals" font-size="12">']
    for tick in (tick for tick in ticks(low, high) if low - room <= tick <= high + room):
        line = f'stroke="{ink.faint}" stroke-width="{2 if not tick else 1}"'
        parts.append(f'<path d="M{across(tick):.1f} 0V{bottom}" {line}/>')
        where = f'x="{across(tick):.1f}" y="{bottom + 16}" text-anchor="middle" fill="{ink.soft}"'
        parts.append(f"<text {where}>{f'{tick:+g}' if tick else '0'}</text>")
    for place, (row, d) in enumerate(zip(rows, found)):
        y, colour = step * place + step - 12, ink.ink if d["shown"] else ink.soft
        where = f'x="0" y="{y - 14}"' if above else f'x="{left - 10}" y="{y + 4}" text-anchor="end"'
        parts.append(f'<text {where} fill="{ink.ink}">{escape(shortened(row["variant"]))}</text>')
        if d["low"] is not None:
            bar = f'd="M{across(d["low"]):.1f} {y}H{across(d["high"]):.1f}" stroke="{colour}"'
            parts.append(f'<path {bar} stroke-width="3" stroke-linecap="round"/>')
        parts.append(f'<circle cx="{across(d["mean"]):.1f}" cy="{y}" r="5" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>"])
