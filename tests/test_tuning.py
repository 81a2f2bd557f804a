"""A grid: each variant gets its own choice, by a rule, from as many trials as the others, and is measured again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparing import SMALL, elsewhere, finished, made_up, small  # noqa: F401

from minigpt.comparison.grid import choices
from minigpt.comparison.grid import in_words as value_in_words
from minigpt.comparison.results import Job, jobs
from minigpt.comparison.statistics import paired
from minigpt.comparison.summary import in_words, summarise
from minigpt.comparison.tuning import OTHER, notes_on, other_texts, summary_of, trials, tuned
from minigpt.comparison.variants import CompareConfig, Comparison
from minigpt.config.options import load
from minigpt.system.errors import ConfigError
from minigpt.text.languages.tasks import Task
from minigpt.training.assemble import RunConfig

RATE = "training.optimizer.learning_rate"
GRID = f"{RATE}=[0.01, 1.0e-9]"
TEXT = SMALL.replace("seeds: [1, 2]", "seeds: [1], trial_seeds: [7, 8]")


def grid_of(folder: Path, *overrides: str, text: str = TEXT) -> Comparison:
    return small(folder, text, overrides)


def tried(**losses: Mapping[float, Sequence[float | None]]) -> dict[str, Any]:
    """The summary of trials of x.y with these losses of each variant and value, one a seed; None: it diverged."""
    results = [
        (
            Job(name, seed, RunConfig(), "", Path(), f"{value:g}"),
            {"status": "done" if loss else "diverged", "loss": loss},
        )
        for name, of_values in losses.items()
        for value, of_seeds in of_values.items()
        for seed, loss in enumerate(of_seeds)
    ]
    grids = {"x.y": tuple(next(iter(losses.values())))}
    return summary_of(Comparison("", CompareConfig(), {}, (), grids=grids), results)


@pytest.mark.parametrize(
    ("losses", "means", "taken"),
    [
        ({0.1: [2.0], 0.3: [1.5], 0.9: [1.7]}, [2.0, 1.5, 1.7], 0.3),
        ({0.9: [1.5], 0.3: [1.5], 0.1: [None]}, [1.5, 1.5, None], 0.9),
        ({0.9: [None], 0.3: [None]}, [None, None], None),
        ({0.01: [7.0, 8.0], 0.02: [None, 1.0]}, [7.5, None], 0.01),  # a mean is that of all trials
    ],
)
def test_the_lowest_mean_is_taken_and_of_equals_the_first(
    losses: dict[float, list[float | None]], means: list[float | None], taken: float | None
) -> None:
    [row] = tried(mean=losses)["variants"]
    assert (row["losses"], row["taken"]) == (means, None if taken is None else {"x.y": taken})
    assert row["loss"] == (None if taken is None else min(mean for mean in means if mean is not None))


def test_every_variant_has_the_same_trials_on_seeds_that_the_runs_do_not_have(tmp_path: Path) -> None:
    comparison = grid_of(tmp_path, GRID)
    every = trials(comparison, ())
    assert len(every) == 2 * 2 * 2 == len({job.folder for job in every}) == len({job.key for job in every})
    assert {job.seed for job in every} == {7, 8}
    for job in every:  # as if its value had been given alone
        mine = grid_of(tmp_path, f"{RATE}={job.choice}").variants[job.variant]
        stories = replace(mine.data.stories, seed=mine.data.stories.seed + OTHER)
        expected = replace(mine, data=replace(mine.data, stories=stories))
        assert job.config == replace(expected, training=replace(mine.training, seed=job.seed))
    assert every[0].folder.name == "mean-0.01-seed-7"  # as in earlier versions, so their trials are used


def test_trials_see_neither_the_texts_nor_the_sizes_on_which_the_runs_are_measured(tmp_path: Path) -> None:
    source = "{kind: needle, distance: [2, 4], validation_sizes: [2, 64], count: 60, validation: 20}"
    data = load(RunConfig, "tiny.yaml", [f"data.source={source}", "data.windows=documents"]).data
    other = other_texts(data, OTHER)
    assert data.language and other.language and isinstance(other.source, Task.Config)
    runs, tried = data.language.texts()[-20:], other.language.texts()[-20:]
    assert not set(runs) & set(tried) and max(map(len, tried)) < 64 < max(map(len, runs))
    assert other == replace(data, source=replace(other.source))  # nothing else changes
    own = load(RunConfig, "tiny.yaml", ["data.source=some.txt"]).data
    assert other_texts(own, OTHER) == own  # it has one validation split


def test_what_is_taken_is_told_where_it_is_at_the_edge() -> None:
    edge, middle, diverged = {1: [1.0], 2: [2.0], 3: [3.0]}, {1: [2.0], 2: [1.0], 3: [3.0]}, {1: [None], 2: [None]}
    low, none = notes_on(tried(low=edge, middle=middle, none=diverged))
    assert low == "low: the x.y taken, 1, is the smallest tried; a smaller one may be better"
    assert none == "none: no trial has a loss, x.y = 1 stays"


def test_without_a_loss_a_variant_keeps_the_first_choice(tmp_path: Path) -> None:
    comparison = grid_of(tmp_path, GRID)
    rows = [{"variant": "mean", "taken": None}, {"variant": "one head", "taken": {RATE: 0.5}}]
    after = tuned(comparison, {"variants": rows})
    assert after.variants["mean"] == comparison.variants["mean"]
    assert after.variants["one head"].training.optimizer.learning_rate == 0.5


@pytest.mark.slow
def test_a_comparison_tries_then_runs_with_what_it_took_and_shows_both(tmp_path: Path) -> None:
    comparison = grid_of(tmp_path, GRID)
    summary, said = finished(comparison)
    assert "8 of 8 trials to do" in " ".join(said) and "2 of 2 runs to do" in " ".join(said)
    assert sum(line.startswith("trial ") for line in said) == 8
    tuning = summary["tuning"]
    assert tuning["grid"] == {RATE: [0.01, 1e-9]} and tuning["seeds"] == [7, 8]
    for row in tuning["variants"]:
        assert row["losses"][0] < row["losses"][1] and row["taken"] == {RATE: 0.01}  # the other teaches next to nothing
        assert summary["config"][row["variant"]]["training"]["optimizer"]["learning_rate"] == 0.01
    assert any("is the largest tried" in note for note in summary["notes"])
    again = "the best of 2 choices in the trials (seeds 7, 8), and measured again with the seeds 1."
    assert summary["held_equal"].endswith(f"Chosen for each variant, {RATE}: {again}")
    mean, loss = tuning["variants"][0]["loss"], summary["variants"][0]["loss"]
    best = f"mean: learning_rate 0.01, the best of 2 in the trials ({mean:.4f}); measured again"
    best += f" with the seeds 1: {loss:.4f}"
    assert best in in_words(summary) and mean != loss
    page = (comparison.folder / "page.html").read_text("utf-8")
    assert best in page
    assert 'aria-label="trials"' in page and f"{tuning['variants'][0]['losses'][1]:.4f}" in page
    assert f"{tuning['variants'][0]['losses'][1]:.4f}" in in_words(summary)
    (trials(comparison, ())[3].folder / "result.json").unlink()  # as if stopped before it was written
    later, said = finished(grid_of(tmp_path, GRID))
    assert "1 of 8 trials to do" in " ".join(said) and "all 2 runs are finished already" in said
    assert later == summary


def test_a_winner_among_equals_is_not_called_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All choices of both variants are equal but for luck. Compared by its trials, the best of ten is often "better";
    measured again on new seeds it is so as rarely as an interval of 95 % says.
    """
    monkeypatch.setattr("minigpt.comparison.summary._example", lambda comparison, results: None)
    rates = ", ".join(f"0.{n}" for n in range(1, 10))
    seeds = "compare.seeds=[1, 2, 3]", "compare.trial_seeds=[7, 8, 9]"
    comparison, draw, rounds = grid_of(tmp_path, f"{RATE}=[{rates}, 1]", *seeds), random.Random(0), 400
    every_trial, runs, by_trials, again = trials(comparison, ()), jobs(comparison, ()), 0, 0
    for _ in range(rounds):
        results = [(job, made_up(job, draw.gauss(1, 0.1))) for job in every_trial]
        tuning, losses = summary_of(comparison, results), dict[tuple[str, str], list[float]]()
        for job, result in results:
            losses.setdefault((job.variant, job.choice), []).append(result["loss"])
        of_trials = paired(losses["mean", tuning["variants"][0]["choice"]], losses["one head", "0.1"])
        by_trials += of_trials.excludes_zero and of_trials.mean < 0
        measured = [(job, made_up(job, draw.gauss(1, 0.1))) for job in runs]
        summary = summarise(comparison, measured, "", tuning=tuning)
        again += "mean is better than one head" in summary["variants"][0]["difference"]["sentence"]
    assert by_trials / rounds > 0.06 and again / rounds < 0.045  # 0.025 is what a side of an interval leaves


# ---- how a grid is written ----


def test_a_list_is_a_grid_where_an_option_takes_one_value(tmp_path: Path) -> None:
    path = "training.optimizer={kind: muon, learning_rate: [0.01, 0.02]}"
    rows = "variants={a: {model.norm: rmsnorm}, one head: {}}"
    comparison = grid_of(tmp_path, path, "model.attention=[single_head, linear]", "model.n_layer=2", rows)
    assert comparison.grids == {RATE: (0.01, 0.02)}
    assert [config.training.optimizer.learning_rate for config in comparison.variants.values()] == [0.01] * 2
    assert isinstance(comparison.variants["a"].model.attention, tuple)  # the kinds of the layers: one value


def test_a_grid_of_an_option_of_several_layers_is_one_for_all_that_have_it(tmp_path: Path) -> None:
    layers = "model.attention=[{kind: sliding_window, window: 4}, linear]"
    rows = "variants={a: {model.norm: rmsnorm}, one head: {}}"
    comparison = grid_of(tmp_path, layers, rows, "model.attention.window=[8, 16]", "model.n_layer=2")
    assert comparison.grids == {"model.attention.window": (8, 16)}
    assert [job.config.model.layer_attention(0).window for job in trials(comparison, ())[:4]] == [8, 8, 16, 16]  # type: ignore[attr-defined]
    assert comparison.variants["a"].model.layer_attention(1).component.kind == "linear"


def test_several_grids_are_their_product(tmp_path: Path) -> None:
    comparison = grid_of(tmp_path, GRID, "training.warmup_steps=[0, 20]", "training.grad_clip=[0, 1]")
    every = choices(comparison.grids)
    assert len(every) == 8
    assert every["1, 1e-09, 20"] == {"training.grad_clip": 1, RATE: 1e-9, "training.warmup_steps": 20}
    every_trial = trials(comparison, ())
    folders, keys = {job.folder for job in every_trial}, {job.key for job in every_trial}
    assert len(folders) == len(keys) == len(every_trial) == 8 * 2 * 2
    of_choice = {(j.config.training.optimizer.learning_rate, j.config.training.warmup_steps) for j in every_trial}
    assert of_choice == {(rate, steps) for rate in (0.01, 1e-9) for steps in (0, 20)}


def test_numbers_that_look_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    comparison = grid_of(tmp_path, f"{RATE}=[0.01, 0.0100000001]")
    assert len({job.folder for job in trials(comparison, ())}) == 8
    assert [value_in_words(value) for value in (0.01, True, None, 1234567)] == ["0.01", "true", "null", "1234567"]


MANY = "[" + ", ".join(f"0.{n:03}" for n in range(1, 66)) + "]"


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["compare.seeds=[1, 7]", GRID], f"{GRID}: trial_seeds: 7 is also a seed of the runs"),
        ([f"{RATE}=[0.1]"], "a grid has two values or more, all different, found [0.1]"),
        ([f"{RATE}=[0.1, -1]"], f"{RATE}=[0.1, -1]: mean: {RATE}: expected a number above 0, found -1"),
        ([f"{RATE}=[]"], "expected a number above 0, found a list"),
        (["model.attention.n_head=[1, 2]"], "model.attention.n_head"),
        (["model.mlp=[gelu, swiglu]"], "model.mlp: expected one of "),
        (["training.seed=[1, 2]"], "training.seed: expected one value"),
        (["data.stories.count=[300, 400]"], "data.stories.count: expected one value; a grid is of an option of model"),
        (["compare.match=parameters", "model.dropout=[0, 0.1]"], "a grid is of an option of training.optimizer"),
        (["variants.mean.training.optimizer={learning_rate: 0.1}", GRID], f"{RATE}: mean sets it, and a grid is for"),
        ([f"{RATE}={MANY}"], "has 65 choices, and each variant would be trained with all of them: at most 64"),
        ([f"{RATE}=[1, 2, 3, 4, 5]", f"model.dropout={MANY[:90]}]"], "has 13 x 5 = 65 choices"),
        (["compare.tune={seeds: [3]}"], "compare.tune: its values stand where the option does now, as in training."),
    ],
)
def test_a_grid_that_says_nothing_is_refused_in_one_line(tmp_path: Path, overrides: list[str], what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        grid_of(tmp_path, *overrides)
    assert what in str(refused.value)
