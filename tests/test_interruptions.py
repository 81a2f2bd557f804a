"""What stops a command (signals, a crash, a closed pipe, a full disk), and its output on terminals of all kinds."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
from pathlib import Path

import pytest
from faults.stopping import same
from running import CONFIG, WAITING, furnish, process, script, started, wait_until

from minigpt import command
from minigpt.training import checkpoint
from minigpt.training.checkpoint import Checkpoint
from minigpt.training.report import read_metrics

STEPS = 40
LONG = CONFIG.replace("max_steps: 8, eval_every: 4", f"max_steps: {STEPS}, eval_every: 20").replace(
    "checkpoint_every: 4", "checkpoint_every: 10"
)
LONG = LONG.replace("n_embd: 16", "n_embd: 16, dropout: 0.2")

PAUSING = """
import time, minigpt.training.loop

def pausing(*arguments, plain=minigpt.training.loop.accumulate):
    time.sleep(0.02)  # most steps are left when the signal comes
    return plain(*arguments)

minigpt.training.loop.accumulate = pausing
"""


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in read_metrics(folder / "metrics.jsonl")]


def last_checkpoint(folder: Path) -> Checkpoint:
    return checkpoint.newest(folder / "checkpoints")[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `straight` that was never stopped."""
    folder = furnish(tmp_path_factory.mktemp("home"), LONG)
    assert script("train.py", "--config", "small.yaml", "--name", "straight", cwd=folder).code == 0
    return folder


# ---- signals ----


@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGINT, 130),
        *(pytest.param(*end, marks=pytest.mark.slow) for end in ((signal.SIGTERM, 143), (signal.SIGKILL, -9))),
    ],
    ids=["INT", "TERM", "KILL"],
)
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(home: Path, signum: int, code: int) -> None:
    run = home / "runs" / f"stopped-{code}"
    (home / "pausing.py").write_text(PAUSING, encoding="utf-8")
    words = "--config", "small.yaml", "--name", run.name, "--plugin", "pausing.py"
    with started("train.py", *words, cwd=home) as training:
        wait_until(lambda: (run / "metrics.jsonl").exists() and len(steps(run)) > 12, training)
        training.send_signal(signum)
        err = training.rest()
    assert training.wait() == code
    done = steps(run)
    assert 12 < len(done) < STEPS  # or there was nothing to resume
    if code > 0:
        line = WAITING.sub("", err)
        assert line.startswith(f"stopped by {signal.Signals(signum).name}; a checkpoint is written: ")
        assert line.count("\n") == 1
        assert last_checkpoint(run).state["step"] == done[-1]
    resumed = script("train.py", "--resume", run.name, cwd=home)
    assert (resumed.code, resumed.err) == (0, "")
    assert code == -9 or f"resumed after step {done[-1]}" in resumed.out
    assert steps(run) == list(range(1, STEPS + 1))
    straight = home / "runs" / "straight"
    for line, other in zip(*(read_metrics(folder / "metrics.jsonl") for folder in (run, straight)), strict=True):
        assert all(line.get(key) == other.get(key) for key in ("step", "train/loss", "val/loss", "lr", "tokens"))
    assert same(last_checkpoint(run), last_checkpoint(straight))


# ---- pipes and full disks ----


def test_a_sample_is_streamed_and_a_reader_that_leaves_ends_it_quietly(home: Path) -> None:
    arguments = ("--run", "straight", "--prompt", "the", "--max-tokens", 10**6)
    with started("sample.py", *arguments, cwd=home, stdout=True) as sampling:
        assert sampling.stdout
        pieces = [os.read(sampling.stdout.fileno(), 1 << 16) for _ in range(4)]
        assert pieces[0].startswith(b"the") and all(0 < len(piece) < 1000 for piece in pieces)
        assert sampling.poll() is None  # a million tokens are not made yet
        sampling.stdout.close()
        assert (sampling.rest(), sampling.wait()) == ("", 141)


def test_a_full_disk_is_one_line(home: Path) -> None:
    ended = script("sample.py", "--run", "straight", cwd=home, full=("out",))
    assert (ended.code, ended.err) == (5, "input/output error: [Errno 28] No space left on device\n")


# ---- terminals ----


@pytest.fixture(scope="module")
def accents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose text has letters that ASCII lacks, with a run that writes almost nothing else."""
    folder = furnish(tmp_path_factory.mktemp("accents"), CONFIG.replace("sample_every: 0", "sample_every: 4"))
    (folder / "text.txt").write_text("éü☃" * 100, encoding="utf-8")
    ended = script("train.py", "--config", "small.yaml", cwd=folder, encoding="ascii")
    assert (ended.code, ended.err) == (0, "")
    assert "sample at step 4" in ended.out and r"\xe9" in ended.out
    return folder


@pytest.mark.parametrize("by_hand", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["forked", "by hand"])
def test_a_terminal_without_the_letters_gets_their_numbers(accents: Path, by_hand: bool) -> None:
    sample = "sample.py", "--prompt", "éü"
    if by_hand:
        ended = process(*sample, cwd=accents, LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii")
    else:
        ended = script(*sample, cwd=accents, encoding="ascii")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(r"\xe9\xfc") and r"\u2603" in ended.out
    text = script("sample.py", "--prompt", "éü", cwd=accents).out
    assert ended.out == text.encode("ascii", "backslashreplace").decode("ascii")
    shown = script("show_attention.py", "--prompt", "é☃", cwd=accents, encoding="ascii")
    assert (shown.code, shown.err) == (0, "")
    assert r"\u2603 |" in shown.out


def test_a_pipe_gets_plain_lines(home: Path) -> None:
    out = script("train.py", "--config", "small.yaml", "--name", "plain", "training.max_steps=60", cwd=home).out
    assert "\r" not in out and "\x1b" not in out and "%|" not in out
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert lines[0].startswith("step  1/60  loss ") and lines[-2].startswith("step 60/60  loss ")
    assert all(word in lines[0] for word in ("loss ", "lr ", "tokens/s", "s left"))
    assert 20 <= len(lines) <= 25


def test_a_terminal_gets_a_progress_bar(home: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))  # rows and columns
    arguments = ("--config", "small.yaml", "--name", "bar", "training.max_steps=60")
    with started("train.py", *arguments, cwd=home, terminal=slave) as training:
        os.close(slave)
        out = b""
        try:
            while piece := os.read(master, 1 << 16):
                out += piece
        except OSError:  # how Linux says that the other side is closed
            pass
        assert training.wait() == 0
    os.close(master)
    text = out.decode("utf-8")
    assert "training:   0%|" in text and "training: 100%|" in text and "60/60" in text
    assert "step  1/60" not in text  # the bar is enough
    assert "validation loss" in text and "verdict: " in text


@pytest.mark.parametrize(
    ("world", "here", "program"),
    [
        (None, None, "python"),
        (2, 2, "torchrun --nproc-per-node 2"),
        (8, 4, "torchrun --nnodes 2 --nproc-per-node 4"),
        (8, None, "torchrun --nproc-per-node 8"),
    ],
)
def test_the_line_that_goes_on_has_as_many_machines(
    world: int | None, here: int | None, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"RANK": 0, "LOCAL_RANK": 0, "MASTER_ADDR": "here", "MASTER_PORT": 29500} if world else {}
    for name, value in (given | {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": here}).items():
        if value is not None:
            monkeypatch.setenv(name, str(value))
    assert command.resuming(Path("runs/small")) == f"{program} scripts/train.py --resume runs/small"
