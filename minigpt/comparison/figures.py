"""Files for papers and slides: `compare.py --figures DIR` writes the charts as SVG and PDF, and the tables as LaTeX.

DIR/
    curves.svg  curves.pdf              the compared loss by step, with the spread over the seeds
    differences.svg  differences.pdf    to the baseline, with 95 % confidence intervals
    table.tex  accuracy.tex             a tabular each, which needs no package: \\input{table.tex}

Of a staircase: staircase.svg and table.tex. Of kinds at sizes: growth-light.svg and growth-dark.svg.

The PDF files are drawn by matplotlib (the extra `plot`), from the numbers that the SVG files show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigpt.comparison.charts import Curves, Summary, curves_of, curves_svg, differences_svg, growth_svg
from minigpt.comparison.staircase import rows as staircase_rows
from minigpt.comparison.staircase import staircase_svg
from minigpt.comparison.summary import accuracies, number
from minigpt.seeing.drawing import BROAD, CURVES, THEMES, shortened
from minigpt.seeing.figures import WIDTH
from minigpt.seeing.pictures import can_plot, plotting
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
        write_whole(folder / "curves.svg", curves_svg(curves, BROAD, PAPER))
        write_pdf(folder / "curves.pdf", lambda axes: plot_curves(curves, axes), 4.0)
    if rows:
        write_whole(folder / "differences.svg", differences_svg(rows, BROAD, PAPER))
        write_pdf(
            folder / "differences.pdf",
            lambda axes: plot_differences(rows, axes, summary["unit"]),
            0.9 + 0.3 * len(rows),
        )
    write_whole(folder / "table.tex", tabular(table_of(summary)))
    if summary["names"]:
        write_whole(folder / "accuracy.tex", tabular(accuracies(summary)))
    say(f"figures: {', '.join(sorted(path.name for path in folder.iterdir()))} in {folder}")
    if (curves or rows) and not can_plot():
        say(f"note: no PDF was written, it needs matplotlib: {with_extra('plot')}")


# ---- PDF ----


def write_pdf(path: Path, plot: Callable[[Any], None], height: float) -> None:
    """Let `plot` draw into axes of 6.5 (the text width of a page) by `height` inches, and write them as PDF.

    Without matplotlib, do nothing.
    """
    if not can_plot():
        return
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


def plot_curves(curves: Curves, axes: Any) -> None:
    """Draw the curves with their bands; for a single evaluation, dots with bars."""
    single = all(len(row["curve"]) == 1 for row in curves.rows)
    for index, row in enumerate(curves.rows):
        points, spread = curves.drawn(row)
        (steps, means), (_, lows, highs) = zip(*points), zip(*spread)
        colour, label = PAPER[CURVES[index % len(CURVES)]], one_line(shortened(row["variant"]))
        if len(steps) == 1:
            ends = [[means[0] - lows[0]], [highs[0] - means[0]]]
            axes.errorbar([index], means, ends, color=colour, fmt="o", capsize=4, label=label)
            continue
        axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)
        axes.plot(steps, means, color=colour, linestyle="--" if index >= len(CURVES) else "-", label=label)
    if curves.forgetful is not None:
        axes.axhline(curves.forgetful, color=PAPER["ink"], linestyle=":", label="the forgetful reader")
    axes.set_yscale("log" if curves.logs else "linear")
    axes.set_yticks(curves.ticks(), [f"{tick:g}" for tick in curves.ticks()])
    axes.minorticks_off()
    axes.set_xlabel(f"after step {curves.rows[0]['curve'][0][0]:g}" if single else "step")
    if single:
        axes.set_xticks([])
    axes.set_ylabel(curves.title)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False)


def plot_differences(rows: Sequence[Mapping[str, Any]], axes: Any, unit: str) -> None:
    """Variant minus baseline: a dot and its confidence interval, the first variant on top."""
    for index, row in enumerate(rows):
        d, y = row["difference"], -index
        colour = PAPER["ink"] if d["shown"] else PAPER["soft"]
        ends = None if d["low"] is None else [[d["mean"] - d["low"]], [d["high"] - d["mean"]]]
        axes.errorbar([d["mean"]], [y], xerr=ends, color=colour, fmt="o", linewidth=2)
    axes.axvline(0, color=PAPER["soft"], linewidth=1)
    axes.set_yticks([-index for index in range(len(rows))], [one_line(shortened(row["variant"])) for row in rows])
    axes.set_ylim(0.5 - len(rows), 0.5)
    axes.set_xlabel(f"difference to the baseline, {unit} (left is better)")


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
