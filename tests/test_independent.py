"""The model, compared with independent implementations with the same random weights: PyTorch's and Hugging Face's.

All weights are random, those of biases and norms too: a weight of zero or one would not be tested.
T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from laws import stir
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

from minigpt.attention import Attention, GroupedQuery, MultiHead, Past
from minigpt.attention.position import NoPosition, Rotary
from minigpt.model import GPT, ModelConfig, count_parameters
from minigpt.model.mlp import SquaredReLU, SwiGLU, TanhGELU
from minigpt.model.norm import LayerNorm, RMSNorm

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
    stir(ours, 0.1)
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
    norm=RMSNorm.Config(),
    mlp=SwiGLU.Config(width=44),
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
        turned = any(part in name for part in ("query", "key"))
        weights[name] = neighbours(parameter, theirs.config.head_dim) if turned else parameter  # type: ignore[union-attr, arg-type]
    return weights


def neighbours(weight: Tensor, d: int) -> Tensor:
    """Theirs turns feature i of a head with i + d/2, ours 2i with 2i + 1: the same rows in another order."""
    return weight.unflatten(0, (-1, 2, d // 2)).transpose(1, 2).flatten(0, 2)


@torch.no_grad()
def compare(shape: ModelConfig, theirs: nn.Module, weights: dict[str, Tensor], tolerance: float) -> None:
    """Equal logits, in a training pass and token by token."""
    dtype = next(theirs.parameters()).dtype
    ours = GPT(shape, V).to(dtype).eval()
    ours.load_state_dict(weights)
    ids = torch.randint(V, (3, T))
    expected = theirs.eval()(ids).logits
    assert expected.std() > 0.1  # the weights matter
    torch.testing.assert_close(ours(ids), expected, rtol=0, atol=tolerance)
    cache = ours.make_cache()
    decoded = torch.cat([ours(token, cache) for token in ids.split(1, dim=1)], dim=1)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=tolerance)


def theirs_of(kind: type[nn.Module], config: PretrainedConfig) -> nn.Module:
    model = kind(config)
    stir(model, 0.1)
    return model


def gpt2(activation: str = "gelu") -> nn.Module:
    shape = {"vocab_size": V, "n_positions": T, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS}
    exact = {"activation_function": activation, "attn_implementation": "eager"}
    config = GPT2Config(**shape, **exact, bos_token_id=None, eos_token_id=None)
    return theirs_of(GPT2LMHeadModel, config)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_default_model_is_gpt2(dtype: torch.dtype, tolerance: float) -> None:
    theirs = gpt2().to(dtype)
    compare(GPT2_SHAPE, theirs, gpt2_weights(theirs), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_with_the_tanh_it_is_gpt2_as_it_ships(dtype: torch.dtype, tolerance: float) -> None:
    theirs = gpt2("gelu_new").to(dtype)
    compare(replace(GPT2_SHAPE, mlp=TanhGELU.Config()), theirs, gpt2_weights(theirs), tolerance)
    with pytest.raises(AssertionError):
        compare(GPT2_SHAPE, theirs, gpt2_weights(theirs), tolerance)


def test_the_modern_model_is_llama() -> None:
    theirs = theirs_of(LlamaForCausalLM, LlamaConfig(**LLAMA_OPTIONS))
    compare(LLAMA_SHAPE, theirs, llama_weights(theirs), 1e-5)


def test_the_modern_model_counted_by_hand() -> None:
    """Grouped queries have smaller keys and values, swiglu a third matrix, and the untied head is its own."""
    parts = count_parameters(GPT(LLAMA_SHAPE, V))
    assert parts == {
        "tokens": V * D,
        "position": 0,
        "attention": LAYERS * (2 * D * D + 2 * D * D // 2),
        "mlp": LAYERS * 3 * D * 44,
        "norms": (2 * LAYERS + 1) * D,
        "head": V * D,
    }


def test_the_modern_model_with_normalised_queries_is_qwen3() -> None:
    theirs = theirs_of(Qwen3ForCausalLM, Qwen3Config(**LLAMA_OPTIONS, head_dim=10))
    compare(QWEN_SHAPE, theirs, llama_weights(theirs), 1e-5)


@pytest.mark.parametrize("changed", ["norm", "mlp", "position"])
def test_the_comparison_sees_a_part_that_is_another(changed: str) -> None:
    """The proof that the comparison can fail: one part of the modern model swapped for GPT-2's of the same shape."""
    theirs = theirs_of(LlamaForCausalLM, LlamaConfig(**LLAMA_OPTIONS))
    weights = llama_weights(theirs)
    other: dict[str, object] = {
        "norm": LayerNorm.Config(),
        "mlp": SquaredReLU.Config(width=44),
        "position": NoPosition.Config(),
    }
    if changed == "mlp":
        weights = {name: weight for name, weight in weights.items() if ".gate." not in name}
    with pytest.raises(AssertionError):
        compare(replace(LLAMA_SHAPE, **{changed: other[changed]}), theirs, weights, 1e-5)
