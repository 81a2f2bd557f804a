"""The options of attention that real models need: constants, norms over all heads, scales, and positions of its own.

By hand over every kind that has them; `test_hub.py` compares them with the models that have them.

B batch, T positions, D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from laws import stir
from torch import Tensor, nn

from minigpt.attention import Attention, GroupedQuery, MultiHead, SingleHead
from minigpt.attention.cache import Past
from minigpt.attention.ladder import attention_weights
from minigpt.attention.position import Alibi, Convolution, Learned, NoPosition, Position, Rotary, Shape, Sinusoidal
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.checks.causality import idle_positions
from minigpt.config.options import from_dict, hints
from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.model import GPT, ModelConfig
from minigpt.seeing.explorer import facts_of
from minigpt.seeing.numbers import look
from minigpt.system.errors import ConfigError
from minigpt.text.tokenizer import Char
from minigpt.training.memory import scores_bytes

B, T, D, H, G, d = 2, 11, 16, 4, 2, 4
EXACT = {"rtol": 0, "atol": 1e-12}


def made(config: Attention.Config, layer: int = 0, **shape: Any) -> Any:
    torch.manual_seed(0)
    model = Shape(**{"n_embd": D, "block_size": T, "position": NoPosition.Config(), **shape})
    attention = config.component(config, model, layer).double()
    stir(attention)
    return attention.eval()


def tokens() -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # (B, T, D)


def written(layer: Attention, x: Tensor) -> Tensor:
    """The output for x (B, T, D), token by token with a cache: (B, T, D)."""
    past = layer.make_cache(T)
    return torch.cat([layer(token, past) for token in x.split(1, dim=1)], dim=1)


def having(option: str) -> list[Any]:
    """Every kind that has an option."""
    kinds = {name: kind for name, kind in Attention.kinds.items() if option in hints(kind.Config)}
    return [pytest.param(kind, id=name) for name, kind in kinds.items()]


# ---- over every kind ----

QKV = ("query", "key", "value", "other_query", "other_key", "latent")


@pytest.mark.parametrize("models", [True, False])
@pytest.mark.parametrize("kind", having("qkv_bias"))
def test_constants_of_queries_and_of_the_projection_are_chosen_apart(kind: type[SingleHead], models: bool) -> None:
    default = made(kind.Config(), bias=models)
    for qkv, project in ((True, False), (False, True)):
        layer = made(kind.Config(qkv_bias=qkv, project_bias=project), bias=models)
        for name, linear in layer.named_modules():
            if type(linear) is nn.Linear:
                part, asked = name.split(".")[0], default.get_submodule(name).bias is not None
                asked = qkv if part in QKV else project if part == "project" else asked
                assert (linear.bias is not None) == asked, name
    assert (default.project.bias is not None) == models


@torch.no_grad()
@pytest.mark.parametrize("kind", having("score_scale"))
def test_scores_are_multiplied_by_what_is_said(kind: type[SingleHead]) -> None:
    x, default = tokens(), made(kind.Config())
    query, key, _ = default.qkv(x, Past())
    width = default.d + default.p if kind.kind == "latent" else d if "n_head" in hints(kind.Config) else D
    width = D // (2 * H) if kind.kind == "differential" else width
    same, larger = made(kind.Config(score_scale=width**-0.5)), made(kind.Config(score_scale=3 * width**-0.5))
    torch.testing.assert_close(same.weights(query, key), default.weights(query, key), **EXACT)
    assert not torch.allclose(larger.weights(query, key), default.weights(query, key), atol=1e-3)
    with pytest.raises(ConfigError, match=r"score_scale: the scores are not scaled, by `scaled: false`"):
        kind.Config(score_scale=0.1, scaled=False)


@torch.no_grad()
@pytest.mark.parametrize("kind", having("qk_norm"))
def test_one_norm_spans_all_heads(kind: type[SingleHead]) -> None:
    """Before positions, the features of all queries of a token together have the root mean square of the scale."""
    layer = made(kind.Config(qk_norm="whole", qk_norm_epsilon=0.3))
    each = made(kind.Config(qk_norm=True, qk_norm_epsilon=0.3))
    norms = {name: norm for name, norm in layer.named_modules() if name in ("query_norm", "key_norm")}
    assert norms
    for name, norm in norms.items():
        features = layer.get_submodule(name.removesuffix("_norm")).out_features
        heads = 1 if kind is SingleHead else features // d
        assert norm.weight.shape == (features,) and each.get_submodule(name).weight.shape == (features // heads,)
        x = torch.randn(B, heads, T, features // heads, dtype=torch.float64)  # (B, H, T, d)
        for b in range(B):
            for t in range(T):
                flat = x[b, :, t].flatten()  # (H d,)
                expected = flat / (flat.square().mean() + 0.3).sqrt() * norm.weight  # (H d,)
                torch.testing.assert_close(norm(x)[b, :, t].flatten(), expected, **EXACT)
    if kind is not SingleHead:
        assert not torch.allclose(layer(tokens()), each(tokens()), atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("own", [NoPosition.Config(), Rotary.Config(base=7.0), Alibi.Config()], ids=str)
@pytest.mark.parametrize("kind", Attention.kinds.values(), ids=Attention.kinds)
def test_an_attention_with_a_position_of_its_own_is_as_in_a_model_with_it(
    kind: type[Attention], own: Position.Config
) -> None:
    expected, x = made(kind.Config(), position=own)(tokens()), tokens()
    for models in (Rotary.Config(), Alibi.Config()):
        layer = make_fast(made(kind.Config(position=own), position=models))
        torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(written(layer, x), expected, rtol=1e-10, atol=1e-10)


# ---- by hand ----


@torch.no_grad()
def test_the_scale_is_that_of_the_ladder() -> None:
    layer = made(MultiHead.Config(score_scale=0.3))
    query, key, _ = layer.qkv(tokens(), Past())
    torch.testing.assert_close(layer.weights(query, key), attention_weights(query, key, scale=0.3), **EXACT)


@pytest.mark.parametrize("position", [Learned, Sinusoidal, Convolution])
def test_what_is_added_to_the_embeddings_is_no_position_of_one_layer(position: type[Position]) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict(ModelConfig, {"attention": {"kind": "multi_head", "position": position.kind}})
    added = f"position: {position.kind} is added to the embeddings, once for all layers"
    assert f"{added}: set it as model.position, or choose one of none, rotary, alibi" in str(error.value)


LOCAL_AND_GLOBAL = (
    SlidingWindow.Config(window=4, qkv_bias=True, position=Rotary.Config(base=100.0)),
    MultiHead.Config(position=NoPosition.Config()),
    GroupedQuery.Config(n_kv_head=2, qkv_bias=False, qk_norm="whole"),
)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_many_positions_write_what_they_read(bias: bool) -> None:
    """Plain, fast and prepared for writing; each layer with a position of its own."""
    shape = ModelConfig(n_layer=3, n_embd=D, block_size=T, attention=LOCAL_AND_GLOBAL, position=Alibi.Config())
    torch.manual_seed(0)
    model = GPT(replace(shape, bias=bias), 7).double().eval()
    stir(model)
    ids = torch.randint(7, (2, T))
    expected = model(ids)
    assert [layer.position.kind for layer in model.attentions()] == ["rotary", "none", "alibi"]
    for ready in (model, make_fast(copy.deepcopy(model)), prepare(model)):
        cache = ready.make_cache()
        one_by_one = torch.cat([ready(token, cache) for token in ids.split(1, dim=1)], dim=1)
        for logits in (ready(ids), one_by_one):
            torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


def test_positions_of_single_layers_are_told() -> None:
    """Which are not used, which there are, and the memory of their biases."""
    kinds = [
        {"kind": "linear", "position": "rotary"},
        {"kind": "average_softmax", "position": "rotary"},
        {"kind": "linear", "position": "none"},
        {"kind": "multi_head", "n_head": 4},
    ]
    shape = {"n_layer": 4, "n_embd": D, "block_size": 8, "position": "alibi", "attention": kinds}
    config = from_dict(ModelConfig, shape)
    model = GPT(config, 3).eval()
    assert idle_positions(model) == [
        "position rotary is left out of linear: rotated features are not positive, and a row could sum to zero",
        "position rotary does nothing in average_softmax: there are no queries and keys to rotate",
    ]
    assert scores_bytes(config, 8) == [0, 0, 0, 4 * 4 * 8 * 8]
    facts = dict(facts_of(model, look(model, Char("abc"), torch.tensor([[0, 1, 2]]))))
    assert facts["position"] == "rotary, none, alibi (not in linear)"
