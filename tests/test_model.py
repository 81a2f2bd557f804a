"""The model, held against independent implementations with the same random weights, and its facts counted by hand.

B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from later_kinds import LATER
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from minigpt.attention import Attention
from minigpt.attention.average import AverageLoop
from minigpt.attention.dot_product import DotProduct
from minigpt.attention.grouped_query import GroupedQuery
from minigpt.attention.multi_head import MultiHead
from minigpt.attention.single_head import SingleHead
from minigpt.cache import Past
from minigpt.model import GPT, ModelConfig, count_parameters
from minigpt.position import Learned, NoPosition, Position, Rotary

KINDS: dict[str, type[Attention]] = Attention.kinds | LATER
SMALL = ModelConfig(n_layer=2, n_embd=16, block_size=8)


@torch.no_grad()
def stir(model: nn.Module) -> None:
    """Random numbers everywhere, in the biases and the norms too: what starts at zero or one is not compared."""
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))


# ---- multi-head attention against torch's own ----


def torch_attention(ours: Attention, D: int, n_head: int, bias: bool) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(D, n_head, bias=bias, batch_first=True, dtype=torch.float64).eval()
    assert isinstance(ours, MultiHead)
    layers = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
    theirs.out_proj.weight.copy_(ours.project.weight)
    if bias:
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        theirs.out_proj.bias.copy_(ours.project.bias)
    return theirs


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_head", [1, 2, 6])
def test_multi_head_is_torchs_multi_head(n_head: int, bias: bool) -> None:
    D, T = 12, 9
    shape = ModelConfig(n_embd=D, block_size=T, position=NoPosition.Config(), bias=bias)
    ours = MultiHead(MultiHead.Config(n_head=n_head), shape).double().eval()
    stir(ours)
    theirs = torch_attention(ours, D, n_head, bias)
    x = torch.randn(3, T, D, dtype=torch.float64)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    output, weights = theirs(x, x, x, attn_mask=future, average_attn_weights=False)
    torch.testing.assert_close(ours(x), output, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.weights(*ours.qkv(x, Past())[:2]), weights, rtol=0, atol=1e-12)


# ---- GPT-2, Llama and Qwen 3 against Hugging Face's ----

V, T, D, HEADS, LAYERS = 53, 24, 32, 4, 3

GPT2_SHAPE = ModelConfig(n_layer=LAYERS, n_embd=D, block_size=T, attention=MultiHead.Config(n_head=HEADS))
LLAMA_SHAPE = ModelConfig(
    n_layer=LAYERS,
    n_embd=D,
    block_size=T,
    attention=GroupedQuery.Config(n_head=HEADS, n_kv_head=2),
    position=Rotary.Config(),
    norm="rmsnorm",
    mlp="swiglu",
    mlp_width=44,
    bias=False,
    tied_head=False,
)
QWEN_SHAPE = replace(LLAMA_SHAPE, attention=GroupedQuery.Config(n_head=HEADS, n_kv_head=2, head_dim=10, qk_norm=True))

LLAMA_OPTIONS = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 44,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": T,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}


def gpt2_weights(theirs: nn.Module) -> dict[str, Tensor]:
    """Their weights under our names. Their `Conv1D` keeps matrices transposed, and query, key and value in one."""
    named = dict(theirs.named_parameters())
    weights = {
        "tokens.weight": named["transformer.wte.weight"],
        "head.weight": named["transformer.wte.weight"],
        "position.table.weight": named["transformer.wpe.weight"],
    }
    same = {
        "attention_norm": "ln_1",
        "mlp_norm": "ln_2",
        "attention.project": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.project": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        weights[f"norm.{kind}"] = named[f"transformer.ln_f.{kind}"]
        for layer in range(LAYERS):
            ours, block = f"blocks.{layer}", f"transformer.h.{layer}"
            for name, their_name in same.items():
                weights[f"{ours}.{name}.{kind}"] = named[f"{block}.{their_name}.{kind}"].t()
            three = named[f"{block}.attn.c_attn.{kind}"].t().chunk(3, dim=0)
            for name, part in zip(("query", "key", "value"), three):
                weights[f"{ours}.attention.{name}.{kind}"] = part
    return weights


def llama_weights(theirs: nn.Module) -> dict[str, Tensor]:
    """Their weights under our names, those of Qwen 3 included."""
    names = {
        "model.embed_tokens": "tokens",
        "model.norm": "norm",
        "lm_head": "head",
        "model.layers": "blocks",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
        "self_attn": "attention",
        "q_proj": "query",
        "k_proj": "key",
        "v_proj": "value",
        "o_proj": "project",
        "q_norm": "query_norm",
        "k_norm": "key_norm",
        "gate_proj": "gate",
        "up_proj": "up",
        "down_proj": "project",
    }
    weights = {}
    for name, parameter in theirs.named_parameters():
        for their_name, our_name in names.items():
            name = name.replace(their_name, our_name)
        weights[name] = parameter
    return weights


@torch.no_grad()
def compare(shape: ModelConfig, theirs: nn.Module, weights: dict[str, Tensor], tolerance: float) -> None:
    """Equal logits, in a training pass and token by token."""
    dtype = next(theirs.parameters()).dtype
    ours = GPT(shape, V).to(dtype).eval()
    ours.load_state_dict(weights)
    ids = torch.randint(V, (2, T))
    expected = theirs.eval()(ids).logits
    assert expected.std() > 0.1  # the weights matter
    torch.testing.assert_close(ours(ids), expected, rtol=0, atol=tolerance)
    cache = ours.make_cache()
    decoded = torch.cat([ours(token, cache) for token in ids.split(1, dim=1)], dim=1)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=tolerance)


def theirs_of(kind: type[nn.Module], config: PretrainedConfig) -> nn.Module:
    model = kind(config)
    stir(model)
    return model


def gpt2() -> nn.Module:
    shape = {"vocab_size": V, "n_positions": T, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS}
    config = GPT2Config(**shape, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    return theirs_of(GPT2LMHeadModel, config)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_default_model_is_gpt2(dtype: torch.dtype, tolerance: float) -> None:
    theirs = gpt2().to(dtype)
    compare(GPT2_SHAPE, theirs, gpt2_weights(theirs), tolerance)


def test_the_modern_model_is_llama() -> None:
    theirs = theirs_of(LlamaForCausalLM, LlamaConfig(**LLAMA_OPTIONS))
    compare(LLAMA_SHAPE, theirs, llama_weights(theirs), 1e-5)


def test_the_modern_model_with_normalised_queries_is_qwen3() -> None:
    theirs = theirs_of(Qwen3ForCausalLM, Qwen3Config(**LLAMA_OPTIONS, head_dim=10))
    compare(QWEN_SHAPE, theirs, llama_weights(theirs), 1e-5)


@pytest.mark.parametrize("changed", ["norm", "mlp", "position"])
def test_the_comparison_sees_a_part_that_is_another(changed: str) -> None:
    """The proof that the comparison can fail: one part of the modern model swapped for GPT-2's of the same shape."""
    theirs = theirs_of(LlamaForCausalLM, LlamaConfig(**LLAMA_OPTIONS))
    weights = llama_weights(theirs)
    other: dict[str, object] = {"norm": "layernorm", "mlp": "relu2", "position": NoPosition.Config()}
    if changed == "mlp":
        weights = {name: weight for name, weight in weights.items() if ".gate." not in name}
    with pytest.raises(AssertionError):
        compare(replace(LLAMA_SHAPE, **{changed: other[changed]}), theirs, weights, 1e-5)


# ---- the start ----


@torch.no_grad()
@pytest.mark.parametrize("vocabulary", [65, 1000])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_fresh_model_guesses(kind: type[Attention], vocabulary: int) -> None:
    """Its first loss is that of a fair die with V faces, ln V, within five percent."""
    model = GPT(ModelConfig(attention=kind.Config()), vocabulary).eval()
    ids = torch.randint(vocabulary, (4, 129))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocabulary), rel=0.05)


@torch.no_grad()
@pytest.mark.parametrize("position", Position.kinds.values(), ids=Position.kinds)
@pytest.mark.parametrize(
    "shape",
    [
        ModelConfig(),
        ModelConfig(norm="rmsnorm", mlp="swiglu", bias=False, tied_head=False),
        ModelConfig(mlp="relu2", n_embd=384, n_layer=6, attention=MultiHead.Config(n_head=6)),
        ModelConfig(n_layer=1),
    ],
    ids=["gpt2", "modern", "wide", "one layer"],
)
def test_every_shape_guesses_at_first(shape: ModelConfig, position: type[Position]) -> None:
    model = GPT(replace(shape, position=position.Config()), 65).eval()
    ids = torch.randint(65, (4, 129))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(65), rel=0.05)


@pytest.mark.parametrize("n_layer", [1, 8])
def test_matrices_start_small_and_those_into_the_residual_stream_smaller(n_layer: int) -> None:
    model = GPT(ModelConfig(n_layer=n_layer, attention=GroupedQuery.Config(qk_norm=True), mlp="swiglu"), 500)
    for name, parameter in model.named_parameters():
        if name.endswith("project.weight"):
            assert parameter.std().item() == pytest.approx(0.02 / math.sqrt(2 * n_layer), rel=0.05), name
        elif parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        else:
            expected = 1.0 if name.endswith("norm.weight") else 0.0
            assert (parameter == expected).all(), name


def test_the_residual_projections_are_found_by_name() -> None:
    model = GPT(SMALL, 5)
    names = {name.split(".", 2)[2] for name, _ in model.named_parameters() if ".project." in name}
    assert names == {"attention.project.weight", "attention.project.bias", "mlp.project.weight", "mlp.project.bias"}


# ---- how many numbers ----


def counted(config: ModelConfig, vocabulary: int) -> dict[str, int]:
    with torch.device("meta"):  # shapes without numbers
        return count_parameters(GPT(config, vocabulary))


def test_gpt2_has_124_439_808_parameters() -> None:
    shape = ModelConfig(n_layer=12, n_embd=768, block_size=1024, attention=MultiHead.Config(n_head=12))
    D = 768
    parts = counted(shape, 50257)
    assert parts == {
        "tokens": 50257 * D,
        "position": 1024 * D,
        "attention": 12 * (4 * D * D + 4 * D),
        "mlp": 12 * (8 * D * D + 4 * D + D),
        "norms": 25 * 2 * D,
        "head": 0,  # tied: counted with the tokens
    }
    assert sum(parts.values()) == 124_439_808


def test_the_cpu_recipe_of_nanogpt_has_804_096_parameters() -> None:
    """The position table is 8,192 of them; nanoGPT leaves it out of the count that it prints, 0.80M."""
    shape = ModelConfig(n_layer=4, n_embd=128, block_size=64, attention=MultiHead.Config(n_head=4), bias=False)
    D = 128
    parts = counted(shape, 65)
    assert parts == {
        "tokens": 65 * D,
        "position": 64 * D,
        "attention": 4 * 4 * D * D,
        "mlp": 4 * 8 * D * D,
        "norms": 9 * D,
        "head": 0,
    }
    assert sum(parts.values()) == 804_096
    assert sum(parts.values()) - parts["position"] == 795_904


def test_the_modern_model_counted_by_hand() -> None:
    """Grouped queries have smaller keys and values, swiglu a third matrix, and the untied head is its own."""
    parts = counted(LLAMA_SHAPE, V)
    assert parts == {
        "tokens": V * D,
        "position": 0,
        "attention": LAYERS * (2 * D * D + 2 * D * D // 2),
        "mlp": LAYERS * 3 * D * 44,
        "norms": (2 * LAYERS + 1) * D,
        "head": V * D,
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_parts_add_up(kind: type[Attention]) -> None:
    for tied_head in (True, False):
        model = GPT(replace(SMALL, attention=kind.Config(), tied_head=tied_head), 11)
        assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters())


def test_the_norms_of_queries_and_keys_count_as_norms() -> None:
    shape = replace(SMALL, attention=MultiHead.Config(qk_norm=True))
    assert counted(shape, 5)["norms"] - counted(SMALL, 5)["norms"] == 2 * 2 * 4  # layers, query and key, d


@pytest.mark.parametrize("kind", [AverageLoop, DotProduct])
def test_what_learns_nothing_has_no_parameters(kind: type[Attention]) -> None:
    assert counted(replace(SMALL, attention=kind.Config()), 5)["attention"] == 0


def test_the_default_width_of_the_mlp() -> None:
    assert GPT(SMALL, 5).blocks[0].mlp.up.out_features == 64
    assert GPT(replace(SMALL, mlp="swiglu"), 5).blocks[0].mlp.up.out_features == 42
    assert GPT(replace(SMALL, mlp_width=7), 5).blocks[0].mlp.up.out_features == 7


# ---- what goes in and what comes out ----


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_logits_for_every_position_and_token(kind: type[Attention]) -> None:
    model = GPT(replace(SMALL, attention=kind.Config()), 11)
    for B, T in ((1, 1), (2, 5), (3, 8)):
        assert model(torch.zeros(B, T, dtype=torch.long)).shape == (B, T, 11)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_model_does_not_see_the_future(kind: type[Attention]) -> None:
    model = GPT(replace(SMALL, attention=kind.Config()), 11).double().eval()
    stir(model)
    ids = torch.randint(11, (1, 8))
    for t in range(1, 8):
        changed = ids.clone()
        changed[:, t:] = (ids[:, t:] + 1) % 11
        assert torch.allclose(model(changed)[:, :t], model(ids)[:, :t], rtol=0, atol=1e-12)
        assert not torch.allclose(model(changed)[:, t], model(ids)[:, t])


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


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_model_of_any_kind_can_learn(kind: type[Attention]) -> None:
    """A few steps on one batch bring its loss down, and every parameter has a part in it."""
    model = GPT(replace(SMALL, attention=kind.Config(), position=Learned.Config()), 11)
    ids = torch.randint(11, (4, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
