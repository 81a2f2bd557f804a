"""The page of a staircase: the triangle as squares, and one text of each task as each rung answers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from minigpt.comparison.staircase import SLACK, Summary, cell_of, shown, surprises, under
from minigpt.seeing.document import Cell, card, report, soft, table

STYLE = """
.squares td, .squares th { text-align: center; border: 1px solid var(--line); padding: .35rem .3rem; }
.squares td { min-width: 4.2rem; }
.squares th { vertical-align: middle; }
.squares tr > :first-child { text-align: left; }
.squares b { display: block; font-variant-numeric: tabular-nums; }
.squares small { white-space: nowrap; }
.squares :not(.solved) > small { color: var(--soft); }
.squares .solved { background: var(--ink); color: var(--card); }
.results.examples :is(td, th) { white-space: normal; }
.results.examples tr > :first-child { position: static; min-width: 9rem; }
td code { white-space: nowrap; }
td.wrong { text-decoration: underline; }
@media print { .squares .solved { outline: 2px solid var(--ink); } }
"""


def staircase_page(summary: Summary) -> str:
    """The whole page."""
    parts = [
        card("Answers that are right", _squares(summary)),
        card("One text of each task", _examples(summary)),
        card("Why a rung cannot do better", _reasons(summary)),
    ]
    title = f"Staircase: {summary['comparison']}"
    heading = f"Which rung answers which question? {summary['comparison']}"
    about, notes = f"<p>{escape(summary['held_equal'])}</p>", [*summary["notes"], *surprises(summary)]
    return report(title, heading, about, summary["command"], notes, parts, STYLE)


def _squares(summary: Summary) -> Iterator[str]:
    tasks = [task["task"] for task in summary["tasks"]]
    rows: list[list[str | Cell]] = [["rung", *tasks]]
    for rung in summary["rungs"]:
        cells = [cell_of(summary, rung, task) for task in tasks]
        rows.append([rung, *(Cell(_square(cell), "solved" if cell["solved"] else "") for cell in cells)])
    yield table(rows, "the squares", "squares")
    yield soft(f"""The share of right answers, the lowest and the highest of {len(summary["seeds"])} seeds. A filled
square: solved with every seed. Below it stands the ceiling, what a reader with the means of this rung can reach over
all texts: "at most" is exact, "about" an estimate. By chance, the texts of a run may be easier or harder by
{SLACK}.""")


def _square(cell: Mapping[str, Any]) -> str:
    return f"<b>{shown(cell)}</b><small>{under(cell)}</small>"


def _examples(summary: Summary) -> Iterator[str]:
    rows: list[list[str | Cell]] = [["question", "text", "answer", *summary["rungs"]]]
    for task in summary["tasks"]:
        right, answers = task["answer"], [task["answers"].get(rung, "-") for rung in summary["rungs"]]
        cells = [Cell(escape(answer), "" if answer == right else "wrong") for answer in answers]
        text = Cell(f"<code>{escape(task['text'])}</code>")
        rows.append([task["question"], text, Cell(f"<b>{escape(right)}</b>"), *cells])
    yield table(rows, "the examples", "examples")
    yield soft("""The letters behind the bar are those that are asked for, the a and b of the question. Wrong answers
are underlined. Everybody is lucky at times: of the first 50 texts this is the one that shows best which rungs can
answer.""")


def _reasons(summary: Summary) -> Iterator[str]:
    """Why a rung cannot do better, by task."""
    yield "<dl>"
    for task in summary["tasks"]:
        why: dict[str, list[str]] = {}
        for rung in summary["rungs"]:
            cell = cell_of(summary, rung, task["task"])
            if cell["ceiling"]:
                why.setdefault(cell["ceiling"]["why"], []).append(f"{rung} ({under(cell)})")
        for sentence, rungs in why.items():
            yield f"<dt>{escape(task['task'])}: {escape(', '.join(rungs))}</dt><dd>{escape(sentence)}</dd>"
    yield "</dl>"
