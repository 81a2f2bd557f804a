"""NaN and infinity: training stops before the step, keeps the evidence, and does not change the good checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from running import slow_but
from safetensors.torch import load_file
from stopping import STEP, STEPS, furnished, leftovers, metrics, newest, resume, same, train, train_until

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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which nothing goes wrong, with a checkpoint of each step."""
    folder = furnished(tmp_path_factory.mktemp("undisturbed"))
    assert train(folder, "training.checkpoint_every=1", "training.keep.newest=12").code == 0
    return folder


def of_step(folder: Path, step: int) -> checkpoint.Checkpoint:
    return checkpoint.load(folder / "runs" / "small" / "checkpoints" / f"step-{step:06d}")


@pytest.mark.parametrize("what", slow_but(KINDS, "a loss that is NaN", "a gradient that is infinite"))
def test_what_is_no_number_is_not_stepped_along(what: str, undisturbed: Path, tmp_path: Path) -> None:
    ended = train_until(furnished(tmp_path), KINDS[what], "minigpt.training.loop", "accumulate", 7)
    assert ended.code == 3 and ended.err.startswith("diverged: step 7: ") and ended.err.count("\n") == 1, ended
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert newest(tmp_path).state["step"] == 4 and leftovers(tmp_path) == []
    assert all(tensor.isfinite().all() for tensor in newest(tmp_path).model.values())

    kept, _ = checkpoint.newest(tmp_path / "runs" / "small" / "diverged")
    assert kept.state["step"] == 6 and same(kept, of_step(undisturbed, 6))  # the state before the step

    batch = load_file(tmp_path / "runs" / "small" / "diverged" / "batch-000006.safetensors")
    run = runs.load(tmp_path / "runs" / "small")
    source = open_corpus(str(tmp_path / "text.txt"))
    dataset = Dataset(run.config.data, source, run.tokenizer, run.config.model.block_size)
    x, y = dataset.batch("train", 6, run.config.training.batch_size, run.config.training.seed)
    assert torch.equal(batch["x"], x) and torch.equal(batch["y"], y)

    again = resume(tmp_path)  # without the mishap
    assert again.code == 0 and metrics(tmp_path) == metrics(undisturbed)


ONCE = """plain, loop = minigpt.training.loop.next_token_loss, minigpt.training.loop
    def spoil(*a, **o):
        loop.next_token_loss = plain
        return plain(*a, **o) * float('nan')
    loop.next_token_loss = spoil"""
SELDOM = "minigpt.training.records.PAUSES = {'cpu': 1e9}"  # as on a GPU, but longer


@pytest.mark.parametrize("kind", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_between_two_log_lines_neither_that_step_nor_one_after_it_is_taken(kind: str, tmp_path: Path) -> None:
    """The loss of step 8 alone is NaN, and is read after step 12."""
    options = f"training.optimizer={kind}", "training.sample_every=0", "training.eval_every=6"
    often = (*options, "training.checkpoint_every=6")
    ended = train_until(furnished(tmp_path), f"{ONCE}; {SELDOM}", "minigpt.training.loop", "accumulate", 8, *often)
    assert ended.code == 3 and ended.err.startswith("diverged: step 8: the loss is nan"), ended
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    assert newest(tmp_path).state["step"] == 6 and leftovers(tmp_path) == []
    kept, _ = checkpoint.newest(tmp_path / "runs" / "small" / "diverged")
    assert (tmp_path / "runs" / "small" / "diverged" / "batch-000007.safetensors").exists()

    furnished(tmp_path / "other")
    assert train(tmp_path / "other", "training.checkpoint_every=7", *options).code == 0
    assert same(kept, of_step(tmp_path / "other", 7))
    again = resume(tmp_path)  # without the mishap
    assert again.code == 0 and metrics(tmp_path) == metrics(tmp_path / "other")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_validation_that_is_no_number_ends_the_run_and_is_never_recorded(value: str, tmp_path: Path) -> None:
    furnished(tmp_path)
    act = f"minigpt.training.loop.next_token_loss = lambda *a, **o: torch.tensor(float('{value}'))"
    ended = train_until(tmp_path, act, "minigpt.training.trainer", "measure", 2)
    assert ended.code == 3 and "step 8" in ended.err and "validation" in ended.err, ended
    assert newest(tmp_path).state["step"] == 4
    assert [step for step, _, _ in newest(tmp_path).state["evaluations"]] == [4]
    text = (tmp_path / "runs" / "small" / "metrics.jsonl").read_text("utf-8")
    assert "NaN" not in text and "Infinity" not in text
    assert [line["step"] for line in metrics(tmp_path) if "val/loss" in line] == [4]


def test_weights_that_overflow_are_not_the_checkpoint_that_is_used(tmp_path: Path) -> None:
    """A step along finite numbers may still end in infinity: such weights are refused with the tensor's name."""
    ended = train_until(furnished(tmp_path), WEIGHTS, "minigpt.training.loop", "accumulate", 8)
    assert ended.code == 3, ended
    assert newest(tmp_path).state["step"] == 4


# ---- float16: steps that are skipped ----

FLOAT16 = "training.precision=float16"
GROWS = "import minigpt.training.precision as precision\nprecision.GROW_AFTER = 5\n"


SKIPS = """
import math, minigpt.training.loop as loop

accumulate, clip, step = loop.accumulate, loop.clip, 0

def one_loss(*arguments):
    global step
    step += 1
    return accumulate(*arguments) * (math.nan if step == 7 else 1)

def one_gradient(model, *arguments):
    if step == 9:
        next(model.parameters()).grad[0, 0] = math.inf
    return clip(model, *arguments)

loop.accumulate, loop.clip = one_loss, one_gradient
"""


def test_a_skipped_step_is_counted_and_shown(tmp_path: Path) -> None:
    """The loss of step 7 is NaN, so its line has no loss; a gradient of step 9 is infinite, and its loss is not."""
    (furnished(tmp_path) / "skips.py").write_text(SKIPS, encoding="utf-8")
    ended = train(tmp_path, FLOAT16, "--plugin", "skips.py")
    assert ended.code == 0 and ended.err == "", ended
    assert "on cpu, in float16, " in ended.out
    assert "  0 s left  2 skipped\n" in ended.out
    assert "done: 12 steps (2 of them skipped, for a gradient beyond float16), " in ended.out
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["skipped"] for line in lines] == [0] * 6 + [1] * 2 + [2] * 4
    scales = [line["loss_scale"] for line in lines]
    assert scales == [scales[0]] * 7 + [scales[0] / 2] * 2 + [scales[0] / 4] * 3
    assert [line["step"] for line in lines if "train/loss" not in line] == [7]
    assert [line["step"] for line in lines if "grad_norm" not in line] == [9]
    assert runs.load(tmp_path / "runs" / "small", device="cpu").facts()["step"] == "12 (2 skipped)"
    assert newest(tmp_path).state["skipped"] == 2
    more = resume(tmp_path, "training.max_steps=14")  # which goes on with the count, and with the scale
    assert more.code == 0 and "done: 14 steps (2 of them skipped," in more.out and "gaps" not in more.out
    assert metrics(tmp_path)[-1]["skipped"] == 2 and metrics(tmp_path)[-1]["loss_scale"] == scales[-1]


def test_killed_and_resumed_in_float16_is_never_stopped_to_the_bit(tmp_path: Path) -> None:
    """The scale is doubled after steps 5 and 10; the run is killed in step 9, after the checkpoint of step 8."""
    folders = [furnished(tmp_path / name) for name in ("killed", "straight")]
    for folder in folders:
        (folder / "grows.py").write_text(GROWS, encoding="utf-8")
    arguments = FLOAT16, "training.optimizer=muon", "--plugin", "grows.py"
    assert train_until(folders[0], "os.kill(os.getpid(), 9)", *STEP, 9, *arguments).code == -9
    assert newest(folders[0]).state["step"] == 8
    assert resume(folders[0], "--plugin", "grows.py").code == 0
    assert train(folders[1], *arguments).code == 0
    assert metrics(folders[0]) == metrics(folders[1])
    scales = [line["loss_scale"] for line in metrics(folders[0])]
    assert scales[:11] == [scales[0]] * 5 + [2 * scales[0]] * 5 + [4 * scales[0]]
    assert same(newest(folders[0]), newest(folders[1]))


def test_a_training_without_a_scale_goes_on_in_float16(tmp_path: Path) -> None:
    assert train(furnished(tmp_path), "training.max_steps=4").code == 0
    ended = resume(tmp_path, FLOAT16, "training.max_steps=8")
    assert ended.code == 0 and "changed: training.precision: auto -> float16\n" in ended.out, ended
    assert [line.get("skipped") for line in metrics(tmp_path)] == [None] * 4 + [0] * 4
    back = resume(tmp_path, "training.precision=float32", "training.max_steps=12")
    assert back.code == 0 and "loss_scale" not in newest(tmp_path).optimizer
