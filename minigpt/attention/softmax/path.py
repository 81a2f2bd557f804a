"""PaTH: every token on the way from a key to a query moves the key a little, along a direction of its own.

    score[t, s] = query[t] . M[t] M[t - 1] ... M[s + 1] key[s] / sqrt(d),    M[j] = 1 - b[j] w[j] w[j]'

M is a Householder reflection for b = 2, forgets the direction w for b = 1, and does nothing for b = 0.
Paper: "PaTH Attention: Position Encoding via Accumulating Householder Transformations" (arXiv 2505.16381). There
two small matrices and a short convolution make w, here one linear layer.
New against multi_head: rotary positions rotate keys by the distance alone; here the tokens between key and query move
them. w and b are stored as extra channels of the key. One triangular system gives all products: r[t, j], how much of
w[j] the query loses when the product reaches j, is b[j] w[j] . (query[t] - sum over j < i <= t of r[t, i] w[i]).
b = 2 sigmoid(strength(x)) starts at 0.24: after a hundred tokens, about half of a key's length is left, in a head of
width 32.

Cost: T^3 H for a text as written here (the paper's blocks: T^2 D), T D for a written token. Cache: 2 D numbers a token,
the moved keys and the values (both by `fast/rewriting.py`; in plain form T^2 (D + H), and 3 D + H, with w and b).
Used by the paper's models.

B batch, H heads, T query positions, S key positions, D model width, d width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import MultiHead, split_heads


def unmoved(path: Path, multi_head: MultiHead) -> None:
    """b = 0 for every token."""
    path.strength.weight.zero_()
    path.strength.bias.fill_(-1e4)


class Path(MultiHead, kind="path"):
    """Multi-head attention to keys that all later tokens have moved."""

    order_blind = False
    muon: ClassVar[Mapping[str, bool]] = {"strength.weight": False}  # its rows are heads, not features
    edges = (Edge("multi_head", "b = 0", prepare=unmoved),)

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.direction = nn.Linear(model.n_embd, self.query.out_features, bias=model.bias)
        self.strength = nn.Linear(model.n_embd, config.n_head)
        nn.init.constant_(self.strength.bias, -2.0)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        direction = F.normalize(split_heads(self.direction(x), self.n_head), dim=-1)  # (B, H, T, d)
        direction = self.position.rotate(direction, past.length)  # as keys are, so that scores depend on distances only
        strength = 2 * self.strength(x).sigmoid().mT[..., None]  # (B, H, T, 1)
        return query, torch.cat((key, direction, strength), dim=-1), value  # the key is (B, H, T, 2d + 1)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        T, S, d = query.shape[2], key.shape[2], query.shape[3]
        precise = torch.promote_types(key.dtype, torch.float32)
        query, key = query.to(precise), key.to(precise)
        key, w, b = key.split((d, d, 1), dim=-1)  # (B, H, S, d) twice, (B, H, S, 1)
        met = (query @ w.mT * b.mT).masked_fill(distance(T, S, key.device) < 0, 0.0)  # (B, H, T, S)
        system = w @ w.mT * b.mT  # (B, H, S, S), of which the part below the diagonal counts, and ones on it
        erased = torch.linalg.solve_triangular(system, met, upper=False, left=False, unitriangular=True)  # (B, H, T, S)
        return super().scores(query, key) - erased @ (w @ key.mT).tril(-1) * self.scale(query)  # (B, H, T, S)
