"""Runs programs in processes of their own and times them: workers that take turns, or a command from start to end.

Only one process works at a time, so that none disturbs another. Each round starts with another program, so that none
always runs right after the same one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.report import Spread
from minigpt.system.errors import UserError
from minigpt.system.process import JsonProcess

WORKER = Path(__file__).with_name("worker.py")
RUN_WORKER = f"import runpy; runpy.run_path({str(WORKER)!a}, run_name='__main__')"


class WorkerProcess(JsonProcess):
    """A process of worker.py, ready to work. Raises UserError if it fails.

    It has a session of its own, because Linux divides the CPUs among sessions first. With `session=False` it competes
    with the other processes of our session. `variables` are added to its environment.
    """

    def __init__(self, name: str, spec: Mapping[str, Any], session: bool = True, **variables: str):
        super().__init__(RUN_WORKER, json.dumps(dict(spec)), session=session, quiet=True, variables=variables)
        self.name = name
        try:
            self.facts = self._answer()
        except BaseException:
            self.end()
            raise

    def work(self, count: int) -> float:
        """Do `count` steps, or write `count` tokens. Returns the seconds that this took."""
        self.send(count)
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        answer = self.receive() or {"failed": f"its process ended with code {self.process.wait()}"}
        if "failed" in answer:
            raise UserError(f"{self.name}: {answer['failed']}")
        return answer


@dataclass(frozen=True)
class Measured:
    """The facts that a worker sent about its model, and the seconds of each of its blocks."""

    facts: Mapping[str, Any]
    seconds: Spread


def interleave(specs: Mapping[str, Mapping[str, Any]], count: int, repeat: int, warm_up: int) -> dict[str, Measured]:
    """Let all workers do `repeat` blocks of `count` steps, in turn, after a warm-up that is not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(WorkerProcess(name, spec)) for name, spec in specs.items()}
        for worker in workers.values():
            worker.work(warm_up)
        for turn in range(repeat):
            for name in in_turn(list(specs), turn):
                seconds[name].append(workers[name].work(count))
        return {name: Measured(workers[name].facts, Spread(tuple(seconds[name]))) for name in specs}


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order of round number `turn`. Each round starts with another name."""
    first = turn % max(1, len(names))
    return [*names[first:], *names[:first]]


@dataclass(frozen=True)
class CommandTimes:
    """The times of a command."""

    seconds: float  # from the start of its process to its end
    first: float | None  # to the first line that matched; None if no line was waited for


def absolute_pythonpath() -> dict[str, str]:
    """The environment with the folders of PYTHONPATH made absolute: the command is run in another folder."""
    if not (folders := os.environ.get("PYTHONPATH")):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, folders.split(os.pathsep)))}


def time_command(name: str, command: Sequence[str], folder: Path, line: str = "", stop: bool = False) -> CommandTimes:
    """Run a command in a folder and time it. With `stop`, end it at the first line that matches `line`.

    Raises UserError with its last line if it fails, or if it ends without a matching line.
    """
    first, said, began = None, "", perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=absolute_pythonpath() | {"PYTHONUNBUFFERED": "1"},
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
                        return CommandTimes(first, first)
            code = process.wait()
            seconds = perf_counter() - began
        finally:
            process.kill()
    if code or (line and first is None):
        what = f"ended with code {code}" if code else f"never wrote a line like {line!r}"
        raise UserError(f"{name} {what}; its last line: {said or 'nothing'}")
    return CommandTimes(seconds, first)
