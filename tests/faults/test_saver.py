"""Large checkpoints are written while training goes on: the same ones, one at a time, and none is lost silently."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from running import one_line, script
from stopping import STEPS, furnished, leftovers, metrics, newest, same, train

from minigpt.system import waiting
from minigpt.system.waiting import heartbeat, in_background, progress
from minigpt.training import checkpoint, saver
from minigpt.training.checkpoint import checkpoints, load
from minigpt.training.saver import Saver

LATER = "import minigpt.training.saver\nminigpt.training.saver.LARGE = 0\n"
FULL = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9_000, -1))\n"


class Held:
    """`checkpoint.save`, which waits to be let go."""

    def __init__(self) -> None:
        self.go, self.order, self.plain = threading.Event(), list[str](), checkpoint.save

    def __call__(self, folder: Path, step: int, *rest: Any) -> Path:
        self.order.append(f"begin {step}")
        assert self.go.wait(60)
        path = self.plain(folder, step, *rest)
        self.order.append(f"end {step}")
        return path


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held()
    monkeypatch.setattr(checkpoint, "save", made)
    monkeypatch.setattr(saver, "LARGE", 0)
    yield made
    made.go.set()


def save(writing: Saver, folder: Path, step: int, number: torch.Tensor) -> None:
    writing.save(folder / "checkpoints", step, {"weight": number}, {"weight|step": number}, {}, {}, keep=2)


def test_the_numbers_are_those_of_the_moment_though_training_goes_on(held: Held, tmp_path: Path) -> None:
    writing, number = Saver(sharded=False), torch.ones(3)
    save(writing, tmp_path, 1, number)
    number += 1  # the next step
    assert checkpoints(tmp_path / "checkpoints") == []
    held.go.set()
    writing.wait()
    found = load(tmp_path / "checkpoints" / "step-000001")
    assert found.model["weight"].tolist() == found.optimizer["weight|step"].tolist() == [1, 1, 1]


def test_the_next_save_waits_for_the_one_before(held: Held, tmp_path: Path) -> None:
    writing = Saver(sharded=False)
    save(writing, tmp_path, 1, torch.ones(3))
    threading.Timer(0.3, held.go.set).start()
    save(writing, tmp_path, 2, torch.ones(3))
    writing.wait()
    assert held.order == ["begin 1", "end 1", "begin 2", "end 2"]
    save(writing, tmp_path, 3, torch.ones(3))
    writing.close()
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000003", "step-000002"]


@pytest.mark.parametrize(("name", "value"), [("LARGE", 25), ("free_memory", lambda: 71)])
def test_a_small_one_and_one_without_room_for_a_copy_are_written_at_once(
    name: str, value: object, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has twice 12 bytes; three times 24 are needed for a copy."""
    monkeypatch.setattr(saver, name, value)
    held.go.set()
    save(Saver(sharded=False), tmp_path, 1, torch.ones(3))
    assert held.order == ["begin 1", "end 1"]


def test_an_error_is_raised_by_whoever_waits_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any) -> Path:
        raise OSError("the disk is full")

    monkeypatch.setattr(saver, "LARGE", 0)
    monkeypatch.setattr(checkpoint, "save", fail)
    writing = Saver(sharded=False)
    for act in (writing.wait, lambda: save(writing, tmp_path, 2, torch.ones(3))):
        save(writing, tmp_path, 1, torch.ones(3))
        assert writing.thread is not None
        writing.thread.join()
        assert writing.failed
        with pytest.raises(OSError, match=r"it needs 24 bytes and [\d,]+ are free \(the disk is full\)"):
            act()
        assert not writing.failed
    save(writing, tmp_path, 3, torch.ones(3))
    writing.close()  # the training ends by another error
    assert capsys.readouterr().err.count("warning: the checkpoint was not written") == 1


def test_nothing_is_shown_of_what_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.0)
    with in_background(), heartbeat("a"):
        assert list(progress([1, 2], "counting", 2, "numbers")) == [1, 2]
    assert capsys.readouterr().err == ""
    assert list(progress([1, 2], "counting", 2, "numbers")) == [1, 2]
    assert "counting: " in capsys.readouterr().err


# ---- whole trainings ----


def later(folder: Path, extra: str = "") -> tuple[str, str]:
    """A plugin with which every checkpoint is large."""
    (folder / "later.py").write_text(LATER + extra, encoding="utf-8")
    return "--plugin", "later.py"


def test_a_training_is_the_same_to_the_bit(straight: Path, tmp_path: Path) -> None:
    ended = train(furnished(tmp_path), *later(tmp_path))
    assert ended.code == 0 and ended.err == "", ended
    assert newest(tmp_path).state["step"] == STEPS and leftovers(tmp_path) == []
    folders = [folder / "runs" / "small" / "checkpoints" for folder in (straight, tmp_path)]
    for name in ("step-000008", "step-000012"):
        one, other = (load(folder / name) for folder in folders)
        assert same(one, other) and one.seal != other.seal  # the plugin is part of the run
    assert metrics(straight) == metrics(tmp_path)


def test_a_signal_waits_for_the_save(straight: Path, tmp_path: Path) -> None:
    act = "import signal, minigpt.training.loop as loop\nplain, count = loop.accumulate, 0\n"
    act += "def one(*a):\n    global count; count += 1\n    count == 6 and signal.raise_signal(signal.SIGTERM)\n"
    act += "    return plain(*a)\nloop.accumulate = one\n"
    ended = train(furnished(tmp_path), *later(tmp_path, act))
    assert ended.code == 128 + signal.SIGTERM and newest(tmp_path).state["step"] == 6 and leftovers(tmp_path) == []
    assert script("train.py", "--resume", "small", *later(tmp_path), cwd=tmp_path).code == 0
    assert same(newest(tmp_path), newest(straight))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
@pytest.mark.parametrize("every", [4, STEPS])
def test_a_full_disk_ends_the_training_as_it_does_at_once(every: int, tmp_path: Path) -> None:
    """Within it, or when only the last checkpoint is not written."""
    ended = train(furnished(tmp_path), *later(tmp_path, FULL), f"training.checkpoint_every={every}")
    one_line(ended, 5)
    assert "the checkpoint was not written, it needs" in ended.err and leftovers(tmp_path) == []
    assert metrics(tmp_path)[-1]["step"] < 2 * every  # it is noticed after the next step, not at the next save


def test_processes_that_find_different_checkpoints_do_not_go_on_together(straight: Path, tmp_path: Path) -> None:
    """One of them cannot read the newest one, say."""
    act = "import minigpt.training.distributed as distributed\ndistributed.largest = lambda number: max(number, 5)\n"
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    ended = script("train.py", "--resume", "small", *later(tmp_path, act), "training.max_steps=14", cwd=tmp_path)
    assert ended.code == 4 and "step-000012: another process cannot read it, or finds a newer one" in ended.err, ended
