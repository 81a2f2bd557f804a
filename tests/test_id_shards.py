"""Ids in shards: the same for any number of shards and processes, as one array, and after any stop."""

from __future__ import annotations

import gzip
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from running import forked, wait_until
from small_corpora import RANDOM, corpus_of, own_data

from minigpt.system.errors import UserError
from minigpt.text import corpus as corpora
from minigpt.text import cuts, shards, workers
from minigpt.text import ids as on_disk
from minigpt.text.corpus import open_corpus
from minigpt.text.cuts import Failed, Piece, cut_up, place_to_cut
from minigpt.text.dataset import Dataset
from minigpt.text.ids import ids_on_disk
from minigpt.text.languages.stories import stories
from minigpt.text.seams import Before, last_part, parts
from minigpt.text.shards import Shards, write_shards
from minigpt.text.tokenizer import BPE, GPT2, Byte, Tokenizer

data = pytest.fixture(scope="module", autouse=True)(own_data)
WINDOWS = ("random", "shuffled", "documents")
ALPHABET = [*"Ünïcödé 🦉 12.3;\r\n\n it's «x»", " the end", "<|endoftext|>", "a" * 900, " " * 700, "ACGT" * 300]


def random_text(characters: int) -> str:
    """Words, signs, and stretches without the end of a word."""
    draw = np.random.default_rng(0)
    return "".join(ALPHABET[n] for n in draw.integers(0, len(ALPHABET), characters // 80))


@pytest.fixture(scope="module")
def learned() -> BPE:
    return BPE.fit(BPE.Config(vocab_size=400), stories(1, 100))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 1,000 characters, shards of 5,000."""
    monkeypatch.setattr(cuts, "STEP", 700)
    monkeypatch.setattr(cuts, "BLOCK", 1000)
    monkeypatch.setattr(shards, "SHARD", 5000)


def written(folder: Path, tokenizer: Tokenizer, texts: list[str], processes: int = 0) -> tuple[list[int], list[int]]:
    """The ids and starts that are written for some texts."""
    folder.mkdir(exist_ok=True)
    seals = write_shards(folder, corpus_of(*texts), tokenizer, np.dtype("<u4"), processes)
    ids = Shards(folder, [seal.ids for seal in seals], np.dtype("<u4"))
    shards.join_starts(folder, seals)
    return ids[:].tolist(), np.fromfile(folder / "starts.bin", "<i8").tolist()


# ------------------------------------------------------------------------------------------------- pieces


@pytest.mark.parametrize("step", [1, 13, 700, 5000])
def test_pieces_end_where_parts_of_the_whole_text_end(step: int, learned: BPE) -> None:
    """So that their ids are those of the whole, even where no word ends for long."""
    text = random_text(400_000 if step > 100 else 40_000)
    some = (text[start : start + step] for start in range(0, len(text), step))
    pieces = list(cut_up(some, last_part))
    assert "".join(pieces) == text and len(pieces) > len(text) // 10_000
    ends = set(np.cumsum([len(part) for part in parts(text)]).tolist())
    assert set(np.cumsum([len(piece) for piece in pieces]).tolist()) <= ends
    assert np.concatenate([learned.encode(piece) for piece in pieces]).tolist() == learned.encode(text).tolist()


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["gpt2", "bpe"])
def test_words_without_end_in_files_have_the_ids_that_tiktoken_makes(
    kind: str, processes: int, small: None, learned: BPE, tmp_path: Path
) -> None:
    """Whatever files, documents, pieces, shards and processes they pass through on their way."""
    draw, folder = np.random.default_rng(0), tmp_path / "texts"
    words = [
        "".join(draw.choice(list(letters), 7000))
        for letters in ("ACGT", "0123456789", "a'sé\u0301", "多读书😀", "=/\n")
    ]
    texts = [" ".join(words), "\n".join(words[::-1]), *words, random_text(30_000)]
    folder.mkdir()
    (folder / "a.txt").write_text(texts[0], encoding="utf-8", newline="")
    (folder / "b.md.gz").write_bytes(gzip.compress(texts[1].encode()))
    (folder / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[2:]), encoding="utf-8")
    tokenizer = GPT2() if kind == "gpt2" else learned
    seals = write_shards(tmp_path, open_corpus(str(folder)), tokenizer, np.dtype("<u4"), processes)
    ids = Shards(tmp_path, [seal.ids for seal in seals], np.dtype("<u4"))[:].tolist()
    between = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    whole = [[*between * (n > 0), *tokenizer.encoding.encode_ordinary(text)] for n, text in enumerate(texts)]
    assert ids == [id for some in whole for id in some] and len(seals) > 3


class Shouting(Byte):
    """Replaces `encode`: whether its texts can be cut is not known."""

    def encode(self, text: str) -> np.ndarray:
        return super().encode(text.upper())


def test_a_tokenizer_of_ones_own_gets_whole_documents(small: None, tmp_path: Path) -> None:
    assert place_to_cut(Shouting()) is None
    assert written(tmp_path, Shouting(), ["long " * 9999, "ß"])[0] == list(("LONG " * 9999 + "SS").encode())


# ------------------------------------------------------------------------------------------------- shards


def test_many_shards_are_the_ids_of_the_documents(small: None, tmp_path: Path, learned: BPE) -> None:
    texts = [random_text(40_000), *stories(2, 60), "x", random_text(9_000)]
    ids, starts = written(tmp_path, learned, texts)
    wholes = [learned.encode(text).tolist() for text in texts]
    assert ids == [id for whole in wholes for id in whole]
    assert starts == np.cumsum([0, *map(len, wholes[:-1])]).tolist()
    assert len(list(tmp_path.glob("ids*.bin"))) > 5
    assert sorted(os.listdir(tmp_path))[-1] == "starts.bin"


def test_between_documents_is_the_token_and_in_a_text_its_name_is_text(small: None, tmp_path: Path) -> None:
    tokenizer, texts = GPT2(), ["one<|endoftext|>", *stories(2, 60), "three"]
    ids, starts = written(tmp_path, tokenizer, texts)
    assert [n for n, id in enumerate(ids) if id == tokenizer.end_of_text] == starts[1:]
    assert tokenizer.decode(ids[: starts[1]]) == texts[0]
    assert np.split(ids, starts[1:])[-1].tolist() == [tokenizer.end_of_text, *tokenizer.encode("three")]


def test_shards_are_read_as_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "OPEN", 2)  # files are closed and opened again
    whole, sizes = np.arange(1000, dtype="<u2"), [300, 1, 499, 200]
    for shard, part in enumerate(np.split(whole, np.cumsum(sizes)[:-1])):
        part.tofile(tmp_path / shards.ids_name(shard))
    read, draw = Shards(tmp_path, sizes, whole.dtype), np.random.default_rng(0)
    assert (len(read), read.shape, read.dtype) == (1000, (1000,), whole.dtype)
    assert read[299] == whole[299] and np.array_equal(np.asarray(read), whole)
    slices = slice(None), slice(290, 310), slice(7, 3), slice(-5, None)
    for where in (*slices, draw.integers(0, 1000, (9, 40)), [], [999]):
        assert np.array_equal(read[where], whole[where])
    assert np.array_equal(read[whole % 3 == 0], whole[whole % 3 == 0])
    starts = draw.integers(0, 900, (64, 1)) + np.arange(100)
    assert read[starts].dtype == whole.dtype and np.array_equal(read[starts], whole[starts])
    for wrong in (1000, [3, -1]):
        with pytest.raises(IndexError, match="1000 ids have the indices 0 to 999"):
            read[wrong]
    os.truncate(tmp_path / shards.ids_name(0), 10)
    with pytest.raises(OSError, match="cut short to 10 of 600 bytes"):
        read[0]


def test_a_dataset_of_many_shards_has_the_batches_of_one(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    monkeypatch.setattr(shards, "BLOCK", 1000)
    corpus = corpus_of(*stories(3, 400))
    many = {windows: Dataset(replace(RANDOM, windows=windows), corpus, Byte(), 32) for windows in WINDOWS}
    assert isinstance(many["random"].ids, Shards)
    monkeypatch.setattr(shards, "SHARD", 1 << 28)
    monkeypatch.setattr(on_disk, "FORMAT", "another folder")
    for windows, dataset in many.items():
        one = Dataset(replace(RANDOM, windows=windows), corpus, Byte(), 32)
        assert isinstance(one.ids, np.ndarray)
        for n in range(3):
            for left, right in zip(dataset.batch("train", n, 8, 1), one.batch("train", n, 8, 1)):
                assert torch.equal(left, right)
        for left, right in zip(dataset.windows("val", 8), one.windows("val", 8)):
            assert torch.equal(left[0], right[0]) and torch.equal(left[1], right[1])


# ------------------------------------------------------------------------------------------------- stops


class Stop(Exception):
    """Ends a tokenizer in the middle of a text."""


class Stopping(Byte):
    """Bytes, up to a call."""

    calls, last = 0, 10**9

    def encode(self, text: str) -> np.ndarray:
        type(self).calls += 1
        if self.calls > self.last:
            raise Stop
        return super().encode(text)


@pytest.mark.parametrize("last", [0, 1, 40, 300, 399])
def test_what_was_stopped_goes_on_at_the_last_complete_shard(last: int, small: None, tmp_path: Path) -> None:
    texts = stories(4, 400)
    Stopping.calls, Stopping.last = 0, last
    with pytest.raises(Stop):
        written(tmp_path, Stopping(), texts)
    Stopping.calls, Stopping.last = 0, 10**9
    assert written(tmp_path, Stopping(), texts)[0] == list("".join(texts).encode())
    assert 400 - last <= Stopping.calls <= 400 - last + 70  # 5,000 characters are some 50 stories


@pytest.mark.parametrize("damaged", ["ids-1.bin", "starts-1.bin", "seal-1.json"])
def test_a_damaged_shard_is_made_again(damaged: str, small: None, tmp_path: Path) -> None:
    texts = [*stories(4, 200), random_text(20_000)]
    Stopping.calls, Stopping.last = 0, 199
    with pytest.raises(Stop):
        written(tmp_path, Stopping(), texts)
    raw = bytearray((tmp_path / damaged).read_bytes())
    raw[3] ^= 1
    (tmp_path / damaged).write_bytes(raw)
    Stopping.last = 10**9
    assert written(tmp_path, Stopping(), texts)[0] == list("".join(texts).encode())


def test_a_text_that_changes_while_it_is_tokenized_leaves_no_shard(small: None, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for n in range(9):
        (tmp_path / "f" / f"{n}.txt").write_text("some text. " * 1000)
    corpus = open_corpus(str(tmp_path / "f"))
    (tmp_path / "f" / "8.txt").write_text("Some text. " * 1000)
    with pytest.raises(UserError, match=r"8\.txt: changed while it was being read"):
        ids_on_disk(corpus, Byte())
    assert not list((corpora.DATA / "cache").glob("*.part")) and not list((corpora.DATA / "cache").glob("*.lock"))


def test_ids_that_were_read_once_are_not_read_again_unless_they_are_written_to(
    monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    monkeypatch.setattr(on_disk, "REMEMBERED", 1)
    monkeypatch.setattr(on_disk, "SETTLED", -1.0)
    corpus, read, sha256_of = corpus_of(*stories(5, 300)), list[str](), on_disk.sha256_of
    monkeypatch.setattr(on_disk, "sha256_of", lambda path: read.append(path.name) or sha256_of(path))
    ids = ids_on_disk(corpus, Byte())[0][:].tolist()
    assert ids_on_disk(corpus, Byte())[0][:].tolist() == ids and len(read) > 5
    read.clear()
    assert ids_on_disk(corpus, Byte())[0][:].tolist() == ids and read == []
    path = corpora.DATA / "cache" / on_disk._key(corpus, Byte()) / "ids-2.bin"
    before, raw = path.stat(), bytearray(path.read_bytes())
    raw[7] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ids_on_disk(corpus, Byte())[0][:].tolist() == ids and "ids-2.bin" in read


# ---------------------------------------------------------------------------------------- several processes


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_number_of_processes_writes_the_same(processes: int, small: None, tmp_path: Path, learned: BPE) -> None:
    texts = [random_text(40_000), *stories(2, 200), random_text(9_000)]
    assert written(tmp_path / "b", learned, texts, processes) == written(tmp_path / "a", learned, texts)
    for name in os.listdir(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def children() -> set[int]:
    """The processes that this one has started, in any of its threads."""
    threads = Path("/proc/self/task").iterdir()
    return {int(pid) for thread in threads for pid in (thread / "children").read_text().split()}


@pytest.mark.slow
def test_a_mistake_in_a_process_and_its_end_are_one_line(learned: BPE) -> None:
    blocks = [[Piece(0, 0, "good")], [Piece(5, 3, "half a pair:\n\ud800", Before(100, 2, 7))]]
    with pytest.raises(
        UserError, match=r"U\+D800\) at index 113 \(line 4, column 1\) is half a surrogate pair"
    ) as failed:
        list(workers.encoded(blocks, learned, 2))
    assert isinstance(failed.value, Failed) and failed.value.document == 5
    before = children()  # a server of the tests, if one was started
    found = workers.encoded([[Piece(0, 0, "text")]] * 9, learned, 1)
    assert next(found)[1].tolist() == learned.encode("text").tolist()
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    with pytest.raises(Failed, match="a process that tokenizes it, and what follows, was ended by signal 9: is there"):
        list(found)


TRAIN = """
import json, sys
from pathlib import Path
from minigpt.system.signals import receive_signals
from minigpt.text import shards, workers
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.text.ids import ids_on_disk
from minigpt.text.tokenizer import Tokenizer
shards.SHARD, workers.WORTHWHILE = 1 << 18, 0
workers.processes_for = lambda *_: 2
receive_signals()
ids, starts = ids_on_disk(open_corpus("f"), Tokenizer.load("tokenizer.json"))
ids[:].astype("<u4").tofile(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again_it_continues(signum: int, tmp_path: Path, learned: BPE) -> None:
    """Two processes wait for one text, as under torchrun; the one that makes it is killed, and the other goes on."""
    (tmp_path / "f").mkdir()
    texts = [f"{n}{''.join(stories(1, 800))}" for n in range(48)]  # one process has enough to do
    (tmp_path / "f" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    learned.save(tmp_path / "tokenizer.json")
    cache, request = tmp_path / "data" / "cache", {"env": {"MINIGPT_DATA": str(tmp_path / "data")}, "code": TRAIN}
    first = forked([2], argv=["-c", "one"], cwd=str(tmp_path), **request)
    wait_until(lambda: len(list(cache.glob("*.part/seal-*.json"))) > 0, first)
    first.send_signal(signal.SIGSTOP)  # it must not be done before the second is there
    second = forked([2], argv=["-c", "two"], cwd=str(tmp_path), **request)
    first.send_signal(signum)
    first.send_signal(signal.SIGCONT)
    first.rest()
    assert first.code in (-signum, 1) and not (tmp_path / "one").exists()
    assert second.rest().count("Traceback") == 0 and second.code == 0
    whole = [learned.encode(text) for text in texts]
    assert np.array_equal(np.fromfile(tmp_path / "two", "<u4"), np.concatenate(whole))
    assert len(os.listdir(cache)) == 1
