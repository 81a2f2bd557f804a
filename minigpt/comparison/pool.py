"""A pool of worker processes for the runs of an experiment: one run at a time in each, on one thread.

A worker is a process that executes `worker.main`. It reads a task from each line of its stdin and writes its answers to
stdout, as JSON. If a worker dies, only the run that it was doing is lost: the next task gets a new worker. The first
line has the code of the plugins as it was loaded at the start: all workers run the same code, even if a file is edited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.system.locks import SILENCE
from minigpt.system.plugin import code_of
from minigpt.system.process import JsonProcess, Pool

Task = dict[str, Any]
Answer = dict[str, Any]
OnAnswer = Callable[[Task, Answer], None]

MAIN = "from minigpt.comparison.worker import main; main()"
RETRY = 1.0  # seconds to wait before asking again for a run that another experiment is doing


class WorkerPool(Pool):
    """At most `size` workers. All of them are killed when the `with` ends."""

    def __init__(self, size: int, plugins: Sequence[Path] = ()):
        code = [(str(path), code_of(path).decode("latin-1")) for path in plugins]
        super().__init__(size, lambda: JsonProcess(MAIN, first=code, variables={"OMP_NUM_THREADS": "1"}))

    def work(self, tasks: Sequence[Task], on_answer: OnAnswer) -> list[Answer]:
        """Do all tasks and return the last answer to each: its event is done, refused or failed.

        `on_answer` is called with every answer, also with the answers about a step.
        """
        answers = dict[int, Answer]()
        beats: dict[int, tuple[int, float]] = {}  # of a run that another process does: its last sign of life, and when
        asked = {self.submit(partial(self._ask, task, on_answer)): number for number, task in enumerate(tasks)}
        while asked:
            for future in wait(asked, return_when=FIRST_COMPLETED).done:
                number, answer = asked.pop(future), future.result()
                task = tasks[number]
                if answer["event"] == "busy":  # another experiment is doing this run: use its result
                    beat, since = beats.get(number, (-1, 0.0))
                    beats[number] = answer["beat"], since if beat == answer["beat"] else time.monotonic()
                    if time.monotonic() - beats[number][1] <= SILENCE:
                        asked[self.submit(partial(self._ask, task, on_answer, pause=RETRY))] = number
                        continue
                    silent = f"{answer['message']}; it has given no sign of life for {SILENCE:.0f} s: end it"
                    answer = {"event": "failed", "message": silent}
                    on_answer(task, answer)
                answers[number] = answer
        return [answers[number] for number in range(len(tasks))]

    def _ask(self, task: Task, on_answer: OnAnswer, worker: JsonProcess, pause: float = 0.0) -> Answer:
        """Send a task after a pause, and pass its answers on, until the last one."""
        self.ended.wait(pause)
        worker.send(task)
        while (answer := worker.receive()) is not None:
            with self.lock:
                on_answer(task, answer)
            if answer["event"] != "step":
                return answer
        answer = {"event": "failed", "message": f"its process ended with code {worker.process.wait()}"}
        with self.lock:
            if not self.ended.is_set():
                on_answer(task, answer)
        return answer
