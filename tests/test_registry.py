"""What the base does for every kind: it is found by its name, has options of its own, and leaves out what cannot be.

The classes here are written as a user would write them.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from minigpt.attention import Attention, AverageLoop, DotProduct, MultiHead, Past
from minigpt.attention.position import NoPosition, Position
from minigpt.fast import make_fast
from minigpt.model import ModelConfig
from minigpt.system.errors import UserError

SHAPE = ModelConfig(n_layer=1, n_embd=16, block_size=8, position=NoPosition.Config())


def layer_of(kind: type[Attention]) -> Attention:
    torch.manual_seed(0)
    return make_fast(kind(kind.Config(), SHAPE)).double().eval()


def tokens() -> Tensor:
    return torch.randn(2, 6, 16, dtype=torch.float64)


# ---- the registry ----


def test_a_kind_is_registered_by_its_name() -> None:
    shipped = {"average_loop", "average_matrix", "average_softmax", "dot_product", "single_head", "multi_head"}
    assert shipped | {"grouped_query"} <= set(Attention.kinds)
    assert all(Attention.kinds[name].kind == name for name in shipped)


def test_a_class_without_a_kind_is_not_registered() -> None:
    class Mine(MultiHead):
        pass

    assert Mine.kind == ""
    assert Mine not in Attention.kinds.values()


def test_two_kinds_of_one_name_are_refused() -> None:
    before = dict(Attention.kinds)
    with pytest.raises(UserError, match=r"the kind 'multi_head' of .*test_registry is taken by .*: choose another"):

        class Mine(MultiHead, kind="multi_head"):
            pass

    assert Attention.kinds == before


def test_each_class_has_options_that_lead_back_to_it() -> None:
    class Mine(MultiHead):
        pass

    assert Mine.Config.component is Mine
    assert MultiHead.Config.component is MultiHead
    assert Mine.Config(n_head=2).n_head == 2


def test_options_that_are_no_frozen_dataclass_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Mine.Config must be a @dataclass\(frozen=True, kw_only=True\)"):

        class Mine(MultiHead):
            class Config:
                n_head = 3


def test_a_kind_that_says_nothing_about_its_weights_is_told_so() -> None:
    class Mine(Attention):
        pass

    with pytest.raises(TypeError, match=r"Mine does not say where its weights come from: define weights"):
        layer_of(Mine)(tokens())


# ---- positions that a kind cannot use ----


def test_a_position_that_a_kind_cannot_honour_is_left_out() -> None:
    class Mine(MultiHead):
        unsuited: ClassVar[dict[str, str]] = {"rotate": "a rotation does not commute with its decay"}

    for name, left_out in {"rotary": True, "alibi": False, "learned": False}.items():
        shape = ModelConfig(n_layer=1, n_embd=16, position=Position.kinds[name].Config())
        assert isinstance(Mine(Mine.Config(), shape).position, NoPosition) == left_out


# ---- steps for people who look ----


@torch.no_grad()
def test_the_last_stage_is_the_weights_in_a_kind_that_changes_them_too() -> None:
    class Mine(MultiHead):
        def weights(self, query: Tensor, key: Tensor) -> Tensor:
            return super().weights(query, key).square()

    for kind, names in {Mine: 4, AverageLoop: 1, DotProduct: 4}.items():
        layer = layer_of(kind)
        query, key, _ = layer.qkv(tokens(), Past())
        stages = layer.stages(query, key)
        assert len(stages) == names and [*stages][-1] == "weights"
        assert torch.equal(stages["weights"], layer.weights(query, key))
