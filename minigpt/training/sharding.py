"""Tensors in shards: each process holds some rows of a parameter, of its gradient and of the optimizer's state.

torch calls such a tensor a DTensor. With one process, or with `training.parallel: ddp`, no tensor is one, and every
function here returns what it was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from minigpt.training import distributed
from minigpt.training.distributed import in_shards

Batch = TypeVar("Batch")


def is_sharded(model: nn.Module) -> bool:
    """Whether the parameters of a model are in shards."""
    return any(map(in_shards, model.parameters()))


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor: every process must ask for it, and gets it."""
    return tensor.full_tensor() if in_shards(tensor) else tensor  # type: ignore[attr-defined]


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole value in the form of a tensor: on its device, and in shards if the tensor is. Nothing is sent."""
    if not in_shards(tensor):
        return value.to(tensor.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def rows_of(value: Tensor) -> Tensor:
    """A copy of the rows of a whole value that this process holds; they may be none."""
    chunks, rank = value.detach().chunk(distributed.world()), distributed.rank()
    return chunks[rank].clone() if rank < len(chunks) else value.detach()[:0].clone()


def in_step(batches: Iterable[Batch], sharded: bool) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is one of this process's own.

    A forward pass of a model in shards needs all processes. So one that has no batch left repeats its last one until no
    process has any.
    """
    last: Batch | None = None
    for last in batches:
        if sharded:
            distributed.largest(1)
        yield last, True
    while sharded and distributed.largest(0):
        assert last is not None, "every process has a batch"
        yield last, False


@torch.no_grad()
def put(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value into a tensor."""
    tensor.copy_(like(tensor, value))


def clip_shards(gradients: list[Tensor], longest: float) -> float:
    """Clip a gradient in shards to the norm `longest` (0: do not clip), and return its norm before that.

    Squares are added up within each process first, so the last bits are not those of one process.
    """
    mine = [gradient.to_local() for gradient in gradients if in_shards(gradient)]  # type: ignore[attr-defined]
    others = [gradient for gradient in gradients if not in_shards(gradient)]
    squares = [nn.utils.get_total_norm(some).item() ** 2 for some in (mine, others)]
    norm = math.sqrt(distributed.total(squares[0])[0] + squares[1])
    if 0 < longest < norm + 1e-6:
        torch._foreach_mul_([*mine, *others], longest / (norm + 1e-6))
    return norm
