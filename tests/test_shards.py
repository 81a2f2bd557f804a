"""Checkpoints in shards: processes save them together (gloo), any number resumes, and a killed one loses nothing."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ranks import IMPORTS, ranks
from running import CONFIG, SCRIPTS, furnish, script, wait_until
from small_trainings import furthest

from minigpt.training.checkpoint import checkpoints, load, newest
from minigpt.training.report import read_metrics

TOGETHER = SCRIPTS.parent / "tests" / "faults" / "together.py"


def together(what: str, folder: Path, *arguments: object) -> tuple[list[dict[str, Any]], str]:
    """What the processes of `together.py` found, a line for each trial, and their complaints."""
    said = script(TOGETHER, what, folder, *arguments, cwd=folder, imports=IMPORTS)
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()], said.err


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "sizes"), [("adamw", (1, 2, 4)), ("muon", (2, 3))])
def test_saved_by_some_and_resumed_by_any_number(optimizer: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    """In float64: with as many processes equal to the bit, with others but for the order of sums."""
    together("resume", tmp_path, optimizer, *sizes)
    end = "step-000006"
    alone = load(tmp_path / str(sizes[0]) / end)
    for before in sizes:
        uninterrupted = load(tmp_path / str(before) / end)
        assert furthest(uninterrupted, alone) < 1e-12
        assert len(list((tmp_path / str(before) / end).glob("shard-*"))) == (0 if before == 1 else 2 * before)
        for after in sizes:
            difference = furthest(load(tmp_path / f"{before}-{after}" / end), uninterrupted)
            assert difference == 0.0 if before == after else difference < 1e-12, (before, after)


@pytest.mark.slow
def test_a_process_that_is_killed_within_a_save_loses_nothing(tmp_path: Path) -> None:
    trials, complaints = together("kill", tmp_path, 8, 1)
    assert len(trials) == 8
    for trial in trials:
        assert not trial["problem"], trial  # among them: wrong numbers
        assert trial["found"] >= trial["saved"] >= 2, trial  # what was acknowledged is there
        assert trial["halves"] == [], trial
        kept = [trial["found"], trial["found"] + 1]
        assert trial["later"] == [f"step-{step:06d}" for step in kept], trial  # and leftovers are not
    within = sum(sorted(trial["codes"]) == [-9, 1] for trial in trials)
    assert within >= 4 and complaints.count("ConnectionError: another of the 2 processes has ended") >= within


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_is_an_error_of_all(tmp_path: Path) -> None:
    (*refused, after), _ = together("full", tmp_path)
    assert len(refused) == 2 and all("process 1: OSError: " in line["error"] for line in refused)
    assert after == {"found": 3}
    assert sorted(path.name for path in (tmp_path / "tried").iterdir()) == [f"step-{n:06d}" for n in (1, 2, 3)]


LATER = """
import os, minigpt.training.saver

minigpt.training.saver.LARGE = 0  # every checkpoint is written while training goes on
with open(f"process-{os.environ.get('RANK')}", "w") as file:
    file.write(str(os.getpid()))
"""


@pytest.mark.slow
def test_a_training_of_which_a_process_is_killed_while_it_saves_is_resumed_by_one(tmp_path: Path) -> None:
    config = CONFIG.replace("max_steps: 8", "max_steps: 100000").replace("checkpoint_every: 4", "checkpoint_every: 2")
    furnish(tmp_path, config)
    (tmp_path / "later.py").write_text(LATER, encoding="utf-8")
    arguments = "--config", "small.yaml", "--plugin", "later.py", "training.parallel=fsdp"
    folder = tmp_path / "runs" / "small" / "checkpoints"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(ranks, "train.py", *arguments, cwd=tmp_path)
        wait_until(lambda: bool(list(folder.glob("step-*")) and list(folder.glob(".writing-*/shard-00002*"))))
        os.kill(int((tmp_path / "process-1").read_text()), signal.SIGKILL)
        ended = running.result()
    assert ended.code != 0 and "another of the 2 processes has ended" in ended.err
    step = newest(folder)[0].state["step"]
    assert list(checkpoints(folder)[0].glob("shard-*"))
    more = f"training.max_steps={step + 3}", "training.eval_every=100000"
    resumed = script("train.py", "--resume", "small", "--plugin", "later.py", *more, cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert newest(folder)[0].state["step"] == step + 3 and not list(folder.glob(".*"))
    lines = read_metrics(tmp_path / "runs" / "small" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, step + 4))
