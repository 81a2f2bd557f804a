"""The delta rule: a token replaces what the state holds for its key, and does not only add to it.

    S_t = S_(t-1) + b_t k_t (v_t - k_t S_(t-1))'        b_t = sigmoid(W x_t)        |k_t| = 1

"Linear Transformers Are Secretly Fast Weight Programmers" (arXiv 2102.11174); its chunks are those of "Parallelizing
Linear Transformers with the Delta Rule over Sequence Length" (arXiv 2406.06484). New against linear: b_t, the share of
the old value that is replaced, so one key can be given a new value. In the weights each token's write is corrected by
all writes after it: with L_ts = b_t k_t . k_s for s < t they are tril(Q K') (1 + L)^-1 diag(b). With b up to two, a
write can also change the sign of the state, which counts modulo two (arXiv 2411.12537). With small b it is linear
attention; with equal keys and b = 1 only the last value is left.
Cost: O(T d D) in training, O(d D) for a written token. Cache: H d e numbers a layer, whatever the context.
Used by: DeltaNet; with gates in Qwen3-Next and Kimi Linear.

The layer of arXiv 2406.06484 in a model of width 128 without biases (`published.py`):

    {kind: delta_net, convolution: 4, value_silu: true, norm_weights: true, norm_epsilon: 1e-5, write_bias: false}

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.edge import Edge
from minigpt.attention.linear.published import Published
from minigpt.attention.linear.recurrent import Features, outer, products, read
from minigpt.attention.position import Shape
from minigpt.config.options import Range


def weak_writes(delta_net: Any, other: Any) -> None:
    """Every write has the same small strength; values are larger, so that the epsilon of the norms has no effect."""
    nn.init.zeros_(delta_net.write.weight)
    nn.init.constant_(delta_net.write.bias, -14)  # b is about 1e-6
    for kind in (delta_net, other):
        kind.value.weight.mul_(1e6)
        kind.value.bias.mul_(1e6)


def one_key_for_all(delta_net: Any, window: Any) -> None:
    """All queries and keys are one vector of length one, b = 1, and the values undo the factor 1/sqrt(d) of queries."""
    for layer in (delta_net.query, delta_net.key):
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, 1e6)
    nn.init.zeros_(delta_net.write.weight)
    nn.init.constant_(delta_net.write.bias, 1e3)
    delta_net.value.weight.mul_(delta_net.d**0.5)
    delta_net.value.bias.mul_(delta_net.d**0.5)


class DeltaNet(Published, kind="delta_net"):
    """A key has one gate: how much of the old value is replaced."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge(
            "retention",
            "b -> 0, nothing is forgotten",
            other={"decay": "none", "features": "unit"},
            prepare=weak_writes,
            error=1e-4,
        ),
        Edge(
            "sliding_window",
            "equal keys, b = 1; a window of 1",
            {"normed": False},
            {"window": 1},
            one_key_for_all,
            without=("rotate", "bias"),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(Published.Config):
        without: ClassVar[tuple[str, ...]] = ("features", "gate", "n_key_head")
        features: Features = "unit"
        strength: Annotated[float, Range(0, 2, open_low=True)] = 1.0
        """The largest b. Above one, a write can change the sign of what it replaces."""
        write_bias: bool = True
        """Whether b has a learned constant; the paper's has none."""

    config: DeltaNet.Config

    def __init__(self, config: DeltaNet.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.write = nn.Linear(model.n_embd, config.n_head, bias=config.write_bias)

    def gates(self, x: Tensor) -> Tensor:
        write = self.write(x).to(torch.promote_types(x.dtype, torch.float32))  # (B, T, H)
        return self.config.strength * write.sigmoid().mT[..., None]  # (B, H, T, 1)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        key, strength = self.ungated(key)  # (B, H, S, d), (B, H, S, 1)
        return replaced(products(query, key), products(key, key), strength)  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        return {"replaced": key[..., self.d], **super().stages(query, key)}  # (B, H, S), (B, H, T, S) twice

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        key, strength = self.ungated(key)  # (B, H, d), (B, H, 1)
        state = state + outer(key, strength * (value - read(state, key)))  # (B, H, d, e)
        return state, read(state, query)  # (B, H, e)


def replaced(scores: Tensor, overlaps: Tensor, strength: Tensor) -> Tensor:
    """The weights of the delta rule (B, H, T, S), from products of queries and keys `scores` (B, H, T, S), of keys and
    keys `overlaps` (B, H, S, S), and the strengths (B, H, S, 1).
    """
    scores, overlaps = scores.to(strength.dtype), overlaps.to(strength.dtype)  # products may come in bfloat16
    earlier = (strength * overlaps).tril(-1)  # (B, H, S, S)
    solved = torch.linalg.solve_triangular(earlier, scores, upper=False, left=False, unitriangular=True)  # (B, H, T, S)
    return solved * strength.mT  # (B, H, T, S)
