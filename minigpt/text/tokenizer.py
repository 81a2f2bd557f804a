"""Tokenizers: text <-> ids.

A kind of tokenizer says what an id stands for: a character of the corpus (`char`), a byte (`byte`), or a piece of a
few bytes that often occur together, learned from the corpus (`bpe`) or by others (`gpt2`, `cl100k_base`,
`o200k_base`). All of them end in bytes: an id is a few bytes of UTF-8, and a text is its ids' bytes in a row.

N ids   V vocabulary size
"""

from __future__ import annotations

import codecs
import hashlib
import http.client
import importlib
import inspect
import json
import os
import re
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import tiktoken

from minigpt.config.options import Component, Range, suggest
from minigpt.system.errors import UserError
from minigpt.system.process import IGNORE_SIGINT, python_command
from minigpt.system.strict_json import parse_json
from minigpt.system.waiting import interruptible, progress

Ids = npt.NDArray[np.int64]
MAX_BYTES = 32 << 20  # a tokenizer.json is a list of tokens; anything larger is a mistake or an attack


class Tokenizer(Component):
    """Text <-> ids. A kind supplies `vocab_size`, `encode`, `token_bytes`, and `fit` if it learns from the corpus.

    The arguments of a kind's constructor are plain JSON values, kept in attributes of the same names: they are all
    that `save` writes, and they must decide all that the tokenizer does. The constructor checks them (UserError).
    """

    vocab_size: int
    end_of_text: int | None = None  # the id that stands between documents, where the vocabulary has one

    def __init__(self) -> None:
        """A kind that needs nothing but its name."""

    @classmethod
    def fit(cls, config: Any, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer for a corpus. `config` is the kind's own `Config`; this one learns nothing from the texts."""
        return cls()

    def encode(self, text: str) -> Ids:
        """The ids (N,) of a text. What looks like a special token is plain text. Raises UserError."""
        raise TypeError(f"{type(self).__name__} must define encode(text)")

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes of one id; they may be a part of a character. Raises UserError beyond the vocabulary."""
        raise TypeError(f"{type(self).__name__} must define token_bytes(id)")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids (N,), U+FFFD where their bytes are no UTF-8. Raises UserError beyond the vocabulary."""
        return b"".join(self.token_bytes(int(id)) for id in ids).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of ids as they come: a piece for each id, empty while a character is incomplete.

        The pieces together are `decode(ids)`; what is incomplete at the end becomes one last piece, U+FFFD.
        """
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for id in ids:
            yield utf8.decode(self.token_bytes(int(id)))
        if rest := utf8.decode(b"", final=True):
            yield rest

    def to_json(self) -> dict[str, Any]:
        """The kind and the constructor's arguments, as plain values."""
        return {"kind": self.kind} | {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @staticmethod
    def from_json(values: Any) -> Tokenizer:
        """The tokenizer that `to_json` wrote. Raises UserError for anything else."""
        if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
            raise UserError('a tokenizer is an object with a "kind"')
        kind, arguments = values["kind"], {name: value for name, value in values.items() if name != "kind"}
        if kind not in Tokenizer.kinds:
            known = suggest(kind[:40], Tokenizer.kinds)
            raise UserError(f"unknown kind {kind[:40]!r}{known}; a kind of your own needs its --plugin file again")
        if set(arguments) != (expected := set(inspect.signature(Tokenizer.kinds[kind]).parameters)):
            found, wanted = (", ".join(sorted(names)) or "nothing" for names in (arguments, expected))
            raise UserError(f"kind {kind!r} is made from {wanted}, found {found[:200]}")
        tokenizer = Tokenizer.kinds[kind](**arguments)
        assert isinstance(tokenizer, Tokenizer)
        return tokenizer

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json."""
        Path(path).write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read tokenizer.json. Raises UserError, naming the file, for anything that `save` would not have written."""
        path = Path(path)
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES} bytes: this is not a tokenizer")
        try:
            return Tokenizer.from_json(parse_json(raw.decode("utf-8")))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except ValueError as error:
            raise UserError(f"{path}: not the JSON of a tokenizer: {error}") from None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON: equal for tokenizers that do the same."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def _check(self, id: int) -> int:
        if not 0 <= id < self.vocab_size:
            raise UserError(f"id {id} is beyond the vocabulary: {self.kind} has the ids 0 to {self.vocab_size - 1}")
        return id


def utf8(text: str) -> bytes:
    """The UTF-8 bytes of a text. Raises UserError for half a surrogate pair, which no file and no terminal holds."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{_locate(text, error.start)} is half a surrogate pair, not a character") from None


def _locate(text: str, index: int) -> str:
    """'é' (U+00E9) at index 17 (line 2, column 5): where a character stands in a text."""
    line, column = text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)
    place = f" (line {line}, column {column})" if "\n" in text else ""
    return f"{text[index]!r} (U+{ord(text[index]):04X}) at index {index}{place}"


class Char(Tokenizer, kind="char"):
    """An id is a character. The alphabet is every character of the corpus, sorted, and travels with the run."""

    def __init__(self, alphabet: str):
        if not (isinstance(alphabet, str) and alphabet and sorted(set(alphabet)) == list(alphabet)):
            raise UserError("the alphabet must be text: at least one character, sorted, each only once")
        utf8(alphabet)
        self.alphabet, self.vocab_size = alphabet, len(alphabet)
        self._ids = np.full(ord(alphabet[-1]) + 2, -1, dtype=np.int64)  # (largest code point + 2,): -1 is unknown
        self._ids[[ord(character) for character in alphabet]] = np.arange(len(alphabet))

    @classmethod
    def fit(cls, config: Any, texts: Iterable[str]) -> Char:
        """The alphabet of the texts."""
        alphabet: set[str] = set()
        for text in texts:
            alphabet.update(text)
        return cls("".join(sorted(alphabet)))

    def encode(self, text: str) -> Ids:
        """The ids (N,) of N characters. Raises UserError that names the first unknown one and its place."""
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")  # (N,)
        ids: Ids = self._ids[np.minimum(points, len(self._ids) - 1)]  # (N,)
        if (ids < 0).any():
            place = _locate(text, int(np.argmax(ids < 0)))
            known = f"the {self.vocab_size} characters that the tokenizer knows from its training text"
            raise UserError(f"unknown character {place}: not among {known}")
        return ids

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes of one character: always whole."""
        return self.alphabet[self._check(id)].encode("utf-8")


class Byte(Tokenizer, kind="byte"):
    """An id is a byte of UTF-8: 256 ids for every text there is, and one to four of them a character."""

    vocab_size = 256

    def encode(self, text: str) -> Ids:
        """The ids (N,) of N bytes."""
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64)

    def token_bytes(self, id: int) -> bytes:
        """The byte itself."""
        return bytes([self._check(id)])


class Tiktoken(Tokenizer):
    """An id is a piece of text that `tiktoken.Encoding` knows; the kinds below differ in where they get one from."""

    encoding: tiktoken.Encoding

    def encode(self, text: str) -> Ids:
        """The ids (N,) of a text, by merging the pair of lowest rank until there is none."""
        utf8(text)  # tiktoken would replace what is no text, and say nothing
        cut = progress(parts(text), "tokenizing", unit="parts")
        ids = [np.array(self.encoding.encode_ordinary(part), dtype=np.int64) for part in cut]
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.int64)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a piece. Public vocabularies have gaps, ids that stand for nothing: they read U+FFFD."""
        try:
            return self.encoding.decode_single_token_bytes(self._check(id))
        except KeyError:
            return "\N{REPLACEMENT CHARACTER}".encode()


LONGEST = 2000  # characters that a library gets at a time: it looks at no signal, and a word takes it a square of time
END = r"(?<=[^\W_])(?=[\s.,;:!?\u2026\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"  # of a word, in any writing
PART = re.compile(rf"(?s).{{1,{LONGEST}}}(?:\Z|{END})|.{{1,{LONGEST}}}(?<=[^\W\d_])(?=\W)|.{{1,{LONGEST}}}")


def parts(text: str) -> Iterator[str]:
    """A text cut into parts of at most LONGEST characters, at the ends of words, so that no tokenizer's piece is cut.

    Only what is longer than that and has no such end, such as DNA or blanks, is cut anywhere.
    """
    for part in PART.finditer(text):
        yield part[0]


LEARN = str(Path(__file__).with_name("learn_pieces.py"))

# A piece stays within a word, its leading space included: GPT-2's pattern, possessive so that it never goes back.
PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


class BPE(Tiktoken, kind="bpe"):
    """An id is a piece learned from the corpus: first the 256 bytes, then the most frequent pair, merged, and again.

    Byte-pair encoding: "Neural Machine Translation of Rare Words with Subword Units" (arXiv 1508.07909). Hugging
    Face's `tokenizers` finds the merges; `tiktoken` applies them. A small corpus may not have as many as asked for.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Tokenizer.Config):
        """How far to merge."""

        vocab_size: Annotated[int, Range(257, 1_000_000)] = 1024
        """How many ids to have, the 256 bytes among them: more ids make shorter sequences and a larger model."""

    def __init__(self, pieces: list[str]):
        """`pieces` in the order of their merging, after the bytes; each character stands for a byte (Latin-1)."""
        if not (isinstance(pieces, list) and all(isinstance(piece, str) and len(piece) > 1 for piece in pieces)):
            raise UserError("the pieces must be a list of texts of two characters or more")
        if any(max(piece) > "\xff" for piece in pieces) or len(set(pieces)) != len(pieces):
            raise UserError("each of the pieces must stand once, and its characters for bytes (U+0000 to U+00FF)")
        self.pieces, self.vocab_size = pieces, 256 + len(pieces)
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {piece.encode("latin-1"): 256 + i for i, piece in enumerate(pieces)}
        self.encoding = tiktoken.Encoding("bpe", pat_str=PIECES, mergeable_ranks=ranks, special_tokens={})

    @classmethod
    def fit(cls, config: Config, texts: Iterable[str]) -> BPE:
        """Learn the merges. Raises UserError when `tokenizers` is not installed."""
        vocabulary, latin = _learn(texts, config.vocab_size), _byte_letters()
        pieces = sorted((piece for piece in vocabulary if len(piece) > 1), key=lambda piece: vocabulary[piece])
        return cls(["".join(latin[letter] for letter in piece) for piece in pieces])


def _learn(texts: Iterable[str], vocab_size: int) -> dict[str, int]:
    """The pieces that `learn_pieces.py` learns from texts, numbered in the order of merging.

    Raises UserError when `tokenizers` is not installed, or when its process ends without an answer.
    """
    try:
        importlib.import_module("tokenizers")
    except ImportError:
        hint = 'pip install -e ".[bpe]"'
        raise UserError(f"data.tokenizer: bpe is trained by the package tokenizers: {hint}") from None
    what, words = "training the tokenizer", (part for text in texts for part in parts(text))
    statement = f"{IGNORE_SIGINT}; import runpy; runpy.run_path({LEARN!a}, run_name='__main__')"
    command = python_command(statement, str(vocab_size))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as learner:
        assert learner.stdin and learner.stdout
        try:
            with suppress(BrokenPipeError):
                for part in progress(words, what, unit="parts of the text"):
                    utf8(part)
                    learner.stdin.write(json.dumps(part) + "\n")
                learner.stdin.write("\n")
                learner.stdin.flush()
            answer = interruptible(learner.stdout.readline, what)
        finally:
            learner.kill()
            with suppress(BrokenPipeError):
                learner.stdin.close()
    if not answer:
        raise UserError(f"data.tokenizer: {what}: its process ended without an answer; is there enough memory?")
    vocabulary: dict[str, int] = json.loads(answer)
    return vocabulary


def _byte_letters() -> dict[str, str]:
    """The visible letter by which byte-level BPE writes each byte -> the Latin-1 character of that byte.

    A byte whose Latin-1 character is visible is written as that; the others follow from U+0100 on, in order.
    """
    visible = [chr(byte) for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    hidden = [chr(byte) for byte in range(256) if chr(byte) not in visible]
    return dict(zip(visible, visible, strict=True)) | {chr(256 + i): hidden[i] for i in range(len(hidden))}


class Public(Tiktoken):
    """An id is a piece that others have learned from a large part of the web; nothing is learned here."""

    def __init__(self) -> None:
        self.encoding = public_encoding(self.kind)
        self.vocab_size, self.end_of_text = self.encoding.n_vocab, self.encoding.eot_token


class GPT2(Public, kind="gpt2"):
    """GPT-2's 50,257 ids."""


class Cl100k(Public, kind="cl100k_base"):
    """GPT-4's 100,277 ids."""


class O200k(Public, kind="o200k_base"):
    """GPT-4o's 200,019 ids."""


HOST = "https://openaipublic.blob.core.windows.net"
FILES = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "cl100k_base": ("encodings/cl100k_base.tiktoken",),
    "o200k_base": ("encodings/o200k_base.tiktoken",),
}
ANSWER, DOWNLOAD = 1.5, 120.0  # seconds until the network must have answered, and sent everything


def public_encoding(name: str) -> tiktoken.Encoding:
    """A public encoding from tiktoken's cache, or else from the network. Raises UserError, in two seconds if offline.

    tiktoken itself would wait for a silent network without end.
    """
    cache = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    folder = Path(tempfile.gettempdir(), "data-gym-cache") if cache is None else Path(cache)
    urls = [f"{HOST}/{file}" for file in FILES[name]]
    try:
        if not all((folder / hashlib.sha1(url.encode()).hexdigest()).exists() for url in urls):  # as tiktoken names it
            interruptible(lambda: _knock(urls[0]), f"looking for {name}", ANSWER)
        return interruptible(lambda: tiktoken.get_encoding(name), f"getting the encoding {name}", DOWNLOAD)
    except (OSError, ValueError, http.client.HTTPException) as error:
        what = f"the encoding {name} is neither in tiktoken's cache ({folder}) nor to be had from {HOST}"
        hint = "connect once, point TIKTOKEN_CACHE_DIR to a folder that has it, or take data.tokenizer=char"
        raise UserError(f"{what} ({' '.join(str(error).split()) or type(error).__name__}): {hint}") from None


def _knock(url: str) -> None:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER).close()
    except urllib.error.HTTPError as error:  # an answer such as 404, and still open
        error.close()
        raise
