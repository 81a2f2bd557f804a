"""How several processes share a model: `training.parallel`, `ddp` or `fsdp`.

With ddp each process has the whole model; gradients are added up. With fsdp each has a share of every parameter, of its
gradient and of the optimizer's state (ZeRO, arXiv 1910.02054; "PyTorch FSDP", arXiv 2304.11277): torch's `fully_shard`
gathers a block before it computes, and drops it again. Both start with the weights of one process and train on the same
batches, so they learn the same; only the order of sums differs. With one process both do nothing.

Autocast stays what makes bfloat16: torch's own policy for shards would also compute norms and sums in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from minigpt.config.options import Component
from minigpt.model.config import AnyBlock
from minigpt.model.gpt import GPT, Cache
from minigpt.model.initialise import checksum, layer_parameters, noting_draws, start
from minigpt.training import distributed
from minigpt.training.sharding import put, rows_of


class Parallel(Component):
    """How several processes share a model."""

    def place(self, make: Callable[[], GPT], device: torch.device, fresh: bool) -> GPT:
        """The model that `make` makes, on the device, as this process keeps it.

        `fresh`: nothing but the constructor sets its numbers.
        """
        return make().to(device)

    def share(self, number: int) -> int:
        """How many of so many parameters this process keeps."""
        return number

    def summed(self, loss_of: nn.Module) -> nn.Module:
        """A module that returns losses, so that their backward pass sums the gradients over all processes."""
        return loss_of


class DDP(Parallel, kind="ddp"):
    """Each process has the whole model (arXiv 2006.15704)."""

    def summed(self, loss_of: nn.Module) -> nn.Module:
        """With torch's DDP, which sends a bucket of gradients while the backward pass computes the next.

        It looks for parameters without a gradient in every step, since a plugin's model may have other ones each time;
        then its buckets are also the same from the first step on, and a resumed run adds up in the same order. It would
        warn if it found none, so it is given one. That one has got a gradient of 0 before: of one that has none, DDP
        asks whether another process has one, and a GPU would have to wait for the answer. All processes have made the
        same weights: it need not send them. It imports torch's compiler, which takes as long as importing torch.
        """
        if distributed.world() == 1:
            return loss_of
        some = next(loss_of.parameters())
        unused = nn.Parameter(torch.zeros((), dtype=some.dtype, device=some.device))
        loss_of.unused = nn.ParameterList([unused])  # the last of all parameters
        made = DistributedDataParallel(
            loss_of, init_sync=False, find_unused_parameters=True, gradient_as_bucket_view=True
        )
        made.broadcast_buffers = False
        made.register_comm_hook(None, lambda _, bucket: total(bucket.buffer()))
        made.register_forward_pre_hook(lambda module, inputs: (0 * unused).backward())
        return made


def total(bucket: Tensor) -> torch.futures.Future[Tensor]:
    """The sum of a tensor over all processes, in its place, where DDP would take the mean."""
    return dist.all_reduce(bucket, async_op=True).get_future().then(lambda done: done.value()[0])


def summed_later(loss_of: nn.Module) -> AbstractContextManager[None]:
    """In which gradients are added to those of this process, and are summed in a later backward pass."""
    return getattr(loss_of, "no_sync", nullcontext)()


class FSDP(Parallel, kind="fsdp"):
    """Each process keeps a share of the model, and has no more than a block of it whole at a time."""

    def place(self, make: Callable[[], GPT], device: torch.device, fresh: bool) -> GPT:
        if distributed.world() == 1:
            return super().place(make, device, fresh)
        if not fresh:
            model = make().to(device)
            shard(model, device)
            return model
        return made_in_shards(make, device)

    def share(self, number: int) -> int:
        return -(-number // distributed.world())


def shard(model: GPT, device: torch.device) -> None:
    """Keep this process's rows of each parameter, on its device; of one on the meta device, no numbers yet.

    Gradients are added up, not their mean: gloo has no division within a sum. Single numbers have no rows, and stay.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (distributed.world(),))
    for part in (*model.blocks, model):
        single = {parameter for parameter in part.parameters() if parameter.ndim == 0}
        sharded = fully_shard(part, mesh=mesh, ignored_params=single)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def made_in_shards(make: Callable[[], GPT], device: torch.device) -> GPT:
    """What `make` makes, of which only a block was ever whole; equal seeds make the weights of one process.

    Each process draws all numbers in the order of the constructor, and drops what is not its own: for each part once it
    is made, those that it has set itself, and afterwards GPT-2's start, parameter by parameter.
    """
    own, fresh = dict[str, Tensor](), set[str]()

    def take_apart(parent: nn.Module, name: str, part: nn.Module | None) -> None:
        if part is None or not (isinstance(parent, GPT) or isinstance(part, AnyBlock)):
            return
        prefix = name if isinstance(parent, GPT) else f"blocks.{name}"
        fresh.update(f"{prefix}.{key}".replace("..", ".") for key, p in layer_parameters(part) if checksum(p) in drawn)
        empty = dict[Tensor, nn.Parameter]()
        for key, parameter in list(part.named_parameters(remove_duplicate=False)):
            if parameter.is_meta or parameter.ndim == 0:
                continue
            if f"{prefix}.{key}" not in fresh:
                own[f"{prefix}.{key}"] = rows_of(parameter).to(device)
            if parameter not in empty:
                empty[parameter] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            module, _, last = key.rpartition(".")
            setattr(part.get_submodule(module), last, empty[parameter])

    hook = register_module_module_registration_hook(take_apart)
    try:
        with noting_draws() as drawn:
            model = make()
    finally:
        hook.remove()
    shard(model, device)
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))  # type: ignore[no-untyped-call]
    fill(model, own, fresh)
    return model


@torch.no_grad()
def fill(model: GPT, own: dict[str, Tensor], fresh: set[str]) -> None:
    """Give the parameters in shards their numbers: their own rows, or those of a fresh draw."""
    drawn = set[Tensor]()  # a tied head is the tokens' weight, which is drawn first
    for name, parameter in layer_parameters(model):
        if name in fresh and parameter not in drawn:
            value = torch.empty(parameter.shape, dtype=parameter.dtype)
            start(name, value, model.config.n_layer)
            put(parameter, value)
            drawn.add(parameter)
    for name, parameter in model.named_parameters():
        if name in own:
            parameter.to_local().copy_(own[name])  # type: ignore[attr-defined]


class InStep(nn.Module):
    """A model in shards for writing text: all processes write it together, and take the tokens of the first one."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model, self.config = model, model.config
        self.make_cache = model.make_cache
        self.train(model.training)

    def last(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """The logits of the next token, (B, V): the hooks that gather the parameters run when a model is called."""
        logits = self.model(ids, cache)[:, -1].contiguous()  # (B, V)
        distributed.from_first(logits)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """What `last` has returned."""
        return hidden
