"""Recurrent kinds: the matrix, the chunks and the recurrence are one computation, and the state has a fixed size.

B batch, H heads, T positions, D model width.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import OPTIONS as OF_ALL
from laws import POSITIONS, PUBLISHED, Case, D, make_layer, model_config, stir
from torch import Tensor

from minigpt.attention import Attention, Past, State
from minigpt.attention.linear.delta_net import DeltaNet
from minigpt.attention.linear.delta_product import DeltaProduct
from minigpt.attention.linear.gated_delta_net import GatedDeltaNet
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.linear.kimi_delta import KimiDelta
from minigpt.attention.linear.log_linear import LogLinear
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.linear.mlstm import MLSTM
from minigpt.attention.linear.published import ShortConvolution
from minigpt.attention.linear.recurrent import FASTEST, Recurrent
from minigpt.attention.linear.retention import Retention
from minigpt.attention.linear.taylor import Taylor
from minigpt.attention.position import NoPosition, Position, Rotary
from minigpt.checks.laws_of_attention import off
from minigpt.fast import chunks, make_fast
from minigpt.fast.guard import fitting
from minigpt.fast.recurrence import step_by_step
from minigpt.model import GPT, ModelConfig
from minigpt.seeing.cost import bytes_of
from minigpt.system.errors import ConfigError

RECURRENT = {name: kind for name, kind in Attention.kinds.items() if issubclass(kind, Recurrent)}
every = pytest.mark.parametrize("kind", RECURRENT.values(), ids=RECURRENT)
FORMS = ("matrix", "chunks", "recurrence")


def layer_of(kind: type[Attention], position: type[Position] = NoPosition) -> Recurrent:
    layer = make_layer(Case(kind.Config(), position.Config()))
    assert isinstance(layer, Recurrent)
    return layer


def tokens(T: int, B: int = 2) -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(T))  # (B, T, D)


def computed(layer: Recurrent, x: Tensor, form: str) -> Tensor:
    """What one of the three forms makes of x (B, T, D): (B, T, D)."""
    query, key, value = layer.qkv(x, Past())
    if form == "matrix":
        mixed = Attention.mix(layer, query, key, value)  # (B, H, T, e)
    elif form == "chunks":
        mixed = layer.mix(query, key, value)  # (B, H, T, e)
    else:
        mixed, _ = step_by_step(layer, query, key, value.to(query.dtype), layer.empty(key, value))  # (B, H, T, e)
    return layer.output(mixed.to(value.dtype), x)


def with_gradients(layer: Recurrent, x: Tensor, form: str) -> list[Tensor]:
    """The output of a form, and the gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    output = computed(layer, x, form)  # (B, T, D)
    direction = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)  # (B, T, D)
    wanted = [x, *layer.parameters()]
    return [output.detach(), *torch.autograd.grad((output * direction).sum(), wanted, materialize_grads=True)]


# ---- three forms ----


@every
def test_the_three_forms_are_one_computation(kind: type[Attention], monkeypatch: pytest.MonkeyPatch) -> None:
    """With gradients, in chunks of any size, over several segments, and where the last chunk is not full."""
    monkeypatch.setattr(chunks, "SEGMENT", 50)
    layer, x = layer_of(kind), tokens(70)
    matrix = with_gradients(layer, x, "matrix")
    assert max(map(off, with_gradients(layer, x, "recurrence"), matrix)) < 1e-9
    for size in (1, 3, 16, 64):
        monkeypatch.setattr(chunks, "SIZE", size)
        assert max(map(off, with_gradients(layer, x, "chunks"), matrix)) < 1e-9, size


@every
@torch.no_grad()
def test_in_float32_each_form_is_near_the_exact_one(kind: type[Attention]) -> None:
    layer, x = layer_of(kind), tokens(300)
    exact, rough = computed(layer, x, "matrix"), layer.float()
    for form in FORMS:
        assert off(computed(rough, x.float(), form).double(), exact) < 2e-5, form


@every
def test_each_form_is_used(kind: type[Attention]) -> None:
    """Training takes the chunks, writing the recurrence, and the plain model the matrix."""
    for method in ("mix", "recall"):
        assert fitting(kind, method).__module__ in ("minigpt.fast.recurrence", "minigpt.fast.levels")
        assert fitting(kind, method, fast=False) is getattr(Attention, method)


# ---- the state ----


@every
@torch.no_grad()
def test_the_state_has_a_fixed_size(kind: type[Attention]) -> None:
    layer, x = layer_of(kind, Rotary), tokens(40)
    past, sizes = layer.make_cache(40), set()
    assert isinstance(past, State)
    for chunk in x.split([1, 3, 1, 20, 15], dim=1):
        layer(chunk, past)
        sizes.add(bytes_of(past))
    assert len(sizes) == 1 and past.length == 40


@every
@torch.no_grad()
def test_gates_and_states_are_float32_at_least(kind: type[Attention]) -> None:
    for dtype, precise in ((torch.bfloat16, torch.float32), (torch.float32,) * 2, (torch.float64,) * 2):
        layer, x = layer_of(kind).to(dtype), tokens(5).to(dtype)
        query, key, _ = layer.qkv(x, Past())
        assert query.dtype == key.dtype == layer.gates(x).dtype == precise
        for chunk_sizes in ([5], [1] * 5):
            past = layer.make_cache(5)
            assert isinstance(past, State)
            made = [layer(chunk, past) for chunk in x.split(chunk_sizes, dim=1)]
            assert {out.dtype for out in made} == {dtype} and past.tensors[0].dtype == precise


# ---- what a subclass may change ----


def test_weights_that_change_alone_lose_the_chunks_and_the_recurrence_and_gates_keep_them() -> None:
    class Weights(Retention):
        def weights(self, query: Tensor, key: Tensor) -> Tensor:
            return 2 * super().weights(query, key)

    class Gates(Retention):
        def gates(self, x: Tensor) -> Tensor:
            return 3 * super().gates(x)

    for method in ("mix", "recall", "make_cache"):
        assert fitting(Weights, method) is getattr(Attention, method)
        assert fitting(Gates, method) is fitting(Retention, method)


def test_a_recurrence_that_changes_with_the_weights_is_used_for_writing() -> None:
    class Mine(Retention):
        def weights(self, query: Tensor, key: Tensor) -> Tensor:
            return 2 * super().weights(query, key)

        def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            state, mixed = super().advance(state, query, key, value)
            return state, 2 * mixed

    assert fitting(Mine, "mix") is Attention.mix
    assert fitting(Mine, "recall") is not Attention.recall and fitting(Mine, "make_cache") is not Attention.make_cache
    case = Case(Mine.Config(normed=False), NoPosition.Config())
    layer, x, past = make_layer(case).requires_grad_(False), tokens(6), State()
    cached = torch.cat([layer(chunk, past) for chunk in x.split([1, 2, 3], dim=1)], dim=1)  # (B, T, D)
    assert off(cached, layer(x)) < 1e-12


@torch.no_grad()
def test_dropout_drops_weights_which_only_the_matrix_has() -> None:
    torch.manual_seed(0)
    case = Case(Retention.Config(), NoPosition.Config(), dropout=0.5)
    layer = make_fast(Retention(Retention.Config(), model_config(case))).double()
    stir(layer)
    x = tokens(20)
    assert off(layer(x), layer.eval()(x)) > 0.1


# ---- options, and gates at their ends ----

OPTIONS: list[Recurrent.Config] = [
    *(options for options in OF_ALL if isinstance(options, Recurrent.Config)),
    Retention.Config(decay="alibi", features="silu"),
    Retention.Config(decay="none", features="unit", normed=False, head_dim=3),
    GatedLinear.Config(n_head=1, head_dim=2, features="elu"),
    DeltaNet.Config(strength=2.0, n_head=1),
    DeltaProduct.Config(writes=3, head_dim=3),
    Taylor.Config(n_head=2, head_dim=3),
    LogLinear.Config(levels=2),
    LogLinear.Config(levels=4, n_head=1),
    LogLinear.Config(value_dim=6, n_key_head=2, gate=True, scaled=False, **PUBLISHED),
    DeltaProduct.Config(value_dim=3, write_bias=False, **PUBLISHED),
    Retention.Config(value_dim=6, gate=True),
]


@pytest.mark.parametrize(
    ("case", "T"),
    [
        *((Case(config, Rotary.Config()), 70) for config in OPTIONS),
        *((Case(kind.Config(), place.Config()), 9) for kind in RECURRENT.values() for place in POSITIONS.values()),
    ],
    ids=str,
)
def test_with_any_options_and_position_the_three_forms_are_one_computation(case: Case, T: int) -> None:
    layer, x = make_layer(case), tokens(T)
    assert isinstance(layer, Recurrent)
    matrix = with_gradients(layer, x, "matrix")
    for form in ("chunks", "recurrence"):
        assert max(map(off, with_gradients(layer, x, form), matrix)) < 1e-9, form


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("kind", [GatedLinear, KimiDelta])
def test_channels_that_forget_as_fast_as_they_may_stay_finite_in_float32(
    kind: type[GatedLinear | KimiDelta], bounded: bool
) -> None:
    """Every other channel forgets nothing, the others all but e^-5 at each token, or without a bound all."""
    layer, x = make_layer(Case(kind.Config(bounded=bounded), NoPosition.Config())), tokens(70)
    assert isinstance(layer, Recurrent)
    gates = layer.up if isinstance(layer, GatedLinear) else layer.forget
    with torch.no_grad():
        gates.bias.copy_(torch.tensor([-1e6, 1e6]).repeat(D // 2))
    exact = with_gradients(layer, x, "matrix")
    log_decay = layer.ungated(layer.qkv(x, Past())[1])[1][..., -layer.d :]  # (B, H, T, d)
    assert (log_decay.min() == FASTEST if bounded else log_decay.min() < -1e4) and log_decay.max() == 0
    rough = layer.float()
    for form in FORMS:
        for found, expected in zip(with_gradients(rough, x.float(), form), exact):
            assert off(found.double(), expected) < 1e-4, form


def test_writes_of_mlstm_may_be_larger_than_any_float32() -> None:
    """Heads whose tokens are written with e^-300, e^0, e^150 and e^300, and forget little, half or nearly all."""
    layer, x = layer_of(MLSTM), tokens(70)
    with torch.no_grad():
        layer.input.bias.copy_(torch.tensor([-300.0, 0.0, 150.0, 300.0]))
        layer.input.weight.mul_(30)
        layer.forget.bias.copy_(torch.tensor([6.0, 0.0, 6.0, -30.0]))
    exact, rough = with_gradients(layer, x, "matrix"), layer.float()
    assert all(found.isfinite().all() for found in exact)
    for form in ("matrix", "chunks"):
        for found, expected in zip(with_gradients(rough, x.float(), form), exact):
            assert off(found.double(), expected) < 1e-3, form  # exponents of 300 are rounded to 3e-5
    assert off(computed(rough, x.float(), "recurrence").detach().double(), exact[0]) < 1e-4


def test_a_head_forgets_by_the_rates_of_the_papers() -> None:
    """RetNet's 31/32, 63/64, ..., and exp of the slopes of ALiBi, which for four heads are 1/4, 1/16, 1/64, 1/256."""
    like = torch.empty(0, dtype=torch.float64)
    for decay, expected in {
        "retnet": [31 / 32, 63 / 64, 127 / 128, 255 / 256],
        "alibi": [math.exp(-(4.0**-power)) for power in (1, 2, 3, 4)],
        "none": [1.0] * 4,
    }.items():
        layer = make_layer(Case(Retention.Config(decay=decay), NoPosition.Config()))
        assert layer.decays(like).exp().tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("kind", [Mamba2, GatedLinear, GatedDeltaNet, KimiDelta, LogLinear])
def test_gates_start_near_one_as_those_of_retention(kind: type[Attention]) -> None:
    """Whatever the token, since the weights of the gates start small: most of the past is remembered."""
    torch.manual_seed(0)
    model = GPT(model_config(Case(kind.Config(), NoPosition.Config())), 11)
    layer = model.attentions()[0]
    assert isinstance(layer, Recurrent)
    key, gates = layer.ungated(layer.qkv(tokens(9).float(), Past())[1])
    log_decay = gates[..., 1:] if isinstance(layer, DeltaNet) else gates  # (B, H, T, 1 or d)
    expected = torch.tensor([1 / 32, 1 / 64, 1 / 128, 1 / 256])[:, None, None]  # (H, 1, 1)
    assert key.isfinite().all()
    assert ((1 - log_decay.exp()) / expected - 1).abs().max() < 0.5


@pytest.mark.parametrize(("kind", "lowest"), [(Mamba2, 1), (GatedDeltaNet, 0), (KimiDelta, 1)])
def test_decays_start_at_random_as_those_of_the_papers(kind: type[Attention], lowest: float) -> None:
    """Rates up to 16, and steps between 0.001 and 0.1, at the start as much above 0.01 as below."""
    torch.manual_seed(0)
    config = kind.Config(n_head=64, head_dim=2, random_decays=True)  # type: ignore[call-arg]
    layer: Any = GPT(model_config(Case(config, NoPosition.Config())), 11).attentions()[0]
    steps = F.softplus((layer.step if kind is Mamba2 else layer.forget).bias)
    assert lowest <= layer.rate.exp().min() < 3 and 14 < layer.rate.exp().max() <= 16
    assert 0.001 <= steps.min() < steps.max() <= 0.1 and 0.3 < (steps < 0.01).float().mean() < 0.7


def test_a_short_convolution_by_hand() -> None:
    convolution = ShortConvolution(1, 3, bias=True)
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([[1.0], [10.0], [100.0]]))
        convolution.bias.fill_(0.5)
    found = convolution(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1), Past(), "any")
    assert found.flatten().tolist() == [1.5, 12.5, 123.5, 234.5]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Mamba2, {"n_key_head": 3}, "n_key_head: 3 heads of keys do not divide n_head, 4"),
        (GatedLinear, {"normed": False, "norm_weights": True}, "there is no norm, by `normed: false`"),
        (GatedLinear, {"convolution": 4}, "this kind has no such option"),
        (MLSTM, {"inner": 18}, "18 is no multiple of n_head, 4, and of 4"),
        (MLSTM, {"inner": 16, "head_dim": 2}, "a head is inner / n_head wide: leave out head_dim and value_dim"),
    ],
)
def test_options_that_do_not_go_together(kind: type[Attention], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        kind.Config(**options)


def test_short_texts_take_the_explicit_weights_where_they_cost_less() -> None:
    layer = layer_of(Taylor)
    assert isinstance(layer, Taylor) and layer.features == 15
    for T, form in ((14, "matrix"), (15, "chunks")):
        query, key, value = layer.qkv(tokens(T), Past())
        explicit = torch.equal(layer.mix(query, key, value), Attention.mix(layer, query, key, value))
        assert explicit == (form == "matrix")


@pytest.mark.parametrize("name", ["delta_net", "delta_product", "gated_delta_net", "kimi_delta"])
def test_the_matrix_of_the_delta_rule_is_made_in_bfloat16_too(name: str) -> None:
    """As it is with dropout, and in plain form, where products come in bfloat16 and strengths in float32."""
    kind = Attention.kinds[name]
    torch.manual_seed(0)
    layer = make_fast(kind(kind.Config(), ModelConfig(n_layer=1, n_embd=16, position=NoPosition.Config())), fast=False)
    x = torch.randn(2, 9, 16, requires_grad=True)  # (B, T, D)
    exact = layer(x)  # (B, T, D)
    with torch.autocast("cpu", torch.bfloat16):
        rough = layer(x)  # (B, T, D)
    rough.float().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert (rough - exact).norm() < 0.05 * exact.norm()
