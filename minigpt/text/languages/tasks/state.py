"""Tasks of state: the answer was never written; it is computed from everything that was (arXiv 2404.08819)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import comb
from typing import Annotated

from minigpt.config.options import Range
from minigpt.text.languages.tale import Choice, Known, TextGenerator
from minigpt.text.languages.tasks.base import BAR, DIGITS, LETTERS, VALUES, Letters, Size, Task, until_the_end

MOST_LETTERS = 26  # in counting
NUMERALS = DIGITS + VALUES + LETTERS[MOST_LETTERS:]  # one character for each count


class Counting(Task, kind="counting"):
    """`abaacb|a3c1`: how often did a letter come? The numbers are 0 to 9, then A to Z, then letters beyond z."""

    answers_at = (2, 2)

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (4, 8, 16)
        """How many letters a text tells."""
        questions: Annotated[int, Range(1, MOST_LETTERS)] = 4
        """How many letters are asked for, each once; also some that did not come."""
        vocabulary: Annotated[int, Range(2, MOST_LETTERS)] = 4
        """How many letters there are."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 1, len(NUMERALS) - 1

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        letters = LETTERS[: self.config.vocabulary]
        yield "\n"
        sequence, _ = yield from until_the_end(letters, sizes)
        for _ in range(min(self.config.questions, len(letters))):
            letter = yield Letters(letters)
            letters = letters.replace(letter, "")
            count, any_count = NUMERALS[sequence.count(letter)], counts(len(sequence), self.config.vocabulary)
            yield Known(self.label.format(len(sequence)), count, any_count)


@lru_cache
def counts(length: int, vocabulary: int) -> Choice:
    """How often a letter comes among so many: a binomial distribution, the guess of a reader who forgets."""
    weights = [comb(length, count) * (vocabulary - 1) ** (length - count) for count in range(length + 1)]
    return Choice(NUMERALS[: length + 1], [weight / vocabulary**length for weight in weights])


class Parity(Task, kind="parity"):
    """`0110100|1`: is the number of ones odd? One bit of state, which every new bit may flip (arXiv 2411.12537)."""

    label = "{} bits"

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (1, 2, 4, 8, 16)
        """How many bits a text tells."""

    config: Config

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        yield "\n"
        sequence, _ = yield from until_the_end("01", sizes)
        yield Known(self.label.format(len(sequence)), str(sequence.count("1") % 2), Letters("01"))


class Permutations(Task, kind="permutations"):
    """`bda|321`: where things are after a number of moves, each of which rearranges all of them.

    Letter number i is permutation number i in lexicographic order; a is the one that moves nothing. Things 1 2 3 become
    1 3 2 by b. It is the word problem of the symmetric group (arXiv 2404.08819, 2502.10297). The last element follows
    from the others, so it is not asked.
    """

    label = "{} moves"

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (1, 2, 4, 8, 16)
        """How many moves a text tells."""
        elements: Annotated[int, Range(2, 5)] = 3
        """How many things are moved: with 3 there are 6 moves, with 5 there are 120."""

    config: Config

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        moves = dict(zip(LETTERS, permutations(range(self.config.elements))))
        elements = DIGITS[1 : self.config.elements + 1]
        yield "\n"
        sequence, _ = yield from until_the_end("".join(moves), sizes)
        arrangement = elements
        for move in sequence:
            arrangement = "".join(arrangement[i] for i in moves[move])
        for position, element in enumerate(arrangement):
            rest = "".join(other for other in elements if other not in arrangement[:position])
            yield Known(self.label.format(len(sequence)), element, Letters(rest))

    def answers(self, text: str) -> slice:
        bar = text.index(BAR)
        return slice(bar + 1, bar + self.config.elements)
