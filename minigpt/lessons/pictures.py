"""Pictures of the lessons, each as text and as HTML: a table of numbers, bars, curves, an attention map.

Lines and letters have the colour of the text around them, so that they can be read in a light and a dark theme. Curves
differ in their dashes and names, weights in their numbers: never in colour alone.

T rows, S columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from torch import Tensor

from minigpt.inspection.figures import Theme, map_svg
from minigpt.inspection.pictures import heat_map, ticks, visible
from minigpt.lessons.output import Output

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 380, 52, 16, 6, 46  # of a picture, which fits a phone, and the margins of its curves
BLUE, ORANGE = "#5588f0", "#d9741c"  # contrast 3 to 1 or more with both backgrounds
DASHES = ("", "7 4", "2 4", "10 3 2 3")
AROUND = Theme(ground="none", ink="currentColor", soft="currentColor", faint="#88888866", bar=BLUE, heat=ORANGE)
BAR = 30  # letters of the longest bar in a terminal


def matrix(
    numbers: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    decimals: int = 2,
    shade: bool = True,
) -> Output:
    """Numbers (T, S) as a table with a name for each row and column; `shade`: the larger, the stronger its colour.

    -inf is shown as such, and an exact zero as 0.
    """
    rows, columns = [_label(name) for name in rows], [_label(name) for name in columns]
    table = [[_number(number, decimals) for number in row] for row in numbers.tolist()]
    most = max((abs(n) for row in numbers.tolist() for n in row if math.isfinite(n)), default=0.0) or 1.0
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = ""
    for name, row, texts in zip(rows, numbers.tolist(), table):
        cells = "".join(f"<td{_shade(n / most) if shade else ''}>{text}</td>" for n, text in zip(row, texts))
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    html = f'<table class="lesson-table"><caption>{escape(title)}</caption><tr><td></td>{head}</tr>{body}</table>'
    across = f'<div class="lesson-scroll" tabindex="0" role="region" aria-label="{escape(title)}">{html}</div>'
    return Output(f"{title}\n{_aligned(['', *columns], [[n, *row] for n, row in zip(rows, table)])}", across)


def _label(name: str) -> str:
    return visible(name) if name.isspace() else name


def _number(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return "0" if number == 0 else text.removeprefix("-") if float(text) == 0 else text


def _shade(part: float) -> str:
    """The classes of a cell, from its share of the largest number; below zero it has a frame too."""
    strength = 0 if not math.isfinite(part) else min(10, math.ceil(10 * abs(part) - 1e-9))
    names = ([f"w{strength}"] if strength else []) + (["below"] if -math.inf < part < 0 else [])
    return f' class="{" ".join(names)}"' if names else ""


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as lines, its columns flush right."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return "\n".join("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [head, *rows])


def bars(values: Mapping[str, float], title: str, decimals: int = 2) -> Output:
    """A bar for each value, from zero to the right, with its number; those of values below zero are orange."""
    most, wide = max(map(abs, values.values())) or 1.0, max(map(len, values))
    left, row = 20 + 7.6 * wide, 26
    room = WIDTH - left - 66
    parts, lines = _open(TOP + row * len(values) + 6, title), [title]
    for place, (name, value) in enumerate(values.items()):
        y, length = TOP + row * place, abs(value) / most
        colour = ORANGE if value < 0 else BLUE
        parts.append(_text(left - 8, y + 17, name, "end"))
        parts.append(f'<rect x="{left:.1f}" y="{y + 4}" width="{length * room:.1f}" height="16" fill="{colour}"/>')
        parts.append(_text(left + length * room + 6, y + 17, f"{value:.{decimals}f}", "start"))
        lines.append(f"  {name.rjust(wide)}  {'#' * round(length * BAR)} {value:.{decimals}f}")
    return Output("\n".join(lines), _figure(parts, title))


def curves(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    x_label: str,
    mark: tuple[str, float] | None = None,
    log2: bool = False,
) -> Output:
    """Curves {name: [(x, y), ...]} over one axis, and a dashed line at a value to compare with.

    `log2`: each doubling of x (above zero) is a step of the same width.
    """
    heights = [y for line in lines.values() for _, y in line] + ([mark[1]] if mark else [])
    xs = sorted({x for line in lines.values() for x, _ in line})
    axis = ticks(min(0.0, *heights), max(heights))
    turned = math.log2 if log2 else float
    height, names = 260, list(lines)

    def place(x: float, y: float) -> tuple[float, float]:
        part = (turned(x) - turned(xs[0])) / ((turned(xs[-1]) - turned(xs[0])) or 1.0)
        up = (y - axis[0]) / (axis[-1] - axis[0])
        return LEFT + part * (WIDTH - LEFT - RIGHT), TOP + 12 + (1 - up) * (height - TOP - BOTTOM - 12)

    parts = _open(height + 20 * len(names), title)
    for y in axis:
        across = place(xs[0], y)[1]
        parts.append(f'<path d="M{LEFT} {across:.1f}H{WIDTH - RIGHT}" stroke="{AROUND.faint}"/>')
        parts.append(_text(LEFT - 8, across + 5, f"{y:g}", "end"))
    for x in xs if log2 else [tick for tick in ticks(xs[0], xs[-1]) if xs[0] <= tick <= xs[-1]]:
        parts.append(_text(place(x, axis[0])[0], height - BOTTOM + 18, f"{x:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 6, x_label, "middle"))
    if mark:
        down = place(xs[0], mark[1])[1]
        parts.append(f'<path d="M{LEFT} {down:.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-dasharray="3 4"/>')
        parts.append(_text(WIDTH - RIGHT, down - 5, mark[0], "end"))
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(x, y) for x, y in line))
        style = f'fill="none" stroke="{(BLUE, ORANGE)[number % 2]}" stroke-width="2.2"'
        dashes = f' stroke-dasharray="{DASHES[number % len(DASHES)]}"' if number % len(DASHES) else ""
        parts.append(f'<polyline points="{points}" {style}{dashes}/>')
        y = height + 20 * number + 8
        parts.append(f'<path d="M{LEFT} {y}H{LEFT + 34}" {style}{dashes}/>' + _text(LEFT + 42, y + 5, name, "start"))
    return Output(_curves_text(lines, title, x_label, mark), _figure(parts, title))


def _curves_text(
    lines: Mapping[str, Sequence[tuple[float, float]]], title: str, x_label: str, mark: tuple[str, float] | None
) -> str:
    """Curves as a table of at most eight of their points."""
    xs = sorted({x for line in lines.values() for x, _ in line})
    step = max(1, math.ceil((len(xs) - 1) / 7))
    kept = sorted({*xs[::step], xs[-1]})
    found = {name: dict(line) for name, line in lines.items()}
    rows = [[name, *(f"{points[x]:.4g}" if x in points else "" for x in kept)] for name, points in found.items()]
    table = _aligned([x_label, *(f"{x:g}" for x in kept)], rows)
    return f"{title}\n{table}" + (f"\n  ({mark[0]}: {mark[1]:.4g})" if mark else "")


def attention_map(weights: Tensor, labels: Sequence[str], title: str) -> Output:
    """Weights (T, S) of one head over a text of some dozens of tokens, without numbers."""
    svg = map_svg(weights, labels, title, AROUND)
    return Output(f"{title}\n{heat_map(weights, labels)}", svg.replace("<svg ", '<svg class="lesson-picture map" ', 1))


def _open(height: float, title: str) -> list[str]:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}"'
    return [f'<svg class="lesson-picture" {size} font-family="system-ui,sans-serif" font-size="15">']


def _figure(parts: Sequence[str], title: str) -> str:
    """A picture below its title, which is broken into lines where the page is narrow."""
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return "\n".join([f'<figure class="lesson-figure">{caption}', *parts, "</svg></figure>"])


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(text)}</text>'
