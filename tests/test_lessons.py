"""The lessons: each runs with right, wrong, unreadable and no guesses, and says no number that it has not computed."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import select
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from browser import THEMES, Visit, overflow, violations
from running import script, started, well

from minigpt.attention import Attention, AverageSoftmax, MultiHead
from minigpt.config.options import load as load_config
from minigpt.grading.exercises import EXERCISES
from minigpt.lessons import as_page, own_model, short_trainings
from minigpt.lessons.as_notebook import as_notebook, write_notebooks
from minigpt.lessons.course import NO_GUESS, Cell, Lesson, cells, lesson_of, lessons
from minigpt.lessons.new_stories import read_new_stories
from minigpt.lessons.output import Output, collected, say, show
from minigpt.lessons.pictures import curves, matrix
from minigpt.lessons.prose import as_html, as_text
from minigpt.lessons.reveal import Answer, Question, ask, reveal
from minigpt.runs.assemble import RunConfig, assemble, open_text
from minigpt.system.errors import UserError
from minigpt.training.loop import evaluate

LESSONS = lessons()
NAMES = [lesson.path.stem for lesson in LESSONS]
UNREADABLE = {"made up": True}
QUICK = [(390, "dark")]  # to look at all of the page takes ten seconds


@dataclass
class Ran:
    """What a lesson has shown: everything without guesses, and the answers to guesses."""

    outputs: list[Output] = field(default_factory=list)
    answers: list[dict[str, Answer]] = field(default_factory=list)

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


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Ran]]]:
    """The page, and what each lesson has shown for it; each cell with an answer was run with a right guess too, and
    what it reveals with a wrong and an unreadable one.

    There is no run, so the lessons look at a small model, here of a few steps.
    """
    found: dict[str, Ran] = defaultdict(Ran)
    waiting: list[Cell] = []
    real = as_page.run

    def run(cell: Cell, names: dict[str, Any], path: Path) -> Sequence[Output]:
        asked: list[tuple[Any, Any]] = []

        def revealing(guess: Any, *given: Any, **options: Any) -> None:
            asked.append((given, options))
            reveal(guess, *given, **options)

        if cell.answers:
            assert names["reveal"] is reveal
            names["reveal"] = revealing
        outputs, ran = real(cell, names, path), found[path.stem]
        ran.outputs += outputs
        if cell.waits:
            waiting.append(cell)
        if cell.answers:
            guessed, ran_now = waiting.pop(), {}
            (ran_now["none"],) = (output for output in outputs if isinstance(output, Answer))
            question = ran_now["none"].question
            ((given, options),) = asked
            for name, guess in {"wrong": wrong(question), "unreadable": UNREADABLE}.items():
                with collected() as shown:
                    reveal(guess, *given, **options)
                (ran_now[name],) = (out for out in shown if isinstance(out, Answer))
            names["reveal"] = reveal
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
        patch.setattr(own_model, "STEPS", 8)
        patch.setattr(short_trainings, "STEPS", 8)
        patch.setattr(as_page, "run", run)
        try:
            yield as_page.page(), found
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


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_every_guess_is_answered(lesson: Lesson, all_ran: tuple[str, dict[str, Ran]]) -> None:
    """Folded without a guess; a right and a wrong one are told apart; what cannot be read is no wrong guess."""
    answers = all_ran[1][lesson.path.stem].answers
    assert len(answers) == sum(cell.waits for cell in lesson.cells) >= 3
    for answer in answers:
        assert {name: each.right for name, each in answer.items()} == {
            "none": None,
            "right": True,
            "wrong": False,
            "unreadable": None,
        }
        folded = [name for name, each in answer.items() if "<details" in each.html]
        assert folded == ["none", "unreadable"]
        assert "cannot be read" in answer["unreadable"].text and "cannot be read" not in answer["none"].text


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_no_number_is_told_that_was_not_computed(lesson: Lesson, all_ran: tuple[str, dict[str, Ran]]) -> None:
    """A number with decimals in a text must be among those that the cells have shown."""
    computed = set(re.findall(r"\d+\.\d+", all_ran[1][lesson.path.stem].text))
    for cell in lesson.cells:
        if cell.kind == "markdown":
            told = re.findall(r"\d+\.\d+", re.sub(r"(arXiv|section) [\d.]+", "", cell.source))
            assert set(told) <= computed, f"{lesson.path.name}:{cell.line}"
        else:  # nor among the words of an answer
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not re.search(r"\d\.\d", node.value), f"{lesson.path.name}:{cell.line}: {node.value}"


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


def test_the_lessons_are_numbered_from_one() -> None:
    assert [lesson.number for lesson in LESSONS] == list(range(1, len(LESSONS) + 1))
    with pytest.raises(UserError, match="there is no lesson 99; there are 1 to"):
        lesson_of(99)


# ---- guesses


@pytest.mark.parametrize(
    ("measured", "options", "right", "wrong_ones", "unreadable"),
    [
        (0.25, {}, [0.25, "1/4", "25 %", 0.26, "0.25"], [0.5, 0, -0.25], ["much", [1], "1/0", "nan"]),
        (0.25, {"within": 0.2}, [0.1, 0.4], [0.5], [""]),
        (28, {}, [28, "28", 28.0], [27, 28.5], ["many"]),
        ("smaller", {"among": ["larger", "smaller"]}, ["smaller", "Smaller", " small"], ["l"], ["other", 3, "er"]),
        ("sky", {}, ["sky", " sky "], ["blue"], ["", "  "]),
        (
            ["loop", "matrix", "zeros"],
            {},
            ["loop, matrix, zeros"],
            [["zeros", "matrix", "loop"]],
            ["loop", 3, ["loop"]],
        ),
    ],
)
def test_a_guess_of_any_kind_is_judged(
    measured: Any, options: dict[str, Any], right: list[Any], wrong_ones: list[Any], unreadable: list[Any]
) -> None:
    def verdict(guess: Any) -> tuple[bool | None, str]:
        with collected() as outputs:
            reveal(guess, measured, "It is so.", **options)
        (found,) = outputs
        assert isinstance(found, Answer) and "It is so." in found.text and "It is so." in found.html
        return found.right, found.text

    assert verdict(None)[0] is None
    assert [verdict(guess)[0] for guess in right] == [True] * len(right)
    assert [verdict(guess)[0] for guess in wrong_ones] == [False] * len(wrong_ones)
    assert [verdict(guess)[0] for guess in unreadable] == [None] * len(unreadable)


def test_what_is_said_of_a_guess_is_true() -> None:
    number, order = Question(0.25, within=0.02), Question(["a", "b", "c"])
    assert number.verdict(0.25) == (True, "Right: you said 0.25; the answer is 0.25.")
    assert number.verdict(0.26) == (True, "Near enough: you said 0.26; the answer is 0.25.")
    assert number.verdict(0.3) == (False, "Close: you said 0.3; the answer is 0.25.")
    assert number.verdict(0.9) == (False, "Not this time: you said 0.9; the answer is 0.25.")
    assert order.verdict(("a", "c", "b")) == (False, "Not quite: 1 of 3 stand where you said; the answer is a, b, c.")


def test_asking_goes_on_until_a_guess_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(["much", "1/4"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    assert ask(Question(0.25)) == "1/4"
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    assert ask(Question(0.25)) is None


# ---- as scripts


def test_a_lesson_runs_as_a_plain_script_and_asks_at_a_terminal(tmp_path: Path) -> None:
    guesses = [b"5.6\n", b"28\n", b"1/8\n", b"larger\n", b"\n"]
    ours, theirs = pty.openpty()
    read, asked = b"", 0
    with started(LESSONS[0].path, cwd=tmp_path, terminal=theirs) as running:
        while running.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.05)[0]:
                read += os.read(ours, 1 << 16)
            if read.count(b"Your guess (") > asked:
                os.write(ours, guesses[asked])
                asked += 1
        assert running.wait() == 0
    os.close(ours)
    os.close(theirs)
    text = read.decode().replace("\r", "")
    said = re.findall(r"^  ((?:Right|Near enough|Not this time|The answer): .*)$", text, re.M)
    assert said == [
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
    read = well(script("lessons.py", "1", cwd=tmp_path))
    assert read.startswith("Lesson 1: The loop") and "  | import torch" in read and "reveal(" not in read
    assert "The answer: 28." in read
    assert f"wrote {len(LESSONS)} notebooks into my" in well(script("lessons.py", "--notebooks", "my", cwd=tmp_path))
    again = well(script("lessons.py", "--notebooks", "my", cwd=tmp_path))
    assert "wrote 0 notebooks" in again and "kept as they are: lesson_01_average.ipynb" in again


@pytest.mark.parametrize("arguments", [["99"], ["1", "--html", "x.html"], ["--notebooks", "file"], ["--html", "file"]])
def test_a_mistake_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    ended = script("lessons.py", *arguments, cwd=tmp_path)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1) and ended.err.startswith("error: ")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"


# ---- cells, notebooks


def test_cells_are_read_as_jupytext_reads_them() -> None:
    text = '"""Lesson 1: x.\n\ny\n"""\n\n# %% [markdown]\n# # A\n#\n#     code\n\n# %%\nx = 1\n\n\n# %%\nreveal(x)\n'
    markdown, code, answer = cells(text)
    assert (markdown.kind, markdown.source, markdown.line) == ("markdown", "# A\n\n    code", 7)
    assert (code.kind, code.source, code.line, code.answers) == ("code", "x = 1", 12, False)
    assert text.splitlines()[answer.line - 1] == "reveal(x)" and answer.answers


def test_code_that_only_tells_a_text_is_not_shown() -> None:
    assert (
        Cell("code", 'say(\n    "a"\n)\nx = 1  # (T,)\nexercise("b")\nshow(x)', 1).computes == "x = 1  # (T,)\nshow(x)"
    )
    assert Cell("code", 'say("a")', 1).computes == ""
    assert Cell("code", 'for x in y:\n    say("a")', 1).computes == 'for x in y:\n    say("a")'


def test_the_notebooks_are_valid_and_hold_the_same_code(tmp_path: Path) -> None:
    written, _ = write_notebooks(tmp_path)
    assert [path.stem for path in written] == NAMES
    for lesson, path in zip(LESSONS, written):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook == as_notebook(lesson)
        code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert code == [cell.source for cell in lesson.cells if cell.kind == "code"]
        collapsed = ["jupyter" in cell["metadata"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        hidden = [cell.answers or not cell.computes for cell in lesson.cells if cell.kind == "code"]
        assert collapsed == hidden
        assert all(re.fullmatch(r"[\w-]{1,64}", cell["id"]) for cell in notebook["cells"])
    nbformat = pytest.importorskip("nbformat", reason="there is no nbformat: pip install nbformat")
    for path in written:
        nbformat.validate(nbformat.read(path, as_version=4))


def test_in_a_notebook_it_is_shown_as_html(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for IPython: a kernel, and what is displayed in it."""
    displayed: list[Any] = []

    class Shell:
        kernel = "a kernel"

    class IPython:
        get_ipython = staticmethod(lambda: Shell())

    class Display:
        display = staticmethod(lambda data, raw: displayed.append(data))

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    monkeypatch.setitem(sys.modules, "IPython.display", Display)
    say("A **number**: 3.")
    reveal(None, 3, "So it is.")
    assert displayed[0]["text/plain"] == "A number: 3." and "<strong>number</strong>" in displayed[0]["text/html"]
    assert "in place of None" in displayed[1]["text/html"] and "<details" in displayed[1]["text/html"]


# ---- the model that a lesson looks at


def test_it_is_the_newest_run_where_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on the stories, of the kind that is asked for; else a small model, and a line says why."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    monkeypatch.setattr(own_model, "STEPS", 1)

    def look(kind: type[Attention] = Attention) -> tuple[Path, str]:
        with collected() as outputs:
            run = own_model.own_run(kind)
        (said,) = outputs
        return run.folder, " ".join(said.text.split())

    few = ["training.max_steps=1", "model.n_layer=1", "model.n_embd=16", "training.sample_every=0"]
    few += ["data.stories={count: 30, validation: 20}", "training.batch_size=2"]
    folder, said = look()
    assert folder == Path("in memory") and said.startswith("There is no run here yet that can be read, so a small")
    well(script("train.py", "--config", "tiny.yaml", "--name", "mine", *few, cwd=tmp_path))
    assert look() == (Path("runs/mine"), "The model is that of your newest run, runs/mine.")
    assert look(MultiHead)[0] == Path("runs/mine")
    folder, said = look(AverageSoftmax)
    assert folder == Path("in memory") and "runs/mine, has other attentions than average_softmax, so a small" in said
    (tmp_path / "own.txt").write_text("".join((tmp_path / "runs/mine/config.yaml").read_text().split()) * 20)
    other = [*few[:4], few[5], "data.source=own.txt", "data.windows=random", "model.block_size=8"]
    well(script("train.py", "--config", "tiny.yaml", "--name", "other", *other, cwd=tmp_path))
    folder, said = look()
    assert folder == Path("in memory") and "runs/other, does not read the stories letter by letter" in said


# ---- texts and pictures


def test_the_markdown_of_the_lessons() -> None:
    text = "# A *b*\n\none `x * y * z`\n**two**\n\n- a\n  b\n- c & <d>\n\n1. e\n2. f\n\n    g  h\n    i"
    assert as_html(text) == (
        "<h2>A <em>b</em></h2>\n<p>one <code>x * y * z</code> <strong>two</strong></p>\n"
        "<ul><li>a b</li><li>c &amp; &lt;d&gt;</li></ul>\n<ol><li>e</li><li>f</li></ol>\n"
        '<pre tabindex="0"><code>g  h\ni</code></pre>'
    )
    assert as_text(text) == "A b\n===\n\none x * y * z two\n\n- a b\n- c & <d>\n\n1. e\n2. f\n\n    g  h\n    i"


def test_pictures_say_in_text_what_they_draw() -> None:
    import torch

    drawn = matrix(torch.tensor([[1.0, -torch.inf], [-0.5, 0.0]]), ["a", "b"], ["c", "d"], "<t>")
    assert drawn.text.split() == ["<t>", "c", "d", "a", "1.00", "-inf", "b", "-0.50", "0"]
    assert "<caption>&lt;t&gt;</caption>" in drawn.html and '<td class="w5 below">-0.50</td>' in drawn.html
    lines = curves({"a": [(1, 2.0), (2, 4.0)], "b": [(2, 3.0)]}, "t", "steps", ("floor", 1.0))
    assert lines.text.split() == ["t", "steps", "1", "2", "a", "2", "4", "b", "3", "(floor:", "1)"]
    assert lines.html.count("<polyline") == 2 and lines.html.count("stroke-dasharray") == 3


def test_what_is_printed_is_collected_in_its_place() -> None:
    with collected() as outputs:
        say("one")
        print("two", 3)
        show(Output("four", "<p>four</p>"))
    assert [output.text for output in outputs] == ["one", "two 3\n", "four"]


def test_new_stories_are_those_of_validation() -> None:
    """With as many stories as are read at a time, the score is that of the whole split: above the floor, by name."""
    options = ["data.stories={count: 120, validation: 100}", "model.n_layer=1", "model.n_embd=16"]
    config = load_config(RunConfig, "tiny.yaml", options)
    dataset, model, _ = assemble(config, *open_text(config.data))
    found = read_new_stories(model, config)
    float32 = replace(config.training, precision="float32")
    assert found.loss == pytest.approx(evaluate(model, dataset, "val", float32), rel=1e-5)
    assert found.above is not None and found.above > 0
    targets = len(dataset.splits["val"]) - 1  # the first id has nothing before it
    assert found.characters == sum(row.characters for row in found.names.values()) == targets


# ---- the page


def test_no_address_of_the_page_points_outside(all_ran: tuple[str, dict[str, Ran]]) -> None:
    html = all_ran[0]
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", html.replace("http://www.w3.org/2000/svg", "")) == []
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert set(links) == {"data:,", *(f"#lesson-{lesson.number}" for lesson in LESSONS)}


@pytest.mark.parametrize(
    ("width", "theme"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in THEMES],
)
def test_the_page_can_be_read_by_everybody(width: int, theme: str, page: Path, visit: Visit) -> None:
    """Unfolded: no violation of WCAG 2.2 A and AA, and nothing beyond the right edge."""
    seen = visit(page, width=width, theme=theme)
    assert overflow(seen) == 0
    seen.evaluate("() => document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert violations(seen) == [] and overflow(seen) == 0


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
