"""DeltaProduct: each token makes several writes of the delta rule, one after the other, and reads once.

    S_(t,j) = S_(t,j-1) + b_tj k_tj (v_tj - k_tj S_(t,j-1))'        j = 1 .. n        out_t = q_t S_(t,n)

"DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products" (arXiv 2502.10297). New against
DeltaNet: n keys, values and strengths for each token. A write with b = 2 reflects the state: it can swap two items.
Two reflections are a rotation, as in a cycle of three items, and n writes can do any permutation of n + 1 items. With
one write it is DeltaNet, and also with two writes if the second has b = 0. In `weights` the n writes are n groups of
heads; the output is the sum of the groups.
Cost: O(n T d D) in training, O(n d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: research models. DeltaNet is the case of one write.

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e width of a value,
n writes of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.linear.delta_net import DeltaNet, replaced
from minigpt.attention.linear.recurrent import products
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Range


def second_write_without_strength(delta_product: Any, delta_net: Any) -> None:
    """The first writes are those of DeltaNet; b of the second is zero."""
    for name in ("key", "value", "write"):
        layer, other = getattr(delta_product, name), getattr(delta_net, name)
        layer.weight[: len(other.weight)] = other.weight
        layer.bias[: len(other.bias)] = other.bias
    delta_product.write.bias[delta_product.n_head :] = -1e9


class DeltaProduct(DeltaNet, kind="delta_product"):
    """The keys, values and strengths of write j are heads j H to (j + 1) H."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("delta_net", "n = 1", {"writes": 1}, {"strength": 2.0}),
        Edge("delta_net", "the second b is zero", {"writes": 2}, {"strength": 2.0}, second_write_without_strength),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(DeltaNet.Config):
        strength: Annotated[float, Range(0, 2, open_low=True)] = 2.0
        writes: Annotated[int, Range(1, 16)] = 2
        """How many writes n each token makes."""

    config: DeltaProduct.Config

    def __init__(self, config: DeltaProduct.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D, heads = model.n_embd, config.writes * config.n_head
        self.key = nn.Linear(D, heads * self.d, bias=model.bias)
        self.value = nn.Linear(D, heads * self.e, bias=model.bias)
        self.write = nn.Linear(D, heads, bias=config.write_bias)
        if config.convolution:
            self.convolutions = self.of_projections()

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        n, H = self.config.writes, self.n_head
        query = self.view(self.projected("query", x, past), past, H).repeat(1, n, 1, 1)  # (B, n H, T, d): all alike
        key = self.view(self.projected("key", x, past), past, n * H)  # (B, n H, T, d)
        value = split_heads(self.projected("value", x, past), n * H)  # (B, n H, T, e)
        return query * self.scale(), torch.cat((key, self.gates(x)), dim=-1), value

    def in_turn(self, x: Tensor) -> Tensor:
        """The writes of all tokens, one after the other: (B, n H, S, ...) -> (B, H, S n, ...)."""
        return x.unflatten(1, (-1, self.n_head)).movedim(1, 3).flatten(2, 3)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        n, T, S = self.config.writes, query.shape[2], key.shape[2]
        key, strength = self.ungated(self.in_turn(key))  # (B, H, S n, d), (B, H, S n, 1)
        past = (distance(T, S, key.device) >= 0).repeat_interleave(n, dim=1)  # (T, S n)
        scores = (query[:, : self.n_head] @ key.mT).masked_fill(~past, 0.0)  # (B, H, T, S n)
        weights = replaced(scores, products(key, key), strength)  # (B, H, T, S n)
        return weights.unflatten(3, (S, n)).movedim(4, 1).flatten(1, 2)  # (B, n H, T, S)

    def head_note(self, head: int) -> str:
        return f"write {head // self.n_head + 1} of head {head % self.n_head + 1}"

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        n, H = self.config.writes, self.n_head
        for write in zip(query.split(H, dim=1), key.split(H, dim=1), value.split(H, dim=1)):
            state, read = super().advance(state, *write)  # (B, H, d, e), (B, H, e)
        return state, read.repeat(1, n, 1) / n  # (B, n H, e): a state does not tell its writes apart; each gets a part

    def empty(self, key: Tensor, value: Tensor) -> Tensor:
        return super().empty(key, value[:, : self.n_head])  # (B, H, d, e)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed.unflatten(1, (-1, self.n_head)).sum(dim=1), x)  # (B, T, D)
