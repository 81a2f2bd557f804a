"""The GGUF files of each architecture: the names and layouts of their tensors, and their metadata keys.

The names are those of the package gguf. Values that llama.cpp assumes without a key are here as well (from its files
`src/models/*.cpp`; the layouts are those of its converter, `convert_hf_to_gguf.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minigpt.hub.layouts import IDENTITY, ONE_PLUS, TRANSPOSED, Layout, halves
from minigpt.system.errors import UserError
from minigpt.system.strict_json import has_form

Json = dict[str, Any]

# Names of modules in a GGUF file -> Hugging Face's; {} is the number of the layer.
LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
GEMMA = {name: hf_name for name, hf_name in LLAMA.items() if name != "output"}
SANDWICH = GEMMA | {
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
# Metadata keys without the architecture's name -> keys of a config.json; a dot separates a group and its key.
LIKE_LLAMA = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
LIKE_GPT2 = {
    "block_count": "n_layer",
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
LIKE_GEMMA2 = LIKE_LLAMA | {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
LIKE_GEMMA3 = LIKE_LLAMA | {
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "rope.freq_base_swa": "rope_local_base_freq",
    "rope.scaling.type": "rope_scaling.rope_type",
    "rope.scaling.factor": "rope_scaling.factor",
}
# Of these, the keys for which llama.cpp has a value if they are missing; it reads no file without the others.
OPTIONAL = {
    "attention.head_count_kv", "attention.key_length", "attention.sliding_window", "attention.sliding_window_pattern",
    "attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type",
    "rope.scaling.factor",
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """How a GGUF file of one architecture is read."""

    names: dict[str, str]
    keys: dict[str, str]
    converted: str = "(?!)"
    """A regular expression for tensors whose layout differs from Hugging Face's; by default none."""
    layout: Callable[[int], Layout] = lambda width: IDENTITY
    """The layout of these tensors, for heads of a given width."""
    model_type: str = ""
    """Hugging Face's name of the architecture, if it is another."""
    implied: Callable[[Json], Json] = lambda config: {}
    """Keys of a config.json for the values that llama.cpp assumes without a key. Raises UserError."""


def scale_of(config: Json, of_27b: int) -> Json:
    """The scale of Gemma's scores, which no key has: it follows from the width of a head.

    The largest model, which has `of_27b` layers, has another one: n_embd // n_head in place of the width.
    """
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
    sizes: Any = [config.get(key) for key in names]
    if not has_form(sizes, (int, int, int, int)) or 0 in sizes:
        return {}  # refused by name when the config is read
    n_layer, n_embd, n_head, width = sizes
    return {"query_pre_attn_scalar": n_embd // n_head if n_layer == of_27b else width}


def of_gemma3(config: Json) -> Json:
    """The values of Gemma 3 without a key. Raises UserError for a file without a window, which no test covers."""
    if "sliding_window" not in config:
        raise UserError("gemma3.attention.sliding_window: missing; Gemma 3 without a window has no counterpart")
    return {"rope_theta": config.get("rope_theta", 10_000.0)} | scale_of(config, 62)


NORMS = r".*norm\.weight"  # llama.cpp multiplies by the stored value, so Gemma's files store 1 + w


ARCHITECTURES = {
    # only in this architecture, llama.cpp pairs neighbouring features for rotary positions, as minigpt does
    "llama": Architecture(LLAMA, LIKE_LLAMA, r".*\.[qk]_proj\.(weight|bias)", lambda width: halves(width, width)),
    "qwen2": Architecture(LLAMA, LIKE_LLAMA),
    "qwen3": Architecture(LLAMA, LIKE_LLAMA),
    "gemma": Architecture(GEMMA, LIKE_LLAMA, NORMS, lambda width: ONE_PLUS),
    "gemma2": Architecture(
        SANDWICH, LIKE_GEMMA2, NORMS, lambda width: ONE_PLUS, implied=lambda config: scale_of(config, 46)
    ),
    "gemma3": Architecture(SANDWICH, LIKE_GEMMA3, NORMS, lambda width: ONE_PLUS, "gemma3_text", of_gemma3),
    "gpt2": Architecture(GPT2, LIKE_GPT2, r".*\.c_(attn|proj|fc)\.weight", lambda width: TRANSPOSED),
}
BY_FAMILY = {architecture.model_type or name: name for name, architecture in ARCHITECTURES.items()}


def nested(values: Json) -> Json:
    """Turn keys with a dot into groups: {"a.b": 1} -> {"a": {"b": 1}}."""
    config: Json = {}
    for key, value in values.items():
        group, _, inner = key.rpartition(".")
        (config.setdefault(group, {}) if group else config)[inner] = value
    return config


def flat(config: Json) -> Json:
    """Add the keys of groups as keys with a dot: {"a": {"b": 1}} -> {"a": {"b": 1}, "a.b": 1}."""
    groups = {
        f"{key}.{inner}": value
        for key, group in config.items()
        if isinstance(group, dict)
        for inner, value in group.items()
    }
    return config | groups
