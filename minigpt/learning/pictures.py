"""Pictures of the lessons, each as text and as HTML: a table of numbers, bars, curves, an attention map.

Lines and letters have the colour of the text around them, so that they can be read in a light and a dark theme. Curves
differ in their dashes and names, weights in their numbers: never in colour alone.

T rows, S columns.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch import Tensor

from minigpt.learning.languages import text
from minigpt.learning.output import Output
from minigpt.learning.tape import live
from minigpt.seeing.drawing import AROUND, PAGE, Axis, Canvas, Chart, Points, Style, Theme, ticks
from minigpt.seeing.figures import map_svg
from minigpt.seeing.pictures import heat_map, visible

WIDTH, HEIGHT = 380, 260  # of curves; the width fits a phone
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 6, 46  # the margins
DASHES = (None, "7 4", "2 4", "10 3 2 3")
THERE: Theme = {**PAGE, **AROUND, "ink": "currentColor", "soft": "currentColor"}  # also in a notebook
KEY = 34  # letters of a line of a legend
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
    on_page = _live([numbers], numbers.is_floating_point(), rows=rows, columns=columns, decimals=decimals, shade=shade)
    across = f'<div class="lesson-scroll" tabindex="0" role="region" aria-label="{escape(title)}"{on_page}>{html}</div>'
    return Output(f"{title}\n{_aligned(['', *columns], [[n, *row] for n, row in zip(rows, table)])}", across)


def _live(tensors: Sequence[Tensor], may_be_input: bool = False, **drawn: Any) -> str:
    """The attribute of a picture that is live on the page; empty for any other."""
    shows = live(tensors, may_be_input) if tensors else None
    return f' data-live="{escape(json.dumps(shows | drawn, ensure_ascii=False))}"' if shows else ""


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
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [head, *rows])


def bars(values: Mapping[str, float | Tensor], title: str, decimals: int = 2) -> Output:
    """A bar for each value, from zero to the right, with its number; those of values below zero are orange.

    In a live cell, tensors of one number are live.
    """
    tensors = [value for value in values.values() if isinstance(value, Tensor)]
    on_page = _live(tensors, rows=list(values), title=title, decimals=decimals)
    heights = {name: float(value) for name, value in values.items()}
    most, wide = max(map(abs, heights.values())) or 1.0, max(map(len, heights))
    canvas, row, lines = Canvas(THERE), 26, [title]
    length = Axis(0, most, 20 + 7.6 * wide, WIDTH - 66)
    for index, (name, value) in enumerate(heights.items()):
        y, number = TOP + row * index, f"{value:.{decimals}f}"
        canvas.text(length.start - 8, y + 17, name, anchor="end")
        canvas.box(length.start, y + 4, length(abs(value)) - length.start, 16, "heat" if value < 0 else "above")
        canvas.text(length(abs(value)) + 6, y + 17, number)
        lines.append(f"  {name.rjust(wide)}  {'#' * round(abs(value) / most * BAR)} {number}")
    return Output("\n".join(lines), _figure(canvas, TOP + row * len(heights) + 6, title, on_page))


def curves(
    lines: Mapping[str, Points],
    title: str,
    x_label: str,
    mark: tuple[str, float] | None = None,
    log2: bool = False,
) -> Output:
    """Curves {name: [(x, y), ...]} over one axis, and a dashed line at a value to compare with.

    `log2`: each doubling of x (above zero) is a step of the same width.
    """
    heights = [y for line in lines.values() for _, y in line] + ([mark[1]] if mark else [])
    xs, rows = sorted({x for line in lines.values() for x, _ in line}), ticks(min(0.0, *heights), max(heights))
    x, y = Axis(xs[0], xs[-1], LEFT, WIDTH - RIGHT, log2), Axis(rows[0], rows[-1], HEIGHT - BOTTOM, TOP + 12)
    chart = Chart(THERE, x, y)
    chart.rows(rows)
    chart.columns(xs if log2 else [tick for tick in ticks(xs[0], xs[-1]) if xs[0] <= tick <= xs[-1]], x_label)
    if mark:
        chart.level(mark[1], stroke_dasharray="3 4")
        chart.text(x.end, y(mark[1]) - 5, mark[0], anchor="end")
    bottom = HEIGHT
    for index, (name, line) in enumerate(lines.items()):
        dashes = DASHES[index % len(DASHES)]
        style: Style = {"stroke": ("above", "heat")[index % 2], "stroke_width": 2.2, "stroke_dasharray": dashes}
        chart.curve(line, **style)
        first, *others = textwrap.wrap(name, KEY)
        chart.key(LEFT, bottom + 12, first, **style)
        for number, words in enumerate(others, start=1):
            chart.text(LEFT + 36, bottom + 20 * number + 12, words)
        bottom += 20 * (1 + len(others))
    return Output(_curves_text(lines, title, x_label, mark), _figure(chart, bottom, title))


def _curves_text(lines: Mapping[str, Points], title: str, x_label: str, mark: tuple[str, float] | None) -> str:
    """Curves as a table of at most eight of their points."""
    xs = sorted({x for line in lines.values() for x, _ in line})
    step = max(1, math.ceil((len(xs) - 1) / 7))
    columns = sorted({*xs[::step], xs[-1]})
    rows = [
        [name, *(f"{dict(line)[x]:.4g}" if x in dict(line) else "" for x in columns)] for name, line in lines.items()
    ]
    table = _aligned([x_label, *(f"{x:g}" for x in columns)], rows)
    return f"{title}\n{table}" + (f"\n  ({mark[0]}: {mark[1]:.4g})" if mark else "")


def attention_map(weights: Tensor, labels: Sequence[str], title: str) -> Output:
    """Weights (T, S) of one head over a text of some dozens of tokens, without numbers."""
    legend = text("each row is a query, each column a key")
    svg = map_svg(weights, labels, title, THERE, style="lesson-picture map", legend=legend)
    return Output(f"{title}\n{heat_map(weights, labels)}", svg)


def _figure(canvas: Canvas, height: float, title: str, on_page: str = "") -> str:
    """A picture below its title, which is broken into lines where the page is narrow."""
    svg = canvas.svg(WIDTH, height, title, font_size=15, class_="lesson-picture")
    return f'<figure class="lesson-figure"{on_page}><figcaption>{escape(title)}</figcaption>\n{svg}</figure>'
