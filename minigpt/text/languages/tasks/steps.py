"""One task for each step of the ladder of attention: its rung can solve it, and no rung below (see `ceilings.py`).

    3131302|3     most        which digit comes most often?                 a mean
    d7a3f5|a3     match       what is a's number?                           dot products: who looks like me?
    a3b5c2|a5     trio        the number of the next in the ring a, b, c    learned queries and keys
    kpkkp|kp      other       there are two letters: which is the other?    values and an output projection
    a4b1c2|ab3    difference  how many more has a than b?                   two heads
    a3b5a7|a7     current     what is a's number now?                       order
    d7a3f5|a3     match       with no digit next to its letter              two layers

The last line is `match` for a model that is not told which letter stands before a digit (`position: none`, not
`convolution`). Each text asks once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cache
from math import factorial, perm
from typing import Annotated

from minigpt.config.options import Range
from minigpt.text.languages.tale import Choice, Known, Point, TextGenerator
from minigpt.text.languages.tasks.base import BAR, DIGITS, LETTERS, Letters, Size, Task
from minigpt.text.languages.tasks.memory import Keys, Latest, Recall

Ways = Callable[[str, int], int]  # (letters so far, how many follow) -> how many texts begin so
Digits = Annotated[int, Range(2, len(DIGITS))]


class Weighted(Choice):
    """One of several single characters, each with a weight."""

    def __init__(self, weights: dict[str, float]):
        possible = {letter: weight for letter, weight in weights.items() if weight}
        super().__init__(possible, tuple(possible.values()))


def equally_likely(
    letters: str, ways: Ways, sizes: Sequence[int], values: Choice | None = None
) -> Generator[Point, str, tuple[str, dict[str, str]]]:
    """Letters up to the bar, each with a value after it if there are values. All texts of a size that obey a rule are
    equally likely, and all sizes too; `ways` counts the texts. Returns the letters and {letter: value}."""
    sequence, cards = "", dict[str, str]()
    while True:
        texts = {size - len(sequence): ways("", size) for size in sizes if size >= len(sequence)}
        weights = {x: sum(ways(sequence + x, n - 1) / total for n, total in texts.items() if n) for x in letters}
        letter = yield Weighted(weights | {BAR: ways(sequence, 0) / texts[0] if 0 in texts else 0})
        if letter == BAR:
            return sequence, cards
        sequence += letter
        if values is not None:
            cards[letter] = yield values


class Most(Task, kind="most"):
    """`3131302|3`: the digit that comes most often; there is exactly one. A mean is a count."""

    label = "{} digits"

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (12,)
        """How many digits a text tells."""
        digits: Digits = 8
        """How many digits there are."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 1, 64

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        digits = DIGITS[: self.config.digits]

        def ways(sequence: str, n: int) -> int:
            return one_wins(tuple(sorted(sequence.count(digit) for digit in digits)), n)

        yield "\n"
        sequence, _ = yield from equally_likely(digits, ways, sizes)
        [(most, _)] = Counter(sequence).most_common(1)
        yield Known(self.label.format(len(sequence)), most, Letters(digits))


@cache
def one_wins(counts: tuple[int, ...], n: int) -> int:
    """In how many ways `n` more digits can follow these counts (sorted) so that one digit comes most often."""
    if not n:
        return int(len(counts) == 1 or counts[-1] > counts[-2])
    next_counts = (tuple(sorted((*counts[:i], counts[i] + 1, *counts[i + 1 :]))) for i in range(len(counts)))
    return sum(one_wins(after, n - 1) for after in next_counts)


class Match(Recall, kind="match"):
    """`d7a3f5|a3`: what is a's number? Recall with one question, and digits for values."""

    label, alphabet = "{} cards", DIGITS

    @dataclass(frozen=True, kw_only=True)
    class Config(Recall.Config):
        pairs: tuple[Size, ...] = (6,)
        """How many cards a text tells: a letter and its number; all letters differ."""
        questions: Annotated[int, Range(1, len(LETTERS))] = 1
        """How many letters are asked for, each once."""
        keys: Keys = 8
        """How many letters there are to choose from."""
        values: Digits = 10
        """How many numbers there are to choose from."""

    config: Config


class Trio(Task, kind="trio"):
    """`a3b5c2|a5`: the number of the next in the ring a, b, c, a. What is looked for is not what one is.

    A symmetric score cannot do it: b would have to score higher than c with a, c higher than a with b, and a higher
    than b with c, that is B(a, b) > B(a, c) = B(c, a) > B(c, b) = B(b, c) > B(b, a) = B(a, b).
    """

    size, label, answers_at = "rings", "{} rings", (2, 2)

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        rings: tuple[Annotated[int, Range(1, len(LETTERS) // 3)], ...] = (2,)
        """How many rings of three letters a text tells, in any order: a b c, d e f, ..."""
        values: Digits = 10
        """How many numbers there are to choose from."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 1, len(LETTERS) // 3

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        values = Letters(DIGITS[: self.config.values])

        def ways(sequence: str, n: int) -> int:
            rings = LETTERS[: len(sequence) + n]
            return factorial(n) * (len(set(sequence)) == len(sequence) and set(sequence) <= set(rings))

        yield "\n"
        _, cards = yield from equally_likely(LETTERS[: 3 * max(sizes)], ways, [3 * size for size in sizes], values)
        key = yield Letters("".join(cards))
        first = LETTERS.index(key) // 3 * 3
        yield Known(self.label.format(len(cards) // 3), cards[LETTERS[first + (LETTERS.index(key) + 1) % 3]], values)


class Other(Task, kind="other"):
    """`kpkkp|kp`: a text has two letters: which is the other? In their sum nobody can tell which one is asked."""

    answers_at = (2, 1)

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        length: tuple[Size, ...] = (6,)
        """How many letters a text tells, two different ones among them."""
        vocabulary: Keys = 8
        """How many letters there are to choose from."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 2, 1024

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        letters = LETTERS[: self.config.vocabulary]

        def ways(sequence: str, n: int) -> int:
            if len(set(sequence)) > 1:
                return 2**n * (len(set(sequence)) == 2)
            pairs = len(letters) - 1 if sequence else len(letters) * (len(letters) - 1) // 2
            return pairs * (2**n - (1 if sequence else 2))

        yield "\n"
        sequence, _ = yield from equally_likely(letters, ways, sizes)
        key = yield Letters("".join(dict.fromkeys(sequence)))
        yield Known(self.label.format(len(sequence)), next(x for x in sequence if x != key), Letters(letters))


class Difference(Task, kind="difference"):
    """`a4b1c2|ab3`: how many more has a than b? A mean of what the cards say adds, and does not subtract."""

    size, label, answers_at = "cards", "{} cards", (3, 1)

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        cards: tuple[Size, ...] = (6,)
        """How many cards a text tells: a letter and its number; all letters differ."""
        keys: Keys = 6
        """How many letters there are to choose from."""
        values: Digits = 5
        """How many numbers there are to choose from, from 0 on."""

    config: Config

    @property
    def possible(self) -> tuple[int, int]:
        return 2, self.config.keys

    def generator(self, sizes: Sequence[int]) -> TextGenerator:
        letters, values = LETTERS[: self.config.keys], Letters(DIGITS[: self.config.values])

        def ways(sequence: str, n: int) -> int:
            return perm(len(letters) - len(sequence), n) * (len(set(sequence)) == len(sequence))

        yield "\n"
        _, cards = yield from equally_likely(letters, ways, sizes, values)
        lower = {x: "".join(y for y in cards if y != x and cards[y] <= cards[x]) for x in cards}
        high = yield Letters("".join(x for x in cards if lower[x]))
        low = yield Letters(lower[high])
        yield Known(self.label.format(len(cards)), str(int(cards[high]) - int(cards[low])), values)


class Current(Latest, kind="current"):
    """`a3b5a7|a7`: what is a's number now? A bag of cards has no last one."""

    alphabet = DIGITS

    @dataclass(frozen=True, kw_only=True)
    class Config(Latest.Config):
        writes: tuple[Size, ...] = (8,)
        """How many times a number is written to a letter."""
        questions: Annotated[int, Range(1, len(LETTERS))] = 1
        """How many letters are asked for, each once."""
        keys: Keys = 3
        """How many letters there are."""
        values: Digits = 10
        """How many numbers there are to choose from."""

    config: Config
