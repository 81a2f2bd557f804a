"""What each swap costs: the numbers are those of the models, a row that is done is not done again, and the page."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Sequence
from dataclasses import astuple, replace
from html import unescape
from pathlib import Path

import pytest
from browser import QUICKLY, Visit, cut, overflow, violations
from running import furnish, script, started, well

import minigpt
from minigpt.comparison.statistics import Estimate, estimate, paired
from minigpt.comparison.swaps import Measured, Swaps, SwapsConfig
from minigpt.config.options import load
from minigpt.system.errors import ConfigError, UserError
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.training.loop import TrainingConfig, evaluate
from minigpt.training.memory import ACTIVATIONS
from minigpt.training.report import silent
from minigpt.training.run import open_run

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 2, n_embd: 16, block_size: 16, position: rotary, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 20, eval_every: 20, sample_every: 0, device: cpu, precision: float32}
sampling: {max_tokens: 20}
"""
WINDOW = "model.attention={kind: sliding_window, window: 4}"
ROWS = """\
pieces: 5
training: {batch_size: 2, optimizer: {kind: adamw, learning_rate: 0.003}, device: cpu, precision: float32}
rows:
  - {name: window 4, swap: ["WINDOW"]}
  - {name: base, swap: [model.position.base=10_000]}
  - {name: "<b>mean</b>", swap: [model.attention=average_softmax]}
  - {name: key heads, swap: [model.attention.n_kv_head=1]}
""".replace("WINDOW", WINDOW)
SWAP = ("swap.py", "--run", "small", "--config", "rows.yaml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, `small`, and the config of four rows."""
    folder = furnish(tmp_path_factory.mktemp("home"), CONFIG)
    (folder / "rows.yaml").write_text(ROWS, encoding="utf-8")
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    return folder


@pytest.fixture
def home(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the current folder."""
    monkeypatch.chdir(trained)
    return trained


def swaps(name: str, steps: int = 0, only: Sequence[str] = (), **changes: object) -> Swaps:
    """The rows, measured."""
    settings = replace(load(SwapsConfig, "rows.yaml"), **changes)  # type: ignore[arg-type]
    experiment = Swaps(open_run(Path("runs/small")), settings, "", steps, silent, name)
    experiment.run(only)
    return experiment


def measured(experiment: Swaps, steps: int = 0) -> list[Measured | None]:
    """What is known of each row."""
    return [experiment.measurement(row, steps) for row in experiment.rows]


# ---- the numbers ----


def test_the_loss_of_all_pieces_is_the_exact_validation_loss(home: Path) -> None:
    for result, overrides in zip(measured(swaps("whole", pieces=1000)), ([], [WINDOW])):
        run = minigpt.load("runs/small", device="cpu", overrides=overrides)
        data = Dataset(run.config.data, open_corpus("text.txt"), run.tokenizer, 16)
        assert result is not None
        assert result.loss == pytest.approx(evaluate(run.model, data, "val", run.config.training), abs=1e-6)
        assert sum(result.tokens) == len(data.splits["val"]) - 1


def test_all_rows_read_the_same_pieces_evenly_spread(home: Path) -> None:
    results = [result for result in measured(swaps("pieces")) if result]
    assert [list(result.tokens) for result in results] == [[16] * 5] * 3
    base = measured(swaps("everything", pieces=1000))[0]
    assert base is not None
    every = len(base.losses) // 5
    assert list(results[0].losses) == pytest.approx(base.losses[: 5 * every : every])


def test_an_interval_of_equal_pieces_is_students_and_of_pairs_the_differences(home: Path) -> None:
    losses, of_base = [1.0, 2.0, 4.0], [0.5, 1.0, 3.75]
    assert astuple(estimate(losses, [16] * 3)) == pytest.approx(astuple(paired(losses, [0.0] * 3)))
    assert astuple(paired(losses, of_base, [16] * 3)) == pytest.approx(astuple(paired(losses, of_base)))
    assert estimate([3.0, 3.0], [1, 9]) == Estimate(3, 3, 3, 2, 0)
    assert estimate([1.0, 2.0], [10, 30]).mean == 1.75
    experiment = swaps("pairs", only=["window 4"])
    base, window, *_ = measured(experiment)
    assert base and window
    assert experiment.difference(experiment.rows[1]) == paired(window.losses, base.losses, window.tokens)
    assert experiment.difference(experiment.rows[0]) is None is experiment.difference(experiment.rows[3])


def test_the_differences_of_all_rows_are_judged_together(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = swaps("pairs", only=["window 4"])
    made_up = {row.name: Estimate(1, 0.1, 1.9, 3, p) for row, p in zip(experiment.rows[1:], (0.01, 0.04))}
    monkeypatch.setattr(Swaps, "difference", lambda self, row, steps=0: made_up.get(row.name))
    shown, words = experiment.judged()
    assert list(shown.values()) == [True, True] and words.startswith("These are 2 comparisons")
    third = experiment.rows[3]
    made_up[third.name] = Estimate(1, 0.1, 1.9, 3, 0.03)
    shown, words = experiment.judged()
    assert sorted(shown.values()) == [False, False, True] and "With 3 pieces" in words
    assert words.endswith(f" No difference shown: {experiment.rows[2].name}, {third.name}.")


@pytest.mark.slow
def test_training_goes_on_from_the_swapped_weights(home: Path) -> None:
    experiment = swaps("tuned", 30, ["window 4"])
    (base, window, _, mean, _), (base_tuned, tuned, *_) = measured(experiment), measured(experiment, 30)
    assert base and window and tuned
    assert tuned.loss < window.loss
    assert window.losses != base.losses
    assert base_tuned is None is mean  # not asked for
    assert measured(swaps("tuned-again", 30, ["window 4"]), 30)[1] == tuned


def test_a_row_that_is_none_for_this_run_says_why(home: Path) -> None:
    experiment = swaps("trouble")
    assert experiment.rows[2].trouble == "the run has it already"
    assert "n_kv_head: unknown key" in experiment.rows[4].trouble
    assert [row[0] for row in experiment.table()] == ["model", "as it is", "window 4", "<b>mean</b>"]


# ---- done is done ----


def test_a_row_that_is_done_is_not_done_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = swaps("once", 2)
    monkeypatch.setattr(Swaps, "read", lambda *arguments: pytest.fail("it was measured again"))
    second = swaps("once", 2)
    assert [measured(second, steps) for steps in (0, 2)] == [measured(first, steps) for steps in (0, 2)]
    with pytest.raises(pytest.fail.Exception):
        swaps("once", 3)
    with pytest.raises(pytest.fail.Exception):
        swaps("once", pieces=6)


@pytest.mark.parametrize(
    "damage", ["", "{", '{"measured": {}}', '{"measured": {"KEY": {"losses": [1], "tokens": [0]}}}']
)
def test_damaged_results_are_measured_again(home: Path, damage: str) -> None:
    first = swaps("damaged", only=["window 4"])
    assert first.rows[0].config is not None
    path = home / "runs/swap/damaged/results.json"
    path.write_text(damage.replace("KEY", first.key(first.rows[0].config, 0)), encoding="utf-8")
    assert measured(swaps("damaged", only=["window 4"])) == measured(first)
    assert len(json.loads(path.read_text("utf-8"))["measured"]) == 2


def test_ctrl_c_loses_no_row_that_is_done(home: Path) -> None:
    results = home / "runs/swap/stopped/results.json"
    with started(*SWAP, "--name", "stopped", "--steps", "100000", cwd=home, stdout=True) as command:
        assert command.stdout
        assert any(line.startswith("1 of 5: as it is") for line in command.stdout)
        command.send_signal(signal.SIGINT)
        assert command.wait() == 130
    before = json.loads(results.read_text("utf-8"))["measured"]
    assert len(before) == 1
    assert (results.parent / "page.html").is_file()
    said = well(script(*SWAP, "--name", "stopped", cwd=home))
    assert before.items() < json.loads(results.read_text("utf-8"))["measured"].items()
    assert said.count(" of 5: ") == 5


# ---- the command and the page ----


def test_the_command_prints_the_table_and_writes_the_page(home: Path) -> None:
    said = well(script(*SWAP, "--steps", "2", "pieces=4", cwd=home))
    assert "1 of 5: as it is: " in said
    assert "2 of 5: window 4, after 2 steps: " in said
    assert "5 of 5: key heads: not for this run: " in said
    assert "after 2 steps" in said.split("\n\n")[1]
    html = (home / "runs/swap/small/page.html").read_text("utf-8")
    assert "&lt;b&gt;mean&lt;/b&gt;" in html
    assert "<b>mean</b>" not in html
    assert "python scripts/play.py --run runs/small --run runs/small &#x27;model.attention={kind" in html
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "fresh: nothing" in html
    prompts = {shlex.split(unescape(said))[0] for said in re.findall("--prompt (.*?)</pre>", html)}
    (prompt,) = prompts  # of all commands: a text that the model can read
    assert (home / "text.txt").read_text("utf-8").startswith(prompt) and 3 < len(prompt) <= 16


@pytest.mark.slow
def test_a_browser_finds_nothing_wrong_with_the_page(home: Path, visit: Visit) -> None:
    well(script(*SWAP, "--name", "seen", cwd=home))
    for width, theme in QUICKLY:
        page = visit(home / "runs/swap/seen/page.html", width=width, theme=theme)
        assert violations(page) == []
        assert overflow(page) == 0
    assert cut(page) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "window 5"], "--only window 5: there is no such row; there are: as it is, window 4"),
        (["--steps", "-1"], "--steps: expected at least 0, found -1"),
        (["--text", "none.txt"], "no file or folder 'none.txt'"),
        (["--run", "none"], "there is no run none"),
        (["pieces=1"], "pieces: expected a whole number of at least 2"),
        (["--name", "../x"], "--name ../x: "),
        (["rows=[]"], "rows: expected a list"),
        (["training.keep.best=1", "--steps", "2"], "training.keep: it has no effect on --steps: leave it out"),
        (["rows=[{swap: [model.position=none]}]"], "a row needs a name"),
        (["rows=[{name: a, swap: [model.position=none]}, {name: a, swap: [model.position=alibi]}]"], "are called 'a'"),
    ],
)
def test_what_cannot_be_is_one_line(home: Path, arguments: list[str], said: str) -> None:
    ended = script(*SWAP, *arguments, cwd=home)
    assert ended.code == 2, ended.out
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_what_does_not_fit_into_memory_is_refused_before_anything_is_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.training.memory.free_memory", lambda: 1000)
    monkeypatch.setattr(Swaps, "read", lambda *arguments: pytest.fail("it was read"))
    with pytest.raises(UserError, match=r"not enough memory: reading the text \(as it is\) would need"):
        swaps("large")


def test_training_in_micro_batches_needs_the_memory_of_one_at_a_time(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def activations(micro_batch_size: int | None) -> int:
        parts = dict[str, int]()
        monkeypatch.setattr("minigpt.comparison.swaps.check_device", lambda row, *_: parts.update(row))
        training = TrainingConfig(batch_size=8, micro_batch_size=micro_batch_size)
        swaps("few", steps=1, training=training).check_memory()
        return parts[ACTIVATIONS]

    assert activations(None) == 8 * activations(1)


def test_the_rows_that_ship_are_right_for_a_small_gpt(home: Path) -> None:
    settings = load(SwapsConfig, "swaps.yaml")
    shipped = Swaps(open_run(Path("runs/small")), settings, "", 0, silent, "shipped")
    assert {row.name: row.trouble for row in shipped.rows if row.trouble} == {
        "rotary base 10,000": "the run has it already"
    }
    with pytest.raises(ConfigError):
        SwapsConfig()
