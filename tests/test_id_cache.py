"""Ids on disk: made once, mapped into memory, made again when anything changes, and never used when damaged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from small_corpora import DOCUMENTS, RANDOM, corpus_of, numbered, own_data

from minigpt.system.errors import UserError
from minigpt.text import corpus as corpora
from minigpt.text import ids as on_disk
from minigpt.text.corpus import Corpus
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Byte, Char, Ids, Tiktoken, Tokenizer

data = pytest.fixture(scope="module", autouse=True)(own_data)


def cache_of(corpus: Corpus, tokenizer: Tokenizer) -> Path:
    return corpora.DATA / "cache" / on_disk._key(corpus, tokenizer)


class Ended(Tiktoken):
    """Bytes, and an id that ends a text."""

    vocab_size, end_of_text = 257, 256
    encoding = tiktoken.Encoding(
        "ended", pat_str=".", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={"<|end|>": 256}
    )


def test_end_of_text_stands_between_documents_where_there_is_one() -> None:
    ids = Dataset(RANDOM, corpus_of("abcdefghi" * 3, "x" * 9), Ended(), 2).ids
    assert ids[25:30].tolist() == [104, 105, 256, 120, 120]
    assert 256 not in Dataset(RANDOM, corpus_of("abcdefghi" * 4), Ended(), 2).ids
    marked = Dataset(RANDOM, corpus_of("abcdefghi" * 3, "x" * 9), Byte().with_marks("end_of_text"), 2)
    assert marked.ids[25:30].tolist() == [104, 105, 256, 120, 120]
    joined = Dataset(RANDOM, corpus_of("abcdefghi" * 3, "x" * 9), Byte(), 2)
    assert joined.ids.tolist() == list(b"abcdefghi" * 3 + b"x" * 9)
    assert joined.document_starts.tolist() == [0, 27]


class Spelling(Byte):
    """Returns the id of a mark for an x."""

    def encode(self, text: str) -> Ids:
        return np.where(super().encode(text) == ord("x"), 256, super().encode(text))


def test_a_tokenizer_that_reads_a_mark_in_a_text_is_refused() -> None:
    with pytest.raises(UserError, match="gave ids from 97 to 256, but its vocab_size is 256"):
        Dataset(RANDOM, corpus_of("abc" * 9 + "x"), Spelling().with_marks("end_of_text"), 2)


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "<u2"), (65_537, "<u4"), (70_000, "<u4")])
def test_a_large_vocabulary_is_written_in_four_bytes(size: int, dtype: str) -> None:
    corpus, tokenizer = numbered(size)
    dataset = Dataset(RANDOM, corpus, tokenizer, block_size=8)
    assert dataset.ids.dtype == np.dtype(dtype)
    assert np.array_equal(dataset.ids, np.arange(size))
    ids = cache_of(corpus, tokenizer) / "ids.bin"
    assert ids.stat().st_size == size * np.dtype(dtype).itemsize


def test_ids_are_mapped_and_the_files_are_plain() -> None:
    corpus = corpus_of("\nA" * 100, "\nBé" * 100)
    dataset = Dataset(RANDOM, corpus, Byte(), 8)
    assert isinstance(dataset.ids.base, np.memmap)
    folder = cache_of(corpus, Byte())
    assert sorted(os.listdir(folder)) == ["ids.bin", "meta.json", "starts.bin"]
    raw = ("\nA" * 100 + "\nBé" * 100).encode()
    assert (folder / "ids.bin").read_bytes() == b"".join(byte.to_bytes(2, "little") for byte in raw)
    assert (folder / "starts.bin").read_bytes() == (0).to_bytes(8, "little") + (200).to_bytes(8, "little")
    manifest = json.loads((folder / "meta.json").read_text())
    assert (manifest["dtype"], manifest["ids"], manifest["documents"], manifest["vocab_size"]) == ("<u2", 600, 2, 256)


class Counting(Byte):
    """Bytes; counts how often it is asked."""

    calls = 0

    def encode(self, text: str) -> Ids:
        type(self).calls += 1
        return super().encode(text)


def test_ids_are_made_once_and_again_when_anything_changed() -> None:
    Counting.calls = 0
    first = Dataset(RANDOM, corpus_of("first text " * 20), Counting(), 8).ids
    again = Dataset(DOCUMENTS, corpus_of("first text " * 20), Counting(), 4).ids
    assert Counting.calls == 1
    assert np.array_equal(first, again)
    other = Dataset(RANDOM, corpus_of("other text " * 20), Counting(), 8).ids
    assert Counting.calls == 2
    assert bytes(other[:5].tolist()) == b"other"
    corpus, tokenizer = numbered(100)
    turned = Char(tokenizer.alphabet + "\U0010ffff")
    assert on_disk._key(corpus, tokenizer) != on_disk._key(corpus, turned)


def test_code_that_changed_makes_other_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a tokenizer, and what it uses."""
    keys = {on_disk._key(corpus_of("text"), Byte())}
    for n, path in enumerate(on_disk.DECIDING):
        changed = tmp_path / path.name
        changed.write_bytes(path.read_bytes() + b"# changed")
        monkeypatch.setattr(on_disk, "DECIDING", [*on_disk.DECIDING[:n], changed, *on_disk.DECIDING[n + 1 :]])
        keys.add(on_disk._key(corpus_of("text"), Byte()))
    monkeypatch.setattr(on_disk.inspect, "getfile", lambda kind: str(tmp_path / "mine.py"))
    for code in ("upper case", "lower case"):
        (tmp_path / "mine.py").write_text(code)
        keys.add(on_disk._key(corpus_of("text"), Byte()))
        assert on_disk._key(corpus_of("text"), Byte()) in keys
    assert len(keys) == 1 + len(on_disk.DECIDING) + 2


def test_the_code_that_a_tokenizer_uses_is_known() -> None:
    """Every file of the part `text` that the file of a kind imports, or that one of those imports."""
    folder, waiting, used = Path(on_disk.__file__).parent, ["tokenizer", "hf_tokenizer", "ranked"], set[str]()
    while waiting:
        source = (folder / f"{waiting.pop()}.py").read_text("utf-8")
        found = set(re.findall(r"^\s*from minigpt\.text\.(\w+) import", source, re.M)) - used
        used, waiting = used | found, [*waiting, *found]
    assert used - {path.stem for path in on_disk.DECIDING} == {"hf_tokenizer"}  # `ranked` checks its arguments with it


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "flipped": lambda raw: bytes(byte ^ 4 * (n == len(raw) // 2) for n, byte in enumerate(raw)),
    "cut": lambda raw: raw[:-1],
    "empty": lambda raw: b"",
    "garbled": lambda raw: b"[7]",
    "gone": None,
}


@pytest.mark.parametrize("name", ["ids.bin", "starts.bin", "meta.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_made_again_and_not_used(name: str, damage: str) -> None:
    corpus = corpus_of(*(f"\nstory {n}" for n in range(50)))
    before = Dataset(DOCUMENTS, corpus, Byte(), 8)
    ids, starts = before.ids.tolist(), before.document_starts.tolist()
    path = cache_of(corpus, Byte()) / name
    good, change = path.read_bytes(), DAMAGES[damage]
    path.write_bytes(change(good)) if change else path.unlink()
    after = Dataset(DOCUMENTS, corpus, Byte(), 8)
    assert (after.ids.tolist(), after.document_starts.tolist()) == (ids, starts)
    if name != "meta.json" or damage not in ("flipped", "cut"):  # a manifest contains more than is checked
        assert path.read_bytes() == good


def test_what_another_user_has_made_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training of theirs may read it: each user has a lock, and the folder of the ids is everybody's."""
    corpus = corpus_of("some text " * 20)
    ids, folder = Dataset(RANDOM, corpus, Byte(), 8).ids.tolist(), cache_of(corpus, Byte())
    theirs, plain = folder.rename(tmp_path / "theirs"), on_disk._complete

    def later(*arguments: Any) -> None:
        plain(*arguments)
        theirs.rename(folder)

    monkeypatch.setattr(on_disk, "_complete", later)
    before = (theirs / "ids.bin").stat().st_ino
    assert Dataset(RANDOM, corpus, Byte(), 8).ids.tolist() == ids
    assert (folder / "ids.bin").stat().st_ino == before
    assert [name for name in os.listdir(folder.parent) if name.startswith(folder.name)] == [folder.name]


def test_a_seal_for_another_type_is_not_believed() -> None:
    corpus = corpus_of("some text " * 20)
    ids = Dataset(RANDOM, corpus, Byte(), 8).ids.tolist()
    manifest = cache_of(corpus, Byte()) / "meta.json"
    manifest.write_text(manifest.read_text().replace("<u2", "<u4"))
    assert Dataset(RANDOM, corpus, Byte(), 8).ids.tolist() == ids
    assert '"<u2"' in manifest.read_text()


class Wrong(Byte):
    """Gives an id that it does not have, in the second document."""

    def encode(self, text: str) -> Ids:
        return super().encode(text) + (300 if "wrong" in text else 0)


class Silent(Byte):
    """Gives no ids at all."""

    def encode(self, text: str) -> Ids:
        return np.zeros(0, dtype=np.int64)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [(Wrong(), "gave ids from 403 to 419, but its vocab_size is 256"), (Silent(), "makes no ids")],
)
def test_a_tokenizer_beyond_its_vocabulary_or_without_ids_is_refused(tokenizer: Byte, message: str) -> None:
    corpus = corpus_of("right " * 20, "wrong")
    with pytest.raises(UserError, match=message):
        Dataset(RANDOM, corpus, tokenizer, 8)
    key = on_disk._key(corpus, tokenizer)
    left = [name for name in os.listdir(corpora.DATA / "cache") if key in name]
    assert left == [] or isinstance(tokenizer, Silent)
