"""`training.parallel`: processes that keep a share of the model each learn what one process does (gloo)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Together, ranks
from running import Ended, furnish, script
from small_trainings import BLOCK, furthest, make_model, settings
from torch.profiler import profile

from minigpt.training import checkpoint, distributed
from minigpt.training.checkpoint import Checkpoint
from minigpt.training.loop import BatchLoss, accumulate
from minigpt.training.parallel import DDP

CONFIG = """
data: {source: text.txt, tokenizer: char}
model: {n_layer: 2, n_embd: 32, block_size: 16, dropout: 0.1, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 6, max_steps: 6, eval_every: 3, sample_every: 3, checkpoint_every: 6, grad_clip: 0}
sampling: {max_tokens: 20}
"""


def a_folder(path: Path, config: str = CONFIG) -> Path:
    """A folder with a text and the config."""
    path.mkdir()
    return furnish(path, config)


def trained(
    folder: Path, processes: int, *overrides: str, begin: tuple[str, str] = ("--config", "small.yaml")
) -> Checkpoint:
    """The last checkpoint of a run of so many processes."""
    if processes == 1:
        ended: Ended | Together = script("train.py", *begin, *overrides, cwd=folder)
    else:
        ended = ranks("train.py", *begin, *overrides, cwd=folder, processes=processes)
    assert ended.code == 0, ended.err
    return checkpoint.newest(folder / "runs" / "small" / "checkpoints")[0]


@pytest.mark.slow
def test_ddp_neither_warns_nor_waits_where_every_parameter_has_a_gradient(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch warns in C++. What it waits for it copies: which parameters another process has used."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(distributed, "world", lambda: 2)
        model = make_model()
        summed = DDP().summed(BatchLoss(model))
        x = torch.zeros(4, BLOCK, dtype=torch.long)  # (B, T)
        for _ in range(2):
            with profile(record_shapes=True) as profiler:
                accumulate(model, x, x, settings(micro_batch_size=2), summed)
            assert all(parameter.grad is not None for parameter in model.parameters())
            asked = [[len(list(summed.parameters()))]] * 2  # the shapes of such a copy: a number for each parameter
            assert [e.input_shapes[:2] for e in profiler.events() if e.name == "aten::copy_"].count(asked) == 1
    finally:
        dist.destroy_process_group()
    assert "find_unused_parameters" not in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes_with_shares_equal_two_without_to_the_bit(tmp_path: Path) -> None:
    """Dropout, a tied head, samples and evaluations; then both go on from the other's checkpoint, and so does one."""
    ddp, fsdp = (a_folder(tmp_path / kind) for kind in ("ddp", "fsdp"))
    whole, shares = trained(ddp, 2), trained(fsdp, 2, "training.parallel=fsdp")
    assert furthest(whole, shares) == 0.0
    samples = [(folder / "runs" / "small" / "samples.txt").read_text(encoding="utf-8") for folder in (ddp, fsdp)]
    assert samples[0] == samples[1] and samples[0].count("--- step") == 2
    more = partial(trained, begin=("--resume", "small"))
    whole = more(ddp, 2, "training.max_steps=9", "training.parallel=fsdp")
    shares = more(fsdp, 2, "training.max_steps=9", "training.parallel=ddp")
    assert furthest(whole, shares) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_three_with_shares_that_cut_heads_learn_what_one_would(optimizer: str, tmp_path: Path) -> None:
    """Seven rows in micro-batches of two: one process has one micro-batch more than the others, who wait for it."""
    config = CONFIG.replace("dropout: 0.1", "dropout: 0.0, tied_head: false").replace("grad_clip: 0", "grad_clip: 0.5")
    options = f"training.optimizer={optimizer}", "training.batch_size=7", "training.micro_batch_size=2"
    alone = trained(a_folder(tmp_path / "one", config), 1, *options)
    three = trained(a_folder(tmp_path / "three", config), 3, *options, "training.parallel=fsdp")
    assert furthest(alone, three) < (1e-5 if optimizer == "adamw" else 3e-3)  # Muon's bfloat16 magnifies rounding


@pytest.mark.slow
def test_documents_of_packed_windows_stay_apart_however_many_processes(tmp_path: Path) -> None:
    """Each process has its rows of every batch, and of their documents; kinds with a loss of their own too."""
    stories = "data: {source: stories, stories: {count: 60, validation: 8}, windows: packed, attend: document}"
    config = CONFIG.replace("data: {source: text.txt, tokenizer: char}", stories).replace(
        "dropout: 0.1", "dropout: 0.0"
    )
    config = config.replace("{kind: multi_head, n_head: 2}", "[{kind: multi_head, n_head: 2}, indexer]")
    alone = trained(a_folder(tmp_path / "one", config), 1)
    for kind in ("ddp", "fsdp"):
        together = trained(a_folder(tmp_path / kind, config), 2, f"training.parallel={kind}")
        assert furthest(alone, together) < 1e-5
    mixed = trained(a_folder(tmp_path / "mixed", config), 1, "data.attend=window")
    assert furthest(alone, mixed) > 1e-3
