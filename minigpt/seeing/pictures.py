"""Pictures: loss curves as SVG; an attention map as text, or as a small PNG without labels.

matplotlib, the optional extra `plot`, is imported only here (`plotting`), to draw PNG and PDF.
"""

from __future__ import annotations

import base64
import importlib.util
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minigpt.seeing.drawing import CURVES, THEMES, Axis, Chart, Points, ticks
from minigpt.system.terminal import one_line

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 60, 44, 40, 16
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


def plotting() -> Any:
    """matplotlib's pyplot, which draws into files only; for those who have asked `can_plot`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
