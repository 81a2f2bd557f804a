"""Where a training step's time goes, part by part, forward and backward: `train.py --profile`.

The steps are those of `train`, and a watch is attached from outside: the model and the loop have no taps for it. Every
moment of a step belongs to exactly one part, so the parts add up to the step; inside another part (a rotation inside
`qkv`), it is the inner one's. For the way back each operation that autograd recorded is told whose it is, by which part
was running when it was made, so that nothing is added to the graph and the numbers stay the same to the bit.

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

from minigpt.attention import Attention
from minigpt.inspection.cost import cost
from minigpt.inspection.trace import replaced
from minigpt.model import GPT, MLP, count_parameters
from minigpt.runs.assemble import RunConfig, assemble, open_text
from minigpt.runs.report import say
from minigpt.system.errors import UserError
from minigpt.text.dataset import Dataset
from minigpt.training import distributed
from minigpt.training import loop as training
from minigpt.training.loop import TrainingConfig, train, with_threads
from minigpt.training.optimizer import Optimizer

WARM_UP, STEPS = 3, 20  # steps that are not measured, and that are, unless the command says otherwise
BATCH, TOKENS, NORMS = "batch", "tokens, position", "norms"
QKV, POSITION, MIX, OUTPUT = (f"attention: {what}" for what in ("queries, keys, values", "position", "mix", "output"))
MLPS, STREAM, HEAD, LOSS = "mlp", "residual sums, dropout", "head", "loss"
CLIPPING, OPTIMIZER, REST, WATCHING = "gradient clipping", "optimizer", "the rest of the loop", "the watch itself"
MODEL_PARTS = (TOKENS, NORMS, QKV, POSITION, MIX, OUTPUT, MLPS, STREAM, HEAD, LOSS)
PARTS = (BATCH, *MODEL_PARTS, CLIPPING, OPTIMIZER, REST, WATCHING)
FORWARD, BACKWARD = "forward", "backward"

Moment = tuple[str, str]  # a part, and the way


class Watch:
    """Adds up the seconds of each part. Only changes of part are timed, so a device waits for nothing else."""

    def __init__(self, device: torch.device):
        self.synchronise = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, _nothing)
        self.seconds: dict[Moment, float] = defaultdict(float)
        self.outer: list[Moment] = []  # what the part under way stands inside of, outermost first
        self.claimed: set[Node] = set()  # the operations of this step that are told whose they are
        self.before = self.now = (REST, FORWARD)
        self.since = 0.0

    def start(self) -> None:
        """A step begins."""
        self.synchronise()
        self.before = self.now = (REST, FORWARD)
        self.since = perf_counter()

    def stop(self) -> None:
        """A step has ended."""
        self.switch(WATCHING, FORWARD)
        self.forget()

    def forget(self) -> None:
        """Let go of the graph of a step, and of where it was."""
        self.claimed.clear()
        self.outer.clear()

    def switch(self, part: str, way: str) -> None:
        """What passes from now on is this part's."""
        if (part, way) == self.now:
            return
        self.synchronise()
        moment = perf_counter()
        self.seconds[self.now] += moment - self.since
        self.now, self.since = (part, way), moment

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time is the part's, on the way forward and on the way back."""

        def timed(*arguments: Any, **options: Any) -> Any:
            outside, way = self.now
            self.outer.append(self.now)
            self.claim((*arguments, *options.values()), outside)
            self.switch(part, way)
            result = function(*arguments, **options)
            self.claim((result,), part)
            self.switch(*self.outer.pop())
            return result

        return timed

    def claim(self, values: Sequence[Any], part: str) -> None:
        """The operations that led to these values, and are nobody's yet, are the part's when they are gone back."""
        waiting: list[Node | None] = [tensor.grad_fn for tensor in _tensors(values)]
        if not any(node is not None and node not in self.claimed for node in waiting):
            return
        self.switch(WATCHING, self.now[1])
        while waiting:
            node = waiting.pop()
            if node is None or node in self.claimed or not node.next_functions:  # a parameter's own runs with its user
                continue
            self.claimed.add(node)
            node.register_prehook(lambda gradients: self.go_back(part))
            waiting += [earlier for earlier, _ in node.next_functions]

    def go_back(self, part: str) -> None:
        """An operation of the part is about to be gone back."""
        if self.now[1] == FORWARD:
            self.before = self.now
            torch.autograd.Variable._execution_engine.queue_callback(self.gone_back)
        self.switch(part, BACKWARD)

    def gone_back(self) -> None:
        """A backward pass has come to its end."""
        self.switch(*self.before)


def _nothing() -> None:
    """What there is to wait for on a CPU."""


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


@contextmanager
def attached(watch: Watch, model: GPT, dataset: Dataset, optimizer: Optimizer) -> Iterator[None]:
    """Let the watch see the steps inside the `with`. Afterwards everything is as it was."""
    with ExitStack() as stack:
        for thing, method, part in places(model, dataset, optimizer):
            stack.enter_context(replaced(thing, method, watch.around(part, getattr(thing, method))))
        try:
            yield
        finally:
            watch.forget()


def places(model: GPT, dataset: Dataset, optimizer: Optimizer) -> Iterator[tuple[Any, str, str]]:
    """Where a part begins and ends: (thing, method, part)."""
    yield from ((dataset, "batch", BATCH), (optimizer, "step", OPTIMIZER))
    yield from ((nn.utils, "clip_grad_norm_", CLIPPING), (training, "next_token_loss", LOSS))
    yield from ((model, "forward", STREAM), (model.tokens, "forward", TOKENS), (model.head, "forward", HEAD))
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
        elif words[-1].endswith("norm") and "attention" not in words:  # those of queries and keys are attention's
            yield module, "forward", NORMS


@dataclass(frozen=True)
class PartTimes:
    """What the watch saw, and what the clock said without it. Seconds."""

    seconds: dict[Moment, float]  # mean of a watched step, by part and way; their sum is the whole step
    watched: list[float]  # each watched step
    plain: list[float]  # each step between them, without the watch

    @property
    def whole(self) -> float:
        """The mean of a watched step."""
        return sum(self.watched) / len(self.watched)


def measure(model: GPT, dataset: Dataset, optimizer: Optimizer, config: TrainingConfig, steps: int) -> PartTimes:
    """Warm up, then take `steps` steps with the watch, each followed by one without. The model is trained by them.

    Raises Diverged.
    """
    count = WARM_UP + 2 * steps
    config = replace(config, max_steps=max(config.max_steps, count), compile=False, cuda_graphs=False)
    watch, watched, plain = Watch(model.device), list[float](), list[float]()
    taken = train(model, dataset, optimizer, config)
    for _ in islice(taken, WARM_UP):
        pass
    for _ in range(steps):
        with attached(watch, model, dataset, optimizer):
            watch.start()
            began = watch.since
            next(taken)
            watch.stop()
        watched.append(watch.since - began)
        watch.synchronise()
        began = perf_counter()
        next(taken)
        watch.synchronise()
        plain.append(perf_counter() - began)
    return PartTimes({moment: seconds / steps for moment, seconds in watch.seconds.items()}, watched, plain)


def table(times: PartTimes) -> str:
    """A line a part that there was, and their sum: milliseconds, and the share of the step."""
    lines = [f"{'part':33} {'forward ms':>10} {'backward ms':>11} {'ms':>9} {'share':>8}"]
    for part in PARTS:
        ways = [times.seconds.get((part, way)) for way in (FORWARD, BACKWARD)]
        if any(seconds is not None for seconds in ways):
            lines.append(_line(part, ways if part in MODEL_PARTS else [None, None], sum(s or 0.0 for s in ways), times))
    both = [sum(times.seconds.get((part, way), 0.0) for part in MODEL_PARTS) for way in (FORWARD, BACKWARD)]
    return "\n".join([*lines, _line("the whole step", both, times.whole, times)])


def _line(part: str, ways: Sequence[float | None], seconds: float, times: PartTimes) -> str:
    forward, backward = ("" if way is None else f"{1000 * way:.2f}" for way in ways)
    return f"{part:33} {forward:>10} {backward:>11} {1000 * seconds:9.2f} {100 * seconds / times.whole:6.1f} %"


def summary(times: PartTimes, tokens: int, flops_per_token: float) -> str:
    """The step without the watch: its length, its speed, what the watch adds; for `tokens` tokens a step."""
    plain, watched = median(times.plain), median(times.watched)
    flops = 3 * flops_per_token * tokens / plain
    return (
        f"median step: {1000 * plain:.2f} ms ({1000 * min(times.plain):.2f} to {1000 * max(times.plain):.2f}); "
        f"with the watch {1000 * watched:.2f} ms ({100 * (watched / plain - 1):+.1f} %; the steps alternate)\n"
        f"speed without it: {tokens / plain:,.0f} tokens/s, {flops / 1e9:,.1f} GFLOP/s "
        f"({flops_per_token:,.0f} operations a token forward, and about three times as many with the way back)"
    )


def show_part_times(config: RunConfig, steps: int) -> None:
    """Measure what a config would train, and print the table. Raises UserError and Diverged."""
    if distributed.started()[1] > 1:
        raise UserError("--profile looks at one process: start it without torchrun")
    settings = with_threads(config.training)
    dataset, model, optimizer = assemble(config, *open_text(config.data))
    threads = f" (threads: {settings.threads})" if model.device.type == "cpu" else ""
    say(f"model: {sum(count_parameters(model).values()):,} parameters on {model.device}{threads}")
    what = "there is no run, and what is learned is not kept"
    say(f"a profile: {WARM_UP} steps to warm up and {2 * steps} to measure; {what}")
    if settings.compile:
        say("note: training.compile is off in a profile: compiled, the parts cannot be told apart")
    times = measure(model, dataset, optimizer, settings, steps)
    say(f"\nmean of {steps} steps\n{table(times)}\n")
    say(summary(times, settings.batch_size * dataset.block_size, cost(model).flops_per_token))


__all__ = ["PARTS", "STEPS", "PartTimes", "Watch", "attached", "measure", "show_part_times", "summary", "table"]
