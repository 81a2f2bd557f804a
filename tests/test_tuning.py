"""`compare.tune`: each variant gets its own value, by a rule, from as many trials as the others, on other seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from comparing import SMALL, elsewhere, finished, small  # noqa: F401

from minigpt.comparison.results import Job
from minigpt.comparison.summary import in_words
from minigpt.comparison.tuning import OTHER, notes_on, other_texts, summary_of, trials, tuned
from minigpt.comparison.variants import TuneConfig, with_option
from minigpt.config.options import load
from minigpt.system.errors import ConfigError
from minigpt.text.languages.tasks import Task
from minigpt.training.assemble import RunConfig

TUNE = "seeds: [1], tune: {values: [0.01, 1.0e-9], seeds: [7, 8]}"


def text(tune: str = TUNE) -> str:
    return SMALL.replace("seeds: [1, 2]", tune)


def tried(**losses: Mapping[float, Sequence[float | None]]) -> dict[str, Any]:
    """The summary of trials of x.y with these losses of each variant and value, one a seed; None: it diverged."""
    results = [
        (Job(name, seed, RunConfig(), "", Path(), value), {"status": "done" if loss else "diverged", "loss": loss})
        for name, of_values in losses.items()
        for value, of_seeds in of_values.items()
        for seed, loss in enumerate(of_seeds)
    ]
    return summary_of(TuneConfig(key="x.y", values=tuple(next(iter(losses.values())))), results)


@pytest.mark.parametrize(
    ("losses", "means", "taken"),
    [
        ({0.1: [2.0], 0.3: [1.5], 0.9: [1.7]}, [2.0, 1.5, 1.7], 0.3),
        ({0.9: [1.5], 0.3: [1.5], 0.1: [None]}, [1.5, 1.5, None], 0.3),
        ({0.9: [None], 0.3: [None]}, [None, None], None),
        ({0.01: [7.0, 8.0], 0.02: [None, 1.0]}, [7.5, None], 0.01),  # a mean is that of all trials
    ],
)
def test_the_lowest_mean_is_taken_and_of_equals_the_smallest_value(
    losses: dict[float, list[float | None]], means: list[float | None], taken: float | None
) -> None:
    assert tried(mean=losses)["variants"] == [{"variant": "mean", "losses": means, "taken": taken}]


def test_every_variant_has_the_same_trials_on_seeds_that_the_runs_do_not_have(tmp_path: Path) -> None:
    comparison = small(tmp_path, text())
    every = trials(comparison, ())
    assert len(every) == 2 * 2 * 2 == len({job.folder for job in every}) == len({job.key for job in every})
    assert {job.seed for job in every} == {7, 8}
    for job in every:
        assert job.value is not None
        mine = with_option(comparison.variants[job.variant], "training.optimizer.learning_rate", job.value)
        stories = replace(mine.data.stories, seed=mine.data.stories.seed + OTHER)
        expected = replace(mine, data=replace(mine.data, stories=stories))
        assert job.config == replace(expected, training=replace(mine.training, seed=job.seed))
        assert job.config.training.optimizer.learning_rate == job.value


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
    assert none == "none: no trial has a loss, x.y stays as it is"


def test_without_a_value_a_config_stays_as_it_is(tmp_path: Path) -> None:
    comparison = small(tmp_path, text())
    rows = [{"variant": "mean", "taken": None}, {"variant": "one head", "taken": 0.5}]
    after = tuned(comparison, {"key": "training.optimizer.learning_rate", "variants": rows})
    assert after.variants["mean"] == comparison.variants["mean"]
    assert after.variants["one head"].training.optimizer.learning_rate == 0.5


def test_a_comparison_tries_then_runs_with_what_it_took_and_shows_both(tmp_path: Path) -> None:
    comparison = small(tmp_path, text())
    summary, said = finished(comparison)
    assert "8 of 8 trials to do" in " ".join(said) and "2 of 2 runs to do" in " ".join(said)
    assert sum(line.startswith("trial ") for line in said) == 8
    tuning = summary["tuning"]
    assert tuning["values"] == [0.01, 1e-9] and tuning["seeds"] == [7, 8]
    for row in tuning["variants"]:
        assert row["losses"][0] < row["losses"][1] and row["taken"] == 0.01  # next to nothing is learned with the other
        assert summary["config"][row["variant"]]["training"]["optimizer"]["learning_rate"] == 0.01
    assert any("is the largest tried" in note for note in summary["notes"])
    assert summary["held_equal"].endswith("Chosen for each variant by trials: training.optimizer.learning_rate.")
    page = (comparison.folder / "page.html").read_text("utf-8")
    assert 'aria-label="trials"' in page and f"{tuning['variants'][0]['losses'][1]:.4f}" in page
    assert f"{tuning['variants'][0]['losses'][1]:.4f}" in in_words(summary)
    again, said = finished(small(tmp_path, text()))
    assert "all 8 trials are finished already" in said and "all 2 runs are finished already" in said
    assert again == summary


@pytest.mark.parametrize(
    ("tune", "what"),
    [
        ("seeds: [1, 7], tune: {seeds: [7]}", "tune.seeds: 7 is also a seed of the runs"),
        ("seeds: [1], tune: {values: [0.1]}", "values: expected two or more, all different, found [0.1]"),
        ("seeds: [1], tune: {values: [0.1, 0.1]}", "expected two or more, all different"),
        ("seeds: [1], tune: {values: [0.1, -1]}", "expected a list, each a number above 0"),
        ("seeds: [1], tune: {key: training.rate}", "compare.tune: mean: training.rate: unknown key"),
        ("seeds: [1], tune: {key: model.attention}", "is set by a variant"),
    ],
)
def test_trials_that_say_nothing_are_refused(tmp_path: Path, tune: str, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        small(tmp_path, text(tune))
    assert what in str(refused.value)
