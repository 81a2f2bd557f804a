"""Several processes that train one model: torchrun starts them, each takes its rows of every batch.

    torchrun --nproc-per-node 2 scripts/train.py --config tiny.yaml

Batch n is the same global batch whatever the number of processes, so they learn what one process would, up to the
order in which gradients are added. One process alone needs none of this: every function here is then the identity.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable

import torch
import torch.distributed as dist


def start(device: str) -> None:
    """Meet the other processes, if torchrun started any; `device` is the config's.

    The group is taken apart while Python is still whole: its threads hold tensors, and one that lets go of a tensor
    after Python has ended aborts the process. `torch.distributed.nn` is imported before the group is there, because
    its functions would otherwise hold the group for ever, as a default argument.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        import torch.distributed.nn

        cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        atexit.register(dist.destroy_process_group)


def rank() -> int:
    """The number of this process: 0 writes and speaks for all."""
    return int(os.environ.get("RANK", 0))


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def add_up(tensors: Iterable[torch.Tensor]) -> None:
    """Replace each tensor by its sum over all processes."""
    if world() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def largest(number: int) -> int:
    """The largest of a number over all processes: a signal that one of them received is everybody's."""
    if world() == 1:
        return number
    tensor = torch.tensor(number)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def total(*numbers: float) -> list[float]:
    """The sum of each number over all processes, in float64."""
    if world() == 1:
        return list(numbers)
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.tolist()
