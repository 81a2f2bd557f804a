"""The norms of the residual stream: `layernorm`, `rmsnorm`. Each keeps every token's vector at one scale.

A norm of your own is a class with a `kind`, made from its options and the model's shape. D model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from minigpt.attention import Shape
from minigpt.attention import norm as plain
from minigpt.config.options import Component, Positive
from minigpt.system.errors import Mistake


class Norm(nn.Module, Component):
    """The base of all norms: `forward` turns x (..., D) into (..., D)."""

    def __init__(self, config: Norm.Config | None = None, model: Shape | None = None):
        super().__init__()  # torch's norms take neither; a norm without weights needs no constructor


class LayerNorm(nn.LayerNorm, Norm, kind="layernorm"):
    """Subtracts a vector's mean and divides by its standard deviation ("Layer Normalization", arXiv 1607.06450)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Norm.Config):
        epsilon: Positive = 1e-5
        """Is added to the variance, so that a constant vector is not divided by zero."""
        weights: bool = True
        """Whether it learns a scale for each feature; the matrices after it can do the same."""
        bias: bool | None = None
        """Whether it learns a constant for each feature beside the scale; null: as `model.bias` says."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.bias and not self.weights:
                yield "bias", "a norm without weights has no bias: leave it out, or set weights: true"

    def __init__(self, config: LayerNorm.Config, model: Shape):
        bias = model.bias if config.bias is None else config.bias
        super().__init__(model.n_embd, config.epsilon, elementwise_affine=config.weights, bias=bias)


class RMSNorm(plain.RMSNorm, Norm, kind="rmsnorm"):
    """Divides a vector by its root mean square and subtracts no mean (arXiv 1910.07467)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Norm.Config):
        epsilon: Positive = plain.EPSILON
        """Is added to the mean square, so that a vector of zeros is not divided by zero."""
        weights: bool = True
        """Whether it learns a scale for each feature; the matrices after it can do the same."""

    def __init__(self, config: RMSNorm.Config, model: Shape):
        super().__init__(model.n_embd, config.weights, config.epsilon)
