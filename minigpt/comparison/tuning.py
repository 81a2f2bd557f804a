"""The trials of a grid: a value that suits one variant may not suit another, so each variant gets those that suit it.

Before the runs, every variant is trained with every choice (`grid.py`), on seeds that the runs do not have: the trials.
All variants have the same number of them. The rule: of the choices whose trials all have a loss, the one with the
lowest mean validation loss is taken; of equal ones, the first. A trial is a run like any other, with a folder and a
result.

The lowest of many losses is too low by chance. So the loss of a trial is reported beside the number of choices, and is
compared with nothing: what was taken is measured again in the runs, whose seeds are new.

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

from minigpt.comparison.grid import choices, folder_name, with_choice
from minigpt.comparison.results import Job, config_key
from minigpt.comparison.statistics import mean_of_all
from minigpt.comparison.variants import Comparison, slug
from minigpt.text.dataset import DataConfig
from minigpt.text.languages.tasks import Task

TRIALS = "tuning"  # the folder of the trials, in that of the comparison
OTHER = 1_000_000  # added to the seed of the runs' texts, for the texts of the trials
RULE = (
    "the lowest mean validation loss over these seeds, which the runs do not have, on other texts of a built-in"
    " language and on the sizes that are trained; of equals the first"
)


def trials(
    comparison: Comparison, plugins: Sequence[Path], allow_leak: bool = False, skip_checks: bool = False
) -> list[Job]:
    """All trials of a comparison, ordered by seed and choice."""
    jobs = list[Job]()
    for seed, (name, choice) in product(comparison.settings.trial_seeds, choices(comparison.grids).items()):
        for variant, config in comparison.variants.items():
            config = with_choice(config, choice)
            training = replace(config.training, seed=seed)
            config = replace(config, data=other_texts(config.data, OTHER), training=training)
            folder = comparison.folder / TRIALS / f"{slug(variant)}-{folder_name(name)}-seed-{seed}"
            key = config_key(config, plugins, allow_leak, skip_checks)
            jobs.append(Job(variant, seed, config, key, folder, name))
    return jobs


def other_texts(data: DataConfig, later: int) -> DataConfig:
    """The same built-in language with other texts, all of sizes that are trained; a text of your own is unchanged."""
    language = data.language
    if isinstance(language, Task):
        config = language.config
        return replace(data, source=replace(config, seed=config.seed + later, validation_sizes=None))
    return data if language is None else replace(data, stories=replace(data.stories, seed=data.stories.seed + later))


def summary_of(comparison: Comparison, results: Sequence[tuple[Job, Mapping[str, Any] | None]]) -> dict[str, Any]:
    """The trials as a dict for results.json. A choice whose trials have not all a loss has None.

    `taken` is the choice that the rule (see above) takes, {key: value}; None if no choice has a loss.
    """
    every = choices(comparison.grids)
    losses: dict[str, dict[str, list[float | None]]] = {}
    for trial, result in results:
        loss = result["loss"] if result is not None and result["status"] == "done" else None
        losses.setdefault(trial.variant, {name: [] for name in every})[trial.choice].append(loss)
    rows = []
    for variant, of_choices in losses.items():
        means = {name: mean_of_all(seeds) for name, seeds in of_choices.items()}
        known = {name: mean for name, mean in means.items() if mean is not None}
        taken = min(known, key=lambda name: known[name]) if known else None
        row = {"variant": variant, "losses": list(means.values()), "loss": known.get(taken or "")}
        rows.append(row | {"choice": taken, "taken": None if taken is None else dict(every[taken])})
    grids = {key: list(values) for key, values in comparison.grids.items()}
    seeds = list(comparison.settings.trial_seeds)
    return {"grid": grids, "choices": list(every), "seeds": seeds, "rule": RULE, "variants": rows}


def tuned(comparison: Comparison, tuning: Mapping[str, Any]) -> Comparison:
    """The comparison with the choice taken for each variant; without one, a variant keeps the first."""
    taken = {row["variant"]: row["taken"] or {} for row in tuning["variants"]}
    variants = {name: with_choice(config, taken.get(name, {})) for name, config in comparison.variants.items()}
    return replace(comparison, variants=variants)


def notes_on(tuning: Mapping[str, Any]) -> Iterator[str]:
    """Notes for the reader: on variants without a choice, and on numbers at the edge of those that were tried."""
    notes = dict[str, list[str]]()  # of each note, the variants
    for name, taken in ((row["variant"], row["taken"]) for row in tuning["variants"]):
        if taken is None:
            note = f"no trial has a loss, {', '.join(tuning['grid'])} = {tuning['choices'][0]} stays"
            notes.setdefault(note, []).append(name)
        for key, value in (taken or {}).items():
            numbers = [tried for tried in tuning["grid"][key] if type(tried) in (int, float)]
            if value and len(numbers) == len(tuning["grid"][key]) and value in (min(numbers), max(numbers)):
                edge, beyond = ("smallest", "smaller") if value == min(numbers) else ("largest", "larger")
                note = f"the {key} taken, {value:g}, is the {edge} tried; a {beyond} one may be better"
                notes.setdefault(note, []).append(name)
    yield from (f"{'; '.join(names)}: {note}" for note, names in notes.items())


def choice_in_words(comparison: Comparison, each: str = "variant") -> str:
    """One line: what the trials chose, among how many, and that it was measured again; "" without a grid."""
    if not comparison.grids:
        return ""
    trial_seeds, seeds = (", ".join(map(str, s)) for s in (comparison.settings.trial_seeds, comparison.settings.seeds))
    among = f"{', '.join(comparison.grids)}: the best of {len(choices(comparison.grids))} choices in the trials"
    return f"Chosen for each {each}, {among} (seeds {trial_seeds}), and measured again with the seeds {seeds}."
