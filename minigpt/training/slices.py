"""Tensors in safetensors files, whole or in slices; the headers are checked before a tensor is made.

    shard-00001-model-00001-of-00002.safetensors    weights: the rows that the first process has written
    shard-00001-model-00002-of-00002.safetensors    optimizer's state: the rows that the first process has written
    shard-00002-model-...                           the rows that the second process has written

A sharded training writes these: each process writes its rows of every tensor, a slice. Names and contents are the
Hugging Face format of torch.distributed.checkpoint: ordinary safetensors files, whose metadata (`DCP_SHARDING_INFO`)
says where each slice begins in its whole tensor. Reading them needs neither torch.distributed nor a second
process. A file without that metadata has whole tensors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt.system.folder import in_utf8, read_start
from minigpt.system.strict_json import has_form, parse_json

PLACES = "DCP_SHARDING_INFO"  # in a file's metadata: {name: {"saved_offsets": [first row, 0, ...]}}
FIRST: dict[str, Any] = {"saved_offsets": []}  # of a file without that metadata: whole tensors
MAX_HEADER_BYTES = 1 << 22  # enough for the names of 40,000 tensors
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Slice:
    """Consecutive rows of a tensor, all other dimensions whole; a tensor without dimensions counts as one row."""

    file: Path
    start: int  # the first row
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The first row after the slice."""
        return self.start + (self.shape[0] if self.shape else 1)

    @property
    def form(self) -> tuple[object, ...]:
        """What all slices of a tensor have in common: number of dimensions, shape of a row, dtype."""
        return len(self.shape), self.shape[1:], self.dtype


Table = Mapping[str, Sequence[Slice]]  # for each tensor the slices that make it up, in order


def slices_of(paths: Sequence[Path]) -> dict[str, list[Slice]]:
    """The slices of each tensor in some files, from their headers; every row must be there exactly once.

    Raises ValueError, one line that names the file, for an invalid header, and OSError.
    """
    slices: dict[str, list[Slice]] = defaultdict(list)
    for path in paths:
        for name, part in _slices_in(path):
            slices[name].append(part)
    return {name: _in_order(name, parts) for name, parts in slices.items()}


def check_header(path: Path) -> None:
    """Raises ValueError, which does not name the file, for a header that would take minutes and gigabytes to parse."""
    size = int.from_bytes(read_start(path, 8), "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {size:,} bytes; at most {MAX_HEADER_BYTES:,} are expected")


@contextmanager
def _strictly(path: Path) -> Iterator[None]:
    """Turn an error of safetensors into a ValueError that names the file."""
    try:
        yield
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())[:200]}") from None


def opened(path: Path) -> Any:
    """A safetensors file, mapped into memory until its last tensor is gone. Raises what safetensors raises."""
    with in_utf8(path) as plain:
        return safe_open(plain, "pt")


def _slices_in(path: Path) -> Iterator[tuple[str, Slice]]:
    """The slices of one file. Raises ValueError."""
    with _strictly(path):
        check_header(path)
        file: Any = opened(path)
        forms = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
        text = (file.metadata() or {}).get(PLACES)
        entries = dict.fromkeys(forms, FIRST) if text is None else parse_json(text)
        if not has_form(entries, {str: {"saved_offsets": [int]}}) or set(entries) != set(forms):
            raise ValueError(f"{PLACES} does not say where each slice begins")
        for name, form in forms.items():
            shape, code, offsets = tuple(form.get_shape()), form.get_dtype(), entries[name]["saved_offsets"]
            if code not in TYPES:
                raise ValueError(f"{name}: {code} is not a type that a model here has")
            if (text is not None and len(offsets) != len(shape)) or min(offsets, default=0) < 0 or any(offsets[1:]):
                raise ValueError(f"{name}: a slice that begins at {str(offsets)[:60]} is not whole rows")
            yield name, Slice(path, offsets[0] if offsets else 0, shape, TYPES[code])


def _in_order(name: str, parts: list[Slice]) -> list[Slice]:
    """The slices of one tensor by their rows. Raises ValueError if rows are missing, repeated or unlike."""
    parts = sorted([part for part in parts if part.end > part.start] or parts[:1], key=lambda part: part.start)
    row = 0
    for part in parts:
        if part.form != parts[0].form:
            raise ValueError(
                f"{part.file}: {name}: a slice of {part.shape}, {part.dtype}, beside one of {parts[0].shape}"
            )
        if part.start != row:
            problem = (
                f"rows {row} to {part.start - 1} are missing"
                if part.start > row
                else f"row {part.start} is there twice"
            )
            raise ValueError(f"{part.file}: {name}: {problem}")
        row = part.end
    if math.prod(max(1, size) for size in shape_of(parts)) >= 2**63:
        raise ValueError(f"{parts[0].file}: {name}: no tensor has the shape {str(shape_of(parts))[:60]}")
    return parts


def shape_of(parts: Sequence[Slice]) -> tuple[int, ...]:
    """The shape of a whole tensor."""
    return (parts[-1].end, *parts[0].shape[1:]) if parts[0].shape else ()


def outline(table: Table) -> dict[str, Tensor]:
    """The tensors of a table on the meta device: shapes and types, no values."""
    return {name: torch.empty(shape_of(parts), dtype=parts[0].dtype, device="meta") for name, parts in table.items()}


def read(table: Table) -> dict[str, Tensor]:
    """The whole tensors of a table, on the CPU. Raises ValueError and OSError."""
    tensors = outline(table)
    for name, part, values in _read_slices(table):
        if len(table[name]) == 1:
            tensors[name] = values  # (rows, ...): the whole tensor
            continue
        if tensors[name].is_meta:
            tensors[name] = torch.empty_like(tensors[name], device="cpu")  # (all rows, ...)
        tensors[name][part.start : part.end] = values
    return tensors


def each(table: Table) -> Iterator[tuple[str, Tensor]]:
    """The slices of a table one after another, each with the name of its tensor. Raises ValueError and OSError."""
    for name, _, values in _read_slices(table):
        yield name, values


def _read_slices(table: Table) -> Iterator[tuple[str, Slice, Tensor]]:
    """Each slice of a table with its tensor's name and its values, file by file: at most one file is open."""
    by_file: dict[Path, list[tuple[str, Slice]]] = defaultdict(list)
    for name, parts in table.items():
        for part in parts:
            by_file[part.file].append((name, part))
    for path, slices in by_file.items():
        with _strictly(path):
            file: Any = opened(path)
            for name, part in slices:
                yield name, part, file.get_tensor(name)  # (rows, ...)
