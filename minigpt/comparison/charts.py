"""The charts of a comparison as SVG: curves with the spread of their seeds, and differences with their intervals.

A chart is drawn for a width, and its labels keep their size: a phone gets a narrow chart, not a small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigpt.inspection.drawing import NARROW, Axis, Chart, Point, Theme, log_ticks, shortened, stroke_of, ticks

Summary = Mapping[str, Any]

HEIGHT, LEFT, TOP, BOTTOM, ROW = 380, 56, 14, 44, 17
LEAST = 1e-4  # nats above the floor; a smaller value is drawn at this one


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
        losses = [y for curve in self.curves for _, low, high in curve.spread for y in (low, high)]
        return [self.drawn(y) for y in losses] + ([] if self.forgetful is None else [self.forgetful])

    def drawn(self, y: float) -> float:
        """The value that is drawn for `y`: on a logarithmic axis, at least LEAST."""
        return max(y, LEAST) if self.logs else y


def curves_of(summary: Summary) -> Curves | None:
    """The curves of a summary, or None where no run has an evaluation."""
    logs = summary["metric"] == "above"
    rows = [row for row in summary["variants"] if row["curve"] and not row["impossible"]]
    curves = [Curve(r["variant"], [(p[0], p[2]) for p in r["curve"]], [(*p,) for p in r["spread"]]) for r in rows]
    title = "nats a character above the floor" if logs else "validation loss, nats a character"
    return Curves(title, curves, summary["forgetful"] if logs else None, logs) if curves else None


def curves_svg(data: Curves, width: int, theme: Theme) -> str:
    """The curves as SVG, `width` pixels wide, with names at the right, or below in a narrow chart."""
    below, lowest, highest = width < 2 * NARROW, min(data.values), max(data.values)
    steps = ticks(0, max(x for curve in data.curves for x, _ in curve.points))
    losses = (log_ticks if data.logs else ticks)(lowest, highest)
    bottom = HEIGHT - BOTTOM - 80 * below
    across = Axis(0, steps[-1], LEFT, width - (12 if below else 180))
    chart = Chart(theme, across, Axis(losses[0], losses[-1], bottom, TOP, data.logs))
    chart.rows(losses)
    chart.columns(steps, "step")
    names = [(shortened(curve.name), curve.points[-1][1], stroke_of(i)) for i, curve in enumerate(data.curves)]
    for index, curve in enumerate(data.curves):
        _curve(chart, curve, data, index)
    if data.forgetful is not None:
        forgetful = {"stroke": "ink", "stroke_dasharray": "2 4"}
        chart.level(data.forgetful, **forgetful)
        names.append(("the forgetful reader", data.forgetful, forgetful))
    if not below:
        chart.names([(name, data.drawn(loss), stroke["stroke"]) for name, loss, stroke in names])
    for row, (name, _, stroke) in enumerate(names if below else ()):
        chart.key(LEFT - 40, bottom + BOTTOM + ROW * row + 8, name, stroke_width=2, **stroke)
    height = bottom + BOTTOM + (ROW * len(names) if below else 0)
    return chart.svg(width, height, f"curves: {data.title}, by step")


def _curve(chart: Chart, curve: Curve, data: Curves, index: int) -> None:
    """The spread as a band and the mean as a line; for a single evaluation, a bar and a dot."""
    points = [(step, data.drawn(value)) for step, value in curve.points]
    spread = [(step, data.drawn(low), data.drawn(high)) for step, low, high in curve.spread]
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
