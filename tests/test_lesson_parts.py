"""What lessons are made of: guesses, cells, notebooks, the model that is looked at, texts and pictures."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import script, well

from minigpt.attention import Attention, AverageSoftmax, MultiHead
from minigpt.config.options import load as load_config
from minigpt.learning import small_training
from minigpt.learning.as_notebook import START, as_notebook, write_notebooks
from minigpt.learning.course import Cell, cells, lessons
from minigpt.learning.output import Output, collected, say, show
from minigpt.learning.pictures import curves, matrix
from minigpt.learning.prose import as_html, as_text
from minigpt.learning.reveal import Answer, Question, ask, reveal
from minigpt.learning.small_training import read_new_stories
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
