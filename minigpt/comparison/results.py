"""The runs of a comparison and the results that they leave behind.

runs/compare/ladder/
    results.json  results.csv  page.html                   written by experiment.py from the results of all runs
    tuning/one-head-0.003-seed-101/                        a trial of a grid: a folder like a run's
    one-head-seed-1/                                       a run folder as train.py makes it
        result.json                                        the result of this run, with its SHA-256
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from minigpt.comparison.variants import Comparison, slug
from minigpt.config.options import from_dict, to_python
from minigpt.config.upgrade import FORMAT, Later, stamped, take_format, upgrade_config
from minigpt.system.errors import UserError
from minigpt.system.folder import read_start, write_whole
from minigpt.system.places import PACKAGE, SCRIPTS
from minigpt.system.plugin import code_of
from minigpt.system.strict_json import has_form, parse_json
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import written_in
from minigpt.training.run import CHECKPOINTS

RESULT, MAX_RESULT = "result.json", 1 << 28  # bytes; most of them are attention maps


@dataclass(frozen=True)
class Job:
    """One run, or one trial before the runs: a variant with a seed, the key of its config, and its folder."""

    variant: str
    seed: int
    config: RunConfig
    key: str
    folder: Path
    choice: str = ""  # in a trial: the values of the grid, as text

    @property
    def who(self) -> str:
        """The variant, the choice and the seed as text."""
        tried = f" with {self.choice}" if self.choice else ""
        return f"{self.variant}{tried}, seed {self.seed}"


def config_key(config: Any, plugins: Sequence[Path], allow_leak: bool = False, skip_checks: bool = False) -> str:
    """A hash of the config, or of its plain values, of how it was checked, and of the plugins' code as it was loaded.

    A result with another key is not used.
    """
    checked = [allow_leak, "skip checks"] if skip_checks else [allow_leak]
    digest = hashlib.sha256(json.dumps([to_python(config), *checked], sort_keys=True).encode())
    for plugin in plugins:
        digest.update(hashlib.sha256(code_of(plugin)).digest())
    return digest.hexdigest()[:32]


@lru_cache
def code_digest() -> str:
    """A hash of the package's own code, without its commands."""
    files = sorted(path for path in PACKAGE.rglob("*.py") if SCRIPTS not in path.parents)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def jobs(
    comparison: Comparison, plugins: Sequence[Path], allow_leak: bool = False, skip_checks: bool = False
) -> list[Job]:
    """All runs, ordered by seed, so that an experiment that is stopped early has complete pairs."""
    jobs = []
    for seed in comparison.settings.seeds:
        for variant, config in comparison.variants.items():
            seeded = replace(config, training=replace(config.training, seed=seed))
            folder = comparison.folder / f"{slug(variant)}-seed-{seed}"
            jobs.append(Job(variant, seed, seeded, config_key(seeded, plugins, allow_leak, skip_checks), folder))
    return jobs


def save_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run with its SHA-256. The file is renamed into place, so it is complete or missing."""
    text = json.dumps(stamped(dict(result)), allow_nan=False)
    sealed = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "result": text}
    write_whole(folder / RESULT, json.dumps(sealed))


SCORE = {"characters": int, "accuracy": float, "gap": float, "price": float, "remembered": float | None}
RAN = {  # the keys of every result
    **{"variant": str, "seed": int, "key": str, "status": str, "message": str, "steps": int, "curve": [[float]]},
    **{"parameters": int, "flops_per_token": float, "cache_bytes_per_token": float},
}
FINISHED = RAN | {  # the keys of a run that did not diverge
    "characters": int,
    **{"loss": float, "floor": float | None, "forgetful": float | None, "above": float | None, "names": {str: SCORE}},
    **{"seconds": float, "training_tokens_per_second": float, "sampling_tokens_per_second": float},
}
EXAMPLE = {"probabilities": [float | None], "attention": [[str]]}  # of the example story, if there is one
LABELS = {"notes": [[str]], "tokens": [str]}  # of its attention; earlier results have none
NO_LABELS: dict[str, list[str]] = {"notes": [], "tokens": []}
ANSWERED = [[str]]  # a text of a task and the answers to it; earlier results have none
BITS = [float | None]  # bits a byte at each point of the curve; earlier results have none
TEXTS = ("example", "answered")  # what a result says of single texts


def is_result(values: Any) -> bool:
    """Whether a value has the form of a result, as the worker makes it."""
    if not has_form(values, RAN) or not all(len(point) in (3, 4) for point in values["curve"]):
        return False
    example = values.get("example")
    if example is not None and not (has_form(example, EXAMPLE) and has_form({**NO_LABELS, **example}, LABELS)):
        return False
    if values["status"] == "diverged":
        return True
    if not (has_form(values.get("answered", []), ANSWERED) and has_form(values.get("curve_bits", []), BITS)):
        return False
    without_floor = {values.get(key) is None for key in ("floor", "forgetful", "above")}
    return values["status"] == "done" and has_form(values, FINISHED) and len(without_floor) == 1


def load_result(
    folder: Path, key: str, key_of: Callable[[Any], str] | None = None
) -> tuple[dict[str, Any] | None, str]:
    """The result of a run, or None and the reason why it cannot be used: "" if there is no result yet.

    One that an earlier version made is used if its config, in today's form, has this key. `key_of`: the key of plain
    values; with it, what was recorded is seen to have the same plugins and checks. Raises UserError for one that cannot
    be used: it is kept.
    """
    result, why = sealed_result(folder)
    if result is None or result["key"] == key:
        return result, why
    if not is_earlier(result):
        return None, "its config or a plugin has changed"
    if key_of is not None and key_of(result.get("config")) == result["key"]:
        config = config_of(result, folder)
        if config is not None and key_of(config) == key:
            return result, ""
    origin = f"{folder} has a result of an earlier version of minigpt, with another config, or another plugin"
    raise UserError(f"{origin}: it is kept; give this comparison another --name")


def is_earlier(result: Mapping[str, Any]) -> bool:
    """Whether a version with another format of files made a result."""
    return bool(result.get("format") != FORMAT)


def config_of(result: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """The config in a run's result, in today's form; None where it has none, or one that is no config any more."""
    values = copy.deepcopy(result.get("config"))
    if not (isinstance(values, dict) and is_earlier(result)):
        return values
    try:
        number = result.get("format", written_in(folder / CHECKPOINTS))
        upgrade_config(values, number, lambda sentence: None)
        return dict(to_python(from_dict(RunConfig, values)))
    except UserError:
        return None


def differences(job: Job, free: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The keys in which the config of a finished run differs from the job's: {key: (then, now)}; None: no such key.

    Empty if the run has not finished. Keys in `free` are not compared.
    """
    result, _ = sealed_result(job.folder)
    config = None if result is None else config_of(result, job.folder)
    if config is None:
        return {}
    then, now = _leaves(config), _leaves(to_python(job.config))
    keys = [key for key in {**then, **now} if key not in free]
    return {key: (then.get(key), now.get(key)) for key in keys if then.get(key) != now.get(key)}


def _leaves(values: Any, path: str = "") -> dict[str, Any]:
    """The values of a nested dict by their dotted keys."""
    if not isinstance(values, dict):
        return {path: values}
    return {
        key: leaf for name, child in values.items() for key, leaf in _leaves(child, f"{path}.{name}".strip(".")).items()
    }


def sealed_result(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The result in a run's folder, even of another config, or None and the reason, as `load_result` returns it.

    Raises UserError for a result that a later version wrote.
    """
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
    if isinstance(result, dict):
        try:
            take_format(dict(result))
        except Later as error:
            raise UserError(f"{folder / RESULT}: {error}") from None
        except UserError:
            return None, "its result is damaged"
    if not is_result(result):
        return None, "its result is malformed"
    return result, ""
