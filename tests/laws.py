"""The laws of attention that every kind must obey with every position, and the cases on which they are tested.

The kinds and positions are read from the registries, so a new file is tested without a change here. `plugin_kinds.py`
adds some that do not ship. Equalities are tested in float64.

`test_contract.py` tests every law on every case, `test_cheats.py` shows that each law can fail, and `test_kinds.py`
compares each kind with the one before it on the ladder.

B batch, H query heads, G key heads, T query positions, S key positions, D model width, e width of a value.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from plugin_kinds import PLUGIN_KINDS, PLUGIN_POSITIONS
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.attention.cache import Past, State
from minigpt.attention.position import NoPosition, Position
from minigpt.attention.softmax.dot_product import DotProduct
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.single_head import SingleHead
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig

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


KINDS: dict[str, type[Attention]] = Attention.kinds | PLUGIN_KINDS
POSITIONS: dict[str, type[Position]] = Position.kinds | PLUGIN_POSITIONS
OPTIONS = [
    SingleHead.Config(scaled=False),
    SingleHead.Config(head_dim=5),
    DotProduct.Config(include_self=False),
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
def stir(module: nn.Module, far: float = 0.2) -> None:
    """Move every parameter away from where it starts: a zero would hide what it multiplies, a bias what it adds."""
    for parameter in module.parameters():
        parameter.add_(far * torch.randn_like(parameter))


def make_layer(case: Case) -> Attention:
    torch.manual_seed(0)
    config = model_config(case)
    layer: Attention = config.layer_attention(0).component(config.layer_attention(0), config, 0)
    stir(layer)
    return make_fast(layer).double().eval()


def make_model(case: Case, n_layer: int) -> GPT:
    torch.manual_seed(0)
    model = make_fast(GPT(model_config(case, n_layer), V))
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
    """Every row of weights sums to one; of a kind that declares `rows_sum_to_one = False`, some row does not."""
    layer = make_layer(case)
    errors = [layer.weights(*parts(layer, tokens(2, S), T)[:2]).sum(dim=-1).sub(1).abs().max() for T, S in SHAPES]
    assert (max(errors) < 1e-12) == layer.rows_sum_to_one


@torch.no_grad()
def check_weights_are_not_negative(case: Case) -> None:
    """No weight is negative; of a kind that declares `weights_nonnegative = False`, some weight is."""
    layer = make_layer(case)
    lowest = min(layer.weights(*parts(layer, tokens(2, S), T)[:2]).min() for T, S in SHAPES)
    assert (lowest >= 0) == layer.weights_nonnegative


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


def check_what_is_trained_is_what_is_evaluated(case: Case) -> None:
    """Without dropout a layer computes the same in training, gradients included."""
    layer = make_layer(case)
    x, direction = tokens(2, 6), tokens(2, 6)
    found = []
    for training in (True, False):
        here = x.clone().requires_grad_()
        out = layer.train(training)(here)
        wanted = [here, *layer.parameters()]
        gradients = torch.autograd.grad((out * direction).sum(), wanted, allow_unused=True)
        found.append([out.detach(), *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients))])
    for trained, evaluated in zip(*found):
        torch.testing.assert_close(trained, evaluated, **PRECISION)


@torch.no_grad()
def check_decoding_token_by_token(case: Case) -> None:
    ids = torch.randint(V, (2, BLOCK))
    for n_layer in (1, 3):
        model = make_model(case, n_layer)
        torch.testing.assert_close(decode(model, ids, [1] * BLOCK), model(ids), **PRECISION)


@torch.no_grad()
def check_decoding_in_chunks(case: Case) -> None:
    ids = torch.randint(V, (2, BLOCK))
    for n_layer in (1, 3):
        model = make_model(case, n_layer)
        expected = model(ids)
        for seed in range(4):
            torch.testing.assert_close(decode(model, ids, chunks(BLOCK, seed)), expected, **PRECISION)


@torch.no_grad()
def check_decoding_past_the_context(case: Case) -> None:
    """Where the window starts depends on the number of tokens alone; a new start is a new cache."""
    N = 2 * BLOCK + 3
    ids = torch.randint(V, (1, N))
    for n_layer in (1, 3):
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
    """Without positions, the last row depends on the order of the past where `permutation_invariant` is false, only."""
    layer, T = make_layer(replace(case, position=NoPosition.Config())), 7
    x = tokens(2, T)
    orders = [torch.cat((torch.randperm(T - 1), torch.tensor([T - 1]))) for _ in range(3)]
    same = [torch.allclose(layer(x[:, order])[:, -1], layer(x)[:, -1], **PRECISION) for order in orders]
    assert all(same) == layer.permutation_invariant


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
