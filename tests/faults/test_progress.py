"""Long operations report their progress, stop at Ctrl-C, and use no more memory than needed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import forked, furnish, script, small_text, started, well

from minigpt.config.options import load
from minigpt.model.gpt import GPT
from minigpt.system import waiting
from minigpt.system.waiting import interruptible, progress
from minigpt.text import seams, tokenizer
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import BPE, Byte
from minigpt.training.assemble import RunConfig
from minigpt.training.floor import predict
from minigpt.training.loop import TrainingConfig, evaluate
from minigpt.training.report import Reporter, read_metrics

DNA = random.Random(0).randbytes(2_000_000).translate(b"ACGT" * 64).decode()
WORD = DNA[:200_000]
TEXT = (
    small_text(800)
    + "I don't, he'LL; x=12345/6\n\n\n  if (a_b):\n\t\treturn 'é'\r\n" * 300
    + "多读书。多看报。少吃零食。" * 400
)


# ---- learning pieces ----


def test_the_vocabulary_of_a_text_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = BPE.fit(BPE.Config(vocab_size=400), [TEXT])
    for module in (tokenizer, seams):
        monkeypatch.setattr(module, "PART", 1 << 30)
    assert BPE.fit(BPE.Config(vocab_size=400), [TEXT]).pieces == learned.pieces


@pytest.mark.parametrize("text", [WORD, " " * 400_000], ids=["one word", "blanks"])
def test_a_word_without_end_is_learned_from(text: str) -> None:
    """Whole, it would take a square of time: two minutes."""
    learned = BPE.fit(BPE.Config(vocab_size=300), [text])
    assert learned.decode(learned.encode(text)) == text
    assert learned.vocab_size > 260


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_learning_says_that_it_is_under_way_and_ends_at_a_signal(signum: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches every process of the group, and is no error of the learner."""
    (furnish(tmp_path) / "dna.txt").write_text(DNA, encoding="utf-8")
    words = ["--config", "small.yaml", "data.source=dna.txt", "data.tokenizer={kind: bpe, vocab_size: 50000}"]
    with started("train.py", *words, cwd=tmp_path, session=True, quiet=0.2) as running:
        assert running.stderr
        assert any(line.startswith("training the tokenizer: ") for line in running.stderr)  # reading is slow, too
        os.killpg(running.pid, signum) if signum == signal.SIGINT else running.send_signal(signum)
        assert re.sub("training the tokenizer: .*\n", "", running.rest()) == "stopped\n"
        assert running.wait() == code
    assert not (tmp_path / "runs").exists()


def test_a_learner_that_does_not_react_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deaf.py").write_text("import time; time.sleep(20); open('done', 'w')", encoding="utf-8")
    monkeypatch.setattr(tokenizer, "LEARN", str(tmp_path / "deaf.py"))
    monkeypatch.chdir(tmp_path)

    def texts() -> Iterator[str]:
        yield "a text"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BPE.fit(BPE.Config(vocab_size=300), texts())
    assert not (tmp_path / "done").exists()


def test_learning_ends_with_whoever_asked_for_it(tmp_path: Path) -> None:
    """SIGKILL leaves no process behind that goes on learning."""
    code = "from minigpt.system import waiting\nfrom minigpt.text.tokenizer import BPE\nwaiting.QUIET_SECONDS = 0.2\n"
    code += "BPE.fit(BPE.Config(vocab_size=50000), [open('dna.txt').read()])"
    (tmp_path / "dna.txt").write_text(DNA, encoding="utf-8")
    asks = forked([2], code=code, argv=["-c"], cwd=str(tmp_path))
    assert asks.stderr
    learning = re.compile(r"training the tokenizer: \d+ s\n")  # all parts of the text are read
    assert any(map(learning.fullmatch, asks.stderr))
    asks.kill()
    assert asks.rest() == ""  # which the learner has too: it ends when both are gone


# ---- progress ----


def test_lines_come_after_two_seconds_and_then_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(waiting, "perf_counter", lambda: float(next(clock)))
    assert list(progress(range(20), "counting", 20, "numbers")) == list(range(20))
    said = capsys.readouterr().err.splitlines()
    assert said == [f"counting: {n} of 20 numbers, {n} s" for n in (2, 4, 8, 16)]


def test_a_call_set_aside_returns_and_raises_as_it_would() -> None:
    assert interruptible(lambda: 3, "three") == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, "nothing")


def small_model(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[TrainingConfig, GPT, Dataset]:
    """The small config's training, a model and its text in bytes."""
    monkeypatch.chdir(furnish(folder))
    monkeypatch.setattr("minigpt.text.corpus.DATA", folder / "data")
    config = load(RunConfig, "small.yaml", overrides)
    return config.training, GPT(config.model, 256), Dataset(config.data, open_corpus("text.txt"), Byte(), 16)


def test_an_evaluation_and_the_measuring_above_the_floor_that_take_long_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A clock of its own lets each look at it take a second."""
    training, model, dataset = small_model(tmp_path, monkeypatch, "training.batch_size=1", "data.validation=0.5")
    monkeypatch.setattr("minigpt.training.loop.EVALUATED", 16)
    clock, this = iter(range(10_000)), threading.current_thread()
    ours = lambda: float(next(clock)) if threading.current_thread() is this else 0.0  # noqa: E731
    monkeypatch.setattr(waiting, "perf_counter", ours)
    count, above = dataset.window_count("val"), "measuring what is above the floor"
    assert count > 16
    evaluate(model, dataset, "val", training)
    assert capsys.readouterr().err.startswith(f"evaluating: 2 of {count} batches, 2 s\nevaluating: 4 of {count} ")
    predict(model, dataset, training, None)
    assert capsys.readouterr().err.startswith(f"{above}: 2 of {count} batches, 2 s\n{above}: 4 of")


def test_so_does_an_evaluation_of_a_single_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    training, model, dataset = small_model(tmp_path, monkeypatch, "data.validation=20")
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.1)
    model.register_forward_pre_hook(lambda *_: time.sleep(1.2))
    assert evaluate(model, dataset, "val", training) > 0
    assert capsys.readouterr().err.startswith("evaluating the first batch: 1 s\n")


def test_a_run_says_what_is_left_beside_its_steps(tmp_path: Path) -> None:
    """How long an evaluation takes is known from the first one on; before, no number of seconds is the whole truth."""
    out = well(script("train.py", "--config", "small.yaml", "training.max_steps=7", cwd=furnish(tmp_path)))
    left = [re.sub(r".*  \d+ s", "", line) for line in out.splitlines() if "loss " in line and line.endswith("left")]
    assert left == 3 * [" and 2 evaluations left"] + 4 * [" left"]
    assert "  0 s left\nstep 7: training loss" in out
    means = re.findall(r"step (\d+): training loss ([\d.]+) since step (\d+), ", out)
    lines = read_metrics(tmp_path / "runs" / "small" / "metrics.jsonl")
    assert [(int(step), int(since)) for step, _, since in means] == [(4, 0), (7, 4)]
    for step, mean, since in means:
        losses = [line["train/loss"] for line in lines[int(since) : int(step)]]
        assert f"{sum(losses) / len(losses):.4f}" == mean


def test_the_evaluations_to_come_are_part_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second and an evaluation ten, by a clock of the test's own."""
    now = 0.0
    monkeypatch.setattr("minigpt.training.report.perf_counter", lambda: now)
    reporter, left = Reporter(0, steps=10, eval_every=4, prints=False), []
    for step in range(1, 11):
        now += 1
        if step in (4, 8, 10):
            with reporter.timing_an_evaluation():
                now += 10
        left.append(reporter.left(step))
    assert left[:3] == ["9 s and 3 evaluations left", "8 s and 3 evaluations left", "7 s and 3 evaluations left"]
    assert left[3:] == [f"{seconds} s left" for seconds in (26, 25, 24, 23, 12, 11, 0)]


# ---- texts ----


TREES = {"open": "", "hidden": "texts/.hidden", "closed": "texts/sub"}  # the folder in it that cannot be listed

# Opens sources with 256 MiB more memory than the program has, and without root's right to read whatever it likes.
OPEN = """
import ctypes, json, resource, sys
from pathlib import Path
from minigpt.config.options import load
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.model.gpt import GPT
from minigpt.training.assemble import RunConfig

DAC_OVERRIDE, DAC_READ_SEARCH, VERSION = 1, 2, 0x20080522
header, data = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
ctypes.CDLL(None).capget(header, data)
for i in range(3):
    data[i] &= ~(1 << DAC_OVERRIDE | 1 << DAC_READ_SEARCH)
ctypes.CDLL(None).capset(header, data)
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), now + (256 << 20)))
refusals = {}
for source in sys.argv[1:]:
    try:
        open_corpus(source)
        refusals[source] = ""
    except (ValueError, OSError) as error:
        refusals[source] = str(error)
print(json.dumps(refusals))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each source is refused with, in one process; "" where it is taken."""
    if sys.platform != "linux":
        pytest.skip("/proc and capabilities belong to Linux")
    folder = tmp_path_factory.mktemp("sources")
    with (folder / "sparse.txt").open("wb") as file:
        file.truncate(5 << 30)
    for tree, closed in TREES.items():
        for name in ("texts", "texts/sub", "texts/.hidden"):
            (folder / tree / name).mkdir(parents=True)
            (folder / tree / name / "a.txt").write_text("text", encoding="utf-8")
        if closed:
            (folder / tree / closed).chmod(0)
    sources = ["sparse.txt", *(f"{tree}/{source}" for tree in TREES for source in ("texts", "texts/**/*.txt"))]
    (folder / "open.py").write_text(OPEN, encoding="utf-8")
    said = well(script(folder / "open.py", *sources, cwd=folder))
    for tree, closed in TREES.items():
        (folder / tree / closed).chmod(0o755)
    return dict(json.loads(said))


def test_a_file_of_nothing_but_nul_is_refused_at_its_first_piece(refusals: dict[str, str]) -> None:
    """5 GB of it, in a process that has not the memory for a twentieth of that."""
    assert refusals["sparse.txt"].endswith("sparse.txt: byte 0 (line 1) is 0x00: this is a binary file, not text")


@pytest.mark.parametrize("source", ["texts", "texts/**/*.txt"])
def test_a_folder_that_cannot_be_listed_is_named(source: str, refusals: dict[str, str]) -> None:
    assert refusals[f"open/{source}"] == refusals[f"hidden/{source}"] == ""
    refused = refusals[f"closed/{source}"]
    assert "Permission denied" in refused and "closed/texts/sub" in refused
