"""Each kind of the ladder equals the one before it where its options add nothing, and differs elsewhere.

T query positions, S key positions, D model width.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from laws import BLOCK, KINDS, POSITIONS, PRECISION, SHAPES, Case, make_layer, obey, parts, tokens
from plugin_kinds import Window
from torch import Tensor, nn

from minigpt.attention import (
    Attention,
    AverageLoop,
    AverageMatrix,
    AverageSoftmax,
    DotProduct,
    GroupedQuery,
    MultiHead,
    Past,
    QueryKey,
    SingleHead,
    SoftmaxAttention,
    ladder,
)
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary, Shape, distance
from minigpt.checks.laws_of_attention import mix_is_weights_times_values
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
from minigpt.training.loop import next_token_loss


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize(
    "config", [MultiHead.Config(head_dim=4), GroupedQuery.Config(n_kv_head=4), Window.Config(window=BLOCK)], ids=str
)
def test_options_that_change_nothing_make_multi_head_attention(
    config: Attention.Config, position: type[Position]
) -> None:
    """The other kinds that equal one another under some options say so themselves: `test_edges.py`."""
    first, second = make_layer(Case(config, position.Config())), make_layer(Case(MultiHead.Config(), position.Config()))
    first.load_state_dict(second.state_dict())  # raises when a name or a shape differs
    x = tokens(2, BLOCK)
    torch.testing.assert_close(first(x), second(x), **PRECISION)
    for T, S in SHAPES:
        weights = (layer.weights(*parts(layer, x[:, :S], T)[:2]) for layer in (first, second))
        torch.testing.assert_close(*weights, **PRECISION)


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_scores_that_are_all_zero_make_the_average(position: type[Position]) -> None:
    """With alibi too: both are then the same decaying mean."""
    average = make_layer(Case(AverageLoop.Config(), position.Config()))
    plain = make_layer(Case(DotProduct.Config(), position.Config()))
    plain.position.load_state_dict(average.position.state_dict())
    for T, S in SHAPES:
        value = tokens(2, S)[:, None]  # (B, 1, S, D)
        query, key = torch.zeros_like(value[:, :, S - T :]), torch.randn_like(value)
        torch.testing.assert_close(average.mix(query, key, value), plain.mix(query, key, value), **PRECISION)
        torch.testing.assert_close(average.weights(query, key), plain.weights(query, key), **PRECISION)


@torch.no_grad()
def test_heads_are_single_heads_side_by_side() -> None:
    """Each head attends as a single head would that had its share of the layers."""
    many = make_layer(Case(MultiHead.Config(n_head=4), NoPosition.Config()))
    query, key, _ = many.qkv(tokens(2, 6), Past())
    one = make_layer(Case(SingleHead.Config(head_dim=4), NoPosition.Config()))
    weights = many.weights(query, key)
    for head in range(4):
        alone = one.weights(query[:, head : head + 1], key[:, head : head + 1])
        torch.testing.assert_close(weights[:, head : head + 1], alone, **PRECISION)


@torch.no_grad()
def test_normalised_queries_do_not_care_how_long_they_are() -> None:
    layer = make_layer(Case(MultiHead.Config(qk_norm=True), Rotary.Config()))
    assert isinstance(layer, MultiHead)
    x = tokens(2, 6)
    before = layer.weights(*layer.qkv(x, Past())[:2])
    for part in (layer.query, layer.key):
        part.weight.mul_(1000)
        part.bias.mul_(1000)
    torch.testing.assert_close(layer.weights(*layer.qkv(x, Past())[:2]), before, rtol=1e-4, atol=1e-5)


def test_without_the_mask_everybody_sees_everybody() -> None:
    """The lesson of `causal: false`: where no weight of the past is zero, none is, the future included."""
    for kind in KINDS.values():
        if not issubclass(kind, SoftmaxAttention) or not kind.order_blind or kind.chooses:
            continue  # a window, or k of the keys, leaves some out
        masked, free = (make_layer(Case(kind.Config(causal=causal), NoPosition.Config())) for causal in (True, False))
        query, key, _ = masked.qkv(tokens(2, 5), Past())
        past = masked.weights(query, key)[..., distance(5, 5) >= 0]  # (B, H, pairs)
        if past.min() > 0:
            assert free.weights(query, key).min() > 0
        obey(mix_is_weights_times_values, Case(kind.Config(causal=False), Alibi.Config()))


def test_what_a_hook_or_another_layer_does_counts_in_training_too() -> None:
    """A faster form is for layers that nobody has touched."""
    layer, x = make_layer(Case(MultiHead.Config(), NoPosition.Config())).train(), tokens(64, 5)
    plain = layer(x)
    hook = layer.query.register_forward_hook(lambda module, inputs, output: 0 * output)
    assert not torch.equal(layer(x), plain)
    hook.remove()
    assert torch.equal(layer(x), plain)

    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    doubled = Doubled(layer.value.in_features, layer.value.out_features).to(x)
    doubled.load_state_dict(layer.value.state_dict())
    layer.value = doubled
    assert not torch.equal(layer(x), plain)


@torch.no_grad()
def test_values_may_be_wider_than_keys() -> None:
    class Wide(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            self.value = nn.Linear(model.n_embd, 2 * model.n_embd)
            self.project = nn.Linear(2 * model.n_embd, model.n_embd)

    x = tokens(2, 6)
    layer = Wide(Wide.Config(n_head=4), Shape(n_embd=16)).to(x)
    query, key, value = layer.qkv(x, Past())
    assert (query.shape, key.shape, value.shape) == ((2, 4, 6, 4), (2, 4, 6, 4), (2, 4, 6, 8))
    assert layer(x).shape == (2, 6, 16)


# ---- the ladder's functions are the modules ----


def plain_layer(attention: Attention.Config, position: Position.Config | None = None) -> Attention:
    """A layer in its textbook form."""
    return make_fast(make_layer(Case(attention, position or NoPosition.Config())), fast=False)


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_single_head_is_attend_digit_for_digit(causal: bool, scaled: bool) -> None:
    layer, x = plain_layer(SingleHead.Config(causal=causal, scaled=scaled)), tokens(2, 7)
    attended = ladder.attend(layer.query(x), layer.key(x), layer.value(x), causal, None if scaled else 1.0)
    assert torch.equal(layer(x), layer.project(attended))


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
def test_learned_queries_and_keys_are_their_function_digit_for_digit(causal: bool) -> None:
    layer, x = plain_layer(QueryKey.Config(causal=causal)), tokens(2, 7)
    assert isinstance(layer, QueryKey)
    for linear in (layer.query, layer.key):
        linear.bias.zero_()  # the function has none
    assert torch.equal(layer(x), ladder.query_key(x, layer.query.weight.T, layer.key.weight.T, causal))


@torch.no_grad()
def test_a_scaled_dot_product_is_its_function_digit_for_digit() -> None:
    x = tokens(2, 7)
    scaled = ladder.dot_product(x, scale=x.shape[-1] ** -0.5)
    assert torch.equal(plain_layer(DotProduct.Config(scaled=True))(x), scaled)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        (DotProduct, ladder.dot_product),
        (AverageMatrix, ladder.average_matrix),
        (AverageSoftmax, ladder.average_softmax),
    ],
)
def test_a_rung_without_weights_is_its_function_digit_for_digit(
    kind: type[Attention], function: Callable[[Tensor], Tensor]
) -> None:
    x = tokens(2, 7)
    assert torch.equal(plain_layer(kind.Config())(x), function(x))


@torch.no_grad()
def test_the_loop_is_its_function_to_the_last_bit_of_a_sum() -> None:
    """The module divides and then adds up, the function adds up and then divides."""
    x = tokens(2, 7)
    torch.testing.assert_close(plain_layer(AverageLoop.Config())(x), ladder.average_loop(x), rtol=1e-15, atol=1e-15)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", Attention.kinds)
def test_a_long_text_is_trained_in_bfloat16(kind: str) -> None:
    """Long enough for the faster forms that short texts do without; `precision: auto` is bfloat16 on many CPUs."""
    config = from_dict(ModelConfig, {"n_layer": 2, "n_embd": 32, "block_size": 300, "attention": kind})
    model, ids = make_fast(GPT(config, 20)), torch.randint(20, (1, 301))
    losses = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            losses.append(next_token_loss(model(ids[:, :-1]), ids[:, 1:]))
    losses[0].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(losses[0], losses[1], rtol=0.01, atol=0)
