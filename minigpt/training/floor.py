"""Above the floor: how far a model is from the best possible reader of the stories, and what it does not remember.

Every character of the validation stories has a name (what it takes to predict it) and two prices, those of the ideal
and of the forgetful reader (`languages/reader.py`). So a model's loss, in nats a character, is split exactly:

    loss = floor + above           above = the sum of the gaps of all names
    remembered = 1 - gap / price   of a name: 1 for the ideal reader, 0 for the forgetful one, negative for a worse one

N targets of the validation split, in the order of the text   B windows   T positions   V vocabulary
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.languages.reader import TAKES, Reading, read
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.corpus import Corpus
from minigpt.text.dataset import IGNORED, Dataset
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.loop import TrainingConfig, mixed_precision

Numbers = npt.NDArray[np.float64]
MEMORY = tuple(takes for takes in TAKES if takes not in ("free", "local"))  # names that have a price of forgetting


@dataclass(frozen=True)
class Expected:
    """What both readers say about each target of the validation stories."""

    takes: npt.NDArray[np.int64]  # (N,): the name of each target, as its place in TAKES
    ideal: Numbers  # (N,): nats that the ideal reader pays
    forgetful: Numbers  # (N,): nats that the forgetful reader pays
    support: npt.NDArray[np.bool_]  # (N,V): the characters that the ideal reader thinks possible

    @property
    def floor(self) -> float:
        """The loss of the ideal reader, in nats a character: the best possible."""
        return float(self.ideal.mean())

    def first(self, n: int) -> Expected:
        """The same for the first n targets."""
        return Expected(self.takes[:n], self.ideal[:n], self.forgetful[:n], self.support[:n])


@dataclass(frozen=True)
class Paid:
    """What a model paid for the same targets."""

    nats: Numbers  # (N,)
    hit: npt.NDArray[np.bool_]  # (N,): whether its likeliest character is the right one
    possible: Numbers  # (N,): the probability that it gives to the characters that are possible


@dataclass(frozen=True)
class Remembered:
    """How well a model predicts the targets of one name."""

    characters: int
    accuracy: float  # share of targets guessed; of `free` ones, the probability given to what can come
    gap: float  # nats a character of this name above the ideal reader
    price: float  # nats a character of this name that the forgetful reader pays above it
    remembered: float | None  # 1 - gap / price; None where forgetting costs nothing that is measured


@dataclass(frozen=True)
class Score:
    """The validation loss and its parts, in nats a character; without a known floor, the loss alone."""

    loss: float
    characters: int
    floor: float | None = None
    forgetful: float | None = None  # what the forgetful reader pays above the floor
    above: float | None = None
    names: dict[str, Remembered] = field(default_factory=dict)


def expectations(corpus: Corpus, tokenizer: Tokenizer) -> Expected | None:
    """What the readers say about the validation stories; None for another corpus, or if an id is not a character.

    The targets are all characters of the validation stories but the newline that begins the first.
    """
    told = corpus.stories
    if told is None:
        return None
    texts = list(corpus.documents())[-told.validation :]
    ids = [tokenizer.encode(text) for text in texts]  # (characters,) each
    if any(len(i) != len(text) for i, text in zip(ids, texts)):
        return None
    shown = progress(texts, "reading the validation stories", len(texts), "stories")
    readings = [read(text, told.scenes, told.made_up_names) for text in shown]
    letters = _ids_of({letter for reading in readings for options in reading.support for letter in options}, tokenizer)
    support = np.zeros((sum(map(len, texts)), tokenizer.vocab_size), np.bool_)  # (N + 1, V)
    for place, options in enumerate(options for reading in readings for options in reading.support):
        support[place, [letters[letter] for letter in options if letter in letters]] = True
    takes = np.array([TAKES.index(name) for reading in readings for name in reading.takes])  # (N + 1,)
    ideal = -np.log([p for reading in readings for p in reading.ideal])  # (N + 1,)
    forgetful = -np.log([p for reading in readings for p in reading.forgetful])  # (N + 1,)
    return Expected(takes[1:], ideal[1:], forgetful[1:], support[1:])


def _ids_of(letters: set[str], tokenizer: Tokenizer) -> dict[str, int]:
    """The id of each letter; one that the corpus never had has none, and no model can say it."""
    found = {}
    for letter in letters:
        with suppress(UserError):
            found[letter] = int(tokenizer.encode(letter)[0])
    return found


@torch.no_grad()
def pay(
    model: GPT, dataset: Dataset, config: TrainingConfig, expected: Expected | None, batches: int | None = None
) -> Paid:
    """Read the validation split, or its first batches, in windows side by side."""
    support = None if expected is None else torch.from_numpy(expected.support)  # (N, V)
    nats, hit, possible, done = [], [], [], 0
    precision = mixed_precision(config, model)
    with eval_mode(model):
        for x, y in islice(dataset.windows("val", config.batch_size), batches):
            with precision:
                logits = model(x.to(model.device))  # (B, T, V)
            asked = y != IGNORED  # (B, T)
            log_p = logits[asked.to(model.device)].float().log_softmax(-1).cpu()  # (n, V): row by row, as the text goes
            targets = y[asked]  # (n,)
            nats.append(-log_p.gather(1, targets[:, None])[:, 0])  # (n,)
            hit.append(log_p.argmax(-1) == targets)  # (n,)
            p = log_p.exp() if support is None else log_p.exp() * support[done : done + len(targets)]  # (n, V)
            possible.append(p.sum(-1))  # (n,)
            done += len(targets)
    return Paid(_joined(nats).astype(np.float64), _joined(hit), _joined(possible).astype(np.float64))


def _joined(pieces: list[Tensor]) -> Any:
    return torch.cat(pieces).numpy()  # (N,)


def score(paid: Paid, expected: Expected | None, characters: int | None = None) -> Score:
    """The loss over the targets that were paid for, above the floor of exactly these.

    `characters` is how many characters the targets are, where a token is not one character.
    """
    n = len(paid.nats)
    loss = float(paid.nats.sum()) / (characters or n)
    if expected is None:
        return Score(loss, characters or n)
    seen = expected.first(n)
    floor, forgetful = float(seen.ideal.sum()) / n, float(seen.forgetful.sum()) / n
    names = {name: _remembered(paid, seen, seen.takes == place, name) for place, name in enumerate(TAKES)}
    return Score(loss, n, floor, forgetful - floor, loss - floor, {k: row for k, row in names.items() if row})


def describe(found: Score) -> str:
    """A score with a known floor in plain words: the distance, and what was remembered, name by name."""
    lines = [
        f"above the floor: {found.above:.4f} nats a character (the ideal reader, who remembers the whole story, pays "
        f"{found.floor:.4f}; the forgetful one {found.forgetful:.4f} more)",
        f"{'to predict it takes':>20}  {'accuracy':>8}  {'remembered':>10}  characters",
    ]
    for name, row in found.names.items():
        remembered = "" if row.remembered is None else f"{row.remembered:.3f}"
        lines.append(f"{name:>20}  {row.accuracy:>8.3f}  {remembered:>10}  {row.characters:>10,}")
    return "\n".join(lines)


def _remembered(paid: Paid, expected: Expected, mine: npt.NDArray[np.bool_], name: str) -> Remembered | None:
    """The same for the targets that are `mine` (N,); None where there are none."""
    count = int(mine.sum())
    if not count:
        return None
    accuracy = paid.possible[mine].mean() if name == "free" else paid.hit[mine].mean()
    gap = (paid.nats[mine] - expected.ideal[mine]).mean()
    price = (expected.forgetful[mine] - expected.ideal[mine]).mean()
    remembered = float(1 - gap / price) if name in MEMORY else None
    return Remembered(count, float(accuracy), float(gap), float(price), remembered)


@torch.no_grad()
def read_aloud(model: GPT, tokenizer: Tokenizer, text: str) -> list[float]:
    """The probability that a model gives to each character of a story after the first (its newline)."""
    ids = torch.from_numpy(tokenizer.encode(text)).long()[None].to(model.device)  # (1, T)
    with eval_mode(model):
        p = model(ids[:, :-1]).float().softmax(-1)  # (1, T - 1, V)
    return p.gather(2, ids[:, 1:, None])[0, :, 0].tolist()


def example(corpus: Corpus) -> tuple[str, Reading] | None:
    """The first validation story, and how the readers read it."""
    told = corpus.stories
    if told is None:
        return None
    text = list(corpus.documents())[-told.validation]
    return text, read(text, told.scenes, told.made_up_names)
