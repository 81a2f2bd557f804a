"""Everything that can take longer than two seconds reports its progress, and ends at a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import pytest
import torch
from comparing import SMALL as COMPARISON
from comparing import small, written
from running import Started, started
from small_corpora import corpus_of
from stopping import DEAF, furnished

from minigpt.checks.causality import check_causal
from minigpt.comparison.experiment import Experiment
from minigpt.comparison.matching import match_parameters
from minigpt.model import GPT, ModelConfig
from minigpt.system import waiting
from minigpt.system.folder import refuse_links, sha256_of
from minigpt.text import corpus as corpora
from minigpt.text import cuts
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.ids import ids_on_disk
from minigpt.text.languages.language import StoriesConfig
from minigpt.text.tokenizer import Byte, Char
from minigpt.training import checkpoint, loop
from minigpt.training.floor import expectations
from minigpt.training.loop import TrainingConfig
from minigpt.training.profiler import take_profile
from minigpt.training.report import read_metrics

# ---- loops ----


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own, and a clock on which each look takes a second."""
    monkeypatch.setattr(corpora, "DATA", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    clock, this = iter(range(1_000_000)), threading.current_thread()
    monkeypatch.setattr(
        waiting, "perf_counter", lambda: float(next(clock)) if threading.current_thread() is this else 0.0
    )
    yield tmp_path


MODEL = ModelConfig(n_layer=3, n_embd=16, block_size=16)
STORIES = StoriesConfig(count=30, validation=10)


def hash_a_file(folder: Path) -> None:
    (folder / "large").write_bytes(b"x" * (5 << 20))
    sha256_of(folder / "large")


def read_many_lines(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "train/loss": 1}}\n' for n in range(9)))
    assert len(read_metrics(folder / "metrics.jsonl")) == 9


def walk(folder: Path) -> None:
    for number in range(9):
        (folder / str(number)).touch()
    refuse_links(folder)


def many_bad_checkpoints(folder: Path) -> None:
    for number in range(9):
        (folder / f"step-{number:06d}").mkdir()
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.newest(folder)


def many_files(folder: Path) -> None:
    for number in range(9):
        (folder / f"{number}.txt").write_text("text")
    open_corpus("*.txt")


def read_stories(folder: Path) -> None:
    corpus = open_corpus("stories", STORIES)
    expectations(corpus, Char.fit(None, corpus.documents()))


def match(folder: Path) -> None:
    variants = "".join(f"  v{n}: {{model.attention: single_head}}\n" for n in range(5))
    match_parameters(small(folder, COMPARISON.replace("  mean:", f"{variants}  mean:")))


def results(folder: Path) -> None:
    Experiment(small(folder), (), False).unfinished()


def profile(folder: Path) -> None:
    corpus = open_corpus("stories", STORIES)
    config, settings = DataConfig(stories=STORIES), TrainingConfig(batch_size=2, max_steps=9, device="cpu")
    model = GPT(MODEL, 60)
    optimizer = settings.optimizer.component(settings.optimizer, model)
    dataset = Dataset(config, corpus, Char.fit(None, corpus.documents()), 16)
    take_profile(model, dataset, optimizer, settings, 5)


def tokenize(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "BLOCK", 1)
        ids_on_disk(corpus_of("a", "b", "c", "d"), Byte())


LOOPS: dict[str, Callable[[Path], object]] = {
    "checking large: 2 of 5 MiB": hash_a_file,
    "reading metrics.jsonl: 2 lines": read_many_lines,
    "looking through {}: 2 files": walk,
    "looking for a good checkpoint: 2 of 9 checkpoints": many_bad_checkpoints,
    "reading *.txt: 2 of 9 files": many_files,
    "telling stories: 2 of 20 stories": lambda folder: open_corpus("stories", STORIES),
    "collecting the characters: 2 pieces of the text": lambda folder: Char.fit(None, ["a", "b", "c", "d"]),
    "reading the validation stories: 2 of 10 stories": read_stories,
    "listing the possible characters: 2 of 10 stories": read_stories,
    "checking that no layer sees the future: 2 of 3 layers": lambda folder: check_causal(GPT(MODEL, 60)),
    "matching the parameters: 2 of 7 variants": match,
    "reading the results: 2 of 4 runs": results,
    "warming up: 2 of 3 steps": profile,
    "measuring: 2 of 5 pairs of steps": profile,
    "tokenizing: 2 MB": tokenize,
}


@pytest.mark.parametrize("said", LOOPS)
def test_a_loop_says_how_far_it_is(said: str, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LOOPS[said](slow)
    assert f"{said.format(slow)}, " in capsys.readouterr().err


# ---- calls of a library, which does not look for signals ----

PATCH = """
import {module} as module
from pathlib import Path

def deaf(*_, **__):
    {act}

module.{name} = deaf
"""


def stopped(under_way: Iterable[tuple[Started, str, int]]) -> None:
    """Each command says what it does, and a signal then ends it in one line, with nothing but that done."""
    under_way = list(under_way)
    for running, said, signum in under_way:
        assert running.stderr and any(line.startswith(said) for line in running.stderr), said
        running.send_signal(signum)
    for running, said, signum in under_way:
        assert (running.rest().splitlines()[-1], running.wait()) == ("stopped", 128 + signum), said


QUICK = 0.2  # seconds until a command says what it does
SAMPLE, SHOW = ("sample.py",), ("show_attention.py", "--prompt", "the")
CALLS = {
    "reading model.safetensors: ": ("minigpt.training.slices", "read", SAMPLE),
    "reading tokenizer.json: ": ("minigpt.text.tokenizer", "Tokenizer.from_json", SAMPLE),
    "making the model: ": ("minigpt.training.assemble", "GPT", SAMPLE),
    "preparing the weights: ": ("minigpt.training.run", "writer", SAMPLE),
    "reading the prompt: ": ("minigpt.attention", "Attention.forward", SAMPLE),
    "measuring the loss with int8 weights: ": ("minigpt.training.run", "evaluate", (*SAMPLE, "--weights", "int8")),
    "computing the attention: ": ("minigpt.attention", "Attention.forward", SHOW),
}


def test_a_call_that_takes_long_says_so_and_ends_at_a_signal(trained: Path, tmp_path: Path) -> None:
    """Also where the call is in the main thread, in which no handler runs before it returns. All wait together."""
    with ExitStack() as all_of_them:
        under_way = []
        for number, (said, (module, name, words)) in enumerate(CALLS.items()):
            folder = furnished(tmp_path / str(number))
            (folder / "deaf.py").write_text(PATCH.format(module=module, name=name, act=DEAF), encoding="utf-8")
            call = started(*words, "--run", trained / "runs" / "small", "--plugin", "deaf.py", cwd=folder, quiet=QUICK)
            under_way.append((all_of_them.enter_context(call), said, SIGTERM))
        stopped(under_way)


def test_a_checkpoint_that_is_written_slowly_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is not stopped: a signal waits for it."""
    write, later = checkpoint.save_file, threading.Event()
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.0)

    def slow_at_first(*given: Any) -> None:
        later.wait(1.2)
        later.set()
        write(*given)

    monkeypatch.setattr(checkpoint, "save_file", slow_at_first)
    weights = checkpoint.tensors_of(GPT(replace(MODEL, n_layer=1), 60))
    checkpoint.save(tmp_path / "checkpoints", 1, weights, {}, {})
    assert "writing model.safetensors: 1 s\n" in capsys.readouterr().err


@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.slow), True], ids=["as it is", "compiled"])
def test_a_first_step_that_takes_long_says_so(
    compiled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It stays in its thread, whose modes torch looks at; compiling takes a minute or more."""
    monkeypatch.chdir(furnished(tmp_path))
    monkeypatch.setattr(corpora, "DATA", tmp_path / "data")
    monkeypatch.setattr(torch, "compile", lambda model, mode: model)
    later, plain = threading.Event(), loop.accumulate

    def slow_at_first(*given: Any) -> torch.Tensor:
        later.wait(1.2)
        later.set()
        return plain(*given)

    monkeypatch.setattr(loop, "accumulate", slow_at_first)
    config = TrainingConfig(batch_size=2, max_steps=3, device="cpu", compile=compiled)
    model, corpus = GPT(replace(MODEL, n_layer=1), 256), open_corpus("text.txt")
    dataset = Dataset(DataConfig(source="text.txt"), corpus, Byte(), 16)
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.0)
    for _ in loop.train(model, dataset, config.optimizer.component(config.optimizer, model), config, start=1):
        pass
    assert capsys.readouterr().err == "compiling the model in " * compiled + "step 2: 1 s\n"


def test_a_disk_that_is_slow_says_so_and_ends_at_a_signal(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(PATCH.format(module="os", name="fsync", act=DEAF), encoding="utf-8")
    words = ("train.py", "--config", furnished(tmp_path) / "small.yaml", "--plugin", "deaf.py")
    with started(*words, cwd=tmp_path, quiet=QUICK, MINIGPT_DATA=str(tmp_path / "data")) as training:
        stopped([(training, "waiting until ", SIGINT)])


# ---- whole commands ----


def test_a_large_file_that_is_hashed(tmp_path: Path) -> None:
    """Here one that is no Shakespeare, of 40 GB, which are not on the disk."""
    (furnished(tmp_path) / "data").mkdir()
    with (tmp_path / "data" / "shakespeare.txt").open("wb") as file:
        file.truncate(40 << 30)
    words = ("train.py", "--config", "small.yaml", "data.source=shakespeare")
    own = {"cwd": tmp_path, "quiet": QUICK, "MINIGPT_DATA": str(tmp_path / "data")}
    with started(*words, **own) as one, started(*words, **own) as other:  # type: ignore[arg-type]
        stopped((each, "checking shakespeare.txt: ", signum) for each, signum in ((one, SIGINT), (other, SIGTERM)))
    assert not (tmp_path / "runs").exists()


def test_variants_whose_speed_takes_long_to_measure(tmp_path: Path) -> None:
    written(tmp_path, COMPARISON.replace("seeds: [1, 2]", "seeds: [1]"))
    slow = "from minigpt.comparison import measurement\nmeasurement.check_before_training = lambda *_: time.sleep(60)\n"
    (tmp_path / "wait.py").write_text(f"import time\n{slow}", encoding="utf-8")
    with started("compare.py", "--config", "small.yaml", "--plugin", "wait.py", cwd=tmp_path, quiet=QUICK) as comparing:
        stopped([(comparing, "measuring the speed: ", SIGINT)])
    assert not list(tmp_path.rglob("speeds.json"))
