"""How several processes share a model: `training.parallel`, `ddp` or `fsdp`.

With ddp each process has the whole model; gradients are summed. With fsdp each has a share of every parameter, of its
gradient and of the optimizer's state (ZeRO, arXiv 1910.02054; "PyTorch FSDP", arXiv 2304.11277): torch's `fully_shard`
gathers a block before it computes, and drops it again. Both start with the weights of one process and train on the same
batches, so they learn the same; only the order of sums differs. With one process both do nothing.

bfloat16 and float16 come from autocast: with the mixed precision of `fully_shard`, norms and sums would be in them too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minigpt.config.options import Component
from minigpt.model.config import ModelConfig
from minigpt.model.gpt import GPT, Cache
from minigpt.model.initialise import Draws, layer_parameters, start
from minigpt.training import distributed
from minigpt.training.sharding import put, rows_of

if TYPE_CHECKING:  # its import takes time
    from torch.distributed.device_mesh import DeviceMesh


class Parallel(Component):
    """How several processes share a model."""

    def place(self, make: Callable[..., GPT], device: torch.device, fresh: bool) -> GPT:
        """The model that `make` returns, on the device, as this process keeps it; `make` may get a class below GPT.

        `fresh`: only the constructor sets its weights; none were loaded.
        """
        return make().to(device)

    def summed(self, loss_of: nn.Module) -> nn.Module:
        """Wrap a module that returns losses, so that their backward pass sums the gradients over all processes."""
        return loss_of


class DDP(Parallel, kind="ddp"):
    """Each process has the whole model (arXiv 2006.15704)."""

    def summed(self, loss_of: nn.Module) -> nn.Module:
        """Wrap it in torch's DDP, which sends a bucket of gradients while the backward pass computes the next.

        DDP searches for parameters without a gradient in every step, because a plugin's model may have different ones
        each time. Its buckets are then also the same from the first step on, and a resumed run adds up in the same
        order. DDP would warn if it found no such parameter, so it gets one, `unused`. Before each forward pass `unused`
        gets a gradient of 0: for a parameter whose gradient is None, DDP asks whether another process has a gradient,
        and a GPU would have to wait for the answer. All processes have made the same weights, so DDP need not send
        them. DDP imports torch's compiler, which takes as long as importing torch.
        """
        if distributed.world() == 1:
            return loss_of
        some = next(loss_of.parameters())
        unused = nn.Parameter(torch.zeros((), dtype=some.dtype, device=some.device))
        loss_of.unused = nn.ParameterList([unused])  # the last of all parameters
        gpu = [some.device] if some.device.type == "cuda" else None
        ddp = DistributedDataParallel(
            loss_of, device_ids=gpu, init_sync=False, find_unused_parameters=True, gradient_as_bucket_view=True
        )
        ddp.broadcast_buffers = False
        ddp.register_comm_hook(None, lambda _, bucket: total(bucket.buffer()))
        ddp.register_forward_pre_hook(lambda module, inputs: (0 * unused).backward())
        return ddp


def total(bucket: Tensor) -> torch.futures.Future[Tensor]:
    """The sum of a bucket of gradients over all processes, in place; DDP itself would take the mean."""
    return dist.all_reduce(bucket, async_op=True).get_future().then(lambda done: done.value()[0])


def summed_later(loss_of: nn.Module) -> AbstractContextManager[None]:
    """A context in which gradients are only added up in this process; a later backward pass sums them over all."""
    return getattr(loss_of, "no_sync", nullcontext)()


class FSDP(Parallel, kind="fsdp"):
    """Each process keeps a share of the model, and gathers at most one whole block at a time."""

    def place(self, make: Callable[..., GPT], device: torch.device, fresh: bool) -> GPT:
        if distributed.world() == 1:
            return super().place(make, device, fresh)
        if not fresh:
            model = make().to(device)
            shard(model, device)
            return model
        return made_in_shards(make, device)


def shard(model: GPT, device: torch.device, mesh: DeviceMesh | None = None) -> None:
    """Keep only this process's rows of each parameter, on `device`; a parameter on the meta device gets no values yet.

    Gradients are summed, not averaged: gloo's sum cannot divide. Scalar parameters have no rows, and stay whole.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or init_device_mesh(device.type, (distributed.world(),))
    for part in (*model.blocks, model):
        single = {parameter for parameter in part.parameters() if parameter.ndim == 0}
        sharded = fully_shard(part, mesh=mesh, ignored_params=single)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


class Apart(GPT):
    """A model that is taken apart while it is made: at most one part, such as a block, is ever whole.

    A part that is there loses its values. Those that it has set itself stay in `own`, of each this process's rows; the
    names of those that torch has drawn are in `fresh`.
    """

    def __init__(self, config: ModelConfig, vocab_size: int):
        self.own, self.fresh = dict[str, Tensor](), set[str]()
        with Draws() as self.drawn:
            super().__init__(config, vocab_size)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self.take_apart(name, value)
        super().__setattr__(name, value)

    def make_block(self, layer: int) -> nn.Module:
        block = super().make_block(layer)
        self.take_apart(f"blocks.{layer}", block)
        return block

    def take_apart(self, name: str, part: nn.Module) -> None:
        """Replace the parameters of a part by others without values."""
        self.fresh.update(f"{name}.{key}".replace("..", ".") for key, p in layer_parameters(part) if p in self.drawn)
        empty = dict[Tensor, nn.Parameter]()
        for key, parameter in list(part.named_parameters(remove_duplicate=False)):
            if parameter.is_meta or parameter.ndim == 0:
                continue
            if f"{name}.{key}" not in self.fresh:
                self.own[f"{name}.{key}"] = rows_of(parameter)
            if parameter not in empty:
                empty[parameter] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
            module, _, last = key.rpartition(".")
            setattr(part.get_submodule(module), last, empty[parameter])


def made_in_shards(make: Callable[..., GPT], device: torch.device) -> GPT:
    """The model that `make` returns, in shards. Equal seeds give the weights that one process makes.

    Each process draws all numbers in the order of the constructor, and keeps only its own rows. For parameters that a
    module has set itself, it does so when the part is made; those that torch has drawn are drawn again at the end, with
    GPT-2's initialisation, one parameter at a time.
    """
    model = make(Apart)
    own, fresh, _ = (vars(model).pop(name) for name in ("own", "fresh", "drawn"))
    model.__class__ = GPT
    shard(model, device)
    model._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))  # type: ignore[no-untyped-call]
    fill(model, own, fresh)
    return model


@torch.no_grad()
def fill(model: GPT, own: dict[str, Tensor], fresh: set[str]) -> None:
    """Set the values of the sharded parameters: the rows in `own`, or, for names in `fresh`, rows of a new draw."""
    initialised = set[Tensor]()  # a tied head is the tokens' weight, which is drawn first
    for name, parameter in layer_parameters(model):
        if name in fresh and parameter not in initialised:
            value = torch.empty(parameter.shape, dtype=parameter.dtype)
            start(name, value, model.config.n_layer)
            put(parameter, value)
            initialised.add(parameter)
    for name, parameter in model.named_parameters():
        if name in own:
            parameter.to_local().copy_(own[name])  # type: ignore[attr-defined]


class InStep(nn.Module):
    """A model in shards that generates text: all processes compute it together, from the logits of process 0."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model, self.config = model, model.config
        self.make_cache = model.make_cache
        self.train(model.training)

    def last(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """The logits of the next token, (B, V). The whole model is called, because its hooks gather the parameters."""
        logits = self.model(ids, cache)[:, -1].contiguous()  # (B, V)
        distributed.from_first(logits)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """`hidden` itself: `last` has returned logits already."""
        return hidden
