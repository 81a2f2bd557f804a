"""Recurrent kinds in their faster forms: training in chunks (`chunks.py`), decoding with a state of fixed size.

Dropout drops single weights, so with dropout the textbook's form, which computes them, is used.

B batch, H heads, T query positions, S key positions, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Attention, Past, State
from minigpt.attention.linear.delta_net import DeltaNet
from minigpt.attention.linear.delta_product import DeltaProduct
from minigpt.attention.linear.gated_delta_net import GatedDeltaNet
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.linear.kimi_delta import KimiDelta
from minigpt.attention.linear.linear import Linear
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.linear.mlstm import MLSTM
from minigpt.attention.linear.recurrent import Recurrent
from minigpt.attention.linear.retention import Retention
from minigpt.attention.linear.taylor import Taylor, second_order
from minigpt.fast.chunks import chunked
from minigpt.fast.guard import faster
from minigpt.fast.triton_chunks import in_kernels, usable

CHUNKS, STATES = "chunks", "states of fixed size"
PARTS = ("view", "projected", "scale", "of_projections", "convolution_bias", "gates_of_output")  # of `qkv`, of `output`
HELPERS = ("gates", "ungated", "empty", "decays", "in_turn", *PARTS)  # a subclass may change these
Read = tuple[Tensor, Tensor]  # what each token reads (B, H, T, e), and the state after the last (B, H, d, e)
Chunks = Callable[..., Read]  # `chunked`, or the same with the kernels of a GPU
Spread = TypeVar("Spread", bound=Callable[..., Read])


@faster(Recurrent, "make_cache", STATES, supports=HELPERS, together=("weights", "advance"))
def make_cache(self: Recurrent, length: int) -> Past:
    """An empty state."""
    return State()


@faster(Recurrent, "recall", STATES, supports=HELPERS, together=("weights", "advance"))
def recall(self: Recurrent, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """What new tokens read while decoding: (B, H, T, e); many at once in chunks, where the kind has them."""
    if not isinstance(past, State):
        return Attention.recall(self, query, key, value, past)
    spread = getattr(self.mix, "spread", step_by_step) if query.shape[2] > 1 else step_by_step
    with torch.autocast(query.device.type, enabled=False):
        state = past.tensors[0] if past.tensors else self.empty(key, value)
        mixed, state = spread(self, query, key, value.to(query.dtype), state)
    past.replace((state,), query.shape[2])
    return mixed.to(value.dtype)  # (B, H, T, e)


def step_by_step(self: Recurrent, query: Tensor, key: Tensor, value: Tensor, state: Tensor) -> Read:
    """The recurrence: what each token reads (B, H, T, e), and the state after the last."""
    mixed = list[Tensor]()
    for token in zip(query.unbind(2), key.unbind(2), value.unbind(2)):
        state, read = self.advance(state, *token)  # (B, H, d, e), (B, H, e)
        mixed.append(read)
    return torch.stack(mixed, dim=2), state


def needs_weights(self: Recurrent, query: Tensor, key: Tensor) -> bool:
    """Whether the weights must be computed: for dropout, or because there are fewer queries than keys."""
    return query.shape[2] < key.shape[2] or (self.training and self.dropout > 0)


def is_bounded(self: Recurrent) -> bool:
    """Whether no decay of a channel is too small for chunks to divide by it; a subclass may have gates of its own."""
    bounded: bool = getattr(self.config, "bounded", False)
    return bounded and type(self).gates in (GatedLinear.gates, KimiDelta.gates)


def in_chunks(kind: type[Recurrent], least: Callable[[Any], int] = lambda self: 0) -> Callable[[Spread], Spread]:
    """Register the chunked form of a kind: a function with the arguments of `step_by_step` and the one that computes
    chunks, and with its results. Texts of fewer positions than `least` use the explicit weights.
    """

    def register(spread: Spread) -> Spread:
        mix = mixing(partial(spread, chunked=chunked), least)
        mix.fla = mixing(partial(spread, chunked=in_kernels_or_not), least)  # type: ignore[attr-defined]
        faster(kind, "mix", CHUNKS, supports=HELPERS)(mix)
        return spread

    return register


def mixing(spread: Callable[..., Read], least: Callable[[Any], int]) -> Callable[..., Tensor]:
    """The `mix` of a kind that is spread over chunks."""

    def mix(self: Recurrent, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if needs_weights(self, query, key) or query.shape[2] < least(self):
            return Attention.mix(self, query, key, value)
        with torch.autocast(query.device.type, enabled=False):
            mixed, _ = spread(self, query, key, value.to(query.dtype), self.empty(key, value))
        return mixed.to(value.dtype)  # (B, H, T, e)

    mix.spread = spread  # type: ignore[attr-defined]
    return mix


def in_kernels_or_not(query: Tensor, *others: Any, **options: Any) -> Read:
    """`chunked`, in the kernels of a GPU where they can be used."""
    return in_kernels(query, *others, **options) if usable(query) else chunked(query, *others, **options)


@in_chunks(Linear)
def linear(self: Linear, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """The sums of the values, divided by the sums of ones."""
    sums, state = chunked(query, key, F.pad(value, (0, 1), value=1.0), state)  # (B, H, T, e + 1), (B, H, d, e + 1)
    return sums[..., :-1] / sums[..., -1:], state  # (B, H, T, e)


@in_chunks(Retention)
def retention(self: Retention, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """Writes that add, with one decay for each head or for each channel."""
    bare, log_decay = self.ungated(key)  # (B, H, T, d), (B, H, T, g)
    return chunked(query, bare, value, state, log_decay, bounded=is_bounded(self))


@in_chunks(Mamba2)
def mamba2(self: Mamba2, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """The same, and each head's multiple of a token's own value."""
    mixed, state = retention(self, query, key, value, state, chunked)  # (B, H, T, e)
    return mixed + self.skip[:, None, None] * value if self.config.skip else mixed, state


@in_chunks(MLSTM)
def mlstm(self: MLSTM, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """Writes and sums divided by exp(m), where m is a running maximum: one decay for each head again."""
    (bare, log_forget), write, H = self.ungated(key), self.log_input(key), self.n_head
    before, total = state[:, :, :1, -1:], log_forget.cumsum(dim=2)  # (B, H, 1, 1), (B, H, T, 1)
    with torch.no_grad():
        largest = total + torch.maximum(before, (write.clamp(min=0) - total).cummax(dim=2).values)  # (B, H, T, 1)
        change = torch.cat((before, largest[:, :, :-1]), dim=2) - largest  # (B, H, T, 1)
    written, ones = bare * (write - largest).exp(), F.pad(value[:, :H], (0, 1), value=1.0)  # (B, H, T, d or e + 1)
    output, sums = chunked(query, written, ones, state[..., :-1], log_forget + change)
    mixed = output[..., :-1] / self.divisor(output[..., -1:], largest)  # (B, H, T, e)
    state = torch.cat((sums, largest[:, :, -1:].expand_as(sums[..., :1])), dim=-1)  # (B, H, d, e + 2)
    return torch.cat((mixed, value[:, H:]), dim=1), state


@in_chunks(DeltaNet)
@in_chunks(GatedDeltaNet)
def delta(self: DeltaNet, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """Writes that replace, without a decay, or with one for each head or for each channel."""
    bare, gates = self.ungated(key)  # (B, H, T, d), (B, H, T, g)
    log_decay = gates[..., 1:] if gates.shape[-1] > 1 else None  # (B, H, T, g - 1)
    return chunked(query, bare, value, state, log_decay, gates[..., :1], is_bounded(self))


@in_chunks(DeltaProduct)
def product(self: DeltaProduct, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """All writes one after the other; a token reads after its last write, and each group of heads gets 1/n of it."""
    n = self.config.writes
    key, strength = self.ungated(self.in_turn(key))  # (B, H, T n, d), (B, H, T n, 1)
    query = query[:, : self.n_head].repeat_interleave(n, dim=2)  # (B, H, T n, d)
    mixed, state = chunked(query, key, self.in_turn(value), state, None, strength)  # (B, H, T n, e)
    return mixed[:, :, n - 1 :: n].repeat(1, n, 1, 1) / n, state  # (B, n H, T, e)


@in_chunks(Taylor, least=lambda self: self.features)
def taylor(self: Taylor, query: Tensor, key: Tensor, value: Tensor, state: Tensor, chunked: Chunks) -> Read:
    """Linear attention with more features; with fewer positions than features, the explicit weights cost less."""
    return linear(self, second_order(query), second_order(key), value, state, chunked)
