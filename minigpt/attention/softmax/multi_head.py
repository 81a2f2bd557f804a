"""Many heads: several attentions side by side, each on its share of the features (arXiv 1706.03762).

New against the single head: `n_head`. A head can follow one thing while another follows the next. One head is the
single head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minigpt.attention.position import Shape
from minigpt.attention.softmax.single_head import SingleHead
from minigpt.config.options import Size
from minigpt.config.strict_yaml import Mistake


class MultiHead(SingleHead, kind="multi_head"):
    """The same layers, cut into `n_head` heads."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SingleHead.Config):
        n_head: Size = 4
        """How many heads look at once."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from super().mistakes_within(model)
            if self.head_dim is None and model.n_embd % self.n_head:
                yield "n_head", f"{self.n_head} heads do not divide n_embd, {model.n_embd}; set head_dim or change one"

    config: MultiHead.Config

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0, n_kv_head: int | None = None):
        super().__init__(config, model, layer, config.n_head, n_kv_head)
