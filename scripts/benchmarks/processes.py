"""Runs programs in processes of their own and times them: workers that take turns, or a command from start to end.

Only one process works at a time, so that none disturbs another. Each round starts with another program, so that none
always runs right after the same one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.report import Spread
from minigpt.system.errors import UserError
from minigpt.system.process import JsonProcess


class WorkerProcess(JsonProcess):
    """A process of worker.py, ready to work. Raises UserError if it fails.

    It has a session of its own, because Linux divides the CPUs among sessions first. With `session: false` in its spec
    it competes with the other processes of our session. The spec's `variables` are added to its environment.
    """

    def __init__(self, name: str, spec: Mapping[str, Any]):
        session, variables = spec.get("session", True), spec.get("variables")
        statement = "from benchmarks.worker import main; main()"
        super().__init__(statement, json.dumps(dict(spec)), session=session, quiet=True, variables=variables)
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


def interleave(
    specs: Mapping[str, Mapping[str, Any]], count: int, repeat: int, warm_up: int
) -> dict[str, tuple[Mapping[str, Any], Spread]]:
    """Let all workers do `repeat` blocks of `count` steps, in turn, after a warm-up that is not timed.

    Returns the facts that each worker sent about its model, and the seconds of its blocks.
    """
    with ExitStack() as stack:
        workers = {name: stack.enter_context(WorkerProcess(name, spec)) for name, spec in specs.items()}
        for worker in workers.values():
            worker.work(warm_up)
        seconds = take_turns({name: partial(worker.work, count) for name, worker in workers.items()}, repeat)
        return {name: (worker.facts, seconds[name]) for name, worker in workers.items()}


def take_turns(measurements: Mapping[str, Callable[[], float]], repeat: int, warm_up: int = 0) -> dict[str, Spread]:
    """Do all measurements in each of `repeat` rounds, after rounds that only warm up."""
    values: dict[str, list[float]] = {name: [] for name in measurements}
    for turn in range(warm_up + repeat):
        for name in in_turn(list(measurements), turn):
            values[name].append(measurements[name]())
    return {name: Spread(tuple(measured[warm_up:])) for name, measured in values.items()}


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order of round number `turn`. Each round starts with another name."""
    first = turn % max(1, len(names))
    return [*names[first:], *names[:first]]


def time_command(
    name: str, command: Sequence[str], folder: Path, line: str = "", stop: bool = False
) -> tuple[float, float | None]:
    """Run a command in a folder: the seconds to its end, and to the first line that matches `line`, if one is given.

    With `stop`, end it at that line. Raises UserError with its last line if it fails or never writes such a line.
    """
    folders = os.environ.get("PYTHONPATH")
    absolute = map(os.path.abspath, folders.split(os.pathsep)) if folders else ()  # it runs in another folder
    first, last_line, start = None, "", perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(absolute), "PYTHONUNBUFFERED": "1"},
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
                last_line = text.strip() or last_line
                if line and first is None and re.match(line, text):
                    first = perf_counter() - start
                    if stop:
                        return first, first
            code = process.wait()
            seconds = perf_counter() - start
        finally:
            process.kill()
    if code or (line and first is None):
        failure = f"ended with code {code}" if code else f"never wrote a line like {line!r}"
        raise UserError(f"{name} {failure}; its last line: {last_line or 'nothing'}")
    return seconds, first
