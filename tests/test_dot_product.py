"""The dot product without self-attention (`include_self: false`). The laws are tested in test_contract."""

from __future__ import annotations

import torch
from laws import BLOCK, Case, make_layer, parts, tokens

from minigpt.attention.position import NoPosition
from minigpt.attention.softmax.dot_product import DotProduct

STRICT = DotProduct.Config(include_self=False)


@torch.no_grad()
def test_nobody_looks_at_itself_but_the_first_who_has_nobody_else() -> None:
    layer = make_layer(Case(STRICT, NoPosition.Config()))
    x = tokens(2, BLOCK)
    weights = layer.weights(*parts(layer, x, BLOCK)[:2])[:, 0]  # (B, T, S)
    itself = weights.diagonal(dim1=1, dim2=2)  # (B, T)
    assert (itself[:, 0] == 1).all()
    assert (itself[:, 1:] == 0).all()
    assert torch.equal(layer(x)[:, 1], x[:, 0])  # the second sees the first alone


@torch.no_grad()
def test_the_others_are_weighted_as_before() -> None:
    """Without the diagonal, what is left of each row is the ordinary row in other proportions."""
    strict, plain = (make_layer(Case(c, NoPosition.Config())) for c in (STRICT, DotProduct.Config()))
    x = tokens(2, BLOCK)
    ours, theirs = (layer.weights(*parts(layer, x, BLOCK)[:2])[:, 0, 1:] for layer in (strict, plain))  # (B, T - 1, S)
    left = theirs - torch.diag_embed(theirs.diagonal(offset=1, dim1=1, dim2=2), offset=1)[:, : BLOCK - 1]
    torch.testing.assert_close(ours, left / left.sum(-1, keepdim=True), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_one_that_may_see_the_future_still_does_not_see_itself() -> None:
    layer = make_layer(Case(DotProduct.Config(include_self=False, causal=False), NoPosition.Config()))
    weights = layer.weights(*parts(layer, tokens(1, 5), 5)[:2])[0, 0]  # (T, S)
    assert (weights.diagonal() == 0).all()
    assert (weights + torch.eye(5) > 0).all()
    assert layer(tokens(1, 1)).isfinite().all()
