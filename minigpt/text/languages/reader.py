"""The two readers of the built-in corpus: one remembers everything, the other nothing.

Both know the grammar in `stories.py` and follow the coroutine of the story, and at each of its points they walk down a
trie. The ideal reader gives the exact probability of every next character; its loss is the floor: no model has a lower
loss on average. The forgetful reader treats a known word as a free choice; the difference of the losses is the price of
forgetting. (Its loss is a little higher on free characters too: it does not know which words are already used.) Every
character is labelled with what it takes to predict it:

    Ivan was a wild fox. He met Jack. He found two pale limes. Jack ate one, so Ivan had one pale lime. So Jack fed him.
    ff.........fff..ff...a......fff...a..f.....ff..ff...ff.....rrr..p...........rr.......c...cc...cc..a.fffrrr.......a..

(f free, . local, r recall, p plan, a agreement, c count for `one` and copy for `pale lime`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from math import log
from typing import NamedTuple

from minigpt.text.languages.stories import story, words_of
from minigpt.text.languages.tale import Choice, Known, Point, TextGenerator, TrieNode

# What it takes to predict a character. free: a random choice; local: only the characters just before it; the others are
# kinds of memory: recall: a name or what someone is; copy: the taste and the fruit; latest: the last of the places;
# order: a list; quote: a sentence; count: one fewer; agreement: she or he, one or many; plan: the set-up.
TAKES = ("free", "local", "recall", "copy", "latest", "order", "quote", "count", "agreement", "plan")


@dataclass(frozen=True)
class Reading:
    """A text as both readers see it; each list has one entry for each character."""

    takes: list[str] = field(default_factory=list)  # what it takes to predict the character: one of TAKES
    ideal: list[float] = field(default_factory=list)  # its probability under the ideal reader
    forgetful: list[float] = field(default_factory=list)  # and under the forgetful reader
    support: list[dict[str, float]] = field(default_factory=list)  # the ideal reader's: character -> its probability

    def part(self, characters: slice) -> Reading:
        """The reading of some of the characters."""
        return Reading(
            self.takes[characters], self.ideal[characters], self.forgetful[characters], self.support[characters]
        )


def read(story_text: str, scenes: int = 1, made_up_names: bool = False) -> Reading:
    """Read one story of `stories`, or the beginning of one.

    Each probability is that of a character given all characters before it. A character that the grammar does not allow
    has probability 0 and is the last one in the reading.
    """
    return follow(story_text, story(words_of(made_up_names), scenes))


def follow(text: str, generator: TextGenerator) -> Reading:
    """Read a text along the coroutine of its story, point by point."""
    reading = Reading()
    word: str | None = None
    while len(reading.ideal) < len(text):
        try:
            point = next(generator) if word is None else generator.send(word)
        except StopIteration:  # the story ends before the text
            _note(reading, "local", 0.0, 0.0, {})
            break
        next_word = walk(text, point, reading)
        if next_word is None:
            break
        word = next_word if isinstance(point, Choice) else None
    return reading


def walk(text: str, point: Point, reading: Reading) -> str | None:
    """Read the word of one point letter by letter and return it; None if the text ends in it or has another word."""
    takes, ideal, forgetful = views(point)
    start = len(reading.ideal)
    while ideal.next:
        position = len(reading.ideal)
        if position == len(text):
            return None
        letter = text[position]
        probability = ideal.probabilities.get(letter, 0.0)
        name = "free" if len(ideal.probabilities) > 1 else takes if len(forgetful.probabilities) > 1 else "local"
        _note(reading, name, probability, forgetful.probabilities.get(letter, 0.0), ideal.probabilities)
        if not probability:
            return None
        ideal, forgetful = ideal.next[letter], forgetful.next[letter]
    return text[start : len(reading.ideal)]


def views(point: Point) -> tuple[str, TrieNode, TrieNode]:
    """What it takes to predict a point, and the tries of the ideal and of the forgetful reader."""
    if isinstance(point, Choice):
        return "free", point.trie, point.unrestricted.trie
    if isinstance(point, Known):
        return point.takes, only(point.word), point.choice.trie
    return "local", only(point), only(point)


@cache
def only(word: str) -> TrieNode:
    """The trie of a single word."""
    return TrieNode([(word, 1.0)])


def _note(reading: Reading, takes: str, ideal: float, forgetful: float, support: dict[str, float]) -> None:
    reading.takes.append(takes)
    reading.ideal.append(ideal)
    reading.forgetful.append(forgetful)
    reading.support.append(support)


class Tally(NamedTuple):
    """The losses of both readers, summed over some characters, in nats."""

    characters: int
    ideal: float
    forgetful: float

    @property
    def price(self) -> float:
        """The price of forgetting, in nats."""
        return self.forgetful - self.ideal


def tally(readings: Iterable[Reading]) -> dict[str, Tally]:
    """The losses of these readings, grouped by what it takes to predict a character."""
    sums = {takes: [0, 0.0, 0.0] for takes in TAKES}
    for reading in readings:
        for takes, ideal, forgetful in zip(reading.takes, reading.ideal, reading.forgetful, strict=True):
            sums[takes][0] += 1
            sums[takes][1] -= log(ideal)
            sums[takes][2] -= log(forgetful)
    return {takes: Tally(int(characters), *nats) for takes, (characters, *nats) in sums.items()}


def floor(readings: Iterable[Reading]) -> float:
    """The loss of the ideal reader in nats per character: no model, however large, is better on average."""
    rows = tally(readings).values()
    return sum(row.ideal for row in rows) / sum(row.characters for row in rows)
