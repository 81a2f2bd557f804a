"""A text as a coroutine: free choices, and words that follow from earlier ones.

A coroutine yields points: fixed text (`str`), a free choice (`Choice`), or a word that follows from an earlier choice
(`Known`). To tell a text, `tell` samples from the choices; to read one, `reader.py` walks down their tries, which gives
the exact probability of every next character. No word of a choice is a prefix of another one, so there is only one way
to read a text.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Generator, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import NamedTuple


class TrieNode:
    """A node of a trie: the probability of each next character, and its node. A leaf has no next character."""

    def __init__(self, words: Iterable[tuple[str, float]]) -> None:
        branches: dict[str, list[tuple[str, float]]] = {}
        for word, weight in words:
            branches.setdefault(word[:1], []).append((word[1:], weight))
        if "" in branches and len(branches) > 1:
            raise ValueError(f"a word is a prefix of another one, which continues with {max(branches)!r}")
        branches.pop("", None)
        weights = {letter: sum(weight for _, weight in branch) for letter, branch in branches.items()}
        self.odds = {letter: weight / sum(weights.values()) for letter, weight in weights.items()}
        self.next = {letter: TrieNode(branch) for letter, branch in branches.items()}

    @classmethod
    def of_letters(cls, odds: dict[str, float]) -> TrieNode:
        """The trie of single characters, from the probability of each."""
        node = cls(())
        node.odds, node.next = odds, dict.fromkeys(odds, LEAF)
        return node


LEAF = TrieNode(())


class Choice:
    """Words from which a text samples one, each with a weight."""

    def __init__(self, words: Iterable[str], weights: Sequence[float] = (), whole: Choice | None = None) -> None:
        self.words = tuple(words)
        self.weights = tuple(weights) or (1,) * len(self.words)
        self.whole = whole or self  # the choice as the forgetful reader sees it
        self.upto = tuple(accumulate(self.weights))
        self.fewer: dict[frozenset[str], Choice] = {}

    @classmethod
    def of(cls, words: str) -> Choice:
        """A choice of words with equal weights, given as one text."""
        return cls(words.split())

    def draw(self, random: Random) -> str:
        """Sample a word in proportion to its weight."""
        return self.words[bisect(self.upto, random.random() * self.upto[-1], 0, len(self.words) - 1)]

    def without(self, taken: Iterable[str]) -> Choice:
        """The choice without the words that have the same first letter as one of `taken`."""
        letters = frozenset(word[0] for word in taken)
        if letters not in self.fewer:
            left = [i for i, word in enumerate(self.words) if word[0] not in letters]
            self.fewer[letters] = Choice([self.words[i] for i in left], [self.weights[i] for i in left], self.whole)
        return self.fewer[letters]

    @cached_property
    def trie(self) -> TrieNode:
        """The words as a trie."""
        return TrieNode(zip(self.words, self.weights, strict=True))


class Known(NamedTuple):
    """A word that follows from an earlier choice: the kind of memory it takes, the word, and the choice it replaces."""

    takes: str
    word: str
    choice: Choice


Point = str | Choice | Known
Tale = Generator[Point, str, None]  # yields points; receives the word of each free choice


def tell(tale: Tale, random: Random) -> str:
    """Tell one story, with a random word at every free choice."""
    told: list[str] = []
    word = None
    try:
        while True:
            point = next(tale) if word is None else tale.send(word)
            word = None
            if isinstance(point, str):
                told.append(point)
            elif isinstance(point, Known):
                told.append(point.word)
            else:
                word = point.draw(random)
                told.append(word)
    except StopIteration:
        return "".join(told)
