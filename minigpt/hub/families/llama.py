"""Llama ("LLaMA", arXiv 2302.13971) and its successors: Llama 2 and 3, SmolLM2, TinyLlama; Mistral; Qwen 2, 3.

RMSNorm before attention and MLP, rotary positions that pair feature i with i + d/2, grouped-query attention, SwiGLU.
"""

from __future__ import annotations

from typing import Any, ClassVar

from minigpt.hub.families.gpt2 import TANH
from minigpt.hub.families.rope import read_rotary, rotated_features, write_rotary
from minigpt.hub.family import Family
from minigpt.hub.keys import Keys, show
from minigpt.hub.layouts import Layout, halves
from minigpt.hub.spelled import Spelled

GATES = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"} | dict.fromkeys(TANH, "geglu_tanh")
GATE_NAMES = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}


PARTS = {  # of a layer, without its norms
    "self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key", "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.project", "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm", "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.project",
}  # fmt: skip


class Llama(Family):
    """Llama itself. Subclasses define what differs."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    names: ClassVar[dict[str, str]] = {"model.embed_tokens": "tokens", "model.norm": "norm", "lm_head": "head"}
    layer_names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"} | PARTS
    defaults: ClassVar[dict[str, Any]] = {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    no_effect: ClassVar[dict[str, str]] = {
        "the same products, computed in slices": "pretraining_tp",
        "a key of the program that trained SmolLM": "is_llama_config",
        "the context is max_position_embeddings": "max_sequence_length",
    }

    def read(self, keys: Keys) -> dict[str, Any]:
        keys.must("rope_interleaved", False)
        D, n_head = keys.integer("hidden_size"), keys.integer("num_attention_heads")
        d = keys.integer("head_dim", max(1, D // n_head))
        epsilon = keys.number("rms_norm_eps")
        attention = {
            "kind": "grouped_query",
            "n_head": n_head,
            "n_kv_head": keys.integer("num_key_value_heads", n_head),
            "head_dim": d,
            **self.read_attention(keys, epsilon),
        }
        n_layer, bias = keys.integer("num_hidden_layers"), self.read_mlp_bias(keys)
        return {
            **self.read_sizes(keys),
            "bias": bias,
            "position": self.read_position(keys, d),
            "attention": self.read_layers(keys, attention, n_layer),
            "norm": {"kind": "rmsnorm", "epsilon": epsilon},
            "mlp": {"kind": self.read_gate(keys), "width": keys.integer("intermediate_size")},
        }

    def read_position(self, keys: Keys, width: int) -> dict[str, Any]:
        """`model.position`."""
        return read_rotary(keys, width)

    def read_gate(self, keys: Keys) -> str:
        """The kind of the MLP."""
        return keys.choice("hidden_act", GATES)

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        """The options of every layer's attention that differ between families."""
        bias = keys.flag("attention_bias")
        return {"qkv_bias": bias, "project_bias": bias}

    def read_mlp_bias(self, keys: Keys) -> bool:
        """Whether the MLP has biases."""
        return keys.flag("mlp_bias")

    def read_layers(self, keys: Keys, attention: dict[str, Any], n_layer: int) -> Any:
        """`model.attention`: one for all layers, or a list with one for each."""
        return attention

    def write(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        n_head = first.get("n_head", 1)
        return {
            "num_attention_heads": n_head,
            "num_key_value_heads": first.get("n_kv_head", n_head),
            "head_dim": first.get("head_dim", model["n_embd"] // n_head),
            "intermediate_size": model["mlp"]["width"],
            "hidden_act": GATE_NAMES.get(model["mlp"]["kind"], "silu"),
            "rms_norm_eps": model["norm"]["epsilon"],
            **write_rotary(first["position"]),
            **self.write_attention(model),
        }

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        """The keys that differ between families."""
        return {"attention_bias": model["attention"][0].get("qkv_bias", False), "mlp_bias": model["bias"]}

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        rotated = (f"self_attn.{name}" for name in ("q_proj", "k_proj", "q_norm", "k_norm"))
        return dict.fromkeys(rotated, halves(attention["head_dim"], rotated_features(attention)))


class Mistral(Llama):
    """Mistral 7B (arXiv 2310.06825): a window in every layer."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    defaults: ClassVar[dict[str, Any]] = Llama.defaults | {
        "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
    }  # fmt: skip

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        return {"qkv_bias": False, "project_bias": False}

    def read_mlp_bias(self, keys: Keys) -> bool:
        return False

    def read_layers(self, keys: Keys, attention: dict[str, Any], n_layer: int) -> Any:
        keys.must("layer_types")
        return attention | windowed(keys.integer("sliding_window", None))

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        return {"sliding_window": model["attention"][0].get("window")}


def windowed(window: int | None) -> dict[str, Any]:
    """The options that a window adds to an attention."""
    return {} if window is None else {"kind": "sliding_window", "window": window}


class Qwen2(Llama):
    """Qwen 2 and 2.5 (arXiv 2407.10671): biases for query, key and value only; a window in the upper layers."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    defaults: ClassVar[dict[str, Any]] = Llama.defaults | {
        "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
        "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
    }  # fmt: skip

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        return {"qkv_bias": True, "project_bias": False}

    def read_mlp_bias(self, keys: Keys) -> bool:
        keys.must("use_mrope", False)
        return False

    def read_layers(self, keys: Keys, attention: dict[str, Any], n_layer: int) -> Any:
        first, window = keys.integer("max_window_layers"), keys.integer("sliding_window", None)
        windows_on = keys.flag("use_sliding_window")
        windowed_from = first if windows_on and window is not None else n_layer
        default = ["sliding_attention" if layer >= windowed_from else "full_attention" for layer in range(n_layer)]
        types = read_layer_types(keys, n_layer, default)
        if (not windows_on or window is None) and "sliding_attention" in types:
            why = "sliding_window is null" if windows_on else "use_sliding_window is false"
            raise keys.error("layer_types", f"a layer has a window, and {why}")
        return [attention | windowed(window if name == "sliding_attention" else None) for name in types]

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        return write_layer_types(model) | self.write_use(model)

    def write_use(self, model: Spelled) -> dict[str, Any]:
        """The key that says whether any layer has a window; by default none has."""
        return {"use_sliding_window": any("window" in attention for attention in model["attention"])}


def read_layer_types(keys: Keys, n_layer: int, default: list[str]) -> list[str]:
    """Which layers have a window: one of two words for each layer. Raises UserError."""
    types = keys.take("layer_types", default)
    names = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != n_layer or not all(name in names for name in types):
        raise keys.error("layer_types", f"expected one of {', '.join(names)} for each layer, found {show(types)}")
    return types


def write_layer_types(model: Spelled) -> dict[str, Any]:
    """`layer_types`, and the window of the layers that have one."""
    windows = [attention.get("window") for attention in model["attention"]]
    return {
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next((window for window in windows if window is not None), 4096),
    }


class Qwen3(Qwen2):
    """Qwen 3 (arXiv 2505.09388): RMSNorm for the queries and keys of each head."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    defaults: ClassVar[dict[str, Any]] = Qwen2.defaults | {"head_dim": 128}

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        bias = keys.flag("attention_bias")
        return {"qkv_bias": bias, "project_bias": bias, "qk_norm": True, "qk_norm_epsilon": epsilon}

    def write_use(self, model: Spelled) -> dict[str, Any]:
        bias = model["attention"][0].get("qkv_bias", False)
        return {"attention_bias": bias} | super().write_use(model)
