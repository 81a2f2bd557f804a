"""Above the floor: the parts of a loss add up exactly, and readers with known losses get these losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from comparing import elsewhere  # noqa: F401 (of all tests)
from torch import Tensor

from minigpt.config.options import from_dict
from minigpt.model import GPT, ModelConfig
from minigpt.text.corpus import Corpus, open_corpus
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.languages.language import StoriesConfig
from minigpt.text.languages.reader import TAKES, floor, read, tally
from minigpt.text.tokenizer import Byte, Char, Tokenizer
from minigpt.training.assemble import RunConfig
from minigpt.training.floor import NO_MEMORY, Expected, character_probabilities, example, expectations, predict, score
from minigpt.training.loop import TrainingConfig, evaluate
from minigpt.training.report import read_metrics
from minigpt.training.start import start

TOLD = StoriesConfig(count=260, validation=60)
TRAINING = TrainingConfig(batch_size=7)


def material(
    told: StoriesConfig = TOLD, block_size: int = 128
) -> tuple[Corpus, Tokenizer, Dataset, Expected, list[str]]:
    corpus = open_corpus("stories", told)
    tokenizer = Char.fit(Char.Config(), corpus.documents())
    dataset = Dataset(DataConfig(stories=told, windows="documents"), corpus, tokenizer, block_size)
    expected = expectations(corpus, tokenizer)
    assert expected is not None
    return corpus, tokenizer, dataset, expected, list(corpus.documents())[-told.validation :]


class Reader(GPT):
    """A model that answers from a list: the distribution (N, V) of each target of the validation split, in order.

    A window is a story, filled up with zeros, and its story is as long as the text says.
    """

    def __init__(self, answers: Tensor, texts: list[str]):
        super().__init__(ModelConfig(n_layer=1, n_embd=8), answers.shape[1])
        self.answers = iter(answers.split([*(len(text) for text in texts[:-1]), len(texts[-1]) - 1]))

    def forward(self, ids: Tensor, cache: object = None) -> Tensor:
        logits = torch.zeros(*ids.shape, self.vocab_size)  # (B, T, V)
        for row, mine in zip(logits, self.answers):
            row[: len(mine)] = mine.log()
        return logits


def answers(tokenizer: Tokenizer, texts: list[str], ideal: bool) -> Tensor:
    """What the ideal, or the forgetful, reader would answer: (N, V)."""
    rows = []
    for text in texts:
        reading = read(text)
        for letter, odds, forgetful in zip(text, reading.support, reading.forgetful):
            row = torch.full((tokenizer.vocab_size,), 1e-30)
            if ideal:
                for other, p in odds.items():
                    row[int(tokenizer.encode(other)[0])] = p
            else:  # the probability of the right one counts; the rest goes to a wrong one
                right = int(tokenizer.encode(letter)[0])
                row[right] = forgetful
                row[(right + 1) % tokenizer.vocab_size] += 1 - forgetful
            rows.append(row)
    return torch.stack(rows[1:])


def test_the_ideal_reader_is_at_the_floor_and_remembers_everything() -> None:
    _, tokenizer, dataset, expected, texts = material()
    predictions = predict(Reader(answers(tokenizer, texts, ideal=True), texts), dataset, TRAINING, expected)
    found = score(predictions, expected)
    assert found.above == pytest.approx(0, abs=1e-6)
    assert set(found.names) == set(TAKES)
    for name, row in found.names.items():
        assert row.gap == pytest.approx(0, abs=1e-5)
        assert row.accuracy == pytest.approx(1, abs=1e-6)  # of free characters: all its belief is in what can come
        assert (row.remembered is None) == (name in NO_MEMORY)
        assert row.remembered is None or row.remembered == pytest.approx(1, abs=1e-5)


def test_the_forgetful_reader_remembers_nothing() -> None:
    _, tokenizer, dataset, expected, texts = material()
    found = score(predict(Reader(answers(tokenizer, texts, ideal=False), texts), dataset, TRAINING, expected), expected)
    assert found.above == pytest.approx(found.forgetful, abs=1e-6)
    for name in found.names.keys() - set(NO_MEMORY):
        assert found.names[name].remembered == pytest.approx(0, abs=1e-5)


def test_the_floor_is_that_of_exactly_the_characters_evaluated() -> None:
    _, _, dataset, expected, texts = material()
    readings = [read(text) for text in texts]
    characters = sum(map(len, texts))
    assert len(expected.takes) == characters - 1  # all but the very first newline, which nothing precedes
    assert expected.ideal.sum() / characters == pytest.approx(floor(readings))
    rows = tally(readings)
    for place, name in enumerate(TAKES):
        assert int((expected.takes == place).sum()) == rows[name].characters - (name == "local")
    model = GPT(ModelConfig(n_layer=1, n_embd=8), dataset_vocabulary(dataset))
    part = predict(model, dataset, TRAINING, expected, batches=2)
    found = score(part, expected)
    first = "".join(texts[: 2 * TRAINING.batch_size])
    assert found.characters == len(first)  # the newline of the next story is the last target
    losses = [-math.log(p) for text in texts[: 2 * TRAINING.batch_size] for p in read(text).ideal]
    assert found.floor == pytest.approx(sum(losses) / len(first))


def dataset_vocabulary(dataset: Dataset) -> int:
    return int(dataset.ids.max()) + 1


@pytest.mark.parametrize(("scenes", "block_size"), [(1, 128), (1, 50), (2, 256)])
def test_the_parts_of_a_loss_add_up_to_it(scenes: int, block_size: int) -> None:
    told = replace(TOLD, scenes=scenes)
    _, tokenizer, dataset, expected, _ = material(told, block_size)
    model = GPT(ModelConfig(n_layer=1, n_embd=8, block_size=block_size), tokenizer.vocab_size)
    found = score(predict(model, dataset, TRAINING, expected), expected)
    assert found.loss == pytest.approx(evaluate(model, dataset, "val", TRAINING), rel=1e-5)
    assert found.floor is not None
    assert found.above == pytest.approx(found.loss - found.floor)
    assert sum(row.characters for row in found.names.values()) == found.characters == len(expected.takes)
    gaps = sum(row.characters * row.gap for row in found.names.values())
    assert gaps / found.characters == pytest.approx(found.above, rel=1e-9)


def test_a_free_character_is_scored_by_what_can_come_and_not_by_the_likeliest() -> None:
    """Half the belief on what can come, half on what cannot, and never the right one as the likeliest."""
    _, tokenizer, dataset, expected, texts = material()
    table = answers(tokenizer, texts, ideal=True)
    wrong = int(tokenizer.encode("\n")[0])
    table = 0.45 * table
    table[:, wrong] += 0.55
    found = score(predict(Reader(table, texts), dataset, TRAINING, expected), expected)
    assert found.names["free"].accuracy == pytest.approx(0.45, abs=1e-4)
    assert found.names["recall"].accuracy == 0


def test_reading_leaves_the_model_as_it_was() -> None:
    _, tokenizer, dataset, expected, _ = material()
    model = GPT(ModelConfig(n_layer=1, n_embd=8, dropout=0.5), tokenizer.vocab_size).train()
    first = predict(model, dataset, TRAINING, expected, batches=1)
    assert model.training
    again = predict(model, dataset, TRAINING, expected, batches=1)
    assert np.array_equal(first.losses, again.losses)  # nothing is dropped


def test_the_probabilities_of_a_text_are_those_of_predict() -> None:
    _, tokenizer, dataset, expected, texts = material()
    model = GPT(ModelConfig(n_layer=1, n_embd=8), tokenizer.vocab_size)
    probabilities = character_probabilities(model, tokenizer, texts[0])
    assert len(probabilities) == len(texts[0]) - 1
    losses = predict(model, dataset, TRAINING, expected, batches=1).losses[: len(probabilities)]
    np.testing.assert_allclose(-np.log(probabilities), losses, rtol=1e-4)


def test_the_example_is_the_first_new_story() -> None:
    corpus, _, _, _, texts = material()
    found = example(corpus)
    assert found is not None
    assert found[0] == texts[0]
    assert math.prod(found[1].ideal) > 0


class Pairs(Byte):
    """A tokenizer of pairs of characters."""

    def encode(self, text: str) -> np.ndarray:
        return super().encode(text)[::2]


def elsewhere_told() -> Iterator[tuple[Callable[[], Corpus], Tokenizer]]:
    yield lambda: open_corpus(__file__), Byte()
    yield lambda: open_corpus("stories", TOLD), Pairs()


@pytest.mark.parametrize("case", list(elsewhere_told()))
def test_where_no_floor_is_known_there_is_the_loss_alone(case: tuple[Callable[[], Corpus], Tokenizer]) -> None:
    make, tokenizer = case
    corpus = make()
    assert expectations(corpus, tokenizer) is None
    dataset = Dataset(DataConfig(stories=TOLD), corpus, tokenizer, 32)
    model = GPT(ModelConfig(n_layer=1, n_embd=8, block_size=32), tokenizer.vocab_size)
    found = score(predict(model, dataset, TRAINING, None), None)
    assert found.loss == pytest.approx(evaluate(model, dataset, "val", TRAINING), rel=1e-5)
    assert found.floor is found.above is found.forgetful is None
    longer = score(predict(model, dataset, TRAINING, None), None, 10 * found.characters)
    assert longer.loss == pytest.approx(found.loss / 10, rel=1e-6)


def test_bytes_are_characters_here() -> None:
    corpus = open_corpus("stories", TOLD)
    bytewise = expectations(corpus, Byte())
    assert bytewise is not None
    assert np.array_equal(bytewise.takes, material()[3].takes)


def test_a_training_says_how_far_above_the_floor_it_is_and_what_it_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"stories": {"count": 260, "validation": 60}, "windows": "documents"}
    steps = {"max_steps": 4, "eval_every": 2, "sample_every": 0}
    config = from_dict(RunConfig, {"data": small, "model": {"n_layer": 1, "n_embd": 8}, "training": steps})
    trainer = start(config, "told", [], allow_leak=False)
    trainer.fit()
    best = material()[3].ideal.mean()
    evaluated = [line for line in read_metrics(trainer.run.folder / "metrics.jsonl") if "val/loss" in line]
    assert [line["step"] for line in evaluated] == [2, 4]
    assert all(math.isclose(line["val/above_floor"], line["val/loss"] - best, rel_tol=1e-9) for line in evaluated)
    words = trainer.verdict()
    assert f"above the floor: {evaluated[-1]['val/above_floor']:.4f} nats a character" in words
    assert all(f" {name} " in words for name in TAKES)
    assert f"({evaluated[-1]['val/above_floor']:.4f} above the floor)" in capsys.readouterr().out
