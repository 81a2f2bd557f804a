"""All lessons as one page, for those without Jupyter: run now, with their outputs, and every answer folded.

The page loads nothing from the network (`seeing/document.py`) and opens from a file. On paper nothing is folded, and
the answers come behind the questions (`page.js`).
"""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Iterator, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any

from minigpt.learning.course import NO_GUESS, Cell, Lesson, execute, lessons
from minigpt.learning.output import STYLE, Output, collected
from minigpt.learning.prose import as_code, as_html, inline
from minigpt.seeing.document import document, folded, header
from minigpt.system.waiting import progress

HERE = Path(__file__).parent
CLASSES = {tokenize.COMMENT: "comment", tokenize.STRING: "string"}


def page() -> str:
    """The whole page. It takes as long as all lessons take to run."""
    all_lessons = lessons()
    contents = "".join(
        f'<li value="{lesson.number}"><a href="#lesson-{lesson.number}">{escape(lesson.title)}</a></li>'
        for lesson in all_lessons
    )
    sections = [section(lesson) for lesson in progress(all_lessons, "running the lessons", len(all_lessons), "lessons")]
    body = (
        header("Lessons in attention")
        + "\n<main><p>Each takes about ten minutes. Make a guess before you open an answer: what surprises you, you "
        "will remember. All numbers and pictures were computed by the code that stands above them, when this page was "
        f'made.</p>\n<nav aria-label="Lessons"><ol>{contents}</ol></nav>\n' + "\n".join(sections) + "</main>"
    )
    look, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return document("Lessons in attention", body, f"{STYLE}\n{look}", [script])


def section(lesson: Lesson) -> str:
    """One lesson as HTML; its code is run."""
    names: dict[str, Any] = {"__name__": lesson.path.stem}
    parts = [_cell(cell, run(cell, names, lesson.path)) for cell in lesson.cells]
    title = f"<h2>{lesson.number}. {inline(lesson.title)}</h2>"
    inside = f'<div id="lesson-{lesson.number}">{as_html(lesson.about, top=3)}\n' + "\n".join(parts) + "</div>"
    return folded(title, inside, style="card lesson")


def run(cell: Cell, names: dict[str, Any], path: Path) -> Sequence[Output]:
    """The outputs of a cell; a text has none."""
    if cell.kind == "markdown":
        return []
    with collected() as outputs:
        execute(cell, names, path)
    return outputs


def _cell(cell: Cell, outputs: Sequence[Output]) -> str:
    """A cell and its outputs as HTML. The code that gives an answer is folded."""
    html = "\n".join(output.html for output in outputs)
    if cell.kind == "markdown":
        return as_html(cell.source)
    if cell.waits:
        question = cell.source.splitlines()[0].removeprefix(NO_GUESS).strip(" #")
        hint = f" ({escape(question)})" if question else ""
        return f'<p class="guess">Make your guess{hint}<span class="screen">, then open the answer.</span></p>'
    code = as_code("".join(highlighted(cell.computes))) if cell.computes else ""
    if cell.answers:
        return html.removesuffix("</details>") + folded("How it was computed", code) + "</details>"
    return code + html


def highlighted(source: str) -> Iterator[str]:
    """Python as HTML: keywords, strings and comments are marked."""
    line_starts, done = [0, *accumulate(map(len, source.splitlines(keepends=True)))], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = (line_starts[row - 1] + column for row, column in (token.start, token.end))
        name = "keyword" if keyword.iskeyword(token.string) else CLASSES.get(token.type, "")
        text = escape(source[start:end], quote=False)
        yield escape(source[done:start], quote=False)
        yield f'<span class="{name}">{text}</span>' if name else text
        done = end
