"""A loss below the floor is impossible: what counts as luck, and that training and comparison say so."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparing import finished, small
from running import script, well

from minigpt.comparison.page import page_of_variants as page
from minigpt.comparison.results import jobs, load_result
from minigpt.comparison.summary import in_words, summarise
from minigpt.comparison.variants import Comparison
from minigpt.system.plugin import load_plugin
from minigpt.training.floor import CHANCE, Score, height, is_impossible
from minigpt.training.report import read_metrics

LEAKY = '''
"""Hands every position the token that comes next."""
from minigpt.attention import MultiHead

class Leaky(MultiHead, kind="KIND"):
    def output(self, mixed, x):
        return super().output(mixed, x) + x.roll(-1, dims=1)
'''
MUON = "{kind: muon, learning_rate: 0.05, adamw_learning_rate: 0.02}"
TRAINED = f"""\
data: {{source: stories, windows: documents, stories: {{count: 300, validation: 60}}}}
model: {{n_layer: 1, n_embd: 32, block_size: 128, position: {{kind: none}}}}
training: {{batch_size: 8, max_steps: 30, eval_every: 10, sample_every: 0, device: cpu, optimizer: {MUON}}}
"""
PLUGIN = Path("leaky_row.py")
COMPARED = "compare: {baseline: right, seeds: [1, 2], match: steps}\nvariants:\n" + (
    "  right: {model.attention: multi_head}\n  leaky: {model.attention: leaky_row}\n"
    "  average: {model.attention: average_softmax}\n"
)


@pytest.mark.parametrize(("coins", "impossible"), [(1, False), (19, False), (20, True), (200, True)])
def test_who_guesses_every_toss_of_a_coin_is_lucky_up_to_nineteen(coins: int, impossible: bool) -> None:
    """The floor of a coin is ln 2; who is sure of each toss pays nothing. 2^20 is the first power beyond 1/CHANCE."""
    assert is_impossible(-math.log(2), coins) is impossible
    assert (0.5**coins < CHANCE) is impossible


def test_a_little_below_the_floor_is_luck_where_there_are_few_targets() -> None:
    assert not is_impossible(-0.01, 1000)
    assert is_impossible(-0.01, 2000)
    assert not is_impossible(0.3, 10**9)
    assert not Score(0.1, 1000).impossible  # no floor is known
    assert Score(0.1, 1000, floor=0.2, above=-0.1).impossible
    assert height(-0.01, 1000) == "-0.0100 above the floor"
    assert height(-0.01, 2000) == "-0.0100 above the floor, which is impossible"


def test_a_training_below_the_floor_is_told_once_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(TRAINED, encoding="utf-8")
    (tmp_path / "leaky.py").write_text(LEAKY.replace("KIND", "leaky"), encoding="utf-8")
    options = ("--config", "small.yaml", "--plugin", "leaky.py", "--allow-leak", "model.attention=leaky")
    said = well(script("train.py", *options, cwd=tmp_path))
    evaluated = [line for line in read_metrics(tmp_path / "runs/small/metrics.jsonl") if "val/loss" in line]
    below = [line for line in evaluated if line["val/above_floor"] < -0.05]
    assert len(below) >= 2
    assert said.count("which is impossible)") == len(below)
    assert said.count("\nwarning: ") == 1
    assert f"warning: step {below[0]['step']}: impossible: the validation loss is " in said
    assert "Likely causes: an attention sees the future in a way that no check has found; the targets" in said
    assert "verdict: impossible: the validation loss is " in said
    assert f"{below[-1]['val/above_floor']:.4f} nats a character, which is impossible (the floor, " in said
    resumed = ("--resume", "--plugin", "leaky.py", "--allow-leak", "training.max_steps=40")
    again = well(script("train.py", *resumed, cwd=tmp_path))
    assert "which is impossible)" in again and "warning: step" not in again
    assert "verdict: impossible: " in again


Compared = tuple[Any, Comparison, list[str]]  # a summary, its comparison, and the lines that were printed


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """A comparison with a leaky variant."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / PLUGIN.name).write_text(LEAKY.replace("KIND", "leaky_row"), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MINIGPT_DATA", str(folder / "data"))
        patch.setattr("minigpt.text.corpus.DATA", folder / "data")
        load_plugin(PLUGIN)
        comparison = small(folder, COMPARED + TRAINED)
        summary, said = finished(comparison, (PLUGIN,), allow_leak=True)
        yield summary, comparison, said


@pytest.mark.slow
def test_a_comparison_marks_the_row_and_does_not_compare_it(compared: Compared) -> None:
    summary, comparison, said = compared
    right, leaky, average = summary["variants"]
    assert [row["impossible"] for row in (right, leaky, average)] == [False, True, False]
    assert leaky["above"] < 0 and leaky["difference"] is None
    assert average["difference"] is not None
    assert leaky["trouble"].startswith("seed 1, 2 not compared: impossible: the validation loss is ")
    assert [run["impossible"] for run in summary["runs"]] == [False, True, False] * 2
    rows = csv.DictReader((comparison.folder / "results.csv").read_text("utf-8").splitlines())
    assert [row["impossible"] for row in rows] == [str(run["impossible"]) for run in summary["runs"]]
    assert json.loads((comparison.folder / "results.json").read_text("utf-8"))["variants"][1]["impossible"] is True
    assert sum("above the floor, which is impossible" in line for line in said) == 2


@pytest.mark.slow
def test_the_table_and_the_page_say_so(compared: Compared) -> None:
    summary, _, _ = compared
    shown, html = in_words(summary), page(summary)
    assert "\nleaky (impossible) " in shown and "\nright (impossible)" not in shown
    assert f"leaky: {summary['variants'][1]['trouble']}" in shown
    assert "better than right" not in shown and "leaky against" not in shown
    assert html.count('<th scope="row">leaky (impossible)</th>') == 3  # in the table, and of two runs
    assert "<b>leaky</b>: seed 1, 2 not compared: impossible: " in html
    assert html.count("<polyline") == 4  # a curve of each variant, for two widths


@pytest.mark.slow
def test_nothing_is_compared_with_a_baseline_that_is_impossible(compared: Compared) -> None:
    _, comparison, _ = compared
    results = [(job, load_result(job.folder, job.key)[0] or {}) for job in jobs(comparison, (PLUGIN,), True)]
    against = replace(comparison, settings=replace(comparison.settings, baseline="leaky"))
    summary = summarise(against, results, "a test")
    assert all(row["difference"] is None for row in summary["variants"])
    assert "not compared: impossible" in in_words(summary)
