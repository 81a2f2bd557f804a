"""A built-in language: it tells texts, and it reads them, with the exact probability of every character.

`data.source` names one. A language is the only source of the best possible loss: for the floor, a training's "above the
floor", a comparison's table and page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from minigpt.config.options import Natural, Options, Range
from minigpt.system.errors import Mistake
from minigpt.text.languages.reader import TAKES, Reading, read
from minigpt.text.languages.stories import stories


@dataclass(frozen=True)
class Language:
    """The base of the languages. Two with equal options are equal, and tell the same texts."""

    config: Any
    """Its options; `count` is the number of texts, `validation` how many of them are for validation, `seed` theirs."""

    name: ClassVar[str]
    """`data.source` of the config."""
    plural: ClassVar[str]
    """What its texts are called."""
    file: ClassVar[str]
    """Where they are made."""
    talks: ClassVar[bool] = False
    """Whether its texts are the documents of talks (`data.format: chat`)."""

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of what it takes to predict a character; `free` and `local` are the first two."""
        raise TypeError(f"{type(self).__name__} must define takes")

    def tell(self, seed: int, count: int) -> list[str]:
        """Texts for training, each with its leading newline; text number i depends only on `seed` and i."""
        raise TypeError(f"{type(self).__name__} must define tell(seed, count)")

    def tell_new(self, seed: int, count: int, training_texts: Sequence[str]) -> list[str]:
        """Texts for validation, where `training_texts` are those for training."""
        raise TypeError(f"{type(self).__name__} must define tell_new(seed, count, training_texts)")

    def read(self, text: str) -> Reading:
        """Read a text, or the beginning of one, as the ideal and the forgetful reader do."""
        raise TypeError(f"{type(self).__name__} must define read(text)")

    def answers(self, text: str) -> slice | None:
        """The characters of a whole text on which a model is scored; None: all of them."""
        return None

    def question(self, seed: int) -> tuple[str, int] | None:
        """The beginning of a new text up to an answer, and the length of the answer; None: nothing is asked."""
        return None

    def beginning(self, seed: int) -> str:
        """A text to begin with, without its leading newline."""
        raise TypeError(f"{type(self).__name__} must define beginning(seed)")

    def texts(self) -> list[str]:
        """The texts for training, and after them those for validation, made from another seed (a negative one)."""
        config = self.config
        training = self.tell(config.seed, config.count - config.validation)
        return training + self.tell_new(-1 - config.seed, config.validation, training)


@dataclass(frozen=True, kw_only=True)
class StoriesConfig(Options):
    """Which stories the built-in corpus contains."""

    count: Annotated[int, Range(1, 1_000_000)] = 10_000
    """The number of stories, with those for validation; a story of one scene has about 120 characters."""
    validation: Annotated[int, Range(1, 20_000)] = 1_500
    """The number of stories for validation. All are new: none of them is among the training stories."""
    scenes: Annotated[int, Range(1, 4)] = 1
    """The number of scenes in a story: one fits into a context of 128 characters, two into 256."""
    made_up_names: bool = False
    """True: names are made from syllables (1820 names). False: they come from a list of 64."""
    seed: Natural = 0
    """Equal seeds give equal stories. Those for validation do not change with `count`."""

    def mistakes(self) -> Iterator[Mistake]:
        if self.validation >= self.count:
            yield "validation", f"{self.validation} of {self.count} stories for validation leave none to train on"


@dataclass(frozen=True)
class Stories(Language):
    """The stories of `stories.py`."""

    config: StoriesConfig = StoriesConfig()

    name = plural = "stories"
    file = "minigpt/text/languages/stories.py"

    @property
    def takes(self) -> tuple[str, ...]:
        return TAKES

    def tell(self, seed: int, count: int) -> list[str]:
        return stories(seed, count, self.config.scenes, self.config.made_up_names)

    def tell_new(self, seed: int, count: int, training_texts: Sequence[str]) -> list[str]:
        """New stories: none of them is among those for training."""
        training, new_texts = set(training_texts), dict[str, None]()
        candidates = count
        while len(new_texts) < count:
            new_texts = dict.fromkeys(text for text in self.tell(seed, candidates) if text not in training)
            candidates += candidates // 10 + 1
        return list(new_texts)[:count]

    def read(self, text: str) -> Reading:
        return read(text, self.config.scenes, self.config.made_up_names)

    def beginning(self, seed: int) -> str:
        """Two sentences: those of the examples, or, with made-up names, those of a new story."""
        if not self.config.made_up_names:
            return "Mia was a shy fox. She met Tom."
        opening, meeting, _ = self.tell(-1 - seed, 1)[0].strip().split(". ", 2)
        return f"{opening}. {meeting}."
