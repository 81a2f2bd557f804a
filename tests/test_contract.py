"""The contract of attention: every law, for every kind with every position, and for models with different layers.

The laws are in `minigpt/checks`, the cases in `laws.py`.
"""

from __future__ import annotations

import pytest
import torch
from laws import (
    ATTENTIONS,
    BLOCK,
    BOTH,
    CASES,
    INSIDE,
    POSITIONS,
    Case,
    V,
    broken_laws,
    divided,
    make_layer,
    make_model,
    obey,
    outside,
    tokens,
)
from plugin_kinds import PLUGIN_KINDS

from minigpt.attention import Attention, AverageLoop, AverageSoftmax, GroupedQuery, KVCache, MultiHead, Shared
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary
from minigpt.checks.laws_of_training import dropout_acts_in_training_only
from minigpt.checks.laws_of_writing import written_in_chunks, written_past_the_context, written_token_by_token

QUICK, REST = divided(CASES)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_contract(case: Case) -> None:
    """Of long texts without a position; where one acts inside the attention, the slow tests ask about them as well."""
    assert broken_laws(case, long=is_long(case)) == []


def is_long(case: Case) -> bool:
    return case.position == NoPosition.Config() or case.attention == MultiHead.Config()


@pytest.mark.slow
def test_contract_in_long_texts_with_a_position() -> None:
    broken = {str(case): broken_laws(case) for case in QUICK if not is_long(case)}
    assert {case: laws for case, laws in broken.items() if laws} == {}


@pytest.mark.slow
def test_contract_with_positions_that_are_alike(whole: bool) -> None:
    broken = {str(case): broken_laws(case) for case in (REST if whole else REST[::3])}
    assert {case: laws for case, laws in broken.items() if laws} == {}


@pytest.mark.slow
def test_short_texts_with_a_position_and_dropout_with_a_rotation(whole: bool) -> None:
    """Quickly, these are asked without a position, and of multi-head attention."""
    inside = [case for case in INSIDE if case.position.component in (Rotary, Alibi)]
    for case in inside if whole else inside[::3]:
        for law in BOTH:
            law(make_model(case))
        obey(dropout_acts_in_training_only, case, far=False)


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda attention: str(Case(attention, NoPosition.Config())))
def test_a_position_outside_the_attention_leaves_it_as_it_is(attention: Attention.Config) -> None:
    """Which is why the laws of one attention are asked without positions, and not with these again."""
    x, without = tokens(2, BLOCK), make_layer(Case(attention, NoPosition.Config()))
    for position in POSITIONS.values():
        if outside(attention, position):
            layer = make_layer(Case(attention, position.Config()))
            layer.load_state_dict(without.state_dict())  # a position that is left out may have drawn numbers
            assert torch.equal(layer(x), without(x))


# ---- layers that differ ----


def test_a_list_of_kinds_is_repeated_over_the_layers() -> None:
    kinds = (AverageLoop.Config(), MultiHead.Config())
    model = make_model(Case(kinds, NoPosition.Config()), n_layer=5)
    found = [type(attention) for attention in model.attentions()]
    assert found == [AverageLoop, MultiHead, AverageLoop, MultiHead, AverageLoop]


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_a_model_of_many_kinds_decodes_as_it_trains(position: type[Position]) -> None:
    """States and keys side by side, each layer with the memory of its own kind."""
    kinds = (AverageSoftmax.Config(), GroupedQuery.Config(n_kv_head=2), PLUGIN_KINDS["plugin_linear"].Config())
    case = Case(kinds, position.Config())
    obey(written_token_by_token, case)
    obey(written_in_chunks, case)
    obey(written_past_the_context, case)


@torch.no_grad()
def test_a_layer_reads_the_keys_of_the_layer_below() -> None:
    """Keys that are shared between layers are kept once, and the upper layer's own are not used."""
    sharing = PLUGIN_KINDS["plugin_sharing"].Config()
    model = make_model(Case(sharing, Rotary.Config()), n_layer=3)
    ids = torch.randint(V, (1, BLOCK))
    before, cache = model(ids), model.make_cache()
    assert [type(past) for past in cache] == [KVCache, Shared, Shared]
    for attention in model.attentions()[1:]:
        attention.key.weight.zero_()
    assert torch.equal(model(ids), before)
    model.attentions()[0].key.weight.zero_()
    assert not torch.allclose(model(ids), before)
