"""Training: exact gradients and losses, runs that repeat bit for bit, and a stop that changes nothing.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_trainings import (
    BLOCK,
    KINDS,
    OPTIMIZERS,
    equal,
    learn,
    make_dataset,
    make_model,
    make_optimizer,
    settings,
    small_dataset,
)
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from minigpt.model import GPT, SamplingConfig, generate
from minigpt.system.errors import ConfigError, UserError
from minigpt.text.dataset import IGNORED, Dataset
from minigpt.training import batches, checkpoint, distributed, loop, precision
from minigpt.training.loop import TrainingConfig, accumulate, choose_device, evaluate, next_token_loss, train
from minigpt.training.optimizer import AdamW, AdamWRule, Muon, Optimizer
from minigpt.training.records import Diverged, Lines, Record

dataset = pytest.fixture(scope="module", autouse=True)(small_dataset)


# ---- the loop ----


def test_a_record_says_what_the_step_did(dataset: Dataset) -> None:
    config = settings(schedule="linear", final_rate=0.0, grad_clip=0.0, optimizer=AdamW.Config(learning_rate=0.3))
    records = learn(make_model(), dataset, config)
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record.lr for record in records] == pytest.approx([0.1, 0.2, 0.3, 0.225, 0.15, 0.075])
    assert {record.tokens for record in records} == {4 * BLOCK}
    model = make_model()
    x, y = dataset.batch("train", 0, 4, config.seed)
    assert records[0].loss == accumulate(model, x, y, config).item()
    length = sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None) ** 0.5
    assert records[0].grad_norm == pytest.approx(length, rel=1e-5)


def test_a_log_line_is_due_in_all_processes_as_soon_as_it_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have clocks of their own, and must read the losses after the same step."""
    asked = list[bool]()
    monkeypatch.setattr(distributed, "largest", lambda mine: asked.append(mine) or True)
    monkeypatch.setattr("minigpt.training.records.PAUSES", {"cuda": 1e9})
    lines = Lines(torch.device("cuda"))
    assert lines.due() and lines.due() and asked == [True, False]
    monkeypatch.setattr(distributed, "largest", lambda mine: False)
    assert not lines.due() and Lines(torch.device("cpu")).due()


def test_the_next_batch_is_copied_before_a_step_is_asked_for(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it is then there when the step is done. The last step asks for none; a resumed run leaves none out."""
    seen, sent, accumulate = list[Any](), batches.sent, loop.accumulate

    def copied(tensor: Tensor, device: torch.device) -> Tensor:
        seen.append(tensor)
        return sent(tensor, device)

    def computed(model: GPT, x: Tensor, y: Tensor, *others: Any) -> Tensor:
        seen.append((x, y))
        return accumulate(model, x, y, *others)

    monkeypatch.setattr(batches, "sent", copied)
    monkeypatch.setattr(loop, "accumulate", computed)
    config = settings(max_steps=5)
    model = make_model()
    list(train(model, dataset, make_optimizer(config, model), config, start=2))
    assert ["step" if isinstance(each, tuple) else "copy" for each in seen] == [
        *("copy",) * 4, "step", *("copy",) * 2, "step", "step",
    ]  # fmt: skip
    steps, copies = ([each for each in seen if isinstance(each, tuple) is whole] for whole in (True, False))
    for n, (x, y) in zip((2, 3, 4), steps):
        expected = dataset.batch("train", n, 4, config.seed)
        assert torch.equal(x, expected[0]) and torch.equal(y, expected[1])
        assert torch.equal(copies[2 * (n - 2)], x) and torch.equal(copies[2 * (n - 2) + 1], y)


def test_on_a_gpu_a_step_waits_for_its_own_batch_and_not_for_the_next_one(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream that copies is imitated, and so is the one that computes."""
    events = list[str]()
    copied = SimpleNamespace(record_stream=lambda stream: events.append("kept"))
    computing = SimpleNamespace(wait_stream=lambda stream: events.append(f"waits for {stream}"))

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        events.append(f"on {stream}")
        yield
        events.append("as before")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "copies")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(batches, "sent", lambda tensor, device: events.append("copy") or copied)
    for batch in batches.read_ahead(dataset, range(2), 4, 0, slice(None), torch.device("cuda")):
        events.append(f"step of {batch.targets} targets")
    load, step = ["on copies", "copy", "copy", "as before"], f"step of {4 * BLOCK} targets"
    assert events == [*load, "waits for copies", "kept", "kept", *load, step, "waits for copies", "kept", "kept", step]


def test_long_gradients_are_clipped_and_short_ones_are_not(dataset: Dataset) -> None:
    seen: list[float] = []

    class Spy(AdamW):
        def step(self, factor: float) -> None:
            squares = [float((p.grad**2).sum()) for p in self.names if p.grad is not None]
            seen.append(sum(squares) ** 0.5)
            super().step(factor)

    for clip in (0.01, 1e6, 0.0):
        model = make_model()
        list(train(model, dataset, Spy(AdamW.Config(), model), settings(max_steps=1, grad_clip=clip)))
    assert seen[0] == pytest.approx(0.01, rel=1e-3)
    assert seen[1] == seen[2] > 0.1


@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
def test_equal_seeds_are_equal_runs_to_the_bit(dataset: Dataset, optimizer: Optimizer.Config) -> None:
    def run(seed: int) -> tuple[list[float], dict[str, Tensor]]:
        model = make_model(dropout=0.3)
        return [r.loss for r in learn(model, dataset, settings(optimizer=optimizer, seed=seed))], model.state_dict()

    torch.manual_seed(1)
    losses, weights = run(seed=7)
    torch.manual_seed(2)  # what others draw does not matter
    again, same_weights = run(seed=7)
    assert losses == again and equal(weights, same_weights)
    assert losses != run(seed=8)[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
@pytest.mark.parametrize(("k", "word"), [(1, "float32"), (4, "float16")])
def test_stopped_and_resumed_is_never_stopped_to_the_bit(
    dataset: Dataset, tmp_path: Path, optimizer: Optimizer.Config, k: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale of float16 is doubled after steps 3 and 6: a count that begins anew would change the steps after it."""
    monkeypatch.setattr(precision, "GROW_AFTER", 3)
    config = settings(optimizer=optimizer, precision=word, max_steps=9)
    straight = make_model(dropout=0.3)
    straight_optimizer = make_optimizer(config, straight)
    expected = [(record.loss, record.scale) for record in train(straight, dataset, straight_optimizer, config)]

    first = make_model(dropout=0.3)
    first_optimizer = make_optimizer(config, first)
    steps = train(first, dataset, first_optimizer, config)
    found = [(record.loss, record.scale) for record in islice(steps, k)]
    checkpoint.save(tmp_path / "checkpoints", k, checkpoint.tensors_of(first), first_optimizer.state(), {})
    next(steps)  # what happens after the checkpoint is lost

    saved, _ = checkpoint.newest(tmp_path / "checkpoints")
    second = make_model(dropout=0.3)
    torch.nn.init.normal_(second.tokens.weight)
    checkpoint.fill(second, saved.model, saved.path)
    second_optimizer = make_optimizer(config, second)
    second_optimizer.load_state(saved.optimizer)
    later = train(second, dataset, second_optimizer, config, start=saved.state["step"])
    found += [(record.loss, record.scale) for record in later]
    assert found == expected and len({scale for _, scale in found}) == (3 if word == "float16" else 1)
    assert equal(second.state_dict(), straight.state_dict())
    assert equal(second_optimizer.state(), straight_optimizer.state())


def test_looking_on_changes_nothing(dataset: Dataset) -> None:
    config = settings()
    alone, watched = make_model(dropout=0.3), make_model(dropout=0.3)
    learn(alone, dataset, config)
    for _ in train(watched, dataset, make_optimizer(config, watched), config):
        evaluate(watched, dataset, "val", config)
        watched.eval()
        list(generate(watched, torch.zeros(1, 1, dtype=torch.long), SamplingConfig(max_tokens=3)))
        torch.rand(5)
    assert equal(alone.state_dict(), watched.state_dict())


class Reads(TorchFunctionMode):
    """Counts the numbers that Python reads from tensors of floats, and those that torch's own code reads."""

    METHODS = frozenset(
        getattr(Tensor, name) for name in ("item", "tolist", "numpy", "cpu", "__float__", "__bool__", "__int__")
    )

    class Within(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point()
            return func(*args, **(kwargs or {}))

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.within, self.called = self.Within(), 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called += func in self.METHODS and args[0].is_floating_point()
        with self.within:
            return func(*args, **(kwargs or {}))

    @property
    def count(self) -> int:
        return self.called + self.within.count


@pytest.mark.parametrize("clip", [0.1, 0.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
def test_between_log_lines_no_loss_is_read_and_the_steps_are_the_same_to_the_bit(
    dataset: Dataset, optimizer: Optimizer.Config, clip: float
) -> None:
    config = settings(optimizer=replace(optimizer, weight_decay=0.1), grad_clip=clip, micro_batch_size=2)
    each, lines = make_model(dropout=0.3), make_model(dropout=0.3)
    each_optimizer, lines_optimizer = make_optimizer(config, each), make_optimizer(config, lines)
    expected = [replace(r, seconds=0.0) for r in train(each, dataset, each_optimizer, config)]

    reads, before = Reads(), list[int]()

    def wanted(step: int) -> bool:
        before.append(reads.count)
        return step in (3, 6)

    with reads:
        found = list(train(lines, dataset, lines_optimizer, config, wanted=wanted))
    assert [b - a for a, b in pairwise([0, *before])] == [0, 0, 0, 1, 0, 0]  # read after step 3, for step 4 to begin
    assert [record.newest for record in found] == [False, False, True] * 2
    assert [replace(r, seconds=0.0, newest=True) for r in found] == expected
    assert equal(each.state_dict(), lines.state_dict()) and equal(each_optimizer.state(), lines_optimizer.state())


def test_an_evaluation_reads_its_losses_once_and_adds_them_up_in_float64(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "evaluated_at_once", lambda micro_batch, T: 1)
    model, config = make_model(), settings()
    batches = list(dataset.windows("val", 1))
    with torch.no_grad():
        losses = [next_token_loss(model(x), y, reduction="sum").item() for x, y in batches]
    with Reads() as reads:
        found = evaluate(model, dataset, "val", config)
    assert reads.count == 1 and len(batches) > 3
    assert found == math.fsum(losses) / sum(int((y != IGNORED).sum()) for _, y in batches)


def test_a_rule_from_elsewhere_steps_only_along_losses_that_were_read(dataset: Dataset) -> None:
    class Own(AdamWRule):
        def move(self, *given: Any) -> None:
            super().move(*given)

    class WithOwn(AdamW):
        def make_parts(self, config: AdamW.Config, model: GPT) -> list[Any]:
            return [Own(super().make_parts(config, model)[0].param_groups)]

    class WithOwnStep(AdamW):
        def step(self, factor: float) -> None:
            super().step(factor / 2)

    for kind in (WithOwn, WithOwnStep):
        model = make_model()
        steps = train(model, dataset, kind(AdamW.Config(), model), settings(), wanted=lambda step: False)
        assert [record.newest for record in steps] == [True] * 6


# ---- what goes wrong ----


@pytest.mark.parametrize("optimizer", OPTIMIZERS, **KINDS)  # type: ignore[arg-type]
def test_of_losses_read_together_the_first_that_is_none_is_named_and_no_step_is_taken_from_there_on(
    dataset: Dataset, optimizer: Optimizer.Config
) -> None:
    """The loss of step 3 alone is NaN; it is read after step 5."""
    config = settings(optimizer=replace(optimizer, weight_decay=0.1))
    alone, model = make_model(), make_model()
    alone_optimizer, model_optimizer = make_optimizer(config, alone), make_optimizer(config, model)
    steps = train(alone, dataset, alone_optimizer, config)
    expected = [next(steps).loss, next(steps).loss]

    def wanted(step: int) -> bool:
        if step == 2:  # the step after it
            handle = model.tokens.weight.register_hook(lambda gradient: handle.remove() or gradient * math.nan)
        return step == 5

    found = list[Record]()
    with pytest.raises(Diverged, match=r"^step 3: the loss is .*, the gradient's length nan; lower the learning"):
        for record in train(model, dataset, model_optimizer, config, wanted=wanted):
            found.append(record)
    assert [record.loss for record in found] == expected and [record.newest for record in found] == [False, True]
    assert equal(alone.state_dict(), model.state_dict()) and equal(alone_optimizer.state(), model_optimizer.state())


def test_a_step_beyond_float32_loses_no_record_of_the_steps_before(dataset: Dataset) -> None:
    model, config = make_model(), settings(warmup_steps=3, optimizer=Muon.Config(learning_rate=5e38))
    optimizer, found = make_optimizer(config, model), list[Record]()
    with pytest.raises(Diverged, match=r"^step 2: the step is beyond float32"):
        for record in train(model, dataset, optimizer, config, wanted=lambda step: False):
            found.append(record)
    assert [record.step for record in found] == [1]  # its step was finite, and so large that the next loss is not


def test_a_step_that_fails_after_its_loss_was_read_loses_no_record_either(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, config = make_model(), settings()
    optimizer, found = make_optimizer(config, model), list[Record]()
    plain = optimizer.step

    def step(factor: float, skip: Tensor | None = None) -> None:
        if skip is None:  # of a step that is read
            raise OverflowError("Result too large")
        plain(factor, skip)

    monkeypatch.setattr(optimizer, "step", step)
    with pytest.raises(Diverged, match=r"^step 3: the step is beyond float32"):
        for record in train(model, dataset, optimizer, config, wanted=lambda step: step == 3):
            found.append(record)
    assert [record.step for record in found] == [1, 2] and found[-1].newest


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("max_steps", 0), ("seed", 2**63), ("seed", -1), ("final_rate", 1.5), ("schedule", "steep")],
)
def test_options_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^TrainingConfig\.{name}: expected "):
        TrainingConfig(**{name: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.device: cuda is not available here; use auto or cpu"):
        choose_device("cuda")


# ---- what is learned ----


@pytest.mark.parametrize("optimizer", [AdamW.Config(learning_rate=0.01), Muon.Config(learning_rate=0.02)], **KINDS)  # type: ignore[arg-type]
def test_a_small_model_learns_a_text_by_heart(tmp_path: Path, optimizer: Optimizer.Config) -> None:
    letters = random.Random(0).choices("abcdefgh", k=2 * BLOCK + 2)  # nothing in it can be guessed
    dataset = make_dataset(tmp_path, "".join(letters), validation=0.5)
    config = settings(batch_size=2, max_steps=120, optimizer=optimizer, schedule="constant")
    records = learn(make_model(n_embd=32, V=8), dataset, config)
    assert records[0].loss == pytest.approx(math.log(8), rel=0.05) and records[-1].loss < 0.05


@pytest.mark.slow
def test_copying_takes_attention_that_chooses(tmp_path: Path) -> None:
    """Three letters, and the same again. A mean of the past knows which letters came, not in which order.

    Three of eight characters cannot be guessed, so nothing is better than 3/8 ln 8 = 0.78.
    """
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=3)) for _ in range(4000)]
    dataset = make_dataset(tmp_path, "".join(f"{word}:{word};" for word in words), validation=0.02)
    config = settings(batch_size=32, max_steps=200, optimizer=Muon.Config(learning_rate=0.04), warmup_steps=10)

    def loss(kind: str) -> float:
        model = make_model(kind, n_embd=32, V=10)
        learn(model, dataset, config)
        return evaluate(model, dataset, "val", settings(batch_size=100))

    assert 0.78 < loss("multi_head") < 1.05
    assert loss("average_matrix") > 1.3


# ---- compiled ----


def test_cuda_graphs_say_what_they_need() -> None:
    with pytest.raises(ConfigError, match=r"^TrainingConfig\.cuda_graphs: they need compile: true$"):
        TrainingConfig(cuda_graphs=True)
    with pytest.raises(ConfigError, match=r"cuda_graphs: a replay overwrites the gradients .* leave micro_batch_size"):
        TrainingConfig(compile=True, cuda_graphs=True, micro_batch_size=2)
