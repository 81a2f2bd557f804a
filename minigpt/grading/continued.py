"""Checks a kind for minigpt with its cache: a text in chunks must give the same outputs as the text at once.

B batch, H heads, T positions of a chunk, S all positions so far, D model width, d width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.attention import Attention, Past
from minigpt.grading.probes import numbers
from minigpt.grading.report import Report

CHUNKS = (3, 1, 2, 1)
WEIGHTS = (
    "with fewer queries than keys, as when a text is continued, the weights are not the last rows of the whole matrix",
    "the T queries are the last T of the S positions: query t stands at position S - T + t, as in tril(S - T)",
)
CACHE = (
    "with a cache, in chunks of {chunks} tokens, it gives other numbers than at once, from position {position} on",
    "the cache must return all keys and values so far, the oldest first, and count them in its length",
)
RECALL = (CACHE[0], "what recall gives for the new positions must be what weights @ value gives for the last rows")


def check_continued(thing: Attention, report: Report) -> None:
    """Check a kind that is right for a whole text in chunks with its cache; the report becomes "wrong" if they differ.

    Raises what the learner's code raises.
    """
    thing.double().eval()
    x = numbers(2, sum(CHUNKS), width(thing), seed=3)  # (B, S, D)
    with torch.no_grad():
        whole, past = thing(x), thing.make_cache(sum(CHUNKS))  # (B, S, D)
        pieces = [thing(chunk, past) for chunk in x.split(CHUNKS, dim=1)]  # (B, T, D) each
        different = (torch.cat(pieces, dim=1) - whole).abs().amax(dim=(0, 2)) > 1e-9  # (S,)
        if not different.any():
            report.unchecked = [entry for entry in report.unchecked if entry != "the cache"]
            return
        cause = WEIGHTS if misplaced(thing, x) else RECALL if type(thing).recall is not Attention.recall else CACHE
    chunks, position = "+".join(map(str, CHUNKS)), int(different.nonzero()[0])
    report.verdict = "wrong"
    report.names, report.fixes = [cause[0].format(chunks=chunks, position=position)], [cause[1]]


def misplaced(thing: Attention, x: Tensor) -> bool:
    """Whether the weights of the last two queries of x (B, S, D) are not the last two rows of all weights."""
    query, key, _ = thing.qkv(x, Past())  # (B, H, S, d) each
    rows = thing.weights(query, key)[:, :, -2:]  # (B, H, 2, S)
    last = thing.weights(query[:, :, -2:], key)  # (B, H, 2, S)
    return rows.shape != last.shape or not torch.allclose(rows, last, rtol=1e-9, atol=1e-12, equal_nan=True)


def width(thing: Attention) -> int:
    """The model width D: that of the first linear layer; 6 for a kind without layers, which takes any."""
    layers = [module for module in thing.modules() if isinstance(module, torch.nn.Linear)]
    return layers[0].in_features if layers else 6
