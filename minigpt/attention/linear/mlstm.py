"""mLSTM: linear attention with a forget gate and an exponential input gate, whose rows are divided by their sum.

    C_t = f_t C_(t-1) + i_t k_t v_t'        n_t = f_t n_(t-1) + i_t k_t        out_t = q_t C_t / max(|q_t . n_t|, 1)

    f_t = sigmoid(W_f x_t + b_f)            i_t = exp(W_i x_t + b_i)

"xLSTM: Extended Long Short-Term Memory" (arXiv 2405.04517). New against linear: the gates, of which the input gate has
no upper limit, so one token can outweigh all before it; queries and keys may have any sign, so a sum near zero is
replaced by one. With large inputs it is linear attention, with small ones retention; where all products q . k are alike
it is a softmax of log i, as in forgetting attention. Since i_t may be larger than any number of the computer, sums are
kept divided by exp(m_t), the largest write that is left of the past, which changes nothing:
m_t = max(m_(t-1) + log f_t, log i_t, 0).
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d (e + 2) numbers a layer, whatever the context.
Used by: xLSTM, xLSTM 7B (arXiv 2503.13427).

The layer of xLSTM 7B, and the block of the first paper, in a model of width 128 without biases (`published.py`). A norm
with weights is a LayerNorm, as there. Their code also adds 1e-6 to what a sum is divided by after the division by
exp(m_t), so that the result depends on m_t: this is left out.

    {kind: mlstm, head_dim: 16, value_dim: 32, gate: true, norm_weights: true, norm_epsilon: 1e-6, cap: 15}
    {kind: mlstm, inner: 256, convolution: 4, gate: true, norm_weights: true, norm_epsilon: 1e-5}

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e width of a value,
W width of the inner stream (D where there is none).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.base import Attention
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.linear.published import ShortConvolution
from minigpt.attention.linear.recurrent import log_left, outer, read
from minigpt.attention.linear.retention import Retention, slow_decays
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Positive, Range, Size
from minigpt.system.errors import Mistake

FOUR = 4  # neighbouring features that a projection of the inner stream reads
SMALLEST = 1e-30  # keeps a row from being divided by zero where exp(-m) is rounded to zero


def large_inputs(mlstm: Any, linear: Any) -> None:
    """Nothing is forgotten, and every token is written with e^30: no sum is below one."""
    for gate, size in ((mlstm.forget, 1e9), (mlstm.input, 30.0)):
        nn.init.zeros_(gate.weight)
        nn.init.constant_(gate.bias, size)


def small_inputs(mlstm: Any, retention: Any) -> None:
    """Every token is written with e^-8, so that no sum is above one; larger values undo this factor."""
    for gate in (mlstm.forget, mlstm.input):
        nn.init.zeros_(gate.weight)
    mlstm.forget.bias.copy_(slow_decays(mlstm.n_head).exp().logit())
    nn.init.constant_(mlstm.input.bias, -8.0)
    for values in (mlstm.value.weight, mlstm.value.bias):
        values.mul_(math.exp(8))


def inputs_are_scores(mlstm: Any, forgetting: Any) -> None:
    """All products of mlstm are one and inputs large; in the other kind each score is log i of its key. Queries differ
    in size, so that the test skips their gradients: those of a product and of a score.
    """
    d = mlstm.d
    for kind, size in ((mlstm, 0.5), (forgetting, 1.0)):
        for part in (kind.query, kind.key):
            nn.init.constant_(part.weight, size * 1e-200)
            nn.init.constant_(part.bias, 0.0)
        kind.query.bias[::d] = size * d**0.25
    mlstm.key.bias[::d] = 2 * d**0.25
    mlstm.input.bias.add_(30)
    forgetting.key.weight[::d] = d**0.25 * mlstm.input.weight


class HeadLayerNorm(nn.Module):
    """LayerNorm of each head, with a scale for each feature: (B, H, T, e) -> (B, H, T, e)."""

    def __init__(self, H: int, e: int, epsilon: float):
        super().__init__()
        self.H, self.e, self.epsilon = H, e, epsilon
        self.weight = nn.Parameter(torch.ones(H * e))  # (H e,)

    def forward(self, x: Tensor) -> Tensor:
        precise = x.to(torch.promote_types(x.dtype, torch.float32))  # (B, H, T, e)
        normed = F.layer_norm(precise, (self.e,), eps=self.epsilon)  # (B, H, T, e)
        return (normed * self.weight.view(self.H, 1, self.e)).to(x.dtype)  # (B, H, T, e)


class Neighbours(nn.Module):
    """A projection of features in blocks of FOUR, each block by itself: (B, T, W) -> (B, T, W)."""

    def __init__(self, W: int, std: float):
        super().__init__()
        self.weight = nn.Parameter(std * torch.randn(W // FOUR, FOUR, FOUR))  # (W / 4, 4, 4): block, output, input

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("btni, noi -> btno", x.unflatten(2, (-1, FOUR)), self.weight).flatten(2)  # (B, T, W)


class MLSTM(Retention, kind="mlstm"):
    """A key has two gates, the logarithms of f and i. The state has two more columns: n, and m in each row."""

    convolution_bias = True
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("linear", "large inputs, nothing is forgotten", {"features": "elu", "normed": False}, {}, large_inputs),
        Edge("retention", "small inputs, constant gates", {"normed": False}, {"normed": False}, small_inputs),
        Edge("forgetting", "large inputs, one product", {"normed": False}, {}, inputs_are_scores, without=("rotate",)),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Retention.Config):
        without = ("decay", "value_silu", "n_key_head")
        convolution: Annotated[int, Range(0, 1024)] = 0
        """How many positions a short convolution of the layer's input sees: 4 in the paper; 0, none. What it makes
        passes a SiLU, and is projected to queries and keys; values are made of the input itself."""
        cap: Positive | None = None
        """Whether f and i are made of cap tanh(z / cap) in place of z: 15 in xLSTM 7B (arXiv 2503.13427)."""
        inner: Size | None = None
        """The width W of a projection of x that takes the place of x, 2 D in the block of arXiv 2405.04517. Queries,
        keys and values are projections of four neighbouring features each, f and i are computed from all three, a
        multiple of what the convolution makes is added to the output, whose gate is a SiLU and not a sigmoid."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.inner and (self.inner % self.n_head or self.inner % FOUR):
                yield "inner", f"{self.inner} is no multiple of n_head, {self.n_head}, and of {FOUR}"
            if self.inner and (self.head_dim or self.value_dim):
                yield "inner", "a head is inner / n_head wide: leave out head_dim and value_dim"

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from () if self.inner else super().mistakes_within(model)

    config: MLSTM.Config

    def __init__(self, config: MLSTM.Config, model: Shape, layer: int = 0):
        H, D, W = config.n_head, model.n_embd, config.inner or model.n_embd
        width = W // H if config.inner else config.head_dim
        super().__init__(replace(config, inner=None, convolution=0, head_dim=width), model, layer)
        self.config = config
        features = 3 * W if config.inner else D  # the number of features from which the gates are made
        self.forget, self.input = nn.Linear(features, H), nn.Linear(features, H)
        self.forget.bias.data.copy_(torch.linspace(3, 6, H))  # as in the paper: most of the past is remembered
        if config.inner:
            self.up = nn.Linear(D, W, bias=model.bias)
            std = (2 / (5 * D)) ** 0.5  # as in the paper's code
            for name in ("query", "key", "value"):
                setattr(self, name, Neighbours(W, std))
        if config.convolution:
            self.convolution = ShortConvolution(W, config.convolution, self.convolution_bias)
        if config.norm_weights:
            self.norm = HeadLayerNorm(H, self.e, config.norm_epsilon)
        self.skips = bool(config.inner and config.convolution)
        if self.skips:
            self.skip = nn.Parameter(torch.ones(W))  # (W,)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, D) -> query (B, H, T, d), key (B, H, T, d + 2), value (B, H, T, e); with what the convolution made
        as H more heads of values, (B, 2 H, T, e), where the layer adds it to the output.
        """
        stream = self.up(x) if self.config.inner else x  # (B, T, W)
        mixed = F.silu(self.convolution(stream, past, "stream")) if self.config.convolution else stream  # (B, T, W)
        parts = self.query(mixed), self.key(mixed), self.value(stream)  # (B, T, H d) twice, (B, T, H e)
        query, key = (self.view(part, past, self.n_head) for part in parts[:2])  # (B, H, T, d) each
        gates = self.gates(torch.cat(parts, dim=-1) if self.config.inner else x)  # (B, H, T, 2)
        value = torch.cat((parts[2], mixed), dim=-1) if self.skips else parts[2]  # (B, T, H e or 2 H e)
        return query * self.scale(), torch.cat((key, gates), dim=-1), split_heads(value, value.shape[-1] // self.e)

    def gates(self, x: Tensor) -> Tensor:
        forget, write = (
            layer(x).to(torch.promote_types(x.dtype, torch.float32)).mT[..., None]  # (B, H, T, 1)
            for layer in (self.forget, self.input)
        )
        if cap := self.config.cap:
            forget, write = (cap * torch.tanh(gate / cap) for gate in (forget, write))
        return torch.cat((F.logsigmoid(forget), write), dim=-1)  # (B, H, T, 2)

    def ungated(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """A key with its gates (..., d + 2) -> the key (..., d), log f (..., 1)."""
        return key[..., : self.d], key[..., self.d : self.d + 1]

    def log_input(self, key: Tensor) -> Tensor:
        """log i of a key with its gates (..., d + 2): (..., 1)."""
        return key[..., self.d + 1 :]

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        T, S = query.shape[2], key.shape[2]
        bare, log_forget = self.ungated(key)  # (B, H, S, d), (B, H, S, 1)
        logs = log_left(log_forget, T)[..., 0] + self.log_input(key).mT  # (B, H, T, S)
        largest = logs.amax(dim=-1, keepdim=True).clamp(min=0).detach()  # (B, H, T, 1)
        terms = query @ bare.mT * (logs - largest).exp()  # (B, H, T, S)
        weights = terms / self.divisor(terms.sum(dim=-1, keepdim=True), largest)  # (B, H, T, S)
        if not self.skips:
            return weights
        own = (distance(T, S, key.device) == 0).to(weights.dtype)  # (T, S)
        return torch.cat((weights, own.expand_as(weights)), dim=1)  # (B, 2 H, T, S)

    def divisor(self, n: Tensor, m: Tensor) -> Tensor:
        """max(|q . n|, 1), for a q . n that is divided by exp(m), and divided by it too."""
        return torch.maximum(n.abs(), (-m).exp()).clamp(min=SMALLEST)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        return {"written": self.log_input(key)[..., 0].exp(), **super().stages(query, key)}  # (B, H, S), ...

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        bare, log_forget = self.ungated(key)  # (B, H, d), (B, H, 1)
        log_input, value, skipped = self.log_input(key), value[:, : self.n_head], value[:, self.n_head :]
        sums, log_past = state[..., :-1], log_forget + state[:, :, 0, -1:]  # (B, H, d, e + 1), (B, H, 1)
        largest = torch.maximum(log_past, log_input).clamp(min=0).detach()  # (B, H, 1)
        written = outer(bare * (log_input - largest).exp(), F.pad(value, (0, 1), value=1.0))  # (B, H, d, e + 1)
        sums = (log_past - largest).exp()[..., None] * sums + written  # (B, H, d, e + 1)
        output = read(sums, query)  # (B, H, e + 1)
        state = torch.cat((sums, largest[..., None].expand_as(sums[..., :1])), dim=-1)  # (B, H, d, e + 2)
        return state, torch.cat((output[..., :-1] / self.divisor(output[..., -1:], largest), skipped), dim=1)

    def empty(self, key: Tensor, value: Tensor) -> Tensor:
        return key.new_zeros(*key.shape[:2], self.d, value.shape[-1] + 2)  # (B, H, d, e + 2)

    def gates_of_output(self, x: Tensor) -> Tensor:
        return super().gates_of_output(x) if self.config.inner else split_heads(self.gate(x), self.n_head).sigmoid()

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        mixed, skipped = self.norm(mixed[:, : self.n_head]), mixed[:, self.n_head :]  # (B, H, T, e), (B, 0 or H, T, e)
        if self.skips:
            mixed = mixed + self.skip.view(self.n_head, 1, self.e) * skipped  # (B, H, T, e)
        if self.config.gate:
            mixed = mixed * self.gates_of_output(x)  # (B, H, T, e)
        return self.project(Attention.output(self, mixed, x))  # (B, T, D)
