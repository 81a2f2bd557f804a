"""Long convolutions by FFT, O(T log T) instead of O(T^2); in decoding a state of two numbers a wave and feature.

A product of spectra is a circular convolution: zeros after the text keep its end from wrapping around to its start. An
FFT rounds over the whole text, so later tokens change earlier outputs in the last bits. For short texts the matrix is
used, which is as fast there.

B batch, H heads, T query positions, S key positions, d width of a head, m waves of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.attention import Attention, Past, State
from minigpt.attention.linear.long_convolution import LongConvolution
from minigpt.fast.guard import faster

FFT, WAVES = "convolution by FFT", "waves as a state"
SHORTEST = 256  # positions; shorter texts use the matrix


@faster(LongConvolution, "mix", FFT, supports=("start", "faded", "filter", "advance"))
def mix(self: LongConvolution, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The convolution of the filter and the values: (B, H, T, d)."""
    T, S = query.shape[2], key.shape[2]
    if S < SHORTEST or (self.training and self.dropout > 0):
        return Attention.mix(self, query, key, value)
    return convolved(self.filter(S), value)[:, :, S - T :].to(value.dtype)


def convolved(filter: Tensor, value: Tensor) -> Tensor:
    """The causal convolution of filter (H, S) and value (B, H, S, d): (B, H, S, d), in the filter's dtype."""
    S = value.shape[2]
    with torch.autocast(value.device.type, enabled=False):
        spectrum = torch.fft.rfft(value.to(filter.dtype), 2 * S, dim=2)  # (B, H, S + 1, d)
        product = spectrum * torch.fft.rfft(filter, 2 * S)[..., None]  # (B, H, S + 1, d)
        return torch.fft.irfft(product, 2 * S, dim=2)[:, :, :S]  # (B, H, S, d)


@faster(LongConvolution, "make_cache", WAVES, supports=("start", "faded"), together=("weights", "advance"))
def make_cache(self: LongConvolution, length: int) -> Past:
    """A state."""
    return State()


@faster(LongConvolution, "recall", WAVES, supports=("start", "faded"), together=("weights", "advance"))
def recall(self: LongConvolution, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
    """The output for new tokens while decoding: (B, H, T, d)."""
    if not isinstance(past, State):
        return Attention.recall(self, query, key, value, past)
    B, H, T, d = value.shape
    with torch.autocast(value.device.type, enabled=False):
        precise = value.to(torch.promote_types(value.dtype, torch.float32))  # (B, H, T, d)
        state = past.tensors[0] if past.tensors else precise.new_zeros(B, H, 2 * self.waves, d)  # (B, H, 2 m, d)
        if T == 1:
            state, out = self.advance(state, precise[:, :, 0])  # (B, H, 2 m, d), (B, H, d)
            mixed = out[:, :, None]  # (B, H, 1, d)
        else:
            mixed, state = many(self, precise, state)  # (B, H, T, d), (B, H, 2 m, d)
    past.replace((state,), T)
    return mixed.to(value.dtype)


def many(self: LongConvolution, value: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """value (B, H, T, d) after a state (B, H, 2 m, d): the output (B, H, T, d), and the state after the last token."""
    T = value.shape[2]
    b, c = self.shares.to(value.dtype)[..., None].chunk(2, dim=1)  # (H, m, 1) each
    cos, sin = self.faded(T, first=1)  # (H, m, T) each
    reads = torch.cat((b * cos + c * sin, c * cos - b * sin), dim=1)  # (H, 2 m, T): of the state, after 1, 2, ... steps
    mixed = reads.mT @ state + convolved(self.filter(T), value)  # (B, H, T, d)
    cos, sin = cos[..., -1:], sin[..., -1:]  # (H, m, 1) each
    old, older = state.chunk(2, dim=2)  # (B, H, m, d) each
    rotated = torch.cat((cos * old - sin * older, sin * old + cos * older), dim=2)  # (B, H, 2 m, d)
    return mixed, rotated + torch.cat(self.faded(T), dim=1).flip(-1) @ value  # (B, H, T, d), (B, H, 2 m, d)
