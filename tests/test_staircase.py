"""The staircase: rungs on tasks, each beside its ceiling; a learner's own kind gets its row."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest
from browser import Visit, overflow, violations
from comparing import elsewhere, finished, work_here, written  # noqa: F401

from minigpt.comparison.experiment import Experiment
from minigpt.comparison.figures import write_figures
from minigpt.comparison.page import page_of_tasks
from minigpt.comparison.pool import WorkerPool
from minigpt.comparison.results import TEXTS
from minigpt.comparison.staircase import (
    accuracy,
    accuracy_span,
    ceiling_of,
    in_words,
    means_of,
    staircase_svg,
    surprises,
    telling_text,
)
from minigpt.comparison.variants import load_comparison
from minigpt.config.options import from_dict
from minigpt.model import ModelConfig
from minigpt.seeing.drawing import THEMES
from minigpt.system.errors import ConfigError
from minigpt.system.plugin import load_plugin
from minigpt.text.dataset import DataConfig
from minigpt.text.languages.tasks import Task
from minigpt.training.assemble import RunConfig

STAIRS = """\
compare: {seeds: [1, 2]}
tasks:
  most: {question: "Which digit?", data.source: {kind: most, count: 60, validation: 20}, model.position: none}
  match: {question: "What is a's number?", data.source: {kind: match, count: 60, validation: 20}}
variants:
  mean: {model.attention: {kind: average_softmax}}
  dot product: {model.attention: {kind: dot_product, scaled: true}}
data: {source: {kind: most}, windows: documents}
model: {n_layer: 1, n_embd: 16, block_size: 32, block: attention_only, position: convolution, tied_head: false}
training: {batch_size: 8, max_steps: 4, eval_every: 4, device: cpu}
"""


def test_every_rung_is_trained_on_every_task_and_stands_beside_its_ceiling(tmp_path: Path) -> None:
    stairs = load_comparison(str(written(tmp_path, STAIRS)))
    assert [*stairs.variants] == ["mean, most", "dot product, most", "mean, match", "dot product, match"]
    assert stairs.variants["mean, most"].model.position.component.kind == "none"
    assert stairs.variants["mean, match"].data.source != stairs.variants["mean, most"].data.source
    summary, said = finished(stairs)
    assert "8 of 8 runs to do" in "".join(said)
    assert "measuring the speed of 4 variants, a few steps each" in said  # two rungs, with two positions
    cells = {(cell["rung"], cell["task"]): cell for cell in summary["cells"]}
    assert all(len(cell["values"]) == 2 and not cell["solved"] for cell in cells.values())
    assert cells["mean", "match"]["ceiling"]["exact"] and cells["mean", "match"]["ceiling"]["value"] < 0.4
    assert cells["mean", "most"]["ceiling"] is None is cells["dot product", "match"]["ceiling"]
    for run in summary["runs"]:
        rung, task = run["variant"].split(", ")
        assert accuracy(run) in cells[rung, task]["values"] and not run.keys() & set(TEXTS)
    for _, result, _ in Experiment(stairs, (), False).results():
        assert result is not None and len(result["answered"]) == 20  # all texts for validation
        right = [said == text[-len(said) :] for text, said in result["answered"]]
        assert accuracy(result) == pytest.approx(sum(right) / 20)
    for task in summary["tasks"]:
        assert task["answers"].keys() == {"mean", "dot product"} and task["text"].endswith(("|", task["text"][-1]))
    text, page = in_words(summary), page_of_tasks(summary)
    assert "at most 0.34" in text and "at most 0.34" in page and "What is a&#x27;s number?" in page
    for theme in THEMES.values():
        xml.etree.ElementTree.fromstring(staircase_svg(summary, theme))
    write_figures(summary, tmp_path / "figures", said.append)
    assert "at most 0.34" in (tmp_path / "figures" / "table.tex").read_text("utf-8")
    assert (tmp_path / "figures" / "staircase.svg").read_text("utf-8") == staircase_svg(summary, THEMES["light"])
    lines = (stairs.folder / "results.csv").read_text("utf-8").splitlines()
    assert len(lines) == 1 + 8 and lines[0].startswith("rung,task,")
    assert finished(stairs)[1] == ["all 8 runs are finished already"]


@pytest.mark.slow
def test_models_of_a_staircase_that_were_not_checked_are_said_to_be_so(tmp_path: Path) -> None:
    stairs = load_comparison(str(written(tmp_path, STAIRS)), ["compare.seeds=[1]"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerPool, "work", work_here)
        summary = Experiment(stairs, (), False, [].append, skip_checks=True).run("a test")
    assert "not checked before training" in in_words(summary)
    assert "not checked before training" in (stairs.folder / "page.html").read_text("utf-8")


@pytest.mark.slow
def test_a_browser_finds_nothing_wrong_with_the_page(visit: Visit, tmp_path: Path) -> None:
    """On a phone, with a command that is longer than a line."""
    ceiling, names = {"value": 0.34, "exact": True, "why": "it cannot"}, ["most", "match", "trio"]
    texts = {"text": "a3b5c7d1e9f2", "answer": "5", "answers": {"mean": "3"}}
    (tmp_path / "page.html").write_text(
        page_of_tasks(
            {
                **{"comparison": "stairs", "held_equal": "steps", "command": "python scripts/" + "x" * 60},
                **{"notes": [], "seeds": [1, 2], "rungs": ["mean"]},
                "tasks": [{"task": name, "question": "What is a's number?", **texts} for name in names],
                "cells": [
                    {"rung": "mean", "task": name, "values": [0.3, 1], "solved": name == "most", "trouble": ""}
                    | {"ceiling": ceiling}
                    for name in names
                ],
            }
        ),
        encoding="utf-8",
    )
    opened = visit(tmp_path / "page.html", 390, "dark")
    assert overflow(opened) <= 0 and violations(opened) == []


def test_the_example_of_a_task_shows_which_rungs_can_answer() -> None:
    match = from_dict(DataConfig, {"source": {"kind": "match"}, "windows": "documents"}).language
    assert isinstance(match, Task)
    said = {"mean": {"\na3b5|a3": "3", "\na3b5|b5": "3"}, "dot product": {"\na3b5|a3": "3", "\na3b5|b5": "5"}}
    assert telling_text(match, said, {"mean": False, "dot product": True}) == "\na3b5|b5"
    assert telling_text(match, said, {"mean": True, "dot product": True}) == "\na3b5|a3"
    assert telling_text(match, {}, {}) == ""


def test_what_is_solved_and_what_is_above_its_ceiling_is_said() -> None:
    top = {"value": 0.34, "exact": True, "why": "it cannot"}
    cell: dict[str, Any] = {"rung": "mean", "task": "match", "values": [0.3, 0.37], "ceiling": top, "trouble": ""}
    spans = [accuracy_span(each) for each in (cell, {"values": [1.0, 0.999]}, {"values": []})]
    assert spans == ["0.30 to 0.37", "1.00", "-"]
    assert [*surprises({"cells": [cell]})] == ["mean on match: 0.37 is above the ceiling of 0.34."]
    assert [*surprises({"cells": [cell | {"values": [0.35]}]})] == []
    assert [*surprises({"cells": [cell | {"values": [], "trouble": "seed 1 diverged"}]})] == [
        "mean on match: seed 1 diverged."
    ]


@pytest.mark.parametrize(
    ("options", "means"),
    [
        ({"attention": "average_loop"}, "mean"),
        ({"attention": "dot_product"}, "dot product"),
        ({"attention": "query_key"}, "query_key"),
        ({"attention": "single_head"}, "one head"),
        ({"attention": {"kind": "multi_head", "n_head": 1}}, "one head"),
        ({"attention": {"kind": "multi_head", "n_head": 2}}, "heads"),
        ({"attention": {"kind": "multi_head", "n_head": 2, "position": "rotary"}}, "one layer"),
        ({"attention": "single_head", "position": "rotary"}, "one layer"),
        ({"attention": "retention"}, None),
        ({"attention": "single_head", "n_layer": 2}, None),
        ({"attention": "single_head", "block": "pre_norm"}, None),
    ],
    ids=str,
)
def test_the_means_of_a_model(options: dict[str, Any], means: str | None) -> None:
    shared = {"n_layer": 1, "n_embd": 16, "block": "attention_only", "position": "convolution"}
    assert means_of(from_dict(ModelConfig, shared | options)) == means


def test_a_model_has_a_ceiling_on_the_ladders_tasks_only() -> None:
    model = {"n_layer": 1, "block": "attention_only", "position": "none", "attention": "average_softmax"}
    for source, known in (({"kind": "match"}, True), ({"kind": "recall"}, False), ("stories", False)):
        config = from_dict(RunConfig, {"data": {"source": source, "windows": "documents"}, "model": model})
        assert (ceiling_of(config) is not None) == known


MINE = """\
from minigpt.attention.softmax.single_head import SingleHead


class Stair(SingleHead, kind="my_stair"):
    pass
"""


def test_an_attention_of_a_plugin_gets_a_row(tmp_path: Path) -> None:
    path = tmp_path / "mine_on_stairs.py"
    path.write_text(MINE, encoding="utf-8")
    load_plugin(path)
    assert load_comparison(str(written(tmp_path, STAIRS))).rungs == ("mean", "dot product")
    stairs = load_comparison(str(written(tmp_path, STAIRS)), plugins=[path])
    assert stairs.rungs == ("mean", "dot product", "my_stair")
    assert stairs.variants["my_stair, match"].model.layer_attention(0).component.kind == "my_stair"
    named = STAIRS.replace("{kind: dot_product, scaled: true}", "my_stair")
    assert load_comparison(str(written(tmp_path, named)), plugins=[path]).rungs == ("mean", "dot product")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (('question: "Which digit?", ', ""), "tasks.most: expected `name: {question: TEXT, data.source: TASK"),
        (("seeds: [1, 2]", "seeds: [1, 2], baseline: mean"), "with `tasks:`, only seeds and processes can be set"),
        (("model.position: none", "model.positoin: none"), "position"),
        (("kind: match,", "kind: mutch,"), "mutch"),
        (("{kind: most, count: 60, validation: 20}", "stories"), "mean, most: data.source: expected a task"),
    ],
    ids=str,
)
def test_a_mistake_in_a_staircase_is_named(change: tuple[str, str], what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_comparison(str(written(tmp_path, STAIRS.replace(*change))))
    assert what in str(refused.value)
