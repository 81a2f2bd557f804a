"""The model: token embeddings, a stack of blocks, and a head that scores every token of the vocabulary.

By default it has GPT-2's shape ("Language Models are Unsupervised Multitask Learners"): layer norms before each part,
learned positions, GELU (the exact one; GPT-2's own code has `mlp: gelu_tanh`, within 0.0005 of it), the head tied to
the embeddings. The modern shape is set by config: `norm: rmsnorm`, `position: rotary`, `mlp: swiglu`, `bias: false`,
`tied_head: false`, and `qk_norm: true` in the attention.

B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from minigpt.attention import Attention, Past
from minigpt.model.config import AnyBlock, ModelConfig
from minigpt.model.initialise import Draws, initialise
from minigpt.model.mlp import MLP
from minigpt.model.norm import Norm

Cache = list[Past]


def make_norm(config: ModelConfig) -> Norm:
    """The norm that the config names, over vectors of the model's width."""
    norm: Norm = config.norm.component(config.norm, config)
    return norm


class Block(AnyBlock, kind="pre_norm"):
    """Attention, then an MLP; each reads the normed residual stream and adds its output to it."""

    Config = AnyBlock.Config  # the default of `model.block`

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        attention = config.layer_attention(layer)
        self.attention_norm = make_norm(config)
        self.attention: Attention = attention.component(attention, config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp: MLP = config.mlp.component(config.mlp, config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), past))  # (B, T, D)
        return x + self.dropout(self.mlp(self.mlp_norm(x)))  # (B, T, D)


class GPT(nn.Module):
    """A causal language model: ids (B, T) -> logits (B, T, V), the scores of each position's next token.

    Weights that a module sets itself keep their values (`initialise.py`). All others start as in GPT-2: weights from a
    normal distribution of standard deviation 0.02, constants zero, norms one; the matrices named `project`, which write
    to the residual stream, smaller by sqrt(2 n_layer), so that the stream keeps its scale however many blocks add to
    it. A fresh model guesses: its loss is within 5 % of ln V at the default shape. (With a tied head and a small
    vocabulary a wider model starts with a higher loss, because each token predicts itself at first, most of all if the
    attention has no output projection.)
    """

    def __init__(self, config: ModelConfig, vocab_size: int):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        with Draws() as initialised:
            self.tokens = nn.Embedding(vocab_size, config.n_embd)
            self.position = config.position.component(config.position, config)
            self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
            self.dropout = nn.Dropout(config.dropout)
            self.blocks = nn.ModuleList(self.make_block(layer) for layer in range(config.n_layer))
            self.norm = make_norm(config)
            self.head = nn.Linear(config.n_embd, vocab_size, bias=config.head_bias)
        initialise(self, initialised, config.n_layer)
        if config.tied_head:
            self.head.weight = self.tokens.weight

    def make_block(self, layer: int) -> nn.Module:
        """The block of a layer."""
        block: nn.Module = self.config.block.component(self.config, layer)
        return block

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits (B, T, V) for ids (B, T). With a cache, ids continue the tokens that it contains.

        Raises ValueError when the positions do not fit into `block_size`.
        """
        return self.logits(self.hidden(ids, cache))  # (B, T, V)

    def hidden(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """The normed output of the last block, which the head reads: (B, T, D)."""
        pasts = chain([Past() for _ in self.blocks]) if cache is None else cache
        start, T = pasts[0].length, ids.shape[1]
        if start + T > self.config.block_size:
            raise ValueError(f"{start + T} positions do not fit into the context of {self.config.block_size}")
        x = self.tokens(ids) * self.config.embedding_scale  # (B, T, D)
        x = self.position.embed(x, pasts[0])  # (B, T, D)
        x = self.dropout(self.embedding_norm(x))  # (B, T, D)
        for block, past in zip(self.blocks, pasts):
            x = block(x, past)  # (B, T, D)
        return self.norm(x)  # (B, T, D)

    def last(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """What the head reads at the last position, (B, D): all that the next token needs."""
        return self.hidden(ids, cache)[:, -1]

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores of the next tokens from what the head reads: (..., D) -> (..., V)."""
        logits, cap = self.head(hidden), self.config.head_cap  # (..., V)
        return logits if cap is None else cap * torch.tanh(logits / cap)  # (..., V)

    def make_cache(self) -> Cache:
        """An empty cache for one context of decoding, one entry a layer."""
        return chain([attention.make_cache(self.config.block_size) for attention in self.attentions()])

    def attentions(self) -> list[Attention]:
        """The attention of every layer."""
        return [block.attention for block in self.blocks]  # type: ignore[misc]

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return self.tokens.weight.device


def chain(pasts: Cache) -> Cache:
    """Set `below` of each layer's past to the past of the layer below; returns the list."""
    for below, past in pairwise(pasts):
        past.below = below
    return pasts


def count_parameters(model: GPT) -> dict[str, int]:
    """{part: its number of parameters}; a tied head counts once, with the tokens."""
    parts = dict.fromkeys(("tokens", "position", "attention", "mlp", "norms", "head"), 0)
    for name, parameter in model.named_parameters():  # names a shared parameter once
        words = name.split(".")
        part = "norms" if any(word.endswith("norm") for word in words) else words[0] if words[0] in parts else words[2]
        parts[part] = parts.get(part, 0) + parameter.numel()  # a user's own block may have other parts
    return parts
