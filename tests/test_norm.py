"""RMSNorm: equal to torch's, forward and backward, and without NaN for vectors of zeros."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from minigpt.attention.norm import RMSNorm


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("weights", [True, False])
def test_it_is_torchs(weights: bool, scale: float) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(12, weights).double()
    if weights:
        torch.nn.init.normal_(norm.weight)
    x = (scale * torch.randn(2, 3, 12, dtype=torch.float64)).requires_grad_()
    ours, theirs = norm(x), F.rms_norm(x, (12,), norm.weight, 1e-6)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(x)
    wanted = [x, norm.weight] if weights else [x]
    found = (torch.autograd.grad(y, wanted, direction) for y in (ours, theirs))
    for mine, other in zip(*found):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10 / scale)


def test_zeros_stay_zeros_with_gradients_that_are_numbers() -> None:
    x = torch.zeros(2, 12, requires_grad=True)
    y = RMSNorm(12)(x)
    y.sum().backward()
    assert not y.any() and x.grad is not None and x.grad.isfinite().all()


def test_the_type_is_that_of_what_arrives() -> None:
    x = torch.randn(3, 12, dtype=torch.bfloat16)
    assert RMSNorm(12)(x).dtype == torch.bfloat16
    torch.testing.assert_close(RMSNorm(12)(x).float(), F.rms_norm(x.float(), (12,)), rtol=0.02, atol=0.02)
