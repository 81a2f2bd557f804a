"""The k best of a row: in float32 and float64, every form of the computation chooses the same ones.

Two keys that match equally well get scores that differ by rounding, and the rounding is different with a cache and
without one. So scores within rounding of one another count as equal, and of equal scores the later positions are
chosen. In bfloat16 two forms may choose different keys: its rounding is as large as many true differences, and if these
counted as equal, only the latest positions would be chosen. Kinds that choose keys set `Attention.chooses`.

S key positions; `...` is any number of dimensions before them.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 256  # scores count as equal within so many times eps of the largest score


def best(scores: Tensor, k: int) -> Tensor:
    """Whether each of the scores (..., S) is one of the k best of its row: (..., S). Those at -inf never are."""
    scores = scores.detach().to(torch.promote_types(scores.dtype, torch.float32))  # (..., S)
    largest = scores.masked_fill(scores.isinf(), 0.0).abs().amax(dim=-1, keepdim=True)  # (..., 1)
    near = ROUNDING * torch.finfo(scores.dtype).eps * largest  # (..., 1)
    last = scores.topk(min(k, scores.shape[-1])).values[..., -1:]  # (..., 1): the k-th best
    better = scores > last + near  # (..., S)
    equal = (scores >= last - near) & ~better & (scores > -torch.inf)  # (..., S)
    later = equal.flip(-1).cumsum(dim=-1).flip(-1)  # (..., S): how many equal ones there are from here on
    return better | (equal & (later <= k - better.sum(dim=-1, keepdim=True)))  # (..., S)
