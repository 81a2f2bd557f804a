"""Several processes under torchrun, with gloo: they learn the same as one process, and stop together."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import TRAIN, ranks, torchrun
from running import environment, script, small_text, started, wait_until
from stopping import STEP, STEPS, furnished, happening, leftovers, metrics, newest, resume

from minigpt.training import distributed
from minigpt.training.loop import choose_device

ROUNDING = 2e-5  # float32: gradients are added in another order; losses here are about 3
EXACT = """
import torch, torch.nn.functional as F, minigpt.training.optimizer, minigpt.training.loop

def loss(logits, targets, reduction="mean"):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction)

def orthogonal(matrices, plain=minigpt.training.optimizer.orthogonal):
    return plain(matrices, torch.float64)

torch.set_default_dtype(torch.float64)
minigpt.training.loop.next_token_loss, minigpt.training.optimizer.orthogonal = loss, orthogonal
"""

ALONE = """
import os, minigpt.training.distributed

os.environ.update(WORLD_SIZE="2", RANK="{rank}", LOCAL_RANK="{rank}", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
minigpt.training.distributed.TIMEOUT = {patience}
"""

SLOW = """
import time, minigpt.training.loop

def slow(*arguments, plain=minigpt.training.loop.accumulate):
    time.sleep(1)
    return plain(*arguments)

minigpt.training.loop.accumulate = slow
"""

THREADS = r"""
import atexit, os

def tell():
    names = (open(f"/proc/self/task/{i}/comm").read().strip() for i in os.listdir("/proc/self/task"))
    os.write(1, f"\nthreads: {' '.join(names)}\n".encode())  # at once, since the other one writes as well

atexit.register(tell)
"""


CONFIG = "--config", "small.yaml"


def only(act: str, rank: int = 1) -> str:
    """What happens to the second process alone, or to the first."""
    return f"if os.environ.get('RANK') == '{rank}': {act}"


def agree(folder: Path, other: Path, rounding: float = ROUNDING) -> None:
    """The same steps once each, and the same losses but for rounding."""
    mine, theirs = metrics(folder), metrics(other)
    assert [line["step"] for line in mine] == list(range(1, STEPS + 1)) == [line["step"] for line in theirs]
    for line, same in zip(mine, theirs):
        assert line.keys() == same.keys() and line["tokens"] == same["tokens"] and line["lr"] == same["lr"]
        for key in ("train/loss", "val/loss", "grad_norm"):
            assert line.get(key, 0) == pytest.approx(same.get(key, 0), rel=rounding)


@pytest.mark.slow
def test_two_learn_what_one_would(straight: Path, tmp_path: Path) -> None:
    """Under torchrun. A thread of the group that outlived Python would abort the process, one time in ten."""
    (furnished(tmp_path) / "threads.py").write_text(THREADS, encoding="utf-8")
    ended = torchrun(tmp_path, "--config", "small.yaml", "--plugin", "threads.py")
    assert ended.code == 0, ended.err
    assert ended.out.count("done: ") == 1 and ended.out.count("run: ") == 1  # one speaks for both
    assert ended.out.count("\nthreads:") == 2 and "gloo" not in ended.out
    agree(tmp_path, straight)
    assert newest(tmp_path).state["step"] == STEPS and leftovers(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "attention"), [("adamw", "multi_head"), ("muon", "multi_head"), ("adamw", "indexer")]
)
def test_every_sum_is_right(optimizer: str, attention: str, tmp_path: Path) -> None:
    """In float64 nothing differs in 12 decimals. Muon's own bfloat16 is coarse: there rounding grows, to a percent.

    An indexer learns from a loss of its own, which is a mean over the rows of all processes too.
    """
    one, two = furnished(tmp_path / "one"), furnished(tmp_path / "two")
    for folder in (one, two):
        (folder / "exact.py").write_text(EXACT, encoding="utf-8")
    arguments = "--config", "small.yaml", "--plugin", "exact.py", f"training.optimizer={optimizer}"
    arguments = *arguments, f"model.attention={attention}"
    assert script("train.py", *arguments, cwd=one).code == 0
    assert ranks("train.py", *arguments, cwd=two).code == 0
    agree(two, one, 1e-12)


@pytest.mark.slow
def test_two_then_one_then_two(straight: Path, tmp_path: Path) -> None:
    furnished(tmp_path)
    signalled = happening(tmp_path, only(f"os.kill(os.getpid(), {int(signal.SIGTERM)})"), *STEP, 3)
    assert ranks("train.py", *CONFIG, *signalled, cwd=tmp_path).code != 0
    assert newest(tmp_path).state["step"] == 3
    assert resume(tmp_path, "training.max_steps=7").code == 0
    assert ranks("train.py", "--resume", "small", f"training.max_steps={STEPS}", cwd=tmp_path).code == 0
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "parallel"), [(signal.SIGTERM, "ddp"), (signal.SIGINT, "ddp"), (signal.SIGINT, "fsdp")]
)
def test_a_signal_to_one_of_them_stops_both_at_one_step(
    signum: int, parallel: str, straight: Path, tmp_path: Path
) -> None:
    furnished(tmp_path)
    signalled = happening(tmp_path, only(f"os.kill(os.getpid(), {int(signum)})"), *STEP, 6)
    ended = ranks("train.py", *CONFIG, *signalled, f"training.parallel={parallel}", cwd=tmp_path)
    assert ended.code != 0 and "a checkpoint is written" in ended.err
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert newest(tmp_path).state["step"] == 6 and leftovers(tmp_path) == []
    assert ranks("train.py", "--resume", "small", cwd=tmp_path).code == 0
    agree(tmp_path, straight)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_within_an_evaluation(rank: int, tmp_path: Path) -> None:
    """Both leave it, though one has a signal; so they do when they make up for it; in the end no loss is missing."""
    folder, other = furnished(tmp_path / "two"), furnished(tmp_path / "one")
    for each in (folder, other):
        (each / "text.txt").write_text(small_text(2000), encoding="utf-8")
    options = "--config", "small.yaml", "data.validation=0.5", "training.sample_every=0"
    for arguments, nth in ((options, 6), (("--resume", "small"), 2)):  # one loss in a step, then one in each batch
        act = only(f"os.kill(os.getpid(), {int(signal.SIGTERM)})", rank)
        signalled = happening(folder, act, "minigpt.training.loop", "next_token_loss", nth)
        ended = ranks("train.py", *arguments, *signalled, cwd=folder)
        assert ended.code != 0 and ended.err.count("stopped by SIGTERM; a checkpoint is written") == 2, ended.err
        again = "a checkpoint is written: torchrun --nproc-per-node 2 scripts/train.py --resume runs/small"
        assert ended.err.count(again) == 2, ended.err
        assert [line["step"] for line in metrics(folder)] == [1, 2, 3, 4] and "val/loss" not in metrics(folder)[3]
        assert newest(folder).state["evaluations"] == [] and newest(folder).state["step"] == 4
    assert ranks("train.py", "--resume", "small", cwd=folder).code == 0
    assert script("train.py", *options, cwd=other).code == 0
    agree(folder, other)
    assert [evaluation[0] for evaluation in newest(folder).state["evaluations"]] == [4, 8, 12]


@contextmanager
def under_way(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """torchrun, with two processes that have done two of many steps.

    A step takes its time here, so that a signal which is passed on arrives before the step is done.
    """
    furnished(folder)
    (folder / "slow.py").write_text(SLOW, encoding="utf-8")
    many = "training.max_steps=100000", "training.checkpoint_every=100000"
    command = [*TRAIN, "--config", "small.yaml", "--plugin", "slow.py", *many]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command, cwd=folder, env=environment(), start_new_session=True, text=True, **pipes
    ) as started:  # type: ignore[call-overload]
        log = folder / "runs" / "small" / "metrics.jsonl"
        wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 2, started)
        yield started


SLOW_DISK = """
import time, minigpt.training.checkpoint

def slow(*arguments, plain=minigpt.training.checkpoint.write_tensors):
    time.sleep(2)
    return plain(*arguments)

minigpt.training.checkpoint.write_tensors = slow
"""


@pytest.mark.slow
def test_the_others_wait_until_the_checkpoint_is_written(tmp_path: Path) -> None:
    """As torchrun does, `ranks` ends all when one has ended, and a second signal is the end at once."""
    act = only(f"os.kill(os.getpid(), {int(signal.SIGTERM)})", 0)
    signalled = happening(furnished(tmp_path), act, *STEP, 6)
    (tmp_path / "slow.py").write_text(SLOW_DISK, encoding="utf-8")
    arguments = *CONFIG, *signalled, "--plugin", "slow.py", "training.checkpoint_every=100"
    ended = ranks("train.py", *arguments, cwd=tmp_path)
    assert "a checkpoint is written" in ended.err
    assert newest(tmp_path).state["step"] == 6 and leftovers(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "to_all"),
    [pytest.param(signal.SIGINT, True, id="INT to all"), pytest.param(signal.SIGTERM, False, id="TERM to torchrun")],
)
def test_a_signal_from_outside(signum: int, to_all: bool, tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches torchrun's group, `kill` torchrun alone; it passes the signal on."""
    with under_way(tmp_path) as started:
        if to_all:
            os.killpg(started.pid, signum)
        else:
            started.send_signal(signum)
        _, err = started.communicate(timeout=40)
    assert started.returncode != 0 and "a checkpoint is written" in err
    assert newest(tmp_path).state["step"] == len(metrics(tmp_path)) >= 2
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_without_torchrun_they_save_and_leave(tmp_path: Path) -> None:
    """Nobody would ever end them. The pipe of their messages is at its end when both are gone."""
    with under_way(tmp_path) as started:
        started.kill()
        _, err = started.communicate(timeout=40)
    assert err.count("stopped by SIGHUP; a checkpoint is written") == 2, err
    assert newest(tmp_path).state["step"] == len(metrics(tmp_path)) >= 2
    assert leftovers(tmp_path) == []


KILLED = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("act", ["raise OSError('the cable was pulled')", KILLED])
def test_a_crash_of_one_stops_both_within_seconds(act: str, parallel: str, straight: Path, tmp_path: Path) -> None:
    """Within a step: torch waits for the other in the backward pass, with fsdp in the forward pass too."""
    furnished(tmp_path)
    happens = happening(tmp_path, only(act), "minigpt.training.loop", "next_token_loss", 7)  # after sums of the targets
    arguments = *CONFIG, *happens, f"training.parallel={parallel}"
    real = parallel == "ddp" and act == KILLED
    ended = torchrun(tmp_path, *arguments) if real else ranks("train.py", *arguments, cwd=tmp_path)
    assert ended.code != 0 and ended.seconds < 60
    told = "another of the 2 processes has ended" in ended.err and "--resume" in ended.err
    ended_first = "raise" in act and "stopped" in ended.err.splitlines()  # on a busy machine, by who started it
    assert told or ended_first, ended.err
    assert "this is a bug" not in ended.err
    if "raise" in act:
        assert re.search(r"input/output error: .*the cable was pulled", ended.err), ended.err
    assert newest(tmp_path).state["step"] in (4, 5) and leftovers(tmp_path) == []
    assert ranks("train.py", "--resume", "small", cwd=tmp_path).code == 0
    agree(tmp_path, straight)


def a_process_alone(folder: Path, rank: int, patience: float) -> tuple[str, ...]:
    """The arguments for one of two processes, whose other never comes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = ALONE.format(rank=rank, port=port, patience=patience)
    (furnished(folder) / "alone.py").write_text(text, encoding="utf-8")
    return "--config", "small.yaml", "--plugin", "alone.py"


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_waits_in_vain_gives_up(rank: int, tmp_path: Path) -> None:
    ended = script("train.py", *a_process_alone(tmp_path, rank, 0.2), cwd=tmp_path)
    assert ended.code == 5 and "the other 1 of 2 processes did not come within 0 s" in ended.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_process_that_waits_can_be_stopped(signum: int, code: int, tmp_path: Path) -> None:
    with started("train.py", *a_process_alone(tmp_path, 0, 600), cwd=tmp_path, quiet=0.2) as waiting:
        assert waiting.stderr and "process 0 waits" in waiting.stderr.readline()
        waiting.send_signal(signum)
        assert (waiting.rest().splitlines()[-1], waiting.wait()) == ("stopped", code)


# ---- GPUs, which are imitated as far as torch is asked for them ----

GPUS = """
import os, torch

counts = {counts}
count = counts[int(os.environ["RANK"])]
torch.cuda.is_available = lambda: count > 0
torch.cuda.device_count = lambda: count
torch.cuda.set_device = lambda device: None
"""


def refused(folder: Path, counts: list[int], word: str = "auto") -> list[str]:
    """What two processes say that see so many GPUs each; none has done anything."""
    (furnished(folder) / "gpus.py").write_text(GPUS.format(counts=counts), encoding="utf-8")
    ended = ranks("train.py", *CONFIG, "--plugin", "gpus.py", f"training.device={word}", cwd=folder)
    assert ended.code == 2 and "model:" not in ended.out and not (folder / "runs").exists(), ended
    return ended.err.splitlines()


def test_more_processes_than_gpus_are_refused_in_one_line(tmp_path: Path) -> None:
    line = "error: training.device: 2 processes on this machine, and 1 GPU: each process needs its own: use "
    assert refused(tmp_path, [1, 1]) == [line + "--nproc-per-node 1, or training.device=cpu"] * 2


@pytest.mark.parametrize(("counts", "word"), [([2, 0], "auto"), ([0, 2], "cuda")])
def test_a_gpu_and_a_cpu_are_not_mixed(counts: list[int], word: str, tmp_path: Path) -> None:
    """As where one process sees none: it would compute on its CPU, and the other would wait for it in every step."""
    line = "error: training.device: 1 of 2 processes compute on a GPU, the others on a CPU; this one on {}: "
    hint = "let every process see its GPU, or use training.device=cpu in all of them"
    devices = ["cuda" if count else "cpu" for count in counts]
    assert sorted(refused(tmp_path, counts, word)) == sorted(line.format(device) + hint for device in devices)


def test_a_process_takes_the_gpu_of_its_number_before_it_meets_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL and the model would otherwise take the first GPU, in all processes."""
    variables = {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "MASTER_PORT": 1}
    for name, value in (variables | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, str(value))
    done = list[Any]()

    def store_of(device: str) -> Any:
        store = dist.HashStore()
        for rank in range(8):
            store.set(f"device of {rank}", device)
        return iter([(store, 5, 8)])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    monkeypatch.setattr(distributed, "rendezvous", lambda method: store_of("cuda"))
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: done.append((backend, options)))
    monkeypatch.setattr(distributed.atexit, "register", lambda function: None)
    distributed.start("auto")
    backend, options = done.pop()
    assert done == [1] and backend == "cpu:gloo,cuda:nccl"
    assert (options["rank"], options["world_size"], options["device_id"]) == (5, 8, torch.device("cuda", 1))
    monkeypatch.setattr(distributed, "world", lambda: 8)
    assert choose_device("auto") == torch.device("cuda", 1)
    monkeypatch.setattr(distributed, "rendezvous", lambda method: store_of("cpu"))
    distributed.start("cpu")  # a GPU that is not asked for is left alone
    backend, options = done.pop()
    assert done == [1] and backend == "gloo" and options["device_id"] is None
