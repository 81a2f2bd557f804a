"""Several processes that train one model: torchrun starts them, each takes its rows of every batch.

    torchrun --nproc-per-node 2 scripts/train.py --config tiny.yaml

Batch n is the same global batch whatever the number of processes, so they learn what one process would, up to the
order in which gradients are added. One process alone needs none of this: every function here is then the identity.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections.abc import Iterable

import torch
import torch.distributed as dist

from minigpt.system.errors import UserError
from minigpt.system.signals import SIGHUP

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set for each process
PATIENCE = 600.0  # seconds to wait for the other processes to come
PARENT = os.getppid()


def start(device: str) -> None:
    """Meet the other processes, if torchrun started any; `device` is the config's. Raises OSError if one is missing.

    The group is taken apart while Python is still whole: its threads hold tensors, and one that lets go of a tensor
    after Python has ended aborts the process. `torch.distributed.nn` is imported before the group is there, because
    its functions would otherwise hold the group for ever, as a default argument.
    """
    if started()[1] > 1 and not dist.is_initialized():
        import torch.distributed.nn

        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        meet("cpu:gloo,cuda:nccl" if cuda else "gloo")
        atexit.register(dist.destroy_process_group)


def meet(backend: str) -> None:
    """Wait for the other processes, at most PATIENCE seconds. Raises ConnectionError.

    torch waits in C++, where no signal is heard, so it does that in a thread of its own.
    """
    failures: list[Exception] = []

    def wait() -> None:
        try:
            dist.init_process_group(backend)
        except Exception as error:
            failures.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(2)
    others = f"the other {started()[1] - 1} of {started()[1]} processes"
    if waiting.is_alive():
        print(f"process {rank()} waits for {others}, at most {PATIENCE:.0f} s", file=sys.stderr)
        waiting.join(PATIENCE - 2)
    if waiting.is_alive():
        raise ConnectionError(f"{others} did not come within {PATIENCE:.0f} s: start them all, best with torchrun")
    for error in failures:
        raise ConnectionError(f"could not meet {others} ({_first_line(error)})") from error


def rank() -> int:
    """The number of this process: 0 writes and speaks for all. Raises UserError, as `started` does."""
    return started()[0]


def started() -> tuple[int, int]:
    """The number of this process and how many were started, from the environment: 0 and 1 without torchrun.

    Raises UserError for half of what torchrun sets: alone, such a process would keep silent, or wait for nobody.
    """
    said = {name: os.environ[name] for name in TORCHRUN if name in os.environ}
    numbers = {name: text for name, text in said.items() if name != "MASTER_ADDR"}
    wrong = [f"{name}={text[:40]!r}" for name, text in numbers.items() if not re.fullmatch("[0-9]{1,5}", text)]
    rank, world = (0, 1) if wrong else (int(said.get("RANK", 0)), int(said.get("WORLD_SIZE", 1)))
    if not wrong and rank >= world:
        wrong = [f"RANK={rank} of WORLD_SIZE={world}"]
    if not wrong and world > 1 and len(said) < len(TORCHRUN):
        wrong = [f"WORLD_SIZE={world} without {', '.join(name for name in TORCHRUN if name not in said)}"]
    if wrong:
        hint = "start several processes with torchrun, which sets all of them, or unset them"
        raise UserError(f"the environment says {', '.join(wrong)}: {hint}")
    return rank, world


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def agree(signum: int, due: bool) -> tuple[int, bool]:
    """The signal for which all processes stop after this step, one that any of them noticed, or 0; and whether a
    checkpoint is due, by the clock of any of them.

    Where torchrun is gone, the signal is SIGHUP: nobody else would ever stop these processes.
    """
    orphaned = dist.is_torchelastic_launched() and os.getppid() != PARENT
    signum, any_due = divmod(largest(2 * (signum or orphaned * SIGHUP) + due), 2)
    return signum, bool(any_due)


def wait_for_all() -> None:
    """Go on when every process has come here: torchrun ends all of them as soon as one has ended in a failure."""
    largest(0)


def add_up(tensors: Iterable[torch.Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if world() > 1:
        for tensor in tensors:
            _reduce(tensor)


def largest(number: int) -> int:
    """The largest of a number over all processes."""
    if world() == 1:
        return number
    tensor = torch.tensor(number)
    _reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def total(*numbers: float) -> list[float]:
    """The sum of each number over all processes, in float64."""
    if world() == 1:
        return list(numbers)
    tensor = torch.tensor(numbers, dtype=torch.float64)
    _reduce(tensor)
    return tensor.tolist()


def _reduce(tensor: torch.Tensor, by: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    """Replace a tensor by its sum, or another reduction, over all processes. Raises ConnectionError if one is gone."""
    try:
        dist.all_reduce(tensor, by)
    except RuntimeError as error:
        gone = f"another of the {world()} processes has ended, or cannot be reached ({_first_line(error)})"
        raise ConnectionError(f"{gone}; start them again with --resume to go on from the last checkpoint") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
