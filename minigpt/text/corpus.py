"""Corpora: a name, file, folder or glob -> documents, and where they came from.

A corpus contains text, not ids (`ids.py` makes them). Opening a corpus checks all of its files, so that a mistake
in the last one is reported before the first one is tokenized. The files are read again in pieces when they are needed:
a folder, or a file, may be larger than memory. The text is not changed, and its line ends are kept; only a byte-order
mark is removed, and the description says so. Files of a folder that cannot be used are passed over, and reported.
"""

from __future__ import annotations

import glob
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import NoReturn

from minigpt.config.options import suggest
from minigpt.system.errors import UserError
from minigpt.system.folder import SHOWN, fsync, sha256_of
from minigpt.system.memory import free_memory
from minigpt.system.moving import discard, rename
from minigpt.system.places import CHECKOUT, data_folder
from minigpt.system.terminal import complain, one_line
from minigpt.system.waiting import interruptible, progress
from minigpt.text.files import FileSummary, look_at_all, place_of, read_again
from minigpt.text.formats import LINES, SUFFIXES, TABLE, TEXT, UTF8, Field, suffixes_of
from minigpt.text.languages.language import Language, Stories, StoriesConfig
from minigpt.text.languages.tasks import Task
from minigpt.text.source import Source, read_through, text_of

DATA = data_folder()  # downloads, and the cache of `ids.py`
WHOLE = 4  # bytes of memory, at least, for each byte of a text that is tokenized as a whole: pieces, text, bytes, ids
NAMES = (Stories.name, *Task.kinds, "shakespeare")
PRETRAINED = "pretrained"  # the source of a run whose weights were trained elsewhere: it has no text
DEFAULT = StoriesConfig()

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
MEND = ": correct or remove it, or pass it over with data.bad_files=pass_over"
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
    pieces: Callable[..., Iterator[Iterable[str]]]
    """`pieces(skip=0)` yields the documents in order, without the first `skip`, each in pieces of about a mebibyte; no
    document is empty. Raises UserError if a file has changed since."""
    language: Language | None = None
    """The built-in language of the documents. Its last `validation` documents are for validation."""
    largest: int = 0
    """Bytes of the largest document."""
    largest_in: str = ""
    """The file that has it."""
    characters: int = 0
    """Characters of all documents together; 0 if they were not counted."""
    place: Callable[[int], str] = lambda document: f"document {document + 1:,}"
    """The place of document number n in words, such as a file and a line of it."""
    count: int = 0
    """How many documents there are; 0 if they were not counted."""
    validation: int = 0
    """How many of them, the last ones, came from a file for validation."""

    def documents(self, skip: int = 0) -> Iterator[str]:
        """Yields the documents in order, without the first `skip`, each as a whole.

        Raises UserError for a document that does not fit into memory.
        """
        required, free = WHOLE * self.largest, free_memory()
        if free is not None and required > free:
            problem = f"to tokenize {self.largest:,} bytes at once would need {required:,} bytes, and {free:,} are free"
            hint = "divide the file, or use a built-in tokenizer, which reads it in pieces"
            raise UserError(f"not enough memory for {self.largest_in}: {problem}: {hint}")
        return map("".join, self.pieces(skip))

    def followed_by(self, other: Corpus) -> Corpus:
        """This text and then another one, for validation."""

        def pieces(skip: int = 0) -> Iterator[Iterable[str]]:
            if skip < self.count:
                yield from self.pieces(skip)
            yield from other.pieces(max(0, skip - self.count))

        def place(document: int) -> str:
            return self.place(document) if document < self.count else other.place(document - self.count)

        larger = max(self, other, key=lambda corpus: corpus.largest)
        return replace(
            self,
            description=f"{self.description}; for validation {other.description}",
            digest=_digest([self.digest, other.digest]),
            pieces=pieces,
            largest=larger.largest,
            largest_in=larger.largest_in,
            characters=self.characters + other.characters,
            place=place,
            count=self.count + other.count,
            validation=other.count,
        )


def open_corpus(
    source: str | Task.Config | Source.Config,
    stories: StoriesConfig = DEFAULT,
    field: Field = "text",
    refuse: bool = False,
    encoding: str = UTF8,
    option: str = "data.source",
) -> Corpus:
    """The corpus of a name (`stories`, with options `stories`; a task; `shakespeare`), of one's own `Source`, or of a
    file, folder or glob.

    A relative path is looked up in the current directory, then in the checkout, if there is one. `field` has the text
    in JSON Lines and Parquet, or is the names of the fields of a chat; `encoding` is that of files without a byte-order
    mark. Among several files, those that are empty, damaged, binary, in another encoding, or not permitted to be read
    are passed over, and so are bad lines; with `refuse`, the first one raises UserError. Raises UserError, which names
    the `option`, and OSError if nothing is left.
    """
    if language := language_of(source, stories):
        return _built_in(language)
    if isinstance(source, str) and source in Source.kinds:
        source = Source.kinds[source].Config()
    if isinstance(source, Source.Config):
        return _own(source)
    assert isinstance(source, str)
    if source == PRETRAINED:
        problem = "the weights of this run were trained elsewhere, and it has no text"
        raise UserError(f"data.source: {problem}: give one, as in data.source=my.txt")
    if source == "shakespeare":
        return _from_files(source, [shakespeare()], [], field, refuse, UTF8, option)
    return _from_files(source, *find_texts(source, option), field, refuse, encoding, option)


def _digest(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def language_of(source: str | Task.Config | Source.Config, stories: StoriesConfig = DEFAULT) -> Language | None:
    """The built-in language of a source; None for a text."""
    if isinstance(source, str) and source in Task.kinds:
        source = Task.kinds[source].Config()
    if isinstance(source, Task.Config):
        task: Task = source.component(source)
        return task
    return Stories(stories) if source == Stories.name else None


def _built_in(language: Language) -> Corpus:
    texts = language.texts()
    raw = [text.encode() for text in texts]
    description = f"{len(raw):,} {language.plural} made by {language.file}, {sum(map(len, raw)):,} bytes"
    digest = _digest(hashlib.sha256(text).hexdigest() for text in raw)

    def pieces(skip: int = 0) -> Iterator[Iterable[str]]:
        return ([text] for text in islice(texts, skip, None))

    return Corpus(language.name, description, digest, pieces, language, characters=sum(map(len, texts)))


def _own(config: Source.Config) -> Corpus:
    """The texts of a source of one's own; they are made again when they are read."""
    source: Source = config.component(config)
    sums, size, largest, characters = list[str](), 0, 0, 0
    for text, sha256 in read_through(config):
        sums.append(sha256)
        characters, bytes_ = characters + len(text), len(text.encode())
        size, largest = size + bytes_, max(largest, bytes_)

    def pieces(skip: int = 0) -> Iterator[Iterable[str]]:
        return ([text_of(source, number)] for number in range(skip, config.count))

    name, place = source.kind, lambda number: f"text({number}) of {source.kind}"
    description = f"{config.count:,} texts made by {name}, {size:,} bytes"
    return Corpus(name, description, _digest(sums), pieces, None, largest, name, characters, place, config.count)


def _from_files(
    source: str, paths: Sequence[Path], left_out: list[str], field: Field, refuse: bool, encoding: str, option: str
) -> Corpus:
    """The documents of files. What cannot be used is reported and left out; with `refuse`, it raises UserError."""
    contents, bad, lines = dict[Path, FileSummary](), list(left_out), 0
    for path, summary in look_at_all(paths, field, source, DATA / "cache", encoding):
        if isinstance(summary, str):
            bad.append(summary)
        elif not summary.documents:
            bad.append(f"{path}: empty")
        else:
            contents[path] = summary
        problems = bad or (contents[path].notes if path in contents else ())
        if refuse and problems:
            raise UserError(problems[0] + (MEND if not bad or len(paths) + len(left_out) > 1 else ""))
    if not contents:
        _nothing(source, paths, bad, option)
    if len(paths) + len(left_out) > 1:
        _warn("passed over", bad)
    for summary in contents.values():
        lines += summary.bad
    _warn("passed over", [note for summary in contents.values() for note in summary.notes], lines)

    counts = [f"{n:,} {unit}{'s' * (n > 1)}" for n, unit in ((len(bad), "file"), (lines, "line")) if n]
    passed_over = f", {' and '.join(counts)} passed over" if counts else ""
    digest = _digest(map(_sum_of, contents, contents.values(), repeat(field), repeat(encoding)))
    largest, largest_in = max((summary.largest, str(path)) for path, summary in contents.items())

    def pieces(skip: int = 0) -> Iterator[Iterable[str]]:
        for path, summary in contents.items():
            if skip < summary.documents:
                yield from read_again(path, field, summary, skip, encoding)
            skip = max(0, skip - summary.documents)

    def place(document: int) -> str:
        for path, summary in contents.items():
            if document < summary.documents:
                return place_of(path, field, document, encoding)
            document -= summary.documents
        raise IndexError(document)

    characters = sum(summary.characters for summary in contents.values())
    description = _describe(source, contents) + passed_over
    count = sum(summary.documents for summary in contents.values())
    return Corpus(source, description, digest, pieces, None, largest, largest_in, characters, place, count)


def _sum_of(path: Path, summary: FileSummary, field: Field, encoding: str) -> str:
    """A hash of the documents of a file: for a text file its SHA-256, for others also how they are read."""
    inner, packed = suffixes_of(path)
    read_as = "" if encoding == UTF8 or inner in TABLE else f" {encoding}"
    if inner == TEXT[0]:
        return summary.sha256 + packed + read_as
    return f"{summary.sha256}{inner}{packed} {field}{read_as}"


def _describe(source: str, contents: dict[Path, FileSummary]) -> str:
    """One line for people."""
    files, plain = list(contents.values()), all(suffixes_of(path) == (TEXT[0], "") for path in contents)
    name = one_line(str(next(iter(contents)))) if len(files) == 1 else f"{one_line(source)} ({len(files):,} files)"
    size, marks = sum(file.size for file in files), sum(file.size > file.bytes for file in files) if plain else 0
    dropped = f", {marks} byte-order mark{'s' * (marks > 1)} dropped" if marks else ""
    inside = "" if plain else f", {sum(file.documents for file in files):,} documents"
    return f"{name}, {size:,} bytes{inside}{dropped}"


def _nothing(source: str, paths: Sequence[Path], bad: Sequence[str], option: str) -> NoReturn:
    """Raises UserError: no file can be used."""
    if all(line.endswith(": empty") for line in bad):
        problem = f"{paths[0]} is empty" if len(paths) == 1 else f"all {len(paths)} files of {source} are empty"
        raise UserError(f"{option}: {problem}: there is nothing to learn from")
    if len(bad) == 1:
        raise UserError(bad[0])
    raise UserError(f"{option}: none of the {len(bad):,} files of {source} can be used; the first: {bad[0]}")


def _warn(label: str, lines: Sequence[str], count: int | None = None) -> None:
    """Print the first of many lines, and the number of the others. Under torchrun, only the first process prints.

    `count` is the number of all, if `lines` has only the first ones; without it, the others are counted by reason.
    """
    if lines and os.environ.get("RANK", "0") == "0":
        reasons = Counter(map(_reason, lines[SHOWN:])).most_common() if count is None else []
        more = (len(lines) if count is None else count) - len(lines[:SHOWN])
        others = ": " + ", ".join(f"{n:,} {reason}" for reason, n in reasons) if reasons else " like these"
        for line in (*lines[:SHOWN], *[f"and {more:,} more{others}"] * (more > 0)):
            complain(f"{label}: {line}")


def _reason(line: str) -> str:
    """Why a file cannot be used, in short: `a.txt: byte 3 (line 1) is 0xe9: this is not UTF-8` -> `not UTF-8`."""
    reason = line.partition(": ")[2].rpartition(": this is ")[2]
    return re.split("[:;,]| as | among ", reason)[0]


def find_texts(source: str, option: str = "data.source") -> tuple[list[Path], list[str]]:
    """The files of a path or glob, sorted, and a line for each that is left out. Raises UserError if there are none."""
    name = Path(os.path.expanduser(source))  # `~ada/x` is not changed where there is no user ada
    bases = dict.fromkeys((Path.cwd(), CHECKOUT or Path.cwd()))
    for base in bases:
        path = base / name  # an absolute path is not changed
        if path.is_file():
            return [path], []
        if path.is_dir():
            return _texts_in(path, option)
        if path.exists():
            raise UserError(f"{option}: {path} is neither a file nor a folder")
        if "**" in name.parts:  # glob would skip a folder that it cannot list; _walk raises OSError
            sum(1 for _ in _walk(base.joinpath(*name.parts[: name.parts.index("**")])))
        matches = sorted(base / match for match in glob.glob(str(name), root_dir=base, recursive=True))
        files, left_out = _once(path for path in matches if not path.is_dir())
        if files:
            return files, left_out
        if left_out:
            raise UserError(f"{option}: {left_out[0]}")
    folders = " and ".join(map(str, bases))
    problem = f"no file or folder {source!r} (looked in {folders}), and no such name"
    known = suggest(source, (*NAMES, *Source.kinds)) if option == "data.source" else ""
    raise UserError(f"{option}: {problem}{known}")


def _once(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """The plain files among paths, each once even if links give it several names, and a line for each left out."""
    files, left_out = dict[str, Path](), list[str]()
    for path in paths:
        real_path = os.path.realpath(path)
        if not path.is_file():
            left_out.append(f"{path}: {'not a plain file' if path.exists() else 'a broken link'}")
        elif files.setdefault(real_path, path) != path:
            left_out.append(f"{path}: the same file as {files[real_path]}")
    return list(files.values()), left_out


def _texts_in(folder: Path, option: str) -> tuple[list[Path], list[str]]:
    """The text files in a folder and its subfolders, without hidden ones, and a line for each that is left out.

    Links, pipes and sockets are left out. Raises UserError without text files, OSError if a folder cannot be listed.
    """
    candidates = sorted(path for path in _walk(folder) if path.name.lower().endswith(SUFFIXES) or path.is_dir())
    files = [path for path in candidates if path.is_file() and not path.is_symlink()]
    left_out = [f"{path}: a link" for path in candidates if path.is_symlink()]
    left_out += [f"{path}: not a plain file" for path in candidates if not (path.is_file() or path.is_symlink())]
    if files:
        return files, left_out
    kinds = ", ".join((*TEXT, *LINES, *TABLE))
    also = f" but {left_out[0]}" if left_out else ""
    hint = "name a file, or a glob"
    raise UserError(f"{option}: the folder {folder} contains no text ({kinds}, each also .gz or .zst){also}: {hint}")


def _walk(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders, and links to folders, without hidden ones.

    Links are not followed. Raises OSError if a folder cannot be listed.
    """

    def refuse(error: OSError) -> NoReturn:
        raise error

    walk = os.walk(folder, onerror=refuse) if folder.is_dir() else []
    for parent, folders, files in progress(walk, f"looking through {folder}", unit="folders"):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = (name for name in folders if os.path.islink(os.path.join(parent, name)))
        yield from (Path(parent, name) for name in (*files, *links) if not name.startswith("."))


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
    """Download a file of known size and checksum, with its progress shown. It is renamed to `path` only if both match.

    Raises UserError if the network fails, does not answer for `timeout` seconds, or sends another file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    received, digest = 0, hashlib.sha256()
    try:
        with part.open("wb") as file:
            chunks = progress(_fetch(url, size, timeout), f"downloading {path.name}", -(-size // PACKET), "packets")
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
            file.flush()
            fsync(file.fileno(), path.name)
        if digest.hexdigest() != sha256:
            amount = f"more than {size:,}" if received > size else f"{received:,} of {size:,}"
            raise UserError(f"{url} sent something else: {amount} bytes, SHA-256 {digest.hexdigest()}")
        rename(part, path)
    finally:
        discard(part)


def _fetch(url: str, size: int, timeout: float) -> Iterator[bytes]:
    """The bytes that a server sends, at most `size` + 1: an endless answer must not fill the disk."""
    try:
        with interruptible(lambda: urllib.request.urlopen(url, timeout=timeout), f"asking {url}") as response:
            remaining = size + 1
            while remaining and (chunk := response.read(min(remaining, PACKET))):
                yield chunk
                remaining -= len(chunk)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):  # an answer such as 404; the connection is still open
            error.close()
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{url} could not be downloaded ({reason})") from None
