"""Kinds and positions that are wrong, each in a way that a learner's may be: training must refuse every one of them.

They are registered under `wrong_...` and taken out of the registries at the end of the file, so that the other chapters
see only what ships. `WRONG` says for each what the refusal must say. Some have a right sibling, `right_...`, which
looks like them and must pass.

T query positions, S key positions, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention import Attention, MultiHead, SoftmaxAttention
from minigpt.attention.cache import Past, WindowCache
from minigpt.attention.position import Position, Rotary, Shape, distance


def ahead(x: Tensor, by: int = 1) -> Tensor:
    """What stands `by` positions later in x (B, T, D), zeros at the end: (B, T, D)."""
    return F.pad(x[:, by:], (0, 0, 0, by))  # (B, T, D)


# ---- one method, changed ----


Change = Callable[
    ..., Any
]  # what a method returns: a function of the parent's method, of the layer and of its arguments


def kind(name: str, **changes: Any) -> None:
    """A kind with changed methods, and attributes that differ."""

    def method(name: str, change: Change) -> Callable[..., Any]:
        return lambda self, *arguments: change(getattr(super(made, self), name), self, *arguments)

    own = {key: method(key, value) if callable(value) else value for key, value in changes.items()}
    made = type(name, (MultiHead,), own | {"__module__": __name__}, kind=name)


def seen(layer: MultiHead, query: Tensor, key: Tensor) -> Tensor:
    """The mask (T, S) of some queries and keys."""
    return layer.mask(query.shape[2], key.shape[2], query.device)


def everything(T: int, S: int, device: torch.device) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool, device=device)


def finite(_: Change, layer: MultiHead, query: Tensor, key: Tensor) -> Tensor:
    return layer.scores(query, key).masked_fill(~seen(layer, query, key), -1e4).softmax(-1)


def by_product(_: Change, layer: MultiHead, query: Tensor, key: Tensor) -> Tensor:
    weights = layer.scores(query, key).exp() * seen(layer, query, key)
    return weights / weights.sum(-1, keepdim=True)


def infinity_times_zero(_: Change, layer: MultiHead, query: Tensor, key: Tensor) -> Tensor:
    """The mask is minus infinity times nothing where it should be nothing."""
    return (layer.scores(query, key) + (~seen(layer, query, key)).to(query.dtype) * -torch.inf).softmax(-1)


def after_softmax(_: Change, layer: MultiHead, query: Tensor, key: Tensor) -> Tensor:
    """The row is normalised over the future too."""
    return layer.scores(query, key).softmax(-1) * seen(layer, query, key)


kernel = F.scaled_dot_product_attention
kind("wrong_no_mask", mask=lambda mask, self, *shape: everything(*shape))
kind("wrong_transposed", mask=lambda mask, self, *shape: mask(*shape).mT)
kind("wrong_one_ahead", mask=lambda mask, self, *shape: distance(*shape) >= -1)
kind("wrong_finite_mask", weights=finite)
kind("wrong_product_mask", weights=by_product)
kind("wrong_infinity_times_zero", weights=infinity_times_zero)
kind("wrong_mask_after_softmax", weights=after_softmax, rows_sum_to_one=False)
kind("wrong_softmax_over_queries", normalise=lambda _, self, scores: scores.softmax(dim=-2), rows_sum_to_one=False)
# right in training; with its cache each token sees the first one only
kind("wrong_upper_left", mask=lambda mask, self, *shape: everything(*shape).tril())
# right in training and token by token; in chunks its mask is aligned to the upper left
kind("wrong_is_causal", mix=lambda mix, self, query, *pair: kernel(query, *pair, is_causal=query.shape[2] > 1))
kind("wrong_centred", qkv=lambda qkv, self, x, past: qkv(x - x.mean(dim=1, keepdim=True), past))
# each position sees the same position of the other texts
kind("wrong_batch_mean", qkv=lambda qkv, self, x, past: qkv(x - x.mean(dim=0), past))
kind("wrong_past_forgotten", recall=lambda _, self, *qkv: (qkv[-1].append(*qkv[1:3]), self.mix(*qkv[:3]))[1])
# rotates every new token as if it were the first
kind("wrong_stuck_at_zero", qkv=lambda qkv, self, x, past: qkv(x, Past()))
# right token by token; of several new tokens each sees as if they were the first
kind(
    "wrong_chunks",
    recall=lambda _, self, query, key, value, past: kernel(
        query, *past.append(key, value), is_causal=query.shape[2] > 1
    ),
)
# its mix hides the future; the weights that it shows do not, where scores are very large
kind(
    "wrong_other_weights",
    weights=finite,
    mix=lambda _, self, query, key, value: kernel(query, key, value, attn_mask=seen(self, query, key)),
)


def unscaled(_: Change, layer: MultiHead, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A kernel that forgets the scale."""
    return kernel(query, key, value, attn_mask=seen(layer, query, key), scale=1.0)


kind("wrong_other_mix", mix=unscaled)
kind("wrong_unnormalised", normalise=lambda _, self, scores: scores.sigmoid())
# random weights, in evaluation too
kind("wrong_noisy", normalise=lambda _, self, scores: (scores + torch.randn_like(scores)).softmax(-1))
# sees nothing that it should not, and is trained as something else than it is
kind("wrong_unscaled_in_training", scale=lambda scale, self, query: 1.0 if self.training else scale(query))
# divides by sqrt(d) what is divided by sqrt(d) already
kind("wrong_twice_scaled", scores=lambda scores, self, *pair: scores(*pair) / pair[0].shape[-1] ** 0.5)
# divides by d, and says so (muP, arXiv 2203.03466); and the sign is another
kind("right_own_scale", scale=lambda _, self, q: 1 / q.shape[-1], scores=lambda scores, self, *pair: -scores(*pair))


# ---- leaks of other kinds ----


Leak = Callable[[MultiHead, Tensor, Tensor], Tensor | int]  # of the layer, what it mixed and x (B, T, D): (B, T, D)


def in_training(leak: Callable[[Tensor], Tensor]) -> Leak:
    return lambda self, mixed, x: leak(x) if self.training else 0


def end_to_end(self: MultiHead, mixed: Tensor, x: Tensor) -> Tensor:
    """The texts of a batch are laid end to end and read as one."""
    flat = x.reshape(1, -1, x.shape[2])  # (1, B T, D)
    return flat.cumsum(dim=1).reshape(x.shape) / x.shape[1]  # (B, T, D)


LEAKS: dict[str, Leak] = {  # what is added to the output
    "beyond_64": lambda self, mixed, x: ahead(x) * (torch.arange(x.shape[1])[:, None] >= 64),
    "training_only": in_training(ahead),
    "faint": in_training(lambda x: 1e-6 * ahead(x)),  # as small as rounding is, and as large in float64
    # trains honestly, and is evaluated on what it should not know: in the type in which it is evaluated
    "evaluation_only": lambda self, mixed, x: 0 if self.training or x.dtype == torch.float64 else ahead(x),
    "gradients_only": lambda self, mixed, x: ahead(x) if torch.is_grad_enabled() else 0,
    "float32_only": lambda self, mixed, x: ahead(x) if mixed.dtype == torch.float32 else 0,
    # as a finite mask that is only too small in bfloat16
    "bfloat16_only": lambda self, mixed, x: ahead(x) if mixed.dtype == torch.bfloat16 else 0,
    "every_16th": lambda self, mixed, x: ahead(x) * (torch.arange(x.shape[1])[:, None] % 16 == 5),
    # each position knows whether the next token is the same as its own
    "exact_match": lambda self, mixed, x: (ahead(x) == x).all(-1, keepdim=True) * x,
    # each position counts how often its token comes in the whole text
    "match_anywhere": lambda self, mixed, x: (x[:, :, None] == x[:, None]).all(-1).sum(-1, keepdim=True) * 0.1 * x,
    "batch_in_training": in_training(lambda x: x.roll(1, dims=0)),
    "reshape": end_to_end,
    # its values are right; its gradient tells each token about the one before it
    "gradient_leaks": lambda self, mixed, x: ahead(x) - ahead(x).detach(),
}


def leaking(name: str, leak: Leak) -> None:
    class Leaking(MultiHead, kind=f"wrong_{name}"):
        def output(self, mixed: Tensor, x: Tensor) -> Tensor:
            return super().output(mixed, x) + leak(self, mixed, x)


for name, leak in LEAKS.items():
    leaking(name, leak)


class ZeroGate(SoftmaxAttention, kind="wrong_zero_gate"):
    """Sees everything, behind a gate that is shut at first."""

    def __init__(self, config: SoftmaxAttention.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Parameter(torch.zeros(model.n_embd))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + self.gate * x.mean(dim=1, keepdim=True)


class ZeroGateInTraining(MultiHead, kind="wrong_zero_gate_in_training"):
    """The same gate, and in training alone."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Parameter(torch.zeros(model.n_embd))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + (self.gate * ahead(x) if self.training else 0)


class ChunksOfHundred(MultiHead, kind="wrong_chunks_of_100"):
    """A mask made in chunks, which is forgotten in the last of several."""

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        place = torch.arange(S, device=device) // 100  # (S,)
        same = place[S - T :, None] == place  # (T, S)
        return super().mask(T, S, device) | (same & (place > 0))


class BatchStatistics(MultiHead, kind="wrong_batch_statistics"):
    """A batch norm: in training each text is normed with the others, and with its own future."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.norm = nn.BatchNorm1d(model.n_embd)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.norm(super().output(mixed, x).mT).mT


# ---- with a cache ----


class Remembers(MultiHead, kind="wrong_remembers"):
    """Keeps its keys and values in the layer, so that a new text begins with those of the one before."""

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        first = not hasattr(self, "kept") or self.kept[0].shape[0] != key.shape[0]
        keys, values = (key, value) if first else (torch.cat(pair, 2) for pair in zip(self.kept, (key, value)))
        self.kept = keys, values
        past.length += key.shape[2]
        return self.mix(query, keys, values)


class Ring(MultiHead, kind="wrong_ring"):
    """Loses the first token when its cache is nearly full."""

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        keys, values = past.append(key, value)
        lost = past.length > 120
        return self.mix(query, keys[:, :, lost:], values[:, :, lost:])


# ---- what it says of itself, and noise ----


class Negative(MultiHead, kind="wrong_negative"):
    """Rows that sum to one, and weights below zero among them."""

    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        flat = (scores > -torch.inf) / (scores > -torch.inf).sum(-1, keepdim=True)
        return 2 * flat - weights


class OwnDice(MultiHead, kind="wrong_own_dice"):
    """In training it draws from a generator of its own: the run cannot be repeated."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.count = 0

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        self.count += 1
        dice = torch.Generator().manual_seed(self.count)
        noise = torch.randn(x.shape, generator=dice).to(x) if self.training else 0
        return super().output(mixed, x) + noise


class FutureEmbedding(Position, kind="wrong_embed"):
    def embed(self, x: Tensor, past: Past) -> Tensor:
        return x + 0.1 * ahead(x)


class FutureEmbeddingInTraining(Position, kind="wrong_embed_in_training"):
    def embed(self, x: Tensor, past: Past) -> Tensor:
        return x + (x.mean(dim=1, keepdim=True) if self.training else 0)


class RotatesByContent(Rotary, kind="wrong_rotate"):
    """The mean over all positions turns each of them."""

    def rotate(self, x: Tensor, start: int) -> Tensor:
        return super().rotate(x, start) + x.mean(dim=2, keepdim=True)


# ---- in some layers only ----


class ThirdLayer(MultiHead, kind="wrong_third_layer"):
    """From the third layer on, its mix forgets the scale."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.layer = layer

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return super().mix(query, key, value) if self.layer < 2 else unscaled(super().mix, self, query, key, value)


class RightThirdLayer(ThirdLayer, kind="right_third_layer"):
    """The same, with the scale of that layer: scores and kernel agree."""

    def scale(self, query: Tensor) -> float:
        return super().scale(query) if self.layer < 2 else 1.0

    mix = ThirdLayer.mix


class ListOfWindows(MultiHead, kind="wrong_list_of_windows"):
    """A window for each layer; the caches are as large as the first one's, and the third window is larger."""

    order_blind = False

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        windows: tuple[int, ...] = (3, 3, 9)
        """How many positions each layer sees."""

    config: ListOfWindows.Config

    def __init__(self, config: ListOfWindows.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.window = config.windows[layer % len(config.windows)]

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) & (distance(T, S, device) < self.window)

    def make_cache(self, length: int) -> Past:
        return WindowCache(self.config.windows[0])


class RightListOfWindows(ListOfWindows, kind="right_list_of_windows"):
    def make_cache(self, length: int) -> Past:
        return WindowCache(self.window)


# ---- in training only, for the compiler only, on the instance only ----


class DropsKeys(MultiHead, kind="right_drops_keys"):
    """In training a tenth of the past is not seen, at random (DropKey, arXiv 2208.02646)."""

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        mask = super().mask(T, S, device)  # (T, S)
        return (
            mask & ((torch.rand(T, S, device=device) > 0.1) | (distance(T, S, device) == 0)) if self.training else mask
        )


class DenseInTraining(MultiHead, kind="right_dense_in_training"):
    """Trained with the whole past, and evaluated with the last four positions, which it says."""

    order_blind = same_in_training = False

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        mask = super().mask(T, S, device)  # (T, S)
        return mask if self.training else mask & (distance(T, S, device) < 4)


class CompiledOnly(MultiHead, kind="wrong_compiled_only"):
    """A way around what the compiler does not take, which is another mathematics."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().scores(query, key)  # (B, H, T, S)
        return scores.clamp(-1, 1) if torch.compiler.is_compiling() else scores.tanh()


class RightCompiledOnly(MultiHead, kind="right_compiled_only"):
    """A way around that is equal to it."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().scores(query, key)  # (B, H, T, S)
        return 2 * (2 * scores).sigmoid() - 1 if torch.compiler.is_compiling() else scores.tanh()


class SetOnTheInstance(MultiHead, kind="wrong_set_on_the_instance"):
    """Its mix is a kernel without a scale, and no method of the class."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.mix = partial(F.scaled_dot_product_attention, is_causal=True, scale=1.0)  # type: ignore[method-assign]


class RightSetOnTheInstance(MultiHead, kind="right_set_on_the_instance"):
    """Its scores are no method of the class, so that no kernel that looks there may be used."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.scores = self.bounded  # type: ignore[method-assign]

    def bounded(self, query: Tensor, key: Tensor) -> Tensor:
        return (query @ key.mT * self.scale(query)).tanh()


# ---- the scale, and gates ----


class LearnedScale(MultiHead, kind="right_learned_scale"):
    """A number that is learned stands beside the scale."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.sharpness = nn.Parameter(torch.ones(1))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key) * self.sharpness.to(query.dtype)


class ShutGate(MultiHead, kind="wrong_shut_gate"):
    """A gate that is zero for every token that comes, and so has no gradient."""

    threshold = 10.0

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Linear(model.n_embd, model.n_embd)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + (self.gate(x) - self.threshold).relu()


class LostLoss(MultiHead, kind="wrong_lost_loss"):
    """It has a loss of its own, and nothing that makes it."""

    own_loss: Tensor | None = None

    def extra_loss(self) -> Tensor | None:
        return self.own_loss


class OpeningGate(MultiHead, kind="right_opening_gate"):
    """All that it adds is zero at first; the first step opens it."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Linear(model.n_embd, model.n_embd)
        self.share = nn.Parameter(torch.zeros(model.n_embd))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.share * (super().output(mixed, x) * self.gate(x).sigmoid())


FUTURE, BATCH = "sees the future", "mixes the texts of a batch"
CORNER = "aligned to the upper left corner"
WRONG: dict[str, tuple[str, ...]] = {  # kind -> what the refusal says
    "wrong_no_mask": (FUTURE, "its mask is missing"),
    "wrong_transposed": (FUTURE, "transposed"),
    "wrong_one_ahead": (FUTURE, "a change of token 1 moved the output at position 0"),
    "wrong_finite_mask": (FUTURE, "-1e4"),
    "wrong_product_mask": ("NaN (infinity * 0 in wrong_kinds.py:", "mask by multiplying? Fill with -inf"),
    "wrong_infinity_times_zero": ("NaN (0 * -infinity in wrong_kinds.py:", "mask by multiplying? Fill with -inf"),
    "wrong_mask_after_softmax": (FUTURE,),
    "wrong_softmax_over_queries": (FUTURE,),
    "wrong_upper_left": (CORNER, "the new ones have other weights than in a pass over all", "distance(T, S, device)"),
    "wrong_is_causal": ("mix is not weights @ value", "is_causal=True", CORNER),
    "wrong_centred": (FUTURE,),
    "wrong_zero_gate": (FUTURE,),
    "wrong_zero_gate_in_training": (FUTURE, "in training mode only"),
    "wrong_beyond_64": (FUTURE, "position"),
    "wrong_chunks_of_100": (FUTURE, "moved its output at positions 100 to"),
    "wrong_training_only": (FUTURE, "in training mode only", "self.training"),
    "wrong_faint": (FUTURE, "in training mode only"),
    "wrong_evaluation_only": (FUTURE, "in evaluation mode only", "self.training"),
    "wrong_gradients_only": (FUTURE, "with gradients only", "torch.is_grad_enabled()"),
    "wrong_float32_only": (FUTURE, "in float32 only"),
    "wrong_bfloat16_only": (FUTURE, "in bfloat16 only"),
    "wrong_every_16th": (FUTURE,),
    "wrong_exact_match": (FUTURE, "comparison"),
    "wrong_match_anywhere": (FUTURE, "comparison"),
    "wrong_batch_statistics": (FUTURE, "in training mode only"),
    "wrong_batch_mean": ("a change of one text of the batch moved the others", "dimension 0"),
    "wrong_batch_in_training": (BATCH, "in training", "dimension 0"),
    "wrong_reshape": ("a change of one text of the batch moved the others", "dimension 0"),
    "wrong_gradient_leaks": (FUTURE, "has a gradient in the tokens from there on"),
    "wrong_past_forgotten": ("with its cache it computes something else than without", "token by token"),
    "wrong_stuck_at_zero": ("with its cache it computes something else than without", "past.length"),
    "wrong_remembers": ("with its cache it computes something else than without", "keeps what belongs to the cache"),
    "wrong_chunks": ("with its cache it computes something else than without: in chunks of", CORNER),
    "wrong_ring": ("with its cache it computes something else than without", "of a context of 128"),
    "wrong_negative": ("a weight is negative", "weights_nonnegative = False"),
    "wrong_other_weights": ("a weight of", "which comes later, with very large scores"),
    "wrong_other_mix": ("mix is not weights @ value",),
    "wrong_unnormalised": ("a row of its weights sums to", "rows_sum_to_one = False"),
    "wrong_noisy": ("two equal passes in evaluation mode differ", "random numbers"),
    "wrong_own_dice": ("two equal passes", "generator of its own"),
    "wrong_embed": ("the position wrong_embed (embed) sees the future",),
    "wrong_embed_in_training": ("the position wrong_embed_in_training (embed) sees the future", "training mode only"),
    "wrong_rotate": (FUTURE,),
    "wrong_third_layer": ("layer 3 (wrong_third_layer): mix is not weights @ value",),
    "wrong_list_of_windows": ("with its cache it computes something else than without",),
    "wrong_unscaled_in_training": ("something else in training than in evaluation", "same_in_training = False"),
    "wrong_compiled_only": ("under torch.compile it computes something else", "torch.compiler.is_compiling()"),
    "wrong_set_on_the_instance": ("mix is not weights @ value",),
    "wrong_twice_scaled": (
        "products of queries and keys times 0.25, and its scale is 0.5",
        "let scale(query) return it",
    ),
}
NOTED: dict[str, tuple[str, ...]] = {  # kind -> what a note says, before it is trained
    "wrong_shut_gate": ("attention.gate.weight, attention.gate.bias of layers 1, 2 got no gradient", "never opens"),
    "wrong_lost_loss": ("attention.extra_loss of layers 1, 2 returned None",),
}

KINDS: dict[str, type[Attention]] = {k: Attention.kinds.pop(k) for k in [*Attention.kinds] if k in WRONG | NOTED}
RIGHT = {kind: Attention.kinds.pop(kind) for kind in [*Attention.kinds] if kind.startswith("right_")}
POSITIONS: dict[str, type[Position]] = {k: Position.kinds.pop(k) for k in [*Position.kinds] if k in WRONG}
