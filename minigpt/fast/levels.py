"""Log-linear attention in chunks: a matrix within each chunk, and for each level the states of the chunks before it.

The length of a chunk is a power of two, so the level of two positions in different chunks depends on the chunks alone,
and the levels within one chunk are the lowest: O(T log T) instead of O(T^2).

B batch, H heads, T query positions, S key positions, N chunks of c positions, d width of a query and a key,
e width of a value, L levels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.linear.log_linear import LogLinear, levels
from minigpt.fast import chunks
from minigpt.fast.guard import faster
from minigpt.fast.recurrence import CHUNKS, HELPERS, needs_weights


@faster(LogLinear, "mix", CHUNKS, supports=HELPERS)
def mix(self: LogLinear, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the tokens of a whole text read: (B, H, T, e)."""
    if needs_weights(self, query, key):
        return Attention.mix(self, query, key, value)
    T, c = query.shape[2], 1 << (min(chunks.SIZE, query.shape[2]).bit_length() - 1)
    with torch.autocast(query.device.type, enabled=False):
        key, log_decay = self.ungated(key)  # (B, H, T, d), (B, H, T, 1)
        parts = query[..., : self.d], query[..., self.d :], key, value.to(key.dtype), log_decay
        mixed = in_levels(*(chunks.cut(part, c) for part in parts))  # (B, H, N, c, e)
    return mixed.flatten(2, 3)[:, :, :T].to(value.dtype)  # (B, H, T, e)


def in_levels(query: Tensor, counts: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Tensor:
    """query and key (B, H, N, c, d), counts (B, H, N, c, L), value (B, H, N, c, e), log_decay (B, H, N, c, 1)
    -> what is read (B, H, N, c, e).
    """
    (N, c), L = query.shape[2:4], counts.shape[-1]
    total = log_decay.cumsum(dim=3)  # (B, H, N, c, 1)
    level = levels(c, L, key.device).expand(*query.shape[:3], -1, -1)  # (B, H, N, c, c)
    mixed = (chunks.overlap(query, key, total) * counts.gather(4, level)) @ value  # (B, H, N, c, e)
    reads = query * total.exp()  # (B, H, N, c, d)
    added = (key * (total[..., -1:, :] - total).exp()).mT @ value  # (B, H, N, d, e): what a chunk leaves at its end
    since = F.pad(total[..., -1, 0].cumsum(dim=2), (1, 0))  # (B, H, N + 1): at the start of each chunk
    between = chunks.fading(since)[..., :-1, 1:]  # (B, H, N, N): from the end of one to the start of another
    across = (levels(N, 64, key.device) + c.bit_length() - 1).clamp(max=L - 1)  # (N, N): the levels of two chunks
    for number in sorted({min(bits + c.bit_length() - 1, L - 1) for bits in range(1, (N - 1).bit_length() + 1)}):
        states = (between * (across == number)) @ added.flatten(3)  # (B, H, N, d e)
        mixed = mixed + counts[..., number, None] * (reads @ states.view_as(added))  # (B, H, N, c, e)
    return mixed
