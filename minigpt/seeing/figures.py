"""SVG figures for a light and a dark page: bars, squares, one attention map, a text by its improbable characters.

Each is drawn once for each theme; a page chooses by `<picture>` with `prefers-color-scheme`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from minigpt.seeing.drawing import Axis, Canvas, Chart, Style, Theme, ticks
from minigpt.seeing.pictures import visible

WIDTH = 720  # of every figure
LEAST = 0.03  # a weight, or a character's 1 - probability, below this is not drawn


def bars_svg(values: Mapping[str, float], title: str, mark: tuple[str, float], theme: Theme) -> str:
    """A bar for each value, all from zero, and a dashed line at a value to compare with; at least one value."""
    left, top, row = 170, 58, 34
    bottom, numbers = top + row * len(values), ticks(0, max(*values.values(), mark[1]))
    chart = Chart(theme, Axis(0, numbers[-1], left, WIDTH - 24), Axis(0, 1, bottom, top))
    chart.heading(title)
    chart.columns(numbers)
    for number in numbers:
        chart.bar(number, 0, 1, "line")
    for index, (name, value) in enumerate(values.items()):
        chart.text(left - 10, top + row * index + 22, name, anchor="end")
        chart.box(left, top + row * index + 6, chart.x(value) - left, row - 12, "above")
    x = chart.x(mark[1])
    chart.line(x, top - 4, x, bottom, "ink", stroke_dasharray="3 4")
    chart.text(x, top - 10, f"{mark[0]}: {mark[1]:.4f}", "soft", "middle")
    for index, value in enumerate(values.values()):  # over the dashed line
        inside = value > 0.8 * numbers[-1]
        x, fill, anchor = (chart.x(value) - 8, "picture", "end") if inside else (chart.x(value) + 8, "ink", None)
        halo = {"stroke": None if inside else "picture", "stroke_width": 4, "paint_order": "stroke"}
        chart.text(x, top + row * index + 22, f"{value:.4f}", fill, anchor, **halo)
    return chart.svg(WIDTH, bottom + 34, title, font_size=13)


@dataclass(frozen=True)
class Square:
    """A square of a table: filled or not, a line in it, and a smaller one below."""

    filled: bool
    line: str
    below: str = ""


def squares_svg(
    columns: Mapping[str, str], rows: Mapping[str, Sequence[Square]], title: str, foot: str, theme: Theme
) -> str:
    """A square for each row and column. `columns`: name -> its question, all of which are listed below."""
    left, top, line, canvas = 136, 66, 20, Canvas(theme)
    side, bottom = (WIDTH - left - 16) / len(columns), top + 44 * len(rows)
    canvas.heading(title)
    for column, (name, question) in enumerate(columns.items()):
        canvas.text(left + side * (column + 0.5), top - 8, name, anchor="middle")
        y = bottom + line * (column + 1)
        canvas.text(left - 10, y, name, "soft", "end")
        canvas.text(left, y, question)
    for row, (name, squares) in enumerate(rows.items()):
        y = top + 44 * row
        canvas.text(left - 10, y + 26, name, anchor="end")
        for column, square in enumerate(squares):
            x, middle = left + side * column, left + side * (column + 0.5) - 2
            canvas.box(x, y, side - 4, 40, "above" if square.filled else "none", stroke="line")
            ink, soft = ("picture", "picture") if square.filled else ("ink", "soft")
            canvas.text(middle, y + (18 if square.below else 25), square.line, ink, "middle")
            if square.below:
                canvas.text(middle, y + 34, square.below, soft, "middle", font_size=11)
    canvas.text(left, bottom + line * (len(columns) + 1) + 6, foot, "soft", font_size=12)
    return canvas.svg(WIDTH, bottom + line * (len(columns) + 1) + 22, title, font_size=13)


def map_svg(
    weights: Tensor,
    labels: Sequence[str],
    title: str,
    theme: Theme,
    style: str | None = None,
    legend: str = "each row is a query, each column a key",
) -> str:
    """Weights (T, S) of one head: a row for each query, a column for each key, both with their tokens.

    The more opaque a cell, the larger its weight. A weight of 1 is opaque, or the largest weight if it is above 1.
    Negative weights have another colour. `style` is the class that a style sheet names.
    """
    left, top, cell, most = 160, 66, 17, max(1.0, float(weights.abs().max()))
    (T, S), names, canvas = weights.shape, [visible(label) for label in labels], Canvas(theme)
    canvas.heading(title)
    for column, name in enumerate(names[:S]):
        canvas.text(left + cell * (column + 0.5), top - 8, name, anchor="middle")
    for row, name in enumerate(names[S - T :]):
        canvas.text(left - 8, top + cell * (row + 0.5) + 4, name, anchor="end")
    canvas.box(left, top, cell * S, cell * T, stroke="line")
    for row, numbers in enumerate(weights.tolist()):
        for column, weight in enumerate(numbers):
            if abs(weight) / most >= LEAST:
                fill = "heat" if weight < 0 else "above"
                canvas.box(left + cell * column, top + cell * row, cell, cell, fill, opacity=abs(weight) / most)
    legend += "; orange is below zero" if weights.min() < 0 else ""
    canvas.text(left + cell * S / 2, top + cell * T + 20, legend, "soft", "middle")
    width = max(WIDTH, left + cell * S + 16)
    return canvas.svg(width, top + cell * T + 30, title, font_size=13, class_=style)


def readers_svg(text: str, readers: Mapping[str, Sequence[float]], title: str, theme: Theme, line: int = 64) -> str:
    """A text, a row for each reader: the less probable a character was, the stronger its colour.

    `readers` give the probability of each character; the text is broken after at most `line` characters, at a space.
    """
    left, y, row, step, canvas = 166, 62, 20, 8.4, Canvas(theme)
    canvas.heading(title)
    for start, end in broken(text, line):
        for name, probabilities in readers.items():
            for column, heat in enumerate(1 - p for p in probabilities[start:end]):
                if heat >= LEAST:
                    canvas.box(left + step * column, y - 14, step, row - 2, "heat", opacity=0.85 * heat)
            length: Style = {"textLength": step * (end - start), "xml:space": "preserve"}
            canvas.text(left, y, text[start:end], font_family="ui-monospace,Menlo,Consolas,monospace", **length)
            canvas.text(left - 12, y, name, "soft", "end")
            y += row
        y += 14
    return canvas.svg(WIDTH, y, title, font_size=13)


def broken(text: str, line: int) -> list[tuple[int, int]]:
    """Where the lines of a text begin and end, each at most `line` characters, broken after a space if there is one."""
    lines, start = [], 0
    while start < len(text):
        end = min(start + line, len(text))
        space = text.rfind(" ", start, end)
        end = space + 1 if end < len(text) and space >= start else end
        lines.append((start, end))
        start = end
    return lines
