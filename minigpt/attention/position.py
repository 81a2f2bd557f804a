"""Positions: how a model is told where a token stands. `none`, `learned`, `sinusoidal`, `rotary`, `alibi`.

Attention alone is blind to order. A position can act in three places: `embed` adds to the embeddings, once, in the
model; `rotate` turns queries and keys, and `bias` is added to the scores, both in every attention. A kind overrides
the one it needs, so any position goes with any attention.

B batch, H heads, T positions of the queries, S of the keys, D model width, d width of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from minigpt.config.options import Component, Interval, Options, Positive, Rate, Size


def distance(T: int, S: int, device: torch.device | None = None) -> Tensor:
    """How far key s lies behind query t: (T, S), negative in the future.

    The queries are the last T of the S positions: query t stands at S - T + t. Every mask, bias and window is made
    from this, so they all agree about where a query stands when decoding with a cache (T < S).
    """
    return torch.arange(S - T, S, device=device)[:, None] - torch.arange(S, device=device)  # (T, S)


class Position(nn.Module, Component):
    """The base of all positions, and the one that does nothing.

    One instance stands in the model (`layer` None) and embeds; one stands in every attention (`layer` 0, 1, ...) and
    rotates or biases. A table with parameters is made only where it is used.
    """

    def __init__(self, config: Position.Config, model: Shape, layer: int | None = None):
        super().__init__()
        self.config = config

    def embed(self, x: Tensor, start: int) -> Tensor:
        """Add to the embeddings x (B, T, D), whose first position is `start`."""
        return x

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Turn queries or keys x (B, H, T, d), whose first position is `start`."""
        return x

    def bias(self, query: Tensor, key: Tensor) -> Tensor | None:
        """What is added to the scores of query (B, H, T, d) and key (B, G, S, d): (H, T, S), or None."""
        return None

    def acts_by(self, method: str) -> bool:
        """Whether this kind overrides `embed`, `rotate` or `bias`."""
        return getattr(type(self), method) is not getattr(Position, method)


class NoPosition(Position, kind="none"):
    """No position at all: the past is a bag of tokens."""


class Learned(Position, kind="learned"):
    """A vector for each position, learned like the vectors of the tokens (GPT-2)."""

    def __init__(self, config: Position.Config, model: Shape, layer: int | None = None):
        super().__init__(config, model, layer)
        if layer is None:
            self.table = nn.Embedding(model.block_size, model.n_embd)

    def embed(self, x: Tensor, start: int) -> Tensor:
        return x + self.table.weight[start : start + x.shape[1]]  # (B, T, D)


class Sinusoidal(Position, kind="sinusoidal"):
    """A fixed vector for each position: sines and cosines of falling frequencies (arXiv 1706.03762).

    The waves are as large as the token embeddings are at the start, so that neither drowns the other.
    """

    AMPLITUDE: ClassVar[float] = 0.02 * 2**0.5  # root mean square 0.02, the spread of fresh embeddings

    def embed(self, x: Tensor, start: int) -> Tensor:
        T, D = x.shape[1:]
        waves = wave_table(start, T, D + D % 2, 10_000.0, x.dtype, x.device)  # (T, D/2, 2): cos, sin
        waves = waves.flip(-1).flatten(1)[:, :D]  # (T, D): sin, cos, sin, cos, ...
        return x + self.AMPLITUDE * waves.to(x.dtype)  # (B, T, D)


class Rotary(Position, kind="rotary"):
    """Turns each pair of features by an angle that grows with the position ("RoFormer", arXiv 2104.09864).

    A pair is a complex number x, and x e^{i angle} is the same turned. The dot product of a turned query and a turned
    key depends on their distance alone. Feature 2i is paired with its neighbour 2i + 1, as in the paper (Hugging Face's
    models have their weights in another order, and pair i with i + d/2); with an odd width the last feature stays as it
    is. The angles are made in float64 and the turning done in float32 at least: in bfloat16 they would be off by a
    radian at position 300.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Position.Config):
        base: Positive = 10_000.0
        """The slowest pair turns once in about 2 pi times this many positions."""

    config: Rotary.Config

    def rotate(self, x: Tensor, start: int) -> Tensor:
        T, d = x.shape[2:]
        if d % 2:
            return torch.cat((self.rotate(x[..., :-1], start), x[..., -1:]), dim=-1)
        waves = wave_table(start, T, d, self.config.base, x.dtype, x.device)  # (T, d/2, 2)
        return turn(x.to(waves.dtype), waves).to(x.dtype)  # (B, H, T, d)


def turn(x: Tensor, waves: Tensor) -> Tensor:
    """Multiply neighbours in x (B, H, T, 2n), as complex numbers, by those of waves (T, n, 2): (B, H, T, 2n)."""
    shape = *x.shape[:3], -1, 2
    if torch.compiler.is_compiling():  # torch's compiler knows real numbers only
        (a, b), (cos, sin) = x.view(shape).unbind(-1), waves.unbind(-1)  # (B, H, T, n) and (T, n) twice
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(3)
    if x.stride(3) != 1 or math.gcd(2, x.storage_offset(), *x.stride()[:3]) == 1:
        x = x.contiguous()  # complex numbers begin at even places
    return torch.view_as_real(torch.view_as_complex(x.view(shape)) * torch.view_as_complex(waves)).flatten(3)


class Alibi(Position, kind="alibi"):
    """Lowers each score in proportion to the distance, each head by its own slope ("Train Short, Test Long",
    arXiv 2108.12409). The slopes fall geometrically from 2^(-8/H) to 2^-8. On an average it makes a decaying mean.
    """

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        H, T, S = query.shape[1], query.shape[2], key.shape[2]
        dtype = torch.promote_types(query.dtype, torch.float32)
        slopes = 2.0 ** (-8.0 * torch.arange(1, H + 1, dtype=dtype, device=query.device) / H)  # (H,)
        return -slopes[:, None, None] * distance(T, S, query.device).abs()  # (H, T, S)


def wave_table(start: int, T: int, width: int, base: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """cos and sin of position * base^(-2i/width) for T positions: (T, width/2, 2), in float32 or better."""
    rounded = -(-(start + T) // 256) * 256  # decoding asks for one more each time: make few tables, not many
    return _waves(rounded, width, base, torch.promote_types(dtype, torch.float32), device).narrow(0, start, T)


@lru_cache(maxsize=16)
def _waves(length: int, width: int, base: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the tables outlive the call, and may be needed for training later
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # (width/2,)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies  # (length, width/2)
        return torch.stack((angles.cos(), angles.sin()), dim=-1).to(device, dtype)


@dataclass(frozen=True, kw_only=True)
class Shape(Options):
    """What every part of a model is told of the whole. `ModelConfig` adds the parts themselves."""

    n_layer: Annotated[int, Interval(1, 1000)] = 4
    """How many blocks are stacked."""
    n_embd: Size = 128
    """The width D of a token's vector between the blocks."""
    block_size: Annotated[int, Interval(1, 2**24)] = 128
    """The context: how many positions the model sees at once."""
    dropout: Rate = 0.0
    """The share of activations dropped while training."""
    bias: bool = True
    """Whether linear layers and layer norms add a learned constant."""
    position: Position.Config = Learned.Config()
    """How the model is told where a token stands: none, learned, sinusoidal, rotary, alibi."""
