"""Devices: all that works from a model works on a device other than the CPU, in a process that pretends to have one.

torch cannot forget a device, so the cases run in a process of their own (`device_cases.py`, on `pretended.py`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import ROOT, environment
from torch.utils import backend_registration

from minigpt.attention.position import exact

CASES = str(ROOT / "tests" / "device_cases.py")
PLANTED = {  # a wait of a kind with a mask; a tensor of the CPU, which is made in every pass
    "attention/base.py": (
        "        return self.normalise(scores.masked_fill(~mask, -torch.inf))  # (B, H, T, S)\n",
        "        assert mask.any().item()\n",
    ),
    "attention/linear/retention.py": (
        "        return self.decays(none)[:, None, None].expand(*none.shape[:3], 1)  # (B, H, T, 1)\n",
        "        none = none + torch.zeros(1, 1, 1, 0)\n",
    ),
}

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch knows no devices that are written in Python",
)


def run_cases(folder: Path, *cases: str) -> tuple[int, str]:
    """The exit code and the output of cases, with the package `minigpt` of a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *cases]
    ended = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.slow
def test_everything_works_on_another_device() -> None:
    code, output = run_cases(ROOT, CASES)
    assert code == 0, output


@pytest.mark.slow
def test_a_tensor_of_the_wrong_device_and_a_wait_are_found_with_their_lines(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "minigpt", tmp_path / "minigpt", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (line, planted) in PLANTED.items():
        source = (tmp_path / "minigpt" / name).read_text(encoding="utf-8")
        assert source.count(line) == 1
        (tmp_path / "minigpt" / name).write_text(source.replace(line, planted + line), encoding="utf-8")
    kinds = "multi_head", "retention", "long_convolution"
    code, output = run_cases(tmp_path, *(f"{CASES}::test_every_kind[textbook-{kind}]" for kind in kinds))
    assert code == 1 and "1 passed" in output and "2 failed" in output, output
    for name, (_, planted) in PLANTED.items():
        number = (tmp_path / "minigpt" / name).read_text(encoding="utf-8").split(planted)[0].count("\n") + 1
        assert f"{name}:{number}: {planted.strip()}" in output, output


def test_float64_where_a_device_has_it() -> None:
    assert [exact(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [torch.float64] * 2 + [torch.float32]
