"""Learned queries, keys and values, and an output projection: attention as in "Attention Is All You Need".

    weights_t = softmax over s <= t of q_t . k_s / sqrt(d),    out = W_o (weights v),    q, k, v = W_q x, W_k x, W_v x

New against learned queries and keys (`query_key`): what a token hands over, its value, is a learned projection of it
too, and an output projection says where in the stream it goes. So a token can tell what it has been handed from what it
is. Scores are divided by sqrt(d) so that their variance stays at one (arXiv 1706.03762).
Cost: T^2 d for a text and T d for a written token, beside the four products of D d a token. Cache: 2 d numbers a token.
Used with more heads (`multi_head`).

B batch, T positions, D model width, d width of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.norm import HeadNorm
from minigpt.attention.position import Shape
from minigpt.attention.softmax.query_key import identities
from minigpt.config.options import Positive, Size
from minigpt.system.errors import Mistake


class SingleHead(SoftmaxAttention, kind="single_head"):
    """One head as wide as the model. Linear layers named `project` write to the residual stream (see GPT)."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge(
            "query_key",
            "two identities: values and projection",
            prepare=lambda head, query_key: identities(head.value, head.project),
        ),
        Edge(
            "dot_product",
            "four identities, unscaled",
            own={"scaled": False},
            prepare=lambda head, dot_product: identities(head.query, head.key, head.value, head.project),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(SoftmaxAttention.Config):
        scaled: bool = True
        """Whether the scores are divided by sqrt(d)."""
        score_scale: Positive | None = None
        """What the scores are multiplied by; by default 1/sqrt(d)."""
        head_dim: Size | None = None
        """The width d of a head; by default the model's width divided by the number of heads."""
        qk_norm: bool | Literal["whole"] = False
        """Whether queries and keys are RMS-normalised before their product (after arXiv 2010.04245; see `cosine`): each
        head by itself, or with `whole` the features of all heads together (OLMo 2, arXiv 2501.00656)."""
        qk_norm_epsilon: Positive = 1e-6
        """What the norms of queries and keys add to the mean square."""
        qkv_bias: bool | None = None
        """Whether queries, keys and values add a learned constant; by default as the model says."""
        project_bias: bool | None = None
        """Whether the output projection adds a learned constant; by default as the model says."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.score_scale is not None and not self.scaled:
                yield "score_scale", "the scores are not scaled, by `scaled: false`; leave out one of the two"

    config: SingleHead.Config

    def __init__(self, config: SingleHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D, d = model.n_embd, config.head_dim or model.n_embd
        bias, project_bias = (model.bias if own is None else own for own in (config.qkv_bias, config.project_bias))
        self.query = nn.Linear(D, d, bias=bias)
        self.key = nn.Linear(D, d, bias=bias)
        self.value = nn.Linear(D, d, bias=bias)
        self.project = nn.Linear(d, D, bias=project_bias)
        whole, epsilon = config.qk_norm == "whole", config.qk_norm_epsilon
        self.query_norm: nn.Module = HeadNorm(1, d, whole, epsilon) if config.qk_norm else nn.Identity()
        self.key_norm: nn.Module = HeadNorm(1, d, whole, epsilon) if config.qk_norm else nn.Identity()

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query_norm(self.query(x).unsqueeze(1))  # (B, 1, T, d)
        key = self.key_norm(self.key(x).unsqueeze(1))  # (B, 1, T, d)
        value = self.value(x).unsqueeze(1)  # (B, 1, T, d)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value

    def scale(self, query: Tensor) -> float:
        return self.config.score_scale or (super().scale(query) if self.config.scaled else 1.0)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(mixed, x))  # (B, T, D)
