"""Grouped queries: several query heads share one head of keys and values ("GQA", arXiv 2305.13245).

    head_h = softmax(q_h k_g' / sqrt(d)) v_g,    g = floor(h G / H)

New against multi_head: `n_kv_head`. The cache is n_head / n_kv_head times smaller. With as many key heads as query
heads it is multi-head attention; with one key head it is multi-query attention (arXiv 1911.02150).
Cost: T^2 D for a text and T D for a written token, with smaller projections to keys and values. Cache: 2 G d numbers a
token. Used by Llama 2 (70B) and 3, Mistral, Qwen 2 and 3, Gemma.

H query heads, G key heads, T positions, D model width, d width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.config.options import Size
from minigpt.system.errors import Mistake


def repeat_each_head_of_keys(grouped_query: GroupedQuery, multi_head: MultiHead) -> None:
    """Each head of the other kind gets a copy of the keys and values that it shares in this one."""
    H, G = grouped_query.n_head, grouped_query.n_kv_head
    for shared, layer in ((grouped_query.key, multi_head.key), (grouped_query.value, multi_head.value)):
        for name, weight in shared.named_parameters():  # (G d, D) or (G d)
            heads = weight.unflatten(0, (G, -1)).repeat_interleave(H // G, dim=0)  # (H, d, D) or (H, d)
            layer.get_parameter(name).copy_(heads.flatten(0, 1))


class GroupedQuery(MultiHead, kind="grouped_query"):
    """`n_head` heads of queries over `n_kv_head` heads of keys and values."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "n_kv_head = n_head"),
        Edge("multi_head", "the same keys in several heads", {"n_kv_head": 2}, prepare=repeat_each_head_of_keys),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        n_kv_head: Size | None = None
        """How many heads of keys and values there are; by default as many as `n_head`, which is multi-head."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from super().mistakes_within(model)
            if self.n_kv_head is not None and self.n_head % self.n_kv_head:
                yield "n_kv_head", f"{self.n_head} query heads cannot share {self.n_kv_head} key heads evenly"

    config: GroupedQuery.Config

    def __init__(self, config: GroupedQuery.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer, config.n_kv_head)
