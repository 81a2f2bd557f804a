"""Blocks besides `Block` of gpt.py, chosen by `model.block`. They differ in where the norms are, and in whether the MLP
reads what attention has added.

    pre_norm            x = x + attention(norm(x))          then  x + mlp(norm(x))          GPT-2, Llama: the default
    post_norm           x = x + norm(attention(x))          then  x + norm(mlp(x))          OLMo 2
    sandwich            x = x + norm(attention(norm(x)))    then  x + norm(mlp(norm(x)))    Gemma 2 and 3
    parallel            x + attention(norm(x)) + mlp(other norm(x))                         GPT-NeoX
    parallel_one_norm   x + attention(norm(x)) + mlp(the same norm(x))                      GPT-J, Phi
    attention_only      x + attention(x)                                                    for lessons

B batch, T positions, D model width.
"""

from __future__ import annotations

from torch import Tensor

from minigpt.attention import Past
from minigpt.model.config import ModelConfig
from minigpt.model.gpt import Block, make_norm


class PostNorm(Block, kind="post_norm"):
    """Attention and MLP read the residual stream as it is, and what they add is normed (OLMo 2, arXiv 2501.00656)."""

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.dropout(self.attention_norm(self.attention(x, past)))  # (B, T, D)
        return x + self.dropout(self.mlp_norm(self.mlp(x)))  # (B, T, D)


class Sandwich(Block, kind="sandwich"):
    """What attention and MLP read is normed, and what they add too (Gemma 2, arXiv 2408.00118)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.attention_post_norm = make_norm(config)
        self.mlp_post_norm = make_norm(config)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        attended = self.attention(self.attention_norm(x), past)  # (B, T, D)
        x = x + self.dropout(self.attention_post_norm(attended))  # (B, T, D)
        return x + self.dropout(self.mlp_post_norm(self.mlp(self.mlp_norm(x))))  # (B, T, D)


class Parallel(Block, kind="parallel"):
    """Attention and MLP read the same x, each by a norm of its own (GPT-NeoX, arXiv 2204.06745)."""

    def forward(self, x: Tensor, past: Past) -> Tensor:
        attended = self.attention(self.attention_norm(x), past)  # (B, T, D)
        return x + self.dropout(attended) + self.dropout(self.mlp(self.mlp_norm(x)))  # (B, T, D)


class ParallelOneNorm(Block, kind="parallel_one_norm"):
    """Attention and MLP read the same normed x, that of `attention_norm` (GPT-J, 2021; Phi-1.5, arXiv 2309.05463)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        del self.mlp_norm

    def forward(self, x: Tensor, past: Past) -> Tensor:
        normed = self.attention_norm(x)  # (B, T, D)
        return x + self.dropout(self.attention(normed, past)) + self.dropout(self.mlp(normed))  # (B, T, D)


class AttentionOnly(Block, kind="attention_only"):
    """Attention and nothing else: no norm and no MLP. What a model of such blocks can do, attention does alone."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        del self.attention_norm, self.mlp_norm, self.mlp

    def forward(self, x: Tensor, past: Past) -> Tensor:
        return x + self.dropout(self.attention(x, past))  # (B, T, D)
