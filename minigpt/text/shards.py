"""A text's ids in files of a bounded size, written one after the other, and read as one array.

A shard is complete when its seal is written, which says where the next one begins: SIGKILL costs at most one shard.

N ids   S shards
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minigpt.system.folder import fsync, sha256_of, write_whole
from minigpt.system.moving import remove
from minigpt.system.places import command
from minigpt.system.waiting import progress
from minigpt.text.corpus import Corpus
from minigpt.text.cuts import BLOCK, Piece, blocks, naming, pieces_of, place_to_cut
from minigpt.text.tokenizer import Tokenizer
from minigpt.text.workers import encoded, processes_for

SHARD = 1 << 28  # characters of a shard: at least this many, and at most one block more
OPEN = 128  # shards that are mapped at the same time: a process may open about 1,000 files, or only 256

Numbers = npt.NDArray[np.int64]


class Seal(NamedTuple):
    """The record of a complete shard; the shards before it are complete, too."""

    last: tuple[int, int]
    """The number of the document of its last piece, and the number of the piece in this document."""
    ids: int
    starts: int
    """How many documents begin in it."""
    sha256: tuple[str, str]
    """The sums of its file of ids, and of its file of starts."""


def ids_name(shard: int) -> str:
    """The name of the file with a shard's ids."""
    return f"ids-{shard}.bin" if shard else "ids.bin"


def starts_name(shard: int) -> str:
    """The name of the file with the starts of documents, counted from the beginning of the shard."""
    return f"starts-{shard}.bin"


def seal_name(shard: int) -> str:
    """The name of the file with a shard's seal."""
    return f"seal-{shard}.json"


def sealed(folder: Path) -> list[Seal]:
    """The shards that are complete, from the first one on. The list ends before a damaged one."""
    seals = list[Seal]()
    try:
        while True:
            shard = len(seals)
            (document, n), ids, starts, sums = json.loads((folder / seal_name(shard)).read_text("utf-8"))
            if sums != [sha256_of(folder / name) for name in (ids_name(shard), starts_name(shard))]:
                return seals
            seals.append(Seal((int(document), int(n)), int(ids), int(starts), (sums[0], sums[1])))
    except (OSError, ValueError, TypeError, RecursionError):
        return seals


def write_shards(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, dtype: np.dtype[Any], processes: int | None = None
) -> list[Seal]:
    """Tokenize a text into a folder, after the shards that are complete there. Raises UserError and OSError.

    `processes`: how many tokenize; None: as `processes_for` says. The ids are the same for any number.
    """
    seals = sealed(folder)
    cut, last = place_to_cut(tokenizer), seals[-1].last if seals else None
    if processes is None:
        processes = processes_for(tokenizer, corpus.characters)
    pieces = _pieces(corpus, cut, last)
    with naming(corpus.place), closing(encoded(blocks(pieces), tokenizer, processes)) as encoded_blocks:
        total = max(1, round(corpus.characters / BLOCK)) if corpus.characters else None
        steps = progress(encoded_blocks, "tokenizing", total, "MB")
        while True:
            shard = _Shard(folder, len(seals), tokenizer, dtype)
            with shard.file:
                for block, ids, counts in steps:
                    shard.add(block, ids, counts)
                    if shard.characters >= SHARD:
                        break
                shard.file.flush()
                fsync(shard.file.fileno(), shard.file.name)
            if not shard.last:
                remove(folder / ids_name(len(seals)))
                return seals
            seals.append(shard.seal())


def _pieces(corpus: Corpus, cut: Any, last: tuple[int, int] | None) -> Iterator[Piece]:
    """The pieces of a text, in order, after the `last` one that is done."""
    first, done = last or (0, -1)
    if cut is None:
        documents: Iterable[Iterable[Piece]] = (
            [Piece(n, 0, text)] for n, text in enumerate(corpus.documents(first), first)
        )
    else:
        documents = (pieces_of(n, texts, cut) for n, texts in enumerate(corpus.pieces(first), first))
    for pieces in documents:
        yield from (piece for piece in pieces if piece.document > first or piece.n > done)


class _Shard:
    """A shard while it is written."""

    def __init__(self, folder: Path, number: int, tokenizer: Tokenizer, dtype: np.dtype[Any]):
        self.folder, self.number, self.tokenizer, self.dtype = folder, number, tokenizer, dtype
        self.ids, self.characters, self.starts, self.digest = 0, 0, array("q"), hashlib.sha256()
        self.last: tuple[int, int] | None = None
        self.file = (folder / ids_name(number)).open("wb")

    def add(self, block: Sequence[Piece], ids: Numbers, counts: Sequence[int]) -> None:
        """Write the ids (N,) of a block; `counts` are those of its pieces.

        begin_of_text is put in front of each document, and end_of_text between two, if the tokenizer has them.
        """
        positions, marks = list[int](), list[int]()
        for piece, position in zip(block, np.cumsum([0, *counts]).tolist()):
            if piece.n == 0:
                self.starts.append(self.ids + position + len(marks))
                between = [self.tokenizer.end_of_text] * (piece.document > 0) + [self.tokenizer.begin_of_text]
                new = [id for id in dict.fromkeys(between) if id is not None]
                positions, marks = positions + [position] * len(new), marks + new
        marked_ids = (np.insert(ids, positions, marks) if marks else ids).astype(self.dtype)  # (N + marks,)
        self.file.write(marked_ids.data)
        self.digest.update(marked_ids.data)
        self.ids += len(marked_ids)
        self.characters += sum(len(piece.text) for piece in block)
        self.last = block[-1].document, block[-1].n

    def seal(self) -> Seal:
        """Write the seal, which says that the shard is complete. Its ids must be on the disk."""
        assert self.last
        starts = np.array(self.starts, "<i8").tobytes()
        write_whole(self.folder / starts_name(self.number), starts)
        sums = self.digest.hexdigest(), hashlib.sha256(starts).hexdigest()
        seal = Seal(self.last, self.ids, len(self.starts), sums)
        write_whole(self.folder / seal_name(self.number), json.dumps(seal))
        return seal


def join_starts(folder: Path, seals: Sequence[Seal]) -> str:
    """Join the shards' starts into starts.bin, and remove them and the seals; returns the SHA-256 of starts.bin."""
    digest, before = hashlib.sha256(), 0
    with (folder / "starts.bin").open("wb") as file:
        for shard, seal in enumerate(seals):
            starts = (np.fromfile(folder / starts_name(shard), "<i8") + before).astype("<i8")  # (documents,)
            file.write(starts.data)
            digest.update(starts.data)
            before += seal.ids
        file.flush()
        fsync(file.fileno(), "starts.bin")
    for shard in range(len(seals)):
        remove(folder / starts_name(shard))
        remove(folder / seal_name(shard))
    return digest.hexdigest()


class Shards:
    """The ids (N,) of several files, to be indexed like one array. At most OPEN files are open."""

    def __init__(self, folder: Path, sizes: Sequence[int], dtype: np.dtype[Any]):
        """`sizes` (S,): the number of ids of each file."""
        self.folder, self.dtype = folder, dtype
        self.bounds = np.cumsum([0, *sizes])  # (S + 1,)
        self._open = lru_cache(maxsize=OPEN)(self._map)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def shape(self) -> tuple[int]:
        """(N,)."""
        return (len(self),)

    def _map(self, shard: int) -> npt.NDArray[Any]:
        size = int(self.bounds[shard + 1] - self.bounds[shard])
        return np.asarray(np.memmap(self.folder / ids_name(shard), self.dtype, mode="r", shape=(size,)))  # (ids,)

    def _part(self, shard: int) -> npt.NDArray[Any]:
        ids = self._open(shard)
        check_size(ids)
        return ids

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        """All ids in memory."""
        ids = self[:]
        return ids if dtype is None else ids.astype(dtype)

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        """The ids at an index, a slice, or an array of indices of any shape, from 0 on. Raises IndexError."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self._slice(start, stop)
            index = np.arange(start, stop, step)
        index = np.asarray(index)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"{len(self)} ids have the indices 0 to {len(self) - 1}")
        ids = np.empty(index.shape, self.dtype)
        rows = (index, ids) if index.ndim > 1 else (index.reshape(1, -1), ids.reshape(1, -1))
        for row, out in zip(*rows):
            self._gather(row.ravel(), out.reshape(-1))
        return ids

    def _slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The ids from `start` to `stop`."""
        if stop <= start:
            return np.empty(0, self.dtype)
        first, last = np.searchsorted(self.bounds, [start, stop - 1], side="right") - 1
        shards = range(int(first), int(last) + 1)
        parts = [self._part(n)[max(0, start - self.bounds[n]) : stop - self.bounds[n]] for n in shards]
        return np.concatenate(parts)

    def _gather(self, indices: Numbers, out: npt.NDArray[Any]) -> None:
        """Write the ids at indices (n,) into `out` (n,); mostly, all of them are in one shard."""
        if not len(indices):
            return
        first, last = np.searchsorted(self.bounds, [indices.min(), indices.max()], side="right") - 1
        if first == last:
            out[:] = self._part(int(first))[indices - self.bounds[first]]
            return
        shard_of = np.searchsorted(self.bounds, indices, side="right") - 1  # (n,)
        for shard in np.unique(shard_of):
            inside = shard_of == shard  # (n,)
            out[inside] = self._part(int(shard))[indices[inside] - self.bounds[shard]]


def check_size(ids: npt.NDArray[Any] | Shards) -> None:
    """Raises OSError for mapped ids (N,) whose file was truncated: reading beyond its end would raise SIGBUS.

    Shards are checked when they are read.
    """
    mapped = None if isinstance(ids, Shards) else ids.base
    memory: Any = getattr(mapped, "base", None)  # the open file, also if another one has its name now
    if isinstance(mapped, np.memmap) and (size := memory.size()) < mapped.nbytes:
        problem = f"{mapped.filename}: cut short to {size:,} of {mapped.nbytes:,} bytes while it was in use"
        raise OSError(f"{problem}; the next start makes it again: {command('train')} --resume")
