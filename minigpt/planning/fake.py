"""A training step on tensors that have shapes and no values: what it allocates and computes, without the memory.

The step is the real one, with the real model and optimizer, on torch's fake tensors. They are fake CPU tensors: a torch
without CUDA cannot have fake ones of a GPU. What a step keeps does not depend on the device, but for the forms that are
chosen for a CPU alone, which are left out where the plan is for a GPU.

B windows at a time, T positions of a window, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from minigpt.fast import make_fast
from minigpt.fast.rotary import table
from minigpt.inspection.cost import CUSTOM
from minigpt.model import GPT, ModelConfig
from minigpt.training.loop import TrainingConfig, accumulate, clip, mixed_precision, take_step
from minigpt.training.memory import Unfilled
from minigpt.training.optimizer import Optimizer

WEIGHTS, GRADIENTS, MOMENTS, LOGITS, ACTIVATIONS = "weights", "gradients", "optimizer", "logits", "activations"
PARTS = (WEIGHTS, GRADIENTS, MOMENTS, LOGITS, ACTIVATIONS)
READ = {Tensor.item: 1.0, Tensor.__float__: 1.0, Tensor.__int__: 1, Tensor.__bool__: True, Tensor.tolist: [1.0]}


@dataclass(frozen=True)
class Step:
    """What one training step takes on one device."""

    peak: int  # bytes at the moment when the most are allocated
    parts: dict[str, int]  # these bytes by PARTS
    flops: float  # a token, forward and backward
    forward_flops: float


class Values(TorchFunctionMode):
    """Answers for what a fake tensor does not have, a value: one, so that losses and norms are numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return READ[func] if func in READ else func(*args, **(kwargs or {}))


class Living(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, whoever holds them, and notes their peak.

    A view has the storage of its base, so each storage counts once, with the size that it has when an operation returns
    it, and until it is freed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, tuple[int, int, int]] = {}  # storage -> its number, bytes, elements of its first tensor
        self.now = self.peak = self.count = 0
        self.at_peak: list[tuple[int, int, int]] = []
        self.threshold = 0  # a pass before has found this peak: only then is it noted what was alive

    def note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return
        self.alive[key] = self.count, size, tensor.numel()
        self.now, self.count = self.now + size, self.count + 1  # an address is used again, a number is not
        weakref.finalize(storage, self.drop, key)
        if self.now > self.peak:
            self.peak = self.now
            if self.threshold and self.peak >= self.threshold:
                self.at_peak, self.threshold = list(self.alive.values()), self.peak + 1

    def drop(self, key: int) -> None:
        self.now -= self.alive.pop(key)[1]

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage."""
        return self.alive[tensor.untyped_storage()._cdata][0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return result


@contextmanager
def fake(gpu: bool) -> Iterator[None]:
    """Inside, new tensors have no values, and nothing is initialised; what is kept for later is forgotten after it."""
    with ExitStack() as stack:
        stack.callback(table.cache_clear)  # else a real model would be given angles without values
        table.cache_clear()
        if gpu:
            stack.enter_context(patch("minigpt.fast.kernels.explicit_is_faster", lambda query, key: False))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Values())
        stack.enter_context(Unfilled())
        yield


def simulate(config: ModelConfig, vocab_size: int, training: TrainingConfig, rows: int, gpu: bool = False) -> Step:
    """Two steps, of which the second has all that stays, of `rows` windows a process; nothing is allocated.

    Two micro-batches stand for any number: from the second on, there are gradients to add to. Raises what the model
    raises, as for a plugin that computes with values while it is made.
    """
    size = min(training.micro_batch_size or rows, rows)
    rows = min(rows, 2 * size)
    if gpu and training.precision == "auto":
        training = replace(training, precision="bfloat16")
    first = _pass(config, vocab_size, training, rows, gpu, 0)
    living, parts, flops = _pass(config, vocab_size, training, rows, gpu, first[0].peak)
    kept = Counter[str]()
    for number, bytes_, elements in living.at_peak:
        others = LOGITS if elements == size * config.block_size * vocab_size else ACTIVATIONS
        kept[parts.get(number, others)] += bytes_
    per_token = (count / (rows * config.block_size) for count in flops)
    return Step(living.peak, {part: kept[part] for part in PARTS}, *per_token)


def _pass(
    config: ModelConfig, vocab_size: int, training: TrainingConfig, rows: int, gpu: bool, threshold: int
) -> tuple[Living, dict[int, str], tuple[int, int]]:
    """One simulation: what was alive, which storage belongs to which part, operations."""
    living = Living()
    living.threshold = threshold
    with fake(gpu), living:
        model = make_fast(GPT(config, vocab_size), training.fast)
        optimizer: Optimizer = training.optimizer.component(training.optimizer, model)
        x = torch.zeros(rows, config.block_size, dtype=torch.long)  # (B, T)
        precision = mixed_precision(training, model)
        parts: dict[int, str] = {}
        counters = []
        for step in range(2):
            with FlopCounterMode(display=False, custom_mapping=CUSTOM) as counter:
                accumulate(model, x, x, training, precision)
            counters.append(counter.get_total_flops())
            parts |= {living.number(p.grad): GRADIENTS for p in model.parameters() if p.grad is not None}
            clip(model, training.grad_clip)
            take_step(optimizer, 1.0, step)
        parts |= {living.number(tensor): WEIGHTS for tensor in (*model.parameters(), *model.buffers())}
        parts |= {living.number(tensor): MOMENTS for tensor in optimizer.state().values()}
        with FlopCounterMode(display=False, custom_mapping=CUSTOM) as forward, torch.no_grad():
            model(x)
    return living, parts, (counters[-1], forward.get_total_flops())
