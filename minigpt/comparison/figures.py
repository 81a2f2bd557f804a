"""Files for papers and slides: `compare.py --figures DIR` writes the charts as SVG and PDF, and the tables as LaTeX.

DIR/
    curves.svg  curves.pdf              the compared loss by step, with the spread over the seeds
    differences.svg  differences.pdf    to the baseline, with 95 % confidence intervals
    table.tex  accuracy.tex             a tabular each, which needs no package: \\input{table.tex}

Of a staircase: staircase.svg and table.tex. Of kinds at sizes: growth-light.svg and growth-dark.svg.

The PDF files are the SVG files, drawn by matplotlib (the extra `plot`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from minigpt.comparison.charts import Summary, curves_of, curves_svg, differences_svg, growth_svg
from minigpt.comparison.staircase import rows as staircase_rows
from minigpt.comparison.staircase import staircase_svg
from minigpt.comparison.summary import accuracies, number
from minigpt.seeing.drawing import BROAD, THEMES
from minigpt.seeing.figures import WIDTH
from minigpt.seeing.pictures import can_plot, paint
from minigpt.system.folder import write_whole
from minigpt.system.places import with_extra
from minigpt.system.terminal import one_line
from minigpt.training.report import Say

PAPER = THEMES["light"]
LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}"},
    **{character: f"\\{character}" for character in "{}$&#%_"},
    **{"-": "-{}", "'": "'{}", "!": "!{}", "?": "?{}"},
}


def write_figures(summary: Summary, folder: Path, say: Say) -> None:
    """Write all files. Without matplotlib, write no PDF, and say so. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    if "kinds" in summary:
        for name, theme in THEMES.items():
            write_whole(folder / f"growth-{name}.svg", growth_svg(summary, WIDTH, theme))
        return
    if "rungs" in summary:
        write_whole(folder / "staircase.svg", staircase_svg(summary, PAPER))
        write_whole(folder / "table.tex", tabular(staircase_rows(summary)))
        say(f"figures: staircase.svg, table.tex in {folder}")
        return
    rows, curves = [row for row in summary["variants"] if row["difference"]], curves_of(summary)
    if curves is not None:
        write_figure(folder, "curves", curves_svg(curves, BROAD, PAPER))
    if rows:
        write_figure(folder, "differences", differences_svg(rows, BROAD, PAPER))
    write_whole(folder / "table.tex", tabular(table_of(summary)))
    if summary["names"]:
        write_whole(folder / "accuracy.tex", tabular(accuracies(summary)))
    say(f"figures: {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")
    if (curves or rows) and not can_plot():
        say(f"note: no PDF was written, it needs matplotlib: {with_extra('plot')}")


def write_figure(folder: Path, name: str, svg: str) -> None:
    """Write a picture as SVG and, with matplotlib, as PDF."""
    write_whole(folder / f"{name}.svg", svg)
    if can_plot():
        paint(svg, folder / f"{name}.pdf")


# ---- LaTeX ----


def table_of(summary: Summary) -> Iterator[list[str]]:
    """The rows of table.tex: loss, difference to the baseline with its interval, parameters. Titles first."""
    above = summary["metric"] == "above"
    yield ["variant", "above the floor" if above else "loss", "difference (95 % interval)", "parameters"]
    for row in summary["variants"]:
        d = row["difference"]
        difference = "baseline" if row["variant"] == summary["baseline"] else "-"
        if d is not None:
            interval = "" if d["low"] is None else f" ({d['low']:+.4f} to {d['high']:+.4f})"
            difference = f"{d['mean']:+.4f}{interval}"
        yield [row["variant"], number(row[summary["metric"]]), difference, number(row["parameters"], ",d")]
    if summary["forgetful"] is not None:
        yield ["the forgetful reader", number(summary["forgetful"] + (0 if above else summary["floor"])), "-", "-"]


def tabular(rows: Iterable[list[str]]) -> str:
    """Rows as a LaTeX tabular; the first has the titles."""
    cells = [list(map(latex, row)) for row in rows]
    head, *body = [" & ".join(row) + r" \\" for row in cells]
    columns = "l" + "r" * (len(cells[0]) - 1)
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}", ""]
    )


def latex(text: str) -> str:
    """A text with its special characters escaped. A plus or minus before a number is set in math mode."""
    escaped = "".join(LATEX.get(character, character) for character in one_line(text))
    return re.sub(r"(?<![\w.])([+]|-\{\})(?=\d)", lambda sign: f"${sign[1][0]}$", escaped)
