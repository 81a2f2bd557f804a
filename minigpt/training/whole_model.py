"""The causality check of the whole model as it will be trained: does a later token, or another row, change an output?

It compares two passes over a batch of the run's own text. In the second pass most rows have other tokens from some
position on (the cut of the row). No output before its row's cut may change, and the row with equal tokens may not
change at all, bit for bit. The passes are made as in a training step (the run's batch, context, precision, mode and
device, with gradients and dropout, from equal random states) and as in an evaluation. Then a backward pass: the outputs
before the cuts have no gradient with respect to the tokens after them. This finds leaks that the check of one attention
cannot find: through positions, in one mode or dtype only, beyond the length of that check, or through the batch.

It checks a copy of the model with noise on all parameters: a gate that starts at zero would hide a leak.

B rows of a micro-batch, T positions of the context, D model width, V vocabulary.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from minigpt.attention.position import exact
from minigpt.checks.causality import LeakError
from minigpt.checks.laws_of_attention import LawError
from minigpt.config.options import Component
from minigpt.model.documents import within_documents
from minigpt.model.eval_mode import untouched_random
from minigpt.model.gpt import GPT
from minigpt.system.counting import layer_name, part_name
from minigpt.system.waiting import progress
from minigpt.text.dataset import Dataset
from minigpt.training import distributed
from minigpt.training.loop import TrainingConfig, mixed_precision, own_rows

CUTS = 24  # at least so many different cuts, or all that there are
BORDERS = (64, 100, 65, 101, 128, 32, 16, 256, 512, 1024)  # where blocks of a mask or of a kernel end
NOISE = 0.1  # on every parameter of the copy
HALF = (torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.004}  # of the largest logit; none in float64
EXACT = 1e-9  # allowed rounding error in float64
SEED = 20_240  # of the random numbers of every pass
ANYWAY = "--allow-leak trains it anyway"


@dataclass(frozen=True)
class Mode:
    """How a pass is made."""

    training: bool
    gradients: bool
    dtype: torch.dtype  # of the matrix products

    def __str__(self) -> str:
        return "in training" if self.training else "in evaluation"

    @property
    def type_name(self) -> str:
        """The type as torch writes it: float32."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Movement:
    """A change of outputs that should not have changed."""

    size: float  # relative to the largest number
    mode: Mode
    before: Tensor  # ids (B, T)
    after: Tensor  # ids (B, T)
    cuts: Tensor  # (B,)
    rows: list[int]  # the rows that changed before their cut
    backward: bool = False


def check_whole_model(model: GPT, dataset: Dataset, config: TrainingConfig) -> list[str]:
    """Raises LeakError for a model that sees the future or another row as it is trained or evaluated.

    Returns a note if outputs changed by rounding only (as with a convolution by FFT), else []. Raises LawError for a
    model that computes something else in two equal passes. The model, its gradients, and the states of all random
    generators are unchanged.
    """
    if model.vocab_size < 2 or model.config.block_size < 2:
        return []  # there are no other tokens, or no later ones
    first = 0, config.batch_size, config.seed, own_rows()
    (x, _), begins = dataset.batch("train", *first), dataset.begins("train", *first)  # (B, T) each
    x = x[: config.micro_batch_size or len(x)].to(model.device)
    device = model.device.type
    with mixed_precision(config, model):
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    training = Mode(True, True, dtype)
    with untouched_random(str(model.device)):
        probe = Probe(model, x, begins)
        passes = probe.all_movements(training)
        if distributed.rank() == 0:
            passes = progress(passes, "probing the model as it will be trained", unit="passes")
        changes = [movement for movement in passes if movement is not None]
        if not changes:
            return []
        worst = max(changes, key=lambda movement: movement.size)
        if max(movement.size for movement in changes) <= ROUNDING[training.dtype] and is_rounding(model, x, begins):
            size = f"by {worst.size:.1g} of the largest in {training.type_name}, and not in float64"
            return [f"other tokens moved earlier logits {size}: that is rounding, which is allowed"]
        raise probe.explained(worst)


def is_rounding(model: GPT, x: Tensor, begins: Tensor | None) -> bool:
    """Whether nothing changes in float64: rounding is a billion times smaller there, a leak equally large."""
    if exact(model.device) != torch.float64:
        return True
    passes = Probe(copy.deepcopy(model).double(), x, begins).all_movements(Mode(True, True, torch.float64))
    return all(movement is None or movement.size <= EXACT for movement in passes)


def is_ours(part: nn.Module) -> bool:
    """Whether a part is of a class of this package, or of torch."""
    return type(part).__module__.startswith(("minigpt.", "torch."))


class Probe:
    """A copy of the model, and passes that all start from the same random state and buffers."""

    def __init__(self, model: GPT, x: Tensor, begins: Tensor | None = None):
        self.x, self.begins, self.draw = x, begins, torch.Generator().manual_seed(SEED)
        self.model, self.noisy = copy.deepcopy(model), True
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = NOISE * torch.randn(parameter.shape, generator=self.draw)
                parameter.add_(noise.to(parameter))
        self.buffers = [buffer.clone() for buffer in self.model.buffers()]
        if not self.logits(x[:1], Mode(False, False, torch.float32)).isfinite().all():  # is the noise at fault?
            self.model = copy.deepcopy(model)
        self.taken = 0  # how many of the cuts have been used
        self.least = 0.0  # smaller changes do not count; relative to the largest number

    def logits(self, ids: Tensor, mode: Mode) -> Tensor:
        """The logits (B, T, V) of ids (B, T), each time from the same random state and buffers."""
        with self.divided(ids):
            return self.computed(ids, mode)

    def divided(self, ids: Tensor) -> AbstractContextManager[None]:
        """The context in which the documents of the windows do not see one another, if they do not in training."""
        return within_documents(self.model, None if self.begins is None else self.begins[: len(ids)])

    def computed(self, ids: Tensor, mode: Mode) -> Tensor:
        """The logits (B, T, V), inside `divided`: a backward pass may compute a part of them again."""
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), self.buffers):
                buffer.copy_(before)
        torch.manual_seed(SEED)
        random.seed(SEED)
        np.random.seed(SEED)
        self.model.train(mode.training)
        with torch.set_grad_enabled(mode.gradients), self.precision(mode):
            return self.model(ids)

    def precision(self, mode: Mode) -> AbstractContextManager[None]:
        """The context of the matrix products."""
        half = mode.dtype if mode.dtype in HALF else None
        return torch.autocast(self.x.device.type, half, enabled=half is not None)

    def all_movements(self, training: Mode) -> Iterator[Movement | None]:
        """Yields the change in each pass as in training, then as in an evaluation of the same type."""
        yield from self.movements(training)
        yield from self.movements(replace(training, training=False, gradients=False))

    def movements(self, mode: Mode) -> Iterator[Movement | None]:
        """Yields the change in each pass of one mode, or None: first backward, if there are gradients, then forward."""
        B, T = self.x.shape
        changing = max(1, B - 1)  # of several rows, the last stays the same
        if mode.gradients:
            before, moved_backward = self.backward(mode)  # before (B, T, V)
            yield moved_backward
        else:
            before = self.logits(self.x, mode)  # (B, T, V)
        largest = before.abs().max().clamp(min=1e-30)
        for way in range(-(-min(CUTS, T - 1) // changing)):
            cuts = torch.full((B,), T)  # (B,)
            cuts[:changing] = self.next_cuts(changing)
            ids = self.changed(cuts, way)  # (B, T)
            change = self.logits(ids, mode).detach().sub_(before).abs_().amax(-1).nan_to_num(torch.inf)  # (B, T)
            far = change.masked_fill(~early(cuts, T).to(change.device), 0.0)  # (B, T)
            rows = far.amax(-1).nonzero()[:, 0].tolist()
            yield Movement(float(far.max() / largest), mode, self.x, ids, cuts, rows) if rows else None

    def backward(self, mode: Mode) -> tuple[Tensor, Movement | None]:
        """The logits (B, T, V), and the gradient from those before the cuts to tokens after them, or None."""
        B, T = self.x.shape
        embeddings: list[Tensor] = []

        def keep(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            embeddings.append(output.detach().requires_grad_())  # (B, T, D)
            return embeddings[-1]

        cuts = self.next_cuts(B)  # (B,)
        with self.divided(self.x):
            handle = self.model.tokens.register_forward_hook(keep)
            try:
                logits = self.computed(self.x, mode)  # (B, T, V)
            finally:
                handle.remove()
            sooner = early(cuts, T).to(logits.device)  # (B, T)
            read = logits @ torch.randn(logits.shape[-1], generator=self.draw).to(logits)  # (B, T): as a loss would
            signs = torch.randn(B, T, generator=self.draw).to(logits) * sooner  # (B, T)
            loss = (read * signs).sum()  # a number: with `signs` as grad_outputs, torch would import sympy
            (gradient,) = torch.autograd.grad(loss, embeddings[0], allow_unused=True)  # (B, T, D)
        if gradient is None:
            return logits.detach(), None
        far = ~sooner * gradient.abs().amax(-1).nan_to_num(0.0)  # (B, T): a NaN is reported by the first step
        rows = far.amax(-1).nonzero()[:, 0].tolist()
        largest = gradient.abs().max().clamp(min=1e-30)
        movement = Movement(float(far.max() / largest), mode, self.x, self.changed(cuts, 0), cuts, rows, True)
        return logits.detach(), movement if rows else None

    def next_cuts(self, count: int) -> Tensor:
        """The next cuts (count,), from 1 to T - 1: the borders, then positions that fill the gaps evenly."""
        T = self.x.shape[1]
        edges = [1, T - 1, *(border for border in BORDERS if border < T)]
        step = next(step for step in range(round(0.618 * (T - 1)) or 1, T + 1) if math.gcd(step, T - 1) == 1)
        order = [*dict.fromkeys([*edges, *(1 + step * i % (T - 1) for i in range(T - 1))])]
        cuts = [order[(self.taken + i) % len(order)] for i in range(count)]
        self.taken += count
        return torch.tensor(cuts)  # (count,)

    def changed(self, cuts: Tensor, way: int) -> Tensor:
        """The ids with other tokens from the cuts (B,) on: (B, T).

        Every other row gets random tokens, each different from what was there. The others get the row's own beginning,
        mirrored at the cut, which shows layers that compare tokens with later ones.
        """
        ids, (B, T) = self.x.cpu(), self.x.shape
        different = torch.randint(1, self.model.vocab_size, (B, T), generator=self.draw)  # (B, T)
        places = torch.arange(T).expand(B, T)  # (B, T)
        mirrored = ids.gather(1, cuts[:, None] - 1 - (places - cuts[:, None]).clamp(min=0) % cuts[:, None])  # (B, T)
        odd = (torch.arange(B)[:, None] + way) % 2 == 1  # (B, 1)
        others = torch.where(odd, mirrored, (ids + different) % self.model.vocab_size)  # (B, T)
        return torch.where(early(cuts, T), ids, others).to(self.x.device)

    # ---- what is wrong, in words ----

    def explained(self, movement: Movement) -> LawError | LeakError:
        """The error: where the change begins, what it depends on, and the likely cause."""
        mode, first = movement.mode, self.outputs(movement.before, movement.mode)
        if any(not torch.equal(*pair) for pair in zip(first.values(), self.outputs(movement.before, mode).values())):
            return LawError(
                f"the model {mode}: two equal passes, from equal random states, give different logits. Likely cause: "
                f"it draws random numbers of a generator of its own, or keeps something from pass to pass"
            )
        self.least = ROUNDING[mode.dtype] if movement.size > ROUNDING[mode.dtype] else 0.0
        if error := self.in_float64(movement) or self.placed(movement, mode):
            return error
        cut = int(movement.cuts[movement.rows[0]])
        symptom = f"what is computed before position {cut} has a gradient in the tokens from there on"
        cause = "a backward pass of its own, or a detour that the values of this text do not take"
        return LeakError(f"the model sees the future {mode}: {symptom}. Likely cause: {cause}. {ANYWAY}")

    def in_float64(self, movement: Movement) -> LeakError | None:
        """The error as float64 shows it, where a small leak differs from rounding; None if there is none."""
        if exact(self.x.device) != torch.float64:
            return None
        probe = copy.copy(self)
        probe.model, probe.least = copy.deepcopy(self.model).double(), EXACT
        probe.buffers = [buffer.clone() for buffer in probe.model.buffers()]
        try:
            return probe.placed(movement, replace(movement.mode, dtype=torch.float64))
        except RuntimeError:  # a kind that accepts one dtype only
            return None

    def placed(self, movement: Movement, mode: Mode) -> LeakError | None:
        """The error with the part where the change begins; None if nothing changes in this mode."""
        row, first = movement.rows[0], self.outputs(movement.before, mode)
        alone = self.x.clone()  # (B, T): only this row is changed
        alone[row] = movement.after[row]
        cut = int(movement.cuts[row])
        if part := self.moved(first, self.outputs(alone, mode), row, cut):
            name, positions = part
            span = f"position {positions[0]}" if len(positions) == 1 else f"positions {positions[0]} to {positions[-1]}"
            when, cause = self.only_there(mode, alone, row, cut)
            symptom = f"other tokens from position {cut} on moved its output at {span}"
            return LeakError(f"{name} sees the future{when}: {symptom}. Likely cause: {cause}. {ANYWAY}")
        if part := self.moved(first, self.outputs(movement.after, mode), row, cut):
            symptom = f"other tokens in other rows moved its output in a row at position {part[1][0]}"
            cause = "a mean, norm, softmax or reshape over the batch, dimension 0"
            return LeakError(f"{part[0]} mixes the texts of a batch {mode}: {symptom}. Likely cause: {cause}. {ANYWAY}")
        return None

    def outputs(self, ids: Tensor, mode: Mode) -> dict[str, Tensor]:
        """The output of every part of the model for ids (B, T), by name, in the order in which the parts finished."""
        by_part: dict[str, Tensor] = {}
        handles = []
        for name, module in self.model.named_modules():
            if name.count(".") > 2:  # inside a part
                continue

            def note(module: nn.Module, inputs: object, output: object, name: str = name) -> None:
                if isinstance(output, Tensor) and output.shape[:2] == ids.shape:
                    by_part.pop(name, None)  # a module that is called twice ends with its second call
                    by_part[name] = output.detach()

            handles.append(module.register_forward_hook(note))
        try:
            self.logits(ids, mode)
        finally:
            for handle in handles:
                handle.remove()
        return by_part

    def moved(
        self, before: dict[str, Tensor], after: dict[str, Tensor], row: int, cut: int
    ) -> tuple[str, list[int]] | None:
        """The first part that computes something else in a row before its cut, and at which positions."""
        for name in before:
            moved = (after[name][row, :cut] - before[name][row, :cut]).abs().flatten(1).amax(-1)  # (cut,)
            far = moved > self.least * before[name].abs().max()  # (cut,)
            if far.any():
                return self.part(name), far.nonzero()[:, 0].tolist()
        return None

    def part(self, name: str) -> str:
        """A module's name in the words of messages: "layer 1 (multi_head)"."""
        words = name.split(".")
        if words[0] in ("embedding_norm", "dropout", "tokens"):
            return f"the position {self.model.config.position.component.kind} (embed)"
        if words[0] != "blocks":
            return "the model"
        if words[2:] == ["attention"] and is_ours(self.model.blocks[int(words[1])]):
            layer = int(words[1])
            return f"{layer_name(layer)} ({self.model.attentions()[layer].kind})"
        part, block = self.model.get_submodule(name), self.model.get_submodule(".".join(words[:2]))
        if not is_ours(block) and is_ours(part):  # the user's block gave our part its input
            name, part = ".".join(words[:2]), block
        return part_name(name, part.kind if isinstance(part, Component) else "")

    def only_there(self, mode: Mode, ids: Tensor, row: int, cut: int) -> tuple[str, str]:
        """What the leak depends on, in words that follow "sees the future", and the likely cause."""
        another = replace(mode, dtype=torch.float32 if mode.dtype in HALF else torch.bfloat16)
        other_mode, free = replace(mode, training=not mode.training), replace(mode, gradients=not mode.gradients)
        without = "" if mode.gradients else "out"
        ways = [  # a mode that differs in one thing; the words and the cause if nothing leaks there
            (other_mode, f" {mode} mode only", "a branch on self.training, or a batch norm"),
            (free, f" with{without} gradients only", "a branch on torch.is_grad_enabled()"),
            (another, f" in {mode.type_name} only", "a mask or a branch that depends on the type of what arrives"),
        ]
        for other, when, cause in ways:
            try:
                leaks = self.moved(self.outputs(self.x, other), self.outputs(ids, other), row, cut)
            except RuntimeError:  # a kind that accepts one dtype only
                continue
            if leaks is None:
                return when, cause
        return "", "a mask, or a mean, norm or comparison over all positions"


def early(cuts: Tensor, T: int) -> Tensor:
    """Which positions come before the cuts (B,): (B, T)."""
    return torch.arange(T) < cuts[:, None]  # (B, T)
