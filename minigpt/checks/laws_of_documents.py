"""The law of documents: in a window whose documents do not see one another, each is computed as if it were alone.

B windows, T positions, V vocabulary.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from minigpt.checks.laws import EXACT, LawError, off
from minigpt.checks.laws_of_writing import ids_of, kinds
from minigpt.model.documents import within_documents
from minigpt.model.gpt import GPT

ENDS = (5, 6, 13, 16, 17), (4, 5, 8, 15, 20)  # where documents end, in two windows; the last one ends with its window
LONGEST = 24


@torch.no_grad()
def documents_do_not_mix(model: GPT, allowed: float = EXACT) -> None:
    """The logits of a window are those of each of its documents alone, with its first token at position 0."""
    T = min(LONGEST, model.config.block_size)
    ids = ids_of(model, 2, T)  # (B, T)
    edges = [[0, *(end for end in ends if end < T), T] for ends in ENDS]
    begins = torch.zeros(2, T, dtype=torch.bool)  # (B, T)
    for row, cuts in enumerate(edges):
        begins[row, cuts[:-1]] = True
    with within_documents(model, begins):
        together = model(ids)  # (B, T, V)
    for row, cuts in enumerate(edges):
        for start, stop in pairwise(cuts):
            alone = model(ids[row : row + 1, start:stop])  # (1, document, V)
            if (far := off(together[row : row + 1, start:stop], alone)) > allowed:
                what = f"a document becomes something else in a window with others than alone: off by {far:.2g}"
                cause = "a block, or a part of one, that reads other tokens without an attention"
                raise LawError(f"{kinds(model)}: {what}. Likely cause: {cause}; data.attend=window needs no such law")
