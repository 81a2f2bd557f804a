"""What the papers' own layers have around the recurrence. Each choice is an option; all off, a kind is its formula.

    q, k, v = conv(W x)       y_t = c + w_0 x_t + ... + w_3 x_(t-3), each feature by itself       v = silu(v)
    out = W_o (norm(o_t) * silu(W_g x_t))

    convolution   "Transformers are SSMs" (Mamba-2, arXiv 2405.21060), "Parallelizing Linear Transformers with the
                  Delta Rule" (DeltaNet, 2406.06484), "Gated Delta Networks" (2412.06464), "Kimi Linear" (2510.26692);
                  before the projections in "xLSTM" (2405.04517)
    value_silu    Mamba-2, DeltaNet, Gated DeltaNet, Kimi Linear; their queries and keys have it in their `features`
    gate          "Retentive Network" (2307.08621), "Gated Linear Attention" (2312.06635), Mamba-2, Gated DeltaNet,
                  Kimi Linear, xLSTM; all norms before it but Mamba-2's
    norm_weights  all of them but RetNet

The other options are sizes: values are wider than keys in RetNet, GLA and Gated DeltaNet, narrower in Mamba-2, whose
heads share one key. Each kind has the options of its paper, and its file says with which its paper trains.

B batch, H heads of values, G heads of queries and keys, T positions, D model width, d width of a query and a key,
e width of a value, F features, w positions that a short convolution sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.base import Attention, repeat_kv
from minigpt.attention.cache import Past
from minigpt.attention.linear.recurrent import FAINT, Recurrent, opposite_of_softplus
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Positive, Range, Size
from minigpt.system.errors import Mistake


class ShortConvolution(nn.Module):
    """Each feature is a sum of its last w values, with weights of its own; before the text there are zeros.

    The weights start as those of torch's convolutions.
    """

    def __init__(self, features: int, width: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, features).uniform_(-(width**-0.5), width**-0.5))  # (w, F)
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None  # (F,)

    def forward(self, x: Tensor, past: Past, of: str) -> Tensor:
        """x (B, T, F) -> (B, T, F). `past` keeps the last w - 1 vectors of x, which is named `of`."""
        n, T = len(self.weight) - 1, x.shape[1]
        text = torch.cat((past.before(x, n, of), x), dim=1)  # (B, n + T, F)
        y = self.weight[0] * x  # (B, T, F)
        for i in range(1, n + 1):
            y = y + self.weight[i] * text[:, n - i : n - i + T]  # (B, T, F)
        return y if self.bias is None else y + self.bias  # (B, T, F)


class Published(Recurrent):
    """A recurrent kind with the options of the papers' layers."""

    convolution_bias: ClassVar[bool] = False  # whether its paper's convolution has a learned constant

    @dataclass(frozen=True, kw_only=True)
    class Config(Recurrent.Config):
        convolution: Annotated[int, Range(0, 1024)] = 0
        """How many positions the short convolution of queries, keys and values sees: 4 in the papers; 0, none."""
        value_silu: bool = False
        """Whether values pass a SiLU."""
        value_dim: Size | None = None
        """The width e of a value; by default the width of a query."""
        n_key_head: Size | None = None
        """How many heads G of queries and keys there are, each for H / G heads of values; by default H."""
        gate: bool = False
        """Whether the output is multiplied by a gate, computed from the token."""
        norm_weights: bool = False
        """Whether the norm of each head's output learns a scale for each feature."""
        norm_epsilon: Positive = FAINT
        """What this norm adds to the mean square: 1e-5 in the papers."""

        def mistakes(self) -> Iterator[Mistake]:
            yield from super().mistakes()
            if self.norm_weights and not self.normed:
                yield "norm_weights", "there is no norm, by `normed: false`; leave out one of the two"
            if self.n_key_head and self.n_head % self.n_key_head:
                yield "n_key_head", f"{self.n_key_head} heads of keys do not divide n_head, {self.n_head}"

    config: Published.Config

    def __init__(self, config: Published.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D, H, G = model.n_embd, config.n_head, config.n_key_head or config.n_head
        self.e = e = config.value_dim or self.d
        if G != H:
            self.query, self.key = (nn.Linear(D, G * self.d, bias=model.bias) for _ in range(2))
        if e != self.d:
            self.value, self.project = nn.Linear(D, H * e, bias=model.bias), nn.Linear(H * e, D, bias=model.bias)
        if config.normed:
            self.norm = RMSNorm(e, config.norm_weights, config.norm_epsilon)
        if config.gate:
            self.gate = nn.Linear(D, H * e, bias=model.bias)
        if config.convolution:
            self.convolutions = self.of_projections()

    def of_projections(self) -> nn.ModuleDict:
        """A short convolution for each of the three projections, by its name."""
        layers = {"query": self.query, "key": self.key, "value": self.value}
        w, bias = self.config.convolution, self.convolution_bias
        return nn.ModuleDict({name: ShortConvolution(each.out_features, w, bias) for name, each in layers.items()})

    def projected(self, name: str, x: Tensor, past: Past) -> Tensor:
        features = super().projected(name, x, past)  # (B, T, F)
        if self.config.convolution:
            features = self.convolutions[name](features, past, name)  # (B, T, F)
        return F.silu(features) if name == "value" and self.config.value_silu else features

    def view(self, projected: Tensor, past: Past, H: int) -> Tensor:
        G = projected.shape[-1] // self.d
        heads = super().view(projected, past, G)  # (B, G, T, d)
        return heads if G == H else repeat_kv(heads, H)  # (B, H, T, d)

    def gates_of_output(self, x: Tensor) -> Tensor:
        """What each feature of the output for x (B, T, D) is multiplied by: (B, H, T, e)."""
        return F.silu(split_heads(self.gate(x), self.n_head))  # (B, H, T, e)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        if not self.config.gate:
            return super().output(mixed, x)  # (B, T, D)
        return self.project(Attention.output(self, self.norm(mixed) * self.gates_of_output(x), x))  # (B, T, D)


def random_rates(H: int, lowest: float = 1.0) -> Tensor:
    """The logarithms of rates drawn between `lowest` and 16, as Mamba-2's A starts (arXiv 2405.21060): (H,)."""
    return torch.empty(H).uniform_(lowest, 16).log()


def random_steps(n: int) -> Tensor:
    """Biases whose softplus is between 0.001 and 0.1, as Mamba-2's steps start: uniform in their logarithm: (n,)."""
    return opposite_of_softplus(torch.empty(n).uniform_(math.log(0.001), math.log(0.1)).exp())
