"""Helpers for the tests of commands: a small text, a small config, and the scripts as processes.

`process` starts `python scripts/NAME.py` as a user does. `script` gives the same result in a tenth of the time: one
server imports torch once and forks for each command. The child runs the script as `__main__`, with its own arguments,
folder, output and exit code.

    python tests/running.py        # the server: one request (JSON) a line on stdin, one exit code a line on stdout
"""

from __future__ import annotations

import atexit
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
PROFILES = {"--profile", "attention"}  # arguments of the commands that use torch's profiler
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


def command_line(name: str, *arguments: object) -> list[str]:
    """The words of `python scripts/NAME arguments`."""
    return [sys.executable, str(SCRIPTS / name), *map(str, arguments)]


def process(name: str, *arguments: object, cwd: Path, **env: str) -> Ended:
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
    name: str, *arguments: object, cwd: Path, encoding: str = "utf-8", full: tuple[str, ...] = (), **env: str
) -> Ended:
    """The same by way of the server. `encoding` is that of its terminal; `full` may name "out" and "err"."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        argv = command_line(name, *arguments)[1:]
        request = {"argv": argv, "cwd": str(cwd), "out": str(out), "err": str(err), "encoding": encoding, "env": env}
        request |= dict.fromkeys(full, "/dev/full")
        asked, answers = server().stdin, server().stdout
        assert asked and answers
        asked.write(json.dumps(request) + "\n")
        asked.flush()
        code = int(answers.readline())
        said, complained = (path.read_bytes() if path.exists() else b"" for path in (out, err))
        return Ended(code, said.decode(encoding), WAITING.sub("", complained.decode("utf-8")))


@cache
def server() -> subprocess.Popen[str]:
    """The server, started when it is first needed."""
    started = subprocess.Popen(
        [sys.executable, __file__], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def stop() -> None:
        started.communicate(timeout=10)  # the end of its input is the end of the server

    atexit.register(stop)
    return started


def serve() -> None:
    """Fork for each request, and answer with the exit code."""
    import torch

    import minigpt.command
    import minigpt.runs.start
    from minigpt.system import waiting

    assert torch and minigpt.command and minigpt.runs.start
    waiting.QUIET_SECONDS = 30.0  # so that a busy machine adds no line to what is expected
    for line in sys.stdin:
        request = json.loads(line)
        if PROFILES & set(request["argv"]):  # torch's profiler needs its compiler, which takes as long as torch itself
            import torch._inductor
        child = os.fork()
        if not child:
            become(request)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(request: dict[str, Any]) -> NoReturn:
    """Be the process that was asked for."""
    signal.alarm(120)  # a script that hangs ends all the same
    os.environ.update(request.get("env", {}))
    os.chdir(request["cwd"])
    for descriptor, name in enumerate((os.devnull, request["out"], request["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), descriptor)
    sys.argv, sys.path[0] = request["argv"], str(SCRIPTS)
    sys.stdout.reconfigure(encoding=request["encoding"])  # type: ignore[union-attr]
    code: Any = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
