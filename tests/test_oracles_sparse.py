"""Sparse kinds against their papers' formulas, written out as loops, and against transformers' masks.

B batch, H heads, T positions, D model width, d width of a head, w window, s sinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from laws import stir
from torch import Tensor
from transformers import Gemma2Config, MistralConfig
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention
from transformers.models.mistral.modeling_mistral import MistralAttention

from minigpt.attention import Attention
from minigpt.attention.cache import Past, WindowCache
from minigpt.attention.position import NoPosition, Position, Rotary, Shape, angles
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.attention.sparse.streaming import Streaming

T, D, H = 23, 16, 4
EXACT = {"rtol": 0, "atol": 1e-10}


def made(config: Attention.Config, position: type[Position] = NoPosition) -> Attention:
    torch.manual_seed(0)
    layer: Attention = config.component(config, Shape(n_embd=D, block_size=T, position=position.Config())).double()
    stir(layer)
    return layer.eval()


def tokens() -> Tensor:
    return torch.randn(2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # (B, T, D)


def softmax_over(
    query: Tensor, key: Tensor, value: Tensor, seen: Callable[[int, int, int, Sequence[float]], Sequence[int]]
) -> Tensor:
    """For each text b, head h and query t: the weighted mean over the keys `seen(b, h, t, scores)`: (B, H, T, d)."""
    mixed = torch.zeros_like(value)  # (B, H, T, d)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for t in range(query.shape[2]):
                scores = [float(query[b, h, t] @ key[b, h, s]) / math.sqrt(query.shape[3]) for s in range(t + 1)]
                chosen = seen(b, h, t, scores)
                total = sum(math.exp(scores[s]) for s in chosen)
                for s in chosen:
                    mixed[b, h, t] += math.exp(scores[s]) / total * value[b, h, s]
    return mixed


SEEN: dict[MultiHead.Config, Callable[[int, int, int, Sequence[float]], Sequence[int]]] = {
    SlidingWindow.Config(window=6): lambda b, h, t, scores: range(max(0, t - 5), t + 1),
    Streaming.Config(window=5, sinks=3): lambda b, h, t, scores: [s for s in range(t + 1) if s < 3 or s > t - 5],
}


@torch.no_grad()
@pytest.mark.parametrize("config", SEEN, ids=str)
def test_a_kind_is_its_formula_as_a_loop(config: MultiHead.Config) -> None:
    layer, x = made(config, Rotary), tokens()
    parts = layer.qkv(x, Past())
    torch.testing.assert_close(layer.mix(*parts), softmax_over(*parts, SEEN[config]), **EXACT)


# ---- transformers' windows ----

THEIR_SHAPE = {
    "vocab_size": 11,
    "hidden_size": D,
    "num_hidden_layers": 1,
    "num_attention_heads": H,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "sliding_window": 6,
    "attn_implementation": "sdpa",  # their explicit form has a softmax in float32
}
WINDOWS = {
    MistralAttention: MistralConfig(**THEIR_SHAPE),
    Gemma2Attention: Gemma2Config(
        **THEIR_SHAPE, query_pre_attn_scalar=4, attn_logit_softcapping=None, layer_types=["sliding_attention"]
    ),
}


def in_pairs(weight: Tensor) -> Tensor:
    """The rows of heads of width 4: theirs turn feature i with i + 2, ours 2i with 2i + 1."""
    return weight.unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)


def with_weights_of(theirs: torch.nn.Module, config: MultiHead.Config) -> Attention:
    """Our layer, with rotary positions and their weights."""
    ours = made(config, Rotary)
    for name, their_name in {"query": "q_proj", "key": "k_proj", "value": "v_proj", "project": "o_proj"}.items():
        weight, layer = theirs.get_submodule(their_name).weight, ours.get_submodule(name)
        assert isinstance(weight, Tensor) and isinstance(layer, torch.nn.Linear)
        layer.weight.copy_(in_pairs(weight) if name in ("query", "key") else weight)
        layer.bias.zero_()
    return ours


def their_waves() -> tuple[Tensor, Tensor]:
    """Cosines and sines of their rotation, in float64: (1, T, d) each."""
    theta = angles(0, T, 4, 10_000.0, torch.device("cpu")).repeat(1, 2)[None]  # (1, T, d)
    return theta.cos(), theta.sin()


@torch.no_grad()
@pytest.mark.parametrize("kind", WINDOWS, ids=lambda kind: kind.__name__)
def test_a_window_is_theirs(kind: type[torch.nn.Module]) -> None:
    config = WINDOWS[kind]
    torch.manual_seed(0)
    theirs, x = kind(config, 0).double().eval(), tokens()
    stir(theirs)
    mask = create_sliding_window_causal_mask(config, x, None, None)
    expected, _ = theirs(x, position_embeddings=their_waves(), attention_mask=mask)
    ours = with_weights_of(theirs, SlidingWindow.Config(window=6, n_kv_head=2))
    torch.testing.assert_close(ours(x), expected, **EXACT)
    past = ours.make_cache(T)
    assert isinstance(past, WindowCache)
    written = torch.cat([ours(token, past) for token in x.split(1, dim=1)], dim=1)  # (B, T, D)
    torch.testing.assert_close(written, expected, **EXACT)
