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

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from minigpt.attention import Attention
from minigpt.comparison.results import Job, differences, is_finished
from minigpt.comparison.variants import CompareConfig, Comparison, TuneConfig, slug
from minigpt.config.options import (
    MOST,
    Natural,
    Options,
    Positive,
    Range,
    Seed,
    Size,
    Tell,
    build,
    hints,
    locate,
    read_tree,
    suggest,
)
from minigpt.config.overrides import kind_of, layers, options_of, override, put
from minigpt.config.strict_yaml import Node, from_python
from minigpt.runs.assemble import RunConfig
from minigpt.runs.run import RUNS
from minigpt.system.errors import ConfigError, Mistake, UserError
from minigpt.system.folder import check_name, read_start
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.terminal import one_line
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
class ScalingConfig(Options):
    """Options of an experiment over sizes."""

    baseline: str = ""
    """The kind with which all others are compared."""
    seeds: tuple[Seed, ...] = (1, 2, 3)
    """Every kind is trained once with each seed at every size."""
    tokens_per_parameter: Positive | None = None
    """How many positions a size is trained on, for each of the baseline's parameters in its blocks (arXiv 2203.15556
    takes about 20); all kinds of a size see the same number."""
    tokens: Annotated[int, Range(1, MOST)] | None = None
    """How many positions every size is trained on; give this or tokens_per_parameter."""
    hold_out: Natural = 1
    """How many of the largest sizes the fit does not see; it predicts them."""
    rate_power: float = 0.0
    """The learning rate of a size is the config's, times (its width / the first width) to this power."""
    tune: TuneConfig | None = None
    """An option that is chosen for each kind at each size by trials with other seeds; null: none."""
    processes: Annotated[int, Range(1, 1024)] = 2
    """How many runs train at the same time, each on one thread."""

    def mistakes(self) -> Iterator[Mistake]:
        if (self.tokens is None) == (self.tokens_per_parameter is None):
            yield "tokens", "give tokens or tokens_per_parameter, and not both (null: not given)"
        if len(set(self.seeds)) < max(2, len(self.seeds)):
            yield "seeds", f"expected two or more, all different, found {list(self.seeds)}"
        if self.tune is not None and (both := sorted({*self.tune.seeds} & {*self.seeds})):
            yield "tune.seeds", f"{both[0]} is also a seed of the runs: what is chosen on it cannot be tested on it"


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
            found = getattr(self, name)
            if isinstance(found, tuple) and len(found) != len(self.n_embd):
                yield name, f"{len(found)} numbers for {len(self.n_embd)} widths: expected one number, or one for each"
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

    options: ScalingConfig
    points: dict[str, Point]  # of each variant

    @property
    def folder(self) -> Path:
        return RUNS / "scaling" / self.name


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
    tree = read_tree(file, mistakes)
    for argument in overrides:
        override(tree, argument, mistakes)
    _one_budget(tree, [argument.partition("=")[0] for argument in overrides])
    if not set(GROUPS) <= set(tree.value):
        need = "an experiment over sizes has `scaling:`, `sizes:` and `kinds:` (see configs/scaling.yaml)"
        raise ConfigError([(tree.where, need)])
    nodes = {group: tree.value.pop(group) for group in GROUPS}
    mistakes += _unknown(tree, "", [*GROUPS, *hints(RunConfig)])
    options, sizes = build(ScalingConfig, nodes["scaling"], mistakes), build(SizesConfig, nodes["sizes"])
    configs = _configs(tree, nodes["kinds"], sizes, tell)
    if options.baseline not in configs:
        found = f"found {options.baseline!r}{suggest(options.baseline, configs)}"
        raise ConfigError([(nodes["scaling"].where, f"scaling.baseline: expected a kind, {found}")])
    if options.hold_out > len(sizes.n_embd) - 2:
        what = f"{options.hold_out} of {len(sizes.n_embd)} sizes leave fewer than two to fit"
        raise ConfigError([(nodes["scaling"].where, f"scaling.hold_out: {what}")])
    return _put_together(name, options, sizes, configs)


def refuse_other_settings(scaling: Scaling, every: Sequence[Job], trials: Sequence[Job] = ()) -> None:
    """Raises UserError if the folder has finished runs with other settings, which would be trained again.

    More kinds, sizes and seeds only add runs. The value that trials chose is not compared. The trials themselves are:
    other trials may choose another value, for which finished runs would be trained again.
    """
    free = () if scaling.options.tune is None else (scaling.options.tune.key,)
    changed = {job.who: found for job in trials if (found := differences(job))}
    changed |= {job.who: found for job in every if (found := differences(job, free) or other_trials(job, trials))}
    if not changed:
        return
    who, keys = next(iter(changed.items()))
    said = [f"{key}{_follows(key, scaling.options)} is {now}, and was {then}" for key, (then, now) in keys.items()]
    what = "; ".join([*said[:3], f"and {len(said) - 3} more"] if len(said) > 3 else said)
    count = f"{len(changed)} finished run{'s' * (len(changed) > 1)}"
    raise UserError(f"{scaling.folder} has {count} with other settings ({who}: {what}): give another --name")


def other_trials(run: Job, trials: Sequence[Job]) -> dict[str, tuple[str, str]]:
    """Where a finished run would now have other trials than in its folder: {"scaling.tune": (then, now)}."""
    asked = {trial.folder.name for trial in trials if trial.variant == run.variant}
    if not asked or not is_finished(run):
        return {}
    form = re.compile(rf"{re.escape(slug(run.variant))}-(?P<value>[0-9.e+-]+)-seed-(?P<seed>[0-9]+)")
    there = {path.name for path in trials[0].folder.parent.glob("*") if form.fullmatch(path.name)}

    def told(names: set[str]) -> str:
        found = [match for name in names if (match := form.fullmatch(name))]
        values = sorted({match["value"] for match in found}, key=float)
        seeds = sorted({match["seed"] for match in found}, key=int)
        return f"{', '.join(values)} (seed {', '.join(seeds)})" if found else "null"

    return {} if there == asked else {"scaling.tune": (told(there), told(asked))}


def refuse_fewer_kinds(scaling: Scaling) -> None:
    """Raises UserError if the folder has a page with kinds that are not given now: the new page would lose them."""
    try:
        there = parse_json(read_start(scaling.folder / "results.json", MAX_SUMMARY))
    except (OSError, ValueError):
        return
    if not has_form(there, {"kinds": [{"kind": str}]}):
        return
    given = {name.rpartition(", ")[0] for name in scaling.variants}
    if gone := [row["kind"] for row in there["kinds"] if row["kind"] not in given]:
        what = one_line(", ".join(gone))
        raise UserError(f"{scaling.folder} has a page that compares {what} too: give all its kinds, or another --name")


def _follows(key: str, options: ScalingConfig) -> str:
    """In brackets, the key of the experiment that sets a key of a run; "" if no key does."""
    by = "scaling.tokens_per_parameter" if options.tokens is None else "scaling.tokens"
    return f" (from {by})" if key == "training.max_steps" else ""


def _one_budget(tree: Node, given: Sequence[str]) -> None:
    """Remove the other budget of the file if the command line gives one: tokens or tokens_per_parameter."""
    node = tree.value.get("scaling")
    for name, other in (BUDGET, BUDGET[::-1]):
        if f"scaling.{name}" in given and f"scaling.{other}" not in given and node.value[name].value is not None:
            node.value.pop(other, None)


def _decided(tree: Node) -> Iterator[Mistake]:
    """A mistake for each key that is given although the experiment sets it."""
    for key, by in DECIDED.items():
        group, name = key.split(".")
        node = tree.value.get(group)
        if node is not None and isinstance(node.value, dict) and name in node.value:
            yield node.keys[name], f"{key} follows from {by} in an experiment over sizes: set that, and leave this out"


def _configs(tree: Node, kinds: Node, sizes: SizesConfig, tell: Tell | None) -> dict[str, list[RunConfig]]:
    """The config of each kind at each size. Raises ConfigError."""
    if not isinstance(kinds.value, dict) or not kinds.value:
        raise ConfigError([(kinds.where, "kinds: expected `name: {group.key: value, ...}`, one a line")])
    mistakes, found = list[Mistake](), dict[str, list[RunConfig]]()
    seen = dict[Mistake, list[tuple[str, int]]]()  # each mistake, and the kinds and widths that have it
    for name, changes in kinds.value.items():
        where = kinds.keys[name]
        if slug(name) in map(slug, found) or not slug(name):
            mistakes.append((where, f"kinds: {name!r} needs a name of its own, with letters or digits in it"))
        if not isinstance(changes.value, dict):
            mistakes.append((changes.where, f"kinds.{name}: expected {{group.key: value, ...}}"))
            continue
        if unknown := list(_unknown(changes, f"kinds.{name}: ", list(hints(RunConfig)))):
            mistakes += unknown
            continue
        found[name], swaps = [], list[str]()
        for size in sizes.every():
            try:
                found[name].append(_config(tree, changes, where, size, swaps.append))
            except ConfigError as error:
                for mistake in error.mistakes:
                    seen.setdefault(mistake, []).append((name, size[0]))
        if tell is not None:
            for sentence in dict.fromkeys(swaps):
                tell(f"{name}: {sentence}")
    mistakes += _once(seen, len(found), len(sizes.n_embd))
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return found


def _config(tree: Node, changes: Node, where: str, size: tuple[int, int, int], tell: Tell) -> RunConfig:
    """The config of a kind at a size, (n_embd, n_layer, n_head). Raises ConfigError."""
    own = copy.deepcopy(tree)
    for key, value in changes.value.items():
        put(own, key, copy.deepcopy(value), changes.keys[key])
    mistakes = list(_decided(own))
    put(own, "model.n_embd", from_python(size[0], where), where)
    put(own, "model.n_layer", from_python(size[1], where), where)
    _put_heads(own, size[2], where)
    config = build(RunConfig, own, mistakes, tell)
    if config.training.threads not in ("auto", 1):
        raise ConfigError([(locate(own, "training.threads"), f"training.threads: {ONE_THREAD}")])
    return config


def _once(seen: Mapping[Mistake, Sequence[tuple[str, int]]], kinds: int, sizes: int) -> Iterator[Mistake]:
    """Each mistake once. Unless all have it, its text begins with the first kind (and width) that has it."""
    for (where, what), those in seen.items():
        name, n_embd = those[0]
        if len(those) == kinds * sizes:
            yield where, what
        elif len(those) % sizes == 0:
            yield where, f"{name}: {what}"
        else:
            yield where, f"{name}, {n_embd} wide: {what}"


def _unknown(node: Node, before: str, known: Sequence[str]) -> Iterator[Mistake]:
    """A mistake for each key whose first part is not known, with the place of an option of that name."""
    schemas = {"scaling": ScalingConfig, "sizes": SizesConfig} | dict(hints(RunConfig))
    for key in node.value:
        if (first := key.split(".")[0]) in known:
            continue
        places = [f"{group}.{first}" for group in known if group in schemas and first in hints(schemas[group])]
        hint = f"; did you mean {DECIDED.get(places[0], places[0])!r}?" if places else suggest(first, known)
        yield node.keys[key], f"{before}{first}: unknown key{hint}"


def _put_heads(tree: Node, n_head: int, where: str) -> None:
    """Set n_head of each attention that has heads and does not set n_head itself."""
    model = tree.value["model"]
    attention = model.value.get("attention") or Node("multi_head", where, {})
    kinds = layers(attention)
    for kind in kinds:
        named = kind_of(kind)
        config = getattr(Attention.kinds.get(getattr(named, "value", "")), "Config", None)
        if config is not None and "n_head" in hints(config) and "n_head" not in options_of(kind):
            kind.value["n_head"], kind.keys["n_head"] = from_python(n_head, where), where
    joined = Node(kinds, attention.where, {}) if isinstance(attention.value, list) or len(kinds) > 1 else kinds[0]
    model.value["attention"], model.keys["attention"] = joined, where


def _put_together(
    name: str, options: ScalingConfig, sizes: SizesConfig, configs: dict[str, list[RunConfig]]
) -> Scaling:
    """Set the steps and the learning rate of each config. Raises ConfigError where sizes do not grow."""
    shared = [blocks_of(config) for config in configs[options.baseline]]
    if sorted(set(shared)) != shared:
        raise ConfigError([("sizes", f"expected sizes that grow; the blocks have {shared} parameters")])
    variants, points = dict[str, RunConfig](), dict[str, Point]()
    for place, (n_embd, n_layer, _) in enumerate(sizes.every()):
        wanted = options.tokens or round((options.tokens_per_parameter or 0) * shared[place])
        factor = (n_embd / sizes.n_embd[0]) ** options.rate_power
        for kind, every in configs.items():
            config, training = every[place], every[place].training
            per_step = training.batch_size * config.model.block_size
            steps = min(MOST, max(1, math.ceil(wanted / per_step)))
            optimizer = replace(training.optimizer, learning_rate=training.optimizer.learning_rate * factor)
            changed = replace(training, max_steps=steps, optimizer=optimizer)
            size = f"{n_layer} x {n_embd}"
            held_out = place >= len(shared) - options.hold_out
            variants[f"{kind}, {size}"] = replace(config, training=changed)
            points[f"{kind}, {size}"] = Point(kind, size, blocks_of(config), steps * per_step, held_out)
    baseline = next(variant for variant, point in points.items() if point.kind == options.baseline)
    settings = CompareConfig(baseline=baseline, seeds=options.seeds, tune=options.tune, processes=options.processes)
    return Scaling(name, settings, variants, ("model.n_embd", "model.n_layer"), options, points)
