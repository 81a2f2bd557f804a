"""The GPT: its config, the MLP, the blocks, and how text is drawn from its logits.

In: ids (B, T). Out: logits (B, T, V), or more ids. Imports: system, config, attention.
"""

import minigpt.model.blocks  # noqa: F401  (registers its kinds)
from minigpt.model.config import ModelConfig
from minigpt.model.gpt import GPT, Block, Cache, chain, count_parameters
from minigpt.model.mlp import MLP
from minigpt.model.norm import Norm
from minigpt.model.sampling import SamplingConfig, generate

__all__ = [
    "GPT",
    "MLP",
    "Block",
    "Cache",
    "ModelConfig",
    "Norm",
    "SamplingConfig",
    "chain",
    "count_parameters",
    "generate",
]
