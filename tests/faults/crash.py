"""A program that saves and prunes checkpoints and is killed while it does: run under the shim by the tests.

    LD_PRELOAD=shim.so python crash.py kill FOLDER          killed at every operation; a JSON line for each
    LD_PRELOAD=shim.so python crash.py fail FOLDER          a full disk from every operation on; each operation failing
    LD_PRELOAD=shim.so python crash.py busy FOLDER          each rename and each removal is refused three times
    python crash.py moments FOLDER COUNT                    killed at COUNT random moments, with the shim or without
    LD_PRELOAD=shim.so python crash.py read FOLDER COUNT    not killed, while another process reads COUNT times
    LD_PRELOAD=shim.so python crash.py record FOLDER LOG    not killed; every operation is recorded

It forks for each kill, so that torch is imported once. Who works says "saved N" when save() has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from minigpt.training.checkpoint import CheckpointError, checkpoints, newest, prune, save, tensors_of, verify

OFF, COUNT, KILL_BEFORE, KILL_WITHIN, KILL_AFTER, FULL, BROKEN, RECORD, _, BUSY = range(10)  # as in shim.c
KEEP = 2
BEST = (0, 1.0, 1.0)  # an evaluation: its checkpoint stays beside the newest

Say = Callable[[str], object]


def write(folder: Path, step: int) -> Path:
    """A small checkpoint, every number of which is its step."""
    model = torch.nn.Linear(5, 3)
    torch.nn.init.constant_(model.weight, step)
    torch.nn.init.constant_(model.bias, step)
    return save(
        folder, step, tensors_of(model), {"weight|momentum": torch.full((4,), step + 0.5)}, {"seconds": step / 2}
    )


def read(folder: Path) -> int:
    """The step of the newest checkpoint, whose numbers are its own; 0 where there is none."""
    try:
        found, _ = newest(folder)
    except CheckpointError:
        return 0
    step = int(found.state["step"])
    assert sorted(found.model) == ["bias", "weight"], "another model"
    assert all(bool((tensor == step).all()) for tensor in found.model.values()), "wrong weights"
    assert bool((found.optimizer["weight|momentum"] == step + 0.5).all()), "wrong optimizer"
    assert found.state["seconds"] == step / 2, "wrong state"
    return step


def begin(folder: Path) -> None:
    """The best checkpoint and two more, and what earlier crashes and a bad disk left: a damaged one, and two halves."""
    for step in (0, 1, 2, 3):
        write(folder, step)
    with (folder / "step-000003" / "model.safetensors").open("r+b") as file:
        file.truncate(50)
    for leftover in (".writing-000003-1", ".removing-step-000000-1"):
        shutil.copytree(folder / "step-000001", folder / leftover)


def work(folder: Path, steps: range, say: Say) -> None:
    """What a training does to its folder."""
    for step in steps:
        write(folder, step)
        say(f"saved {step}\n")
        prune(folder, KEEP, [BEST])


def halves(folder: Path) -> list[str]:
    """The checkpoints that do not verify, by name."""
    found = []
    for path in checkpoints(folder):
        try:
            verify(path)
        except CheckpointError:
            found.append(path.name)
    return found


def go_on(folder: Path) -> list[str]:
    """Resume after a crash: one more checkpoint. Returns the names that are then there."""
    step = read(folder) + 1
    write(folder, step)
    prune(folder, KEEP, [BEST])
    assert read(folder) == step, "what was saved after the crash is not the newest"
    return sorted(path.name for path in folder.iterdir())


class Trial:
    """One child that works, and what was found after its end."""

    def __init__(self, folder: Path, steps: range):
        self.folder, self.steps, self.pristine = folder / "tried", steps, folder / "pristine"
        self.shim = ctypes.CDLL(None) if "LD_PRELOAD" in os.environ else None
        self.watch(COUNT)
        self.pristine.parent.mkdir(exist_ok=True)
        begin(self.pristine)

    def watch(self, mode: int, at: int = 0, log: str = "") -> None:
        """Tell the shim what to do from here on; without one, nothing."""
        if self.shim:
            where = str(self.folder.parent).encode()
            self.shim.shim_set(where, mode, ctypes.c_long(at), b"", log.encode())

    def refresh(self) -> None:
        """A fresh copy."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.folder)

    def fork(self, mode: int, at: int) -> tuple[int, int]:
        """Start a child on a fresh copy; its process id, and where to read what it says."""
        self.refresh()
        heard, said = os.pipe()
        child = os.fork()
        if child:
            os.close(said)
            return child, heard
        code = 1
        signal.alarm(60)
        try:
            os.dup2(said, 2)  # warnings are no result
            self.watch(mode, at)
            work(self.folder, self.steps, lambda line: os.write(said, line.encode()))
            code = 0
        except BaseException as error:
            os.write(said, f"error {type(error).__name__} {error}\n".encode())
        finally:
            os._exit(code)

    def ended(self, child: int, heard: int, said: bytes = b"") -> tuple[int, list[str]]:
        """Wait for a child's end: its code, and what it has said."""
        with os.fdopen(heard, "rb") as pipe:
            lines = (said + pipe.read()).decode().splitlines()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lines

    def here(self, mode: int, at: int) -> tuple[int, list[str]]:
        """The same where nothing is killed: without a child."""
        self.refresh()
        lines, code = list[str](), 0
        self.watch(mode, at)
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # warnings are no result
                work(self.folder, self.steps, lines.append)
        except OSError as error:
            lines, code = [*lines, f"error {error}"], 5
        self.watch(COUNT)
        return code, lines

    def look(self, code: int, lines: list[str], **what: Any) -> None:
        """Look at what somebody who has ended so left, go on from there, and print all of it."""
        found: dict[str, Any] = {"code": code, "problem": "", "names": sorted(os.listdir(self.folder))}
        try:
            found["halves"] = halves(self.folder)
            found["found"] = read(self.folder)
            found["later"] = go_on(self.folder)
        except Exception as error:
            found["problem"] = f"{type(error).__name__}: {error}"
        saved = [int(line[6:]) for line in lines if line.startswith("saved ")]
        errors = [line for line in lines if line.startswith("error ")]
        print(json.dumps(what | found | {"saved": max(saved, default=2), "errors": errors}), flush=True)

    def everywhere(self, modes: list[int]) -> None:
        """Each mode at every operation of the work where it makes a difference."""
        kinds = self.kinds()
        for mode in modes:
            for at, kind in enumerate(kinds, 1):
                if kind in {KILL_WITHIN: "w", KILL_AFTER: "w", FULL: "mow", BUSY: "rud"}.get(mode, kind):
                    killed = mode in (KILL_BEFORE, KILL_WITHIN, KILL_AFTER)
                    code, lines = self.ended(*self.fork(mode, at)) if killed else self.here(mode, at)
                    self.look(code, lines, mode=mode, at=at, kind=kind)

    def kinds(self) -> str:
        """The operations of the work, undisturbed, a letter of shim.c for each."""
        shutil.copytree(self.pristine, self.folder)
        self.watch(COUNT)
        work(self.folder, self.steps, lambda line: None)
        assert self.shim
        self.shim.shim_kinds.restype = ctypes.c_char_p
        return bytes(self.shim.shim_kinds()).decode()

    def moments(self, count: int) -> None:
        """Kill from outside, whenever; as often in each of the saves, however fast this machine is at the time."""
        draw = random.Random(1337)
        began = time.perf_counter()
        os.waitpid(self.fork(COUNT, 0)[0], 0)
        one = (time.perf_counter() - began) / len(self.steps)
        for number in range(count):
            child, heard = self.fork(COUNT, 0)
            said = b""
            while said.count(b"\n") < number % len(self.steps):
                said += os.read(heard, 1)
            time.sleep(draw.uniform(0, one))
            os.kill(child, signal.SIGKILL)
            self.look(*self.ended(child, heard, said), at=number)


def watch_from_outside(folder: Path, reads: int) -> None:
    """Read the newest checkpoint again and again while a child saves, and removes all but one."""
    write(folder, 1)
    child = os.fork()
    if not child:
        for step in range(2, 100_000):
            write(folder, step)
            prune(folder, 1)
    steps, problem = [0], ""
    try:
        for _ in range(reads):
            steps.append(read(folder))
            assert steps[-1] >= max(steps), "an older one, or none"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(json.dumps({"problem": problem, "reads": len(steps) - 1, "different": len(set(steps))}))


def record(folder: Path, log: Path) -> None:
    """Work in an empty folder, undisturbed; the shim writes down what is done and what is said."""
    shim, run = ctypes.CDLL(None), folder / "run"
    run.mkdir()
    shim.shim_set(str(run).encode(), RECORD, ctypes.c_long(0), b"", str(log).encode())
    work(run / "checkpoints", range(1, 4), lambda line: shim.shim_note(line.strip().encode()))


def main(what: str, folder: Path, *arguments: str) -> None:
    """What the command line asks for."""
    torch.set_num_threads(1)
    if what == "record":
        record(folder, Path(arguments[0]))
    elif what == "read":
        ctypes.CDLL(None).shim_set(str(folder).encode(), COUNT, ctypes.c_long(0), b"", b"")
        watch_from_outside(folder, int(arguments[0]))
    elif what == "moments":
        Trial(folder, range(3, 9)).moments(int(arguments[0]))
    else:
        modes = {"kill": [KILL_BEFORE, KILL_WITHIN, KILL_AFTER], "fail": [FULL, BROKEN], "busy": [BUSY]}
        Trial(folder, range(3, 4)).everywhere(modes[what])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
