"""One process at a time in a run's folder: a second one is told which process has it; a crash leaves no lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hub_folders import save
from running import Started, environment, one_line, script, started, wait_until
from stopping import equal, furnished, happening, metrics, resume, train

from minigpt.system import locks
from minigpt.system.locks import ENDED, HOLDER, LOCK, STOPPED, InUse, Lock, one_at_a_time

WAIT = "Path('waiting').touch(); signal.pause()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Started]:
    """A training that has done six steps and now waits, in the folder of the test."""
    plugin = happening(furnished(tmp_path), WAIT, "minigpt.training.loop", "accumulate", 7)
    with started("train.py", "--config", "small.yaml", *plugin, cwd=tmp_path) as running:
        wait_until((tmp_path / "waiting").exists, running)
        yield running


def test_the_second_is_told_who_holds_it_and_may_have_it_after_a_crash(
    holder: Started, straight: Path, tmp_path: Path
) -> None:
    before = sorted(path.name for path in (tmp_path / "runs" / "small").rglob("*"))
    second = resume(tmp_path)
    one_line(second, 2, f"runs/small is in use by process {holder.pid} on {os.uname().nodename}")
    assert sorted(path.name for path in (tmp_path / "runs" / "small").rglob("*")) == before

    sampled = script("sample.py", "--run", "small", "--max-tokens", 5, cwd=tmp_path)  # to read needs no lock
    assert sampled.code == 0 and sampled.err == ""
    assert train(tmp_path).code == 0 and (tmp_path / "runs" / "small-2").is_dir()  # another run takes another folder

    holder.kill()
    holder.wait()
    assert json.loads((tmp_path / "runs" / "small" / ".holder").read_text("utf-8"))["pid"] == holder.pid
    assert resume(tmp_path).code == 0
    assert equal(tmp_path, straight)


def test_a_removed_lock_file_lets_nobody_in(holder: Started, tmp_path: Path) -> None:
    """The folder itself is locked as well; without `.holder` the second is not told by whom."""
    (tmp_path / "runs" / "small" / ".lock").unlink()
    (tmp_path / "runs" / "small" / ".holder").unlink()
    before = metrics(tmp_path)
    for _ in range(2):
        second = resume(tmp_path)
        one_line(second, 2, "runs/small is in use by another process: two runs cannot share a folder")
    assert metrics(tmp_path) == before


@pytest.mark.parametrize(
    "left", ["", "{", '{"pid": "1; rm -rf", "host": []}', "[" * 100_000, '{"pid": 1, "host": "another"}']
)
def test_what_a_lock_file_says_stops_nobody(left: str, tmp_path: Path) -> None:
    """The system holds the lock; the file only says who."""
    for name in (LOCK, HOLDER):
        (tmp_path / name).write_text(left, encoding="utf-8")
    with Lock(tmp_path):
        pass


def test_all_that_start_together_under_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    """Two trainings, a notebook's and an import: none notices the others, and each has the numbers of one alone."""
    furnished(tmp_path)
    save(tmp_path / "model", "llama")
    cell = "import minigpt; minigpt.train('small.yaml', name='same', plugins=['cell.py'])"
    (tmp_path / "cell.py").write_text("", encoding="utf-8")
    (tmp_path / "notebook.py").write_text(cell, encoding="utf-8")
    train = ("train.py", "--config", "small.yaml", "--name", "same")
    every = [train, train, ("import_hf.py", "model", "--name", "same"), (tmp_path / "notebook.py",)]
    with ExitStack() as stack:
        under_way = [stack.enter_context(started(*each, cwd=tmp_path)) for each in every]
        assert [(each.rest(), each.wait()) for each in under_way] == [("", 0)] * 4
    runs = tmp_path / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["same", "same-2", "same-3", "same-4"]
    ended = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in runs.iterdir()]
    assert sorted(ended) == [["step-000000"], *[["step-000008", "step-000012"]] * 3]


FORKING = """
import os, signal, time
def fork():
    if not os.fork():
        Path("child").write_text(str(os.getpid()))
        time.sleep(100)
        os._exit(0)
fork()
while not Path("child").exists() or not Path("child").read_text():
    time.sleep(0.01)
Path("waiting").touch()
signal.pause()
"""


@contextmanager
def forking(folder: Path, owner: str, name: str, nth: int) -> Iterator[Started]:
    """A training that forks a process, as libraries do, and waits; that process outlives it."""
    plugin = happening(furnished(folder), f"exec({FORKING!r}, {{'Path': Path}})", owner, name, nth)
    words = ("train.py", "--config", "small.yaml", *plugin)
    with started(*words, cwd=folder, MINIGPT_DATA=str(folder / "data")) as running:
        wait_until((folder / "waiting").exists, running)
        yield running
        os.kill(int((folder / "child").read_text()), signal.SIGKILL)


def test_a_lock_ends_with_its_process_though_one_that_it_has_forked_goes_on(tmp_path: Path) -> None:
    with forking(tmp_path, "minigpt.training.loop", "accumulate", 7) as running:
        assert resume(tmp_path).code == 2
        running.kill()
        running.wait()
        assert resume(tmp_path).code == 0


def test_nobody_waits_for_ids_of_a_process_that_was_killed(tmp_path: Path) -> None:
    with forking(tmp_path, "minigpt.text.ids", "write_shards", 1) as running:
        (lock,) = (tmp_path / "data" / "cache").glob("*.lock")
        who = locks.holder(lock.with_name(lock.name + HOLDER))
        assert str(who) == f"process {running.pid} on {os.uname().nodename}"
        running.kill()
        running.wait()
        command = ("train.py", "--config", "small.yaml")
        assert script(*command, cwd=tmp_path, MINIGPT_DATA=str(tmp_path / "data")).code == 0


# Holds a lock until its input ends, and shows ten times a second that it lives.
HOLDING = """
import sys
from pathlib import Path
from minigpt.system import locks
locks.PULSE = 0.1
with locks.one_at_a_time(Path(sys.argv[1]), "works"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the lock `work.lock`; one that shows for half a second no sign of life is not waited for."""
    monkeypatch.setattr(locks, "SILENCE", 0.5)
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "work.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_a_process_that_lives_is_waited_for(other: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert other.stdin
    tries = 0

    class Patient(Exception):
        pass

    def sleep(seconds: float) -> None:
        nonlocal tries
        tries += 1
        plain(seconds)
        if tries == 8:  # longer than for one that is silent
            other.stdin.close()  # type: ignore[union-attr]

    plain, locks.time.sleep = locks.time.sleep, sleep
    try:
        with one_at_a_time(tmp_path / "work.lock", "works"):
            assert tries >= 8 and other.wait() == 0
    finally:
        locks.time.sleep = plain
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_stopped_is_named_and_not_waited_for(
    other: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("minigpt.system.waiting.QUIET_SECONDS", 0.0)
    other.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, other.pid, os.WSTOPPED)
    who = f"process {other.pid} on {os.uname().nodename} ({STOPPED})"
    with pytest.raises(InUse) as found, one_at_a_time(tmp_path / "work.lock", "works"):
        pass
    hint = f"end it, or, if it has ended, remove {tmp_path / 'work.lock'}; and start again"
    assert str(found.value) == f"{who} works, and has given no sign of life for 0.5 s: {hint}"
    assert f"waiting, {who} works: 0 s\n" in capsys.readouterr().err
    other.kill()  # one that is killed, stopped or not, has no lock
    with one_at_a_time(tmp_path / "work.lock", "works"):
        pass


def test_the_state_of_a_holder(tmp_path: Path) -> None:
    """Its number may have been used again, and a number of another machine says nothing here."""
    with Lock(tmp_path):
        said = json.loads((tmp_path / HOLDER).read_text("utf-8"))
        assert locks.holder(tmp_path / HOLDER).state == ""
        assert (tmp_path / HOLDER).exists()
    assert not (tmp_path / HOLDER).exists()  # whoever has let it go is named no longer

    def state(**other: Any) -> str:
        (tmp_path / HOLDER).write_text(json.dumps(said | other), encoding="utf-8")
        return locks.holder(tmp_path / HOLDER).state

    assert state() == "" and state(began=said["began"] - 1) == ENDED and state(machine="another") == ""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    assert gone.wait() == 0 and state(pid=gone.pid) == ENDED and state(pid=2**40) == ENDED


def without_locks(monkeypatch: pytest.MonkeyPatch, code: int, folders_only: bool) -> None:
    """File systems of a network have no locks, or only those of files that are open to be written."""
    plain = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if not folders_only or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_RDWR:
            raise OSError(code, os.strerror(code))
        plain(descriptor, operation)

    monkeypatch.setattr(locks.fcntl, "flock", flock)


@pytest.mark.parametrize(("code", "folders_only"), [(errno.EBADF, True), (errno.ENOLCK, False), (errno.ENOSYS, False)])
def test_a_file_system_of_a_network(
    code: int, folders_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch, code, folders_only)
    with Lock(tmp_path):
        with pytest.raises(InUse, match=rf"in use by process {os.getpid()} on "):
            Lock(tmp_path)
        said = json.loads((tmp_path / HOLDER).read_text("utf-8"))
    for other, has_ended in (({"began": 1}, True), ({"machine": "another", "host": "node7"}, folders_only)):
        (tmp_path / HOLDER).write_text(json.dumps(said | other), encoding="utf-8")
        if has_ended:  # killed; or the lock itself says that nobody has it
            with Lock(tmp_path), one_at_a_time(tmp_path / "work.lock", "works"):
                pass
            continue
        with pytest.raises(InUse, match=r"on node7 \(if it has ended, remove .*/\.holder: this disk has no locks\)"):
            Lock(tmp_path)
        (tmp_path / HOLDER).unlink()
        with Lock(tmp_path):
            pass


def test_who_comes_while_a_holder_writes_down_with_whom_it_shares_waits_for_it(tmp_path: Path) -> None:
    for number in range(10):
        (folder := tmp_path / str(number)).mkdir()
        together, had = threading.Barrier(8), list[Lock]()

        def take(folder: Path = folder, together: threading.Barrier = together, had: list[Lock] = had) -> None:
            together.wait()
            had.append(Lock(folder, together="the same runs"))

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(had) == 8  # a thread that is refused raises InUse, which fails the test as well
        for lock in had:
            lock.claim.release()
