"""A plugin as it is written for format 4, with every part that one may bring. A later version takes it as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt import Attention, shortcut
from minigpt.attention import GroupedQuery, MultiHead, Past, Position, Shape, State, distance
from minigpt.attention.edge import Edge
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Count, Positive
from minigpt.model import Block, ModelConfig, Norm
from minigpt.model.mlp import SwiGLU
from minigpt.text.tokenizer import Tokenizer


class Near(GroupedQuery, kind="near_4"):
    """The last `window` positions, by scores with a learned sharpness, through a gate."""

    order_blind = False
    muon: ClassVar[dict[str, bool]] = {"gate.weight": False}
    edges: ClassVar[tuple[Edge, ...]] = (Edge("near_4", "itself", mine={"window": 4}, theirs={"window": 4}),)

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        window: Count = 4
        """How many positions a query sees, its own included."""

        def mistakes_within(self, model: Shape) -> Iterator[tuple[str, str]]:
            yield from super().mistakes_within(model)
            if self.window > model.block_size:
                yield "window", f"{self.window} positions are more than block_size"

    config: Near.Config

    def __init__(self, config: Near.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Linear(model.n_embd, model.n_embd)
        nn.init.constant_(self.gate.bias, 2.0)
        self.sharpness = nn.Parameter(torch.ones(()))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key) * self.sharpness.to(query.dtype)  # (B, H, T, S)

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) & (distance(T, S, device) < self.config.window)  # (T, S)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) * self.gate(x).sigmoid()  # (B, T, D)


class Running(MultiHead, kind="running_4"):
    """Positive products of queries and keys, which are written from a state of fixed size."""

    unsuited: ClassVar[dict[str, str]] = {"rotate": "features would not stay positive", "bias": "it has no scores"}

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (split_heads(layer(x), self.n_head) for layer in (self.query, self.key, self.value))
        return F.elu(query) + 1.001, F.elu(key) + 1.001, value  # (B, H, T, d) each

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        past = self.mask(query.shape[2], key.shape[2], query.device)  # (T, S)
        products = (query @ key.mT).masked_fill(~past, 0.0)  # (B, H, T, S)
        return products / products.sum(dim=-1, keepdim=True)  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        return {"weights": self.weights(query, key)}

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
        return State()


class Fading(Position, kind="fading_4"):
    """Scores fall by `rate` with each position."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Position.Config):
        rate: Positive = 0.1
        """How much."""

    config: Fading.Config

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        far = distance(query.shape[2], key.shape[2], query.device).to(query.dtype)  # (T, S)
        return (-self.config.rate * far).expand(query.shape[1], -1, -1)  # (H, T, S)


class Tanh(Norm, kind="tanh_4"):
    """A tanh in place of a norm (arXiv 2503.10622)."""

    def __init__(self, config: Norm.Config, model: Shape):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(model.n_embd))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(x)  # (B, T, D)


class Sigmoid(SwiGLU, kind="sigmoid_4"):
    """A gated linear unit (arXiv 1612.08083)."""

    def activation(self, hidden: Tensor) -> Tensor:
        return hidden.sigmoid()  # (B, T, width)


class Shares(Block, kind="shares_4"):
    """What a part adds is multiplied by a learned number (arXiv 2003.04887)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.shares = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.shares[0] * self.dropout(self.attention(self.attention_norm(x), past))  # (B, T, D)
        return x + self.shares[1] * self.dropout(self.mlp(self.mlp_norm(x)))  # (B, T, D)


class Letters(Tokenizer, kind="letters_4"):
    """An id is a letter of the texts."""

    def __init__(self, letters: str):
        self.letters, self.vocab_size = letters, len(letters)

    @classmethod
    def fit(cls, config: Any, texts: Iterable[str]) -> Letters:
        return cls("".join(sorted(set().union(*texts))))

    def encode(self, text: str) -> Any:
        return np.array([self.letters.index(letter) for letter in text], dtype=np.int64)

    def token_bytes(self, id: int) -> bytes:
        return self.letters[id].encode("utf-8")
