"""NaN and infinity: training stops before the step, keeps the evidence, and does not change the good checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from stopping import furnished, leftovers, metrics, newest, resume, same, train, train_until

from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
from minigpt.training import checkpoint
from minigpt.training import run as runs

# what goes wrong at the 7th batch: step 7, after the checkpoint of step 4
LOSS = """plain = minigpt.training.loop.next_token_loss
    minigpt.training.loop.next_token_loss = lambda *a, **o: plain(*a, **o) * float('{}')"""
GRADIENT = """plain = torch.nn.utils.clip_grad_norm_
    def spoil(parameters, *a):
        parameters = list(parameters)
        parameters[0].grad.fill_(float('{}'))
        return plain(parameters, *a)
    torch.nn.utils.clip_grad_norm_ = spoil"""
WEIGHTS = """def overflow(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.data.fill_(float('inf'))
    minigpt.training.optimizer.AdamWRule.step = overflow"""
KINDS = {
    "a loss that is NaN": LOSS.format("nan"),
    "a loss that is infinite": LOSS.format("inf"),
    "a gradient that is NaN": GRADIENT.format("nan"),
    "a gradient that is infinite": GRADIENT.format("-inf"),
}


@pytest.mark.parametrize("what", KINDS)
def test_what_is_no_number_is_not_stepped_along(what: str, tmp_path: Path) -> None:
    furnished(tmp_path)
    ended = train_until(tmp_path, KINDS[what], "minigpt.training.loop", "accumulate", 7)
    assert ended.code == 3 and ended.err.startswith("diverged: step 7: ") and ended.err.count("\n") == 1, ended
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert newest(tmp_path).state["step"] == 4 and leftovers(tmp_path) == []
    assert all(tensor.isfinite().all() for tensor in newest(tmp_path).model.values())

    kept, _ = checkpoint.newest(tmp_path / "runs" / "small" / "diverged")
    assert kept.state["step"] == 6  # the state before the step
    furnished(tmp_path / "other")
    assert train(tmp_path / "other", "training.checkpoint_every=6").code == 0
    undisturbed = checkpoint.load(tmp_path / "other" / "runs" / "small" / "checkpoints" / "step-000006")
    assert same(kept, undisturbed)

    batch = load_file(tmp_path / "runs" / "small" / "diverged" / "batch-000006.safetensors")
    run = runs.load(tmp_path / "runs" / "small")
    source = open_corpus(str(tmp_path / "text.txt"))
    dataset = Dataset(run.config.data, source, run.tokenizer, run.config.model.block_size)
    x, y = dataset.batch("train", 6, run.config.training.batch_size, run.config.training.seed)
    assert torch.equal(batch["x"], x) and torch.equal(batch["y"], y)

    again = resume(tmp_path)  # without the mishap
    assert again.code == 0 and metrics(tmp_path) == metrics(tmp_path / "other")


ONCE = """plain, loop = minigpt.training.loop.next_token_loss, minigpt.training.loop
    def spoil(*a, **o):
        loop.next_token_loss = plain
        return plain(*a, **o) * float('nan')
    loop.next_token_loss = spoil"""
SELDOM = "minigpt.training.records.PAUSES = {'cpu': 1e9}"  # as on a GPU, but longer


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_between_two_log_lines_neither_that_step_nor_one_after_it_is_taken(kind: str, tmp_path: Path) -> None:
    """The loss of step 8 alone is NaN, and is read after step 12."""
    options = f"training.optimizer={kind}", "training.sample_every=0", "training.eval_every=6"
    often = (*options, "training.checkpoint_every=6")
    furnished(tmp_path)
    ended = train_until(tmp_path, f"{ONCE}; {SELDOM}", "minigpt.training.loop", "accumulate", 8, *often)
    assert ended.code == 3 and ended.err.startswith("diverged: step 8: the loss is nan"), ended
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    assert newest(tmp_path).state["step"] == 6 and leftovers(tmp_path) == []
    kept, _ = checkpoint.newest(tmp_path / "runs" / "small" / "diverged")
    assert (tmp_path / "runs" / "small" / "diverged" / "batch-000007.safetensors").exists()

    furnished(tmp_path / "other")
    assert train(tmp_path / "other", "training.checkpoint_every=7", *options).code == 0
    assert same(kept, checkpoint.load(tmp_path / "other" / "runs" / "small" / "checkpoints" / "step-000007"))
    again = resume(tmp_path)  # without the mishap
    assert again.code == 0 and metrics(tmp_path) == metrics(tmp_path / "other")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_validation_that_is_no_number_ends_the_run_and_is_never_recorded(value: str, tmp_path: Path) -> None:
    furnished(tmp_path)
    act = f"minigpt.training.loop.next_token_loss = lambda *a, **o: torch.tensor(float('{value}'))"
    ended = train_until(tmp_path, act, "minigpt.training.trainer", "evaluate", 2)
    assert ended.code == 3 and "step 8" in ended.err and "validation" in ended.err, ended
    assert newest(tmp_path).state["step"] == 4
    assert [step for step, _, _ in newest(tmp_path).state["evaluations"]] == [4]
    text = (tmp_path / "runs" / "small" / "metrics.jsonl").read_text("utf-8")
    assert "NaN" not in text and "Infinity" not in text
    assert [json.loads(line).get("val/loss") is not None for line in text.splitlines()] == [
        False,
        False,
        False,
        True,
    ] + [False] * (text.count("\n") - 4)


def test_a_validation_without_anything_to_predict_is_refused_before_the_run(tmp_path: Path) -> None:
    furnished(tmp_path)
    ended = train(tmp_path, "data.validation=0.001")
    assert ended.code == 2 and "the val split" in ended.err and not (tmp_path / "runs").exists()


def test_weights_that_overflow_are_not_the_checkpoint_that_is_used(tmp_path: Path) -> None:
    """A step along finite numbers may still end in infinity: such weights are refused with the tensor's name."""
    furnished(tmp_path)
    ended = train_until(tmp_path, WEIGHTS, "minigpt.training.loop", "accumulate", 8)
    assert ended.code == 3, ended
    assert newest(tmp_path).state["step"] == 4
