"""The chart of an experiment over sizes: losses and fitted power laws on two logarithmic axes, as SVG.

A dot is the mean over the seeds; its bar goes from the lowest seed to the highest. A ring is a held-out size, which the
fit did not see; the broad bar behind it is the interval that the fit predicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minigpt.comparison.charts import BOTTOM, HEIGHT, LEFT, ROW, TOP
from minigpt.inspection.drawing import CURVES, NARROW, Axis, Chart, Theme, log_ticks, shortened

INSET = 14  # pixels from the edge of the chart to the smallest and the largest size
STEPS = 24  # line segments of a drawn law


def growth_svg(summary: Mapping[str, Any], width: int, theme: Theme) -> str:
    """The chart, `width` pixels wide; "" where nothing can be drawn. Kinds are named at the right, or below."""
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
    names = [
        (shortened(row["kind"]), points[-1]["mean"], CURVES[i % len(CURVES)]) for i, (row, points) in enumerate(rows)
    ]
    for (row, points), (_, _, colour) in zip(rows, names):
        _kind(chart, row, points, colour)
    if not below:
        chart.names(names)
    for row_below, (name, _, colour) in enumerate(names if below else ()):
        chart.key(LEFT - 40, bottom + BOTTOM + ROW * row_below + 8, name, stroke=colour, stroke_width=2)
    height = bottom + BOTTOM + (ROW * len(rows) if below else 0)
    return chart.svg(width, height, f"{summary['unit']}, by parameters")


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
                curve = [(N, law["E"]["value"] + _fall(law, N)) for N in sizes]
                chart.curve(curve, colour, stroke_width=1.8, stroke_dasharray=dash)
    for point in points:
        N, predicted = point["parameters"], point["predicted"]
        if predicted:
            chart.bar(N, predicted["low"], predicted["high"], colour, stroke_opacity=0.25, stroke_width=9)
        chart.bar(N, point["low"], point["high"], colour, stroke_width=1.8)
        fill = "none" if point["held_out"] else colour
        chart.dot(chart.x(N), chart.y(point["mean"]), 4.5, fill, stroke=colour, stroke_width=1.8)


def _fall(law: Mapping[str, Any], N: float) -> float:
    return math.exp(law["log_A"] - law["alpha"]["value"] * math.log(N))
