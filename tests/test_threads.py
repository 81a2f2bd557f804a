"""Threads: how many there are, and that they sleep while they wait if others need the CPUs; no result changes."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import Ended, forked, furnish, process, script

from minigpt.fast import threads

NOTE = "note: other programs use the CPUs too: 2 threads now sleep while they wait for one another"
BUSY = """\
import torch
from minigpt.fast import threads

torch.set_num_threads(2)  # as OMP_NUM_THREADS asks; a process that is forked has read it already
threads.queued_so_far = lambda: 0.9
"""
BOUND = """
import os, torch
from minigpt.fast import threads

torch.set_num_threads(2)
x = torch.randn(300, 301, 302)
where = lambda: {len(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}
before, free, one = x.sum((0, 1)), where(), threads.OneCpu()
one.bind(0.0)
print(free == {len(one.allowed)}, where() == {1}, one.look(1.0) in (True, False), torch.equal(x.sum((0, 1)), before))
threads.IDLE = -1.0  # any CPU is idle enough
one.bound and one.look(2.0)
print(where() == free, torch.equal(x.sum((0, 1)), before))
"""
SLICES = """
import ctypes, os, struct, time, torch
from minigpt.fast import threads

os.nice(3)
torch.set_num_threads(2)

def slices():  # (whether it is the first thread, its niceness, its slice) of each thread
    found = set()
    for task in os.listdir("/proc/self/task"):
        attributes = ctypes.create_string_buffer(48)
        if ctypes.CDLL(None).syscall(threads.GET, int(task), attributes, 48, 0):
            continue  # the thread has ended meanwhile
        _, _, _, nice, _, length, *_ = struct.unpack("IIQiIQQQ", attributes.raw)
        found.add((int(task) == os.getpid(), nice, length))
    return found

def come(expected):
    for _ in range(1000):
        if slices() == expected:
            return True
        time.sleep(0.02)
    return slices()

threads.EVERY, threads.WORKING, threads.queued, threads.queued_so_far = 0.01, 9.0, lambda: 1.0, lambda: 0.9
threads.share_cpus()  # which finds the CPUs shared
usual = max(slices())[2]
torch.ones(1 << 16) + 1  # torch starts its second thread
print(usual > threads.SLICE, come({(True, 3, usual), (False, 3, threads.SLICE)}))
threads.WORKING = -1.0  # from here on it sees that no thread queues
print(come({(True, 3, usual), (False, 3, usual)}))
"""
NOTEBOOK = """
import os, torch
import minigpt
from minigpt.fast import threads

del os.environ["OMP_NUM_THREADS"]
threads.cpus = lambda: 1
torch.set_num_threads(3)
minigpt.load("runs/small")
print(torch.get_num_threads())
"""
TEAM = """
import os, resource, time, torch
from minigpt.fast.threads import IdleTeam, cpus, libgomp

torch.set_num_threads(2)
x = torch.ones(1 << 16)
x + 1
size, there = max(2, cpus()), len(os.listdir("/proc/self/task"))
team = IdleTeam(libgomp(), size)
while len(os.listdir("/proc/self/task")) < there + size:
    time.sleep(0.01)  # on a busy machine the team comes late
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
for _ in range(500):
    x + 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
team.leave()
"""


def printed(code: str, folder: Path) -> str:
    """What a process prints that executes code in a folder: a fork of the server, which had one thread until then."""
    child = forked([1, 2], code=code, argv=["-c"], cwd=str(folder))
    assert child.stdout
    with child.stdout:
        said = child.stdout.read()
    assert (child.rest(), child.code) == ("", 0)
    return said


def release() -> tuple[int, ...]:
    """The version of the Linux kernel, as (major, minor); another system's does not matter."""
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])


needs_libgomp = pytest.mark.skipif(
    threads.libgomp() is None or threads.queued() is None, reason="torch's threads are not libgomp's on Linux"
)


# ---- how many ----


V2, V1 = "0::/user.slice/me\n", "4:memory:/x\n3:cpuacct,cpu:/me\n0::/\n"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("own", "files", "there"),
    [
        (V2, {"user.slice/me/cpu.max": "200000 100000\n"}, 2),
        (V2, {"user.slice/me/cpu.max": "50000 100000\n"}, 1),
        (V2, {"user.slice/me/cpu.max": "max 100000\n", "user.slice/cpu.max": "350000 100000\n"}, 3),
        (V2, {"user.slice/cpu.max": "1600000 100000\n"}, 8),
        (V2, {"cpu.max": "300000 100000\n"}, 3),  # in a container, whose own cgroup is the root
        (V2, {"cpu.max": "?"}, 8),
        (V1, {f"cpu/me/{QUOTA}": "300000\n", f"cpu/me/{PERIOD}": "100000\n"}, 3),
        (V1, {f"cpu/{QUOTA}": "200000\n", f"cpu/{PERIOD}": "100000\n"}, 2),
        (V1, {f"cpu/me/{QUOTA}": "-1\n", f"cpu/me/{PERIOD}": "100000\n"}, 8),
        (V1, {}, 8),
        (None, {"cpu.max": "200000 100000\n"}, 8),
    ],
)
def test_a_process_has_the_cpus_it_is_bound_to_up_to_its_quotas(
    own: str | None, files: dict[str, str], there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    written = {f"groups/{name}": text for name, text in files.items()} | ({"cgroup": own} if own else {})
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert threads.cpus(tmp_path, tmp_path / "groups") == there


def used(asked: Any, before: int, there: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many threads are used where torch had so many before, and this process has so many CPUs."""
    monkeypatch.setattr("torch.get_num_threads", lambda: before)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    monkeypatch.setattr(threads, "cpus", lambda: there)
    return threads.use_threads(asked)


def test_auto_takes_the_quota_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert used("auto", 64, 2, monkeypatch) == 2
    assert used("auto", 2, 64, monkeypatch) == 2  # torch leaves out the second halves of cores
    assert used(3, 64, 2, monkeypatch) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert used("auto", 5, 2, monkeypatch) == 5


def test_a_small_model_writes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "use_threads", lambda asked: asked)
    assert threads.use_threads_to_sample(798_976) == 1
    assert threads.use_threads_to_sample(124_000_000) == "auto"  # type: ignore[comparison-overlap]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.use_threads_to_sample(798_976) == "auto"  # type: ignore[comparison-overlap]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs" / "small" / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_auto_is_recorded_as_a_number_and_a_resumed_run_keeps_its_threads_unless_told_otherwise(tmp_path: Path) -> None:
    ended = script("train.py", "--config", "small.yaml", cwd=furnish(tmp_path))  # where OMP_NUM_THREADS is 1
    assert "on cpu, threads: 1\n" in ended.out, ended.err
    assert "threads: 1" in (tmp_path / "runs" / "small" / "config.yaml").read_text("utf-8")
    told = script("train.py", "--resume", "training.max_steps=9", "training.threads=2", cwd=tmp_path)
    assert "changed: training.threads: 1 -> 2\n" in told.out and "on cpu, threads: 2\n" in told.out
    kept = script("train.py", "--resume", "training.max_steps=10", cwd=tmp_path)
    assert "on cpu, threads: 2\n" in kept.out and "changed: training.threads" not in kept.out


def test_a_notebook_computes_with_no_more_threads_than_its_quota(tmp_path: Path) -> None:
    script("train.py", "--config", "small.yaml", cwd=furnish(tmp_path))
    assert printed(NOTEBOOK, tmp_path) == "1\n"


# ---- how they wait ----


def test_what_threads_queued_is_added_up(tmp_path: Path) -> None:
    for task, text in (("1", "5 2000000000 7"), ("2", "5 500000000 7")):
        (tmp_path / "task" / task).mkdir(parents=True)
        (tmp_path / "task" / task / "schedstat").write_text(text, encoding="ascii")
    (tmp_path / "schedstat").write_text("1000000000 3000000000 7\n", encoding="ascii")
    assert threads.queued(tmp_path) == 2.5
    assert threads.queued_so_far(tmp_path) == 0.75


def test_where_the_system_does_not_count_nothing_is_known(tmp_path: Path) -> None:
    assert threads.queued(tmp_path) is None
    (tmp_path / "task" / "1").mkdir(parents=True)
    (tmp_path / "task" / "1" / "schedstat").write_text("0 0 0", encoding="ascii")
    assert threads.queued(tmp_path) is None
    assert threads.queued_so_far(tmp_path) == 0.0


class Team:
    """Stands in for the idle threads."""

    there = 0

    def __init__(self, gomp: Any, size: int):
        assert size >= 2
        Team.there += 1

    def leave(self) -> None:
        Team.there -= 1


def test_threads_spin_again_only_after_several_free_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IdleTeam", Team)
    monkeypatch.setattr(threads, "queued_so_far", lambda: 0.0)
    watch, seen = threads.Watch(None), []  # type: ignore[arg-type]
    few = threads.PATIENCE - 1
    for share in (0.02, 0.9, *[0.0] * few, 0.15, *[0.0] * few, 0.0, 0.02, 0.5):
        watch.look(share)
        seen.append(Team.there)
    assert seen == [0, *[1] * (2 + 2 * few), 0, 0, 1]


def test_a_machine_that_is_busy_from_the_start_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IdleTeam", Team)
    monkeypatch.setattr(threads, "queued_so_far", lambda: 0.6)
    assert threads.Watch(None).team is not None  # type: ignore[arg-type]


# ---- where they run ----


class Machine:
    """Two CPUs and a process of two threads, in files as Linux has them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.now, self.ticks = folder, 100.0, {0: [0, 0], 1: [0, 0]}  # of each CPU: working, idle
        self.moved: dict[int, set[int]] = {}
        for task in ("11", "12"):
            (folder / "task" / task).mkdir(parents=True)
        (folder / "stat").write_text(f"11 (a (b) c) {' '.join(['R', *['0'] * 35, '1', '0'])}\n", encoding="ascii")
        monkeypatch.setattr("os.sched_setaffinity", lambda pid, cpus: self.moved.update({pid: set(cpus)}))
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: self.moved.get(11, {0, 1}))
        monkeypatch.setattr("torch.get_num_threads", lambda: 2)
        self.passes(0, (0, 0))
        self.one = threads.OneCpu(folder, folder / "cpus", {0, 1})

    def passes(self, seconds: float, idle: tuple[float, float]) -> None:
        """Time passes, in shares of which the CPUs are idle."""
        self.now += seconds
        for cpu, share in enumerate(idle):
            self.ticks[cpu][0] += round(100 * seconds * (1 - share))
            self.ticks[cpu][1] += round(100 * seconds * share)
        text = "".join(f"cpu{cpu} {work} 0 0 {idle} 0 0 0 0 0 0\n" for cpu, (work, idle) in self.ticks.items())
        (self.folder / "cpus").write_text("cpu  1 2 3 4 5 6 7 8 9 9\n" + text + "intr 5\n", encoding="ascii")


def test_two_threads_share_one_cpu_until_another_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.one.bind(machine.now)
    assert machine.one.bound and machine.moved == {11: {1}, 12: {1}}  # where the first of them ran
    for _ in range(40):
        machine.passes(0.5, (0.1, 0.0))
        assert not machine.one.look(machine.now)
    machine.passes(0.5, (0.6, 0.0))
    assert machine.one.look(machine.now)
    assert not machine.one.bound and machine.moved == {11: {0, 1}, 12: {0, 1}}


def test_what_was_soon_undone_is_done_again_later_and_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, bound = Machine(tmp_path, monkeypatch), []
    for _ in range(200):
        machine.one.bind(machine.now)
        bound.append(machine.one.bound)
        machine.passes(0.5, (0.9, 0.0))
        if machine.one.bound:
            machine.one.look(machine.now)
    assert bound[0] and sum(bound) == 4  # after 0, 10, 30 and 70 of 100 seconds


def test_what_was_undone_later_is_done_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs that pause and go on: two threads on a CPU each would wait for one another all that time."""
    machine = Machine(tmp_path, monkeypatch)
    for _ in range(5):
        machine.one.bind(machine.now)
        assert machine.one.bound
        for idle in (0.0, 0.0, 0.0, 0.0, 0.0, 0.9):
            machine.passes(0.5, (idle, 0.0))
            assert machine.one.look(machine.now) == (idle > 0.0)


def test_neither_one_thread_nor_three_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    for count in (1, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda count=count: count)
        machine.one.bind(machine.now)
        assert not machine.one.bound and not machine.moved


def test_bound_threads_do_not_change_how_many_cpus_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setattr(threads, "IdleTeam", Team)
    watch = threads.Watch(None)  # type: ignore[arg-type]
    watch.one = machine.one
    monkeypatch.setattr(threads, "_watch", watch)
    machine.one.bind(machine.now)
    assert len(machine.moved[11]) == 1
    assert threads.cpus(tmp_path / "nothing", tmp_path / "nothing") == 2


@needs_libgomp
@pytest.mark.skipif(threads.cpus() < 2, reason="one CPU: there is no other")
def test_all_threads_of_a_process_are_bound_and_freed_and_compute_the_same(tmp_path: Path) -> None:
    assert printed(BOUND, tmp_path) == "True True True True\nTrue True\n"


@pytest.mark.slow
@needs_libgomp
@pytest.mark.skipif(release() < (6, 12) or not threads.SET, reason="Linux before 6.12, or another processor")
def test_the_second_thread_has_short_slices_while_the_cpus_are_shared(tmp_path: Path) -> None:
    assert printed(SLICES, tmp_path) == "True True\nTrue\n"


@needs_libgomp
def test_beside_idle_threads_the_others_sleep_while_they_wait(tmp_path: Path) -> None:
    """The system counts how often a process goes to sleep: at least once in most of 500 parallel sums."""
    assert int(printed(TEAM, tmp_path)) > 125


def trained(folder: Path, run: Callable[..., Ended], **variables: str) -> Ended:
    """A short training with two threads that find the CPUs busy."""
    (furnish(folder) / "busy.py").write_text(BUSY, encoding="utf-8")
    return run("train.py", "--config", "small.yaml", "--plugin", "busy.py", cwd=folder, **variables)


@pytest.mark.slow
@needs_libgomp
def test_a_busy_machine_is_named_once_and_changes_no_result(tmp_path: Path) -> None:
    busy, own = tmp_path / "busy", tmp_path / "own"
    for folder in (busy, own):
        folder.mkdir()
    ended = trained(busy, process, OMP_NUM_THREADS="2")
    assert ended.code == 0 and ended.out.count(NOTE) == 1, ended.err
    chosen = trained(own, script, OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE")  # the user's own choice stays
    assert chosen.code == 0 and NOTE not in chosen.out
    assert [line["train/loss"] for line in lines(busy)] == [line["train/loss"] for line in lines(own)]
    wrote = script("sample.py", "--plugin", "busy.py", "--prompt", "the", cwd=busy, OMP_NUM_THREADS="2")
    assert wrote.err.count(NOTE) == 1 and wrote.out.startswith("the")
