"""Ids on disk: a corpus is tokenized once, into files in data/cache, which are mapped into memory.

N ids of the corpus
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.system.errors import UserError
from minigpt.system.folder import read_record, sha256_of, write_whole
from minigpt.system.locks import one_at_a_time
from minigpt.system.machine import user_id
from minigpt.system.moving import discard, rename
from minigpt.text import corpus as corpora
from minigpt.text.chat import Talking
from minigpt.text.corpus import Corpus
from minigpt.text.files import REMEMBERED, SETTLED, Changed, stamp
from minigpt.text.shards import Numbers, Seal, Shards, check_size, ids_name, join_starts, sealed, write_shards
from minigpt.text.tokenizer import Tokenizer

__all__ = ["Ids", "Numbers", "check_size", "ids_on_disk"]

FORMAT = 2  # of the files in data/cache: increase it when their contents change
DECIDING = [Path(__file__).with_name(f"{name}.py") for name in ("tokenizer", "seams", "split_patterns", "hf_steps")]
STARTS = "starts.bin"  # little-endian: the index of each document's first id (int64)
MANIFEST = "meta.json"  # types, sizes and SHA-256; files that do not match it are not used
STAMPS = "stamps.json"  # the stamps of files that have matched the manifest
MAX_STAMPS = 1 << 24  # bytes

Ids = npt.NDArray[Any] | Shards


def ids_on_disk(corpus: Corpus, tokenizer: Tokenizer) -> tuple[Ids, Numbers]:
    """The ids (N,), mapped into memory, and each document's start (documents,); made once for a text and tokenizer.

    They are in data/cache, in a folder whose name is a hash of the text and the tokenizer. Files with a wrong checksum
    are made again. Of several processes, one makes them and the others wait; if it is killed, another one goes on from
    the last complete shard. Raises UserError if the tokenizer returns an id that is not in its vocabulary.
    """
    cache, key = corpora.DATA / "cache", _key(corpus, tokenizer)
    folder, dtype = cache / key, np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    if not _verifies(folder, dtype):
        cache.mkdir(parents=True, exist_ok=True)
        own_key = f"{key}.{user_id()}"  # per user: others cannot write into it
        with one_at_a_time(cache / f"{own_key}.lock", f"tokenizes {corpus.source}"):
            if not _verifies(folder, dtype):
                _make(cache / f"{own_key}.part", folder, corpus, tokenizer, dtype)
    sizes = json.loads((folder / MANIFEST).read_text("utf-8"))["shards"]
    starts = np.asarray(np.memmap(folder / STARTS, "<i8", mode="r"))  # (documents,)
    if len(sizes) == 1:
        return np.asarray(np.memmap(folder / ids_name(0), dtype, mode="r")), starts.astype(np.int64, copy=False)
    return Shards(folder, sizes, dtype), starts.astype(np.int64, copy=False)


def _key(corpus: Corpus, tokenizer: Tokenizer) -> str:
    """A hash of the text, the tokenizer, the file of its class, and minigpt's files that determine the ids."""
    code = b"".join(path.read_bytes() for path in DECIDING)
    for each in (tokenizer, *([tokenizer.tokenizer] if isinstance(tokenizer, Talking) else [])):
        with suppress(OSError, TypeError):  # a class that was defined in a notebook has no file
            code += Path(inspect.getfile(type(each))).read_bytes()
    parts = [str(FORMAT), corpus.digest, tokenizer.fingerprint, hashlib.sha256(code).hexdigest()]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]


def _verifies(folder: Path, dtype: np.dtype[Any]) -> bool:
    """Whether the files exist and match their manifest.

    Large files are read once; after that, it is enough that their stamps have not changed.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        names = [*map(ids_name, range(len(manifest["shards"]))), STARTS]
        if manifest["dtype"] != dtype.str or not manifest["shards"]:
            return False
        large = sum((folder / name).stat().st_size for name in names) >= REMEMBERED
        stamps = {name: stamp(folder / name) for name in (*names, MANIFEST)}
        if large and read_record(folder / STAMPS, MAX_STAMPS, {}) == stamps:
            return True
        if any(manifest["sha256"][name] != sha256_of(folder / name) for name in names):
            return False
        if large and time.time() - max(max(each[1:3]) for each in stamps.values()) / 1e9 > SETTLED:
            with suppress(OSError):  # the folder is another user's
                write_whole(folder / STAMPS, json.dumps(stamps))
        return True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _make(part: Path, folder: Path, corpus: Corpus, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> None:
    """Tokenize the corpus into the folder `part`, after the shards that are complete there, and rename it to `folder`.

    After an error, or a signal, `part` is kept if it has a complete shard.
    """
    part.mkdir(exist_ok=True)
    try:
        seals = write_shards(part, corpus, tokenizer, dtype)
        if not sum(seal.ids for seal in seals):
            raise UserError(f"data.source: the tokenizer {tokenizer.kind} makes no ids of {corpus.source}")
        _complete(part, seals, corpus, tokenizer, dtype)
        _put(part, folder, dtype)
    except Changed:
        discard(part)
        raise
    except BaseException:
        if not sealed(part):
            discard(part)
        raise


def _put(part: Path, folder: Path, dtype: np.dtype[Any]) -> None:
    """Rename a complete folder to its place, unless another user has made it meanwhile, whose training reads it."""
    try:
        if folder.exists() and not _verifies(folder, dtype):
            damaged = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.part")
            rename(folder, damaged)
            discard(damaged)
        if not folder.exists():
            return rename(part, folder)
    except OSError:
        if not _verifies(folder, dtype):
            raise
    discard(part)


def _complete(folder: Path, seals: Sequence[Seal], corpus: Corpus, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> None:
    """Write the manifest of a folder with all shards."""
    sums = {ids_name(shard): seal.sha256[0] for shard, seal in enumerate(seals)}
    manifest = {"from": corpus.description, "tokenizer": tokenizer.kind, "vocab_size": tokenizer.vocab_size} | {
        "dtype": dtype.str,
        "ids": sum(seal.ids for seal in seals),
        "documents": sum(seal.starts for seal in seals),
        "shards": [seal.ids for seal in seals],
        "sha256": sums | {STARTS: join_starts(folder, seals)},
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
