"""What does not fit into memory is refused before it is allocated, with the bytes needed and free, in every command."""

from __future__ import annotations

import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import untrusted
from running import Ended, one_line, script, slow_but
from stopping import COMMANDS, furnished, train

from minigpt.attention import Attention
from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.cache import State
from minigpt.attention.compact.cross_layer import CrossLayer
from minigpt.attention.position import Alibi
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
from minigpt.seeing.cost import bytes_of
from minigpt.system.errors import UserError
from minigpt.text.corpus import open_corpus
from minigpt.text.tokenizer import Byte
from minigpt.training import assemble as assembling
from minigpt.training import memory
from minigpt.training import run as runs
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.loop import EVALUATED, TrainingConfig
from minigpt.training.memory import NUMBER, Job, check_memory, map_parts, parameter_count, sampling_parts

SMALL = ModelConfig(n_layer=3, n_embd=16, block_size=16, attention=MultiHead.Config(n_head=2))
MIXED = ModelConfig(
    n_layer=4,
    n_embd=16,
    block_size=16,
    attention=(AverageSoftmax.Config(), MultiHead.Config(n_head=2)),
    tied_head=False,
)
SHARED = replace(SMALL, attention=CrossLayer.Config(n_head=2, share=2))  # layer 1 has no keys of its own
CUT = replace(MIXED, n_layer=3)  # not a whole number of lists


@pytest.mark.parametrize("config", [SMALL, MIXED, SHARED, CUT], ids=["alike", "mixed", "shared", "cut"])
def test_the_count_is_that_of_the_model(config: ModelConfig) -> None:
    real = sum(parameter.numel() for parameter in GPT(config, 50).parameters())
    assert parameter_count(config, 50) == real


def training_parts(config: ModelConfig, batch_size: int = 8, micro_batch_size: int | None = None) -> memory.Parts:
    training = TrainingConfig(batch_size=batch_size, micro_batch_size=micro_batch_size)
    return memory.training_parts(Job(config, 50, training))


def test_the_limit_is_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = training_parts(SMALL)
    needed = sum(parts.values())
    assert needed > parts[memory.WEIGHTS] == 16 * parameter_count(SMALL, 50)
    monkeypatch.setattr(memory, "free_memory", lambda: needed)
    check_memory(parts, "training")
    monkeypatch.setattr(memory, "free_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=f"training would need {needed:,} bytes, .* and {needed - 1:,} are free"):
        check_memory(parts, "training")
    check_memory(parts, "training", free=needed)
    monkeypatch.setattr(memory, "free_memory", lambda: None)  # a system that does not say
    check_memory(parts, "training")


def test_a_gpu_has_its_own_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for a GPU that says how much is free on it; the machine's memory must only hold the weights."""
    gpu, parts = torch.device("cuda", 0), training_parts(SMALL)
    needed, weights = sum(parts.values()), 4 * parameter_count(SMALL, 50)
    for on_gpu, here, wrong in (
        (needed, weights, ""),
        (needed - 1, 1 << 40, f"would need {needed:,} bytes, .* and {needed - 1:,} are free on cuda:0: lower "),
        (1 << 40, weights - 1, f"need {weights:,} bytes, .* for the weights, and {weights - 1:,} are free: lower "),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, on_gpu=on_gpu: (on_gpu, 1 << 40))
        monkeypatch.setattr(memory, "free_memory", lambda here=here: here)
        with pytest.raises(UserError, match=wrong) if wrong else nullcontext():
            memory.check_device(parts, "training", SMALL, 50, gpu)
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 40)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1 << 40))
    corpus = open_corpus(str(furnished(tmp_path) / "text.txt"))
    monkeypatch.setattr(assembling, "choose_device", lambda name: gpu)
    with pytest.raises(UserError, match=r"training would need .* and 1,000 are free on cuda:0"):
        assembling.assemble(RunConfig(model=SMALL), corpus, Byte())


def test_each_part_grows_with_what_it_is_made_of() -> None:
    few, many = training_parts(SMALL), training_parts(SMALL, 800, 8)
    assert many[memory.BATCH] == 100 * few[memory.BATCH] and many[memory.ACTIVATIONS] == few[memory.ACTIVATIONS]
    assert many[memory.LOGITS] == few[memory.LOGITS] == NUMBER * 50 * EVALUATED  # of an evaluation
    assert training_parts(SMALL, 800)[memory.LOGITS] == NUMBER * 50 * 2 * 800 * 16  # and their gradients
    biased = replace(SMALL, position=Alibi.Config())
    assert training_parts(biased)[memory.ACTIVATIONS] - few[memory.ACTIVATIONS] == NUMBER * 3 * 2 * 16**2
    shared = replace(SMALL, attention=GroupedQuery.Config(n_head=4, n_kv_head=2))
    caches = {name: sampling_parts(c, 50)[memory.CACHE] for name, c in (("all", SMALL), ("shared", shared))}
    assert caches == {"all": NUMBER * 3 * 2 * 16 * 16, "shared": NUMBER * 3 * 2 * 8 * 16}
    assert sampling_parts(replace(SMALL, attention=AverageSoftmax.Config()), 50)[memory.CACHE] == 0
    assert map_parts(SMALL, 50, 10)[memory.MAPS] == NUMBER * 3 * 2 * 10 * 10


ESTIMATED = {"forgetting": 4, "selective": 1, "indexer": 8}  # numbers of a position that no matrix of keys makes


@pytest.mark.parametrize("kind", Attention.kinds.values(), ids=Attention.kinds)
def test_the_cache_is_that_of_the_kind(kind: type[Attention]) -> None:
    """The bytes of keys and values are known beforehand, for every kind; a state and the last token are left out."""
    config = ModelConfig(n_layer=4, n_embd=32, block_size=64, attention=kind.Config())
    model = make_fast(GPT(config, 9)).eval()
    cache = model.make_cache()
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long), cache)
    kept = sum(bytes_of(past) for past in cache if not isinstance(past, State))
    last = sum(tail.numel() * NUMBER for past in cache for tail in past.tails.values())
    others = NUMBER * 4 * 64 * ESTIMATED.get(kind.kind, 0)
    assert memory.cache_bytes(config) == kept - last - others


def refused(ended: Ended) -> None:
    """One line that says how many bytes are needed and how many are there."""
    one_line(ended, 2)
    found = re.search(r"need ([\d,]+) bytes.* and ([\d,]+) are free", ended.err)
    assert found, ended.err
    needed, free = (int(number.replace(",", "")) for number in found.groups())
    assert needed > free > 10**6


FEW = "training.micro_batch_size=1", "model.block_size=256"
TOO_LARGE = {
    "a wide model": ["model.n_embd=200000"],
    "a wide MLP": ["model.mlp.width=1000000", "model.n_embd=100000"],
    "a long context": ["model.block_size=16000000", "model.n_embd=10000"],
    "a deep model": ["model.n_embd=60000", "model.n_layer=1000"],
    "biases": ["model.block_size=1000000", "model.position=alibi"],
    "a large batch": ["training.batch_size=16000000"],
    "a large batch of few at a time": ["training.batch_size=16000000", *FEW],
    "a model that is profiled": ["--profile", "1", "model.n_embd=200000"],
}


@pytest.mark.parametrize("what", slow_but(TOO_LARGE, "a wide model", "a wide MLP", "a long context"))
def test_the_command_refuses_what_no_machine_holds(what: str, tmp_path: Path) -> None:
    refused(train(furnished(tmp_path), *TOO_LARGE[what]))
    assert not (tmp_path / "runs").exists()


COMPARISON = """\
compare: {baseline: small, seeds: [1], match: MATCH, processes: 2}
variants:
  small: {}
  large: {model.n_embd: 200000}
data: {source: text.txt}
model: {n_layer: 1, n_embd: 16, block_size: 16, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 2, device: cpu}
"""


@pytest.mark.parametrize("match", ["steps", "parameters"])
def test_a_comparison_refuses_it_too(match: str, tmp_path: Path) -> None:
    furnished(tmp_path)
    (tmp_path / "two.yaml").write_text(COMPARISON.replace("MATCH", match), encoding="utf-8")
    ended = script("compare.py", "--config", "two.yaml", cwd=tmp_path)
    lines = ended.err.splitlines(keepends=True)  # the worker processes take seconds to start
    ended = replace(ended, err="".join(line for line in lines if not line.startswith("measuring the speed: ")))
    one_line(ended, 2, "large")
    if match == "steps":
        refused(ended)
    assert not list(tmp_path.rglob("result.json"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = furnished(tmp_path_factory.mktemp("trained"))
    assert train(folder, "model.position=rotary", "training.max_steps=8").code == 0
    return folder


@pytest.mark.parametrize(("before", "after"), [("n_embd: 16", "n_embd: 20000"), ("n_layer: 1", "n_layer: 90")])
def test_a_config_that_is_not_the_weights_takes_no_memory(
    before: str, after: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20,000 it would have been gigabytes: the checkpoint's own sizes are looked at first."""
    home = altered(trained, tmp_path, before, after)
    for command in COMMANDS.values() if "n_embd" in after else [COMMANDS["sample"]]:
        ended = script(*command, cwd=home)
        one_line(ended, 4, "checkpoints/step-000008: ")
    monkeypatch.setattr(runs, "build_model", lambda *_: pytest.fail("a model was made"))
    with pytest.raises(CheckpointError):
        runs.load(home / "runs" / "small")


def test_a_cache_that_does_not_fit(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights say nothing of the context where positions are turned: a cache for it may be of any size."""
    home = altered(trained, tmp_path, "block_size: 16", "block_size: 16000000")
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 30)
    with pytest.raises(UserError, match=r"not enough memory: writing would need .* for the cache, .* model.block_size"):
        runs.load(home / "runs" / "small")
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 40)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 40))
    monkeypatch.setattr(runs, "choose_device", torch.device)
    with pytest.raises(UserError, match=r"writing would need .* are free on cuda: lower model.block_size"):
        runs.load(home / "runs" / "small", "cuda")


def altered(trained: Path, folder: Path, before: str, after: str) -> Path:
    """A copy of a run whose config says something else."""
    home = folder / "home"
    shutil.copytree(trained, home)
    config = home / "runs" / "small" / "config.yaml"
    text = config.read_text("utf-8")
    assert text.count(f"  {before}\n") == 1, text
    config.write_text(text.replace(f"  {before}\n", f"  {after}\n"), encoding="utf-8")
    untrusted.update_run(home / "runs" / "small")
    return home
