"""Datasets: ids on disk -> (x, y), what a model reads and what it should have said.

A corpus is tokenized once, into a file of ids that is mapped into memory: a text may be larger than memory, and the
next run starts at once. From there on everything is arithmetic: batch number n is a pure function of (seed, n), and
the windows of an evaluation cover every target of their split exactly once.

N ids of the corpus   B windows of a batch   T ids of a window (`block_size`)   W windows of a split
y[:, t] is the id that follows x[:, t] in the text, or IGNORED where the window is longer than the text.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import uuid
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from minigpt.config.options import Options, Range
from minigpt.system.errors import Mistake, UserError
from minigpt.system.folder import sha256_of
from minigpt.system.waiting import progress
from minigpt.text import corpus as corpora
from minigpt.text.corpus import Corpus, StoriesConfig
from minigpt.text.tokenizer import Char, Tokenizer

FORMAT = 1  # of the files in data/cache: raise it when they would be written differently
IGNORED = -100  # the target that torch.nn.functional.cross_entropy leaves out

Split = Literal["train", "val"]
Batch = tuple[torch.Tensor, torch.Tensor]  # x (B,T), y (B,T), int64
Numbers = npt.NDArray[np.int64]
ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Options):
    """What to learn from."""

    source: str = "stories"
    """A name (stories, shakespeare), or the path of a text file, of a folder of them, or a glob."""
    tokenizer: Tokenizer.Config = Char.Config()
    """How text becomes ids."""
    stories: StoriesConfig = StoriesConfig()
    """Which stories the source `stories` tells."""
    validation: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.1
    """The share of the ids, at the end, that is never trained on. The stories have new ones: `stories.validation`."""
    windows: Literal["random", "shuffled", "documents"] = "random"
    """Where windows begin. `random`: anywhere. `shuffled`: side by side, all of them once before any comes again, each
    time from another place on and in another order. `documents`: at a document's start and on from there, never reading
    into the next one."""

    def mistakes(self) -> Iterator[Mistake]:
        """An empty source would be the current directory."""
        if not self.source.strip():
            yield "source", f"expected a name ({', '.join(corpora.NAMES)}) or a path, found nothing"


class Dataset:
    """The ids of a corpus, in two splits, `train` and `val`.

    With `windows: documents` no window reaches beyond the start of the next document: its last target is the id that
    begins it, which is how a model learns to end a text.
    """

    def __init__(self, config: DataConfig, corpus: Corpus, tokenizer: Tokenizer, block_size: int):
        """Tokenizes the corpus unless that was done before. Raises UserError where a split is shorter than a window."""
        self.config, self.block_size = config, block_size
        self.ids, self.document_starts = ids_on_disk(corpus, tokenizer)  # (N,), (documents,)
        cut = self._cut(corpus)
        self.splits = {"train": range(cut), "val": range(cut, len(self.ids))}
        for split, where in self.splits.items():
            if len(where) < block_size + 1:
                what = f"the {split} split of {config.source} has {len(where):,} of its {len(self.ids):,} ids"
                need = f"one window takes model.block_size + 1 = {block_size + 1:,}"
                hint = f"give it more text, a smaller block_size, or another data.validation than {config.validation:g}"
                raise UserError(f"data.source: {what}, and {need}: {hint}")
        aligned = config.windows == "documents"
        self._windows = {split: self._cover(where, aligned) for split, where in self.splits.items()}

    def _cut(self, corpus: Corpus) -> int:
        """Where validation begins: at the first of the stories that are for it, elsewhere where the share says."""
        config, told = self.config, corpus.stories
        if told is None:
            return _cut(len(self.ids), self.document_starts, config.validation)
        if config.validation != DataConfig.validation:
            hint = f"set data.stories.validation, now {told.validation:,} stories"
            raise UserError(f"data.validation: the stories bring their own validation, all of it new: {hint}")
        if told != config.stories:
            raise ValueError("the stories were told otherwise: open_corpus(config.source, config.stories)")
        return int(self.document_starts[-told.validation])

    def batch(self, split: Split, n: int, batch_size: int, seed: int, rows: slice = ALL) -> Batch:
        """Batch number n: x and y, (B,T) int64. The same on every machine, whatever was asked for before.

        `rows` are the rows of the batch to return: a process of several asks for its own, and all of them together
        see the batch that one alone would have seen.
        """
        where = self.splits[split]
        if self.config.windows == "shuffled":
            starts = self._shuffled(where, n * batch_size + np.arange(batch_size)[rows], seed)  # (B,)
            return self._gather(starts, starts + self.block_size)
        draws = _draws(seed, n, batch_size)[rows]  # (B,)
        if self.config.windows == "documents":
            starts, stops = self._windows[split]  # (W,) each
            pick = (draws % np.uint64(len(starts))).astype(np.int64)  # (B,)
            return self._gather(starts[pick], stops[pick])
        starts = where.start + (draws % np.uint64(len(where) - self.block_size)).astype(np.int64)  # (B,)
        return self._gather(starts, starts + self.block_size)

    def _shuffled(self, where: range, numbers: Numbers, seed: int) -> Numbers:
        """Where the windows with these numbers (B,) begin, counted from the first batch of the first epoch on: (B,)."""
        T, ids = self.block_size, len(where)
        count = max(1, (ids - T) // T)  # windows of an epoch: as many as fit from any place of the first window on
        epochs, nth = np.divmod(numbers, count)  # (B,) each
        starts = np.empty_like(numbers)  # (B,)
        for epoch in np.unique(epochs):
            order, draw = _epoch(seed, int(epoch), count)  # (count,)
            starts[epochs == epoch] = where.start + draw % (ids - count * T) + order[nth[epochs == epoch]] * T
        return starts

    def windows(self, split: Split, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        """The whole split in windows side by side, batch by batch: x and y, (B,T) int64, B <= batch_size.

        Every id but the split's first is the target of exactly one position; all other targets are IGNORED. `rows`
        are the windows to return: `slice(rank, None, world)` deals them out to processes.
        """
        starts, stops = (edges[rows] for edges in self._windows[split])  # (W,) each
        for first in range(0, len(starts), batch_size):
            batch = slice(first, first + batch_size)
            yield self._gather(starts[batch], stops[batch])

    def window_count(self, split: Split) -> int:
        """How many windows cover a split: W."""
        return len(self._windows[split][0])

    def _cover(self, where: range, aligned: bool) -> tuple[Numbers, Numbers]:
        """Windows over a split: where the x of each starts, and where its text stops; (W,) each."""
        last = where.stop - 1  # the last id is only a target
        inside = self.document_starts[(self.document_starts > where.start) & (self.document_starts < last)]
        begins = np.concatenate([[where.start], inside[: len(inside) * aligned]]).astype(np.int64)  # (stretches,)
        ends = np.append(begins[1:], last)  # (stretches,)
        counts = -(-(ends - begins) // self.block_size)  # (stretches,): windows of each, the last of them shorter
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # (W,): 0, 1, 2 in each stretch
        return np.repeat(begins, counts) + nth * self.block_size, np.repeat(ends, counts)

    def _gather(self, starts: Numbers, stops: Numbers) -> Batch:
        check_whole(self.ids)
        places = starts[:, None] + np.arange(self.block_size + 1)  # (B,T+1)
        window = self.ids[np.minimum(places, stops[:, None])].astype(np.int64)  # (B,T+1)
        x, y = window[:, :-1].copy(), window[:, 1:].copy()  # (B,T), (B,T)
        beyond = places[:, :-1] >= stops[:, None]  # (B,T): what fills up a window that is longer than its text
        x[beyond], y[beyond] = 0, IGNORED
        return torch.from_numpy(x), torch.from_numpy(y)


def _draws(seed: int, n: int, count: int) -> npt.NDArray[np.uint64]:
    """Random numbers (count,) that depend on (seed, n) alone.

    Philox counts instead of keeping a state ("Parallel Random Numbers: As Easy as 1, 2, 3", Salmon et al. 2011):
    the seed is its key and n a part of its counter, so that any batch is reached at once, in any order.
    """
    draws: npt.NDArray[np.uint64] = np.random.Philox(key=seed, counter=[0, n, 0, 0]).random_raw(count)
    return draws


@lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, count: int) -> tuple[Numbers, int]:
    """An order of the numbers below `count`, and one more draw, that depend on (seed, epoch) alone."""
    draws = _draws(seed, epoch, count + 1)
    return np.argsort(draws[1:], kind="stable"), int(draws[0])


def _cut(length: int, document_starts: Numbers, validation: float) -> int:
    """Where validation begins: at its share of the ids, or at the nearest document's start if one is within 1 %."""
    cut = int(length * (1 - validation))
    inside = document_starts[(document_starts > 0) & (document_starts < length)]
    near = inside[np.abs(inside - cut) <= 0.01 * length]
    return int(near[np.argmin(np.abs(near - cut))]) if len(near) else cut


# ---------------------------------------------------------------------------------------------- ids on disk

FILES = ("ids.bin", "starts.bin")  # raw and little-endian: the ids, and the place of each document's first (int64)
SEAL = "meta.json"  # says what they are and their SHA-256; without it, or with another, they are not used


def ids_on_disk(corpus: Corpus, tokenizer: Tokenizer) -> tuple[npt.NDArray[Any], Numbers]:
    """The ids (N,), mapped into memory, and where each document starts; made once for a text and a tokenizer.

    They lie in data/cache, in a folder named after what they are made from. Files that do not verify are made again.
    Processes that begin at once all make the same bytes and rename them into place, so that any order ends well.
    Raises UserError for a tokenizer that does not keep to its vocabulary.
    """
    folder = corpora.DATA / "cache" / _key(corpus, tokenizer)
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    if not _verifies(folder, dtype):
        temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.part")
        temporary.mkdir(parents=True)
        try:
            _make(temporary, corpus, tokenizer, dtype)
            folder.mkdir(exist_ok=True)
            for name in (*FILES, SEAL):
                os.replace(temporary / name, folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    ids, starts = (folder / name for name in FILES)
    return np.asarray(np.memmap(ids, dtype, mode="r")), np.fromfile(starts, "<i8").astype(np.int64)


def check_whole(ids: npt.NDArray[Any]) -> None:
    """Raises OSError for mapped ids (N,) whose file was cut short: reading beyond its end is a SIGBUS, not an error."""
    mapped = ids.base
    memory: Any = getattr(mapped, "base", None)  # the file as it is now, whatever has its name
    if isinstance(mapped, np.memmap) and (size := memory.size()) < mapped.nbytes:
        what = f"{mapped.filename}: cut short to {size:,} of {mapped.nbytes:,} bytes while it was read"
        raise OSError(f"{what}; the next start makes it anew: python scripts/train.py --resume")


def _key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """A name that changes with the text, the tokenizer, and the file that holds the tokenizer's code."""
    try:
        code = Path(inspect.getfile(type(tokenizer))).read_bytes()
    except (OSError, TypeError):  # a class made in a notebook has no file
        code = b""
    parts = [str(FORMAT), corpus.digest, tokenizer.fingerprint, hashlib.sha256(code).hexdigest()]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]


def _verifies(folder: Path, dtype: np.dtype[Any]) -> bool:
    """Whether the files are there, whole, and what their seal says."""
    try:
        seal = json.loads((folder / SEAL).read_text("utf-8"))
        return seal["dtype"] == dtype.str and all(seal["sha256"][name] == sha256_of(folder / name) for name in FILES)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _make(folder: Path, corpus: Corpus, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> None:
    """Tokenize the corpus, a document at a time, and write the three files."""
    starts = array("q")
    pieces = (ids.astype(dtype).tobytes() for ids in _tokenize(corpus, tokenizer, starts))
    sums = [_write(folder / FILES[0], pieces), _write(folder / FILES[1], [np.array(starts, "<i8").tobytes()])]
    count = (folder / FILES[0]).stat().st_size // dtype.itemsize
    if not count:
        raise UserError(f"data.source: the tokenizer {tokenizer.kind} makes no ids of {corpus.source}")
    seal = {"from": corpus.description, "tokenizer": tokenizer.kind, "vocab_size": tokenizer.vocab_size}
    seal |= {"dtype": dtype.str, "ids": count, "documents": len(starts), "sha256": dict(zip(FILES, sums, strict=True))}
    _write(folder / SEAL, [json.dumps(seal, indent=1).encode() + b"\n"])


def _tokenize(corpus: Corpus, tokenizer: Tokenizer, starts: array[int]) -> Iterator[Numbers]:
    """The ids of each document, where it starts added to `starts`; end_of_text, if there is one, stands between."""
    count = 0
    for document in progress(corpus.documents(), "tokenizing", unit="documents"):
        ids = tokenizer.encode(document)  # (document,)
        if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
            what = f"{tokenizer.kind} gave ids from {ids.min()} to {ids.max()}"
            raise UserError(f"data.tokenizer: {what}, but its vocab_size is {tokenizer.vocab_size}")
        if starts and tokenizer.end_of_text is not None:
            ids = np.insert(ids, 0, tokenizer.end_of_text)
        starts.append(count)
        count += len(ids)
        yield ids


def _write(path: Path, pieces: Iterable[bytes]) -> str:
    """Write and sync a file; its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
