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
        self.probabilities = {letter: weight / sum(weights.values()) for letter, weight in weights.items()}
        self.next = {letter: TrieNode(branch) for letter, branch in branches.items()}

    @classmethod
    def of_letters(cls, probabilities: dict[str, float]) -> TrieNode:
        """The trie of single characters, from the probability of each."""
        node = cls(())
        node.probabilities, node.next = probabilities, dict.fromkeys(probabilities, LEAF)
        return node


LEAF = TrieNode(())


class Choice:
    """Words from which a text samples one, each with a weight."""

    def __init__(self, words: Iterable[str], weights: Sequence[float] = (), unrestricted: Choice | None = None) -> None:
        self.words = tuple(words)
        self.weights = tuple(weights) or (1,) * len(self.words)
        self.unrestricted = unrestricted or self  # the choice as the forgetful reader sees it
        self.cum_weights = tuple(accumulate(self.weights))
        self.restricted: dict[frozenset[str], Choice] = {}

    @classmethod
    def of(cls, words: str) -> Choice:
        """A choice of words with equal weights, given as one text."""
        return cls(words.split())

    def draw(self, random: Random) -> str:
        """Sample a word in proportion to its weight."""
        return self.words[bisect(self.cum_weights, random.random() * self.cum_weights[-1], 0, len(self.words) - 1)]

    def without(self, used: Iterable[str]) -> Choice:
        """The choice without the words that have the same first letter as one of `used`."""
        letters = frozenset(word[0] for word in used)
        if letters not in self.restricted:
            rest = [i for i, word in enumerate(self.words) if word[0] not in letters]
            words, weights = [self.words[i] for i in rest], [self.weights[i] for i in rest]
            self.restricted[letters] = Choice(words, weights, self.unrestricted)
        return self.restricted[letters]

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
TextGenerator = Generator[Point, str, None]  # yields points; receives the word of each free choice


def tell(generator: TextGenerator, random: Random) -> str:
    """Tell one text, with a random word at every free choice."""
    words: list[str] = []
    word = None
    try:
        while True:
            point = next(generator) if word is None else generator.send(word)
            word = None
            if isinstance(point, str):
                words.append(point)
            elif isinstance(point, Known):
                words.append(point.word)
            else:
                word = point.draw(random)
                words.append(word)
    except StopIteration:
        return "".join(words)
