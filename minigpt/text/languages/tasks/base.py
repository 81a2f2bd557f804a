"""A task: texts that first tell something and then ask for it. A model is scored on the answers only.

    eTbAkQ|bAkQ      recall: what is the value of b, and of k?      the answers are A and Q
          |^ ^       before the bar and in the questions, characters are free: there is nothing to learn in them

A text has a size: how many pairs, letters or bits it tells, or over what distance. The sizes for training and those
for validation are options. An answer is labelled with the size of its text, so every figure is given for each size
separately. Texts of several sizes are mixed: wherever the first part of a text may end, the bar has the probability
that the sizes give it. So each character has an exact probability, as in the stories; that of an answer is 1.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar

from minigpt.config.options import Component, Natural, Range
from minigpt.system.errors import Mistake
from minigpt.system.waiting import progress
from minigpt.text.languages.language import Language
from minigpt.text.languages.reader import Reading, follow
from minigpt.text.languages.tale import Choice, Point, TextGenerator, TrieNode, tell

BAR = "|"  # between what is told and what is asked
DIGITS = "0123456789"
VALUES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LETTERS = "".join(chr(c) for first, last in ("az", "αω", "ая", "àÿ", "աֆ") for c in range(ord(first), ord(last) + 1))
LETTERS = "".join(letter for letter in LETTERS if letter.isalpha())  # this removes the division sign

Size = Annotated[int, Range(1, 4096)]


class Letters(Choice):
    """One of several single characters, all with the same probability; or `end`, with a probability of its own."""

    def __init__(self, letters: str, ending: float = 0.0, end: str = BAR):
        self.letters, self.ending, self.end, self.unrestricted = letters, ending, end, self

    def draw(self, random: Random) -> str:
        """Sample a character."""
        if self.ending and random.random() < self.ending:
            return self.end
        return self.letters[int(random.random() * len(self.letters))]

    @cached_property
    def trie(self) -> TrieNode:
        """The characters as a trie."""
        end = {self.end: self.ending} if self.ending else {}
        return TrieNode.of_letters(end | dict.fromkeys(self.letters, (1 - self.ending) / len(self.letters)))


def ending(size: int, sizes: Sequence[int]) -> float:
    """The probability that a text which has reached `size` ends there, if all `sizes` are equally frequent."""
    return sizes.count(size) / sum(other >= size for other in sizes)


def until_the_end(
    letters: str, sizes: Sequence[int], end: str = BAR, values: Choice | None = None, distinct: bool = False
) -> Generator[Point, str, tuple[str, dict[str, str]]]:
    """Any letters, as many as one of the sizes says, each with a value after it if there are values; then `end`.

    No letter comes twice if they are `distinct`. Returns the letters and {letter: its last value}.
    """
    sequence, value_of = "", dict[str, str]()
    while len(sequence) < max(sizes):
        candidates = "".join(x for x in letters if x not in sequence) if distinct else letters
        letter = yield Letters(candidates, ending(len(sequence), sizes), end)
        if letter == end:
            return sequence, value_of
        sequence += letter
        if values is not None:
            value_of[letter] = yield values
    yield end
    return sequence, value_of


@dataclass(frozen=True)
class Task(Language, Component):
    """The base of the tasks. A task defines `generator`, and where its answers are."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        """The options that all tasks have."""

        count: Annotated[int, Range(1, 1_000_000)] = 20_000
        """The number of texts, with those for validation."""
        validation: Annotated[int, Range(1, 20_000)] = 1_000
        """The number of texts for validation, made from another seed. A short one may be among those for training."""
        validation_sizes: tuple[Size, ...] | None = None
        """The sizes of the texts for validation, larger ones among them; by default those for training."""
        seed: Natural = 0
        """Equal seeds give equal texts. Those for validation do not change with `count`."""

        def mistakes(self) -> Iterator[Mistake]:
            if self.validation >= self.count:
                yield "validation", f"{self.validation} of {self.count} texts for validation leave none to train on"
            task = self.component(self)
            for option, sizes in (task.size, task.sizes), ("validation_sizes", task.new_sizes):
                low, high = task.possible
                if impossible := [size for size in sizes if not low <= size <= high]:
                    yield option, f"{impossible[0]}: with the other options, expected {task.size} from {low} to {high}"

    config: Config

    size: ClassVar[str] = "length"  # the option with the sizes for training
    label: ClassVar[str] = "{} letters"  # the name of an answer in a text of this size
    answers_at: ClassVar[tuple[int, int]] = (1, 1)  # the first answer after the bar, and the step to the next one

    plural = "texts"
    file = "minigpt/text/languages/tasks"

    def __init_subclass__(cls, kind: str = "") -> None:
        super().__init_subclass__(kind=kind)
        cls.name = kind

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the texts for training."""
        sizes: tuple[int, ...] = getattr(self.config, self.size)
        return sizes

    @property
    def new_sizes(self) -> tuple[int, ...]:
        """The sizes of the texts for validation."""
        return self.config.validation_sizes or self.sizes

    @property
    def possible(self) -> tuple[int, int]:
        """The smallest and the largest size that the other options allow."""
        return 1, 4096

    @property
    def takes(self) -> tuple[str, ...]:
        return "free", "local", *map(self.label.format, sorted({*self.sizes, *self.new_sizes}))

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        """A text of one of these sizes as a coroutine, with its leading newline."""
        raise TypeError(f"{type(self).__name__} must define generator(sizes)")

    def tell(self, seed: int, count: int) -> list[str]:
        return self._tell(seed, count, self.sizes)

    def tell_new(self, seed: int, count: int, training_texts: Sequence[str]) -> list[str]:
        """Texts of the sizes for validation, from another seed."""
        return self._tell(seed, count, self.new_sizes)

    def _tell(self, seed: int, count: int, sizes: Sequence[int]) -> list[str]:
        numbers = progress(range(count), f"telling {self.name}", count, "texts")
        return [tell(self.generator(sizes), Random(f"{seed} {number}")) for number in numbers]

    def read(self, text: str) -> Reading:
        """Read a text for validation, or the beginning of one."""
        return follow(text, self.generator(self.new_sizes))

    def question(self, seed: int) -> tuple[str, int]:
        [text] = self._tell(-1 - seed, 1, self.new_sizes)
        answers = range(len(text))[self.answers(text)]
        return text[: answers[0]], len(answers) if answers.step == 1 else 1

    def beginning(self, seed: int) -> str:
        """A question."""
        return self.question(seed)[0].lstrip("\n")

    def answers(self, text: str) -> slice:
        first, step = self.answers_at
        return slice(text.index(BAR) + first, None, step)
