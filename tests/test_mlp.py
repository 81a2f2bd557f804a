"""The MLPs: each is its paper's formula in float64, with a gate and without.

B batch, T positions, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from laws import stir
from torch import Tensor, nn

from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.model import GPT, MLP, ModelConfig
from minigpt.model.mlp import GELU, SwiGLU

D, WIDTH = 12, 20
SMALL = ModelConfig(n_layer=2, n_embd=16, block_size=8)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def normal_cdf(x: Tensor) -> Tensor:
    """The probability that a standard normal number is below x."""
    return (1 + torch.erf(x / math.sqrt(2))) / 2


def tanh_cdf(x: Tensor) -> Tensor:
    """Its approximation in GPT-2's code: through a tanh of a cubic polynomial."""
    return (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * normal_cdf(x),
    "gelu_tanh": lambda x: x * tanh_cdf(x),
    "relu2": lambda x: torch.where(x > 0, x, 0) ** 2,
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
    "geglu": lambda x: x * normal_cdf(x),
    "geglu_tanh": lambda x: x * tanh_cdf(x),
}


def test_there_is_a_formula_for_every_kind() -> None:
    assert FORMULAS.keys() == MLP.kinds.keys()


def made(kind: str, bias: bool = True) -> MLP:
    torch.manual_seed(0)
    shape = ModelConfig(n_embd=D, bias=bias)
    mlp: MLP = MLP.kinds[kind](MLP.kinds[kind].Config(width=WIDTH), shape)
    stir(mlp, 0.5)
    return mlp.double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", MLP.kinds)
def test_it_is_its_formula_forward_and_backward(kind: str, bias: bool) -> None:
    mlp = made(kind, bias)
    x = torch.randn(2, 5, D, dtype=torch.float64, requires_grad=True)  # (B, T, D)

    def linear(name: str) -> Tensor:
        named = dict(mlp.named_parameters())
        return x @ named[f"{name}.weight"].T + (named[f"{name}.bias"] if bias else 0)  # (B, T, WIDTH)

    hidden = FORMULAS[kind](linear("gate")) * linear("up") if mlp.gated else FORMULAS[kind](linear("up"))
    expected = hidden @ mlp.project.weight.T + (mlp.project.bias if bias else 0)  # (B, T, D)
    torch.testing.assert_close(mlp(x), expected, **EXACT)
    direction = torch.randn_like(expected)
    for ours, theirs in zip(*(torch.autograd.grad(y, [x, *mlp.parameters()], direction) for y in (mlp(x), expected))):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_names_of_the_parameters_and_the_order_in_which_they_are_drawn() -> None:
    for kind, names in (("gelu", ["up", "project"]), ("geglu_tanh", ["up", "gate", "project"])):
        assert [name for name, _ in made(kind).named_children()] == names


def test_with_a_gate_the_hidden_layer_is_narrower() -> None:
    for kind, mlp in MLP.kinds.items():
        width = GPT(replace(SMALL, mlp=mlp.Config()), 5).blocks[0].mlp.up.out_features
        assert width == (42 if mlp.gated else 64), kind
        assert made(kind).up.out_features == WIDTH  # as it is asked for


def test_the_tanh_is_near_gelu_and_not_equal() -> None:
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    far = (made("gelu").activation(x) - made("gelu_tanh").activation(x)).abs().max()
    assert 1e-4 < far < 5e-4


# ---- the faster forms ----


@torch.no_grad()
@pytest.mark.parametrize("kind", MLP.kinds)
def test_a_prepared_model_computes_the_same(kind: str) -> None:
    model = GPT(replace(SMALL, mlp=MLP.kinds[kind].Config(width=WIDTH)), 11).eval()
    stir(model, 0.1)
    plain, ids = make_fast(model.double(), fast=False), torch.randint(11, (2, 8))
    expected, prepared = plain(ids), prepare(model)
    torch.testing.assert_close(prepared(ids), expected, rtol=1e-10, atol=1e-10)
    assert ("joined" in vars(prepared.blocks[0].mlp)) is MLP.kinds[kind].gated


@torch.no_grad()
def test_an_mlp_of_ones_own_keeps_the_joined_layer_only_if_it_fits() -> None:
    class Sigmoid(SwiGLU):
        def activation(self, hidden: Tensor) -> Tensor:
            return hidden.sigmoid()

    class Sum(SwiGLU):
        def forward(self, x: Tensor) -> Tensor:
            return self.project(self.gate(x) + self.up(x))

    class OneGate(SwiGLU):
        def __init__(self, config: SwiGLU.Config, model: ModelConfig):
            super().__init__(config, model)
            self.gate = nn.Linear(model.n_embd, 1)

    for kind, joined in ((Sigmoid, True), (Sum, False), (OneGate, False)):
        model = GPT(replace(SMALL, mlp=kind.Config()), 11).double().eval()
        stir(model, 0.1)
        ids, prepared = torch.randint(11, (2, 8)), prepare(model)
        torch.testing.assert_close(prepared(ids), model(ids), rtol=1e-10, atol=1e-10)
        assert ("joined" in vars(prepared.blocks[0].mlp)) is joined, kind


def test_a_kind_without_a_non_linearity_says_what_is_missing() -> None:
    class Nothing(MLP):
        pass

    with pytest.raises(TypeError, match=r"Nothing must define activation\(hidden\)"):
        GPT(replace(SMALL, mlp=Nothing.Config()), 5)(torch.zeros(1, 2, dtype=torch.long))


def test_the_default_is_gelu() -> None:
    assert ModelConfig().mlp == GELU.Config() and type(GPT(SMALL, 5).blocks[0].mlp) is GELU
