"""A run of a comparison: measured by the worker, done once, kept apart from others, and stored whole."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparing import SMALL, elsewhere, small  # noqa: F401

from minigpt.comparison.measurement import _characters, prepare
from minigpt.comparison.results import config_key, jobs, load_result, save_result
from minigpt.comparison.worker import do
from minigpt.config.options import to_python
from minigpt.config.upgrade import stamped
from minigpt.system.locks import Lock
from minigpt.text.tokenizer import Char
from minigpt.training.report import read_metrics
from minigpt.training.run import load


def task(folder: Path, **changes: Any) -> dict[str, Any]:
    job = jobs(small(folder), ())[0]
    run = {"do": "run", "variant": job.variant, "seed": job.seed, "key": job.key, "folder": str(job.folder)}
    return run | {"config": to_python(job.config), "allow_leak": False} | changes


DIVERGED = {  # the shortest result that a run may leave behind
    **{"variant": "mean", "seed": 1, "key": "k", "status": "diverged", "message": "", "steps": 0, "curve": []},
    **{"parameters": 1, "flops_per_token": 1.0, "cache_bytes_per_token": 0.1},
}


def test_a_result_is_whole_or_not_there(tmp_path: Path) -> None:
    assert load_result(tmp_path, "k") == (None, "")
    save_result(tmp_path, DIVERGED)
    assert load_result(tmp_path, "k") == (stamped(DIVERGED), "")
    assert load_result(tmp_path, "other") == (None, "its config or a plugin has changed")
    path = tmp_path / "result.json"
    raw = path.read_text("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    for place in range(0, len(raw), 7):
        path.write_text(raw[:place] + chr(ord(raw[place]) ^ 1) + raw[place + 1 :], "utf-8")
        assert load_result(tmp_path, "k")[0] in (None, stamped(DIVERGED))
    for damaged in (raw[:-9], raw.replace("0.1", "0.2")):
        path.write_text(damaged, "utf-8")
        assert load_result(tmp_path, "k") == (None, "its result is damaged")


def test_the_key_changes_with_config_and_plugin(tmp_path: Path) -> None:
    config = small(tmp_path).variants["mean"]
    plugin = tmp_path / "mine.py"
    plugin.write_text("x = 1\n")
    keys = {config_key(config, []), config_key(config, [plugin]), config_key(config, [], allow_leak=True)}
    plugin.write_text("x = 2\n")
    keys |= {config_key(config, [plugin])}
    keys |= {config_key(replace(config, training=replace(config.training, seed=5)), [])}
    assert len(keys) == 5


def test_a_run_that_another_process_is_doing_is_left_to_it(tmp_path: Path) -> None:
    asked = task(tmp_path)
    folder = Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder):
        answer = do(asked, lambda message: None)
        assert answer["event"] == "busy" and f"is in use by process {os.getpid()} on " in answer["message"]
    assert not (folder / "result.json").exists()


def test_a_run_that_is_there_is_not_done_again(tmp_path: Path) -> None:
    heard: list[Any] = []
    asked = task(tmp_path)
    assert do(asked, heard.append) == {"event": "done"}
    assert [message["step"] for message in heard] == [1, 2, 3, 4, 5, 6]
    first = (Path(asked["folder"]) / "result.json").read_bytes()
    heard.clear()
    assert do(asked, heard.append) == {"event": "done"}
    assert heard == []
    assert (Path(asked["folder"]) / "result.json").read_bytes() == first


def test_a_run_folder_is_one_that_can_be_written_with(tmp_path: Path) -> None:
    """It has a line of metrics a step, those of an unfinished run left out, and the curves of the losses."""
    asked = task(tmp_path)
    folder = Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "train/loss": 99.0}\n', encoding="utf-8")
    do(asked, lambda message: None)
    run = load(asked["folder"], "cpu")
    assert run.step == 6
    assert run.generate("\n", max_tokens=5).startswith("\n")
    lines, result = read_metrics(folder / "metrics.jsonl"), load_result(folder, asked["key"])[0]
    assert result is not None and [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [[line["step"], line["val/loss"]] for line in lines if "val/loss" in line] == [
        [step, loss] for step, _, loss, _ in result["curve"]
    ]
    assert (folder / "loss.svg").read_text(encoding="utf-8").count("<polyline") == 2


class Halves(Char):
    """A tokenizer whose tokens are two characters, but for id 0, which ends a text."""

    end_of_text = 0

    def decode(self, ids: Any) -> str:
        return "".join("<end>" if id == 0 else "ab" for id in ids)


def test_what_ends_a_text_is_no_character(tmp_path: Path) -> None:
    _, aligned, tokenizer, _, _ = prepare(small(tmp_path).variants["mean"])
    where = aligned.splits["val"]
    targets = where.stop - where.start - 1
    assert _characters(aligned, tokenizer, targets) == targets
    assert _characters(aligned, tokenizer, 100) == 100
    halves = Halves.__new__(Halves)
    ends = int((aligned.ids[where.start + 1 : where.stop] == 0).sum())
    assert ends and _characters(aligned, halves, targets) == 2 * (targets - ends)


def test_ids_cut_short_are_named_not_read(tmp_path: Path) -> None:
    """To read a mapped file beyond its end would be a SIGBUS."""
    _, aligned, tokenizer, _, _ = prepare(small(tmp_path).variants["mean"])
    for path in (tmp_path / "data").rglob("ids.bin"):
        os.truncate(path, 0)
    with pytest.raises(OSError, match="cut short to 0 of"):
        _characters(aligned, tokenizer, 100)
