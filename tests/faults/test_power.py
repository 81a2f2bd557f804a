"""Power loss at every moment of a save and a prune: acknowledged checkpoints survive, whatever was not synced."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import crash
import power
import pytest
from running import process, script, well
from shim import RECORD, operations, under
from stopping import furnished

from minigpt.training import run as runs
from minigpt.training.report import read_metrics


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls this machine's plug: what the tests write need not be synced."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder in which three checkpoints were saved and one pruned, and all that was done to it."""
    folder, log = tmp_path_factory.mktemp("watched"), tmp_path_factory.mktemp("log") / "log"
    well(script(Path(crash.__file__), "record", folder, log, cwd=folder.parent, **under(folder)))
    return folder, log


def test_the_record_is_complete(recorded: tuple[Path, Path]) -> None:
    folder, log = recorded
    disk = power.Disk(folder / "run")
    for operation in operations(log):
        disk.play(operation)
    assert disk.after(power.ALL, "kept", random.Random(0)) == power.read(folder / "run")
    assert crash.read(folder / "run" / "checkpoints") == 3


@pytest.mark.slow
def test_power_loss_at_every_moment(recorded: tuple[Path, Path], tmp_path: Path) -> None:
    """The newest acknowledged checkpoint, or a newer whole one, verifies with its numbers, and the run goes on."""
    folder, log = recorded
    disk, draw, acknowledged = power.Disk(folder / "run"), random.Random(1337), 0
    seen: dict[frozenset[tuple[str, bytes | None]], int] = {}  # what is found on a disk
    for operation in operations(log):
        disk.play(operation)
        if operation.kind == "n":
            acknowledged = int(operation.path.removeprefix("saved "))
        for tree in power.failures(disk, draw):
            state = frozenset(tree.items())
            if state not in seen:
                power.write(tree, tmp_path / "disk")
                seen[state] = found_and_gone_on(tmp_path / "disk" / "checkpoints")
                shutil.rmtree(tmp_path / "disk")
            found = seen[state]
            assert found >= acknowledged, f"after {operation.kind} {operation.path}: {found}, not {acknowledged}"
    assert acknowledged == 3 and len(seen) > 200


def found_and_gone_on(checkpoints: Path) -> int:
    """The newest step that verifies; the next one is saved after it, and nothing but whole checkpoints is left."""
    found = crash.read(checkpoints)
    names = crash.go_on(checkpoints)
    assert names[-1] == f"step-{found + 1:06d}" and all(name.startswith("step-") for name in names)
    return found


@pytest.mark.slow
def test_power_loss_in_a_whole_run(tmp_path: Path) -> None:
    """Once a checkpoint is acknowledged, all that it takes to go on is there: config, tokenizer, each step's line."""
    home, log, disk = furnished(tmp_path / "home"), tmp_path / "log", tmp_path / "disk"
    (home / "runs").mkdir()
    few = ("training.max_steps=4", "training.checkpoint_every=2", "training.eval_every=2", "training.sample_every=0")
    ended = process("train.py", "--config", "small.yaml", *few, cwd=home, **under(home / "runs", RECORD, log=log))
    assert ended.code == 0
    model, draw, acknowledged, renamed = power.Disk(home / "runs"), random.Random(1337), 0, 0
    seen = set()
    for operation in operations(log):
        model.play(operation)
        if operation.kind == "r" and "/step-" in operation.other:
            renamed = int(operation.other[-6:])
        if operation.kind == "s" and operation.path.endswith("/checkpoints"):
            acknowledged = renamed
        for tree in power.failures(model, draw) if acknowledged else ():
            if (acknowledged, frozenset(tree.items())) in seen:
                continue
            seen.add((acknowledged, frozenset(tree.items())))
            power.write(tree, disk)
            run = runs.load(disk / "small", "cpu")
            assert run.step >= acknowledged and all(weight.isfinite().all() for weight in run.model.parameters())
            steps = [
                line["step"] for line in read_metrics(disk / "small" / "metrics.jsonl") if line["step"] <= run.step
            ]
            assert steps == list(range(1, run.step + 1)), f"after {operation.kind} {operation.path}"
            shutil.rmtree(disk)
    assert acknowledged == 4 and len(seen) > 20
