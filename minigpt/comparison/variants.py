"""A comparison: what differs (variants), what is held equal, and the folder in which its runs are kept.

    compare: {baseline: one head, seeds: [1, 2, 3], match: steps}
    variants:
      one head: {model.attention: single_head}
      four heads: {model.attention: {kind: multi_head, n_head: 4}}
    data: ...      model: ...      training: ...           # as for train.py: what all variants share

A variant is a name and the config keys in which it differs: any keys. Every variant is trained once with each seed, so
runs with equal seeds form pairs. Batch n is a function of (seed, n), so they see the same batches in the same order.

runs/compare/ladder/
    results.json  results.csv  page.html                   what came of it
    one-head-seed-1/                                       a run, as of train.py, and its result.json
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from minigpt.config.options import Interval, Options, Positive, Seed, build, find, override, put, suggest, to_python
from minigpt.config.strict_yaml import Node, parse_yaml, read_text
from minigpt.runs.run import RUNS, RunConfig
from minigpt.system.errors import ConfigError, Mistake, UserError
from minigpt.system.folder import check_name, read_start, write_whole
from minigpt.system.strict_json import has_form, parse_json
from minigpt.text.corpus import Corpus, open_corpus
from minigpt.text.dataset import DataConfig
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.memory import parameter_count

RESULT, MAX_RESULT = "result.json", 1 << 28  # bytes: most of them are pictures of attention
ONE_THREAD = "every run of a comparison has one thread; compare.processes says how many run at a time"
WIDEST = 2**20  # MLP, as `Size` has it


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Options):
    """How the variants are held against each other."""

    baseline: str = ""
    """The variant that all others are compared with."""
    seeds: tuple[Seed, ...] = (1, 2, 3)
    """Every variant is trained once with each; an interval needs two, and gets much narrower with three or four."""
    match: Literal["steps", "parameters", "seconds"] = "steps"
    """What is held equal: training.max_steps; these and, through model.mlp_width, parameters; or training time."""
    seconds: Positive | None = None
    """With `match: seconds`, how long every run trains."""
    processes: Annotated[int, Interval(1, 1024)] = 2
    """Runs at a time, each on one thread."""

    def mistakes(self) -> Iterator[Mistake]:
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds", f"a seed stands twice in {list(self.seeds)}: a run repeated is no new evidence"
        if (self.match == "seconds") != (self.seconds is not None):
            yield "seconds", "give `match: seconds` and `seconds: N` together, or neither"


@dataclass(frozen=True)
class Comparison:
    """A comparison as it was read: every variant with its whole config."""

    name: str
    settings: CompareConfig
    variants: dict[str, RunConfig]
    differing: tuple[str, ...]  # the keys in which variants differ

    @property
    def folder(self) -> Path:
        """Where its runs and its results are kept."""
        return RUNS / "compare" / self.name


@dataclass(frozen=True)
class Job:
    """One run to do: a variant with a seed."""

    variant: str
    seed: int
    config: RunConfig
    key: str
    folder: Path


def load_comparison(file: str, overrides: Sequence[str] = (), name: str = "") -> Comparison:
    """Read a comparison and apply `group.key=value` to what its variants share. Raises UserError."""
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
    variants, keys = _variants(tree, variants_node, mistakes)
    if settings.baseline not in variants_node.value:
        found = f"found {settings.baseline!r}{suggest(settings.baseline, variants_node.value)}"
        mistakes.append((settings_node.where, f"compare.baseline: expected a variant, {found}"))
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return Comparison(name, settings, variants, keys)


def _variants(tree: Node, node: Node, mistakes: list[Mistake]) -> tuple[dict[str, RunConfig], tuple[str, ...]]:
    """The config of each variant, and all keys that one of them sets."""
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
            variants[name] = build(RunConfig, own)
            if variants[name].training.threads not in ("auto", 1):
                mistakes.append((node.keys[name], f"variants.{name}: training.threads: {ONE_THREAD}"))
        except ConfigError as error:
            mistakes += error.mistakes
    return variants, tuple(keys)


# ---------------------------------------------------------------------------------------------- held equal


@lru_cache(maxsize=4)
def material(data: DataConfig) -> tuple[Corpus, Tokenizer]:
    """The text of a config and its tokenizer; kept, since most runs of a comparison share them."""
    corpus = open_corpus(data.source, data.stories)
    return corpus, data.tokenizer.component.fit(data.tokenizer, corpus.documents())


def parameters(config: RunConfig) -> int:
    """How many parameters a config makes; nothing is allocated."""
    return parameter_count(config.model, material(config.data)[1].vocab_size)


def match_parameters(comparison: Comparison) -> Comparison:
    """Change every variant's `model.mlp_width` so that it has as many parameters as the baseline, within 1 %.

    Raises UserError where no width does that.
    """
    wanted = parameters(comparison.variants[comparison.settings.baseline])
    matched = {}
    for name, config in comparison.variants.items():
        matched[name] = config if name == comparison.settings.baseline else widened(config, wanted)
        found = parameters(matched[name])
        if abs(found - wanted) > 0.01 * wanted:
            hint = "give it fewer or narrower layers, or compare with match: steps"
            raise UserError(f"match: parameters: {name} has {found:,} at best, the baseline {wanted:,}: {hint}")
    return replace(comparison, variants=matched)


def widened(config: RunConfig, wanted: int) -> RunConfig:
    """The config with the MLP width whose number of parameters is nearest to `wanted`."""

    def at(units: int) -> RunConfig:
        return replace(config, model=replace(config.model, mlp_width=units))

    low, high = 1, 2
    while parameters(at(high)) < wanted and 2 * high <= WIDEST:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(at(middle)) < wanted else (low, middle)
    return min(at(low), at(high), key=lambda candidate: abs(parameters(candidate) - wanted))


# ---------------------------------------------------------------------------------------------- runs


def slug(name: str) -> str:
    """A name as a folder's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def config_key(config: RunConfig, plugins: Sequence[Path], allow_leak: bool = False) -> str:
    """A name that changes with anything in the config, and with the plugins' code."""
    digest = hashlib.sha256(json.dumps([to_python(config), allow_leak], sort_keys=True).encode())
    for plugin in plugins:
        digest.update(hashlib.sha256(plugin.read_bytes()).digest())
    return digest.hexdigest()[:32]


@lru_cache
def code_digest() -> str:
    """A name that changes with the package's own code."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def jobs(comparison: Comparison, plugins: Sequence[Path], allow_leak: bool = False) -> list[Job]:
    """All runs, seed by seed, so that a comparison that is stopped early has whole pairs."""
    found = []
    for seed in comparison.settings.seeds:
        for variant, config in comparison.variants.items():
            seeded = replace(config, training=replace(config.training, seed=seed))
            folder = comparison.folder / f"{slug(variant)}-seed-{seed}"
            found.append(Job(variant, seed, seeded, config_key(seeded, plugins, allow_leak), folder))
    return found


def save_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write a finished run's result: sealed with its SHA-256, and renamed into place, so it is whole or not there."""
    text = json.dumps(result, allow_nan=False)
    sealed = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "result": text}
    write_whole(folder / RESULT, json.dumps(sealed))


ROW = {"characters": int, "accuracy": float, "gap": float, "price": float, "remembered": float | None}
RAN = {  # what every result says
    **{"variant": str, "seed": int, "key": str, "status": str, "message": str, "steps": int, "curve": [[float]]},
    **{"parameters": int, "flops_per_token": float, "cache_bytes_per_token": float},
}
FINISHED = RAN | {  # and that of a run that did not diverge
    **{"loss": float, "floor": float | None, "forgetful": float | None, "above": float | None, "names": {str: ROW}},
    **{"seconds": float, "training_tokens_per_second": float, "sampling_tokens_per_second": float},
}
LOOK = {"probabilities": [float], "attention": [[str]]}  # at the example story, where there is one


def is_result(values: Any) -> bool:
    """Whether these are the values of a result, as `measure.perform` finds them."""
    if not has_form(values, RAN) or not all(len(point) in (3, 4) for point in values["curve"]):
        return False
    if values.get("example") is not None and not has_form(values["example"], LOOK):
        return False
    if values["status"] == "diverged":
        return True
    known = {values.get(key) is None for key in ("floor", "forgetful", "above")}
    return values["status"] == "done" and has_form(values, FINISHED) and len(known) == 1


def load_result(folder: Path, key: str) -> tuple[dict[str, Any] | None, str]:
    """The result of a finished run, or None and why not: "" where there is none yet."""
    try:
        sealed = parse_json(read_start(folder / RESULT, MAX_RESULT))
        text, sha256 = sealed["result"], sealed["sha256"]
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            return None, "its result is damaged"
        result = parse_json(text)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"its result cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "its result is damaged"
    if not is_result(result):
        return None, "its result is not what a run finds"
    return (result, "") if result["key"] == key else (None, "its config or a plugin has changed")
