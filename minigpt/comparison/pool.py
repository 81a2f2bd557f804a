"""A crew: processes that do the runs of a comparison, one run at a time each, on one thread each.

Each process is `measure.py`, and gets its tasks and gives its answers as lines of JSON. One that ends without an
answer takes only its run with it: the next task gets a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from minigpt.system.process import IGNORE_SIGINT, python_command

Task = dict[str, Any]
Answer = dict[str, Any]
Heard = Callable[[Task, Answer], None]

PATIENCE = 1.0  # seconds before asking again for a run that another comparison is doing


class Crew(AbstractContextManager["Crew"]):
    """Up to `size` processes; when the `with` ends, so do they."""

    def __init__(self, size: int, plugins: Sequence[Path] = ()):
        self.size = size
        self.command = python_command(
            f"{IGNORE_SIGINT}; from minigpt.comparison.worker import main; main(sys.argv[1:])", *map(str, plugins)
        )
        self.processes: list[subprocess.Popen[str]] = []  # all that were started
        self.idle: list[subprocess.Popen[str]] = []
        self.guard, self.ended = threading.Lock(), False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.guard:
            self.ended = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    with suppress(BrokenPipeError):
                        pipe.close()

    def work(self, tasks: Sequence[Task], heard: Heard) -> list[Answer]:
        """Do all tasks, and return the last answer to each: done, refused or failed. `heard` gets every answer."""
        waiting, answers = deque(enumerate(tasks)), dict[int, Answer]()
        with ThreadPoolExecutor(min(self.size, max(1, len(tasks)))) as pool:
            threads = [pool.submit(self._serve, waiting, answers, heard) for _ in range(self.size)]
            try:
                for thread in wait(threads, return_when=FIRST_EXCEPTION).done:
                    thread.result()
            except BaseException:  # a signal to this process: let the threads see the end of theirs
                self.__exit__(None, None, None)
                raise
        return [answers[number] for number in range(len(tasks))]

    def _serve(self, waiting: deque[tuple[int, Task]], answers: dict[int, Answer], heard: Heard) -> None:
        while not self.ended:
            try:
                number, task = waiting.popleft()
            except IndexError:
                break
            process = self._take()
            if process is None:
                return
            answer = self._ask(process, task, heard)
            if process.poll() is None:
                self.idle.append(process)
            if answer["event"] == "busy":  # another comparison is at it: its result will do
                waiting.append((number, task))
                time.sleep(PATIENCE)
                continue
            answers[number] = answer

    def _take(self) -> subprocess.Popen[str] | None:
        """A process that is free, or a new one; None when all is over."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self.guard:
            if self.ended:
                return None
            if self.idle:
                return self.idle.pop()
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment,
                start_new_session=True,  # a Ctrl-C is for us; we end them
            )
            self.processes.append(process)
            return process

    def _ask(self, process: subprocess.Popen[str], task: Task, heard: Heard) -> Answer:
        """Pass a task on and listen until it is over."""
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                with self.guard:
                    heard(task, answer)
                if answer["event"] != "step":
                    return answer
        except BrokenPipeError:
            pass
        answer = {"event": "failed", "message": f"its process ended with code {process.wait()}"}
        with self.guard:
            if not self.ended:
                heard(task, answer)
        return answer
