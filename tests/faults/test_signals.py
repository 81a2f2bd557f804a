"""Signals during every part of training: it finishes the step, writes a checkpoint, and loses nothing."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch
from running import one_line, small_text, started, wait_until
from stopping import (
    DEAF,
    STEP,
    STEPS,
    equal,
    furnished,
    happening,
    leftovers,
    metrics,
    newest,
    resume,
    same,
    train,
    train_until,
)

PHASES = {  # where the signal comes, and the step after which the run stops
    "a step": (*STEP, 3, 3),
    "the optimizer's step": ("minigpt.training.loop.Optimizer", "step", 5, 5),
    "an evaluation": ("minigpt.training.trainer", "measure", 1, 4),
    "a sample": ("minigpt.model.sampling", "next_token", 3, 6),
    "a save": ("minigpt.training.checkpoint", "write_tensors", 2, 5),
    "a sync": ("minigpt.training.checkpoint", "sync", 5, 5),
    "the pruning": ("minigpt.training.checkpoint", "prune", 1, 5),
    "a log line": ("minigpt.training.trainer.Log", "write", 3, 3),
}
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


EACH = [  # one signal in each phase, in turn; the rest is slow
    pytest.param(phase, *signal, marks=[pytest.mark.slow] * ((place - number) % 3 > 0))
    for place, phase in enumerate(PHASES)
    for number, signal in enumerate(SIGNALS)
]


@pytest.mark.parametrize(("phase", "signum", "code"), EACH)
def test_a_signal_during(phase: str, signum: int, code: int, straight: Path, tmp_path: Path) -> None:
    owner, name, nth, last = PHASES[phase]
    stopped = train_until(furnished(tmp_path), f"os.kill(os.getpid(), {int(signum)})", owner, name, nth)
    assert stopped.code == code and stopped.err.count("\n") == 1, stopped
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, last + 1))
    assert newest(tmp_path).state["step"] == last
    assert leftovers(tmp_path) == []
    assert phase != "a sample" or "sample at step 6" not in stopped.out  # it is for the eye, and left out
    assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)


def test_a_signal_between_two_log_lines_stops_at_the_next_one(straight: Path, tmp_path: Path) -> None:
    """Where losses are read together, nothing is saved until the last of them is."""
    furnished(tmp_path)
    act = f"minigpt.training.records.PAUSES = {{'cpu': 1e9}}; os.kill(os.getpid(), {int(signal.SIGTERM)})"
    options = "training.sample_every=0", "training.checkpoint_every=11"
    stopped = train_until(tmp_path, act, *STEP, 9, *options)
    assert stopped.code == 143 and newest(tmp_path).state["step"] == 11
    assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)


LONG = ("data.validation=0.5", "training.sample_every=0")  # of a longer text: some batches of windows in an evaluation
A_BATCH = "minigpt.training.loop", "next_token_loss"  # once in a step, and in each batch of an evaluation


@pytest.mark.parametrize(("every", "stops", "nth"), [(4, 4, 6), (100, STEPS, STEPS + 2)], ids=["between", "the last"])
def test_an_evaluation_stops_at_its_next_batch_and_is_made_up_for(
    every: int, stops: int, nth: int, tmp_path: Path
) -> None:
    """The step is saved without a validation loss; the resumed run evaluates first, and then has every loss."""
    other, folder, options = furnished(tmp_path / "other"), tmp_path, (*LONG, f"training.eval_every={every}")
    (other / "text.txt").write_text(small_text(2000), encoding="utf-8")
    shutil.copytree(other, folder, dirs_exist_ok=True)
    assert train(other, *options).code == 0
    signum, code = SIGNALS[stops == STEPS]
    act = f"os.kill(os.getpid(), {int(signum)})"
    stopped = train_until(folder, act, *A_BATCH, nth, *options)
    assert stopped.code == code and stopped.err.count("\n") == 1, stopped
    assert [line["step"] for line in metrics(folder)] == list(range(1, stops + 1))
    assert newest(folder).state["step"] == stops and newest(folder).state["evaluations"] == []
    assert not any("val/loss" in line for line in metrics(folder))

    again = resume(folder, *happening(folder, act, *A_BATCH, 2))  # stopped there once more
    assert again.code == code and len(metrics(folder)) == newest(folder).state["step"] == stops, again

    assert resume(folder).code == 0
    assert metrics(folder) == metrics(other) and "val/loss" in metrics(folder)[stops - 1]
    ours, theirs = newest(folder), newest(other)
    assert same(ours, theirs) or stops == STEPS  # the last checkpoint has been there before the evaluation
    assert all(torch.equal(ours.model[key], theirs.model[key]) for key in theirs.model)


CHECKPOINT = "minigpt.training.checkpoint"


@pytest.mark.parametrize(
    ("owner", "name", "nth"), [(*STEP, 3), (CHECKPOINT, "write_tensors", 4), (CHECKPOINT, "sync", 9)]
)
def test_a_second_one_stops_at_once_and_leaves_the_last_checkpoint_whole(
    owner: str, name: str, nth: int, straight: Path, tmp_path: Path
) -> None:
    furnished(tmp_path)
    twice = f"os.kill(os.getpid(), {int(signal.SIGINT)}); os.kill(os.getpid(), {int(signal.SIGTERM)}); signal.pause()"
    stopped = train_until(tmp_path, twice, owner, name, nth, "training.checkpoint_every=2")
    said = "stopped at once by SIGTERM; the steps after the last checkpoint are lost\n"
    assert (stopped.code, stopped.err) == (143, said)
    assert newest(tmp_path).state["step"] == 2
    assert resume(tmp_path, "training.checkpoint_every=4").code == 0
    assert equal(tmp_path, straight)


def test_a_second_one_ends_a_call_of_a_library_too(straight: Path, tmp_path: Path) -> None:
    """Python runs no handler before the call returns; the first signal is answered by a line."""
    plugin = happening(furnished(tmp_path), DEAF, *STEP, 7)
    with started("train.py", "--config", "small.yaml", *plugin, cwd=tmp_path, quiet=0.2) as running:
        assert running.stderr
        wait_until((tmp_path / "deaf").exists, running)
        for signum, said in (
            (signal.SIGINT, "SIGINT: the step is finished and saved first; a second Ctrl-C or SIGTERM ends it at once"),
            (signal.SIGINT, "stopped at once by SIGINT; the steps after the last checkpoint are lost"),
        ):
            running.send_signal(signum)
            assert any(line == f"{said}\n" for line in running.stderr)
        assert running.wait() == 130
    assert newest(tmp_path).state["step"] == 4
    assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)


def test_ctrl_c_that_ends_the_compiler_too(tmp_path: Path) -> None:
    """In a terminal it reaches g++, which torch.compile started, and the step cannot be finished."""
    act = "os.kill(os.getpid(), signal.SIGINT); raise RuntimeError('C++ compile error')"
    ended = train_until(furnished(tmp_path), act, *PHASES["a step"][:2], 1, "training.compile=true")
    assert (ended.code, ended.err) == (130, "stopped\n")


def test_a_second_sighup_does_not_hurry(tmp_path: Path) -> None:
    """A terminal that closes may send several, the shell's and the system's."""
    furnished(tmp_path)
    twice = "os.kill(os.getpid(), signal.SIGHUP); os.kill(os.getpid(), signal.SIGHUP)"
    stopped = train_until(tmp_path, twice, *PHASES["a step"][:3])
    again = "python scripts/train.py --resume runs/small"
    assert (stopped.code, stopped.err) == (129, f"stopped by SIGHUP; a checkpoint is written: {again}\n")
    assert newest(tmp_path).state["step"] == 3


def test_a_signal_after_the_last_step(straight: Path, tmp_path: Path) -> None:
    """The run is done; what is left is a sample for the eye."""
    furnished(tmp_path)
    act = f"os.kill(os.getpid(), {int(signal.SIGINT)})"
    stopped = train_until(tmp_path, act, "minigpt.training.run.Run", "stream", STEPS // 6)
    one_line(stopped, 130)
    assert equal(tmp_path, straight)
