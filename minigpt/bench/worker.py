"""Other processes, watched: a driver that works when told to, several of them in turn, and a command to its end.

Only one of them works at a time, so that none disturbs another; and every round begins with another one, so that
none is always the one after the others.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from minigpt.bench.ledger import Spread
from minigpt.system.errors import UserError
from minigpt.system.process import IGNORE_SIGINT, python_command

DRIVER = Path(__file__).with_name("driver.py")
RUN_DRIVER = f"{IGNORE_SIGINT}; import runpy; runpy.run_path({str(DRIVER)!a}, run_name='__main__')"


def environment() -> dict[str, str]:
    """Ours; the folders of PYTHONPATH mean the same in any current folder."""
    if not (folders := os.environ.get("PYTHONPATH")):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, folders.split(os.pathsep)))}


class Worker(AbstractContextManager["Worker"]):
    """A driver's process, ready to work; it ends with the `with`. Raises UserError where it cannot be made ready.

    It has a session of its own, unless it shall compete with the processes of ours: Linux divides the CPUs among
    sessions first. `variables` are added to its environment.
    """

    def __init__(self, name: str, spec: Mapping[str, Any], session: bool = True, **variables: str):
        self.name = name
        self.process = subprocess.Popen(
            python_command(RUN_DRIVER, json.dumps(dict(spec))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=os.environ | variables,
            start_new_session=session,  # a Ctrl-C is for us; we end it
        )
        try:
            self.facts = self._hear()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()

    def work(self, count: int) -> float:
        """Seconds that so many steps, or tokens, take. Raises UserError where it fails."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
        return float(self._hear()["seconds"])

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"failed": f"its process ended with code {self.process.wait()}"}
        if "failed" in answer:
            raise UserError(f"{self.name}: {answer['failed']}")
        return dict(answer)


@dataclass(frozen=True)
class Measured:
    """What a worker said of itself, and how long its blocks took."""

    facts: Mapping[str, Any]
    seconds: Spread


def interleave(specs: Mapping[str, Mapping[str, Any]], count: int, repeat: int, warm_up: int) -> dict[str, Measured]:
    """Let each work `repeat` times, in turn, after a first block that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, spec)) for name, spec in specs.items()}
        for worker in workers.values():
            worker.work(warm_up)
        for turn in range(repeat):
            for name in in_turn(list(specs), turn):
                seconds[name].append(workers[name].work(count))
        return {name: Measured(workers[name].facts, Spread(tuple(seconds[name]))) for name in specs}


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round: each begins with another one."""
    first = turn % max(1, len(names))
    return [*names[first:], *names[:first]]


@dataclass(frozen=True)
class Watched:
    """A command from the start of its process to its end."""

    seconds: float
    first: float | None  # seconds to the first line that was waited for


def watch(name: str, command: Sequence[str], folder: Path, line: str = "", stop: bool = False) -> Watched:
    """Run a command in a folder; note when a line that matches `line` appears, and end it there if `stop`.

    Raises UserError with its last line where it fails, or ends without that line.
    """
    first, said, began = None, "", perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment() | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout
        try:
            for text in process.stdout:
                said = text.strip() or said
                if line and first is None and re.match(line, text):
                    first = perf_counter() - began
                    if stop:
                        return Watched(first, first)
            code = process.wait()
            seconds = perf_counter() - began
        finally:
            process.kill()
    if code or (line and first is None):
        what = f"ended with code {code}" if code else f"never wrote a line like {line!r}"
        raise UserError(f"{name} {what}; the last that it said: {said or 'nothing'}")
    return Watched(seconds, first)
