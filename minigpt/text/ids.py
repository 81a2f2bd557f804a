"""Ids on disk: a corpus is tokenized once, into files in data/cache, which are mapped into memory.

N ids of the corpus
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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.system.errors import UserError
from minigpt.system.folder import fsync, sha256_of
from minigpt.system.waiting import progress
from minigpt.text import corpus as corpora
from minigpt.text.corpus import Corpus
from minigpt.text.tokenizer import Tokenizer, by_pieces

FORMAT = 1  # of the files in data/cache: increase it when their contents change
FILES = ("ids.bin", "starts.bin")  # little-endian: the ids, and the index of each document's first id (int64)
MANIFEST = "meta.json"  # their types and SHA-256; files that do not match it are not used

Numbers = npt.NDArray[np.int64]


def ids_on_disk(corpus: Corpus, tokenizer: Tokenizer) -> tuple[npt.NDArray[Any], Numbers]:
    """The ids (N,), mapped into memory, and where each document starts; made once for a text and a tokenizer.

    They are in data/cache, in a folder whose name is a hash of the text and the tokenizer. Files with a wrong checksum
    are made again. Several processes may make the same files at the same time: each writes temporary files and renames
    them. Raises UserError if the tokenizer returns an id that is not in its vocabulary.
    """
    folder = corpora.DATA / "cache" / _key(corpus, tokenizer)
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    if not _verifies(folder, dtype):
        temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.part")
        temporary.mkdir(parents=True)
        try:
            _make(temporary, corpus, tokenizer, dtype)
            folder.mkdir(exist_ok=True)
            for name in (*FILES, MANIFEST):
                os.replace(temporary / name, folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    ids, starts = (folder / name for name in FILES)
    return np.asarray(np.memmap(ids, dtype, mode="r")), np.fromfile(starts, "<i8").astype(np.int64)


def check_size(ids: npt.NDArray[Any]) -> None:
    """Raises OSError for mapped ids (N,) whose file was truncated: to read beyond its end would be a SIGBUS."""
    mapped = ids.base
    memory: Any = getattr(mapped, "base", None)  # the open file, also if another one has its name now
    if isinstance(mapped, np.memmap) and (size := memory.size()) < mapped.nbytes:
        what = f"{mapped.filename}: cut short to {size:,} of {mapped.nbytes:,} bytes while it was in use"
        raise OSError(f"{what}; the next start makes it again: python scripts/train.py --resume")


def _key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """A hash of the text, the tokenizer, and the file of the tokenizer's class."""
    try:
        code = Path(inspect.getfile(type(tokenizer))).read_bytes()
    except (OSError, TypeError):  # a class that was defined in a notebook has no file
        code = b""
    parts = [str(FORMAT), corpus.digest, tokenizer.fingerprint, hashlib.sha256(code).hexdigest()]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]


def _verifies(folder: Path, dtype: np.dtype[Any]) -> bool:
    """Whether the files exist and match their manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        return manifest["dtype"] == dtype.str and all(
            manifest["sha256"][name] == sha256_of(folder / name) for name in FILES
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _make(folder: Path, corpus: Corpus, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> None:
    """Tokenize the corpus, a piece or a document at a time, and write the three files."""
    starts = array("q")
    chunks = (ids.astype(dtype).tobytes() for ids in _tokenize(corpus, tokenizer, starts))
    sums = [_write(folder / FILES[0], chunks), _write(folder / FILES[1], [np.array(starts, "<i8").tobytes()])]
    count = (folder / FILES[0]).stat().st_size // dtype.itemsize
    if not count:
        raise UserError(f"data.source: the tokenizer {tokenizer.kind} makes no ids of {corpus.source}")
    manifest = {"from": corpus.description, "tokenizer": tokenizer.kind, "vocab_size": tokenizer.vocab_size}
    manifest |= {
        "dtype": dtype.str,
        "ids": count,
        "documents": len(starts),
        "sha256": dict(zip(FILES, sums, strict=True)),
    }
    _write(folder / MANIFEST, [json.dumps(manifest, indent=1).encode() + b"\n"])


def _tokenize(corpus: Corpus, tokenizer: Tokenizer, starts: array[int]) -> Iterator[Numbers]:
    """The ids of each document, in one or more arrays, with begin_of_text, and end_of_text before all but the first.

    Appends the start of each document to `starts`. Only a tokenizer that does not work by pieces reads whole documents.
    """
    count = 0
    documents = corpus.pieces() if by_pieces(type(tokenizer)) else ([whole] for whole in corpus.documents())
    numbered = ((n, piece) for pieces in documents for n, piece in enumerate(pieces))
    for n, piece in progress(numbered, "tokenizing", unit="pieces of the text"):
        try:
            ids = tokenizer.encode(piece)  # (piece,)
        except UserError as error:
            raise UserError(f"after {n} MiB of the text: {error}" if n else str(error)) from None
        if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
            what = f"{tokenizer.kind} gave ids from {ids.min()} to {ids.max()}"
            raise UserError(f"data.tokenizer: {what}, but its vocab_size is {tokenizer.vocab_size}")
        if n == 0:
            between = dict.fromkeys([tokenizer.end_of_text] * bool(starts) + [tokenizer.begin_of_text])
            ids = np.concatenate(([id for id in between if id is not None], ids)).astype(np.int64)
            starts.append(count)
        count += len(ids)
        yield ids


def _write(path: Path, chunks: Iterable[bytes]) -> str:
    """Write and sync a file, and return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        fsync(file.fileno(), path.name)
    return digest.hexdigest()
