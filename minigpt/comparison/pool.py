"""A pool of worker processes for the runs of an experiment: one run at a time in each, on one thread.

A worker is a process that executes `worker.main`. It reads a task from each line of its stdin and writes its answers to
stdout, as JSON. If a worker dies, only the run that it was doing is lost: the next task gets a new worker. The first
line has the code of the plugins as it was loaded at the start: all workers run the same code, even if a file is edited.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from minigpt.system.locks import SILENCE
from minigpt.system.plugin import code_of
from minigpt.system.process import JsonProcess

Task = dict[str, Any]
Answer = dict[str, Any]
OnAnswer = Callable[[Task, Answer], None]

MAIN = "from minigpt.comparison.worker import main; main()"
RETRY = 1.0  # seconds to wait before asking again for a run that another experiment is doing


class WorkerPool:
    """At most `size` workers. All of them are killed when the `with` ends."""

    def __init__(self, size: int, plugins: Sequence[Path] = ()):
        self.size, self.plugins = size, [(str(path), code_of(path).decode("latin-1")) for path in plugins]
        self.workers: list[JsonProcess] = []  # all that were started
        self.idle: list[JsonProcess] = []
        self.lock, self.ended = threading.Lock(), False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.ended = True
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end()

    def work(self, tasks: Sequence[Task], on_answer: OnAnswer) -> list[Answer]:
        """Do all tasks and return the last answer to each: its event is done, refused or failed.

        `on_answer` is called with every answer, also with the answers about a step.
        """
        waiting, answers = deque(enumerate(tasks)), dict[int, Answer]()
        with ThreadPoolExecutor(min(self.size, max(1, len(tasks)))) as executor:
            threads = [executor.submit(self._serve, waiting, answers, on_answer) for _ in range(self.size)]
            try:
                for thread in wait(threads, return_when=FIRST_EXCEPTION).done:
                    thread.result()
            except BaseException:  # a signal: kill the workers, so that the threads that wait for them end too
                self.__exit__()
                raise
        return [answers[number] for number in range(len(tasks))]

    def _serve(self, waiting: deque[tuple[int, Task]], answers: dict[int, Answer], on_answer: OnAnswer) -> None:
        """Pass one task after another to a worker, until none is left. Each thread of `work` runs this."""
        beats: dict[int, tuple[int, float]] = {}  # of a run that another process does: its last sign of life, and when
        while not self.ended:
            try:
                number, task = waiting.popleft()
            except IndexError:
                break
            worker = self._idle_or_new()
            if worker is None:
                return
            answer = self._ask(worker, task, on_answer)
            if worker.process.poll() is None:
                self.idle.append(worker)
            if answer["event"] == "busy":  # another experiment is doing this run: use its result
                beat, since = beats.get(number, (-1, 0.0))
                beats[number] = answer["beat"], since if beat == answer["beat"] else time.monotonic()
                if time.monotonic() - beats[number][1] <= SILENCE:
                    waiting.append((number, task))
                    time.sleep(RETRY)
                    continue
                silent = f"{answer['message']}; it has given no sign of life for {SILENCE:.0f} s: end it"
                answer = {"event": "failed", "message": silent}
                on_answer(task, answer)
            answers[number] = answer

    def _idle_or_new(self) -> JsonProcess | None:
        """A worker that is idle, or a new one; None when the pool has ended."""
        with self.lock:
            if self.ended:
                return None
            if self.idle:
                return self.idle.pop()
            self.workers.append(JsonProcess(MAIN, variables={"OMP_NUM_THREADS": "1"}))
            self.workers[-1].send(self.plugins)
            return self.workers[-1]

    def _ask(self, worker: JsonProcess, task: Task, on_answer: OnAnswer) -> Answer:
        """Send a task and pass its answers on, until the last one."""
        worker.send(task)
        while (answer := worker.receive()) is not None:
            with self.lock:
                on_answer(task, answer)
            if answer["event"] != "step":
                return answer
        answer = {"event": "failed", "message": f"its process ended with code {worker.process.wait()}"}
        with self.lock:
            if not self.ended:
                on_answer(task, answer)
        return answer
