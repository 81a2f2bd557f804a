"""The header of an untrusted GGUF file: its metadata, and the offset of each tensor. Every size is checked.

    magic  version | tensor count  key count | keys and values | tensors: name, shape, type, offset | padding | data

The format is llama.cpp's (ggml/docs/gguf.md). The `gguf` library reads it too, but does not check its sizes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from minigpt.system.errors import UserError
from minigpt.system.folder import open_plain
from minigpt.system.terminal import one_line
from minigpt.training.checkpoint import CheckpointError

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_HEADER = 64 << 20  # bytes before the tensors' data; a vocabulary of 262,000 tokens takes 12 million
MAX_TEXT, MAX_NAME = 1 << 20, 256  # bytes of a string, of a tensor's name
MAX_KEYS, MAX_TENSORS, MAX_ITEMS = 10_000, 100_000, 1 << 21
MAX_DIMENSIONS = 4

# The codes of the types of values: numbers (as numpy dtypes), a string, an array.
NUMBERS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
TEXT, LIST = 8, 9


class HeaderEntry(NamedTuple):
    """The entry of a tensor in the header."""

    name: str
    shape: tuple[int, ...]
    """In torch's order, with the contiguous dimension last; the file has the reverse order."""
    type: int
    """The code of its ggml type."""
    offset: int
    """From the beginning of the file, in bytes."""


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file."""

    path: Path
    values: dict[str, Any]
    tensors: dict[str, HeaderEntry]
    size: int
    """The size of the file in bytes."""


def read_header(path: Path) -> Header:
    """The header of a file. Raises UserError if it is no GGUF file, CheckpointError if it is damaged, and OSError."""
    size = path.stat().st_size
    with open_plain(path) as file:
        if size < len(MAGIC) or file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{path}: not a GGUF file: it does not begin with {MAGIC.decode()}")
        reader = HeaderReader(file, path, min(size, MAX_HEADER))
        version = reader.number("<u4")
        if version not in VERSIONS:
            raise UserError(f"{path}: version {version} of GGUF; {' and '.join(map(str, VERSIONS))} are read")
        n_tensors, n_keys = reader.count(MAX_TENSORS, "tensors"), reader.count(MAX_KEYS, "keys")
        values: dict[str, Any] = {}
        for _ in range(n_keys):
            key = reader.text()
            if key in values:
                raise reader.damaged(f"the key {key[:60]!r} is there twice")
            values[key] = reader.value(reader.number("<u4"))
        entries = [reader.tensor() for _ in range(n_tensors)]
        start = aligned(file.tell(), values.get("general.alignment", 32), path)
    tensors = {entry.name: entry._replace(offset=start + entry.offset) for entry in entries}
    if len(tensors) != len(entries):
        raise CheckpointError(f"{path}: two tensors have one name")
    return Header(path, values, tensors, size)


def aligned(end: int, alignment: Any, path: Path) -> int:
    """The offset of the data: `end`, rounded up to a multiple of the alignment. Raises CheckpointError."""
    if type(alignment) is not int or alignment not in {2**n for n in range(3, 17)}:
        raise CheckpointError(f"{path}: general.alignment: expected a power of two from 8 to 65,536")
    return -(-end // alignment) * alignment


class HeaderReader:
    """Reads a header value by value, never beyond `limit` bytes. Its methods raise CheckpointError."""

    def __init__(self, file: BinaryIO, path: Path, limit: int):
        self.file, self.path, self.limit = file, path, limit

    def damaged(self, problem: str) -> CheckpointError:
        """A CheckpointError for an invalid header."""
        return CheckpointError(f"{self.path}: {one_line(problem)}: the file is damaged, or no model")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if self.file.tell() + size > self.limit or len(data := self.file.read(size)) < size:
            raise self.damaged(f"its header is cut short, or longer than {MAX_HEADER:,} bytes")
        return data

    def number(self, kind: str) -> Any:
        """The next number, of a numpy dtype."""
        return np.frombuffer(self.take(np.dtype(kind).itemsize), kind)[0].item()

    def count(self, most: int, unit: str) -> int:
        """The next count: how many items follow, at most `most`."""
        count = int(self.number("<u8"))
        if count > most:
            raise self.damaged(f"{count:,} {unit}; at most {most:,} are read")
        return count

    def text(self, most: int = MAX_TEXT) -> str:
        """The next string, of at most `most` bytes."""
        try:
            return self.take(self.count(most, "bytes of text")).decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged("a text is not UTF-8") from None

    def value(self, kind: int) -> Any:
        """The next value, of the type with the code `kind`: a number, a string, or a list of either."""
        if kind == TEXT:
            return self.text()
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind != LIST:
            raise self.damaged(f"a value of the unknown type {kind}")
        item, length = self.number("<u4"), self.count(MAX_ITEMS, "items of a list")
        if item == TEXT:
            return [self.text() for _ in range(length)]
        if item not in NUMBERS:
            raise self.damaged(f"a list of the unknown type {item}")
        return np.frombuffer(self.take(length * np.dtype(NUMBERS[item]).itemsize), NUMBERS[item]).tolist()

    def tensor(self) -> HeaderEntry:
        """The next tensor's entry; its offset is counted from the beginning of the data."""
        name, n = self.text(MAX_NAME), self.number("<u4")
        if not 1 <= n <= MAX_DIMENSIONS:
            raise self.damaged(f"{name}: {n} dimensions; 1 to {MAX_DIMENSIONS} are read")
        shape = struct.unpack(f"<{n}Q", self.take(8 * n))
        return HeaderEntry(name, tuple(reversed(shape)), self.number("<u4"), self.number("<u8"))


def check_data(header: Header, name: str, block: int, width: int) -> tuple[int, int]:
    """The number of rows of a tensor, and the bytes of a row, for a type that stores `block` numbers in `width` bytes.

    Raises CheckpointError if the data is not within the file.
    """
    tensor, label = header.tensors[name], f"{header.path}: {one_line(name)}"
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    if columns % block:
        raise CheckpointError(f"{label}: rows of {columns:,} numbers are not made of blocks of {block}")
    size = rows * (columns // block) * width
    if not 0 < size <= header.size - tensor.offset:
        raise CheckpointError(f"{label}: {size:,} bytes at {tensor.offset:,} of a file of {header.size:,}: cut short?")
    return rows, columns // block * width


def read_data(header: Header, name: str, block: int, width: int) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor, (rows, bytes of a row). Raises CheckpointError, and OSError."""
    shape = check_data(header, name, block, width)
    data = np.fromfile(header.path, np.uint8, math.prod(shape), offset=header.tensors[name].offset)
    if len(data) < math.prod(shape):
        raise CheckpointError(f"{header.path}: {one_line(name)}: cut short while it was read")
    return data.reshape(shape)
