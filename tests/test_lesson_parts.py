"""What lessons are made of: guesses, cells, notebooks, the model that is looked at, texts and pictures."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import script, well

from minigpt.attention import Attention, AverageSoftmax, MultiHead
from minigpt.config.options import load as load_config
from minigpt.learning import as_page, languages, small_training
from minigpt.learning.answers import Given, answers_of, class_page, learner_page, report_names
from minigpt.learning.as_notebook import START, as_notebook, write_notebooks
from minigpt.learning.classroom import Grade, tasks_of
from minigpt.learning.course import Cell, Lesson, cells, execute, lessons
from minigpt.learning.exercises import EXERCISES, begun, docstrings, exercise_file, hint, template
from minigpt.learning.languages import (
    AWAITED,
    LANGUAGES,
    MARKDOWN,
    key_of,
    message,
    paragraphs,
    table_of,
    texts_in,
    translated,
)  # fmt: skip
from minigpt.learning.output import Output, collected, say, show
from minigpt.learning.pictures import curves, matrix
from minigpt.learning.prose import as_html, as_text
from minigpt.learning.reveal import Answer, Question, ask, reveal
from minigpt.learning.small_training import read_new_stories
from minigpt.learning.turn import LABELS, MASKS, POSITIONS, SLIDERS
from minigpt.training.assemble import RunConfig, assemble, open_text
from minigpt.training.loop import evaluate

LESSONS = lessons()
NAMES = [lesson.path.stem for lesson in LESSONS]


# ---- guesses


@pytest.mark.parametrize(
    ("measured", "options", "right", "wrong_ones", "unreadable"),
    [
        (0.25, {}, [0.25, "1/4", "25 %", 0.26, "0.25"], [0.5, 0, -0.25], ["much", [1], "1/0", "nan"]),
        (0.25, {"within": 0.2}, [0.1, 0.4], [0.5], [""]),
        (28, {}, [28, "28", 28.0], [27, 28.5], ["many"]),
        (131_072, {}, ["131,072", 131072], ["131,073"], ["131,07", "1,31072"]),
        (0.123456, {"within": 0.0}, ["0.1235", 0.123456], ["0.1234", "0.124"], []),  # as it is told
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
        (answer,) = outputs
        assert isinstance(answer, Answer) and "It is so." in answer.text and "It is so." in answer.html
        return answer.right, answer.text

    assert verdict(None)[0] is None
    assert [verdict(guess)[0] for guess in right] == [True] * len(right)
    assert [verdict(guess)[0] for guess in wrong_ones] == [False] * len(wrong_ones)
    assert [verdict(guess)[0] for guess in unreadable] == [None] * len(unreadable)


def test_a_german_guess_has_a_decimal_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [Question(0.125).read(guess) for guess in ("0,5", "1,125", "1 000")] == [None, 1125, None]
    monkeypatch.setattr(languages, "_language", "de")
    read = {guess: Question(0.125).read(guess) for guess in ("0,125", "0.125", "12,5 %", "131,072", "131 072", "1,2,3")}
    assert list(read.values()) == [0.125, 0.125, 0.125, 131.072, 131_072, None]


def test_what_is_said_of_a_guess_is_true() -> None:
    def judged(question: Question, guess: Any) -> tuple[bool, str]:
        judgement = question.judge(guess)
        return judgement.right, judgement.verdict

    number, order = Question(0.25, within=0.02), Question(["a", "b", "c"])
    assert judged(number, 0.25) == (True, "Right: you said 0.25; the answer is 0.25.")
    assert judged(Question(17 / 3, within=0.1), 5.667) == (True, "Right: you said 5.667; the answer is 5.667.")
    assert judged(number, 0.26) == (True, "Near enough: you said 0.26; the answer is 0.25.")
    assert judged(number, 0.3) == (False, "Close: you said 0.3; the answer is 0.25.")
    assert judged(number, 0.9) == (False, "Not this time: you said 0.9; the answer is 0.25.")
    assert judged(order, ("a", "c", "b")) == (False, "Not this time: you said a, c, b; the answer is a, b, c.")


def test_asking_goes_on_until_a_guess_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = iter(["much", "1/4"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(replies))
    assert ask(Question(0.25)) == "1/4"
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    assert ask(Question(0.25)) is None


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
    start = json.loads(START.read_text(encoding="utf-8"))
    for lesson, path in zip(LESSONS, written):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook == as_notebook(lesson)
        setup, *shown = notebook["cells"]
        assert setup == start["cells"][0] and "pip" in "".join(setup["source"])
        code = ["".join(cell["source"]) for cell in shown if cell["cell_type"] == "code"]
        assert code == [cell.source for cell in lesson.cells if cell.kind == "code"]
        collapsed = ["jupyter" in cell["metadata"] for cell in shown if cell["cell_type"] == "code"]
        hidden = [cell.answers or not cell.computes for cell in lesson.cells if cell.kind == "code"]
        assert collapsed == hidden
        assert all(re.fullmatch(r"[\w-]{1,64}", cell["id"]) for cell in notebook["cells"])
    nbformat = pytest.importorskip("nbformat", reason="there is no nbformat: pip install nbformat")
    for path in (START, *written):
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
    monkeypatch.setattr(small_training, "OWN_STEPS", 1)

    def look(kind: type[Attention] = Attention) -> tuple[Path, str]:
        with collected() as outputs:
            run = small_training.own_run(kind)
        (line,) = outputs
        return run.folder, " ".join(line.text.split())

    few = ["training.max_steps=1", "model.n_layer=1", "model.n_embd=16", "training.sample_every=0"]
    few += ["data.stories={count: 30, validation: 20}", "training.batch_size=2"]
    folder, line = look()
    assert folder == Path("in memory") and line.startswith("There is no run here yet that can be read, so a small")
    well(script("train.py", "--config", "tiny.yaml", "--name", "mine", *few, cwd=tmp_path))
    assert look() == (Path("runs/mine"), "The model is that of your newest run, runs/mine.")
    assert look(MultiHead)[0] == Path("runs/mine")
    folder, line = look(AverageSoftmax)
    assert folder == Path("in memory") and "runs/mine, has other attentions than average_softmax, so a small" in line
    (tmp_path / "own.txt").write_text("".join((tmp_path / "runs/mine/config.yaml").read_text().split()) * 20)
    other = [*few[:4], few[5], "data.source=own.txt", "data.windows=random", "model.block_size=8"]
    well(script("train.py", "--config", "tiny.yaml", "--name", "other", *other, cwd=tmp_path))
    folder, line = look()
    assert folder == Path("in memory") and "runs/other, does not read the stories letter by letter" in line


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

    table = matrix(torch.tensor([[1.0, -torch.inf], [-0.5, 0.0]]), ["a", "b"], ["c", "d"], "<t>")
    assert table.text.split() == ["<t>", "c", "d", "a", "1.00", "-inf", "b", "-0.50", "0"]
    assert "<caption>&lt;t&gt;</caption>" in table.html and '<td class="w5 below">-0.50</td>' in table.html
    lines = curves({"a": [(1, 2.0), (2, 4.0)], "b": [(2, 3.0)]}, "t", "steps", ("floor", 1.0))
    assert lines.text.split() == ["t", "steps", "1", "2", "a", "2", "4", "b", "3", "(floor:", "1)"]
    assert lines.html.count("<polyline") == 2 and lines.html.count("stroke-dasharray") == 3
    long = curves({"how far apart the two of them are": [(1, 2.0), (2, 4.0)]}, "t", "steps").html
    assert "how far apart the two of them are<" in long
    long = curves({"how far apart the two sentences are": [(1, 2.0), (2, 4.0)]}, "t", "steps").html
    assert "how far apart the two sentences<" in long and ">are<" in long  # a picture is as wide as a phone


def test_on_paper_a_question_has_the_tables_before_it_and_each_stands_there_once() -> None:
    page = as_page.lesson_page(next(lesson for lesson in LESSONS if lesson.number == 3)).html
    handout = page.partition('class="paper handout"')[2].partition('class="paper teacher"')[0]
    shown = [re.findall("<caption>(.*?)</caption>", asked) for asked in handout.split('class="asked"')[1:]]
    assert [len(titles) for titles in shown] == [2, 2, 0, 1, 0]
    assert shown[0] == ["x: the vectors of the three tokens", "w_query: from x to the queries"]


def test_the_source_of_a_cell_is_the_one_that_ran(tmp_path: Path) -> None:
    """And not the lines of the file, which are others where it was translated."""
    path, names = tmp_path / "lesson.py", dict[str, Any]()
    path.write_text("# a file\n" * 9, encoding="utf-8")
    execute(Cell("code", "def one():\n    return 1", 3), names, path)
    execute(Cell("code", "def two():\n    return 2", 7), names, path)
    assert [inspect.getsource(names[name]) for name in ("one", "two")] == [
        "def one():\n    return 1\n", "def two():\n    return 2\n"
    ]  # fmt: skip


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
    result = read_new_stories(model, config)
    float32 = replace(config.training, precision="float32")
    assert result.loss == pytest.approx(evaluate(model, dataset, "val", float32), rel=1e-5)
    assert result.above is not None and result.above > 0
    targets = len(dataset.splits["val"]) - 1  # the first id has nothing before it
    assert result.characters == sum(row.characters for row in result.names.values()) == targets


# ---- what a class has answered

GIVEN = {"guess": "8", "right": False, "mistake": "the standard deviation", "answer": "64", "answered": True}
FILE = {"minigpt": "answers", "format": 1, "lesson": 5, "answers": [GIVEN]}
DAMAGED = {
    "cut": json.dumps(FILE)[:-4],
    "another lesson": json.dumps(FILE | {"lesson": 6}),
    "another format": json.dumps(FILE | {"format": 2}),
    "another key": json.dumps(FILE | {"learner": "ana"}),
    "a number for a text": json.dumps(FILE | {"answers": [GIVEN | {"guess": 8}]}),
    "a word for a truth": json.dumps(FILE | {"answers": [GIVEN | {"right": "yes"}]}),
    "a long text": json.dumps(FILE | {"answers": [GIVEN | {"mistake": "x" * 301}]}),
    "many answers": json.dumps(FILE | {"answers": [GIVEN] * 101}),
    "a list": "[1]",
    "deep": "[" * 9000,
    "NaN": json.dumps(FILE).replace("5", "NaN"),
    "twice": json.dumps(FILE)[:-1] + ', "lesson": 5}',
    "large": json.dumps(FILE) + " " * 100_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_answers_is_refused_in_a_line_and_the_class_is_shown(name: str, tmp_path: Path) -> None:
    for learner, text in {"ana": json.dumps(FILE), "ben": DAMAGED[name]}.items():
        (tmp_path / learner).mkdir()
        (tmp_path / learner / "lesson_05.json").write_text(text, encoding="utf-8")
    answers = answers_of(tasks_of(tmp_path))
    refused, read = answers["ben"][5], answers["ana"][5]
    assert isinstance(refused, str) and refused and "\n" not in refused and len(refused) <= 300
    assert read == [Given("8", False, "the standard deviation", "64", True)]


def test_what_learners_wrote_is_text_and_links_are_not_followed(tmp_path: Path) -> None:
    for learner in ("ana", "eve", "a|b", "a*b"):
        (tmp_path / learner).mkdir()
        (tmp_path / learner / "lesson_05.json").write_text(json.dumps(FILE), encoding="utf-8")
    hostile = dict.fromkeys(("guess", "mistake", "answer"), "<script>alert(1)</script>\x1b[2J")
    wrote = json.dumps(FILE | {"answers": [GIVEN | hostile]})
    (tmp_path / "eve" / "lesson_05.json").write_text(wrote, encoding="utf-8")
    (tmp_path / "eve" / "lesson_06.json").symlink_to(tmp_path / "ana" / "lesson_05.json")
    tasks = tasks_of(tmp_path)
    answers, grades = answers_of(tasks), [Grade(task.learner, task.exercise, "missing") for task in tasks]
    assert str(answers["eve"][6]).startswith("a link to")
    for html in (class_page(grades, answers), learner_page("eve", grades[:12], answers["eve"])):
        assert "<script>alert" not in html and "&lt;script&gt;alert" in html and "\x1b" not in html
    assert "the standard deviation</b> (a*b, ana, a|b)" in class_page(grades, answers)
    names = report_names(["ana", "a|b", "a*b"])
    assert len(set(names.values())) == 3 and all(re.fullmatch(r"[\w() -]+\.html", name) for name in names.values())


def test_the_command_writes_the_page_the_table_and_the_reports(tmp_path: Path) -> None:
    (tmp_path / "class/ana").mkdir(parents=True)
    (tmp_path / "class/ana/lesson_05.json").write_text(json.dumps(FILE), encoding="utf-8")
    (tmp_path / "class/ana/lesson_06.json").write_text(json.dumps(FILE), encoding="utf-8")
    options = ["--csv", "c.csv", "--page", "c.html", "--reports", "back", "--language", "de"]
    ended = script("check.py", "class", *options, cwd=tmp_path)
    assert ended.code == 2 and "wrote 1 reports into back" in ended.out  # the exercises are missing
    assert "1 the standard deviation" in (tmp_path / "c.csv").read_text(encoding="utf-8")
    assert "Wer was gemacht hat" in (tmp_path / "c.html").read_text(encoding="utf-8")
    report = (tmp_path / "back/ana.html").read_text(encoding="utf-8")
    assert "deine Schätzung" in report and "abgelehnt: nicht die Antworten zu Lektion 6" in report
    assert '"Dark colours": "Dunkle Farben"' in report


# ---- other languages

OTHERS = [language for language, folder in LANGUAGES.items() if folder]
WORDS = """
    agreement alibi attention attention_weights beta block_size by_hand cache causal cpu distance dot_product
    evening free gated_delta_net grouped_query head -inf key kind latent learned linear_attention local
    masked_fill math.sqrt mlp multi_head multi_head,alibi multi_head,alibi,cache n_embd n_head n_kv_head n_layer
    nearby off_by_one output plan position qk_norm query raw recall reshape rotary running_mean_softmax scaled
    scores sign single_head sinusoidal sliding_window slope softmax tokens value weights window a b blue fox is
    journey Mia one shy sky starts step the Tom with Your all everything none x{1} blocks.0.attention.{1} k p
    query_key
"""
AS_THEY_ARE = {  # strings of lessons that are no texts: names in code, and words and sentences that a model reads
    *WORDS.split(),
    *("the past", "with bias", "d = {1}", "{1} x {2}", "({1}) x ({2})"),
    *("Tom fed Mia", "Mia fed Tom", "She met", "\nMia was a sh", "\nMia was a shy fox. She met Tom. She", "\ncfccfc|c"),
    *("x + weights @ x", "x + weights @ value", "x + weights @ short @ up", "(losses * taught).sum() / taught.sum()"),
    *("Who has the hat?", "Who", "has", "hat", "Hal", "<|assistant|>Hal", "Add {1}+1?", "Add 3+3?"),
    *("user", "assistant", "id", "q", "ABCDEF", "beta = {1}"),
}


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_of_the_pages_is_translated_with_the_same_values(language: str) -> None:
    folder, table = Path(as_page.__file__).parent, table_of(language)
    said = {
        json.loads(string)
        for path in folder.glob("*.js")
        for string in re.findall(r'said\(("(?:[^"\\]|\\.)*")', path.read_text(encoding="utf-8"))
    }
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "text":
                said |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    said |= {label for label, *_ in SLIDERS.values()} | {*LABELS.values(), *MASKS, *POSITIONS}
    assert {english for english in said if ("page", english) not in table} == set()
    for (_, english), other in table.items():
        assert other and sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", other))
        assert other.count("`") == english.count("`") and '"' not in other


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_every_text_of_a_lesson_is_translated(lesson: Lesson, language: str) -> None:
    """Each text of the English lesson has its entry, as it reads now, and each entry has its text."""
    source = lesson.path.read_text(encoding="utf-8")
    said = {key_of(node) for node in every_text_in(without_docstrings(ast.parse(source)))}
    said = {each for each in said if re.search("[A-Za-z]", re.sub(r"\{\d+\}", "", each))}
    said = {each for each in said if not re.match(r"\w+\.\w+=", each)}  # options of a run
    title, _, about = (ast.get_docstring(ast.parse(source), clean=False) or "").partition("\n\n")
    said |= {title, " ".join(about.split())} | {line[2] for line in AWAITED.finditer(source)}
    told = {each for cell in MARKDOWN.finditer(source) for each in paragraphs(cell[1])}
    code = {each for each in told if each.startswith("    ")}
    known = {english for place, english in table_of(language) if place == lesson.path.stem}
    assert (said | told) - known - code - AS_THEY_ARE == set()
    assert known - (said | told) == set()


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_of_the_exercises_is_translated(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their docstrings and hints; the code is the same, so that a file of either language counts as not begun."""
    english = {exercise: (template(exercise), hint(exercise)) for exercise in EXERCISES}
    said = {" ".join(advice.split()) for _, advice in english.values()}
    for source, _ in english.values():
        texts = (each.value for each in docstrings(ast.parse(source)))
        said |= {" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", str(text).strip())}
    assert said == {each for place, each in table_of(language) if place == "exercises"}
    assert not any(begun(exercise, exercise_file(exercise)) for exercise in EXERCISES)
    monkeypatch.setattr(languages, "_language", language)
    for exercise, (source, advice) in english.items():
        assert template(exercise) != source and hint(exercise) != advice and not begun(exercise, source)
        assert max(map(len, template(exercise).splitlines())) <= 120
        assert [line for line in source.splitlines() if "  # " in line] == [
            line for line in template(exercise).splitlines() if "  # " in line
        ]


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_a_translated_lesson_has_the_same_code(lesson: Lesson, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its strings, and for the comment that says what guess is awaited."""

    class Blank(ast.NodeTransformer):
        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
            return ast.Constant("")

        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.Constant("") if isinstance(node.value, str) else node

    def code_of(source: str) -> tuple[str, list[str]]:
        tokens = tokenize.generate_tokens(io.StringIO(AWAITED.sub("", source)).readline)
        comments = [each.string for each in tokens if each.type == tokenize.COMMENT and each.start[1]]
        return ast.dump(Blank().visit(ast.parse(source))), comments

    english = lesson.path.read_text(encoding="utf-8")
    monkeypatch.setattr(languages, "_language", language)
    assert code_of(translated(english, lesson.path.stem)) == code_of(english)


def without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        for each in list(getattr(node, "body", ())) if not isinstance(node, (ast.IfExp, ast.Lambda)) else []:
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                node.body.remove(each)  # type: ignore[attr-defined]
    return tree


def every_text_in(tree: ast.AST) -> Iterator[Any]:
    """All strings of a program, also those in what a formatted one fills in."""
    for node in texts_in(tree):
        yield node
        for part in getattr(node, "values", ()):
            if isinstance(part, ast.FormattedValue):
                yield from every_text_in(ast.Expr(part.value))


def test_a_sentence_of_another_chapter_is_translated_by_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {("messages", "{1} is better (by {2})."): "Um {2} besser: {1}.", ("x", "no"): "nein"}
    monkeypatch.setattr(languages, "table_of", lambda language: table)
    assert message("a (b) is better (by 0.1).") == "Um 0.1 besser: a (b)."
    assert message("a (1,000,000) is better (by 0.1).") == "Um 0.1 besser: a (1\u202f000\u202f000)."
    assert [message(each) for each in ("no", "It is better (by 0.1)!")] == ["no", "It is better (by 0.1)!"]


def test_a_formatted_text_keeps_what_it_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {("x", "It is {1}, or {2}."): 'Es ist {2}, "oder" {1}.', ("x", "no"): "nein", ("x", "A *b*"): "Ein *b*"}
    monkeypatch.setattr(languages, "table_of", lambda language: table)
    code = "d = {'k': 2000}\nguess = None  # no\ny = f'It is {d[\"k\"]:,.1f}, or ' f'{\"no\" if d else 1}.'\n"
    names: dict[str, Any] = {}
    german = translated("# %% [markdown]\n# A\n# *b*\n\n# %%\n" + code, "x")
    exec(german, names)
    assert (
        names["y"] == 'Es ist nein, "oder" 2\u202f000.0.'
        and "guess = None  # nein\n" in german
        and "# Ein *b*\n" in german
    )
    assert translated(code, "another") == code
