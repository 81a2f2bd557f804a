"""A plan says beforehand what a training step takes: held against torch's allocator, against the counts of published
models, and against itself where it is to find the largest micro-batch.

B windows at a time, T positions of a window, V vocabulary.
"""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import ranks
from running import script
from torch import nn
from torch.distributed import device_mesh
from torch.profiler import profile

from minigpt.config.options import load
from minigpt.fast import make_fast
from minigpt.model import GPT, Block, ModelConfig
from minigpt.system.errors import UserError
from minigpt.training import fake, hardware
from minigpt.training import plan_in_words as report
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import tensors_of
from minigpt.training.depth import Event, depths, extrapolated
from minigpt.training.fake import PARTS, build, bytes_by_part, evaluate_once, operations, simulate
from minigpt.training.fits import check_training, in_words, largest_that_fits, remedies
from minigpt.training.hardware import Device, read_hardware, read_memory
from minigpt.training.loop import BatchLoss, accumulate, clip, mixed_precision, take_step
from minigpt.training.memory import Job, outline, parameter_count, training_parts
from minigpt.training.parallel import FSDP
from minigpt.training.plan import make_plan
from minigpt.training.plan_in_words import as_text

V, ROWS = 300, 4
ADAMW = "training.optimizer={kind: adamw, learning_rate: 0.001}"
SMALL = ("model.n_embd=64", "model.n_layer=1", "model.block_size=96", f"training.batch_size={ROWS}", ADAMW)
SHAPES = {
    "float32": ("training.precision=float32",),
    "bfloat16": ("training.precision=bfloat16",),
    "micro-batches": ("training.precision=float32", "training.micro_batch_size=1"),
    "dropout": ("training.precision=float32", "model.dropout=0.1", "model.position=alibi"),
    "muon": ("training.precision=float32", "training.optimizer={kind: muon, learning_rate: 0.04}"),
    "recurrent": ("training.precision=float32", "model.attention=gated_delta_net"),
    "squares": ("training.precision=float32", "model.mlp=relu2", "model.n_embd=128", "model.n_layer=2"),
    "adapters": ("training.precision=float32", "training.lora={rank: 4, targets: [query, project]}"),
    "plain": ("training.precision=float32", "training.fast=false"),
}


def config_of(*overrides: str) -> RunConfig:
    return load(RunConfig, "tiny.yaml", [*SMALL, *overrides])


def job_of(config: RunConfig, ranks: int = 1, **options: Any) -> Job:
    """The training of a config in one of `ranks` processes, with other options of the training."""
    return Job(config.model, V, config.training, ranks=ranks).having(**options)


def peak(config: RunConfig, rows: int, **options: Any) -> int:
    """The bytes of a step, as `simulate` has them, with other options of the training; operations are not counted."""
    return sum(bytes_by_part(job_of(config, batch_size=rows, **options)).values())


def allocated(config: RunConfig, folder: Path, vocab_size: int = V, grown: list[int] | None = None) -> int:
    """The most bytes that torch's allocator for CPUs had given out at one time over two steps and an evaluation.

    `grown` is given the largest size of the process until then.
    """
    with profile(profile_memory=True) as profiler:
        model = build(config.model, vocab_size, config.training)
        optimizer = config.training.optimizer.component(config.training.optimizer, model)
        loss_of = BatchLoss(model, precision=mixed_precision(config.training, model))
        summed = config.training.parallel.component().summed(loss_of)
        x = torch.zeros(config.training.batch_size, config.model.block_size, dtype=torch.long)  # (B, T)
        for step in range(2):
            accumulate(model, x, x, config.training, summed)
            clip(model, config.training.grad_clip)
            take_step(optimizer, 1.0, step)
        rows = job_of(config).evaluated
        evaluate_once(model, torch.zeros(rows, config.model.block_size, dtype=torch.long), config.training)
        if grown is not None:
            grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text("utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    now, most = 0, 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.quick("micro-batches", "squares")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_is_what_torchs_allocator_gives_out(shape: str, tmp_path: Path) -> None:
    config = config_of(*SHAPES[shape])
    parts = bytes_by_part(job_of(config))
    most = allocated(config, tmp_path)
    assert sum(parts[part] for part in PARTS) == pytest.approx(most, rel=0.001 if shape != "bfloat16" else 0.01)
    weights = sum(parameter.numel() for parameter in GPT(config.model, V).parameters())
    assert parts["weights"] >= 4 * weights > 0


def test_a_plan_leaves_nothing_behind_for_real_models() -> None:
    """The angles of rotary positions are kept for later, and would have no values."""
    config = config_of("model.position=rotary")
    peak(config, ROWS)
    logits = make_fast(GPT(config.model, V))(torch.zeros(1, 96, dtype=torch.long))  # (1, T, V)
    assert type(logits.data) is torch.Tensor and float(logits.detach().abs().sum()) > 0


@pytest.mark.quick(2)
@pytest.mark.parametrize("option", ["training.parallel=fsdp", "training.lora={rank: 2}"])
def test_a_plan_changes_nothing_of_torch_while_it_is_made(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That belongs to the whole process, in which another thread may train."""
    config = config_of(option)
    bytes_by_part(job_of(config, 2))  # some of torch is imported only here
    shared = (nn.Module, nn.Linear, nn.Embedding, torch.Tensor, torch.UntypedStorage, torch, nn, device_mesh, dist)
    before, changed = [dict(vars(names)) for names in shared], list[str]()

    def step(*arguments: Any) -> None:
        for names, there in zip(shared, before):
            changed.extend(name for name, value in there.items() if vars(names)[name] is not value)
        changed.append("looked at")
        take_step(*arguments)

    monkeypatch.setattr(fake, "take_step", step)
    bytes_by_part(job_of(config, 2))
    assert set(changed) == {"looked at"}


@pytest.mark.slow
@pytest.mark.parametrize("room", [0.5, 0.8, 1.6])
def test_the_largest_micro_batch_fits_and_one_more_does_not(room: float) -> None:
    config, rows = config_of("training.precision=float32", "training.batch_size=12", "model.block_size=1024"), 12
    usable = int(room * peak(config, rows, micro_batch_size=6))
    most = largest_that_fits(job_of(config), usable)
    assert most is not None and peak(config, rows, micro_batch_size=most) <= usable
    assert most == rows or peak(config, rows, micro_batch_size=most + 1) > usable


@pytest.mark.slow
def test_a_training_that_cannot_fit_is_refused_with_what_would() -> None:
    """The sum of what is known at once says that it fits; the step itself shows that it does not."""
    rows = ROWS * 64  # so that the step takes more than an evaluation
    config = config_of("training.precision=float32", f"training.batch_size={rows}")

    def check(free: int) -> None:
        check_training(job_of(config), torch.device("cpu"), free=free)

    known = sum(training_parts(job_of(config)).values())
    whole, half = (peak(config, rows, micro_batch_size=size) for size in (rows, rows // 2))
    assert known < half < whole
    check(whole)
    with pytest.raises(UserError, match=r"not enough memory: training would need .*, .*; what would fit: training.m"):
        check(half)
    with pytest.raises(UserError, match=r"most of them for .*: lower training.*fit: nothing that is known"):
        check(1000)


def test_dropout_keeps_no_weights_of_attention_on_a_gpu() -> None:
    """Its kernel draws them again from a seed. An H100 took 1,683 MB for `shakespeare_char.yaml`, planned are 1,766."""
    shape = ("model.dropout=0.1", "model.block_size=256", "training.batch_size=16")
    config = config_of(*shape, "training.precision=float32")
    job = replace(job_of(config), gpu=True)
    weights = 4 * 16 * 4 * 256**2  # bytes in float32, of 16 windows and four heads
    none = replace(job, config=replace(job.config, dropout=0.0))
    assert 0 < sum(bytes_by_part(job).values()) - sum(bytes_by_part(none).values()) < weights


@pytest.mark.slow
def test_gpt2_has_the_parameters_and_operations_that_are_known() -> None:
    """GPT-2 has 124,439,808 parameters. A token takes 2 operations forward for each weight of a matrix, 2 * 123.53 M,
    and 4 T D in each of 12 layers for the two products over the context of 1,024; backward takes twice as many.
    """
    settings = load(RunConfig, "gpt2.yaml", ["training.batch_size=2"])
    plan = make_plan(settings.model, 50_257, settings.training, read_hardware("A100")[1])
    assert sum(plan.parameters.values()) == 124_439_808
    forward = 2 * (12 * 12 * 768**2 + 50_257 * 768) + 12 * 4 * 1024 * 768
    assert plan.forward == pytest.approx(forward, rel=0.001)
    assert plan.attention == pytest.approx(12 * 4 * 1024 * 768, rel=0.01)
    assert plan.flops == pytest.approx(3 * forward, rel=0.001)
    assert plan.step.parts["weights"] == pytest.approx(4 * 124_439_808, rel=0.001)
    assert plan.optimal == 20 * 124_439_808


def test_operations_of_a_step_with_what_is_computed_again_and_with_adapters() -> None:
    """Again: all of a block but its last product, which nothing needs. An adapter: a product with its two matrices."""
    gelu = ("model.n_layer=2", "model.mlp=gelu", "training.precision=float32")
    config, adapters = config_of(*gelu), config_of(*gelu, "training.lora={rank: 4, targets: [query, key]}")
    (T, D), again = (96, 64), job_of(config, checkpoint_activations=True)
    step, forward = operations(job_of(config))
    block = 2 * 12 * D**2 + 4 * T * D
    assert (step, forward) == (3 * forward, 2 * block + 2 * V * D)
    assert operations(again) == (step + 2 * (block - 2 * 4 * D**2), forward)
    plan = make_plan(adapters.model, V, adapters.training, read_hardware("T4")[1])
    assert plan.attention == 2 * 4 * T * D and plan.forward == forward + 2 * 2 * 2 * 4 * 2 * D


SAVED = {
    "adamw": ("model.position=rotary",),
    "muon": ("training.optimizer={kind: muon, learning_rate: 0.04}", "model.tied_head=false"),
    "adapters": ("training.lora={rank: 4, targets: [query, project]}",),
}


@pytest.mark.quick("muon")
@pytest.mark.parametrize("case", SAVED)
def test_a_plan_counts_the_copy_of_a_checkpoint_to_the_byte(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is there while training goes on, so the machine needs it beside the peak of a step."""
    config = config_of("training.precision=float32", *SAVED[case])
    plan = make_plan(config.model, V, config.training, Device("cpu", 1 << 40, 0.0))
    model = build(config.model, V, config.training)
    optimizer = config.training.optimizer.component(config.training.optimizer, model)
    x = torch.zeros(1, 96, dtype=torch.long)  # (1, T)
    accumulate(model, x, x, config.training)
    take_step(optimizer, 1.0, 0)
    copied = [*tensors_of(model).values(), *optimizer.state().values()]
    assert plan.saved == sum(tensor.nbytes for tensor in copied)
    assert "saving" not in as_text(plan, 0.4)  # so small a one is written before training goes on
    monkeypatch.setattr(report, "LARGE", plan.saved)
    assert f"\nsaving      {plan.saved / 1e6:,.1f} MB more for the copy of a checkpoint" in as_text(plan, 0.4)


@pytest.mark.slow
def test_processes_that_share_the_model_each_copy_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("training.precision=float32")
    monkeypatch.setattr(report, "LARGE", 0)
    whole, first = (make_plan(config.model, V, config.training, read_hardware("T4")[1], n) for n in (1, 2))
    assert whole.saved == first.saved and "for the copy in the first process of" in as_text(first, 0.4)
    shared = replace(config.training, parallel=FSDP.Config())
    each = make_plan(config.model, V, shared, read_hardware("T4")[1], 2)
    assert whole.saved / 2 <= each.saved < 0.51 * whole.saved and "copy in each process of" in as_text(each, 0.4)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        *((text, r"--hardware .* expected such as 8xH100, of T4") for text in ("8xH1OO", "0xH100", "H100x8", "")),
        *((text, r"--memory .* expected more than 1 GiB") for text in ("24", "1GB", "24 gigabytes", "-24GB", "1e3GB")),
    ],
)
def test_what_cannot_be_meant_is_one_line(said: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        (read_hardware if "hardware" in message else read_memory)(said)


def test_the_command_prints_the_plan(tmp_path: Path) -> None:
    small = ("--config", "tiny.yaml", *SMALL)
    ended = script("plan.py", *small, "--hardware", "2xA100", "--price", "2", cwd=tmp_path)
    assert ended.code == 0, ended.err
    for what in ("parameters", "operations", "memory", "weights", "fits        yes", "time", "cost"):
        assert what in ended.out
    assert not list(tmp_path.iterdir())  # no run
    both = script("plan.py", *small, "--hardware", "A100", "--memory", "24GB", cwd=tmp_path)
    assert both.code == 2 and "give one of them" in both.err
    sized = script("plan.py", *small, "--memory", "6GB", cwd=tmp_path)
    assert sized.code == 0 and ", of 4.93 GB on 1 GPU of 6GB\n" in sized.out and "\ntime " not in sized.out
    adapters = script("plan.py", *small, "training.lora.targets=[nothing]", cwd=tmp_path)
    assert adapters.code == 2 and "no layer of this model is called 'nothing'" in adapters.err


def test_a_system_that_does_not_say_how_much_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "free_memory", lambda: None)
    config = load(RunConfig, "tiny.yaml", SMALL)
    plan = make_plan(config.model, 65, config.training, hardware.this_machine())
    assert plan.fits and plan.remedies == []
    assert "\nfits        not known: this system does not say how much memory is free" in as_text(plan, 0.4)


RANK = """
import sys
from dataclasses import replace
from pathlib import Path

import torch

import test_planning as tests
from minigpt.training import distributed
from minigpt.training.parallel import shard

torch.set_num_threads(1)
distributed.start("cpu")
build = tests.build
def in_shards(*arguments):
    model = build(*arguments)
    shard(model, torch.device("cpu"))
    return model
for parallel in ("ddp", "fsdp"):
    config = tests.config_of(*tests.SHARED, f"training.parallel={parallel}")
    tests.build = build if parallel == "ddp" else in_shards
    own = replace(config, training=replace(config.training, batch_size=tests.ROWS // distributed.world()))
    folder = Path(sys.argv[1]) / f"{parallel}{distributed.rank()}"
    folder.mkdir()
    print(parallel, tests.allocated(own, folder), flush=True)
"""
SHARED = ("training.precision=float32", "model.n_embd=192", "model.n_layer=4", "training.micro_batch_size=1")


@pytest.mark.slow
def test_the_peak_of_processes_is_that_of_real_ones(tmp_path: Path) -> None:
    """Gloo's threads say when gathered weights come and go: all of them once earlier, or what a step sends later."""
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    ended = ranks(tmp_path / "rank.py", tmp_path, cwd=tmp_path, imports=["test_planning"])
    assert ended.code == 0, ended.err
    whole = sum(parameter.numel() for parameter in GPT(config_of(*SHARED).model, V).parameters())
    sent = 3 * 4 * whole  # each block is gathered twice, and its gradients once; when gloo's threads free that varies
    for parallel, earlier, later in (("ddp", 0, 0), ("fsdp", 4 * whole, sent)):
        real = [int(found) for found in re.findall(rf"{parallel} (\d+)", ended.out)]
        config = config_of(*SHARED, f"training.parallel={parallel}")
        planned = bytes_by_part(job_of(config, 2))
        most = sum(planned.values())
        assert len(real) == 2
        for each in real:
            assert 0.99 * most - earlier <= each <= 1.001 * most + later, (each, most, earlier, later)
    assert 4 * whole / 2 <= planned["weights"] < 4 * 0.7 * whole  # a block's, or the embeddings', may be gathered


@pytest.mark.slow
def test_activations_that_are_computed_again_are_not_kept() -> None:
    config, rows = config_of("training.precision=float32", "model.n_layer=4"), 64
    job = job_of(config, batch_size=rows)
    once, again = (bytes_by_part(job.having(checkpoint_activations=twice)) for twice in (False, True))
    assert again["activations"] < 0.6 * once["activations"] and again["weights"] == once["weights"]


def test_more_processes_than_windows_are_refused_as_a_training_does(tmp_path: Path) -> None:
    config = config_of()
    why = f"training.batch_size: {ROWS} windows cannot be divided among {ROWS + 1} processes: make it at least"
    with pytest.raises(UserError, match=why):
        make_plan(config.model, V, config.training, read_hardware("A100")[1], ROWS + 1)
    ended = script("plan.py", "--config", "tiny.yaml", "--ranks", "2,64", cwd=tmp_path)
    assert ended.code == 2 and "error: training.batch_size: 32 windows cannot" in ended.err, ended


@pytest.mark.slow
def test_what_would_fit_is_said_the_mildest_first() -> None:
    config = config_of("training.precision=float32", "model.n_layer=2", "training.batch_size=64")

    options = remedies(job_of(config), peak(config, 64) // 2, more_devices=False)
    assert re.fullmatch(r"training.micro_batch_size=(\d+)", options[0])
    assert re.fullmatch(r"training.checkpoint_activations=true training.micro_batch_size=(\d+)", options[1])
    assert int(options[0].split("=")[-1]) < int(options[1].split("=")[-1])
    assert remedies(job_of(config), 1000, more_devices=False) == [] and "fewer or narrower layers" in in_words([])


HYBRID = "model.attention=[{kind: multi_head, n_head: 4}, {kind: gated_delta_net}]"
DEEP = {
    "adamw": (),
    "muon": ("training.optimizer={kind: muon, learning_rate: 0.04}",),
    "again": ("training.checkpoint_activations=true", "training.micro_batch_size=1"),
    "processes": ("training.micro_batch_size=1",),
    "hybrid": (HYBRID, "model.n_layer=12", "model.block_size=32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DEEP)
def test_a_deep_model_is_planned_from_shallow_ones_to_the_byte(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operations do not depend on the optimizer or on the processes."""
    config = config_of("training.precision=float32", "model.n_layer=6", *DEEP[case])
    job = job_of(config, 2 if case == "processes" else 1)
    planned: Callable[..., Any] = simulate if case in ("adamw", "hybrid", "again") else bytes_by_part
    simulated = list[int]()

    def allocations(shallow: Job) -> Any:
        simulated.append(shallow.config.n_layer)
        return plain(shallow)

    plain = fake.allocations
    monkeypatch.setattr(fake, "allocations", allocations)
    found = planned(job)
    assert simulated == ([4, 6, 8] if case == "hybrid" else [2, 3, 4])
    monkeypatch.setattr(fake, "depths", lambda *_: None)
    assert planned(job) == found and simulated[-1] == config.model.n_layer
    assert planned is bytes_by_part or sum(found.parts[part] for part in PARTS) == found.peak


def test_layers_that_differ_are_all_simulated() -> None:
    """What the third model does must follow from the first two."""
    a, b = Event("a", "weights", 1), Event("b", "weights", 2)
    assert extrapolated([[a, a], [a, a, a], [a, a, a, a]], 5) == [a] * 7
    assert extrapolated([[a, a], [a, a, a], [a, a, a, b]], 5) is None
    grown = [[Event("stacked", "weights", n)] for n in (2, 3, 4)]
    assert extrapolated(grown, 5) == [Event("stacked", "weights", 7)]
    assert extrapolated([*grown[:2], [Event("stacked", "weights", 9)]], 5) is None
    config = config_of("model.n_layer=13", "model.attention=[multi_head, multi_head, gated_delta_net]").model
    assert depths(outline(config, V)) is None  # the three would have 4 + 7 + 10
    narrow, wide = ["{kind: sliding_window, window: 32}"] * 6, ["{kind: sliding_window, window: 96}"] * 6
    config = config_of("model.n_layer=12", f"model.attention=[{', '.join([*narrow, *wide])}]").model
    assert depths(outline(config, V)) is None  # layers of equal parameters, of which the shallow ones have no wide one
    model = outline(config_of("model.n_layer=12").model, V)
    assert depths(model) == (2, 3, 4)
    assert depths(model, [f"blocks.{layer}.attention.query" for layer in range(12)]) == (2, 3, 4)
    assert depths(model, ["blocks.9.attention.query"]) is None
    model.blocks[9].dropout.p = 0.1  # as a block of one's own may say
    assert depths(model) is None


@pytest.mark.slow
def test_a_plugin_that_refuses_an_odd_number_of_layers_is_planned_whole() -> None:
    """As one would whose layers come in pairs; three of them would be simulated."""

    class Paired(Block, kind="paired"):
        def __init__(self, config: ModelConfig, layer: int):
            if config.n_layer % 2:
                raise UserError("paired: expected an even number of layers")
            super().__init__(config, layer)

    Block.kinds.pop("paired")
    config = config_of("training.precision=float32", "model.n_layer=6", "model.n_embd=16")
    paired = replace(config.model, block=Paired.Config())
    assert parameter_count(paired, V) == parameter_count(config.model, V)
    assert depths(outline(paired, V)) == (2, 3, 4)
    assert simulate(replace(job_of(config), config=paired)) == simulate(job_of(config))


@pytest.mark.slow
def test_adapters_of_one_layer_are_planned() -> None:
    """No shallow model has that layer."""
    few = ("training.precision=float32", "model.n_layer=5", "model.n_embd=16")
    one, all_ = (config_of(*few, f"training.lora={{rank: 4, targets: [{each}query]}}") for each in ("4.attention.", ""))
    less, all_weights = (bytes_by_part(job_of(each))["weights"] for each in (one, all_))
    assert less == all_weights - 4 * 4 * (4 * 2 * 16)


def test_operations_that_do_not_grow_evenly_with_the_layers_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("model.n_layer=12")
    monkeypatch.setattr(fake, "counted", lambda job: (96 * job.config.n_layer**2, 96 * job.config.n_layer))
    assert operations(job_of(config)) == (144, 12)
