"""The lessons and their cells; and a lesson in a terminal.

A lesson is a Python file in the percent format of jupytext. Its docstring is the title, and what the reader will see.
`# %% [markdown]` begins a text in comments, `# %%` begins code, and `# %% live` code whose tables are live on the page
(`tape.py`). A cell that begins with `guess = None` waits for a
guess, and the cell after it answers with `reveal`; the tests run these two several times. What is asked is the last
paragraph of the text before them, behind `**Guess N.**`.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minigpt.learning.languages import text, translated
from minigpt.learning.prose import as_text
from minigpt.system.errors import UserError
from minigpt.system.places import as_called
from minigpt.training.report import say

HERE = Path(__file__).parent
MARK = re.compile(r"^# %%(.*)$", re.M)
NO_GUESS = "guess = None"
PROMPT = re.compile(r"\*\*\w+ \d+\.\*\* ")  # before what is asked
TEXTS = {"say", "exercise"}  # functions whose calls are text of the lesson
READ_AFTER = {13: 5}  # a lesson that was added to the course later -> the one before it; numbers stay as they are


@dataclass(frozen=True)
class Cell:
    """A text in Markdown, or code; `line` is the number of its first line in the file."""

    kind: Literal["markdown", "code"]
    source: str
    line: int
    live: bool = False

    @property
    def waits(self) -> bool:
        """Whether a guess is to be written here."""
        return self.kind == "code" and self.source.startswith(NO_GUESS)

    @property
    def answers(self) -> bool:
        """Whether its code gives the answer to the guess before it, so that it should not be read first."""
        return self.kind == "code" and re.search(r"^reveal\(", self.source, re.M) is not None

    @property
    def prompt(self) -> str:
        """What a text asks at its end, without its number; empty if it asks nothing."""
        last = re.split(r"\n\s*\n", self.source)[-1] if self.kind == "markdown" else ""
        return " ".join(PROMPT.sub("", last, count=1).split()) if PROMPT.match(last) else ""

    @property
    def before_prompt(self) -> str:
        """A text without what it asks at its end."""
        return "\n\n".join(re.split(r"\n\s*\n", self.source)[:-1]) if self.prompt else self.source

    @property
    def computes(self) -> str:
        """Its code without the outermost calls that only print a text; empty if there is no other code."""
        lines = self.source.splitlines()
        for node in reversed(ast.parse(self.source).body):
            called = getattr(getattr(node, "value", None), "func", None)
            if isinstance(node, ast.Expr) and isinstance(called, ast.Name) and called.id in TEXTS:
                del lines[node.lineno - 1 : node.end_lineno]
        return "\n".join(lines).strip()


@dataclass(frozen=True)
class Lesson:
    """One lesson: `about` says what the reader will see."""

    number: int
    title: str
    about: str
    path: Path
    cells: tuple[Cell, ...]

    @property
    def prompts(self) -> list[str]:
        """What is asked, in order."""
        return [cell.prompt for cell in self.cells if cell.prompt]


def lessons() -> list[Lesson]:
    """All lessons, in the order in which they are read."""
    every = (read_lesson(path) for path in HERE.glob("lesson_*.py"))
    return sorted(every, key=lambda lesson: (READ_AFTER.get(lesson.number, lesson.number), lesson.number))


def lesson_of(number: int) -> Lesson:
    """The lesson with a number. Raises UserError."""
    by_number = {lesson.number: lesson for lesson in lessons()}
    if number not in by_number:
        raise UserError(f"there is no lesson {number}; there are {min(by_number)} to {max(by_number)}")
    return by_number[number]


def read_lesson(path: Path) -> Lesson:
    """A lesson from its file, in the language in use."""
    source = translated(as_called(path.read_text(encoding="utf-8")), path.stem)
    title, _, about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    number = re.match(r"lesson_(\d+)", path.name)
    assert number and re.match(rf"\w+ {int(number[1])}: ", title), f"{path}: expected the docstring Lesson N: ..."
    return Lesson(int(number[1]), title.partition(": ")[2].rstrip("."), about.strip(), path, tuple(cells(source)))


def cells(source: str) -> Iterator[Cell]:
    """The cells of a file; lines before the first mark belong to no cell."""
    marks = list(MARK.finditer(source))
    for mark, after in zip(marks, [*marks[1:], None]):
        text = source[mark.end() : after.start() if after else len(source)]
        line = source.count("\n", 0, mark.end()) + 1 + len(text) - len(text.lstrip("\n"))
        if "[markdown]" in mark[1]:
            yield Cell("markdown", "\n".join(row.removeprefix("#")[1:] for row in text.strip().splitlines()), line)
        else:
            yield Cell("code", text.strip(), line, mark[1].strip() == "live")


def execute(cell: Cell, names: dict[str, Any], path: Path) -> None:
    """Run the code of a cell with `names`, the globals of the cells before it; errors name the line of the file.

    Whoever asks for the source, as the checker does, sees the cells that ran: a translated one has other lines.
    """
    lines: list[str] = names.setdefault("__ran__", [])
    del lines[cell.line - 1 :]
    lines += ["\n"] * (cell.line - 1 - len(lines)) + f"{cell.source}\n".splitlines(keepends=True)
    linecache.cache[str(path)] = len(lines), None, lines, str(path)
    exec(compile("\n" * (cell.line - 1) + cell.source + "\n", str(path), "exec"), names)


def walk_through(lesson: Lesson) -> None:
    """Print a lesson from beginning to end, running its code: a question is asked where a guess is wanted."""
    heading = text("Lesson {number}: {title}", number=lesson.number, title=lesson.title)
    say(as_text(f"# {heading}\n\n{lesson.about}") + "\n")
    names: dict[str, Any] = {"__name__": lesson.path.stem}
    for cell in lesson.cells:
        if cell.kind == "markdown":
            say(as_text(cell.source) + "\n")
            continue
        if cell.computes and not (cell.waits or cell.answers):
            say("\n".join(f"  | {line}".rstrip() for line in cell.computes.splitlines()) + "\n")
        execute(cell, names, lesson.path)
