"""Threads: how many compute, and how they wait for one another on a machine that other programs use too.

A matrix product is divided among threads, and those that finish first wait for the last. They spin (busy-waiting): they
ask again and again for milliseconds, because going to sleep and waking up takes longer than most waits. Where other
programs use the CPUs, a spinning thread may use the CPU that the last thread needs.

libgomp, the OpenMP library of torch's wheels for Linux, spins a thousandth as long while it manages more threads than
there are CPUs. So a team of idle threads is added while this process's threads queue for a CPU, and removed when they
do not. Two threads that sleep still lose time where each waits for a CPU of its own: the second starts late, and the
first waits for it. So they are bound to one CPU until another is idle again (`OneCpu`), and all but the first ask for
short time slices (`SLICE`): Linux then runs them as soon as they are ready, for no longer in all. How many threads
compute never changes, and with it no bit of any result.

All that is only so on Linux, with its libgomp, and is therefore told here. Elsewhere /proc has neither the library nor
the time that threads have queued, so nothing is watched and nothing changed (`share_cpus`).
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch

from minigpt.system.errors import UserError
from minigpt.system.machine import c_library, keep_on, own_cpus, processors
from minigpt.system.process import NO_MORE, can_start

PROC, CGROUP, STAT = Path("/proc/self"), Path("/sys/fs/cgroup"), Path("/proc/stat")
EVERY = 0.5  # seconds between two looks
BUSY, FREE = 0.25, 0.1  # seconds of queueing in a second, of all threads together: stop spinning; may spin again
WORKING = 0.1  # CPU seconds in a second; a process that uses less cannot tell whether the CPUs are busy
PATIENCE = 4  # looks in a row that found the CPUs free, before the threads spin again
IDLE = 0.3  # fraction of its time in which a CPU that the threads were kept from is idle: they may use it again
SOON = 2.0  # seconds; if binding to one CPU is undone within this time, it was a mistake
AGAIN = 10.0  # seconds after a mistake until threads are bound again; twice as many after the next one
SLICE = 100_000  # nanoseconds, the shortest time slice; Linux 6.12 and later grant it
SET, GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (0, 0))  # sched_setattr, sched_getattr
OTHER = 0  # the policy of ordinary threads, SCHED_OTHER
SMALL = 2_000_000  # parameters; below it, two threads are no faster than one at writing a token
OURS = 4  # threads that minigpt itself may start meanwhile, to write a checkpoint or to show that it lives
OWN_CHOICE = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}  # a user who sets one of these has decided how threads wait


def cpus(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """How many CPUs this process may use: those it is bound to, and no more than its cgroups' quotas."""
    if _watch is not None and _watch.one.bound:
        bound = len(_watch.one.allowed)
    else:
        bound = processors()
    return max(1, min([bound, *quotas(proc, cgroup)]))


def quotas(proc: Path, cgroup: Path) -> Iterator[int]:
    """Whole CPUs that the process's cgroup allows, and each cgroup above it; nothing where there is no limit."""
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        v1 = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]  # v2 has both in one file, and no controllers here
        root, names = (cgroup / "cpu", v1) if controllers else (cgroup, ["cpu.max"])
        folder = root / own.lstrip("/")
        for level in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # there is no such file, or it says "max"
                quota, period = " ".join((level / name).read_text(encoding="ascii") for name in names).split()
                if int(quota) > 0:  # -1: none
                    yield int(quota) // int(period)


def use_threads(threads: int | Literal["auto"] = "auto") -> int:
    """Set the number of threads that compute, and return it; auto: one for each CPU, or as OMP_NUM_THREADS says.

    Raises UserError if the system does not let so many start: libgomp would then end the process.
    """
    before = torch.get_num_threads()
    auto = before if os.environ.get("OMP_NUM_THREADS") else min(before, cpus())
    count = auto if threads == "auto" else threads
    if count > 1 and not can_start(count - 1 + OURS):
        raise UserError(NO_MORE)
    if count != before:
        torch.set_num_threads(count)
    return count


def use_threads_to_sample(parameters: int) -> int:
    """`use_threads` for sampling one text from a model with this many parameters: a small model gets one thread."""
    return use_threads(1 if parameters < SMALL and not os.environ.get("OMP_NUM_THREADS") else "auto")


def queued(proc: Path = PROC) -> float | None:
    """Seconds in which this process's threads, all together, were ready and had no CPU; None where it is unknown."""
    try:
        return sum(int(task.read_text("ascii").split()[1]) for task in proc.glob("task/*/schedstat")) / 1e9 or None
    except (OSError, ValueError, IndexError):  # a thread has ended meanwhile, or the system counts no such thing
        return None


@lru_cache(maxsize=1)
def libgomp() -> ctypes.CDLL | None:
    """The library that runs torch's threads, or None where it is another one."""
    try:
        lines = (PROC / "maps").read_text(encoding="utf-8").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
        return ctypes.CDLL(min(paths, key=lambda path: "/torch/" not in path))
    except (OSError, ValueError):
        return None


class IdleTeam:
    """Threads that make libgomp manage more of them than there are CPUs, and do nothing else."""

    def __init__(self, gomp: ctypes.CDLL, size: int):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._hold, args=(gomp, size), daemon=True)
        self.thread.start()

    def _hold(self, gomp: ctypes.CDLL, size: int) -> None:
        nothing = ctypes.cast(gomp.omp_get_num_threads, ctypes.c_void_p)  # each thread calls it once, then sleeps
        gomp.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
        self.over.wait()  # a team ends with the thread that started it

    def leave(self) -> None:
        """End the threads."""
        self.over.set()
        self.thread.join()


def ask_for_slices(nanoseconds: int, proc: Path = PROC) -> None:
    """Ask Linux for time slices of this length for all threads of this process but the first; 0: the usual length.

    A thread with a short slice waits less for its turn, and gets no more time. Its policy and niceness stay.
    """
    libc, layout = c_library(), "IIQiIQQQ"  # struct sched_attr: size, policy, flags, nice, priority, slice, ...
    for task in proc.glob("task/*") if SET else ():
        assert libc is not None
        attributes = ctypes.create_string_buffer(struct.calcsize(layout))
        if int(task.name) == os.getpid() or libc.syscall(GET, int(task.name), attributes, len(attributes), 0):
            continue
        size, policy, flags, nice, priority, _, *rest = struct.unpack(layout, attributes.raw)
        if policy == OTHER:
            new = struct.pack(layout, size, policy, flags, nice, priority, nanoseconds, *rest)
            libc.syscall(SET, int(task.name), new, 0)


@dataclass
class OneCpu:
    """Keeps two threads on one CPU: beside other programs they wait less for each other than on two CPUs."""

    proc: Path = PROC
    stat: Path = STAT
    allowed: set[int] = field(default_factory=own_cpus)
    bound: bool = False
    since: float = -math.inf  # when they were bound last
    pause: float = 0.0  # seconds after it was undone in which it is not done again
    before: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each CPU: ticks without work, all ticks

    def bind(self, now: float) -> None:
        """Keep all threads on one CPU, unless this was undone a short while ago."""
        if torch.get_num_threads() == 2 and len(self.allowed) > 1 and now - self.since >= self.pause:
            self.since, self.bound, self.before = now, self._move(all_on_one=True), self._ticks()

    def look(self, now: float) -> bool:
        """Whether one of the CPUs that the threads do not use is idle; then they may use all again."""
        ticks, own = self._ticks(), own_cpus()
        shares = [
            (idle - self.before[cpu][0]) / max(1, total - self.before[cpu][1])
            for cpu, (idle, total) in ticks.items()
            if cpu in self.allowed - own and cpu in self.before
        ]
        self.before = ticks
        if not shares or max(shares) > IDLE:
            self.pause = max(AGAIN, 2 * self.pause) if now - self.since < SOON else 0.0
            self.since, self.bound = now, self._move(all_on_one=False)
        return not self.bound

    def _move(self, all_on_one: bool) -> bool:
        """Move all threads to the CPU on which the first one runs, or allow them all CPUs; says which."""
        try:
            cpu = int((self.proc / "stat").read_text("ascii").rsplit(")", 1)[1].split()[36])
            for task in (self.proc / "task").iterdir():
                with suppress(ProcessLookupError):
                    keep_on(int(task.name), {cpu} if all_on_one else self.allowed)
        except (OSError, ValueError, IndexError):  # not allowed here, or no such CPU
            return False
        return all_on_one

    def _ticks(self) -> dict[int, tuple[int, int]]:
        """Ticks of each CPU since the start: (those without work, all)."""
        with suppress(OSError, ValueError):
            lines = [line.split() for line in self.stat.read_text("ascii").splitlines()]
            each = {int(name[3:]): [*map(int, ticks)] for name, *ticks in lines if re.fullmatch(r"cpu\d+", name)}
            return {cpu: (ticks[3] + ticks[4], sum(ticks[:8])) for cpu, ticks in each.items()}
        return {}


class Watch:
    """Looks every half second whether threads queue for the CPUs, and makes them sleep or spin while they wait."""

    def __init__(self, gomp: ctypes.CDLL):
        self.gomp, self.free, self.has_noted = gomp, 0, False
        self.team: IdleTeam | None = None
        self.one = OneCpu()
        self.look(queued_so_far())

    def start(self) -> None:
        """Look until the process ends."""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        before, ran, then = queued(), time.process_time(), time.monotonic()
        while True:
            time.sleep(EVERY)
            if self.team is not None:
                ask_for_slices(SLICE)  # at each look: torch starts threads when it first needs them
            after, run, now = queued(), time.process_time(), time.monotonic()
            if self.one.bound:
                self.one.look(now)  # its threads queue for one another, which says nothing about other programs
            elif before is not None and after is not None and run - ran > WORKING * (now - then):
                self.look((after - before) / (now - then))
            before, ran, then = after, run, now

    def look(self, share: float) -> None:
        """Act on the seconds that threads queued in a second."""
        self.free = self.free + 1 if share < FREE else 0
        if self.team is not None and share > BUSY:
            self.one.bind(time.monotonic())
        if self.team is None and share > BUSY:
            size = max(2, processors() - torch.get_num_threads() + 2)
            self.team = IdleTeam(self.gomp, size) if can_start(size + OURS) else None
        elif self.team is not None and self.free >= PATIENCE:
            self.team.leave()
            self.team = None
            ask_for_slices(0)


def queued_so_far(proc: Path = PROC) -> float:
    """The fraction of its time so far in which the main thread queued: importing torch takes long enough to tell."""
    try:
        ran, waited, _ = map(int, (proc / "schedstat").read_text("ascii").split())
        return waited / max(1, ran + waited)
    except (OSError, ValueError):
        return 0.0


_watch: Watch | None = None


def share_cpus() -> None:
    """From now on, threads spin only while no other program needs the CPUs; called before anything that computes."""
    global _watch
    if _watch is not None or torch.get_num_threads() == 1 or OWN_CHOICE & os.environ.keys():
        return
    if (gomp := libgomp()) is not None and queued() is not None:
        _watch = Watch(gomp)
        _watch.start()


def sharing_note() -> str:
    """A note for the user, the first time that the CPUs are found to be shared; "" at any other time."""
    if _watch is None or _watch.has_noted or _watch.team is None or torch.get_num_threads() == 1:
        return ""
    _watch.has_noted = True
    return (
        f"note: other programs use the CPUs too: {torch.get_num_threads()} threads now sleep while they wait for one "
        f"another, instead of spinning; the results stay the same"
    )
