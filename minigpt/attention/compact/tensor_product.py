"""Queries, keys and values are short sums of products: a vector over the heads times a vector over a head's features.

    k = 1/R  sum_r  a_r(x) b_r(x)'      a_r (H), b_r (d), both linear in x; q and v likewise

"Tensor Product Attention Is All You Need" (arXiv 2501.06425). Positions rotate the b_r, which rotates the heads.
New against grouped_query: each token computes how much each head takes of each b_r. If all a_r, also those of the
queries, are fixed to R or 0, it is grouped_query.
Cost: O(T^2) in training as multi_head, with smaller projections; O(T) a written token, with R times the products, since
the kept factors of all tokens are multiplied out again.
Cache: 2 R (H + d) numbers a token a layer, in place of 2 H d.
Used in: the paper's T6 models.

B batch, H heads, R rank, T new positions, S positions so far, D model width, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.cache import CompactCache, KVCache, Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import MultiHead, split_heads
from minigpt.config.options import Size


def fix_the_heads(tensor_product: TensorProduct, grouped_query: GroupedQuery) -> None:
    """For every token, product r goes to the heads of group r only, so its features are the keys of that group."""
    for name in ("query", "key", "value"):
        product, layer = getattr(tensor_product, name), getattr(grouped_query, name)
        group = torch.arange(tensor_product.n_head) * product.rank // tensor_product.n_head  # (H,)
        nn.init.zeros_(product.heads.weight)
        product.heads.bias.copy_(product.rank * (group == torch.arange(product.rank)[:, None]).flatten())  # (R H)
        layer.load_state_dict(product.features.state_dict())


class Product(nn.Module):
    """The two factors of queries, keys or values: x (B, T, D) -> (B, R, T, H) and (B, R, T, d)."""

    def __init__(self, D: int, rank: int, n_head: int, d: int, bias: bool):
        super().__init__()
        self.rank = rank
        self.heads = nn.Linear(D, rank * n_head, bias=bias)
        self.features = nn.Linear(D, rank * d, bias=bias)
        for layer in (self.heads, self.features):  # larger than in GPT-2: the product of two small numbers is tiny
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return split_heads(self.heads(x), self.rank), split_heads(self.features(x), self.rank)


class TensorProduct(SoftmaxAttention, kind="tensor_product"):
    """In training the products are multiplied out at once; with a cache their factors are kept, side by side."""

    edges: ClassVar[tuple[Edge, ...]] = (
        *(
            Edge(
                "grouped_query",
                f"fixed heads, {n} groups{'' if scaled else ', unscaled'}",
                {"rank": n, "query_rank": 4, "scaled": scaled},
                {"n_kv_head": n, "scaled": scaled},
                prepare=fix_the_heads,
            )
            for n, scaled in ((1, True), (2, True), (4, True), (2, False))
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        without = ("qk_norm", "qk_norm_epsilon")

        rank: Size = 2
        """How many products make up the keys of a token, and its values."""
        query_rank: Size = 6
        """How many products make up the queries of a token, which are not kept."""

    config: TensorProduct.Config

    def __init__(self, config: TensorProduct.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D, H, d = model.n_embd, config.n_head, config.head_dim or model.n_embd // config.n_head
        bias, project_bias = (model.bias if own is None else own for own in (config.qkv_bias, config.project_bias))
        self.n_head = H
        self.query = Product(D, config.query_rank, H, d, bias)
        self.key = Product(D, config.rank, H, d, bias)
        self.value = Product(D, config.rank, H, d, bias)
        self.project = nn.Linear(H * d, D, bias=project_bias)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        factors = []
        for product, turns in ((self.query, True), (self.key, True), (self.value, False)):
            heads, features = product(x)  # (B, R, T, H), (B, R, T, d)
            features = self.position.rotate(features, past.length) if turns else features  # (B, R, T, d)
            factors.append(torch.cat((heads, features), dim=-1))  # (B, R, T, H + d)
        query, key, value = factors
        cached = isinstance(past, CompactCache)
        return (self.out(query), key, value) if cached else (self.out(query), self.out(key), self.out(value))

    def out(self, factors: Tensor) -> Tensor:
        """Multiplied out: (B, R, S, H + d) -> (B, H, S, d)."""
        heads, features = factors.split((self.n_head, factors.shape[-1] - self.n_head), dim=-1)
        return torch.einsum("brsh,brsd->bhsd", heads, features) / factors.shape[1]  # (B, H, S, d)

    def make_cache(self, length: int) -> Past:
        """Factors. A subclass with other keys or values keeps those themselves."""
        return CompactCache(length) if type(self).qkv is TensorProduct.qkv else KVCache(length)

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        if not isinstance(past, CompactCache):
            return super().recall(query, key, value, past)
        past.seen = self.out(key), self.out(value)  # (B, H, T, d) each: for the layers above, as in training
        keys, values = map(self.out, past.append(key, value))  # (B, H, S, d) each
        return self.mix(query, keys, values)  # (B, H, T, d)

    def scale(self, query: Tensor) -> float:
        return self.config.score_scale or (super().scale(query) if self.config.scaled else 1.0)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(mixed, x))  # (B, T, D)
