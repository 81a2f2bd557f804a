"""What minigpt computes on a device, in a process that only pretends to have one: `test_devices.py` runs this file.

    pytest -n 0 tests/device_cases.py

Every result is compared with the CPU's, the values and the gradients. The textbook's forms are run as on Apple's GPUs,
without float64, and the faster ones as on CUDA.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import laws
import pretended
import pytest
import torch
import torch.nn.functional as F
from plugin_kinds import PLUGIN_KINDS
from pretended import DEVICE, Generator, counted
from small_trainings import make_model, make_optimizer, settings, small_dataset
from torch import Tensor

import minigpt
from minigpt.attention import Attention, MultiHead, position
from minigpt.attention.position import Alibi, Convolution, Position, Rotary
from minigpt.attention.stretch import Linear, Llama3, Yarn
from minigpt.checks.causality import LeakError, idle_positions
from minigpt.checks.first_nan import FirstNaN
from minigpt.checks.layers import alike
from minigpt.checks.shapes import check_shapes
from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.learning.pictures import attention_map, matrix
from minigpt.learning.playground.answers import Playground
from minigpt.model import GPT, MLP, ModelConfig, Norm, SamplingConfig, generate
from minigpt.model.config import AnyBlock
from minigpt.model.documents import within_documents
from minigpt.seeing.cost import cost
from minigpt.seeing.maps import read_maps
from minigpt.seeing.numbers import layer_of, lens, look
from minigpt.seeing.pictures import heat_map, small_png
from minigpt.seeing.trace import attention_maps, tracing
from minigpt.text.dataset import Dataset
from minigpt.training import optimizer
from minigpt.training.before_training import check_before_training
from minigpt.training.floor import character_probabilities
from minigpt.training.loop import evaluate, train
from minigpt.training.optimizer import AdamW, Muon, Optimizer
from minigpt.training.run import Run
from minigpt.training.whole_model import check_whole_model

V, BLOCK, T = 11, 8, 7
ABOVE = ("cross_layer", "value_residual")  # kinds that read what the layer below keeps
LONG = 260  # tokens, from which on every faster form computes in its own way
OVERFLOW = "model/sampling.py"  # where the logits of a new context are tested for infinity: the only wait of sampling
FAMILIES: dict[str, Any] = {"norm": Norm, "mlp": MLP, "block": AnyBlock}
SAMPLING = SamplingConfig(temperature=0.9, top_k=7, top_p=0.95, min_p=0.01, max_tokens=3)


@pytest.fixture(params=[False, True], ids=["textbook", "fast"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the faster forms are used; without them the device has no float64, and the CPU does without it too."""
    monkeypatch.setattr(pretended, "float64", request.param)
    monkeypatch.setattr(position, "WITHOUT_FLOAT64", ("mps",) if request.param else ("mps", pretended.NAME, "cpu"))
    return bool(request.param)


def models(fast: bool, *attention: Attention.Config, block_size: int = BLOCK, **options: Any) -> tuple[GPT, GPT]:
    """A model of these layers with noise on its parameters, and its copy on the device."""
    shape = {"n_layer": len(attention), "n_embd": 16, "block_size": block_size, "attention": attention}
    model = make_fast(GPT(ModelConfig(**shape | options), V), fast)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, copy.deepcopy(model).to(DEVICE)


def near(mine: Tensor, cpus: Tensor, what: str, largest: float = 1.0) -> None:
    """Asserts that a tensor of the device is the CPU's, up to rounding of the largest number."""
    assert mine.device == DEVICE, what
    torch.testing.assert_close(mine.cpu(), cpus, rtol=1e-3, atol=1e-4 * largest, msg=lambda text: f"{what}: {text}")


def learns_the_same(cpu: GPT, device: GPT, T: int = T, begins: Tensor | None = None) -> None:
    """Asserts that outputs and gradients are the CPU's, and that no pass waits or copies."""
    ids, outputs = torch.randint(V, (2, T)), list[Tensor]()  # ids (B, T)
    for model, x in ((cpu, ids), (device, ids.to(DEVICE))):
        with within_documents(model, begins), counted() as waits:
            logits = model(x)  # (B, T, V)
            F.cross_entropy(logits.flatten(0, 1), x.flatten()).backward()
        outputs.append(logits.detach())
    assert not waits, "\n".join(waits)
    near(outputs[1], outputs[0], "logits")
    pairs = {name: (p.grad, q.grad) for (name, p), q in zip(cpu.named_parameters(), device.parameters())}
    largest = max(float(mine.abs().max()) for mine, _ in pairs.values() if mine is not None and mine.numel())
    for name, (expected, gradient) in pairs.items():
        assert (expected is None) == (gradient is None), name
        if expected is not None and gradient is not None:
            near(gradient, expected, name, largest)


def writes_the_same(cpu: GPT, device: GPT) -> None:
    """Asserts that cached logits and sampled tokens are the CPU's, without a wait but for that of a new context."""
    ids, caches = torch.randint(V, (2, T)), (cpu.make_cache(), device.make_cache())
    on_device = ids.to(DEVICE)
    for start, end in ((0, 3), (3, 4), (4, T)):
        with torch.inference_mode():
            expected = cpu(ids[:, start:end], caches[0])  # (B, T', V)
            with counted() as waits:
                logits = device(on_device[:, start:end], caches[1])  # (B, T', V)
        assert not waits, "\n".join(waits)
        near(logits, expected, f"positions {start} to {end}")
    tokens = generate(cpu, ids, SAMPLING, torch.Generator().manual_seed(1))
    with counted() as waits:
        written = list(generate(device, on_device, SAMPLING, Generator(DEVICE).manual_seed(1)))
    assert [token.tolist() for token in written] == [token.tolist() for token in tokens]
    contexts = 1 + (T + SAMPLING.max_tokens - 1 > cpu.config.block_size)
    assert [OVERFLOW in wait for wait in waits] == [True] * contexts, "\n".join(waits)


def shows_the_same(cpu: GPT, device: GPT) -> None:
    """Asserts that the numbers of a page and the maps of a picture are the CPU's, and are on the CPU."""
    ids = torch.randint(V, (1, T))  # (1, T)
    every = list[Any]()
    for model, x in ((cpu, ids), (device, ids.to(DEVICE))):
        with torch.no_grad(), tracing(model) as trace:
            model(x)
        layers = [layer_of(attention, calls[-1]) for attention, calls in zip(model.attentions(), trace.calls)]
        every.append([*map(vars, layers), *lens(model, trace), *map(vars, read_maps(model, x))])
    same(every[1], every[0])


def same(mine: Any, cpus: Any) -> None:
    """Asserts that two results are equal, numbers up to rounding."""
    if isinstance(cpus, Tensor) and cpus.is_floating_point():
        torch.testing.assert_close(mine, cpus, rtol=1e-3, atol=1e-4)
    elif isinstance(cpus, Tensor):
        assert mine.device == cpus.device and torch.equal(mine, cpus)
    elif isinstance(cpus, float):
        assert mine == pytest.approx(cpus, rel=1e-3, abs=1e-4)
    elif isinstance(cpus, dict):
        assert mine.keys() == cpus.keys()
        same([*mine.values()], [*cpus.values()])
    elif isinstance(cpus, (list, tuple)):
        assert len(mine) == len(cpus)
        for one, other in zip(mine, cpus):
            same(one, other)
    else:
        assert mine == cpus


@pytest.mark.parametrize("kind", Attention.kinds)
def test_every_kind(kind: str, fast: bool) -> None:
    layers = [MultiHead.Config()] * (kind in ABOVE) + [Attention.kinds[kind].Config()]
    if fast:
        learns_the_same(*models(fast, *layers, block_size=LONG, position=Rotary.Config()), LONG)
    cpu, device = models(fast, *layers, position=Rotary.Config())
    if not fast:
        learns_the_same(cpu, device)
        shows_the_same(cpu.eval(), device.eval())
    writes_the_same(cpu.eval(), device.eval())


@pytest.mark.parametrize(
    "position",
    [
        *(kind.Config() for kind in Position.kinds.values()),
        *(Rotary.Config(stretch=kind.Config()) for kind in (Linear, Llama3, Yarn)),
        Alibi.Config(slopes="bloom"),
    ],
    ids=lambda config: config.component.kind,
)
def test_every_position(position: Position.Config, fast: bool) -> None:
    cpu, device = models(fast, MultiHead.Config(n_head=2), position=position)
    learns_the_same(cpu, device)
    writes_the_same(cpu.eval(), device.eval())


@pytest.mark.parametrize("attention", laws.OPTIONS, ids=lambda config: config.component.kind)
def test_options_of_kinds(attention: Attention.Config) -> None:
    cpu, device = models(False, attention)
    learns_the_same(cpu, device)
    writes_the_same(cpu.eval(), device.eval())


@pytest.mark.parametrize(
    "part", [{name: kind.Config()} for name, family in FAMILIES.items() for kind in family.kinds.values()], ids=str
)
def test_every_norm_mlp_and_block(part: dict[str, Any]) -> None:
    learns_the_same(*models(True, MultiHead.Config(), **part))


@pytest.mark.parametrize("kind", ["multi_head", "indexer", "mamba2"])
def test_documents_apart(kind: str) -> None:
    begins = torch.zeros(2, T, dtype=torch.bool)  # (B, T)
    begins[0, 3] = begins[1, 5] = True
    cpu, device = models(True, Attention.kinds[kind].Config(), position=Convolution.Config())
    learns_the_same(cpu, device, begins=begins)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_weights_that_are_prepared_for_writing(weights: Any) -> None:
    cpu, device = models(True, MultiHead.Config())
    prepared, ids = prepare(device, weights), torch.randint(V, (2, T))  # ids (B, T)
    if weights == "float32":
        writes_the_same(prepare(cpu), prepared)
    on_device, cache = ids.to(DEVICE), prepared.make_cache()
    with torch.inference_mode(), counted() as waits:
        logits = [prepared(part, cache) for part in on_device.split(4, dim=1)]  # (B, T', V) each
    assert not waits, "\n".join(waits)
    near(torch.cat(logits, dim=1).float(), cpu(ids), weights, 1.0 if weights == "float32" else 300.0)


# ---- the device itself ----


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.zeros(3) + x.sum(),
        lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda x: torch.rand(3, device=DEVICE, generator=Generator()),
        lambda x: x.numpy(),
    ],
)
def test_what_a_device_refuses(mistake: Callable[[Tensor], object]) -> None:
    with pytest.raises(RuntimeError):
        mistake(torch.ones(3).to(DEVICE))


@pytest.mark.parametrize(
    ("operation", "count"),
    [
        (lambda x: x + torch.tensor(1.0), 0),  # a number comes with the call
        (lambda x: torch.where(x > 0, x, 0.0), 0),
        (lambda x: x.masked_fill(x > 0, 1.0), 0),
        (lambda x: torch.where(x > 0, x, torch.tensor(0.0)), 1),
        (lambda x: torch.tensor([1.0, 2.0], device=DEVICE), 1),
        (lambda x: x[[0, 1]], 1),
        (lambda x: x[x > 0], 1),
        (lambda x: torch.ones(3).copy_(x), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: f"{x.sum():.2f}", 1),
    ],
)
def test_where_a_device_waits(operation: Callable[[Tensor], object], count: int) -> None:
    x = torch.ones(3).to(DEVICE)
    with counted() as waits:
        operation(x)
    assert len(waits) == count, waits


# ---- training ----


dataset = pytest.fixture(scope="module")(small_dataset)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW by one kernel, which takes a step that may be skipped, as on CUDA; Muon in float64, to be compared."""
    monkeypatch.setattr(optimizer, "_fused", lambda parameter: True)
    monkeypatch.setattr(optimizer, "orthogonal", partial(optimizer.orthogonal, dtype=torch.float64))


@pytest.mark.parametrize(("kind", "chosen"), [("indexer", AdamW.Config()), ("gated_delta_net", Muon.Config())])
def test_the_training_loop(dataset: Dataset, kind: str, chosen: Optimizer.Config, kernels: None) -> None:
    """The steps are the CPU's; what waits are the copies of the batch, and what reads the losses of a log line."""
    config = settings(optimizer=chosen, micro_batch_size=2, precision="float32", max_steps=4)
    cpu = make_model(kind, dropout=0.1).double()  # Muon makes rounding of small gradients large
    device, lines = copy.deepcopy(cpu).to(DEVICE), (2, 4)
    expected = list(train(cpu, dataset, make_optimizer(config, cpu), config, wanted=lines.__contains__))
    with counted() as waits:
        steps = list(train(device, dataset, make_optimizer(config, device), config, wanted=lines.__contains__))
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in expected], rel=1e-4)
    for (name, parameter), other in zip(cpu.named_parameters(), device.named_parameters()):
        near(other[1].detach(), parameter.detach(), name)
    copies, reads = ([wait for wait in waits if wait.startswith(f"copy {way} the device")] for way in ("to", "from"))
    assert len(copies) <= 2 * config.max_steps and len(reads) == len(lines), "\n".join(waits)
    assert len(copies) + len(reads) == len(waits), "\n".join(waits)


def test_evaluation(dataset: Dataset) -> None:
    cpu = make_model()
    device = copy.deepcopy(cpu).to(DEVICE)
    losses = [evaluate(model, dataset, "val", settings(precision="float32")) for model in (cpu, device)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


# ---- a run, from its config to its pictures ----

CONFIG = """\
data: {source: stories, stories: {count: 60, validation: 8}, tokenizer: char, windows: packed, attend: document}
model:
  n_layer: 2
  n_embd: 16
  block_size: 48
  position: rotary
  attention: [{kind: differential, n_head: 2}, log_linear]
training: {batch_size: 4, max_steps: 3, eval_every: 3, sample_every: 3, checkpoint_every: 3, optimizer: muon}
sampling: {max_tokens: 5}
"""
PROMPT = "Mia was a shy fox."


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that is trained on the device, resumed, and loaded again."""
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for module in sys.modules.values() if hasattr(module, "choose_device")]:
            patch.setattr(module, "choose_device", lambda name: DEVICE)
        patch.setattr(optimizer, "_fused", lambda parameter: True)
        patch.chdir(tmp_path_factory.mktemp("device"))
        Path("c.yaml").write_text(CONFIG, encoding="utf-8")
        trained = minigpt.train("c.yaml")
        resumed = minigpt.resume(trained.folder, "training.max_steps=4")
        loaded = minigpt.load(trained.folder)
        for name, tensor in resumed.model.state_dict().items():
            assert torch.equal(tensor.cpu(), loaded.model.state_dict()[name].cpu()), name
        yield loaded


@pytest.fixture(scope="module")
def cpus(run: Run) -> Run:
    """The same run on the CPU."""
    return replace(run, model=copy.deepcopy(run.model).to("cpu"))


def test_a_run_is_trained_resumed_and_loaded(run: Run, cpus: Run) -> None:
    assert run.model.device == DEVICE and cpus.model.device == torch.device("cpu") and run.step == 4
    assert run.generate(PROMPT, temperature=0) == cpus.generate(PROMPT, temperature=0)
    assert run.loss_with("float32") == pytest.approx(cpus.loss_with("float32"), rel=1e-4)


def test_pictures(run: Run, cpus: Run) -> None:
    same(run.attention(PROMPT), cpus.attention(PROMPT))
    same([*map(vars, run.maps(PROMPT))], [*map(vars, cpus.maps(PROMPT))])
    assert len(run.show_attention(PROMPT).svg) > 1000
    labels = run.labels(PROMPT)
    weights, others = (attention_maps(one.model, one.context_ids(PROMPT))[0][0, 0] for one in (run, cpus))  # (T, T)
    assert weights.device == DEVICE
    assert heat_map(weights, labels, gate=weights[0]) == heat_map(others, labels, gate=others[0])
    assert small_png(weights) == small_png(others)
    assert vars(attention_map(weights, labels, "a map")) == vars(attention_map(others, labels, "a map"))
    assert vars(matrix(weights, labels, labels, "a matrix")) == vars(matrix(others, labels, labels, "a matrix"))


def test_pages(run: Run, cpus: Run) -> None:
    assert "Who attends to whom" in run.explore(PROMPT).html
    numbers = [look(r.model, r.tokenizer, r.context_ids(PROMPT), r.config.data.language, 1.0) for r in (run, cpus)]
    for one in numbers:
        vars(one).update(layers=[vars(layer) for layer in one.layers], reading=vars(one.reading))
    same(*map(vars, numbers))
    same(*(character_probabilities(one.model, one.tokenizer, PROMPT) for one in (run, cpus)))
    assert cost(run.model).cache_bytes_per_token == cost(cpus.model).cache_bytes_per_token


def test_the_playground(run: Run, cpus: Run) -> None:
    ids, answers = run.context_ids(PROMPT)[0].tolist(), list[Any]()
    edits: dict[str, Any] = {"heads_off": [[0, 1]], "running_mean": [1], "scale": [[0, 0.5]], "cut": [[0, 5, 3]]}
    edits |= {"attentions_off": [], "mlps_off": [0]}
    settings = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 3}
    for one in (run, cpus):
        playground = Playground([one])
        text, begun = {"run": 0, "ids": ids, "edits": edits}, len(ids) - 2
        answers.append(
            [
                playground.answer("hello", {}),
                playground.answer("encode", {"run": 0, "text": PROMPT, "begins": True}),
                playground.answer("read", text | {"kept": 4}),
                playground.answer("look", text | {"at": begun + 1, "begun": begun, "settings": settings}),
                [*playground.answer("write", text | {"begun": begun, "settings": settings, "tokens": 4})],
                [*playground.answer("measure", {"run": 0, "edits": edits, "whole": False})],
            ]
        )
        assert playground.answer("explore", {"run": 0, "ids": ids}).keys() == {"page"}
        assert playground.close()
    same(*answers)


# ---- the checks ----


def test_checks_of_the_whole_model(dataset: Dataset, fast: bool) -> None:
    """A sound model passes, and a leak is told in the same words, with and without float64."""
    said = list[str]()
    for device in (torch.device("cpu"), DEVICE):
        assert check_whole_model(make_model("streaming").to(device), dataset, settings(precision="float32")) == []
        leaking = GPT(replace(make_model().config, attention=MultiHead.Config(causal=False)), 30).to(device)
        with pytest.raises(LeakError) as caught:
            check_whole_model(leaking, dataset, settings(precision="float32"))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_checks_of_a_kind_of_ones_own(dataset: Dataset) -> None:
    model = GPT(replace(make_model().config, attention=PLUGIN_KINDS["plugin_window"].Config()), 30).to(DEVICE)
    check_shapes(model)
    assert check_before_training(model, dataset, settings(precision="float32")) == []
    assert idle_positions(model) == [] and alike(model.blocks) == [[0, 1]]


def test_the_first_nan() -> None:
    x = torch.zeros(3, device=DEVICE)
    with FirstNaN() as first:
        1 + x / x
    assert first.location.startswith("0 / 0 in device_cases.py:")
