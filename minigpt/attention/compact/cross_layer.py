"""Several layers share one layer's keys and values. Only the first of them makes and keeps any.

    layers 1, s + 1, 2s + 1, ...: q, k, v = W_q x, W_k x, W_v x
    the layers between:           q = W_q x, and k, v of the layer below

"Reducing Transformer Key-Value Cache Size with Cross-Layer Attention" (arXiv 2405.12981).
New against grouped_query: layers share keys and values, where grouped_query shares them between heads; both can be
combined. Keys are rotated before they are shared, so layers that share them must have the same position.
Cost: that of multi_head without the projections of keys and values, O(T^2) in training and O(T) a written token.
Cache: 2 G d / s numbers a token a layer, on average over the layers.
Used in: Hunyuan-Large (s = 2), and Gemma 3n's upper layers.

B batch, H query heads, G key heads, T positions, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from minigpt.attention.cache import KVCache, Past, Shared
from minigpt.attention.edge import Edge
from minigpt.attention.position import Position, Shape
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Count, to_python
from minigpt.system.counting import layer_name
from minigpt.system.errors import UserError


class CrossLayer(GroupedQuery, kind="cross_layer"):
    """Layer n has keys and values of its own if n is a multiple of `share`."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "share = 1", own={"share": 1}),
        Edge("grouped_query", "share = 1", own={"share": 1, "n_kv_head": 2}, other={"n_kv_head": 2}),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        share: Count = 2
        """How many layers s share keys and values: one that makes them, and those above it."""

    config: CrossLayer.Config

    def __init__(self, config: CrossLayer.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.layer, self.reads_below = layer, layer % config.share > 0
        if self.reads_below:
            del self.key, self.value, self.key_norm

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        if not self.reads_below:
            return super().qkv(x, past)
        query = self.query_norm(split_heads(self.query(x), self.n_head))  # (B, H, T, d)
        return self.position.rotate(query, past.length), *self.of_the_layer_below(query, past)

    def of_the_layer_below(self, query: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, T, d) for the new positions. Raises UserError where they do not fit the queries."""
        d, below = query.shape[3], past.below or Past()
        seen = below.seen
        if seen is None:
            raise UserError(
                f"cross_layer in {layer_name(self.layer)} reads keys and values of the layer below, which has none"
            )
        key, value = seen  # (B, G, T, d), (B, G, T, e): e is 0 where a cache holds a latent
        if key.shape[3] != d or value.shape[3] == 0 or any(self.n_head % heads.shape[1] for heads in seen):
            shapes = " and ".join(str(tuple(heads.shape)) for heads in seen)
            raise UserError(
                f"cross_layer in {layer_name(self.layer)} has {self.n_head} query heads of width {d}, and the layer "
                f"below keys and values {shapes}, of other heads; put a kind with heads of the same width below it"
            )
        self.check_rotation(below.rotated_by)
        return seen

    def check_rotation(self, below: object) -> None:
        """Raises UserError where the layer below rotates its keys by another position than this layer its queries."""
        of_queries, of_keys = (rotation(position) for position in (self.position, below))
        if of_queries != of_keys:
            raise UserError(
                f"cross_layer in {layer_name(self.layer)} has {in_words(of_queries, of_keys)} for its queries, and the "
                f"layer below {in_words(of_keys, of_queries)} for its keys; give both layers the same `position`"
            )

    def make_cache(self, length: int) -> Past:
        """Only the first of the layers keeps any; each layer of a subclass that makes others of them keeps its own."""
        return Shared() if self.reads_below and type(self).qkv is CrossLayer.qkv else KVCache(length)


def rotation(position: object) -> Position.Config | None:
    """The options of a position that rotates queries and keys; None for one that does not."""
    return position.config if isinstance(position, Position) and position.acts_by("rotate") else None


def in_words(rotation: Position.Config | None, another: Position.Config | None) -> str:
    """A rotation in words: its kind, and the options in which it differs from another of that kind."""
    if rotation is None:
        return "no rotation"
    other = to_python(another) if type(another) is type(rotation) else {}
    values = to_python(rotation).items()
    differ = [f"{name} {value}" for name, value in values if name in other and other[name] != value]
    return f"{rotation.component.kind} of {', '.join(differ)}" if differ else rotation.component.kind
