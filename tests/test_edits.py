"""Edits from outside: each does what it says in every kind that allows it, and nothing of it stays.

B batch, H heads, T query positions, S key positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_trace import T, make_model, some_ids
from torch import Tensor

from minigpt.attention import Attention, Past
from minigpt.attention.base import repeat_kv
from minigpt.model import GPT, SamplingConfig, generate
from minigpt.seeing.edits import Edits, edited, possible, running_mean, writes_with_cache
from minigpt.seeing.trace import tracing
from minigpt.system.errors import UserError

SAME = {"rtol": 1e-10, "atol": 1e-12}
CUT = Edits(cut=frozenset({(0, 4, 2), (0, 4, 4), (0, 0, 0)}))
MEAN = Edits(running_mean=frozenset({0}))
OFF = Edits(heads_off=frozenset({(0, 0)}))
NO_SCORES = {name for name, kind in Attention.kinds.items() if not hasattr(kind, "normalise")}


def weights_of(model: GPT, ids: Tensor, edits: Edits) -> Tensor:
    """The weights (B, H, T, T) of the first layer; where it is edited, its values are mixed by them."""
    with edited(model, edits), tracing(model) as trace:
        model(ids)
    (call,) = trace.calls[0]
    if 0 in edits.layers(2):
        torch.testing.assert_close(call.mixed, call.weights @ repeat_kv(call.value, call.weights.shape[1]))
    return call.weights


@pytest.mark.parametrize("kind", Attention.kinds)
@torch.no_grad()
def test_an_edit_acts_in_every_kind_that_allows_it_and_is_undone(kind: str) -> None:
    model, ids = make_model(kind), some_ids()
    before, logits = [dict(vars(module)) for module in model.modules()], model(ids)
    can = possible(model)[0]
    edits = [CUT, OFF, *([MEAN] if can.running_mean else []), *([Edits(scale={0: 3.0})] if can.scale else [])]
    for edit in edits:
        with edited(model, edit):
            changed = model(ids)
        assert changed.isfinite().all() and not torch.allclose(changed, logits)
        with pytest.raises(ZeroDivisionError), edited(model, edit):
            _ = 1 / 0
    assert [dict(vars(module)) for module in model.modules()] == before
    assert torch.equal(model(ids), logits)


@pytest.mark.parametrize("kind", Attention.kinds)
@torch.no_grad()
def test_a_running_mean_is_the_average(kind: str) -> None:
    model, ids = make_model(kind), some_ids()
    weights = weights_of(model, ids, MEAN)
    average = make_model("average_matrix", "none").attentions()[0]
    nothing = torch.empty(2, 1, T, 0, dtype=torch.float64)
    torch.testing.assert_close(weights, average.weights(nothing, nothing).expand_as(weights), **SAME)


@pytest.mark.parametrize("kind", ["single_head", "multi_head", "grouped_query", "cosine", "forgetting", "latent"])
@torch.no_grad()
def test_scores_times_zero_are_the_running_mean(kind: str) -> None:
    """For a softmax over the whole past."""
    model, ids = make_model(kind), some_ids()
    flat = weights_of(model, ids, Edits(scale={"all": 0.0}))
    torch.testing.assert_close(flat, running_mean(flat), **SAME)


@pytest.mark.parametrize("position", ["none", "alibi"])
@torch.no_grad()
def test_the_scale_multiplies_what_is_normalised(position: str) -> None:
    model, ids = make_model("multi_head", position), some_ids()
    with tracing(model) as trace:
        model(ids)
    (call,), attention = trace.calls[0], model.attentions()[0]
    scaled = (2.5 * attention.stages(call.query, call.key)["masked"]).softmax(dim=-1)  # (B, H, T, T)
    torch.testing.assert_close(weights_of(model, ids, Edits(scale={0: 2.5})), scaled, **SAME)
    assert torch.equal(weights_of(model, ids, Edits(scale={1: 2.5})), call.weights)


@pytest.mark.parametrize("kind", Attention.kinds)
@torch.no_grad()
def test_a_cut_edge_has_no_weight_and_moves_nothing_before_its_query(kind: str) -> None:
    model, ids = make_model(kind), some_ids()
    whole, cut = weights_of(model, ids, Edits()), weights_of(model, ids, CUT)
    assert (cut[..., 4, [2, 4]] == 0).all() and (cut[..., 0, 0] == 0).all()
    others = [row for row in range(T) if row not in (0, 4)]
    assert torch.equal(cut[..., others, :], whole[..., others, :])
    if model.attentions()[0].rows_sum_to_one:
        torch.testing.assert_close(cut[..., 4, :].sum(-1), whole[..., 4, :].sum(-1), **SAME)
    logits = model(ids)
    with edited(model, Edits(cut=frozenset({(0, 4, 2), (0, 4, 4)}))):
        changed = model(ids)
    torch.testing.assert_close(changed[:, :4], logits[:, :4], **SAME)
    assert not torch.allclose(changed[:, 4], logits[:, 4])


@torch.no_grad()
def test_heads_off_hand_on_nothing() -> None:
    model, x = make_model("multi_head"), torch.randn(1, T, 16, dtype=torch.float64)
    attention: Any = model.attentions()[0]
    with tracing(model) as trace:
        attention(x)
    mixed = trace.calls[0][0].mixed.unbind(dim=1)  # four heads (1, T, 4)
    with edited(model, Edits(heads_off=frozenset({(0, 0), (0, 2)}))):
        found = attention(x)
    columns = attention.project.weight.split(4, dim=1)  # (16, 4) for each head
    by_hand = mixed[1] @ columns[1].T + mixed[3] @ columns[3].T + attention.project.bias  # (1, T, 16)
    torch.testing.assert_close(found, by_hand, **SAME)


@torch.no_grad()
def test_parts_off_add_nothing() -> None:
    """By hand: the block without its attention is the MLP alone, and without both it hands on its input."""
    model, x = make_model("multi_head"), torch.randn(1, T, 16, dtype=torch.float64)
    block: Any = model.blocks[0]
    with edited(model, Edits(attentions_off=frozenset({0}))):
        torch.testing.assert_close(block(x, Past()), x + block.mlp(block.mlp_norm(x)), **SAME)
    with edited(model, Edits(mlps_off=frozenset({0}))):
        torch.testing.assert_close(block(x, Past()), x + block.attention(block.attention_norm(x), Past()), **SAME)
    with edited(model, Edits(attentions_off=frozenset({0}), mlps_off=frozenset({0}))):
        assert torch.equal(block(x, Past()), x)
    with pytest.raises(UserError, match="layer 3: the model has"), edited(model, Edits(mlps_off=frozenset({2}))):
        pass


@pytest.mark.parametrize("kind", Attention.kinds)
def test_with_a_cache_an_edited_model_writes_the_same_or_refuses(kind: str) -> None:
    model, config = make_model(kind), SamplingConfig(max_tokens=10)
    edits = Edits(OFF.heads_off, frozenset({1}), cut=CUT.cut)
    ids = torch.tensor([[1, 2, 3]])

    def text(use_cache: bool) -> list[int]:
        return [int(i) for i in generate(model, ids, config, torch.Generator().manual_seed(1), use_cache)]

    with edited(model, edits):
        plain = text(False)
        if writes_with_cache(model, edits):
            assert text(True) == plain
        else:
            with pytest.raises(UserError, match="write without a cache"):
                text(True)


@pytest.mark.parametrize("kind", sorted(NO_SCORES))
def test_a_scale_without_scores_is_refused_and_reported(kind: str) -> None:
    model = make_model(kind)
    assert not possible(model)[0].scale
    with pytest.raises(UserError, match="nothing to scale"), edited(model, Edits(scale={"all": 2.0})):
        model(some_ids())


def test_what_would_do_nothing_is_reported() -> None:
    (can, _) = possible(make_model("average_softmax"))
    assert (can.heads, can.running_mean, can.scale) == (1, False, False)
    (can, _) = possible(make_model("multi_head"))
    assert (can.heads, can.running_mean, can.scale) == (4, True, True)
    assert possible(make_model("average_loop", "alibi"))[0].running_mean  # a decaying mean is another one


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (Edits(heads_off=frozenset({(2, 0)})), "layer 3: the model has the layers 1 to 2"),
        (Edits(running_mean=frozenset({-1})), "layer 0: the model has the layers 1 to 2"),
        (Edits(heads_off=frozenset({(0, 9)})), "head 10: layer 1 has the heads 1 to 4"),
        (Edits(heads_off=frozenset({(0, -1)})), "head 0: layer 1 has the heads 1 to 4"),
        (Edits(scale={"all": -1.0}), "expected a number from 0"),
        (Edits(scale={0: float("nan")}), "expected a number from 0"),
        (Edits(scale={0: 2.0}, running_mean=frozenset({0})), "has no scores to scale"),
        (Edits(cut=frozenset({(0, 2, 4)})), "position 3 never sees position 5"),
    ],
    ids=lambda value: "" if isinstance(value, Edits) else value[:20],
)
def test_an_edit_that_is_none_is_refused(edits: Edits, message: str) -> None:
    model = make_model("multi_head")
    with pytest.raises(UserError, match=message), edited(model, edits):
        model(some_ids())


def test_equal_edits_have_equal_hashes() -> None:
    first, second = (Edits(scale={0: 2.0, "all": 1.5}, running_mean=frozenset({1})) for _ in range(2))
    assert first == second and hash(first) == hash(second)
