"""A kind for minigpt also continues a text: with a cache, in chunks, it must give what it gives at once.

B batch, T positions of a chunk, S all positions so far, D model width.
"""

from __future__ import annotations

import torch

from minigpt.attention import Attention
from minigpt.grading.probes import numbers
from minigpt.grading.report import Report

CHUNKS = (3, 1, 2, 1)
SENTENCE = (
    "with a cache, in chunks of {chunks} tokens, it gives other numbers than at once, from position {position} on"
)
FIXES = {
    False: "the T queries are the last T of the S positions: query t stands at position S - T + t, as in tril(S - T)",
    True: "what recall gives for the new positions must be what weights @ value gives for the last rows",
}


def check_continued(thing: Attention, report: Report) -> None:
    """Turn the report on a kind that is right at once into "wrong", if it is not when it continues a text.

    Raises what the learner's code raises.
    """
    thing.double().eval()
    D = width(thing)
    x = numbers(2, sum(CHUNKS), D, seed=3)  # (B, S, D)
    with torch.no_grad():
        whole, past = thing(x), thing.make_cache(sum(CHUNKS))
        pieces = [thing(chunk, past) for chunk in x.split(CHUNKS, dim=1)]  # (B, T, D) each
    different = (torch.cat(pieces, dim=1) - whole).abs().amax(dim=(0, 2)) > 1e-9  # (S,)
    if not different.any():
        report.unchecked = [entry for entry in report.unchecked if entry != "the cache"]
        return
    position = int(different.nonzero()[0])
    report.verdict = "wrong"
    report.names = [SENTENCE.format(chunks="+".join(map(str, CHUNKS)), position=position)]
    report.fixes = [FIXES[type(thing).recall is not Attention.recall]]


def width(thing: Attention) -> int:
    """D: the input width of any layer, or any number for a kind without layers."""
    layers = [module for module in thing.modules() if isinstance(module, torch.nn.Linear)]
    return layers[0].in_features if layers else 6
