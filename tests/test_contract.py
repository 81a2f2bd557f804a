"""The contract of attention: every law, for every kind with every position, and a cheat that each law catches.

The kinds and positions are read from the registries, so that a new file is covered by itself; `later_kinds.py` adds
some that do not ship, written as a user's plugin would be. Where equality is claimed it is claimed in float64.

B batch, H query heads, G key heads, T query positions, S key positions, D model width, e width of a value.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from later_kinds import LATER, LATER_POSITIONS, Window
from torch import Tensor, nn

from minigpt.attention import Attention, SoftmaxAttention, shortcut
from minigpt.attention.average import AverageLoop, AverageMatrix, AverageSoftmax
from minigpt.attention.dot_product import DotProduct
from minigpt.attention.grouped_query import GroupedQuery
from minigpt.attention.multi_head import MultiHead
from minigpt.attention.single_head import SingleHead
from minigpt.cache import KVCache, Past, State
from minigpt.model import GPT, ModelConfig
from minigpt.position import Alibi, NoPosition, Position, Rotary

D, V, BLOCK = 16, 11, 8
SHAPES = [(6, 6), (1, 6), (3, 7), (1, 1)]  # (T, S): a training pass, a token, a chunk, the very first token
SIZES = (1.0, 1e6)  # of the inputs; the scores grow with their square
PRECISION = {"rtol": 1e-10, "atol": 1e-12}


@dataclass(frozen=True)
class Case:
    """A kind of attention with its options, and a position."""

    attention: Attention.Config | tuple[Attention.Config, ...]
    position: Position.Config
    dropout: float = 0.0

    def __str__(self) -> str:
        assert not isinstance(self.attention, tuple)
        kind = self.attention.component
        plain = kind.Config()
        options = [f"{name}={value}" for name, value in vars(self.attention).items() if value != getattr(plain, name)]
        return " ".join([kind.kind or kind.__name__, *options, self.position.component.kind])


KINDS: dict[str, type[Attention]] = Attention.kinds | LATER
POSITIONS: dict[str, type[Position]] = Position.kinds | LATER_POSITIONS
OPTIONS = [
    SingleHead.Config(scaled=False),
    SingleHead.Config(head_dim=5),
    MultiHead.Config(qk_norm=True),
    MultiHead.Config(head_dim=3),
    GroupedQuery.Config(n_kv_head=2),
    GroupedQuery.Config(n_kv_head=1, qk_norm=True),
]
CASES = [
    Case(attention, position.Config())
    for attention in [*(kind.Config() for kind in KINDS.values()), *OPTIONS]
    for position in POSITIONS.values()
]


# ---- what the checks are made of ----


def model_config(case: Case, n_layer: int = 1) -> ModelConfig:
    return ModelConfig(
        n_layer=n_layer,
        n_embd=D,
        block_size=BLOCK,
        attention=case.attention,
        position=case.position,
        dropout=case.dropout,
    )


@torch.no_grad()
def stir(module: nn.Module) -> None:
    """Move every parameter away from where it starts: a zero would hide what it multiplies."""
    for parameter in module.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))


def make_layer(case: Case) -> Attention:
    torch.manual_seed(0)
    config = model_config(case)
    layer: Attention = config.layer_attention(0).component(config.layer_attention(0), config, 0)
    stir(layer)
    return layer.double().eval()


def make_model(case: Case, n_layer: int) -> GPT:
    torch.manual_seed(0)
    model = GPT(model_config(case, n_layer), V)
    stir(model)
    return model.double().eval()


def tokens(B: int, T: int) -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64)


def parts(layer: Attention, x: Tensor, T: int) -> tuple[Tensor, Tensor, Tensor]:
    """The last T queries, and all keys and values, of x (B, S, D)."""
    query, key, value = layer.qkv(x, Past())
    return query[:, :, x.shape[1] - T :], key, value


def chunks(n: int, seed: int) -> Iterator[int]:
    """Random lengths that add up to n."""
    lengths = random.Random(seed)
    while n:
        size = lengths.randint(1, min(n, 5))
        yield size
        n -= size


def decode(model: GPT, ids: Tensor, sizes: Iterator[int] | list[int]) -> Tensor:
    """The logits of every position, made chunk by chunk with a cache: (B, T, V)."""
    cache = model.make_cache()
    return torch.cat([model(chunk, cache) for chunk in ids.split(list(sizes), dim=1)], dim=1)


def window_start(n: int) -> int:
    """Where the context begins when n tokens are known: past the block it restarts in hops of half a block."""
    hop = BLOCK // 2
    return 0 if n <= BLOCK else math.ceil((n - BLOCK) / hop) * hop


# ---- the laws ----


@torch.no_grad()
def check_shapes(case: Case) -> None:
    """qkv, weights, mix, output and forward have the shapes that the contract names."""
    layer, B = make_layer(case), 2
    for T, S in SHAPES:
        x = tokens(B, S)
        query, key, value = parts(layer, x, T)
        assert query.shape[0] == key.shape[0] == value.shape[0] == B
        assert query.shape[2] == T
        assert key.shape[2] == value.shape[2] == S
        assert query.shape[1] % key.shape[1] == 0
        weights = layer.weights(query, key)
        H = weights.shape[1]
        assert weights.shape == (B, H, T, S)
        assert H % value.shape[1] == 0
        mixed = layer.mix(query, key, value)
        assert mixed.shape == (B, H, T, value.shape[3])
        assert layer.output(mixed, x[:, -T:]).shape == (B, T, D)
        assert layer(x).shape == (B, S, D)
        assert mixed.dtype == layer(x).dtype == x.dtype


@torch.no_grad()
def check_rows_sum_to_one(case: Case) -> None:
    """Attention is a weighted mean, unless the kind says that it is not."""
    layer = make_layer(case)
    for T, S in SHAPES:
        rows = layer.weights(*parts(layer, tokens(2, S), T)[:2]).sum(dim=-1)
        assert not layer.rows_sum_to_one or (rows - 1).abs().max() < 1e-12


@torch.no_grad()
def check_weights_are_not_negative(case: Case) -> None:
    layer = make_layer(case)
    for T, S in SHAPES:
        weights = layer.weights(*parts(layer, tokens(2, S), T)[:2])
        assert not layer.weights_nonnegative or weights.min() >= 0


@torch.no_grad()
def check_weights_do_not_see_the_future(case: Case) -> None:
    """However large the scores are: a mask of -1e4 would give way."""
    layer = make_layer(case)
    for T, S in SHAPES:
        for size in SIZES:
            weights = layer.weights(*parts(layer, size * tokens(2, S), T)[:2])
            assert (weights.triu(S - T + 1) == 0).all()


@torch.no_grad()
def check_output_does_not_see_the_future(case: Case) -> None:
    """A change of the tokens from t on moves nothing before t."""
    layer, T = make_layer(case), 6
    for size in SIZES:
        x = size * tokens(3, T)
        expected = layer(x)
        for t in range(1, T):
            changed = torch.cat((x[:, :t], size * tokens(3, T - t)), dim=1)
            torch.testing.assert_close(layer(changed)[:, :t], expected[:, :t], **PRECISION)


def results(layer: Attention, x: Tensor, T: int, direction: Tensor) -> list[Tensor]:
    """The outputs of the last T positions, and the gradients of x and of every parameter."""
    x = x.clone().requires_grad_()
    output = layer.output(layer.mix(*parts(layer, x, T)), x[:, -T:])  # (B, T, D)
    wanted = [x, *layer.parameters()]
    gradients = torch.autograd.grad((output * direction).sum(), wanted, allow_unused=True)
    return [output.detach(), *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients))]


def check_fast_mix_is_the_explicit_one(case: Case) -> None:
    """`mix` is the weights times the values, gradients included."""
    for T, S in SHAPES:
        fast = make_layer(case)
        explicit = copy.deepcopy(fast)
        explicit.mix = lambda *qkv, layer=explicit: Attention.mix(layer, *qkv)
        x, direction = tokens(2, S), tokens(2, T)
        for ours, plain in zip(results(fast, x, T, direction), results(explicit, x, T, direction)):
            torch.testing.assert_close(ours, plain, **PRECISION)


@torch.no_grad()
def check_decoding_token_by_token(case: Case) -> None:
    ids = torch.randint(V, (2, BLOCK))
    for n_layer in (1, 2, 3):
        model = make_model(case, n_layer)
        torch.testing.assert_close(decode(model, ids, [1] * BLOCK), model(ids), **PRECISION)


@torch.no_grad()
def check_decoding_in_chunks(case: Case) -> None:
    ids = torch.randint(V, (2, BLOCK))
    for n_layer in (1, 2, 3):
        model = make_model(case, n_layer)
        expected = model(ids)
        for seed in range(4):
            torch.testing.assert_close(decode(model, ids, chunks(BLOCK, seed)), expected, **PRECISION)


@torch.no_grad()
def check_decoding_past_the_context(case: Case) -> None:
    """Where the window starts depends on the number of tokens alone; a new start is a new cache."""
    N = 2 * BLOCK + 3
    ids = torch.randint(V, (1, N))
    for n_layer in (1, 2, 3):
        model = make_model(case, n_layer)
        start, cache = 0, model.make_cache()
        for n in range(1, N + 1):
            new = n - 1
            if window_start(n) != start:
                new = start = window_start(n)
                cache = model.make_cache()
            cached = model(ids[:, new:n], cache)[:, -1]
            torch.testing.assert_close(cached, model(ids[:, start:n])[:, -1], **PRECISION)


@torch.no_grad()
def check_batch_elements_do_not_mix(case: Case) -> None:
    """Neither in a training pass nor in the cache."""
    layer, T = make_layer(case), 6
    x = tokens(3, T)
    changed = torch.cat((x[:1], tokens(1, T), x[2:]))
    torch.testing.assert_close(layer(changed)[[0, 2]], layer(x)[[0, 2]], **PRECISION)
    ours, others = layer.make_cache(T), layer.make_cache(T)
    for t in range(T):
        ours_out, others_out = layer(x[:, t : t + 1], ours), layer(changed[:, t : t + 1], others)
        torch.testing.assert_close(ours_out[[0, 2]], others_out[[0, 2]], **PRECISION)


@torch.no_grad()
def check_huge_scores_leave_numbers(case: Case) -> None:
    """The future is filled with -inf before the weights are made: a mask that multiplies makes NaN of infinity."""
    layer = make_layer(case)
    for T, S in SHAPES:
        x = 1e9 * tokens(2, S)
        query, key, value = parts(layer, x, T)
        assert layer.weights(query, key).isfinite().all()
        assert layer.mix(query, key, value).isfinite().all()


@torch.no_grad()
def check_the_order_of_the_past(case: Case) -> None:
    """Without positions the past is a bag of tokens to the last row, unless the kind says that it is not."""
    layer, T = make_layer(replace(case, position=NoPosition.Config())), 7
    x = tokens(2, T)
    for _ in range(3):
        order = torch.cat((torch.randperm(T - 1), torch.tensor([T - 1])))
        same = torch.allclose(layer(x[:, order])[:, -1], layer(x)[:, -1], rtol=1e-10, atol=1e-12)
        assert same or not layer.order_blind


@torch.no_grad()
def check_only_distances_matter(case: Case) -> None:
    """No weight changes when all positions move by the same number."""
    layer = make_layer(case)
    x, later = tokens(2, 6), Past()
    later.length = 100
    here, there = layer.qkv(x, Past())[:2], layer.qkv(x, later)[:2]
    torch.testing.assert_close(layer.weights(*there), layer.weights(*here), rtol=1e-9, atol=1e-11)


@torch.no_grad()
def check_dropout_acts_in_training_only(case: Case) -> None:
    """Not training, nothing is dropped; training, the weights are, and keep their mean."""
    plain, dropping = make_layer(case), make_layer(replace(case, dropout=0.3))
    x = tokens(1, 5)
    torch.testing.assert_close(dropping(x), plain(x), rtol=0, atol=0)
    draws = dropping.train()(x.expand(4000, -1, -1))  # (4000, T, D)
    spread = draws.std(dim=0)  # (T, D)
    assert (spread[1:].amax(dim=-1) > 0).all()
    off = (draws.mean(dim=0) - plain(x)[0]).abs()  # (T, D)
    assert (off <= 6 * spread / 4000**0.5 + 1e-12).all()


@torch.no_grad()
def check_state_is_replaced(case: Case) -> None:
    """What a state held before a step, it still holds after: a copy of the reference is a snapshot."""
    layer = make_layer(case)
    past = layer.make_cache(BLOCK)
    layer(tokens(2, 3), past)
    if isinstance(past, State):
        held, before = past.tensors, [tensor.clone() for tensor in past.tensors]
        layer(tokens(2, 1), past)
        assert all(torch.equal(now, then) for now, then in zip(held, before))


@torch.no_grad()
def check_bfloat16_stays_near(case: Case) -> None:
    """Three hundred positions in bfloat16, chunk by chunk with a cache, give about what one pass in float32 gives."""
    layer, x = make_layer(case).float(), tokens(1, 300).float()
    exact = layer(x)
    for model, cast in ((copy.deepcopy(layer).bfloat16(), False), (layer, True)):
        past = layer.make_cache(300)
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            inputs = x if cast else x.bfloat16()
            rough = torch.cat([model(chunk, past) for chunk in inputs.split([150, 1, 140, 1, 8], dim=1)], dim=1)
        assert cast or rough.dtype == torch.bfloat16
        assert (rough.float() - exact).norm() < 0.03 * exact.norm()


CHECKS = [function for name, function in list(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Callable[[Case], None], case: Case) -> None:
    check(case)


# ---- each rung is the rung before, where it adds nothing ----


def twins(ours: Attention.Config, theirs: Attention.Config, position: Position.Config) -> tuple[Attention, Attention]:
    """A layer of each kind with the same weights, where both have weights of the same names and shapes."""
    first, second = make_layer(Case(ours, position)), make_layer(Case(theirs, position))
    first.load_state_dict(second.state_dict())  # raises when a name or a shape differs
    return first, second


SAME = [
    (MultiHead.Config(n_head=1), SingleHead.Config()),
    (MultiHead.Config(n_head=1, scaled=False, qk_norm=True), SingleHead.Config(scaled=False, qk_norm=True)),
    (MultiHead.Config(head_dim=4), MultiHead.Config()),
    (GroupedQuery.Config(), MultiHead.Config()),
    (GroupedQuery.Config(n_kv_head=4), MultiHead.Config()),
    (Window.Config(window=BLOCK), MultiHead.Config()),
    (AverageMatrix.Config(), AverageLoop.Config()),
    (AverageSoftmax.Config(), AverageLoop.Config()),
]


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize(
    ("ours", "theirs"), SAME, ids=[f"{a.component.kind}-{b.component.kind}-{i}" for i, (a, b) in enumerate(SAME)]
)
def test_a_rung_at_its_neutral_options_is_the_rung_before(
    ours: Attention.Config, theirs: Attention.Config, position: type[Position]
) -> None:
    first, second = twins(ours, theirs, position.Config())
    x = tokens(2, BLOCK)
    torch.testing.assert_close(first(x), second(x), **PRECISION)
    for T, S in SHAPES:
        weights = (layer.weights(*parts(layer, x[:, :S], T)[:2]) for layer in (first, second))
        torch.testing.assert_close(*weights, **PRECISION)


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_one_head_that_learned_nothing_is_the_dot_product(position: type[Position]) -> None:
    head = make_layer(Case(SingleHead.Config(scaled=False), position.Config()))
    plain = make_layer(Case(DotProduct.Config(), position.Config()))
    plain.position.load_state_dict(head.position.state_dict())
    assert isinstance(head, SingleHead)
    for layer in (head.query, head.key, head.value, head.project):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = tokens(2, 6)
    torch.testing.assert_close(head(x), plain(x), **PRECISION)


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
def test_heads_that_share_keys_are_heads_with_equal_keys() -> None:
    """Grouped queries are multi-head attention whose keys and values repeat."""
    grouped = make_layer(Case(GroupedQuery.Config(n_head=4, n_kv_head=2), Rotary.Config()))
    many = make_layer(Case(MultiHead.Config(n_head=4), Rotary.Config()))
    weights = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        weights[name] = weights[name].unflatten(0, (2, -1)).repeat_interleave(2, dim=0).flatten(0, 1)
    many.load_state_dict(weights)
    x = tokens(2, 6)
    torch.testing.assert_close(grouped(x), many(x), **PRECISION)


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
    """The lesson of `causal: false`: every weight of a softmax is above zero, the future included."""
    for kind in KINDS.values():
        if not issubclass(kind, SoftmaxAttention) or kind is Window:
            continue
        layer = make_layer(Case(kind.Config(causal=False), NoPosition.Config()))
        if layer.weights_nonnegative:
            assert layer.weights(*layer.qkv(tokens(2, 5), Past())[:2]).min() > 0
        check_fast_mix_is_the_explicit_one(Case(kind.Config(causal=False), Alibi.Config()))


# ---- layers that differ ----


def test_a_list_of_kinds_is_repeated_over_the_layers() -> None:
    kinds = (AverageLoop.Config(), MultiHead.Config())
    model = make_model(Case(kinds, NoPosition.Config()), n_layer=5)
    found = [type(attention) for attention in model.attentions()]
    assert found == [AverageLoop, MultiHead, AverageLoop, MultiHead, AverageLoop]


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_a_model_of_many_kinds_decodes_as_it_trains(position: type[Position]) -> None:
    """States and keys side by side, each layer with the memory of its own kind."""
    kinds = (AverageSoftmax.Config(), GroupedQuery.Config(n_kv_head=2), LATER["later_linear"].Config())
    case = Case(kinds, position.Config())
    check_decoding_token_by_token(case)
    check_decoding_in_chunks(case)
    check_decoding_past_the_context(case)


@torch.no_grad()
def test_a_layer_reads_the_keys_of_the_layer_below() -> None:
    """Keys that are shared between layers are kept once, and the upper layer's own are not used."""
    sharing = LATER["later_sharing"].Config()
    model = make_model(Case(sharing, Rotary.Config()), n_layer=3)
    ids = torch.randint(V, (1, BLOCK))
    before, cache = model(ids), model.make_cache()
    assert [type(past) for past in cache] == [KVCache, State, State]
    for attention in model.attentions()[1:]:
        attention.key.weight.zero_()
    assert torch.equal(model(ids), before)
    model.attentions()[0].key.weight.zero_()
    assert not torch.allclose(model(ids), before)


# ---- the cheats: each law refuses a kind that breaks it ----


class Peeking(MultiHead):
    def allowed(self, T: int, S: int, device: torch.device) -> Tensor:
        return torch.ones(T, S, dtype=torch.bool, device=device)


class FiniteMask(MultiHead):
    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        forbidden = ~self.allowed(query.shape[2], key.shape[2], query.device)
        return self.scores(query, key).masked_fill(forbidden, -1e4).softmax(dim=-1)


class MultipliedMask(MultiHead):
    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        grown = self.scores(query, key).exp() * self.allowed(query.shape[2], key.shape[2], query.device)
        return grown / grown.sum(dim=-1, keepdim=True)


class FutureInOutput(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + x.mean(dim=1, keepdim=True)


class OtherMix(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return 1.001 * super().mix(query, key, value)


class GradientLost(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.weights(query, key).detach() @ value


class UpperLeft(MultiHead):
    """`is_causal=True` aligns the mask to the upper left: right for T = S, and for one token if it is left out."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


class PastForgotten(MultiHead):
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        past.append(key, value)
        return self.mix(query, key, value)


class StuckAtZero(MultiHead):
    """Rotates every chunk as if it were the first."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        return super().qkv(x, Past())


class QueriesOnly(MultiHead):
    """Rotates the queries and leaves the keys."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, Past())
        return self.position.rotate(query, past.length), key, value


class SumSurvives(AverageMatrix):
    """A new cache of it begins with the sum of the one before."""

    recall = AverageMatrix.recall

    def make_cache(self, length: int) -> Past:
        new = State()
        new.tensors = getattr(self, "kept", new).tensors
        self.kept = new
        return new


class ChangedInPlace(AverageMatrix):
    @shortcut()
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        assert isinstance(past, State)
        total = value.cumsum(dim=2)
        if past.tensors:
            total = total + past.tensors[0]
            past.tensors[0].copy_(total[:, :, -1:])
            past.length += value.shape[2]
        else:
            past.replace((total[:, :, -1:].clone(),), value.shape[2])
        return total / torch.arange(past.length - value.shape[2] + 1, past.length + 1)[:, None]

    make_cache = AverageMatrix.make_cache


class BatchMixed(MultiHead):
    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        return super().qkv(x - x.mean(dim=0), past)


class Unnormalised(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * 0.9


class Signed(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        raw = scores.masked_fill(scores == -torch.inf, 0.0)
        return raw / raw.sum(dim=-1, keepdim=True)


class ClaimsNoOrder(Window):
    order_blind = True


class DropsAlways(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.dropout(self.weights(query, key), self.dropout) @ value


class DropsNever(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.weights(query, key) @ value


class HeadsLost(MultiHead):
    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return super().weights(query, key).mean(dim=1)


class CoarseAngles(Rotary):
    """Its angles have the type of what it rotates: in bfloat16 they are off by a radian at position 300."""

    def rotate(self, x: Tensor, start: int) -> Tensor:
        T, half = x.shape[2], x.shape[3] // 2
        frequencies = self.config.base ** (-torch.arange(half, dtype=x.dtype) / half)  # (d/2,)
        angles = torch.arange(start, start + T, dtype=x.dtype)[:, None] * frequencies  # (T, d/2)
        first, second = x.chunk(2, dim=-1)
        turned = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.cat(turned, dim=-1)


CHEATS: list[tuple[Callable[[Case], None], type[Attention], type[Position]]] = [
    (check_shapes, HeadsLost, NoPosition),
    (check_rows_sum_to_one, Unnormalised, NoPosition),
    (check_weights_are_not_negative, Signed, NoPosition),
    (check_weights_do_not_see_the_future, Peeking, NoPosition),
    (check_weights_do_not_see_the_future, FiniteMask, Alibi),
    (check_output_does_not_see_the_future, Peeking, NoPosition),
    (check_output_does_not_see_the_future, FiniteMask, NoPosition),
    (check_output_does_not_see_the_future, FutureInOutput, NoPosition),
    (check_fast_mix_is_the_explicit_one, OtherMix, NoPosition),
    (check_fast_mix_is_the_explicit_one, GradientLost, NoPosition),
    (check_fast_mix_is_the_explicit_one, UpperLeft, NoPosition),
    (check_decoding_token_by_token, PastForgotten, NoPosition),
    (check_decoding_token_by_token, StuckAtZero, Rotary),
    (check_decoding_in_chunks, PastForgotten, NoPosition),
    (check_decoding_in_chunks, UpperLeft, NoPosition),
    (check_decoding_past_the_context, SumSurvives, NoPosition),
    (check_batch_elements_do_not_mix, BatchMixed, NoPosition),
    (check_huge_scores_leave_numbers, MultipliedMask, NoPosition),
    (check_the_order_of_the_past, ClaimsNoOrder, NoPosition),
    (check_only_distances_matter, QueriesOnly, Rotary),
    (check_dropout_acts_in_training_only, DropsAlways, NoPosition),
    (check_dropout_acts_in_training_only, DropsNever, NoPosition),
    (check_state_is_replaced, ChangedInPlace, NoPosition),
    (check_bfloat16_stays_near, MultiHead, CoarseAngles),
]


@pytest.mark.parametrize(
    ("check", "cheat", "position"), CHEATS, ids=[f"{cheat.__name__}-{check.__name__}" for check, cheat, _ in CHEATS]
)
def test_a_cheat_is_caught(check: Callable[[Case], None], cheat: type[Attention], position: type[Position]) -> None:
    with pytest.raises(AssertionError):
        check(Case(cheat.Config(), position.Config()))


def test_every_law_has_a_cheat_that_it_catches() -> None:
    assert {check for check, _, _ in CHEATS} == set(CHECKS)


def test_a_mask_of_the_wrong_corner_passes_token_by_token() -> None:
    """Which is why the suite decodes in chunks of random lengths, too."""
    check_decoding_token_by_token(Case(UpperLeft.Config(), NoPosition.Config()))
