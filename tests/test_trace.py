"""The trace: attention maps and intermediates are those that the model computes, and recording changes nothing.

B batch, H heads, G key heads, T query positions, S key positions.
"""

from __future__ import annotations

import pytest
import torch
from laws import is_quick
from small_trainings import noisy_model
from torch import Tensor

from minigpt.attention import Attention, Position
from minigpt.attention.base import repeat_kv
from minigpt.fast import make_fast
from minigpt.model import GPT
from minigpt.seeing.trace import attention_maps, sums_of, tracing
from minigpt.system.errors import UserError

T, V = 7, 11


def make_model(kind: str, position: str = "learned", dropout: float = 0.0) -> GPT:
    return make_fast(noisy_model(kind, position, dropout, 12, V))


def some_ids() -> Tensor:
    return torch.randint(V, (2, T))


PAIRS = [(kind, position) for position in Position.kinds for kind in Attention.kinds]
QUICK = [pair for pair in PAIRS if is_quick(Attention.kinds[pair[0]].Config(), Position.kinds[pair[1]])]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("kind", "position"), QUICK)
def test_the_maps_are_the_weights_with_which_the_values_were_mixed(kind: str, position: str) -> None:
    model, ids = make_model(kind, position), some_ids()
    with tracing(model) as trace:
        model(ids)
    for attention, calls, map in zip(model.attentions(), trace.calls, trace.weights):
        (look,) = calls
        H = map.shape[1]
        assert map.shape == (2, H, T, T)
        assert torch.equal(map, attention.weights(look.query, look.key))
        writes = getattr(attention.config, "writes", 1)  # of a token, whose sum is the output: a group of heads each
        ours, found = (
            mixed.unflatten(1, (writes, -1)).sum(dim=1) for mixed in (map @ repeat_kv(look.value, H), look.mixed)
        )
        torch.testing.assert_close(ours, found, rtol=1e-10, atol=1e-12)
        assert map.triu(1).count_nonzero() == 0
        if attention.rows_sum_to_one:
            torch.testing.assert_close(map.sum(-1), torch.ones(2, H, T, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "steps"), [("differential", 1), ("talking_heads", 2), ("selective", 1), ("forgetting", 1)]
)
def test_a_step_that_is_a_sum_is_that_of_its_parts_times_their_factors(kind: str, steps: int) -> None:
    model = make_model(kind)
    with tracing(model) as trace:
        model(some_ids())
    for attention, ((call,)) in zip(model.attentions(), trace.calls):
        stages = attention.stages(call.query, call.key)
        sums = sums_of(stages)
        assert len(sums) == steps
        for step, parts in sums.items():
            total = sum(factor[:, :, None, None] * stages[name] for name, factor in parts.items())  # (B, H, T, T)
            torch.testing.assert_close(total, stages[step], rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_the_gates_of_native_sparse_attention_are_those_of_its_output() -> None:
    """The views of a head, each times its gate, are added up and projected."""
    model = make_model("native_sparse")
    with tracing(model) as trace:
        model(some_ids())
    for layer, (attention, (call,)) in enumerate(zip(model.attentions(), trace.calls)):
        assert call.head_gates is not None
        views = (call.mixed * call.head_gates[..., None]).unflatten(1, (3, -1)).sum(dim=1)  # (B, H, T, d)
        expected = attention.project(views.transpose(1, 2).flatten(2))  # type: ignore[operator]
        torch.testing.assert_close(trace.outputs[f"blocks.{layer}.attention"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_so_they_are_with_positions_that_are_alike() -> None:
    for kind, position in PAIRS:
        if (kind, position) not in QUICK:
            test_the_maps_are_the_weights_with_which_the_values_were_mixed(kind, position)


@pytest.mark.parametrize("kind", Attention.kinds)
def test_tracing_changes_no_logits_and_leaves_nothing_behind(kind: str) -> None:
    model, ids = make_model(kind), some_ids()
    before, logits = [set(vars(module)) for module in model.modules()], model(ids)
    with tracing(model) as trace:
        assert torch.equal(model(ids), logits)
    assert [set(vars(module)) for module in model.modules()] == before
    assert not any(module._forward_hooks for module in model.modules())
    model(ids)
    assert [len(calls) for calls in trace.calls] == [1, 1]


def test_nothing_is_left_behind_when_the_pass_fails() -> None:
    model = make_model("multi_head")
    before = [attention.mix for attention in model.attentions()]
    with pytest.raises(ValueError, match="do not fit"), tracing(model):
        model(torch.zeros(1, 13, dtype=torch.long))
    assert [attention.mix for attention in model.attentions()] == before
    assert not any(module._forward_hooks for module in model.modules())


def test_traces_may_be_nested() -> None:
    model, ids = make_model("multi_head"), some_ids()
    before = [attention.mix for attention in model.attentions()]
    with tracing(model) as outer:
        with tracing(model) as inner:
            model(ids)
        model(ids)
    assert [len(calls) for calls in outer.calls] == [2, 2]
    assert [len(calls) for calls in inner.calls] == [1, 1]
    assert [attention.mix for attention in model.attentions()] == before


def test_every_part_is_found_by_its_name() -> None:
    model, ids = make_model("multi_head"), some_ids()
    with tracing(model) as trace:
        logits = model(ids)
    out = trace.outputs
    called = {name for name, _ in model.named_modules() if name != "blocks" and "position" not in name}
    assert set(out) == called
    assert torch.equal(out[""], logits)
    for layer in (0, 1):
        before = out["dropout"] if layer == 0 else out["blocks.0"]
        added = out[f"blocks.{layer}.attention"] + out[f"blocks.{layer}.mlp"]
        torch.testing.assert_close(out[f"blocks.{layer}"], before + added)
        torch.testing.assert_close(sum(trace.added[layer]), added)
        assert torch.equal(trace.inputs[f"blocks.{layer}"], before)


@pytest.mark.parametrize("kind", ["dot_product", "single_head", "multi_head", "grouped_query"])
def test_decoding_from_keys_and_values_is_seen_a_step_at_a_time(kind: str) -> None:
    model, ids = make_model(kind), some_ids()
    whole, cache = attention_maps(model, ids), model.make_cache()
    with tracing(model) as trace:
        for start, end in ((0, 4), (4, 6), (6, 7)):
            model(ids[:, start:end], cache)
    for layer in (0, 1):
        rows = torch.cat([_padded(look.weights) for look in trace.calls[layer]], dim=2)
        torch.testing.assert_close(rows, whole[layer], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(trace.weights[layer], whole[layer][:, :, -1:], rtol=1e-10, atol=1e-12)


def _padded(weights: Tensor) -> Tensor:
    """Weights (B, H, t, s) as rows (B, H, t, T), nothing on what has not come yet."""
    return torch.nn.functional.pad(weights, (0, T - weights.shape[-1]))


@pytest.mark.parametrize("kind", ["average_loop", "average_matrix", "average_softmax"])
def test_decoding_from_a_running_sum_has_no_weights_and_says_so(kind: str) -> None:
    model, ids = make_model(kind), some_ids()
    with tracing(model) as trace:
        model(ids, model.make_cache())
    with pytest.raises(UserError, match=rf"layer 1 \({kind}\) decodes from a state, .* trace it without a cache"):
        _ = trace.weights
    with tracing(make_model(kind, "alibi")) as trace:  # a decaying mean keeps all values, and shows its weights
        decaying = make_model(kind, "alibi")
    with tracing(decaying) as trace:
        decaying(ids, decaying.make_cache())
    assert trace.weights[0].shape == (2, 1, T, T)


@pytest.mark.parametrize("training", [True, False])
def test_the_maps_are_without_dropout_and_the_mode_stays_as_it_was(training: bool) -> None:
    model, ids = make_model("multi_head", dropout=0.5), some_ids()
    expected = attention_maps(model.eval(), ids)
    maps = attention_maps(model.train(training), ids)
    assert all(torch.equal(a, b) for a, b in zip(maps, expected, strict=True))
    assert all(module.training is training for module in model.modules())
    assert not any(map.requires_grad for map in maps)
