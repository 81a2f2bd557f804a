"""Checkpoints: a run's weights, optimizer and step on disk, whole or not there at all.

    checkpoints/step-000500/
        model.safetensors  optimizer.safetensors  state.json  manifest.json

A checkpoint is written beside its place, synced, sealed with a manifest of sizes and SHA-256 sums, and renamed into
place. The newest one that verifies is the one that is used. There is no pickle: reading one can run nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

FORMAT = 1
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
MAX_JSON_BYTES = 1 << 20


class CheckpointError(Exception):
    """A checkpoint that must not be used: one line that names it and what is wrong."""


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: tensors by name, and plain values."""

    path: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, model: nn.Module, optimizer: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write a checkpoint into `folder`; when this returns, it is on disk and verifies. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    final, beside = folder / f"step-{step:06d}", folder / f".writing-{step:06d}-{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        _write(tensors_of(model), beside / FILES[0])
        _write(optimizer, beside / FILES[1])
        (beside / FILES[2]).write_text(json.dumps({**state, "step": step}, indent=1), encoding="utf-8")
        sums = {name: {"size": (beside / name).stat().st_size, "sha256": _sha256(beside / name)} for name in FILES}
        (beside / "manifest.json").write_text(json.dumps({"format": FORMAT, "files": sums}, indent=1), encoding="utf-8")
        for name in (*FILES, "manifest.json", "."):
            _sync(beside / name)
        if final.exists():  # one that did not verify and was passed over
            final.rename(beside.with_name(f".refused-{step:06d}-{os.getpid()}"))
        beside.rename(final)
        _sync(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return final


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once (a tied head is stored with what it is tied to), and the buffers that are saved."""
    saved = set(model.state_dict())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | buffers


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # a full disk, in the words of safetensors
        raise OSError(f"{path}: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first, verified or not."""
    found = [path for path in folder.iterdir() if re.fullmatch(r"step-\d{6,12}", path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def verify(path: Path) -> None:
    """Raises CheckpointError unless every file is there, plain, and what the manifest says it is."""
    if path.is_symlink() or not path.is_dir():
        raise CheckpointError(f"{path}: not a checkpoint folder")
    manifest = _read_json(path / "manifest.json")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format {manifest.get('format')!r}; this version reads {FORMAT}")
    files = manifest.get("files")
    if not isinstance(files, dict) or set(files) != set(FILES):
        raise CheckpointError(f"{path}: the manifest must list exactly {', '.join(FILES)}")
    present = {entry.name for entry in path.iterdir()}
    if extra := present - set(FILES) - {"manifest.json"}:
        raise CheckpointError(f"{path}: {sorted(extra)[0]} does not belong into a checkpoint")
    for name, said in files.items():
        file = path / name
        if name not in present or file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file}: missing, or not a plain file")
        if not isinstance(said, dict) or file.stat().st_size != said.get("size"):
            raise CheckpointError(f"{file}: its size is not the one in the manifest: cut short or edited")
        if _sha256(file) != said.get("sha256"):
            raise CheckpointError(f"{file}: its SHA-256 is not the one in the manifest: damaged or edited")


def _read_json(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path}: missing, or not a plain file")
    with path.open("rb") as file:
        raw = file.read(MAX_JSON_BYTES + 1)
    try:
        values = json.loads(raw) if len(raw) <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a JSON object of at most {MAX_JSON_BYTES} bytes")
    return values


def load(path: Path) -> Checkpoint:
    """Read one checkpoint onto the CPU. Raises CheckpointError unless it verifies and its weights are numbers."""
    verify(path)
    try:
        model, optimizer = load_file(path / FILES[0]), load_file(path / FILES[1])
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    for key, tensor in model.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(f"{path}: {key}: holds NaN or infinity")
    return Checkpoint(path, model, optimizer, _read_json(path / FILES[2]))


def newest(folder: Path) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that verifies, and a line for each newer one that was passed over.

    Raises CheckpointError when there is none.
    """
    passed: list[str] = []
    for path in checkpoints(folder):
        try:
            return load(path), passed
        except CheckpointError as error:
            passed.append(f"passed over: {error}")
    raise CheckpointError("; ".join(passed) or f"{folder}: there is no checkpoint here yet")


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, each by one rename first, so that none is ever half there."""
    for path in checkpoints(folder)[keep:]:
        trash = folder / f".removing-{path.name}-{os.getpid()}"
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


@torch.no_grad()
def fill(model: nn.Module, tensors: Mapping[str, Tensor], name: str | Path) -> None:
    """Put saved tensors into a model.

    Raises CheckpointError for one that is missing, unknown or misshapen; then nothing was put.
    """
    own = tensors_of(model)
    if odd := sorted(own.keys() ^ tensors.keys()):
        where = "the model has no such tensor" if odd[0] in tensors else "the checkpoint has no such tensor"
        raise CheckpointError(f"{name}: {odd[0]}: {where}")
    for key, tensor in tensors.items():
        if tensor.shape != own[key].shape or tensor.dtype != own[key].dtype:
            found, expected = (f"{tuple(t.shape)} of {t.dtype}" for t in (tensor, own[key]))
            raise CheckpointError(f"{name}: {key}: {found}, but the model has {expected}")
    for key, tensor in tensors.items():
        own[key].copy_(tensor)
