"""Distributed training: torchrun starts several processes, and each computes some rows of every batch.

    torchrun --nproc-per-node 2 scripts/train.py --config tiny.yaml

Batch n is the same global batch for any number of processes, so several processes train the same model as one process
does, up to the order in which gradients are added. With one process, every function here does nothing.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from minigpt.system.errors import UserError
from minigpt.system.signals import SIGHUP
from minigpt.system.waiting import interruptible

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set for each process
TIMEOUT = 600.0  # seconds to wait for the other processes to start
LOST = re.compile("gloo|Connection|NCCL|Socket|socket|TCPStore|timed out", re.I)  # torch's words for a lost process
PARENT = os.getppid()


def start(device: str) -> None:
    """Join the process group, if torchrun started several processes; `device` is the config's.

    Each process gets the GPU of its own number on this machine, before anything is allocated on one. Raises UserError
    if there are too few, if processes compute on different kinds of devices, and as `started` does; ConnectionError if
    a process is missing.

    The group is destroyed before Python exits: its threads own tensors, and freeing one after Python has ended aborts
    the process. `torch.distributed.nn` is imported before the group exists, because its functions would otherwise keep
    a reference to the group, as a default argument.
    """
    if started()[1] > 1 and not dist.is_initialized():
        import torch.distributed.nn

        gpu = own_gpu() if device in ("auto", "cuda") and torch.cuda.is_available() else None
        join(gpu)
        atexit.register(dist.destroy_process_group)


def own_gpu() -> torch.device:
    """Choose the GPU of this process's number on its machine, and return it. Raises UserError if there are too few."""
    own, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    processes = max(own + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    if processes > count:
        problem = (
            f"{processes} processes on this machine, and {count} GPU{'s' * (count > 1)}: each process needs its own"
        )
        raise UserError(f"training.device: {problem}: use --nproc-per-node {count}, or training.device=cpu")
    torch.cuda.set_device(own)
    return torch.device("cuda", own)


def join(gpu: torch.device | None) -> None:
    """Wait for the other processes, at most TIMEOUT seconds. Raises ConnectionError, and UserError as `meet` does."""
    others = f"the other {started()[1] - 1} of {started()[1]} processes"
    try:
        interruptible(lambda: meet(gpu), f"process {rank()} waits for {others}, at most {TIMEOUT:.0f} s", TIMEOUT)
    except UserError:
        raise
    except TimeoutError:
        late = f"{others} did not come within {TIMEOUT:.0f} s"
        raise ConnectionError(f"{late}: start them all, best with torchrun") from None
    except Exception as error:
        raise ConnectionError(f"could not meet {others} ({_first_line(error)})") from error


def meet(gpu: torch.device | None) -> None:
    """Make the process group with the other processes, on GPUs or on CPUs (`gpu` is None).

    Raises UserError in all processes if some compute on a GPU and some on a CPU: these would wait for each other, or be
    as slow as the slowest. The first process keeps the store, so it leaves only when all have read it.
    """
    store, rank, world = next(rendezvous("env://"))
    store.set(f"device of {rank}", "cuda" if gpu else "cpu")
    devices = [store.get(f"device of {other}").decode() for other in range(world)]  # each waits for that process
    store.set(f"{rank} has read", "")
    if rank == 0:
        store.wait([f"{other} has read" for other in range(world)])
    if len(set(devices)) > 1:
        problem = f"{devices.count('cuda')} of {world} processes compute on a GPU, the others on a CPU; this one on "
        hint = "let every process see its GPU, or use training.device=cpu in all of them"
        raise UserError(f"training.device: {problem}{devices[rank]}: {hint}")
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, device_id=gpu)


def rank() -> int:
    """The number of this process; process 0 writes and prints. Raises UserError, as `started` does."""
    return started()[0]


def started() -> tuple[int, int]:
    """(rank of this process, number of processes), from the environment: (0, 1) without torchrun.

    Raises UserError if torchrun's variables are incomplete or wrong: the process would print nothing, or wait for ever.
    """
    variables = {name: os.environ[name] for name in TORCHRUN if name in os.environ}
    numbers = {name: text for name, text in variables.items() if name != "MASTER_ADDR"}
    wrong = [f"{name}={text[:40]!r}" for name, text in numbers.items() if not re.fullmatch("[0-9]{1,5}", text)]
    rank, world = (0, 1) if wrong else (int(variables.get("RANK", 0)), int(variables.get("WORLD_SIZE", 1)))
    if not wrong and rank >= world:
        wrong = [f"RANK={rank} of WORLD_SIZE={world}"]
    if not wrong and world > 1 and len(variables) < len(TORCHRUN):
        wrong = [f"WORLD_SIZE={world} without {', '.join(name for name in TORCHRUN if name not in variables)}"]
    if wrong:
        hint = "start several processes with torchrun, which sets all of them, or unset them"
        raise UserError(f"the environment says {', '.join(wrong)}: {hint}")
    return rank, world


def world() -> int:
    """How many processes train together: 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def check_rows(batch_size: int, processes: int) -> None:
    """Raises UserError for more processes than a batch has windows: some would have nothing to compute."""
    if batch_size < processes:
        problem = f"{batch_size} window{'s' * (batch_size > 1)} cannot be divided among {processes} processes"
        raise UserError(f"training.batch_size: {problem}: make it at least {processes}, or start fewer processes")


def agree(signum: int, due: bool) -> tuple[int, bool]:
    """The signal for which all processes stop after this step (0: none), and whether a checkpoint is due in any.

    `signum` and `due` are what this process has noticed. If torchrun has ended, the signal is SIGHUP: nothing else
    would stop these processes.
    """
    orphaned = dist.is_torchelastic_launched() and os.getppid() != PARENT
    signum, any_due = divmod(largest(2 * (signum or orphaned * SIGHUP) + due), 2)
    return signum, bool(any_due)


def wait_for_all() -> None:
    """Wait until every process has called this: torchrun ends all of them as soon as one has failed."""
    largest(0)


def in_shards(tensor: torch.Tensor) -> bool:
    """Whether each process holds only some rows of a tensor (`sharding.py`)."""
    if world() == 1:
        return False
    from torch.distributed.tensor import DTensor  # this import takes a second

    return isinstance(tensor, DTensor)


def add_up(tensors: Iterable[torch.Tensor]) -> None:
    """Replace each tensor by its sum over all processes; the transfers overlap."""
    with reaching_others():
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()


def largest(number: int) -> int:
    """The maximum of a number over all processes."""
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


def summed(number: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor () over all processes, in float64, on its device. With one process, the tensor itself."""
    if world() > 1:
        number = number.double()
        _reduce(number)
    return number


def largest_of(number: torch.Tensor) -> torch.Tensor:
    """The maximum of a tensor () over all processes, on its device. With one process, the tensor itself."""
    if world() > 1:
        number = number.clone()
        _reduce(number, dist.ReduceOp.MAX)
    return number


def exchange(sent: torch.Tensor, outgoing: list[int], incoming: list[int]) -> torch.Tensor:
    """All-to-all: send `outgoing[i]` numbers of `sent` to process i, and return `incoming[i]` numbers from it.

    `sent` is (sum(outgoing),), in the order of the processes; the result is (sum(incoming),).
    """
    received = sent.new_empty(sum(incoming))
    with reaching_others():
        dist.all_to_all_single(received, sent, incoming, outgoing)
    return received


def from_first(tensor: torch.Tensor) -> None:
    """Broadcast: replace a tensor by that of process 0."""
    if world() > 1:
        tensor *= rank() == 0
        _reduce(tensor)


def _reduce(tensor: torch.Tensor, by: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
    """Replace a tensor by its sum, or another reduction, over all processes. Raises ConnectionError if one ended."""
    with reaching_others():
        dist.all_reduce(tensor, by)


@contextmanager
def reaching_others(surely: bool = True) -> Iterator[None]:
    """Raise ConnectionError in place of torch's RuntimeError.

    With `surely` false, only if the text of the error says that a process may have ended.
    """
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not (surely or isinstance(error, dist.DistError) or LOST.search(str(error))):
            raise
        gone = f"another of the {world()} processes has ended, or cannot be reached ({_first_line(error)})"
        raise ConnectionError(f"{gone}; start them again with --resume to go on from the last checkpoint") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
