"""A lesson as a page: one guesses, is told what the guess would have meant, and sees the answer, computed now.

The page loads nothing and sends nothing (`seeing/document.py`); the browser keeps what was answered (`lesson.js`). On
paper it is a handout: the questions on two pages, without answers, or the answers on a page of their own.
"""

from __future__ import annotations

import hashlib
import io
import json
import keyword
import re
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate, permutations
from pathlib import Path
from typing import Any

from minigpt.learning.course import Cell, Lesson, execute, lessons
from minigpt.learning.languages import language, page_texts, speaks, text
from minigpt.learning.output import STYLE, Output, collected
from minigpt.learning.prose import as_code, as_html, inline
from minigpt.learning.reveal import Answer, in_words
from minigpt.learning.tape import Tape
from minigpt.seeing.document import document, folded, header, write_page
from minigpt.system.waiting import progress

HERE = Path(__file__).parent
SCRIPTS = "replay.js", "live.js", "attention.js", "asking.js", "lesson.js"
TEXT_OF = re.compile(r"(?:(?!<figure|<div|<svg|<table).)*", re.S)  # an explanation up to its picture
CLASSES = {tokenize.COMMENT: "comment", tokenize.STRING: "string"}


def write_pages(folder: Path, selection: Sequence[Lesson]) -> list[Path]:
    """Run lessons and write their pages into a folder, with an index if there are several. Raises UserError, OSError.

    It takes as long as the lessons take to run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    watched = progress(selection, text("running the lessons"), len(selection), text("lessons"))
    pages = [lesson_page(lesson) for lesson in watched]
    written = [write_page(folder / name_of(lesson), page.html) for lesson, page in zip(selection, pages)]
    if len(selection) > 1:
        written.append(write_page(folder / "index.html", index(selection, pages)))
    return written


def name_of(lesson: Lesson) -> str:
    """The name of a lesson's page."""
    return f"{lesson.path.stem}.html"


@dataclass
class Page:
    """A lesson's page: its HTML, the name under which a browser keeps the answers, and how many questions it asks."""

    html: str
    key: str
    questions: int


@dataclass
class Parts:
    """A page as it is made: parts that are shown one after the other, questions, and what is printed."""

    sections: list[list[str]] = field(default_factory=lambda: [[]])
    questions: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # on the handout
    answered: list[str] = field(default_factory=list)  # for the teacher
    about: str = ""  # the text before the next question
    prompt: str = ""
    pictures: list[str] = field(default_factory=list)  # of the code before the next question


def lesson_page(lesson: Lesson) -> Page:
    """Run a lesson and make its page."""
    names: dict[str, Any] = {"__name__": lesson.path.stem}
    parts = Parts()
    tape = Tape()
    for cell in lesson.cells:
        with tape.recording() if cell.live else nullcontext():
            outputs = run(cell, names, lesson.path)
        _add(parts, cell, outputs)
    data = {"lesson": lesson.number, "title": lesson.title, "questions": parts.questions}
    key = f"minigpt-lesson-{lesson.number}-{hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]}"
    blocks = {"lesson": data | {"key": key}, "texts": page_texts(), "tape": tape.as_data()}
    html = document(
        lesson.title, _body(lesson, parts), f"{STYLE}\n{_file('lesson.css')}", _scripts(), blocks, language()
    )
    return Page(html, key, len(parts.questions))


def _body(lesson: Lesson, parts: Parts) -> str:
    numbers = range(1, len(parts.questions) + 1)
    dots = "".join(f'<li><a href="#q-{n}" id="dot-{n}">{n}</a></li>' for n in numbers)
    sections = "\n".join(f'<section class="part">{"".join(part)}</section>' for part in parts.sections)
    place = text("Lesson {number} of {last}", number=lesson.number, last=len(lessons()))
    lines = "".join(f'{text(name)}: <span class="line"></span> ' for name in ("Name", "Date"))
    paper_title = f'<p class="soft">{text("Lessons in attention")} · {place}</p><h1>{inline(lesson.title)}</h1>'
    own = "" if speaks(lesson.path.stem) else ' lang="en"'
    return f"""{header(lesson.title)}
<p class="soft place"><a href="index.html">{text("Lessons in attention")}</a> · {place}</p>
<nav aria-label="{text("Questions")}"><ol class="dots">{dots}</ol></nav>
<main{own}><div class="about">{as_html(lesson.about)}</div>
{sections}
<section class="card" id="report"></section></main>
<div class="paper handout">{paper_title}<p class="name">{lines}</p>{as_html(lesson.about)}{"".join(parts.asked)}</div>
<div class="paper teacher">{paper_title}<h2>{text("Answers")}</h2>{"".join(parts.answered)}</div>"""


def run(cell: Cell, names: dict[str, Any], path: Path) -> Sequence[Output]:
    """The outputs of a cell; a text has none."""
    if cell.kind == "markdown":
        return []
    with collected() as outputs:
        execute(cell, names, path)
    return outputs


def _add(parts: Parts, cell: Cell, outputs: Sequence[Output]) -> None:
    """Add a cell and its outputs. After a question the next part begins."""
    part = parts.sections[-1]
    if cell.kind == "markdown":
        if cell.before_prompt:
            part.append(as_html(cell.before_prompt))
        parts.about, parts.prompt = cell.before_prompt, cell.prompt
    elif not cell.waits:
        if not cell.answers:
            parts.pictures.clear()
        code = folded(text("The code"), as_code("".join(highlighted(cell.computes)))) if cell.computes else ""
        part.append(code if not cell.answers else "")
        for output in outputs:
            if isinstance(output, Answer):
                _ask(parts, output, code)
            else:
                part.append(output.html)
                is_picture = output.html.startswith(("<figure", '<div class="lesson-scroll', "<svg"))
                parts.pictures += [output.html] if is_picture else []


def _ask(parts: Parts, answer: Answer, code: str) -> None:
    """Add a question, and what is behind it."""
    number, question = len(parts.questions) + 1, answer.question
    among = list(question.among)
    if question.kind == "order":
        among = [in_words(each) for each in permutations(sorted(map(str, question.measured)))]  # type: ignore[arg-type]
    bars = question.measured if isinstance(question.measured, dict) else {}
    parts.questions.append(
        {
            "kind": "choice" if question.kind == "order" else question.kind,
            "prompt": parts.prompt,
            "answer": in_words(question.measured),
            "measured": list(bars.values()) or question.measured,
            "among": list(bars) or among,
            "within": question.within,
            "span": answer.span,
            "expected": question.expected,
            "mistakes": [[name, case, as_html(says, top=4)] for name, (case, says) in question.mistakes.items()],
        }
    )
    choices = "".join(f'<div class="choice">{each.html}</div>' for each in answer.pictures.values())
    parts.sections[-1].append(
        f'<div class="ask card" id="q-{number}"><p class="prompt" id="prompt-{number}">'
        f'<b class="number">{number}</b> {inline(parts.prompt)}</p><div class="form">{choices}</div>'
        f'<div class="verdict" role="status"></div><div class="reveal">{answer.explanation}{code}</div></div>'
    )
    parts.asked.append(_on_paper(parts, number, among if question.kind != "bars" else [], list(bars), choices))
    parts.answered.append(
        f'<div class="asked"><p><b>{number}</b> {inline(parts.prompt)} <b>{escape(in_words(question.measured))}</b></p>'
        + TEXT_OF.match(answer.explanation)[0]  # type: ignore[index]
        + "".join(f"<p><b>{escape(name)}</b>: {inline(says)}</p>" for name, (_, says) in question.mistakes.items())
        + "</div>"
    )
    parts.sections.append([])
    parts.pictures.clear()


def _on_paper(parts: Parts, number: int, among: Sequence[str], bars: Sequence[str], choices: str) -> str:
    """A question of the handout: what it is about, what is asked, and the space for an answer."""
    blocks = [block for block in parts.about.split("\n\n") if block and not block.startswith("#")]
    about = as_html("\n\n".join(blocks[-4:])) if blocks else ""
    boxes = "".join(f"<li>{escape(each)}</li>" for each in among)
    columns = "".join(f"<div><i></i>{escape(name)}</div>" for name in bars)
    space = f'<ul class="boxes">{boxes}</ul>' if boxes else f'<div class="axes">{columns}</div>' if bars else ""
    line = text("Because") if space else text("Your guess")
    return (
        f'<div class="asked"><div class="context">{about}<div class="pictures">{"".join(parts.pictures)}</div></div>'
        f"<p><b>{number}</b> <b>{inline(parts.prompt)}</b></p>{choices}{space}"
        f'<p class="write">{line}: <span class="line"></span></p></div>'
    )


def index(selection: Sequence[Lesson], pages: Sequence[Page]) -> str:
    """The page with all lessons, and how far the reader is in each."""
    items = "".join(
        f'<li value="{lesson.number}" class="card"><a href="{name_of(lesson)}">{inline(lesson.title)}</a>'
        f'<div class="soft">{as_html(lesson.about)}</div><p class="done" id="done-{lesson.number}"></p></li>'
        for lesson in selection
    )
    intro = text(
        "Each takes about ten minutes. Guess before you look: what surprises you, you will remember. All numbers and "
        "pictures were computed by the code that stands beside them, when these pages were made. What you answer stays "
        "in this browser."
    )
    data = {"index": {lesson.number: [page.key, page.questions] for lesson, page in zip(selection, pages)}}
    body = f'{header(text("Lessons in attention"))}\n<main><p>{intro}</p><ol class="lessons">{items}</ol></main>'
    return document(
        text("Lessons in attention"),
        body,
        f"{STYLE}\n{_file('lesson.css')}",
        _scripts(),
        data | {"texts": page_texts()},
        language(),
    )


def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _scripts() -> list[str]:
    return [_file(name) for name in SCRIPTS]


def highlighted(source: str) -> Iterator[str]:
    """Python as HTML: keywords, strings and comments are marked."""
    line_starts, done = [0, *accumulate(map(len, source.splitlines(keepends=True)))], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        start, end = (line_starts[row - 1] + column for row, column in (token.start, token.end))
        name = "keyword" if keyword.iskeyword(token.string) else CLASSES.get(token.type, "")
        string = escape(source[start:end], quote=False)
        yield escape(source[done:start], quote=False)
        yield f'<span class="{name}">{string}</span>' if name else string
        done = end
