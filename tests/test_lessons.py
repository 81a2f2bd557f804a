"""The lessons: each runs with right, wrong, unreadable and no guesses, and says no number that it has not computed."""

from __future__ import annotations

import ast
import itertools
import os
import pty
import re
import select
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import QUICKLY, THEMES, Visit, cut, overflow, told, violations
from running import script, started, well

from minigpt.attention import Attention
from minigpt.config.options import to_python
from minigpt.learning import as_page, small_training
from minigpt.learning.course import NO_GUESS, Cell, Lesson, execute, lesson_of, lessons
from minigpt.learning.exercises import EXERCISES
from minigpt.learning.output import Output, collected
from minigpt.learning.reveal import Answer, Question, in_words, reveal
from minigpt.seeing import cost
from minigpt.system.errors import UserError
from minigpt.training.assemble import RunConfig

LESSONS = lessons()
NAMES = [lesson.path.stem for lesson in LESSONS]
UNREADABLE = {"made up": True}


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
    return 3 * question.measured + 20 * question.within + 1


def as_shown(question: Question) -> Any:
    """The answer as it is shown: a number in so many digits, not in all that were measured."""
    return question.measured if isinstance(question.measured, Sequence) else in_words(question.measured)


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory, whole: bool) -> Iterator[tuple[str, dict[str, Ran]]]:
    """The page, and what each lesson has shown for it; each cell with an answer was run with a right guess too, and
    what it reveals with a wrong and an unreadable one.

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

    before = dict(Attention.kinds)
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("lessons")
        patch.chdir(folder)
        patch.setattr("minigpt.text.corpus.DATA", folder / "data")
        if not whole:
            patch.setattr(small_training, "OWN_STEPS", 4)
            patch.setattr(small_training, "SHORT_STEPS", 4)
            few = [option.replace("validation: 100", "validation: 20") for option in small_training.SMALL]
            patch.setattr(small_training, "SMALL", few)
        patch.setattr(cost, "operations_to_write", cache(cost.operations_to_write))  # a cell asks again at each guess
        patch.setattr(as_page, "run", run)
        patch.setattr(small_training, "assemble", assembling)
        try:
            yield as_page.page(), by_lesson
        finally:  # without the kinds that the lessons define
            Attention.kinds.clear()
            Attention.kinds.update(before)


@pytest.fixture(scope="module")
def page(all_ran: tuple[str, dict[str, Ran]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as a file."""
    path = tmp_path_factory.mktemp("page") / "lessons.html"
    path.write_text(all_ran[0], encoding="utf-8")
    return path


# ---- each lesson


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_every_guess_is_answered(lesson: Lesson, all_ran: tuple[str, dict[str, Ran]]) -> None:
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
def test_no_number_is_told_that_was_not_computed(lesson: Lesson, all_ran: tuple[str, dict[str, Ran]]) -> None:
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
def test_a_lesson_has_its_parts(lesson: Lesson, all_ran: tuple[str, dict[str, Ran]]) -> None:
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
    lesson: Lesson, all_ran: tuple[str, dict[str, Ran]]
) -> None:
    """Of the models that it trains: in the kind of their attention, its own options and those that the lesson sets, the
    position or the seed."""
    source = lesson.path.read_text(encoding="utf-8")
    trained = [to_python(config) for config in all_ran[1][lesson.path.stem].trained]
    for first, second in itertools.combinations(trained, 2):
        left, right = first["model"].pop("attention"), second["model"].pop("attention")
        shared = left.keys() & right.keys() - {"kind"} if left["kind"] != right["kind"] else set()
        shared = {name for name in shared if f"{name}=" not in source}
        assert {name: left[name] for name in shared} == {name: right[name] for name in shared}
        for config in (first, second):
            config["model"]["position"], config["training"]["seed"] = {}, 0
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
    assert [lesson.number for lesson in LESSONS] == list(range(1, len(LESSONS) + 1))
    with pytest.raises(UserError, match="there is no lesson 99; there are 1 to"):
        lesson_of(99)


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


@pytest.mark.parametrize("arguments", [["99"], ["1", "--html", "x.html"], ["--notebooks", "file"], ["--html", "file"]])
def test_a_mistake_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    ended = script("lessons.py", *arguments, cwd=tmp_path)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1) and ended.err.startswith("error: ")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"


# ---- the page


@pytest.mark.slow
def test_no_address_of_the_page_points_outside(all_ran: tuple[str, dict[str, Ran]]) -> None:
    html = all_ran[0]
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", html.replace("http://www.w3.org/2000/svg", "")) == []
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert set(links) == {"data:,", *(f"#lesson-{lesson.number}" for lesson in LESSONS)}


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), THEMES)
def test_the_page_can_be_read_by_everybody(width: int, theme: str, page: Path, visit: Visit, whole: bool) -> None:
    """Unfolded: no violation of WCAG 2.2 A and AA, and nothing beyond the right edge."""
    if (width, theme) not in QUICKLY and not whole:
        pytest.skip("each width and each theme was looked at once; --whole adds the others")
    seen = visit(page, width=width, theme=theme)
    assert overflow(seen) == 0
    seen.evaluate("() => document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert violations(seen) == [] and overflow(seen) == 0


@pytest.mark.slow
def test_on_paper_nothing_is_folded_and_the_answers_come_behind_the_questions(page: Path, visit: Visit) -> None:
    """Of the lessons that are open, or else of all; on the screen everything is then where it was."""
    seen = visit(page, theme="dark")
    screen = seen.content()
    seen.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    for scheme in ("light", "dark"):  # the system changes its colours while the page is on paper
        seen.emulate_media(color_scheme=scheme)
        told(seen)
    seen.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert seen.content() == screen
    assert cut(seen) == [] and seen.content() == screen
    for opened, count in {(): len(LESSONS), (1, 4): 2}.items():
        seen.reload()
        for number in opened:
            seen.locator(".lesson").nth(number).evaluate("lesson => lesson.open = true")
        before = seen.content()
        seen.emulate_media(media="print")
        seen.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        assert seen.locator(".lesson:visible").count() == count == seen.locator("#answers > h3").count()
        asked, last, answered = seen.evaluate("""() => {
            const ends = (name, end) => [...document.querySelectorAll(name)].map((e) => e.getBoundingClientRect()).
                filter((box) => box.height).map((box) => box[end]);
            return [ends(".lesson .guess", "bottom"), ends(".lesson", "bottom"), ends("#answers .answer", "top")];
        }""")
        assert len(asked) == len(answered) >= 3 * count and max(asked) < max(last) <= min(answered)
        assert seen.locator(".lesson:visible .answer, .lesson:visible .hint").count() == 0
        assert seen.locator(".lesson:visible details:not([open]), #answers details:not([open])").count() == 0
        assert seen.locator("#answers").evaluate("e => getComputedStyle(e).breakBefore") == "page"
        seen.evaluate("() => dispatchEvent(new Event('afterprint'))")
        seen.emulate_media(media="screen")
        assert seen.content() == before


@pytest.mark.slow
def test_folds_open_by_keyboard_and_addresses_open_their_lesson(page: Path, visit: Visit) -> None:
    seen = visit(page)
    assert seen.locator("details[open]").count() == 0 and violations(seen) == []
    seen.locator("nav a").first.focus()
    seen.keyboard.press("Enter")
    first = seen.locator("#lesson-1")
    first.wait_for(state="visible")
    fold = first.locator("details.answer").first
    answer = fold.locator("strong").first
    assert not answer.is_visible()
    fold.locator("summary").first.focus()
    seen.keyboard.press("Enter")
    answer.wait_for(state="visible")
    assert answer.inner_text() == "The answer: 5.667."
