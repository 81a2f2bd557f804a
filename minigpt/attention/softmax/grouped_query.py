"""Grouped queries: several query heads share one head of keys and values ("GQA", arXiv 2305.13245).

New against many heads: `n_kv_head`. The cache shrinks by n_head / n_kv_head. As many key heads as query heads is
multi-head attention; one key head for all is multi-query attention (arXiv 1911.02150).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.config.options import Size
from minigpt.system.errors import Mistake


class GroupedQuery(MultiHead, kind="grouped_query"):
    """`n_head` heads of queries over `n_kv_head` heads of keys and values."""

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
