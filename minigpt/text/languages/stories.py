"""The built-in corpus: little stories in a language whose best possible loss is known exactly.

    Leo was a sly moth. He met Milo. He hid a gem in a hut, a tub, then a cake. Milo found it in the cake. You sly moth!
    Dina was a tiny fawn. She met Fay. She found two fat figs. Fay ate one, so Dina had one fat fig. So Fay fed her.
    Ned was a sly bear. He met Gus. He drew a rope, a sock and a harp. Gus made a rope, a sock and a harp. Poor sly Ned!
    John was a wild boar. He met Anna. He said, "Crows like free ham." Anna sang, "Crows like free ham." See John grin!

Two people meet, the first does something (the set-up), the answer of the second depends on it, and the ending names
them again. Late words depend on early ones, so a model that averages over the past has a high loss. A story of two
scenes has both openings and set-ups first, and then both answers and endings.

A story is a coroutine (`tale.py`). Two rules make the probabilities of its characters easy to interpret:

- no word of a choice is a prefix of another one, so there is only one way to read a text;
- two words of one type in a story (people, places, things) never have the same first letter, so a character is either
  a free choice or known, never partly both.

A story of n scenes has at most 127 n characters, with its leading newline. 10,000 stories of one scene have 1.2 million
characters, and are made in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import lru_cache
from random import Random
from string import Formatter
from typing import NamedTuple

from minigpt.system.waiting import progress
from minigpt.text.languages.tale import Choice, Known, Point, TextGenerator, tell

Setup = Generator[Point, str, TextGenerator]  # a coroutine like a TextGenerator; returns that of the answer

# ------------------------------------------------------------------------------------------------------------ words


def _words(text: str) -> list[str]:
    return text.split()


WOMEN = _words(
    "Amy Anna Bea Beth Cora Dina Dora Ella Fay Fern Gwen Hana Hope Ida Iris Jane Jill Lena Lily Mia Mina Rose Ruth Tess"
)
MEN = _words(
    "Abe Adam Ben Bert Carl Cole Dan Dave Emil Eric Finn Fred Gus Hugo Ian Ivan Jack John Leo Luke Milo Ned Noah Tom"
)

# Four letters in two syllables: 1820 names, too many to recognise one instead of remembering it.
BEGINNINGS = [consonant + vowel for consonant in "BDFGJKLMNRTVZ" for vowel in "aeiou"]
MADE_UP_WOMEN = [start + consonant + vowel for start in BEGINNINGS for consonant in "bdlmnrv" for vowel in "ai"]
MADE_UP_MEN = [start + consonant + vowel for start in BEGINNINGS for consonant in "bdlmnrv" for vowel in "ou"]

SHE, SHE_STARTS, HER = Choice(["she", "he"]), Choice(["She", "He"]), Choice(["her", "him"])
NUMBERS = _words("one two three four five six seven eight nine ten")
FEWER = dict(zip(NUMBERS[1:], NUMBERS[:-1], strict=True))
LEFT, PLURAL = Choice(FEWER.values()), Choice([".", "s."], [1, 8])

# The first words of each set-up -> the first words of its answer.
PLANS = {"hid a ": "found it in the ", "found ": "ate one, so ", "drew a ": "made a ", 'said, "': 'sang, "'}
PLAN = Choice(PLANS.values())

# The first words of an ending -> the rest of it. No first word begins like a name.
ENDINGS = {
    "So ": "{other} fed {her}.",
    "Soon ": "{other} slept.",
    "See ": "{hero} grin!",
    "Still ": "{she} sulked.",
    "What luck, ": "{hero}!",
    "Was ": "{she} {adjective}!",
    "Well done, ": "{other}!",
    "You ": "{adjective} {kind}!",
    "Poor ": "{adjective} {hero}!",
    "Oh, silly ": "{kind}!",
    "Our ": "{kind} bowed.",
    "Off ran the ": "{kind}.",
}


class Words(NamedTuple):
    """The words for each slot of a story. Fewer words give a smaller language with the same grammar."""

    names: Choice = Choice(WOMEN + MEN)
    women: frozenset[str] = frozenset(WOMEN)
    adjectives: Choice = Choice.of("glad glum grim shy slow sly tall tame tiny weak wild wise")
    kinds: Choice = Choice.of("bear bee boar fawn fox frog mole moth mule wasp wolf wren")
    plots: Choice = Choice(PLANS)
    endings: Choice = Choice(ENDINGS)
    # hide: what, where, and whether it goes on to the last of two places, or to the second of three
    secrets: Choice = Choice.of("bun cap cup gem key pie pin wig")
    places: Choice = Choice.of("barn bath boat boot cage cake cart cave hole hut sack shed sink tent tree tub")
    moves: Choice = Choice([".", ", then a ", ", a "], [1, 2, 2])
    # find: how many of what
    numbers: Choice = Choice(FEWER)
    tastes: Choice = Choice.of("fat fine pale pink red ripe soft sour tart tiny")
    fruits: Choice = Choice.of("bean beet date fig leek lime nut pear plum yam")
    # sketch: three of these
    things: Choice = Choice.of("bell belt bowl cape coat comb doll drum harp horn pipe pony robe rope sled sock")
    # quote: a sentence of four words
    eaters: Choice = Choice.of("Bats Bees Bulls Cats Cows Crows Kids Kings Mice Moles")
    verbs: Choice = Choice.of("bake boil hate heat lick like sell send want waste")
    tempers: Choice = Choice.of("cold cool fine free pale pink soft sour warm wet")
    foods: Choice = Choice.of("beef bran ham hay milk mud peas pies soup stew")


@lru_cache
def words_of(made_up_names: bool) -> Words:
    """The words of the built-in corpus, with names from a list or names made from syllables."""
    if not made_up_names:
        return Words()
    return Words(names=Choice(MADE_UP_WOMEN + MADE_UP_MEN), women=frozenset(MADE_UP_WOMEN))


# ---------------------------------------------------------------------------------------------------------- grammar


class Cast(dict[str, Known]):
    """The people of a scene: the known word for each role and pronoun."""

    def __init__(self, words: Words, hero: str, adjective: str, kind: str) -> None:
        sex = 0 if hero in words.women else 1
        self["hero"] = Known("recall", hero, words.names)
        self["adjective"] = Known("recall", adjective, words.adjectives)
        self["kind"] = Known("recall", kind, words.kinds)
        self["she"] = Known("agreement", SHE.words[sex], SHE)
        self["She"] = Known("agreement", SHE_STARTS.words[sex], SHE_STARTS)
        self["her"] = Known("agreement", HER.words[sex], HER)


def story(words: Words, scenes: int = 1) -> TextGenerator:
    """A whole story: first every opening with its set-up, then every answer with its ending."""
    met: list[str] = []
    answers = []
    for number in range(scenes):
        yield " " if number else "\n"
        answers.append((yield from scene(words, met)))
    for answer in answers:
        yield from answer


def scene(words: Words, met: list[str]) -> Setup:
    """`Ida was a shy mole. She met Gus. She ...`: the opening and the set-up; nobody in `met` has the same name."""
    hero = yield words.names.without(met)
    yield " was a "
    adjective = yield words.adjectives
    yield " "
    kind = yield words.kinds
    cast = Cast(words, hero, adjective, kind)
    yield ". "
    yield cast["She"]
    yield " met "
    other = yield words.names.without([*met, hero])
    cast["other"] = Known("recall", other, words.names)
    met += hero, other
    yield ". "
    yield cast["She"]
    yield " "
    plot = yield words.plots
    answer = yield from SETUPS[plot](words, cast)
    return reply(words, cast, PLANS[plot], answer)


def reply(words: Words, cast: Cast, plan: str, answer: TextGenerator) -> TextGenerator:
    """` Gus found it in the cake. You shy mole!`: what the second person does, and the ending."""
    yield " "
    yield cast["other"]
    yield " "
    yield Known("plan", plan, PLAN)
    yield from answer
    yield " "
    ending = yield words.endings
    for text, slot in parts(ENDINGS[ending]):
        if text:
            yield text
        if slot:
            yield cast[slot]


@lru_cache
def parts(template: str) -> tuple[tuple[str, str | None], ...]:
    """A template as pairs of a text and the slot after it."""
    return tuple((text, slot) for text, slot, _, _ in Formatter().parse(template))


def hide(words: Words, cast: Cast) -> Setup:
    """`hid a key in a barn, a tub, then a cake.` and `found it in the cake.`: the last of one to three places."""
    yield words.secrets
    yield " in a "
    places = [(yield words.places)]
    move = yield words.moves
    if move == ", a ":
        places.append((yield words.places.without(places)))
        yield ", then a "
    if move != ".":
        places.append((yield words.places.without(places)))
        yield "."

    def answer() -> TextGenerator:
        yield Known("latest", places[-1], words.places)
        yield "."

    return answer()


def find(words: Words, cast: Cast) -> Setup:
    """`found six ripe figs.` and `ate one, so Ida had five ripe figs.`: one fewer of the same."""
    number = yield words.numbers
    yield " "
    taste = yield words.tastes
    yield " "
    fruit = yield words.fruits
    yield "s."

    def answer() -> TextGenerator:
        yield cast["hero"]
        yield " had "
        yield Known("count", FEWER[number], LEFT)
        yield " "
        yield Known("copy", taste, words.tastes)
        yield " "
        yield Known("copy", fruit, words.fruits)
        yield Known("agreement", "." if number == "two" else "s.", PLURAL)

    return answer()


def sketch(words: Words, cast: Cast) -> Setup:
    """`drew a comb, a bell and a pony.` and `made a comb, a bell and a pony.`: the same list, in the same order."""
    things: list[str] = []
    for before in "", ", a ", " and a ":
        if before:
            yield before
        things.append((yield words.things.without(things)))
    yield "."

    def answer() -> TextGenerator:
        for thing, after in zip(things, (", a ", " and a ", "."), strict=True):
            yield Known("order", thing, words.things)
            yield after

    return answer()


def quote(words: Words, cast: Cast) -> Setup:
    """`said, "Kings want free hay."` and `sang, "Kings want free hay."`: the same sentence."""
    slots = (words.eaters, " "), (words.verbs, " "), (words.tempers, " "), (words.foods, '."')
    sentence = []
    for slot, after in slots:
        sentence.append((yield slot))
        yield after

    def answer() -> TextGenerator:
        for word, (slot, after) in zip(sentence, slots, strict=True):
            yield Known("quote", word, slot)
            yield after

    return answer()


SETUPS: dict[str, Callable[[Words, Cast], Setup]] = dict(zip(PLANS, (hide, find, sketch, quote), strict=True))


# ---------------------------------------------------------------------------------------------------------- telling


def stories(seed: int, count: int, scenes: int = 1, made_up_names: bool = False) -> list[str]:
    """Tell `count` stories, each with its leading newline; story number i depends only on `seed` and i."""
    if count < 0 or not 1 <= scenes <= 4:
        raise ValueError(f"stories: got count={count}, scenes={scenes}; expected count >= 0 and 1 to 4 scenes")
    words = words_of(made_up_names)
    numbers = progress(range(count), "telling stories", count, "stories")
    return [tell(story(words, scenes), Random(f"{seed} {number}")) for number in numbers]
