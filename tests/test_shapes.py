"""The check of shapes: every kind with every position passes, and neither the model nor the random numbers change."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from laws import KINDS
from torch import Tensor

from minigpt.attention import Attention, MultiHead
from minigpt.attention.position import Rotary
from minigpt.checks.shapes import check_shapes
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig

SHAPE = ModelConfig(n_layer=2, n_embd=16, block_size=8)


@pytest.mark.quick(4)
@pytest.mark.parametrize("block_size", [1, 2, 8])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_passes_in_the_shortest_contexts(kind: type[Attention], block_size: int) -> None:
    """With each position, in a longer one: `test_checks.py`."""
    model = GPT(replace(SHAPE, attention=kind.Config(), position=Rotary.Config(), block_size=block_size), 7)
    for fast in (True, False):
        check_shapes(make_fast(model, fast))


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
