"""`compare.tune`: an option that suits one variant may not suit another, so each variant gets the value that suits it.

Before the runs, every variant is trained with every value, on seeds that the runs do not have: the trials. All variants
have the same number of them. The rule: of the values whose trials all have a loss, the one with the lowest mean
validation loss is taken; of equal ones, the smallest. A trial is a run like any other, with a folder and a result.

Trials on a built-in language are trained and judged on other texts of it than the runs, and only on the sizes that are
trained: the choice must not depend on the texts that the runs are measured on. A text of your own has one validation
split, which both use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from minigpt.comparison.results import Job, config_key
from minigpt.comparison.statistics import mean_of_all
from minigpt.comparison.variants import Comparison, TuneConfig, slug, with_option
from minigpt.text.dataset import DataConfig
from minigpt.text.languages.tasks import Task

TRIALS = "tuning"  # the folder of the trials, in that of the comparison
OTHER = 1_000_000  # added to the seed of the runs' texts, for the texts of the trials
RULE = (
    "the lowest mean validation loss over these seeds, which the runs do not have, on other texts of a built-in"
    " language and on the sizes that are trained; of equals the smallest value"
)


def trials(
    comparison: Comparison, plugins: Sequence[Path], allow_leak: bool = False, skip_checks: bool = False
) -> list[Job]:
    """All trials of a comparison, ordered by seed and value."""
    tune, jobs = comparison.settings.tune, list[Job]()
    if tune is None:
        return jobs
    for seed, value in product(tune.seeds, tune.values):
        for variant, config in comparison.variants.items():
            config = with_option(config, tune.key, value)
            training = replace(config.training, seed=seed)
            config = replace(config, data=other_texts(config.data, OTHER), training=training)
            folder = comparison.folder / TRIALS / f"{slug(variant)}-{value:g}-seed-{seed}"
            key = config_key(config, plugins, allow_leak, skip_checks)
            jobs.append(Job(variant, seed, config, key, folder, value))
    return jobs


def other_texts(data: DataConfig, later: int) -> DataConfig:
    """The same built-in language with other texts, all of sizes that are trained; a text of your own is unchanged."""
    language = data.language
    if isinstance(language, Task):
        config = language.config
        return replace(data, source=replace(config, seed=config.seed + later, validation_sizes=None))
    return data if language is None else replace(data, stories=replace(data.stories, seed=data.stories.seed + later))


def summary_of(tune: TuneConfig, results: Sequence[tuple[Job, Mapping[str, Any] | None]]) -> dict[str, Any]:
    """The trials as a dict for results.json. A value whose trials have not all a loss has None.

    `taken` is the value that the rule (see above) takes; None if no value has a loss.
    """
    losses: dict[str, dict[float | None, list[float | None]]] = {}
    for trial, result in results:
        loss = result["loss"] if result is not None and result["status"] == "done" else None
        losses.setdefault(trial.variant, {value: [] for value in tune.values})[trial.value].append(loss)
    rows = []
    for name, of_values in losses.items():
        means = [mean_of_all(seeds) for seeds in of_values.values()]
        _, taken = min(
            ((mean, value) for mean, value in zip(means, tune.values) if mean is not None), default=(0, None)
        )
        rows.append({"variant": name, "losses": means, "taken": taken})
    return {"key": tune.key, "values": list(tune.values), "seeds": list(tune.seeds), "rule": RULE, "variants": rows}


def tuned(comparison: Comparison, tuning: Mapping[str, Any]) -> Comparison:
    """The comparison with the value taken for each variant; without one, a variant stays as it is."""
    variants = dict(comparison.variants)
    for row in tuning["variants"]:
        if row["taken"] is not None:
            variants[row["variant"]] = with_option(variants[row["variant"]], tuning["key"], row["taken"])
    return replace(comparison, variants=variants)


def notes_on(tuning: Mapping[str, Any]) -> Iterator[str]:
    """Notes for the reader: on a variant without a value, and on a value at the edge of those that were tried."""
    key, values = tuning["key"], tuning["values"]
    for name, value in ((row["variant"], row["taken"]) for row in tuning["variants"]):
        if value is None:
            yield f"{name}: no trial has a loss, {key} stays as it is"
        elif value in (min(values), max(values)):
            edge, beyond = ("smallest", "smaller") if value == min(values) else ("largest", "larger")
            yield f"{name}: the {key} taken, {value:g}, is the {edge} tried; a {beyond} one may be better"
