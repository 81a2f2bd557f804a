"""Many heads: several attentions side by side, each on its own part of the features (arXiv 1706.03762).

    out = W_o (head_1, ..., head_H),    head_h = softmax(q_h k_h' / sqrt(d)) v_h

New against the single head: `n_head`. Each head can attend to another token. With one head it is the single head.
Cost: T^2 D for a text, T D for a written token, beside four products of D^2 a token. Cache: 2 D numbers a token.
Used by GPT-2, Llama 1 and most models of their time.

B batch, T positions, D model width, H query heads, G key heads (here H), d width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.norm import HeadNorm
from minigpt.attention.position import Shape
from minigpt.attention.softmax.single_head import SingleHead
from minigpt.config.options import Size
from minigpt.system.errors import Mistake


class MultiHead(SoftmaxAttention, kind="multi_head"):
    """`n_head` heads, and one projection of all their outputs, concatenated."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("single_head", "n_head = 1", {"n_head": 1}),
        Edge(
            "single_head",
            "n_head = 1, unscaled, normed",
            {"n_head": 1, "scaled": False, "qk_norm": True},
            {"scaled": False, "qk_norm": True},
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(SingleHead.Config):
        n_head: Size = 4
        """How many heads attend at the same time."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from super().mistakes_within(model)
            if self.head_dim is None and model.n_embd % self.n_head:
                yield "n_head", f"{self.n_head} heads do not divide n_embd, {model.n_embd}; set head_dim or change one"

    config: MultiHead.Config

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0, n_kv_head: int | None = None):
        super().__init__(config, model, layer)
        self.n_head, self.n_kv_head = config.n_head, n_kv_head or config.n_head
        D, d = model.n_embd, config.head_dim or model.n_embd // config.n_head
        bias, project_bias = (model.bias if own is None else own for own in (config.qkv_bias, config.project_bias))
        self.query = nn.Linear(D, self.n_head * d, bias=bias)
        self.key = nn.Linear(D, self.n_kv_head * d, bias=bias)
        self.value = nn.Linear(D, self.n_kv_head * d, bias=bias)
        self.project = nn.Linear(self.n_head * d, D, bias=project_bias)
        whole, epsilon = config.qk_norm == "whole", config.qk_norm_epsilon
        self.query_norm: nn.Module = HeadNorm(self.n_head, d, whole, epsilon) if config.qk_norm else nn.Identity()
        self.key_norm: nn.Module = HeadNorm(self.n_kv_head, d, whole, epsilon) if config.qk_norm else nn.Identity()

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query_norm(split_heads(self.query(x), self.n_head))  # (B, H, T, d)
        key = self.key_norm(split_heads(self.key(x), self.n_kv_head))  # (B, G, T, d)
        value = split_heads(self.value(x), self.n_kv_head)  # (B, G, T, d)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value

    def scale(self, query: Tensor) -> float:
        return self.config.score_scale or (super().scale(query) if self.config.scaled else 1.0)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(mixed, x))  # (B, T, D)


def split_heads(x: Tensor, n: int) -> Tensor:
    """(B, T, n d) -> (B, n, T, d): n heads, each with its own part of the features."""
    B, T, _ = x.shape
    return x.view(B, T, n, -1).transpose(1, 2)
