"""The page of a staircase: the triangle as squares, and one text of each task as each rung answers it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from minigpt.comparison.staircase import SLACK, Summary, cell_of, shown, surprises, under
from minigpt.seeing.document import asset, document

STYLE = """
.squares td, .squares th { text-align: center; border: 1px solid var(--line); padding: .35rem .3rem; }
.squares td { min-width: 4.2rem; }
.squares th { vertical-align: middle; }
.examples th:first-child { min-width: 9rem; }
.squares th:first-child { text-align: left; min-width: 6.5rem; position: sticky; left: 0; background: var(--card); }
.squares b { display: block; font-variant-numeric: tabular-nums; }
.squares small { color: var(--soft); white-space: nowrap; }
.squares .solved { background: var(--ink); color: var(--card); }
code { white-space: nowrap; }
td.wrong { text-decoration: underline; }
@media print { .squares .solved { print-color-adjust: exact; outline: 2px solid var(--ink); } }
"""
SCRIPT = 'themeButton(byId("theme"));'


def staircase_page(summary: Summary) -> str:
    """The whole page."""
    body = [
        f'<div class="row apart"><h1>Which rung answers which question? {escape(summary["comparison"])}</h1>',
        '<button id="theme" type="button"></button></div>',
        f"<p>{escape(summary['held_equal'])}</p>",
        f'<p class="soft">Made by <code>{escape(summary["command"])}</code></p>',
        *(f"<p><b>Note</b>: {escape(note)}</p>" for note in [*summary["notes"], *surprises(summary)]),
        *_squares(summary),
        *_examples(summary),
        *_reasons(summary),
    ]
    title = f"Staircase: {summary['comparison']}"
    return document(title, "\n".join(body), [asset("common.css"), STYLE], [asset("common.js"), SCRIPT], {})


def _wide(what: str) -> str:
    return f'<div class="wide" tabindex="0" role="region" aria-label="{what}">'


def _squares(summary: Summary) -> Iterator[str]:
    yield f'<section class="card"><h2>Answers that are right</h2>{_wide("the squares")}'
    yield '<table class="squares"><thead><tr><th scope="col">rung</th>'
    yield "".join(f'<th scope="col">{escape(task["task"])}</th>' for task in summary["tasks"]) + "</tr></thead><tbody>"
    for rung in summary["rungs"]:
        yield f'<tr><th scope="row">{escape(rung)}</th>'
        for task in summary["tasks"]:
            cell = cell_of(summary, rung, task["task"])
            mark = ' class="solved"' if cell["solved"] else ""
            yield f"<td{mark}><b>{shown(cell)}</b><small>{under(cell)}</small></td>"
        yield "</tr>"
    yield f"""</tbody></table></div><p class="soft">The share of right answers, the lowest and the highest of
{len(summary["seeds"])} seeds. A filled square: solved with every seed. Below it stands the ceiling, what a reader with
the means of this rung can reach over all texts: "at most" is exact, "about" an estimate. By chance, the texts of a
run may be easier or harder by {SLACK}.</p></section>"""


def _examples(summary: Summary) -> Iterator[str]:
    yield f'<section class="card"><h2>One text of each task</h2>{_wide("the examples")}'
    yield '<table class="examples"><thead><tr>'
    head = ["question", "text", "answer", *summary["rungs"]]
    yield "".join(f'<th scope="col">{escape(name)}</th>' for name in head) + "</tr></thead><tbody>"
    for task in summary["tasks"]:
        yield f'<tr><th scope="row">{escape(task["question"])}</th><td><code>{escape(task["text"])}</code></td>'
        yield f"<td><b>{escape(task['answer'])}</b></td>"
        for rung in summary["rungs"]:
            said = task["answers"].get(rung, "-")
            mark = "" if said == task["answer"] else ' class="wrong"'
            yield f"<td{mark}>{escape(said)}</td>"
        yield "</tr>"
    yield """</tbody></table></div><p class="soft">The letters behind the bar are those that are asked for, the a and b
of the question. Wrong answers are underlined. Everybody is lucky at times: of the first 50 texts this is the one that
shows best which rungs can answer.</p></section>"""


def _reasons(summary: Summary) -> Iterator[str]:
    """Why a rung cannot do better, by task."""
    yield '<section class="card"><h2>Why a rung cannot do better</h2><dl>'
    for task in summary["tasks"]:
        why: dict[str, list[str]] = {}
        for rung in summary["rungs"]:
            cell = cell_of(summary, rung, task["task"])
            if cell["ceiling"]:
                why.setdefault(cell["ceiling"]["why"], []).append(f"{rung} ({under(cell)})")
        for sentence, rungs in why.items():
            yield f"<dt>{escape(task['task'])}: {escape(', '.join(rungs))}</dt><dd>{escape(sentence)}</dd>"
    yield "</dl></section>"
