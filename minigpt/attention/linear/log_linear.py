"""Log-linear attention: not one state but one for each scale of the past, from the last token to its first half.

    w_ts = c_t[l(t, s)] a_(s+1) ... a_t q_t . (d_s k_s)        l(t, s) = the highest bit in which t and s differ

"Log-Linear Attention" (arXiv 2506.04761), over Mamba-2. New against Mamba-2: token t sees itself and, for each bit of t
that is one, as many earlier tokens as that bit counts; smaller bits are nearer (a Fenwick tree): 1, 1, 2, 4 tokens at
t = 7, and 1, 8 at t = 8. Each of these levels has its own state, and c_t, computed from the token, says how much each
counts. With levels that all count alike, or a single level, it is Mamba-2.
Cost: O(T log T d D) in training, O(L d D) for a written token. Cache: H d e numbers a layer for each of the L levels;
for a context of n, L = log2(n) + 1, rounded up.
Used by: research models.

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e width of a value,
L levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.linear.recurrent import outer, read
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Size


def levels_alike(log_linear: Any, mamba2: Any) -> None:
    """Every level counts once, whatever the token."""
    nn.init.zeros_(log_linear.level.weight)
    nn.init.constant_(log_linear.level.bias, ONE)


ONE = math.log(math.expm1(1))  # its softplus is one


class LogLinear(Mamba2, kind="log_linear"):
    """A query has L more channels: how much each level counts. A key has one more: its position, for `advance`."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("mamba2", "every level counts alike", prepare=levels_alike),
        Edge("mamba2", "one level", {"levels": 1}, prepare=levels_alike),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Mamba2.Config):
        without = ("decay", "skip")
        levels: Size | None = None
        """How many states there are at most; by default enough for the context."""

    config: LogLinear.Config

    def __init__(self, config: LogLinear.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        most = (model.block_size - 1).bit_length() + 1
        self.levels = min(config.levels or most, most)
        self.level = nn.Linear(model.n_embd, config.n_head * self.levels)
        nn.init.constant_(self.level.bias, ONE)  # each level counts about once: as Mamba-2 at first

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        counts = F.softplus(split_heads(self.level(x), self.n_head).to(query.dtype))  # (B, H, T, L)
        position = torch.arange(past.length, past.length + x.shape[1], dtype=key.dtype, device=key.device)  # (T,)
        key = torch.cat((key, position[:, None].expand(*key.shape[:3], 1)), dim=-1)  # (B, H, T, d + 3)
        return torch.cat((query, counts), dim=-1), key, value  # the query is (B, H, T, d + L)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return super().weights(query[..., : self.d], key) * self.counts(query, key.shape[2])  # (B, H, T, S)

    def counts(self, query: Tensor, S: int) -> Tensor:
        """How much the level of each key counts for query (B, H, T, d + L): (B, H, T, S)."""
        level = levels(S, self.levels, query.device)[S - query.shape[2] :]  # (T, S)
        return query[..., self.d :].gather(3, level.expand(*query.shape[:2], -1, -1))  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        steps = super().stages(query, key)
        weights = steps.pop("weights")  # (B, H, T, S)
        return {**steps, "level counts": self.counts(query, key.shape[2]), "weights": weights}

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        t, level = key[0, 0, -1:].long(), torch.arange(self.levels, device=key.device)[:, None, None]  # (1,), (L, 1, 1)
        up = reached(t & -t, self.levels)  # (1,): as in binary counting, the levels below the lowest 1 of t are full
        key, log_decay = self.ungated(key)  # (B, H, d), (B, H, 1)
        state = state * log_decay.exp()[..., None, None]  # (B, H, L, d, e)
        full = state.masked_fill(level > up, 0.0).sum(dim=2, keepdim=True)  # (B, H, 1, d, e)
        carried = torch.where(level == up, full, 0.0)  # (B, H, L, d, e): their sum moves up, and they are empty
        state = torch.where(level > up, state, carried)  # (B, H, L, d, e)
        state = torch.cat((state[:, :, :1] + outer(key, value)[:, :, None], state[:, :, 1:]), dim=2)  # (B, H, L, d, e)
        counts = query[..., self.d :, None, None]  # (B, H, L, 1, 1)
        return state, read((counts * state).sum(dim=2), query[..., : self.d])  # (B, H, e)

    def empty(self, key: Tensor, value: Tensor) -> Tensor:
        return super().empty(key, value)[:, :, None].expand(-1, -1, self.levels, -1, -1)  # (B, H, L, d, e)


def levels(S: int, L: int, device: torch.device) -> Tensor:
    """The level of s for t (S, S): the highest bit in which they differ, from 1; 0 for s = t; at most L - 1."""
    t = torch.arange(S, device=device)  # (S,)
    return reached(t[:, None] ^ t, L)  # (S, S)


def reached(n: Tensor, L: int) -> Tensor:
    """The highest bit of each whole number n (...), from 1; 0 for n = 0; at most L - 1: (...)."""
    return torch.bucketize(n, 1 << torch.arange(L - 1, device=n.device), right=True)  # (...): powers of 2 up to n
