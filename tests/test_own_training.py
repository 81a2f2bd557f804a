"""Objectives, schedules, sources and callbacks of one's own: chosen by a word, resumed bit for bit, or refused."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.untrusted import update_manifest
from running import CONFIG, ROOT, Ended, furnish, script, started, wait_until, well
from test_interruptions import PAUSING, last_checkpoint, same, steps

from minigpt.system.errors import UserError
from minigpt.text.corpus import open_corpus
from minigpt.text.source import Source
from minigpt.training import checkpoint
from minigpt.training.report import read_metrics

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
[OWN] = [code for code in re.findall(r"```python\n(.*?)```", CONTRIBUTING, flags=re.S) if "(Callback, kind=" in code]
STEPS = 20
LONG = CONFIG.replace("max_steps: 8, eval_every: 4", f"max_steps: {STEPS}, eval_every: 10").replace(
    "n_embd: 16", "n_embd: 16, dropout: 0.2"
)
WATCHER = """
from dataclasses import dataclass
from minigpt.training.callbacks import Callback


class Watcher(Callback, kind="watcher"):
    @dataclass(frozen=True, kw_only=True)
    class Config(Callback.Config):
        factor: int = 7
        \"\"\"What the state is multiplied by.\"\"\"

    def __init__(self, config):
        super().__init__(config)
        self.seen = 0

    def after_step(self, record):
        self.seen = (self.config.factor * self.seen + record.step) % 1000
        self.log(seen=self.seen)
        return {0: "evaluate", 1: "save"}.get(self.seen % 5)

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]
"""
WHOLE = (
    "training.objective={kind: focal, power: 2}",
    "training.schedule=halving",
    "data.source={kind: sums, count: 500, seed: 3}",
    "training.callbacks=[{kind: patience, evaluations: 9}, watcher, {kind: watcher, factor: 3}]",
)
TALKS = ("data.source={kind: talks, count: 300, validation: 40, turns: 3}", "data.format=chat",
         "data.windows=documents", "model.block_size=256")  # fmt: skip
SHIPPED = {
    "label_smoothing": ("training.objective=label_smoothing",),
    "z_loss": ("training.objective={kind: z_loss, weight: 0.01}", "training.schedule=inverse_root"),
    "two_ahead": ("training.objective=two_ahead", "training.schedule={kind: warmup_stable_decay, decay: 0.5}"),
    "answers": ("training.objective=answers", "data.source={kind: recall, count: 300, validation: 50}",
                "data.windows=documents", "model.block_size=64"),
    "talks": TALKS,
    "packed talks": (*TALKS, "data.windows=packed", "data.attend=document", "data.learn=everything"),
    "ended documents": ("data.source=talk.jsonl", "data.tokenizer={kind: char, end_of_text: true}"),
    "a validation text of its own": ("data.source=talk.jsonl", "data.validation=text.txt", "data.tokenizer=byte"),
}  # fmt: skip


def train(folder: Path, text: str, *options: str, config: str = CONFIG) -> Ended:
    furnish(folder, config)
    (folder / "own.py").write_text(text, encoding="utf-8")
    return script("train.py", "--config", "small.yaml", "--plugin", "own.py", *options, cwd=folder)


def told(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times."""
    timed = ("seconds", "tokens_per_second")
    return [{key: x for key, x in line.items() if key not in timed} for line in read_metrics(folder / "metrics.jsonl")]


# ---- chosen by a word, as the page shows it ----


def test_the_commands_of_the_page_train_sample_and_resume(tmp_path: Path) -> None:
    lines = [shlex.split(line) for line in re.findall(r"^    python (.*--plugin own\.py.*)$", CONTRIBUTING, flags=re.M)]
    chosen = [[word for word in words if "=" in word] for words in lines]
    assert {word.partition("=")[0] for options in chosen for word in options} == {
        "training.objective", "training.schedule", "data.source", "training.callbacks"
    }  # fmt: skip
    for options in chosen:
        said = well(train(tmp_path, OWN, *options))
        assert "note:" not in re.sub(
            "note: (runs|[0-9]+ of the [0-9]+ documents for validation are also among)", "", said
        )  # texts of one letter come twice
        assert ("objective: focal, which training losses are of" in said) == ("training.objective=focal" in options)
        assert ("training loss (focal) " in said) == ("training.objective=focal" in options)
        assert script("sample.py", "--plugin", "own.py", "--prompt", "1", cwd=tmp_path).code in (0, 2)
        well(script("train.py", "--plugin", "own.py", "--resume", "training.max_steps=10", cwd=tmp_path))
    assert all("patience/perplexity" in line for line in told(tmp_path / "runs/small-2") if "val/loss" in line)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("training.objective=focl", "training.objective: unknown kind 'focl'; did you mean 'focal'?"),
        ("training.schedule={kind: halving, by: 3}", "training.schedule.by: unknown key"),
        ("data.source={kind: sums, count: 0}", "data.source.count: expected a whole number of at least 1"),
        ("data.source=smus", "no such name; did you mean 'sums'?"),
        ("training.callbacks=patience", "training.callbacks: expected a list, each one of patience, or null, found "),
        ("training.callbacks=[patiense]", "training.callbacks[0]: unknown kind 'patiense'; did you mean 'patience'?"),
        ("training.objective=answers", "training.objective: answers: this text has no answers"),
    ],
)  # fmt: skip
def test_what_is_misspelt_is_one_line(tmp_path: Path, option: str, message: str) -> None:
    ended = train(tmp_path, OWN, option)
    assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1, ended
    assert not (tmp_path / "runs").exists()


# ---- resumed bit for bit ----


def resumed_is_straight(home: Path, *options: str) -> None:
    """A run that is killed by a real SIGKILL and resumed is the run that was never stopped."""
    furnish(home, LONG)
    (home / "own.py").write_text(OWN + WATCHER, encoding="utf-8")
    (home / "pausing.py").write_text(PAUSING, encoding="utf-8")
    (home / "talk.jsonl").write_text('{"text": "hullo"}\n{"text": "bye"}\n' * 40, encoding="utf-8")
    words = ("--config", "small.yaml", "--plugin", "own.py", *options)
    assert script("train.py", *words, "--name", "straight", cwd=home).code == 0
    run, straight = home / "runs/killed", home / "runs/straight"
    with started("train.py", *words, "--plugin", "pausing.py", "--name", "killed", cwd=home) as training:
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(steps(run)) > 8, training)
        training.kill()
        training.wait()
    assert 8 < len(steps(run)) < STEPS
    resumed = script("train.py", "--plugin", "own.py", "--resume", "killed", cwd=home)
    assert resumed.code == 0 and "resumed after step" in resumed.out, resumed.err
    assert told(run) == told(straight)
    assert same(last_checkpoint(run), last_checkpoint(straight))
    assert last_checkpoint(run).state.get("callbacks") == last_checkpoint(straight).state.get("callbacks")


def test_a_run_with_all_of_ones_own_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    resumed_is_straight(tmp_path, *WHOLE)
    lines = told(tmp_path / "runs/straight")
    assert [line["step"] for line in lines if "val/loss" in line] != [10, 20]  # some were asked for
    assert len({line["watcher/seen"] for line in lines}) > 10


@pytest.mark.slow
@pytest.mark.parametrize("what", SHIPPED)
def test_so_is_one_with_each_that_ships(tmp_path: Path, what: str) -> None:
    resumed_is_straight(tmp_path, *SHIPPED[what])


ASKS = """
import os, signal
import minigpt.training.trainer as trainer
from minigpt.training.callbacks import Callback

plain = trainer.measure

def measure(*arguments, **options):
    if os.path.exists("interrupt"):
        os.remove("interrupt")
        os.kill(os.getpid(), signal.SIGINT)
    return plain(*arguments, **options)

trainer.measure = measure


class Asks(Callback, kind="asks"):
    def after_step(self, record):
        return {2: "sample", 3: REQUEST, 5: "save"}.get(record.step)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "last"), [("evaluate", 8), ("stop", 3)])
def test_an_evaluation_that_was_asked_for_and_stopped_is_made_up(tmp_path: Path, asked: str, last: int) -> None:
    code, option = ASKS.replace("REQUEST", repr(asked)), "training.callbacks=[asks]"
    well(train(tmp_path, code, option, "--name", "straight"))
    (tmp_path / "interrupt").touch()
    assert train(tmp_path, code, option, "--name", "stopped").code == 128 + signal.SIGINT
    stopped, straight = tmp_path / "runs/stopped", tmp_path / "runs/straight"
    assert steps(stopped) == [1, 2, 3] and "val/loss" not in told(stopped)[-1]
    assert last_checkpoint(stopped).state["callbacks"]["asked"] == [asked]
    assert script("train.py", "--plugin", "own.py", "--resume", "stopped", cwd=tmp_path).code == 0
    assert told(stopped) == told(straight) and steps(straight)[-1] == last
    if asked == "stop":  # nothing more is saved
        return
    assert same(last_checkpoint(stopped), last_checkpoint(straight))
    assert last_checkpoint(stopped).state["callbacks"] == last_checkpoint(straight).state["callbacks"]


# ---- what a callback may do, and may not ----


def test_requests_are_followed(tmp_path: Path) -> None:
    text = ASKS.replace("REQUEST", "'evaluate'") + "    def ended(self, reason): print('ended:', reason)\n"
    said = well(train(tmp_path, text, "training.callbacks=[asks]", "training.checkpoint_every=50"))
    run = tmp_path / "runs/small"
    assert [line["step"] for line in told(run) if "val/loss" in line] == [3, 4, 8]
    assert [path.name for path in checkpoint.checkpoints(run / "checkpoints")] == ["step-000008", "step-000005"]
    assert (run / "samples.txt").read_text("utf-8").startswith("--- step 2 ---") and said.count("ended: done") == 1


def test_a_stop_leaves_a_whole_run_that_may_go_on(tmp_path: Path) -> None:
    text = ASKS.replace("REQUEST", "'stop'") + "    def ended(self, reason): print('ended:', reason)\n"
    said = well(train(tmp_path, text, "training.callbacks=[asks]"))
    run = tmp_path / "runs/small"
    assert "stopped after step 3: a callback asks for it" in said and "ended: stopped" in said
    assert last_checkpoint(run).state["step"] == 3 and "val/loss" in told(run)[-1]
    well(script("train.py", "--plugin", "own.py", "--resume", cwd=tmp_path))
    assert steps(run) == list(range(1, 9))


def test_a_callback_that_was_added_or_left_out_on_resuming_starts_anew(tmp_path: Path) -> None:
    furnish(tmp_path)
    well(train(tmp_path, OWN + WATCHER, "training.callbacks=[watcher]"))
    words = ("train.py", "--plugin", "own.py", "--resume")
    options = ("training.max_steps=10", "training.callbacks=[patience, watcher]")
    well(script(*words, *options, cwd=tmp_path))
    states = last_checkpoint(tmp_path / "runs/small").state["callbacks"]["states"]
    seen = 0
    for step in range(1, 11):
        seen = (7 * seen + step) % 1000
    assert states[1] == {"kind": "watcher", "state": {"seen": seen}} and states[0]["state"][0] < 9
    well(script(*words, "training.max_steps=12", "training.callbacks=null", cwd=tmp_path))
    assert "callbacks" not in last_checkpoint(tmp_path / "runs/small").state


def test_an_edited_state_is_refused(tmp_path: Path) -> None:
    well(train(tmp_path, OWN + WATCHER, "training.callbacks=[watcher]"))
    folder = checkpoint.checkpoints(tmp_path / "runs/small/checkpoints")[0]
    state = json.loads((folder / "state.json").read_text("utf-8"))
    for damaged in ([3], {"states": [{"kind": 3}], "asked": []}, {"states": []}, {"states": [{}], "asked": []}):
        (folder / "state.json").write_text(json.dumps(state | {"callbacks": damaged}), encoding="utf-8")
        update_manifest(folder)
        refused = script("train.py", "--plugin", "own.py", "--resume", "training.max_steps=10", cwd=tmp_path)
        assert refused.code == 4 and "state.json: not the state of a training" in refused.err, refused


def mine(body: str) -> str:
    """A callback with this body."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    head = "import random\nimport numpy, torch\nfrom minigpt.training.callbacks import Callback\n"
    return f"{head}class Mine(Callback, kind='mine'):\n    count = 0\n{lines}\n"


STATE = "def state(self): return self.count\ndef restore(self, state): self.count = state\n"
FIRST = {  # refused before the first step
    "def state(self): return {1, 2}": "state() does not survive JSON: Object of type set",
    "def state(self): return (1, 2)": "state() does not survive JSON: (1, 2) would come back as [1, 2]",
    "def state(self): return {1: 2}": "state() does not survive JSON: {1: 2} would come back as {'1': 2}",
    "def state(self): return float('nan')": "state() does not survive JSON: Out of range float",
    "def state(self): return 2**70": "state() does not survive JSON: ",
    "def state(self): return 'x' * 2**21": "state() has 2,097,154 bytes as JSON: expected at most 1,048,576",
    "def __init__(self, config): self.config, self.x = config, random.random()\ndef state(self): return self.x":
        "in a new callback after restore: a resumed run would not go on with it",
}  # fmt: skip
LATER = {  # refused where it happens
    f"def after_step(self, record): self.count += 1\n{STATE.splitlines()[0]}":
        "state() is 1, and 0 in a new callback after restore",
    f"def started(self): self.count += 1\n{STATE}": "started changes its state",
    f"def after_save(self, step): self.count += 1\n{STATE}": "after_save changes its state",
    "def after_step(self, record): return 'halt'": "after_step answered 'halt': expected None or one of stop, ",
    "def after_save(self, step): return 'stop'": "after_save answered 'stop': expected None",
    "def after_step(self, record): torch.rand(3)": "after_step changes torch's random numbers (draw from a torch.Gen",
    "def after_step(self, record): random.random()": "after_step changes Python's random numbers",
    "def after_step(self, record): numpy.random.rand()": "after_step changes numpy's random numbers",
    "def started(self): self.model.head.weight.data.mul_(2)": "started changes the weights",
    "def after_step(self, record): self.model.head.weight.data.mul_(2)": "after_step changes the weights",
    "@torch.no_grad()\ndef after_step(self, record):\n    if record.step == 3: self.model.head.weight.mul_(2)":
        "after_step changes the weights",
    "def after_evaluation(self, evaluation): self.model.head.weight.data[0, 0] += 1e-6":
        "after_evaluation changes the weights",
    "def after_step(self, record): self.model.head.requires_grad_(False)":
        "after_step changes gradients, or which weights learn",
    "def after_step(self, record): self.model.head.weight.sum().backward()":
        "after_step changes gradients, or which weights learn",
    "def after_step(self, record): 1 / 0": "own.py:6 in after_step",
}  # fmt: skip


@pytest.mark.quick(5)
@pytest.mark.parametrize("body", [*FIRST, *LATER])
def test_a_wrong_callback_is_one_line(tmp_path: Path, body: str) -> None:
    ended = train(tmp_path, mine(body), "training.callbacks=[mine]")
    assert ended.code == 2 and (FIRST | LATER)[body] in ended.err and ended.err.count("\n") == 1, ended
    assert (tmp_path / "runs").exists() == (body in LATER)


def test_looking_is_allowed(tmp_path: Path) -> None:
    """A pass in evaluation mode, a text, numbers from one's own dice, a file in the run's folder."""
    body = """def started(self): self.dice = random.Random(0)
@torch.no_grad()
def after_step(self, record):
    from minigpt.model.eval_mode import eval_mode
    with eval_mode(self.model):
        logits = self.model(torch.zeros(1, 4, dtype=torch.long))
    self.log(largest=logits.max(), dice=self.dice.random(), none=float("nan"))
    (self.folder / "seen.txt").write_text(str(record.step))"""
    well(train(tmp_path, mine(body), "training.callbacks=[mine]"))
    well(train(tmp_path, mine(body), "--name", "straight", "training.callbacks=null"))
    run = tmp_path / "runs/small"
    assert (run / "seen.txt").read_text() == "8"
    assert {"mine/largest", "mine/dice"} <= told(run)[0].keys() and "mine/none" not in told(run)[0]
    looked, straight = last_checkpoint(run), last_checkpoint(tmp_path / "runs/straight")
    for each in (looked, straight):
        each.state.pop("callbacks", None)  # one has them, the other none
    assert same(looked, straight)


def test_a_comparison_calls_no_callbacks(tmp_path: Path) -> None:
    shared = CONFIG.replace("device: cpu", "device: cpu, callbacks: [watcher]")
    furnish(tmp_path, f"compare: {{seeds: [1], baseline: a}}\nvariants: {{a: {{}}}}\n{shared}")
    (tmp_path / "own.py").write_text(WATCHER, encoding="utf-8")
    ended = script("compare.py", "--config", "small.yaml", "--plugin", "own.py", cwd=tmp_path)
    assert ended.code == 2 and "training.callbacks: a comparison calls none" in ended.err, ended


# ---- sources ----


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Any, int], Any]], Source.Config]]:
    """Makes a source of a function of itself and the number."""
    monkeypatch.setattr(Source, "kinds", dict(Source.kinds))

    def made(function: Callable[[Any, int], Any]) -> Source.Config:
        class Mine(Source, kind="mine"):
            calls = 0
            text = function

        return Mine.Config(count=200)

    yield made


def test_its_texts_are_the_documents(source: Callable[[Callable[[Any, int], Any]], Source.Config]) -> None:
    config = source(lambda self, number: f"text é {number}\n")
    corpus, texts = open_corpus(config), [f"text é {number}\n" for number in range(200)]
    assert list(corpus.documents()) == texts and list(corpus.documents(150)) == texts[150:]
    assert open_corpus("mine").description.startswith("10,000 texts made by mine")
    assert corpus.characters == len("".join(texts)) and corpus.largest == len("text é 100\n".encode())
    assert corpus.description == f"200 texts made by mine, {len(''.join(texts).encode()):,} bytes"
    other = source(lambda self, number: f"text é {number - (number == 199)}\n")
    assert open_corpus(other).digest != corpus.digest == open_corpus(config).digest


def counted(self: Any, number: int) -> str:
    self.calls += 1
    return str(self.calls)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (counted, r"text\(\d+\) is not the same twice: it may depend on the number and the options alone"),
        (lambda self, number: str(__import__("random").random()), r"text\(\d+\) is not the same twice"),
        (lambda self, number: "x" * (number != 7), r"text\(7\) is '': expected a text of at least a character"),
        (lambda self, number: b"x", r"text\(0\) is b'x': expected a text"),
        (lambda self, number: "\ud800", r"text\(0\) has no UTF-8: "),
    ],
)
def test_a_wrong_source_is_named(
    function: Any, message: str, source: Callable[[Callable[[Any, int], Any]], Source.Config]
) -> None:
    with pytest.raises(UserError, match=r"^data\.source: mine: " + message):
        open_corpus(source(function))


@pytest.mark.parametrize("name", ["stories", "recall", "shakespeare"])
def test_a_name_is_one_sources(name: str) -> None:
    with pytest.raises(UserError, match=f"^the kind '{name}' is the name of another source: choose another name"):
        type("Mine", (Source,), {}, kind=name)


def test_a_source_that_tells_something_else_is_not_resumed(tmp_path: Path) -> None:
    well(train(tmp_path, OWN, "data.source=sums"))
    (tmp_path / "own.py").write_text(OWN.replace("{a}+{b}", "{b}+{a}"), encoding="utf-8")
    ended = script("train.py", "--plugin", "own.py", "--resume", "training.max_steps=10", cwd=tmp_path)
    assert ended.code == 2 and "is not the one that runs/small was trained on" in ended.err, ended
