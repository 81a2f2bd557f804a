"""Reads an untrusted folder of weights: config.json, and model.safetensors or its shards. Nothing in it is run.

The kind, size and header of every file are checked before its contents are read. Tensors are read one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt.hub.keys import show
from minigpt.system.errors import UserError
from minigpt.system.folder import in_utf8, read_start, sha256_of
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.terminal import one_line
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.slices import check_header

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MAX_CONFIG, MAX_INDEX = 1 << 20, 1 << 24  # bytes; larger ones are a mistake or an attack
MAX_SHARDS = 1000
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
NUMBERS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # the dtypes that are read
HINT = "convert it on a machine where you trust it: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OUT)"


class TensorEntry(NamedTuple):
    """A tensor's file, and its name, shape and dtype from the header of that file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Folder:
    """A folder whose config and headers were read."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]

    @property
    def files(self) -> list[Path]:
        """The files that are read: the config and the weights."""
        return [self.path / CONFIG, *sorted({entry.file for entry in self.tensors.values()})]

    def sums(self) -> dict[str, str]:
        """The SHA-256 sums of the files that are read."""
        return {path.name: sha256_of(path) for path in self.files}

    def read(self, entry: TensorEntry) -> Tensor:
        """One tensor, in float32. Raises CheckpointError."""
        return read_tensor(entry)


def open_folder(path: Path) -> Folder:
    """Read the config of a folder, and the headers of its weights.

    Raises UserError if it is not a folder of weights, CheckpointError for weights that are refused, and OSError.
    """
    if not path.is_dir():
        raise UserError(f"{path}: no such folder")
    config = read_json(path / CONFIG, MAX_CONFIG)
    tensors: dict[str, TensorEntry] = {}
    for file, names in weight_files(path).items():
        entries = read_header(file)
        if names is not None and (odd := sorted(names ^ entries.keys())):
            raise CheckpointError(f"{file}: {one_line(odd[0])}: the index and the file do not both have this tensor")
        tensors |= entries
    return Folder(path, config, tensors)


def read_json(path: Path, limit: int, huge: bool = False) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes; `huge` as for `parse_json`. Raises UserError, and OSError."""
    check_plain(path)
    if path.stat().st_size > limit:
        raise UserError(f"{path}: {path.stat().st_size:,} bytes; such a file has at most {limit:,}")
    try:
        values = parse_json(read_start(path, limit + 1), huge)
    except ValueError as error:
        raise UserError(f"{path}: not the JSON of a model: {_reason(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a JSON object, found {show(values)}")
    return values


def check_plain(path: Path) -> None:
    """Raises UserError unless `path` is a regular file.

    A symbolic link is accepted only in the cache of huggingface_hub: it stores every file once, in `blobs`, and its
    snapshot folders hold links to those files.
    """
    if path.is_symlink():
        home, blobs = path.parent.resolve(), path.parent.parent.parent / "blobs"
        cached = home.parent.name == "snapshots" and not blobs.is_symlink() and path.resolve().parent == blobs.resolve()
        if not cached:
            raise UserError(f"{path}: a symbolic link; give a folder with the file itself in it")
    if not path.is_file():
        raise UserError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")


def weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """The files with weights, each with the names of the tensors that the index puts there; None without an index.

    Raises UserError if there are none, and CheckpointError for an index that names anything but files beside it.
    """
    if (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():
        check_plain(folder / WEIGHTS)
        return {folder / WEIGHTS: None}
    if (folder / INDEX).exists() or (folder / INDEX).is_symlink():
        return shards(folder)
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    if pickles:
        pickle = f"{one_line(pickles[0])} is a pickle, which can run code when it is read, so it is not read"
        raise UserError(f"{folder}: {pickle}, and there is no {WEIGHTS}: {HINT}")
    raise UserError(f"{folder}: there is neither {WEIGHTS} nor {INDEX} in it")


def shards(folder: Path) -> dict[Path, set[str] | None]:
    """The files that an index names, each with the names of its tensors. Raises UserError and CheckpointError."""
    index = read_json(folder / INDEX, MAX_INDEX).get("weight_map")
    if not has_form(index, {str: str}) or not index:
        raise CheckpointError(f"{folder / INDEX}: expected weight_map, the file of every tensor by its name")
    assert isinstance(index, dict)
    tensors: dict[str, set[str]] = {}
    for tensor, file in index.items():
        tensors.setdefault(file, set()).add(tensor)
    if len(tensors) > MAX_SHARDS:
        raise CheckpointError(f"{folder / INDEX}: {len(tensors):,} files; at most {MAX_SHARDS:,} are read")
    for file in tensors:
        if Path(file).name != file or "\\" in file or ":" in file or not file.endswith(".safetensors"):
            problem = f"{file[:80]!r} is not the name of a .safetensors file in this folder"
            raise CheckpointError(f"{folder / INDEX}: {one_line(problem)}")
        check_plain(folder / file)
    return {folder / file: names for file, names in tensors.items()}


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors of a file by name, from its header. Raises CheckpointError, and OSError."""
    try:
        check_header(file)
        with in_utf8(file) as plain, safe_open(plain, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118  no dict
            return {name: TensorEntry(file, name, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{file}: {_reason(error)}") from None


def read_tensor(entry: TensorEntry) -> Tensor:
    """One tensor, in float32. Raises CheckpointError.

    The file is opened for this tensor only, so that its mapped memory is released at once.
    """
    try:
        with in_utf8(entry.file) as plain, safe_open(plain, framework="pt") as tensors:
            return tensors.get_tensor(entry.name).to(torch.float32, copy=True)
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{entry.file}: {entry.name}: {_reason(error)}") from None


def check_tensors(tensors: Mapping[str, TensorEntry], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises CheckpointError, which names the tensor, for a missing or extra one, or another shape or dtype."""
    if odd := sorted(tensors.keys() ^ expected.keys()):
        problem = "the config has no such tensor" if odd[0] in tensors else "missing from the weights"
        more = f" (and {len(odd) - 1:,} more)" if len(odd) > 1 else ""
        raise CheckpointError(f"{one_line(odd[0])[:200]}: {problem}{more}")
    for name, shape in expected.items():
        file, _, own_shape, dtype = tensors[name]
        if dtype not in NUMBERS:
            raise CheckpointError(
                f"{file}: {name}: {dtype} is not read (only {', '.join(NUMBERS)}): quantised weights?"
            )
        if own_shape != shape:
            raise CheckpointError(f"{file}: {name}: {own_shape}, but by the config it has {shape}")


def _reason(error: BaseException) -> str:
    return one_line(" ".join(str(error).split())[:200])
