"""Compact kinds, and kinds that share between tokens or layers, against their papers' formulas written out as loops,
and against transformers' latent attention.

B batch, H heads, T positions, D model width, d width of a head, r of a latent, p rotated channels, R rank.
"""

from __future__ import annotations

import math

import pytest
import torch
from laws import stir
from torch import Tensor, nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from minigpt.attention import Attention, Past
from minigpt.attention.compact.cross_layer import CrossLayer
from minigpt.attention.compact.latent import Latent
from minigpt.attention.compact.tensor_product import TensorProduct
from minigpt.attention.linear.long_convolution import LongConvolution
from minigpt.attention.position import NoPosition, Position, Rotary, Shape, angles
from minigpt.attention.softmax.token_shift import TokenShift
from minigpt.attention.softmax.value_residual import ValueResidual
from minigpt.model import chain

B, T, D, H = 2, 9, 16, 4
d = D // H
EXACT = {"rtol": 0, "atol": 1e-10}


def made(config: Attention.Config, position: type[Position] = NoPosition, layer: int = 0) -> Attention:
    torch.manual_seed(layer)
    shape = Shape(n_embd=D, block_size=T, position=position.Config())
    attention: Attention = config.component(config, shape, layer).double()
    stir(attention)
    return attention.eval()


def tokens(seed: int = 1) -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))  # (B, T, D)


def head(x: Tensor, h: int, width: int = d) -> Tensor:
    """The part of a vector that belongs to head h."""
    return x[h * width : (h + 1) * width]


def turned(x: Tensor, t: int) -> Tensor:
    """A vector (n) at position t, each pair of neighbours turned by the angle t * 10000^(-2i/n)."""
    out = x.clone()
    for i in range(0, len(x) - 1, 2):
        angle = t * 10_000 ** (-i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + 1] * math.sin(angle)
        out[i + 1] = x[i + 1] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """The mean of the values, weighted by the softmax of the scaled products of one query and the keys."""
    shares = [math.exp(float(query @ key) / math.sqrt(len(query))) for key in keys]
    return sum((share / sum(shares) * value for share, value in zip(shares, values)), torch.zeros_like(values[0]))


def attend_all(query: list[list[Tensor]], key: list[list[Tensor]], value: list[list[Tensor]]) -> Tensor:
    """The same for every head and position, [h][t]: the heads side by side, (T, D)."""
    rows = [torch.cat([attend(query[h][t], key[h][: t + 1], value[h][: t + 1]) for h in range(H)]) for t in range(T)]
    return torch.stack(rows)  # (T, D)


def heads_of(vectors: list[Tensor], turn: bool) -> list[list[Tensor]]:
    """[h][t] of vectors [t]; turned by their position or not."""
    return [[turned(head(v, h), t) if turn else head(v, h) for t, v in enumerate(vectors)] for h in range(H)]


@torch.no_grad()
@pytest.mark.parametrize("position", [NoPosition, Rotary])
def test_token_shift_is_its_formula(position: type[Position]) -> None:
    layer, x, turn = made(TokenShift.Config(), position), tokens(), position is Rotary
    for b in range(B):
        inputs: dict[str, list[Tensor]] = {"key": [], "value": []}
        for t in range(T):
            before = x[b, t - 1] if t else torch.zeros(D, dtype=torch.float64)
            for name, found in inputs.items():
                share = layer.get_parameter(f"{name}_share")
                found.append(layer.get_submodule(name)((1 - share) * x[b, t] + share * before))
        query = heads_of([layer.query(x[b, t]) for t in range(T)], turn)
        mixed = attend_all(query, heads_of(inputs["key"], turn), heads_of(inputs["value"], False))
        torch.testing.assert_close(layer(x)[b], layer.project(mixed), **EXACT)


@torch.no_grad()
def test_value_residual_is_its_formula() -> None:
    layers = [made(ValueResidual.Config(), layer=n) for n in range(3)]
    pasts, xs = chain([Past() for _ in layers]), [tokens(seed) for seed in range(3)]
    found = [layer(x, past) for layer, x, past in zip(layers, xs, pasts)]
    for b in range(B):
        for n, (layer, x) in enumerate(zip(layers, xs)):
            share = float(layer.share) if n else 0.0
            values = [(1 - share) * layer.value(x[b, t]) + share * layers[0].value(xs[0][b, t]) for t in range(T)]
            query, key = ([part(x[b, t]) for t in range(T)] for part in (layer.query, layer.key))
            mixed = attend_all(heads_of(query, False), heads_of(key, False), heads_of(values, False))
            torch.testing.assert_close(found[n][b], layer.project(mixed), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("position", [NoPosition, Rotary])
def test_cross_layer_is_its_formula(position: type[Position]) -> None:
    """Three layers read one layer's keys; the fourth makes new ones."""
    layers = [made(CrossLayer.Config(share=3), position, layer=n) for n in range(4)]
    pasts, xs, turn = chain([Past() for _ in layers]), [tokens(seed) for seed in range(4)], position is Rotary
    found = [layer(x, past) for layer, x, past in zip(layers, xs, pasts)]
    assert [hasattr(layer, "key") for layer in layers] == [True, False, False, True]
    for b in range(B):
        for n, (layer, x) in enumerate(zip(layers, xs)):
            maker, made_of = (layers[0], xs[0]) if n < 3 else (layer, x)
            query = heads_of([layer.query(x[b, t]) for t in range(T)], turn)
            key = heads_of([maker.key(made_of[b, t]) for t in range(T)], turn)
            value = heads_of([maker.value(made_of[b, t]) for t in range(T)], False)
            torch.testing.assert_close(found[n][b], layer.project(attend_all(query, key, value)), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("position", [NoPosition, Rotary])
def test_tensor_product_is_its_formula(position: type[Position]) -> None:
    """The heads of a token are a matrix (H, d), the mean of R outer products; positions turn the right factors."""
    layer, x, turn = made(TensorProduct.Config(rank=3, query_rank=5), position), tokens(), position is Rotary

    def made_of(part: nn.Module, x: Tensor, R: int, t: int | None) -> Tensor:
        a, b = part.heads(x).view(R, H), part.features(x).view(R, d)
        b = b if t is None else torch.stack([turned(row, t) for row in b])
        return sum((torch.outer(a[r], b[r]) for r in range(R)), torch.zeros(H, d, dtype=x.dtype)) / R  # (H, d)

    for b in range(B):
        queries, keys, values = [], [], []
        for t in range(T):
            queries.append(made_of(layer.query, x[b, t], 5, t if turn else None).flatten())
            keys.append(made_of(layer.key, x[b, t], 3, t if turn else None).flatten())
            values.append(made_of(layer.value, x[b, t], 3, None).flatten())
        mixed = attend_all(*(heads_of(vectors, False) for vectors in (queries, keys, values)))
        torch.testing.assert_close(layer(x)[b], layer.project(mixed), **EXACT)


# ---- latent attention ----

r, p = 6, 2


@torch.no_grad()
@pytest.mark.parametrize("position", [NoPosition, Rotary])
def test_latent_is_its_formula(position: type[Position]) -> None:
    layer, x, turn = made(Latent.Config(latent=r, rotated=p), position), tokens(), position is Rotary

    def at(x: Tensor, t: int) -> Tensor:
        return turned(x, t) if turn else x

    for b in range(B):
        latents, signs = zip(*(layer.latent(x[b, t]).split((r, p)) for t in range(T)))
        latents = [c / (c.square().mean() + 1e-6).sqrt() * layer.latent_norm.weight for c in latents]
        query: list[list[Tensor]] = [[] for _ in range(H)]
        for h in range(H):
            for t in range(T):
                content, aim = head(layer.query(x[b, t]), h, d + p).split((d, p))
                query[h].append(torch.cat((content, at(aim, t))))
        rows = {name: layer.get_submodule(name).weight.view(H, d, r) for name in ("key", "value")}
        key = [[torch.cat((rows["key"][h] @ latents[t], at(signs[t], t))) for t in range(T)] for h in range(H)]
        value = [[rows["value"][h] @ latents[t] for t in range(T)] for h in range(H)]
        torch.testing.assert_close(layer(x)[b], layer.project(attend_all(query, key, value)), **EXACT)


def deepseek() -> DeepseekV3Attention:
    """Hugging Face's latent attention. Its norm computes in float32: torch's takes its place."""
    widths = {"kv_lora_rank": r, "q_lora_rank": None, "qk_rope_head_dim": p, "qk_nope_head_dim": d, "v_head_dim": d}
    shape = {"hidden_size": D, "num_attention_heads": H, "num_key_value_heads": H}
    config = DeepseekV3Config(**shape, **widths, attn_implementation="sdpa")
    theirs = DeepseekV3Attention(config, layer_idx=0)
    theirs.kv_a_layernorm = nn.RMSNorm(r, eps=config.rms_norm_eps)
    stir(theirs)
    return theirs.double().eval()


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[T], [1] * T, [4, 1, 3, 1]], ids=["at once", "token by token", "in chunks"])
def test_latent_is_hugging_faces_deepseek(sizes: list[int]) -> None:
    theirs, x = deepseek(), tokens()
    shape = Shape(n_embd=D, block_size=T, position=Rotary.Config(), bias=False)
    ours = Latent(Latent.Config(n_head=H, latent=r, rotated=p), shape).double().eval()
    keys_and_values = theirs.kv_b_proj.weight.view(H, 2, d, r)
    ours.load_state_dict(
        {
            "query.weight": theirs.q_proj.weight,
            "latent.weight": theirs.kv_a_proj_with_mqa.weight,
            "latent_norm.weight": theirs.kv_a_layernorm.weight,
            "key.weight": keys_and_values[:, 0].flatten(0, 1),
            "value.weight": keys_and_values[:, 1].flatten(0, 1),
            "project.weight": theirs.o_proj.weight,
        }
    )
    theta = angles(0, T, p, 10_000.0, x.device)  # (T, p/2)
    waves = tuple(torch.cat((wave, wave), dim=-1)[None] for wave in (theta.cos(), theta.sin()))  # (1, T, p) each
    future = torch.full((1, 1, T, T), -torch.inf, dtype=torch.float64).triu(1)
    expected, _ = theirs(x, waves, future)  # (B, T, D)
    assert expected.std() > 0.01
    past = ours.make_cache(T) if len(sizes) > 1 else Past()
    found = torch.cat([ours(part, past) for part in x.split(sizes, dim=1)], dim=1)  # (B, T, D)
    torch.testing.assert_close(found, expected, **EXACT)


# ---- a long convolution ----


def filter_of(layer: Attention, h: int, n: int) -> float:
    """h(n) of one head: a sum of fading waves."""
    begin = 0.1 ** (1.3 + 2 * h / (H - 1))  # from a rate of 0.05 to one of 0.0005
    total = 0.0
    for i in range(layer.waves):
        rate = begin * math.exp(float(layer.rates[h * layer.waves + i]))
        turn = 2 * math.pi * i * begin * math.exp(float(layer.turns[h * layer.waves + i]))
        b, c = float(layer.shares[h, i]), float(layer.shares[h, layer.waves + i])
        total += math.exp(-rate * n) * (b * math.cos(turn * n) + c * math.sin(turn * n))
    return total


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
def test_a_long_convolution_is_its_formula(gated: bool) -> None:
    layer, x = made(LongConvolution.Config(waves=3, gated=gated)), tokens()
    filters = torch.tensor([[filter_of(layer, h, n) for n in range(T)] for h in range(H)], dtype=torch.float64)
    for b in range(B):
        values = [layer.value(x[b, t]) * (layer.gate_in(x[b, t]) if gated else 1) for t in range(T)]
        rows = []
        for t in range(T):
            rows.append(
                torch.cat([sum(filters[h, t - s] * head(values[s], h) for s in range(t + 1)) for h in range(H)])
            )
            rows[-1] = layer.project(rows[-1] * (layer.gate_out(x[b, t]) if gated else 1))
        torch.testing.assert_close(layer(x)[b], torch.stack(rows), **EXACT)
    weights = layer.weights(*layer.qkv(x, Past())[:2])  # (B, H, T, T)
    assert all(
        float(weights[0, h, t, s]) == pytest.approx(filter_of(layer, h, t - s) if s <= t else 0.0, abs=1e-12)
        for h in range(H)
        for t in range(T)
        for s in range(T)
    )
