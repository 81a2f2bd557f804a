"""The page of an experiment over sizes: one HTML file with what was found, the chart, the table and every gain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from minigpt.comparison.charts import BROAD, NARROW, PAGE
from minigpt.comparison.growth import amount, law_in_words, lines, number, prediction_in_words, trend_in_words
from minigpt.comparison.growth_chart import COLOURS, growth_svg
from minigpt.seeing.document import asset, document

STYLE = (
    ":root{"
    + "".join(f"--c{i}:light-dark({light},{dark});" for i, (light, dark) in enumerate(zip(*COLOURS.values())))
    + """}
.broad svg, .narrow svg { max-width: 100%; height: auto; }
.narrow { display: none; }
li { margin: .25rem 0; }
td:not(:first-child), th { white-space: nowrap; }
td:first-child, th:first-child { min-width: 7rem; position: sticky; left: 0; background: var(--card); }
@media (max-width: 760px) { .broad { display: none; } .narrow { display: block; } }
@media print { .broad { display: block; } .narrow { display: none; } }
"""
)
SCRIPT = 'themeButton(byId("theme"));'
INK = replace(PAGE, faint="var(--line)")


def page(summary: Mapping[str, Any]) -> str:
    """The whole page."""
    points = summary["kinds"][0]["points"]
    every = [point for row in summary["kinds"] for point in row["points"]]
    facts = {
        "text": summary["text"],
        "sizes": f"{len(points)}, {points[0]['size']} to {points[-1]['size']} (layers x width)",
        "parameters in the blocks, of all kinds": _range(p["parameters"] for p in every),
        "positions trained on": _range(p["tokens"] for p in every),
        "seeds": ", ".join(map(str, summary["seeds"])),
    }
    body = [
        f'<div class="row apart"><h1>How it grows: {escape(summary["scaling"])}</h1>',
        '<button id="theme" type="button"></button></div>',
        '<ul class="facts">' + "".join(f"<li>{k} <b>{escape(v)}</b></li>" for k, v in facts.items()) + "</ul>",
        f'<p class="soft">Made by <code>{escape(summary["command"])}</code></p>',
        *(f"<p><b>Note</b>: {escape(note)}</p>" for note in summary["notes"]),
        *_chart(summary),
        *_findings(summary),
        *_table(summary),
        *_gains(summary),
    ]
    title = f"How it grows: {summary['scaling']}"
    return document(title, "\n".join(body), [asset("common.css"), STYLE], [asset("common.js"), SCRIPT], {})


def _range(numbers: Iterable[int]) -> str:
    """The least and the greatest, or the one number: 3,200 or 784 to 3,104."""
    values = list(numbers)
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _chart(summary: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section class="card"><h2>{escape(summary["unit"].capitalize())}, by parameters</h2>'
    yield f'<div class="broad">{growth_svg(summary, BROAD, INK)}</div>'
    yield f'<div class="narrow">{growth_svg(summary, NARROW, INK)}</div>'
    yield """<p class="soft">Both axes are logarithmic: a power law down to the floor is a straight line. A dot is the
mean over the seeds, its thin bar their lowest and highest. A ring is a size that the fit did not see, the broad bar
behind it where the fit expected it (95 %). A kind without a line has no power law that these sizes show.</p>
</section>"""


def _findings(summary: Mapping[str, Any]) -> Iterator[str]:
    yield '<section class="card"><h2>Is it a power law, and does it predict?</h2><ul>'
    for row in summary["kinds"]:
        yield f"<li>{escape(law_in_words(row, summary))}</li>"
        yield from (f"<li>{escape(told)}</li>" for p in row["points"] if (told := prediction_in_words(row["kind"], p)))
    yield "</ul><h2>Does the gain survive?</h2><ul>"
    yield from (f"<li>{escape(trend_in_words(row, summary))}</li>" for row in summary["kinds"] if row["trend"])
    yield f"""</ul><p class="soft">Exponents and predictions have 95 % intervals, Student's, from the scatter of the
sizes around the curve. A trend is the slope of the gain by the logarithm of the parameters. Its interval is the wider
one of two: over the seeds, and from the scatter of the sizes around the line. What holds for these sizes need not hold
beyond them. {escape(summary["rate"])}</p>
</section>"""


def _table(summary: Mapping[str, Any]) -> Iterator[str]:
    yield '<section class="card"><h2>All sizes</h2>'
    yield _tabled(lines(summary), "all sizes")
    yield f'<p class="soft">{escape(summary["unit"].capitalize())}, means over the seeds; a size is layers x width.</p>'
    if (tuning := summary["tuning"]) is not None:
        head = ["trials", *(f"{value:g}" for value in tuning["values"]), "taken"]
        rows = [
            [row["variant"], *map(number, row["losses"]), "-" if row["taken"] is None else f"{row['taken']:g}"]
            for row in tuning["variants"]
        ]
        yield f"<details><summary>Trials of {escape(tuning['key'])}</summary>"
        yield f"{_tabled([head, *rows], 'trials')}</details>"
    yield "</section>"


def _gains(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in summary["kinds"] if row["trend"]]
    if not rows:
        return
    yield f'<section class="card"><h2>Against {escape(summary["baseline"])}, size by size</h2>'
    head = ["kind", *(size["size"] for size in rows[0]["trend"]["sizes"])]
    body = [[row["kind"], *(_gain(size["gain"], summary) for size in row["trend"]["sizes"])] for row in rows]
    yield _tabled([head, *body], "gains")
    what = "height above the floor" if summary["metric"] == "above" else "loss"
    yield f"""<p class="soft">The change of the {what} against the baseline of the same width and layers, on the same
batches, paired by seed; below zero is better. The interval is Student's over {len(summary["seeds"])} seeds (95 %).</p>
</section>"""


def _gain(gain: Mapping[str, Any] | None, summary: Mapping[str, Any]) -> str:
    return "-" if gain is None or gain["low"] is None else amount(gain, summary)


def _tabled(rows: Sequence[Sequence[str]], name: str) -> str:
    """A table that scrolls where it is wider than the screen; its first row has the titles."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}">{table}</div>'
