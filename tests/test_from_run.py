"""A new run that starts with the weights of one: what it takes from it, what it says of it, and how it is resumed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from families import make
from running import furnish, one_line, script, small_text, well
from transformers import AutoModelForCausalLM

import minigpt
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.hub.tokenizer_json import tokenizer_files
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Byte
from minigpt.training import checkpoint
from minigpt.training.report import read_metrics
from minigpt.training.run import open_run, read_config

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 2, n_embd: 16, block_size: 16, position: rotary, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 12, eval_every: 4, sample_every: 0, checkpoint_every: 4, device: cpu}
sampling: {max_tokens: 20}
"""
OTHER = """\
data: {source: other.txt, validation: 0.2}
training: {batch_size: 2, max_steps: 6, eval_every: 3, sample_every: 0, checkpoint_every: 3, device: cpu, seed: 5}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, `small`, another text of the same words, and a config without a model."""
    folder = furnish(tmp_path_factory.mktemp("home"), CONFIG)
    (folder / "other.txt").write_text(small_text()[::-1], encoding="utf-8")
    (folder / "other.yaml").write_text(OTHER, encoding="utf-8")
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    return folder


def start(home: Path, name: str, *arguments: str) -> tuple[str, Path]:
    """What a training said that starts with the weights of `small`, and its folder."""
    said = well(script("train.py", "--from-run", "small", "--name", name, *arguments, cwd=home))
    return said, home / "runs" / name


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / "checkpoints" / f"step-{step:06d}").model


def test_the_first_step_is_along_the_gradient_at_the_loaded_weights(home: Path) -> None:
    """A step of size zero leaves them as they are, bit for bit; the new run is otherwise its own."""
    rate = "training.optimizer={kind: adamw, learning_rate: 1.0e-300, weight_decay: 0}"
    said, folder = start(home, "still", rate, "training.max_steps=1", "training.warmup_steps=0")
    assert "weights: those of runs/small after step 12\n" in said
    assert "fresh" not in said
    before, after = weights(home / "runs/small", 12), weights(folder, 1)
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl")] == [1]


def test_text_and_training_are_those_of_the_config_and_the_model_is_the_runs(home: Path) -> None:
    said, folder = start(home, "tuned", "--config", "other.yaml")
    config, former = read_config(folder), read_config(home / "runs/small")
    assert "other.txt" in said
    assert (config.data.source, config.data.validation) == ("other.txt", 0.2)
    assert (config.training.batch_size, config.training.max_steps, config.training.seed) == (2, 6, 5)
    assert config.model == former.model
    assert config.data.tokenizer == former.data.tokenizer
    assert (folder / "tokenizer.json").read_bytes() == (home / "runs/small/tokenizer.json").read_bytes()
    without = read_config(start(home, "again", "data.source=other.txt", "training.max_steps=13")[1])
    assert without.training.batch_size == former.training.batch_size
    assert without.sampling == former.sampling


def test_the_record_says_where_the_weights_are_from(home: Path) -> None:
    _, folder = start(home, "recorded", "training.max_steps=1")
    record = json.loads((folder / "environment.json").read_text("utf-8"))
    raw = (home / "runs/small/checkpoints/step-000012/model.safetensors").read_bytes()
    sha256 = hashlib.sha256(raw).hexdigest()
    assert record["weights"] == {"run": str((home / "runs/small").resolve()), "step": 12, "sha256": sha256}
    assert record["checks"] == "passed"


def test_the_name_is_the_runs_or_the_configs_and_one_that_is_taken_is_numbered(home: Path) -> None:
    start = ("train.py", "--from-run", "small", "training.max_steps=1")
    assert "note:" not in well(script(*start, cwd=home)) and (home / "runs/small-tuned").is_dir()
    said = "note: runs/small-tuned is there already, so this run is runs/small-tuned-2\n"
    assert said in well(script(*start, cwd=home))
    well(script(*start, "--config", "other.yaml", cwd=home))
    assert (home / "runs/other").is_dir()


@pytest.mark.slow
def test_it_is_resumed_bit_for_bit(home: Path) -> None:
    _, parts = start(home, "parts", "--config", "other.yaml", "training.max_steps=3", "training.schedule=constant")
    _, whole = start(home, "whole", "--config", "other.yaml", "training.schedule=constant")
    well(script("train.py", "--resume", "parts", "training.max_steps=6", cwd=home))
    one, other = weights(whole, 6), weights(parts, 6)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_swapped_model_is_trained_on(home: Path) -> None:
    said, folder = start(home, "swapped", "model.attention=sliding_window", "model.attention.window=4")
    assert "fresh: nothing" not in said  # nothing is new, so nothing is listed
    assert isinstance(read_config(folder).model.attention, SlidingWindow.Config)
    assert read_config(folder).model.attention.n_head == 2
    said, _ = start(home, "gated", "model.attention=gated", "training.max_steps=1")
    assert "fresh: 4 tensors, 544 numbers: layers 1-2: attention.gate.weight, attention.gate.bias" in said
    assert "dropped: nothing" in said
    (home / "window.yaml").write_text(
        "model: {attention: {kind: sliding_window, n_head: 2, window: 3}}\n" + OTHER, "utf-8"
    )
    config = read_config(start(home, "by-config", "--config", "window.yaml")[1])
    assert config.model.attention == SlidingWindow.Config(n_head=2, window=3)
    assert config.model.n_embd == 16
    (home / "bare.yaml").write_text("model: {attention: sliding_window}\n" + OTHER, "utf-8")
    said, folder = start(home, "by-name", "--config", "bare.yaml")
    assert read_config(folder).model.attention == SlidingWindow.Config(n_head=2)
    assert "model.attention: sliding_window keeps n_head: 2; " in said


def test_it_can_be_done_in_a_notebook(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    run = minigpt.fine_tune("small", "training.max_steps=2", name="notebook")
    assert run.step == 2
    assert run.generate("the", max_tokens=3).startswith("the")
    assert open_run(home / "runs/notebook").saved.state["step"] == 2


def written_elsewhere(folder: Path) -> None:
    """A text, and a model with a tokenizer of bytes as transformers writes them."""
    (folder / "text.txt").write_text(small_text(), encoding="utf-8")
    make("llama", vocab_size=256).save_pretrained(folder / "theirs")
    for name, text in tokenizer_files(Byte(), 40).items():
        (folder / "theirs" / name).write_text(text, encoding="utf-8")


def test_a_model_from_elsewhere_becomes_a_run_and_is_trained_on(home: Path, tmp_path: Path) -> None:
    """What transformers has written; its loss before the first step is what transformers says."""
    written_elsewhere(tmp_path)
    short = ["training.max_steps=2", "training.batch_size=2", "training.precision=float32", "training.device=cpu"]
    said = well(
        script("train.py", "--from-hf", "theirs", "data.source=text.txt", "model.block_size=16", *short, cwd=tmp_path)
    )
    assert "run: runs/theirs\n" in said
    assert "weights: those of runs/theirs after step 0" in said
    folder = tmp_path / "runs/theirs-tuned"
    assert read_config(folder).model.block_size == 16
    config, tokenizer = read_config(folder), open_run(folder).tokenizer
    data = Dataset(config.data, open_corpus(str(tmp_path / "text.txt")), tokenizer, 16)
    x, y = data.batch("train", 0, 2, config.training.seed)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")(x).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
    assert read_metrics(folder / "metrics.jsonl")[0]["train/loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_mistake_imports_nothing_and_an_import_is_used_again(tmp_path: Path) -> None:
    written_elsewhere(tmp_path)
    short = ["data.source=text.txt", "model.block_size=16", "training.max_steps=1", "training.device=cpu"]
    for wrong, why in (
        ("trainig.max_steps=1", "did you mean 'training'"),
        ("--name=../x", "a run is named by letters"),
    ):
        ended = script("train.py", "--from-hf", "theirs", *short, wrong, cwd=tmp_path)
        one_line(ended, 2)
        assert why in ended.err
        assert not (tmp_path / "runs").exists()
    assert script("train.py", "--from-hf", "theirs", *short, "data.source=none.txt", cwd=tmp_path).code == 2
    resumed = script("train.py", "--resume", "theirs", cwd=tmp_path)
    one_line(resumed, 2, "start one with its weights: --from-run theirs data.source=my.txt")
    swapped = script("swap.py", "--run", "theirs", cwd=tmp_path)
    one_line(swapped, 2, "runs/theirs was imported, and has no text: give one, as in --text my.txt")
    said = well(script("train.py", "--from-hf", "theirs", *short, cwd=tmp_path))
    assert "run: runs/theirs, made of the same files before\n" in said
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["theirs", "theirs-tuned"]
    file = tmp_path / "theirs" / "generation_config.json"  # another end of text is another model
    file.write_text(json.dumps({"eos_token_id": 10}), encoding="utf-8")
    said = well(script("train.py", "--from-hf", "theirs", *short, cwd=tmp_path))
    assert "note: runs/theirs is there already, so this run is runs/theirs-2\n" in said
    assert "weights: those of runs/theirs-2 after step 0" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from-run", "none"], "there is no run none"),
        (["--from-run", "small", "--resume"], "--resume and --from-run: give one of them"),
        (["--from-run", "small", "--from-hf", "model"], "--from-run and --from-hf: give one of them"),
        (["--from-hf", "none/there", "--profile"], "--profile and --from-hf: give one of them"),
        (["--from-run", "small", "--profile"], "--profile and --from-run: give one of them"),
        (["--from-run", "small", "data.tokenizer=byte"], "data.tokenizer: the weights belong to the tokenizer of"),
        (["--from-run", "small", "model.n_embd=32"], "no weight of runs/small fits this model"),
        (["--from-run", "small", "data.source=odd.txt"], "unknown character 'ß'"),
        (["--from-run", "small", "data.source=none.txt"], "no file or folder 'none.txt'"),
        (["--from-run", "small", "--config", "tuned.yml"], "tuned.yml: no such file"),
        (["--from-run", "small", "model.attention=averag"], "unknown kind 'averag'"),
    ],
)
def test_what_cannot_be_is_one_line(home: Path, arguments: list[str], said: str) -> None:
    (home / "odd.txt").write_text("ß§ŧ " * 100, encoding="utf-8")
    before = sorted(path.name for path in (home / "runs").iterdir())
    ended = script("train.py", *arguments, cwd=home)
    assert ended.code == 2, ended.out
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(path.name for path in (home / "runs").iterdir()) == before
