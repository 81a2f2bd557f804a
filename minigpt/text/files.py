"""Files of text: all are checked before the first one is tokenized, and read again when they are needed.

Small texts are checked at every start. For large texts, the results are saved and used as long as a file's size, its
times of change and its place on the disk are the same: the next start does not read the file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from minigpt.system.errors import UserError
from minigpt.system.folder import SHOWN, open_plain, write_whole
from minigpt.system.locks import one_at_a_time
from minigpt.system.waiting import progress
from minigpt.text.formats import UTF8, Document, Field, PackageMissing, Raw, documents

REMEMBERED = 256 << 20  # bytes of all files together, from which on the results of the check are saved
SETTLED = 2.0  # seconds after a file's last change before its result is saved: clocks of file systems are coarse
OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ELOOP, errno.EIO)  # other errors concern the machine


class FileSummary(NamedTuple):
    """The result of checking a file."""

    size: int
    """Bytes of the file."""
    sha256: str
    documents: int
    """How many documents are not empty."""
    characters: int
    bytes: int
    """Bytes of the documents as UTF-8."""
    largest: int
    """Bytes of the largest document."""
    bad: int
    """How many lines or rows cannot be used."""
    notes: list[str]
    """The first of these lines or rows, each with the reason."""


class BadFile(UserError):
    """A file that cannot be used."""


class Changed(UserError):
    """A file has changed since it was checked."""


def look(path: Path, field: Field, encoding: str = UTF8) -> FileSummary:
    """Read a file and check that it is text. Raises BadFile, PackageMissing (both are UserErrors), and OSError."""
    notes = list[str]()
    n_documents = characters = total = largest = bad = 0

    def complain(line: str) -> None:
        nonlocal bad
        bad += 1
        if bad <= SHOWN:
            notes.append(line)

    try:
        with open_plain(path) as file:
            raw = Raw(file, path.name)
            for _, document in documents(raw, path, field, complain, encoding):
                size = 0
                for piece in document:
                    characters += len(piece)
                    size += len(piece) if piece.isascii() else len(piece.encode())
                n_documents, total, largest = n_documents + (size > 0), total + size, max(largest, size)
            sha256 = raw.sha256()
    except PackageMissing:
        raise
    except UserError as error:
        raise BadFile(str(error)) from None
    if bad and not n_documents:
        raise BadFile(f"{path}: no line can be used; the first of {bad:,}: {notes[0].removeprefix(f'{path}: ')}")
    return FileSummary(raw.size, sha256, n_documents, characters, total, largest, bad, notes)


def read_again(
    path: Path, field: Field, summary: FileSummary, skip: int = 0, encoding: str = UTF8
) -> Iterator[Document]:
    """The documents of a file without the first `skip`. Raises UserError, Changed if it is not that of `summary`."""
    with open_plain(path) as file:
        raw = Raw(file)

        def checked(pieces: Iterator[str]) -> Iterator[str]:
            try:
                yield from pieces
            except UserError:  # perhaps the file has changed
                check()
                raise

        def check() -> None:
            if (raw.size, raw.sha256()) != (summary.size, summary.sha256):
                raise Changed(f"{path}: changed while it was being read: start again when the file is complete")

        if raw.size != summary.size:
            check()
        try:
            for _, document in islice(documents(raw, path, field, lambda line: None, encoding), skip, None):
                yield checked(document)
        except UserError:
            check()
            raise
        check()


def place_of(path: Path, field: Field, n: int, encoding: str = UTF8) -> str:
    """The place of document number n of a file: the file, and its line or row. Only the file if it cannot be read."""
    with suppress(OSError, UserError), path.open("rb") as file:
        places = (place for place, _ in documents(Raw(file), path, field, lambda line: None, encoding))
        return next(islice(places, n, None), str(path))
    return str(path)


# -------------------------------------------------------------------------------------- saved results


def look_at_all(
    paths: Sequence[Path], field: Field, name: str, cache: Path, encoding: str = UTF8
) -> Iterator[tuple[Path, FileSummary | str]]:
    """Each file with what is in it, or with the reason why it cannot be used.

    The folder `cache` keeps the results for large texts. If several processes check one text, one of them does it and
    the others wait. Raises UserError and OSError for errors that do not concern a single file among several.
    """
    sizes = [os.path.getsize(path) for path in paths if path.exists()]
    if sum(sizes) < REMEMBERED:
        yield from _look(paths, name, lambda path: look(path, field, encoding))
        return
    cache.mkdir(parents=True, exist_ok=True)
    how = str(field) if encoding == UTF8 else f"{field} {encoding}"
    key = hashlib.sha256("\0".join([how, *map(str, paths)]).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    record = cache / f"files-{key}.json"
    with one_at_a_time(record.with_suffix(".lock"), f"reads {name}"):
        saved = _load(record)

        def look_once(path: Path) -> FileSummary:
            before = stamp(path)
            if (entry := saved.get(str(path))) and entry[0] == before:
                return entry[1]
            summary = look(path, field, encoding)
            if stamp(path) == before and time.time() - max(before[1:3]) / 1e9 > SETTLED:
                saved[str(path)] = before, summary
            return summary

        already_saved = dict(saved)
        yield from _look(paths, name, look_once)
        if saved != already_saved:
            write_whole(record, json.dumps(saved))


def _look(
    paths: Sequence[Path], name: str, look: Callable[[Path], FileSummary]
) -> Iterator[tuple[Path, FileSummary | str]]:
    for path in progress(paths, f"reading {name}", len(paths), "files"):
        try:
            yield path, look(path)
        except BadFile as error:
            yield path, str(error)
        except OSError as error:
            if error.errno not in OF_THE_FILE or len(paths) == 1:
                raise
            yield path, f"{path}: {error.strerror}"


def stamp(path: Path) -> list[int]:
    """Size, times of change (mtime and ctime in nanoseconds), inode and device of a file: a write changes them.

    `touch` and `cp -p` can set mtime back, but not ctime.
    """
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _load(record: Path) -> dict[str, tuple[list[int], FileSummary]]:
    """The saved results: path -> (stamp, summary); empty if there are none."""
    try:
        values = json.loads(record.read_text("utf-8"))
        return {path: (stamp, FileSummary(*summary)) for path, (stamp, summary) in values.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
