"""Learned queries and keys: what a token looks for is not what it is. The values are still x itself.

    weights_t = softmax over s <= t of q_t . k_s / sqrt(D),    out = weights x,    q, k = W_q x, W_k x

New against the dot product, whose scores are symmetric: here q_t . k_s is another number than q_s . k_t. So a may look
for b, b for c, and c for a, and no token has to look for itself.
Cost: T^2 D for a text, T D for a written token, beside the two products of D^2 a token. Cache: 2 D numbers a token, its
key and x. Used in lessons: the single head adds values and an output projection.

B batch, T positions, D model width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape


def identities(*layers: nn.Linear) -> None:
    """Each of these layers hands on its input."""
    for layer in layers:
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)


class QueryKey(SoftmaxAttention, kind="query_key"):
    """query = W_q x, key = W_k x, value = x."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge(
            "dot_product",
            "two identities",
            other={"scaled": True},
            prepare=lambda query_key, dot_product: identities(query_key.query, query_key.key),
        ),
    )

    def __init__(self, config: QueryKey.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.query = nn.Linear(model.n_embd, model.n_embd, bias=model.bias)
        self.key = nn.Linear(model.n_embd, model.n_embd, bias=model.bias)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (heads.unsqueeze(1) for heads in (self.query(x), self.key(x), x))  # (B, 1, T, D) each
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value
