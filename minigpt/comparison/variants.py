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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from minigpt.attention import Attention
from minigpt.config.options import Options, Positive, Range, Seed, Tell, build, find, suggest, to_python
from minigpt.config.overrides import override, put
from minigpt.config.strict_yaml import Node, from_python, parse_yaml, read_text
from minigpt.languages.tasks import Task
from minigpt.runs.assemble import RunConfig
from minigpt.runs.run import RUNS
from minigpt.system.errors import ConfigError, Mistake
from minigpt.system.folder import check_name
from minigpt.system.plugin import module_name

ONE_THREAD = "every run of a comparison has one thread; compare.processes sets how many runs train at the same time"


@dataclass(frozen=True, kw_only=True)
class TuneConfig(Options):
    """An option that is chosen for each variant before its runs (`tuning.py`)."""

    key: str = "training.optimizer.learning_rate"
    """The option, as a key of the config."""
    values: tuple[Positive, ...] = (0.001, 0.003, 0.01)
    """The values of the option; every variant is tried with each of them."""
    seeds: tuple[Seed, ...] = (101,)
    """The seeds of the trials; a seed of the runs must not be among them."""

    def mistakes(self) -> Iterator[Mistake]:
        if len(set(self.values)) < max(2, len(self.values)):
            yield "values", f"expected two or more, all different, found {list(self.values)}"
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds", f"{list(self.seeds)} has a seed more than once: a repeated trial adds no information"


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
    tune: TuneConfig | None = None
    """An option that is chosen for each variant by trials with other seeds; null: none."""
    processes: Annotated[int, Range(1, 1024)] = 2
    """How many runs train at the same time, each on one thread."""

    def mistakes(self) -> Iterator[Mistake]:
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds", f"{list(self.seeds)} has a seed more than once: a repeated run adds no information"
        if (self.match == "seconds") != (self.seconds is not None):
            yield "seconds", "give `match: seconds` and `seconds: N` together, or neither"
        if self.tune is not None and (both := sorted({*self.tune.seeds} & {*self.seeds})):
            yield (
                "tune.seeds",
                f"{both[0]} is also a seed of the runs: what is chosen on it cannot be tested on it",
            )


@dataclass(frozen=True)
class Comparison:
    """A comparison: every variant with its whole config."""

    name: str
    settings: CompareConfig
    variants: dict[str, RunConfig]
    differing: tuple[str, ...]  # all keys that a variant sets
    rungs: tuple[str, ...] = field(default=(), kw_only=True)  # of a staircase: its variants are these on its tasks
    tasks: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # of a staircase: task -> question

    @property
    def folder(self) -> Path:
        """The folder of its runs and results."""
        return RUNS / "compare" / self.name

    def like(self, config: RunConfig) -> RunConfig:
        """The config whose checks and speed stand for those of this one: in a staircase that of its model on the first
        of the tasks.
        """
        every = self.variants.values() if self.tasks else ()
        alike = (one for one in every if (one.model, one.training) == (config.model, config.training))
        return replace(config, data=next(alike, config).data)


def cell_name(rung: str, task: str) -> str:
    """The name of the variant that is a rung on a task."""
    return f"{rung}, {task}"


def load_comparison(
    file: str, overrides: Sequence[str] = (), name: str = "", tell: Tell | None = None, plugins: Sequence[Path] = ()
) -> Comparison:
    """Read a comparison. The overrides `group.key=value` change what all variants share.

    Each attention of `plugins`, which are loaded, becomes a variant if none has it. `tell` is given a sentence for each
    kind that a variant swaps: what it keeps of the shared one. Raises UserError.
    """
    path = find(file)
    name = name or path.stem
    check_name(name, "a comparison")
    mistakes: list[Mistake] = []
    tree = parse_yaml(read_text(path), str(path), mistakes)
    if not isinstance(tree.value, dict) or not {"compare", "variants"} <= set(tree.value):
        raise ConfigError([(tree.where, "a comparison has `compare:` and `variants:` (see configs/ladder.yaml)")])
    for argument in overrides:
        override(tree, argument, mistakes)
    settings_node, variants_node = tree.value.pop("compare"), tree.value.pop("variants")
    settings = build(CompareConfig, settings_node)
    variants_node = _with_plugins(variants_node, {*map(module_name, plugins)})
    rungs, questions = variants_node, dict[str, str]()
    if tasks_node := tree.value.pop("tasks", None):
        variants_node, questions = _on_tasks(tasks_node, rungs)
    variants, keys = _variants(tree, variants_node, mistakes, tell)
    mistakes += _untunable(settings, settings_node, variants, keys)
    if questions and (settings.baseline or settings.tune or settings.match != "steps"):
        mistakes.append((settings_node.where, "compare: with `tasks:`, only seeds and processes can be set"))
    mistakes += [
        (tasks_node.where, f"tasks: {name}: data.source: expected a task, as in {{kind: match}}")
        for name, config in (variants.items() if tasks_node else ())
        if not isinstance(config.data.language, Task)
    ]
    if not questions and settings.baseline not in variants_node.value:
        found = f"found {settings.baseline!r}{suggest(settings.baseline, variants_node.value)}"
        mistakes.append((settings_node.where, f"compare.baseline: expected a variant, {found}"))
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return Comparison(name, settings, variants, keys, rungs=tuple(rungs.value) if questions else (), tasks=questions)


def _with_plugins(variants: Node, modules: Collection[str]) -> Node:
    """The variants, and one for each attention of these modules that none names, if they compare attentions."""
    compared = variants.value.values() if isinstance(variants.value, dict) else ()
    if not any("model.attention" in changes.value for changes in compared if isinstance(changes.value, dict)):
        return variants
    named = words_in(variants)
    own = [kind for kind, made in Attention.kinds.items() if made.__module__ in modules and kind not in named]
    more = from_python({kind: {"model.attention": {"kind": kind}} for kind in own}, "--plugin")
    return replace(variants, value=variants.value | more.value, keys=variants.keys | more.keys)


def words_in(node: Node) -> set[str]:
    """All words of a part of a config, but for its keys."""
    if isinstance(node.value, (dict, list)):
        inside = node.value.values() if isinstance(node.value, dict) else node.value
        return set[str]().union(*map(words_in, inside))
    return {str(node.value)}


def _on_tasks(tasks: Node, rungs: Node) -> tuple[Node, dict[str, str]]:
    """Each rung on each task as a variant, and the question of each task. Raises ConfigError."""
    expected = "expected `name: {question: TEXT, data.source: TASK, ...}`, one a line"
    if not isinstance(tasks.value, dict) or not tasks.value:
        raise ConfigError([(tasks.where, f"tasks: {expected}")])
    questions, variants, places = dict[str, str](), dict[str, Node](), dict[str, str]()
    for task, changes in tasks.value.items():
        if not isinstance(changes.value, dict) or not {"question", "data.source"} <= changes.value.keys():
            raise ConfigError([(changes.where, f"tasks.{task}: {expected}")])
        questions[task] = str(changes.value["question"].value)
        shared = {key: value for key, value in changes.value.items() if key != "question"}
        for rung, own in rungs.value.items() if isinstance(rungs.value, dict) else ():
            name, places[cell_name(rung, task)] = cell_name(rung, task), rungs.keys[rung]
            both = own.value if not isinstance(own.value, dict) else shared | own.value
            variants[name] = replace(own, value=both, keys=changes.keys | own.keys)
    return replace(rungs, value=variants or rungs.value, keys=places or rungs.keys), questions


def _variants(
    tree: Node, node: Node, mistakes: list[Mistake], tell: Tell | None
) -> tuple[dict[str, RunConfig], tuple[str, ...]]:
    """The config of each variant, and all keys that a variant sets."""
    if not isinstance(node.value, dict) or not node.value:
        raise ConfigError([(node.where, "variants: expected `name: {group.key: value, ...}`, one a line")])
    variants: dict[str, RunConfig] = {}
    keys: dict[str, None] = {}
    for name, changes in node.value.items():
        where = node.keys[name]
        if slug(name) in map(slug, variants) or not slug(name):
            mistakes.append((where, f"variants: {name!r} needs a name of its own, with letters or digits in it"))
        if not isinstance(changes.value, dict):
            mistakes.append((changes.where, f"variants.{name}: expected {{group.key: value, ...}}"))
            continue
        own = copy.deepcopy(tree)
        for key, value in changes.value.items():
            if key == "training.seed":
                mistakes.append((changes.keys[key], "the seeds of a comparison are in compare.seeds, for all variants"))
            keys[key] = None
            put(own, key, copy.deepcopy(value), changes.keys[key])
        try:
            variants[name] = build(RunConfig, own, tell=under(name, tell))
            if variants[name].training.threads not in ("auto", 1):
                mistakes.append((node.keys[name], f"variants.{name}: training.threads: {ONE_THREAD}"))
        except ConfigError as error:
            mistakes += error.mistakes
    return variants, tuple(keys)


def under(name: str, tell: Tell | None) -> Tell | None:
    """`tell` for the sentences of one variant, which then begin with its name."""
    return None if tell is None else lambda sentence: tell(f"{name}: {sentence}")


def _untunable(
    settings: CompareConfig, node: Node, variants: Mapping[str, RunConfig], keys: Sequence[str]
) -> Iterator[Mistake]:
    """The mistakes of `compare.tune`: an option that a variant sets, or a value that a variant cannot have."""
    if settings.tune is None:
        return
    if settings.tune.key in keys:
        yield node.where, f"compare.tune: {settings.tune.key} is set by a variant, and would be chosen over it"
    for name, config in variants.items():
        for value in settings.tune.values:
            try:
                with_option(config, settings.tune.key, value)
            except ConfigError as error:
                yield from ((node.where, f"compare.tune: {name}: {what}") for _, what in error.mistakes)


def with_option(config: RunConfig, key: str, value: float) -> RunConfig:
    """The config with another value of one option, group.key. Raises ConfigError."""
    tree = from_python(to_python(config), "compare.tune")
    put(tree, key, from_python(value, "compare.tune"), "compare.tune")
    return build(RunConfig, tree)


def slug(name: str) -> str:
    """The name of a folder, made from any name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
