"""The lessons and their cells; and a lesson in a terminal.

A lesson is a Python file in the percent format of jupytext. Its docstring is the title, and what the reader will see.
`# %% [markdown]` begins a text in comments, `# %%` begins code. A cell that begins with `guess = None` waits for a
guess, and the cell after it answers with `reveal`; the tests run these two several times.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minigpt.learning.prose import as_text
from minigpt.system.errors import UserError
from minigpt.system.places import as_called
from minigpt.training.report import say

HERE = Path(__file__).parent
MARK = re.compile(r"^# %%(.*)$", re.M)
NO_GUESS = "guess = None"
TEXTS = {"say", "exercise"}  # functions whose calls are text of the lesson


@dataclass(frozen=True)
class Cell:
    """A text in Markdown, or code; `line` is the number of its first line in the file."""

    kind: Literal["markdown", "code"]
    source: str
    line: int

    @property
    def waits(self) -> bool:
        """Whether a guess is to be written here."""
        return self.kind == "code" and self.source.startswith(NO_GUESS)

    @property
    def answers(self) -> bool:
        """Whether its code gives the answer to the guess before it, so that it should not be read first."""
        return self.kind == "code" and re.search(r"^reveal\(", self.source, re.M) is not None

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


def lessons() -> list[Lesson]:
    """All lessons, in order."""
    return sorted((read_lesson(path) for path in HERE.glob("lesson_*.py")), key=lambda lesson: lesson.number)


def lesson_of(number: int) -> Lesson:
    """The lesson with a number. Raises UserError."""
    by_number = {lesson.number: lesson for lesson in lessons()}
    if number not in by_number:
        raise UserError(f"there is no lesson {number}; there are {min(by_number)} to {max(by_number)}")
    return by_number[number]


def read_lesson(path: Path) -> Lesson:
    """A lesson from its file."""
    source = as_called(path.read_text(encoding="utf-8"))
    title, _, about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    number = re.match(r"lesson_(\d+)", path.name)
    assert number and title.startswith(f"Lesson {int(number[1])}: "), f"{path}: expected the docstring Lesson N: ..."
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
            yield Cell("code", text.strip(), line)


def execute(cell: Cell, names: dict[str, Any], path: Path) -> None:
    """Run the code of a cell with `names`, the globals of the cells before it; errors name the line of the file."""
    exec(compile("\n" * (cell.line - 1) + cell.source + "\n", str(path), "exec"), names)


def walk_through(lesson: Lesson) -> None:
    """Print a lesson from beginning to end, running its code: a question is asked where a guess is wanted."""
    say(as_text(f"# Lesson {lesson.number}: {lesson.title}\n\n{lesson.about}") + "\n")
    names: dict[str, Any] = {"__name__": lesson.path.stem}
    for cell in lesson.cells:
        if cell.kind == "markdown":
            say(as_text(cell.source) + "\n")
            continue
        if cell.computes and not (cell.waits or cell.answers):
            say("\n".join(f"  | {line}".rstrip() for line in cell.computes.splitlines()) + "\n")
        execute(cell, names, lesson.path)
