"""Modules in the current folder, by chance or by an attack: no command and none of its processes imports them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarking import furnish_checkout
from comparing import SMALL, written
from running import process

from benchmarks.processes import WorkerProcess, time_command
from minigpt.system.process import python_command

NAMES = ("torch", "numpy", "queue", "json", "signal", "runpy", "subprocess", "minigpt", "model", "sitecustomize")
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "vocab_size": 65}


@pytest.fixture
def strewn(tmp_path: Path) -> Path:
    """A folder with modules named like others; each that is imported leaves a file behind."""
    furnish_checkout(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')\n", "utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_comparison(strewn: Path) -> None:
    """Its runs are done by processes of their own."""
    written(strewn, SMALL.replace("seeds: [1, 2]", "seeds: [1]"))
    ended = process("compare.py", "--config", "small.yaml", "compare.processes=1", cwd=strewn)
    assert ended.code == 0, ended.err
    assert not (strewn / "imported").exists()


@pytest.mark.slow
def test_a_worker_of_the_benchmark(strewn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nanoGPT's model.py is the one of its checkout."""
    monkeypatch.chdir(strewn)
    told = {"program": "nanogpt", "do": "train", "shape": SHAPE, "batch": 2, "device": "cpu", "compile": False}
    with WorkerProcess("nanoGPT", {**told, "path": str(strewn / "nanoGPT")}) as worker:
        assert worker.work(1) > 0
    assert not (strewn / "imported").exists()


def test_a_statement_and_its_arguments(strewn: Path) -> None:
    """Whatever a process imports, it is what this one would; only the user's own PYTHONPATH says otherwise."""
    command = python_command("import json, queue, runpy, signal, subprocess; print(sys.argv)", "ü ")
    ended = subprocess.run(command, cwd=strewn, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "['-c', 'ü ']\n", ended.stderr
    assert not (strewn / "imported").exists()


def test_a_relative_folder_that_the_user_names_is_found_from_another_folder(
    strewn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (strewn / "mine").mkdir()
    (strewn / "mine" / "wanted.py").write_text("print('found')\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.chdir(strewn)
    time_command("it", [sys.executable, "-c", "import wanted"], strewn / "nanoGPT", "found")
