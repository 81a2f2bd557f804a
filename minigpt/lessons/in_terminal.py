"""A lesson in a terminal: its texts, its code, what the code shows, and a question where a guess is wanted."""

from __future__ import annotations

from typing import Any

from minigpt.lessons.course import Lesson, execute
from minigpt.lessons.prose import as_text
from minigpt.runs.report import say


def walk_through(lesson: Lesson) -> None:
    """Print a lesson from beginning to end, running its code."""
    say(as_text(f"# Lesson {lesson.number}: {lesson.title}\n\n{lesson.about}") + "\n")
    names: dict[str, Any] = {"__name__": lesson.path.stem}
    for cell in lesson.cells:
        if cell.kind == "markdown":
            say(as_text(cell.source) + "\n")
            continue
        if cell.computes and not (cell.waits or cell.answers):
            say("\n".join(f"  | {line}".rstrip() for line in cell.computes.splitlines()) + "\n")
        execute(cell, names, lesson.path)
