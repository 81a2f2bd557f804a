"""Positions: how a model is told where a token is. `none`, `learned`, `sinusoidal`, `convolution`,
`rotary`, `alibi`.

Attention alone does not depend on the order of the past. A position can act in three places: `embed` adds to the
embeddings, once, in the model; `rotate` rotates queries and keys, and `bias` is added to the scores, both in every
attention. A kind overrides the one it needs, so any position can be used with any attention.

B batch, H heads, T positions of the queries, S of the keys, D model width, d width of a head, n = d // 2 pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.config.options import Component, Options, Range, Rate, Size


def distance(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """How many positions key s is before query t: (T, S), negative in the future.

    The queries are the last T of the S positions: query t is at position S - T + t. Every mask, bias and window is
    computed from this, so they all agree about the position of a query when decoding with a cache (T < S).
    """
    return torch.arange(S - T, S, device=device)[:, None] - torch.arange(S, device=device)  # (T, S)


WITHOUT_FLOAT64 = ("mps",)  # Metal Shading Language Specification, 2.1: "Metal does not support the double" type


def exact(device: torch.device) -> torch.dtype:
    """The type for numbers that must be as exact as a device can hold them: float64, or float32 where there is none."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def angles(start: int, T: int, width: int, base: float, device: torch.device) -> Tensor:
    """position * base^(-2i/width) for T positions from `start` on and i = 0, 1, ..., in float64: (T, width // 2)."""
    positions = torch.arange(start, start + T, dtype=exact(device), device=device)  # (T,)
    frequencies = base ** (-2 * torch.arange(width // 2, dtype=exact(device), device=device) / width)  # (width // 2,)
    return positions[:, None] * frequencies  # (T, width // 2)


class Position(nn.Module, Component):
    """The base of all positions, and the one that does nothing.

    The model has one instance (`layer` None), which embeds; every attention has one (`layer` 0, 1, ...), which rotates
    or biases. A table with parameters is made only where it is used.
    """

    def __init__(self, config: Position.Config, model: Shape, layer: int | None = None):
        super().__init__()
        self.config = config

    def embed(self, x: Tensor, past: Past) -> Tensor:
        """Add to the embeddings x (B, T, D), whose first position is `past.length`."""
        return x

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Rotate queries or keys x (B, H, T, d), whose first position is `start`."""
        return x

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """What is added to the scores of query (B, H, T, d) and key (B, G, S, d): (H, T, S), here zeros."""
        return query.new_zeros(query.shape[1], query.shape[2], key.shape[2])  # (H, T, S)

    @classmethod
    def acts_by(cls, method: str) -> bool:
        """Whether this kind overrides `embed`, `rotate` or `bias`."""
        return getattr(cls, method) is not getattr(Position, method)


class NoPosition(Position, kind="none"):
    """No position at all: the past is a bag of tokens."""


class Learned(Position, kind="learned"):
    """A vector for each position, learned like the vectors of the tokens (GPT-2)."""

    def __init__(self, config: Position.Config, model: Shape, layer: int | None = None):
        super().__init__(config, model, layer)
        if layer is None:
            self.table = nn.Embedding(model.block_size, model.n_embd)

    def embed(self, x: Tensor, past: Past) -> Tensor:
        return x + self.table.weight[past.length : past.length + x.shape[1]]  # (B, T, D)


class Sinusoidal(Position, kind="sinusoidal"):
    """A fixed vector for each position: sines and cosines of falling frequencies (arXiv 1706.03762).

    Their amplitude is that of freshly initialised token embeddings, so that neither dominates the other.
    """

    AMPLITUDE: ClassVar[float] = 0.02 * 2**0.5  # root mean square 0.02, the spread of fresh embeddings

    def embed(self, x: Tensor, past: Past) -> Tensor:
        T, D = x.shape[1:]
        waves = angles(past.length, T, D + D % 2, 10_000.0, x.device)  # (T, D/2)
        waves = torch.stack((waves.sin(), waves.cos()), dim=-1).flatten(1)[:, :D]  # (T, D): sin, cos, sin, cos, ...
        return x + self.AMPLITUDE * waves.to(x.dtype)  # (B, T, D)


class Convolution(Position, kind="convolution"):
    """Adds to each embedding a share of the few before it: a causal convolution of each feature by itself.

    A token then knows which tokens came just before it, but not its position. Attention without positions can find a
    token by the one before it, as a value by its key. H3 (arXiv 2212.14052), Mamba (2312.00752) and DeltaNet
    (2406.06484) have one in every layer. The shares start at random, and each feature has its own, so that different
    neighbours give different sums from the start.
    """

    START: ClassVar[float] = 0.5  # initial size of the shares; if they start at 0, training uses the neighbours later

    @dataclass(frozen=True, kw_only=True)
    class Config(Position.Config):
        width: Annotated[int, Range(2, 1024)] = 2
        """How many embeddings are mixed, the position's own included."""

    config: Convolution.Config

    def __init__(self, config: Convolution.Config, model: Shape, layer: int | None = None):
        super().__init__(config, model, layer)
        if layer is None:
            n = config.width - 1
            self.shares = nn.Parameter(self.START / n**0.5 * torch.randn(n, model.n_embd))  # (n, D)

    def embed(self, x: Tensor, past: Past) -> Tensor:
        T, n = x.shape[1], self.config.width - 1
        text = torch.cat((past.before(x, n, of="embeddings"), x), dim=1)  # (B, n + T, D)
        for i, share in enumerate(self.shares, start=1):
            x = x + share * text[:, n - i : n - i + T]  # (B, T, D): what came i positions before
        return x


class Stretch(Component):
    """How rotary positions are extended to texts longer than those of the training: see `stretch.py`. Here not."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        """No options."""

        def waves(self, theta: Tensor, base: float) -> tuple[Tensor, Tensor]:
            """The cosines and sines of the angles theta (T, n), whose frequencies come from `base`: (T, n) each."""
            return theta.cos(), theta.sin()


class NoStretch(Stretch, kind="none"):
    """Every pair rotates at its own frequency."""


class Rotary(Position, kind="rotary"):
    """Rotates each pair of features by an angle that grows with the position ("RoFormer", arXiv 2104.09864).

    The dot product of a rotated query and a rotated key depends on their distance alone. Feature 2i is paired with its
    neighbour 2i + 1, as in the paper (Hugging Face's models pair i with i + d/2, and store their weights in that
    order); with an odd width the last feature is not rotated. The angles are made in float64 and the rotation in
    float32 at least: in bfloat16 they would be off by a radian at position 300.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Position.Config):
        base: Annotated[float, Range(1, open_low=True)] = 10_000.0
        """The slowest pair makes one full turn in 2 pi base^(1 - 2/d) positions."""
        share: Annotated[float, Range(0, 1, open_low=True)] = 1.0
        """The fraction of a head's features that are rotated, the first d (GPT-J, GPT-NeoX, Phi); by default all."""
        stretch: Stretch.Config = NoStretch.Config()
        """How angles are changed for texts longer than those of the training: none, linear, llama3, yarn."""

    config: Rotary.Config

    def rotate(self, x: Tensor, start: int) -> Tensor:
        return apply_rotary(x, *waves(self.config, start, x.shape[2], x.shape[3], x.device))  # (B, H, T, d)


def waves(config: Rotary.Config, start: int, T: int, d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cosines and sines by which T positions from `start` on rotate heads of width d: (T, n) each."""
    theta = angles(start, T, int(config.share * d) // 2 * 2, config.base, device)  # (T, n)
    return config.stretch.waves(theta, config.base)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[2i], x[2i + 1]) of x (B, H, T, d) by angles whose cos and sin are (T, n): (B, H, T, d)."""
    precise, end = torch.promote_types(x.dtype, torch.float32), 2 * cos.shape[-1]
    even, odd = x[..., 0:end:2].to(precise), x[..., 1:end:2].to(precise)  # (B, H, T, n) each
    cos, sin = cos.to(precise), sin.to(precise)
    rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(3)  # (B, H, T, 2n)
    return torch.cat((rotated.to(x.dtype), x[..., end:]), dim=-1)  # (B, H, T, d)


class Alibi(Position, kind="alibi"):
    """Lowers each score in proportion to the distance, each head by its own slope ("Train Short, Test Long",
    arXiv 2108.12409). The slopes fall geometrically from 2^(-8/H) to 2^-8. With ALiBi an average is a decaying mean.

    Where H is no power of two, the paper's own code takes the slopes of the largest power of two n below it, and for
    the heads left over every second slope of 2n heads. So do BLOOM (arXiv 2211.05100) and MPT: `slopes: bloom`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Position.Config):
        slopes: Literal["geometric", "bloom"] = "geometric"
        """The slopes of H heads: one geometric sequence, or BLOOM's two. They differ where H is no power of two."""

    config: Alibi.Config

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        H, T, S = query.shape[1], query.shape[2], key.shape[2]
        dtype = torch.promote_types(query.dtype, torch.float32)
        n = H if self.config.slopes == "geometric" else 1 << (H.bit_length() - 1)  # the largest power of two up to H
        h = torch.arange(1, H + 1, dtype=dtype, device=query.device)  # (H,)
        slopes = 2.0 ** -torch.where(h <= n, 8 * h / n, 4 * (2 * (h - n) - 1) / n)  # (H,)
        return -slopes[:, None, None] * distance(T, S, query.device).abs()  # (H, T, S)


@dataclass(frozen=True, kw_only=True)
class Shape(Options):
    """The options of the whole model that every part of it reads. `ModelConfig` adds the parts themselves."""

    n_layer: Annotated[int, Range(1, 1000)] = 4
    """How many blocks are stacked."""
    n_embd: Size = 128
    """The width D of a token's vector between the blocks."""
    block_size: Annotated[int, Range(1, 2**24)] = 128
    """The context: how many positions the model sees at once."""
    dropout: Rate = 0.0
    """The fraction of activations dropped while training."""
    bias: bool = True
    """Whether linear layers and layer norms add a learned constant."""
    position: Position.Config = Learned.Config()
    """How the model is told where a token is: none, learned, sinusoidal, convolution, rotary, alibi."""
