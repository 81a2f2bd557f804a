"""The cost of a model, compared with counts made by hand."""

from __future__ import annotations

from math import log2
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count

from minigpt.attention import Attention, Past, State
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
from minigpt.seeing.cost import bytes_of, cost, counting, operations_to_write

L, D, T, V = 3, 32, 24, 20


def model_of(attention: Any, **options: Any) -> GPT:
    shape = {"n_layer": L, "n_embd": D, "block_size": T, "attention": attention}
    return make_fast(GPT(from_dict(ModelConfig, {**shape, **options}), V))


def flops(projections: int, square: int, running_sum: int = 0) -> int:
    """Two operations a multiplication: MLP, projections (D x D each), scores and mixing over T positions, the head."""
    mlp = 2 * 2 * D * 4 * D
    return L * (mlp + projections * 2 * D * D + square * 2 * T * D + running_sum * D) + 2 * D * V


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ("average_softmax", flops(0, 0, running_sum=1)),
        ("average_matrix", flops(0, 0, running_sum=1)),
        ("dot_product", flops(0, 2)),
        ({"kind": "dot_product", "include_self": False, "scaled": True}, flops(0, 2)),
        ("query_key", flops(2, 2)),
        ("single_head", flops(4, 2)),
        ({"kind": "multi_head", "n_head": 4}, flops(4, 2)),
        ({"kind": "grouped_query", "n_head": 4, "n_kv_head": 2}, flops(3, 2)),
    ],
)
def test_operations_a_token(attention: Any, expected: int) -> None:
    assert cost(model_of(attention)).flops_per_token == expected


@pytest.mark.parametrize("use_cache", [True, False])
def test_operations_of_a_written_token(use_cache: bool) -> None:
    """With a cache it is one position that looks at n; without, n positions that look at n, and one head at the end."""
    layer = 2 * 2 * D * 4 * D + 4 * 2 * D * D  # MLP and projections of one position
    found = operations_to_write(model_of("multi_head"), T, use_cache)
    rows = [1 if use_cache else n for n in range(1, T + 1)]
    assert found == [L * (q * layer + 2 * 2 * q * n * D) + 2 * D * V for n, q in enumerate(rows, start=1)]


def test_the_triangular_systems_of_the_delta_rule_are_counted() -> None:
    """In plain form: two products over the square, the keys with one another, T^2 for each of T rows, and the gates."""
    attention = {"kind": "delta_net", "n_head": 4}
    plain = make_fast(model_of(attention), fast=False)
    among_keys, solved, gates = 2 * T * D, 4 * T * T, 2 * D * 4
    assert cost(plain).flops_per_token == flops(4, 2) + L * (among_keys + solved + gates)


def test_operations_do_not_depend_on_which_kernel_makes_them() -> None:
    fast, explicit = model_of("multi_head"), model_of("multi_head")
    for layer in explicit.attentions():
        layer.mix = lambda *qkv, layer=layer: Attention.mix(layer, *qkv)  # type: ignore[method-assign]
    assert cost(explicit) == cost(fast)


# ---- the backward pass ----


def operations_of_step(model: GPT, counter: FlopCounterMode) -> int:
    x = torch.zeros(1, model.config.block_size, dtype=torch.long)  # (1, T)
    with counter:
        F.cross_entropy(model(x)[0], x[0]).backward()
    return counter.get_total_flops()


def test_the_kernels_backward_pass_has_the_operations_of_the_plain_forms_which_torch_counts() -> None:
    """Each product, of attention or with a weight, has a gradient for both of its factors: a step is three passes."""
    model = model_of("multi_head")
    step = operations_of_step(model, counting())
    assert step == operations_of_step(make_fast(model, fast=False), FlopCounterMode(display=False))
    assert step == 3 * T * cost(model).flops_per_token == 3 * T * flops(4, 2)


def test_the_kernels_backward_pass_is_what_torch_counts_without_the_scores_that_it_computes_again() -> None:
    B, H, S, d = 2, 3, 5, 8
    query, key, value = (torch.randn(B, H, length, d, requires_grad=True) for length in (4, S, S))
    mixed = F.scaled_dot_product_attention(query, key, value)  # (B, H, 4, d)
    with counting() as counter:
        mixed.sum().backward()
    theirs = sdpa_backward_flop_count(mixed.shape, query.shape, key.shape, value.shape)
    assert counter.get_total_flops() == theirs - 2 * B * H * 4 * S * d


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", Attention.kinds)
def test_the_backward_pass_of_every_kind_is_counted(kind: str) -> None:
    """Two for each of the forward pass, but for few: a transform has one factor, a count of positions no gradient."""
    model = model_of(kind, block_size=256)
    assert operations_of_step(model, counting()) >= 2.9 * 256 * cost(model).flops_per_token


def test_the_transforms_of_a_long_convolution_are_counted() -> None:
    """Of the values and of the filters, zeros behind them, and one back: 2.5 n log2 n each."""
    long, n = 256, 2 * 256
    transforms = 2.5 * n * log2(n) * (2 * D + 4)
    model = model_of({"kind": "long_convolution", "n_head": 4}, block_size=long)
    assert long * cost(model).flops_per_token == L * transforms + long * flops(projections=2, square=0)


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ("average_softmax", L * D * 4 / T),  # a sum, however long the past
        ("dot_product", L * 2 * D * 4),
        ("query_key", L * 2 * D * 4),
        ("single_head", L * 2 * D * 4),
        ({"kind": "multi_head", "n_head": 4}, L * 2 * D * 4),
        ({"kind": "grouped_query", "n_head": 4, "n_kv_head": 2}, L * D * 4),
        ({"kind": "grouped_query", "n_head": 4, "n_kv_head": 1}, L * D * 2),
        (["average_softmax", "single_head", "average_softmax"], 2 * D * 4 + 2 * D * 4 / T),
        ({"kind": "delta_net", "n_head": 4}, L * D * 8 * 4 / T),  # four states of 8 x 8
        ({"kind": "delta_net", "n_head": 4, "convolution": 4}, L * (D * 8 + 3 * 3 * D) * 4 / T),  # 3 vectors for each
        ({"kind": "mlstm", "n_head": 4}, L * D * (8 + 2) * 4 / T),
    ],
)
def test_bytes_of_cache_a_token(attention: Any, expected: float) -> None:
    assert cost(model_of(attention)).cache_bytes_per_token == pytest.approx(expected)


def test_what_a_cache_only_points_to_is_not_its_own() -> None:
    below, past = State(), State()
    below.replace((torch.zeros(5),), 1)
    past.replace((torch.zeros(3), torch.zeros(2, dtype=torch.float64)), 1)
    past.below, past.seen = below, (torch.zeros(100), torch.zeros(100))
    assert bytes_of(past) == 3 * 4 + 2 * 8
    assert bytes_of(Past()) == 0


def test_parameters_are_counted_once() -> None:
    model = model_of("single_head")
    assert cost(model).parameters == sum(p.numel() for p in model.parameters())


def test_counting_leaves_the_model_as_it_was() -> None:
    model = model_of("multi_head", dropout=0.5).train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert cost(model) == cost(model)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
