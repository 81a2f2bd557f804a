"""Sparsemax: the nearest distribution to the scores, most of whose weights are exactly zero.

    weights[t] = the point p of the simplex (p >= 0, sum p = 1) that is nearest to score[t]
               = max(score[t] - tau, 0), tau such that the row sums to one

Paper: "From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label Classification" (arXiv 1602.02068). tau
comes from the k largest scores z1 >= z2 >= ..., where k is the last for which 1 + k zk > z1 + ... + zk:
tau = (z1 + ... + zk - 1) / k.
New against multi_head: `normalise`. A softmax weight is never zero; here every score 1 below the best has weight zero.

Cost: T^2 D for a text and a sort of T scores a row, T D for a written token. Cache: 2 D numbers a token. Used in
translation and in labelling, not by large language models.

B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.edge import Edge
from minigpt.attention.softmax.multi_head import MultiHead


def nothing_asked(sparsemax: Sparsemax, average_softmax: AverageSoftmax) -> None:
    """Queries of zero, so that all scores are equal; values and outputs are x itself."""
    for layer in (sparsemax.query, sparsemax.value, sparsemax.project):
        nn.init.zeros_(layer.bias)
        nn.init.eye_(layer.weight)
    sparsemax.query.weight.zero_()


def sharpened(sparsemax: Sparsemax, multi_head: MultiHead) -> None:
    """Long queries, so that the best key is far above the next."""
    for query in (sparsemax.query, multi_head.query):
        query.weight.mul_(3e4)
        query.bias.mul_(3e4)


class Sparsemax(MultiHead, kind="sparsemax"):
    """Multi-head attention to few keys: a key whose score is one or more below the best has no weight."""

    edges = (
        Edge("average_softmax", "equal scores", own={"n_head": 1}, prepare=nothing_asked, without=("bias",)),
        Edge("multi_head", "scores -> inf: the best key alone", prepare=sharpened, error=1e-4),
    )

    def normalise(self, scores: Tensor) -> Tensor:
        dtype, scores = scores.dtype, scores.to(torch.promote_types(scores.dtype, torch.float32))  # (B, H, T, S)
        scores = scores - scores.amax(dim=-1, keepdim=True).detach()  # (B, H, T, S): the same tau, from small numbers
        ordered = scores.sort(dim=-1, descending=True).values  # (B, H, T, S)
        sums, k = ordered.cumsum(dim=-1), torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        count = (1 + k * ordered > sums).sum(dim=-1, keepdim=True)  # (B, H, T, 1): how many keys have a weight
        tau = (sums.gather(-1, count - 1) - 1) / count  # (B, H, T, 1)
        return (scores - tau).clamp(min=0).to(dtype)  # (B, H, T, S)
