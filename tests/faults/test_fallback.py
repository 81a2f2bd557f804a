"""Checkpoints that cannot be used are skipped and named; a few lines are printed, however many there are."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path
from typing import Any, cast

import crash
import pytest
from comparing import SMALL, small
from running import Ended, script
from shim import UNREADABLE, under
from stopping import COMMANDS

import minigpt
from minigpt.comparison import variants as compare
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.pool import WorkerPool
from minigpt.comparison.results import jobs
from minigpt.training.checkpoint import CheckpointError, newest


@pytest.fixture
def home(straight: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(straight, tmp_path / "home"))


def says_so(ended: Ended, name: str) -> None:
    """The older checkpoint was used, and one line says why the newest was not."""
    assert ended.code == 0, ended
    (line,) = [line for line in (ended.out + ended.err).splitlines() if line.startswith("skipped: ")]
    assert name in line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_that_an_older_one_was_taken(command: str, home: Path) -> None:
    (home / "runs" / "small" / "checkpoints" / "step-000012" / "state.json").write_text("{}", encoding="utf-8")
    says_so(script(*COMMANDS[command], cwd=home), "step-000012/state.json")


def test_so_does_a_notebook(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs" / "small" / "checkpoints" / "step-000012" / "state.json").write_text("{}", encoding="utf-8")
    run = minigpt.load(home / "runs" / "small", "cpu")
    assert run.step == 8 and len(run.notes) == 1
    assert capsys.readouterr().err == f"{run.notes[0]}\n"


@pytest.mark.parametrize(
    ("error", "text", "name"),
    [(errno.EIO, "Input/output error", "model.safetensors"), (errno.EACCES, "Permission denied", "manifest.json")],
)
def test_one_that_cannot_be_read_is_passed_over_by_name(error: int, text: str, name: str, home: Path) -> None:
    """A disk that fails at a file of the newest, or no permission."""
    ended = script(*COMMANDS["sample"], cwd=home, **under(home, UNREADABLE, error, f"step-000012/{name}"))
    says_so(ended, f"step-000012/{name}: cannot be read ({text})")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_checkpoints_none_of_which_is_whole(command: str, home: Path) -> None:
    for path in (home / "runs" / "small" / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(path.read_bytes()[:1000] + b"\0\1" + path.read_bytes()[1002:])
    ended = script(*COMMANDS[command], cwd=home)
    assert ended.code == 4 and ended.err.count("\n") == 1 and ended.err.startswith("checkpoint refused: skipped: ")
    assert "step-000012/model" in ended.err and "step-000008/model" in ended.err, ended


def test_a_folder_of_checkpoints_none_of_which_can_be_read(home: Path) -> None:
    ended = script(*COMMANDS["sample"], cwd=home, **under(home, UNREADABLE, errno.EIO, "state.json"))
    assert ended.code == 4 and ended.err.count("\n") == 1 and ended.err.count("cannot be read") == 2, ended


def test_three_hundred_bad_ones_are_a_few_lines_and_a_count(tmp_path: Path) -> None:
    for step in range(2, 302):
        (tmp_path / f"step-{step:06d}").mkdir()
    with pytest.raises(CheckpointError, match="and 297 more like these") as refused:
        newest(tmp_path)
    assert "step-000301" in str(refused.value) and len(str(refused.value)) < 1000
    crash.write(tmp_path, 1)
    saved, notes = newest(tmp_path)
    assert saved.path.name == "step-000001" and len(notes) == 4 and notes[-1] == "and 297 more like these"


def test_and_so_are_the_bad_results_of_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RUNS", tmp_path / "runs")
    comparison = small(tmp_path, SMALL.replace("[1, 2]", f"{list(range(50))}"))
    for job in jobs(comparison, ()):
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").write_text("{", encoding="utf-8")
    said: list[str] = []
    experiment = Experiment(comparison, (), False, said.append)
    experiment.speeds = {name: {"step": 1.0, "curve": 1.0, "whole": 1.0} for name in comparison.variants}

    class Stopped:
        size = 1

        def work(self, *_: Any) -> None:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        experiment.do(cast(WorkerPool, Stopped()), experiment.jobs())
    again = [line for line in said if "trained again" in line or "more like these" in line]
    assert len(again) == 4 and again[-1] == "and 97 more like these"
