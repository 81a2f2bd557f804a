"""The two readers of the built-in corpus: one who remembers everything, and one who remembers nothing.

Both know the grammar in `stories.py` and follow the coroutine that told the story, walking down a trie at each of its
points. The ideal reader gives the exact probability of every next character; what it pays is the floor, below which no
model stays on average. The forgetful reader chooses freely wherever the story has settled a word, among all that could
stand there; what it pays more is the price of forgetting. (It pays a little on free characters too: it does not know
which words are used up.) Every character carries the name of what it takes to predict it:

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

from minigpt.languages.stories import Choice, Known, Node, Point, Tale, story, words_of

# What it takes to predict a character. `free`: nobody can; `local`: a reader without memory can; the rest is memory:
# who and what they are, the thing picked, the last of the places, the list, the sentence, one fewer, she or he and one
# or many, and what is to be answered.
TAKES = ("free", "local", "recall", "copy", "latest", "order", "quote", "count", "agreement", "plan")


@dataclass(frozen=True)
class Reading:
    """A story through the eyes of both readers; the lists have an entry for each character that was read."""

    takes: list[str] = field(default_factory=list)  # what it takes to predict the character: one of TAKES
    ideal: list[float] = field(default_factory=list)  # its probability for the ideal reader
    forgetful: list[float] = field(default_factory=list)  # and for the forgetful reader
    support: list[dict[str, float]] = field(default_factory=list)  # what the ideal reader expected, and how much


def read(story_text: str, scenes: int = 1, made_up_names: bool = False) -> Reading:
    """Read one story, or the beginning of one, as `stories` tells them.

    Each probability is that of a character given all characters before it. A character that the grammar rules out has
    probability 0 and is the last one in the reading: about what follows it, nothing is known.
    """
    return follow(story_text, story(words_of(made_up_names), scenes))


def follow(text: str, tale: Tale) -> Reading:
    """Read a text as this tale, point by point."""
    reading = Reading()
    word: str | None = None
    while len(reading.ideal) < len(text):
        try:
            point = next(tale) if word is None else tale.send(word)
        except StopIteration:  # the story is over, and the text is not
            _note(reading, "local", 0.0, 0.0, {})
            break
        seen = walk(text, point, reading)
        if seen is None:
            break
        word = seen if isinstance(point, Choice) else None
    return reading


def walk(text: str, point: Point, reading: Reading) -> str | None:
    """Read one point's word letter by letter and return it; None when the text ends within it, or is not this word."""
    takes, ideal, forgetful = views(point)
    start = len(reading.ideal)
    while ideal.next:
        here = len(reading.ideal)
        if here == len(text):
            return None
        letter = text[here]
        probability = ideal.odds.get(letter, 0.0)
        name = "free" if len(ideal.odds) > 1 else takes if len(forgetful.odds) > 1 else "local"
        _note(reading, name, probability, forgetful.odds.get(letter, 0.0), ideal.odds)
        if not probability:
            return None
        ideal, forgetful = ideal.next[letter], forgetful.next[letter]
    return text[start : len(reading.ideal)]


def views(point: Point) -> tuple[str, Node, Node]:
    """What a point takes, and the trie that each reader sees there: the ideal one and the forgetful one."""
    if isinstance(point, Choice):
        return "free", point.trie, point.whole.trie
    if isinstance(point, Known):
        return point.takes, only(point.word), point.choice.trie
    return "local", only(point), only(point)


@cache
def only(word: str) -> Node:
    """The trie of a single word."""
    return Node([(word, 1.0)])


def _note(reading: Reading, takes: str, ideal: float, forgetful: float, support: dict[str, float]) -> None:
    reading.takes.append(takes)
    reading.ideal.append(ideal)
    reading.forgetful.append(forgetful)
    reading.support.append(support)


class Tally(NamedTuple):
    """What some characters cost each reader, in nats altogether."""

    characters: int
    ideal: float
    forgetful: float

    @property
    def price(self) -> float:
        """The price of forgetting, in nats."""
        return self.forgetful - self.ideal


def tally(readings: Iterable[Reading]) -> dict[str, Tally]:
    """What the characters of these readings cost, by what they take."""
    sums = {takes: [0, 0.0, 0.0] for takes in TAKES}
    for reading in readings:
        for takes, ideal, forgetful in zip(reading.takes, reading.ideal, reading.forgetful, strict=True):
            sums[takes][0] += 1
            sums[takes][1] -= log(ideal)
            sums[takes][2] -= log(forgetful)
    return {takes: Tally(int(characters), *nats) for takes, (characters, *nats) in sums.items()}


def floor(readings: Iterable[Reading]) -> float:
    """Nats per character that the ideal reader pays: no model does better on average, however large it is."""
    rows = tally(readings).values()
    return sum(row.ideal for row in rows) / sum(row.characters for row in rows)
