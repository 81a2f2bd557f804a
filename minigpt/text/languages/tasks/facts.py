"""A task of knowledge: facts that hold in all texts, the first ones frequent, most of them rare.

    zK|pAfD      the subject zK; its p is A, and its f is D: the same in every text that asks for them

An answer cannot be read from its text: it has to be learned from other texts. Where to look in a text is the same for
all facts. A model that knows more facts is better in proportion to how often they are asked for. The frequency of the
subject of rank k is proportional to k^-exponent (Zipf): each fact is worth less than the one before, and there is
always one more to learn. That makes the loss a power law of how many facts are learned ("Learning Curve Theory",
arXiv 2102.04074; "The Quantization Model of Neural Scaling", arXiv 2303.13506). A reader who knows all facts has a loss
of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated

from minigpt.config.options import Natural, Positive, Range
from minigpt.text.languages.tale import Choice, Known, TextGenerator
from minigpt.text.languages.tasks.base import BAR, LETTERS, VALUES, Letters, Size, Task, ending

SPELLING = LETTERS[:64]  # a subject is two of these
RELATIONS = LETTERS[64:96]
END = "."
FIRST, TIMES = 16, 4  # answers are labelled with the rank of their subject: to 16, to 64, to 256, ...


class Facts(Task, kind="facts"):
    """`zK|pAfD`: facts about frequent and rare subjects, the same in every text (arXiv 2303.13506)."""

    size, label, answers_at = "questions", "subjects to {}", (2, 2)

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        questions: tuple[Size, ...] = (8,)
        """How many relations of its subject a text asks for, each once."""
        subjects: Annotated[int, Range(1, len(SPELLING) ** 2)] = 1024
        """How many subjects there are; each has a name of two letters."""
        relations: Annotated[int, Range(1, len(RELATIONS))] = 8
        """How many facts there are about each subject."""
        values: Annotated[int, Range(2, len(VALUES))] = 16
        """How many values there are to choose from."""
        exponent: Positive = 1.5
        """The frequency of the subject of rank k is proportional to k^-exponent."""
        world: Natural = 0
        """The seed of the facts; `seed` is that of the texts about them."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 1, self.config.relations

    @property
    def takes(self) -> tuple[str, ...]:
        return "free", "local", *(self.label.format(rank) for rank in ranks(self.config.subjects))

    @cached_property
    def names(self) -> Choice:
        """The subjects, from the most frequent to the rarest."""
        possible_names = [first + second for first in SPELLING for second in SPELLING]
        names = Random(f"{self.config.world} names").sample(possible_names, self.config.subjects)
        return Choice(names, [rank**-self.config.exponent for rank in range(1, len(names) + 1)])

    @cached_property
    def facts(self) -> dict[str, tuple[str, str]]:
        """{subject: what its answers are called, and its values, one for each relation}."""
        random, values = Random(f"{self.config.world} facts"), VALUES[: self.config.values]
        band_ends = ranks(self.config.subjects)
        return {
            name: (
                self.label.format(next(end for end in band_ends if rank <= end)),
                "".join(random.choices(values, k=self.config.relations)),
            )
            for rank, name in enumerate(self.names.words, 1)
        }

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        relations, values = RELATIONS[: self.config.relations], Letters(VALUES[: self.config.values])
        yield "\n"
        subject = yield self.names
        label, facts = self.facts[subject]
        yield BAR
        asked_relations = ""
        while len(asked_relations) < max(sizes):
            candidates = "".join(letter for letter in relations if letter not in asked_relations)
            relation = yield Letters(candidates, ending(len(asked_relations), sizes), END)
            if relation == END:
                return
            asked_relations += relation
            yield Known(label, facts[relations.index(relation)], values)


def ranks(subjects: int) -> list[int]:
    """The last rank of each band of subjects: 16, 64, 256 and so on, and the last of all."""
    band_ends, end = list[int](), FIRST
    while end < subjects:
        band_ends.append(end)
        end *= TIMES
    return [*band_ends, subjects]
