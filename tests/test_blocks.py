"""The blocks: each is its papers' formula in float64, and writes with a cache, fast and prepared, as it reads.

B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from laws import stir
from torch import Tensor

from minigpt.attention import Past
from minigpt.attention.position import Rotary
from minigpt.checks.laws_of_writing import chunks, decode
from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.model import GPT, Block, ModelConfig, count_parameters
from minigpt.model.config import AnyBlock
from minigpt.model.mlp import SwiGLU
from minigpt.model.norm import Norm, RMSNorm
from minigpt.seeing.numbers import look
from minigpt.text.tokenizer import Char
from minigpt.training.memory import parameter_count

V, T = 11, 8
SMALL = ModelConfig(n_layer=3, n_embd=16, block_size=T)
MODERN = replace(SMALL, norm=RMSNorm.Config(), mlp=SwiGLU.Config(), position=Rotary.Config(), bias=False)
Part = Callable[[Tensor], Tensor]


def made(kind: str, shape: ModelConfig = SMALL) -> GPT:
    torch.manual_seed(0)
    model = GPT(replace(shape, block=AnyBlock.kinds[kind].Config()), V)
    stir(model, 0.1)
    return model.double().eval()


FORMULAS: dict[str, Callable[[Tensor, Part, Part, dict[str, Part], dict[str, Tensor]], Tensor]] = {
    # x, attention, mlp, norms and the block's parameters by name
    "pre_norm": lambda x, a, m, n, p: (h := x + a(n["attention_norm"](x))) + m(n["mlp_norm"](h)),
    "post_norm": lambda x, a, m, n, p: (h := x + n["attention_norm"](a(x))) + n["mlp_norm"](m(h)),
    "sandwich": lambda x, a, m, n, p: (
        (h := x + n["attention_post_norm"](a(n["attention_norm"](x)))) + n["mlp_post_norm"](m(n["mlp_norm"](h)))
    ),
    "parallel": lambda x, a, m, n, p: x + a(n["attention_norm"](x)) + m(n["mlp_norm"](x)),
    "parallel_one_norm": lambda x, a, m, n, p: x + a(n["attention_norm"](x)) + m(n["attention_norm"](x)),
    "attention_only": lambda x, a, m, n, p: x + a(x),
}
USUAL = ["attention_norm", "attention", "mlp_norm", "mlp", "dropout"]
PARTS = dict.fromkeys(FORMULAS, USUAL) | {
    "sandwich": [*USUAL, "attention_post_norm", "mlp_post_norm"],
    "parallel_one_norm": ["attention_norm", "attention", "mlp", "dropout"],
    "attention_only": ["attention", "dropout"],
}


def test_there_is_a_formula_for_every_kind() -> None:
    shipped = {kind for kind, block in AnyBlock.kinds.items() if block.__module__.startswith("minigpt.")}
    assert FORMULAS.keys() == shipped


@pytest.mark.parametrize("kind", AnyBlock.kinds)
def test_it_is_its_formula_forward_and_backward(kind: str) -> None:
    """With norms and an MLP that are written here once more, from the block's own weights."""
    block = made(kind).blocks[1]
    x = torch.randn(2, T, 16, dtype=torch.float64, requires_grad=True)  # (B, T, D)
    weights = dict(block.named_parameters())

    def norm_named(name: str) -> Part:
        def norm(x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]  # (B, T, D)

        return norm

    def mlp(x: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(x, weights["mlp.up.weight"], weights["mlp.up.bias"]))
        return F.linear(hidden, weights["mlp.project.weight"], weights["mlp.project.bias"])  # (B, T, D)

    norms = {name: norm_named(name) for name, _ in block.named_children() if name.endswith("norm")}
    expected = FORMULAS[kind](x, lambda x: block.attention(x, Past()), mlp, norms, weights)
    found = block(x, Past())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(expected)
    for ours, theirs in zip(
        *(torch.autograd.grad(y, [x, *block.parameters()], direction, retain_graph=True) for y in (found, expected))
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("shape", [SMALL, MODERN], ids=["gpt2", "modern"])
@pytest.mark.parametrize("kind", AnyBlock.kinds)
def test_plain_fast_prepared_and_cached_are_equal(kind: str, shape: ModelConfig) -> None:
    model, ids = made(kind, shape), torch.randint(V, (2, T))
    expected = make_fast(model, fast=False)(ids)  # (B, T, V)
    fast = make_fast(model)
    prepared = prepare(fast)
    for other in (fast, prepared):
        torch.testing.assert_close(other(ids), expected, rtol=1e-10, atol=1e-10)
        for sizes in ([1] * T, [*chunks(T, seed=1)]):
            torch.testing.assert_close(decode(other, ids, sizes), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(prepared.last(ids), model.hidden(ids)[:, -1], rtol=1e-10, atol=1e-10)
    cache = prepared.make_cache()
    prepared.last(ids[:, :5], cache)
    torch.testing.assert_close(prepared.last(ids[:, 5:], cache), model.hidden(ids)[:, -1], rtol=1e-10, atol=1e-10)


def test_the_parts_of_a_prepared_model_keep_their_kinds() -> None:
    """Which messages name; a kind that is registered once more would take the place of the first."""
    for kind in PARTS:
        block, model = AnyBlock.kinds[kind], made(kind)
        first, prepared = model.blocks[-1], prepare(model).blocks[-1]
        for part in {"attention", "attention_norm", "mlp"} & {*PARTS[kind]}:
            assert prepared.get_submodule(part).kind == first.get_submodule(part).kind != ""
        assert prepared.kind == kind and AnyBlock.kinds[kind] is block
        assert ModelConfig().block.component is Block


@torch.no_grad()
def test_a_block_of_ones_own_is_never_given_anothers_shortcut() -> None:
    class Louder(Block):
        def forward(self, x: Tensor, past: Past) -> Tensor:
            return super().forward(x, past) * 2

    class Reversed(Block):
        def forward(self, x: Tensor, past: Past) -> Tensor:
            x = x + self.mlp(self.mlp_norm(x))
            return x + self.attention(self.attention_norm(x), past)

    ids = torch.randint(V, (2, T))
    for kind in (Louder, Reversed):
        model = GPT(replace(SMALL, block=kind.Config()), V).double().eval()
        stir(model, 0.1)
        prepared = prepare(model)
        torch.testing.assert_close(prepared(ids), model(ids), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(prepared.last(ids), model.hidden(ids)[:, -1], rtol=1e-10, atol=1e-10)
        usual = GPT(SMALL, V).double().eval()
        usual.load_state_dict(model.state_dict())
        assert not torch.allclose(usual(ids), model(ids), rtol=0.01)


@pytest.mark.parametrize("kind", AnyBlock.kinds)
def test_a_model_of_any_block_learns_and_counts_its_parameters(kind: str) -> None:
    shape = replace(SMALL, block=AnyBlock.kinds[kind].Config(), dropout=0.1)
    model, ids = GPT(shape, V), torch.randint(V, (4, 9))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), list[float]()
    for _ in range(30):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
    norms = sum(isinstance(part, Norm) for part in model.blocks[0].modules())
    assert count_parameters(model)["norms"] == (norms * 3 + 1) * 2 * 16
    assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters())
    assert parameter_count(shape, V) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", AnyBlock.kinds)
def test_the_explorer_looks_into_every_block(kind: str) -> None:
    """The lens after the last layer is what the model predicts, and every head can be switched off."""
    tokenizer = Char("".join(sorted({*"Mia was not shy."})))
    model = GPT(replace(SMALL, block=AnyBlock.kinds[kind].Config()), tokenizer.vocab_size).eval()
    stir(model, 0.1)
    ids = torch.from_numpy(tokenizer.encode("Mia was")).long()[None]  # (1, T)
    numbers = look(model, tokenizer, ids)
    assert torch.equal(numbers.lens_top[-1], numbers.top[:, 0])
    torch.testing.assert_close(numbers.lens_chance[-1], numbers.chance[:, 0])
    assert numbers.worth.abs().min() > 0


def test_the_names_of_the_parts() -> None:
    assert ModelConfig().block == Block.Config() and type(GPT(SMALL, V).blocks[0]) is Block
    for kind, parts in PARTS.items():
        assert [name for name, _ in made(kind).blocks[0].named_children()] == parts


def test_parameters_of_a_block_itself_are_counted_by_their_name() -> None:
    class Scaled(Block):
        def __init__(self, config: ModelConfig, layer: int):
            super().__init__(config, layer)
            self.loudness = torch.nn.Parameter(torch.ones(5))

    counted = count_parameters(GPT(replace(SMALL, block=Scaled.Config()), V))
    assert counted["loudness"] == 15 and sum(counted.values()) == sum(count_parameters(GPT(SMALL, V)).values()) + 15
