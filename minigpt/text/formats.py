"""A file -> documents: plain text, JSON Lines and Parquet, each also compressed with gzip (.gz) or Zstandard (.zst).

A text file is one document, and so is each line of JSON Lines and each row of Parquet. Files are read as streams, in
parts of bounded size: neither a large file nor one that expands to much more than its size fills the memory. Text is
UTF-8, what a byte-order mark says (UTF-16, UTF-32), or what it is said to be (`encoding`).
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from minigpt.system.errors import UserError, package
from minigpt.system.process import NO_MORE, can_start
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import one_line
from minigpt.system.waiting import progress
from minigpt.text.talks import FieldNames, as_document, read_talk

CHUNK = 1 << 20  # bytes of a file that are read at a time
LONGEST = 16 << 20  # bytes of a line of JSON Lines, or of a document in Parquet: a longer one is a bad line
VALUES = 1 << 28  # bytes of a batch of rows if each row were as long as its whole row group: limits the rows of a batch
TEXT, LINES, TABLE = (".txt", ".text", ".md"), (".jsonl", ".ndjson"), (".parquet",)
PACKED = ("", ".gz", ".zst")
UTF8 = "utf-8"
MARKS = {  # byte-order marks; that of UTF-32 may begin as one of UTF-16 does
    codecs.BOM_UTF8: UTF8,
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
SUFFIXES = tuple(f"{suffix}{packed}" for suffix in (*TEXT, *LINES, *TABLE) for packed in PACKED)

Document = Iterator[str]  # in pieces
Field = str | FieldNames  # the field that has the text, or the names of those of a chat
Complain = Callable[[str], None]  # called with a message for each bad line or row, which is left out


class Stream(io.RawIOBase):
    """Bytes that come in chunks, as an open file."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes; 0 at the end."""
        self._rest = self._rest or next((chunk for chunk in self._chunks if chunk), b"")
        data = self._rest[: len(buffer)]
        buffer[: len(data)], self._rest = data, self._rest[len(data) :]
        return len(data)


class Raw(Stream):
    """The bytes of an open file, up to the size that it had when it was opened, with their SHA-256.

    Without this limit, reading might never end: system files such as /proc/kmsg have size 0.
    """

    def __init__(self, file: BinaryIO, name: str = ""):
        """With a name, a progress bar is shown."""
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self._sha256 = hashlib.sha256()
        starts = range(0, self.size, CHUNK)
        steps = progress(starts, f"reading {name}", len(starts), "MiB") if name else starts
        super().__init__(self._read(min(CHUNK, self.size - start)) for start in steps)

    def _read(self, size: int) -> bytes:
        """At most so many bytes of the file. Raises OSError, which names it."""
        try:
            chunk = self.file.read(size)
        except OSError as error:
            error.filename = self.file.name
            raise
        self._sha256.update(chunk)
        return chunk

    def sha256(self) -> str:
        """The SHA-256 of the whole file; the rest of the file is read first."""
        self._rest = b""
        for _ in self._chunks:
            pass
        return self._sha256.hexdigest()


def suffixes_of(path: Path) -> tuple[str, str]:
    """The format and the compression, by a file's name: one of TEXT, LINES or TABLE, and one of PACKED."""
    packed = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    inner = (path.with_suffix("") if packed else path).suffix.lower()
    return (inner if inner in (*LINES, *TABLE) else TEXT[0]), packed


def documents(
    raw: Raw, path: Path, field: Field, complain: Complain, encoding: str = UTF8
) -> Iterator[tuple[str, Document]]:
    """The place and the text of each document of a file, in order. Only the document of a text file may be empty.

    `encoding`: of text and JSON Lines without a byte-order mark.
    A place is the file, with the line or the row where there is one. Bad lines and rows are left out. Raises UserError
    for a file that is bad as a whole, or whose package is missing, and OSError; both name the file.
    """
    inner, packed = suffixes_of(path)
    if isinstance(field, FieldNames) and inner not in LINES:
        raise UserError(f"{path}: a chat is read from JSON Lines ({', '.join(LINES)})")
    with _damage(path):
        stream = _unpacked(raw, packed, path) if packed else io.BufferedReader(raw, CHUNK)
        if inner in TABLE and isinstance(field, str):
            with tempfile.TemporaryFile() if packed else nullcontext(raw.file) as file:
                if packed:  # Parquet is read from its end
                    shutil.copyfileobj(stream, file, CHUNK)
                raw.sha256()
                yield from _rows(file, path, field, complain)
            return
        mark = next((mark for mark in MARKS if stream.peek(4).startswith(mark)), b"")
        stream.read(len(mark))
        encoding = MARKS.get(mark, encoding)
        text = _decoded(stream, str(path), encoding, len(mark))
        if inner not in LINES:
            yield str(path), text
            return
        as_utf8 = stream if encoding == UTF8 else io.BufferedReader(Stream(map(str.encode, text)), CHUNK)
        yield from _lines(as_utf8, path, field, complain)


@contextmanager
def _damage(path: Path | str) -> Iterator[None]:
    """Turns the errors of libraries for a damaged file into a UserError; an OSError is given the file's name."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged: {one_line(str(error))}") from None
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
            raise
        raise UserError(f"{path}: damaged: {one_line(str(error))[:200]}") from None  # of pyarrow


class PackageMissing(UserError):
    """A file cannot be read because a package is missing; the file itself may be good."""


def _package(name: str, path: Path) -> Any:
    """A module of pyarrow. Raises PackageMissing where it is not installed, UserError if it could start no thread."""
    if not can_start(2):
        raise UserError(NO_MORE)
    return package(name, f"{path}: this file is read by", "data", error=PackageMissing)


def _unpacked(raw: Raw, packed: str, path: Path) -> io.BufferedReader:
    """The decompressed contents of a file, as a stream. Reading a damaged or truncated file raises an error."""
    if packed == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw, mode="rb"), CHUNK)
    arrow = _package("pyarrow", path)
    stream = arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")
    return io.BufferedReader(Stream(iter(lambda: stream.read(CHUNK), b"")), CHUNK)


# -------------------------------------------------------------------------------------------------- encodings


def text_encoding(name: str) -> str | None:
    """Python's own name of a text encoding, such as iso8859-1 for latin-1; None if it is none, or not one of files."""
    try:
        b"a".decode(name, "ignore")  # of an empty text, any codec is accepted
        codec = codecs.lookup(name)
    except (LookupError, ValueError, OSError):
        return None
    return None if codec.name in ("idna", "punycode") or codec.incrementaldecoder is None else codec.name


def _decoded(stream: BinaryIO, name: str, encoding: str = UTF8, start: int = 0) -> Document:
    """The text of a stream in pieces. `start`: the offset of the stream's first byte in the file.

    Raises UserError with the offset and the line of what is wrong: in another encoding, or binary (NUL).
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    size, lines, chunk = start, 1, b"\n"
    with _damage(name):
        while chunk:
            chunk, state = stream.read(CHUNK), decoder.getstate()
            hint = "this is a binary file, not text"
            try:
                text = decoder.decode(chunk, final=not chunk)
                if encoding != UTF8:
                    text.encode()  # of half a surrogate pair, this raises UnicodeError
                wrong = "\0" in text
            except UnicodeError:
                encoding_name, wrong = "UTF-8" if encoding == UTF8 else encoding, True
                hint = f"this is not {encoding_name}: save the file as UTF-8, name its data.encoding, or leave it out"
            if wrong:
                decoder.setstate(state)
                offset, line = _first_wrong(decoder, chunk)
                byte = (state[0] + chunk)[offset + len(state[0])]
                raise UserError(f"{name}: byte {size + offset} (line {lines + line}) is 0x{byte:02x}: {hint}")
            size, lines = size + len(chunk), lines + text.count("\n")
            yield text


def _first_wrong(decoder: codecs.IncrementalDecoder, chunk: bytes) -> tuple[int, int]:
    """The offset in a chunk of the first character that cannot be decoded, else of the first NUL; the lines before it.

    It is negative if the character begins in the bytes that the decoder holds.
    """
    begin, lines, nul = -len(decoder.getstate()[0]), 0, None
    with suppress(UnicodeError):
        for n in range(len(chunk)):
            text = decoder.decode(chunk[n : n + 1])
            text.encode()
            nul = (begin, lines) if nul is None and "\0" in text else nul
            lines += text.count("\n")
            begin = begin if decoder.getstate()[0] else n + 1  # where a character begins in the chunk
        return nul or (begin, lines)
    return begin, lines


def decode_text(raw: bytes, name: str) -> str:
    """The text of a file's bytes, without a byte-order mark and otherwise unchanged. Raises UserError as above."""
    return "".join(_decoded(io.BytesIO(raw), name)).removeprefix("\ufeff")


# ------------------------------------------------------------------------------------- JSON Lines and Parquet


def _lines(stream: BinaryIO, path: Path, field: Field, complain: Complain) -> Iterator[tuple[str, Document]]:
    """The texts of a field of JSON Lines, or its talks as documents; empty lines and empty texts are left out."""
    for number in count(1):
        line, place = stream.readline(LONGEST + 1), f"{path}: line {number}"
        if not line:
            return
        if len(line) > LONGEST:
            while not line.endswith(b"\n") and (line := stream.readline(CHUNK)):
                pass
            complain(f"{place}: longer than {LONGEST >> 20} MiB")
            continue
        if line.isspace() or not line:
            continue
        try:
            text = _text_in(parse_json(line.decode("utf-8")), field)
        except ValueError as error:
            complain(f"{place}: {one_line(str(error))[:200]}")
            continue
        if text:
            yield place, iter([text])


def _text_in(value: Any, field: Field) -> str:
    """The text of a field of a line, or the document of its talk. Raises UserError."""
    if isinstance(field, FieldNames):
        return _checked(as_document(read_talk(value, field)), "a talk")
    if not isinstance(value, dict):
        raise UserError(f"expected an object with the field {field!r}, found {one_line(str(value))[:40]}")
    if field not in value:
        raise UserError(f"no field {field!r} among {_few(value)}")
    return _checked(value[field], field)


def _few(names: Any) -> str:
    labels = [one_line(str(name))[:40] for name in names]
    return ", ".join(labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "") or "nothing"


def _checked(text: Any, field: str) -> str:
    """A field's value, if it is text. Raises UserError."""
    if not isinstance(text, str):
        raise UserError(f"the field {field!r} has no text but {one_line(str(text))[:40]}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError("half a surrogate pair, which is not a character") from None
    return text


def _rows(file: Any, path: Path, field: str, complain: Complain) -> Iterator[tuple[str, Document]]:
    """The texts of a column of a Parquet file, a batch of rows at a time; empty texts are left out."""
    parquet, arrow = _package("pyarrow.parquet", path), _package("pyarrow", path)
    try:
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=CHUNK)
        if field not in (names := table.schema_arrow.names):
            raise UserError(f"{path}: no column {field!r} among {_few(names)}: set data.field")
        rows = count(1)
        for group in range(table.num_row_groups):
            for batch in table.iter_batches(_at_once(table, group, field), [group], [field], use_threads=False):
                for value in batch.column(0):
                    place = f"{path}: row {next(rows)}"
                    if text := _cell(value, field, place, complain):
                        yield place, iter([text])
    except arrow.ArrowException as error:
        raise UserError(f"{path}: damaged, or not Parquet: {one_line(str(error))[:200]}") from None


def _at_once(table: Any, group: int, field: str) -> int:
    """How many rows of a row group are read at once: many rows may share a long text of the group's dictionary."""
    paths = [table.schema.column(i).path for i in range(len(table.schema))]
    column = next(i for i, path in enumerate(paths) if path == field or path.startswith(f"{field}."))
    size: int = table.metadata.row_group(group).column(column).total_uncompressed_size
    return max(16, min(1024, VALUES // max(1, size)))


def _cell(value: Any, field: str, place: str, complain: Complain) -> str:
    """The text of a row; empty if the row is bad or has none."""
    try:
        text = _checked(value.as_py(), field)
        if len(text) > LONGEST:
            raise UserError(f"longer than {LONGEST >> 20} MiB")
        return text
    except ValueError as error:
        complain(f"{place}: {one_line(str(error))[:200]}")
        return ""
