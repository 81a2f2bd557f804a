"""Selective attention: a token can vote that an earlier one is not needed any more, by all tokens after it.

    score[t, s] := score[t, s] - sum over s < j < t of votes[j, s],    votes = max(score of the first head, 0)

Paper: "Selective Attention Improves Transformer" (arXiv 2410.02703). The first head votes with its scores as they are;
no token votes against itself, and none against the first.
New against multi_head: `scores`, and no new parameter. If the first head has no score above zero, it is multi_head.
A later query needs all votes before it. So the query of the first head is stored in the keys, an equal part in each
head's key, and the votes are computed again from the cache.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D + 1 numbers a token; the last is the sum of the votes
against it (both by `fast/rewriting.py`; in plain form T^2 d more for a written token, to compute all votes again, and
2 D + d numbers). Used by the paper's models.

B batch, H heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import distance
from minigpt.attention.softmax.multi_head import MultiHead, split_heads


def silent(selective: Selective, multi_head: MultiHead) -> None:
    """The queries of head 0 are zero, and so are its scores."""
    for layer in (selective, multi_head):
        for parameter in layer.query.parameters():
            parameter[: len(parameter) // layer.n_head] = 0.0


class Selective(MultiHead, kind="selective"):
    """Multi-head attention in which a token can mask earlier ones for all later tokens."""

    order_blind = False
    edges = (Edge("multi_head", "no votes", own={"head_dim": 5}, other={"head_dim": 5}, prepare=silent),)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)  # (B, H, T, d) each
        H, d = query.shape[1], query.shape[3]
        voter = F.pad(query[:, 0], (0, -d % H))  # (B, T, d), and zeros up to a multiple of H
        return query, torch.cat((key, split_heads(voter, H)), dim=-1), value  # the key is (B, H, T, d + d/H)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key[..., : query.shape[3]]) - self.votes(query, key)  # (B, H, T, S)

    def votes(self, query: Tensor, key: Tensor) -> Tensor:
        """The sum of the votes against each key of key (B, H, S, d + d/H) before query (B, H, T, d): (B, 1, T, S)."""
        T, S, d = query.shape[2], key.shape[2], query.shape[3]
        voter = key[..., d:].transpose(1, 2).flatten(2)[:, None, :, :d]  # (B, 1, S, d)
        votes = super().scores(voter, key[:, :1, :, :d]).relu()  # (B, 1, S, S)
        may = distance(S, S, key.device) > 0  # (S, S)
        may[:, 0] = False
        precise = torch.promote_types(votes.dtype, torch.float32)
        votes = F.pad(votes.masked_fill(~may, 0.0), (0, 0, 1, 0))[:, :, :-1]  # (B, 1, S, S): row t: votes of t - 1
        return votes.cumsum(dim=2, dtype=precise)[:, :, S - T :]  # (B, 1, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        own = super().scores(query, key[..., : query.shape[3]])  # (B, H, T, S)
        one = own.new_ones(own.shape[:2])  # (B, H)
        parts = {"own score": own, "x own score": one, "votes against it": self.votes(query, key)}
        return {**parts, "x votes against it": -one, **super().stages(query, key)}
