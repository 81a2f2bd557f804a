"""The law of norms and MLPs: each position of each text is computed by itself. A part that reads other tokens must be
an attention, which has a cache for them.

B batch, T positions, D model width.
"""

from __future__ import annotations

import torch

from minigpt.checks.laws import EXACT, LawError, longest, off, tokens
from minigpt.model.gpt import GPT
from minigpt.model.mlp import MLP
from minigpt.model.norm import Norm
from minigpt.system.counting import part_name


@torch.no_grad()
def positions_do_not_mix(model: GPT, allowed: float = EXACT) -> None:
    """A norm and an MLP return the same for a token alone as among other tokens, of its text and of other texts."""
    x = tokens(model, 2, min(longest(model), 7))  # (B, T, D)
    for name, part in model.named_modules():
        if isinstance(part, (Norm, MLP)):
            together = part(x)  # (B, T, D)
            alone = torch.cat([part(x[:1, t : t + 1]) for t in range(x.shape[1])], dim=1)  # (1, T, D)
            if (far := off(together[:1], alone)) > allowed:
                what = f"a token alone becomes something else than among others: off by {far:.2g}"
                cause = "a mean, norm or shift over dimension 0 or 1; what reads other tokens is an attention"
                raise LawError(f"{part_name(name, part.kind)}: {what}. Likely cause: {cause}")
