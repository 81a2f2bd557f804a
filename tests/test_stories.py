"""The built-in language: its readers are exact, its stories are consistent, and its names are right."""

import math
import re
from collections import Counter, defaultdict
from functools import cache
from hashlib import sha256
from itertools import pairwise
from random import Random

import pytest

from minigpt.text.languages import reader as story_reader
from minigpt.text.languages import stories as language
from minigpt.text.languages.language import Stories, StoriesConfig
from minigpt.text.languages.reader import TAKES, floor, follow, read, tally
from minigpt.text.languages.stories import Words, stories, story, words_of
from minigpt.text.languages.tale import Choice, tell

ALL = Words()
VARIANTS = [(1, False), (2, False), (1, True), (2, True)]  # scenes, made_up_names


def pools(words):
    fixed = (language.SHE, language.SHE_STARTS, language.HER, language.LEFT, language.PLURAL, language.PLAN)
    return [slot for slot in words if isinstance(slot, Choice)] + list(fixed)


def generate(generator, chosen_words, text):
    """Generate a story with these words of its first choices; return the next choice, or None at its end."""
    chosen_words = iter(chosen_words)
    point = next(generator)
    try:
        while True:
            if isinstance(point, Choice):
                word = next(chosen_words, None)
                if word is None:
                    return point
                text.append(word)
                point = generator.send(word)
            else:
                text.append(point if isinstance(point, str) else point.word)
                point = next(generator)
    except StopIteration:
        return None


def every_story(generator, among=lambda choice: choice.words):
    """Every story of `generator()` with its probability: depth first, each beginning generated afresh."""
    beginnings = [((), 1.0)]
    while beginnings:
        chosen_words, probability = beginnings.pop()
        text = []
        choice = generate(generator(), chosen_words, text)
        if choice is None:
            yield "".join(text), probability
            continue
        for word in among(choice):
            share = choice.weights[choice.words.index(word)] / sum(choice.weights)
            beginnings.append(((*chosen_words, word), probability * share))


# ---------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize("made_up_names", [False, True])
def test_no_word_of_a_choice_begins_another_and_the_odds_sum_to_one(made_up_names):
    for choice in pools(words_of(made_up_names)):
        assert len(set(choice.words)) == len(choice.words)
        ordered = sorted(choice.words)  # a word that begins others stands right before one of them
        assert not [pair for pair in pairwise(ordered) if pair[1].startswith(pair[0])]
        nodes = [choice.trie]
        while nodes:
            node = nodes.pop()
            assert not node.next or math.isclose(sum(node.probabilities.values()), 1, abs_tol=1e-12)
            nodes += node.next.values()


def test_a_choice_with_a_word_that_begins_another_is_refused():
    assert set(Choice(["Anna", "Ann"]).words) == {"Anna", "Ann"}
    with pytest.raises(ValueError, match="prefix of another"):
        _ = Choice(["Anna", "Ann"]).trie


def test_endings_differ_in_the_first_word():
    first = [lead.split()[0] for lead in language.ENDINGS]
    assert len(set(first)) == len(first)
    assert not {word[0] for word in first} & {name[0] for name in ALL.names.words}


def test_a_is_right_before_every_word_that_follows_it():
    for choice in ALL.adjectives, ALL.secrets, ALL.places, ALL.things:
        assert all(word[0] in "bcdfghjklmnprstvwyz" for word in choice.words)


def test_there_are_40_to_100_names_and_as_many_women_as_men():
    assert 40 <= len(ALL.names.words) <= 100
    assert len(ALL.women) * 2 == len(ALL.names.words)


# ----------------------------------------------------------------------------------------------- reduced grammars

SMALL = Words(
    names=Choice(["Amy", "Ann", "Bob", "Cy"], [1, 2, 1, 1]),
    women=frozenset(["Amy", "Ann"]),
    adjectives=Choice.of("shy sly"),
    kinds=Choice(["fox"]),
    endings=Choice(["So ", "Was ", "You "]),
    secrets=Choice.of("key pin"),
    places=Choice(["barn", "cave", "cage", "tub"], [1, 1, 1, 2]),
    moves=Choice([".", ", then a ", ", a "], [1, 3, 1]),
    numbers=Choice(["two", "three", "ten"]),
    tastes=Choice.of("red ripe"),
    fruits=Choice.of("fig plum"),
    things=Choice.of("bell belt coat drum"),
    eaters=Choice.of("Bats Bees"),
    verbs=Choice.of("bake"),
    tempers=Choice.of("big bad"),
    foods=Choice.of("jam ham"),
)
SMALLEST = SMALL._replace(
    names=Choice.of("Amy Bob Cy Dan"), adjectives=Choice(["shy"]), endings=Choice(["So "]), numbers=Choice(["two"]),
    secrets=Choice(["pin"]), places=Choice.of("barn cave"), moves=Choice([".", ", then a "]), tastes=Choice(["red"]),
    things=Choice.of("bell coat drum"), tempers=Choice(["big"]), foods=Choice(["ham"]),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("words", "scenes"), [(SMALL, 1), (SMALLEST, 2)])
def test_the_probabilities_of_all_stories_sum_to_one(words, scenes):
    all_stories = list(every_story(lambda: story(words, scenes)))
    probabilities = dict(all_stories)
    assert len(probabilities) > 3000
    assert math.isclose(math.fsum(probabilities.values()), 1, abs_tol=1e-12)
    by_reader = {text: math.prod(follow(text, story(words, scenes)).ideal) for text in probabilities}
    assert math.isclose(math.fsum(by_reader.values()), 1, abs_tol=1e-12)
    assert all(math.isclose(probabilities[text], by_reader[text], rel_tol=1e-9) for text in probabilities)
    # each text stands once among the stories, so none can be told in two ways
    assert len(probabilities) == len(all_stories)


def test_the_ideal_reader_knows_the_next_character_of_every_beginning():
    """On a reduced grammar, the support is what counting all stories gives, weighted by their probability."""
    words = SMALL._replace(plots=Choice(["hid a "]))
    probabilities, beginnings = dict(every_story(lambda: story(words))), defaultdict(float)
    for text, probability in probabilities.items():
        for end in range(len(text) + 1):
            beginnings[text[:end]] += probability
    for text in Random(0).sample(sorted(probabilities), 60):
        for position, support in enumerate(follow(text, story(words)).support):
            before = text[:position]
            assert {c: beginnings[before + c] / beginnings[before] for c in support} == pytest.approx(
                support, abs=1e-12
            )
            assert sum(support.values()) == pytest.approx(1, abs=1e-12)


# ----------------------------------------------------------------------------------------------------- real stories


def with_probabilities(generator, probabilities):
    """The same story; the probability of every sampled word is noted."""
    point = next(generator)
    while True:
        word = yield point
        if isinstance(point, Choice):
            probabilities.append(point.weights[point.words.index(word)] / sum(point.weights))
        try:
            point = generator.send(word)
        except StopIteration:
            return


@cache
def readings(scenes):
    """Two thousand stories, and what the readers make of them."""
    return [(text, read(text, scenes)) for text in stories(10, 2000, scenes)]


@pytest.mark.parametrize(
    ("scenes", "made_up_names"), [*VARIANTS[:3], pytest.param(*VARIANTS[3], marks=pytest.mark.slow)]
)
def test_reader_and_teller_agree_on_the_probability_of_real_stories(scenes, made_up_names):
    for number, text in enumerate(stories(5, 200, scenes, made_up_names)):
        probabilities = []
        generator = with_probabilities(story(words_of(made_up_names), scenes), probabilities)
        assert text == tell(generator, Random(f"5 {number}"))
        reading = read(text, scenes, made_up_names)
        assert len(reading.ideal) == len(reading.forgetful) == len(reading.takes) == len(reading.support) == len(text)
        assert sum(map(math.log, reading.ideal)) == pytest.approx(sum(map(math.log, probabilities)), abs=1e-9)


def test_the_floor_is_what_the_ideal_reader_expects_to_pay():
    """Stories are drawn with the probabilities that the reader gives: what it pays is its own entropy, within noise."""
    surprise, spread = 0.0, 0.0
    for _, reading in readings(scenes=1):
        for probability, support in zip(reading.ideal, reading.support, strict=True):
            entropy = -sum(p * math.log(p) for p in support.values())
            spread += sum(p * (math.log(p) + entropy) ** 2 for p in support.values())
            surprise += -math.log(probability) - entropy
    assert abs(surprise) < 4 * math.sqrt(spread)


def test_a_corrupted_determined_character_is_impossible():
    random = Random(3)
    for scenes in (1, 2):
        texts = stories(3, 12, scenes)
        letters = sorted(set("".join(texts)))
        for text in texts:
            for position, takes in enumerate(read(text, scenes).takes):
                if takes == "free":
                    continue
                wrong = random.choice([letter for letter in letters if letter != text[position]])
                reading = read(text[:position] + wrong + text[position + 1 :], scenes)
                assert reading.ideal[-1] == 0.0
                assert len(reading.ideal) == position + 1


def test_a_text_that_goes_on_after_the_end_is_impossible_and_a_beginning_is_not():
    text = stories(3, 1)[0]
    assert read(text + "\n").ideal == [*read(text).ideal, 0.0]
    assert read(text[:40]).ideal == read(text).ideal[:40]


@pytest.mark.parametrize(("scenes", "made_up_names"), VARIANTS)
def test_what_a_text_may_begin_with_is_a_beginning(scenes, made_up_names):
    language = Stories(StoriesConfig(scenes=scenes, made_up_names=made_up_names))
    text = "\n" + language.beginning(3)
    assert text.count(".") == 2 and all(language.read(text).ideal) and len(language.read(text).ideal) == len(text)


# ------------------------------------------------------------------------------------------------------------ names


@pytest.mark.slow
@pytest.mark.parametrize(("scenes", "made_up_names"), VARIANTS)
def test_a_character_is_free_or_remembered_and_never_both(scenes, made_up_names):
    for text in stories(7, 100 if made_up_names else 300, scenes, made_up_names):
        reading = read(text, scenes, made_up_names)
        for takes, ideal, forgetful, support in zip(
            reading.takes, reading.ideal, reading.forgetful, reading.support, strict=True
        ):
            assert (takes == "free") == (len(support) > 1)
            assert takes == "free" or ideal == 1.0
            assert (takes == "local") == (ideal == forgetful == 1.0)


def test_every_name_marks_some_characters_and_has_a_price():
    rows = tally(reading for _, reading in readings(scenes=1))
    assert tuple(rows) == TAKES
    for takes, row in rows.items():
        assert row.characters > 400, takes  # enough of each for an accuracy
        assert (row.price > 0) == (takes != "local")
        assert (row.ideal > 0) == (takes == "free")
    assert rows["local"].forgetful == 0.0
    assert rows["plan"].price / rows["plan"].characters == pytest.approx(math.log(4))  # one of four answers


@pytest.mark.parametrize("scenes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_called_local_follows_from_the_last_twelve_characters(scenes):
    followers = defaultdict(Counter)  # counted over all characters, whatever their name
    local = Counter()
    for text, reading in readings(scenes):
        padded = "." * 12 + text
        for position, takes in enumerate(reading.takes):
            context = padded[position : position + 12]
            followers[context][text[position]] += 1
            local[context] += takes == "local"
    ambiguous = sum(count for context, count in local.items() if len(followers[context]) > 1)
    assert ambiguous < 0.01 * sum(local.values())


def test_the_floor_and_the_price_of_forgetting():
    """The numbers that docs quote: nats per character, one scene and two."""
    for scenes in (1, 2):
        of_all = [reading for _, reading in readings(scenes)]
        rows = tally(of_all).values()
        assert floor(of_all) == pytest.approx(0.208, abs=0.003)
        price = sum(row.price for row in rows) / sum(row.characters for row in rows)
        assert price == pytest.approx(0.157, abs=0.004)


# ---------------------------------------------------------------------------------------------------------- lengths


def longest_scene():
    """The length of the longest one-scene story, computed over the grammar.

    How a story goes on depends on the plot, the places, the number and the ending, which are all tried, and on whether
    the hero is a woman, so the longest name of either is tried. Every other word only fills its slot, with its longest.
    """
    structure = (ALL.plots, ALL.endings, ALL.moves, ALL.numbers)

    def among(choice):
        if choice.unrestricted in structure:
            return choice.words
        longest = max(map(len, choice.unrestricted.words))
        if choice.unrestricted is not ALL.names:
            return [next(word for word in choice.words if len(word) == longest)]
        groups = [[word for word in choice.words if (word in ALL.women) == women] for women in (True, False)]
        return [next(word for word in group if len(word) == longest) for group in groups]

    return max(len(text) for text, _ in every_story(lambda: story(ALL), among))


def test_a_story_of_one_scene_fits_128_characters_and_of_two_256():
    longest = longest_scene()
    assert longest == 127
    assert 2 * longest <= 256  # two scenes are the characters of one and one, with a space for the second newline
    assert all(len(text) <= longest for text in stories(12, 5000))
    assert all(len(text) <= 2 * longest for text in stories(12, 2000, scenes=2))
    assert {len(name) for name in language.MADE_UP_WOMEN + language.MADE_UP_MEN} == {4}  # no longer than the others
    assert max(map(len, ALL.names.words)) == 4


OPENING = (
    r"(?P<hero>[A-Z][a-z]+) was a (?P<adjective>\w+) (?P<kind>\w+)\. (?P<she>She|He) met (?P<other>[A-Z][a-z]+)\. "
)
SETUP = r'(?P<setup>(?:She|He) (?:said, "[^"]*"|[^.]*\.))'
ANSWER = r'(?P<answer>{} (?:sang, "[^"]*"|[^.]*\.))'
ENDING = r"(?P<ending>[^.!?]*[.!?])"
ONE = re.compile("\n" + OPENING + SETUP + " " + ANSWER.format("(?P=other)") + " " + ENDING)


def test_a_story_of_two_scenes_is_two_stories_of_one():
    """Taken apart by a regular expression and put together by scene; so twice the bound of one scene holds for two."""
    first = OPENING + SETUP
    second = re.sub(r"\?P<(\w+)>", r"?P<\1_2>", first)
    answer = ANSWER.format("(?P=other)")
    two = re.compile(f"\n(?P<a>{first}) (?P<b>{second}) (?P<c>{answer} {ENDING}) (?P<d>(?P=other_2) .*)")
    for text in stories(13, 500, scenes=2):
        match = two.fullmatch(text)
        halves = ["\n" + match["a"] + " " + match["c"], "\n" + match["b"] + " " + match["d"]]
        assert sum(map(len, halves)) == len(text)
        for half in halves:
            assert ONE.fullmatch(half)
            assert math.prod(read(half).ideal) > 0


# ------------------------------------------------------------------------------------------------------------ facts


def test_story_i_is_a_function_of_the_seed_and_i_alone():
    assert stories(1, 50)[:20] == stories(1, 20)
    assert stories(1, 20) != stories(2, 20)
    assert len(set(stories(1, 2000))) == 2000
    assert stories(1, 0) == []


def test_the_same_seed_tells_the_same_bytes_on_every_machine():
    assert sha256("".join(stories(0, 200)).encode()).hexdigest()[:16] == "52abaf3b434031fe"


def test_ten_thousand_stories_are_more_than_a_million_characters():
    texts = stories(1337, 10_000)
    assert 1.1e6 < sum(map(len, texts)) < 1.3e6
    assert all(text[0] == "\n" and text[-1] in ".!?" and "\n" not in text[1:] for text in texts)


@pytest.mark.parametrize(("count", "scenes"), [(-1, 1), (1, 0), (1, 5)])
def test_impossible_requests_are_refused(count, scenes):
    with pytest.raises(ValueError, match="expected count >= 0 and 1 to 4 scenes"):
        stories(0, count, scenes)


def test_the_examples_in_the_docstring_are_stories():
    examples = re.findall(r"^    (\w+ was a .*)$", language.__doc__, re.MULTILINE)
    assert len(examples) == 4
    assert all(math.prod(read("\n" + example).ideal) > 0 for example in examples)
    example, marks = re.search(r"^    (\w+ was a .*)\n    (.*)$", story_reader.__doc__, re.MULTILINE).groups()
    initials = {takes: takes[0] for takes in TAKES} | {"local": "."}
    assert "".join(initials[takes] for takes in read("\n" + example).takes[1:]) == marks


NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def test_what_is_answered_is_what_was_set_up():
    """An independent reader, made of regular expressions, checks what every story claims."""
    cases = Counter()
    pronouns = defaultdict(set)
    for text in stories(14, 3000):
        match = ONE.fullmatch(text)
        hero, other, setup, answer, ending = match.group("hero", "other", "setup", "answer", "ending")
        assert hero[0] != other[0]
        she, doing = setup.split(" ", 1)
        pronouns[hero] |= {match["she"], she}
        if doing.startswith("hid"):
            places = re.fullmatch(r"hid a \w+ in a (\w+)(?:, a (\w+))?(?:, then a (\w+))?\.", doing).groups()
            places = [place for place in places if place]
            assert answer == f"{other} found it in the {places[-1]}."
            assert len({place[0] for place in places}) == len(places)
            cases["places", len(places)] += 1
        elif doing.startswith("found"):
            number, fruit = re.fullmatch(r"found (\w+) (\w+ \w+)s\.", doing).groups()
            fewer, remaining = re.fullmatch(rf"{other} ate one, so {hero} had (\w+) (.*)\.", answer).groups()
            assert NUMBERS.index(fewer) == NUMBERS.index(number) - 1
            assert remaining == (fruit if fewer == "one" else fruit + "s")
            cases["fewer", fewer] += 1
        elif doing.startswith("drew"):
            assert answer == doing.replace("drew", f"{other} made")
            assert len(set(re.findall(r"\ba (\w)", doing))) == 3  # no two begin with the same letter
            cases["list"] += 1
        else:
            assert answer == doing.replace("said", f"{other} sang")
            cases["quote"] += 1
        for word in re.findall(r"\b(she|he|her|him)\b", ending):
            assert (word in ("she", "her")) == (she == "She")
        assert set(re.findall(r" ([A-Z]\w+)", ending)) <= {hero, other}
        for adjective in re.findall(r"(?:Poor|You|Was he|Was she) (\w+)", ending):
            assert adjective == match["adjective"]
        for kind in re.findall(r"(?:Oh, silly|Off ran the|You \w+|Our) (\w+)", ending):
            assert kind == match["kind"]
        cases[ending.split()[0]] += 1
    assert all(len(words) == 1 for words in pronouns.values())
    assert len(cases) == 3 + 9 + 2 + 12  # one to three places, nine numbers, list, quote, twelve endings
