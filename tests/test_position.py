"""Positions, compared with their formulas written by hand.

B batch, H heads, T query positions, S key positions, D model width, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from minigpt.attention import AverageLoop, KVCache, Past
from minigpt.attention.position import (
    Alibi,
    Convolution,
    Learned,
    NoPosition,
    Position,
    Rotary,
    Shape,
    Sinusoidal,
    distance,
)
from minigpt.model import GPT, ModelConfig

SHAPE = Shape(n_layer=2, n_embd=6, block_size=10)


def made(kind: type[Position], layer: int | None = 0, **options: float) -> Position:
    return kind(kind.Config(**options), SHAPE, layer)


def after(length: int) -> Past:
    """The past of a pass that begins at a position."""
    past = Past()
    past.length = length
    return past


def model_with(position: Position.Config, **options: object) -> GPT:
    return GPT(ModelConfig(**{"n_layer": 2, "n_embd": 16, "block_size": 8, "position": position, **options}), 5)


# ---- who stands where ----


def test_the_distance_of_the_last_queries_among_all_keys() -> None:
    """Query t stands at S - T + t."""
    assert distance(3, 3).tolist() == [[0, -1, -2], [1, 0, -1], [2, 1, 0]]
    assert distance(2, 4).tolist() == [[2, 1, 0, -1], [3, 2, 1, 0]]
    assert distance(1, 4).tolist() == [[3, 2, 1, 0]]


def test_a_kind_acts_by_what_it_overrides() -> None:
    acts = {
        kind.kind: {method for method in ("embed", "rotate", "bias") if made(kind).acts_by(method)}
        for kind in (NoPosition, Learned, Sinusoidal, Convolution, Rotary, Alibi)
    }
    added = {kind: {"embed"} for kind in ("learned", "sinusoidal", "convolution")}
    assert acts == added | {"none": set(), "rotary": {"rotate"}, "alibi": {"bias"}}


@pytest.mark.parametrize("kind", Position.kinds.values(), ids=Position.kinds)
def test_a_position_that_starts_later_is_the_rest_of_one_that_starts_at_zero(kind: type[Position]) -> None:
    embedding, attending = made(kind, layer=None), made(kind, layer=0)
    x, heads = torch.randn(2, 8, 6, dtype=torch.float64), torch.randn(2, 3, 8, 4, dtype=torch.float64)
    past = KVCache(8)
    first = embedding.embed(x[:, :5], past)
    past.length = 5
    torch.testing.assert_close(torch.cat((first, embedding.embed(x[:, 5:], past)), dim=1), embedding.embed(x, Past()))
    torch.testing.assert_close(attending.rotate(heads[:, :, 5:], 5), attending.rotate(heads, 0)[:, :, 5:])
    bias = attending.bias(heads, heads)
    torch.testing.assert_close(attending.bias(heads[:, :, 5:], heads), bias[:, 5:])


# ---- learned ----


@pytest.mark.parametrize("kind", [NoPosition, Learned, Sinusoidal, Convolution, Rotary, Alibi])
def test_what_a_position_learns_is_saved_once(kind: type[Position]) -> None:
    saved = {Learned: ["position.table.weight"], Convolution: ["position.shares"]}.get(kind, [])
    assert [name for name in model_with(kind.Config()).state_dict() if "position" in name] == saved


def test_learned_adds_its_row() -> None:
    position, x = made(Learned, layer=None), torch.randn(2, 3, 6)
    assert isinstance(position, Learned)
    expected = torch.stack([x[:, t] + position.table.weight[4 + t] for t in range(3)], dim=1)
    assert torch.equal(position.embed(x, after(4)), expected)


# ---- sinusoidal ----


@pytest.mark.parametrize("D", [2, 6, 7])
def test_sinusoidal_is_the_formula_of_the_paper(D: int) -> None:
    """PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i + 1) = cos of the same, and as large as fresh embeddings are."""
    even = D + D % 2  # an odd width is the next even one without its last wave
    waves = made(Sinusoidal, layer=None).embed(torch.zeros(1, 5, D, dtype=torch.float64), after(3))[0]  # (T, D)
    for t in range(5):
        for feature in range(D):
            angle = (3 + t) / 10_000 ** (2 * (feature // 2) / even)
            wave = math.cos(angle) if feature % 2 else math.sin(angle)
            assert waves[t, feature].item() == pytest.approx(0.02 * 2**0.5 * wave, abs=1e-15)


# ---- convolution ----


def test_a_convolution_adds_shares_of_the_few_before() -> None:
    position, x = made(Convolution, layer=None, width=3), torch.randn(2, 4, 6)
    assert isinstance(position, Convolution)
    one, two = position.shares
    expected = [x[:, 0], x[:, 1] + one * x[:, 0], *(x[:, t] + one * x[:, t - 1] + two * x[:, t - 2] for t in (2, 3))]
    torch.testing.assert_close(position.embed(x, Past()), torch.stack(expected, dim=1))


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 4, 20])
def test_a_convolution_computes_the_same_in_pieces(width: int) -> None:
    """Also where it is wider than the text, and in pieces that are shorter than what it looks back at."""
    model = model_with(Convolution.Config(width=width)).double().eval()
    ids, cache = torch.randint(5, (2, 8)), model.make_cache()
    pieces = torch.cat([model(piece, cache) for piece in ids.split([1, 2, 1, 4], dim=1)], dim=1)
    torch.testing.assert_close(pieces, model(ids), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_a_convolution_binds_a_value_to_its_key() -> None:
    """Without it, another order of the past changes nothing in a layer without positions."""
    plain, mixing = (model_with(kind.Config(), n_layer=1).double().eval() for kind in (NoPosition, Convolution))
    ids, other = torch.tensor([[0, 1, 2, 3, 4]]), torch.tensor([[0, 3, 2, 1, 4]])
    torch.testing.assert_close(plain(ids)[:, -1], plain(other)[:, -1])
    assert not torch.allclose(mixing(ids)[:, -1], mixing(other)[:, -1])


# ---- rotary ----


def test_rotary_turns_neighbours() -> None:
    x = torch.randn(1, 1, 1, 4, dtype=torch.float64)
    a, b, c, d = x.flatten().tolist()
    turned = made(Rotary).rotate(x, 7).flatten().tolist()
    fast, slow = 7.0, 7 / 100  # base^(-2i/d) of base 10000: 1 and 1/100
    assert turned == pytest.approx(
        [
            a * math.cos(fast) - b * math.sin(fast),
            b * math.cos(fast) + a * math.sin(fast),
            c * math.cos(slow) - d * math.sin(slow),
            d * math.cos(slow) + c * math.sin(slow),
        ],
        abs=1e-14,
    )


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_rotary_preserves_lengths_and_leaves_position_zero(d: int) -> None:
    x = torch.randn(2, 3, 6, d, dtype=torch.float64)
    turned = made(Rotary).rotate(x, 0)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_rotary_leaves_the_last_feature_of_an_odd_width() -> None:
    x = torch.randn(2, 3, 6, 5)
    assert torch.equal(made(Rotary).rotate(x, 9)[..., 4], x[..., 4])
    assert torch.equal(made(Rotary).rotate(x[..., :1], 9), x[..., :1])


def test_rotary_products_depend_on_the_distance_alone() -> None:
    rotary = made(Rotary)
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def product(here: int, there: int) -> float:
        return float((rotary.rotate(query, here) * rotary.rotate(key, there)).sum())

    assert product(105, 102) == pytest.approx(product(5, 2), abs=1e-12)
    assert product(3, 0) == pytest.approx(product(5, 2), abs=1e-12)
    assert product(5, 3) != pytest.approx(product(5, 2), abs=1e-3)


def test_rotary_angles_are_exact_in_bfloat16() -> None:
    """In bfloat16 position 3001 would be 3008, seven radians away; only the rounding of the result is left."""
    x = torch.randn(1, 2, 1, 8).bfloat16()
    turned = made(Rotary).rotate(x, 3001)
    exact = made(Rotary).rotate(x.double(), 3001)
    assert turned.dtype == torch.bfloat16
    assert (turned.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


def test_torchs_compiler_gets_the_same_in_real_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    turned = made(Rotary).rotate(x, 9)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    torch.testing.assert_close(made(Rotary).rotate(x, 9), turned, rtol=0, atol=1e-15)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("width", [20, 21])
def test_rotary_turns_what_lies_at_odd_places(first: int, width: int) -> None:
    """Complex numbers begin at even places of memory; a part of something else, or what was transposed, may not."""
    wide = torch.randn(2, 3, 6, width, dtype=torch.float64)
    for x in (wide[..., first : first + 8], wide[..., first : first + 6].mT):
        torch.testing.assert_close(made(Rotary).rotate(x, 2), made(Rotary).rotate(x.clone(), 2), rtol=0, atol=0)


def test_a_table_made_while_sampling_can_be_trained_with() -> None:
    with torch.inference_mode():
        made(Rotary, base=123.0).rotate(torch.randn(1, 1, 4, 4), 0)
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    made(Rotary, base=123.0).rotate(x, 0).sum().backward()
    assert x.grad is not None


# ---- alibi ----


def alibi_bias(H: int, T: int, S: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return made(Alibi).bias(torch.zeros(1, H, T, 2, dtype=dtype), torch.zeros(1, 1, S, 2, dtype=dtype))


@pytest.mark.parametrize(("H", "powers"), [(8, range(1, 9)), (4, (2, 4, 6, 8)), (1, (8,))])
def test_alibi_slopes_are_powers_of_a_half(H: int, powers: Sequence[int]) -> None:
    """What one step back costs."""
    assert (-alibi_bias(H, 2, 2)[:, 1, 0]).tolist() == [2.0**-power for power in powers]


def test_alibi_grows_with_the_distance() -> None:
    assert (alibi_bias(8, 2, 4)[0] * 2).tolist() == [[-2, -1, 0, -1], [-3, -2, -1, 0]]
    assert alibi_bias(8, 2, 4, torch.bfloat16).dtype == torch.float32
    assert alibi_bias(8, 2, 4, torch.float64).dtype == torch.float64


def test_alibi_on_an_average_is_a_decaying_mean() -> None:
    """Each step back weighs exp(-1/256) of the one after it."""
    layer = AverageLoop(AverageLoop.Config(), Shape(n_embd=3, position=Alibi.Config()))
    nothing = torch.zeros(1, 1, 3, 0, dtype=torch.float64)
    kept = [math.exp(-steps / 256) for steps in (2, 1, 0)]
    assert layer.weights(nothing, nothing)[0, 0, 2].tolist() == pytest.approx([k / sum(kept) for k in kept], abs=1e-15)


# ---- in the model ----


@torch.no_grad()
@pytest.mark.parametrize("kind", [Learned, Sinusoidal, Rotary, Alibi])
def test_a_position_tells_the_order_of_the_past(kind: type[Position]) -> None:
    model = model_with(kind.Config()).eval()
    assert not torch.allclose(model(torch.tensor([[1, 2, 3]]))[:, -1], model(torch.tensor([[2, 1, 3]]))[:, -1])
