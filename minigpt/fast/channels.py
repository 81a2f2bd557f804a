"""Kinds whose extra scores fit into one more channel of queries and keys, so that the fused kernel computes them.

    sink          a key of zeros before the first token, whose channel is the sink; its value is zero
    forgetting    minus the sum of ln f up to a key; the sum up to the query is equal in a row: the softmax ignores it
    differential  two softmaxes in two kernels

B batch, H heads, T query positions, S key positions, d width of a query, e width of a value.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.position import Alibi
from minigpt.attention.softmax.differential import Differential
from minigpt.attention.softmax.forgetting import Forgetting
from minigpt.attention.softmax.sink import Sink
from minigpt.fast import kernels
from minigpt.fast.guard import faster


def with_channel(self: Sink | Forgetting, query: Tensor, key: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (B, H, T, d + 1) and keys (B, H, S, d + 1) with the scores of query and key, plus added (B, H, S, 1)."""
    like = query.new_empty(1).expand(*query.shape[:3], query.shape[3] + 1)  # (B, H, T, d + 1)
    wider = self.scale(like)  # the scale for the wider queries and keys
    ones = query.new_full((*query.shape[:3], 1), 1 / wider)  # (B, H, T, 1)
    return torch.cat((query * (self.scale(query) / wider), ones), dim=-1), torch.cat((key, added), dim=-1)


def is_rough(query: Tensor) -> bool:
    """Whether the dtype is too coarse for a channel: in bfloat16 a long sum of gates loses its small terms."""
    return torch.finfo(query.dtype).bits < 32


@faster(Sink, "mix", "fused attention", supports=("scale",))
def mix_with_sink(self: Sink, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The sink is the key at position 0; all other positions move up by one: (B, H, T, e)."""
    B, H, T, _ = query.shape
    square = T in (1, key.shape[2]) and self.config.causal and not kernels.has_bias(self)
    if not square or is_rough(query):
        return Attention.mix(self, query, key, value)
    sink = self.sink.to(query.dtype)[:, None, None].expand(B, H, 1, 1)  # (B, H, 1, 1)
    query, key = with_channel(self, query, key, key.new_zeros(*key.shape[:3], 1))
    key = torch.cat((F.pad(sink, (key.shape[3] - 1, 0)), key), dim=2)  # (B, H, S + 1, d + 1)
    query = F.pad(query, (0, 0, 1, 0)) if T > 1 else query  # (B, H, T + 1, d + 1): the kernel's mask is a square
    mixed = kernels.fused(self, query, key, F.pad(value, (0, 0, 1, 0)), None)
    return mixed[:, :, -T:]  # (B, H, T, e)


@faster(Forgetting, "mix", "fused attention", supports=("scale", "mask", "bias"))
def mix_forgetting(self: Forgetting, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The scores are score[t, s] - kept[s]: + kept[t] is left out, since it is equal for all s: (B, H, T, e)."""
    reads_queries = kernels.has_bias(self) and not isinstance(self.position, Alibi)  # with one channel too many
    if is_rough(query) or reads_queries:
        return Attention.mix(self, query, key, value)
    log_decay = key[..., -1:].cumsum(dim=2)  # (B, H, S, 1)
    return kernels.mix(self, *with_channel(self, query, key[..., :-1], log_decay[:, :, -1:] - log_decay), value)


@faster(Differential, "mix", "fused attention", supports=("scale", "mask", "bias"))
def mix_differential(self: Differential, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each half of the queries and keys mixes all values: (B, H, T, 2d)."""
    if self.training and self.dropout:  # each kernel would drop its own weights, not the difference
        return Attention.mix(self, query, key, value)
    first, second = (kernels.mix(self, q, k, value) for q, k in zip(query.chunk(2, dim=1), key.chunk(2, dim=1)))
    return first - self.taken().to(first.dtype) * second
