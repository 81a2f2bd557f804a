"""Kinds and positions written as a user's plugin would be: the contract needs no change for them.

They stand in `PLUGIN_KINDS` and `PLUGIN_POSITIONS`. The end of the file takes them out of the registries again, so
that the other chapters see only what ships. The contract suite runs over both.

B batch, H query heads, G key heads, T query positions, S key positions, D model width, d and e widths of heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention import Attention, KVCache, Past, Position, Shape, Shared, State, distance
from minigpt.attention.softmax.multi_head import MultiHead, split_heads
from minigpt.config.options import Count
from minigpt.fast import shortcut


class Window(MultiHead, kind="plugin_window"):
    """Sees the last `window` positions only: one line, and the fast kernel stays (Mistral, arXiv 2310.06825)."""

    order_blind = False

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        window: Count = 3
        """How many positions back a query sees, itself included."""

    config: Window.Config

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) & (distance(T, S, device) < self.config.window)  # (T, S)


class Linear(MultiHead, kind="plugin_linear"):
    """Scores are products of positive features, so the sums over the past fit into a state (arXiv 2006.16236).

    Nothing is rotated: the features would not stay positive.
    """

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (split_heads(layer(x), self.n_head) for layer in (self.query, self.key, self.value))
        return F.elu(query) + 1.001, F.elu(key) + 1.001, value  # (B, H, T, d) twice, (B, H, T, e)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        products = query @ key.mT  # (B, H, T, S)
        products = products * self.position.bias(query, key).exp().to(query.dtype)
        past = self.mask(query.shape[2], key.shape[2], query.device)  # (T, S)
        products = products.masked_fill(~past, 0.0)
        return products / products.sum(dim=-1, keepdim=True)  # (B, H, T, S)

    @shortcut()
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        if not isinstance(past, State):
            return Attention.recall(self, query, key, value, past)
        memory = (key[..., :, None] * value[..., None, :]).cumsum(dim=2)  # (B, H, T, d, e)
        total = key.cumsum(dim=2)  # (B, H, T, d)
        if past.tensors:
            memory, total = memory + past.tensors[0], total + past.tensors[1]
        past.replace((memory[:, :, -1:], total[:, :, -1:]), key.shape[2])
        return (query[..., None, :] @ memory).squeeze(-2) / (query * total).sum(dim=-1, keepdim=True)  # (B, H, T, e)

    @shortcut()
    def make_cache(self, length: int) -> Past:
        return State() if self.config.causal and not self.position.acts_by("bias") else KVCache(length)


class Gated(MultiHead, kind="plugin_gated"):
    """The input decides how much of the output passes (arXiv 2505.06708)."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Linear(model.n_embd, model.n_embd)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) * self.gate(x).sigmoid()  # (B, T, D)


class Sharing(MultiHead, kind="plugin_sharing"):
    """Every layer but the first reads the keys and values of the layer below (arXiv 2405.12981)."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.layer = layer

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        if self.layer:
            assert past.below is not None and past.below.seen is not None
            key, value = past.below.seen  # (B, H, T, d), (B, H, T, e)
        return query, key, value

    def make_cache(self, length: int) -> Past:
        return Shared() if self.layer else KVCache(length)


class LearnedBias(Position, kind="plugin_learned_bias"):
    """A learned number for each distance, in every layer its own, added to the scores (T5, arXiv 1910.10683)."""

    def __init__(self, config: Position.Config, model: Shape, layer: int | None = None):
        super().__init__(config, model, layer)
        if layer is not None:
            self.table = nn.Embedding(model.block_size, 1)

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        H, T, S = query.shape[1], query.shape[2], key.shape[2]
        behind = distance(T, S, query.device).clamp(min=0, max=len(self.table.weight) - 1)  # (T, S)
        return self.table.weight[behind, 0].expand(H, -1, -1)  # (H, T, S)


PLUGIN_KINDS: dict[str, type[Attention]] = {
    k: Attention.kinds.pop(k) for k in [*Attention.kinds] if k.startswith("plugin_")
}
PLUGIN_POSITIONS: dict[str, type[Position]] = {
    k: Position.kinds.pop(k) for k in [*Position.kinds] if k.startswith("plugin_")
}
