"""Windows and chunks by blocks, and the ring as it lies, equal the mask: in texts of many blocks and in writing.

B batch, T positions, D model width.
"""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch
from laws import POSITIONS

from minigpt.attention import Attention, Shape
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary
from minigpt.attention.sparse.chunked import Chunked
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.attention.sparse.soft_cap_window import SoftCapWindow
from minigpt.attention.sparse.streaming import Streaming
from minigpt.fast import kernels, make_fast

EXACT = {"rtol": 1e-10, "atol": 1e-12}
KINDS = [
    SlidingWindow.Config(window=1),
    SlidingWindow.Config(window=70, n_kv_head=2),
    Streaming.Config(window=5),
    Streaming.Config(window=3, sinks=80, n_kv_head=1),
    Streaming.Config(window=70, sinks=0),
    Chunked.Config(chunk=80, n_kv_head=2),
    SoftCapWindow.Config(window=70, n_kv_head=2, cap=0.5),
]


def plain_and_fast(config: Attention.Config, position: type[Position], T: int) -> tuple[Attention, Attention]:
    torch.manual_seed(0)
    shape = Shape(n_embd=16, block_size=T, position=position.Config())
    layer = config.component(config, shape).double()
    return make_fast(layer, fast=False), make_fast(copy.deepcopy(layer))


@pytest.mark.parametrize("position", [NoPosition, Rotary, Alibi, POSITIONS["plugin_learned_bias"]])
@pytest.mark.parametrize("T", [4 * 80, 4 * 80 + 7])
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_blocks_are_the_mask(config: Attention.Config, T: int, position: type[Position]) -> None:
    layers, found = plain_and_fast(config, position, T), []
    x, direction = (torch.randn(2, T, 16, dtype=torch.float64) for _ in range(2))
    for layer in layers:
        wanted = [x.clone().requires_grad_(), *layer.parameters()]
        output = layer(wanted[0])  # (B, T, D)
        found.append([output.detach(), *torch.autograd.grad((output * direction).sum(), wanted)])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("position", [Rotary, Alibi])
@pytest.mark.parametrize("config", KINDS, ids=str)
def test_a_long_text_is_written_as_it_is_read(config: Attention.Config, position: type[Position]) -> None:
    """A prompt of many blocks, then token by token, then a chunk that is longer than the ring."""
    T = 520
    x = torch.randn(1, T, 16, dtype=torch.float64)
    for layer in plain_and_fast(config, position, T):
        past = layer.make_cache(T)
        written = torch.cat([layer(chunk, past) for chunk in x.split([330, *[1] * 90, 100], dim=1)], dim=1)
        torch.testing.assert_close(written, layer(x), **EXACT)


@torch.no_grad()
def test_a_long_text_makes_scores_for_few_pairs() -> None:
    """Of 8 blocks, 6 read two blocks each, and the first two each other: 16 b^2 pairs instead of 64 b^2."""
    _, layer = plain_and_fast(SlidingWindow.Config(window=3), NoPosition, 512)
    pairs: list[int] = []

    def counting(self: Attention, *parts: torch.Tensor) -> torch.Tensor:
        query, key, _ = parts
        pairs.append(len(query) * query.shape[2] * key.shape[2])
        return kernels_mix(self, *parts)

    kernels_mix = kernels.mix
    with patch.object(kernels, "mix", counting):
        layer(torch.randn(1, 512, 16, dtype=torch.float64))
    assert sum(pairs) == 16 * 64**2


@pytest.mark.slow
@torch.no_grad()
def test_dropout_in_a_window_of_blocks_keeps_the_mean() -> None:
    torch.manual_seed(0)
    shape = Shape(n_embd=16, block_size=256, dropout=0.3, position=NoPosition.Config())
    layer = make_fast(SlidingWindow(SlidingWindow.Config(window=9), shape).double())
    x = torch.randn(1, 256, 16, dtype=torch.float64)
    expected = layer.eval()(x)
    drawn = layer.train()(x.expand(400, -1, -1))  # (B, T, D)
    spread = drawn.std(dim=0)  # (T, D)
    assert spread[1:].amax(dim=-1).min() > 0
    assert ((drawn.mean(dim=0) - expected[0]).abs() < 6 * spread / 400**0.5).all()
