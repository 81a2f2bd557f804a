"""RMSNorm: equal to torch's, forward and backward, and without NaN for vectors of zeros; the norms of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import RMSNorm
from minigpt.config.options import from_dict
from minigpt.fast.decoding import prepare
from minigpt.model import GPT, ModelConfig, Norm
from minigpt.model.norm import LayerNorm
from minigpt.system.errors import ConfigError


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


# ---- the norms of the residual stream ----

SMALL = ModelConfig(n_layer=2, n_embd=16, block_size=8)


def made(model_bias: bool = True, **options: object) -> Norm:
    torch.manual_seed(0)
    config = from_dict(ModelConfig, {"n_embd": 12, "bias": model_bias, "norm": options})
    norm: Norm = config.norm.component(config.norm, config)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm.double()


FORMULAS: dict[str, Callable[[Tensor, float], Tensor]] = {  # x (..., D), epsilon -> (..., D)
    "layernorm": lambda x, epsilon: FORMULAS["rmsnorm"](x - x.mean(dim=-1, keepdim=True), epsilon),
    "rmsnorm": lambda x, epsilon: x / (x.pow(2).mean(dim=-1, keepdim=True) + epsilon).sqrt(),
}


def test_there_is_a_formula_for_every_kind_with_an_epsilon() -> None:
    """Any other kind has a test of its own below."""
    assert FORMULAS.keys() == {name for name, kind in Norm.kinds.items() if hasattr(kind.Config, "epsilon")}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("kind", FORMULAS)
def test_the_models_norms_are_their_formulas(kind: str, epsilon: float, weights: bool) -> None:
    norm, x = made(kind=kind, epsilon=epsilon, weights=weights), torch.randn(2, 3, 12, dtype=torch.float64)
    named = dict(norm.named_parameters())
    expected = FORMULAS[kind](x, epsilon) * named.get("weight", 1) + named.get("bias", 0)  # (2, 3, 12)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("model_bias", "options", "names"),
    [
        (True, {"kind": "layernorm"}, ["weight", "bias"]),
        (False, {"kind": "layernorm"}, ["weight"]),
        (True, {"kind": "layernorm", "bias": False}, ["weight"]),
        (False, {"kind": "layernorm", "bias": True}, ["weight", "bias"]),
        (True, {"kind": "layernorm", "weights": False}, []),
        (True, {"kind": "rmsnorm"}, ["weight"]),
        (True, {"kind": "rmsnorm", "weights": False}, []),
    ],
    ids=str,
)
def test_what_a_norm_learns(model_bias: bool, options: dict[str, object], names: list[str]) -> None:
    assert [name for name, _ in made(model_bias, **options).named_parameters()] == names


def test_a_bias_without_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"norm\.bias: a norm without weights has no bias"):
        made(kind="layernorm", weights=False, bias=True)


@torch.no_grad()
@pytest.mark.parametrize("kind", Norm.kinds)
def test_a_prepared_model_norms_the_same(kind: str) -> None:
    norm = Norm.kinds[kind].Config()
    shape = replace(SMALL, norm=replace(norm, epsilon=0.5) if kind in FORMULAS else norm, embedding_norm=True)
    model, ids = GPT(shape, 11).double().eval(), torch.randint(11, (2, 8))
    torch.testing.assert_close(prepare(model)(ids), model(ids), rtol=1e-10, atol=1e-10)
    if kind not in FORMULAS:
        return
    other = GPT(replace(shape, norm=Norm.kinds[kind].Config()), 11).double().eval()
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(other(ids), model(ids), rtol=0.01)  # epsilon acts


@torch.no_grad()
def test_a_layer_norm_of_ones_own_is_not_given_torchs_function() -> None:
    class Halved(LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) / 2

    model, ids = GPT(replace(SMALL, norm=Halved.Config()), 11).double().eval(), torch.randint(11, (2, 8))
    torch.testing.assert_close(prepare(model)(ids), model(ids), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(model.norm(torch.randn(3, 16).double()).std(), torch.ones(()).double(), rtol=0.2)
