"""The model: its initialisation, its number of parameters, counted by hand, its inputs and its outputs.

B batch, T positions, D model width.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from laws import KINDS

from minigpt.attention import Attention, AverageLoop, AverageSoftmax, DotProduct, GroupedQuery, MultiHead, SingleHead
from minigpt.attention.position import Learned, Position, Rotary
from minigpt.model import GPT, ModelConfig, count_parameters
from minigpt.model.config import AnyBlock
from minigpt.model.mlp import SquaredReLU, SwiGLU
from minigpt.model.norm import LayerNorm, RMSNorm

SMALL = ModelConfig(n_layer=2, n_embd=16, block_size=8)


# ---- the start ----

MODERN = ModelConfig(norm=RMSNorm.Config(), mlp=SwiGLU.Config(), bias=False, tied_head=False)
SHAPES = [
    ModelConfig(),
    MODERN,
    ModelConfig(mlp=SquaredReLU.Config(), n_embd=384, n_layer=6, attention=MultiHead.Config(n_head=6)),
    ModelConfig(n_layer=1),
]
FRESH = [
    *((ModelConfig(attention=kind.Config()), 65) for kind in KINDS.values()),
    *((ModelConfig(attention=kind.Config()), 1000) for kind in (MultiHead, SingleHead)),
    *((replace(shape, position=kind.Config()), 65) for shape in SHAPES for kind in Position.kinds.values()),
    *(
        (ModelConfig(block=block.Config(), attention=attention.Config(), tied_head=False), 65)
        for block in AnyBlock.kinds.values()
        for attention in (MultiHead, AverageSoftmax)
    ),
]


@torch.no_grad()
@pytest.mark.quick(4)
@pytest.mark.parametrize(("shape", "vocabulary"), FRESH)
def test_a_fresh_model_guesses(shape: ModelConfig, vocabulary: int) -> None:
    """Its first loss is that of a fair die with V faces, ln V, within five percent."""
    model = GPT(shape, vocabulary).eval()
    ids = torch.randint(vocabulary, (1, 129))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocabulary), rel=0.05)


@pytest.mark.parametrize("n_layer", [1, 8])
def test_matrices_start_small_and_those_into_the_residual_stream_smaller(n_layer: int) -> None:
    model = GPT(ModelConfig(n_layer=n_layer, attention=GroupedQuery.Config(qk_norm=True), mlp=SwiGLU.Config()), 500)
    for name, parameter in model.named_parameters():
        if name.endswith("project.weight"):
            assert parameter.std().item() == pytest.approx(0.02 / math.sqrt(2 * n_layer), rel=0.05), name
        elif parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        else:
            expected = 1.0 if name.endswith("norm.weight") else 0.0
            assert (parameter == expected).all(), name


@torch.no_grad()
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_norms_without_weights_and_a_norm_after_the_embedding(norm: type[LayerNorm | RMSNorm]) -> None:
    config = replace(SMALL, norm=norm.Config(weights=False), bias=False, embedding_norm=True)
    model, ids = GPT(config, 5).eval(), torch.randint(5, (2, 8))
    assert count_parameters(model)["norms"] == 0
    before = model(ids)
    model.tokens.weight.mul_(1000)
    model.position.table.weight.mul_(1000)
    model.norm = torch.nn.Identity()
    loud = model(ids).std()  # the head is tied: it alone has grown
    assert loud < 3000 * before.std()
    assert count_parameters(GPT(replace(config, norm=norm.Config()), 5))["norms"] == 16 * (2 * config.n_layer + 2)


def test_the_residual_projections_are_found_by_name() -> None:
    model = GPT(SMALL, 5)
    names = {name.split(".", 2)[2] for name, _ in model.named_parameters() if ".project." in name}
    assert names == {"attention.project.weight", "attention.project.bias", "mlp.project.weight", "mlp.project.bias"}


# ---- how many numbers ----


def counted(config: ModelConfig, vocabulary: int) -> dict[str, int]:
    with torch.device("meta"):  # shapes without numbers
        return count_parameters(GPT(config, vocabulary))


@pytest.mark.parametrize(
    ("sizes", "V", "bias", "total"),
    [((12, 768, 1024, 12), 50257, True, 124_439_808), ((4, 128, 64, 4), 65, False, 804_096)],
    ids=["gpt2", "nanogpt"],
)
def test_the_parameters_of_gpt2_and_of_nanogpts_recipe(sizes: tuple[int, ...], V: int, bias: bool, total: int) -> None:
    """nanoGPT leaves the 8,192 of the position table out of the count that it prints, 0.80M."""
    L, D, block, H = sizes
    shape = ModelConfig(n_layer=L, n_embd=D, block_size=block, attention=MultiHead.Config(n_head=H), bias=bias)
    parts = counted(shape, V)
    assert parts == {
        "tokens": V * D,
        "position": block * D,
        "attention": L * (4 * D * D + bias * 4 * D),
        "mlp": L * (8 * D * D + bias * (4 * D + D)),
        "norms": (2 * L + 1) * (1 + bias) * D,
        "head": 0,  # tied: counted with the tokens
    }
    assert sum(parts.values()) == total


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_parts_add_up(kind: type[Attention]) -> None:
    for tied_head in (True, False):
        model = GPT(replace(SMALL, attention=kind.Config(), tied_head=tied_head), 11)
        assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters())


def test_a_modern_model_counted_by_hand() -> None:
    """Grouped queries have smaller keys and values, swiglu a third matrix, and the untied head is its own."""
    V, L, D, T = 53, 3, 32, 24
    shape = replace(MODERN, attention=GroupedQuery.Config(n_head=4, n_kv_head=2), position=Rotary.Config())
    shape = replace(shape, n_layer=L, n_embd=D, block_size=T, mlp=SwiGLU.Config(width=44))
    assert counted(shape, V) == {
        "tokens": V * D,
        "position": 0,
        "attention": L * (2 * D * D + 2 * D * D // 2),
        "mlp": L * 3 * D * 44,
        "norms": (2 * L + 1) * D,
        "head": V * D,
    }


def test_the_norms_of_queries_and_keys_count_as_norms() -> None:
    shape = replace(SMALL, attention=MultiHead.Config(qk_norm=True))
    assert counted(shape, 5)["norms"] - counted(SMALL, 5)["norms"] == 2 * 2 * 4  # layers, query and key, d


@pytest.mark.parametrize("kind", [AverageLoop, DotProduct])
def test_what_learns_nothing_has_no_parameters(kind: type[Attention]) -> None:
    assert counted(replace(SMALL, attention=kind.Config()), 5)["attention"] == 0


# ---- what goes in and what comes out ----


@torch.no_grad()
def test_more_than_the_context_is_refused() -> None:
    model = GPT(SMALL, 5)
    with pytest.raises(ValueError, match="9 positions do not fit into the context of 8"):
        model(torch.zeros(1, 9, dtype=torch.long))
    cache = model.make_cache()
    model(torch.zeros(1, 8, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="9 positions do not fit into the context of 8"):
        model(torch.zeros(1, 1, dtype=torch.long), cache)


def test_a_tied_head_is_the_token_table() -> None:
    tied, untied = GPT(SMALL, 5), GPT(replace(SMALL, tied_head=False), 5)
    assert tied.head.weight is tied.tokens.weight
    assert untied.head.weight is not untied.tokens.weight
    assert len(list(tied.parameters())) + 1 == len(list(untied.parameters()))


def test_without_bias_nothing_has_a_bias() -> None:
    for kind in (SingleHead, MultiHead, GroupedQuery):
        model = GPT(replace(SMALL, bias=False, attention=kind.Config()), 5)
        assert not [name for name, _ in model.named_parameters() if "bias" in name]


def test_dropout_is_for_training() -> None:
    model = GPT(replace(SMALL, dropout=0.5), 11)
    ids = torch.randint(11, (1, 8))
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_the_same_seed_makes_the_same_model() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(GPT(SMALL, 11))
    first, second = (model.state_dict() for model in models)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", KINDS.values())
def test_a_model_of_any_kind_can_learn(kind: type[Attention]) -> None:
    """A few steps on one batch bring its loss down, and every parameter has a part in it."""
    model = GPT(replace(SMALL, attention=kind.Config(), position=Learned.Config()), 11)
    ids = torch.randint(11, (4, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
