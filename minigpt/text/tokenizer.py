"""Tokenizers: text <-> ids.

The kind decides what an id stands for: a character of the corpus (`char`), a byte (`byte`), or a piece of a few bytes
that often occur together, learned from the corpus (`bpe`) or published by others (`gpt2`, `cl100k_base`,
`o200k_base`). For every kind, an id stands for a few bytes of UTF-8, and a text is the bytes of its ids in order.

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
import tempfile
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import tiktoken

from minigpt.config.options import Component, Range, suggest
from minigpt.config.upgrade import stamped, take_format
from minigpt.system.errors import UserError, meant
from minigpt.system.folder import read_file
from minigpt.system.places import with_extra
from minigpt.system.process import JsonProcess, can_start
from minigpt.system.strict_json import parse_json
from minigpt.system.waiting import interruptible, progress
from minigpt.text.seams import PART, SLOW, Unencodable, parts

Ids = npt.NDArray[np.int64]
MAX_BYTES = 32 << 20  # of a tokenizer.json; a larger file is a mistake or an attack
MARK, MOST_MARKS = re.compile("[a-z][a-z_]{0,39}"), 64  # the name of a mark, and how many a tokenizer may have
LIKE_SPECIAL = re.compile(r"<\|[^\s<>|]{1,40}\|>|</?\w{1,40}>")


class Tokenizer(Component):
    """Text <-> ids. A kind defines `vocab_size`, `encode`, `token_bytes`, and `fit` if it learns from the corpus.

    The constructor's arguments are plain JSON values, stored in attributes of the same names. `save` writes only them,
    so they must determine everything that the tokenizer does. The constructor checks them (UserError).

    After the ids of the vocabulary there may be marks (`with_marks`): ids that stand for no text, which have a name.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        """The option of every kind whose vocabulary has no end of text of its own."""

        end_of_text: bool = False
        """Whether there is one id more, which stands between documents and ends a sample; no text contains it."""

    vocab_size: int  # with the marks
    marks: Mapping[str, int] = MappingProxyType({})  # their names -> their ids, the last ones
    _unmarked: Tokenizer | None = None  # the same without marks, if it has some
    begin_of_text: int | None = None  # the id in front of a text, if the model's own tokenizer puts one there
    end_of_text: int | None = None  # the id between two documents, if the vocabulary has one
    ends: Sequence[int] = ()  # the ids at which generation stops
    special_tokens: Mapping[str, int] = MappingProxyType({})  # their names -> their ids; a mark is <|NAME|>

    def __init__(self) -> None:
        """No arguments."""

    @classmethod
    def fit(cls, config: Any, texts: Iterable[str]) -> Tokenizer:
        """The tokenizer for a corpus. `config` is the kind's `Config`. The base class learns nothing from the texts."""
        return cls()

    def encode(self, text: str) -> Ids:
        """The ids (N,) of a text. Special tokens such as <|endoftext|> are read as plain text. Raises UserError."""
        raise TypeError(f"{type(self).__name__} must define encode(text)")

    def encode_marked(self, text: str) -> Ids:
        """The ids (N,) of a text in which the name of a special token stands for the token. Raises UserError."""
        sections = split_at(self.special_tokens, text)
        ids = [np.array([self.special_tokens[s]]) if n % 2 else self.encode(s) for n, s in enumerate(sections)]
        return np.concatenate(ids).astype(np.int64)

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes of one id, possibly only part of a character. Raises UserError for an id out of range, and
        for a mark."""
        raise TypeError(f"{type(self).__name__} must define token_bytes(id)")

    def with_marks(self, *names: str) -> Tokenizer:
        """The same tokenizer with marks of these names after its ids; a name that begins with end_ ends a sample.

        No text contains a mark: `encode` never returns it, `decode` shows nothing for it, and where ids are listed it
        is <|NAME|> (`label`). Raises UserError for a name that is taken, or is not of small letters and underscores.
        """
        marked = copy(self)
        for name in names:
            if not (isinstance(name, str) and MARK.fullmatch(name)) or len(marked.marks) == MOST_MARKS:
                raise UserError(f"the marks are at most {MOST_MARKS} names like end_of_text, found {str(name)[:60]!r}")
            ends = name == "end_of_text" and self.end_of_text is not None
            if ends or f"<|{name}|>" in marked.special_tokens:
                raise UserError(f"the tokenizer {self.kind} has a token {name} already")
            id = marked.vocab_size
            marked.vocab_size, marked.marks = id + 1, {**marked.marks, name: id}
            marked.special_tokens = {**marked.special_tokens, f"<|{name}|>": id}
            marked.ends = [*marked.ends, *[id] * name.startswith("end_")]
            marked.end_of_text = id if name == "end_of_text" else marked.end_of_text
        marked._unmarked = (self._unmarked or self) if marked.marks else None
        return marked

    @property
    def text_ids(self) -> int:
        """How many ids stand for text; those after them are marks."""
        return self.vocab_size - len(self.marks)

    def label(self, id: int) -> str:
        """One id where ids are listed: its text, or the name of a mark. Raises UserError for an id out of range."""
        if self.text_ids <= id < self.vocab_size:
            return f"<|{[*self.marks][id - self.text_ids]}|>"
        return self.token_bytes(id).decode("utf-8", "replace")

    def byte_counts(self) -> Ids:
        """How many bytes of UTF-8 each id stands for, (V,); 0 for marks and special tokens, which stand for no text."""
        no_text = {*self.special_tokens.values(), *self.ends, self.begin_of_text, self.end_of_text}
        counts = [0 if id in no_text else len(self._text_of(id)) for id in range(self.vocab_size)]
        return np.array(counts, dtype=np.int64)

    def _text_of(self, id: int) -> bytes:
        """The bytes of an id; none for a mark."""
        return b"" if self.text_ids <= id < self.vocab_size else self.token_bytes(id)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids (N,), with U+FFFD for invalid UTF-8. Raises UserError for an id out of range."""
        return b"".join(self._text_of(int(id)) for id in ids).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of each id as it comes; empty while a character is incomplete.

        Joined together, the texts are `decode(ids)`. A character that is incomplete at the end becomes U+FFFD.
        """
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for id in ids:
            yield utf8.decode(self._text_of(int(id)))
        if rest := utf8.decode(b"", final=True):
            yield rest

    def to_json(self) -> dict[str, Any]:
        """The kind, the constructor's arguments and the names of marks, if any, as plain JSON values."""
        if self._unmarked is not None:
            return self._unmarked.to_json() | {"marks": [*self.marks]}
        return {"kind": self.kind} | {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @staticmethod
    def from_json(values: Any) -> Tokenizer:
        """The tokenizer from the values of `to_json`. Raises UserError for any other values."""
        if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
            raise UserError('a tokenizer is an object with a "kind"')
        kind, arguments = values["kind"], {name: value for name, value in values.items() if name != "kind"}
        if kind not in Tokenizer.kinds:
            hint = suggest(kind[:40], Tokenizer.kinds)
            raise UserError(f"unknown kind {kind[:40]!r}{hint}; a kind of your own needs its --plugin file again")
        expected = set(inspect.signature(Tokenizer.kinds[kind]).parameters)
        marks = arguments.pop("marks") if "marks" in arguments.keys() - expected else None
        if set(arguments) != expected:
            names, wanted = (", ".join(sorted(names)) or "nothing" for names in (arguments, expected))
            raise UserError(f"kind {kind!r} is made from {wanted}, found {names[:200]}")
        tokenizer = Tokenizer.kinds[kind](**arguments)
        assert isinstance(tokenizer, Tokenizer)
        if marks is None:
            return tokenizer
        if not (isinstance(marks, list) and marks):
            raise UserError(f"the marks must be a list of names, found {str(marks)[:60]!r}")
        return tokenizer.with_marks(*marks)

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json."""
        text = json.dumps(stamped(self.to_json()), indent=1, ensure_ascii=False)
        Path(path).write_text(f"{text}\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read tokenizer.json. Raises UserError, which names the file, for contents that `save` does not write."""
        path = Path(path)
        if path.is_symlink() or not path.exists():
            raise UserError(f"{path}: {'a link, not a plain file' if path.is_symlink() else 'no such file'}")
        raw = read_file(path, MAX_BYTES, "a tokenizer")

        def read() -> Tokenizer:
            values = parse_json(raw.decode("utf-8"))
            if isinstance(values, dict):
                take_format(values)  # a file without a number has the same form
            return Tokenizer.from_json(values)

        try:
            return interruptible(read, f"reading {path.name}")
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except ValueError as error:
            raise UserError(f"{path}: not the JSON of a tokenizer: {error}") from None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the JSON with sorted keys: equal for equal tokenizers."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def _check(self, id: int) -> int:
        if not 0 <= id < self.text_ids:
            also = f" that stand for text, and {len(self.marks)} marks" if self.marks else ""
            raise UserError(f"id {id} is not in the vocabulary: {self.kind} has the ids 0 to {self.text_ids - 1}{also}")
        return id


def split_at(names: Iterable[str], text: str) -> list[str]:
    """Split a text at names: an odd number of strings, of which every second one is a name."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if longest_first else [text]


def misspelt(text: str, names: Collection[str]) -> list[str]:
    """A note for each word of a text that looks like a special token and is not one of `names`."""
    words = dict.fromkeys(word for section in split_at(names, text)[::2] for word in LIKE_SPECIAL.findall(section))
    notes = []
    for word in words:
        near = meant(word, names, alike=0.7)
        if near or word.startswith("<|"):
            ending = near or f" (some of its special tokens: {', '.join([*names][:5])})"
            notes.append(f"note: {word} is no special token of this model, so it is plain text{ending}")
    return notes


def utf8(text: str) -> bytes:
    """The UTF-8 bytes of a text. Raises Unencodable for half a surrogate pair, which is not a character."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Unencodable("{} is half a surrogate pair, not a character", text, error.start) from None


class Char(Tokenizer, kind="char"):
    """An id is a character. The alphabet is every character of the corpus, sorted, and is saved with the run."""

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
        for text in progress(texts, "collecting the characters", unit="pieces of the text"):
            alphabet.update(text)
        return cls("".join(sorted(alphabet)))

    def encode(self, text: str) -> Ids:
        """The ids (N,) of N characters. Raises Unencodable, which names the first unknown character and its place."""
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")  # (N,)
        ids: Ids = self._ids[np.minimum(points, len(self._ids) - 1)]  # (N,)
        if (ids < 0).any():
            alphabet = f"the {len(self.alphabet)} characters that the tokenizer knows from its training text"
            raise Unencodable(f"unknown character {{}}: not among {alphabet}", text, int(np.argmax(ids < 0)))
        return ids

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes of one whole character."""
        return self.alphabet[self._check(id)].encode("utf-8")


class Byte(Tokenizer, kind="byte"):
    """An id is a byte of UTF-8: 256 ids are enough for any text, and a character takes one to four of them."""

    vocab_size = 256

    def encode(self, text: str) -> Ids:
        """The ids (N,) of N bytes."""
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int64)

    def token_bytes(self, id: int) -> bytes:
        """The byte itself."""
        return bytes([self._check(id)])


class Tiktoken(Tokenizer):
    """An id is a piece of a `tiktoken.Encoding`. The kinds below differ in where the encoding comes from."""

    encoding: tiktoken.Encoding

    def encode(self, text: str) -> Ids:
        """The ids (N,) of a text: the pair of lowest rank is merged until no pair is left to merge."""
        utf8(text)  # tiktoken would replace invalid text without an error
        ids = [np.array(some, dtype=np.int64) for some in encode_parts(self.encoding, text)]
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.int64)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a piece. Published vocabularies have unused ids; their text is U+FFFD."""
        try:
            return self.encoding.decode_single_token_bytes(self._check(id))
        except KeyError:
            return "\N{REPLACEMENT CHARACTER}".encode()


def encode_parts(encoding: tiktoken.Encoding, text: str) -> Iterator[list[int]]:
    """The ids of each of the `parts` of a text. Raises Unencodable."""
    for part in progress(parts(text), "tokenizing", unit="parts"):
        if len(part) < SLOW:
            yield encoding.encode_ordinary(part)
        else:  # tiktoken does not react to signals
            task = f"tokenizing a word of {len(part):,} characters"
            yield interruptible(lambda part=part: encoding.encode_ordinary(part), task)  # type: ignore[misc]


LEARN = str(Path(__file__).with_name("learn_pieces.py"))

# A piece never crosses a word's end; a leading space belongs to the word. GPT-2's pattern, with possessive quantifiers,
# so that it never backtracks.
PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


class BPE(Tiktoken, kind="bpe"):
    """An id is a piece learned from the corpus: start with the 256 bytes, merge the most frequent pair, and repeat.

    Byte-pair encoding: "Neural Machine Translation of Rare Words with Subword Units" (arXiv 1508.07909). Hugging
    Face's `tokenizers` learns the merges; `tiktoken` applies them. A small corpus may give fewer than `vocab_size`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Tokenizer.Config):
        """How many pieces to learn."""

        vocab_size: Annotated[int, Range(257, 1_000_000)] = 1024
        """The number of ids, with the 256 bytes and without an end of text: more ids make shorter sequences and a
        larger model."""

    def __init__(self, pieces: list[str]):
        """`pieces` in the order in which they were merged; each character of a piece stands for a byte (Latin-1)."""
        if not (isinstance(pieces, list) and all(isinstance(piece, str) and len(piece) > 1 for piece in pieces)):
            raise UserError("the pieces must be a list of texts, each of two characters or more")
        if any(max(piece) > "\xff" for piece in pieces) or len(set(pieces)) != len(pieces):
            raise UserError("the pieces must be different, and their characters must be bytes (U+0000 to U+00FF)")
        self.pieces, self.vocab_size = pieces, 256 + len(pieces)
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {piece.encode("latin-1"): 256 + i for i, piece in enumerate(pieces)}
        self.encoding = tiktoken.Encoding("bpe", pat_str=PIECES, mergeable_ranks=ranks, special_tokens={})

    @classmethod
    def fit(cls, config: Config, texts: Iterable[str]) -> BPE:
        """Learn the merges. Raises UserError when `tokenizers` is not installed."""
        vocabulary = _learn(texts, config.vocab_size)
        pieces = sorted((piece for piece in vocabulary if len(piece) > 1), key=lambda piece: vocabulary[piece])
        return cls(["".join(map(byte_letters().__getitem__, piece)) for piece in pieces])


def _learn(texts: Iterable[str], vocab_size: int) -> dict[str, int]:
    """The pieces that `learn_pieces.py` learns from texts -> their ids, in the order of merging.

    Raises UserError if `tokenizers` is not installed, or if the process ends without an answer.
    """
    try:
        importlib.import_module("tokenizers")
    except ImportError:
        hint = with_extra("bpe")
        raise UserError(f"data.tokenizer: bpe is trained by the package tokenizers: {hint}") from None
    task, words = "training the tokenizer", (word for text in texts for part in parts(text) for word in shorter(part))
    threads = 4 + (os.cpu_count() or 1)  # those of tokenizers, which learns the same without them, and ours
    variables = {} if can_start(threads) else {"TOKENIZERS_PARALLELISM": "false"}
    statement = f"import runpy; runpy.run_path({LEARN!a}, run_name='__main__')"
    with JsonProcess(statement, str(vocab_size), variables=variables) as learner:
        for part in progress(words, task, unit="parts of the text"):
            utf8(part)
            if not learner.send(part):
                break
        learner.send(None)
        vocabulary = interruptible(learner.receive, task)
    if not vocabulary:
        raise UserError(f"data.tokenizer: {task}: its process ended without an answer; is there enough memory?")
    return vocabulary


def shorter(part: str) -> list[str]:
    """A part in pieces of at most PART characters: the time to learn from a word grows with the square of its size."""
    return [part[start : start + PART] for start in range(0, len(part), PART)]


@cache
def byte_letters() -> dict[str, str]:
    """The printable character that byte-level BPE uses for each byte -> the Latin-1 character of that byte.

    A byte whose Latin-1 character is printable uses it; the other bytes use U+0100, U+0101 and so on, in order.
    """
    visible = [chr(byte) for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
    hidden = [chr(byte) for byte in range(256) if chr(byte) not in visible]
    return dict(zip(visible, visible, strict=True)) | {chr(256 + i): hidden[i] for i in range(len(hidden))}


def in_letters(piece: bytes) -> str:
    """The bytes of a piece as letters: how published vocabularies write it."""
    letters = {ord(latin): letter for letter, latin in byte_letters().items()}
    return piece.decode("latin-1").translate(letters)


def from_letters(token: str) -> bytes | None:
    """The bytes of a token that has a letter for each; None if one of its characters is no such letter."""
    bytes_of = byte_letters()
    if any(letter not in bytes_of for letter in token):
        return None
    return "".join(map(bytes_of.__getitem__, token)).encode("latin-1")


class Public(Tiktoken):
    """A published vocabulary, learned by others from a large part of the web; nothing is learned here."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Tokenizer.Config):
        """No options: it has an end of text."""

        without = ("end_of_text",)

    def __init__(self) -> None:
        self.encoding = public_encoding(self.kind)
        self.vocab_size, self.end_of_text = self.encoding.n_vocab, self.encoding.eot_token
        self.ends, self.special_tokens = (self.end_of_text,), self.encoding._special_tokens


class GPT2(Public, kind="gpt2"):
    """GPT-2's 50,257 ids."""

    vocab_size = 50_257


class Cl100k(Public, kind="cl100k_base"):
    """GPT-4's 100,277 ids."""

    vocab_size = 100_277


class O200k(Public, kind="o200k_base"):
    """GPT-4o's 200,019 ids."""

    vocab_size = 200_019


HOST = "https://openaipublic.blob.core.windows.net"
FILES = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "cl100k_base": ("encodings/cl100k_base.tiktoken",),
    "o200k_base": ("encodings/o200k_base.tiktoken",),
}
ANSWER, DOWNLOAD = 1.5, 120.0  # timeouts in seconds: the first answer, and the whole file


def public_encoding(name: str) -> tiktoken.Encoding:
    """A published encoding, from tiktoken's cache or the network. Raises UserError within two seconds if offline.

    tiktoken itself has no timeout: it would wait for ever for a network that does not answer.
    """
    cache = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    folder = Path(tempfile.gettempdir(), "data-gym-cache") if cache is None else Path(cache)
    urls = [f"{HOST}/{file}" for file in FILES[name]]
    cached = [folder / hashlib.sha1(url.encode()).hexdigest() for url in urls]  # as tiktoken names its files
    try:
        if not all(path.exists() for path in cached):
            interruptible(lambda: _request_head(urls[0]), f"looking for {name}", ANSWER)
        return interruptible(lambda: tiktoken.get_encoding(name), f"getting the encoding {name}", DOWNLOAD)
    except (OSError, ValueError, http.client.HTTPException) as error:
        problem = f"the encoding {name} is not in tiktoken's cache ({folder}), and {HOST} cannot be reached"
        hint = "connect once, set TIKTOKEN_CACHE_DIR to a folder that has it, or use data.tokenizer=char"
        raise UserError(f"{problem} ({' '.join(str(error).split()) or type(error).__name__}): {hint}") from None


def _request_head(url: str) -> None:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=ANSWER).close()
    except urllib.error.HTTPError as error:  # an answer such as 404; the connection is still open
        error.close()
        raise
