"""Temporary edits of a trained model. What does a head do? Switch it off and see.

    with edited(model, Edits(heads_off=frozenset({(2, 3)}))):     # layer 3, head 4: layers and heads count from 0 here
        model(ids)

In an edited layer of any kind, the values are mixed by the explicit weights, `weights @ value`, so an edit of the
weights changes the output. An edit that can have no effect is refused; `possible` says which edits have one.

B batch, H heads, T query positions, S key positions, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.position import distance
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.model.replaced import replaced
from minigpt.seeing.trace import tracing
from minigpt.system.errors import UserError

LARGEST_SCALE = 1e6  # scores that are multiplied by more may overflow
PROBED = 16  # positions of the text on which `possible` tries the edits


@dataclass(frozen=True)
class Edits:
    """What is changed. Layers, heads and positions count from 0; positions are those of the forward pass."""

    heads_off: frozenset[tuple[int, int]] = frozenset()
    """(layer, head): the output of the head is zero."""
    running_mean: frozenset[int] = frozenset()
    """The layers in which every position gives equal weight to itself and to all earlier positions."""
    scale: Mapping[int | Literal["all"], float] = field(default_factory=dict)
    """{layer or "all": the factor of its scores, bias included}: with 0, all unmasked positions get equal weight."""
    cut: frozenset[tuple[int, int, int]] = frozenset()
    """(layer, query, key): in no head does this query see this key. A query without another key has an output of 0."""
    attentions_off: frozenset[int] = frozenset()
    """The layers whose attention returns zeros."""
    mlps_off: frozenset[int] = frozenset()
    """The layers whose MLP returns zeros."""

    def __hash__(self) -> int:
        parts = self.attentions_off, self.mlps_off
        return hash((self.heads_off, self.running_mean, frozenset(self.scale.items()), self.cut, *parts))

    def factor(self, layer: int) -> float:
        """The factor of the scores of a layer: 1 for a running mean, which has no scores."""
        return 1.0 if layer in self.running_mean else self.scale.get(layer, self.scale.get("all", 1.0))

    def layers(self, n_layer: int) -> list[int]:
        """The layers whose attention is changed."""
        edited_layers = {layer for layer, *_ in (*self.heads_off, *self.cut)} | self.running_mean | self.attentions_off
        return [layer for layer in range(n_layer) if layer in edited_layers or self.factor(layer) != 1]

    def check(self, n_layer: int) -> None:
        """Raises UserError for a layer that does not exist, and for edits that are wrong or contradict one another."""
        layers: list[Any] = [layer for layer, *_ in (*self.heads_off, *self.cut)]
        layers += [*self.running_mean, *self.scale, *self.attentions_off, *self.mlps_off]
        for layer in layers:
            if layer != "all" and not 0 <= layer < n_layer:
                raise UserError(f"layer {layer + 1}: the model has the layers 1 to {n_layer}")
        for scaled, factor in self.scale.items():
            if not 0 <= factor <= LARGEST_SCALE:
                raise UserError(f"scores x {factor:g}: expected a number from 0 to {LARGEST_SCALE:,.0f}")
            if scaled != "all" and scaled in self.running_mean:
                problem = f"layer {scaled + 1} is a running mean, which has no scores to scale"
                raise UserError(f"{problem}: give one of the two")
        for layer, query, key in self.cut:
            if not 0 <= key <= query:
                problem = f"position {query + 1} never sees position {key + 1}"
                raise UserError(f"layer {layer + 1}: {problem}: cut what it sees, its own position or one before it")


@contextmanager
def edited(model: GPT, edits: Edits) -> Iterator[GPT]:
    """The model with the edits, inside the `with`; afterwards it is unchanged, also after an error.

    The model can write text with a cache if `writes_with_cache` is true; otherwise it raises UserError. A forward pass
    raises UserError for a head that does not exist, and for a scale where no scores are normalised.
    """
    edits.check(len(model.blocks))
    attentions = model.attentions()
    with ExitStack() as exit_stack:
        for layer in edits.layers(len(attentions)):
            for method, function in _changes(attentions[layer], layer, edits).items():
                exit_stack.enter_context(replaced(attentions[layer], method, function))
        for layer in edits.mlps_off:
            if not hasattr(model.blocks[layer], "mlp"):
                raise UserError(f"layer {layer + 1} has no MLP to switch off")
            exit_stack.enter_context(replaced(model.blocks[layer], "mlp", torch.zeros_like))  # in every faster form too
        yield model


def keeps_keys(attention: Attention) -> bool:
    """Whether the kind mixes the keys and values of all positions in its plain form, with and without a cache."""
    kind = type(attention)
    return kind.recall is Attention.recall and kind.make_cache is Attention.make_cache


def writes_with_cache(model: GPT, edits: Edits) -> bool:
    """Whether the edited model can write with a cache: not if the cache of an edited layer is a state or a window."""
    attentions = model.attentions()
    return all(keeps_keys(attentions[layer]) for layer in edits.layers(len(attentions)))


def _changes(attention: Attention, layer: int, edits: Edits) -> dict[str, Callable[..., Any]]:
    """{method: its replacement} for the attention of one layer."""
    cuts = [(query, key) for cut_layer, query, key in edits.cut if cut_layer == layer]
    off = [head for head_layer, head in edits.heads_off if head_layer == layer]
    changes = _without_shortcuts(attention)
    if (factor := edits.factor(layer)) != 1:
        changes |= _scaled(attention, factor, layer)
    if layer in edits.running_mean:
        changes["weights"] = _as_running_mean(attention)
    if cuts:
        normalise = changes.get("normalise", getattr(attention, "normalise", None))
        changes |= _cut(attention, changes.get("weights", attention.weights), normalise, cuts)
    if off:
        changes["output"] = _without_heads(attention, off, layer)
    if layer in edits.attentions_off:
        changes["output"] = lambda mixed, x: torch.zeros_like(x)  # (B, T, D)
    return changes


def _without_shortcuts(attention: Attention) -> dict[str, Callable[..., Any]]:
    """The plain methods, which compute with the explicit weights."""
    if keeps_keys(attention):
        return {name: MethodType(getattr(Attention, name), attention) for name in ("mix", "recall", "make_cache")}

    def refuse(*past: Any) -> Tensor:
        raise UserError(f"{attention.kind} decodes from a cache that no edit reaches: write without a cache")

    return {"mix": MethodType(Attention.mix, attention), "recall": refuse}


def _scaled(attention: Attention, factor: float, layer: int) -> dict[str, Callable[..., Any]]:
    normalise: Callable[[Tensor], Tensor] | None = getattr(attention, "normalise", None)
    normalised: list[bool] = []

    def scaled(scores: Tensor) -> Tensor:
        normalised.append(True)
        assert normalise is not None
        hidden = scores.isneginf()  # (B, H, T, S)
        return normalise((scores * factor).masked_fill(hidden, -torch.inf))  # (B, H, T, S): 0 times -inf is NaN

    def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        normalised.clear()
        mixed = Attention.mix(attention, query, key, value)  # (B, H, T, e)
        if not normalised:
            raise UserError(f"layer {layer + 1} ({attention.kind}) normalises no scores: there is nothing to scale")
        return mixed

    return {"normalise": scaled, "mix": mix}


def running_mean(weights: Tensor) -> Tensor:
    """Weights of the same shape (B, H, T, S): every position gives equal weight to itself and to all before it."""
    visible = (distance(weights.shape[2], weights.shape[3], weights.device) >= 0).to(weights.dtype)  # (T, S)
    return (visible / visible.sum(dim=-1, keepdim=True)).expand_as(weights)  # (B, H, T, S)


def _as_running_mean(attention: Attention) -> Callable[[Tensor, Tensor], Tensor]:
    weights = attention.weights

    def mean(query: Tensor, key: Tensor) -> Tensor:
        return running_mean(weights(query, key))  # (B, H, T, S)

    return mean


def _cut(
    attention: Attention,
    weights: Callable[[Tensor, Tensor], Tensor],
    normalise: Callable[[Tensor], Tensor] | None,
    cuts: list[tuple[int, int]],
) -> dict[str, Callable[..., Any]]:
    """Give cut keys no score, if there are scores, and no weight; rows that sum to one still do so afterwards."""

    def cut_mask(like: Tensor) -> Tensor:
        T, S = like.shape[2:]
        mask = torch.zeros(T, S, dtype=torch.bool)  # (T, S)
        for query, key in cuts:
            if S - T <= query < S:
                mask[query - (S - T), key] = True
        return mask.to(like.device)

    def without_score(scores: Tensor) -> Tensor:
        assert normalise is not None
        masked = scores.masked_fill(cut_mask(scores), -torch.inf)  # (B, H, T, S)
        empty = masked.isneginf().all(dim=-1, keepdim=True)  # (B, H, T, 1): a softmax over nothing is NaN
        return normalise(torch.where(empty, scores, masked))  # (B, H, T, S)

    def without_weight(query: Tensor, key: Tensor) -> Tensor:
        before = weights(query, key)  # (B, H, T, S)
        cut = cut_mask(before)  # (T, S)
        after = before.masked_fill(cut, 0.0)  # (B, H, T, S)
        if attention.rows_sum_to_one:
            total = after.sum(dim=-1, keepdim=True)  # (B, H, T, 1)
            after = torch.where(cut.any(dim=-1, keepdim=True) & (total != 0), after / total, after)  # (B, H, T, S)
        return after

    return {"weights": without_weight} | ({"normalise": without_score} if normalise else {})


def _without_heads(attention: Attention, off: list[int], layer: int) -> Callable[[Tensor, Tensor], Tensor]:
    output = attention.output

    def silenced(mixed: Tensor, x: Tensor) -> Tensor:
        if max(off) >= mixed.shape[1] or min(off) < 0:
            heads = f"layer {layer + 1} has the heads 1 to {mixed.shape[1]}"
            raise UserError(f"head {(max(off) if min(off) >= 0 else min(off)) + 1}: {heads}")
        head_mask = torch.ones(mixed.shape[1], dtype=torch.bool)  # (H,)
        head_mask[off] = False
        return output(mixed * head_mask.to(mixed.device)[:, None, None], x)  # (B, T, D)

    return silenced


@dataclass(frozen=True)
class Possible:
    """Which edits of a layer have an effect. Heads and the attention can always be switched off, and edges cut."""

    heads: int
    mlp: bool  # whether there is one to switch off
    running_mean: bool  # false if the layer is a running mean already
    scale: bool  # false if no scores are normalised, or if all are equal


@torch.no_grad()
def possible(model: GPT) -> list[Possible]:
    """What can be edited in each layer, found by trying it on a short text of random tokens."""
    T = min(PROBED, model.config.block_size)
    ids = torch.randint(model.vocab_size, (1, T), generator=torch.Generator().manual_seed(0))  # (1, T)
    with eval_mode(model), tracing(model) as trace:
        model(ids.to(model.device))
    layers = []
    for layer, (attention, calls) in enumerate(zip(model.attentions(), trace.calls)):
        query, key, weights = calls[-1].query, calls[-1].key, calls[-1].weights  # ..., (1, H, T, T)
        with edited(model, Edits(scale={layer: 0.5})):
            scalable = not torch.equal(attention.weights(query, key), weights)
        flat = torch.allclose(weights, running_mean(weights), rtol=0, atol=1e-6)
        mlp = hasattr(model.blocks[layer], "mlp")
        layers.append(Possible(weights.shape[1], mlp, not flat, scalable))
    return layers
