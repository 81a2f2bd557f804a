"""Helpers for the tests of comparisons: a small comparison, run in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from running import ForkedProcess

import minigpt.comparison.pool
import minigpt.comparison.worker
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.pool import Answer, OnAnswer, Task, WorkerPool
from minigpt.comparison.results import Job
from minigpt.comparison.variants import Comparison, load_comparison

SMALL = """\
compare: {baseline: one head, seeds: [1, 2], match: steps}
variants:
  mean: {model.attention: average_softmax}
  one head: {model.attention: single_head}
data: {source: stories, windows: documents, stories: {count: 300, validation: 60}}
model: {n_layer: 1, n_embd: 16, block_size: 128}
training: {batch_size: 8, max_steps: 6, eval_every: 3, device: cpu}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts and runs lie in the folder of the test. A file that imports this has it for all its tests."""
    monkeypatch.setenv("MINIGPT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    monkeypatch.setattr("minigpt.comparison.variants.RUNS", tmp_path / "runs")


def written(folder: Path, text: str = SMALL, name: str = "small") -> Path:
    """A comparison as a file."""
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def small(folder: Path, text: str = SMALL, overrides: tuple[str, ...] = ()) -> Comparison:
    """A comparison that is read from a file."""
    return load_comparison(str(written(folder, text)), overrides)


def finished(
    comparison: Comparison, plugins: tuple[Path, ...] = (), processes: bool = False, allow_leak: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Run a comparison, with or without worker processes. Returns its summary and the lines that it printed."""
    with pytest.MonkeyPatch.context() as patch:
        if processes:
            patch.setattr(minigpt.comparison.pool, "JsonProcess", ForkedProcess)
        else:
            patch.setattr(WorkerPool, "work", work_here)
        return run(comparison, plugins, allow_leak)


def run(
    comparison: Comparison, plugins: tuple[Path, ...] = (), allow_leak: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The same, with worker processes as a test has arranged them."""
    said: list[str] = []
    summary = Experiment(comparison, plugins, allow_leak, said.append).run("a test")
    assert json.loads((comparison.folder / "results.json").read_text("utf-8")) == json.loads(json.dumps(summary))
    return summary, said


def work_here(pool: WorkerPool, tasks: Sequence[Task], on_answer: OnAnswer) -> list[Answer]:
    """What `WorkerPool.work` does, in this process: to import torch in each worker takes longer than small runs."""
    answers: list[Answer] = []
    for task in tasks:
        try:
            answers.append(minigpt.comparison.worker.do(task, lambda message, task=task: on_answer(task, message)))
        except Exception as error:
            answers.append({"event": "failed", "message": f"{type(error).__name__}: {error}"})
        on_answer(task, answers[-1])
    return answers


def made_up(job: Job, loss: float) -> dict[str, Any]:
    """A result without a run."""
    who = {"variant": job.variant, "seed": job.seed, "status": "done", "message": "", "names": {}, "curve": []}
    return who | {"loss": loss, "above": None, "characters": 1000, "steps": 1}
