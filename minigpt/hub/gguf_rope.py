"""Llama 3.1's RoPE scaling in a GGUF file: the tensor `rope_freqs` instead of the parameters of the scaling rule.

The tensor holds the divisor of each pair's frequency (llama.cpp, convert_hf_to_gguf.py). The published parameters are
tried in turn; a tensor that none of them produces is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minigpt.attention.position import angles
from minigpt.attention.stretch import Llama3
from minigpt.system.errors import UserError

FREQUENCIES = "rope_freqs.weight"
PUBLISHED = (8.0, 32.0)  # factors: Llama 3.1 and 3.3, Llama 3.2; all with low 1, high 4, original 8192
TOLERANCE = 1e-5  # relative: the file has float32


def stretch_of(factors: Tensor, base: float) -> dict[str, Any]:
    """`rope_scaling` of a config.json, from the divisors (n,) of n pairs; `base` is `rope_theta`.

    Raises UserError if no published factor fits.
    """
    frequencies = angles(1, 1, 2 * factors.numel(), base, factors.device)[0]  # (n,)
    for factor in PUBLISHED:
        rule = Llama3.Config(factor=factor)
        kept = rule.kept(frequencies, base)  # (n,)
        if torch.allclose(factors.double(), 1 / (kept + (1 - kept) / factor), rtol=TOLERANCE, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": rule.low,
                "high_freq_factor": rule.high,
                "original_max_position_embeddings": rule.original,
            }
    known = " and ".join(f"{factor:g}" for factor in PUBLISHED)
    raise UserError(f"the tensor {FREQUENCIES} is not that of a published Llama 3 (factors {known}): it is not read")
