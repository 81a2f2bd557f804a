"""A training step on tensors that have shapes and no values: what it allocates and computes, without the memory.

The step is the real one, with the real model and optimizer, on torch's fake tensors. They are fake CPU tensors, because
torch without CUDA cannot make fake GPU tensors. What a step keeps does not depend on the device, except for the faster
implementations that are chosen only on a CPU; these are left out if the plan is for a GPU.

B windows at a time, T positions of a window, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate as accumulated
from itertools import groupby
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minigpt.fast import make_fast
from minigpt.fast.rotary import table
from minigpt.model import GPT, ModelConfig
from minigpt.model.eval_mode import eval_mode
from minigpt.seeing.cost import counting
from minigpt.system.errors import UserError
from minigpt.training import distributed
from minigpt.training.depth import Event, depths, extrapolated
from minigpt.training.loop import (
    BatchLoss,
    TrainingConfig,
    accumulate,
    added_up,
    clip,
    mixed_precision,
    next_token_loss,
    take_step,
)
from minigpt.training.lora import adapted_layers, add_adapters
from minigpt.training.memory import Job, MetaInit, outline
from minigpt.training.optimizer import Optimizer
from minigpt.training.parallel import shard
from minigpt.training.recompute import recomputing
from minigpt.training.sharding import local

Measured = TypeVar("Measured")
WEIGHTS, GRADIENTS, MOMENTS, LOGITS, ACTIVATIONS = "weights", "gradients", "optimizer", "logits", "activations"
PARTS = (WEIGHTS, GRADIENTS, MOMENTS, LOGITS, ACTIVATIONS)
ATTENTION = F.scaled_dot_product_attention
STACKS = ("aten.stack.default", "aten.cat.default")
READ = {Tensor.item: 1.0, Tensor.__float__: 1.0, Tensor.__int__: 1, Tensor.__bool__: True, Tensor.tolist: [1.0]}


@dataclass(frozen=True)
class Step:
    """What one training step takes on one device."""

    peak: int  # bytes at the moment when the most are allocated
    parts: dict[str, int]  # these bytes by PARTS
    flops: float  # a token, forward and backward, with what is computed again
    forward_flops: float  # a token, forward alone


class Values(TorchFunctionMode):
    """Reading the value of a fake tensor, which has none, gives 1, so that losses and norms are numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return READ[func] if func in READ else func(*args, **(kwargs or {}))


class AllocationLog(TorchDispatchMode):
    """Keeps a log of all storages: when each is allocated, and when it is freed.

    A view shares the storage of its base, so each storage counts once: from when an operation returns it, with the size
    that it has then, until it is freed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers: dict[int, int] = {}  # address of a live storage -> its number; addresses are used again
        self.elements: list[int] = []  # by number: the elements of its first tensor
        self.names: list[Hashable] = []  # by number: the operation that made it, and its shape
        self.entries: list[tuple[int, int]] = []  # number, bytes from now on; 0 bytes: it is freed
        self.gathered: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # address -> a storage that was written `out`
        self.emptied: set[int] = set()  # addresses of those that were resized to nothing since
        self.begin = self.end = 0  # the peak is searched between these indices of the log

    def note(self, tensor: Tensor, name: str) -> None:
        self.note_emptied()
        storage = local(tensor).untyped_storage()
        key = storage._cdata
        if key not in self.numbers:
            self.numbers[key] = len(self.elements)
            self.entries.append((len(self.elements), storage.nbytes()))
            self.elements.append(tensor.numel())
            stacked = tensor.ndim == 3 or name in STACKS  # the first dimension may be the number of layers
            self.names.append((name, tuple(tensor.shape[stacked:])))
            weakref.finalize(storage, self.drop, key)

    def drop(self, key: int) -> None:
        self.note_emptied()
        self.gathered.pop(key, None)
        self.emptied.discard(key)
        self.entries.append((self.numbers.pop(key), 0))

    def note_gathered(self, tensor: Tensor) -> None:
        """`fully_shard` gives the parameters of a block their size again, which is no operation, and gathers them."""
        self.note_emptied()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.emptied:
            self.emptied.remove(key)
            self.entries.append((self.numbers[key], storage.nbytes()))
        if key in self.numbers:
            self.gathered[key] = weakref.ref(storage)

    def note_emptied(self) -> None:
        """Behind a block, `fully_shard` resizes their storages to nothing."""
        for key, storage in [(key, reference()) for key, reference in self.gathered.items()]:
            if storage is not None and storage.nbytes() == 0:
                self.gathered.pop(key)
                self.emptied.add(key)
                self.entries.append((self.numbers[key], 0))

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage."""
        return self.numbers[local(tensor).untyped_storage()._cdata]

    def events(self, part: Callable[[int], str]) -> list[Event]:
        """The bytes at the beginning, by part, then the log from there on; `part` maps the number of a storage."""
        alive = dict(self.entries[: self.begin])
        initial = Counter[str]()
        for number, size in alive.items():
            initial[part(number)] += size
        events = [Event("there", each, initial[each]) for each in PARTS]
        for frees, some in groupby(self.entries[self.begin : self.end], lambda entry: entry[1] == 0):
            freed = Counter[str]()  # consecutive frees are added up, because their order may vary
            for number, size in some:
                change = size - alive.get(number, 0)
                alive[number] = size
                if frees:
                    freed[part(number)] += change
                else:
                    events.append(Event((self.names[number], part(number)), part(number), change))
            events += [Event("freed", each, freed[each]) for each in PARTS if frees]
        return events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for written in tree_leaves((kwargs or {}).get("out", ())):
            self.note_gathered(written)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.note(leaf, str(func))
        if func is torch.ops.aten._safe_softmax.default:  # it also allocates a mask of the rows without a key
            self.note(torch.empty(args[0].shape, dtype=torch.bool), str(func))
        return result


class InBuckets(nn.Module):
    """Allocates what torch's DDP does: buckets for all gradients, as long as a training lasts.

    A gradient moves there once it is complete; before the last micro-batch, gradients are added up elsewhere.
    """

    def __init__(self, loss_of: nn.Module, note: Callable[[Tensor], None]):
        super().__init__()
        self.loss_of, self.note, self.moves = loss_of, note, True
        learning = [parameter for parameter in loss_of.parameters() if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in learning]
        room = torch.empty(sum(sizes), 1, 1).split(sizes)  # (N, 1, 1): more layers make the first dimension longer
        for parameter, slot in zip(learning, room):
            parameter.register_post_accumulate_grad_hook(partial(self.move, slot.view_as(parameter)))

    def forward(self, *arguments: Any) -> Any:
        return self.loss_of(*arguments)

    def move(self, slot: Tensor, parameter: Tensor) -> None:
        """Move the gradient of a parameter into its place in the buckets."""
        assert parameter.grad is not None
        self.note(parameter.grad)
        parameter.grad = slot if self.moves else parameter.grad

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As in torch's DDP: inside the `with`, gradients are not moved to the buckets."""
        self.moves = False
        yield
        self.moves = True


@contextmanager
def fake(gpu: bool, ranks: int = 1) -> Iterator[DeviceMesh | None]:
    """Inside the `with`, new tensors have no values and nothing is initialised; cached tables are dropped at its end.

    This process acts as the first of `ranks` that exchange nothing, whether or not torchrun has started it.
    """
    with ExitStack() as stack:
        stack.callback(table.cache_clear)  # else a real model would get cached angles without values
        table.cache_clear()
        if gpu:
            stack.enter_context(patch("minigpt.fast.kernels.explicit_is_faster", lambda query, key: False))
            stack.enter_context(patch.object(F, "scaled_dot_product_attention", without_dropout))
        stack.enter_context(patch.multiple(distributed, world=lambda: ranks, rank=lambda: 0))
        stack.enter_context(patch.multiple(distributed, total=lambda *numbers: list(numbers), largest=lambda n: n))
        stack.enter_context(patch.object(distributed, "summed", lambda number: number))
        mesh = stack.enter_context(alone_of(ranks)) if ranks > 1 else None
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Values())
        stack.enter_context(MetaInit())
        yield mesh


def without_dropout(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    """Attention in one kernel of a GPU: it drops weights by a seed, where torch's for CPUs would keep them all."""
    return ATTENTION(query, key, value, **options)


@contextmanager
def alone_of(ranks: int) -> Iterator[DeviceMesh]:
    """The mesh of a fake process group of `ranks`, in which nothing is sent. Raises UserError inside a real group."""
    if dist.is_initialized():
        raise UserError("a step in shards cannot be simulated by one of the processes of torchrun")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


def simulate(job: Job) -> Step:
    """What a step takes: `bytes_by_part` and `operations`."""
    parts = bytes_by_part(job)
    return Step(sum(parts.values()), parts, *operations(job))


def bytes_by_part(job: Job) -> dict[str, int]:
    """The bytes at the peak of two steps and an evaluation, with all that stays after the first step, by PARTS.

    Two micro-batches stand for any larger number: from the second on, there are gradients to add to. Raises what the
    model raises, such as a plugin whose constructor needs values.
    """
    sizes = {n * job.config.block_size * job.vocab_size for n in (job.micro_batch, job.evaluated)}

    def log(n_layer: int) -> list[Event]:
        memory_log, parts = allocations(with_layers(job, n_layer))
        return memory_log.events(lambda n: parts.get(n, LOGITS if memory_log.elements[n] in sizes else ACTIVATIONS))

    few = None if job.shared else shallow_depths(job)  # layers that are shared gather one another's parameters
    logs = of_each(log, few) if few else None
    deep = extrapolated(logs, repeats(job, few)) if few and logs else None
    return at_peak(log(job.config.n_layer) if deep is None else deep)


def with_layers(job: Job, n_layer: int) -> Job:
    """The same with another number of layers."""
    return replace(job, config=replace(job.config, n_layer=n_layer))


def of_each(measure: Callable[[int], Measured], few: Sequence[int]) -> list[Measured] | None:
    """`measure(n)` for each number of layers n; None if one raises, such as a plugin that refuses so few layers."""
    try:
        return [measure(n) for n in few]
    except Exception:  # the whole model is measured instead, and its error is shown
        return None


def shallow_depths(job: Job) -> tuple[int, int, int] | None:
    """`depths` of a model as it is trained. Raises UserError for adapters that it cannot have."""
    model, lora = outline(job.config, job.vocab_size), job.training.lora
    return depths(model, adapted_layers(model, lora) if lora else ())


def repeats(job: Job, few: Sequence[int]) -> int:
    """How many periods of layers the model has more than the first shallow one; the second shallow one has one more."""
    return (job.config.n_layer - few[0]) // (few[1] - few[0])


def at_peak(log: list[Event]) -> dict[str, int]:
    """The bytes by PARTS at the moment when they are the most."""
    totals = list(accumulated(event.bytes for event in log))
    sizes = Counter[str]()
    for event in log[: totals.index(max(totals)) + 1]:
        sizes[event.part] += event.bytes
    return {part: sizes[part] for part in PARTS}


def build(config: ModelConfig, vocab_size: int, training: TrainingConfig) -> GPT:
    """The model as it will be trained. Raises UserError for adapters that it cannot have."""
    model = make_fast(GPT(config, vocab_size), training.fast)
    if training.lora is not None:
        is_fake = isinstance(model.tokens.weight, FakeTensor)  # which peft cannot move: it leaves what is on meta
        with torch.device("meta") if is_fake else nullcontext():
            add_adapters(model, training.lora, training.seed)
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_meta:
                    setattr(module, name, nn.Parameter(torch.empty_like(parameter, device="cpu")))
    return model


def precise(job: Job) -> TrainingConfig:
    """The options of a training; on a GPU, the precision `auto` is bfloat16, or float16, which takes as many bytes."""
    auto = job.gpu and job.training.precision == "auto"
    return replace(job.training, precision="bfloat16") if auto else job.training


def allocations(job: Job) -> tuple[AllocationLog, dict[int, str]]:
    """The log of two steps and an evaluation, and which storage belongs to which part."""
    parts: dict[int, str] = {}
    training, T = precise(job), job.config.block_size
    with fake(job.gpu, job.ranks if job.shared else 1) as mesh, AllocationLog() as memory_log:
        model = build(job.config, job.vocab_size, training)
        if job.shared:
            shard(model, torch.device("cpu"), mesh)
        memory_log.begin = len(memory_log.entries)  # making the model does not count: one in shards is never whole
        optimizer: Optimizer = training.optimizer.component(training.optimizer, model)
        forward = recomputing(model) if training.checkpoint_activations else model
        loss_of: nn.Module = BatchLoss(model, added_up(forward, training.objective), mixed_precision(training, model))
        if job.ranks > 1 and not job.shared:
            loss_of = InBuckets(loss_of, lambda gradient: parts.update({memory_log.number(gradient): GRADIENTS}))
        x = torch.zeros(min(job.rows, 2 * job.micro_batch), T, dtype=torch.long)  # (B, T)
        for step in range(2):
            accumulate(model, x, x, training, loss_of)
            parts |= {memory_log.number(p.grad): GRADIENTS for p in model.parameters() if p.grad is not None}
            clip(model, training.grad_clip)
            take_step(optimizer, 1.0, step)
        evaluate_once(model, torch.zeros(job.evaluated, T, dtype=torch.long), training)
        memory_log.end = len(memory_log.entries)
        parts |= {memory_log.number(tensor): WEIGHTS for tensor in (*model.parameters(), *model.buffers())}
        parts |= {memory_log.number(tensor): MOMENTS for tensor in optimizer.state().values()}
    return memory_log, parts


@torch.no_grad()
def evaluate_once(model: GPT, x: Tensor, training: TrainingConfig) -> None:
    """What an evaluation does with one batch x (B, T)."""
    with eval_mode(model), mixed_precision(training, model):
        logits = model(x)  # (B, T, V)
    next_token_loss(logits, x, reduction="sum").item()


def operations(job: Job) -> tuple[float, float]:
    """Operations a token, forward and backward, and forward alone. They are counted in another run than memory, because
    the counter splits some operations into parts, which keeps more in memory.
    """
    few = shallow_depths(job)
    counts = of_each(lambda n: counted(with_layers(job, n)), few) if few else None
    if few and counts and all(c - b == b - a for a, b, c in zip(*counts)):
        both, forward = (a + repeats(job, few) * (b - a) for a, b, _ in zip(*counts))
    else:
        both, forward = counted(job)
    return both / job.config.block_size, forward / job.config.block_size


def counted(job: Job) -> tuple[int, int]:
    """`operations_of` of a model as it will be trained."""
    with fake(job.gpu):
        return operations_of(build(job.config, job.vocab_size, precise(job)), precise(job))


def operations_of(model: GPT, training: TrainingConfig) -> tuple[int, int]:
    """The operations of a window, forward and backward, and forward alone. Gradients are left in the parameters."""
    x = torch.zeros(1, model.config.block_size, dtype=torch.long)  # (1, T)
    forward = recomputing(model) if training.checkpoint_activations else model
    with counting() as both:
        losses = added_up(forward, training.objective)
        accumulate(model, x, x, training, BatchLoss(model, losses, mixed_precision(training, model)))
    with counting() as once, torch.no_grad():
        model(x.to(model.device))
    return both.get_total_flops(), once.get_total_flops()
