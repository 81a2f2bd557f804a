"""Long convolutions in their fast forms: spectra, and a state, where the text is long enough for either to be used.

B batch, H heads, T positions, D model width, d width of a head, m waves of a head.
"""

from __future__ import annotations

import copy

import pytest
import torch
from laws import stir
from torch import Tensor

from minigpt.attention import KVCache, State
from minigpt.attention.linear.long_convolution import LongConvolution
from minigpt.attention.position import NoPosition, Shape
from minigpt.fast import make_fast
from minigpt.fast.convolution import SHORTEST, convolved
from minigpt.seeing.cost import bytes_of

D, T = 16, SHORTEST + 44
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def plain_and_fast(dropout: float = 0.0) -> tuple[LongConvolution, LongConvolution]:
    torch.manual_seed(0)
    shape = Shape(n_embd=D, block_size=T, position=NoPosition.Config(), dropout=dropout)
    plain = LongConvolution(LongConvolution.Config(waves=5), shape).double()
    stir(plain)
    return make_fast(plain, fast=False), make_fast(copy.deepcopy(plain))


def results(layer: LongConvolution, x: Tensor, direction: Tensor) -> list[Tensor]:
    """What it makes of x (B, T, D), and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    out = layer(x)  # (B, T, D)
    return [out.detach(), *torch.autograd.grad((out * direction).sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("length", [SHORTEST, SHORTEST + 1, T])
def test_spectra_are_the_matrix(length: int) -> None:
    plain, fast = plain_and_fast()
    x, direction = torch.randn(2, 2, length, D, dtype=torch.float64)
    for ours, theirs in zip(results(fast, x, direction), results(plain, x, direction)):
        torch.testing.assert_close(ours, theirs, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[T], [1, T - 1], [T - 1, 1], [290, 3, 1, 1, 5]], ids=str)
def test_a_state_is_the_matrix(sizes: list[int]) -> None:
    plain, fast = plain_and_fast()
    x, kept = torch.randn(2, T, D, dtype=torch.float64), (plain.make_cache(T), fast.make_cache(T))
    assert [type(past) for past in kept] == [KVCache, State]
    expected = plain(x)  # (B, T, D)
    for layer, past in zip((plain, fast), kept):
        pieces = torch.cat([layer(piece, past) for piece in x.split(sizes, dim=1)], dim=1)  # (B, T, D)
        torch.testing.assert_close(pieces, expected, **EXACT)
    assert bytes_of(kept[1]) == 8 * 2 * 2 * 5 * D  # B texts, two numbers a wave and feature


@torch.no_grad()
def test_the_recurrence_is_the_matrix() -> None:
    """`advance`, token by token."""
    layer, _ = plain_and_fast()
    query, key, value = layer.qkv(torch.randn(2, 9, D, dtype=torch.float64), State())
    state, expected = value.new_zeros(2, 4, 2 * 5, D // 4), layer.mix(query, key, value)  # (B, H, 2 m, d), (B, H, T, d)
    for t in range(9):
        state, out = layer.advance(state, value[:, :, t])  # (B, H, 2 m, d), (B, H, d)
        torch.testing.assert_close(out, expected[:, :, t], **EXACT)


def test_the_end_of_a_text_does_not_come_around_to_its_start() -> None:
    value, late = torch.zeros(1, 1, 8, 1, dtype=torch.float64), torch.ones(1, 8, dtype=torch.float64)
    value[0, 0, 7] = 1
    assert convolved(late, value)[0, 0, :, 0].tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0, 1], abs=1e-12)


def test_dropout_drops_weights_of_a_long_text_too() -> None:
    _, fast = plain_and_fast(dropout=0.5)
    x = torch.randn(1, T, D, dtype=torch.float64)
    assert torch.equal(fast.eval()(x), fast(x))
    assert not torch.equal(fast.train()(x), fast(x))


@torch.no_grad()
def test_a_filter_that_changes_is_used_by_the_spectra_and_not_by_the_state() -> None:
    class Delayed(LongConvolution):
        """Everything comes one position later."""

        def filter(self, length: int) -> Tensor:
            return super().filter(length).roll(1, dims=1).index_fill(1, torch.tensor([0]), 0.0)

    shape = Shape(n_embd=D, block_size=T, position=NoPosition.Config())
    layer = make_fast(Delayed(LongConvolution.Config(), shape).double())
    assert isinstance(layer.make_cache(T), KVCache) and "mix" in vars(layer)
    x = torch.randn(1, T, D, dtype=torch.float64)
    expected = make_fast(copy.deepcopy(layer), fast=False)(x)
    torch.testing.assert_close(layer(x), expected, **EXACT)
