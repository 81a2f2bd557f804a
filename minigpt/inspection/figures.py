"""SVG figures for a light and a dark page: bars, squares, one attention map, a text by its improbable characters.

Each is drawn once for each theme; a page chooses by `<picture>` with `prefers-color-scheme`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

from minigpt.inspection.pictures import ticks, visible

WIDTH = 720  # of every figure
LEAST = 0.03  # a weight, or a character's 1 - probability, below this is not drawn


@dataclass(frozen=True)
class Theme:
    """The colours of a figure."""

    ground: str
    ink: str
    soft: str
    faint: str
    bar: str
    heat: str


THEMES = {
    "light": Theme(ground="#fff", ink="#1b1f24", soft="#57606a", faint="#d8dee4", bar="#2563eb", heat="#ea580c"),
    "dark": Theme(ground="#0d1117", ink="#e6edf3", soft="#9aa5b1", faint="#333c47", bar="#7aa7ff", heat="#be4614"),
}


def bars_svg(values: Mapping[str, float], title: str, mark: tuple[str, float], theme: Theme) -> str:
    """A bar for each value, all from zero, and a dashed line at a value to compare with; at least one value."""
    left, right, top, row = 170, 24, 58, 34
    bottom = top + row * len(values)
    axis = ticks(0, max(*values.values(), mark[1]))

    def across(value: float) -> float:
        return left + value / axis[-1] * (WIDTH - left - right)

    parts = open_svg(bottom + 34, title, theme)
    for tick in axis:
        parts.append(f'<path d="M{across(tick):.1f} {top}V{bottom}" stroke="{theme.faint}"/>')
        parts.append(text_svg(across(tick), bottom + 18, f"{tick:g}", theme.soft, "middle"))
    numbers, halo = [], f' stroke="{theme.ground}" stroke-width="4" paint-order="stroke"'  # over the dashed line
    for place, (name, value) in enumerate(values.items()):
        y = top + row * place
        parts.append(text_svg(left - 10, y + 22, name, theme.ink, "end"))
        size = f'width="{across(value) - left:.1f}" height="{row - 12}"'
        parts.append(f'<rect x="{left}" y="{y + 6}" {size} fill="{theme.bar}"/>')
        inside = value > 0.8 * axis[-1]
        ends = (across(value) - 8, theme.ground, "end") if inside else (across(value) + 8, theme.ink, "start", halo)
        numbers.append(text_svg(ends[0], y + 22, f"{value:.4f}", *ends[1:]))
    x = across(mark[1])
    parts.append(f'<path d="M{x:.1f} {top - 4}V{bottom}" stroke="{theme.ink}" stroke-dasharray="3 4"/>')
    parts.append(text_svg(x, top - 10, f"{mark[0]}: {mark[1]:.4f}", theme.soft, "middle"))
    return close_svg(parts + numbers)


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
    left, top, line = 136, 66, 20
    side = (WIDTH - left - 16) / len(columns)
    bottom = top + 44 * len(rows)
    parts = open_svg(bottom + line * (len(columns) + 1) + 22, title, theme)
    for place, name in enumerate(columns):
        parts.append(text_svg(left + side * (place + 0.5), top - 8, name, theme.ink, "middle"))
    for down, (name, squares) in enumerate(rows.items()):
        y = top + 44 * down
        parts.append(text_svg(left - 10, y + 26, name, theme.ink, "end"))
        for place, square in enumerate(squares):
            x, fill = left + side * place, theme.bar if square.filled else "none"
            size = f'width="{side - 4:.1f}" height="40"'
            parts.append(f'<rect x="{x:.1f}" y="{y}" {size} fill="{fill}" stroke="{theme.faint}"/>')
            ink = theme.ground if square.filled else theme.ink
            parts.append(text_svg(x + side / 2 - 2, y + (18 if square.below else 25), square.line, ink, "middle"))
            if square.below:
                below = theme.ground if square.filled else theme.soft
                parts.append(text_svg(x + side / 2 - 2, y + 34, square.below, below, "middle", ' font-size="11"'))
    for place, (name, question) in enumerate(columns.items()):
        y = bottom + line * (place + 1)
        parts.append(text_svg(left - 10, y, name, theme.soft, "end"))
        parts.append(text_svg(left, y, question, theme.ink, "start"))
    parts.append(text_svg(left, bottom + line * (len(columns) + 1) + 6, foot, theme.soft, "start", ' font-size="12"'))
    return close_svg(parts)


def map_svg(weights: Tensor, labels: Sequence[str], title: str, theme: Theme) -> str:
    """Weights (T, S) of one head: a row for each query, a column for each key, both with their tokens.

    The more opaque a cell, the larger its weight. A weight of 1 is opaque, or the largest weight if it is above 1.
    Negative weights have another colour.
    """
    left, top, cell, most = 160, 66, 17, max(1.0, float(weights.abs().max()))
    T, S = weights.shape
    names = [visible(label) for label in labels]
    parts = open_svg(top + cell * T + 30, title, theme)
    for place, name in enumerate(names[:S]):
        parts.append(text_svg(left + cell * (place + 0.5), top - 8, name, theme.ink, "middle"))
    for place, name in enumerate(names[S - T :]):
        parts.append(text_svg(left - 8, top + cell * (place + 0.5) + 4, name, theme.ink, "end"))
    frame = f'x="{left}" y="{top}" width="{cell * S}" height="{cell * T}"'
    parts.append(f'<rect {frame} fill="none" stroke="{theme.faint}"/><g fill="{theme.bar}">')
    below = f' fill="{theme.heat}"'
    for i, row in enumerate(weights.tolist()):
        for j, weight in enumerate(row):
            if abs(weight) / most >= LEAST:
                where = f'x="{left + cell * j}" y="{top + cell * i}" width="{cell}" height="{cell}"'
                parts.append(f'<rect {where} opacity="{abs(weight) / most:.2f}"{below if weight < 0 else ""}/>')
    what = "each row is a query, each column a key" + ("; orange is below zero" if weights.min() < 0 else "")
    parts.append("</g>" + text_svg(left + cell * S / 2, top + cell * T + 20, what, theme.soft, "middle"))
    return close_svg(parts)


def readers_svg(text: str, readers: Mapping[str, Sequence[float]], title: str, theme: Theme, line: int = 64) -> str:
    """A text, a row for each reader: the less probable a character was, the stronger its colour.

    `readers` give the probability of each character; the text is broken after at most `line` characters, at a space.
    """
    left, top, row, step = 166, 62, 20, 8.4
    lines = broken(text, line)
    height = top + len(lines) * (row * len(readers) + 14)
    parts = [
        *open_svg(height, title, theme),
        f'<g font-family="ui-monospace,Menlo,Consolas,monospace" fill="{theme.ink}">',
    ]
    y = top
    for start, end in lines:
        for name, probabilities in readers.items():
            cells = [(i, 1 - p) for i, p in enumerate(probabilities[start:end]) if 1 - p >= LEAST]
            for i, heat in cells:
                place = f'x="{left + step * i:.1f}" y="{y - 14}" width="{step}" height="{row - 2}"'
                parts.append(f'<rect {place} fill="{theme.heat}" opacity="{0.85 * heat:.2f}"/>')
            where = f'x="{left}" y="{y}" textLength="{step * (end - start):.1f}" xml:space="preserve"'
            parts.append(f"<text {where}>{escape(text[start:end])}</text>")
            parts.append(text_svg(left - 12, y, name, theme.soft, "end", ' font-family="system-ui,sans-serif"'))
            y += row
        y += 14
    return close_svg([*parts, "</g>"])


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


def open_svg(height: float, title: str, theme: Theme) -> list[str]:
    """The first parts of a figure: its size, background and title."""
    size = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui,sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{theme.ground}"/>',
        text_svg(20, 26, title, theme.ink, "start", ' font-size="15" font-weight="600"'),
    ]


def text_svg(x: float, y: float, text: str, colour: str, anchor: str, more: str = "") -> str:
    """A text at a place; `more` are further attributes."""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{more}'
    return f"<text {where}>{escape(text)}</text>"


def close_svg(parts: Sequence[str]) -> str:
    """The whole figure."""
    return "\n".join([*parts, "</svg>\n"])
