"""A long convolution: what a token is worth to a later one depends on the distance between them, and on nothing else.

    out_t = sum_s h(t - s) v_s        h(n) = sum_i exp(-a_i n) (b_i cos(w_i n) + c_i sin(w_i n))

One filter h for each head, of waves that fade, with a, b, c and w learned. "On the Parameterization and Initialization
of Diagonal State Space Models", S4D (arXiv 2206.11893); with gates before and after it, linear in x, it is the operator
of "Hyena Hierarchy" (arXiv 2302.10866), whose filters are made by a small network.
New against retention: no queries and no keys, so the weights do not depend on the tokens; and the filter may rise and
fall with the distance. Its attention map is the filter, the same for every text.
Cost: O(T log T D) in training, by FFT; O(m D) for a written token, since each wave is a recurrence of two numbers.
Cache: a state of 2 m D numbers, however long the past.
Used in: StripedHyena and Evo 2, beside attention, with gates.

B batch, H heads, T query positions, S key positions, D model width, d width of a head, m waves of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.base import Attention
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.linear.retention import Retention
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Size
from minigpt.system.errors import Mistake

TURN = 2 * math.pi
RATES = -1.3, -3.3  # powers of ten, from the first head to the last: half of S4D's steps of 0.1 to 0.001


def ask_alike_of_all(long_convolution: LongConvolution, retention: Retention) -> None:
    """This kind has one wave, which only fades, at the other's rates; the other's queries and keys have product one."""
    fading = -retention.decays(long_convolution.shares)  # (H,): 0 where nothing is forgotten
    long_convolution.rates.copy_((fading / long_convolution.start(long_convolution.shares)[0][:, 0]).log())
    long_convolution.shares.copy_(torch.tensor([1.0, 0.0]).expand_as(long_convolution.shares))
    for layer in (retention.query, retention.key):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, retention.d**-0.25)
    if long_convolution.config.gated:
        for gate, size in ((long_convolution.gate_in, 2.0), (long_convolution.gate_out, 0.5)):
            nn.init.zeros_(gate.weight)
            nn.init.constant_(gate.bias, size)


class LongConvolution(Attention, kind="long_convolution"):
    """The waves of a head start as in S4D-Lin: all fade at one rate, with 0, 1, 2, ... turns until 1/e of them is left.

    Rates and frequencies are their start times exp of a parameter, which is exact enough in bfloat16.
    """

    rows_sum_to_one = weights_nonnegative = order_blind = False
    unsuited: ClassVar[Mapping[str, str]] = {
        "rotate": "it has no queries and keys to rotate",
        "bias": "it has no scores to which a bias could be added",
    }
    edges: ClassVar[tuple[Edge, ...]] = tuple(
        Edge(
            "retention", when, {"waves": 1, "gated": gated}, {"decay": decay, "normed": False}, prepare=ask_alike_of_all
        )
        for when, gated, decay in (
            ("one wave that does not fade, a running sum: constant queries and keys", False, "none"),
            ("one wave that fades: constant queries and keys", False, "retnet"),
            ("the same, with gates of 2 and of 1/2", True, "alibi"),
        )
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Attention.Config):
        n_head: Size = 4
        """How many filters there are, each for its own part of the features."""
        waves: Size = 16
        """How many waves make up a filter."""
        gated: bool = False
        """Whether the values and the output are multiplied by linear projections of the token, as in Hyena."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from super().mistakes_within(model)
            if model.n_embd % self.n_head:
                yield "n_head", f"{self.n_head} heads do not divide n_embd, {model.n_embd}"

    config: LongConvolution.Config

    def __init__(self, config: LongConvolution.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.n_head, self.waves, D = config.n_head, config.waves, model.n_embd
        self.d = D // self.n_head
        self.value = nn.Linear(D, D, bias=model.bias)
        self.project = nn.Linear(D, D, bias=model.bias)
        if config.gated:
            self.gate_in, self.gate_out = nn.Linear(D, D, bias=model.bias), nn.Linear(D, D, bias=model.bias)
        self.rates, self.turns = (nn.Parameter(torch.zeros(self.n_head * self.waves)) for _ in range(2))  # (H m,) each
        fading, _ = self.start(self.rates)  # (H, m)
        size = (2 * fading / self.waves).sqrt()  # (H, m): then a filter's squares sum to about one
        self.shares = nn.Parameter(
            torch.cat((size, size), dim=1) * torch.randn(self.n_head, 2 * self.waves)
        )  # (H, 2 m): b and c

    def start(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The rates and frequencies with which the waves begin: (H, m) each."""
        like = like.to(torch.promote_types(like.dtype, torch.float32))
        rates = torch.logspace(*RATES, self.n_head, dtype=like.dtype, device=like.device)[:, None]  # (H, 1)
        order = torch.arange(self.waves, dtype=like.dtype, device=like.device)  # (m,)
        return rates.expand(-1, self.waves), TURN * order * rates  # (H, m) each

    def faded(self, length: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """exp(-a n) cos(w n) and exp(-a n) sin(w n) for n = first, first + 1, ...: (H, m, length) each."""
        rates, turns = (
            begin * factor.to(begin.dtype).view_as(begin).exp()
            for begin, factor in zip(self.start(self.rates), (self.rates, self.turns))
        )  # (H, m) each
        n = torch.arange(first, first + length, device=rates.device, dtype=rates.dtype)  # (length,)
        size, angle = (-rates[..., None] * n).exp(), turns[..., None] * n  # (H, m, length) each
        return size * angle.cos(), size * angle.sin()

    def filter(self, length: int) -> Tensor:
        """h at the distances 0 to length - 1: (H, length)."""
        waves = torch.cat(self.faded(length), dim=1)  # (H, 2 m, length)
        return (self.shares.to(waves.dtype)[..., None] * waves).sum(dim=1)  # (H, length); einsum may round to bfloat16

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        value = self.value(x) * self.gate_in(x) if self.config.gated else self.value(x)  # (B, T, D)
        value = split_heads(value, self.n_head)  # (B, H, T, d)
        nothing = value[..., self.d :]  # (B, H, T, 0)
        return nothing, nothing, value

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        T, S = query.shape[2], key.shape[2]
        behind = distance(T, S, query.device)  # (T, S)
        weights = self.filter(S)[:, behind.clamp(min=0)].masked_fill(behind < 0, 0.0)  # (H, T, S)
        return weights.expand(query.shape[0], -1, -1, -1)  # (B, H, T, S)

    def advance(self, state: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """One token: the state before it (B, H, 2 m, d), its value (B, H, d) -> the next state, the output (B, H, d).

        The state is two sums over the past for each wave, weighted by its cosine and by its sine. A step rotates and
        fades both, and adds the new value.
        """
        cos, sin = self.faded(1, first=1)  # (H, m, 1) each: of one step
        old, older = state.chunk(2, dim=2)  # (B, H, m, d) each
        state = torch.cat((cos * old - sin * older + value[:, :, None], sin * old + cos * older), dim=2)
        return state, torch.einsum("hi, bhid -> bhd", self.shares.to(state.dtype), state)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        heads = super().output(mixed, x)  # (B, T, D)
        return self.project(heads * self.gate_out(x) if self.config.gated else heads)  # (B, T, D)
