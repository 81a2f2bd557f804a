"""Datasets: which ids a model sees, how a corpus is split, and that every target is seen exactly once."""

from __future__ import annotations

import json
import string
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import DOCUMENTS, RANDOM, SHUFFLED, corpus_of, numbered, own_data, shakespeare_file

from minigpt.config.options import build, from_python, to_yaml
from minigpt.config.strict_yaml import parse_yaml
from minigpt.system.errors import ConfigError, UserError
from minigpt.text import order
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import IGNORED, DataConfig, Dataset
from minigpt.text.languages.language import StoriesConfig
from minigpt.text.tokenizer import Byte, Char

data = pytest.fixture(scope="module", autouse=True)(own_data)


# ---------------------------------------------------------------------------------------------- the splits


def test_tiny_shakespeare_splits_as_everywhere() -> None:
    path = shakespeare_file()
    corpus = open_corpus(str(path))
    tokenizer = Char.fit(Char.Config(), corpus.documents())
    dataset = Dataset(RANDOM, corpus, tokenizer, block_size=256)
    assert len(dataset.ids) == 1_115_394
    assert dataset.splits == {"train": range(1_003_854), "val": range(1_003_854, 1_115_394)}
    assert dataset.ids.dtype == np.dtype("<u2")
    assert dataset.ids[:14].tolist() == [18, 47, 56, 57, 58, 1, 15, 47, 58, 47, 64, 43, 52, 10]  # "First Citizen:"
    assert tokenizer.alphabet == "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
    assert tokenizer.decode(dataset.ids) == path.read_bytes().decode()


def test_validation_begins_at_a_document_where_one_begins_nearby() -> None:
    whole = ["x" * 100] * 10  # a document begins every 100 ids
    near, far = DataConfig(validation=0.195), DataConfig(validation=0.15)
    assert Dataset(near, corpus_of(*whole), Byte(), 8).splits["val"] == range(800, 1000)  # 805 is within 10 of 800
    assert Dataset(far, corpus_of(*whole), Byte(), 8).splits["val"] == range(850, 1000)  # 850 is 50 from either
    assert Dataset(DataConfig(validation=0.19), corpus_of(*whole), Byte(), 8).splits["val"] == range(800, 1000)
    assert Dataset(DataConfig(validation=0.189), corpus_of(*whole), Byte(), 8).splits["val"] == range(811, 1000)


def test_validation_may_be_a_number_of_tokens() -> None:
    whole = ["x" * 100] * 10  # a document begins every 100 ids
    found = {
        n: Dataset(DataConfig(validation=n), corpus_of(*whole), Byte(), 8).splits["val"] for n in (150, 99, 101, 202)
    }
    assert found == {150: range(850, 1000), 99: range(901, 1000), 101: range(900, 1000), 202: range(800, 1000)}
    (x, _), *_ = Dataset(DataConfig(validation=10), corpus_of(*whole), Byte(), 8).windows("val", 99)
    assert x.numel() <= 16  # an evaluation is as short, whatever the size of the text


@pytest.mark.parametrize("number", [1000, 10**9])
def test_a_number_of_tokens_for_validation_that_leaves_none_is_refused(number: int) -> None:
    with pytest.raises(
        UserError, match=rf"data.validation: {number:,} ids .* leave none of the 1,000 of a test: .*0\.1"
    ):
        Dataset(DataConfig(validation=number), corpus_of("x" * 1000), Byte(), 8)
    with pytest.raises(
        UserError, match=r"the train split of a test has 1 of its 1,000 ids.*data\.validation than 999$"
    ):
        Dataset(DataConfig(validation=999), corpus_of("x" * 1000), Byte(), 8)


def test_validation_may_be_a_number_of_documents() -> None:
    whole = ["x" * 100] * 10
    for words, cut in (("1 document", 900), ("3 documents", 700)):
        splits = Dataset(DataConfig(validation=words), corpus_of(*whole), Byte(), 8).splits
        assert splits == {"train": range(cut), "val": range(cut, 1000)}
    with pytest.raises(UserError, match=r"data\.validation: a test has 10 documents, and 1,000 for .* leave none"):
        Dataset(DataConfig(validation="1_000 documents"), corpus_of(*whole), Byte(), 8)


@pytest.mark.parametrize("ends", [False, True])
def test_validation_may_be_a_text_of_its_own(ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("the training text " * 9)
    Path("b.txt").write_text("another one " * 9)
    Path("test").mkdir()
    Path("test/c.jsonl").write_text("".join(json.dumps({"text": "validation" * 3 + str(n)}) + "\n" for n in range(3)))
    tokenizer = Byte().with_marks("end_of_text") if ends else Byte()
    for validation in ("test", "test/c.jsonl", "test/*.jsonl"):
        config = DataConfig(source="[ab].txt", validation=validation)
        corpus = config.open()
        dataset = Dataset(config, corpus, tokenizer, 8)
        train, val = (tokenizer.decode(dataset.ids[part.start : part.stop]) for part in dataset.splits.values())
        assert train == "the training text " * 9 + "another one " * 9
        assert val == "".join("validation" * 3 + str(n) for n in range(3))
        for skip in range(6):
            assert list(corpus.documents(skip)) == list(corpus.documents())[skip:]
        assert corpus.place(1).endswith("b.txt") and corpus.place(3).endswith("line 2")
        assert "162 bytes" not in corpus.description or "test" in corpus.description
    before = corpus.digest
    Path("test/c.jsonl").write_text(Path("test/c.jsonl").read_text().replace("0", "1"))
    assert config.open().digest != before == corpus.digest
    with pytest.raises(UserError, match=r"^data\.validation: no file or folder 'none\.txt'"):
        DataConfig(source="a.txt", validation="none.txt").open()
    with pytest.raises(UserError, match=r"data\.stories\.validation, now"):
        stories = DataConfig(source="stories", validation="test", stories=StoriesConfig(count=30, validation=5))
        Dataset(stories, stories.open(), Char.fit(None, stories.open().documents()), 8)
    for nothing in ("", " ", "stories"):
        with pytest.raises(ConfigError, match=r"validation: expected a fraction .* or a path, found"):
            DataConfig(validation=nothing)


@pytest.mark.parametrize("tokenizer", [Byte(), Byte().with_marks("end_of_text")])
def test_documents_that_stand_in_both_parts_are_counted(tokenizer: Byte) -> None:
    texts = ["the first text", "some other one", "a third, longer text", "the fourth is new", "the first text"]
    texts += ["some other one", "not the first!"]
    for documents, both in ((1, 0), (2, 1), (3, 2), (4, 2)):
        config = DataConfig(validation=f"{documents} documents".removesuffix("s" * (documents == 1)))
        assert Dataset(config, corpus_of(*texts), tokenizer, 8).in_both() == (both, documents)
    assert Dataset(
        DataConfig(validation="2 documents"), corpus_of("new, new", "aaaaaaaa", "aaaaaaaa"), tokenizer, 4
    ).in_both() == (0, 2)
    assert Dataset(DataConfig(validation=0.5), corpus_of("one text" * 9), tokenizer, 8).in_both() == (0, 0)


@pytest.mark.parametrize("config", [RANDOM, DOCUMENTS])
def test_a_validation_split_shorter_than_one_window_is_refused(config: DataConfig) -> None:
    with pytest.raises(UserError, match=r"the val split of a test has 9 of its 89 ids.*block_size \+ 1 = 10:"):
        Dataset(config, corpus_of("x" * 89), Byte(), block_size=9)
    assert len(list(Dataset(config, corpus_of("x" * 92), Byte(), block_size=9).windows("val", 1))) == 1


def test_a_short_training_split_is_refused_too() -> None:
    with pytest.raises(UserError, match="the train split of a test has 9 of its 100 ids"):
        Dataset(DataConfig(validation=0.9), corpus_of("x" * 100), Byte(), block_size=9)


def test_the_default_has_1500_new_stories_and_the_split_is_between_them() -> None:
    corpus = open_corpus("stories")
    tokenizer = Char.fit(None, corpus.documents())
    dataset = Dataset(DOCUMENTS, corpus, tokenizer, 128)
    validation = tokenizer.decode(dataset.ids[dataset.splits["val"].start :].tolist())
    assert validation.count("\n") == 1500
    assert validation == "".join(list(corpus.documents())[-1500:])


def test_stories_told_otherwise_than_the_config_says_are_refused() -> None:
    stories = StoriesConfig(count=300, validation=60)
    config, corpus = replace(DOCUMENTS, stories=stories), open_corpus("stories", stories)
    tokenizer = Char.fit(None, corpus.documents())
    with pytest.raises(ValueError, match="the corpus has other options"):
        Dataset(replace(config, stories=StoriesConfig(scenes=2)), corpus, tokenizer, 128)
    with pytest.raises(UserError, match=r"data.stories.validation, now 60"):
        Dataset(replace(config, validation=0.5), corpus, tokenizer, 128)


# --------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("config", [RANDOM, SHUFFLED])
def test_y_is_what_follows_x_and_batches_stay_in_their_split(config: DataConfig) -> None:
    dataset = Dataset(config, *numbered(1000), block_size=8)
    for split, low, high in (("train", 0, 900), ("val", 900, 1000)):
        x, y = dataset.batch(split, 0, 4096, seed=1)  # type: ignore[arg-type]
        assert x.shape == y.shape == (4096, 8)
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(x, x[:, :1] + torch.arange(8))
        assert torch.equal(y, x + 1)
        assert (int(x.min()), int(y.max())) == (low, high - 1)  # the first and the last id are both reached


def test_batches_are_the_same_on_every_machine() -> None:
    dataset = Dataset(RANDOM, *numbered(1000), block_size=8)
    # Philox4x64-10 with key 1337 and counter (1, n, 0, 0), modulo the 892 places where a window can begin
    assert dataset.batch("train", 0, 6, seed=1337)[0][:, 0].tolist() == [205, 527, 394, 337, 502, 475]
    assert dataset.batch("train", 10**12, 6, seed=1337)[0][:, 0].tolist() == [846, 14, 55, 60, 803, 836]


def philox(key: int, counter: list[int]) -> list[int]:
    """Philox4x64-10 as its paper defines it, in four lines of integers."""
    keys, words = [key, 0], list(counter)
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [(right >> 64) ^ words[1] ^ keys[0], right % 2**64, (left >> 64) ^ words[3] ^ keys[1], left % 2**64]
        keys = [(keys[0] + 0x9E3779B97F4A7C15) % 2**64, (keys[1] + 0xBB67AE8584CAA73B) % 2**64]
    return words


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_draws_are_philox_of_seed_and_batch_number(seed: int, n: int) -> None:
    expected = philox(seed, [1, n, 0, 0]) + philox(seed, [2, n, 0, 0])
    assert order.draws(seed, n, 8).tolist() == expected


def test_an_epoch_is_the_same_on_every_machine() -> None:
    dataset = Dataset(SHUFFLED, *numbered(1000), block_size=8)
    first, *others = [word for block in range(1, 30) for word in philox(1337, [block, 0, 0, 0])][:112]
    order = sorted(range(111), key=others.__getitem__)
    starts = dataset.batch("train", 0, 111, seed=1337)[0][:, 0].tolist()
    assert starts == [first % (900 - 111 * 8) + 8 * place for place in order]


@given(st.integers(20, 200), st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**9))
@settings(max_examples=60)
def test_shuffled_windows_all_come_once_before_any_comes_again(
    count: int, block_size: int, batch_size: int, seed: int
) -> None:
    dataset = Dataset(replace(SHUFFLED, validation=0.5), *numbered(count), block_size)
    ids = len(dataset.splits["train"])
    windows = max(1, (ids - block_size) // block_size)  # of an epoch
    batches = [dataset.batch("train", n, batch_size, seed) for n in range(3 * windows // batch_size + 1)]
    starts = torch.cat([x[:, 0] for x, _ in batches])
    last = torch.cat([y[:, -1] for _, y in batches])
    assert int(starts.min()) >= 0 and int(last.max()) < ids
    for epoch in starts.split(windows):
        assert len(epoch.unique()) == len(epoch) and len((epoch % block_size).unique()) == 1


def test_each_epoch_is_shuffled_anew_and_begins_elsewhere() -> None:
    dataset = Dataset(SHUFFLED, *numbered(1000), block_size=8)  # 111 windows an epoch
    epochs = [dataset.batch("train", n, 111, seed)[0][:, 0] for seed in (1, 2) for n in range(40)]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == len({tuple((e // 8).tolist()) for e in epochs}) == 80
    assert {int(epoch[0]) % 8 for epoch in epochs} == set(range(8))
    halves = torch.cat([dataset.batch("train", n, 37, 1)[0][:, 0] for n in range(6)])
    assert torch.equal(halves, torch.cat(epochs[:2]))  # whatever the size of a batch


@pytest.mark.parametrize("config", [RANDOM, SHUFFLED])
def test_a_batch_does_not_depend_on_what_came_before(config: DataConfig) -> None:
    dataset = Dataset(config, *numbered(1000), block_size=8)
    alone = dataset.batch("train", 7, 32, seed=3)
    np.random.seed(5)
    torch.manual_seed(5)
    for n in (0, 99, 7):
        again = dataset.batch("train", n, 32, seed=3)
    assert torch.equal(alone[0], again[0])
    starts = [tuple(dataset.batch("train", n, 32, seed)[0][:, 0].tolist()) for n in range(20) for seed in range(20)]
    assert len(set(starts)) == 400  # every (n, seed) is a batch of its own


@pytest.mark.parametrize("config", [RANDOM, SHUFFLED, DOCUMENTS, DataConfig(windows="packed", attend="document")])
def test_the_rows_of_all_ranks_are_the_global_batch(config: DataConfig) -> None:
    dataset = Dataset(config, corpus_of(*(f"\n{n}: some text" for n in range(100))), Byte(), block_size=8)

    def batch(rows: slice) -> list[torch.Tensor]:
        begins = dataset.begins("train", 5, 12, 1, rows)
        return [*dataset.batch("train", 5, 12, 1, rows), *([] if begins is None else [begins])]

    whole = batch(slice(None))
    assert len(whole) == 2 + config.divides
    for world in (1, 2, 3, 4):
        share = 12 // world
        for rows in (slice(rank * share, (rank + 1) * share) for rank in range(world)):
            assert all(torch.equal(part, of_all[rows]) for part, of_all in zip(batch(rows), whole, strict=True))


# ---------------------------------------------------------------------------------------- exact windows


def test_windows_side_by_side_by_hand() -> None:
    dataset = Dataset(DataConfig(validation=0.5), *numbered(20), block_size=4)
    (x, y), (x_last, y_last) = dataset.windows("val", batch_size=2)
    assert x.tolist() == [[10, 11, 12, 13], [14, 15, 16, 17]]
    assert y.tolist() == [[11, 12, 13, 14], [15, 16, 17, 18]]
    assert x_last.tolist() == [[18, 0, 0, 0]]
    assert y_last.tolist() == [[19, IGNORED, IGNORED, IGNORED]]


def test_windows_of_documents_by_hand() -> None:
    texts = ["\nabcdef", "\ng", "\nhijk"]
    dataset = Dataset(DataConfig(validation=0.35, windows="documents"), corpus_of(*texts), Byte(), block_size=3)
    assert dataset.splits["train"] == range(9)
    (batch,) = dataset.windows("train", batch_size=99)
    shown = [["".join(chr(id) if id > 0 else "_" for id in row) for row in side.tolist()] for side in batch]
    assert shown[0] == ["\nab", "cde", "f__", "\n__"]  # no window reads on into the next document
    assert shown[1] == ["abc", "def", "\n__", "g__"]  # but what ends a document is the start of the next


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    st.sampled_from([RANDOM, SHUFFLED, DOCUMENTS]),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
)
@settings(max_examples=40)
def test_windows_cover_every_target_exactly_once(
    lengths: list[int], config: DataConfig, block_size: int, batch_size: int, world: int
) -> None:
    tokenizer = numbered(sum(lengths) + 70)[1]
    text = tokenizer.alphabet
    edges = [0, *np.cumsum(lengths).tolist(), len(text)]
    texts = [text[low:high] for low, high in pairwise(edges)]
    dataset = Dataset(config, corpus_of(*texts), tokenizer, block_size)
    for split, where in dataset.splits.items():
        seen: Counter[int] = Counter()
        for rank in range(world):
            for x, y in dataset.windows(split, batch_size, slice(rank, None, world)):  # type: ignore[arg-type]
                assert 1 <= len(x) <= batch_size
                real = y != IGNORED
                assert torch.equal(y[real], x[real] + 1)
                if config.windows == "documents":  # a document's start is only ever a window's first id
                    assert not set(x[:, 1:][real[:, 1:]].tolist()) & set(edges)
                seen.update(y[real].tolist())
        assert seen == Counter(where[1:])


def test_training_windows_of_documents_are_those_of_the_evaluation() -> None:
    texts = [f"\n{n}: " + "some text " * (n % 5) for n in range(100)]
    dataset = Dataset(DOCUMENTS, corpus_of(*texts), Byte(), block_size=16)
    windows = {
        tuple(map(int, torch.cat(pair))) for x, y in dataset.windows("train", 64) for pair in zip(x, y, strict=True)
    }
    x, y = dataset.batch("train", 0, 5000, seed=1)
    assert {tuple(map(int, torch.cat(pair))) for pair in zip(x, y, strict=True)} == windows


# ---------------------------------------------------------------------------------------- the options


def load_yaml(text: str) -> DataConfig:
    tree = parse_yaml(text, "x", [])
    tree.value.pop("minigpt", None)  # the version that wrote it; `format` is that of the data here
    return build(DataConfig, tree)


def test_the_options_are_read_and_checked() -> None:
    config = build(DataConfig, from_python({"source": "a.txt", "tokenizer": "byte", "windows": "documents"}, "x"))
    assert config == DataConfig(source="a.txt", tokenizer=Byte.Config(), windows="documents")
    assert config.tokenizer.component is Byte
    assert DataConfig().tokenizer.component is Char
    for number in (0.1, 2, 100_000):
        config = load_yaml(f"validation: {number:_}\n")
        assert config.validation == number and load_yaml(to_yaml(config)) == config
    with pytest.raises(ConfigError, match=r"validation: .* below 1, or a whole number of at least 2 .*, found 1$"):
        DataConfig(validation=1)
    with pytest.raises(ConfigError, match=r"or a whole number of at least 2 .*, found 1000\.0$"):
        load_yaml("validation: 1e3\n")
    wrong = {"validation": (0, 1.0, 2.5, -5, True, 1), "windows": ("rows",), "source": (" ",), "tokenizer": ("chars",)}
    for option, value in ((option, value) for option, values in wrong.items() for value in values):
        with pytest.raises(ConfigError, match=option):
            build(DataConfig, from_python({option: value}, "x"))
