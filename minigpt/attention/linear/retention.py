"""Retention: linear attention that forgets, each head at its own constant rate.

    w_ts = a^(t - s) q_t . k_s        S_t = a S_(t-1) + k_t v_t'        out_t = q_t S_t

"Retentive Network: A Successor to Transformer for Large Language Models" (arXiv 2307.08621), where head h has
a = 1 - 2^-(5 + h); with ALiBi's slopes it is the Lightning Attention of MiniMax-01 (arXiv 2501.08313). New against
linear: the decay, and a norm of each head's output in place of weights that sum to one.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: RetNet, MiniMax-01, Ling 2.5.

The paper's layer in a model of width 128 without biases (`published.py`):

    {kind: retention, value_dim: 64, gate: true}

B batch, H heads, T query positions, S key positions, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from minigpt.attention.edge import Edge
from minigpt.attention.linear.published import Published
from minigpt.attention.linear.recurrent import left, outer, products, read
from minigpt.attention.position import exact
from minigpt.attention.softmax.stick_breaking import StickBreaking

CPU = torch.device("cpu")


def slow_decays(n_head: int, device: torch.device = CPU) -> Tensor:
    """The log decays of RetNet's heads: log(1 - 1/32), log(1 - 1/64), ..., in float64: (H,)."""
    return torch.log1p(-(2.0 ** (-5 - torch.arange(n_head, dtype=exact(device), device=device))))


def one_share(retention: Retention, stick_breaking: StickBreaking) -> None:
    """For all tokens: a key of stick_breaking takes the share 1 - a of what nearer keys left; here q . k is 1 - a."""
    d, share = retention.d, -torch.expm1(retention.decays(retention.query.bias))  # share is (H,)
    for part in (retention.query, retention.key, stick_breaking.query, stick_breaking.key):
        part.weight.zero_()
        part.bias.zero_()
    retention.key.bias[::d], retention.query.bias[::d] = d**0.25, d**0.25 * share
    stick_breaking.key.bias[::d], stick_breaking.query.bias[::d] = -(d**0.25), -(d**0.25) * share.logit()
    for part, feature in ((stick_breaking.query, 1), (stick_breaking.key, 2)):
        part.weight[feature::d] = 1.0  # each in a feature in which the other one is zero


class Retention(Published, kind="retention"):
    """The products of queries and keys fade with the distance."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge(
            "linear",
            "nothing is forgotten, and both are normed",
            {"decay": "none", "features": "elu"},
            {"normed": True},
        ),
        Edge(
            "stick_breaking",
            "every score is one number",
            own={"decay": "alibi", "normed": False},
            other={"include_self": True},
            prepare=one_share,
            without=("rotate",),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Published.Config):
        without: ClassVar[tuple[str, ...]] = ("convolution", "value_silu", "n_key_head", "norm_weights")
        decay: Literal["retnet", "alibi", "none"] = "retnet"
        """The decay of each head: 1 - 1/32, 1 - 1/64, ...; exp(-slope) with ALiBi's slopes; or 1, no decay."""

    config: Retention.Config

    def decays(self, like: Tensor) -> Tensor:
        """The log decay of each head: (H,)."""
        if self.config.decay == "none":
            return like.new_zeros(self.n_head)  # (H,)
        if self.config.decay == "retnet":
            return slow_decays(self.n_head, like.device).to(like.dtype)  # (H,)
        return -(2.0 ** (-8.0 * torch.arange(1, self.n_head + 1, dtype=like.dtype, device=like.device) / self.n_head))

    def gates(self, x: Tensor) -> Tensor:
        none = super().gates(x)  # (B, H, T, 0)
        return self.decays(none)[:, None, None].expand(*none.shape[:3], 1)  # (B, H, T, 1)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return products(query, *self.ungated(key))  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        log_decay = self.ungated(key)[1]  # (B, H, S, g)
        stages = {"kept": log_decay.exp().mean(dim=-1), **super().stages(query, key)}  # (B, H, S), (B, H, T, S) twice
        weights = stages.pop("weights")  # (B, H, T, S)
        return {**stages, "left": left(log_decay, query.shape[2]).mean(dim=-1), "weights": weights}

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key, log_decay = self.ungated(key)  # (B, H, d), (B, H, 1)
        state = state * log_decay.exp()[..., None] + outer(key, value)  # (B, H, d, e)
        return state, read(state, query)  # (B, H, e)
