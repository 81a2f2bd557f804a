"""Queries in parts, each with the keys up to its end, equal the whole: values, gradients, a kind's own loss.

B batch, H heads, T positions, D model width, d width of a head.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import takewhile
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from minigpt.attention import Attention, MultiHead, Shape
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary
from minigpt.attention.softmax.soft_cap import SoftCap
from minigpt.attention.sparse.soft_cap_window import SoftCapWindow
from minigpt.fast import make_fast, parts
from minigpt.fast.guard import FORMS, METHODS, fitting

EXACT = {"rtol": 1e-10, "atol": 1e-10}
KINDS = [owner for (owner, _), form in FORMS.items() if form.trick == parts.PARTS]
OPTIONS = {"soft_cap": {"cap": 0.5, "n_kv_head": 2}, "block_top_k": {"block": 4}, "native_sparse": {"block": 4}}
T = 29


def plain_and_fast(kind: type[Attention], position: type[Position], **options: object) -> tuple[Attention, Attention]:
    torch.manual_seed(0)
    shape = Shape(n_embd=16, block_size=T, position=position.Config())
    layer = kind(kind.Config(**OPTIONS.get(kind.kind, {}) | options), shape).double()
    return make_fast(layer, fast=False), make_fast(copy.deepcopy(layer))


def results(layer: Attention, x: Tensor) -> list[Tensor]:
    """The output for x (B, T, D), the loss of the kind's own, and the gradients of the sum of both."""
    wanted = [x.clone().requires_grad_(), *layer.parameters()]
    output = layer(wanted[0])  # (B, T, D)
    own = layer.extra_loss()
    loss = output.sin().sum() + (0 if own is None else own)
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [output, output.new_zeros(()) if own is None else own, *(g for g in gradients if g is not None)]


def test_a_kind_has_a_faster_form_until_it_changes_what_that_was_written_for() -> None:
    """For training, for writing, or for both: kinds that `fast/` names, and those that make weights as these do."""
    named, makers = {owner for owner, _ in FORMS}, {"weights", "scores", "bias", "normalise", "mix", "advance"}
    for name, kind in Attention.kinds.items():
        own = [*takewhile(lambda base: base not in named, kind.__mro__)]
        if kind.__module__.startswith("minigpt.") and not any(makers & vars(base).keys() for base in own):
            assert any(fitting(kind, method) is not fitting(kind, method, fast=False) for method in METHODS), name


@pytest.mark.parametrize("position", [NoPosition, Rotary, Alibi])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_parts_are_the_whole(kind: type[Attention], position: type[Position]) -> None:
    """Three parts of eight queries and one of five."""
    plain, fast = plain_and_fast(kind, position)
    assert "mix" in vars(fast)["faster"]
    x = torch.randn(2, T, 16, dtype=torch.float64)
    with patch.object(parts, "SIZE", 8):
        found = results(fast, x)
    for ours, theirs in zip(found, results(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_prompt_behind_others_is_read_in_parts_too(kind: type[Attention]) -> None:
    plain, fast = plain_and_fast(kind, Rotary)
    x, past = torch.randn(1, T, 16, dtype=torch.float64), fast.make_cache(T)
    with patch.object(parts, "SIZE", 8):
        written = torch.cat([fast(chunk, past) for chunk in x.split([3, 1, T - 4], dim=1)], dim=1)  # (B, T, D)
    torch.testing.assert_close(written, plain(x), **EXACT)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_what_sees_the_future_is_not_cut(kind: type[Attention]) -> None:
    plain, fast = plain_and_fast(kind, NoPosition, causal=False)
    x = torch.randn(2, T, 16, dtype=torch.float64)
    with patch.object(parts, "SIZE", 8):
        torch.testing.assert_close(fast(x), plain(x), **EXACT)


@torch.no_grad()
def test_the_future_of_a_part_gets_no_scores() -> None:
    """512 queries in parts of 128: 128 (128 + 256 + 384 + 512) pairs instead of 512^2."""
    _, layer = plain_and_fast(Attention.kinds["sparsemax"], NoPosition)
    pairs: list[int] = []

    def counting(self: MultiHead, query: Tensor, key: Tensor) -> Tensor:
        pairs.append(query.shape[2] * key.shape[2])
        return scores(self, query, key)

    scores = MultiHead.scores
    with patch.object(MultiHead, "scores", counting):
        layer(torch.randn(1, 512, 16, dtype=torch.float64))
    assert sum(pairs) == 128 * (128 + 256 + 384 + 512)


@pytest.mark.parametrize("changed", ["scores", "mask", "normalise"])
def test_a_soft_cap_of_ones_own_is_computed_as_it_says(changed: str) -> None:
    """What a subclass changes is not in the faster form, which leaves it."""
    Own = type("Own", (SoftCap,), {changed: lambda self, *args: getattr(super(Own, self), changed)(*args)}, kind="own")
    Attention.kinds.pop("own")
    assert "mix" not in vars(plain_and_fast(Own, NoPosition)[1])["faster"]


@torch.no_grad()
@pytest.mark.parametrize("kind", [SoftCap, SoftCapWindow], ids=lambda kind: kind.kind)
def test_dropout_in_parts_keeps_the_mean(kind: type[Attention]) -> None:
    torch.manual_seed(0)
    shape = replace(Shape(n_embd=16, block_size=T, dropout=0.3), position=NoPosition.Config())
    layer = make_fast(kind(kind.Config(), shape).double())
    x = torch.randn(1, T, 16, dtype=torch.float64)
    expected = layer.eval()(x)  # (1, T, D)
    with patch.object(parts, "SIZE", 8):
        drawn = layer.train()(x.expand(400, -1, -1))  # (B, T, D)
    spread = drawn.std(dim=0)  # (T, D)
    assert spread[1:].amax(dim=-1).min() > 0
    assert ((drawn.mean(dim=0) - expected[0]).abs() < 6 * spread / 400**0.5).all()
