"""Where a training step's time goes, part by part, forward and backward: `train.py --profile`.

The steps are those of `train`, and the profiler is attached from outside: model and loop contain no code for it. Each
moment of a step belongs to exactly one part, so the parts add up to the step; where one part runs inside another (a
rotation inside `qkv`), the time belongs to the inner one. For the backward pass, each operation that autograd recorded
is assigned to the part that was running then. Nothing is added to the graph, so results stay the same to the bit.

What attention does outside `qkv`, its position and `output` is counted as its mix.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from minigpt.attention import Attention
from minigpt.model import GPT, MLP, count_parameters
from minigpt.model.replaced import replaced
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.dataset import Dataset
from minigpt.training import distributed, loop
from minigpt.training.assemble import RunConfig, assemble, open_text
from minigpt.training.fake import operations_of
from minigpt.training.loop import TrainingConfig, train, with_threads
from minigpt.training.optimizer import Optimizer
from minigpt.training.report import say

WARM_UP, STEPS = 3, 20  # steps before the measurement, and in it by default
BATCH, TOKENS, NORMS = "batch", "tokens, position", "norms"
QKV, POSITION, MIX, OUTPUT = (f"attention: {part}" for part in ("queries, keys, values", "position", "mix", "output"))
MLPS, STREAM, HEAD, LOSS = "mlp", "residual sums, dropout", "head", "loss"
CLIPPING, OPTIMIZER, REST, PROFILING = "gradient clipping", "optimizer", "the rest of the loop", "the profiler itself"
MODEL_PARTS = (TOKENS, NORMS, QKV, POSITION, MIX, OUTPUT, MLPS, STREAM, HEAD, LOSS)
PARTS = (BATCH, *MODEL_PARTS, CLIPPING, OPTIMIZER, REST, PROFILING)
FORWARD, BACKWARD = "forward", "backward"

Phase = tuple[str, str]  # a part, and its direction: forward or backward


class Profiler:
    """Adds up the seconds of each part. A device is synchronised only where one part ends and another begins."""

    def __init__(self, device: torch.device):
        self.synchronise = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, _nothing)
        self.seconds: dict[Phase, float] = defaultdict(float)
        self.outer: list[Phase] = []  # the phases around the current one, outermost first
        self.assigned: set[Node] = set()  # the operations of this step that belong to a part already
        self.before_backward = self.current = (REST, FORWARD)
        self.since = 0.0

    def start(self) -> None:
        """Begin a step."""
        self.synchronise()
        self.before_backward = self.current = (REST, FORWARD)
        self.since = perf_counter()

    def stop(self) -> None:
        """End a step."""
        self.switch(PROFILING, FORWARD)
        self.clear()

    def clear(self) -> None:
        """Release the graph of a step."""
        self.assigned.clear()
        self.outer.clear()

    def switch(self, part: str, direction: str) -> None:
        """End the current phase and begin another."""
        if (part, direction) == self.current:
            return
        self.synchronise()
        now = perf_counter()
        self.seconds[self.current] += now - self.since
        self.current, self.since = (part, direction), now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, wrapped so that its time, forward and backward, counts for the part."""

        def call(*arguments: Any, **options: Any) -> Any:
            outside, direction = self.current
            self.outer.append(self.current)
            self.assign((*arguments, *options.values()), outside)
            self.switch(part, direction)
            result = function(*arguments, **options)
            self.assign((result,), part)
            self.switch(*self.outer.pop())
            return result

        return call

    def assign(self, values: Sequence[Any], part: str) -> None:
        """Assign the operations that made these values, and have no part yet, to the part for the backward pass."""
        waiting: list[Node | None] = [leaf.grad_fn for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
        if not any(node is not None and node not in self.assigned for node in waiting):
            return
        self.switch(PROFILING, self.current[1])
        while waiting:
            node = waiting.pop()
            if node is None or node in self.assigned or not node.next_functions:  # parameters' nodes have none
                continue
            self.assigned.add(node)
            node.register_prehook(lambda gradients: self.enter_backward(part))
            waiting += [earlier for earlier, _ in node.next_functions]

    def enter_backward(self, part: str) -> None:
        """Autograd is about to compute the gradient of an operation of the part."""
        if self.current[1] == FORWARD:
            self.before_backward = self.current
            torch.autograd.Variable._execution_engine.queue_callback(self.leave_backward)
        self.switch(part, BACKWARD)

    def leave_backward(self) -> None:
        """A backward pass has ended."""
        self.switch(*self.before_backward)


def _nothing() -> None:
    """A CPU needs no synchronisation."""


@contextmanager
def attached(profiler: Profiler, model: GPT, dataset: Dataset, optimizer: Optimizer) -> Iterator[None]:
    """Let the profiler time the steps inside the `with`. Afterwards, all methods are restored."""
    with ExitStack() as stack:
        for owner, method, part in places(model, dataset, optimizer):
            stack.enter_context(replaced(owner, method, profiler.timed(part, getattr(owner, method))))
        try:
            yield
        finally:
            profiler.clear()


def places(model: GPT, dataset: Dataset, optimizer: Optimizer) -> Iterator[tuple[Any, str, str]]:
    """The methods that are timed: (object, method, part)."""
    yield from ((dataset, "batch", BATCH), (optimizer, "step", OPTIMIZER))
    yield from ((nn.utils, "clip_grad_norm_", CLIPPING), (loop, "next_token_loss", LOSS))
    yield from ((model, "forward", STREAM), (model.tokens, "forward", TOKENS), (model, "logits", HEAD))
    if model.position.acts_by("embed"):
        yield model.position, "embed", TOKENS
    for name, module in model.named_modules():
        words = name.split(".")
        if isinstance(module, Attention):
            yield from ((module, "forward", MIX), (module, "qkv", QKV), (module, "output", OUTPUT))
            acts = [method for method in ("rotate", "bias") if module.position.acts_by(method)]
            yield from ((module.position, method, POSITION) for method in acts)
        elif isinstance(module, MLP):
            yield module, "forward", MLPS
        elif words[-1].endswith("norm") and "attention" not in words:  # norms of queries and keys belong to attention
            yield module, "forward", NORMS


@dataclass(frozen=True)
class Profile:
    """What the profiler found, and how long the same steps take without it. Seconds."""

    seconds: dict[Phase, float]  # mean of a profiled step, by part and direction; their sum is the whole step
    profiled: list[float]  # each profiled step
    unprofiled: list[float]  # each step between them

    @property
    def whole(self) -> float:
        """The mean of a profiled step."""
        return sum(self.profiled) / len(self.profiled)


def take_profile(model: GPT, dataset: Dataset, optimizer: Optimizer, config: TrainingConfig, steps: int) -> Profile:
    """Warm up, then take `steps` steps with the profiler, each followed by one without. These steps train the model.

    Raises Diverged.
    """
    count = WARM_UP + 2 * steps
    config = replace(config, max_steps=max(config.max_steps, count), compile=False, cuda_graphs=False)
    profiler, profiled, unprofiled = Profiler(model.device), list[float](), list[float]()
    records = train(model, dataset, optimizer, config)
    for _ in progress(islice(records, WARM_UP), "warming up", WARM_UP, "steps"):
        pass
    for _ in progress(range(steps), "measuring", steps, "pairs of steps"):
        with attached(profiler, model, dataset, optimizer):
            profiler.start()
            began = profiler.since
            next(records)
            profiler.stop()
        profiled.append(profiler.since - began)
        profiler.synchronise()
        began = perf_counter()
        next(records)
        profiler.synchronise()
        unprofiled.append(perf_counter() - began)
    return Profile({phase: seconds / steps for phase, seconds in profiler.seconds.items()}, profiled, unprofiled)


def table(times: Profile) -> str:
    """A line for each part that ran, and their sum: milliseconds, and the share of the step."""
    lines = [f"{'part':33} {'forward ms':>10} {'backward ms':>11} {'ms':>9} {'share':>8}"]
    for part in PARTS:
        both = [times.seconds.get((part, direction)) for direction in (FORWARD, BACKWARD)]
        if any(seconds is not None for seconds in both):
            split = both if part in MODEL_PARTS else [None, None]
            lines.append(_line(part, split, sum(s or 0.0 for s in both), times))
    sums = [sum(times.seconds.get((part, direction), 0.0) for part in MODEL_PARTS) for direction in (FORWARD, BACKWARD)]
    return "\n".join([*lines, _line("the whole step", sums, times.whole, times)])


def _line(part: str, both: Sequence[float | None], seconds: float, times: Profile) -> str:
    forward, backward = ("" if direction is None else f"{1000 * direction:.2f}" for direction in both)
    return f"{part:33} {forward:>10} {backward:>11} {1000 * seconds:9.2f} {100 * seconds / times.whole:6.1f} %"


def summary(times: Profile, tokens: int, flops: float, forward: float) -> str:
    """The step without the profiler: its time, its speed, and what the profiler adds; for `tokens` tokens a step of
    `flops` operations each, of which `forward` are in the forward pass.
    """
    without, with_it = median(times.unprofiled), median(times.profiled)
    return (
        f"median step: {1000 * without:.2f} ms ({1000 * min(times.unprofiled):.2f} to "
        f"{1000 * max(times.unprofiled):.2f}); with the profiler {1000 * with_it:.2f} ms "
        f"({100 * (with_it / without - 1):+.1f} %; the steps alternate)\n"
        f"speed without it: {tokens / without:,.0f} tokens/s, {flops * tokens / without / 1e9:,.1f} GFLOP/s "
        f"({flops:,.0f} operations a token, of which {forward:,.0f} forward)"
    )


def show_profile(config: RunConfig, steps: int) -> None:
    """Profile the training of a config, and print the table. Raises UserError and Diverged."""
    if distributed.started()[1] > 1:
        raise UserError("--profile measures one process: start it without torchrun")
    settings = with_threads(config.training)
    dataset, model, optimizer = assemble(config, *open_text(config.data))
    threads = f" (threads: {settings.threads})" if model.device.type == "cpu" else ""
    say(f"model: {sum(count_parameters(model).values()):,} parameters on {model.device}{threads}")
    outcome = "there is no run, and what is learned is not kept"
    say(f"a profile: {WARM_UP} steps to warm up and {2 * steps} to measure; {outcome}")
    if settings.compile:
        say("note: training.compile is off in a profile: compiled, the parts cannot be told apart")
    times = take_profile(model, dataset, optimizer, settings, steps)
    say(f"\nmean of {steps} steps\n{table(times)}\n")
    both, forward = (count / dataset.block_size for count in operations_of(model, settings))
    say(summary(times, settings.batch_size * dataset.block_size, both, forward))


__all__ = ["PARTS", "STEPS", "Profile", "Profiler", "attached", "show_profile", "summary", "table", "take_profile"]
