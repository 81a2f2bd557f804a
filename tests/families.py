"""Models of transformers with random weights, one of each family, and what they compute in float64.

Shapes are odd on purpose: widths and vocabularies that are multiples of nothing, heads that are no power of two. Every
tensor is random, those of norms and biases too, in steps of 1/1024, so that Gemma's 1 + w is exact in float32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from minigpt.hub import FAMILIES
from minigpt.system.errors import UserError

V, T = 61, 23  # vocabulary, positions

SHAPE = {"vocab_size": V, "hidden_size": 42, "intermediate_size": 58, "num_hidden_layers": 3, "num_attention_heads": 6}
GROUPED = SHAPE | {"num_key_value_heads": 2, "max_position_embeddings": 40, "hidden_act": "silu"}
LLAMA = GROUPED | {"head_dim": 14, "rms_norm_eps": 1e-5}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = LLAMA | {"hidden_act": "gelu_pytorch_tanh", "head_dim": 10}
GEMMA2 = {k: v for k, v in GEMMA.items() if k != "hidden_act"} | {
    "query_pre_attn_scalar": 13, "sliding_window": 5, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0,
}  # fmt: skip
GEMMA3 = {k: v for k, v in GEMMA2.items() if k != "attn_logit_softcapping"}
NEOX = SHAPE | {"hidden_size": 72, "max_position_embeddings": 40}
GPTJ = {"vocab_size": V, "n_embd": 60, "n_layer": 3, "n_head": 6, "n_positions": 40, "rotary_dim": 6, "n_inner": 50}
GPT2 = {"vocab_size": V, "n_embd": 45, "n_layer": 3, "n_head": 3, "n_positions": 40}
MPT = {"vocab_size": V, "d_model": 36, "n_heads": 6, "n_layers": 3, "max_seq_len": 40}

CASES: dict[str, tuple[str, dict[str, Any]]] = {  # a test's name -> the family, what its config says
    "gpt2": ("GPT2", GPT2),
    "gpt2 with other options": (
        "GPT2",
        GPT2 | {"n_inner": 33, "activation_function": "gelu", "scale_attn_by_inverse_layer_idx": True},
    ),
    "gpt2 unscaled, untied": ("GPT2", GPT2 | {"scale_attn_weights": False, "tie_word_embeddings": False}),
    "llama": ("Llama", LLAMA),
    "llama tied": ("Llama", LLAMA | {"tie_word_embeddings": True, "rope_theta": 1e5}),
    "llama with biases": ("Llama", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("Llama", LLAMA | {"rope_parameters": LLAMA3}),
    "llama linear": ("Llama", LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama yarn": ("Llama", LLAMA | {"rope_parameters": YARN}),
    "mistral": ("Mistral", LLAMA | {"sliding_window": 7}),
    "mistral without a window": ("Mistral", LLAMA | {"sliding_window": None}),
    "qwen2": ("Qwen2", {k: v for k, v in LLAMA.items() if k != "head_dim"} | {"hidden_size": 60}),
    "qwen2 with windows": (
        "Qwen2",
        {k: v for k, v in LLAMA.items() if k != "head_dim"}
        | {"hidden_size": 60, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", LLAMA),
    "gemma": ("Gemma", GEMMA),
    "gemma2": ("Gemma2", GEMMA2),
    "gemma2 without caps": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("Gemma3Text", GEMMA3 | {"sliding_window_pattern": 2}),
    "olmo2": ("Olmo2", GROUPED | {"hidden_size": 60}),
    "gpt_neox": ("GPTNeoX", NEOX | {"rotary_pct": 0.5}),
    "gpt_neox in turn": (
        "GPTNeoX",
        NEOX | {"rotary_pct": 1.0, "use_parallel_residual": False, "attention_bias": False},
    ),
    "gptj": ("GPTJ", GPTJ),
    "bloom": ("Bloom", {"vocab_size": V, "hidden_size": 42, "n_head": 6, "n_layer": 3}),
    "bloom with 7 heads": ("Bloom", {"vocab_size": V, "hidden_size": 63, "n_head": 7, "n_layer": 3}),
    "mpt": ("Mpt", MPT),
    "mpt scaled": ("Mpt", MPT | {"attn_config": {"softmax_scale": 0.3}}),
    "phi": ("Phi", GROUPED | {"hidden_size": 60, "hidden_act": "gelu_new", "partial_rotary_factor": 0.4}),
}


def make(case: str, **more: Any) -> nn.Module:
    """The model of a case, its weights random; `more` options may be given."""
    family, options = CASES[case]
    return with_random_weights(getattr(transformers, f"{family}Config")(**options | more))


def read_by_transformers(values: dict[str, Any]) -> nn.Module:
    """The model that transformers makes of the values of a config.json, its weights random."""
    config = CONFIG_MAPPING[values["model_type"]].from_dict(deepcopy(values))
    config.return_dict = True
    return with_random_weights(config)


def with_random_weights(config: Any) -> nn.Module:
    """The model of a config of transformers."""
    config._attn_implementation = "eager"
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            steps = torch.randint(-300, 301, parameter.shape, generator=generator)
            parameter.copy_(steps / 1024 + (0.5 if parameter.ndim == 1 else 0.0))
    return model


PARTIAL = {"rope_type": "default", "partial_rotary_factor": 0.6}
ROPES: list[Any] = [
    {}, None, LLAMA3, YARN, {"type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 500.0}, PARTIAL,
    YARN | {"truncate": False}, YARN | {"attention_factor": 1.3, "beta_fast": 4}, {"type": "dynamic", "factor": 2.0},
    {"full_attention": LLAMA3, "sliding_attention": {"type": "linear", "factor": 2.0}}, {"full_attention": PARTIAL},
]  # fmt: skip
LAYERS: list[Any] = [["full_attention"] * 3, ["sliding_attention", "full_attention", "sliding_attention"], None]
MPTS: list[Any] = [{}, {"clip_qkv": 0.5}, {"softmax_scale": 0.3, "attn_pdrop": 1}, {"alibi": False}, {"kv_n_heads": 1}]
VALUES: dict[str, list[Any]] = {  # of keys whose type does not say which values they have
    "hidden_act activation_function hidden_activation": ["gelu", "gelu_new", "silu", "relu"],
    "rope_parameters rope_scaling": ROPES,
    "sliding_window sliding_window_size": [3, 8, None],
    "sliding_window_pattern _sliding_window_pattern": [1, 2, 6, None],
    "partial_rotary_factor rotary_pct": [0.3, 0.6, 1.0, None],
    "rope_theta rotary_emb_base rope_local_base_freq": [1e4, 300, 1e6],
    "attn_logit_softcapping final_logit_softcapping logit_scale": [2.0, None],
    "rms_norm_eps layer_norm_eps layer_norm_epsilon": [1e-5, 0.1],
    "hidden_size n_embd n_embed d_model": [36, 60],
    "num_attention_heads n_head n_heads": [3, 6],
    "num_hidden_layers n_layer n_layers": [2, 3],
    "max_position_embeddings n_positions max_seq_len seq_length n_ctx": [24, 40],
    "intermediate_size n_inner": [30, None],
    "head_dim": [10, 14, None],
    "num_key_value_heads": [1, 2, 6, None],
    "rotary_dim": [4, 6, None],
    "query_pre_attn_scalar": [7, 256],
    "max_window_layers pretraining_tp expansion_ratio": [1, 2, 4],
    "layer_types": LAYERS,
    "attn_config": MPTS,
    "norm_type": ["layernorm", "rmsnorm"],
    "eos_token_id": [1, [1, 2]],
    "vocab_size": [V],
    "dtype": ["float32"],
    "quantization_config": [None, {}, {"bits": 4}],
    "per_layer_config": [None, {"0": {"rms_norm_eps": 0.1}}],
}
VALUES = {key: values for names, values in VALUES.items() for key in names.split()}
NEEDED = "model_type vocab_size hidden_size n_embd d_model intermediate_size num_hidden_layers n_layer n_layers"


def changes(case: str) -> Iterator[tuple[str, Any]]:
    """Keys with values that a config.json of a case may have: those of its family, and others."""
    config_class = getattr(transformers, f"{CASES[case][0]}Config")
    types = {one.name: str(one.type) for one in fields(config_class)}
    for key in dict.fromkeys([*VALUES, *types, *config_class.attribute_map, "is_causal", "text_config", "unknown"]):
        for value in VALUES.get(key) or values_of(types.get(key, "")):
            yield key, deepcopy(value)


def changed_config(case: str, *changed: tuple[str, Any]) -> dict[str, Any]:
    """The values of a config.json of a case with these keys."""
    name, options = CASES[case]
    return {"model_type": getattr(transformers, f"{name}Config").model_type, **deepcopy(options), **dict(changed)}


def random_config(case: str, seed: int) -> dict[str, Any]:
    """The values of a config.json of a case with two changes, each of which minigpt reads, and sometimes a key less."""
    chance, some = random.Random(f"{case} {seed}"), list(changes(case))
    chance.shuffle(some)
    values = changed_config(case, *islice((one for one in some if is_read(changed_config(case, one))), 2))
    left_out = chance.choice([*values, *[""] * len(values)])
    return {key: value for key, value in values.items() if key != left_out or key in NEEDED.split()}


def is_read(values: dict[str, Any]) -> bool:
    """Whether minigpt reads the values of a config.json."""
    try:
        FAMILIES[values["model_type"]].read_config(values)
    except UserError:
        return False
    return True


def values_of(kind: str) -> list[Any]:
    """Some values of a type, as its annotation says it; of several types, if there is none."""
    known = {"bool": [True, False], "float": [0.1, 0.5], "int": [1, 2], "str": ["x"]}
    return next((values for name, values in known.items() if name in kind), [True, False, None, 2, 0.5, "x", {}])


@contextmanager
def in_float64() -> Iterator[None]:
    """A model of transformers made and used inside computes in float64 throughout.

    Of itself it has norms, rotary angles and softmax in float32 in a float64 model, too; and BLOOM's GELU has nine
    digits of sqrt(2/pi).
    """
    bloom = "transformers.models.bloom.modeling_bloom.bloom_gelu_forward"
    torch.set_default_dtype(torch.float64)
    try:
        with (
            patch.object(torch, "float", torch.float64),
            patch.object(torch, "float32", torch.float64),
            patch.object(Tensor, "float", Tensor.double),
            patch(bloom, lambda x: nn.functional.gelu(x, approximate="tanh")),
        ):
            yield
    finally:
        torch.set_default_dtype(torch.float32)
