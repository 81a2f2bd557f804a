"""The lessons: each runs with right, wrong, unreadable and no guesses, and says no number that it has not computed."""

from __future__ import annotations

import ast
import itertools
import json
import os
import pty
import re
import select
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import QUICKLY, Visit, overflow, violations
from running import script, started, well

from minigpt.attention import Attention
from minigpt.comparison.data import text_and_tokenizer
from minigpt.config.options import to_python
from minigpt.learning import as_page, languages, small_training
from minigpt.learning.answers import read_answers
from minigpt.learning.course import NO_GUESS, READ_AFTER, Cell, Lesson, execute, lesson_of, lessons
from minigpt.learning.exercises import EXERCISES
from minigpt.learning.languages import LANGUAGES, language, page_texts
from minigpt.learning.output import Output, Printed, collected
from minigpt.learning.reveal import Answer, Question, in_words, reveal
from minigpt.learning.small_training import small_config
from minigpt.learning.turn import MASKS, attend
from minigpt.seeing import cost
from minigpt.seeing.document import document
from minigpt.system.errors import UserError
from minigpt.training.assemble import RunConfig

LESSONS = lessons()
NAMES = [lesson.path.stem for lesson in LESSONS]
OTHERS = [each for each in LANGUAGES if each != "en"]
UNREADABLE = {"made up": True}
FolderIn = Callable[[str], Path]


@dataclass
class Ran:
    """What a lesson has shown: everything without guesses, and the answers to guesses; and what it has trained."""

    outputs: list[Output] = field(default_factory=list)
    answers: list[dict[str, Answer]] = field(default_factory=list)
    trained: list[RunConfig] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(output.text for output in self.outputs)


def wrong(question: Question) -> Any:
    """A guess that can be read, and is wrong."""
    if isinstance(question.measured, str):
        return next((each for each in question.among if each != question.measured), "zzz")
    if isinstance(question.measured, Sequence):
        return list(question.measured)[::-1]
    if isinstance(question.measured, Mapping):
        return [1 - height for height in question.measured.values()]
    return 3 * question.measured + 20 * question.within + 1


def as_shown(question: Question) -> Any:
    """The answer as it is shown: a number in so many digits, not in all that were measured."""
    return question.measured if isinstance(question.measured, (Sequence, Mapping)) else in_words(question.measured)


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory, whole: bool) -> Iterator[tuple[Path, dict[str, Ran]]]:
    """The folder of the pages, and what each lesson has shown for them; each cell with an answer was run with a right
    guess too, and what it reveals with a wrong and an unreadable one.

    There is no run, so the lessons look at a small model, and ask it about stories: quickly a model of a few steps and
    few stories, with `--whole` those that a learner sees.
    """
    by_lesson: dict[str, Ran] = defaultdict(Ran)
    pending: list[Cell] = []
    real, assemble, now = as_page.run, small_training.assemble, ""

    def assembling(config: RunConfig, *arguments: Any) -> Any:
        by_lesson[now].trained.append(config)
        return assemble(config, *arguments)

    def run(cell: Cell, names: dict[str, Any], path: Path) -> Sequence[Output]:
        nonlocal now
        now = path.stem
        calls: list[tuple[Any, Any]] = []

        def revealing(guess: Any, *arguments: Any, **options: Any) -> None:
            calls.append((arguments, options))
            reveal(guess, *arguments, **options)

        if cell.answers:
            assert names["reveal"] is reveal
            names["reveal"] = revealing
        outputs, ran = real(cell, names, path), by_lesson[path.stem]
        ran.outputs += outputs
        if cell.waits:
            pending.append(cell)
        if cell.answers:
            guessed, ran_now = pending.pop(), {}
            (ran_now["none"],) = (output for output in outputs if isinstance(output, Answer))
            question = ran_now["none"].question
            ((arguments, options),) = calls
            as_told = as_shown(question)
            for name, guess in {"wrong": wrong(question), "unreadable": UNREADABLE, "told": as_told}.items():
                with collected() as outputs_now:
                    reveal(guess, *arguments, **options)
                (ran_now[name],) = (out for out in outputs_now if isinstance(out, Answer))
            names["reveal"] = reveal
            assert NO_GUESS in guessed.source, f"{path}:{guessed.line}: a cell that waits has the line {NO_GUESS!r}"
            source = guessed.source.replace(NO_GUESS, f"guess = {question.measured!r}")
            real(Cell("code", source, guessed.line), names, path)
            (ran_now["right"],) = (out for out in real(cell, names, path) if isinstance(out, Answer))
            real(guessed, names, path)
            ran.answers.append(ran_now)
        return outputs

    with small_models(tmp_path_factory.mktemp("lessons"), whole) as (folder, patch):
        patch.setattr(as_page, "run", run)
        patch.setattr(small_training, "assemble", assembling)
        as_page.write_pages(folder / "pages", LESSONS)
        yield folder / "pages", by_lesson


@contextmanager
def small_models(folder: Path, whole: bool) -> Iterator[tuple[Path, pytest.MonkeyPatch]]:
    """Lessons run in a folder without a run, with models of a few steps unless `whole`; their kinds end with it."""
    before = dict(Attention.kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("minigpt.text.corpus.DATA", folder / "data")
        if not whole:
            patch.setattr(small_training, "OWN_STEPS", 4)
            patch.setattr(small_training, "SHORT_STEPS", 4)
            few = [option.replace("validation: 100", "validation: 20") for option in small_training.SMALL]
            patch.setattr(small_training, "SMALL", few)
        patch.setattr(cost, "operations_to_write", cache(cost.operations_to_write))  # a cell asks again at each guess
        try:
            yield folder, patch
        finally:
            Attention.kinds.clear()
            Attention.kinds.update(before)


@pytest.fixture(scope="module")
def translations(tmp_path_factory: pytest.TempPathFactory, whole: bool) -> dict[str, tuple[Path, dict[str, str]]]:
    """By language, but English: the folder of the pages, and what each lesson says in a terminal and a notebook."""
    return {other: translated_into(other, tmp_path_factory.mktemp(other), whole) for other in OTHERS}


def translated_into(other: str, folder: Path, whole: bool) -> tuple[Path, dict[str, str]]:
    said, real = defaultdict[str, str](str), as_page.run

    def run(cell: Cell, names: dict[str, Any], path: Path) -> Sequence[Output]:
        outputs = real(cell, names, path)
        said[path.stem] += "\n".join(each.text for each in outputs if not isinstance(each, Printed)) + "\n"
        return outputs

    with small_models(folder, whole) as (_, patch):
        patch.setattr(as_page, "run", run)
        patch.setattr(languages, "_language", other)
        as_page.write_pages(folder / "pages", lessons())
        for lesson in lessons():
            texts = (cell.source for cell in lesson.cells if cell.kind == "markdown" or cell.waits)
            said[lesson.path.stem] += "\n".join([lesson.title, lesson.about, *texts])
    return folder / "pages", said


@pytest.fixture
def folder_in(request: pytest.FixtureRequest) -> FolderIn:
    """`folder_in(language)`: where the pages in a language lie."""

    def folder(language: str) -> Path:
        if language == "en":
            return Path(request.getfixturevalue("all_ran")[0])
        return Path(request.getfixturevalue("translations")[language][0])

    return folder


# ---- each lesson


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_every_guess_is_answered(lesson: Lesson, all_ran: tuple[Path, dict[str, Ran]]) -> None:
    """Folded without a guess; a right and a wrong one are told apart; what cannot be read is no wrong guess."""
    answers = all_ran[1][lesson.path.stem].answers
    assert len(answers) == sum(cell.waits for cell in lesson.cells) >= 3
    for answer in answers:
        assert {name: each.right for name, each in answer.items()} == {
            "none": None,
            "right": True,
            "told": True,
            "wrong": False,
            "unreadable": None,
        }
        folded = [name for name, each in answer.items() if "<details" in each.html]
        assert folded == ["none", "unreadable"]
        assert answer["told"].text.startswith("  Right: ")
        assert "cannot be read" in answer["unreadable"].text and "cannot be read" not in answer["none"].text


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_no_number_is_told_that_was_not_computed(lesson: Lesson, all_ran: tuple[Path, dict[str, Ran]]) -> None:
    """A number with decimals in a text must be among those that the cells have shown."""
    computed = set(re.findall(r"\d+\.\d+", all_ran[1][lesson.path.stem].text))
    for cell in lesson.cells:
        if cell.kind == "markdown":
            stated = re.findall(r"\d+\.\d+", re.sub(r"(arXiv|section) [\d.]+", "", cell.source))
            assert set(stated) <= computed, f"{lesson.path.name}:{cell.line}"
        else:  # nor among the words of an answer
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not re.search(r"\d\.\d", node.value), f"{lesson.path.name}:{cell.line}: {node.value}"


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_a_lesson_has_its_parts(lesson: Lesson, all_ran: tuple[Path, dict[str, Ran]]) -> None:
    """Predictions, a picture, an exercise that can be graded, papers to read next; and it takes about ten minutes."""
    code = "\n".join(cell.source for cell in lesson.cells if cell.kind == "code")
    texts = "\n".join(cell.source for cell in lesson.cells if cell.kind == "markdown")
    assert lesson.about and lesson.cells[0].kind == "markdown"
    exercises = re.findall(r'^exercise\("(\w+)"\)', code, re.M)
    assert exercises and set(exercises) <= set(EXERCISES)
    html = "\n".join(output.html for output in all_ran[1][lesson.path.stem].outputs)
    assert "<svg" in html and 'role="img"' in html
    assert re.search(r"## What to read next\n.*arXiv \d{4}\.\d{4,5}", texts, re.S)
    words = len((lesson.about + texts + all_ran[1][lesson.path.stem].text).split())
    assert 700 <= words <= 3000


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_what_a_lesson_compares_differs_in_what_it_names_alone(
    lesson: Lesson, all_ran: tuple[Path, dict[str, Ran]]
) -> None:
    """Of the models that it trains: in the kind of their attention, its own options and those that the lesson sets, the
    position, the seed, or what of a talk is learned."""
    source = lesson.path.read_text(encoding="utf-8")
    trained = [to_python(config) for config in all_ran[1][lesson.path.stem].trained]
    for first, second in itertools.combinations(trained, 2):
        left, right = first["model"].pop("attention"), second["model"].pop("attention")
        shared = left.keys() & right.keys() - {"kind"} if left["kind"] != right["kind"] else set()
        shared = {name for name in shared if f"{name}=" not in source}
        assert {name: left[name] for name in shared} == {name: right[name] for name in shared}
        for config in (first, second):
            config["model"]["position"], config["training"]["seed"] = {}, 0
            config["data"]["learn"] = ""
        assert first == second
        first["model"]["attention"], second["model"]["attention"] = left, right


def test_the_models_of_lesson_7_have_the_same_weights_but_for_the_position() -> None:
    lesson, names = lesson_of(7), dict[str, Any]()
    with collected():
        for cell in lesson.cells:
            if cell.kind == "code" and "model_with" not in names:
                execute(cell, names, lesson.path)
    plain = names["plain"].state_dict()
    for position in ("learned", "sinusoidal", "rotary", "alibi"):
        weights = names["model_with"](position).state_dict()
        assert all(torch.equal(weights[name], tensor) for name, tensor in plain.items())
        assert all(name.startswith("position.") for name in weights.keys() - plain.keys())


def test_the_lessons_are_numbered_from_one() -> None:
    numbers = [lesson.number for lesson in LESSONS]
    assert sorted(numbers) == list(range(1, len(LESSONS) + 1))
    in_place = [number for number in numbers if number not in READ_AFTER]
    assert in_place == sorted(in_place) and numbers[0] == 1
    assert all(numbers[numbers.index(later) - 1] == before for later, before in READ_AFTER.items())
    with pytest.raises(UserError, match="there is no lesson 99; there are 1 to"):
        lesson_of(99)


# ---- in other languages

ENGLISH = re.compile(
    r"\b(?:of|and|are|it|you|your|what|which|each|from|this|that|for|guess|answer|by|not|but|than|every|how)\b"
)
QUOTED = re.compile(r"“.*?”|„.*?“|`.*?`|^    .*$|<pre.*?</pre>|<code>.*?</code>|<[^>]*>", re.S | re.M)


@pytest.mark.slow
@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_translated_lesson_says_nothing_in_english(
    name: str, language: str, translations: dict[str, tuple[Path, dict[str, str]]]
) -> None:
    """Neither on its page, nor in a terminal, nor in a notebook, but for names, quotations and a story."""
    folder, said = translations[language]
    page = (folder / f"{name}.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="lesson">(.*?)</script>', page, re.S)
    assert data
    shown = {
        "page": page[page.index("<body>") : page.index("<script", page.index("<body>"))],
        "questions": "\n".join(texts_of(json.loads(data[1]))),
        "terminal and notebook": said[name],
    }
    stories = next(iter(text_and_tokenizer(small_config([]).data)[0].documents())).strip()
    for where, text in shown.items():
        text = QUOTED.sub(" ", " ".join(text.split(" ")).replace(stories, ""))
        english = [text[max(0, match.start() - 30) : match.end() + 30] for match in ENGLISH.finditer(text)]
        assert english == [], where


def texts_of(data: Any) -> Iterator[str]:
    """All texts of a JSON object."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, (list, dict)):
        for each in data.values() if isinstance(data, dict) else data:
            yield from texts_of(each)


# ---- as scripts


def test_a_lesson_runs_as_a_plain_script_and_asks_at_a_terminal(tmp_path: Path) -> None:
    guesses = [b"5.6\n", b"28\n", b"1/8\n", b"larger\n", b"\n"]
    master, terminal = pty.openpty()
    output, asked = b"", 0
    with started(LESSONS[0].path, cwd=tmp_path, terminal=terminal) as running:
        while running.poll() is None or select.select([master], [], [], 0)[0]:
            if select.select([master], [], [], 0.05)[0]:
                output += os.read(master, 1 << 16)
            if output.count(b"Your guess (") > asked:
                os.write(master, guesses[asked])
                asked += 1
        assert running.wait() == 0
    os.close(master)
    os.close(terminal)
    text = output.decode().replace("\r", "")
    verdicts = re.findall(r"^  ((?:Right|Near enough|Not this time|The answer): .*)$", text, re.M)
    assert verdicts == [
        "Near enough: you said 5.6; the answer is 5.667.",
        "Right: you said 28; the answer is 28.",
        "Right: you said 0.125; the answer is 0.125.",
        "Not this time: you said larger; the answer is smaller.",
        "The answer: no.",
    ]


def test_the_command_lists_goes_through_and_writes(tmp_path: Path) -> None:
    listed = well(script("lessons.py", cwd=tmp_path))
    assert [line for line in listed.splitlines() if re.match(r" *\d+  ", line)] == [
        f"{lesson.number:>3}  {lesson.title}" for lesson in LESSONS
    ]
    lesson = well(script("lessons.py", "1", cwd=tmp_path))
    assert lesson.startswith("Lesson 1: The loop") and "  | import torch" in lesson and "reveal(" not in lesson
    assert "The answer: 28." in lesson
    assert f"wrote {len(LESSONS)} notebooks into my" in well(script("lessons.py", "--notebooks", "my", cwd=tmp_path))
    again = well(script("lessons.py", "--notebooks", "my", cwd=tmp_path))
    assert "wrote 0 notebooks" in again and "kept as they are: lesson_01_average.ipynb" in again


@pytest.mark.parametrize(
    "arguments",
    [["99"], ["1", "--notebooks", "x"], ["--notebooks", "file"], ["--page", "file"], ["1", "--language", "xx"]],
)
def test_a_mistake_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    ended = script("lessons.py", *arguments, cwd=tmp_path)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1) and ended.err.startswith("error: ")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"


# ---- the pages


def answer_all(seen: Any) -> None:
    """Give each question a guess: a number, the first choice, bars of one height; the last one is not known."""
    asks = seen.locator(".ask")
    for index in range(asks.count()):
        ask = asks.nth(index)
        if index == asks.count() - 1:
            ask.get_by_role("button").nth(1).click()
        elif ask.locator(".columns").count():
            for slider in ask.locator(".columns input[type=range]").all():
                slider.fill("0.25")
            ask.get_by_role("button").first.click()
        else:
            if ask.locator("input[type=radio]").count():
                ask.locator(".choices label").first.click()
            else:
                ask.locator("input[type=text]").fill("8")
            ask.get_by_role("button").first.click()


@pytest.mark.slow
def test_no_address_of_the_pages_points_outside(all_ran: tuple[Path, dict[str, Ran]]) -> None:
    for path in all_ran[0].iterdir():
        html = path.read_text(encoding="utf-8")
        assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", html.replace("http://www.w3.org/2000/svg", "")) == []
        links = {link for link in re.findall(r'(?:href|src)="([^"]*)"', html) if not link.startswith("#q-")}
        lesson_links = {f"{name}.html" for name in NAMES}
        assert links == {"data:,", *(lesson_links if path.stem == "index" else {"index.html"})}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "width", "theme"), [("en", *QUICKLY[0])] + [(each, *QUICKLY[1]) for each in LANGUAGES]
)
@pytest.mark.parametrize("name", ["index", *NAMES])
def test_a_page_can_be_read_by_everybody(
    name: str, language: str, width: int, theme: str, folder_in: FolderIn, visit: Visit
) -> None:
    """Before and after the guesses: no violation of WCAG 2.2 A and AA, and nothing beyond the right edge."""
    seen = visit(folder_in(language) / f"{name}.html", width=width, theme=theme)
    assert violations(seen) == [] and overflow(seen) == 0
    answer_all(seen)
    assert violations(seen) == [] and overflow(seen) == 0


@pytest.mark.slow
def test_nothing_is_revealed_before_a_guess_and_answers_are_kept(
    all_ran: tuple[Path, dict[str, Ran]], visit: Visit, tmp_path: Path
) -> None:
    path = all_ran[0] / "lesson_05_scale.html"
    seen = visit(path)
    assert seen.locator(".reveal:visible").count() == 0 and seen.locator(".ask:visible").count() == 1
    first = seen.locator("#q-1")
    first.get_by_role("button").first.click()
    assert "Guess first" in first.inner_text() and seen.locator(".reveal:visible").count() == 0
    first.locator("input[type=text]").fill("8")
    seen.keyboard.press("Enter")
    assert "8 is the standard deviation of the scores." in first.inner_text()
    assert seen.locator(".ask:visible").count() == 2
    seen.reload()
    assert seen.locator("#dot-1").inner_text() == "✗" and "1 of 7 answered, 0 right" in seen.inner_text("#report")
    other = tmp_path / "other.html"  # as from another run
    html = path.read_text(encoding="utf-8")
    other.write_text(re.sub(r"(minigpt-lesson-5-)\w{12}", r"\g<1>" + "0" * 12, html), encoding="utf-8")
    seen.goto(other.as_uri())
    assert "0 of 7 answered" in seen.inner_text("#report") and seen.locator("#dot-1").inner_text() == "1"


@pytest.mark.slow
def test_the_answers_of_a_page_are_read_as_they_were_given(
    all_ran: tuple[Path, dict[str, Ran]], visit: Visit, tmp_path: Path
) -> None:
    seen = visit(all_ran[0] / "lesson_05_scale.html", accept_downloads=True)
    answer_all(seen)
    with seen.expect_download() as download:
        seen.locator("#report a").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "lesson_05.json"
    given = read_answers(path, 5)
    assert (given[0].guess, given[0].right, given[0].mistake) == ("8", False, "the standard deviation")
    assert given[1].right and given[2].mistake == "too even" and given[-1].guess == "" and given[-1].answered


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NAMES)
def test_on_paper_a_lesson_is_two_pages_and_its_answers_are_their_own(
    name: str, language: str, folder_in: FolderIn, visit: Visit
) -> None:
    seen = visit(folder_in(language) / f"{name}.html", theme="dark")
    answer_all(seen)
    for paper, most in {"handout": 2, "teacher": 1}.items():
        for size in ("A4", "Letter"):
            seen.evaluate("paper => { document.documentElement.dataset.paper = paper; }", paper)
            assert len(re.findall(rb"/Type\s*/Page\b", seen.pdf(format=size))) <= most
    seen.emulate_media(media="print")
    seen.evaluate("() => { delete document.documentElement.dataset.paper; }")
    assert seen.locator(".verdict:visible, .reveal:visible, .teacher:visible").count() == 0
    assert seen.locator(".handout .asked:visible").count() == seen.locator(".ask").count()


@pytest.mark.slow
def test_bars_are_drawn_and_knobs_are_turned_by_keyboard(all_ran: tuple[Path, dict[str, Ran]], visit: Visit) -> None:
    seen = visit(all_ran[0] / "lesson_05_scale.html")
    for number in (1, 2):
        seen.locator(f"#q-{number}").get_by_role("button").nth(1).click()
    bars = seen.locator("#q-3 .columns input[type=range]")
    for index, presses in enumerate((14, 29, 32, 25)):
        bars.nth(index).focus()
        for _ in range(presses):
            seen.keyboard.press("ArrowUp")
    seen.locator("#q-3").get_by_role("button").first.focus()
    seen.keyboard.press("Enter")
    assert "Right: 0% lies elsewhere." in seen.inner_text("#q-3 .verdict")
    turned = seen.locator("#q-3 .turn")
    turned.locator("input[type=range]").focus()
    seen.keyboard.press("Home")  # all scores times zero
    assert turned.inner_text().count("0.250") == 4


# ---- the pages compute and judge as Python does

SETTINGS = [
    {"factor": 0.5, "mask": "the past"},
    {"mask": "everything", "temperature": 0.3},
    {"mask": "one too far", "heads": 4},
    {"mask": "the last two", "width": 4},
    {"mask": "not itself", "position": "alibi"},
    {"position": "rotary", "heads": 2, "factor": 2.0},
    {"raised": 1.5, "mask": "the past"},
]


def empty_page(tmp_path: Path) -> Path:
    """A page with the scripts of lessons, and no lesson."""
    path = tmp_path / "page.html"
    scripts = [(as_page.HERE / name).read_text(encoding="utf-8") for name in ("attention.js", "asking.js")]
    path.write_text(
        document("t", "<main><h1>t</h1></main>", "", scripts, {"texts": page_texts()}, language()), encoding="utf-8"
    )
    return path


def test_the_page_computes_the_weights_as_torch_does(visit: Visit, tmp_path: Path) -> None:
    seen = visit(empty_page(tmp_path))
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 8, dtype=torch.float64).unbind()
    data = {"query": query.tolist(), "key": key.tolist(), "masks": MASKS, "raises": 2}
    for settings in SETTINGS:
        weights = seen.evaluate("([data, settings]) => attend(data, settings)", [data, settings])
        torch.testing.assert_close(
            torch.tensor(weights, dtype=torch.float64), attend(query, key, raises=2, **settings), rtol=1e-6, atol=1e-9
        )
    plain = (query @ key.mT / 8**0.5).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(attend(query, key, factor=1 / 8**0.5, mask="the past")[0], plain)


JUDGED = [
    (
        Question(
            64.12, within=6, mistakes={"low": ((None, 3), "a"), "eight": ((7, 9), "b"), "high": ((1000, None), "c")}
        ),
        [
            "8",
            "64.12",
            "60",
            "50",
            "1",
            "1,000",
            "1/4",
            "25 %",
            "2000",
            "much",
            "1/0",
            "",
            "nan",
            "1e2",
            "-3",
            "64,12",
            "0,5",
            "1 000",
        ],
    ),
    (Question(8), ["8", "8.0", "7", "9"]),
    (Question(131_072), ["131,072", "131072", "131,07", "131 072"]),
    (Question(0.123456), ["0.1235", "0.2"]),
    (Question("b", ["a", "b", "c"], mistakes={"first": ("a", "x")}), ["a", "b", "c"]),
    (
        Question({"x": 0.7, "y": 0.3}, within=0.1, mistakes={"even": ([0.5, 0.5], "x")}),
        [[0.7, 0.3], [0.65, 0.35], [0.5, 0.5], [0.0, 1.0], [1.0, 0.0]],
    ),
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_judges_as_python_does(
    language: str, visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(languages, "_language", language)
    seen = visit(empty_page(tmp_path))
    for question, guesses in JUDGED:
        bars = question.measured if isinstance(question.measured, dict) else {}
        data = {
            "kind": question.kind,
            "measured": list(bars.values()) or question.measured,
            "answer": in_words(question.measured),
            "within": question.within,
            "mistakes": [[name, case, says] for name, (case, says) in question.mistakes.items()],
        }
        for guess in guesses:
            there = seen.evaluate("([question, guess]) => judge(question, guess)", [data, guess])
            parsed = question.read(guess)
            here = None if parsed is None else question.judge(parsed)
            assert there == (here and {**vars(here)}), (question, guess)
