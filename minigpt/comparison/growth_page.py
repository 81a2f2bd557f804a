"""The page of an experiment over sizes: one HTML file with what was found, the chart, the table and every gain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from minigpt.comparison.growth import amount, law_in_words, lines, number, prediction_in_words, trend_in_words
from minigpt.comparison.growth_chart import growth_svg
from minigpt.inspection.drawing import PAGE
from minigpt.seeing.document import card, facts, folded, in_two_widths, report, soft, table

STYLE = "li { margin: .25rem 0; }"


def page(summary: Mapping[str, Any]) -> str:
    """The whole page."""
    points = summary["kinds"][0]["points"]
    every = [point for row in summary["kinds"] for point in row["points"]]
    about = {
        "text": summary["text"],
        "sizes": f"{len(points)}, {points[0]['size']} to {points[-1]['size']} (layers x width)",
        "parameters in the blocks, of all kinds": _range(p["parameters"] for p in every),
        "positions trained on": _range(p["tokens"] for p in every),
        "seeds": ", ".join(map(str, summary["seeds"])),
    }
    title = f"How it grows: {summary['scaling']}"
    parts = [
        card(f"{summary['unit'].capitalize()}, by parameters", _chart(summary)),
        card("Is it a power law, and does it predict?", _findings(summary)),
        card("All sizes", _table(summary)),
    ]
    rows = [row for row in summary["kinds"] if row["trend"]]
    if rows:
        parts.append(card(f"Against {summary['baseline']}, size by size", _gains(summary, rows)))
    return report(title, title, facts(about), summary["command"], summary["notes"], parts, STYLE)


def _range(numbers: Iterable[int]) -> str:
    """The least and the greatest, or the one number: 3,200 or 784 to 3,104."""
    values = list(numbers)
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _chart(summary: Mapping[str, Any]) -> Iterator[str]:
    yield in_two_widths(lambda width: growth_svg(summary, width, PAGE))
    yield soft("""Both axes are logarithmic: a power law down to the floor is a straight line. A dot is the mean over
the seeds, its thin bar their lowest and highest. A ring is a size that the fit did not see, the broad bar behind it
where the fit expected it (95 %). A kind without a line has no power law that these sizes show.""")


def _findings(summary: Mapping[str, Any]) -> Iterator[str]:
    yield "<ul>"
    for row in summary["kinds"]:
        yield f"<li>{escape(law_in_words(row, summary))}</li>"
        yield from (
            f"<li>{escape(sentence)}</li>" for p in row["points"] if (sentence := prediction_in_words(row["kind"], p))
        )
    yield "</ul><h2>Does the gain survive?</h2><ul>"
    yield from (f"<li>{escape(trend_in_words(row, summary))}</li>" for row in summary["kinds"] if row["trend"])
    yield "</ul>"
    yield soft(f"""Exponents and predictions have 95 % intervals, Student's, from the scatter of the sizes around the
curve. A trend is the slope of the gain by the logarithm of the parameters. Its interval is the wider one of two: over
the seeds, and from the scatter of the sizes around the line. What holds for these sizes need not hold beyond them.
{escape(summary["rate"])}""")


def _table(summary: Mapping[str, Any]) -> Iterator[str]:
    yield table(lines(summary), "all sizes")
    yield soft(f"{escape(summary['unit'].capitalize())}, means over the seeds; a size is layers x width.")
    if (tuning := summary["tuning"]) is not None:
        head = ["trials", *(f"{value:g}" for value in tuning["values"]), "taken"]
        rows = [
            [row["variant"], *map(number, row["losses"]), "-" if row["taken"] is None else f"{row['taken']:g}"]
            for row in tuning["variants"]
        ]
        yield folded(f"Trials of {escape(tuning['key'])}", table([head, *rows], "trials"))


def _gains(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    head = ["kind", *(size["size"] for size in rows[0]["trend"]["sizes"])]
    body = [[row["kind"], *(_gain(size["gain"], summary) for size in row["trend"]["sizes"])] for row in rows]
    yield table([head, *body], "gains")
    measure = "height above the floor" if summary["metric"] == "above" else "loss"
    yield soft(f"""The change of the {measure} against the baseline of the same width and layers, on the same batches,
paired by seed; below zero is better. The interval is Student's over {len(summary["seeds"])} seeds (95 %).""")


def _gain(gain: Mapping[str, Any] | None, summary: Mapping[str, Any]) -> str:
    return "-" if gain is None or gain["low"] is None else amount(gain, summary)
