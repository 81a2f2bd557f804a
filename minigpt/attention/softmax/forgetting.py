"""Forgetting attention (FoX): each token says, for each head, how much of all that came before it still counts.

    score[t, s] = query[t] . key[s] / sqrt(d) + sum over s < j <= t of ln f[j],    f = sigmoid(forget(x))

Paper: "Forgetting Transformer: Softmax Attention with a Forget Gate" (arXiv 2503.02130).
New against multi_head: `scores`. If f is the same for all tokens, a head equals an alibi head with the slope -ln f;
here f depends on the token, so that no position is needed. ln f is stored as one extra channel of each head's key.
Every f starts near n / (n + 1), n the context: at first a whole context is remembered, and training learns to forget.
If f started at one half, only two or three tokens would count at first.

Cost: T^2 D for a text, T D for a written token. Cache: 2 D + H numbers a token. Used in research models.

B batch, H heads, T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Alibi, Shape
from minigpt.attention.softmax.multi_head import MultiHead


def remembering(forgetting: Forgetting, multi_head: MultiHead) -> None:
    """f = 1 for every token."""
    forgetting.forget.weight.zero_()
    forgetting.forget.bias.fill_(1e4)


def at_one_rate(forgetting: Forgetting, multi_head: MultiHead) -> None:
    """For every token, ln f of each head is minus its alibi slope; alibi is the position of the other kind."""
    multi_head.position = Alibi(Alibi.Config(), Shape(), layer=0)
    slopes = 2.0 ** (-8.0 * torch.arange(1, forgetting.n_head + 1, dtype=torch.float64) / forgetting.n_head)  # (H,)
    forgetting.forget.weight.zero_()
    forgetting.forget.bias.copy_(-torch.expm1(slopes).log())  # the sigmoid of which is exp(-slope)


class Forgetting(MultiHead, kind="forgetting"):
    """Multi-head attention to a past that fades; each token computes how much."""

    order_blind = False
    muon: ClassVar[Mapping[str, bool]] = {"forget.weight": False}  # its rows are heads, not features
    edges = (
        Edge("multi_head", "f = 1", prepare=remembering),
        Edge("multi_head", "f = exp(-slope): alibi", prepare=at_one_rate, without=("rotate", "bias")),
    )

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.forget = nn.Linear(model.n_embd, config.n_head)
        nn.init.constant_(self.forget.bias, math.log(model.block_size))

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        log_forget = F.logsigmoid(self.forget(x)).mT[..., None]  # (B, H, T, 1)
        return query, torch.cat((key, log_forget), dim=-1), value  # the key is (B, H, T, d + 1)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key[..., :-1]) + self.faded(query, key)  # (B, H, T, S)

    def faded(self, query: Tensor, key: Tensor) -> Tensor:
        """The sum of ln f between each key (B, H, S, d + 1) and each query (B, H, T, d): (B, H, T, S)."""
        precise = torch.promote_types(key.dtype, torch.float32)  # in bfloat16 a long sum loses its small terms
        log_decay = key[..., -1].cumsum(dim=-1, dtype=precise)  # (B, H, S)
        return log_decay[:, :, -query.shape[2] :, None] - log_decay[:, :, None, :]  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        own = super().scores(query, key[..., :-1])  # (B, H, T, S)
        one = own.new_ones(own.shape[:2])  # (B, H)
        parts = {"own score": own, "x own score": one, "ln of what is kept": self.faded(query, key)}
        return {"kept": key[..., -1].exp(), **parts, "x ln of what is kept": one, **super().stages(query, key)}
