"""A lesson as a notebook (.ipynb, nbformat 4.5): the same cells, behind the first one of `start.ipynb`.

That cell installs minigpt where it is missing, as on Colab. The code of cells that give an answer, or that only print a
text, is collapsed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minigpt.learning.course import Lesson, lessons
from minigpt.learning.languages import text
from minigpt.system.folder import write_whole

START = Path(__file__).with_name("start.ipynb")  # a first training, for Jupyter, Colab and Kaggle
COLLAPSED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # Jupyter's name for it, and Colab's


def as_notebook(lesson: Lesson) -> dict[str, Any]:
    """The notebook, as a dict to be written as JSON."""
    heading = text("Lesson {number}: {title}", number=lesson.number, title=lesson.title)
    title = f"# {heading}\n\n{lesson.about}"
    setup: dict[str, Any] = json.loads(START.read_text(encoding="utf-8"))["cells"][0]
    cells = [setup, _cell(lesson, 0, "markdown", title)]
    for index, cell in enumerate(lesson.cells, start=1):
        notebook_cell = _cell(lesson, index, cell.kind, cell.source)
        if cell.kind == "code":
            hidden = cell.answers or not cell.computes
            notebook_cell |= {"execution_count": None, "outputs": [], "metadata": COLLAPSED if hidden else {}}
        cells.append(notebook_cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(lesson: Lesson, index: int, kind: str, source: str) -> dict[str, Any]:
    name = f"lesson-{lesson.number}-cell-{index}"
    return {"cell_type": kind, "id": name, "metadata": {}, "source": source.splitlines(keepends=True)}


def write_notebooks(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the lessons into a folder; returns (those written, those already there, left unchanged). Raises OSError.

    A notebook that is already there may contain the reader's guesses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    created_paths, existing_paths = list[Path](), list[Path]()
    for lesson in lessons():
        path = folder / f"{lesson.path.stem}.ipynb"
        if path.exists():
            existing_paths.append(path)
            continue
        write_whole(path, json.dumps(as_notebook(lesson), indent=1, ensure_ascii=False) + "\n")
        created_paths.append(path)
    return created_paths, existing_paths
