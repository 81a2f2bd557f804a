"""One process at a time in a run's folder: a second one is told which process has it; a crash leaves no lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Started, environment, script, started, wait_until
from stopping import PLUGIN, furnished, metrics, newest, resume, same, train

WAIT = "Path('waiting').touch(); signal.pause()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Started]:
    """A training that has done six steps and now waits, in the folder of the test."""
    furnished(tmp_path)
    text = PLUGIN.format(act=WAIT, owner="minigpt.training.loop", name="accumulate", nth=7)
    (tmp_path / "happening.py").write_text(text, encoding="utf-8")
    with started("train.py", "--config", "small.yaml", "--plugin", "happening.py", cwd=tmp_path) as running:
        wait_until((tmp_path / "waiting").exists, running)
        yield running


def test_the_second_is_told_who_holds_it_and_may_have_it_after_a_crash(holder: Started, tmp_path: Path) -> None:
    before = sorted(path.name for path in (tmp_path / "runs" / "small").rglob("*"))
    second = resume(tmp_path)
    assert second.code == 2 and second.err.count("\n") == 1
    assert f"runs/small is in use by process {holder.pid} on {os.uname().nodename}" in second.err
    assert sorted(path.name for path in (tmp_path / "runs" / "small").rglob("*")) == before

    sampled = script("sample.py", "--run", "small", "--max-tokens", 5, cwd=tmp_path)  # to read needs no lock
    assert sampled.code == 0 and sampled.err == ""
    assert train(tmp_path).code == 0 and (tmp_path / "runs" / "small-2").is_dir()  # another run takes another folder

    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert json.loads((tmp_path / "runs" / "small" / ".holder").read_text("utf-8"))["pid"] == holder.pid
    assert resume(tmp_path).code == 0
    other = tmp_path / "other"
    assert train(furnished(other)).code == 0
    assert metrics(tmp_path) == metrics(other) and same(newest(tmp_path), newest(other))


def test_a_removed_lock_file_lets_nobody_in(holder: Started, tmp_path: Path) -> None:
    """The folder itself is locked as well; without `.holder` the second is not told by whom."""
    (tmp_path / "runs" / "small" / ".lock").unlink()
    (tmp_path / "runs" / "small" / ".holder").unlink()
    before = metrics(tmp_path)
    for _ in range(2):
        second = resume(tmp_path)
        assert second.code == 2 and second.err.count("\n") == 1, second
        assert "runs/small is in use by another process: two runs cannot share a folder" in second.err
    assert metrics(tmp_path) == before


@pytest.mark.parametrize(
    "left", ["", "{", '{"pid": "1; rm -rf", "host": []}', "[" * 100_000, '{"pid": 1, "host": "another"}']
)
def test_what_a_lock_file_says_stops_nobody(left: str, tmp_path: Path) -> None:
    """The system holds the lock; the file only says who."""
    furnished(tmp_path)
    assert train(tmp_path, "training.max_steps=4").code == 0
    for name in (".lock", ".holder"):
        (tmp_path / "runs" / "small" / name).write_text(left, encoding="utf-8")
    assert resume(tmp_path, "training.max_steps=8").code == 0


WITHOUT_POSIX = """
import os, signal, sys
import filelock, torch
for module, names in ((signal, ("SIGHUP", "SIGPIPE")), (os, ("pread", "sched_getaffinity", "getloadavg"))):
    for name in names:
        delattr(module, name)
sys.modules["fcntl"], sys.platform = None, "win32"
import minigpt.command
from minigpt.runs.start import start
from minigpt.runs.assemble import RunConfig
from minigpt.config.options import load
from minigpt.system.folder import InUse, Lock
"""
TRAIN = """
minigpt.command.receive_signals()
trainer = start(load(RunConfig, "small.yaml", []), "small", [], allow_leak=False)
try:
    Lock(trainer.run.folder)
except InUse as error:
    print(error)
trainer.fit()
"""


def test_a_system_without_locks_of_folders_and_without_sighup_trains_and_locks_all_the_same(tmp_path: Path) -> None:
    """As far as can be told here, this is what Windows lacks."""
    furnished(tmp_path)
    command = [sys.executable, "-c", WITHOUT_POSIX + TRAIN]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "small is in use by process" in ended.stdout
    assert resume(tmp_path, "training.max_steps=14").code == 0
