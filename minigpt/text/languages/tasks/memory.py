"""Tasks of memory: to find something again by its name, by its place, or over a distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from minigpt.config.options import Range
from minigpt.text.languages.tale import Known, TextGenerator
from minigpt.text.languages.tasks.base import LETTERS, VALUES, Letters, Size, Task, until_the_end

Keys = Annotated[int, Range(2, len(LETTERS))]
Values = Annotated[int, Range(2, len(VALUES))]
Questions = Annotated[int, Range(1, len(LETTERS))]


class Recall(Task, kind="recall"):
    """`eTbAkQ|bAkQ`: the value of a key. Multi-query associative recall (Zoology, arXiv 2312.04927)."""

    size, label, answers_at = "pairs", "{} pairs", (2, 2)
    alphabet = VALUES

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        pairs: tuple[Size, ...] = (4, 8, 16)
        """How many pairs of a key and its value a text tells; all keys differ."""
        questions: Questions = 8
        """How many keys are asked for, each once; a text with fewer pairs asks for all of them."""
        keys: Keys = 64
        """How many keys there are to choose from."""
        values: Values = len(VALUES)
        """How many values there are to choose from."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 1, self.config.keys

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        return values_of_keys(self, sizes, distinct=True)


def values_of_keys(task: Recall | Latest, sizes: Sequence[int], distinct: bool = False) -> TextGenerator:
    """Keys with their values; then some of the keys, each once, and the value that was last told of it."""
    values = Letters(task.alphabet[: task.config.values])
    yield "\n"
    sequence, value_of = yield from until_the_end(LETTERS[: task.config.keys], sizes, values=values, distinct=distinct)
    keys = list(value_of)
    for _ in range(min(task.config.questions, len(value_of))):
        key = yield Letters("".join(keys))
        keys.remove(key)
        yield Known(task.label.format(len(sequence)), value_of[key], values)


class Latest(Task, kind="latest"):
    """`aTbAaQbK|aQbK`: the value that was last written to a key. What was written before has to be forgotten."""

    size, label, answers_at = "writes", "{} writes", (2, 2)
    alphabet = VALUES

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        writes: tuple[Size, ...] = (8, 16, 24)
        """How many times a value is written to a key."""
        questions: Questions = 8
        """How many keys are asked for, each once; fewer where fewer were written to."""
        keys: Keys = 8
        """How many keys there are."""
        values: Values = len(VALUES)
        """How many values there are to choose from."""

    config: Config

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        return values_of_keys(self, sizes)


class Induction(Task, kind="induction"):
    """`kpazehb|azehb`: what followed this letter? All letters differ (induction heads, arXiv 2209.11895)."""

    answers_at = (2, 1)

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (8, 16, 32)
        """How many letters a text tells."""
        span: Annotated[int, Range(1, len(LETTERS) - 1)] = 4
        """How many letters are asked for after the one that is given."""
        vocabulary: Keys = 64
        """How many letters there are to choose from."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return self.config.span + 1, self.config.vocabulary

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        letters, span = LETTERS[: self.config.vocabulary], self.config.span
        yield "\n"
        sequence, _ = yield from until_the_end(letters, sizes, distinct=True)
        start = yield Letters(sequence[: len(sequence) - span])
        first = sequence.index(start) + 1
        for letter in sequence[first : first + span]:
            yield Known(self.label.format(len(sequence)), letter, Letters(letters))


class Copying(Task, kind="copying"):
    """`kpapz|kpapz`: the same again, from the beginning (arXiv 2402.01032)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (4, 8, 16)
        """How many letters a text tells; a letter may come again."""
        vocabulary: Keys = 26
        """How many letters there are to choose from."""

    config: Config

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        letters = LETTERS[: self.config.vocabulary]
        yield "\n"
        sequence, _ = yield from until_the_end(letters, sizes)
        for letter in sequence:
            yield Known(self.label.format(len(sequence)), letter, Letters(letters))


class Needle(Task, kind="needle"):
    """`sr=Qkdjfo|Q`: one value among letters that do not matter, some distance before the question."""

    size, label = "distance", "distance {}"

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        distance: tuple[Size, ...] = (4, 16, 32)
        """How many letters are between the value and the question."""
        before: Annotated[int, Range(0, 4096)] = 8
        """At most this many letters come before the value."""
        vocabulary: Keys = 26
        """How many letters there are to choose from."""
        values: Values = len(VALUES)
        """How many values there are to choose from."""

    config: Config

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        letters, values = LETTERS[: self.config.vocabulary], Letters(VALUES[: self.config.values])
        yield "\n"
        yield from until_the_end(letters, range(self.config.before + 1), "=")
        needle = yield values
        between, _ = yield from until_the_end(letters, sizes)
        yield Known(self.label.format(len(between)), needle, values)
