"""The output of a command: a terminal that closes, a reader that exits, a stream that is full or closed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from running import command_line, environment, script, started, wait_until
from stopping import PLUGIN, STEP, STEPS, equal, furnished, happening, metrics, newest, resume, train_until, whole_lines

LEFT = "reader, writer = os.pipe(); os.dup2(writer, 1); os.close(reader)"
FULL = "os.dup2(os.open('/dev/full', os.O_WRONLY), {})"
WAIT = """while not Path("closed").exists():
        Path("ready").touch()"""


def test_a_reader_that_leaves_stops_a_training_once_its_step_is_saved(straight: Path, tmp_path: Path) -> None:
    """As `| head` does."""
    stopped = train_until(furnished(tmp_path), LEFT, *STEP, 3)
    assert (stopped.code, stopped.err) == (141, "")
    assert newest(tmp_path).state["step"] == 3 == len(metrics(tmp_path))
    assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)


def test_a_full_stdout_is_reported_once_and_training_goes_on(straight: Path, tmp_path: Path) -> None:
    ended = train_until(furnished(tmp_path), FULL.format(1), *STEP, 3)
    warning = "warning: stdout: [Errno 28] No space left on device; nothing more is printed\n"
    assert (ended.code, ended.err) == (0, warning)
    assert equal(tmp_path, straight)


def test_streams_that_are_full_from_the_start(straight: Path, tmp_path: Path) -> None:
    assert script("train.py", "--config", "small.yaml", cwd=furnished(tmp_path), full=("out", "err")).code == 0
    assert equal(tmp_path, straight)


@pytest.mark.parametrize("word", ["none.yaml", "--nonsense"])
def test_a_mistake_has_its_exit_code_though_nobody_hears_of_it(word: str, tmp_path: Path) -> None:
    assert script("train.py", "--config", word, cwd=tmp_path, full=("err",)).code == 2


def test_streams_that_were_never_open(straight: Path, tmp_path: Path) -> None:
    """As by `<&- >&- 2>&-`. No file of the run gets the number of one, and with it what is printed."""
    plugin = happening(furnished(tmp_path), "os.write(1, b'noise'); os.write(2, b'noise')", *STEP, 3)
    command = command_line("train.py", "--config", "small.yaml", *plugin)
    shell = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(shell, cwd=tmp_path, env=environment(), timeout=120).returncode == 0
    assert equal(tmp_path, straight)
    files = [path for path in (tmp_path / "runs" / "small").rglob("*") if path.is_file() and path.name != plugin[1]]
    assert not [path for path in files if b"noise" in path.read_bytes()]
    assert whole_lines(tmp_path)


@pytest.mark.parametrize("nohup", [False, True], ids=["", "nohup"])
def test_a_terminal_that_closes(nohup: bool, straight: Path, tmp_path: Path) -> None:
    """The system sends SIGHUP, and nothing can be printed any more. Under nohup that is no reason to stop."""
    furnished(tmp_path)
    text = PLUGIN.format(act=WAIT, owner=STEP[0], name=STEP[1], nth=3)
    text = text.replace("signal.signal(signal.SIGHUP, signal.SIG_DFL)", "")
    (tmp_path / "waiting.py").write_text(text, "utf-8")
    words = ("--config", "small.yaml", "--plugin", "waiting.py")
    own = {"session": True, "ignored": [signal.SIGHUP] if nohup else []}
    master, slave = pty.openpty()
    with started("train.py", *words, cwd=tmp_path, terminal=slave, **own) as training:  # type: ignore[arg-type]
        os.close(slave)
        wait_until((tmp_path / "ready").exists, training)
        os.close(master)
        (tmp_path / "closed").touch()
        assert training.wait() == (0 if nohup else 129)
    assert newest(tmp_path).state["step"] == (STEPS if nohup else 3) == len(metrics(tmp_path))
    if not nohup:
        assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)


def test_samples_that_cannot_be_written(straight: Path, tmp_path: Path) -> None:
    ended = train_until(furnished(tmp_path), "os.mkdir('runs/small/samples.txt')", *STEP, 1)
    assert ended.code == 0 and ended.err == ""
    assert "warning: runs/small/samples.txt: " in ended.out and "sample at step 6:" in ended.out
    assert equal(tmp_path, straight)


def test_a_checkpoint_by_the_clock(straight: Path, tmp_path: Path) -> None:
    """Steps may be slow: what SIGKILL costs is counted in minutes as well, of which there are next to none here."""
    often = ("training.checkpoint_minutes=1e-9", "training.checkpoint_every=100")
    assert train_until(furnished(tmp_path), "os.kill(os.getpid(), 9)", *STEP, 8, *often).code == -9
    assert newest(tmp_path).state["step"] == 7
    assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)
