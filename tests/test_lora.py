"""LoRA: only the adapters learn, a stopped run goes on, and merged it is an ordinary model with the names of before."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from running import furnish, script, well
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from transformers import AutoModelForCausalLM

import minigpt
from minigpt.attention import GroupedQuery, MultiHead
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import UserError
from minigpt.training import checkpoint
from minigpt.training.checkpoint import CheckpointError, tensors_of
from minigpt.training.loop import TrainingConfig
from minigpt.training.lora import A, B, LoRAConfig, adapted_layers, adapter_parameters, add_adapters, merge, merged
from minigpt.training.memory import Job, weight_bytes
from minigpt.training.run import open_run

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="could not import 'peft'")

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 2, n_embd: 16, block_size: 16, position: rotary, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 6, eval_every: 3, sample_every: 0, checkpoint_every: 3, schedule: constant}
sampling: {max_tokens: 20}
"""
LLAMA = """\
data: {source: text.txt, tokenizer: {kind: bpe, vocab_size: 270}}
model: {n_layer: 2, n_embd: 16, block_size: 16, bias: false, position: rotary, norm: rmsnorm, mlp: swiglu,
  tied_head: false, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 6, eval_every: 6, sample_every: 0, schedule: constant}
"""
LORA = "training.lora={rank: 3, alpha: 6, targets: [query, value, mlp.up]}"
MODEL = ModelConfig(n_layer=2, n_embd=24, attention=GroupedQuery.Config(n_head=4, n_kv_head=2), block_size=8)
SETTINGS = LoRAConfig(rank=3, alpha=5, targets=("key", "attention.project"))
IDS = torch.arange(8)[None]  # (1, 8)
PEFT = ("peft",)  # its import takes longer than the trainings


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, `small`, and `tuned`, its adapters trained for 6 steps."""
    folder = furnish(tmp_path_factory.mktemp("home"), CONFIG)
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    tune(folder, "tuned")
    return folder


def tune(home: Path, name: str, *overrides: str) -> str:
    return well(script("train.py", "--from-run", "small", "--name", name, LORA, *overrides, cwd=home, imports=PEFT))


def saved(home: Path, name: str) -> checkpoint.Checkpoint:
    return checkpoint.newest(home / "runs" / name / "checkpoints")[0]


def adapted() -> tuple[GPT, GPT]:
    """A model in float64, and the same with adapters that have learned something."""
    torch.manual_seed(0)
    plain = GPT(MODEL, 11).double()
    other = copy.deepcopy(plain)
    add_adapters(other, SETTINGS, seed=1)
    assert torch.equal(other(IDS), plain(IDS))  # B is zero at the start
    for name, parameter in other.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return plain, other


# ---- the adapters ----


def test_adapters_compute_what_the_paper_says() -> None:
    """x W^T + b + alpha / rank x A^T B^T, for one layer."""
    _, model = adapted()
    layer, x = model.blocks[1].attention.key, torch.randn(5, 24, dtype=torch.float64)  # (5, D)
    A, B = layer.lora_A["default"].weight, layer.lora_B["default"].weight  # (3, D), (12, 3)
    expected = x @ layer.base_layer.weight.T + layer.base_layer.bias + 5 / 3 * (x @ A.T @ B.T)  # (5, 12)
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-12)


def test_merged_it_is_the_same_function_with_the_names_of_before() -> None:
    plain, model = adapted()
    logits = model(IDS)
    assert not torch.allclose(logits, plain(IDS))
    tensors = merged(tensors_of(model), SETTINGS)
    assert tensors.keys() == tensors_of(plain).keys()
    checkpoint.fill(plain, tensors, "merged")
    assert torch.allclose(plain(IDS), logits, rtol=0, atol=1e-12)
    merge(model, SETTINGS)
    assert tensors_of(model).keys() == tensors.keys()
    assert torch.equal(model(IDS), plain(IDS))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert type(model.blocks[0].attention.key) is torch.nn.Linear


def test_only_the_adapters_have_gradients_and_are_counted() -> None:
    plain, model = adapted()
    model(IDS).sum().backward()
    trained = {name: p.numel() for name, p in model.named_parameters() if p.grad is not None}
    assert all(".lora_" in name for name in trained)
    assert sum(trained.values()) == adapter_parameters(plain, SETTINGS) == 2 * (3 * (24 + 12) + 3 * (24 + 24))
    assert list(adapted_layers(plain, SETTINGS)) == [
        f"blocks.{layer}.attention.{name}" for layer in (0, 1) for name in ("key", "project")
    ]
    one = "blocks.1.attention.key"
    assert list(adapted_layers(plain, replace(SETTINGS, targets=(one,)))) == [one]


def test_the_memory_that_is_asked_for_is_that_of_the_adapters() -> None:
    whole, thin = (weight_bytes(Job(MODEL, 11, TrainingConfig(lora=lora))) for lora in (None, SETTINGS))
    count = sum(parameter.numel() for parameter in GPT(MODEL, 11).parameters())
    assert whole == 16 * count
    assert thin == 4 * count + 16 * adapter_parameters(GPT(MODEL, 11), SETTINGS)


LAYER = "blocks.0.attention.key"
DOUBLE = torch.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({LAYER + half: None}, f"{LAYER}: an adapter without its other half") for half in (A, B)),
        *(({LAYER + A: torch.zeros(shape, dtype=DOUBLE)}, LAYER) for shape in ((4, 24), (3, 23), (3,), (3, 24, 1))),
        ({LAYER + A: torch.zeros(3, 24)}, "of another size or type"),
        ({f"blocks.9.x{half}": torch.zeros(3, 24) for half in (A, B)}, "blocks.9.x: an adapter without"),
        ({f"{LAYER}.lora_magnitude": torch.zeros(3)}, "an adapter without"),
        ({f"{LAYER}.weight": torch.zeros(12, 24, dtype=DOUBLE)}, "a layer is there twice"),
    ],
)
def test_an_adapter_that_does_not_fit_its_layer_is_refused(changes: dict[str, Tensor | None], message: str) -> None:
    tensors = tensors_of(adapted()[1])
    assert {LAYER + A, LAYER + B} < tensors.keys()
    with pytest.raises(ValueError, match=message):
        merged({name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}, SETTINGS)


# ---- a run ----


def test_a_run_begins_where_the_weights_are_and_moves_the_adapters_only(home: Path) -> None:
    before, after = open_run(home / "runs/small").saved.model, open_run(home / "runs/tuned").saved.model
    assert before.keys() == after.keys()
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    names = ("attention.query", "attention.value", "mlp.up")
    assert moved == {f"blocks.{i}.{name}.weight" for i in (0, 1) for name in names}
    assert all(".lora_" in name for name in saved(home, "tuned").optimizer)
    assert "adapters: 864 parameters are trained" in tune(home, "short", "training.max_steps=1")


def test_a_stopped_run_goes_on_bit_for_bit(home: Path) -> None:
    tune(home, "parts", "training.max_steps=3")
    well(script("train.py", "--resume", "parts", "training.max_steps=6", cwd=home, imports=PEFT))
    whole, parts = saved(home, "tuned"), saved(home, "parts")
    for one, other in ((whole.model, parts.model), (whole.optimizer, parts.optimizer)):
        assert one.keys() == other.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_it_is_opened_like_any_other_run(home: Path) -> None:
    run = minigpt.load(home / "runs/tuned", device="cpu")
    assert "lora" not in "".join(name for name, _ in run.model.named_parameters())
    assert run.generate("the cat", max_tokens=3).startswith("the cat")
    swapped = minigpt.load(home / "runs/tuned", device="cpu", overrides=["model.attention=sliding_window"])
    assert isinstance(swapped.model.attentions()[0], MultiHead)
    words = ("--from-run", "tuned", "--name", "on", "training.lora=null", "training.max_steps=1")
    well(script("train.py", *words, cwd=home))
    assert "lora" not in "".join(saved(home, "on").model)


@pytest.mark.slow
def test_what_is_exported_is_the_merged_model(home: Path) -> None:
    """As a model of transformers and as GGUF: its logits and its weights are those of the run, adapters included."""
    pytest.importorskip("gguf")
    (home / "llama.yaml").write_text(LLAMA, encoding="utf-8")
    well(script("train.py", "--config", "llama.yaml", cwd=home))
    well(script("train.py", "--from-run", "llama", LORA, cwd=home, imports=PEFT))
    well(script("export_hf.py", "--run", "llama-tuned", "--out", "hf", "--gguf", "tuned.gguf", cwd=home))
    run, before = (minigpt.load(home / "runs" / name, fast=False) for name in ("llama-tuned", "llama"))
    theirs = AutoModelForCausalLM.from_pretrained(home / "hf")
    ids = torch.arange(12)[None]  # (1, 12)
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, run.model(ids), rtol=0, atol=1e-5)
        assert (before.model(ids) - run.model(ids)).abs().max() > 1e-3
    for source in ("hf", "tuned.gguf"):
        assert script("import_hf.py", source, "--name", f"from-{source}", cwd=home).code == 0
        again = minigpt.load(home / "runs" / f"from-{source}", fast=False)
        assert all(torch.equal(tensors_of(again.model)[name], one) for name, one in tensors_of(run.model).items())


def test_in_a_notebook_the_run_that_comes_back_is_merged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    run = minigpt.fine_tune("small", LORA, name="notebook")
    opened = minigpt.load(run.folder, device="cpu")
    assert tensors_of(run.model).keys() == tensors_of(opened.model).keys()
    assert all(torch.equal(tensor, tensors_of(opened.model)[name]) for name, tensor in tensors_of(run.model).items())


def test_a_checkpoint_with_half_an_adapter_is_refused(home: Path) -> None:
    tune(home, "half", "training.max_steps=1")
    found = saved(home, "half")
    half = "blocks.0.attention.query.lora_B.default.weight"
    tensors = {name: tensor for name, tensor in found.model.items() if name != half}
    lora = LoRAConfig(rank=3, alpha=6)
    with pytest.raises(CheckpointError, match=r"step-000001: blocks.0.attention.query: an adapter without"):
        checkpoint.without_adapters(checkpoint.Checkpoint(found.path, tensors, {}, found.state, found.seal), lora)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "small.yaml", "training.lora.rank=4"], "adapters learn beside the weights of a run: give --"),
        (["--from-run", "small", "training.lora.rank=0"], "training.lora.rank: expected a whole number"),
        (["--from-run", "small", "training.lora={targets: [querry]}"], "no layer of this model is called 'querry'"),
        (["--resume", "tuned", "training.lora.alpha=2"], "training.lora.alpha cannot change from 6 to 2"),
        (["--resume", "small", "training.lora.rank=2"], "training.lora cannot change from None to"),
    ],
)
def test_what_cannot_be_is_one_line(home: Path, arguments: list[str], said: str) -> None:
    ended = script("train.py", *arguments, cwd=home)
    assert ended.code == 2, ended.out
    assert said in ended.err
    assert ended.err.count("\n") == 1


class Capped(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


def own_forward(attention: Any) -> None:
    attention.value = Capped(24, 12)


def hook(attention: Any) -> None:
    attention.value.register_forward_hook(lambda layer, inputs, output: output.tanh())


def parametrisation(attention: Any) -> None:
    parametrizations.weight_norm(attention.value)


@pytest.mark.parametrize("changed", [own_forward, hook, parametrisation])
def test_a_layer_into_which_an_adapter_could_not_be_merged_is_refused(changed: Callable[[Any], None]) -> None:
    """Before the training: its checkpoints could not be opened, or would be of another model than was trained."""
    model = GPT(MODEL, 11)
    changed(model.attentions()[1])
    assert len(adapted_layers(model, SETTINGS)) == 4
    with pytest.raises(UserError, match=r"^training.lora.targets: blocks.1.attention.value has a forward, a hook or a"):
        adapted_layers(model, replace(SETTINGS, targets=("key", "value")))


def test_without_peft_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[lora\]"'):
        add_adapters(GPT(MODEL, 11), SETTINGS, seed=1)
