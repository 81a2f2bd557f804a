"""The contract of attention: what every kind shares, and where it may differ.

Attention is a weighted mean of values. The kinds differ in where the weights come from, so there is one `forward`,
and a kind says only what is new about it: usually `weights`, or a piece of it.

    class Mine(MultiHead, kind="mine"):              # a file of its own beside this one, or --plugin mine.py
        def scores(self, query, key):
            return super().scores(query, key).tanh()

B batch, H query heads, G key heads (H is a multiple of G), T query positions, S key positions, D model width,
d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.cache import KVCache, Past
from minigpt.attention.position import Shape, distance
from minigpt.config.options import Component
from minigpt.config.strict_yaml import Mistake

Function = TypeVar("Function", bound=Callable[..., Any])

SHORTCUTS = ("mix", "recall", "make_cache")
LAWS = {"rows_sum_to_one", "weights_nonnegative", "order_blind"}
HARMLESS = LAWS | {"__init__", "__init_subclass__", "qkv", "output", "Config", "config", "kind"}
HARMLESS |= {"__doc__", "__module__", "__qualname__", "__annotations__", "__firstlineno__", "__static_attributes__"}


def shortcut(*honours: str, needs: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Mark a `mix`, `recall` or `make_cache` that is faster than the plain one and equal to it.

    It is equal for the class that it was written for. A subclass inherits it only if all that it changes is listed in
    `honours` or cannot matter (`qkv`, `output`, options, unless the shortcut `needs` them as they are); otherwise the
    next one up that fits is put in its place, in the end the plain one. So a kind that changes its scores cannot
    train as something else in silence.
    """

    def mark(function: Function) -> Function:
        function.harmless = (HARMLESS | set(honours)) - set(needs)  # type: ignore[attr-defined]
        return function

    return mark


class Attention(nn.Module, Component):
    """The base of all kinds. The three laws tell the contract suite what it may ask of a kind."""

    rows_sum_to_one: ClassVar[bool] = True
    weights_nonnegative: ClassVar[bool] = True
    order_blind: ClassVar[bool] = True  # without positions, the last row does not care about the order of the past

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        """No options."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            """Checks against the rest of the model: yields (field, what is wrong)."""
            yield from ()

    def __init_subclass__(cls, kind: str = "", **keywords: Any):
        super().__init_subclass__(kind=kind, **keywords)
        for name in SHORTCUTS:
            fitting = next(parent for parent in cls.__mro__ if name in vars(parent) and _still_holds(name, parent, cls))
            if vars(fitting)[name] is not getattr(cls, name):
                setattr(cls, name, vars(fitting)[name])

    def __init__(self, config: Attention.Config, model: Shape, layer: int = 0):
        super().__init__()
        self.config = config
        self.dropout = model.dropout
        self.position = model.position.component(model.position, model, layer)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, D) -> query (B, H, T, d), key (B, G, T, d), value (B, G, T, e): here x itself, as one head.

        `past.length` is the position of x[:, 0]. All that a token leaves for later ones is in its key and value.
        """
        value = x.unsqueeze(1)  # (B, 1, T, D)
        query = self.position.rotate(value, past.length)  # (B, 1, T, D)
        return query, query, value

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Who attends to whom: (B, H, T, S). Query t stands at position S - T + t. What is plotted and tested."""
        raise TypeError(f"{type(self).__name__} does not say where its weights come from: define weights(query, key)")

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The weighted mean of the values: (B, H, T, e). Overridden only to be faster, never to be different."""
        weights = F.dropout(self.weights(query, key), self.dropout, self.training)  # (B, H, T, S)
        return weights.to(value.dtype) @ share(value, weights.shape[1])  # (B, H, T, e)

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        """`mix` while decoding: the new keys and values join those of the past: (B, H, T, e)."""
        return self.mix(query, *past.append(key, value))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        """(B, H, T, e) -> (B, T, D): the heads side by side. x (B, T, D) is what `qkv` was given, for gates."""
        B, _, T, _ = mixed.shape
        return mixed.reshape(B, 1, -1) if T == 1 else mixed.transpose(1, 2).flatten(2)  # of one, nothing changes places

    def make_cache(self, length: int) -> Past:
        """An empty memory for decoding up to `length` positions."""
        return KVCache(length)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        """x (B, T, D) -> (B, T, D). With a `past` that keeps, x continues what it remembers."""
        past = Past() if past is None else past
        past.expect(x.shape[0])
        query, key, value = self.qkv(x, past)
        if past.keeps:
            mixed = self.recall(query, key, value, past)  # (B, H, T, e)
        else:
            mixed = self.mix(query, *past.append(key, value))  # (B, H, T, e)
        return self.output(mixed, x)


def _still_holds(name: str, parent: type, cls: type) -> bool:
    """Whether the `name` written for `parent` is right for `cls`: all that differs between them cannot matter to it."""
    ours = [c for c in parent.__mro__ if issubclass(c, Attention)]
    known = {attribute for c in ours for attribute in vars(c)}
    changed = {a for a in known if getattr(cls, a, None) is not getattr(parent, a, None)}
    harmless = getattr(vars(parent)[name], "harmless", HARMLESS) | {name}
    if name == "mix":  # which neither remembers nor is told how that is done
        harmless = harmless | {"recall", "make_cache"}
    return parent is Attention or changed <= harmless


def share(x: Tensor, H: int) -> Tensor:
    """Let H query heads share the G heads of keys or values x (B, G, S, d): (B, H, S, d)."""
    return x if x.shape[1] == H else x.repeat_interleave(H // x.shape[1], dim=1)


def plain_is_faster(query: Tensor, key: Tensor) -> bool:
    """Whether the plain form beats the fused kernel: on a CPU in bfloat16, for 2 to 512 positions.

    Measured by `scripts/benchmark.py attention`; the kernel's backward pass there is several times slower.
    """
    T, S = query.shape[2], key.shape[2]
    return T > 1 and S <= 512 and query.dtype == torch.bfloat16 and query.device.type == "cpu"


class SoftmaxAttention(Attention):
    """Weights are the softmax of scores: `scale`, `scores`, `allowed` and `normalise`, each to be changed alone.

    A kind that changes only `scale` or `allowed` (a window is one line) keeps the fast kernel.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Attention.Config):
        causal: bool = True
        """False lets every position see the future: a lesson, refused by training unless --allow-leak is given."""

    config: SoftmaxAttention.Config

    def scale(self, query: Tensor) -> float:
        """What the scores are multiplied by: 1/sqrt(d) keeps their variance at one (arXiv 1706.03762)."""
        return query.shape[-1] ** -0.5

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """How well query (B, H, T, d) and key (B, G, S, d) match: (B, H, T, S)."""
        return (query * self.scale(query)) @ share(key, query.shape[1]).mT

    def allowed(self, T: int, S: int, device: torch.device) -> Tensor:
        """Who may look where: (T, S), true where query t may see key s. Made from `distance`."""
        return distance(T, S, device) >= (0 if self.config.causal else -S)

    def normalise(self, scores: Tensor) -> Tensor:
        """Scores (B, H, T, S), the forbidden ones -inf, to weights."""
        return scores.softmax(dim=-1)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        scores, bias = self.scores(query, key), self.position.bias(query, key)  # (B, H, T, S), (H, T, S)
        scores = scores if bias is None else scores + bias
        allowed = self.allowed(query.shape[2], key.shape[2], query.device)  # (T, S)
        barrier = torch.where(allowed, 0.0, -torch.inf).to(scores.dtype)  # (T, S): added, it needs no way back
        return self.normalise(scores + barrier)  # (B, H, T, S)

    @shortcut("scale", "allowed")
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if plain_is_faster(query, key):
            return Attention.mix(self, query, key, value)
        (B, H, T, d), (_, G, S, _) = query.shape, key.shape
        bias = self.position.bias(query, key)  # (H, T, S) or None
        triangle = type(self).allowed is SoftmaxAttention.allowed and self.config.causal and bias is None
        if triangle and T in (1, S):
            mask = None  # the kernel's own mask aligns to the upper left: right for T = S, and for T = 1 none is needed
        else:
            mask = self.allowed(T, S, query.device)  # (T, S)
        if bias is not None and mask is not None:
            mask = bias.masked_fill(~mask, -torch.inf).to(query.dtype)  # (H, T, S)
        if mask is None and T == 1 and G < H:  # heads that share their keys stand as positions: nothing is copied
            query = query.reshape(B, G, -1, d)  # (B, G, H/G, d)
        elif G < H:
            key, value = share(key, H), share(value, H)  # (B, H, S, d), (B, H, S, e)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,  # the kernel would also drop when not training
            is_causal=mask is None and T > 1,
            scale=self.scale(query),
        )
        return mixed if G == H else mixed.reshape(B, H, T, -1)  # (B, H, T, e)
