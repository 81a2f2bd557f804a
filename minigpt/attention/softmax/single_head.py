"""Learned queries, keys and values, and an output projection: attention as in "Attention Is All You Need".

New against the dot product: what a token asks (query), what it offers (key) and what it hands over (value) are three
learned views of it, and the scores are divided by sqrt(d) so that their variance stays at one (arXiv 1706.03762).

B batch, T positions, D model width, n heads (here one), d width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.cache import Past
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Shape
from minigpt.config.options import Size
from minigpt.fast.joined import side_by_side


class SingleHead(SoftmaxAttention, kind="single_head"):
    """One head as wide as the model. Linear layers named `project` write to the residual stream (see GPT)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SoftmaxAttention.Config):
        scaled: bool = True
        """Whether the scores are divided by sqrt(d)."""
        head_dim: Size | None = None
        """The width d of a head; by default the model's width divided among the heads."""
        qk_norm: bool = False
        """Whether queries and keys are RMS-normalised before they are compared (arXiv 2010.04245)."""

    config: SingleHead.Config
    together: ClassVar[tuple[str, ...]] = ("query", "key", "value")  # given to `side_by_side`

    def __init__(
        self, config: SingleHead.Config, model: Shape, layer: int = 0, n_head: int = 1, n_kv_head: int | None = None
    ):
        super().__init__(config, model, layer)
        self.n_head, self.n_kv_head = n_head, n_kv_head or n_head
        self.d = d = config.head_dim or model.n_embd // n_head
        D = model.n_embd
        self.query = nn.Linear(D, self.n_head * d, bias=model.bias)
        self.key = nn.Linear(D, self.n_kv_head * d, bias=model.bias)
        self.value = nn.Linear(D, self.n_kv_head * d, bias=model.bias)
        self.project = nn.Linear(self.n_head * d, D, bias=model.bias)
        if config.qk_norm:
            self.query_norm, self.key_norm = RMSNorm(d), RMSNorm(d)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        H, G = self.n_head, self.n_kv_head
        made = side_by_side(x, self.query, self.key, self.value)  # (B, T, H d + G d + G e)
        normed, turned, start = self.config.qk_norm, self.position.acts_by("rotate"), past.length
        if turned and not normed:
            both, value = groups(made, (H + G, G), self.d)  # (B, H + G, T, d), (B, G, T, e): queries and keys at once
            query, key = self.position.rotate(both, start).split_with_sizes((H, G), 1)
            return query, key, value
        query, key, value = groups(made, (H, G, G), self.d)  # (B, H, T, d), (B, G, T, d), (B, G, T, e)
        if normed:
            query, key = self.query_norm(query), self.key_norm(key)
        if turned:
            query, key = self.position.rotate(query, start), self.position.rotate(key, start)
        return query, key, value

    def scale(self, query: Tensor) -> float:
        return super().scale(query) if self.config.scaled else 1.0

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(mixed, x))  # (B, T, D)


def groups(x: Tensor, heads: tuple[int, ...], d: int) -> Sequence[Tensor]:
    """Cut x (B, T, n) into groups of so many heads, (B, heads[i], T, d) each; the last may have another width."""
    if x.shape[-1] == sum(heads) * d:  # it has not: a single view does
        return split_heads(x, sum(heads)).split_with_sizes(heads, 1)
    widths = [n * d for n in heads[:-1]]
    parts = x.split_with_sizes((*widths, x.shape[-1] - sum(widths)), -1)
    return [split_heads(part, n) for part, n in zip(parts, heads)]


def split_heads(x: Tensor, n: int) -> Tensor:
    """(B, T, n * d) -> (B, n, T, d): n heads, each with its share of the features."""
    B, T, _ = x.shape
    return x.view(B, n, 1, -1) if T == 1 else x.view(B, T, n, -1).transpose(1, 2)
