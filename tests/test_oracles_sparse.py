"""Sparse kinds against their papers' formulas, written out as loops, and against transformers' masks.

B batch, H heads, T positions, D model width, d width of a head, w window, s sinks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from laws import stir
from torch import Tensor
from transformers import DeepseekV32Config, Llama4TextConfig, MistralConfig
from transformers.masking_utils import create_chunked_causal_mask, create_sliding_window_causal_mask
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
from transformers.models.mistral.modeling_mistral import MistralAttention

from minigpt.attention import Attention, MultiHead
from minigpt.attention.cache import Past, WindowCache
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary, Shape, angles
from minigpt.attention.sparse.block_top_k import BlockTopK
from minigpt.attention.sparse.choice import best
from minigpt.attention.sparse.chunked import Chunked
from minigpt.attention.sparse.indexer import Indexer
from minigpt.attention.sparse.native_sparse import NativeSparse
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.attention.sparse.streaming import Streaming
from minigpt.attention.sparse.strided import Strided
from minigpt.attention.sparse.top_k import TopK
from minigpt.checks.laws_of_writing import decode
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig

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
    Strided.Config(stride=4): lambda b, h, t, scores: [s for s in range(t + 1) if t - s < 4 or (t - s) % 4 == 0],
    Chunked.Config(chunk=6): lambda b, h, t, scores: range(t // 6 * 6, t + 1),
    TopK.Config(k=3): lambda b, h, t, scores: sorted(range(t + 1), key=lambda s: -scores[s])[:3],
    BlockTopK.Config(block=3, k=2): lambda b, h, t, scores: best_blocks(scores, 3, 2),
}


def best_blocks(scores: Sequence[float], m: int, k: int) -> list[int]:
    """MoBA for the query after len(scores) - 1 others: its own block, and k - 1 of those before it."""
    own = (len(scores) - 1) // m
    means = {i: sum(scores[i * m : (i + 1) * m]) / m for i in range(own)}
    chosen = [own, *sorted(means, key=lambda i: -means[i])[: k - 1]]
    return [s for s in range(len(scores)) if s // m in chosen]


@torch.no_grad()
@pytest.mark.parametrize("config", SEEN, ids=str)
def test_a_kind_is_its_formula_as_a_loop(config: MultiHead.Config) -> None:
    layer, x = made(config, Rotary), tokens()
    parts = layer.qkv(x, Past())
    torch.testing.assert_close(layer.mix(*parts), softmax_over(*parts, SEEN[config]), **EXACT)


def explicit_softmax(scores: dict[int, float]) -> dict[int, float]:
    total = sum(map(math.exp, scores.values()))
    return {s: math.exp(score) / total for s, score in scores.items()}


@torch.no_grad()
def test_native_sparse_is_its_three_views_as_a_loop() -> None:
    """Compressed blocks, the best of them in full and a window, for two query heads that choose together."""
    m, k, w, G = 3, 2, 4, 2
    layer, x = made(NativeSparse.Config(block=m, k=k, window=w, n_kv_head=G), Rotary), tokens()[:1]
    assert isinstance(layer, NativeSparse)
    query, key, value = (part[0] for part in layer.qkv(x, Past()))  # (3H, T, d), (3G, T, d) twice
    of_key, of_value = (explicit_softmax(dict(enumerate(row.tolist()))) for row in layer.places)
    gate = layer.gate(x[0]).sigmoid()  # (T, 3H)
    expected = torch.zeros(T, H, 4, dtype=torch.float64)
    for t in range(T):
        blocks, share = range((t + 1) // m), {}
        for h in range(H):
            g = h * G // H
            short = {i: sum(of_key[j] * float(query[h, t] @ key[g, i * m + j]) / 2 for j in range(m)) for i in blocks}
            share[h] = explicit_softmax(short) if short else {}
            for i, weight in share[h].items():
                summary = sum(of_value[j] * value[g, i * m + j] for j in range(m))
                expected[t, h] += gate[t, h] * weight * summary
        for h in range(H):
            g = h * G // H
            group = range(g * H // G, (g + 1) * H // G)
            others = sorted((i for i in blocks if i != t // m), key=lambda i: -sum(share[n][i] for n in group))
            full = [s for s in range(t + 1) if s // m in [t // m, *others[: k - 1]]]
            near = range(max(0, t - w + 1), t + 1)
            for view, seen in ((1, full), (2, near)):
                scores = {s: float(query[h, t] @ key[view * G + g, s]) / 2 for s in seen}
                for s, weight in explicit_softmax(scores).items():
                    expected[t, h] += gate[t, view * H + h] * weight * value[view * G + g, s]
    torch.testing.assert_close(layer(x)[0], layer.project(expected.flatten(1)), **EXACT)


# ---- the indexer ----

INDEXER = Indexer.Config(k=3, n_index_head=2, index_dim=8)


@torch.no_grad()
@pytest.mark.parametrize("position", [NoPosition, Alibi])
def test_the_indexer_is_its_formula_as_a_loop(position: type[Position]) -> None:
    """Small heads of one key a token choose, for all heads alike; the loss is a sum over positions, divided by them."""
    layer, x = made(INDEXER, position), tokens()[:1]
    assert isinstance(layer, Indexer)
    query, key, value = (part(x[0]).view(T, H, 4) for part in (layer.query, layer.key, layer.value))
    small, weight = layer.index_query(x[0]).view(T, 2, 8), layer.index_weight(x[0])  # (T, I, c), (T, I)
    small_key = layer.index_key(x[0])  # (T, c)
    mixed, loss = torch.zeros(T, H, 4, dtype=torch.float64), 0.0
    for t in range(T):
        index = {
            s: sum(float(weight[t, j]) * max(0.0, float(small[t, j] @ small_key[s])) for j in range(2)) / 4
            for s in range(t + 1)
        }
        chosen = sorted(index, key=lambda s: (-index[s], -s))[:3]
        wanted = dict.fromkeys(index, 0.0)
        for h in range(H):
            slope = 2.0 ** (-8.0 * (h + 1) / H) if position is Alibi else 0.0
            scores = {s: float(query[t, h] @ key[s, h]) / 2 - slope * (t - s) for s in index}
            for s, share in explicit_softmax(scores).items():
                wanted[s] += share / H
            for s, share in explicit_softmax({s: scores[s] for s in chosen}).items():
                mixed[t, h] += share * value[s, h]
        told = explicit_softmax(index)
        loss += sum(wanted[s] * math.log(wanted[s] / told[s]) for s in index) / T
    torch.testing.assert_close(layer(x)[0], layer.project(mixed.flatten(1)), **EXACT)
    with torch.enable_grad():
        layer.train()(x)
    own = layer.extra_loss()
    assert own is not None and own.item() == pytest.approx(loss, rel=1e-10)


@torch.no_grad()
def test_the_indexer_chooses_as_deepseeks() -> None:
    """transformers' indexer with our weights; of it a norm of the keys is left out, and it scores in float32."""
    shape = {"hidden_size": D, "index_n_heads": 8, "index_head_dim": 8, "qk_rope_head_dim": 4, "q_lora_rank": D}
    theirs = DeepseekV32Indexer(DeepseekV32Config(**shape, index_topk=3), 0).double()
    theirs.k_norm = torch.nn.Identity()
    ours, x = made(Indexer.Config(k=3, n_index_head=8, index_dim=8)), tokens()
    for name, their_name in {"index_query": "wq_b", "index_key": "wk", "index_weight": "weights_proj"}.items():
        theirs.get_submodule(their_name).weight.copy_(ours.get_submodule(name).weight)
        ours.get_submodule(name).bias.zero_()
    still = torch.ones(1, T, 4, dtype=torch.float64), torch.zeros(1, T, 4, dtype=torch.float64)  # turned by no angle
    past = torch.ones(1, T, T, dtype=torch.bool).tril()
    places = theirs(x, x, still, past, None).long()  # (B, T, k)
    chosen = torch.zeros(2, T, T, dtype=torch.bool).scatter(2, places, True) & past
    weights = ours.weights(*ours.qkv(x, Past())[:2])  # (B, H, T, S)
    assert torch.equal(weights > 0, chosen[:, None].expand_as(weights))


def test_the_indexer_learns_from_its_own_loss_and_from_nothing_else() -> None:
    layer, x = made(INDEXER).train(), tokens().requires_grad_()
    output = layer(x)  # (B, T, D)
    own, small = layer.extra_loss(), {n: p for n, p in layer.named_parameters() if n.startswith("index")}
    large = [x, *(parameter for name, parameter in layer.named_parameters() if name not in small)]
    assert own is not None and len(small) == 6
    for loss, others in ((own, large), (output.sum(), [*small.values()])):
        found = torch.autograd.grad(loss, others, retain_graph=True, allow_unused=True)
        assert not any(g is not None and g.any() for g in found)
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(own, small.values()))
    assert layer.extra_loss() is None  # it is let go of
    layer.eval()(x)
    assert layer.extra_loss() is None
    with torch.no_grad():
        layer.train()(x)
    assert layer.extra_loss() is None  # what has no gradient is no loss
    copy.deepcopy(layer)


def test_an_indexer_learns_to_choose_what_the_heads_would_weigh_most() -> None:
    """Its loss falls, and with it what the choice leaves out of the weights that the heads would give."""
    layer, x = made(INDEXER).train(), tokens()
    assert isinstance(layer, Indexer)
    small = [parameter for name, parameter in layer.named_parameters() if name.startswith("index")]
    optimizer, left_out = torch.optim.Adam(small, 0.03), list[float]()
    for _ in range(150):
        query, key, _ = layer.qkv(x, Past())
        with torch.no_grad():
            full = layer.normalise(layer.masked(layer.scores(query, key)))  # (B, H, T, S)
            left_out.append(full.masked_fill(layer.weights(query, key) > 0, 0.0).sum(dim=-1).mean().item())
        optimizer.zero_grad()
        layer.loss_of_the_choice(query, key).backward()
        optimizer.step()
    assert left_out[-1] < 0.8 * left_out[0]


@torch.no_grad()
def test_with_alibi_a_sink_is_as_far_as_its_place_in_the_cache() -> None:
    """StreamingLLM counts places among what is kept: of 3 sinks and 4 others, the query is the seventh at most."""
    layer, x = made(Streaming.Config(window=4, sinks=3), Alibi), tokens()
    query, key, value = layer.qkv(x, Past())
    for h in range(H):
        slope = 2.0 ** (-8.0 * (h + 1) / H)
        for t in range(T):
            kept = [s for s in range(t + 1) if s < 3 or s > t - 4]
            scores = [query[0, h, t] @ key[0, h, s] / 2 - slope * (len(kept) - 1 - i) for i, s in enumerate(kept)]
            expected = torch.stack(scores).softmax(dim=0) @ value[0, h, kept]  # (d,)
            torch.testing.assert_close(layer.mix(query, key, value)[0, h, t], expected, **EXACT)


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
def test_a_window_is_mistrals() -> None:
    """Gemma's, which have more options: `test_attention_options.py`."""
    config = MistralConfig(**THEIR_SHAPE)
    torch.manual_seed(0)
    theirs, x = MistralAttention(config, 0).double().eval(), tokens()
    stir(theirs)
    mask = create_sliding_window_causal_mask(config, x, None, None)
    expected, _ = theirs(x, position_embeddings=their_waves(), attention_mask=mask)
    ours = with_weights_of(theirs, SlidingWindow.Config(window=6, n_kv_head=2))
    torch.testing.assert_close(ours(x), expected, **EXACT)
    past = ours.make_cache(T)
    assert isinstance(past, WindowCache)
    written = torch.cat([ours(token, past) for token in x.split(1, dim=1)], dim=1)  # (B, T, D)
    torch.testing.assert_close(written, expected, **EXACT)


def test_a_chunk_is_llama_4s() -> None:
    """Its mask, for a prompt: the layer around it has norms and temperatures of its own."""
    shape = {**THEIR_SHAPE, "attention_chunk_size": 6, "intermediate_size": 8, "intermediate_size_mlp": 8}
    shape.pop("sliding_window")
    theirs = create_chunked_causal_mask(Llama4TextConfig(**shape), tokens(), None, None)
    assert theirs is not None
    ours = made(Chunked.Config(chunk=6))
    assert isinstance(ours, Chunked)
    assert torch.equal(ours.mask(T, T, torch.device("cpu")), theirs[0, 0])


# ---- the choice ----


def test_the_best_by_hand() -> None:
    inf = torch.inf
    scores = torch.tensor([[3.0, 1.0, 2.0, 2.0, -inf], [1.0, 1.0, 1.0, 1.0, 1.0], [2.0, -inf, -inf, -inf, -inf]])
    expected = [[1, 0, 0, 1, 0], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0]]  # of equal ones, the later
    assert best(scores, 2).int().tolist() == expected
    assert best(scores, 9).int().tolist() == [[1, 1, 1, 1, 0], [1] * 5, [1, 0, 0, 0, 0]]
    assert best(torch.tensor([-inf, 1.0, inf]), 2).tolist() == [False, True, True]
    assert not best(torch.full((3,), -inf), 2).any()
    assert best(torch.tensor([2e-20, 1e-20, -inf]), 1).tolist() == [True, False, False]  # small, and yet not equal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_rounding_does_not_choose(size: float, dtype: torch.dtype) -> None:
    """Of many equal scores with noise in their last bits, the same are chosen as without the noise."""
    noise = torch.Generator().manual_seed(0)
    exact = size * torch.randint(-3, 4, (200, 20), generator=noise).to(dtype)
    rounded = exact * (1 + 8 * torch.finfo(dtype).eps * (2 * torch.rand(200, 20, generator=noise).to(dtype) - 1))
    assert not torch.equal(exact, rounded)
    for k in (1, 3, 8):
        assert torch.equal(best(rounded, k), best(exact, k))
        assert (best(rounded, k).sum(dim=-1) == k).all()


@torch.no_grad()
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", [TopK, BlockTopK, NativeSparse, Indexer])
def test_equal_tokens_are_chosen_alike_with_a_cache(kind: type[Attention], fast: bool) -> None:
    """A text of two words: most keys match alike, and which of them are taken shows in their distance."""
    shape = ModelConfig(n_layer=2, n_embd=D, block_size=40, attention=kind.Config(), position=Alibi.Config())
    torch.manual_seed(0)
    model = make_fast(GPT(shape, 2).double().eval(), fast)
    ids = torch.randint(2, (3, 40))
    for sizes in ([1] * 40, [7, 1, 20, 1, 1, 10]):
        torch.testing.assert_close(decode(model, ids, sizes), model(ids), **EXACT)
