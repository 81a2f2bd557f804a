"""Checkpoints in shards: processes save them together (gloo), any number resumes, and a killed one loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import SCRIPTS, script

from minigpt.runs.checkpoint import Checkpoint, load

TOGETHER = SCRIPTS.parent / "tests" / "faults" / "together.py"


def together(what: str, folder: Path, *arguments: object) -> tuple[list[dict[str, Any]], str]:
    """What the processes of `together.py` found, a line for each trial, and their complaints."""
    said = script(TOGETHER, what, folder, *arguments, cwd=folder)
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()], said.err


def furthest(one: Checkpoint, other: Checkpoint) -> float:
    """The largest difference of two checkpoints' numbers, the optimizer's among them."""
    mine, theirs = one.model | one.optimizer, other.model | other.optimizer
    assert mine.keys() == theirs.keys()
    return max((mine[name] - theirs[name]).abs().max().item() for name in mine)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "sizes"), [("adamw", (1, 2, 4)), ("muon", (1, 2, 3))])
def test_saved_by_some_and_resumed_by_any_number(optimizer: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    """In float64: with as many processes equal to the bit, with others but for the order of sums."""
    together("resume", tmp_path, optimizer, *sizes)
    end = "step-000006"
    alone = load(tmp_path / "1" / end)
    for before in sizes:
        uninterrupted = load(tmp_path / str(before) / end)
        assert furthest(uninterrupted, alone) < 1e-12
        assert len(list((tmp_path / str(before) / end).glob("shard-*"))) == (0 if before == 1 else 2 * before)
        for after in sizes:
            difference = furthest(load(tmp_path / f"{before}-{after}" / end), uninterrupted)
            assert difference == 0.0 if before == after else difference < 1e-12, (before, after)


@pytest.mark.slow
def test_a_process_that_is_killed_within_a_save_loses_nothing(tmp_path: Path) -> None:
    trials, complaints = together("kill", tmp_path, 10, 1)
    assert len(trials) == 10
    for trial in trials:
        assert not trial["problem"], trial  # among them: wrong numbers
        assert trial["found"] >= trial["saved"] >= 2, trial  # what was acknowledged is there
        assert trial["halves"] == [], trial
        kept = [trial["found"], trial["found"] + 1]
        assert trial["later"] == [f"step-{step:06d}" for step in kept], trial  # and leftovers are not
    within = sum(sorted(trial["codes"]) == [-9, 1] for trial in trials)
    assert within >= 5 and complaints.count("ConnectionError: another of the 2 processes has ended") >= within


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_is_an_error_of_all(tmp_path: Path) -> None:
    (*refused, after), _ = together("full", tmp_path)
    assert len(refused) == 2 and all("process 1: OSError: " in line["error"] for line in refused)
    assert after == {"found": 3}
    assert sorted(path.name for path in (tmp_path / "tried").iterdir()) == [f"step-{n:06d}" for n in (1, 2, 3)]
