"""Starts another Python process, which imports from the same folders as this one, and exchanges JSON with it.

A system may let no further thread or process start: `no_more` recognises the errors that say so.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

Itself = TypeVar("Itself", bound="JsonProcess")

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
        session: bool = True,
        quiet: bool = False,
        variables: Mapping[str, str] | None = None,
    ):
        """`session`: the process gets a session of its own. `quiet`: its stderr is discarded. `variables`: added to its
        environment."""
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
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            return True
        return False

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next answer. None: the process ended first."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def end(self) -> None:
        """Kill the process, wait until it has ended, and close its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self: Itself) -> Itself:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
