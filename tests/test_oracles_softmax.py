"""Kinds of scores and weights: the formulas of their papers as loops, and modules of torch and transformers.

B batch, H heads, T positions, D model width, d width of a head, n the context.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import stir
from torch import Tensor, nn
from transformers import DiffLlamaConfig, GptOssConfig, Qwen3NextConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

from minigpt.attention import Attention, DotProduct, MultiHead, Past
from minigpt.attention.position import NoPosition, Position, Shape
from minigpt.attention.softmax.cosine import Cosine
from minigpt.attention.softmax.differential import Differential
from minigpt.attention.softmax.forgetting import Forgetting
from minigpt.attention.softmax.gated import Gated
from minigpt.attention.softmax.path import Path
from minigpt.attention.softmax.selective import Selective
from minigpt.attention.softmax.sigmoid import Sigmoid
from minigpt.attention.softmax.sink import Sink
from minigpt.attention.softmax.soft_cap import SoftCap
from minigpt.attention.softmax.sparsemax import Sparsemax
from minigpt.attention.softmax.stick_breaking import StickBreaking
from minigpt.attention.softmax.synthesizer import Synthesizer
from minigpt.attention.softmax.talking_heads import TalkingHeads

B, T, D, H = 2, 9, 16, 4
d = D // H
EXACT = {"rtol": 0, "atol": 1e-10}
ROUGH = {"rtol": 0, "atol": 2e-6}  # where theirs computes in float32
Heads = list[list[Tensor]]  # [h][t], a vector each
Rows = list[list[float]]  # [h][s], what one position gives to those up to itself


def made(config: Attention.Config, position: type[Position] = NoPosition, layer: int = 0, bias: bool = True) -> Any:
    torch.manual_seed(layer)
    shape = Shape(n_embd=D, block_size=T, position=position.Config(), bias=bias)
    attention = config.component(config, shape, layer).double()
    stir(attention)
    return attention.eval()


def tokens(seed: int = 1) -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))  # (B, T, D)


# ---- the formulas ----


def heads_of(layer: nn.Module, text: Tensor, width: int = d) -> Heads:
    """The parts of layer(x) for each head, for a text (T, D)."""
    made = [layer(x) for x in text]
    return [[row[h * width : (h + 1) * width] for row in made] for h in range(len(made[0]) // width)]


def scores_of(query: Heads, key: Heads, t: int) -> Rows:
    """What position t scores those up to itself, in every head."""
    return [[float(q[t] @ k[s]) / math.sqrt(len(q[t])) for s in range(t + 1)] for q, k in zip(query, key)]


def softmax(row: list[float]) -> list[float]:
    return [math.exp(score) / sum(map(math.exp, row)) for score in row]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def sink(layer: Sink, rows: Rows) -> Rows:
    totals = [math.exp(float(s)) + sum(map(math.exp, row)) for s, row in zip(layer.sink, rows)]
    return [[math.exp(score) / total for score in row] for row, total in zip(rows, totals)]


def competing_with_none(layer: Sigmoid, rows: Rows) -> Rows:
    return [[sigmoid(score + float(b)) for score in row] for b, row in zip(layer.offset, rows)]


def capped(layer: SoftCap, rows: Rows) -> Rows:
    return [softmax([3.0 * math.tanh(score / 3.0) for score in row]) for row in rows]


def nearest(layer: Sparsemax, rows: Rows) -> Rows:
    """tau by bisection: the sum of what is above it falls as it rises."""
    found = []
    for row in rows:
        low, high = max(row) - 1, max(row)
        for _ in range(80):
            tau = (low + high) / 2
            low, high = (tau, high) if sum(max(z - tau, 0) for z in row) > 1 else (low, tau)
        found.append([max(z - low, 0) for z in row])
    return found


def broken(layer: StickBreaking, rows: Rows) -> Rows:
    found = []
    for row in rows:
        left, shares = 1.0, []
        for place, score in enumerate(reversed(row)):
            own = place == 0 and not layer.config.include_self
            shares.append(0.0 if own else left * sigmoid(score))
            left -= shares[-1]
        found.append(shares[::-1])
    return found


def talking(layer: TalkingHeads, rows: Rows) -> Rows:
    mixed = [[sum(float(p) * r[s] for p, r in zip(to, rows)) for s in range(len(rows[0]))] for to in layer.before]
    weights = [softmax(row) for row in mixed]
    return [[sum(float(p) * w[s] for p, w in zip(to, weights)) for s in range(len(rows[0]))] for to in layer.after]


FROM_SCORES = [
    (Sink.Config(), sink),
    (Sigmoid.Config(), competing_with_none),
    (SoftCap.Config(cap=3.0), capped),
    (Sparsemax.Config(), nearest),
    (StickBreaking.Config(), broken),
    (StickBreaking.Config(include_self=True), broken),
    (TalkingHeads.Config(), talking),
]


def check(layer: Any, rows_of: Callable[[Tensor, int], Rows], tolerance: dict[str, float] = EXACT) -> None:
    """The output of a layer is the projection of the values, weighted as rows_of(text, t) says."""
    x = tokens()
    for text, found in zip(x, layer(x)):
        value = heads_of(layer.value, text)
        for t in range(T):
            rows = rows_of(text, t)
            mixed = [sum(w * v[s] for s, w in enumerate(row)) for row, v in zip(rows, value)]
            torch.testing.assert_close(found[t], layer.project(torch.cat(mixed)), **tolerance)  # type: ignore[arg-type]


@torch.no_grad()
@pytest.mark.parametrize(("config", "weigh"), FROM_SCORES, ids=lambda value: getattr(value, "__name__", ""))
def test_weights_from_scores_are_their_formula(config: Attention.Config, weigh: Callable[[Any, Rows], Rows]) -> None:
    layer = made(config)
    check(layer, lambda text, t: weigh(layer, scores_of(heads_of(layer.query, text), heads_of(layer.key, text), t)))


@torch.no_grad()
def test_cosine_is_its_formula() -> None:
    """But for what keeps a vector of zeros from being divided by zero."""
    layer = made(Cosine.Config())

    def rows_of(text: Tensor, t: int) -> Rows:
        query, key = heads_of(layer.query, text), heads_of(layer.key, text)
        cosines = [[q[t] @ k[s] / q[t].norm() / k[s].norm() for s in range(t + 1)] for q, k in zip(query, key)]
        return [softmax([float(layer.sharpness * cosine) for cosine in row]) for row in cosines]

    check(layer, rows_of, {"rtol": 0, "atol": 1e-4})


@torch.no_grad()
def test_forgetting_is_its_formula() -> None:
    layer = made(Forgetting.Config())

    def rows_of(text: Tensor, t: int) -> Rows:
        scores = scores_of(heads_of(layer.query, text), heads_of(layer.key, text), t)
        kept = [[math.prod(sigmoid(float(layer.forget(text[j])[h])) for j in range(s + 1, t + 1)) for s in range(t + 1)]
                for h in range(H)]  # fmt: skip
        shares = [[f * math.exp(score) for f, score in zip(*pair)] for pair in zip(kept, scores)]
        return [[share / sum(row) for share in row] for row in shares]

    check(layer, rows_of)


@torch.no_grad()
def test_selective_is_its_formula() -> None:
    layer = made(Selective.Config())

    def rows_of(text: Tensor, t: int) -> Rows:
        query, key = heads_of(layer.query, text), heads_of(layer.key, text)
        against = [0.0] * (t + 1)
        for j in range(t):
            votes = scores_of(query[:1], key[:1], j)[0]
            for s in range(1, j):  # none about the first, none about oneself
                against[s] += max(votes[s], 0.0)
        return [softmax([score - less for score, less in zip(row, against)]) for row in scores_of(query, key, t)]

    check(layer, rows_of)


@torch.no_grad()
def test_path_is_its_formula() -> None:
    layer = made(Path.Config())

    def rows_of(text: Tensor, t: int) -> Rows:
        query, key, along = (heads_of(part, text) for part in (layer.query, layer.key, layer.direction))
        rows = []
        for h in range(H):
            moved = query[h][t]
            row = [float(moved @ key[h][t])]
            for j in range(t, 0, -1):  # from t down to s + 1
                w = along[h][j] / along[h][j].norm()
                moved = moved - 2 * sigmoid(float(layer.strength(text[j])[h])) * (w @ moved) * w
                row.append(float(moved @ key[h][j - 1]))
            rows.append(softmax([score / math.sqrt(d) for score in reversed(row)]))
        return rows

    check(layer, rows_of)


@torch.no_grad()
def test_the_synthesizer_is_its_formula() -> None:
    layer = made(Synthesizer.Config())

    def rows_of(text: Tensor, t: int) -> Rows:
        query = [q[t].clamp(min=0) for q in heads_of(layer.query, text)]
        return [softmax([float(layer.table[h, t - s] @ q) for s in range(t + 1)]) for h, q in enumerate(query)]

    check(layer, rows_of)


@torch.no_grad()
def test_differential_is_its_formula() -> None:
    layer, x = made(Differential.Config(n_head=2), layer=3), tokens()
    (a, b), (c, e) = layer.shares
    start = 0.8 - 0.6 * math.exp(-0.3 * 3)
    taken = math.exp(float(a @ b)) - math.exp(float(c @ e)) + start
    for text, found in zip(x, layer(x)):
        queries = [heads_of(part, text) for part in (layer.query, layer.other_query)]
        keys = [heads_of(part, text) for part in (layer.key, layer.other_key)]
        value = heads_of(layer.value, text, 2 * d)
        for t in range(T):
            first, second = ([softmax(row) for row in scores_of(q, k, t)] for q, k in zip(queries, keys))
            heads = []
            for h in range(2):
                mixed = sum((w - taken * o) * v for w, o, v in zip(first[h], second[h], value[h]))
                root = (mixed.square().mean() + 1e-6).sqrt()  # type: ignore[union-attr]
                heads.append((1 - start) * layer.norm.weight * mixed / root)
            torch.testing.assert_close(found[t], layer.project(torch.cat(heads)), **EXACT)


@torch.no_grad()
def test_gated_is_its_formula() -> None:
    layer, x = made(Gated.Config()), tokens()
    for text, found in zip(x, layer(x)):
        value = heads_of(layer.value, text)
        for t in range(T):
            rows = [softmax(row) for row in scores_of(heads_of(layer.query, text), heads_of(layer.key, text), t)]
            mixed = torch.cat([sum(w * v[s] for s, w in enumerate(row)) for row, v in zip(rows, value)])  # type: ignore[misc]
            gate = torch.tensor([sigmoid(float(g)) for g in layer.gate(text[t])], dtype=torch.float64)  # (D,)
            torch.testing.assert_close(found[t], layer.project(gate * mixed), **EXACT)


# ---- the dot product without self-attention ----

STRICT = DotProduct.Config(include_self=False)


@torch.no_grad()
def test_nobody_looks_at_itself_but_the_first_who_has_nobody_else() -> None:
    layer = made(STRICT)
    x = tokens()
    weights = layer.weights(*layer.qkv(x, Past())[:2])[:, 0]  # (B, T, S)
    itself = weights.diagonal(dim1=1, dim2=2)  # (B, T)
    assert (itself[:, 0] == 1).all()
    assert (itself[:, 1:] == 0).all()
    assert torch.equal(layer(x)[:, 1], x[:, 0])  # the second sees the first alone


@torch.no_grad()
def test_the_others_are_weighted_as_before() -> None:
    """Without the diagonal, what is left of each row is the ordinary row in other proportions."""
    strict, plain = (made(c) for c in (STRICT, DotProduct.Config()))
    x = tokens()
    ours, theirs = (layer.weights(*layer.qkv(x, Past())[:2])[:, 0, 1:] for layer in (strict, plain))  # (B, T - 1, S)
    left = theirs - torch.diag_embed(theirs.diagonal(offset=1, dim1=1, dim2=2), offset=1)[:, : T - 1]
    torch.testing.assert_close(ours, left / left.sum(-1, keepdim=True), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_one_that_may_see_the_future_still_does_not_see_itself() -> None:
    layer = made(DotProduct.Config(include_self=False, causal=False))
    weights = layer.weights(*layer.qkv(tokens()[:1, :5], Past())[:2])[0, 0]  # (T, S)
    assert (weights.diagonal() == 0).all()
    assert (weights + torch.eye(5) > 0).all()
    assert layer(tokens()[:1, :1]).isfinite().all()


# ---- torch's module, and transformers' ----


def torch_attention(ours: MultiHead, n_head: int, bias: bool) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(D, n_head, bias=bias, batch_first=True, dtype=torch.float64).eval()
    layers = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
    theirs.out_proj.weight.copy_(ours.project.weight)
    if bias:
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        theirs.out_proj.bias.copy_(ours.project.bias)
    return theirs


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_head", [1, 2, 4])
def test_multi_head_is_torchs_multi_head(n_head: int, bias: bool) -> None:
    ours = made(MultiHead.Config(n_head=n_head), bias=bias)
    theirs, x = torch_attention(ours, n_head, bias), tokens()
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    output, weights = theirs(x, x, x, attn_mask=future, average_attn_weights=False)
    torch.testing.assert_close(ours(x), output, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.weights(*ours.qkv(x, Past())[:2]), weights, rtol=0, atol=1e-12)


OPTIONS: dict[str, Any] = {
    "hidden_size": D,
    "num_attention_heads": H,
    "num_key_value_heads": H,
    "head_dim": d,
    "num_hidden_layers": 4,
    "attention_bias": True,
    "rms_norm_eps": 1e-6,
}
NAMES = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "project"}


def theirs_of(kind: type[nn.Module], config: Any, implementation: str, layer: int = 0) -> nn.Module:
    """Their module with random weights."""
    config._attn_implementation = implementation
    module = kind(config, layer).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def run(theirs: nn.Module, x: Tensor) -> Tensor:
    """Their output for x (B, T, D), without positions: every angle is zero."""
    width = d // 2 if isinstance(theirs, GptOssAttention) else d  # an angle for each pair, or for each feature
    angles = x.new_ones(B, T, width), x.new_zeros(B, T, width)  # cos and sin
    future = torch.full((T, T), -torch.inf, dtype=torch.float64).triu(1)[None, None]  # (1, 1, T, T)
    output: Tensor = theirs(x, position_embeddings=angles, attention_mask=future)[0]
    return output


def take(ours: nn.Module, theirs: nn.Module, names: dict[str, str] = NAMES) -> None:
    """Their weights under our names."""
    known = dict(theirs.named_parameters())
    for name, our_name in names.items():
        for part in ("weight", "bias"):
            ours.get_parameter(f"{our_name}.{part}").copy_(known[f"{name}.{part}"])


@torch.no_grad()
def test_a_sink_is_that_of_gpt_oss() -> None:
    theirs = theirs_of(GptOssAttention, GptOssConfig(**OPTIONS), "eager")
    ours = made(Sink.Config())
    take(ours, theirs)
    ours.sink.copy_(theirs.sinks)
    torch.testing.assert_close(ours(tokens()), run(theirs, tokens()), **EXACT)


@torch.no_grad()
def test_a_gate_is_that_of_qwen3_next() -> None:
    """Their query and gate are one matrix, a head of each in turn, and their norms' scales are one more than ours."""
    theirs = theirs_of(Qwen3NextAttention, Qwen3NextConfig(**OPTIONS), "sdpa")
    ours = made(Gated.Config(qk_norm=True))
    take(ours, theirs, {name: NAMES[name] for name in ("k_proj", "v_proj", "o_proj")})
    for part in ("weight", "bias"):
        query, gate = theirs.get_parameter(f"q_proj.{part}").unflatten(0, (H, 2, d)).unbind(dim=1)  # (H, d, ...)
        ours.get_parameter(f"query.{part}").copy_(query.flatten(0, 1))
        ours.get_parameter(f"gate.{part}").copy_(gate.flatten(0, 1))
    ours.query_norm.weight.copy_(1 + theirs.get_parameter("q_norm.weight"))
    ours.key_norm.weight.copy_(1 + theirs.get_parameter("k_norm.weight"))
    torch.testing.assert_close(ours(tokens()), run(theirs, tokens()), **ROUGH)


@torch.no_grad()
def test_differential_is_diff_llama() -> None:
    """Their first two heads are the queries, the other two what is subtracted; a value is a head of each half."""
    theirs = theirs_of(DiffLlamaAttention, DiffLlamaConfig(**OPTIONS), "sdpa", layer=2)
    ours = made(Differential.Config(n_head=2), layer=2)
    take(ours, theirs, {"o_proj": "project"})
    for part in ("weight", "bias"):
        for name, parts in {"q_proj": ("query", "other_query"), "k_proj": ("key", "other_key")}.items():
            for our_name, half in zip(parts, theirs.get_parameter(f"{name}.{part}").chunk(2)):
                ours.get_parameter(f"{our_name}.{part}").copy_(half)
        value = theirs.get_parameter(f"v_proj.{part}").unflatten(0, (2, 2, d)).transpose(0, 1).flatten(0, 2)
        ours.get_parameter(f"value.{part}").copy_(value)
    shares = [theirs.get_parameter(f"lambda_{name}") for name in ("q1", "k1", "q2", "k2")]
    ours.shares.copy_(torch.stack(shares).unflatten(0, (2, 2)))
    ours.norm.weight.fill_(1.0)
    torch.testing.assert_close(ours(tokens()), run(theirs, tokens()), **ROUGH)
