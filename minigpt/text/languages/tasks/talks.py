"""A chat language with known answers: a short story, questions about it, small sums, and follow-up questions.

    user       Fay has a pot in Rome. Pam has a cup in Oslo. Hal has a hat in Bonn. Where is the hat?
    assistant  Bonn
    user       And the pot?        a follow-up: only the turns before say what is asked of the pot
    assistant  Rome
    user       Add 7+2?
    assistant  9
    user       And 0?              9 and 0 more
    assistant  9

Its texts are the documents of talks. Every answer follows from what was said, so the best possible loss on the answers
is 0; a reader without a memory guesses among all answers to that kind of question. No question is asked twice in a
talk: its answer could be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, NamedTuple

from minigpt.config.options import Range
from minigpt.system.waiting import progress
from minigpt.text.languages.tasks.base import Size, Task
from minigpt.text.talks import Turn, as_document, turns_of

NAMES = ["Ann", "Ben", "Cal", "Dot", "Eve", "Fay", "Gus", "Hal", "Ida", "Joe", "Kim", "Lee", "Max", "Ned", "Pam", "Sue"]
THINGS = ["bag", "bell", "cap", "coat", "cup", "drum", "hat", "kite", "lamp", "pen", "pot", "sock"]
PLACES = ["Bonn", "Cairo", "Delhi", "Kyoto", "Lima", "Oslo", "Rome", "York"]
ASKS = {  # a kind of question, its words, and how many answers it has
    "who": ("Who has the {}?", len(NAMES)),
    "what": ("What has {}?", len(THINGS)),
    "where": ("Where is the {}?", len(PLACES)),
    "sum": ("Add {}+{}?", 10),
}
TRIES = 8  # to find a follow-up question that was not asked before


Fact = tuple[str, str, str]  # a name, a thing, a place


class Question(NamedTuple):
    """A question in full, also where its words are those of a follow-up."""

    kind: str
    of: str
    """The thing, the name, or the first number."""
    also: str = ""
    """Of a sum, the second number."""


@dataclass(frozen=True)
class Talks(Task, kind="talks"):
    """Talks about who has what and where, with small sums and follow-up questions."""

    size = "facts"

    @dataclass(frozen=True, kw_only=True)
    class Config(Task.Config):
        count: Annotated[int, Range(1, 1_000_000)] = 40_000
        """The number of talks, with those for validation."""
        facts: tuple[Size, ...] = (3,)
        """How many people of a story have something."""
        turns: Annotated[int, Range(1, 16)] = 6
        """How many questions a talk has."""

    config: Config

    plural = "talks"
    talks = True

    @property
    def possible(self) -> tuple[int, int]:
        return 2, len(PLACES)

    @property
    def takes(self) -> tuple[str, ...]:
        return "free", "local", *ASKS, "follow-up"

    def _tell(self, seed: int, count: int, sizes: Sequence[int]) -> list[str]:
        numbers = progress(range(count), f"telling {self.name}", count, self.plural)
        return [as_document(self.talk(Random(f"{seed} {number}"), sizes)) for number in numbers]

    def talk(self, random: Random, sizes: Sequence[int]) -> list[Turn]:
        """The turns of a new talk. Half of its later questions are follow-ups, where there is one to ask."""
        size = random.choice(sizes)
        facts = [*zip(*(random.sample(words, size) for words in (NAMES, THINGS, PLACES)), strict=True)]
        turns, asked = list[Turn](), list[Question]()
        for _ in range(self.config.turns):
            before = asked[-1] if asked and random.random() < 0.5 else None
            drawn = (draw(random, facts, before) for _ in range(TRIES))
            question = next((each for each in drawn if each not in asked), None)
            while question is None or question in asked:
                before, question = None, draw(random, facts)
            asked.append(question)
            turns += [
                Turn("user", words(question, before is not None)),
                Turn("assistant", answer(question, facts), True),
            ]
        story = " ".join(f"{name} has a {thing} in {place}." for name, thing, place in facts)
        return [turns[0]._replace(text=f"{story} {turns[0].text}"), *turns[1:]]

    def question(self, seed: int) -> tuple[str, int]:
        """The first turn of a new talk, and how many tokens an answer may have."""
        [document] = self._tell(-1 - seed, 1, self.new_sizes)
        return turns_of(document)[0].text, 8

    def beginning(self, seed: int) -> str:
        """A story and a question."""
        return self.question(seed)[0]


def draw(random: Random, facts: Sequence[Fact], before: Question | None = None) -> Question:
    """A question about a story: one of any kind, or one that follows the one `before`."""
    kind = random.choice([*ASKS]) if before is None else before.kind
    if kind == "sum":
        first = random.randint(0, 9) if before is None else int(before.of) + int(before.also)
        return Question(kind, str(first), str(random.randint(0, 9 - first)))
    name, thing, _ = random.choice(facts)
    return Question(kind, name if kind == "what" else thing)


def words(question: Question, follows: bool) -> str:
    """A question as it is asked."""
    if not follows:
        return ASKS[question.kind][0].format(question.of, question.also)
    return {"what": "And {0}?", "sum": "And {1}?"}.get(question.kind, "And the {0}?").format(*question[1:])


def answer(question: Question, facts: Sequence[Fact]) -> str:
    """The right answer."""
    if question.kind == "sum":
        return str(int(question.of) + int(question.also))
    name, thing, place = next(fact for fact in facts if question.of in fact)
    return {"who": name, "what": thing, "where": place}[question.kind]


def kinds_of(turns: Sequence[Turn]) -> list[tuple[str, int]]:
    """For each answer of a talk, what it takes to know it, and among how many a reader without a memory would guess."""
    kinds, kind = list[tuple[str, int]](), ""
    for turn in turns:
        if turn.role == "user":
            fresh = [each for each in ASKS if ASKS[each][0].partition(" ")[0] in turn.text.rpartition(". ")[2].split()]
            kind = fresh[0] if fresh else kind
            kinds.append((kind if fresh else "follow-up", ASKS[kind][1]))
    return kinds
