"""A kill or a disk error at every operation of a save and a prune: acknowledged checkpoints survive."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crash import BEST
from running import script, well
from shim import BROKEN, FULL, KILL_AFTER, KILL_BEFORE, KILL_WITHIN, under

HERE = Path(__file__).parent
SIGKILL = -9


def crash(what: str, folder: Path, *arguments: object, **env: str) -> list[dict[str, Any]]:
    """What `crash.py` saw: a line for each child that it forked."""
    (folder / "crash").mkdir()
    said = well(script(HERE / "crash.py", what, folder / "crash", *arguments, cwd=folder, **env))
    return [json.loads(line) for line in said.splitlines()]


def check(trial: dict[str, Any]) -> None:
    """What holds after any crash: the newest acknowledged checkpoint loads, and the run goes on without leftovers.

    The best one, which is none of the newest, is there and whole too.
    """
    assert not trial["problem"], trial  # among them: wrong numbers
    assert trial["found"] >= trial["saved"] >= 2, trial
    kept = [BEST[0], trial["found"], trial["found"] + 1]
    damaged = {"step-000003"} if trial["found"] == 2 else set()  # it was so before
    assert set(trial["halves"]) <= damaged, trial
    assert trial["later"] == [f"step-{step:06d}" for step in kept], trial


def test_killed_at_every_file_system_operation(tmp_path: Path) -> None:
    trials = crash("kill", tmp_path, **under(tmp_path))
    for trial in trials:
        check(trial)
        assert trial["code"] == SIGKILL, trial
    modes = Counter(trial["mode"] for trial in trials)
    kinds = "".join(trial["kind"] for trial in trials if trial["mode"] == KILL_BEFORE)
    assert modes[KILL_BEFORE] == len(kinds)
    assert modes[KILL_WITHIN] == modes[KILL_AFTER] == kinds.count("w") >= 4  # a write for each file
    assert kinds.count("s") >= 6  # four files, their folder, the folder above
    assert "r" in kinds and "u" in kinds and "d" in kinds  # into place, and the old one out of it
    assert {trial["found"] for trial in trials} == {2, 3}  # before the rename into place, and after it


def test_a_full_or_broken_disk_at_every_operation(tmp_path: Path) -> None:
    trials = crash("fail", tmp_path, **under(tmp_path))
    for trial in trials:
        check(trial)
        assert trial["code"] in (0, 5), trial  # done in spite of it, or OSError
        assert bool(trial["errors"]) == (trial["code"] == 5), trial
        if trial["mode"] == FULL:  # what is written takes space, and what fails says so and leaves nothing
            assert trial["code"] == 5 and "No space left on device" in trial["errors"][0], trial
            assert trial["at"] == 1 or not any(name.startswith(".writing") for name in trial["names"]), trial
    broken = [trial for trial in trials if trial["mode"] == BROKEN]
    assert all(trial["code"] == 5 for trial in broken if trial["kind"] in "swo")  # an fsync that failed is no save
    assert all(
        trial["found"] == 2 for trial in trials if trial["code"] == 5 and trial["saved"] == 2 and trial["kind"] in "wom"
    )


def test_a_rename_or_a_removal_that_is_refused_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    trials = crash("busy", tmp_path, **under(tmp_path))
    for trial in trials:
        check(trial)
        assert trial["code"] == 0 and trial["found"] == 3 and not trial["errors"], trial
    assert {trial["kind"] for trial in trials} == {"r", "u", "d"}


def test_killed_at_12_random_moments(tmp_path: Path) -> None:
    for trial in crash("moments", tmp_path, 12, **under(tmp_path)):
        check(trial)


@pytest.mark.slow
def test_killed_at_more_random_moments(tmp_path: Path, whole: bool) -> None:
    count = 300 if whole else 48
    trials = crash("moments", tmp_path, count)
    for trial in trials:
        check(trial)
    assert len(trials) == count
    assert {trial["saved"] for trial in trials} >= set(range(2, 8))  # they fell everywhere


def test_a_reader_sees_whole_checkpoints_while_they_come_and_go(tmp_path: Path) -> None:
    (report,) = crash("read", tmp_path, 300, **under(tmp_path))
    assert report["problem"] == ""
    assert report["reads"] == 300 and report["different"] > 20  # it was never waited for
