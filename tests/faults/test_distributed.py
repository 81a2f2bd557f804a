"""Several processes under torchrun, with gloo: they learn what one would, and stop as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import SCRIPTS, environment
from stopping import PLUGIN, STEPS, furnished, leftovers, metrics, newest, resume, train

ROUNDING = 2e-5  # float32: gradients are added in another order; losses here are about 3


SLOW = """
import time, minigpt.training

def slow(*arguments, plain=minigpt.training.accumulate):
    time.sleep(1)
    return plain(*arguments)

minigpt.training.accumulate = slow
"""

THREADS = """
import atexit, os

def tell():
    print("threads:", *(open(f"/proc/self/task/{i}/comm").read().strip() for i in os.listdir("/proc/self/task")))

atexit.register(tell)
"""


@dataclass(frozen=True)
class Together:
    """How `torchrun` ended, after how long, and what was said."""

    code: int
    out: str
    err: str
    seconds: float


LAUNCH = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    str(SCRIPTS / "train.py"),
]


def torchrun(folder: Path, *arguments: str) -> Together:
    """Two processes of `train.py`, to their end."""
    began = time.monotonic()
    command, env = [*LAUNCH, *arguments], environment()
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return Together(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)


def happening(folder: Path, act: str, owner: str, name: str, nth: int) -> tuple[str, ...]:
    """A plugin in which something happens to the second process."""
    only = f"if os.environ.get('RANK') == '1': {act}"
    text = PLUGIN.format(act=only, owner=owner, name=name, nth=nth)
    (folder / "happening.py").write_text(text, encoding="utf-8")
    return "--config", "small.yaml", "--plugin", "happening.py"


def agree(folder: Path, other: Path) -> None:
    """The same steps once each, and the same losses but for rounding."""
    mine, theirs = metrics(folder), metrics(other)
    assert [line["step"] for line in mine] == list(range(1, STEPS + 1)) == [line["step"] for line in theirs]
    for line, same in zip(mine, theirs):
        assert line.keys() == same.keys() and line["tokens"] == same["tokens"] and line["lr"] == same["lr"]
        for key in ("train/loss", "val/loss", "grad_norm"):
            assert line.get(key, 0) == pytest.approx(same.get(key, 0), rel=ROUNDING)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process."""
    folder = furnished(tmp_path_factory.mktemp("alone"))
    assert train(folder).code == 0
    return folder


@pytest.mark.slow
def test_two_learn_what_one_would(alone: Path, tmp_path: Path) -> None:
    ended = torchrun(furnished(tmp_path), "--config", "small.yaml")
    assert ended.code == 0, ended.err
    assert ended.out.count("done: ") == 1 and ended.out.count("run: ") == 1  # one speaks for both
    agree(tmp_path, alone)
    assert newest(tmp_path).state["step"] == STEPS and leftovers(tmp_path) == []


@pytest.mark.slow
def test_no_thread_of_the_group_outlives_python(tmp_path: Path) -> None:
    """One that did would abort the process at its end, one time in ten."""
    (furnished(tmp_path) / "threads.py").write_text(THREADS, encoding="utf-8")
    ended = torchrun(tmp_path, "--config", "small.yaml", "--plugin", "threads.py")
    assert ended.code == 0 and ended.out.count("threads:") == 2 and "gloo" not in ended.out


@pytest.mark.slow
def test_two_then_one_then_two(alone: Path, tmp_path: Path) -> None:
    furnished(tmp_path)
    signalled = happening(tmp_path, f"os.kill(os.getpid(), {int(signal.SIGTERM)})", "minigpt.training", "accumulate", 3)
    assert torchrun(tmp_path, *signalled).code != 0
    assert newest(tmp_path).state["step"] == 3
    assert resume(tmp_path, "training.max_steps=7").code == 0
    assert torchrun(tmp_path, "--resume", "small", f"training.max_steps={STEPS}").code == 0
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_of_them_stops_both_at_one_step(signum: int, alone: Path, tmp_path: Path) -> None:
    furnished(tmp_path)
    ended = torchrun(
        tmp_path, *happening(tmp_path, f"os.kill(os.getpid(), {int(signum)})", "minigpt.training", "accumulate", 6)
    )
    assert ended.code != 0 and "a checkpoint is written" in ended.err
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert newest(tmp_path).state["step"] == 6 and leftovers(tmp_path) == []
    assert torchrun(tmp_path, "--resume", "small").code == 0
    agree(tmp_path, alone)


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [True, False], ids=["to all", "to torchrun"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_from_outside(signum: int, to_all: bool, tmp_path: Path) -> None:
    """Ctrl-C in a terminal reaches all processes at once, `kill` the one that started them; it passes the signal on.

    A step takes its time here, so that the signal which is passed on arrives before the step is done.
    """
    furnished(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    command = [
        *LAUNCH,
        "--config",
        "small.yaml",
        "--plugin",
        "slow.py",
        "training.max_steps=100000",
        "training.checkpoint_every=100000",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, start_new_session=True
    ) as started:
        log, deadline = tmp_path / "runs" / "small" / "metrics.jsonl", time.monotonic() + 60
        while not log.exists() or log.read_bytes().count(b"\n") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if to_all:
            os.killpg(started.pid, signum)
        else:
            started.send_signal(signum)
        _, err = started.communicate(timeout=40)
    assert started.returncode != 0 and b"a checkpoint is written" in err
    assert newest(tmp_path).state["step"] == len(metrics(tmp_path)) >= 2
    assert leftovers(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "act", ["raise OSError('the cable was pulled')", f"os.kill(os.getpid(), {int(signal.SIGKILL)})"]
)
def test_a_crash_of_one_stops_both_within_seconds(act: str, alone: Path, tmp_path: Path) -> None:
    furnished(tmp_path)
    ended = torchrun(tmp_path, *happening(tmp_path, act, "minigpt.training", "accumulate", 6))
    assert ended.code != 0 and ended.seconds < 60
    if "raise" in act:
        assert "input/output error: the cable was pulled" in ended.err
    assert newest(tmp_path).state["step"] in (4, 5) and leftovers(tmp_path) == []
    assert torchrun(tmp_path, "--resume", "small").code == 0
    agree(tmp_path, alone)
