"""The check of shapes: every kind with every position passes, and neither the model nor the random numbers change."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from laws import KINDS, is_quick
from plugin_kinds import PLUGIN_POSITIONS
from torch import Tensor

from minigpt.attention import Attention, MultiHead, Position
from minigpt.attention.position import NoPosition, Rotary
from minigpt.fast import make_fast
from minigpt.inspection.shapes import check_shapes
from minigpt.model import GPT, ModelConfig

POSITIONS = Position.kinds | PLUGIN_POSITIONS
SHAPE = ModelConfig(n_layer=2, n_embd=16, block_size=8)


PAIRS = [(kind, position) for kind in KINDS.values() for position in POSITIONS.values()]
QUICK = [(kind, position) for kind, position in PAIRS if is_quick(kind.Config(), position)]


@pytest.mark.parametrize(("kind", "position"), QUICK, ids=lambda part: part.kind)
def test_every_kind_passes_with_every_position(kind: type[Attention], position: type[Position]) -> None:
    check_contexts(kind, position, (1, 2, 8) if position is NoPosition or kind is MultiHead else (8,))


def check_contexts(kind: type[Attention], position: type[Position], sizes: tuple[int, ...]) -> None:
    for block_size in sizes:
        shape = replace(SHAPE, attention=kind.Config(), position=position.Config(), block_size=block_size)
        model = GPT(shape, 7)
        for fast in (True, False):
            check_shapes(make_fast(model, fast))


@pytest.mark.slow
def test_every_kind_passes_with_positions_that_are_alike() -> None:
    for kind, position in PAIRS:
        if (kind, position) not in QUICK:
            test_every_kind_passes_with_every_position(kind, position)


@pytest.mark.slow
def test_every_kind_passes_with_rotary_in_the_shortest_contexts() -> None:
    for kind in KINDS.values():
        check_contexts(kind, Rotary, (1, 2))


def test_the_model_and_the_random_numbers_stay_as_they_were() -> None:
    class Noisy(MultiHead):
        def output(self, mixed: Tensor, x: Tensor) -> Tensor:
            return super().output(mixed, x) + 0 * torch.randn(1)

    model = make_fast(GPT(replace(SHAPE, attention=Noisy.Config(), dropout=0.5), 7)).train()
    before, state = copy.copy(vars(model.attentions()[0])), torch.get_rng_state()
    check_shapes(model)
    assert vars(model.attentions()[0]) == before
    assert model.training and torch.equal(torch.get_rng_state(), state)


def test_a_kind_may_call_its_own_methods_in_its_own_way() -> None:
    class Own(MultiHead):
        def scores(self, query: Tensor, key: Tensor | None = None, tag: str = "") -> Tensor:
            return super().scores(query, query if key is None else key)

        def weights(self, query: Tensor, key: Tensor) -> Tensor:
            self.scores(query)
            self.scores(query=query, key=key, tag="named")
            return super().weights(query, key)

    check_shapes(GPT(replace(SHAPE, attention=Own.Config()), 7))
