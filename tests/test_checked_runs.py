"""The commands refuse a wrong kind before their first step: training, resuming, profiling and comparing.

B batch, T positions, D model width.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import CONFIG, furnish, script, well
from small_corpora import own_data
from wrong_kinds import KINDS

from minigpt.attention import Attention
from minigpt.checks.causality import LeakError
from minigpt.checks.laws_of_attention import LawError
from minigpt.comparison.measurement import try_out
from minigpt.config.options import load
from minigpt.training.assemble import RunConfig
from minigpt.training.run import was_skipped

data = pytest.fixture(scope="module", autouse=True)(own_data)

BEGIN = """\
import torch
from minigpt.attention import MultiHead, distance

class Mine(MultiHead, kind="mine"):
    """
RIGHT = BEGIN + "pass\n"
CORNER = BEGIN + (
    "def mask(self, T, S, device):\n        return torch.ones(T, S, dtype=torch.bool, device=device).tril()\n"
)
LEAK = BEGIN + (
    "def output(self, mixed, x):\n        return super().output(mixed, x) + (x.roll(-1, 1) if self.training else 0)\n"
)
MINE = CONFIG.replace("multi_head", "mine")
TRAIN = ("--config", "small.yaml", "--plugin", "mine.py")


def home_with(folder: Path, plugin: str) -> Path:
    (folder / "mine.py").write_text(plugin, encoding="utf-8")
    return furnish(folder, MINE)


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (
            CORNER,
            "error: layer 1 (mine): where 1 of 6 positions are new, as with a cache, the new ones have other weights",
        ),
        (LEAK, "error: layer 1 (mine) sees the future in training mode only: other tokens from position"),
    ],
)
def test_training_refuses_a_wrong_plugin_before_it_makes_a_folder(tmp_path: Path, plugin: str, words: str) -> None:
    ended = script("train.py", *TRAIN, cwd=home_with(tmp_path, plugin))
    assert ended.code == 2 and ended.err.startswith(words) and ended.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_skip_checks_trains_it_anyway_and_leaves_a_record(tmp_path: Path) -> None:
    home = home_with(tmp_path, CORNER)
    ended = script("train.py", *TRAIN, "--skip-checks", cwd=home)
    assert ended.code == 0 and "note: the model is not checked before this training (--skip-checks)" in ended.out
    assert json.loads((home / "runs/small/environment.json").read_text("utf-8"))["checks"] == "skipped"
    written = script("sample.py", "--plugin", "mine.py", "--prompt", "the", cwd=home)
    assert written.code == 0 and "runs/small was trained with --skip-checks" in written.err
    (home / "runs/small/environment.json").write_text("[]", encoding="utf-8")
    (home / "runs/small/changes.jsonl").write_text('[]\n{"changes": 5}\n', encoding="utf-8")
    assert was_skipped(home / "runs/small") is False  # a damaged record counts as no
    with (home / "runs/small/changes.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"changes": [["checks", "passed", "skipped"]]}\n')
    assert was_skipped(home / "runs/small")


@pytest.mark.parametrize(
    ("edited", "words", "anyway", "note"),
    [
        (CORNER, "aligned to the upper left corner", "--skip-checks", ["checks", "passed", "skipped"]),
        (LEAK, "error: layer 1 (mine) sees the future", "--allow-leak", ["training.max_steps", 8, 12]),
    ],
)
def test_a_plugin_that_was_edited_is_checked_again_on_resuming(
    edited: str, words: str, anyway: str, note: list[object], tmp_path: Path
) -> None:
    home = home_with(tmp_path, RIGHT)
    assert script("train.py", *TRAIN, cwd=home).code == 0
    assert json.loads((home / "runs/small/environment.json").read_text("utf-8"))["checks"] == "passed"
    (home / "mine.py").write_text(edited, encoding="utf-8")
    again = "--resume", "--plugin", "mine.py", "training.max_steps=12"
    refused = script("train.py", *again, cwd=home)
    assert refused.code == 2 and words in refused.err
    assert not (home / "runs/small/changes.jsonl").exists()
    assert "done: 12 steps" in well(script("train.py", *again, anyway, cwd=home))
    change = json.loads((home / "runs/small/changes.jsonl").read_text("utf-8").splitlines()[0])
    assert note in change["changes"]
    sampled = script("sample.py", "--plugin", "mine.py", "--prompt", "the", cwd=home)
    assert ("with --skip-checks" in sampled.err) == (anyway == "--skip-checks")


def test_a_comparison_checks_each_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(furnish(tmp_path))
    for kind in ("wrong_training_only", "wrong_upper_left"):
        monkeypatch.setitem(Attention.kinds, kind, KINDS[kind])
    leaking, corner = (
        load(RunConfig, "small.yaml", [f"model.attention={kind}"])
        for kind in ("wrong_training_only", "wrong_upper_left")
    )
    with pytest.raises(LeakError, match="in training mode only"):
        try_out(leaking, allow_leak=False)
    with pytest.raises(LawError, match="aligned to the upper left corner"):
        try_out(corner, allow_leak=False)
    assert try_out(leaking, allow_leak=True)["step"] > 0
    assert try_out(corner, allow_leak=False, skip_checks=True)["step"] > 0
