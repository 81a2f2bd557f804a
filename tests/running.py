"""Helpers for the tests of commands: a small text, a small config, and the scripts as processes.

`process` starts `python scripts/NAME.py` as a user does. `script` gives the same result in a tenth of the time: a
server (`fork_server.py`) imports torch once and forks for each command. `started` leaves one under way, for signals,
pipes and terminals. What belongs to the start of Python itself, such as its imports, needs `process`.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import fork_server
import pytest
from fork_server import Server
from shim import built

from minigpt.system import waiting
from minigpt.system.process import IGNORE_SIGINT, JsonProcess

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "from", "sun", "to", "hot", "hill"]

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 1, n_embd: 16, block_size: 16, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 8, eval_every: 4, sample_every: 0, checkpoint_every: 4, device: cpu}
sampling: {max_tokens: 20}
"""


# What a busy machine adds to stderr: lines that say, after two seconds, that something still goes on.
WAITING = re.compile(
    r"^(.*: ([\d,]+( of [\d,]+)? [\w ]+, )?\d+ s|.*; a second Ctrl-C or SIGTERM ends it at once)\n", re.M
)


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said; `err` is without WAITING."""

    code: int
    out: str
    err: str


def well(ended: Ended) -> str:
    """What a command printed that ended without errors and without warnings."""
    assert ended.code == 0, ended.err
    assert ended.err == ""
    return ended.out


def slow_but(cases: Iterable[str], *quick: str) -> list[Any]:
    """These cases of a test, all of them slow but for some."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (case not in quick)) for case in cases]


def one_line(ended: Ended, code: int, *said: str) -> None:
    """The command ended with this code and one line, which says all of this and is not about a bug."""
    assert ended.code == code and ended.err.count("\n") == 1 and "this is a bug" not in ended.err, ended
    assert all(part in ended.err for part in said), ended.err


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files in a folder, or of a file."""
    files = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


def small_text(lines: int = 60) -> str:
    """Lines of random words, always the same."""
    draw = random.Random(0)
    return "".join(" ".join(draw.choices(WORDS, k=6)) + ".\n" for _ in range(lines))


def furnish(folder: Path, config: str = CONFIG) -> Path:
    """Put the small text and a config that learns from it into a folder."""
    (folder / "text.txt").write_text(small_text(), encoding="utf-8")
    (folder / "small.yaml").write_text(config, encoding="utf-8")
    return folder


@cache
def data_folder() -> str:
    """A folder for the ids of all processes of this test run, instead of the repository's data/."""
    folder = tempfile.TemporaryDirectory(prefix="minigpt-data-")
    atexit.register(folder.cleanup)
    return folder.name


def environment(**changes: str) -> dict[str, str]:
    """A user's environment: one thread, data in a temporary folder, and nothing that unbuffers Python for the tests."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return kept | {"OMP_NUM_THREADS": "1", "MINIGPT_DATA": data_folder()} | changes


def command_line(name: str | Path, *arguments: object) -> list[str]:
    """The words of `python scripts/NAME arguments`."""
    return [sys.executable, str(SCRIPTS / name), *map(str, arguments)]


def process(name: str | Path, *arguments: object, cwd: Path, **env: str) -> Ended:
    """Run a script in a process of its own, to its end."""
    ended = subprocess.run(
        command_line(name, *arguments),
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    return Ended(ended.returncode, ended.stdout.decode("utf-8"), WAITING.sub("", ended.stderr.decode("utf-8")))


def script(
    name: str | Path,
    *arguments: object,
    cwd: Path,
    encoding: str = "utf-8",
    full: tuple[str, ...] = (),
    imports: tuple[str, ...] = (),
    **env: str,
) -> Ended:
    """The same by way of the server. `encoding` is that of its terminal; `full` may name "out" and "err".

    `imports`: what the script finds imported: by a fork of the server, for other commands must not find it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = ("/dev/full" if stream in full else f"{folder}/{stream}" for stream in ("out", "err"))
        asked = server(imports)
        request = {"argv": command_line(name, *arguments)[1:], "cwd": str(cwd), "env": env, "encoding": encoding}
        code = asked.ask(child=asked.ask(streams=[os.devnull, out, err], hurried=True, **request), wait=True)
        said, complained = (b"" if path == "/dev/full" else Path(path).read_bytes() for path in (out, err))
        return Ended(code, said.decode(encoding), WAITING.sub("", complained.decode("utf-8")))


class Started:
    """A command under way, in a process of its own that a server has forked."""

    def __init__(self, pid: int, pipes: Mapping[int, TextIO], by: Server):
        self.pid, self.by = pid, by
        self.stdin, self.stdout, self.stderr = (pipes.get(number) for number in range(3))
        self.code: int | None = None

    def poll(self, wait: bool = False) -> int | None:
        """Its exit code, or None while it is under way."""
        if self.code is None:
            self.code = self.by.ask(child=self.pid, wait=wait)
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended; an alarm ends it after minutes."""
        deadline = time.monotonic() + (timeout or 0.0)
        while (code := self.poll(wait=timeout is None)) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a command", timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, signum: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def rest(self) -> str:
        """What it still says on stderr, to its end."""
        assert self.stderr
        with self.stderr:
            said = self.stderr.read()
        self.wait()
        return said


def wait_until(happened: Callable[[], bool], process: Started | subprocess.Popen[Any] | None = None) -> None:
    """Wait until something has happened: for minutes at most, and no longer than the process lives that makes it."""
    deadline = time.monotonic() + 120
    while not happened():
        over = process is not None and process.poll() is not None
        assert happened() or not over, "the process ended before it happened"
        assert time.monotonic() < deadline, "it did not happen within two minutes"
        time.sleep(0.005)


@contextmanager
def started(
    name: str | Path,
    *arguments: object,
    cwd: Path,
    stdout: bool = False,
    terminal: int | None = None,
    session: bool = False,
    ignored: tuple[int, ...] = (),
    quiet: float = waiting.QUIET_SECONDS,
    **env: str,
) -> Iterator[Started]:
    """A script under way, by way of the server; it does not outlive the `with`.

    `stdout`: it is a pipe as stderr is, not /dev/null. `terminal`: the descriptor of one, for all three. `session`: it
    has a session of its own, whose terminal it is. `ignored`: signals that are ignored, as under nohup. `quiet`: after
    how many seconds it says what it does; to wait for the two of a user shows nothing more.
    """
    piped = [number for number, asked in ((1, stdout), (2, terminal is None)) if asked]
    others = os.devnull if terminal is None else os.ttyname(terminal)
    own = {"session": session, "ignored": ignored, "quiet": quiet}
    running = forked(piped, others, argv=command_line(name, *arguments)[1:], cwd=str(cwd), env=env, **own)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        for pipe in (running.stdout, running.stderr):
            if pipe:
                pipe.close()


def forked(piped: Sequence[int], others: str = os.devnull, **request: Any) -> Started:
    """A process that the server forks. The streams in `piped` (0, 1, 2) are pipes; the others lead to a file."""
    with tempfile.TemporaryDirectory() as folder, server().lock:
        streams = [f"{folder}/{number}" if number in piped else others for number in range(3)]
        for number in piped:
            os.mkfifo(streams[number])
        server().send(streams=streams, encoding="utf-8", **request)
        order = [number for number in (1, 2, 0) if number in piped]  # as the server opens them
        pipes = {}
        for number in order:
            pipes[number] = open(streams[number], "r" if number else "w", encoding="utf-8")  # noqa: SIM115 (it stays)
        return Started(server().answer(), pipes, server())


class ForkedProcess(JsonProcess):
    """A process of its own as `JsonProcess` starts one, but forked from the server, which has imported torch."""

    def __init__(
        self, statement: str, *arguments: str, first: Any = None, variables: Mapping[str, str] | None = None, **_: bool
    ):
        self.unsent = [] if first is None else [first]
        code = f"import sys; sys.path[:] = {sys.path!r}; {IGNORE_SIGINT}; {statement}"
        request = {"cwd": os.getcwd(), "env": dict(variables or {})}
        self.process = forked([0, 1], code=code, argv=["-c", *arguments], **request)  # type: ignore[assignment]


def server(imports: tuple[str, ...] = ()) -> Server:
    """The server, started when it is first needed, with the shim (`shim.py`), which is off; a fork for more imports."""
    with STARTING:
        return SERVERS[imports] if imports in SERVERS else begun(imports)


def begun(imports: tuple[str, ...]) -> Server:
    """A server, which is kept."""
    if imports:
        argv, code = [fork_server.__file__, *imports], "import __main__; __main__.serve()"
        forks = forked([0, 1], code=code, argv=argv, cwd=os.getcwd())
        assert forks.stdin and forks.stdout
        SERVERS[imports] = Server(forks.stdin, forks.stdout)
        atexit.register(forks.stdout.close)
        atexit.register(forks.stdin.close)  # the end of its input is the end of the server
    else:
        SERVERS[imports] = fork_server.begin(environment(**({"LD_PRELOAD": str(shim)} if (shim := built()) else {})))
    return SERVERS[imports]


SERVERS: dict[tuple[str, ...], Server] = {}
STARTING = threading.RLock()  # two threads that need a server have the same one
