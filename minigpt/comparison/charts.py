"""The charts of an experiment as SVG: curves with the spread of their seeds, differences with their intervals, and
losses by size with fitted power laws.

A chart is drawn for a width, and its labels keep their size: a phone gets a narrow chart, not a small one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.seeing.drawing import (
    CURVES,
    NARROW,
    Axis,
    Chart,
    Point,
    Style,
    Theme,
    log_ticks,
    shortened,
    stroke_of,
    ticks,
)

Summary = Mapping[str, Any]

HEIGHT, LEFT, TOP, BOTTOM, ROW = 380, 56, 14, 44, 17
LEAST = 1e-4  # nats above the floor; a smaller value is drawn at this one
INSET = 14  # pixels from the edge of a chart by size to the smallest and the largest size
STEPS = 24  # line segments of a drawn law


@dataclass(frozen=True)
class Curves:
    """The compared losses by step of all variants but those whose loss is below the floor, which is impossible."""

    title: str
    rows: Sequence[Mapping[str, Any]]  # of the summary
    forgetful: float | None  # the forgetful reader's loss above the floor
    logs: bool  # whether the axis is logarithmic: then no value is drawn below LEAST

    def drawn(self, row: Mapping[str, Any]) -> tuple[Sequence[Point], Sequence[tuple[float, float, float]]]:
        """What is drawn of a variant: (step, mean over its seeds), and (step, lowest of them, highest)."""
        least = LEAST if self.logs else -math.inf
        points = [(step, max(mean, least)) for step, _, mean in row["curve"]]
        return points, [(step, max(low, least), max(high, least)) for step, low, high in row["spread"]]

    def ticks(self) -> list[float]:
        """The losses that the axis names; they enclose all that are drawn."""
        losses = [loss for row in self.rows for _, *ends in self.drawn(row)[1] for loss in ends]
        losses += [] if self.forgetful is None else [self.forgetful]
        return (log_ticks if self.logs else ticks)(min(losses), max(losses))


def curves_of(summary: Summary) -> Curves | None:
    """The curves of a summary, or None where no run has an evaluation."""
    logs = summary["metric"] == "above"
    rows = [row for row in summary["variants"] if row["curve"] and not row["impossible"]]
    title = "nats a character above the floor" if logs else f"validation loss, {summary['unit']}"
    return Curves(title, rows, summary["forgetful"] if logs else None, logs) if rows else None


def curves_svg(curves: Curves, width: int, theme: Theme) -> str:
    """The curves as SVG, `width` pixels wide."""
    below, losses = width < 2 * NARROW, curves.ticks()
    steps = ticks(0, max(step for row in curves.rows for step, *_ in row["curve"]))
    across = Axis(0, steps[-1], LEFT, width - (12 if below else 180))
    chart = Chart(theme, across, Axis(losses[0], losses[-1], HEIGHT - BOTTOM - 80 * below, TOP, curves.logs))
    chart.rows(losses)
    chart.columns(steps, "step")
    names = list[tuple[str, float, Style]]()
    for index, row in enumerate(curves.rows):
        points, spread = curves.drawn(row)
        names.append((row["variant"], points[-1][1], stroke_of(index)))
        _curve(chart, points, spread, index)
    if curves.forgetful is not None:
        forgetful = {"stroke": "ink", "stroke_dasharray": "2 4"}
        chart.level(curves.forgetful, **forgetful)
        names.append(("the forgetful reader", curves.forgetful, forgetful))
    return _named(chart, names, width, f"curves: {curves.title}, by step")


def _named(chart: Chart, curves: Sequence[tuple[str, float, Style]], width: int, label: str) -> str:
    """A chart as SVG, with the name of each curve, (name, last value, stroke), at its right, or below if narrow."""
    bottom, rows = chart.y.start + BOTTOM, [(shortened(name), value, stroke) for name, value, stroke in curves]
    if width >= 2 * NARROW:
        chart.names([(name, value, stroke["stroke"]) for name, value, stroke in rows])
        return chart.svg(width, bottom, label)
    for row, (name, _, stroke) in enumerate(rows):
        chart.key(LEFT - 40, bottom + ROW * row + 8, name, stroke_width=2, **stroke)
    return chart.svg(width, bottom + ROW * len(rows), label)


def _curve(chart: Chart, points: Sequence[Point], spread: Sequence[tuple[float, float, float]], index: int) -> None:
    """The spread as a band and the mean as a line; for a single evaluation, a bar and a dot."""
    stroke = stroke_of(index)
    if len(points) == 1:
        (step, mean), (_, low, high) = points[0], spread[0]
        x, bottom, top = chart.x(step) - 7 * index, chart.y(low), chart.y(high)  # variants stand beside each other
        ends = [(x - 4, top), (x + 4, top), (x, top), (x, bottom), (x - 4, bottom), (x + 4, bottom)]
        chart.lines(ends, stroke_width=2, **stroke)
        chart.dot(x, chart.y(mean), 4, stroke["stroke"])
        return
    band = [(step, low) for step, low, _ in spread] + [(step, high) for step, _, high in reversed(spread)]
    chart.area(band, stroke["stroke"], fill_opacity=0.15)
    chart.curve(points, stroke_width=2, **stroke)


def differences_svg(rows: Sequence[Mapping[str, Any]], width: int, theme: Theme) -> str:
    """A forest plot: for each variant, the difference to the baseline as a dot and its confidence interval as a bar.

    `rows` are the rows of a summary that have a difference. A name stands at the left of its bar, or above where the
    picture is narrow.
    """
    above = width < 2 * NARROW
    left, right, step = (14, width - 14, 44) if above else (220, width - 20, 28)
    differences = [row["difference"] for row in rows]
    ends = [0.0, *(d[key] for d in differences for key in ("low", "mean", "high") if d[key] is not None)]
    low, high, bottom = min(ends), max(ends), step * len(rows) + 6
    room = (high - low or 1.0) * 0.05
    chart = Chart(theme, Axis(low - room, high + room, left, right), Axis(0, 1, bottom, 0))
    for tick in (tick for tick in ticks(low, high) if low - room <= tick <= high + room):
        chart.bar(tick, 0, 1, "line", stroke_width=1 if tick else 2)
        chart.text(chart.x(tick), bottom + 16, f"{tick:+g}" if tick else "0", "soft", "middle")
    for index, (row, d) in enumerate(zip(rows, differences)):
        y, colour, name = step * index + step - 12, "ink" if d["shown"] else "soft", shortened(row["variant"])
        chart.text(*((0, y - 14) if above else (left - 10, y + 4)), name, anchor=None if above else "end")
        if d["low"] is not None:
            bar = {"stroke_width": 3, "stroke_linecap": "round"}
            chart.line(chart.x(d["low"]), y, chart.x(d["high"]), y, colour, **bar)
        chart.dot(chart.x(d["mean"]), y, 5, colour)
    return chart.svg(width, bottom + 28, "differences to the baseline, with intervals")


def growth_svg(summary: Summary, width: int, theme: Theme) -> str:
    """Losses and fitted power laws by size, on two logarithmic axes; "" where nothing can be drawn.

    A dot is the mean over the seeds; its bar goes from the lowest seed to the highest. A ring is a held-out size, which
    the fit did not see; the broad bar behind it is the interval that the fit predicts.
    """
    rows = [(row, [p for p in row["points"] if p["mean"] and p["low"] > 0]) for row in summary["kinds"]]
    rows = [(row, points) for row, points in rows if points]
    points = [point for _, points in rows for point in points]
    if not points:
        return ""
    below = width < 2 * NARROW
    intervals = [*points, *(point["predicted"] for point in points if point["predicted"])]
    losses = _levels(min(i["low"] for i in intervals), max(i["high"] for i in intervals))
    low, high = min(p["parameters"] for p in points), max(p["parameters"] for p in points)
    bottom, right = HEIGHT - BOTTOM - 60 * below, width - (12 if below else 170)
    across = Axis(low, max(high, low * 1.01), LEFT + INSET, right - INSET, logs=True)
    chart = Chart(theme, across, Axis(losses[0], losses[-1], bottom, TOP + 24, logs=True), INSET)
    chart.text(LEFT - 48, TOP, summary["unit"], "soft")
    chart.rows(losses)
    sizes = [size for size in log_ticks(low, high * 1.0001) if low <= size <= high]
    for size in sizes:
        chart.line(chart.x(size), bottom, chart.x(size), bottom + 5)
    chart.columns(sizes, "parameters in the blocks", ",.0f")
    colours = [CURVES[index % len(CURVES)] for index in range(len(rows))]
    for (row, points), colour in zip(rows, colours):
        _kind(chart, row, points, colour)
    names = [(row["kind"], points[-1]["mean"], {"stroke": c}) for (row, points), c in zip(rows, colours)]
    return _named(chart, names, width, f"{summary['unit']}, by parameters")


def _levels(low: float, high: float) -> list[float]:
    """The ticks of the losses: 1, 2, 5 times powers of ten, or equal steps if highest / lowest <= 4."""
    if high / low > 4:
        return log_ticks(low, high)
    step = 10.0 ** math.floor(math.log10(high - low or high)) / 2
    step *= next(times for times in (1, 2, 4, 10, 20) if (high - low) / (step * times) <= 6)
    first, last = math.floor(low / step - 1e-9), math.ceil(high / step + 1e-9)
    return [round(step * i, 10) for i in range(max(first, 1), max(last, first + 2) + 1)]


def _kind(chart: Chart, row: Mapping[str, Any], points: Sequence[Mapping[str, Any]], colour: str) -> None:
    """The law as a line, dashed where it extrapolates; the points; the predictions."""
    law, fitted = row["law"], [point["parameters"] for point in points if not point["held_out"]]
    if not law["trouble"] and fitted:
        for first, last, dash in ((fitted[0], fitted[-1], None), (fitted[-1], points[-1]["parameters"], "5 4")):
            if first < last:
                sizes = [first * (last / first) ** (i / STEPS) for i in range(STEPS + 1)]
                fall = (math.exp(law["log_A"] - law["alpha"]["value"] * math.log(N)) for N in sizes)
                curve = [(N, law["E"]["value"] + above) for N, above in zip(sizes, fall)]
                chart.curve(curve, colour, stroke_width=1.8, stroke_dasharray=dash)
    for point in points:
        N, predicted = point["parameters"], point["predicted"]
        if predicted:
            chart.bar(N, predicted["low"], predicted["high"], colour, stroke_opacity=0.25, stroke_width=9)
        chart.bar(N, point["low"], point["high"], colour, stroke_width=1.8)
        fill = "none" if point["held_out"] else colour
        chart.dot(chart.x(N), chart.y(point["mean"]), 4.5, fill, stroke=colour, stroke_width=1.8)
