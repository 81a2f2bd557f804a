"""The synthesizer: a token alone says how far back to look; no key is asked.

    score[t, s] = row (t - s) of table . relu(query[t])

Paper: "Synthesizer: Rethinking Self-Attention in Transformer Models" (arXiv 2005.00743), its dense form. There the
table has a row for each place in the text, here for each distance, so that the result does not depend on where the text
begins. New against multi_head: there is no dot product of query and key. Where a token attends does not depend on the
tokens there: it cannot search for a token, but it can choose a distance.

Cost: T (n + T) D for a text, (n + T) D for a written token: a score for each of n distances, and the mean. Cache: D
numbers a token, the values. Used in research only.

B batch, H heads, T query positions, S key positions, n the context, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import MultiHead, split_heads
from minigpt.attention.softmax.path import Path


def empty(synthesizer: Synthesizer, average_softmax: AverageSoftmax) -> None:
    """A table of zeros; values and outputs are x itself."""
    synthesizer.table.zero_()
    for layer in (synthesizer.value, synthesizer.project):
        nn.init.zeros_(layer.bias)
        nn.init.eye_(layer.weight)


def fading(synthesizer: Synthesizer, path: Path) -> None:
    """Every score is r^distance, r = 1/2: PaTH's queries, keys and directions are one feature of each head."""
    n, d = synthesizer.table.shape[1:]
    for part in (synthesizer.query, path.query, path.key, path.direction, path.strength):
        part.weight.zero_()
        part.bias.zero_()
    for part in (path.query, path.key, path.direction):
        part.bias[::d] = d**0.25  # a direction is normalised to length one
    path.query.weight[1::d] = 1.0  # in a feature that is zero in every key
    path.strength.bias.fill_(-math.log(3.0))  # b = 2 sigmoid(-ln 3) = 1/2
    synthesizer.query.bias.fill_(1 / d)
    synthesizer.query.bias[::2] *= -1  # half the features are off
    synthesizer.query.bias[1::2] *= 2
    synthesizer.table.copy_(0.5 ** torch.arange(n)[:, None].expand(n, d))


class Synthesizer(MultiHead, kind="synthesizer"):
    """Multi-head attention to distances."""

    order_blind = False
    unsuited: ClassVar[Mapping[str, str]] = {"rotate": "there are no keys to rotate"}
    edges = (
        Edge("average_softmax", "table = 0", own={"n_head": 1}, prepare=empty),
        Edge("path", "table = r^distance; one direction, b = 1 - r", prepare=fading),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        without = ("qk_norm", "qk_norm_epsilon", "scaled", "score_scale")

    config: Synthesizer.Config

    def __init__(self, config: Synthesizer.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        del self.key
        d = self.query.out_features // config.n_head
        self.table = nn.Parameter(0.02 * torch.randn(config.n_head, model.block_size, d))  # (H, n, d)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query = split_heads(self.query(x).relu(), self.n_head)  # (B, H, T, d)
        return query, query[..., :0], split_heads(self.value(x), self.n_head)  # the key is (B, H, T, 0)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        T, S, n = query.shape[2], key.shape[2], self.table.shape[1]
        back = distance(T, S, query.device).clamp(0, n - 1)  # (T, S)
        each = query @ self.table.to(query.dtype).mT  # (B, H, T, n): a score for each distance
        return each.gather(-1, back.expand(*query.shape[:2], T, S))  # (B, H, T, S)
