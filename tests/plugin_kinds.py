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


class Forgetting(MultiHead, kind="plugin_forgetting"):
    """Each token says how much of the past to forget (arXiv 2503.02130). Its gate rides as one more key channel."""

    order_blind = False

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.forget = nn.Linear(model.n_embd, config.n_head)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        kept = F.logsigmoid(self.forget(x)).mT[..., None]  # (B, H, T, 1), added after the rotation
        return query, torch.cat((key, kept), dim=-1), value

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        precise = torch.promote_types(key.dtype, torch.float32)  # a sum of many gates, in bfloat16, would stand still
        T, kept = query.shape[2], key[..., -1].cumsum(dim=-1, dtype=precise)  # (B, H, S)
        faded = kept[:, :, -T:, None] - kept[:, :, None, :]  # (B, H, T, S)
        return super().scores(query, key[..., :-1]) + faded  # (B, H, T, S)


class Differential(MultiHead, kind="plugin_differential"):
    """One softmax minus another cancels what both attend to alike (arXiv 2410.05258)."""

    rows_sum_to_one = weights_nonnegative = False

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.query, self.key = (nn.Linear(model.n_embd, 2 * model.n_embd) for _ in range(2))
        self.share_taken = nn.Parameter(torch.full((config.n_head, 1, 1), 0.4))

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        H = self.n_head
        query, key = (split_heads(layer(x), 2 * H) for layer in (self.query, self.key))  # (B, 2H, T, d) each
        value = split_heads(self.value(x), H)  # (B, H, T, e)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        ours, theirs = super().weights(query, key).chunk(2, dim=1)  # (B, H, T, S) each
        return ours - self.share_taken * theirs  # (B, H, T, S)


class Cosine(MultiHead, kind="plugin_cosine"):
    """Compares directions and not lengths (arXiv 2010.04245). Scores of its own: the fast kernel must go."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return 4.0 * F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT  # (B, H, T, S)


class Latent(MultiHead, kind="plugin_latent"):
    """All heads read one small latent a token: the cache keeps that, and a rotated key channel (arXiv 2405.04434)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        latent: Count = 6
        """The width r of what is kept of a token."""
        rotated: Count = 2
        """The width of the key channels that turn with the position."""

    config: Latent.Config

    def __init__(self, config: Latent.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D, H, r = model.n_embd, config.n_head, config.latent
        self.query, self.turned = nn.Linear(D, H * r), nn.Linear(D, (H + 1) * config.rotated)
        self.key, self.value = nn.Linear(D, r), nn.Linear(H * r, H * (D // H))

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        H, latent = self.n_head, self.key(x)[:, None]  # (B, 1, T, r)
        turned = self.position.rotate(split_heads(self.turned(x), H + 1), past.length)  # (B, H + 1, T, rotated)
        query = torch.cat((split_heads(self.query(x), H), turned[:, :H]), dim=-1)  # (B, H, T, r + rotated)
        return query, torch.cat((latent, turned[:, H:]), dim=-1), latent  # the key is (B, 1, T, r + rotated)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(self.value(mixed.transpose(1, 2).flatten(2)))  # (B, T, D)


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
