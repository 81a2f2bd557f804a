"""Checkpoints: a run's weights, optimizer state and step on disk; each is complete or absent.

    checkpoints/step-000500/
        model.safetensors  optimizer.safetensors  state.json  manifest.json
    checkpoints/step-001000/
        shard-00001-model-00001-of-00002.safetensors ...  state.json  manifest.json

The second one was saved by a sharded training: each process writes its slices of the tensors (`slices.py` and
`shards.py`). A reader gets whole tensors from both.

A checkpoint is written into a temporary folder, synced, sealed with a manifest of sizes and SHA-256 sums, and renamed
to its final name. The newest checkpoint that verifies is used. Reading one runs no code: there is no pickle.

The manifest also holds the SHA-256 sums of the run's own files that decide what the weights mean (`seal` in run.py).

One process at a time writes into a folder (a run's lock sees to that); any number may read it meanwhile.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from minigpt.config.upgrade import EVERYWHERE, FORMAT, SEALED, stamped, take_format, upgrade_state, upgrade_tensors
from minigpt.system.errors import UserError
from minigpt.system.folder import first_lines, in_utf8, read_start, sha256_of, share, sync
from minigpt.system.moving import Refused, discard, error_number, patiently, rename
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import complain, one_line
from minigpt.system.waiting import interruptible, progress
from minigpt.training import slices
from minigpt.training.lora import LoRAConfig, merged
from minigpt.training.sharding import put
from minigpt.training.verdict import Evaluation, best_of

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
SHARD = re.compile(r"shard-\d{5}-model-0000([12])-of-0000[12]\.safetensors")  # 1: weights, 2: the optimizer's state
WRITING, REMOVING = ".writing-", ".removing-"  # folders that a save or a prune has not finished
OF_SYSTEMS = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.nfs[0-9a-f]+", re.I)  # left by looking at a folder
MAX_BYTES = {"manifest.json": 1 << 20, "state.json": 1 << 24}  # larger ones are a mistake or an attack


class CheckpointError(Exception):
    """A checkpoint that must not be used: one line that names it and says what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: tensors by name, and plain values."""

    path: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    seal: dict[str, str]  # SHA-256 of the run's own files, by name; before format 3, there were none
    format: int = FORMAT  # of its files; the state is in today's form, and the tensors after `upgraded`


def save(
    folder: Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    seal: Mapping[str, str] | None = None,
) -> Path:
    """Write a checkpoint, with tensors by their names, into `folder`; when this returns, it is on disk and verifies.

    Raises OSError, after which the folder is as before; FileExistsError if this step has a complete checkpoint already.
    """
    beside = begin(folder, step)
    try:
        for name, tensors in zip(FILES, (model, optimizer)):
            write_tensors(tensors, beside / name)
        sums = {name: sum_of(beside / name) for name in FILES[:2]}
        return finish(beside, step, sums, {**model, **optimizer}, state, seal or {})
    finally:
        sweep(folder)


def begin(folder: Path, step: int) -> Path:
    """Make the temporary folder of a checkpoint in `folder`. Raises OSError, as `save` does."""
    _refuse_link(folder)
    folder.mkdir(exist_ok=True)  # not its parents: a run's folder that was removed is not created again
    sync(folder.parent)
    if _loads(final := folder / f"step-{step:06d}"):  # one that does not load may be replaced
        raise FileExistsError(f"{final} is there already, and whole")
    sweep(folder)
    beside = folder / f"{WRITING}{step:06d}-{os.getpid()}"
    beside.mkdir()
    return beside


def sum_of(path: Path) -> dict[str, Any]:
    """The size and the SHA-256 of a file, for a manifest."""
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def weights_sum(path: Path) -> str:
    """A SHA-256 that identifies the weights of a checkpoint: of model.safetensors, or, for shards, of the manifest."""
    whole = path / FILES[0]
    return sha256_of(whole if whole.is_file() else path / "manifest.json")


def finish(
    beside: Path,
    step: int,
    sums: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    seal: Mapping[str, str],
) -> Path:
    """Seal the temporary folder `beside`, whose tensor files have these `sums`; rename it, and return its final path.

    Raises CheckpointError if the files lack rows of `tensors`, and OSError.
    """
    folder, final = beside.parent, beside.parent / f"step-{step:06d}"
    (beside / FILES[2]).write_text(json.dumps(stamped({**state, "step": step}), allow_nan=False), encoding="utf-8")
    sums = {**sums, FILES[2]: sum_of(beside / FILES[2])}
    manifest = {"format": FORMAT, "files": sums, "run": dict(seal)}
    (beside / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for name in (*sums, "manifest.json", "."):
        sync(beside / name)
    for name in (FILES[2], "manifest.json"):
        _read_json(beside / name)  # before the rename: it must be readable
    _check_written(beside, sums, tensors)
    if final.exists():
        rename(final, folder / f"{REMOVING}{step:06d}-{os.getpid()}")
    rename(beside, final)
    sync(folder)
    return final


def _check_written(path: Path, names: Iterable[str], tensors: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless the files of these names have these tensors, with all their rows."""
    try:
        tables = [slices.slices_of(files) for files in _tensor_files(path, names)]
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    written = {name: slices.shape_of(parts) for table in tables for name, parts in table.items()}
    if odd := sorted(written.items() ^ {(name, tuple(tensor.shape)) for name, tensor in tensors.items()}):
        raise CheckpointError(f"{path}: {odd[0][0]}: rows of it were not written")


def _refuse_link(folder: Path) -> None:
    """Raises CheckpointError for a link: saving would replace and remove the checkpoints of another run."""
    if folder.is_symlink():
        raise CheckpointError(f"{folder}: a symbolic link; the checkpoints of a run lie in its own folder")


def sweep(folder: Path) -> None:
    """Remove unfinished folders, of this save or of a process that was killed."""
    for path in folder.iterdir():
        if path.name.startswith((WRITING, REMOVING)) and not path.is_symlink():
            discard(path, warns=False)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once (a tied head is stored with the embeddings), and the buffers that are saved."""
    saved = set(model.state_dict())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | buffers


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of an ordinary new file. Raises OSError."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def call() -> None:
        try:
            with in_utf8(path) as place:
                interruptible(lambda: save_file(plain, place, metadata), f"writing {path.name}")
        except SafetensorError as error:  # how safetensors reports a full disk, and a rename that was refused
            raised = OSError(f"{path}: {error}")
            number = re.search(r"os error (\d+)", str(error))
            raised.errno = error_number(int(number[1])) if number else None
            raise raised from error

    patiently(call, f"{path} cannot be written")
    share(path)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first, not verified. Raises CheckpointError if it is a link."""
    _refuse_link(folder)
    paths = [path for path in folder.iterdir() if re.fullmatch(r"step-\d{6,12}", path.name)] if folder.is_dir() else []
    return sorted(paths, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(path.name.removeprefix("step-"))


def verify(path: Path) -> tuple[list[str], dict[str, str], int]:
    """Verify a checkpoint; returns the names of its files, the SHA-256 sums of the run's own files, and its format.

    Raises CheckpointError unless every file is there, is a plain file and is as the manifest says; and OSError.
    """
    if path.is_symlink() or not path.is_dir():
        raise CheckpointError(f"{path}: not a checkpoint folder")
    manifest = _read_json(path / "manifest.json")
    number = _format_of(path, manifest)
    files, run = manifest.get("files"), manifest.get("run", {})
    if not isinstance(run, dict) or not all(isinstance(sha256, str) for sha256 in run.values()):
        raise CheckpointError(f"{path}: the manifest must have the SHA-256 sums of the run's files")
    if not isinstance(files, dict) or not _is_complete(set(files)):
        raise CheckpointError(f"{path}: the manifest must list exactly {', '.join(FILES)}, or shards and {FILES[2]}")
    present = {entry.name for entry in path.iterdir()}
    extra = present - set(files) - {"manifest.json"}
    if extra := {name for name in extra if not OF_SYSTEMS.fullmatch(name)}:
        raise CheckpointError(f"{path}: {min(extra)!r} does not belong in a checkpoint")
    for name, recorded in files.items():
        file = path / name
        if name not in present or file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file}: missing, or not a plain file")
        if not isinstance(recorded, dict) or file.stat().st_size != recorded.get("size"):
            raise CheckpointError(f"{file}: its size is not the one in the manifest: cut short or edited")
        if sha256_of(file) != recorded.get("sha256"):
            raise CheckpointError(f"{file}: its SHA-256 is not the one in the manifest: damaged or edited")
    return sorted(files), run, number


def _format_of(path: Path, manifest: dict[str, Any]) -> int:
    """The format of a checkpoint. Raises CheckpointError, also where the rest contradicts the number.

    There is no sum of the manifest, and one flipped bit makes a 1 or a 2 of a 3: the weights would mean something else.
    """
    number, state = manifest.get("format"), _read_json(path / FILES[2])
    if state.get("format") != (None if number in range(EVERYWHERE) else number):
        problem = f"format {str(state.get('format'))[:40]}, and the manifest says {str(number)[:40]}"
        raise CheckpointError(f"{path / FILES[2]}: {problem}: damaged or edited")
    if ("run" in manifest) != (number not in range(SEALED)):
        problem = f"format {str(number)[:40]}, but sums of the run's files are there from format {SEALED} on"
        raise CheckpointError(f"{path / 'manifest.json'}: {problem}: damaged or edited")
    try:
        return take_format(state, unsaid=number)
    except UserError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _is_complete(names: set[str]) -> bool:
    """Whether a checkpoint can have these files: whole tensors, or shards. `load` finds a missing slice."""
    return names == set(FILES) or (
        FILES[2] in names and len(names) > 1 and all(SHARD.fullmatch(name) for name in names - {FILES[2]})
    )


def _tensor_files(path: Path, names: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """The files with the weights, and the files with the optimizer's state."""
    shards = {name: match[1] for name in sorted(names) if (match := SHARD.fullmatch(name))}
    if not shards:
        return [path / FILES[0]], [path / FILES[1]]
    return [path / name for name in shards if shards[name] == "1"], [
        path / name for name in shards if shards[name] == "2"
    ]


def _read_json(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path}: missing, or not a plain file")
    limit = MAX_BYTES[path.name]
    raw = read_start(path, limit + 1)
    try:
        values = parse_json(raw) if len(raw) <= limit else None
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a JSON object of at most {limit:,} bytes")
    return values


def load(path: Path, values: bool = True) -> Checkpoint:
    """Read one checkpoint onto the CPU. Raises CheckpointError unless it verifies and its weights are finite.

    With `values` false, its tensors are on the meta device: all values are checked, a slice at a time, and not kept.
    """
    try:
        names, seal, number = verify(path)
        weights, memory = (slices.slices_of(files) for files in _tensor_files(path, names))
        model, optimizer = (_read(table) if values else slices.outline(table) for table in (weights, memory))
        state = _read_json(path / FILES[2])
        for name, tensor in model.items() if values else slices.each(weights):
            if not tensor.isfinite().all():
                raise CheckpointError(f"{path}: {name}: holds NaN or infinity")
    except FileNotFoundError as error:  # `prune` removed it meanwhile
        raise CheckpointError(f"{path}: it was removed while it was read ({error})") from None
    except OSError as error:  # no permission, or a disk that fails
        raise CheckpointError(f"{error.filename or path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    take_format(state)
    upgrade_state(state, number)
    if type(state.get("step")) is not int or path.name != f"step-{state['step']:06d}":
        raise CheckpointError(f"{path / FILES[2]}: step {str(state.get('step'))[:40]} is not the one of the folder")
    return Checkpoint(path, model, optimizer, state, seal, number)


def _read(table: slices.Table) -> dict[str, Tensor]:
    """The tensors of a table. Raises ValueError and OSError."""
    files = {part.file.name for parts in table.values() for part in parts}
    files_read = f"{len(files)} shards" if len(files) > 1 else "".join(files)
    return interruptible(lambda: slices.read(table), f"reading {files_read}")


def accept(saved: Checkpoint) -> None:
    """Accepts every checkpoint."""


def newest(
    folder: Path, fits: Callable[[Checkpoint], None] = accept, values: bool = True, step: int | None = None
) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that verifies, and a few lines that say which newer ones were skipped.

    `values` is as for `load`. `fits` raises CheckpointError for a checkpoint that must be skipped too. With a `step`,
    only its checkpoint is looked at. Raises CheckpointError if no checkpoint is left.
    """
    listed: list[Path] | None = None
    while listed != (listed := [path for path in checkpoints(folder) if step in (None, step_of(path))]):
        # again if they changed meanwhile: a training may be running
        skipped: list[str] = []
        for path in progress(listed, "looking for a good checkpoint", len(listed), "checkpoints"):
            try:
                saved = load(path, values)
                fits(saved)
                return saved, first_lines(skipped)
            except CheckpointError as error:
                skipped.append(f"skipped: {error}")
    raise CheckpointError("; ".join(first_lines(skipped)) or f"{folder}: there is no checkpoint here yet")


def written_in(folder: Path) -> int:
    """The format of a run's files without a number, 1 to 3: that of its newest checkpoint with a readable manifest."""
    for path in checkpoints(folder):
        with suppress(CheckpointError, OSError):
            number = _read_json(path / "manifest.json").get("format") or 0
            return int(number) if number in range(1, EVERYWHERE) else EVERYWHERE - 1
    return EVERYWHERE - 1


def upgraded(saved: Checkpoint, config: dict[str, Any]) -> Checkpoint:
    """A checkpoint with its tensors in today's form, as the `config` is. Raises CheckpointError for what has none."""
    try:
        tensors = upgrade_tensors({**saved.model, **saved.optimizer}, saved.format, config)
    except UserError as error:
        raise CheckpointError(f"{saved.path}: {error}") from None
    model, optimizer = ({name: tensors[name] for name in part} for part in (saved.model, saved.optimizer))
    return replace(saved, model=model, optimizer=optimizer)


def prune(folder: Path, keep: int, evaluations: Sequence[Evaluation] = ()) -> None:
    """Remove all but the newest `keep` good checkpoints and, of those that are there, the best of these `evaluations`.

    Each is renamed before it is deleted: none is ever partial. One that the system does not let go stays, with a line;
    the next call tries again. Raises other OSErrors.
    """
    good, paths = 0, checkpoints(folder)
    steps = {step_of(path) for path in paths}
    best_step, *_ = best_of([evaluation for evaluation in evaluations if evaluation[0] in steps]) or (None,)
    for path in paths:
        if good < keep:
            good += _loads(path)
        elif step_of(path) != best_step:
            trash = folder / f"{REMOVING}{path.name}-{os.getpid()}"
            try:
                rename(path, trash)
            except Refused as error:
                complain(one_line(f"warning: {path} stays there: {error}"))
            else:
                discard(trash)


def _loads(path: Path) -> bool:
    try:
        load(path, values=False)
    except CheckpointError:
        return False
    return True


def without_adapters(saved: Checkpoint, lora: LoRAConfig | None) -> Checkpoint:
    """The checkpoint with the adapters of `training.lora`, if any, merged into the weights. Raises CheckpointError."""
    if lora is None:
        return saved
    try:
        return replace(saved, model=merged(saved.model, lora))
    except ValueError as error:
        raise CheckpointError(f"{saved.path}: {error}") from None


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor], name: str | Path) -> None:
    """Copy saved tensors into a model. Raises CheckpointError where one does not fit; then nothing was copied."""
    check_fit(model, tensors, name)
    targets = tensors_of(model)
    for key, tensor in tensors.items():
        put(targets[key], tensor)


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor], name: str | Path) -> None:
    """Raises CheckpointError for a saved tensor that is missing, unknown, or of another shape or dtype.

    The model may be on the meta device, so that the check takes no memory.
    """
    expected_tensors = tensors_of(model)
    if odd := sorted(expected_tensors.keys() ^ tensors.keys()):
        where = "the model has no such tensor" if odd[0] in tensors else "the checkpoint has no such tensor"
        raise CheckpointError(f"{name}: {odd[0]}: {where}")
    for key, tensor in tensors.items():
        if tensor.shape != expected_tensors[key].shape or tensor.dtype != expected_tensors[key].dtype:
            actual, expected = (f"{tuple(t.shape)} of {t.dtype}" for t in (tensor, expected_tensors[key]))
            raise CheckpointError(f"{name}: {key}: {actual}, but the model has {expected}")
