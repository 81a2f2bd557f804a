"""Files for papers and slides: `compare.py --figures DIR` writes the charts as SVG and PDF, and the tables as LaTeX.

DIR/
    curves.svg  curves.pdf              the compared loss by step, with the spread over the seeds
    differences.svg  differences.pdf    to the baseline, with 95 % confidence intervals
    table.tex  accuracy.tex             a tabular each, which needs no package: \\input{table.tex}

Of a staircase: staircase.svg and table.tex.

The PDF files are drawn by matplotlib (the extra `plot`), from the numbers that the SVG files show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.comparison.charts import Curves, Summary, curves_of, curves_svg, differences_svg
from minigpt.comparison.staircase import rows as staircase_rows
from minigpt.comparison.staircase import staircase_svg
from minigpt.comparison.summary import accuracies, number
from minigpt.inspection.drawing import BROAD, CURVES, THEMES, log_ticks, shortened, ticks
from minigpt.inspection.pictures import can_plot, plotting
from minigpt.runs.report import Say
from minigpt.system.folder import write_whole
from minigpt.system.terminal import one_line

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
    if "rungs" in summary:
        write_whole(folder / "staircase.svg", staircase_svg(summary, PAPER))
        write_whole(folder / "table.tex", tabular(staircase_rows(summary)))
        say(f"figures: staircase.svg, table.tex in {folder}")
        return
    rows = [row for row in summary["variants"] if row["difference"]]
    charts: dict[str, tuple[Callable[[], str], Callable[[Any], None]]] = {}
    if (curves := curves_of(summary)) is not None:
        charts["curves"] = (lambda: curves_svg(curves, BROAD, PAPER), lambda axes: plot_curves(curves, axes))
    if rows:
        charts["differences"] = (lambda: differences_svg(rows, BROAD, PAPER), lambda axes: plot_differences(rows, axes))
    for name, (svg, plot) in charts.items():
        write_whole(folder / f"{name}.svg", svg())
        if can_plot():
            write_pdf(folder / f"{name}.pdf", plot, 4.0 if name == "curves" else 0.9 + 0.3 * len(rows))
    write_whole(folder / "table.tex", tabular(table_of(summary)))
    if summary["names"]:
        write_whole(folder / "accuracy.tex", tabular(accuracies(summary)))
    say(f"figures: {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")
    if charts and not can_plot():
        say('note: no PDF was written, it needs matplotlib: pip install -e ".[plot]"')


# ---- PDF ----


def write_pdf(path: Path, plot: Callable[[Any], None], height: float) -> None:
    """Let `plot` draw into axes of 6.5 (the text width of a page) by `height` inches, and write them as PDF."""
    pyplot = plotting()
    with pyplot.rc_context({"pdf.fonttype": 42, "font.size": 9, "text.parse_math": False}):
        figure, axes = pyplot.subplots(figsize=(6.5, height), layout="constrained")
        plot(axes)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="y" if axes.get_legend() else "x", color=PAPER["line"], linewidth=0.7)
        axes.set_axisbelow(True)
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})  # equal results make equal files
        pyplot.close(figure)


def plot_curves(found: Curves, axes: Any) -> None:
    """Draw the curves with their bands; for a single evaluation, dots with bars."""
    for place, curve in enumerate(found.curves):
        steps, means = zip(*((step, found.drawn(value)) for step, value in curve.points))
        lows, highs = ([found.drawn(values[side]) for values in curve.spread] for side in (1, 2))
        colour, label = PAPER[CURVES[place % len(CURVES)]], one_line(shortened(curve.name))
        if len(steps) == 1:
            ends = [[means[0] - lows[0]], [highs[0] - means[0]]]
            axes.errorbar([place], means, ends, color=colour, fmt="o", capsize=4, label=label)
            continue
        axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, means, color=colour, linestyle="--" if place >= len(CURVES) else "-", label=label)
    if found.forgetful is not None:
        axes.axhline(found.forgetful, color=PAPER["ink"], linestyle=":", label="the forgetful reader")
    marks = (log_ticks if found.logs else ticks)(min(found.values), max(found.values))
    axes.set_yscale("log" if found.logs else "linear")
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    single = all(len(curve.points) == 1 for curve in found.curves)
    axes.set_xlabel(f"after step {found.curves[0].points[0][0]:g}" if single else "step")
    if single:
        axes.set_xticks([])
    axes.set_ylabel(found.title)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False)


def plot_differences(rows: Sequence[Mapping[str, Any]], axes: Any) -> None:
    """Variant minus baseline: a dot and its confidence interval, the first variant on top."""
    for place, row in enumerate(rows):
        d, y = row["difference"], -place
        colour = PAPER["ink"] if d["shown"] else PAPER["soft"]
        ends = None if d["low"] is None else [[d["mean"] - d["low"]], [d["high"] - d["mean"]]]
        axes.errorbar([d["mean"]], [y], xerr=ends, color=colour, fmt="o", linewidth=2)
    axes.axvline(0, color=PAPER["soft"], linewidth=1)
    axes.set_yticks([-place for place in range(len(rows))], [one_line(shortened(row["variant"])) for row in rows])
    axes.set_ylim(0.5 - len(rows), 0.5)
    axes.set_xlabel("difference to the baseline, nats a character (left is better)")


# ---- LaTeX ----


def table_of(summary: Summary) -> Iterator[list[str]]:
    """The rows of table.tex: loss, difference to the baseline with its interval, parameters. Titles first."""
    above = summary["metric"] == "above"
    yield ["variant", "above the floor" if above else "loss", "difference (95 % interval)", "parameters"]
    for row in summary["variants"]:
        d = row["difference"]
        known = "baseline" if row["variant"] == summary["baseline"] else "-"
        if d is not None:
            interval = "" if d["low"] is None else f" ({d['low']:+.4f} to {d['high']:+.4f})"
            known = f"{d['mean']:+.4f}{interval}"
        yield [row["variant"], number(row[summary["metric"]]), known, number(row["parameters"], ",d")]
    if summary["forgetful"] is not None:
        shown = summary["forgetful"] + (0 if above else summary["floor"])
        yield ["the forgetful reader", number(shown), "-", "-"]


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
    found = "".join(LATEX.get(character, character) for character in one_line(text))
    return re.sub(r"(?<![\w.])([+]|-\{\})(?=\d)", lambda sign: f"${sign[1][0]}$", found)
