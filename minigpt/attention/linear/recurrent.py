"""What the recurrent kinds share: a state of fixed size takes the place of the keys and values of all positions.

A softmax needs every score of the past at once. Without it the products can be taken in another order,

    sum_s (q_t . k_s) v_s  =  q_t . (sum_s k_s v_s')

and the sum of outer products is a matrix of d x e numbers, the state, however long the past is. These kinds differ only
in what they forget between two tokens, and in what a token replaces. Each is one computation in three forms:

    the matrix        `weights`: (T, S) numbers, as in every kind; plotted and tested
    the recurrence    `advance`: one token reads and changes the state; used in decoding
    the chunks        a matrix within each chunk, the state between chunks; used in training (`fast/chunks.py`)

The costs and caches that each file states are those of the recurrence and the chunks. With `fast: false`, every kind
computes the matrix, O(T^2), and keeps all keys and values.

The gates of a token are what a kind computes besides its key: how much is forgotten, how much is replaced. They are
stored as extra channels of the key, so that all three forms get them. Gates and states are in float32 at least: in
bfloat16 a long sum loses its small terms.

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e width of a value,
g gates of a token and head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.base import Attention
from minigpt.attention.cache import Past
from minigpt.attention.norm import EPSILON, RMSNorm
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.config.options import Size
from minigpt.system.errors import Mistake

Features = Literal["identity", "elu", "silu", "unit"]
SMALLEST = 1e-6  # keeps a sum of features above zero where elu(x) + 1 is rounded to zero
FAINT = 1e-12  # added to the mean square of an output; small, because new and faded states are small too
FASTEST = -5.0  # the smallest log decay of a single channel: `fast/chunks.py` divides by these decays


class Recurrent(Attention):
    """The base of all kinds with a state: projections, heads, gates, and a norm of each head's output.

    Without a softmax nothing keeps the output at one scale, so each head's output is divided by its root mean square
    ("The Devil in Linear Transformer", arXiv 2210.10340). This norm has no weights, since a projection follows it.
    """

    rows_sum_to_one = weights_nonnegative = order_blind = False
    unsuited: ClassVar[Mapping[str, str]] = {"bias": "it has no scores to which a bias could be added"}

    @dataclass(frozen=True, kw_only=True)
    class Config(Attention.Config):
        n_head: Size = 4
        """How many heads there are, each with a state of its own."""
        head_dim: Size | None = None
        """The width d of a head; by default the model's width divided by the number of heads."""
        features: Features = "identity"
        """The function applied to queries and keys: none, elu(x) + 1, SiLU, or SiLU and then scaling to length one."""
        normed: bool = True
        """Whether each head's output is divided by its root mean square."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from super().mistakes_within(model)
            if self.head_dim is None and model.n_embd % self.n_head:
                yield "n_head", f"{self.n_head} heads do not divide n_embd, {model.n_embd}; set head_dim or change one"

    config: Recurrent.Config

    def __init__(self, config: Recurrent.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.n_head, D = config.n_head, model.n_embd
        self.d = d = config.head_dim or D // config.n_head
        self.query = nn.Linear(D, self.n_head * d, bias=model.bias)
        self.key = nn.Linear(D, self.n_head * d, bias=model.bias)
        self.value = nn.Linear(D, self.n_head * d, bias=model.bias)
        self.project = nn.Linear(self.n_head * d, D, bias=model.bias)
        self.norm: nn.Module = RMSNorm(d, weights=False, epsilon=FAINT) if config.normed else nn.Identity()

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, D) -> query (B, H, T, d), key (B, H, T, d + g), value (B, H, T, e)."""
        query, key = (self.view(self.projected(name, x, past), past, self.n_head) for name in ("query", "key"))
        value = split_heads(self.projected("value", x, past), self.n_head)  # (B, H, T, e)
        return query * self.scale(), torch.cat((key, self.gates(x)), dim=-1), value  # the query is (B, H, T, d)

    def projected(self, name: str, x: Tensor, past: Past) -> Tensor:
        """The `query`, `key` or `value` of x (B, T, D), before it is divided into heads: (B, T, H d) or (B, T, H e)."""
        layer: nn.Module = getattr(self, name)
        return layer(x)

    def view(self, projected: Tensor, past: Past, H: int) -> Tensor:
        """The features of H heads of queries or keys (B, T, H d), in float32 at least, rotated: (B, H, T, d)."""
        heads = split_heads(projected, H)  # (B, H, T, d)
        precise = heads.to(torch.promote_types(heads.dtype, torch.float32))  # (B, H, T, d)
        lifted = features(precise, self.config.features)  # (B, H, T, d)
        return self.position.rotate(lifted, past.length)  # (B, H, T, d)

    def scale(self) -> float:
        """What queries are multiplied by."""
        return self.d**-0.5

    def gates(self, x: Tensor) -> Tensor:
        """The gates of the keys of x (B, T, D), in float32 at least: (B, H, T, g), here g = 0."""
        precise = torch.promote_types(x.dtype, torch.float32)
        return x.new_empty(x.shape[0], self.n_head, x.shape[1], 0, dtype=precise)  # (B, H, T, 0)

    def ungated(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """A key with its gates (..., d + g) -> the key as it is written (..., d), the gates (..., g)."""
        return key[..., : self.d], key[..., self.d :]

    def advance(self, state: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """One token: the state before it, query (B, H, d), key (B, H, d + g), value (B, H, e) -> the state after it,
        and what the query reads there (B, H, e). The first state is `empty`.
        """
        raise TypeError(f"{type(self).__name__} does not say what a token does to its state: define advance")

    def empty(self, key: Tensor, value: Tensor) -> Tensor:
        """The state before the first token: (B, H, d, e), zeros of the type of the key."""
        return key.new_zeros(*value.shape[:2], self.d, value.shape[-1])  # (B, H, d, e)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        bare = products(query[..., : self.d], key[..., : self.d])  # (B, H, T, S)
        return {"products": bare, **super().stages(query, key)}

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(self.norm(mixed), x))  # (B, T, D)


def opposite_of_softplus(y: Tensor) -> Tensor:
    """The x whose softplus, log(1 + exp(x)), is y > 0: for gates that start at a given value."""
    return y + torch.log(-torch.expm1(-y))


def features(x: Tensor, name: Features) -> Tensor:
    """The features of queries or keys: (..., d) -> (..., d)."""
    if name == "elu":
        return F.elu(x) + (1 + SMALLEST)  # (..., d): positive
    if name == "silu":
        return F.silu(x)  # (..., d)
    if name == "unit":
        x = F.silu(x)  # (..., d)
        return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + EPSILON)  # (..., d): of length one
    return x


def outer(key: Tensor, value: Tensor) -> Tensor:
    """The outer product that a token writes: key (B, H, d), value (B, H, e) -> (B, H, d, e)."""
    return key[..., :, None] * value[..., None, :]


def read(state: Tensor, query: Tensor) -> Tensor:
    """What a state (B, H, d, e) holds for a query (B, H, d): (B, H, e)."""
    return (query[..., :, None] * state).sum(dim=-2)


def left(log_decay: Tensor, T: int) -> Tensor:
    """The fraction of each key that is left for each of the last T queries, 0 in the future: (B, H, T, S, g)."""
    return log_left(log_decay, T).exp()


def log_left(log_decay: Tensor, T: int) -> Tensor:
    """Its logarithm, with log_decay (B, H, S, g) of each token: the sum of log_decay over s < j <= t, and -inf in the
    future: (B, H, T, S, g).
    """
    S = log_decay.shape[2]
    behind = distance(S, S, log_decay.device)[..., None]  # (S, S, 1)
    passed = log_decay[:, :, :, None].expand(-1, -1, -1, S, -1).masked_fill(behind <= 0, 0.0)  # (B, H, j, s, g): j > s
    return passed.cumsum(dim=2).masked_fill(behind < 0, -torch.inf)[:, :, S - T :]  # (B, H, T, S, g)


def products(query: Tensor, key: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """query (B, H, T, d) . key (B, H, S, d), zero in the future: (B, H, T, S).

    With log_decay (B, H, S, g), what is `left` multiplies each product (g = 1), or each channel of it (g = d).
    """
    T, S = query.shape[2], key.shape[2]
    if log_decay is None:
        return (query @ key.mT).tril(S - T)  # (B, H, T, S)
    if log_decay.shape[-1] == 1:
        return query @ key.mT * left(log_decay, T)[..., 0]  # (B, H, T, S)
    return torch.einsum("bhtd, bhsd, bhtsd -> bhts", query, key, left(log_decay, T))
