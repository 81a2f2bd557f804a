"""The shape of a model: everything but the vocabulary, which the tokenizer knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from minigpt.attention import Attention, MultiHead, Shape
from minigpt.config.options import Component, Positive
from minigpt.model.mlp import GELU, MLP
from minigpt.model.norm import LayerNorm, Norm
from minigpt.system.errors import Mistake


class AnyBlock(nn.Module, Component):
    """The base of all blocks: what a layer does with the residual stream. The usual one is `Block` in gpt.py.

    A block is made from the model's config and its layer, has an `attention`, and turns x (B, T, D) and that layer's
    past into (B, T, D). Its own options are `config.block`.
    """


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Shape):
    """Everything that gives the model its shape but the vocabulary, which the tokenizer knows."""

    renamed: ClassVar[dict[str, str]] = {"norm_weights": "norm.weights", "mlp_width": "mlp.width"}

    attention: Attention.Config | tuple[Attention.Config, ...] = MultiHead.Config()
    """One kind for all layers, or a list that is repeated over the layers."""
    norm: Norm.Config = LayerNorm.Config()
    """What keeps the residual stream at one scale: layernorm (arXiv 1607.06450), rmsnorm (arXiv 1910.07467)."""
    embedding_scale: Positive = 1.0
    """What the embeddings of the tokens are multiplied by, before positions are added; Gemma: sqrt(n_embd)."""
    embedding_norm: bool = False
    """Whether the embeddings are normed too, before the first block; this allows a larger learning rate for them."""
    mlp: MLP.Config = GELU.Config()
    """What each position computes on its own: gelu, gelu_tanh, relu2; with a gate swiglu, geglu, geglu_tanh."""
    block: AnyBlock.Config = AnyBlock.Config()
    """How a layer combines attention, MLP and norms: pre_norm, post_norm, sandwich, parallel, parallel_one_norm."""
    tied_head: bool = True
    """Whether the head uses the token embeddings as its weights (arXiv 1608.05859)."""
    head_bias: bool = False
    """Whether the head adds a learned constant to the score of each token (GPT-J, Phi)."""
    head_cap: Positive | None = None
    """The logits are cap tanh(logits / cap), which stays below the cap (Gemma 2, arXiv 2408.00118); null: no cap."""

    def layer_attention(self, layer: int) -> Attention.Config:
        """The attention of one layer: a list is repeated over the layers."""
        kinds = self.attention if isinstance(self.attention, tuple) else (self.attention,)
        return kinds[layer % len(kinds)]

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        kinds = self.attention if isinstance(self.attention, tuple) else (self.attention,)
        for kind in dict.fromkeys(kinds):
            for field, problem in kind.mistakes_within(self):
                yield f"attention.{field}", problem
