"""`training.precision`: what `auto` chooses, tf32, and float16, whose steps are those of float32 or are skipped whole.

Float16 is tested by weights and moments: a gradient that was not divided by the scale does not show in Muon's loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import ranks
from running import furnish, script
from small_trainings import BLOCK, KINDS, OPTIMIZERS, equal, make_model, make_optimizer, settings, small_dataset
from torch import Tensor, nn

from minigpt.attention import Attention, MultiHead
from minigpt.checks.causality import LeakError
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import UserError
from minigpt.text.dataset import Dataset
from minigpt.training import loop, precision
from minigpt.training.loop import BatchLoss, evaluate, mixed_precision, train
from minigpt.training.optimizer import LOSS_SCALE, AdamW, Optimizer
from minigpt.training.precision import START, LossScale, check_precision, product_type, use_float32_products
from minigpt.training.records import Diverged, Record
from minigpt.training.whole_model import check_whole_model

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")
dataset = pytest.fixture(scope="module", autouse=True)(small_dataset)


# ---- the words ----


def gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    """torch says that there is a GPU of this compute capability; bfloat16 is in hardware from 8.0 on."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0))


@pytest.mark.parametrize(
    ("card", "capability", "chosen"),
    [
        ("P100", (6, 0), torch.float32),
        ("V100", (7, 0), torch.float16),
        ("T4", (7, 5), torch.float16),
        ("A100", (8, 0), torch.bfloat16),
        ("H100", (9, 0), torch.bfloat16),
    ],
)
def test_auto_is_the_16_bits_that_a_card_multiplies_fast(
    card: str, capability: tuple[int, int], chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(monkeypatch, capability)
    assert product_type("auto", CUDA, 16) == chosen
    for word in ("float32", "bfloat16", "float16"):
        assert product_type(word, CUDA, 16) == getattr(torch, word)  # type: ignore[arg-type]


def test_auto_asks_apples_gpu_for_a_product_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.backends.mps.is_available() or product_type("auto", MPS, 16) == torch.float32
    plain = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, dtype, device: plain(*size, dtype=dtype))
    assert product_type("auto", MPS, 16) == torch.bfloat16

    def refuses(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        raise TypeError("BFloat16 is not supported on MPS")

    monkeypatch.setattr(torch, "ones", refuses)
    assert product_type("auto", MPS, 16) == torch.float32


@pytest.fixture
def switches() -> Iterator[None]:
    """torch's switches for products of float32 are left as they were."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, conv.fp32_precision
    yield
    matmul.fp32_precision, conv.fp32_precision = before


@pytest.mark.usefixtures("switches")
def test_tf32_and_float32_mean_what_they_say() -> None:
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]

    def both() -> tuple[str, str]:
        return matmul.fp32_precision, conv.fp32_precision

    before = both()
    use_float32_products("tf32", CPU)
    assert both() == before
    use_float32_products("tf32", CUDA)
    assert both() == ("tf32", "tf32")
    use_float32_products("float32", CUDA)
    assert both() == ("ieee", "ieee")
    use_float32_products("tf32", CUDA)
    use_float32_products("auto", CUDA)  # the run before it leaves nothing behind
    assert both() == ("ieee", "tf32")
    assert not torch.backends.cuda.matmul.allow_tf32  # of a library; where the two disagree, torch raises


def test_tf32_is_refused_where_it_would_be_something_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = script("train.py", "--config", "small.yaml", "training.precision=tf32", cwd=furnish(tmp_path))
    assert ended.code == 2 and not (tmp_path / "runs").exists()
    assert ended.err == (
        "error: training.precision: cpu has no tf32, which NVIDIA's GPUs have from A100 on: use auto or float32\n"
    )
    gpu(monkeypatch, (7, 5))
    with pytest.raises(UserError, match="cuda:0 has no tf32"):
        check_precision("tf32", CUDA)
    gpu(monkeypatch, (8, 0))
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.10.1+cu128"))
    check_precision("tf32", CUDA)
    check_precision("float32", CUDA, compiles=True)
    with pytest.raises(UserError, match=r"the compiler of torch 2\.10\.1\+cu128 .* leave out compile or tf32"):
        check_precision("tf32", CUDA, compiles=True)
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.11.0"))
    check_precision("tf32", CUDA, compiles=True)


@pytest.mark.slow
def test_a_plan_says_what_auto_is_on_a_card(tmp_path: Path) -> None:
    small = "training.batch_size=2", "model.n_layer=1", "model.n_embd=32", "data.stories={count: 60, validation: 8}"
    for card, chosen in ("T4", "float16"), ("A100", "bfloat16"):
        said = script("plan.py", "--config", "tiny.yaml", "--hardware", card, *small, cwd=tmp_path).out
        assert f"\nprecision   {chosen}\n" in said and "\ntime " in said, said
    asked = *small, "training.precision=float32"
    said = script("plan.py", "--config", "tiny.yaml", "--hardware", "T4", *asked, cwd=tmp_path).out
    assert "\nprecision   float32, for which no speed of T4 is known here\n" in said and "\ntime " not in said
    ended = script(
        "plan.py", "--config", "tiny.yaml", "--hardware", "T4", *small, "training.precision=tf32", cwd=tmp_path
    )
    assert (ended.code, ended.err) == (
        2,
        "error: training.precision: T4 has no tf32: use auto or float32\n",
    )


# ---- float16: the same steps ----


def learned(
    dataset: Dataset, word: str, optimizer: Optimizer.Config, model: GPT | None = None, **options: Any
) -> tuple[GPT, Optimizer, list[Record]]:
    """A training in a precision: the model, its optimizer, and what the steps did."""
    model = make_model() if model is None else model
    config = settings(precision=word, optimizer=optimizer, **options)
    steps = make_optimizer(config, model)
    return model, steps, list(train(model, dataset, steps, config))


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far the tensors are apart, relative to the length of the others, together."""
    assert one.keys() == other.keys()
    apart = sum(float((one[name] - other[name]).double().square().sum()) for name in other)
    return math.sqrt(apart / sum(float(tensor.double().square().sum()) for tensor in other.values()))


@pytest.mark.parametrize("clip", [0.5, 0.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
def test_float16_ends_near_float32_in_weights_and_moments(
    dataset: Dataset, optimizer: Optimizer.Config, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale changes on the way, which moments in its unit would not survive."""
    monkeypatch.setattr(precision, "GROW_AFTER", 3)
    options: dict[str, Any] = {"grad_clip": clip, "micro_batch_size": 2, "max_steps": 8}
    fine, fine_steps, fine_records = learned(dataset, "float32", optimizer, **options)
    half, half_steps, half_records = learned(dataset, "float16", optimizer, **options)
    assert all(parameter.dtype == torch.float32 for parameter in half.parameters())
    assert [record.scale for record in half_records] == [START] * 3 + [2 * START] * 3 + [4 * START] * 2
    assert not any(record.skipped for record in half_records)
    for a, b in zip(half_records, fine_records):
        assert a.loss == pytest.approx(b.loss, rel=2e-3) and a.grad_norm == pytest.approx(b.grad_norm, rel=0.02)
    start = make_model().state_dict()
    moved = {name: tensor - start[name] for name, tensor in fine.state_dict().items()}
    also = {name: tensor - start[name] for name, tensor in half.state_dict().items()}
    assert 0 < distance(also, moved) < 0.1
    state = half_steps.state()
    assert state.pop(LOSS_SCALE).tolist() == [4 * START, 2]
    assert 0 < distance(state, fine_steps.state()) < 0.05


def test_an_evaluation_in_float16_is_hardly_off(dataset: Dataset) -> None:
    model = make_model()
    coarse, fine = (evaluate(model, dataset, "val", settings(precision=word)) for word in ("float16", "float32"))
    assert 0 < abs(coarse - fine) < 1e-4
    with mixed_precision(settings(precision="float16"), model):
        assert model(torch.zeros(1, BLOCK, dtype=torch.long)).dtype == torch.float16


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", Attention.kinds)
def test_every_kind_has_gradients_in_float16(kind: str) -> None:
    config = from_dict(ModelConfig, {"n_layer": 2, "n_embd": 32, "block_size": 72, "attention": kind})
    model, (x, y) = make_fast(GPT(config, 20)), torch.randint(20, (2, 2, 72))
    scale, losses = LossScale(CPU), []
    scale.state[0] = 16.0  # kinds with states need a smaller one than softmax
    for word in ("float32", "float16"):
        loss_of = BatchLoss(model, precision=mixed_precision(settings(precision=word), model), scale=scale)
        loss, everything = loss_of(x, y, float(y.numel()), float(len(x)), True)
        losses.append(loss.item())
    everything.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


class InFloat16(MultiHead, kind="wrong_float16_only"):
    """It sees the next token in float16 alone."""

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + x.roll(-1, 1) * (mixed.dtype == torch.float16)


Attention.kinds.pop("wrong_float16_only")


def test_a_model_is_probed_in_float16_if_it_is_trained_in_it(dataset: Dataset) -> None:
    model = GPT(ModelConfig(n_layer=1, n_embd=16, block_size=BLOCK, attention=InFloat16.Config()), 30)
    assert check_whole_model(make_model(), dataset, settings(precision="float16")) == []
    assert check_whole_model(model, dataset, settings(precision="float32")) == []
    with pytest.raises(LeakError, match="sees the future in float16 only"):
        check_whole_model(model, dataset, settings(precision="float16"))


# ---- float16: steps that are skipped ----


def spoil(parameter: nn.Parameter, number: int) -> None:
    """The gradient of one parameter, and in it one number, is infinite in the nth backward pass from now on."""
    passes = iter(range(1, 1000))

    def hook(gradient: Tensor) -> Tensor:
        if next(passes) != number:
            return gradient
        gradient = gradient.clone()
        gradient.view(-1)[0] = math.inf
        return gradient

    parameter.register_hook(hook)


def snapshot(model: GPT, optimizer: Optimizer) -> dict[str, Tensor]:
    """The weights, and the optimizer's state but for the loss scale."""
    tensors = model.state_dict() | optimizer.state()
    return {name: tensor.clone() for name, tensor in tensors.items() if name != LOSS_SCALE}


@pytest.mark.parametrize("place", ["tokens.weight", "blocks.0.mlp.up.weight"])  # of AdamW's part, and of Muon's
@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
def test_an_infinity_skips_every_parameter_of_every_rule_and_halves_the_scale(
    dataset: Dataset, optimizer: Optimizer.Config, place: str
) -> None:
    model, config = make_model(), settings(precision="float16", optimizer=replace(optimizer, weight_decay=0.1))
    spoil(model.get_parameter(place), 3)
    steps, states = make_optimizer(config, model), list[dict[str, Tensor]]()
    records = list[Record]()
    for record in train(model, dataset, steps, config):
        records.append(record)
        states.append(snapshot(model, steps))
    assert [record.skipped for record in records] == [False, False, True, False, False, False]
    assert [record.scale for record in records] == [START] * 3 + [START / 2] * 3
    assert equal(states[1], states[2])
    for before, after in (states[0], states[1]), (states[2], states[3]):  # in all other steps, all of them moved
        assert all(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
def test_skipped_steps_are_the_same_to_the_bit_where_no_loss_is_read_between_log_lines(
    dataset: Dataset, optimizer: Optimizer.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "GROW_AFTER", 2)
    config, results = settings(precision="float16", optimizer=optimizer), list[tuple[Any, ...]]()
    for lines in (range(1, 7), (4, 6)):
        model = make_model(dropout=0.2)
        spoil(model.tokens.weight, 3)
        steps = make_optimizer(config, model)
        records = list(train(model, dataset, steps, config, wanted=lambda step, lines=lines: step in lines))
        records = [replace(record, seconds=0.0, newest=True) for record in records]
        results.append((str(records), model.state_dict() | steps.state()))
    assert results[0][0] == results[1][0] and results[0][0].count("skipped=True") == 1
    assert equal(results[0][1], results[1][1])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_skipped_step_in_float16_alone(
    dataset: Dataset, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = loop.next_token_loss, iter(range(1, 1000))
    monkeypatch.setattr(loop, "next_token_loss", lambda *a, **o: plain(*a, **o) * (value if next(calls) == 2 else 1))
    _, _, records = learned(dataset, "float16", AdamW.Config())
    assert [record.skipped for record in records] == [False, True, False, False, False, False]
    assert not math.isfinite(records[1].loss)
    calls = iter(range(1, 1000))
    with pytest.raises(Diverged, match=r"^step 2: the loss is (nan|inf), the gradient's length nan; lower the"):
        learned(dataset, "float32", AdamW.Config())


@pytest.mark.parametrize("lines", [range(21), (20,)], ids=["every step", "at the end"])
def test_a_training_whose_scale_falls_to_nothing_has_diverged(
    dataset: Dataset, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradients of steps 3 to 6 are infinite: no scale has helped, and neither these nor later steps are taken."""
    monkeypatch.setattr(precision, "START", 2.0**-10)
    config, passes = settings(precision="float16", max_steps=20), iter(range(1, 1000))
    alone, model = make_model(), make_model()
    alone_steps, steps, records = make_optimizer(config, alone), make_optimizer(config, model), list[Record]()
    first = train(alone, dataset, alone_steps, config)
    next(first), next(first)
    model.tokens.weight.register_hook(lambda gradient: gradient * (math.inf if 2 < next(passes) < 7 else 1))
    what = r"^step 6: the loss is 3\.\d+, the gradient's length (inf|nan), though the loss scale of float16 has fallen "
    with pytest.raises(Diverged, match=what + r"to 0\.00012207; lower the .* or use training\.precision=float32$"):
        for record in train(model, dataset, steps, config, wanted=lambda step: step in lines):
            records.append(record)
    assert [record.skipped for record in records] == [False, False, True, True, True]
    assert equal(snapshot(model, steps), snapshot(alone, alone_steps))


class OfTorch(AdamW, kind="of_torch"):
    """A plug-in's optimizer: one of torch's, which cannot skip a step by itself."""

    def make_parts(self, config: AdamW.Config, model: GPT) -> list[Any]:
        return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


class OwnStep(AdamW, kind="own_step"):
    """Another, with a step of its own."""

    def step(self, factor: float) -> None:
        super().step(factor / 2)


Optimizer.kinds.pop("of_torch")
Optimizer.kinds.pop("own_step")


@pytest.mark.parametrize("kind", [OfTorch, OwnStep])
def test_a_plugins_optimizer_steps_in_float16_as_in_float32_and_is_not_asked_in_a_skipped_step(
    dataset: Dataset, kind: type[Optimizer]
) -> None:
    ends = list[dict[str, Tensor]]()
    for word in ("float32", "float16"):
        model, config = make_model(), settings(precision=word)
        steps = kind(AdamW.Config(), model)
        list(train(model, dataset, steps, config))
        start = make_model().state_dict()
        ends.append({name: tensor - start[name] for name, tensor in model.state_dict().items()})
    assert 0 < distance(ends[1], ends[0]) < 0.05

    model, config = make_model(), settings(precision="float16")
    spoil(model.tokens.weight, 3)
    steps, states, skipped = kind(AdamW.Config(), model), list[dict[str, Tensor]](), list[bool]()
    for record in train(model, dataset, steps, config):
        skipped.append(record.skipped)
        states.append(snapshot(model, steps))
    assert skipped == [False, False, True, False, False, False]
    assert equal(states[1], states[2]) and not equal(states[2], states[3])
    assert all(parameter.grad is None for parameter in model.parameters())


# ---- float16: stopped and resumed ----


def test_a_state_without_a_scale_is_accepted_and_a_wrong_one_is_refused(dataset: Dataset) -> None:
    """A run that was in another precision, or was saved before there was float16, begins with the first scale."""
    _, before, _ = learned(dataset, "float32", AdamW.Config())
    assert LOSS_SCALE not in before.state()
    model, config = make_model(), settings(precision="float16")
    steps = make_optimizer(config, model)
    steps.load_state(before.state())
    assert next(train(model, dataset, steps, config)).scale == START
    also = make_optimizer(config, make_model())
    also.load_state(steps.state())
    assert also.loss_scale is not None and also.loss_scale.state.tolist() == [START, 1]
    next(train(make_model(), dataset, also, settings(precision="float32")))
    assert LOSS_SCALE not in also.state()
    for wrong in torch.ones(3), torch.ones(2, dtype=torch.int64):
        with pytest.raises(UserError, match=r"^the loss scale is .*, expected \(2,\) of float32"):
            also.load_state({LOSS_SCALE: wrong})


# ---- float16: several processes ----

RANK = """
import json, math, sys
from pathlib import Path
import torch
from minigpt.config.options import from_dict
from minigpt.training import distributed, loop
from minigpt.training.assemble import RunConfig, assemble, open_text
from minigpt.training.sharding import local

plain, calls = loop.clip, 0
def clip(*arguments):  # after the gradients were summed, one process alone has an infinity
    global calls
    calls += 1
    norm = plain(*arguments)
    return norm * math.inf if calls == 2 and distributed.rank() == 1 else norm
loop.clip = clip
folder = Path(sys.argv[1])
distributed.start("cpu")
for parallel in ("ddp", "fsdp"):
    training = {"batch_size": 4, "max_steps": 3, "threads": 1, "device": "cpu", "precision": "float16"}
    shape = {"n_layer": 1, "n_embd": 16, "block_size": 16, "attention": "multi_head"}
    data = {"source": str(folder / "text.txt"), "tokenizer": "char"}
    training |= {"parallel": parallel, "optimizer": "muon"}
    config, calls = from_dict(RunConfig, {"data": data, "model": shape, "training": training}), 0
    dataset, model, optimizer = assemble(config, *open_text(config.data))
    said, before = [], [local(p).clone() for p in model.parameters()]
    for record in loop.train(model, dataset, optimizer, config.training):
        after = [local(p).clone() for p in model.parameters()]
        still = all(torch.equal(a, b) for a, b in zip(before, after))
        said.append([record.skipped, still, record.scale, record.loss])
        before = after
    (folder / f"{parallel}{distributed.rank()}").write_text(json.dumps(said))
distributed.wait_for_all()
"""


def test_an_infinity_in_one_process_skips_the_step_in_all(tmp_path: Path) -> None:
    """Else they would part: with other weights and another scale in each, and no word of it."""
    (furnish(tmp_path) / "rank.py").write_text(RANK, encoding="utf-8")
    ended = ranks(tmp_path / "rank.py", tmp_path, cwd=tmp_path)
    assert ended.code == 0, ended.err
    for parallel in ("ddp", "fsdp"):
        first, second = (json.loads((tmp_path / f"{parallel}{rank}").read_text("utf-8")) for rank in range(2))
        assert first == second
        assert [step[:3] for step in first] == [
            [False, False, START],
            [True, True, START],
            [False, False, START / 2],
        ]
