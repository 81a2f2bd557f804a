"""Training: a loop that yields one record per step, and the exact loss of a whole split.

Step n sees batch n and draws dropout from (seed, n), so a resumed run computes what an uninterrupted one does: its only
state is the weights, the optimizer's and the number of the step. Several processes divide the rows of every batch.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice, repeat
from time import perf_counter
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Module

from minigpt.config.options import Count, Fraction, Natural, NonNegative, Options, Positive, Range, Seed
from minigpt.fast.threads import use_threads
from minigpt.model.documents import within_documents
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.system.errors import Mistake, UserError
from minigpt.system.waiting import heartbeat, progress
from minigpt.text.dataset import IGNORED, Dataset, Split
from minigpt.training import distributed
from minigpt.training.batches import read_ahead, sent
from minigpt.training.callbacks import Callback, Callbacks
from minigpt.training.lora import LoRAConfig
from minigpt.training.objective import NextToken, Objective
from minigpt.training.optimizer import AdamW, Optimizer
from minigpt.training.parallel import DDP, Parallel, summed_later
from minigpt.training.precision import LossScale, Precision, product_type, use_float32_products
from minigpt.training.recompute import recomputing
from minigpt.training.records import Diverged, Lines, Record, Unread, timed
from minigpt.training.schedule import Cosine, Schedule
from minigpt.training.sharding import add_up_single, clip_shards, in_step, is_sharded
from minigpt.training.verdict import Evaluation, KeepConfig, StopConfig


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Options):
    """How the model is trained."""

    batch_size: Annotated[int, Range(1, 2**24)] = 32
    """Windows in a step."""
    micro_batch_size: Annotated[int, Range(1, 2**24)] | None = None
    """Windows at a time where a whole batch does not fit into memory; their gradients are added up. Default: all."""
    max_steps: Count = 1000
    """Steps in all."""
    objective: Objective.Config = NextToken.Config()
    """What the training makes small: next_token, answers, label_smoothing, z_loss, two_ahead. The training loss that is
    shown is the objective's; validation losses are next_token's with all of them."""
    optimizer: Optimizer.Config = AdamW.Config()
    """How gradients become steps: adamw, or muon for the matrices inside the blocks."""
    lora: LoRAConfig | None = None
    """For a run that starts with another run's weights (--from-run): only small adapters learn (arXiv 2106.09685)."""
    warmup_steps: Natural = 20
    """Steps in which the learning rate rises to its largest value."""
    schedule: Schedule.Config = Cosine.Config()
    """How the learning rate falls after the warm-up: cosine, linear, constant, warmup_stable_decay, inverse_root."""
    final_rate: Fraction = 0.1
    """The fraction of the learning rate that is reached at the end of the fall, after the last step. It has no effect
    on constant and inverse_root."""
    grad_clip: NonNegative = 1.0
    """The largest norm of the gradient; a larger gradient is scaled down to it. 0 is off."""
    eval_every: Count = 100
    """Steps between exact validation losses; there is one after the last step too."""
    sample_every: Natural = 200
    """Steps between samples of text; 0 is none."""
    checkpoint_every: Count = 500
    """Steps between checkpoints; there is one after the last step too."""
    keep: KeepConfig = KeepConfig()
    """Which checkpoints are kept."""
    stop: StopConfig | None = None
    """When training ends before max_steps, because the validation loss no longer falls; null: never."""
    loggers: tuple[Literal["tensorboard", "trackio"], ...] | None = None
    """Loggers that also get the lines of metrics.jsonl, such as [tensorboard], an extra; they send nothing."""
    callbacks: tuple[Callback.Config, ...] | None = None
    """Callbacks of a plug-in, such as [mine, {kind: other, every: 10}], which watch the training and may stop it."""
    checkpoint_minutes: Positive = 5.0
    """Minutes after which a checkpoint is written in any case, however slow the steps are."""
    seed: Seed = 1337
    """Equal seeds make equal runs, to the bit on a CPU."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute: auto takes the first of cuda, mps and cpu that is available."""
    threads: Annotated[int, Range(1, 1024)] | Literal["auto"] = "auto"
    """Threads that compute on a CPU: auto takes one for each CPU that this process may use, or the number in
    OMP_NUM_THREADS. A resumed run keeps its number, because the last bits of a sum depend on it."""
    precision: Precision = "auto"
    """Type of the matrix products: auto is bfloat16 where the hardware has it and the model is faster with it, float16
    on GPUs that have only that (T4, V100), else float32. tf32 is float32 with less exact products, for NVIDIA's GPUs.
    In float16 the loss is scaled, and a step whose gradient is beyond float16 is skipped and counted. Weights, norms
    and the optimizer's state are float32 in any case."""
    fast: bool | Literal["own", "fla"] = True
    """Whether the model uses the faster implementations of `minigpt/fast`, which equal the textbook's. On a GPU,
    own leaves out the kernels that torch compiles, and fla adds those of fla-core, which take minutes to begin."""
    parallel: Parallel.Config = DDP.Config()
    """How several processes share the model: ddp, each has it whole, or fsdp, each keeps a share of it."""
    checkpoint_activations: bool = False
    """Whether each block computes its forward pass again for the backward pass, instead of keeping what it computed:
    less memory for a third more time, and the same losses to the bit (arXiv 1604.06174)."""
    compile: bool = False
    """Whether torch.compile prepares the model: a slow start and faster steps."""
    cuda_graphs: bool = False
    """Whether the compiled model is replayed on a GPU as CUDA graphs, which avoids launching many small kernels."""

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str) and self.schedule in Schedule.kinds:  # in Python, from before it was a kind
            object.__setattr__(self, "schedule", Schedule.kinds[self.schedule].Config())
        super().__post_init__()

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        if self.cuda_graphs and not self.compile:
            yield "cuda_graphs", "they need compile: true"
        if self.cuda_graphs and self.micro_batch_size is not None:
            yield "cuda_graphs", "a replay overwrites the gradients of the one before: leave micro_batch_size out"

    def windows_at_once(self, rows: int) -> int:
        """The size of a micro-batch, where a process has `rows` windows of a step."""
        return min(self.micro_batch_size or rows, rows)


@dataclass
class History:
    """What a training has done so far; a checkpoint keeps it."""

    step: int = 0  # how many steps are done
    seconds: float = 0.0  # in steps; evaluations, samples and checkpoints are not counted
    tokens: int = 0
    losses: list[float] = field(default_factory=list)  # training losses since the last evaluation, the finite ones
    evaluations: list[Evaluation] = field(default_factory=list)
    skipped: int = 0  # of these steps, those whose gradient was beyond float16

    def add(self, record: Record) -> None:
        """Count a step."""
        self.step, self.tokens = record.step, self.tokens + record.tokens
        self.seconds += record.seconds
        self.skipped += record.skipped
        if math.isfinite(record.loss):
            self.losses.append(record.loss)

    def evaluated(self, val_loss: float) -> Evaluation:
        """Record an evaluation after the latest step, and return it. Raises Diverged if the loss is not finite.

        Where no training loss is finite, since all steps were skipped, the validation loss stands for it.
        """
        if not math.isfinite(val_loss):
            raise Diverged(f"step {self.step}: the validation loss is {val_loss}; lower the learning rate")
        train_loss = sum(self.losses) / len(self.losses) if self.losses else val_loss
        self.evaluations.append((self.step, train_loss, val_loss))
        self.losses.clear()
        return self.evaluations[-1]


class EvaluationStopped(Exception):
    """A signal stopped an evaluation. Its loss is unknown."""


def choose_device(name: str) -> torch.device:
    """The device that a config names. Raises UserError if it is not available."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, is_there in available.items() if is_there)
    if not available[name]:
        raise UserError(f"training.device: {name} is not available here; use auto or cpu")
    if name == "cuda" and distributed.world() > 1:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device(name)


def with_threads(config: TrainingConfig) -> TrainingConfig:
    """The config with its number of threads in place of `auto`; sets that number in this process."""
    return replace(config, threads=use_threads(config.threads))


Forward = Callable[[Tensor], Tensor]  # ids (B, T) -> logits (B, T, V)
Losses = Callable[[Tensor, Tensor], Tensor]  # ids and targets (B, T) -> the sum of the losses ()
NEXT_TOKEN = NextToken.Config()
FLOAT32: AbstractContextManager[None] = nullcontext()
MOST_NATS = 700.0  # a loss whose perplexity is a number
EVALUATED = 4096  # tokens at a time in evaluation, at least: small batches are slow


def products_of(config: TrainingConfig, model: GPT) -> torch.dtype:
    """The type of the matrix products of a model in training and in an evaluation."""
    return product_type(config.precision, model.device, model.config.n_embd)


def mixed_precision(config: TrainingConfig, model: GPT) -> AbstractContextManager[None]:
    """The context in which matrix products are computed in the config's precision; sets how float32 is multiplied."""
    use_float32_products(config.precision, model.device)
    dtype = products_of(config, model)
    half = None if dtype == torch.float32 else dtype
    keeps_casts = not is_sharded(model)  # the casts that autocast keeps until a pass ends would be the whole model
    return torch.autocast(model.device.type, half, enabled=half is not None, cache_enabled=keeps_casts)


def next_token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of logits (B, T, V) and targets (B, T), in nats a token, without targets that are IGNORED."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=reduction)


def right_answers(logits: Tensor, targets: Tensor) -> Tensor:
    """How many answers are right, and how many there are (2,), of logits (B, T, V) and targets (B, T).

    Targets of a row without a gap are one answer; it is right if each of them is the likeliest.
    """
    asked = targets != IGNORED  # (B, T)
    begins = asked & ~F.pad(asked, (1, -1))  # (B, T)
    answer = begins.flatten().cumsum(0)  # (B T,): the number of the answer
    wrong = answer[(asked & (logits.argmax(-1) != targets)).flatten()].unique()
    return torch.stack([begins.sum() - len(wrong), begins.sum()])


def train(
    model: GPT,
    dataset: Dataset,
    optimizer: Optimizer,
    config: TrainingConfig,
    start: int = 0,
    wanted: Callable[[int], bool] = lambda step: True,
) -> Iterator[Record]:
    """Train from step `start` to `config.max_steps`, and yield a Record of each step.

    `wanted(step)`: whether the losses so far are read and yielded after this step; in between they stay on the device.
    Raises Diverged if a loss or a gradient's norm is not finite: neither that step nor a later one is taken. In float16
    such a step is skipped; training has diverged when steps are skipped however small the scale of the loss is.
    """
    scaled = products_of(config, model) == torch.float16
    scale = optimizer.loss_scale = (optimizer.loss_scale or LossScale(model.device)) if scaled else None
    loss_of = BatchLoss(model, compiled(model, config), mixed_precision(config, model), scale)
    schedule: Schedule = config.schedule.component(config.schedule, config.warmup_steps, config.final_rate)
    summed, unread = config.parallel.component().summed(loss_of), Unread(scale)
    steps = range(start, config.max_steps)
    batches = read_ahead(dataset, steps, config.batch_size, config.seed, own_rows(), model.device)
    for step in steps:
        if not unread.steps:
            began = perf_counter()
        x, y, begins, targets = next(batches)  # (B, T) each, and a number
        model.train()
        torch.manual_seed((config.seed * 1_000_003 + step + (distributed.rank() << 40)) % 2**63)  # for dropout
        factor = schedule.factor(step, config.max_steps)
        first = "compiling the model in " * config.compile + f"step {start + 1}"
        with heartbeat(first) if step == start else nullcontext():
            loss = accumulate(model, x, y, config, summed, begins, targets)  # ()
        add_up_single(model)
        norm = clip(model, config.grad_clip, scale)  # ()
        unread.add(step + 1, loss, optimizer.base_rates[-1][0] * factor, norm, config.batch_size * x.shape[1])
        reads, records = wanted(step + 1) or not optimizer.skips, list[Record]()
        try:
            records = unread.read() if reads else records
            take_step(optimizer, factor, step, unread.skip())
        except Diverged:
            yield from timed(records[:-1] or unread.before(step + 1), perf_counter() - began)
            raise
        yield from timed(records, perf_counter() - began)


def fit(
    model: GPT,
    dataset: Dataset,
    optimizer: Optimizer,
    config: TrainingConfig,
    history: History,
    validate: Callable[[], float],
    callbacks: Callbacks | None = None,
) -> Iterator[tuple[Record, Evaluation | None]]:
    """Train from where the history ends, and evaluate every `eval_every` steps, after the last one, and when a callback
    asks for it.

    Yields (record, evaluation or None) for each step once its loss is read; both are in the history by then. `validate`
    returns a validation loss, or raises EvaluationStopped: then there is no evaluation. Raises Diverged.
    """
    lines, callbacks = Lines(model.device), callbacks or Callbacks(None, model, optimizer)

    def wanted(step: int) -> bool:
        return callbacks.read or due(step, config) or lines.due()

    for record in train(model, dataset, optimizer, config, history.step, wanted):
        history.add(record)
        evaluation = None
        if callbacks.after_step(record, evaluation_due(record.step, config)):
            with suppress(EvaluationStopped):
                evaluation = history.evaluated(validate())
                callbacks.after_evaluation(evaluation)
        yield record, evaluation


def evaluation_due(step: int, config: TrainingConfig) -> bool:
    """Whether there is an evaluation after a step: every `eval_every` steps, and after the last one."""
    return step % config.eval_every == 0 or step == config.max_steps


def due(step: int, config: TrainingConfig) -> bool:
    """Whether there is an evaluation, a sample or a checkpoint after a step, which need its loss."""
    samples = config.sample_every and step % config.sample_every == 0
    return bool(evaluation_due(step, config) or samples or step % config.checkpoint_every == 0)


def take_step(optimizer: Optimizer, factor: float, step: int, skip: Tensor | None = None) -> None:
    """Take one step of the optimizer. Raises Diverged if a learning rate is beyond the range of float32.

    `skip` (): where it is 1, parameters and state stay as they are; an optimizer that does not accept it is not called.
    """
    if skip is not None and not optimizer.skips:
        if skip:
            return optimizer.zero_grad()
        skip = None
    try:
        optimizer.step(factor, skip) if skip is not None else optimizer.step(factor)
    except (RuntimeError, OverflowError) as error:
        if "overflow" not in str(error) and "too large" not in str(error):
            raise
        raise Diverged(f"step {step + 1}: the step is beyond float32; lower the learning rate or the decay") from error


def added_up(forward: Forward, objective: Objective.Config = NEXT_TOKEN) -> Losses:
    """The sum of the losses of a model's forward pass. That of next tokens is made in one kernel."""
    instance: Objective = objective.component(objective)
    if type(instance).loss is NextToken.loss:
        return lambda ids, targets: next_token_loss(forward(ids), targets, reduction="sum")
    return lambda ids, targets: instance.loss(forward(ids).float(), targets).sum()


def compiled(model: GPT, config: TrainingConfig) -> Losses:
    """`added_up` with the config's `checkpoint_activations`, `compile` and `cuda_graphs`.

    The loss is compiled with the model, so that the logits in float32, which are larger than all else where the
    vocabulary is large, need never be in memory.
    """
    plain = added_up(recomputing(model) if config.checkpoint_activations else model, config.objective)
    if not config.compile:
        return plain
    losses: Losses = torch.compile(plain, mode="reduce-overhead" if config.cuda_graphs else None)

    def replayed(ids: Tensor, targets: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # the outputs of the step before may be overwritten
        return losses(ids, targets)

    return replayed if config.cuda_graphs else losses


class BatchLoss(Module):
    """The share of a micro-batch in the loss of its batch; a module, so that torch's DDP can sum its gradients.

    DDP searches the graph of everything that is returned for parameters that get no gradient in this step. So the extra
    losses of the attention kinds are computed here too. `losses` are those of the model, compiled or not.
    """

    def __init__(
        self,
        model: GPT,
        losses: Losses | None = None,
        precision: AbstractContextManager[None] = FLOAT32,
        scale: LossScale | None = None,
    ):
        super().__init__()
        self.model, self.precision, self.scale = model, precision, scale
        self.losses = added_up(model) if losses is None else losses

    def forward(self, inputs: Tensor, outputs: Tensor, targets: float, rows: float, own: bool) -> tuple[Tensor, Tensor]:
        """For inputs and outputs (micro-batch, T): the loss to show, and the loss with extra losses, () each.

        `targets` and `rows` are the numbers of targets and rows in the whole batch. If `own` is false, both are 0. The
        second one, of which the gradients are taken, is scaled.
        """
        with self.precision:
            total = self.losses(inputs, outputs)  # ()
        loss = own * total / targets
        extras = [extra for attention in self.model.attentions() if (extra := attention.extra_loss()) is not None]
        everything = sum((own * len(inputs) / rows * extra for extra in extras), loss)  # ()
        return loss.detach(), everything if self.scale is None else everything * self.scale.scale


def accumulate(
    model: GPT,
    x: Tensor,
    y: Tensor,
    config: TrainingConfig,
    losses: Module | None = None,
    begins: Tensor | None = None,
    targets: int | None = None,
) -> Tensor:
    """Add up the gradients of a batch x, y (B, T), a micro-batch at a time; returns the mean loss of the batch, ().

    The mean is over the targets of all processes, so gradients and losses are simply summed over processes. A kind's
    extra loss is a mean over the rows of a micro-batch; it is weighted by the micro-batch's share of all rows, and is
    not part of what is returned. `losses` is a BatchLoss, or a wrapper that sums its gradients over all processes.
    `begins` (B, T) is true where a document begins: a token then sees only its own document. None: a token sees its
    whole window. `targets`: how many of y are not IGNORED. None: they are counted, for which a device is waited for.
    """
    size, total = config.windows_at_once(len(x)), torch.zeros((), device=model.device)
    losses, remaining = BatchLoss(model) if losses is None else losses, -(-len(x) // size)
    own_targets = int((y != IGNORED).sum()) if targets is None else targets
    all_targets, rows = distributed.total(float(own_targets), float(len(x)))
    x, y = x.to(model.device), y.to(model.device)  # (B, T) each
    divided = repeat(None) if begins is None else begins.split(size)
    for (inputs, outputs, begin), own in in_step(zip(x.split(size), y.split(size), divided), is_sharded(model)):
        remaining -= 1
        with within_documents(model, begin, sent), summed_later(losses) if remaining > 0 else nullcontext():
            loss, everything = losses(inputs, outputs, all_targets, rows, own)  # (), ()
            everything.backward()
        total += loss  # not read yet: the device goes on with the next micro-batch
    return distributed.summed(total)


def clip(model: GPT, longest: float, scale: LossScale | None = None) -> Tensor:
    """Clip the gradient to the norm `longest` (0: do not clip), and return the norm before clipping, ().

    `scale`: of the loss that the gradient was taken of. The gradient is divided by it first, once for all.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if scale is not None:
        scale.unscale(gradients)
    if is_sharded(model):
        return clip_shards(gradients, longest)
    return nn.utils.clip_grad_norm_(model.parameters(), longest) if longest else nn.utils.get_total_norm(gradients)


def own_rows() -> slice:
    """Which rows of a batch, or windows of a split, are this process's: all of them with one process."""
    return slice(distributed.rank(), None, distributed.world())


def evaluated_at_once(micro_batch: int, T: int) -> int:
    """How many windows of T positions are evaluated at a time: a micro-batch, or more if that is few tokens."""
    return max(micro_batch, EVALUATED // T)


@dataclass(frozen=True)
class Loss:
    """The exact loss of a split, in units that people use."""

    loss: float
    """In nats a token, of all targets."""
    bits_per_byte: float | None
    """Bits for each byte of text, of those targets that stand for text: it can be compared between tokenizers. None if
    there are none."""
    right: float | None = None
    """The share of right answers, where there is one right answer to each question."""

    def metrics(self) -> dict[str, float]:
        """What metrics.jsonl says of it. The perplexity is e to the loss: of tokens, within one tokenizer."""
        values = {} if self.bits_per_byte is None else {"val/bits_per_byte": self.bits_per_byte}
        values |= {} if self.right is None else {"val/right": self.right}
        perplexity = {"val/perplexity": math.exp(self.loss)} if self.loss < MOST_NATS else {}
        return {"val/loss": self.loss} | values | perplexity


def evaluate(
    model: GPT,
    dataset: Dataset,
    split: Split,
    config: TrainingConfig,
    batches: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> float:
    """The exact loss in nats a token, as `measure` says."""
    return measure(model, dataset, split, config, batches, stop).loss


@torch.no_grad()
def measure(
    model: GPT,
    dataset: Dataset,
    split: Split,
    config: TrainingConfig,
    batches: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    right: bool = False,
) -> Loss:
    """The exact loss: every target of the split once, in windows of `block_size`.

    With `batches`, only that many batches are evaluated. Matrix products are in the precision of training; bfloat16
    changes the loss by less than 0.0001, float16 by less. `right`: whether answers are counted. Raises
    EvaluationStopped when `stop`, called before each batch, is true in any process.
    """
    losses, others, count, stopped = list[Tensor](), list[Tensor](), 0.0, 0.0  # () each; none is read before the end
    n_bytes = 0.0
    answers = torch.zeros(2, device=model.device)
    precision, rows = mixed_precision(config, model), -(-config.batch_size // distributed.world())
    size = evaluated_at_once(config.windows_at_once(rows), dataset.block_size)
    windows = islice(dataset.windows(split, size, own_rows()), batches)
    batch_count = -(-dataset.window_count(split) // (size * distributed.world()))
    first, sharded = distributed.rank() == 0, is_sharded(model)
    watched = progress(windows, "evaluating", batches or batch_count, "batches") if first else windows
    with eval_mode(model):
        for (x, y), own in in_step(watched, sharded):
            if distributed.largest(stop()) if sharded else stop():
                stopped = 1.0
                break
            with precision, heartbeat("evaluating the first batch") if first and not count else nullcontext():
                logits = model(sent(x, model.device))  # (B, T, V)
            losses.append(own * next_token_loss(logits, sent(y, model.device), reduction="sum"))
            targets, asked = y.numpy(), y.numpy() != IGNORED  # (B, T) each
            lengths = dataset.byte_counts[np.where(asked, targets, 0)] * asked  # (B, T)
            count, n_bytes = count + own * int(asked.sum()), n_bytes + own * int(lengths.sum())
            if len(at := np.argwhere(asked & (lengths == 0))):  # (n, 2): targets that stand for no text
                b, t = sent(torch.from_numpy(at), model.device).T  # (n,) each
                others.append(own * next_token_loss(logits[b, t][None], sent(y, model.device)[b, t][None], "sum"))
            if right:
                answers += own * right_answers(logits, sent(y, model.device))
    total, other = (math.fsum(torch.stack(each).tolist() if each else ()) for each in (losses, others))
    counted = answers.tolist() if right else []  # right answers, and all
    total, other, count, n_bytes, stopped, *counted = distributed.total(total, other, count, n_bytes, stopped, *counted)
    if stopped:
        raise EvaluationStopped
    bits = (total - other) / n_bytes / math.log(2) if n_bytes else None
    return Loss(total / count, bits, counted[0] / counted[1] if right else None)
