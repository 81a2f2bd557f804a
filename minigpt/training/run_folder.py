"""The record of a run in its folder: what was run, in full, what was changed on resuming, and a line for each step.

runs/tiny/
    config.yaml  tokenizer.json  environment.json      what is run
    plugins/                                           a copy of the user's own files, for the record
    changes.jsonl                                      a line for each resume that changed something

A checkpoint holds the SHA-256 sums of config, tokenizer and plugins (`seal` in run.py), and is refused if the files
have other sums. So before minigpt replaces such a file, it writes the new sum to changes.jsonl: after a crash between
the two, the run can still be loaded with the old file.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minigpt.config.options import to_yaml
from minigpt.system.errors import UserError
from minigpt.system.folder import fsync, sync, write_whole
from minigpt.system.plugin import code_of
from minigpt.system.version import __version__, commit
from minigpt.training.report import Say, read_metrics
from minigpt.training.run import CHANGES, CONFIG, ENVIRONMENT, PLUGINS, RUNS, TOKENIZER, Run, seal

Change = tuple[str, Any, Any]  # key, before, after
MAX_METRICS = 1 << 30  # bytes: the lines of four million steps


def make_folder(name: str, say: Say) -> Path:
    """Make a new folder runs/NAME; if it exists, runs/NAME-2, NAME-3, ..., and print a note."""
    RUNS.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            sync(RUNS)
            if number > 1:
                say(f"note: {RUNS / name} is there already, so this run is {folder}")
            return folder
        except FileExistsError:
            number += 1


def environment() -> dict[str, Any]:
    """With what a run is made: {program or library: version}, the commit of this program, and the threads."""
    return {
        "minigpt": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
    }


def record_run(
    run: Run, plugins: Sequence[Path], checks: str, weights: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Write config, tokenizer, plugins and environment.json of a new run; returns the SHA-256 sums for its checkpoints.

    `checks`: whether the model was checked. `weights`: the run that its first weights are from, if any.
    """
    write_whole(run.folder / CONFIG, to_yaml(run.config))
    run.tokenizer.save(run.folder / TOKENIZER)
    record = {"command": sys.argv, **environment(), "checks": checks}
    record |= {} if weights is None else {"weights": dict(weights)}
    (run.folder / ENVIRONMENT).write_text(json.dumps(record, indent=1), encoding="utf-8")
    for plugin in plugins:
        replace(run.folder, f"{PLUGINS}/{plugin.name}", code_of(plugin))
    for name in (TOKENIZER, "."):
        sync(run.folder / name)
    return seal(run.folder)


def record_changes(run: Run, plugins: Sequence[Path], changes: Sequence[Change], say: Say) -> dict[str, str]:
    """Record what a resumed run changes; returns the SHA-256 sums for its checkpoints.

    Prints which plugins were edited, and keeps the former version of each beside the new one.
    """
    before, wanted = seal(run.folder), {CONFIG: to_yaml(run.config).encode()}
    wanted |= {f"{PLUGINS}/{plugin.name}": code_of(plugin) for plugin in plugins}
    sums = {name: hashlib.sha256(contents).hexdigest() for name, contents in wanted.items()}
    files = {name: sha256 for name, sha256 in sums.items() if before.get(name) != sha256}
    edited = [Path(name).name for name in files if name in before and name != CONFIG]
    changes = [*changes, *((name, f"{name}.until-step-{run.step}", name) for name in edited)]
    if changes or files:
        announce(run.folder, {"step": run.step, "changes": changes, "files": files})
    for name in edited:
        say(f"changed: {name} is not what it was")
        copy = run.folder / PLUGINS / name
        until = copy.with_name(f"{name}.until-step-{run.step}")
        if not until.exists():  # keep the version that trained up to this step
            write_whole(until, copy.read_bytes())
    for name in files:
        replace(run.folder, name, wanted[name])
    return before | sums


def announce(folder: Path, line: dict[str, Any]) -> None:
    """Add a line to changes.jsonl; when this returns, it is on disk."""
    with (folder / CHANGES).open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        cut = file.read(1) not in (b"", b"\n")  # the last line is cut off, after a full disk or a crash
        file.write(b"\n" * cut + json.dumps(line).encode() + b"\n")
        file.flush()
        fsync(file.fileno(), CHANGES)
    sync(folder)


def replace(folder: Path, name: str, contents: bytes) -> None:
    """Replace a file of a run atomically; when this returns, it is on disk."""
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    write_whole(place, contents)
    sync(place.parent)


def changed(old: Any, new: Any, path: str = "") -> Iterator[Change]:
    """Where two configs differ: (key, before, after)."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from changed(old[key], new[key], f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def cut_metrics(path: Path, step: int, say: Say) -> None:
    """Drop the lines after step `step`: training writes them again. Print how many lines before it are missing.

    Raises UserError for a file that is too large to be the metrics of a run, before it is read.
    """
    if path.exists() and (size := path.stat().st_size) > MAX_METRICS:
        problem = f"{size:,} bytes; the metrics of a run have at most {MAX_METRICS:,}"
        raise UserError(f"{path}: {problem}: move the file away, and training goes on without it")
    lines = read_metrics(path)
    unreadable = sum(1 for text in path.read_bytes().split(b"\n") if text) - len(lines) if path.exists() else 0
    earlier = [line for line in lines if line["step"] <= step]
    missing = step - len({line["step"] for line in earlier if line["step"] > 0})
    if missing or unreadable:
        problem = f"{missing:,} of {step:,} steps have no line, {unreadable:,} lines are damaged and left out"
        say(f"warning: {path}: {problem}; training goes on, the curves have gaps")
    write_whole(path, "".join(json.dumps(line) + "\n" for line in earlier))


def complete_metrics(path: Path, step: int, values: dict[str, float]) -> None:
    """Add the values of an evaluation to the line of a step."""
    lines = read_metrics(path)
    write_whole(path, "".join(json.dumps(line | values if line["step"] == step else line) + "\n" for line in lines))
