"""The profiler: the parts add up to the step, each with its forward and backward, and no bit of training changes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from plugin_kinds import PLUGIN_KINDS
from running import CONFIG, Ended, furnish, script
from small_trainings import BLOCK, make_optimizer, small_dataset
from torch import Tensor, nn

from minigpt.attention import Attention, Position
from minigpt.config.options import from_dict
from minigpt.model import GPT, MLP, ModelConfig, Norm
from minigpt.model.config import AnyBlock
from minigpt.model.replaced import replaced
from minigpt.text.dataset import Dataset
from minigpt.training import loop as training
from minigpt.training import profiler as profilers
from minigpt.training.loop import TrainingConfig, train
from minigpt.training.optimizer import Optimizer
from minigpt.training.profiler import (
    BACKWARD,
    FORWARD,
    PARTS,
    Profile,
    Profiler,
    attached,
    summary,
    table,
    take_profile,
)

STEPS = 3
KINDS = Attention.kinds | PLUGIN_KINDS


dataset = pytest.fixture(scope="module")(small_dataset)


def make_model(kind: str = "multi_head", of_attention: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> GPT:
    torch.manual_seed(0)
    config = from_dict(ModelConfig, {"n_layer": 2, "n_embd": 16, "block_size": BLOCK} | options)
    return GPT(replace(config, attention=KINDS[kind].Config(**of_attention)), 30)


def settings(**options: Any) -> TrainingConfig:
    return from_dict(TrainingConfig, {"batch_size": 4, "max_steps": STEPS, "device": "cpu"} | options)


def look(model: GPT, dataset: Dataset, steps: int = STEPS, **options: Any) -> Profile:
    config = settings(**options)
    return take_profile(model, dataset, make_optimizer(config, model), config, steps)


# ---- the whole and its parts ----


class Clock:
    """A clock that stands still but for what is told to take its time, so that every second is known."""

    def __init__(self) -> None:
        self.time = 0

    def slowed(self, function: Any, there: int, back: int = 0) -> Any:
        """The same function, which takes seconds forward and backward."""
        clock = self

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, *gradients: Tensor) -> Tensor:
                clock.time += back
                return gradients[0]

        def call(*arguments: Any, **options: Any) -> Any:
            clock.time += there
            out = function(*arguments, **options)
            if not back:
                return out
            return (*out[:-1], Slow.apply(out[-1])) if isinstance(out, tuple) else Slow.apply(out)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(profilers, "perf_counter", lambda: clock.time)
    return clock


def spent(profile: Profile) -> dict[tuple[str, str], float]:
    return {phase: seconds for phase, seconds in profile.seconds.items() if seconds}


SLOW = {
    "tokens, position": lambda model: (model.tokens, "forward"),
    "norms": lambda model: (model.norm, "forward"),
    "attention: queries, keys, values": lambda model: (model.blocks[0].attention, "qkv"),
    "attention: position": lambda model: (model.blocks[1].attention.position, "bias"),
    "attention: mix": lambda model: (model.blocks[1].attention, "mix"),
    "attention: output": lambda model: (model.blocks[1].attention, "output"),
    "mlp": lambda model: (model.blocks[0].mlp, "forward"),
    "residual sums, dropout": lambda model: (model.blocks[0].dropout, "forward"),
    "head": lambda model: (model.head, "forward"),
    "loss": lambda model: (training, "next_token_loss"),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("micro_batch_size", [None, 2])
@pytest.mark.parametrize("part", SLOW)
def test_each_part_pays_for_its_own(part: str, micro_batch_size: int | None, dataset: Dataset, clock: Clock) -> None:
    model = make_model(position="alibi")
    for attention in model.attentions():  # a bias that is learned, so that something comes back to it
        weight, bias = nn.Parameter(torch.ones(())), attention.position.bias
        attention.position.__dict__["bias"] = lambda q, k, bias=bias, weight=weight: bias(q, k) * weight
    thing, method = SLOW[part](model)
    with replaced(thing, method, clock.slowed(getattr(thing, method), 5, 9)):
        profile = look(model, dataset, micro_batch_size=micro_batch_size)
    calls = (2 if micro_batch_size else 1) * (2 if part.startswith("residual") else 1)
    assert spent(profile) == {(part, FORWARD): calls * 5, (part, BACKWARD): calls * 9}
    assert profile.profiled == profile.unprofiled == [calls * 14] * STEPS


def test_inside_another_part_it_is_the_inner_ones(dataset: Dataset, clock: Clock) -> None:
    model = make_model("multi_head", {"qk_norm": True}, position="rotary")
    first, second = model.attentions()
    with ExitStack() as stack:
        for thing, method, there, back in (
            (first.position, "rotate", 1, 2),
            (first.query, "forward", 10, 20),
            (second.key_norm, "forward", 1000, 2000),
            (first, "mix", 100, 200),
        ):
            stack.enter_context(replaced(thing, method, clock.slowed(getattr(thing, method), there, back)))
        profile = look(model, dataset)
    parts = {
        "attention: position": (1 + 1, 2 + 2),  # normed, they are turned one after the other
        "attention: queries, keys, values": (1010, 2020),
        "attention: mix": (100, 200),
    }
    expected = {(part, direction): s for part, both in parts.items() for direction, s in zip((FORWARD, BACKWARD), both)}
    assert spent(profile) == expected


@pytest.mark.parametrize("part", ["batch", "gradient clipping", "optimizer", "the rest of the loop"])
def test_what_is_around_the_model_pays_for_its_own(part: str, dataset: Dataset, clock: Clock) -> None:
    model, config = make_model(), settings()
    optimizer = make_optimizer(config, model)
    thing, method = {
        "batch": (dataset, "batch"),
        "gradient clipping": (nn.utils, "clip_grad_norm_"),
        "optimizer": (optimizer, "step"),
        "the rest of the loop": (training, "take_step"),
    }[part]
    with replaced(thing, method, clock.slowed(getattr(thing, method), 7)):
        profile = take_profile(model, dataset, optimizer, config, STEPS)
    assert spent(profile) == {(part, FORWARD): 7}


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"position": position}, {}) for position in Position.kinds),
    *(({"norm": norm}, {}) for norm in Norm.kinds),
    *(({"mlp": mlp}, {}) for mlp in MLP.kinds),
    *(({"block": block}, {}) for block in AnyBlock.kinds),
    ({"head_cap": 2.0, "head_bias": True, "embedding_scale": 3.0}, {}),
    *(({}, {"optimizer": kind}) for kind in Optimizer.kinds),
    ({"tied_head": False, "bias": False, "dropout": 0.2}, {"grad_clip": 0}),
    ({"position": "rotary"}, {"precision": "bfloat16"}),
    ({"dropout": 0.2}, {"precision": "bfloat16", "micro_batch_size": 3}),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("kind", "shape", "how"),
    [
        *(("multi_head", shape, how) for shape, how in OPTIONS),
        *((kind, {"position": "rotary"}, {"max_steps": 2}) for kind in KINDS),
    ],
    ids=str,
)
def test_the_profiler_changes_no_bit(kind: str, shape: dict[str, Any], how: dict[str, Any], dataset: Dataset) -> None:
    """Losses, lengths of gradients and weights of the same steps, with the profiler and without."""
    found = []
    for profiling in (True, False):
        model, config = make_model(kind, **shape), settings(**how)
        optimizer = make_optimizer(config, model)
        profiler = Profiler(model.device)
        with attached(profiler, model, dataset, optimizer) if profiling else nullcontext():
            records = [(record.loss, record.grad_norm) for record in train(model, dataset, optimizer, config)]
        assert (profiler.seconds.get(("attention: mix", BACKWARD), 0) > 0) is profiling
        found.append((records, model.state_dict()))
    (profiled, weights), (unprofiled, others) = found
    assert profiled == unprofiled
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())


# ---- afterwards ----


def everything(model: GPT, dataset: Dataset, optimizer: Optimizer) -> list[Any]:
    objects = [*model.modules(), dataset, optimizer]
    hooks = [(module._forward_hooks, module._forward_pre_hooks, module._backward_hooks) for module in model.modules()]
    names = [set(vars(thing)) for thing in objects]
    return [names, str(hooks), training.next_token_loss, nn.utils.clip_grad_norm_]


def test_nothing_is_left_behind_when_a_step_fails(dataset: Dataset) -> None:
    model, config = make_model(), settings()
    optimizer, profiler = make_optimizer(config, model), Profiler(torch.device("cpu"))
    before = everything(model, dataset, optimizer)
    x = torch.zeros(1, BLOCK + 1, dtype=torch.long)
    with pytest.raises(ValueError, match="do not fit"), attached(profiler, model, dataset, optimizer):
        assert everything(model, dataset, optimizer) != before
        model(x[:, :BLOCK])
        assert profiler.assigned
        model(x)
    assert everything(model, dataset, optimizer) == before
    assert not profiler.assigned and not profiler.outer


def test_a_device_is_waited_for_whenever_the_part_changes() -> None:
    """Work that a device still has to do belongs to the part that asked for it."""
    profiler, waited = Profiler(torch.device("cpu")), []
    profiler.synchronise = lambda: waited.append(profiler.current)
    profiler.start()
    profiler.timed("mlp", lambda: profiler.timed("mlp", lambda: None)())()
    profiler.stop()
    rest = ("the rest of the loop", FORWARD)
    assert waited == [rest, rest, ("mlp", FORWARD), rest]


# ---- what is shown ----

PROFILE = Profile(
    {("batch", FORWARD): 0.001, ("mlp", FORWARD): 0.002, ("mlp", BACKWARD): 0.004, ("optimizer", FORWARD): 0.003},
    profiled=[0.011, 0.010, 0.009],
    unprofiled=[0.008, 0.009, 0.006],
)


def test_the_table() -> None:
    assert table(PROFILE).splitlines() == [
        "part                              forward ms backward ms        ms    share",
        "batch                                                         1.00   10.0 %",
        "mlp                                     2.00        4.00      6.00   60.0 %",
        "optimizer                                                     3.00   30.0 %",
        "the whole step                          2.00        4.00     10.00  100.0 %",
    ]


def test_the_summary() -> None:
    """1,000 tokens in 8 ms are 125,000 a second; 6 million operations for each make 750 GFLOP/s."""
    assert summary(PROFILE, 1000, 6e6, 2e6).splitlines() == [
        "median step: 8.00 ms (6.00 to 9.00); with the profiler 10.00 ms (+25.0 %; the steps alternate)",
        "speed without it: 125,000 tokens/s, 750.0 GFLOP/s (6,000,000 operations a token, of which 2,000,000 forward)",
    ]


# ---- the command ----


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return furnish(tmp_path)


def shown(ended: Ended) -> dict[str, float]:
    """The milliseconds of each row."""
    assert (ended.code, ended.err) == (0, "")
    rows = re.findall(r"^(\S.*?)  .* ([\d.]+) +([\d.]+) %$", ended.out, flags=re.MULTILINE)
    return {part: float(milliseconds) for part, milliseconds, _ in rows}


def test_the_command_shows_all_parts_and_leaves_nothing(home: Path) -> None:
    before = sorted(os.listdir(home))
    ended = script("train.py", "--config", "small.yaml", "--profile", "4", cwd=home)
    rows = shown(ended)
    assert [*rows] == [*(part for part in PARTS if part != "attention: position"), "the whole step"]
    whole = rows.pop("the whole step")
    assert sum(rows.values()) == pytest.approx(whole, abs=0.005 * (len(rows) + 1))
    assert "3 steps to warm up and 8 to measure; there is no run, and what is learned is not kept" in ended.out
    assert "tokens/s" in ended.out
    assert sorted(os.listdir(home)) == before


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--profile"], 20),
        (["--profile", "3", "model.position=rotary", "training.compile=true"], 3),
        (["--profile", "3", "training.compile=true", "training.cuda_graphs=true"], 3),
        (["--profile=2", "training.max_steps=1", "training.micro_batch_size=3", "training.precision=bfloat16"], 2),
    ],
)
def test_the_command_with_options(arguments: list[str], steps: int, home: Path) -> None:
    ended = script("train.py", "--config", "small.yaml", *arguments, cwd=home)
    assert ("attention: position" in shown(ended)) is ("model.position=rotary" in arguments)
    assert f"mean of {steps} steps" in ended.out
    assert ("training.compile is off" in ended.out) is ("training.compile=true" in arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile"], "--profile: give --config FILE"),
        (["--profile", "--resume"], "--profile and --resume: give one of them"),
        (["--config", "small.yaml", "--profile", "--name", "it"], "--profile and --name: give one of them"),
        (["--config", "small.yaml", "--profile", "--allow-leak"], "--profile and --allow-leak: give one of them"),
        *(
            (["--config", "small.yaml", f"--profile={odd}"], f"of at least 1 and at most 999999, found '{odd}'")
            for odd in ("", "0", "9999999")
        ),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, home: Path) -> None:
    ended = script("train.py", *arguments, cwd=home)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err and ended.err.count("\n") == 1


PROCESSES = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_one_of_several_processes_is_refused(home: Path) -> None:
    ended = script("train.py", "--config", "small.yaml", "--profile", cwd=home, **PROCESSES)
    assert (ended.code, ended.err) == (2, "error: --profile measures one process: start it without torchrun\n")


def test_a_loss_that_is_no_number_ends_as_in_training(home: Path) -> None:
    (home / "wild.yaml").write_text(CONFIG.replace("training: {", "training: {optimizer: {learning_rate: 1e30}, "))
    ended = script("train.py", "--config", "wild.yaml", "--profile", cwd=home)
    assert ended.code == 3 and "diverged: step" in ended.err
