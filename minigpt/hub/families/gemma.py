"""Gemma (arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and the text models of Gemma 3 (arXiv 2503.19786).

Differences from Llama: GeGLU with the tanh form of GELU, embeddings scaled by sqrt(D), and norms that multiply by
1 + w. minigpt stores 1 + w, which rounds in float32: after an export, a norm's weight may differ in its last bits.
Gemma 2 has norms before and after attention and MLP, caps scores and logits, and has a window in every second layer.
Gemma 3 has norms of queries and keys instead of the caps, and its layers with a window have their own rotary positions.
"""

from __future__ import annotations

from typing import Any, ClassVar

from minigpt.hub.families.llama import PARTS, Llama, read_layer_types, write_layer_types
from minigpt.hub.families.rope import read_rotary, write_rotary
from minigpt.hub.keys import Keys
from minigpt.hub.layouts import IDENTITY, ONE_PLUS, Layout
from minigpt.hub.spelled import Spelled

TANH_GELU = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh"}  # "gelu" in Gemma's files means tanh, too


class Gemma(Llama):
    """The first Gemma."""

    model_type = "gemma"
    architecture = "GemmaForCausalLM"
    defaults: ClassVar[dict[str, Any]] = Llama.defaults | {
        "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }  # fmt: skip

    def read(self, keys: Keys) -> dict[str, Any]:
        keys.must("use_bidirectional_attention", False)
        values = super().read(keys)
        return values | {"embedding_scale": values["n_embd"] ** 0.5}

    def read_gate(self, keys: Keys) -> str:
        keys.must("hidden_activation", "gelu_pytorch_tanh")
        return keys.choice("hidden_act", TANH_GELU)

    def read_mlp_bias(self, keys: Keys) -> bool:
        return False

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        act = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
        return act | {"attention_bias": model["attention"][0].get("qkv_bias", False)}

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        layouts = super().layouts(attention, model)
        norms = [name for name in (*self.names, *self.layer_names) if name.endswith("norm")]
        return layouts | {name: ONE_PLUS.then(layouts.get(name, IDENTITY)) for name in norms}


class Gemma2(Gemma):
    """Gemma 2."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    layer_names = {
        "input_layernorm": "attention_norm", "post_attention_layernorm": "attention_post_norm",
        "pre_feedforward_layernorm": "mlp_norm", "post_feedforward_layernorm": "mlp_post_norm",
    } | PARTS  # fmt: skip
    defaults: ClassVar[dict[str, Any]] = Gemma.defaults | {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    }  # fmt: skip

    def read(self, keys: Keys) -> dict[str, Any]:
        cap = keys.number("final_logit_softcapping", None)
        return super().read(keys) | {"block": "sandwich", "head_cap": cap}

    def read_gate(self, keys: Keys) -> str:
        keys.must("hidden_act", "gelu_pytorch_tanh")
        return keys.choice("hidden_activation", {"gelu_pytorch_tanh": "geglu_tanh"})

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        cap = keys.number("attn_logit_softcapping", None)
        scale = keys.number("query_pre_attn_scalar") ** -0.5
        cap_options = {} if cap is None else {"kind": "soft_cap", "cap": cap}
        return super().read_attention(keys, epsilon) | {"score_scale": scale} | cap_options

    def read_layers(self, keys: Keys, attention: dict[str, Any], n_layer: int) -> Any:
        window = keys.integer("sliding_window")
        keys.same("sliding_window_size", window)
        types = read_layer_types(keys, n_layer, self.pattern(keys, n_layer))
        local = attention | {"kind": "soft_cap_window" if "cap" in attention else "sliding_window", "window": window}
        local |= self.read_local(keys, attention["head_dim"])
        return [local if name == "sliding_attention" else attention for name in types]

    def pattern(self, keys: Keys, n_layer: int) -> list[str]:
        """Which layers have a window, for a config.json without `layer_types`."""
        return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(n_layer)]

    def read_local(self, keys: Keys, width: int) -> dict[str, Any]:
        """The other options that differ in layers with a window."""
        return {}

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        scale = first.get("score_scale", 1.0) ** -2
        # by default, transformers up to 5.20 silently uses a kernel without the cap
        eager = {"_attn_implementation": "eager"} if first.get("cap") else {}
        return {
            **super().write_attention(model),
            **write_layer_types(model),
            **eager,
            "query_pre_attn_scalar": round(scale) if abs(scale - round(scale)) < 1e-9 else scale,
            "attn_logit_softcapping": first.get("cap"),
            "final_logit_softcapping": model["head_cap"],
        }


class Gemma3(Gemma2):
    """The text models of Gemma 3: five layers with a window and their own positions, then one layer without."""

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    defaults: ClassVar[dict[str, Any]] = Gemma2.defaults | {
        "max_position_embeddings": 131_072, "final_logit_softcapping": None, "attn_logit_softcapping": None,
        "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0,
    }  # fmt: skip

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        keys.must("attn_logit_softcapping")  # transformers has this key, and computes without the cap
        return super().read_attention(keys, epsilon) | {"qk_norm": True, "qk_norm_epsilon": epsilon}

    def read_position(self, keys: Keys, width: int) -> dict[str, Any]:
        return read_rotary(keys, width, layers="full_attention")

    def read_local(self, keys: Keys, width: int) -> dict[str, Any]:
        return {"position": read_rotary(keys, width, base="rope_local_base_freq", layers="sliding_attention")}

    def pattern(self, keys: Keys, n_layer: int) -> list[str]:
        period = keys.integer("sliding_window_pattern", 6)
        if keys.take("layer_types") is None:
            keys.must("_sliding_window_pattern", period)  # transformers writes this key, and does not read it
        keys.take("_sliding_window_pattern")
        return ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(n_layer)]

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        local = [attention["position"] for attention in model["attention"] if "window" in attention]
        full = [attention["position"] for attention in model["attention"] if "window" not in attention]
        local_base = {"rope_local_base_freq": local[0].get("base", 10_000.0)} if local else {}
        return super().write_attention(model) | write_rotary((full or local)[0]) | local_base
