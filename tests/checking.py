"""For the tests of the checker: one server for the files of a chapter, and files as learners hand them in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ForkedProcess

from minigpt.checks.learners import confined as confinement
from minigpt.checks.learners.confined import Confined, Limits
from minigpt.learning.classroom import Grade, Task, grade_exercise


def forked_servers() -> Iterator[None]:
    """A fixture: servers are forked, since to import torch takes longer than most files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confinement, "JsonProcess", ForkedProcess)
        yield


def one_server(forked_servers: None) -> Iterator[Confined]:
    """A fixture: one server for all files, with time for a busy machine."""
    with Confined(Limits(processor_seconds=30, seconds=600)) as started:
        yield started


def write(path: Path, text: str) -> Path:
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def graded(folder: Path, exercise: str, text: str, confined: Confined) -> Grade:
    """What a learner is told of an exercise with this text."""
    return grade_exercise(Task(write(folder / f"{exercise}.py", text), exercise, folder.name), confined)
