"""The contract of attention: what every kind shares, and where it may differ.

Attention is a weighted mean of values. The kinds differ in how the weights are computed, so there is one `forward`,
and a kind defines only what is new: usually `weights`, or a part of it.

    class Mine(MultiHead, kind="mine"):              # one file in a family's folder, or --plugin mine.py
        def scores(self, query, key):
            return super().scores(query, key).tanh()

B batch, H query heads, G key heads (H is a multiple of G), T query positions, S key positions, D model width,
d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.cache import KVCache, Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import NoPosition, Position, Shape, distance
from minigpt.config.options import Component
from minigpt.system.errors import Mistake


class Attention(nn.Module, Component):
    """The base of all kinds. The contract suite tests the first four properties where a kind declares them.

    Weights that a kind sets in its constructor keep their values: `nn.init.constant_(self.forget.bias, 4)`,
    `weight.data.zero_()`, or an `nn.Parameter` of its own. A linear layer or an embedding that it leaves as torch made
    it is initialised as in GPT-2 (`model/initialise.py`). Muon updates the weights of its linear layers, except where
    `muon` says otherwise, and AdamW updates the rest.

    Before the first step every model is checked for causality, and a user's own kind is also tested for most of the
    properties that the contract suite tests on the built-in kinds (`training/before_training.py`).
    """

    rows_sum_to_one: ClassVar[bool] = True
    weights_nonnegative: ClassVar[bool] = True
    order_blind: ClassVar[bool] = True  # the order of the past does not change the last row (no position)
    same_in_training: ClassVar[bool] = True  # without dropout it computes the same in training as in evaluation
    chooses: ClassVar[bool] = False  # it selects some of the keys; rounding can change which ones
    unsuited: ClassVar[Mapping[str, str]] = {}  # {"rotate" or "bias": why it uses no position of this sort}
    edges: ClassVar[tuple[Edge, ...]] = ()  # where it equals another kind, or comes near it
    muon: ClassVar[Mapping[str, bool]] = {}  # {parameter: whether Muon updates it}: the exceptions

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        """The options of every kind."""

        position: Position.Config | None = None
        """How this attention is told where a token is: none, rotary or alibi; by default the position of the model."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.position is not None and self.position.component.acts_by("embed"):
                inside = [kind for kind, position in Position.kinds.items() if not position.acts_by("embed")]
                added = f"{self.position.component.kind} is added to the embeddings, once for all layers"
                yield "position", f"{added}: set it as model.position, or choose one of {', '.join(inside)}"

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            """Checks against the rest of the model: yields (field, what is wrong)."""
            yield from ()

    def __init__(self, config: Attention.Config, model: Shape, layer: int = 0):
        super().__init__()
        self.config = config
        self.dropout = model.dropout
        own = config.position or model.position
        position: Position = own.component(own, model, layer)
        self.position = NoPosition(NoPosition.Config(), model) if self.leaves_out(own.component) else position

    def leaves_out(self, position: type[Position]) -> str:
        """Why this kind does not use a position; "" if it does."""
        return "; ".join(why for method, why in self.unsuited.items() if position.acts_by(method))

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, D) -> query (B, H, T, d), key (B, G, T, d), value (B, G, T, e): here x itself, as one head.

        `past.length` is the position of x[:, 0]. Later tokens see a token only through its key and value.
        """
        value = x.unsqueeze(1)  # (B, 1, T, D)
        query = self.position.rotate(value, past.length)  # (B, 1, T, D)
        return query, query, value

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The attention weights (B, H, T, S). Query t is at position S - T + t. These are plotted and tested."""
        raise TypeError(f"{type(self).__name__} does not say where its weights come from: define weights(query, key)")

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        """The steps from queries and keys to the weights, for display: by name, in order, the weights last.

        A step has one number for each pair, (B, H, T, S), or one for each token, such as a gate: (B, H, S). Of a step
        that is a sum of maps, these come before it as steps of their own, each with its factor, (B, H), as "x NAME".
        """
        return {"weights": self.weights(query, key)}  # (B, H, T, S)

    def head_note(self, head: int) -> str:
        """What a head of the weights is, for display, where its number does not say it, such as a view of a head."""
        return ""

    def head_gates(self, x: Tensor) -> Tensor | None:
        """What `output` multiplies the output of each head by, for x (B, T, D): (B, H, T); None: nothing like that."""
        return None

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The weighted mean of the values: (B, H, T, e)."""
        weights = F.dropout(self.weights(query, key), self.dropout, self.training)  # (B, H, T, S)
        return weights.to(value.dtype) @ repeat_kv(value, weights.shape[1])  # (B, H, T, e)

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        """`mix` while decoding: the new keys and values are appended to those of the past: (B, H, T, e)."""
        return self.mix(query, *past.append(key, value))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        """(B, H, T, e) -> (B, T, D): concatenate the heads. x (B, T, D) is the input of `qkv`, for gates."""
        return mixed.transpose(1, 2).flatten(2)  # (B, T, H e)

    def extra_loss(self) -> Tensor | None:
        """The kind's own loss in the last training pass, as a mean over its positions; None if it has no own loss.

        Training adds it to the next-token loss, and shows the next-token loss only. It is called once for each pass:
        do not keep a reference to the loss.
        """
        return None

    def make_cache(self, length: int) -> Past:
        """An empty cache for decoding up to `length` positions."""
        return KVCache(length)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        """x (B, T, D) -> (B, T, D). With a cache, x continues the positions that it contains."""
        past = Past() if past is None else past
        query, key, value = self.qkv(x, past)
        past.seen, past.rotated_by = (key, value), self.position  # for a layer above that shares them
        if past.keeps:
            past.expect(batch=x.shape[0])
            mixed = self.recall(query, key, value, past)  # (B, H, T, e)
        else:
            mixed = self.mix(query, key, value)  # (B, H, T, e)
        return self.output(mixed, x)


def repeat_kv(x: Tensor, H: int) -> Tensor:
    """Repeat each of the G heads of keys or values x (B, G, S, d) for the query heads that share it: (B, H, S, d)."""
    return x.repeat_interleave(H // x.shape[1], dim=1)


class SoftmaxAttention(Attention):
    """Weights are the softmax of scores. A kind overrides `scale`, `scores`, `bias`, `mask` or `normalise`."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Attention.Config):
        causal: bool = True
        """False lets every position see the future: for lessons; training refuses it unless --allow-leak is given."""

    config: SoftmaxAttention.Config

    def scale(self, query: Tensor) -> float:
        """What the scores are multiplied by: 1/sqrt(d) keeps their variance at one (arXiv 1706.03762)."""
        return query.shape[-1] ** -0.5

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """How well query (B, H, T, d) and key (B, G, S, d) match: (B, H, T, S)."""
        return query @ repeat_kv(key, query.shape[1]).mT * self.scale(query)

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """What the position adds to the scores of query (B, H, T, d) and key (B, G, S, d): (H, T, S)."""
        return self.position.bias(query, key)

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        """The mask (T, S): true where query t may see key s. Made from `distance`."""
        return distance(T, S, device) >= (0 if self.config.causal else -S)

    def normalise(self, scores: Tensor) -> Tensor:
        """Scores (B, H, T, S), -inf where the mask is false, to weights."""
        return scores.softmax(dim=-1)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        scores = self.scores(query, key) + self.bias(query, key)  # (B, H, T, S)
        mask = self.mask(query.shape[2], key.shape[2], query.device)  # (T, S)
        return self.normalise(scores.masked_fill(~mask, -torch.inf))  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        scores = self.scores(query, key)  # (B, H, T, S)
        biased = scores + self.bias(query, key)  # (B, H, T, S)
        masked = biased.masked_fill(~self.mask(query.shape[2], key.shape[2], query.device), -torch.inf)  # (B, H, T, S)
        return {"scores": scores, "with bias": biased, "masked": masked, **super().stages(query, key)}
