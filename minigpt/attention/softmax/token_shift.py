"""Keys and values are made of a token mixed with the one before it. A head can find a token by the token before it in
one layer, where multi-head attention needs two ("induction").

    k_t = W_k (x_t + m_k * (x_{t-1} - x_t))      v_t = W_v (x_t + m_v * (x_{t-1} - x_t))      x_{-1} = 0

The shares m_k and m_v are learned, one for each feature. "RWKV" (arXiv 2305.13048) mixes its inputs in this way;
"In-context Learning and Induction Heads" (arXiv 2209.11895) mixes the keys themselves and calls them smeared.
New against multi_head: what keys and values are made of; a convolution of width two, inside the layer.
Cost: that of multi_head, O(T^2) in training and O(T) a written token.
Cache: keys and values, 2 D numbers a token, and one vector of D numbers.
Used in: RWKV-4 to -7, for all inputs of its layers.

B batch, H heads, T positions, D model width, d width of a head.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead, split_heads


def take_nothing_from_before(token_shift: TokenShift, multi_head: MultiHead) -> None:
    """Every share is zero."""
    nn.init.zeros_(token_shift.key_share)
    nn.init.zeros_(token_shift.value_share)


class TokenShift(MultiHead, kind="token_shift"):
    """The shares start from 0 to 1, as in RWKV-4: some features come from the token, some from the one before it."""

    order_blind = False
    edges: ClassVar[tuple[Edge, ...]] = (Edge("multi_head", "share = 0", prepare=take_nothing_from_before),)

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.key_share = nn.Parameter(torch.linspace(0, 1, model.n_embd))  # (D,)
        self.value_share = nn.Parameter(torch.linspace(0, 1, model.n_embd))  # (D,)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        before = torch.cat((past.before(x, 1), x), dim=1)[:, :-1]  # (B, T, D)
        for_key, for_value = (x.lerp(before, share.to(x.dtype)) for share in (self.key_share, self.value_share))
        query = self.query_norm(split_heads(self.query(x), self.n_head))  # (B, H, T, d)
        key = self.key_norm(split_heads(self.key(for_key), self.n_head))  # (B, H, T, d)
        value = split_heads(self.value(for_value), self.n_head)  # (B, H, T, d)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value
