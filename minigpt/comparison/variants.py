"""Reads a comparison: its variants, each with its whole config, and the settings that all of them share.

    compare: {baseline: one head, seeds: [1, 2, 3], match: steps}
    variants:
      one head: {model.attention: single_head}
      four heads: {model.attention: {kind: multi_head, n_head: 4}}
    data: ...      model: ...      training: ...           # as for train.py; the same for all variants

A staircase has `tasks:` too, and every variant, its rungs, is trained on each of them:

    tasks:
      most: {question: Which digit comes most often?, data.source: most}

A variant is a name and the config keys in which it differs; any key may differ. Every variant is trained once with each
seed, so runs with the same seed form a pair. Batch n depends on (seed, n) alone, so both runs of a pair see the same
batches in the same order.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from minigpt.attention import Attention
from minigpt.comparison.grid import Grids, choices, sets, take_grids, with_choice
from minigpt.config.options import Options, Positive, Range, Seed, Tell, build, locate, read_tree, suggest
from minigpt.config.overrides import override, put
from minigpt.config.strict_yaml import Node, from_python
from minigpt.system.errors import ConfigError, Mistake
from minigpt.system.folder import check_name
from minigpt.system.plugin import module_name
from minigpt.text.languages.tasks import Task
from minigpt.training.assemble import RunConfig
from minigpt.training.run import RUNS

ALL_STEPS = "every run takes all its steps, or the comparison is not one of equal training: leave it out"
ONE_THREAD = "every run of a comparison has one thread; compare.processes sets how many runs train at the same time"


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Options):
    """Options of a comparison."""

    baseline: str = ""
    """The variant with which all others are compared."""
    seeds: tuple[Seed, ...] = (1, 2, 3)
    """Every variant is trained once with each seed. A confidence interval needs two; more seeds make it narrower."""
    match: Literal["steps", "parameters", "seconds"] = "steps"
    """What is equal for all variants: steps; steps and parameters (model.mlp.width is changed); or training time."""
    seconds: Positive | None = None
    """The training time of every run, with `match: seconds`."""
    trial_seeds: tuple[Seed, ...] = (101,)
    """The seeds of the trials of a grid (`grid.py`); a seed of the runs must not be among them."""
    processes: Annotated[int, Range(1, 1024)] = 2
    """How many runs train at the same time, each on one thread."""

    def mistakes(self) -> Iterator[Mistake]:
        for name in ("seeds", "trial_seeds"):
            if len(set(seeds := getattr(self, name))) < len(seeds):
                yield name, f"{list(seeds)} has a seed more than once: a repeated run adds no information"
        if (self.match == "seconds") != (self.seconds is not None):
            yield "seconds", "give `match: seconds` and `seconds: N` together, or neither"


@dataclass(frozen=True)
class Comparison:
    """A comparison: every variant with its whole config."""

    name: str
    settings: CompareConfig
    variants: dict[str, RunConfig]
    differing: tuple[str, ...]  # all keys that a variant sets
    rungs: tuple[str, ...] = field(default=(), kw_only=True)  # of a staircase: its variants are these on its tasks
    tasks: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # of a staircase: task -> question
    grids: Grids = field(default_factory=dict, kw_only=True)  # what is tried before the runs

    place: ClassVar[str] = "compare"  # where in runs/ its folder is

    @property
    def folder(self) -> Path:
        """The folder of its runs and results."""
        return RUNS / self.place / self.name

    def like(self, config: RunConfig) -> RunConfig:
        """The config whose checks and speed stand for those of this one: in a staircase that of its model on the first
        of the tasks.
        """
        on_tasks = self.variants.values() if self.tasks else ()
        alike = (other for other in on_tasks if (other.model, other.training) == (config.model, config.training))
        return replace(config, data=next(alike, config).data)


def cell_name(rung: str, task: str) -> str:
    """The name of the variant that is a rung on a task."""
    return f"{rung}, {task}"


def has_tokenizers(variants: Mapping[str, RunConfig]) -> bool:
    """Whether the variants have tokenizers that differ: a token is not the same text to all of them."""
    return len({config.data.tokenizer for config in variants.values()}) > 1


def _unequal_text(variants: Mapping[str, RunConfig], node: Node) -> Iterator[Mistake]:
    """The mistake of variants with tokenizers that differ, whose validation text is not the same."""
    every = [config.data for config in variants.values()]
    texts = {(data.source, data.stories, data.validation, data.field, data.encoding) for data in every}
    by_tokens = any(data.language is None and not isinstance(data.validation, str) for data in every)
    if has_tokenizers(variants) and (by_tokens or len(texts) > 1):
        own = (
            "give all the same data.validation: a number of documents (100 documents), or a text of its own (test.txt)"
        )
        yield node.where, f"variants: tokenizers can only be compared on the same validation text: {own}"


# ---- what all experiments share ----


def read_groups(
    file: str,
    overrides: Sequence[str],
    groups: Sequence[str],
    expected: str,
    mistakes: list[Mistake],
    tell: Tell | None = None,
) -> Node:
    """The tree of an experiment's file, with the overrides. Raises ConfigError, `expected` where a group is missing."""
    tree = read_tree(file, mistakes, tell)
    for argument in overrides:
        override(tree, argument, mistakes)
    if not set(groups) <= set(tree.value):
        raise ConfigError([(tree.where, expected)])
    settings = tree.value[groups[0]]
    if isinstance(settings.value, dict) and "tune" in settings.value:  # in earlier versions
        now = f"as in training.optimizer.learning_rate: [0.003, 0.01], and its seeds in {groups[0]}.trial_seeds"
        problem = f"{groups[0]}.tune: its values stand where the option does now, {now}"
        raise ConfigError([(settings.keys["tune"], problem)])
    return tree


def named(rows: Node, group: str, mistakes: list[Mistake]) -> Iterator[tuple[str, Node]]:
    """Each row of a group: its name, and the keys in which it differs. Raises ConfigError if there are none."""
    if not isinstance(rows.value, dict) or not rows.value:
        raise ConfigError([(rows.where, f"{group}: expected `name: {{group.key: value, ...}}`, one a line")])
    folders = list[str]()
    for name, changes in rows.value.items():
        if slug(name) in folders or not slug(name):
            needed = "needs a name of its own, with letters or digits in it"
            mistakes.append((rows.keys[name], f"{group}: {name!r} {needed}"))
        if isinstance(changes.value, dict):
            folders.append(slug(name))
            yield name, changes
        else:
            mistakes.append((changes.where, f"{group}.{name}: expected {{group.key: value, ...}}"))


def changed(tree: Node, changes: Node) -> Node:
    """A copy of the tree with the keys of a row. Raises ConfigError."""
    tree = copy.deepcopy(tree)
    for key, value in changes.value.items():
        put(tree, key, copy.deepcopy(value), changes.keys[key])
    return tree


def untriable(
    grids: Grids, tree: Node, variants: Mapping[str, RunConfig], rows: Node, settings: CompareConfig, equal: bool
) -> Iterator[Mistake]:
    """The mistakes of grids: an option that has none, that a row sets, or a value that a variant cannot have.

    `tree` is what the variants share. `equal`: their parameters, time or tokens are, so that only options of the
    optimizer may differ.
    """
    groups = ("training.optimizer.",) if equal else ("model.", "training.")
    if grids and (both := sorted({*settings.trial_seeds} & {*settings.seeds})):
        fault = "is also a seed of the runs: what is chosen on it cannot be tested on it"
        yield locate(tree, next(iter(grids))), f"trial_seeds: {both[0]} {fault}"
    for key in grids:
        if not key.startswith(groups) or key in ("training.seed", "training.threads"):
            others = "training.optimizer, so that all else is equal" if equal else "model or training but seed, threads"
            yield locate(tree, key), f"{key}: expected one value; a grid is of an option of {others}"
        for name in (name for name, changes in rows.value.items() if sets(changes, key)):
            yield locate(tree, key), f"{key}: {name} sets it, and a grid is for all: it would be chosen over that"
    for name, config in variants.items():
        for choice in choices(grids).values():
            try:
                with_choice(config, choice)
            except ConfigError as error:
                for _, mistake in error.mistakes:
                    yield locate(tree, mistake.partition(":")[0]), f"{name}: {mistake}"


def under(name: str, tell: Tell | None) -> Tell | None:
    """`tell` for the sentences of one row, which then begin with its name."""
    return None if tell is None else lambda sentence: tell(f"{name}: {sentence}")


def slug(name: str) -> str:
    """The name of a folder, made from any name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# ---- a comparison ----


def load_comparison(
    file: str, overrides: Sequence[str] = (), name: str = "", tell: Tell | None = None, plugins: Sequence[Path] = ()
) -> Comparison:
    """Read a comparison. The overrides `group.key=value` change what all variants share.

    Each attention of `plugins`, which are loaded, becomes a variant if none has it. `tell` is given a sentence for each
    kind that a variant swaps: what it keeps of the shared one. Raises UserError.
    """
    name = name or Path(file).stem
    check_name(name, "a comparison")
    mistakes: list[Mistake] = []
    expected = "a comparison has `compare:` and `variants:` (see configs/ladder.yaml)"
    tree = read_groups(file, overrides, ("compare", "variants"), expected, mistakes, tell)
    settings_node, rungs = tree.value.pop("compare"), _with_plugins(tree.value.pop("variants"), plugins)
    settings, tasks = build(CompareConfig, settings_node), tree.value.pop("tasks", None)
    rows, questions = (rungs, dict[str, str]()) if tasks is None else _on_tasks(tasks, rungs)
    grids = take_grids(tree, mistakes)
    variants, keys = _variants(tree, rows, mistakes, tell)
    mistakes += _unequal_text(variants, settings_node)
    mistakes += untriable(grids, tree, variants, rows, settings, settings.match != "steps")
    if questions and (settings.baseline or grids or settings.match != "steps"):
        only = "compare: with `tasks:`, only seeds and processes can be set, and no option has a grid"
        mistakes.append((settings_node.where, only))
    for variant, config in variants.items() if tasks else ():
        if not isinstance(config.data.language, Task):
            mistakes.append((tasks.where, f"tasks: {variant}: data.source: expected a task, as in {{kind: match}}"))
    if not questions and settings.baseline not in rows.value:
        actual = f"found {settings.baseline!r}{suggest(settings.baseline, rows.value)}"
        mistakes.append((settings_node.where, f"compare.baseline: expected a variant, {actual}"))
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    steps = tuple(rungs.value) if questions else ()
    return Comparison(name, settings, variants, keys, rungs=steps, tasks=questions, grids=grids)


def _with_plugins(rows: Node, plugins: Sequence[Path]) -> Node:
    """The variants, and one for each attention of the plugins that none names, if they compare attentions."""
    every = rows.value.values() if isinstance(rows.value, dict) else ()
    if not any("model.attention" in changes.value for changes in every if isinstance(changes.value, dict)):
        return rows
    words, modules = _words(rows), {*map(module_name, plugins)}
    kinds = [kind for kind, cls in Attention.kinds.items() if cls.__module__ in modules and kind not in words]
    more = from_python({kind: {"model.attention": {"kind": kind}} for kind in kinds}, "--plugin")
    return replace(rows, value=rows.value | more.value, keys=rows.keys | more.keys)


def _words(node: Node) -> set[str]:
    """All words of a part of a config, but for its keys."""
    if isinstance(node.value, (dict, list)):
        children = node.value.values() if isinstance(node.value, dict) else node.value
        return set[str]().union(*map(_words, children))
    return {str(node.value)}


def _on_tasks(tasks: Node, rungs: Node) -> tuple[Node, dict[str, str]]:
    """Each rung on each task as a variant, and the question of each task. Raises ConfigError."""
    expected = "expected `name: {question: TEXT, data.source: TASK, ...}`, one a line"
    if not isinstance(tasks.value, dict) or not tasks.value:
        raise ConfigError([(tasks.where, f"tasks: {expected}")])
    questions, variants, locations = dict[str, str](), dict[str, Node](), dict[str, str]()
    for task, changes in tasks.value.items():
        if not isinstance(changes.value, dict) or not {"question", "data.source"} <= changes.value.keys():
            raise ConfigError([(changes.where, f"tasks.{task}: {expected}")])
        questions[task] = str(changes.value["question"].value)
        shared = {key: value for key, value in changes.value.items() if key != "question"}
        for rung, node in rungs.value.items() if isinstance(rungs.value, dict) else ():
            name, value = cell_name(rung, task), shared | node.value if isinstance(node.value, dict) else node.value
            variants[name] = replace(node, value=value, keys=changes.keys | node.keys)
            locations[name] = rungs.keys[rung]
    return replace(rungs, value=variants or rungs.value, keys=locations or rungs.keys), questions


def _variants(
    tree: Node, rows: Node, mistakes: list[Mistake], tell: Tell | None
) -> tuple[dict[str, RunConfig], tuple[str, ...]]:
    """The config of each variant, and all keys that a variant sets."""
    variants, keys = dict[str, RunConfig](), dict[str, None]()
    for name, changes in named(rows, "variants", mistakes):
        keys |= dict.fromkeys(changes.value)
        if "training.seed" in changes.value:
            hint = "the seeds of a comparison are in compare.seeds, for all variants"
            mistakes.append((changes.keys["training.seed"], hint))
        try:
            variants[name] = build(RunConfig, changed(tree, changes), tell=under(name, tell))
            if variants[name].training.threads not in ("auto", 1):
                mistakes.append((rows.keys[name], f"variants.{name}: training.threads: {ONE_THREAD}"))
            if variants[name].training.stop is not None:
                mistakes.append((locate(changed(tree, changes), "training.stop"), f"training.stop: {ALL_STEPS}"))
        except ConfigError as error:
            mistakes += error.mistakes
    return variants, tuple(keys)
