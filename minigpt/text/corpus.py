"""Corpora: a name, file, folder or glob -> documents, and where they came from.

A corpus contains text, not ids (`ids.py` makes them). Opening a corpus checks all of its files, so that a mistake
in the last one is reported before the first one is tokenized. The files are read again in pieces when they are needed:
a folder, or a file, may be larger than memory. The text is not changed, and its line ends are kept; only a byte-order
mark is removed, and the description says so.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import NamedTuple, NoReturn

from minigpt.config.options import suggest
from minigpt.languages.language import Language, Stories, StoriesConfig
from minigpt.languages.tasks import Task
from minigpt.system.errors import UserError
from minigpt.system.folder import fsync, sha256_of
from minigpt.system.memory import free_memory
from minigpt.system.terminal import one_line
from minigpt.system.waiting import interruptible, progress

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("MINIGPT_DATA") or ROOT / "data")  # downloads, and the cache of `ids.py`
CHUNK = 1 << 20  # bytes of a file that are read at a time
WHOLE = 4  # bytes of memory for a byte of a text that is tokenized as a whole, at least: pieces, text, bytes, ids
SUFFIXES = (".txt", ".text", ".md")  # text files in a folder; a file that is named may have any suffix
NAMES = (Stories.name, *Task.kinds, "shakespeare")
PRETRAINED = "pretrained"  # the source of a run whose weights were trained elsewhere: it has no text
DEFAULT = StoriesConfig()

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
PACKET = 1 << 16  # bytes of a download that are read at a time


@dataclass(frozen=True)
class Corpus:
    """Documents, and where they came from."""

    source: str
    """`data.source` of the config."""
    description: str
    """One line for people: what it is, and how large."""
    digest: str
    """SHA-256 of the SHA-256 of every document, in order: equal for equal contents, whatever the paths."""
    pieces: Callable[[], Iterator[Iterable[str]]]
    """Reads the documents in order, each in pieces of about a mebibyte; none is empty. Raises UserError if a file has
    changed since."""
    language: Language | None = None
    """The built-in language of the documents. Its last `validation` documents are for validation."""
    largest: int = 0
    """Bytes of the largest document."""

    def documents(self) -> Iterator[str]:
        """Reads the documents in order, each as a whole. Raises UserError for one that does not fit into memory."""
        needed, free = WHOLE * self.largest, free_memory()
        if free is not None and needed > free:
            what = f"to tokenize {self.largest:,} bytes at once would need {needed:,} bytes, and {free:,} are free"
            hint = "divide the file, or use data.tokenizer=char or byte, which read it in pieces"
            raise UserError(f"not enough memory: {what}: {hint}")
        return map("".join, self.pieces())


def open_corpus(source: str | Task.Config, told: StoriesConfig = DEFAULT) -> Corpus:
    """The corpus of a name (`stories`, with options `told`; a task; `shakespeare`), or of a file, folder or glob.

    A relative path is looked up in the current directory, then in the repository. Raises UserError for a text that is
    missing, empty, binary or not UTF-8, and OSError for one that must not be read.
    """
    if language := language_of(source, told):
        return _built_in(language)
    assert isinstance(source, str)
    if source == PRETRAINED:
        what = "the weights of this run were trained elsewhere, and it has no text"
        raise UserError(f"data.source: {what}: give one, as in data.source=my.txt")
    if source == "shakespeare":
        return _from_files(source, [shakespeare()])
    return _from_files(source, find_texts(source))


def _digest(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def language_of(source: str | Task.Config, told: StoriesConfig = DEFAULT) -> Language | None:
    """The built-in language of a source; None for a text."""
    if isinstance(source, str) and source in Task.kinds:
        source = Task.kinds[source].Config()
    if isinstance(source, Task.Config):
        task: Task = source.component(source)
        return task
    return Stories(told) if source == Stories.name else None


def _built_in(language: Language) -> Corpus:
    texts = language.texts()
    raw = [text.encode() for text in texts]
    description = f"{len(raw):,} {language.plural} made by {language.file}, {sum(map(len, raw)):,} bytes"
    digest = _digest(hashlib.sha256(text).hexdigest() for text in raw)
    return Corpus(language.name, description, digest, lambda: ([text] for text in texts), language)


class Checked(NamedTuple):
    """What is known of a text file: its size in bytes, the size of its byte-order mark, and its SHA-256."""

    size: int
    mark: int
    sha256: str


def _check(path: Path) -> Checked:
    """Read a file in chunks and check that it is text. Raises UserError as `decode_text` does, and OSError.

    Reads no more bytes than the file's size: system files of size 0, such as /proc/kmsg, may never end.
    """
    utf8, digest, size, lines, mark = codecs.getincrementaldecoder("utf-8")(), hashlib.sha256(), 0, 1, 0
    with path.open("rb") as file:
        starts = range(0, os.fstat(file.fileno()).st_size, CHUNK)
        for start in progress(starts, f"reading {path.name}", len(starts), "MiB"):
            chunk = file.read(min(CHUNK, starts.stop - start))
            held = utf8.getstate()[0]  # the first bytes of a character that continues in this chunk
            try:
                utf8.decode(chunk)
                wrong = chunk[: chunk.find(b"\0") + 1]  # up to the first NUL; empty if there is none
            except UnicodeDecodeError:
                wrong = chunk
            if wrong:
                decode_text(held + wrong, str(path), size - len(held), lines)
            mark = len(codecs.BOM_UTF8) * chunk.startswith(codecs.BOM_UTF8) if size == 0 else mark
            digest.update(chunk)
            size, lines = size + len(chunk), lines + chunk.count(b"\n")
    if held := utf8.getstate()[0]:
        decode_text(held, str(path), size - len(held), lines)
    return Checked(size, mark, digest.hexdigest())


def _from_files(source: str, paths: Sequence[Path]) -> Corpus:
    contents: dict[Path, Checked] = {}
    size = marks = 0
    for path in progress(paths, f"reading {source}", len(paths), "files"):
        found = _check(path)
        if found.size > found.mark:
            contents[path] = found
            size, marks = size + found.size, marks + (found.mark > 0)
    if not contents:
        what = f"{paths[0]} is empty" if len(paths) == 1 else f"all {len(paths)} files of {source} are empty"
        raise UserError(f"data.source: {what}: there is nothing to learn from")

    where = one_line(str(paths[0])) if len(contents) == 1 else f"{one_line(source)} ({len(contents):,} files)"
    dropped = f", {marks} byte-order mark{'s' * (marks > 1)} dropped" if marks else ""
    digest, largest = _digest(c.sha256 for c in contents.values()), max(c.size for c in contents.values())
    description = f"{where}, {size:,} bytes{dropped}"
    return Corpus(source, description, digest, lambda: starmap(_pieces, contents.items()), largest=largest)


def _pieces(path: Path, found: Checked) -> Iterator[str]:
    """The text of a checked file, without a byte-order mark, in pieces. Raises UserError if the file has changed."""
    utf8, digest = codecs.getincrementaldecoder("utf-8-sig")(), hashlib.sha256()
    with path.open("rb") as file:
        while (chunk := file.read(CHUNK)) and file.tell() <= found.size:
            digest.update(chunk)
            with suppress(UnicodeDecodeError):  # not the bytes that were checked
                yield utf8.decode(chunk)
    if chunk or digest.hexdigest() != found.sha256:
        raise UserError(f"{path}: changed while it was being read: start again when the file is complete")


def decode_text(raw: bytes, name: str, start: int = 0, first_line: int = 1) -> str:
    """The text of a file's bytes, without a byte-order mark and otherwise unchanged.

    Raises UserError with the byte offset and the line for bytes that are not UTF-8, or that are binary (NUL). `start`
    and `first_line` are the offset and the line of the first of the bytes in the file.
    """
    try:
        text = raw.decode("utf-8")
        wrong, hint = raw.find(b"\0"), "this is a binary file, not text"
    except UnicodeDecodeError as error:
        text, wrong = "", error.start
        hint = "this is not UTF-8: save the file as UTF-8, or leave it out"
    if wrong >= 0:
        line = raw.count(b"\n", 0, wrong) + first_line
        raise UserError(f"{name}: byte {start + wrong} (line {line}) is 0x{raw[wrong]:02x}: {hint}")
    return text.removeprefix("\ufeff")


def find_texts(source: str) -> list[Path]:
    """The files of a path or glob, sorted. Raises UserError if there are none."""
    name = Path(os.path.expanduser(source))  # `~ada/x` is not changed where there is no user ada
    bases = dict.fromkeys((Path.cwd(), ROOT))
    for base in bases:
        path = base / name  # an absolute path is not changed
        if path.is_file():
            return [path]
        if path.is_dir():
            return _texts_in(path)
        if path.exists():
            raise UserError(f"data.source: {path} is neither a file nor a folder")
        if "**" in name.parts:  # glob would skip a folder that it cannot list; _walk raises OSError
            sum(1 for _ in _walk(base.joinpath(*name.parts[: name.parts.index("**")])))
        found = sorted(base / match for match in glob.glob(str(name), root_dir=base, recursive=True))
        if files := [path for path in found if path.is_file()]:
            return files
    places = " and ".join(map(str, bases))
    what = f"no file or folder {source!r} (looked in {places}), and no such name"
    raise UserError(f"data.source: {what}{suggest(source, NAMES)}")


def _texts_in(folder: Path) -> list[Path]:
    """The text files in a folder and its subfolders, without hidden ones. Raises OSError if one cannot be listed."""
    paths = sorted(path for path in _walk(folder) if path.suffix.lower() in SUFFIXES)
    if files := [path for path in paths if path.is_file()]:
        return files
    raise UserError(
        f"data.source: the folder {folder} contains no text ({', '.join(SUFFIXES)}): name a file, or a glob"
    )


def _walk(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders, without hidden ones. Raises OSError if one cannot be listed."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    walk = os.walk(folder, onerror=refuse) if folder.is_dir() else []
    for place, folders, files in progress(walk, f"looking through {folder}", unit="folders"):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in files if not name.startswith("."))


def shakespeare() -> Path:
    """The path of tiny Shakespeare: 1,115,394 bytes of his plays, downloaded once.

    Raises UserError if the download fails, or if the file has another checksum.
    """
    path = DATA / "shakespeare.txt"
    if not path.exists():
        try:
            download(SHAKESPEARE_URL, path, SHAKESPEARE_BYTES, SHAKESPEARE_SHA256)
        except UserError as error:
            hint = f"put the file at {path} yourself ({SHAKESPEARE_BYTES:,} bytes, SHA-256 {SHAKESPEARE_SHA256})"
            raise UserError(f"shakespeare: {error}; {hint}, or use data.source=stories") from None
    elif (sha256 := sha256_of(path)) != SHAKESPEARE_SHA256:
        hint = "remove it to download it again, or give its path as data.source to use it as it is"
        raise UserError(f"shakespeare: {path} has SHA-256 {sha256}, expected {SHAKESPEARE_SHA256}: {hint}")
    return path


def download(url: str, path: Path, size: int, sha256: str, timeout: float = 10) -> None:
    """Download a file of known size and checksum, with its progress shown. It is renamed to `path` only if it is right.

    Raises UserError if the network fails, does not answer for `timeout` seconds, or sends another file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    got, digest = 0, hashlib.sha256()
    try:
        with part.open("wb") as file:
            shown = progress(_fetch(url, size, timeout), f"downloading {path.name}", -(-size // PACKET), "packets")
            for chunk in shown:
                file.write(chunk)
                digest.update(chunk)
                got += len(chunk)
            file.flush()
            fsync(file.fileno(), path.name)
        if digest.hexdigest() != sha256:
            much = f"more than {size:,}" if got > size else f"{got:,} of {size:,}"
            raise UserError(f"{url} sent something else: {much} bytes, SHA-256 {digest.hexdigest()}")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _fetch(url: str, size: int, timeout: float) -> Iterator[bytes]:
    """What a server sends, at most one byte more than `size`: an answer without an end must not fill the disk."""
    try:
        with interruptible(lambda: urllib.request.urlopen(url, timeout=timeout), f"asking {url}") as response:
            left = size + 1
            while left and (chunk := response.read(min(left, PACKET))):
                yield chunk
                left -= len(chunk)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):  # an answer such as 404; the connection is still open
            error.close()
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{url} could not be downloaded ({reason})") from None
