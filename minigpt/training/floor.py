"""Above the floor: how far a model's loss is above that of the best possible reader, and what it does not remember.

Every character of the validation texts has a name (what it takes to predict it) and two known losses, those of the
ideal and of the forgetful reader (`text/languages/reader.py`). So a model's loss, in nats a character, is split
exactly:

    loss = floor + above           floor: the loss of the ideal reader
    remembered = 1 - gap / price   for one name; gap: model - ideal reader, price: forgetful - ideal reader
                                   1 for the ideal reader, 0 for the forgetful one, negative for a worse one

N targets of the validation split, in the order of the text   B windows   T positions   V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.chat import Talking
from minigpt.text.corpus import Corpus
from minigpt.text.dataset import IGNORED, Dataset
from minigpt.text.languages.reader import Reading
from minigpt.text.languages.tasks.talks import Talks, kinds_of
from minigpt.text.talks import turns_of
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.loop import TrainingConfig, mixed_precision

Numbers = npt.NDArray[np.float64]
NO_MEMORY = ("free", "local")  # for all other names, forgetting has a price
CHANCE = 1e-6  # the probability of a false warning, at one evaluation


@dataclass(frozen=True)
class Expected:
    """What both readers predict for each target of the validation texts."""

    names: tuple[str, ...]  # what it can take to predict a target
    takes: npt.NDArray[np.int64]  # (N,): the name of each target, as an index into `names`
    ideal: Numbers  # (N,): the ideal reader's loss, in nats
    forgetful: Numbers  # (N,): the forgetful reader's loss, in nats
    support: npt.NDArray[np.bool_] | None  # (N, V): what the ideal reader gives a probability; None: the targets alone
    answers: npt.NDArray[np.int64] | None = None  # (answers,): where each begins, if one may have several targets

    @property
    def floor(self) -> float:
        """The loss of the ideal reader, in nats a character: the best possible."""
        return float(self.ideal.mean())

    def first(self, n: int) -> Expected:
        """The expectations for the first n targets only."""
        support = None if self.support is None else self.support[:n]  # (n, V)
        answers = None if self.answers is None else self.answers[self.answers < n]
        return Expected(self.names, self.takes[:n], self.ideal[:n], self.forgetful[:n], support, answers)


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for these targets, or for the first of them."""

    losses: Numbers  # (N,), in nats
    hit: npt.NDArray[np.bool_]  # (N,): whether the target is its likeliest character
    possible: Numbers  # (N,): the probability that it gives to the characters that are possible


@dataclass(frozen=True)
class Remembered:
    """How well a model predicts the targets of one name."""

    characters: int
    accuracy: float  # share of right likeliest characters, or answers; of `free` ones, the probability of all possible
    gap: float  # nats a character above the ideal reader
    price: float  # nats a character by which the forgetful reader is above the ideal one
    remembered: float | None  # 1 - gap / price; None for those of NO_MEMORY


@dataclass(frozen=True)
class Score:
    """The validation loss and its parts, in nats a character; without a known floor, the loss alone; and the same in
    bits for each byte of text, without the targets that stand for no text."""

    loss: float
    characters: int
    floor: float | None = None
    forgetful: float | None = None  # how far the forgetful reader is above the floor
    above: float | None = None  # loss - floor
    names: dict[str, Remembered] = field(default_factory=dict)
    bits_per_byte: float | None = None

    @property
    def impossible(self) -> bool:
        """Whether the loss is below the floor by more than chance."""
        return self.above is not None and is_impossible(self.above, self.characters)


def is_impossible(above: float, targets: int) -> bool:
    """Whether a mean loss over `targets` targets is below the floor by more than chance; `above` is loss - floor.

    The texts are drawn with the ideal reader's probabilities p. Take a model that has not learned from them and sees
    only the past. Whatever probabilities q it gives, the mean of q / p is at most 1, so by Markov's inequality q / p is
    at least 1 / CHANCE for a share of CHANCE of the texts at most. For those texts, the loss is
    floor - ln(1 / CHANCE) / targets or less.
    """
    return above * targets < math.log(CHANCE)


def height(above: float, targets: int) -> str:
    """How far a loss is above the floor, as text."""
    return f"{above:.4f} above the floor" + (", which is impossible" if is_impossible(above, targets) else "")


def explain_impossible(above: float) -> str:
    """What an impossible loss means, as text."""
    return (
        f"impossible: the validation loss is {-above:.4f} nats a character below the floor. A model that sees only the "
        f"past has such luck less than once in {1 / CHANCE:,.0f} evaluations. Likely causes: an attention sees the "
        "future in a way that no check has found; the targets are among the inputs; the floor is that of another text"
    )


def expectations(corpus: Corpus, tokenizer: Tokenizer) -> Expected | None:
    """What the readers predict for the validation texts; None for a corpus without a known floor, or if an id that is
    a target is not a character.

    The targets of a task are its answers; of other texts, all characters except the newline that begins the first text.
    """
    language = corpus.language
    if language is None:
        return None
    if isinstance(language, Talks):
        return _of_talks(corpus, language, Talking(tokenizer))
    texts = list(corpus.documents())[-language.config.validation :]
    ids = [tokenizer.encode(text) for text in texts]  # (characters,) each
    if any(len(i) != len(text) for i, text in zip(ids, texts)):
        return None
    if tokenizer.end_of_text is not None and language.answers(texts[0]) is None:  # it is a target too
        return None
    watched = progress(texts, f"reading the validation {language.plural}", len(texts), language.plural)
    scored = [language.answers(text) or slice(not number, None) for number, text in enumerate(texts)]
    readings = [language.read(text).part(part) for text, part in zip(watched, scored)]
    letters = _ids_of({letter for reading in readings for options in reading.support for letter in options}, tokenizer)
    targets = sum(len(reading.takes) for reading in readings)
    support, row = np.zeros((targets, tokenizer.vocab_size), np.bool_), 0  # (N, V)
    for reading in progress(readings, "listing the possible characters", len(readings), language.plural):
        for options in reading.support:
            support[row, [letters[letter] for letter in options if letter in letters]] = True
            row += 1
    takes = np.array([language.takes.index(name) for reading in readings for name in reading.takes])  # (N,)
    ideal = -np.log([p for reading in readings for p in reading.ideal])  # (N,)
    forgetful = -np.log([p for reading in readings for p in reading.forgetful])  # (N,)
    return Expected(language.takes, takes, ideal, forgetful, support)


def _of_talks(corpus: Corpus, language: Talks, talking: Talking) -> Expected:
    """What the readers predict for the answers of the validation talks, each with its end."""
    sizes, kinds = list[int](), list[tuple[str, int]]()
    for document in list(corpus.documents())[-language.config.validation :]:
        _, taught = talking.ids(turns := turns_of(document))  # (ids of the talk,)
        edges = np.flatnonzero(np.diff(taught.astype(np.int8), prepend=0, append=0))  # where answers begin and end
        sizes, kinds = [*sizes, *(edges[1::2] - edges[::2]).tolist()], kinds + kinds_of(turns)
    begins = np.cumsum([0, *sizes])[:-1]  # (answers,)
    forgetful = np.zeros(sum(sizes))  # (N,)
    forgetful[begins] = np.log([choices for _, choices in kinds])
    takes = np.repeat([language.takes.index(name) for name, _ in kinds], sizes)  # (N,)
    return Expected(language.takes, takes, np.zeros(sum(sizes)), forgetful, None, begins)


def _ids_of(letters: set[str], tokenizer: Tokenizer) -> dict[str, int]:
    """The id of each letter that the tokenizer knows."""
    ids = {}
    for letter in letters:
        with suppress(UserError):
            ids[letter] = int(tokenizer.encode(letter)[0])
    return ids


def predict(
    model: GPT, dataset: Dataset, config: TrainingConfig, expected: Expected | None, batches: int | None = None
) -> Predictions:
    """Predict every target of the validation split, or with `batches` of its first batches; windows do not overlap."""
    predictions: Iterator[Predictions] = islice(predict_batches(model, dataset, config, expected), batches)
    if batches is None:
        batch_count = -(-dataset.window_count("val") // config.batch_size)
        predictions = progress(predictions, "measuring what is above the floor", batch_count, "batches")
    return joined(list(predictions))


@torch.no_grad()
def predict_batches(
    model: GPT, dataset: Dataset, config: TrainingConfig, expected: Expected | None
) -> Iterator[Predictions]:
    """Yield the predictions for each batch of the validation split, in the order of the text."""
    known = None if expected is None else expected.support
    support = None if known is None else torch.from_numpy(known)  # (N, V)
    precision, done = mixed_precision(config, model), 0
    with eval_mode(model):
        for x, y in dataset.windows("val", config.batch_size):
            with precision:
                logits = model(x.to(model.device))  # (B, T, V)
            valid = y != IGNORED  # (B, T)
            log_p = logits[valid.to(model.device)].float().log_softmax(-1).cpu()  # (n, V): row by row, as the text goes
            targets = y[valid]  # (n,)
            losses = -log_p.gather(1, targets[:, None])[:, 0]  # (n,)
            p = log_p.exp() if support is None else log_p.exp() * support[done : done + len(targets)]  # (n, V)
            done += len(targets)
            hit, possible = log_p.argmax(-1) == targets, p.sum(-1)  # (n,) each
            yield Predictions(losses.numpy().astype(np.float64), hit.numpy(), possible.numpy().astype(np.float64))


def joined(parts: Sequence[Predictions]) -> Predictions:
    """The predictions of several batches, concatenated. Raises ValueError if there are none."""
    names = [field.name for field in fields(Predictions)]
    return Predictions(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def bits_per_byte(predictions: Predictions, dataset: Dataset) -> float | None:
    """Bits for each byte of text, over the targets of the validation split that were predicted and stand for text."""
    byte_counts = dataset.byte_counts[dataset.first_targets("val", len(predictions.losses))]  # (N,)
    total = math.fsum(predictions.losses[byte_counts > 0])
    return total / int(byte_counts.sum()) / math.log(2) if byte_counts.any() else None


def score(predictions: Predictions, expected: Expected | None, characters: int | None = None) -> Score:
    """The loss over the predicted targets, and how far it is above the floor of the same targets.

    `characters` is the number of characters in the targets, if a token is not one character.
    """
    n = len(predictions.losses)
    loss = float(predictions.losses.sum()) / (characters or n)
    if expected is None:
        return Score(loss, characters or n)
    part = expected.first(n)
    floor, forgetful = float(part.ideal.sum()) / n, float(part.forgetful.sum()) / n
    names = {name: _remembered(predictions, part, part.takes == index, name) for index, name in enumerate(part.names)}
    return Score(loss, n, floor, forgetful - floor, loss - floor, {k: row for k, row in names.items() if row})


def describe(result: Score, unit: str = "character") -> str:
    """A score with a known floor as text: its distance, and a line for each name. `unit`: of a target."""
    impossible = ", which is impossible" if result.impossible else ""
    counted = "answers" if unit == "token" else "characters"
    lines = [
        f"above the floor: {result.above:.4f} nats a {unit}{impossible} (the floor, {result.floor:.4f}, is the loss "
        f"of the ideal reader, who remembers the whole text; the forgetful reader's is {result.forgetful:.4f} higher)",
        f"{'to predict it takes':>20}  {'accuracy':>8}  {'remembered':>10}  {counted}",
    ]
    for name, row in result.names.items():
        remembered = "" if row.remembered is None else f"{row.remembered:.3f}"
        lines.append(f"{name:>20}  {row.accuracy:>8.3f}  {remembered:>10}  {row.characters:>10,}")
    return "\n".join(lines)


def _remembered(
    predictions: Predictions, expected: Expected, selected: npt.NDArray[np.bool_], name: str
) -> Remembered | None:
    """How well the targets are predicted for which `selected` (N,) is true; None if there are none."""
    count = int(selected.sum())
    if not count:
        return None
    accuracy = predictions.possible[selected].mean() if name == "free" else predictions.hit[selected].mean()
    if expected.answers is not None:  # an answer is right if all its targets are
        right = np.logical_and.reduceat(predictions.hit, expected.answers)[selected[expected.answers]]  # (answers,)
        count, accuracy = len(right), right.mean()
    gap = (predictions.losses[selected] - expected.ideal[selected]).mean()
    price = (expected.forgetful[selected] - expected.ideal[selected]).mean()
    remembered = float(1 - gap / price) if name not in NO_MEMORY else None
    return Remembered(count, float(accuracy), float(gap), float(price), remembered)


@torch.no_grad()
def character_probabilities(model: GPT, tokenizer: Tokenizer, text: str) -> list[float]:
    """The probability that a model gives to each character of a text after the first (its newline)."""
    ids = torch.from_numpy(tokenizer.encode(text)).long()[None].to(model.device)  # (1, T)
    with eval_mode(model):
        p = model(ids[:, :-1]).float().softmax(-1)  # (1, T - 1, V)
    return p.gather(2, ids[:, 1:, None])[0, :, 0].tolist()


def example(corpus: Corpus) -> tuple[str, Reading] | None:
    """The first validation text, and how the readers read it."""
    language = corpus.language
    if language is None or language.talks:
        return None
    text = list(corpus.documents())[-language.config.validation]
    return text, language.read(text)
