"""Ctrl-C while a command imports torch: one line and exit code 130, in every script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, environment, process

from minigpt.comparison.pool import MAIN
from minigpt.system.process import IGNORE_SIGINT, python_command

# Python runs this before a script: when a module is looked for, Ctrl-C comes
INTERRUPTING = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the tests run in a shell's background

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
COMMANDS = sorted(path.name for path in SCRIPTS.glob("*.py") if path.name != "begin.py")


def interrupted_at(name: str, folder: Path) -> dict[str, str]:
    """An environment in which Ctrl-C comes when a module is imported."""
    (folder / "sitecustomize.py").write_text(INTERRUPTING.format(name=name), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("name", ["argparse", "torch"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(command: str, name: str, tmp_path: Path) -> None:
    ended = process(command, cwd=tmp_path, **interrupted_at(name, tmp_path))
    assert (ended.code, ended.err, ended.out) == (130, "stopped\n", "")


@pytest.mark.slow
def test_the_last_import(tmp_path: Path) -> None:
    ended = process("train.py", cwd=tmp_path, **interrupted_at("minigpt.training.trainer", tmp_path))
    assert (ended.code, ended.err, ended.out) == (130, "stopped\n", "")


def test_a_process_of_a_comparison(tmp_path: Path) -> None:
    """It belongs to the command that started it, and ends with that and not by itself."""
    env = environment(**interrupted_at("torch", tmp_path))
    command = python_command(f"{IGNORE_SIGINT}; {MAIN}")
    ended = subprocess.run(command, cwd=tmp_path, env=env, input=b"", capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
