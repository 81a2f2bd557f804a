"""The chart of an experiment over sizes: losses and fitted power laws on two logarithmic axes, as SVG.

A dot is the mean over the seeds; its bar goes from the lowest seed to the highest. A ring is a held-out size, which the
fit did not see; the broad bar behind it is the interval that the fit predicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from minigpt.comparison.charts import BOTTOM, HEIGHT, NARROW, ROW, TOP, Ink, shortened
from minigpt.inspection.figures import THEMES
from minigpt.inspection.pictures import log_ticks

LEFT = 56
STEPS = 24  # line segments of a drawn law
COLOURS = {
    "light": ("#2563eb", "#c2410c", "#15803d", "#7e22ce", "#be123c", "#0e7490", "#a16207", "#475569"),
    "dark": ("#7aa7ff", "#fb923c", "#4ade80", "#c4a0ff", "#fb7185", "#22d3ee", "#facc15", "#a8b3c2"),
}


@dataclass(frozen=True)
class Frame:
    """Converts parameters and losses to pixels; both axes are logarithmic."""

    across: Sequence[float]  # ticks of the horizontal axis
    up: Sequence[float]  # ticks of the vertical axis
    left_end: float
    right_end: float
    right: float
    bottom: float

    def x(self, N: float) -> float:
        """Pixels from the left."""
        share = math.log(N / self.left_end) / math.log(self.right_end / self.left_end)
        return LEFT + 14 + share * (self.right - LEFT - 28)

    def y(self, loss: float) -> float:
        """Pixels from the top."""
        return self.bottom - math.log(loss / self.up[0]) / math.log(self.up[-1] / self.up[0]) * (self.bottom - TOP - 24)


def growth_svg(summary: Mapping[str, Any], width: int, ink: Ink) -> str:
    """The chart, `width` pixels wide; "" where nothing can be drawn. Kinds are named at the right, or below."""
    rows = [(row, [p for p in row["points"] if p["mean"] and p["low"] > 0]) for row in summary["kinds"]]
    rows = [(row, points) for row, points in rows if points]
    every = [point for _, points in rows for point in points]
    if not every:
        return ""
    below = width < 2 * NARROW
    told = [p["predicted"] for p in every if p["predicted"]]
    heights = [y for p in every for y in (p["low"], p["high"])] + [y for t in told for y in (t["low"], t["high"])]
    low, high = min(p["parameters"] for p in every), max(p["parameters"] for p in every)
    marks = [mark for mark in log_ticks(low, high * 1.0001) if low <= mark <= high]
    bottom = HEIGHT - BOTTOM - 60 * below
    frame = Frame(marks, _levels(heights), low, max(high, low * 1.01), width - (12 if below else 170), bottom)
    height = int(bottom) + BOTTOM + (ROW * len(rows) if below else 0)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f"{summary['unit']}, by parameters"
    parts = [f'<svg {size} role="img" aria-label="{escape(label)}" font-size="12">', *_axes(frame, summary, ink)]
    for place, (row, points) in enumerate(rows):
        parts += _kind(row, points, frame, ink.colour(place))
    parts += _names(rows, frame, ink, below)
    return "\n".join([*parts, "</svg>"])


def _levels(heights: Sequence[float]) -> list[float]:
    """The ticks of the losses: 1, 2, 5 times powers of ten, or equal steps if highest / lowest <= 4."""
    low, high = min(heights), max(heights)
    if high / low > 4:
        return log_ticks(low, high)
    step = 10.0 ** math.floor(math.log10(high - low or high)) / 2
    step *= next(times for times in (1, 2, 4, 10, 20) if (high - low) / (step * times) <= 6)
    first, last = math.floor(low / step - 1e-9), math.ceil(high / step + 1e-9)
    return [round(step * i, 10) for i in range(max(first, 1), max(last, first + 2) + 1)]


def _axes(frame: Frame, summary: Mapping[str, Any], ink: Ink) -> Iterator[str]:
    yield f'<text fill="{ink.soft}" x="{LEFT - 48}" y="{TOP}">{escape(summary["unit"])}</text>'
    for mark in frame.up:
        yield f'<path stroke="{ink.faint}" d="M{LEFT} {frame.y(mark):.1f}H{frame.right}"/>'
        where = f'x="{LEFT - 8}" y="{frame.y(mark) + 4:.1f}" text-anchor="end"'
        yield f'<text fill="{ink.soft}" {where}>{mark:g}</text>'
    for mark in frame.across:
        yield f'<path stroke="{ink.faint}" d="M{frame.x(mark):.1f} {frame.bottom}v5"/>'
        where = f'x="{frame.x(mark):.1f}" y="{frame.bottom + 18}" text-anchor="middle"'
        yield f'<text fill="{ink.soft}" {where}>{mark:,.0f}</text>'
    middle, words = (LEFT + frame.right) / 2, "parameters in the blocks"
    yield f'<text fill="{ink.soft}" x="{middle:.0f}" y="{frame.bottom + 36}" text-anchor="middle">{words}</text>'


def _kind(row: Mapping[str, Any], points: Sequence[Mapping[str, Any]], frame: Frame, colour: str) -> Iterator[str]:
    """The law as a line, dashed where it extrapolates; the points; the predictions."""
    law, seen = row["law"], [point["parameters"] for point in points if not point["held_out"]]
    if not law["trouble"] and seen:
        for first, last, dash in ((seen[0], seen[-1], ""), (seen[-1], points[-1]["parameters"], "5 4")):
            if first < last:
                sizes = [first * (last / first) ** (i / STEPS) for i in range(STEPS + 1)]
                drawn = [(frame.x(N), frame.y(law["E"]["value"] + _fall(law, N))) for N in sizes]
                line = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
                style = f'stroke="{colour}" stroke-width="1.8" fill="none"'
                yield f'<polyline points="{line}" {style}' + (f' stroke-dasharray="{dash}"/>' if dash else "/>")
    for point in points:
        x, told = frame.x(point["parameters"]), point["predicted"]
        if told:
            ends = f"M{x:.1f} {frame.y(told['low']):.1f}V{frame.y(told['high']):.1f}"
            yield f'<path d="{ends}" stroke="{colour}" stroke-opacity=".25" stroke-width="9"/>'
        ends = f"M{x:.1f} {frame.y(point['low']):.1f}V{frame.y(point['high']):.1f}"
        yield f'<path d="{ends}" stroke="{colour}" stroke-width="1.8"/>'
        fill = "none" if point["held_out"] else colour
        where = f'cx="{x:.1f}" cy="{frame.y(point["mean"]):.1f}" r="4.5"'
        yield f'<circle {where} fill="{fill}" stroke="{colour}" stroke-width="1.8"/>'


def _fall(law: Mapping[str, Any], N: float) -> float:
    return math.exp(law["log_A"] - law["alpha"]["value"] * math.log(N))


def _names(rows: Sequence[tuple[Any, Any]], frame: Frame, ink: Ink, below: bool) -> Iterator[str]:
    """The name of each kind: beside its last point, without overlap, or below with a dot."""
    if below:
        for place, (row, _) in enumerate(rows):
            y = frame.bottom + BOTTOM + ROW * place + 8
            yield f'<circle cx="{LEFT - 26}" cy="{y - 4}" r="4.5" fill="{ink.colour(place)}"/>'
            yield f'<text x="{LEFT - 12}" y="{y}" fill="{ink.ink}">{escape(shortened(row["kind"]))}</text>'
        return
    lowest = 0.0
    for y, place in sorted((frame.y(points[-1]["mean"]), place) for place, (_, points) in enumerate(rows)):
        lowest = max(y + 4, lowest + 16)
        name = escape(shortened(rows[place][0]["kind"]))
        yield f'<text x="{frame.right + 4}" y="{lowest:.1f}" fill="{ink.colour(place)}">{name}</text>'


def picture(summary: Mapping[str, Any], theme: str, width: int = 720) -> str:
    """The chart as a file of its own, for a page of the theme: light or dark."""
    colours = THEMES[theme]
    drawn = growth_svg(summary, width, Ink(colours.ink, colours.soft, colours.faint, COLOURS[theme]))
    start, end = drawn.index(">") + 1, drawn.index("<svg ") + 5
    space = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
    ground = f'<rect width="100%" height="100%" fill="{colours.ground}"/>'
    return f"{drawn[:end]}{space}{drawn[end:start]}{ground}{drawn[start:]}\n"
