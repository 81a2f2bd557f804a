"""The tasks: every probability is right (all texts of small ones are written out), and only the answers are asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import finished, small
from torch import Tensor

from minigpt.config.options import from_dict, load, to_yaml
from minigpt.languages.tasks import Task
from minigpt.languages.tasks.facts import RELATIONS, Facts
from minigpt.model import GPT, ModelConfig
from minigpt.runs.assemble import RunConfig
from minigpt.runs.start import resume, start
from minigpt.system.errors import ConfigError, UserError
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import IGNORED, DataConfig, Dataset
from minigpt.text.tokenizer import Byte, Char
from minigpt.training.floor import expectations, predict, score
from minigpt.training.loop import TrainingConfig, evaluate

Texts = Iterator[tuple[str, float]]  # texts with their probabilities; equal ones may come again
COUNTS = {"count": 240, "validation": 60}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    monkeypatch.chdir(tmp_path)


def task(kind: str, **options: Any) -> Task:
    config = from_dict(DataConfig, {"source": {"kind": kind, **options}, "windows": "documents"})
    assert isinstance(config.language, Task)
    return config.language


# ------------------------------------------------------------------------- all texts of small tasks, written out again


def recall(sizes: list[int], keys: str, values: str, questions: int) -> Texts:
    for n in sizes:
        for told, said in product(permutations(keys, n), product(values, repeat=n)):
            asked = list(permutations(range(n), min(questions, n)))
            chance = 1 / len(sizes) / math.perm(len(keys), n) / len(values) ** n / len(asked)
            for order in asked:
                pairs = "".join(map("".join, zip(told, said)))
                yield "\n" + pairs + "|" + "".join(told[i] + said[i] for i in order), chance


def latest(sizes: list[int], keys: str, values: str, questions: int) -> Texts:
    for n in sizes:
        for told, said in product(product(keys, repeat=n), product(values, repeat=n)):
            last = dict(zip(told, said))
            asked = list(permutations(last, min(questions, len(last))))
            for order in asked:
                pairs = "".join(map("".join, zip(told, said)))
                chance = 1 / len(sizes) / (len(keys) * len(values)) ** n / len(asked)
                yield "\n" + pairs + "|" + "".join(key + last[key] for key in order), chance


def induction(sizes: list[int], letters: str, span: int) -> Texts:
    for n in sizes:
        for told in map("".join, permutations(letters, n)):
            for i in range(n - span):
                yield f"\n{told}|{told[i : i + span + 1]}", 1 / len(sizes) / math.perm(len(letters), n) / (n - span)


def copying(sizes: list[int], letters: str) -> Texts:
    for n in sizes:
        for told in map("".join, product(letters, repeat=n)):
            yield f"\n{told}|{told}", 1 / len(sizes) / len(letters) ** n


def needle(sizes: list[int], letters: str, values: str, before: int) -> Texts:
    for n, b in product(sizes, range(before + 1)):
        for one, value, two in product(product(letters, repeat=b), values, product(letters, repeat=n)):
            chance = 1 / len(sizes) / (before + 1) / len(letters) ** (n + b) / len(values)
            yield f"\n{''.join(one)}={value}{''.join(two)}|{value}", chance


def counting(sizes: list[int], letters: str, questions: int) -> Texts:
    for n in sizes:
        for told in product(letters, repeat=n):
            asked = list(permutations(letters, questions))
            for order in asked:
                answers = "".join(f"{x}{told.count(x)}" for x in order)
                yield f"\n{''.join(told)}|{answers}", 1 / len(sizes) / len(letters) ** n / len(asked)


def parity(sizes: list[int]) -> Texts:
    for n in sizes:
        for number in range(2**n):
            yield f"\n{number:0{n}b}|{number.bit_count() % 2}", 1 / len(sizes) / 2**n


def three_things(sizes: list[int]) -> Texts:
    moves = {"a": "123", "b": "132", "c": "213", "d": "231", "e": "312", "f": "321"}  # whose things come where
    for n in sizes:
        for told in product(moves, repeat=n):
            things = "123"
            for move in told:
                things = "".join(things[int(place) - 1] for place in moves[move])
            yield f"\n{''.join(told)}|{things}", 1 / len(sizes) / 6**n


def facts(sizes: list[int], subjects: int, relations: str, exponent: float) -> Texts:
    made = Facts(Facts.Config(subjects=subjects, relations=len(relations), questions=tuple(sizes), exponent=exponent))
    heaviness = [rank**-exponent for rank in range(1, subjects + 1)]
    for n in sizes:
        for (name, (_, values)), heavy in zip(made.facts.items(), heaviness):
            for order in permutations(range(len(relations)), n):
                chance = heavy / sum(heaviness) / len(sizes) / math.perm(len(relations), n)
                end = "." if n < max(sizes) else ""
                yield f"\n{name}|" + "".join(relations[i] + values[i] for i in order) + end, chance


SMALL: dict[str, tuple[dict[str, Any], Callable[[], Texts]]] = {
    "facts": (
        {"questions": [1, 3], "subjects": 5, "relations": 3, "exponent": 1.5},
        lambda: facts([1, 3], 5, RELATIONS[:3], 1.5),
    ),
    "recall": ({"pairs": [1, 3], "keys": 3, "values": 2, "questions": 2}, lambda: recall([1, 3], "abc", "AB", 2)),
    "latest": ({"writes": [2, 3], "keys": 2, "values": 3, "questions": 2}, lambda: latest([2, 3], "ab", "ABC", 2)),
    "induction": ({"length": [3, 4], "vocabulary": 5, "span": 2}, lambda: induction([3, 4], "abcde", 2)),
    "copying": ({"length": [1, 3], "vocabulary": 3}, lambda: copying([1, 3], "abc")),
    "needle": ({"distance": [1, 3], "vocabulary": 2, "values": 3, "before": 2}, lambda: needle([1, 3], "ab", "ABC", 2)),
    "counting": ({"length": [2, 4], "vocabulary": 3, "questions": 2}, lambda: counting([2, 4], "abc", 2)),
    "parity": ({"length": [1, 2, 5]}, lambda: parity([1, 2, 5])),
    "permutations": ({"length": [1, 3]}, lambda: three_things([1, 3])),
}


def test_every_task_is_among_the_small_ones() -> None:
    assert SMALL.keys() == {k for k, made in Task.kinds.items() if made.__module__.startswith("minigpt.")}


@pytest.mark.parametrize("kind", SMALL)
def test_every_probability_is_that_of_all_texts_written_out(kind: str) -> None:
    options, written = SMALL[kind]
    texts, beginnings = Counter[str](), Counter[str]()
    for text, chance in written():
        texts[text] += chance  # type: ignore[assignment]
    assert sum(texts.values()) == pytest.approx(1)
    for text, chance in texts.items():
        for end in range(len(text) + 1):
            beginnings[text[:end]] += chance
    told = task(kind, **options)
    for text in sorted(texts)[:: max(1, len(texts) // 300)]:
        reading = told.read(text)
        exact = [beginnings[text[: end + 1]] / beginnings[text[:end]] for end in range(len(text))]
        assert reading.ideal == pytest.approx(exact)
        for place, odds in enumerate(reading.support):
            assert sum(odds.values()) == pytest.approx(1)
            assert all(beginnings[text[:place] + letter] > 0 for letter in odds)
    assert set(told.tell(0, 200)) <= texts.keys()


@pytest.mark.parametrize("kind", SMALL)
def test_the_answers_are_determined_and_they_alone_are_asked(kind: str) -> None:
    told = task(kind, **COUNTS)
    names: set[str] = set()
    for text in told.texts()[-60:]:
        reading = told.read(text)
        remembered = [place for place, name in enumerate(reading.takes) if name not in ("free", "local")]
        assert remembered and remembered == list(range(len(text)))[told.answers(text)]
        for place in remembered:
            assert reading.ideal[place] == 1 > reading.forgetful[place] > 0
            names.add(reading.takes[place])
        assert len({reading.takes[place] for place in remembered}) == 1  # the size of the text, or its subject's rank
    missing = set(told.takes[2:]) - names
    assert names <= set(told.takes) and (not missing or kind == "facts")  # rare subjects are not in 60 texts
    begun = told.read("\n" + told.beginning(1)).ideal
    assert all(begun) and len(begun) == 1 + len(told.beginning(1)) > 1


def test_facts_are_the_same_in_all_texts_and_the_first_ones_are_frequent() -> None:
    """In proportion to rank^-exponent; another seed tells other texts of the same facts, another world has others."""
    told = task("facts", subjects=64, exponent=1.2, count=6000, validation=1000)
    known: dict[str, str] = {}
    for text in [*told.texts(), *task("facts", subjects=64, exponent=1.2, seed=5, **COUNTS).texts()]:
        subject, asked = text[1:].split("|")
        for relation, value in zip(asked[::2], asked[1::2]):
            assert known.setdefault(subject + relation, value) == value
    other = task("facts", subjects=64, world=1, **COUNTS)
    assert isinstance(told, Facts) and isinstance(other, Facts) and told.facts != other.facts
    subjects = Counter(text[1:3] for text in told.texts())
    shares = [rank**-1.2 for rank in range(1, 65)]
    for rank, name in enumerate(list(told.facts)[:4], 1):
        assert subjects[name] / 6000 == pytest.approx(rank**-1.2 / sum(shares), rel=0.15)
    assert told.takes == ("free", "local", "subjects to 16", "subjects to 64")


@pytest.mark.parametrize("kind", SMALL)
def test_texts_depend_on_the_seed_and_their_number(kind: str) -> None:
    few, many = task(kind, **COUNTS).texts(), task(kind, count=300, validation=60).texts()
    assert few[:180] == many[:180] and few[-60:] == many[-60:]
    assert task(kind, **COUNTS, seed=1).texts() != few
    assert all(text.startswith("\n") and text.count("\n") == 1 for text in few)


def test_a_mixture_has_as_many_texts_of_each_size() -> None:
    sizes = Counter(len(text.split("|")[0]) - 1 for text in task("parity", length=[1, 2, 5]).tell(0, 3000))
    assert sizes.keys() == {1, 2, 5} and all(count == pytest.approx(1000, abs=100) for count in sizes.values())


def test_the_sizes_for_validation_may_be_larger() -> None:
    told = task("recall", pairs=[2], validation_sizes=[2, 9], **COUNTS)
    sizes = [len(text.split("|")[0]) // 2 for text in told.texts()]
    assert set(sizes[:-60]) == {2} and set(sizes[-60:]) == {2, 9}
    assert told.takes == ("free", "local", "2 pairs", "9 pairs")


# --------------------------------------------------------------------------------------------------------- training


def material(kind: str, block_size: int = 130, **options: Any) -> tuple[Task, Dataset, Char]:
    told = task(kind, **COUNTS, **options)
    config = DataConfig(source=told.config, windows="documents")
    corpus = open_corpus(config.source)
    tokenizer = Char.fit(Char.Config(), corpus.documents())
    return told, Dataset(config, corpus, tokenizer, block_size), tokenizer


@pytest.mark.parametrize("kind", SMALL)
def test_the_targets_are_the_answers_in_training_and_in_validation(kind: str) -> None:
    told, dataset, tokenizer = material(kind)
    texts = told.texts()
    answers = {text: text[told.answers(text)] for text in texts}
    x, y = dataset.batch("train", 3, 40, 1)
    assert x.shape == y.shape and x.shape[1] <= max(map(len, texts))  # not wider than the longest text
    for inputs, targets in zip(x, y):
        text = "\n" + tokenizer.decode(inputs.tolist()).split("\n")[1]
        found = tokenizer.decode(targets[targets != IGNORED].tolist())
        [whole] = {known for known in answers if known.startswith(text)} if text not in answers else {text}
        assert found == answers[whole]
    asked = [targets[targets != IGNORED] for _, y in dataset.windows("val", 7) for targets in y]
    assert [tokenizer.decode(some.tolist()) for some in asked] == [answers[text] for text in texts[-60:]]


class Answering(GPT):
    """A model that gives the next answer of a list the probability p, and shares the rest among all others."""

    def __init__(self, answers: list[int], vocab_size: int, p: float):
        super().__init__(ModelConfig(n_layer=1, n_embd=8, block_size=130), vocab_size)
        self.answers, self.p = iter(answers), p
        self.masks: list[Tensor] = []

    def forward(self, ids: Tensor, cache: object = None) -> Tensor:
        odds = torch.full((*ids.shape, self.vocab_size), (1 - self.p) / (self.vocab_size - 1))  # (B, T, V)
        for b, t in self.masks.pop(0).nonzero().tolist():
            odds[b, t, next(self.answers)] = self.p
        return odds.log()


@pytest.mark.parametrize(("p", "accuracy"), [(0.999, 1.0), (0.001, 0.0)])
def test_the_loss_is_that_of_the_answers_and_the_floor_is_zero(p: float, accuracy: float) -> None:
    told, dataset, tokenizer = material("recall", pairs=[2, 4], validation_sizes=[2, 4, 8])
    expected, config = expectations(open_corpus(told.config), tokenizer), TrainingConfig(batch_size=16)
    assert expected is not None and expected.floor == 0
    targets = [y[y != IGNORED] for _, y in dataset.windows("val", 16)]
    model = Answering(torch.cat(targets).tolist(), tokenizer.vocab_size, p)
    model.masks = [y != IGNORED for _, y in dataset.windows("val", 16)]
    found = score(predict(model, dataset, config, expected), expected)
    assert found.loss == found.above == pytest.approx(-math.log(p), rel=1e-3)
    assert list(found.names) == ["2 pairs", "4 pairs", "8 pairs"]
    assert {row.accuracy for row in found.names.values()} == {accuracy}
    assert found.forgetful == pytest.approx(math.log(26)) and found.characters == len(torch.cat(targets))
    other = GPT(ModelConfig(n_layer=1, n_embd=8, block_size=130), tokenizer.vocab_size)
    loss = score(predict(other, dataset, config, expected), expected).loss
    assert evaluate(other, dataset, "val", config) == pytest.approx(loss, rel=1e-5)


RUN: dict[str, Any] = {
    "data": {"source": {"kind": "latest", "writes": [4], "validation_sizes": [4, 8], **COUNTS}, "windows": "documents"},
    "model": {"n_layer": 1, "n_embd": 8, "block_size": 40},
    "training": {"max_steps": 4, "batch_size": 8, "eval_every": 2, "sample_every": 2, "schedule": "constant"},
}


def test_a_run_goes_on_bit_for_bit_and_says_what_it_remembers(capsys: pytest.CaptureFixture[str]) -> None:
    half = RUN | {"training": RUN["training"] | {"max_steps": 2}}
    straight, first = (start(from_dict(RunConfig, run), "one", [], False) for run in (RUN, half))
    straight.fit()
    first.fit()
    second = resume(first.run.folder, ["training.max_steps=4"], [], False, False)
    second.fit()
    assert second.history.evaluations == straight.history.evaluations
    for one, other in zip(straight.run.model.parameters(), second.run.model.parameters()):
        assert torch.equal(one, other)
    said = capsys.readouterr().out
    assert "240 texts made by minigpt/languages/tasks" in said
    assert "above the floor" in straight.verdict() and "8 writes" in straight.verdict()
    assert list((Path("data") / "cache").iterdir())  # the ids were cached, and used again


def test_a_sample_without_a_prompt_is_a_question_and_its_answer() -> None:
    run = start(from_dict(RunConfig, RUN), "asks", [], False).run
    assert run.usual_loss() is None  # that of the answers says nothing of what a question costs
    text = run.generate(seed=3)
    told, asked = text.split("|")
    assert len(told) in (8, 16) and len(asked) == 2 and asked[0] in told
    assert run.generate("aTbQ|b", max_tokens=1)[:6] == "aTbQ|b"


def test_a_comparison_shows_each_size_and_what_is_not_asked(tmp_path: Path) -> None:
    source = "{kind: parity, length: [3], validation_sizes: [3, 6], count: 200, validation: 50}"
    summary = finished(small(tmp_path, SMALL_TASK.replace("SOURCE", source)))[0]
    assert summary["names"] == ["3 bits", "6 bits"] and summary["floor"] == 0
    shown = summary["example"]["variants"]["one"]["probabilities"]
    assert shown[:-1] == [None] * (len(shown) - 1) and 0 < shown[-1] < 1
    page = (tmp_path / "runs" / "compare" / "small" / "page.html").read_text("utf-8")
    assert 'title="|: not asked"' in page and "<th>6 bits</th>" in page


SMALL_TASK = """
compare: {baseline: one, seeds: [1]}
variants:
  one: {model.attention: single_head}
data: {source: SOURCE, windows: documents}
model: {n_layer: 1, n_embd: 8, block_size: 16}
training: {max_steps: 4, batch_size: 8, eval_every: 2, device: cpu}
"""

# --------------------------------------------------------------------------------------------------------- options


def test_a_task_is_named_alone_or_with_options(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("data: {source: needle, windows: documents}")
    alone = load(RunConfig, path)
    assert alone.data.source == Task.kinds["needle"].Config()
    farther = load(RunConfig, path, ["data.source.distance=[7]"])
    assert farther.data.source == replace(alone.data.source, distance=(7,))  # type: ignore[type-var]
    path.write_text(to_yaml(farther))
    assert load(RunConfig, path) == farther
    path.write_text("data: {source: needles.txt}")
    assert load(RunConfig, path).data.source == "needles.txt"
    assert open_corpus("parity").language == task("parity")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            {"kind": "recall", "keys": 8, "pairs": [4, 9]},
            "pairs: 9: with the other options, expected pairs from 1 to 8",
        ),
        ({"kind": "recall", "keys": 8, "pairs": [4], "validation_sizes": [70]}, "validation_sizes: 70: with the other"),
        ({"kind": "induction", "length": [4]}, "length: 4: with the other options, expected length from 5 to 64"),
        ({"kind": "counting", "length": [162]}, "expected length from 1 to 161"),
        ({"kind": "parity", "count": 9, "validation": 9}, "9 of 9 texts for validation leave none to train on"),
        ({"kind": "parity", "pairs": [4]}, "unknown key"),
        ({"kind": "paritty"}, "did you mean 'parity'"),
        (7, "expected text, or one of facts, recall"),
    ],
)
def test_what_cannot_be_told_is_refused(source: Any, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_dict(DataConfig, {"source": source, "windows": "documents"})
    assert what in str(refused.value)


def test_a_task_is_seen_whole() -> None:
    with pytest.raises(ConfigError, match="the texts of a task are seen whole: expected documents, found random"):
        DataConfig(source="parity")
    with pytest.raises(
        UserError, match=r"model.block_size: a text of parity has 19 characters, 18 fit .* set it to 19"
    ):
        material("parity", block_size=18)
    assert material("parity", block_size=19)[1].block_size == 19
    config = DataConfig(source=task("induction", count=2000).config, windows="documents")
    corpus = open_corpus(config.source)
    with pytest.raises(UserError, match=r"the answers of induction are single characters.*data.tokenizer=char"):
        Dataset(config, corpus, Byte(), 130)
    with pytest.raises(UserError, match=r"set data.source.validation, now 1,000 texts"):
        Dataset(replace(config, validation=0.5), corpus, Char.fit(None, corpus.documents()), 130)
