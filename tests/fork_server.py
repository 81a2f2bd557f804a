"""The server that forks for each command of the tests: to import torch takes longer than most of them.

The child runs a script as `__main__`, as `python SCRIPT` does, but in a Python that has imported torch and minigpt
already. All else is its own: arguments, folder, streams, signals, session, process id and exit code. What tests use is
in `running.py`.

    python tests/fork_server.py MODULES     # one request (JSON) a line on stdin, one answer a line on stdout

The modules are imported as well, for every child.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

CODES: list[int] = []  # the exit code of a child that ends as it was asked to


@atexit.register  # before others are imported: what is registered first is called last
def end_at_once() -> None:
    """Leave all memory to the system, as the last act of a child: Python frees torch's for 0.2 s of the CPU."""
    with suppress(OSError, ValueError, AttributeError):  # a stream that is broken, closed or absent is Python's to name
        if CODES:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(CODES[0])


import torch  # noqa: E402

from minigpt.system import signals, waiting  # noqa: E402
from minigpt.system.process import IGNORE_SIGINT, JsonProcess  # noqa: E402
from minigpt.text import corpus  # noqa: E402

IMPORTED = (
    "command",
    "training.profiler",
    "training.start",
    "comparison.experiment",
    "learning.classroom",
    "fast.decoding",
)
COUNTED = {"--profile", "attention", "plan.py", "compare.py", "scaling.py"}  # words of commands that profile or count
SECONDS = 300  # after which an alarm ends a child


class Server:
    """The server, as the tests see it."""

    def __init__(self, stdin: TextIO, stdout: TextIO):
        self.lock = threading.RLock()  # around a request and its answer
        self.stdin, self.stdout = stdin, stdout

    def send(self, **request: Any) -> None:
        """Ask for a child, or for the end of one."""
        self.stdin.write(json.dumps(request) + "\n")
        self.stdin.flush()

    def ask(self, **request: Any) -> Any:
        """Send a request and wait for its answer; several threads may ask."""
        with self.lock:
            self.send(**request)
            return self.answer()

    def answer(self) -> Any:
        """The process id of the child that was asked for, or the exit code of the one that has ended."""
        return json.loads(self.stdout.readline())


def begin(env: Mapping[str, str]) -> Server:
    """A server."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, __file__], env=env, stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate, timeout=10)  # the end of its input is the end of the server
    assert process.stdin and process.stdout
    return Server(process.stdin, process.stdout)


def serve() -> None:
    """Answer each request. What the scripts import is imported here, so that no child has to."""
    signal.alarm(0)  # of a server that a server has forked
    for part in ("numpy.random", *(f"minigpt.{part}" for part in IMPORTED), *sys.argv[1:]):
        import_module(part)
    if not torch.backends.cuda.is_built():
        seed_quickly()
    os.environ.pop("LD_PRELOAD", None)  # what the commands start is without the shim, unless a test asks for it
    for line in sys.stdin:
        request = json.loads(line)
        answer = end_of(**request) if "child" in request else start(request)
        print(json.dumps(answer), flush=True)


def seed_quickly() -> None:
    """torch.manual_seed would keep the stack of each call for a GPU that is not there: a millisecond."""
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.manual_seed_all = lambda seed: None


def end_of(child: int, wait: bool) -> int | None:
    """The exit code of a child, when it has ended; without `wait`, None if it has not."""
    ended, status = os.waitpid(child, 0 if wait else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def start(request: dict[str, Any]) -> int:
    """Fork; the child's process id. The end of a pipe is opened here, when the test opens the other."""
    words = {Path(word).name for word in request["argv"]}
    if COUNTED & words or "comparison" in request.get("code", ""):
        import_module("torch._inductor")  # torch profiles and counts with its compiler: as long to import as torch
    streams = opened(*request["streams"])
    child = os.fork()
    if not child:
        become(request, streams)
    for stream in streams:
        os.close(stream)
    return child


def opened(stdin: str, stdout: str, stderr: str) -> list[int]:
    """Descriptors for the streams of a child."""
    written = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY, 0o600) for name in (stdout, stderr)]
    return [os.open(stdin, os.O_RDONLY | os.O_NOCTTY), *written]


def become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the process that was asked for."""
    signal.alarm(SECONDS)  # a script that hangs ends all the same
    if request.get("session"):
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request.get("session") and os.isatty(0):
        import fcntl  # here, so that other systems than Linux can import this file
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for signum in request.get("ignored", ()):
        signal.signal(signum, signal.SIG_IGN)
    os.environ.update(request.get("env", {}))
    if "SHIM_MODE" in os.environ:  # the shim is there since the server was started, and looks again
        ctypes.CDLL(None).shim_from_environment()
    os.chdir(request["cwd"])
    sys.argv, sys.path[0] = request["argv"], os.path.dirname(request["argv"][0])
    sys.stdout.reconfigure(encoding=request.get("encoding"), line_buffering=os.isatty(1))  # type: ignore[union-attr]
    corpus.DATA = Path(os.environ["MINIGPT_DATA"])
    if "quiet" in request:
        waiting.QUIET_SECONDS = signals.QUIET_SECONDS = request["quiet"]
    JsonProcess.__init__ = begin_by_fork  # type: ignore[method-assign]
    if request.get("hurried"):
        hurry()
    try:
        if "code" in request:
            exec(request["code"], {"__name__": "__main__"})
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            CODES.append(end.code or 0)
        raise  # by way of all that Python does at its end


class Forked:
    """A process that was forked, as `subprocess.Popen` would show it, as far as a `JsonProcess` asks."""

    def __init__(self, pid: int, stdin: TextIO, stdout: TextIO):
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self.lock = threading.Lock()

    def poll(self) -> int | None:
        with self.lock:
            if self.returncode is None:
                self.returncode = end_of(self.pid, wait=False)
        return self.returncode

    def wait(self, timeout: float = SECONDS) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def begin_by_fork(
    self: JsonProcess,
    statement: str,
    *arguments: str,
    first: Any = None,
    session: bool = True,
    quiet: bool = False,
    variables: Mapping[str, str] | None = None,
) -> None:
    """`JsonProcess.__init__` for the commands of the tests: a fork has imported torch already."""
    self.unsent = [] if first is None else [first]
    (stdin, told), (heard, stdout) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if session:
                os.setsid()
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            if quiet:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.closerange(3, 1024)  # the ends of other processes' pipes
            os.environ.update(variables or {})
            sys.argv, sys.stdin = ["-c", *arguments], open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            exec(f"{IGNORE_SIGINT}; {statement}", {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else bool(end.code))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    os.close(stdin)
    os.close(stdout)
    pipes = open(told, "w", encoding="utf-8"), open(heard, encoding="utf-8")  # noqa: SIM115 (they stay)
    self.process = Forked(pid, *pipes)  # type: ignore[assignment]


def hurry() -> NoReturn:
    """Run the script that `sys.argv` names. No busy machine adds a line to what it says, and Python ends at once."""
    waiting.QUIET_SECONDS = 30.0
    code: Any = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
