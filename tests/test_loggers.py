"""Loggers beside metrics.jsonl: the same numbers, one log for a run and its resumes, and no training ends for them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from comparing import SMALL, finished, small
from running import furnish, script, well

from minigpt.comparison import variants as compare
from minigpt.config.options import load as load_config
from minigpt.system.errors import UserError
from minigpt.training.assemble import RunConfig
from minigpt.training.report import read_metrics
from minigpt.training.start import resume, start
from minigpt.training.trainer import Trainer

CHOSEN = "training.loggers=[trackio]"


class Trackio:
    """Stands in for the package: what was asked of it, and a mistake of its own where it is told to make one."""

    def __init__(self, fails: str = ""):
        self.asked, self.fails = list[tuple[Any, ...]](), fails
        self.module = SimpleNamespace(init=self.init, log=self.log, finish=self.finish, __spec__=SimpleNamespace())

    def init(self, project: str, name: str, resume: str, embed: bool) -> None:
        print("* a line that nobody wants in a training")
        self.answer("init", project, name, resume, embed)

    def log(self, values: dict[str, float], step: int) -> None:
        self.answer("log", {"step": step} | values)

    def finish(self) -> None:
        self.answer("finish")

    def answer(self, what: str, *how: Any) -> None:
        self.asked.append((what, *how))
        if what == self.fails:
            raise OSError("no space left")


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Trackio:
    made = Trackio(getattr(request, "param", ""))
    monkeypatch.setitem(sys.modules, "trackio", made.module)  # type: ignore[arg-type]
    monkeypatch.chdir(furnish(tmp_path))
    monkeypatch.setenv("MINIGPT_DATA", str(tmp_path / "data"))
    return made


def begun(said: list[str], *overrides: str) -> Trainer:
    """A training of the small model that is logged."""
    return start(load_config(RunConfig, "small.yaml", [CHOSEN, *overrides]), "small", [], False, said.append)


def test_a_logger_gets_the_lines_of_the_metrics_and_goes_on_after_a_resume(
    trackio: Trackio, capsys: pytest.CaptureFixture[str]
) -> None:
    begun([]).fit()
    folder = Path("runs/small")
    resume(folder, ["training.max_steps=12"], [], False, False, lambda line: None).fit()
    lines = [how[0] for what, *how in trackio.asked if what == "log"]
    written = read_metrics(folder / "metrics.jsonl")
    best = [(line.pop("val/best_step"), line.pop("val/best")) for line in lines if "val/loss" in line]
    assert lines == written and len(lines) == 12
    losses = [(line["val/loss"], line["step"]) for line in written if "val/loss" in line]
    assert best == [min(losses[:n])[::-1] for n in range(1, 4)]  # the best one so far, over the resume too
    (_, project, name, first, shown), (_, _, again, second, _) = [ask for ask in trackio.asked if ask[0] == "init"]
    assert (project, first, second, shown) == ("minigpt", "never", "allow", False)
    assert name == again and name.startswith("small-")
    assert trackio.asked.count(("finish",)) == 2
    assert "nobody wants" not in capsys.readouterr().out


@pytest.mark.parametrize("trackio", ["init", "log", "finish"], indirect=True)
def test_a_logger_that_fails_is_said_once_and_stops_nothing(
    trackio: Trackio, capsys: pytest.CaptureFixture[str]
) -> None:
    begun([]).fit()
    assert len(read_metrics(Path("runs/small/metrics.jsonl"))) == 8
    warning = "warning: the logger trackio failed (OSError: no space left); training goes on without it"
    assert capsys.readouterr().out.count(warning) == 1


def test_a_logger_that_is_not_installed_is_named_before_anything_begins(
    trackio: Trackio, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a run that is resumed, and in a comparison, too."""
    begun([]).fit()
    monkeypatch.setitem(sys.modules, "trackio", None)
    missing = r'^training.loggers: trackio is not installed: pip install -e "\.\[trackio\]"$'
    with pytest.raises(UserError, match=missing):
        begun([])
    with pytest.raises(UserError, match=missing):
        resume(Path("runs/small"), ["training.max_steps=12"], [], False, False)
    monkeypatch.setattr(compare, "RUNS", tmp_path / "compare")
    with pytest.raises(UserError, match=missing):
        finished(small(tmp_path, SMALL, (CHOSEN,)))
    assert not (tmp_path / "compare").exists() and len(list(Path("runs").iterdir())) == 1


@pytest.mark.slow
def test_tensorboard_reads_what_the_metrics_say(tmp_path: Path) -> None:
    """The real one: a run that goes on from step 8 after its log reached step 12 has each step once."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason='there is no TensorBoard: pip install -e ".[tensorboard]"',
        exc_type=ImportError,
    )
    furnish(tmp_path)
    well(script("train.py", "--config", "small.yaml", "training.loggers=[tensorboard]", cwd=tmp_path))
    folder = tmp_path / "runs" / "small"
    longer = "training.max_steps=12"
    well(script("train.py", "--resume", longer, "training.checkpoint_every=100", cwd=tmp_path))
    (newest,) = folder.glob("checkpoints/*12")
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    well(script("train.py", "--resume", longer, cwd=tmp_path))
    log = reading.EventAccumulator(str(folder / "tensorboard"))
    log.Reload()
    lines = read_metrics(folder / "metrics.jsonl")
    losses = [(line["val/loss"], line["step"]) for line in lines if "val/loss" in line]
    assert [event.value for event in log.Scalars("val/best_step")] == [min(losses[:n])[1] for n in (1, 2, 3)]
    for name in lines[-1].keys() - {"step"}:
        logged = [(event.step, event.value) for event in log.Scalars(name)]
        assert logged == [(line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines if name in line]
