"""Tensors in shards: each process holds some rows of a parameter, of its gradient and of the optimizer's state.

torch calls such a tensor a DTensor. With one process, or with `training.parallel: ddp`, no tensor is a
DTensor, and every function here returns what it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor, nn

from minigpt.training import distributed
from minigpt.training.distributed import in_shards

Batch = TypeVar("Batch")


def is_sharded(model: nn.Module) -> bool:
    """Whether the parameters of a model are in shards."""
    return any(map(in_shards, model.parameters()))


def local(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this process holds, possibly none, in the same memory."""
    return tensor.to_local() if in_shards(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all processes. Every process must call this."""
    return tensor.full_tensor() if in_shards(tensor) else tensor  # type: ignore[attr-defined]


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """A copy of `value`, a whole tensor, on the device of `tensor`, and in shards if `tensor` is. Nothing is sent."""
    if not in_shards(tensor):
        return value.to(tensor.device, copy=True)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def rows_of(value: Tensor) -> Tensor:
    """A copy of the rows of a whole tensor that this process holds, possibly none."""
    chunks, rank = value.detach().chunk(distributed.world()), distributed.rank()
    return chunks[rank].clone() if rank < len(chunks) else value.detach()[:0].clone()


def on_owners(shards: list[Tensor], m: int, function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """This process's rows of function(matrices), from its rows (r, n) of k matrices (m, n).

    Process i modulo the number of processes gathers matrix i, applies `function` to all matrices that it has gathered,
    and sends the rows back. So each number is sent twice, and no process computes what another does. With two processes
    (gloo), 16 matrices of 256 x 256 and 4 of 1024 x 256, `orthogonal` took 29 ms of each process's CPU time this way,
    63 ms where each process gathers all matrices, and 76 ms where torch computes with the shards (DTensor).
    """
    world, rank, n = distributed.world(), distributed.rank(), shards[0].shape[1]
    rows = [len(chunk) for chunk in torch.empty(m, 0).chunk(world)]
    rows += [0] * (world - len(rows))
    owned = [list(range(owner, len(shards), world)) for owner in range(world)]
    k = len(owned[rank])
    outgoing, incoming = [len(own) * rows[rank] * n for own in owned], [k * r * n for r in rows]  # numbers to each
    sent = torch.cat([shards[i].flatten() for i in chain.from_iterable(owned)])  # (k * r * n,), by owner
    parts = distributed.exchange(sent, outgoing, incoming).split(incoming)
    matrices = torch.cat([part.view(k, r, n) for part, r in zip(parts, rows)], dim=1)  # (k of its own, m, n)
    results = function(matrices) if k else matrices  # (k of its own, m, n)
    sent = torch.cat([part.flatten() for part in results.split(rows, dim=1)])
    pieces = distributed.exchange(sent, incoming, outgoing).view(len(shards), rows[rank], n)  # (k, r, n), by owner
    return [pieces[index] for _, index in sorted(zip(chain.from_iterable(owned), range(len(shards))))]


def in_step(batches: Iterable[Batch], sharded: bool) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch with true; then, if the model is sharded, the last batch with false until all have finished.

    A forward pass of a model in shards needs all processes. So a process that has no batch left repeats its last one
    until no process has a batch.
    """
    last: Batch | None = None
    for last in batches:
        if sharded:
            distributed.largest(1)
        yield last, True
    while sharded and distributed.largest(0):
        assert last is not None, "every process has a batch"
        yield last, False


def add_up_single(model: nn.Module) -> None:
    """Sum the gradients of scalar parameters over all processes; `fully_shard` sums those of all other parameters."""
    if is_sharded(model):
        distributed.add_up(p.grad for p in model.parameters() if p.grad is not None and not in_shards(p.grad))


@torch.no_grad()
def put(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value into a tensor, which may be in shards."""
    tensor.copy_(like(tensor, value))


def clip_shards(gradients: list[Tensor], longest: float) -> Tensor:
    """Clip a gradient in shards to the norm `longest` (0: do not clip), and return the norm before clipping, ().

    Squares are added up within each process first, so the last bits can differ from those of one process.
    """
    shards = [local(gradient) for gradient in gradients if in_shards(gradient)]
    others = [gradient for gradient in gradients if not in_shards(gradient)]
    square = nn.utils.get_total_norm(shards).double() ** 2  # ()
    all_squares = distributed.summed(square) + (nn.utils.get_total_norm(others).double() ** 2 if others else 0.0)
    norm = all_squares.sqrt()  # ()
    if longest:
        torch._foreach_mul_([*shards, *others], (longest / (norm + 1e-6)).clamp(max=1.0))
    return norm
