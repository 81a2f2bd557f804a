"""Ranks of one training, as torchrun starts them, but forked from the server, which has imported torch.

    ranks("train.py", "--config", "small.yaml", cwd=folder)

torchrun takes two seconds of the CPU for itself and two for each rank. `torchrun` is the real one, for the tests of
what it does: the ranks meet, a signal is passed on, and when one has failed the others are ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from running import SCRIPTS, WAITING, Started, command_line, environment, server

IMPORTS = (  # once for all ranks, before they meet
    "torch.distributed.nn",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.hf_storage",
)
LOOKS = 0.1  # seconds from one look at the ranks to the next, as torchrun's
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TRAIN = [*TORCHRUN, str(SCRIPTS / "train.py")]


@dataclass(frozen=True)
class Together:
    """How ranks ended (0, if all did well), after how many seconds, and what was said."""

    code: int
    out: str
    err: str
    seconds: float


def variables(processes: int) -> list[dict[str, str]]:
    """What torchrun tells each rank, in its environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_all = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    of_all |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    return [of_all | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def ranks(name: str | Path, *arguments: object, cwd: Path, processes: int = 2, imports: Sequence[str] = ()) -> Together:
    """Run a script in so many ranks, to their end. When one has failed, the others get SIGTERM.

    `imports`: what the ranks find imported, beside what they all need.
    """
    began, by = time.monotonic(), server(imports=(*IMPORTS, *imports))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        started = []
        for rank, env in enumerate(variables(processes)):
            streams = [os.devnull, f"{folder}/out{rank}", f"{folder}/err{rank}"]
            request = {"argv": command_line(name, *arguments)[1:], "cwd": str(cwd), "env": env, "quiet": 30.0}
            started.append(Started(by.ask(streams=streams, encoding="utf-8", **request), {}, by))
            stack.callback(started[-1].kill)
        code = end_together(started)
        out, err = (
            "".join(path.read_text("utf-8") for path in sorted(Path(folder).glob(f"{s}*"))) for s in ("out", "err")
        )
    return Together(code, out, WAITING.sub("", err), time.monotonic() - began)


def end_together(started: list[Started], seconds: float = 120) -> int:
    """Wait for all ranks; the first code that is not 0. The others are told to end as soon as one has failed."""
    failed, deadline = 0, time.monotonic() + seconds
    while any(one.poll() is None for one in started):
        assert time.monotonic() < deadline, "the ranks did not end"
        time.sleep(LOOKS)
        codes = [one.poll() for one in started]
        if not failed and (failed := next((code for code in codes if code), 0)):
            for one in started:
                one.send_signal(signal.SIGTERM)
    return failed or next((one.code for one in started if one.code), 0)


def torchrun(folder: Path, *arguments: str) -> Together:
    """Two processes of `train.py` under the real torchrun, to their end."""
    began = time.monotonic()
    command, env = [*TRAIN, *arguments], environment()
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return Together(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)
