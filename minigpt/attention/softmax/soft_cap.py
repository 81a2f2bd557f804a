"""A soft cap: a score cannot leave (-cap, cap), however long its query and its key are.

    score[t, s] = cap tanh(query[t] . key[s] / sqrt(d) / cap)

The softmax cannot become sharper than exp(2 cap) to 1, and training does not diverge through scores that grow.
Paper: "Gemma 2: Improving Open Language Models at a Practical Size" (arXiv 2408.00118), with a cap of 50; Grok-1
has 30. Gemma 3 has normalised queries and keys (`qk_norm`) in its place.
New against multi_head: `scores`. What a position adds to them comes after the cap.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D numbers a token. Used by Gemma 2, Grok-1.

B batch, H heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.edge import Edge
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.config.options import Positive


def values_as_they_come(mine: SoftCap, theirs: AverageSoftmax) -> None:
    """Values and outputs are x itself."""
    for layer in (mine.value, mine.project):
        nn.init.zeros_(layer.bias)
        nn.init.eye_(layer.weight)


class SoftCap(MultiHead, kind="soft_cap"):
    """Multi-head attention with scores between -cap and cap."""

    edges = (
        Edge("multi_head", "cap -> inf", mine={"cap": 1e6}, error=1e-5),
        Edge("average_softmax", "cap -> 0", mine={"cap": 1e-9, "n_head": 1}, prepare=values_as_they_come, error=1e-6),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        cap: Positive = 50.0
        """What no score exceeds."""

    config: SoftCap.Config

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return self.config.cap * (super().scores(query, key) / self.config.cap).tanh()  # (B, H, T, S)
