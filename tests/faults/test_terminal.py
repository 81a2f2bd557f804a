"""Words from outside, in names, keys, arguments and texts: what they mean, and how they reach a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import furnish, script


@pytest.mark.parametrize("where", ["a=b", "training.x=1"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_run_in_a_folder_with_an_equals_sign_is_no_override(where: str, absolute: bool, tmp_path: Path) -> None:
    folder = tmp_path / where
    folder.mkdir()
    furnish(folder)
    assert script("train.py", "--config", "small.yaml", cwd=folder).code == 0
    run = (folder if absolute else Path(where)) / "runs" / "small"
    ended = script(
        "train.py", "--resume", run, f"data.source={folder / 'text.txt'}", "--allow-data-change", cwd=tmp_path
    )
    assert ended.code == 2 and f"--resume: {run} has done all its 8 steps" in ended.err


def test_an_override_after_resume_is_one(tmp_path: Path) -> None:
    assert script("train.py", "--config", "small.yaml", cwd=furnish(tmp_path)).code == 0
    ended = script("train.py", "--resume", "training.max_steps=9", cwd=tmp_path)
    assert ended.code == 0 and "changed: training.max_steps: 8 -> 9" in ended.out
