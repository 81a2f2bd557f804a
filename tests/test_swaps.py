"""What each swap costs: the numbers are those of the models, a row that is done is not done again, and the page."""

from __future__ import annotations

import json
import re
import shlex
import signal
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from browser import QUICKLY, Visit, cut, overflow, violations
from running import furnish, script, started, well

import minigpt
from minigpt.comparison.statistics import Estimate, estimate, paired
from minigpt.comparison.swaps import Measured, Swaps, SwapsConfig, difference, table
from minigpt.config.options import load
from minigpt.runs.report import silent
from minigpt.runs.run import open_run
from minigpt.system.errors import ConfigError, UserError
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.training.loop import TrainingConfig, evaluate
from minigpt.training.memory import ACTIVATIONS

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 2, n_embd: 16, block_size: 16, position: rotary, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 20, eval_every: 20, sample_every: 0, device: cpu, precision: float32}
sampling: {max_tokens: 20}
"""
ROWS = """\
pieces: 5
training: {batch_size: 2, optimizer: {kind: adamw, learning_rate: 0.003}, device: cpu, precision: float32}
rows:
  - {name: window 4, swap: ["model.attention={kind: sliding_window, window: 4}"]}
  - {name: base, swap: [model.position.base=10_000]}
  - {name: "<b>mean</b>", swap: [model.attention=average_softmax]}
  - {name: key heads, swap: [model.attention.n_kv_head=1]}
"""
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


def swaps(name: str, steps: int = 0, **changes: object) -> Swaps:
    settings = replace(load(SwapsConfig, "rows.yaml"), **changes)  # type: ignore[arg-type]
    return Swaps(open_run(Path("runs/small")), settings, "", steps, silent, name)


# ---- the numbers ----


def test_the_loss_of_all_pieces_is_the_exact_validation_loss(home: Path) -> None:
    found = swaps("whole", pieces=1000)
    found.run()
    for row, overrides in ((found.rows[0], []), (found.rows[1], ["model.attention={kind: sliding_window, window: 4}"])):
        run = minigpt.load("runs/small", device="cpu", overrides=overrides)
        data = Dataset(run.config.data, open_corpus("text.txt"), run.tokenizer, 16)
        assert row.measured is not None
        assert row.measured.loss == pytest.approx(evaluate(run.model, data, "val", run.config.training), abs=1e-6)
        assert sum(row.measured.tokens) == len(data.splits["val"]) - 1


def test_all_rows_read_the_same_pieces_evenly_spread(home: Path) -> None:
    found = swaps("pieces")
    found.run()
    measured = [row.measured for row in found.rows if row.measured]
    assert [len(one.losses) for one in measured] == [5, 5, 5]
    assert [list(one.tokens) for one in measured] == [[16] * 5] * 3
    everything = swaps("everything", pieces=1000)
    everything.run()
    base = everything.rows[0].measured
    assert base is not None
    every = len(base.losses) // 5
    assert list(measured[0].losses) == pytest.approx(base.losses[: 5 * every : every])


def test_an_interval_of_equal_pieces_is_students_and_of_pairs_the_differences(home: Path) -> None:
    ours, theirs = [1.0, 2.0, 4.0], [0.5, 1.0, 3.75]
    expected = paired(ours, [0.0] * 3)
    found = estimate(ours, [16] * 3)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    expected = paired(ours, theirs)
    apart = difference(Measured(ours, [16] * 3), Measured(theirs, [16] * 3))
    assert (apart.mean, apart.low, apart.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert estimate([3.0, 3.0], [1, 9]) == Estimate(3, 3, 3, 2)
    assert estimate([1.0, 2.0], [10, 30]).mean == 1.75


def test_training_goes_on_from_the_swapped_weights(home: Path) -> None:
    found = swaps("tuned", steps=30)
    found.run(["window 4"])
    base, window, mean = found.rows[0], found.rows[1], found.rows[3]
    assert window.measured and window.tuned and base.measured
    assert window.tuned.loss < window.measured.loss
    assert window.measured.losses != base.measured.losses
    assert base.tuned is None  # not asked for
    assert mean.measured is None
    again = swaps("tuned-again", steps=30)
    again.run(["window 4"])
    assert again.rows[1].tuned == window.tuned


def test_a_row_that_is_none_for_this_run_says_why(home: Path) -> None:
    found = swaps("trouble")
    found.run()
    assert found.rows[2].trouble == "the run has it already"
    assert "n_kv_head: unknown key" in found.rows[4].trouble
    assert [row[0] for row in table(found)] == ["model", "as it is", "window 4", "<b>mean</b>"]


# ---- done is done ----


def test_a_row_that_is_done_is_not_done_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = swaps("once", steps=2)
    first.run()
    monkeypatch.setattr(Swaps, "read", lambda *arguments: pytest.fail("it was measured again"))
    second = swaps("once", steps=2)
    second.run()
    assert [row.measured for row in second.rows] == [row.measured for row in first.rows]
    assert [row.tuned for row in second.rows] == [row.tuned for row in first.rows]
    with pytest.raises(pytest.fail.Exception):
        swaps("once", steps=3).run()
    with pytest.raises(pytest.fail.Exception):
        swaps("once", pieces=6).run()


@pytest.mark.parametrize(
    "damage", ["", "{", '{"measured": {}}', '{"measured": {"KEY": {"losses": [1], "tokens": [0, 2]}}}']
)
def test_damaged_results_are_measured_again(home: Path, damage: str) -> None:
    first = swaps("damaged")
    first.run(["window 4"])
    assert first.rows[0].config is not None
    path = home / "runs/swap/damaged/results.json"
    path.write_text(damage.replace("KEY", first.key(first.rows[0].config, 0)), encoding="utf-8")
    second = swaps("damaged")
    second.run(["window 4"])
    assert second.rows[0].measured == first.rows[0].measured
    assert len(json.loads(path.read_text("utf-8"))["measured"]) == 2


def test_ctrl_c_loses_no_row_that_is_done(home: Path) -> None:
    results = home / "runs/swap/stopped/results.json"
    with started(*SWAP, "--name", "stopped", "--steps", "100000", cwd=home, stdout=True) as command:
        assert command.stdout
        assert any(line.startswith("1 of 5: as it is") for line in command.stdout)
        command.send_signal(signal.SIGINT)
        assert command.wait() == 130
    kept = json.loads(results.read_text("utf-8"))["measured"]
    assert len(kept) == 1
    assert (results.parent / "page.html").is_file()
    said = well(script(*SWAP, "--name", "stopped", cwd=home))
    assert kept.items() < json.loads(results.read_text("utf-8"))["measured"].items()
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
        (["model.n_layer=1"], "model: unknown key"),
        (["--name", "../x"], "--name ../x: "),
        (["rows=[]"], "rows: expected a list"),
        (["training.eval_every=5", "--steps", "2"], "training.eval_every: it has no effect on --steps: leave it out"),
        (["training.fast=false", "--steps", "2"], "training.fast: it has no effect on --steps: leave it out"),
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
        swaps("large").run()


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
    found = Swaps(open_run(Path("runs/small")), settings, "", 0, silent, "shipped")
    assert {row.name: row.trouble for row in found.rows if row.trouble} == {
        "rotary base 10,000": "the run has it already"
    }
    with pytest.raises(ConfigError):
        SwapsConfig()
