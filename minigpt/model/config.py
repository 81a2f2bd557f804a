"""The shape of a model: everything but the vocabulary, which the tokenizer knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from minigpt.attention import Attention, MultiHead, Shape
from minigpt.config.options import Size
from minigpt.system.errors import Mistake


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Shape):
    """Everything that gives the model its shape but the vocabulary, which the tokenizer knows."""

    attention: Attention.Config | tuple[Attention.Config, ...] = MultiHead.Config()
    """One kind for all layers, or a list that is repeated over the layers."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """What keeps the residual stream at one scale: LayerNorm (arXiv 1607.06450) or RMSNorm (arXiv 1910.07467)."""
    norm_weights: bool = True
    """Whether a norm learns a scale for each feature; the matrices after it can do the same."""
    embedding_norm: bool = False
    """Whether the embeddings are normed too, before the first block; this allows a larger learning rate for them."""
    mlp: Literal["gelu", "relu2", "swiglu"] = "gelu"
    """The non-linearity: exact GELU (arXiv 1606.08415), squared ReLU (arXiv 2109.08668), SwiGLU (arXiv 2002.05202)."""
    mlp_width: Size | None = None
    """Hidden units of the MLP; by default 4 n_embd, and 8/3 n_embd for swiglu, which has a third matrix."""
    tied_head: bool = True
    """Whether the head uses the token embeddings as its weights (arXiv 1608.05859)."""

    def layer_attention(self, layer: int) -> Attention.Config:
        """The attention of one layer: a list is repeated over the layers."""
        kinds = self.attention if isinstance(self.attention, tuple) else (self.attention,)
        return kinds[layer % len(kinds)]

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        kinds = self.attention if isinstance(self.attention, tuple) else (self.attention,)
        for kind in dict.fromkeys(kinds):
            for field, what in kind.mistakes_within(self):
                yield f"attention.{field}", what
