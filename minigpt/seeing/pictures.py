"""Pictures: loss curves as SVG; an attention map as text, or as a small PNG without labels; SVG as PNG or PDF.

matplotlib, the optional extra `plot`, is imported only here (`paint`).
"""

from __future__ import annotations

import base64
import importlib.util
import io
import math
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from minigpt.seeing.drawing import CURVES, THEMES, Axis, Chart, Points, ticks
from minigpt.system.terminal import one_line

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 60, 44, 40, 16
INCH, POINT, DPI = 96, 0.75, 144  # pixels of an inch, points of a pixel; of a PNG
ANCHORS = {"middle": "center", "end": "right"}  # SVG's words and matplotlib's
SHADES = " .:-=+*#%@"  # from zero to the largest weight
NEGATIVE = " 123456789"  # from zero to the most negative one


def curve_svg(curves: dict[str, Points], title: str, x_label: str) -> str:
    """Curves {name: [(x, y), ...]} as an SVG picture; "" if there is no point."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    xs, ys = ticks(0, max(x for x, _ in points)), ticks(min(y for _, y in points), max(y for _, y in points))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    chart = Chart(THEMES["light"], Axis(xs[0], xs[-1], LEFT, right), Axis(ys[0], ys[-1], bottom, TOP))
    chart.heading(title)
    chart.rows(ys)
    chart.columns(xs, x_label)
    for index, (name, curve) in enumerate(curves.items()):
        colour = CURVES[index]
        chart.curve(curve, colour, stroke_width=1.8)
        chart.text(right - 8, TOP + 16 + 18 * index, f"{name}: {curve[-1][1]:.4f}", colour, "end")
    return chart.svg(WIDTH, HEIGHT, title)


def smooth(points: Points, most: int = 200) -> Points:
    """At most `most` points, each the mean of a group of neighbours: a noisy curve becomes readable."""
    size = max(1, math.ceil(len(points) / most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def visible(token: str) -> str:
    """A token as a label: spaces, tabs and line ends become visible characters."""
    return one_line(token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")) or "∅"


def heat_map(weights: Tensor, labels: Sequence[str], columns: int | None = None, gate: Tensor | None = None) -> str:
    """Weights (T, S) as text: a line for each query, a character for each key; `@` is the line's largest.

    Negative weights are digits: tenths of the line's largest, whatever its sign. Where lines do not sum to one, their
    sums stand at their right, and so does the `gate` (T,) of each line, if there is one. Keys that do not fit into
    `columns` follow below; lines without a weight there are left out.
    """
    names, total = [visible(label) for label in labels], weights.cpu().double().sum(dim=-1)  # (T,)
    gates = [""] * len(names) if gate is None else [f" x {factor:.2f}" for factor in gate.tolist()]
    margin, sums_to_one = max(map(len, names)), torch.allclose(total, torch.ones_like(total), atol=1e-3)
    room = len(names) if columns is None else max(8, columns - margin - 14 - len(gates[0]))
    lines = []
    for start in range(0, len(names), room):
        keys = slice(start, start + room)
        lines.append(f"{'':{margin}}  " + "".join(name.lstrip("␣")[:1] or "␣" for name in names[keys]))
        for name, row, row_sum, gated in zip(names, weights.tolist(), total.tolist(), gates):
            most = max(map(abs, row)) or 1.0
            tenths = [min(int(abs(w) / most * len(SHADES)), len(SHADES) - 1) for w in row[keys]]
            cells = "".join((NEGATIVE if w < 0 else SHADES)[tenth] for w, tenth in zip(row[keys], tenths))
            if start == 0 or any(row[keys]):
                lines.append(f"{name:>{margin}} |{cells}|" + ("" if sums_to_one else f" {row_sum:.3g}") + gated)
    return "\n".join(lines)


def small_png(weights: Tensor, most: float = 1.0) -> str:
    """Weights (T, T) as a PNG in base64, a pixel for each weight: more opaque is larger, blue above zero, orange below.

    A weight of `most` is opaque, or the largest weight if that is above `most`.
    Written by hand: a page must not depend on an extra, and pillow would be a dependency for these nine lines.
    """
    weights = weights.cpu()  # (T, T)
    most = max(most, float(weights.abs().max()))
    shade = ((weights.abs() / most).sqrt() * 255).byte()  # (T, T): the square root makes small weights visible
    colours = [list(bytes.fromhex(THEMES["light"][role][1:])) for role in ("above", "heat")]
    colour = torch.tensor(colours, dtype=torch.uint8)[(weights < 0).long()]  # (T, T, 3)
    pixels = torch.cat((colour, shade[..., None]), dim=-1).numpy()  # (T, T, 4)
    height, width = shade.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">2I5B", width, height, 8, 6, 0, 0, 0)  # 8 bits, RGBA
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def can_plot() -> bool:
    """Whether the optional extra `plot` is installed."""
    try:
        return importlib.util.find_spec("matplotlib") is not None
    except ValueError:  # a test removed it from this process
        return False


def paint(svg: str, path: Path) -> None:
    """Draw a picture of a `Canvas` as PNG or PDF, as the path's ending says; for those who have asked `can_plot`."""
    import matplotlib

    matplotlib.use("Agg")  # which draws into files only
    from matplotlib import pyplot

    root, form = ElementTree.fromstring(svg), path.suffix.lower().lstrip(".")
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    with pyplot.rc_context({"pdf.fonttype": 42}):
        figure = pyplot.figure(figsize=(width / INCH, height / INCH))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        _paint(pyplot, axes, root, root.attrib["font-size"], 0.0, 0.0)
        same = {"CreationDate": None} if form == "pdf" else None  # equal pictures make equal files
        figure.savefig(path, format=form, dpi=DPI, metadata=same)
        pyplot.close(figure)


def _paint(pyplot: Any, axes: Any, element: ElementTree.Element, font_size: str, x: float, y: float) -> None:
    """An element of SVG, and those inside it; x and y: how far the groups around it are moved."""
    style, kind = element.attrib, element.tag.rpartition("}")[2]
    if moved := re.match(r"translate\((\S+) (\S+)\)", style.get("transform", "")):
        x, y = x + float(moved[1]), y + float(moved[2])

    def at(*names: str) -> list[float]:
        return [float(style.get(name, 0)) for name in names]

    def colour(name: str) -> tuple[str, float]:
        return style.get(name, "none"), float(style.get("opacity", 1)) * float(style.get(f"{name}-opacity", 1))

    line, above = POINT * float(style.get("stroke-width", 1)), {"zorder": len(axes.get_children())}
    dashes = tuple(POINT * float(length) / line for length in style.get("stroke-dasharray", "").split())
    shape = {"facecolor": colour("fill"), "edgecolor": colour("stroke"), "linewidth": line, **above}
    shape["linestyle"] = (0, dashes) if dashes else "-"
    if kind in ("line", "polyline", "polygon"):
        points = style.get("points") or "{x1},{y1} {x2},{y2}".format(**style)
        corners = [(x + float(across), y + float(down)) for across, down in re.findall(r"(\S+),(\S+)", points)]
        axes.add_patch(pyplot.Polygon(corners, closed=kind == "polygon", **shape))
    elif kind == "rect" and style["width"] == "100%":
        axes.figure.set_facecolor(style["fill"])
    elif kind in ("rect", "image"):
        left, top, width, height = at("x", "y", "width", "height")
        if kind == "rect":
            axes.add_patch(pyplot.Rectangle((x + left, y + top), width, height, **shape))
        else:
            pixels = pyplot.imread(io.BytesIO(base64.b64decode(style["href"].partition(",")[2])))
            place = (x + left, x + left + width, y + top + height, y + top)
            axes.imshow(pixels, extent=place, aspect="auto", interpolation="nearest", **above)
    elif kind == "circle":
        across, down, radius = at("cx", "cy", "r")
        axes.add_patch(pyplot.Circle((x + across, y + down), radius, **shape))
    elif kind == "text":
        across, down, size = *at("x", "y"), float(style.get("font-size", font_size))
        words: dict[str, Any] = {"ha": ANCHORS.get(style.get("text-anchor", ""), "left"), "va": "baseline", **above}
        words |= {"rotation": 90 if "rotate" in style.get("transform", "") else 0, "rotation_mode": "anchor"}
        words |= {"color": style["fill"], "weight": "bold" if "font-weight" in style else "normal", "parse_math": False}
        axes.text(x + across, y + down, element.text or "", fontsize=0.9 * POINT * size, **words)
    for inner in element if kind in ("svg", "g") else ():
        _paint(pyplot, axes, inner, style.get("font-size", font_size), x, y)
