"""Learned queries, keys and values, and an output projection: attention as in "Attention Is All You Need".

New against the dot product: what a token asks (query), what it offers (key) and what it hands over (value) are three
learned views of it, and the scores are divided by sqrt(d) so that their variance stays at one (arXiv 1706.03762).

B batch, T positions, D model width, n heads (here one), d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.cache import Past
from minigpt.config import Count
from minigpt.norm import RMSNorm
from minigpt.position import Shape


class SingleHead(SoftmaxAttention, kind="single_head"):
    """One head as wide as the model. Linear layers named `project` write to the residual stream (see GPT)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SoftmaxAttention.Config):
        scaled: bool = True
        """Whether the scores are divided by sqrt(d)."""
        head_dim: Count | None = None
        """The width d of a head; by default the model's width divided among the heads."""
        qk_norm: bool = False
        """Whether queries and keys are RMS-normalised before they are compared (arXiv 2010.04245)."""

    config: SingleHead.Config

    def __init__(
        self, config: SingleHead.Config, model: Shape, layer: int = 0, n_head: int = 1, n_kv_head: int | None = None
    ):
        super().__init__(config, model, layer)
        self.n_head, self.n_kv_head = n_head, n_kv_head or n_head
        D, d = model.n_embd, config.head_dim or model.n_embd // n_head
        self.query = nn.Linear(D, self.n_head * d, bias=model.bias)
        self.key = nn.Linear(D, self.n_kv_head * d, bias=model.bias)
        self.value = nn.Linear(D, self.n_kv_head * d, bias=model.bias)
        self.project = nn.Linear(self.n_head * d, D, bias=model.bias)
        self.query_norm = RMSNorm(d) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(d) if config.qk_norm else nn.Identity()

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        asked, offered, given = products(x, self.query, self.key, self.value)  # (B, T, n d) each
        query = self.query_norm(split_heads(asked, self.n_head))  # (B, n_head, T, d)
        key = self.key_norm(split_heads(offered, self.n_kv_head))  # (B, n_kv_head, T, d)
        value = split_heads(given, self.n_kv_head)  # (B, n_kv_head, T, d)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value

    def scale(self, query: Tensor) -> float:
        return super().scale(query) if self.config.scaled else 1.0

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(mixed, x))  # (B, T, D)


def products(x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """What each layer makes of x (B, T, D); in training by one product of all weights side by side, which is faster.

    Layers of another make, and layers that somebody watches or has changed from outside, are called one by one.
    """
    if not (layers[0].training and all(map(_untouched, layers))):
        return [layer(x) for layer in layers]
    weight = torch.cat([*(layer.weight for layer in layers)])  # (sum of widths, D)
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    made = F.linear(x, weight, torch.cat(biases) if biases else None)  # (B, T, sum of widths)
    return list(made.split([layer.out_features for layer in layers], dim=-1))


def _untouched(layer: nn.Linear) -> bool:
    watched = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is nn.Linear and not watched and "forward" not in vars(layer)


def split_heads(x: Tensor, n: int) -> Tensor:
    """(B, T, n * d) -> (B, n, T, d): n heads, each with its share of the features."""
    return x.view(*x.shape[:2], n, -1).transpose(1, 2)
