"""Reads an experiment over sizes: every kind is trained at every size, with every seed.

    scaling: {baseline: multi head, seeds: [1, 2, 3], tokens_per_parameter: 20}
    sizes: {n_embd: [16, 24, 32, 48, 64], n_layer: 2, n_head: 2}
    kinds:
      multi head: {}
      mean: {model.attention: average_softmax}
    data: ...      model: ...      training: ...           # as for train.py; the same for all

A kind is a name and the config keys in which it differs, like a variant of a comparison (`variants.py`). Each kind at
each size becomes one variant, so runs, pairs and results work as in a comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from minigpt.attention import Attention
from minigpt.comparison.grid import take_grids
from minigpt.comparison.results import Job, differences, sealed_result
from minigpt.comparison.variants import (
    ALL_STEPS,
    CompareConfig,
    Comparison,
    changed,
    named,
    read_groups,
    slug,
    untriable,
)
from minigpt.config.options import (
    MOST,
    Natural,
    Options,
    Positive,
    Range,
    Size,
    Tell,
    build,
    hints,
    locate,
    suggest,
)
from minigpt.config.overrides import kind_of, layers, options_of, put
from minigpt.config.strict_yaml import Node, from_python
from minigpt.system.errors import ConfigError, Mistake, UserError
from minigpt.system.folder import check_name, read_record
from minigpt.system.terminal import one_line
from minigpt.training.assemble import RunConfig
from minigpt.training.memory import outline

GROUPS = ("scaling", "sizes", "kinds")
MAX_SUMMARY = 1 << 26  # bytes of results.json
BUDGET = ("tokens", "tokens_per_parameter")
ONE_THREAD = "every run has one thread; scaling.processes sets how many runs train at the same time"
DECIDED = {  # {key that an experiment sets for each run: the key that decides it}
    "model.n_embd": "sizes.n_embd",
    "model.n_layer": "sizes.n_layer",
    "training.max_steps": "scaling.tokens",
    "training.seed": "scaling.seeds",
}


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(CompareConfig):
    """Options of an experiment over sizes; `baseline` is a kind; a grid is tried for each kind at each size."""

    without = ("match", "seconds")

    tokens_per_parameter: Positive | None = None
    """How many positions a size is trained on, for each of the baseline's parameters in its blocks (arXiv 2203.15556
    takes about 20); all kinds of a size see the same number."""
    tokens: Annotated[int, Range(1, MOST)] | None = None
    """How many positions every size is trained on; give this or tokens_per_parameter."""
    hold_out: Natural = 1
    """How many of the largest sizes the fit does not see; it predicts them."""
    rate_power: float = 0.0
    """The learning rate of a size is the config's, times (its width / the first width) to this power."""

    def mistakes(self) -> Iterator[Mistake]:
        if (self.tokens is None) == (self.tokens_per_parameter is None):
            yield "tokens", "give tokens or tokens_per_parameter, and not both (null: not given)"
        if len(set(self.seeds)) < max(2, len(self.seeds)):
            yield "seeds", f"expected two or more, all different, found {list(self.seeds)}"
        yield from (mistake for mistake in super().mistakes() if mistake[0] != "seeds")


@dataclass(frozen=True, kw_only=True)
class SizesConfig(Options):
    """The sizes, from the smallest to the largest. A list has a number for each size; one number is for all sizes."""

    n_embd: tuple[Size, ...]
    """The width of each size."""
    n_layer: Size | tuple[Size, ...] = 2
    """The number of layers."""
    n_head: Size | tuple[Size, ...] = 1
    """The number of heads of every kind that has heads and does not set n_head itself."""

    def mistakes(self) -> Iterator[Mistake]:
        for name in ("n_layer", "n_head"):
            numbers = getattr(self, name)
            if isinstance(numbers, tuple) and len(numbers) != len(self.n_embd):
                count = f"{len(numbers)} numbers for {len(self.n_embd)} widths"
                yield name, f"{count}: expected one number, or one for each"
        if len(self.n_embd) < 2:
            yield "n_embd", "expected two widths or more, the smallest first"

    def every(self) -> list[tuple[int, int, int]]:
        """(n_embd, n_layer, n_head) of each size."""
        columns = [x if isinstance(x, tuple) else (x,) * len(self.n_embd) for x in (self.n_layer, self.n_head)]
        return list(zip(self.n_embd, *columns))


@dataclass(frozen=True)
class Point:
    """A kind at one size."""

    kind: str
    size: str  # as text
    parameters: int  # of its blocks: without embeddings, positions and head
    tokens: int  # positions that it is trained on
    held_out: bool  # whether the fit does not see it


@dataclass(frozen=True)
class Scaling(Comparison):
    """An experiment over sizes, as a comparison whose variants are its kinds at each size."""

    settings: ScalingConfig
    points: dict[str, Point]  # of each variant
    place: ClassVar[str] = "scaling"


def blocks_of(config: RunConfig) -> int:
    """How many parameters the blocks of a model have; none is allocated."""
    return sum(parameter.numel() for parameter in outline(config.model, 2).blocks.parameters())


def load_scaling(file: str, overrides: Sequence[str] = (), name: str = "", tell: Tell | None = None) -> Scaling:
    """Read an experiment over sizes. The overrides `group.key=value` change its keys.

    `tell` is given a sentence for each kind that is swapped: what it keeps of the shared options. Raises UserError.
    """
    name = name or Path(file).stem
    check_name(name, "an experiment")
    mistakes: list[Mistake] = []
    expected = "an experiment over sizes has `scaling:`, `sizes:` and `kinds:` (see configs/scaling.yaml)"
    tree = read_groups(file, overrides, GROUPS, expected, mistakes, tell)
    settings_node, sizes_node, kinds_node = (tree.value.pop(group) for group in GROUPS)
    keys = {argument.partition("=")[0] for argument in overrides}
    for budget, other in (BUDGET, BUDGET[::-1]):  # one on the command line takes the place of the other in the file
        alone = f"scaling.{budget}" in keys and f"scaling.{other}" not in keys
        if alone and settings_node.value[budget].value is not None:
            settings_node.value.pop(other, None)
    mistakes += _unknown(tree, "", [*GROUPS, *hints(RunConfig)])
    settings, sizes = build(ScalingConfig, settings_node, mistakes), build(SizesConfig, sizes_node)
    grids = take_grids(tree, mistakes)
    configs, baseline, count = _configs(tree, kinds_node, sizes, tell), settings.baseline, len(sizes.n_embd)
    every = {kind: of_sizes[0] for kind, of_sizes in configs.items()}
    mistakes += untriable(grids, tree, every, kinds_node, settings, equal=True)
    if settings.rate_power and (rates := [key for key in grids if key.endswith("learning_rate")]):
        problem = "with a grid of learning rates each size has its own, and scaling.rate_power has no effect"
        mistakes.append((locate(tree, rates[0]), f"{rates[0]}: {problem}: leave it out"))
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    if baseline not in configs:
        message = f"scaling.baseline: expected a kind, found {baseline!r}{suggest(baseline, configs)}"
        raise ConfigError([(settings_node.where, message)])
    if settings.hold_out > count - 2:
        message = f"scaling.hold_out: {settings.hold_out} of {count} sizes leave fewer than two to fit"
        raise ConfigError([(settings_node.where, message)])
    return replace(_with_budget(name, settings, sizes, configs), grids=grids)


def _configs(tree: Node, kinds: Node, sizes: SizesConfig, tell: Tell | None) -> dict[str, list[RunConfig]]:
    """The config of each kind at each size. Raises ConfigError."""
    mistakes, configs = list[Mistake](), dict[str, list[RunConfig]]()
    sources = dict[Mistake, list[tuple[str, int]]]()  # each mistake, and the kinds and widths that have it
    for name, changes in named(kinds, "kinds", mistakes):
        if unknown := list(_unknown(changes, f"kinds.{name}: ", list(hints(RunConfig)))):
            mistakes += unknown
            continue
        configs[name], swaps = [], list[str]()
        for size in sizes.every():
            try:
                configs[name].append(_config(tree, changes, kinds.keys[name], size, swaps.append))
            except ConfigError as error:
                for mistake in error.mistakes:
                    sources.setdefault(mistake, []).append((name, size[0]))
        if tell is not None:
            for sentence in dict.fromkeys(swaps):
                tell(f"{name}: {sentence}")
    for (where, message), of in sources.items():  # each mistake once: the first kind, and width, unless all have it
        name, n_embd = of[0]
        who = f"{name}: " if len(of) % len(sizes.n_embd) == 0 else f"{name}, {n_embd} wide: "
        mistakes.append((where, message if len(of) == len(configs) * len(sizes.n_embd) else f"{who}{message}"))
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return configs


def _config(tree: Node, changes: Node, where: str, size: tuple[int, int, int], tell: Tell) -> RunConfig:
    """The config of a kind at a size, (n_embd, n_layer, n_head). Raises ConfigError."""
    tree = changed(tree, changes)
    mistakes = list(_decided(tree))
    for key, number in zip(("model.n_embd", "model.n_layer"), size):
        put(tree, key, from_python(number, where), where)
    _put_heads(tree, size[2], where)
    config = build(RunConfig, tree, mistakes, tell)
    if config.training.threads not in ("auto", 1):
        raise ConfigError([(locate(tree, "training.threads"), f"training.threads: {ONE_THREAD}")])
    if config.training.stop is not None:
        raise ConfigError([(locate(tree, "training.stop"), f"training.stop: {ALL_STEPS}")])
    return config


def _decided(tree: Node) -> Iterator[Mistake]:
    """A mistake for each key that is given although the experiment sets it."""
    for key, by in DECIDED.items():
        group, name = key.split(".")
        node = tree.value.get(group)
        if node is not None and isinstance(node.value, dict) and name in node.value:
            yield node.keys[name], f"{key} follows from {by} in an experiment over sizes: set that, and leave this out"


def _unknown(node: Node, before: str, known: Sequence[str]) -> Iterator[Mistake]:
    """A mistake for each key whose first part is not known, with the place of an option of that name."""
    schemas = {"scaling": ScalingConfig, "sizes": SizesConfig} | dict(hints(RunConfig))
    for key in node.value:
        if (first := key.split(".")[0]) in known:
            continue
        keys = [f"{group}.{first}" for group in known if group in schemas and first in hints(schemas[group])]
        hint = f"; did you mean {DECIDED.get(keys[0], keys[0])!r}?" if keys else suggest(first, known)
        yield node.keys[key], f"{before}{first}: unknown key{hint}"


def _put_heads(tree: Node, n_head: int, where: str) -> None:
    """Set n_head of each attention that has heads and does not set n_head itself."""
    model = tree.value["model"]
    attention = model.value.get("attention") or Node("multi_head", where, {})
    kinds = layers(attention)
    for kind in kinds:
        word = kind_of(kind)
        config = getattr(Attention.kinds.get(getattr(word, "value", "")), "Config", None)
        if config is not None and "n_head" in hints(config) and "n_head" not in options_of(kind):
            kind.value["n_head"], kind.keys["n_head"] = from_python(n_head, where), where
    several = isinstance(attention.value, list) or len(kinds) > 1
    model.value["attention"] = Node(kinds, attention.where, {}) if several else kinds[0]
    model.keys["attention"] = where


def _with_budget(
    name: str, settings: ScalingConfig, sizes: SizesConfig, configs: Mapping[str, Sequence[RunConfig]]
) -> Scaling:
    """Set the steps and the learning rate of each config. Raises ConfigError where sizes do not grow."""
    of_baseline = [blocks_of(config) for config in configs[settings.baseline]]
    if sorted(set(of_baseline)) != of_baseline:
        raise ConfigError([("sizes", f"expected sizes that grow; the blocks have {of_baseline} parameters")])
    variants, points = dict[str, RunConfig](), dict[str, Point]()
    for index, (n_embd, n_layer, _) in enumerate(sizes.every()):
        tokens = settings.tokens or round((settings.tokens_per_parameter or 0) * of_baseline[index])
        factor = (n_embd / sizes.n_embd[0]) ** settings.rate_power
        held_out = index >= len(of_baseline) - settings.hold_out
        for kind, every in configs.items():
            config, training = every[index], every[index].training
            per_step = training.batch_size * config.model.block_size
            steps = min(MOST, max(1, math.ceil(tokens / per_step)))
            optimizer = replace(training.optimizer, learning_rate=training.optimizer.learning_rate * factor)
            size, training = f"{n_layer} x {n_embd}", replace(training, max_steps=steps, optimizer=optimizer)
            variants[f"{kind}, {size}"] = replace(config, training=training)
            points[f"{kind}, {size}"] = Point(kind, size, blocks_of(config), steps * per_step, held_out)
    return Scaling(name, settings, variants, ("model.n_embd", "model.n_layer"), points)


# ---- what is finished already ----


def refuse_other_settings(scaling: Scaling, runs: Sequence[Job], trials: Sequence[Job] = ()) -> None:
    """Raises UserError if the folder has finished runs with other settings, which would be trained again.

    More kinds, sizes and seeds only add runs. The value that trials chose is not compared. The trials themselves are:
    other trials may choose another value, for which finished runs would be trained again.
    """
    other = {job.who: keys for job in trials if (keys := differences(job))}
    other |= {job.who: keys for job in runs if (keys := differences(job, scaling.grids) or _other_trials(job, trials))}
    if not other:
        return
    who, keys = next(iter(other.items()))
    budget = "scaling.tokens_per_parameter" if scaling.settings.tokens is None else "scaling.tokens"
    by = {"training.max_steps": f" (from {budget})"}
    changes = [f"{key}{by.get(key, '')} is {now}, and was {then}" for key, (then, now) in keys.items()]
    some = "; ".join([*changes[:3], f"and {len(changes) - 3} more"] if len(changes) > 3 else changes)
    count = f"{len(other)} finished run{'s' * (len(other) > 1)}"
    raise UserError(f"{scaling.folder} has {count} with other settings ({who}: {some}): give another --name")


def _other_trials(run: Job, trials: Sequence[Job]) -> dict[str, tuple[str, str]]:
    """Where a finished run would now have other trials than in its folder: {"the grid": (then, now)}."""
    names = {trial.folder.name for trial in trials if trial.variant == run.variant}
    if not names or sealed_result(run.folder)[0] is None:
        return {}
    form = re.compile(rf"{re.escape(slug(run.variant))}-(?P<choice>.+)-seed-(?P<seed>[0-9]+)")
    others = {trial.folder.name for trial in trials} - names
    former = {path.name for path in trials[0].folder.parent.glob("*") if form.fullmatch(path.name)} - others

    def in_words(names: set[str]) -> str:
        matches = [match for name in names if (match := form.fullmatch(name))]
        every = sorted({match["choice"] for match in matches})
        seeds = sorted({match["seed"] for match in matches}, key=int)
        return f"{', '.join(every)} (seed {', '.join(seeds)})" if matches else "none"

    return {} if former == names else {"the grid": (in_words(former), in_words(names))}


def refuse_fewer_kinds(scaling: Scaling) -> None:
    """Raises UserError if the folder has a page with kinds that are not given now: the new page would lose them."""
    summary = read_record(scaling.folder / "results.json", MAX_SUMMARY, {"kinds": [{"kind": str}]})
    kinds = {point.kind for point in scaling.points.values()}
    if missing := [row["kind"] for row in (summary or {"kinds": []})["kinds"] if row["kind"] not in kinds]:
        names = one_line(", ".join(missing))
        raise UserError(f"{scaling.folder} has a page that compares {names} too: give all its kinds, or another --name")
