"""A kind that changes the mathematics does not inherit a shortcut that was written for its parent.

A shortcut is a faster `mix`, `recall` or `make_cache` that equals the plain one. A kind with other weights that
inherited it would train as its parent, without an error. The classes here are written as a user would write them. The
last part changes each named step of every kind, one at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from laws import BLOCK, V, stir
from plugin_kinds import PLUGIN_KINDS
from torch import Tensor, nn

from minigpt.attention import (
    Attention,
    AverageLoop,
    AverageMatrix,
    AverageSoftmax,
    DotProduct,
    GroupedQuery,
    KVCache,
    MultiHead,
    Past,
    SingleHead,
    SoftmaxAttention,
    State,
)
from minigpt.attention.compact.latent import Latent
from minigpt.attention.position import NoPosition, Rotary, distance
from minigpt.attention.sparse.indexer import Indexer
from minigpt.checks.laws_of_writing import written_in_chunks, written_token_by_token
from minigpt.fast import kernels, make_fast, running_sum, shortcut
from minigpt.fast.decoding import prepare
from minigpt.fast.guard import METHODS, fitting
from minigpt.model import GPT, ModelConfig

SHAPE = ModelConfig(n_layer=1, n_embd=16, block_size=8, position=NoPosition.Config())
SOFTMAX = (DotProduct, SingleHead, MultiHead, GroupedQuery)
AVERAGES = (AverageLoop, AverageMatrix, AverageSoftmax)


def layer_of(kind: type[Attention]) -> Attention:
    torch.manual_seed(0)
    return make_fast(kind(kind.Config(), SHAPE)).double().eval()


def forms(kind: type[Attention]) -> tuple[object, ...]:
    """Which mix, recall and make_cache a kind gets."""
    return tuple(fitting(kind, method) for method in METHODS)


def tokens() -> Tensor:
    return torch.randn(2, 6, 16, dtype=torch.float64)


@torch.no_grad()
def off(kind: type[Attention], mix: object) -> float:
    """How far a given `mix` is from the weights times the values of this kind."""
    layer, x = layer_of(kind), tokens()
    qkv = layer.qkv(x, Past())
    return float((mix(layer, *qkv) - Attention.mix(layer, *qkv)).abs().max())


# ---- named steps, changed ----


Change = Callable[..., Any]  # what a subclass's method returns: a function of the parent's method, and of its arguments


def of_values(change: Callable[[Tensor], Tensor]) -> tuple[str, Change]:
    """A `qkv` with other values."""
    return "qkv", lambda parent, *arguments: (*(made := parent(*arguments))[:2], change(made[2]))


STEPS: dict[str, dict[str, Change]] = {
    "capped": {"scores": lambda parent, query, key: 1.5 * (parent(query, key) / 1.5).tanh()},
    "negated": {"scores": lambda parent, query, key: -parent(query, key)},
    "sharper": {"scale": lambda parent, *query: 2 * parent(*query)},
    "near": {"mask": lambda parent, T, S, device: parent(T, S, device) & (distance(T, S) < 3)},
    "sloped": {"bias": lambda parent, query, key: parent(query, key) - distance(query.shape[2], key.shape[2])},
    "with a sink": {"normalise": lambda parent, scores: parent(F.pad(scores, (0, 1)))[..., :-1]},
    "halved": {"weights": lambda parent, query, key: 0.5 * parent(query, key)},
    "bounded values": dict([of_values(torch.tanh)]),
    "turned queries": {"qkv": lambda parent, *arguments: (-(made := parent(*arguments))[0], *made[1:])},
    "wider values": {
        **dict([of_values(lambda value: torch.cat((value, value.tanh()), dim=-1))]),
        "output": lambda parent, mixed, x: parent(sum(mixed.chunk(2, dim=-1)), x),
    },
    "narrower values": {
        **dict([of_values(lambda value: value[..., ::2])]),
        "output": lambda parent, mixed, x: parent(mixed.repeat_interleave(2, dim=-1), x),
    },
    "its own mix": {"mix": lambda parent, query, key, value: parent(query, key, value)},
    "a plain cache": {"make_cache": lambda parent, length: KVCache(length)},
    "weaker gates": {"gates": lambda parent, x: 0.5 * parent(x)},
    "another filter": {"filter": lambda parent, length: 0.5 * parent(length)},
}
OF_AVERAGES: dict[str, dict[str, Change]] = {
    "added to its input": {"output": lambda parent, mixed, x: x + parent(mixed, x)},
    "choosing": {"qkv": lambda parent, *arguments: (parent(*arguments)[2],) * 3},
}
NOT = {  # what has no meaning: these read values of other layers, which are changed already; and this counts its scores
    *((kind, step) for kind in ("value_residual", "cross_layer") for step in ("wider values", "narrower values")),
    ("block_top_k", "with a sink"),
}


def changed(kind: type[Attention], step: str) -> type[Attention]:
    """A subclass of a kind that changes one step."""

    def method(name: str, change: Change) -> Callable[..., Any]:
        return lambda self, *arguments: change(getattr(super(mine, self), name), *arguments)

    mine = type("Mine", (kind,), {name: method(name, change) for name, change in (STEPS | OF_AVERAGES)[step].items()})
    return mine


def have(kind: type[Attention], step: str) -> bool:
    """Whether a kind has the step, and the change has a meaning in it."""
    return all(hasattr(kind, name) for name in STEPS[step]) and (kind.kind, step) not in NOT


# ---- which changes lose a faster form ----


@pytest.mark.parametrize("parent", SOFTMAX)
def test_what_ships_has_the_fast_kernel(parent: type[SoftmaxAttention]) -> None:
    assert fitting(parent, "mix") is kernels.mix
    assert fitting(parent, "mix", fast=False) is Attention.mix
    assert fitting(parent, "mix", without=["fused attention"]) is Attention.mix


@pytest.mark.parametrize("parent", SOFTMAX)
@pytest.mark.parametrize("step", ["capped", "halved", "with a sink"])
def test_other_scores_weights_and_normalisers_lose_the_fast_kernel(step: str, parent: type[SoftmaxAttention]) -> None:
    mine = changed(parent, step)
    assert fitting(mine, "mix") is fitting(changed(mine, "near"), "mix") is Attention.mix  # and further down


class OtherLayers:
    """What goes in and what comes out are others; the mean between them is the same."""

    order_blind = False
    muon: ClassVar[dict[str, bool]] = {"gate.weight": False}

    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.gate = nn.Linear(16, 16)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        return query.tanh(), key, value

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) * self.gate(x)

    def a_helper(self) -> None:
        """New names cannot matter to what was written before them."""


class Recalls:
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        return self.mix(query, *past.append(key, value))


class Keeps:
    def make_cache(self, length: int) -> Past:
        return KVCache(length)


@pytest.mark.parametrize("parent", SOFTMAX)
@pytest.mark.parametrize("mixin", ["near", "sharper", (OtherLayers,), (Recalls,), (Keeps,), (Recalls, Keeps)], ids=str)
def test_another_mask_scale_input_output_or_cache_keeps_it_and_is_honoured(mixin: Any, parent: Any) -> None:
    mine = changed(parent, mixin) if isinstance(mixin, str) else type("Mine", (*mixin, parent), {})
    assert fitting(mine, "mix") is kernels.mix
    assert off(mine, fitting(mine, "mix")) < 1e-12
    x = tokens()
    assert isinstance(mixin, tuple) or not torch.allclose(layer_of(mine)(x), layer_of(parent)(x))


def test_a_kind_that_shares_keys_between_layers_keeps_it_too() -> None:
    sharing = PLUGIN_KINDS["plugin_sharing"]
    assert "make_cache" in vars(sharing)
    assert fitting(sharing, "mix") is kernels.mix


def test_a_mixin_that_changes_the_scores_loses_the_fast_kernel() -> None:
    class Bounded:
        def scores(self, query: Tensor, key: Tensor) -> Tensor:
            return super().scores(query, key).tanh()

    assert fitting(type("Mine", (Bounded, MultiHead), {}), "mix") is Attention.mix


def test_a_shortcut_of_its_own_is_kept() -> None:
    class Mine(MultiHead):
        def scores(self, query: Tensor, key: Tensor) -> Tensor:
            return super().scores(query, key) * 2

        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return kernels.mix(self, query * 2, key, value)

    assert "mix" in vars(Mine)
    assert off(Mine, fitting(Mine, "mix")) < 1e-12


def test_a_shortcut_says_itself_what_it_honours() -> None:
    class Fast(MultiHead):
        def temperature(self) -> float:
            return 2.0

        def scores(self, query: Tensor, key: Tensor) -> Tensor:
            return super().scores(query, key) * self.temperature()

        @shortcut("temperature")
        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return kernels.mix(self, query * self.temperature(), key, value)

    class Hotter(Fast):
        def temperature(self) -> float:
            return 4.0

    assert fitting(Hotter, "mix") is Fast.mix
    assert fitting(Hotter, "mix", fast=False) is Attention.mix
    assert off(Hotter, fitting(Hotter, "mix")) < 1e-12
    assert fitting(changed(Fast, "capped"), "mix") is Attention.mix


def test_an_unmarked_mix_honours_nothing() -> None:
    class Unmarked(MultiHead):
        def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return kernels.mix(self, query, key, value)

    windowed = changed(Unmarked, "near")
    assert fitting(windowed, "mix") is not Unmarked.mix
    assert off(windowed, fitting(windowed, "mix")) < 1e-12


# ---- the averages: the running sum, and the state that it decodes from ----


class Decays:
    def decay(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.linspace(1, 2, key.shape[2], dtype=query.dtype).expand(1, query.shape[2], -1)


PLAIN = (Attention.mix, Attention.recall, Attention.make_cache)
SUMS = (running_sum.mix, running_sum.recall, running_sum.make_cache)


@pytest.mark.parametrize(
    ("mine", "wanted"),
    [
        *((changed(parent, "halved"), PLAIN) for parent in AVERAGES),
        *((type("Decaying", (Decays, parent), {}), PLAIN) for parent in (AverageLoop, AverageMatrix)),
        (changed(AverageSoftmax, "near"), (kernels.mix, *PLAIN[1:])),
        *((changed(parent, "added to its input"), SUMS) for parent in AVERAGES),
        *((changed(parent, "bounded values"), None) for parent in AVERAGES),
        (changed(AverageSoftmax, "choosing"), None),  # queries and keys of its own: softmax attention
    ],
)
def test_an_average_keeps_the_running_sum_where_its_weights_are_equal(mine: Any, wanted: tuple[object, ...]) -> None:
    assert wanted in (None, forms(mine))
    assert off(mine, fitting(mine, "mix")) < 1e-12
    has_sums = fitting(mine, "make_cache") is running_sum.make_cache
    assert type(layer_of(mine).make_cache(8)) is (State if has_sums else KVCache)


# ---- why the guard is there ----


def test_without_the_guard_the_numbers_would_be_wrong() -> None:
    """The parent's kernel on a child's weights: another result by far, and nothing would say so."""

    negated = changed(MultiHead, "negated")
    assert off(negated, fitting(MultiHead, "mix")) > 0.1
    assert off(negated, fitting(negated, "mix")) == 0.0


@torch.no_grad()
def test_without_the_guard_decoding_would_be_wrong() -> None:
    class Recent(AverageMatrix):
        def weights(self, query: Tensor, key: Tensor) -> Tensor:
            return (super().weights(query, key) * torch.arange(1, key.shape[2] + 1)).softmax(dim=-1)

    layer, x = layer_of(Recent), tokens()
    state, cache = State(), layer.make_cache(8)
    for token in x.split(1, dim=1):
        qkv = layer.qkv(token, cache)
        summed = running_sum.recall(layer, *qkv, state)
        remembered = layer.recall(*qkv, cache)
    exact = layer.mix(*layer.qkv(x, Past()))[:, :, -1:]
    assert (remembered - exact).abs().max() < 1e-12
    assert (summed - exact).abs().max() > 0.1


# ---- methods that say one thing in two forms ----


class Doubled(MultiHead):
    """Its mix is right as long as `half` and `double` change together."""

    def half(self) -> float:
        return 0.5

    def double(self) -> float:
        return 2.0

    @shortcut(together=("half", "double"))
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return Attention.mix(self, query, key, value)


def test_a_form_stays_where_all_that_belongs_together_changes_and_goes_where_only_some_does() -> None:
    class Both(Doubled):
        def half(self) -> float:
            return 0.25

        def double(self) -> float:
            return 4.0

    class One(Doubled):
        def half(self) -> float:
            return 0.25

    assert fitting(Both, "mix") is Doubled.mix
    assert fitting(One, "mix") is kernels.mix


# ---- methods of one instance ----


@pytest.mark.parametrize("kind", [MultiHead, Latent, AverageSoftmax])
def test_a_method_that_is_set_on_an_instance_counts_as_one_of_a_subclass(kind: Any) -> None:
    """No kernel stands in for what it computes, and a form of its own stays."""
    torch.manual_seed(0)
    layer, x = kind(kind.Config(), SHAPE).double().eval(), tokens()
    layer.normalise = torch.sigmoid
    made = make_fast(layer)
    assert "mix" not in vars(made)["faster"] and type(made.make_cache(8)) is KVCache
    plain = make_fast(copy.deepcopy(layer), fast=False)
    torch.testing.assert_close(made(x), plain(x), rtol=1e-12, atol=1e-12)
    layer.mix = MethodType(lambda self, query, key, value: 3 * value, layer)
    assert (make_fast(layer).mix(*layer.qkv(x, Past())) == 3 * layer.qkv(x, Past())[2]).all()
    del layer.mix, layer.normalise
    assert "mix" in vars(make_fast(layer))["faster"]


def test_a_position_whose_bias_is_set_on_the_instance_is_no_position_of_its_class() -> None:
    layer, x = layer_of(MultiHead), tokens()
    layer.position.bias = lambda query, key: -distance(query.shape[2], key.shape[2]).double()[None]  # type: ignore[method-assign]
    made = make_fast(copy.deepcopy(layer))(x)
    torch.testing.assert_close(made, make_fast(layer, fast=False)(x), rtol=1e-12, atol=1e-12)


# ---- every named step of every kind ----


PAIRS = [(kind, step) for kind in Attention.kinds.values() for step in STEPS if have(kind, step)]


@pytest.mark.quick(11)
@pytest.mark.sample(4)
@pytest.mark.parametrize(("kind", "step"), PAIRS, ids=lambda part: part if isinstance(part, str) else part.kind)
def test_a_kind_with_one_step_changed_computes_in_every_form_what_it_says(kind: type[Attention], step: str) -> None:
    """Fast, with its cache, and prepared for writing: what the plain form computes, the kind's own loss included."""
    torch.manual_seed(0)
    shape = ModelConfig(n_layer=2, n_embd=16, block_size=BLOCK, position=Rotary.Config())
    model = GPT(replace(shape, attention=changed(kind, step).Config()), V).double()
    stir(model)
    ids, results = torch.randint(V, (2, BLOCK)), list[list[Tensor]]()
    for form in (make_fast(model), make_fast(copy.deepcopy(model), fast=False)):
        logits = form(ids)  # (B, T, V)
        extras = [loss for attention in form.attentions() if (loss := attention.extra_loss()) is not None]
        assert len(extras) == (2 if issubclass(kind, Indexer) else 0)
        wanted = [*form.parameters()]
        found = torch.autograd.grad(sum(extras, logits.square().sum()), wanted, allow_unused=True)
        results.append([logits.detach(), *(p if g is None else g for p, g in zip(wanted, found))])
    for ours, plain in zip(*results):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)
    for written in (model.eval(), prepare(model)):
        written_token_by_token(written)
        written_in_chunks(written)
