"""Linear attention: positive features take the place of the exponential, so a sum over the past is a state.

    w_ts = f(q_t) . f(k_s) / sum_j f(q_t) . f(k_j)        f(x) = elu(x) + 1

    S_t = S_(t-1) + f(k_t) (v_t, 1)'        (numerator, denominator) = f(q_t) S_t

"Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention" (arXiv 2006.16236). New against the
averages: the weights depend on the tokens; new against multi_head: no exponential. With equal features of all keys it
is the mean of the past.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d (e + 1) numbers a layer, whatever the context.
Used by: the paper's models, on which this family builds; Performer (arXiv 2009.14794) has other features.

B batch, H heads, T query positions, S key positions, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.linear.recurrent import Features, Recurrent, outer, products, read


@torch.no_grad()
def all_keys_alike(linear: Any, average: Any) -> None:
    """All keys are equal; the value and output projections are identities."""
    for parameter in (linear.key.weight, linear.key.bias, linear.value.bias, linear.project.bias):
        nn.init.zeros_(parameter)
    for layer in (linear.value, linear.project):
        nn.init.eye_(layer.weight)


class Linear(Recurrent, kind="linear"):
    """Every row of weights is divided by its sum. The state has one more column, for that sum."""

    rows_sum_to_one = weights_nonnegative = order_blind = True
    unsuited: ClassVar[Mapping[str, str]] = {
        **Recurrent.unsuited,
        "rotate": "rotated features are not positive, and a row could sum to zero",
    }
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("average_matrix", "all keys alike", {"n_head": 1}, prepare=all_keys_alike, without=("bias",)),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Recurrent.Config):
        without = ("features",)
        features: Features = "elu"
        normed: bool = False

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        weights = products(query, key)  # (B, H, T, S)
        return weights / weights.sum(dim=-1, keepdim=True)  # (B, H, T, S)

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        state = state + outer(key, F.pad(value, (0, 1), value=1.0))  # (B, H, d, e + 1)
        sums = read(state, query)  # (B, H, e + 1)
        return state, sums[..., :-1] / sums[..., -1:]  # (B, H, e)

    def empty(self, key: Tensor, value: Tensor) -> Tensor:
        return super().empty(key, F.pad(value, (0, 1)))  # (B, H, d, e + 1)
