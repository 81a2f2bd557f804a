"""Draws pictures as SVG: texts, lines, boxes, dots; axes from numbers to pixels; one table of colours by their roles.

    chart = Chart(THEMES["light"], Axis(0, 100, 60, 700), Axis(0, 4, 356, 34))
    chart.rows([0, 1, 2, 3, 4])
    chart.curve([(0, 4.0), (50, 2.0), (100, 1.5)], "above")
    chart.svg(720, 400, "the loss by step")

A theme gives each role its colour. A picture in one of THEMES is a file with a ground of its own, one in PAGE a part of
a page, whose style sheet has the colours of both themes (`seeing/document.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

COLOURS = {  # role: its colour in the light and in the dark theme; texts have a contrast of 4.5 to 1 (WCAG 2.2 AA)
    "ground": ("#f7f7f4", "#0f1318"),  # of a page
    "card": ("#ffffff", "#171c23"),  # of a section of a page
    "picture": ("#ffffff", "#0d1117"),  # of a picture in a file
    "ink": ("#1b1f24", "#e6edf3"),  # text
    "soft": ("#57606a", "#a3aeba"),  # text that explains
    "line": ("#d8dee4", "#2f3843"),  # between things that are read
    "edge": ("#7d8791", "#717d8b"),  # of things that can be operated: 3 to 1
    "accent": ("#2350c9", "#7aa7ff"),
    "on-accent": ("#ffffff", "#0b1220"),
    "mark": ("#8a4508", "#f2c063"),  # what is chosen
    "future": ("#eeede8", "#11161c"),  # what a mask hides
    "heat": ("#ea580c", "#be4614"),  # behind text, and weights below zero
    "above": ("#2563eb", "#7aa7ff"),  # numbers above zero, and the first curve
    "below": ("#c2410c", "#fb923c"),  # numbers below zero, and the second curve
    "green": ("#15803d", "#4ade80"),
    "purple": ("#7e22ce", "#c4a0ff"),
    "red": ("#be123c", "#fb7185"),
    "cyan": ("#0e7490", "#22d3ee"),
    "yellow": ("#a16207", "#facc15"),
    "grey": ("#475569", "#a8b3c2"),
}
CURVES = ("above", "below", "green", "purple", "red", "cyan", "yellow", "grey")  # the roles of curves, in their order
BROAD, NARROW = 820, 324  # widths of charts in pixels: of a page; of a phone, 390 less the margins of page and card
FONT = "system-ui,sans-serif"

Theme = Mapping[str, str]  # role -> colour
Style = dict[str, Any]  # attributes of SVG
Point = tuple[float, float]
Points = Sequence[Point]

THEMES: Mapping[str, Theme] = {
    name: {role: pair[index] for role, pair in COLOURS.items()} for index, name in enumerate(("light", "dark"))
}
AROUND: Theme = {  # on a ground of others, such as a notebook's, light or dark: a contrast of 3 to 1 or more with both
    **{"line": "#88888866", "edge": "#7d8791", "above": "#5588f0", "heat": "#d9741c"},
    **{"right": "#1a7f37", "wrong": "#b35900"},
}
PAGE = {role: f"var(--{role})" for role in COLOURS} | {"picture": "none"}


def stroke_of(index: int) -> Style:
    """The stroke of curve number `index`. Where there are more curves than colours, they repeat with dashed lines."""
    return {"stroke": CURVES[index % len(CURVES)], "stroke_dasharray": "6 3" if index >= len(CURVES) else None}


def shortened(text: str, most: int = 26) -> str:
    """A text as a label, its end left out if it is long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


# ---- axes ----


@dataclass(frozen=True)
class Axis:
    """Converts numbers to pixels: `low` is at `start` and `high` at `end`. `logs`: equal ratios are equally long."""

    low: float
    high: float
    start: float
    end: float
    logs: bool = False

    def __call__(self, number: float) -> float:
        low, high, value = (math.log(n) if self.logs else n for n in (self.low, self.high, number))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers that enclose a range."""
    raw = (high - low or abs(high) or 1.0) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(multiple * unit for multiple in (1, 2, 5, 10) if multiple * unit >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten that enclose a range above zero."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    all_ticks = [round(m * 10.0**power, 10) for power in powers for m in (1, 2, 5)]
    first = max(i for i, tick in enumerate(all_ticks) if tick <= low * (1 + 1e-9))
    last = min(i for i, tick in enumerate(all_ticks) if tick >= high * (1 - 1e-9))
    return all_ticks[first : max(last, first + 1) + 1]


# ---- pictures ----


def tag(name: str, content: str = "", **attributes: Any) -> str:
    """An element of SVG around `content`, which is markup. `stroke_width=2` is stroke-width="2"; None is left out."""
    markup = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_pixels(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{markup}>{content}</{name}>" if content else f"<{name}{markup}/>"


def _pixels(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


class Canvas:
    """A picture that is being drawn; what comes later lies above. A colour is a role of the theme."""

    def __init__(self, theme: Theme):
        self.theme = theme
        self.parts: list[str] = []

    def draw(self, name: str, content: str = "", **attributes: Any) -> None:
        """An element of SVG, as `tag` writes it."""
        for key in ("fill", "stroke"):
            if key in attributes:
                attributes[key] = self.theme.get(attributes[key], attributes[key])
        self.parts.append(tag(name, content, **attributes))

    def text(self, x: float, y: float, text: str, fill: str = "ink", anchor: str | None = None, **more: Any) -> None:
        """A text that begins at a point; `anchor`: it has its "middle" or "end" there."""
        self.draw("text", escape(text), x=x, y=y, text_anchor=anchor, fill=fill, **more)

    def upward(self, x: float, y: float, text: str, **more: Any) -> None:
        """A text that begins at a point and is read from below."""
        turn = f"translate({_pixels(x)} {_pixels(y)}) rotate(-90)"
        self.draw("text", escape(text), transform=turn, fill="ink", **more)

    def heading(self, text: str) -> None:
        """The title at the top of a picture."""
        self.text(20, 26, text, font_size=15, font_weight=600)

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = "line", **more: Any) -> None:
        """A straight line."""
        self.draw("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **more)

    def lines(self, points: Points, stroke: str, **more: Any) -> None:
        """Straight lines from each point to the next."""
        self.draw("polyline", points=_listed(points), fill="none", stroke=stroke, **more)

    def box(self, x: float, y: float, width: float, height: float, fill: str = "none", **more: Any) -> None:
        """A rectangle."""
        self.draw("rect", x=x, y=y, width=width, height=height, fill=fill, **more)

    def dot(self, x: float, y: float, radius: float, fill: str, **more: Any) -> None:
        """A circle."""
        self.draw("circle", cx=x, cy=y, r=radius, fill=fill, **more)

    def pixels(self, x: float, y: float, side: float, png: str) -> None:
        """A square with a frame, filled with a PNG in base64, each pixel of it a cell."""
        address = f"data:image/png;base64,{png}"
        square: Style = {"x": x, "y": y, "width": side, "height": side}
        self.draw("image", **square, preserveAspectRatio="none", href=address, image_rendering="pixelated")
        self.draw("rect", **square, fill="none", stroke="edge")

    @contextmanager
    def group(self, **attributes: Any) -> Iterator[None]:
        """What is drawn inside the `with` is one group."""
        before, self.parts = self.parts, []
        yield
        self.parts, inside = before, "\n".join(self.parts)
        self.draw("g", inside, **attributes)

    def svg(self, width: float, height: float, label: str, font_size: float = 12, **more: Any) -> str:
        """The whole picture. `label` is what a screen reader says of it."""
        size = {"width": width, "height": height, "viewBox": f"0 0 {_pixels(width)} {_pixels(height)}"}
        size |= {"font_family": FONT, "font_size": font_size, "role": "img"} | more
        inside = "\n".join(self.parts) + "\n"
        if self.theme["picture"] == "none":
            return tag("svg", inside, aria_label=label, **size)
        ground = tag("rect", width="100%", height="100%", rx=8, fill=self.theme["picture"])
        with_title = f"<title>{escape(label)}</title>\n{ground}\n{inside}"
        return tag("svg", with_title, xmlns="http://www.w3.org/2000/svg", **size) + "\n"


def _listed(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


class Chart(Canvas):
    """A picture with two axes. Its grid is wider than its horizontal axis by `inset` at each side."""

    def __init__(self, theme: Theme, x: Axis, y: Axis, inset: float = 0):
        super().__init__(theme)
        self.x, self.y, self.left, self.right = x, y, x.start - inset, x.end + inset

    def rows(self, numbers: Sequence[float]) -> None:
        """A line across for each number, which stands at its left."""
        for number in numbers:
            self.level(number, "line")
            self.text(self.left - 8, self.y(number) + 4, f"{number:g}", "soft", "end")

    def columns(self, numbers: Sequence[float], label: str = "", form: str = "g") -> None:
        """The numbers below the chart, and what they count."""
        for number in numbers:
            self.text(self.x(number), self.y.start + 18, format(number, form), "soft", "middle")
        if label:
            self.text((self.left + self.right) / 2, self.y.start + 36, label, "soft", "middle")

    def level(self, number: float, stroke: str = "ink", **more: Any) -> None:
        """A line across."""
        self.line(self.left, self.y(number), self.right, self.y(number), stroke, **more)

    def bar(self, number: float, low: float, high: float, stroke: str, **more: Any) -> None:
        """An upright line from one number to another."""
        self.line(self.x(number), self.y(low), self.x(number), self.y(high), stroke, **more)

    def curve(self, points: Points, stroke: str, **more: Any) -> None:
        """A curve through numbers (x, y)."""
        self.lines(self._placed(points), stroke, **more)

    def area(self, points: Points, fill: str, **more: Any) -> None:
        """What lies between numbers (x, y)."""
        self.draw("polygon", points=_listed(self._placed(points)), fill=fill, **more)

    def _placed(self, points: Points) -> Points:
        return [(self.x(x), self.y(y)) for x, y in points]

    def key(self, x: float, y: float, name: str, **stroke: Any) -> None:
        """A row of a legend: a piece of a curve and its name."""
        self.line(x, y - 4, x + 28, y - 4, **stroke)
        self.text(x + 36, y, name)

    def names(self, ends: Sequence[tuple[str, float, str]]) -> None:
        """Names at the right, each of (name, number, colour) at the height of its number; they do not overlap."""
        y = -math.inf
        for name, number, fill in sorted(ends, key=lambda end: self.y(end[1])):
            y = max(self.y(number) + 4, y + 15)
            self.text(self.right + 8, y, name, fill)
