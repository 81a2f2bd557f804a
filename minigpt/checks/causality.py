"""The causality check: before the first step, each attention of a model is tested for leaks from the future.

A change of token t must not change any output before t: with ordinary inputs, and with inputs so large that a mask of
finite numbers (-1e4) no longer hides anything.

P probes (one for each changed token, and first the unchanged one), T positions, D model width.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.cache import Past
from minigpt.checks.first_nan import FirstNaN
from minigpt.model.gpt import GPT, chain
from minigpt.model.replaced import replaced
from minigpt.system.counting import layer_name
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress

LENGTH, CHANGES = 64, 12  # positions in the test, and how many of them are changed
ORDINARY, LARGE = 1.0, 1e4  # scale of the inputs; the scores grow with its square
SMALLER = (0.1, 0.01, 0.001)  # factors for LARGE, if LARGE gives NaN or infinity
TOLERANCE = 1e-9  # relative to the largest output: above rounding in float64, far below any leak
WRONG_MASK = "its mask is missing, transposed, aligned to the wrong corner, or fills with a small number such as -5"
PRODUCTS = ("infinity * 0", "0 * infinity", "-infinity * 0", "0 * -infinity")  # NaN of a mask that multiplies
ADVICE = {
    "0 / 0": "a row sums to zero; add a small number, such as 1e-6, to what divides",
    "infinity / infinity": "subtract the largest score of a row before exp, as softmax does",
    "softmax of a row that is -inf throughout": "a query sees no key; let each see at least one",
} | dict.fromkeys(PRODUCTS, "does it mask by multiplying? Fill with -inf")


class LeakError(UserError):
    """An output of an attention depends on a later token."""


@torch.no_grad()
def check_causal(model: GPT) -> list[str]:
    """Raises LeakError with the layer, the positions and the likely cause. The model is not changed.

    Returns a note for each attention that gives NaN or infinity for very large scores, with the first such operation.
    """
    noise, notes = torch.Generator().manual_seed(0), list[str]()
    T, D = min(model.config.block_size, LENGTH), model.config.n_embd
    changed = torch.linspace(1, T - 1, min(CHANGES, T - 1)).long()  # (P - 1,)
    inputs = {scale: _probes(scale, T, D, changed, noise) for scale in (ORDINARY, LARGE)}
    pasts = {scale: chain([Past() for _ in model.blocks]) for scale in inputs}
    attentions = model.attentions()
    steps = progress(attentions, "checking that no layer sees the future", len(attentions), "layers")
    for layer, attention in enumerate(steps):
        probe = _Probe(f"{layer_name(layer)} ({attention.kind})", attention, _with_noise(attention, noise))
        for scale, x in inputs.items():
            notes += probe.look(x, pasts[scale][layer], changed, scale)
    return notes


def _probes(scale: float, T: int, D: int, changed: Tensor, noise: torch.Generator) -> Tensor:
    """The same random tokens P times, all but the first time with one token changed: (P, T, D)."""
    x = scale * torch.randn(1, T, D, dtype=torch.float64, generator=noise)  # (1, T, D)
    x = x.repeat(1 + len(changed), 1, 1)  # (P, T, D)
    for probe, t in enumerate(changed, start=1):
        x[probe, t] = scale * torch.randn(D, dtype=torch.float64, generator=noise)
    return x


def _copied(attention: Attention) -> Attention:
    """A copy in float64 and evaluation mode."""
    return copy.deepcopy(attention).cpu().double().eval()  # in this order: not every device has float64


def _with_noise(attention: Attention, noise: torch.Generator) -> Attention:
    """A copy with noise on all parameters: a layer whose weights start at zero would hide a leak."""
    clone = _copied(attention)
    for parameter in clone.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=noise))
    return clone


class _Probe:
    """The check of one attention."""

    def __init__(self, name: str, attention: Attention, noisy: Attention):
        self.name, self.attention, self.noisy, self.advice = name, attention, noisy, ""

    def look(self, x: Tensor, past: Past, changed: Tensor, scale: float) -> list[str]:
        """Checks the outputs for the probes x (P, T, D), and returns notes. Raises LeakError, UserError."""
        out = self.run(self.noisy, x, past)  # (P, T, D)
        if out.isfinite().all():
            self.judge(out, x, past, changed, scale)
            return []
        if scale == ORDINARY:  # is the noise at fault?
            self.noisy = _copied(self.attention)
            out = self.run(self.noisy, x, past)  # (P, T, D)
            if not out.isfinite().all():
                number, _ = self.why_nan(x, past)
                raise UserError(f"{self.name} makes {number} of ordinary inputs{self.advice}")
            self.judge(out, x, past, changed, scale)
            return []
        number, operation = self.why_nan(x, past)
        if operation in PRODUCTS:
            raise LeakError(f"{self.name} makes {number} of very large scores{self.advice}")
        for factor in SMALLER:
            if (out := self.run(self.noisy, factor * x, past)).isfinite().all():
                self.judge(out, factor * x, past, changed, factor * scale)
                break
        return [f"{self.name} makes {number} of very large scores{self.advice}; training goes on"]

    def run(self, attention: Attention, x: Tensor, past: Past) -> Tensor:
        """The output of the attention for x (P, T, D): (P, T, D). Raises UserError if it fails in float64 only."""
        try:
            return attention(x, past)
        except RuntimeError as error:
            try:
                copy.deepcopy(attention).float()(x.float(), past)
            except Exception:
                raise error from None  # not the fault of float64
            line = str(error).splitlines()[0]
            raise UserError(f"{self.name} fails in float64 (make tensors of the type that arrives): {line}") from error

    def why_nan(self, x: Tensor, past: Past) -> tuple[str, str]:
        """Where its NaN comes from, in words, and the operation; `advice` says what to do about it."""
        with FirstNaN() as first:
            self.noisy(x, past)
        self.advice = f": {ADVICE[first.kind]}" if first.kind in ADVICE else ""
        return f"NaN ({first.location})" if first.location else "infinity", first.kind

    def judge(self, out: Tensor, x: Tensor, past: Past, changed: Tensor, scale: float) -> None:
        """Raises LeakError if out (P, T, D) changed before the changed token, UserError if equal passes differ."""
        change = (out[1:] - out[0]).abs().amax(-1)  # (P - 1, T)
        early = torch.arange(out.shape[1]) < changed[:, None]  # (P - 1, T)
        leaks = early & (change > TOLERANCE * out.abs().max())  # (P - 1, T)
        if not leaks.any():
            return
        if not torch.equal(self.run(self.noisy, x, past), out):
            raise UserError(
                f"{self.name}: two equal passes in evaluation mode give different outputs. Likely cause: it draws "
                f"random numbers (dropout belongs to `if self.training`), or keeps something between passes"
            )
        probe = int(leaks.any(-1).nonzero()[0])
        if self.rows_mix(out, x, past, 1 + probe):
            raise LeakError(
                f"{self.name} mixes the texts of a batch: a change in other rows moved a row. Likely cause: a mean, "
                f"norm, softmax, shift or reshape over the batch, dimension 0. --allow-leak trains it anyway"
            )
        positions = leaks[probe].nonzero()[:, 0].tolist()
        span = f"position {positions[0]}" if len(positions) == 1 else f"positions {positions[0]} to {positions[-1]}"
        if not getattr(self.attention.config, "causal", True):
            cause = "its option causal is false"
        elif scale > ORDINARY:
            cause = "its mask is a finite number such as -1e4, which large scores outweigh; fill with -inf"
        else:
            cause = self.cause_of(x, past)
        effect = f"a change of token {int(changed[probe])} moved the output at {span}"
        scores = "very large" if scale > ORDINARY else "ordinary"
        raise LeakError(
            f"{self.name} sees the future: {effect}, with {scores} scores. Likely cause: {cause}. "
            f"--allow-leak trains it anyway"
        )

    def rows_mix(self, out: Tensor, x: Tensor, past: Past, row: int) -> bool:
        """Whether the output for this row of x (P, T, D) depends on the other rows of the batch."""
        equal_rows, other_rows = x[:1].expand_as(x), x.clone()  # (P, T, D) each
        other_rows[row] = x[0]
        change = self.run(self.noisy, other_rows, past)[row] - self.run(self.noisy, equal_rows, past)[row]  # (T, D)
        return bool(change.abs().max() > TOLERANCE * out.abs().max())

    def cause_of(self, x: Tensor, past: Past) -> str:
        """The likely cause of a leak: the mask, if a weight falls on the future, else an operation over positions."""
        over = "a mean, norm, softmax, sort, shift or convolution over positions"
        try:
            weights = self.noisy.weights(*self.noisy.qkv(x, past)[:2])  # (P, H, T, T)
        except Exception:  # a kind with its own forward may have no weights
            return f"its mask, or {over}"
        if bool((weights.triu(1) != 0).any()):
            return WRONG_MASK
        return f"not the mask, which hides the future, but {over}"


@torch.no_grad()
def idle_positions(model: GPT) -> list[str]:
    """A line for each kind that leaves its position out, or does not use it, such as rotary in an average."""
    idle, left_out = dict[tuple[str, str], set[str]](), list[str]()
    noise = torch.Generator().manual_seed(0)
    pasts = chain([Past() for _ in model.blocks])
    for original, past in zip(model.attentions(), pasts):
        attention = copy.deepcopy(original).eval()  # dropout would advance the global random generator
        position = (attention.config.position or model.config.position).component
        if why := attention.leaves_out(position):
            left_out.append(f"position {position.kind} is left out of {attention.kind}: {why}")
        methods = [method for method in ("rotate", "bias") if attention.position.acts_by(method)]
        called: set[str] = set()
        with ExitStack() as exit_stack:
            for method in methods:
                exit_stack.enter_context(replaced(attention.position, method, _spy(attention.position, method, called)))
            x = torch.randn(1, 2, model.config.n_embd, generator=noise).to(model.device)  # (1, 2, D)
            attention(x, past)
        for method in set(methods) - called:
            idle.setdefault((position.kind, method), set()).add(attention.kind)
    lacks = {"rotate": "no queries and keys to rotate", "bias": "no scores to bias"}
    return [
        *dict.fromkeys(left_out),
        *(
            f"position {name} does nothing in {', '.join(sorted(kinds))}: there are {lacks[method]}"
            for (name, method), kinds in idle.items()
        ),
    ]


def _spy(position: Any, method: str, called: set[str]) -> Any:
    function = getattr(position, method)

    def spy(*arguments: Any) -> Any:
        called.add(method)
        return function(*arguments)

    return spy
