"""Taylor features: linear attention whose features give the exponential of a score to the second order.

    w_ts = f(s_ts) / sum_j f(s_tj)        f(s) = 1 + s + s^2 / 2        s_ts = q_t . k_s / sqrt(d)

"Simple linear attention language models balance the recall-throughput tradeoff" (Based, arXiv 2402.18668). New against
linear: the features (1, k, k k' / sqrt 2), in which equal products are stored once. f(s) is positive, and near exp(s)
for small scores, where this is softmax attention. Keys with large products get more weight than with elu(x) + 1.
Cost: O(T d^2 D) in training, O(d^2 D) for a written token. Cache: H f (e + 1) numbers a layer, whatever the context.
Narrow heads are best.
Used by: Based, beside sliding windows.

B batch, H heads, T query positions, S key positions, d width of a query and a key, e width of a value,
f = 1 + d + d (d + 1) / 2 features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from minigpt.attention.edge import Edge
from minigpt.attention.linear.linear import Linear
from minigpt.attention.linear.recurrent import Features, Recurrent
from minigpt.attention.position import distance


def small_scores(taylor: Any, multi_head: Any) -> None:
    """Queries a thousand times smaller: the features lack s^3 / 6 and all later terms of the exponential.

    A bias of the keys adds one number to all scores of a query, which a softmax ignores. A small difference in this
    bias makes the test skip its gradient.
    """
    taylor.key.bias.add_(1e-9)
    for kind in (taylor, multi_head):
        kind.query.weight.mul_(0.001)
        kind.query.bias.mul_(0.001)


class Taylor(Linear, kind="taylor"):
    """Scores may be negative, and rotary positions can be used: f is positive everywhere."""

    unsuited: ClassVar[Mapping[str, str]] = Recurrent.unsuited
    edges: ClassVar[tuple[Edge, ...]] = (Edge("multi_head", "small scores", prepare=small_scores, error=1e-4),)

    @dataclass(frozen=True, kw_only=True)
    class Config(Linear.Config):
        features: Features = "identity"

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        scores = query @ key.mT  # (B, H, T, S)
        past = distance(query.shape[2], key.shape[2], query.device) >= 0  # (T, S)
        weights = (1 + scores + scores.square() / 2).masked_fill(~past, 0.0)  # (B, H, T, S)
        return weights / weights.sum(dim=-1, keepdim=True)  # (B, H, T, S)

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return super().advance(state, second_order(query), second_order(key), value)  # (B, H, f, e + 1), (B, H, e)

    def empty(self, key: Tensor, value: Tensor) -> Tensor:
        return super().empty(key, value)[:, :, :1].expand(-1, -1, self.features, -1)  # (B, H, f, e + 1)

    @property
    def features(self) -> int:
        """How many features f there are."""
        return 1 + self.d + self.d * (self.d + 1) // 2


def second_order(x: Tensor) -> Tensor:
    """(1, x, products of two), (..., d) -> (..., f): the features of q times those of k are 1 + q.k + (q.k)^2 / 2.

    x_i x_j equals x_j x_i, so one of the two is stored; it counts twice as much as a square.
    """
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)  # d (d + 1) / 2 each
    share = x.new_ones(len(i)).masked_fill(i == j, 0.5**0.5)  # (d (d + 1) / 2,)
    return torch.cat((torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j] * share), dim=-1)  # (..., f)
