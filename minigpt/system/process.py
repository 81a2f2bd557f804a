"""Starts other Python processes, which import from the same folders as this one, and exchanges JSON with them.

A system may let no further thread or process start: `no_more` recognises the errors that say so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

Itself = TypeVar("Itself")
Result = TypeVar("Result")

NO_MORE = (
    "the system lets this user start no further thread or process (ulimit -u; the limit of a container): end some, "
    "or set OMP_NUM_THREADS=1"
)
REFUSED = re.compile("can't start new thread|Resource temporarily unavailable|thread pool has not been initialized")
IGNORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # Ctrl-C is for the parent process


def no_more(error: BaseException) -> bool:
    """Whether an error says that the system lets no further thread or process start: Python's, torch's or a library's.

    Writing to a pipe that is full raises BlockingIOError too, with other words.
    """
    return isinstance(error, (RuntimeError, BlockingIOError)) and bool(REFUSED.search(str(error)))


def can_start(threads: int) -> bool:
    """Whether so many threads may be there at once, beside those that are there."""
    gate, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(threads):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        gate.set()
        for thread in started:
            thread.join()
    return True


def python_command(statement: str, *arguments: str) -> list[str]:
    """The command line of a Python process that executes a statement, with the `sys.path` of this process.

    `python -m` and `python -c` import from the current folder first, so that a file torch.py or queue.py there would
    replace the real module. (Python 3.11 has the option `-P` for this, 3.10 does not.) Here `sys.path` is replaced
    before anything is imported.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {folders!a}; {statement}", *arguments]


def answering() -> Callable[[Any], None]:
    """Returns a function that sends an answer from a `JsonProcess`; what is printed from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    return send


def messages() -> Iterator[Any]:
    """The messages that this process is sent, until the process that sends them ends, in the middle of one or not."""
    for line in sys.stdin:
        if line.endswith("\n"):
            yield json.loads(line)


class JsonProcess:
    """A Python process that executes a statement; it reads messages from stdin and writes answers to stdout.

    Each message and each answer is one line of JSON. The process ignores Ctrl-C; it is killed when the `with` ends.
    """

    def __init__(
        self,
        statement: str,
        *arguments: str,
        first: Any = None,
        session: bool = True,
        quiet: bool = False,
        variables: Mapping[str, str] | None = None,
    ):
        """`first`: is sent before the first message. `session`: the process gets a session of its own. `quiet`: its
        stderr is discarded. `variables`: added to its environment."""
        self.unsent = [] if first is None else [first]
        self.process = subprocess.Popen(
            python_command(f"{IGNORE_SIGINT}; {statement}", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
            encoding="utf-8",
            env=os.environ | dict(variables or {}),
            start_new_session=session,
        )

    def send(self, message: Any) -> bool:
        """Send a message. False: the process has ended, so nothing was sent, and `receive` returns None."""
        assert self.process.stdin
        messages, self.unsent = [*self.unsent, message], []
        with suppress(BrokenPipeError):
            self.process.stdin.writelines(json.dumps(message) + "\n" for message in messages)
            self.process.stdin.flush()
            return True
        return False

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next answer. None: the process ended first."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill the process: whoever waits for an answer gets None."""
        self.process.kill()

    def end(self) -> None:
        """Kill the process, wait until it has ended, and close its pipes."""
        self.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self: Itself) -> Itself:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class Pool:
    """At most `size` workers, such as a JsonProcess, and as many threads that wait for them.

    `start` starts a worker when there is a call for it; one that has ended is replaced. When the `with` ends, also by
    Ctrl-C, all workers are killed, and so all calls end.
    """

    def __init__(self, size: int, start: Callable[[], Any]):
        """A worker has `ended`, `kill` and `__exit__`."""
        self.size, self.start, self.executor = size, start, ThreadPoolExecutor(size)
        self.workers, self.idle = list[Any](), list[Any]()
        self.lock, self.ended = threading.Lock(), threading.Event()

    def submit(self, call: Callable[[Any], Result]) -> Future[Result]:
        """Make a call with a worker that is idle, or as soon as one is."""
        return self.executor.submit(self._call, call)

    def _call(self, call: Callable[[Any], Result]) -> Result:
        with self.lock:
            if self.ended.is_set():
                raise CancelledError
            if not self.idle:
                self.workers.append(self.start())
                self.idle.append(self.workers[-1])
            worker = self.idle.pop()
        try:
            return call(worker)
        finally:
            if not worker.ended:
                self.idle.append(worker)

    def __enter__(self: Itself) -> Itself:
        return self

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.ended.set()
        for worker in self.workers:
            worker.kill()
        self.executor.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.__exit__()
