"""Gemma (arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and the text models of Gemma 3 (arXiv 2503.19786).

Differences from Llama: GeGLU with the tanh form of GELU, embeddings scaled by sqrt(D), and norms that multiply by
1 + w. minigpt stores 1 + w, which rounds in float32: after an export, a norm's weight may differ in its last bits.
Gemma 2 has norms before and after attention and MLP, caps scores and logits, and has a window in every second layer.
Gemma 3 has norms of queries and keys instead of the caps, and its layers with a window have their own rotary positions.
"""

from __future__ import annotations

from typing import Any, ClassVar

from minigpt.hub.families.llama import Llama, read_layer_types, write_layer_types
from minigpt.hub.families.rope import read_rotary, write_rotary
from minigpt.hub.family import Row, row
from minigpt.hub.keys import Keys
from minigpt.hub.layouts import ONE_PLUS
from minigpt.hub.spelled import Spelled

TANH_GELU = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu_tanh"}  # "gelu" in Gemma's files means tanh, too


class Gemma(Llama):
    """The first Gemma."""

    model_type = "gemma"
    architecture = "GemmaForCausalLM"
    context = 8192
    tied = True

    def read(self, keys: Keys) -> dict[str, Any]:
        keys.must("use_bidirectional_attention", False)
        values = super().read(keys)
        return values | {"embedding_scale": values["n_embd"] ** 0.5}

    def read_gate(self, keys: Keys) -> str:
        keys.must("hidden_activation", "gelu_pytorch_tanh")
        return keys.choice("hidden_act", TANH_GELU, "gelu_pytorch_tanh")

    def read_mlp_bias(self, keys: Keys) -> bool:
        return False

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        act = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
        return act | {"attention_bias": model["attention"][0].get("qkv_bias", False)}

    def model_rows(self) -> list[Row]:
        return [
            row("model.embed_tokens", "tokens"),
            row("model.norm", "norm", layout=ONE_PLUS),
            row("lm_head", "head"),
        ]

    def norm_rows(self) -> list[Row]:
        return [Row(one.theirs, one.ours, ONE_PLUS) for one in super().norm_rows()]


class Gemma2(Gemma):
    """Gemma 2."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    caps: ClassVar[tuple[float | None, float | None]] = (30.0, 50.0)
    """The caps of logits and of scores, for a config.json without the keys."""

    def read(self, keys: Keys) -> dict[str, Any]:
        cap = self.read_cap(keys, "final_logit_softcapping", self.caps[0])
        return super().read(keys) | {"block": "sandwich", "head_cap": cap}

    def read_cap(self, keys: Keys, key: str, default: float | None) -> float | None:
        """A cap: a null key means none, and a missing key means the family's default."""
        return default if key not in keys.values else keys.number(key, None)

    def read_gate(self, keys: Keys) -> str:
        keys.must("hidden_act", "gelu_pytorch_tanh")
        return keys.choice("hidden_activation", {"gelu_pytorch_tanh": "geglu_tanh"}, "gelu_pytorch_tanh")

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        cap = self.read_cap(keys, "attn_logit_softcapping", self.caps[1])
        scale = keys.number("query_pre_attn_scalar", 256.0) ** -0.5
        capped = {} if cap is None else {"kind": "soft_cap", "cap": cap}
        return super().read_attention(keys, epsilon) | {"score_scale": scale} | capped

    def read_layers(self, keys: Keys, attention: dict[str, Any], n_layer: int) -> Any:
        window = keys.whole("sliding_window", 4096)
        keys.same("sliding_window_size", window)
        types = read_layer_types(keys, n_layer, self.pattern(keys, n_layer))
        near = attention | {"kind": "soft_cap_window" if "cap" in attention else "sliding_window", "window": window}
        near |= self.read_near(keys, attention["head_dim"])
        return [near if name == "sliding_attention" else attention for name in types]

    def pattern(self, keys: Keys, n_layer: int) -> list[str]:
        """Which layers have a window, for a config.json without `layer_types`."""
        return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(n_layer)]

    def read_near(self, keys: Keys, width: int) -> dict[str, Any]:
        """The other options that differ in layers with a window."""
        return {}

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        scale = first.get("score_scale", 1.0) ** -2
        # by default, transformers up to 5.20 silently uses a kernel without the cap
        capped = {"_attn_implementation": "eager"} if first.get("cap") else {}
        return {
            **super().write_attention(model),
            **write_layer_types(model),
            **capped,
            "query_pre_attn_scalar": round(scale) if abs(scale - round(scale)) < 1e-9 else scale,
            "attn_logit_softcapping": first.get("cap"),
            "final_logit_softcapping": model["head_cap"],
        }

    def norm_rows(self) -> list[Row]:
        layer, block = "model.layers.{}", "blocks.{}"
        return [
            row(f"{layer}.input_layernorm", f"{block}.attention_norm", layout=ONE_PLUS),
            row(f"{layer}.post_attention_layernorm", f"{block}.attention_post_norm", layout=ONE_PLUS),
            row(f"{layer}.pre_feedforward_layernorm", f"{block}.mlp_norm", layout=ONE_PLUS),
            row(f"{layer}.post_feedforward_layernorm", f"{block}.mlp_post_norm", layout=ONE_PLUS),
        ]


class Gemma3(Gemma2):
    """The text models of Gemma 3: five layers with a window and their own positions, then one layer without."""

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    context = 131_072
    base = 1_000_000.0
    caps = (None, None)

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        return super().read_attention(keys, epsilon) | {"qk_norm": True, "qk_norm_epsilon": epsilon}

    def layer_rows(self, attention: Spelled, model: Spelled) -> list[Row]:
        rows = super().layer_rows(attention, model)
        return [Row(o.theirs, o.ours, ONE_PLUS.then(o.layout)) if o.theirs.endswith("_norm") else o for o in rows]

    def read_position(self, keys: Keys, width: int) -> dict[str, Any]:
        return read_rotary(keys, width, self.base, layers="full_attention")

    def read_near(self, keys: Keys, width: int) -> dict[str, Any]:
        group, local = keys.group("rope_parameters"), keys.number("rope_local_base_freq", 10_000.0)
        known = {"max_position_embeddings": keys.whole("max_position_embeddings", self.context)}
        near = Keys(known | {"rope_parameters": group.take("sliding_attention", {})}, self.model_type)
        return {"position": read_rotary(near, width, local)}

    def pattern(self, keys: Keys, n_layer: int) -> list[str]:
        every = keys.whole("sliding_window_pattern", keys.whole("_sliding_window_pattern", 6))
        return ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(n_layer)]

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        near = [attention["position"] for attention in model["attention"] if "window" in attention]
        far = [attention["position"] for attention in model["attention"] if "window" not in attention]
        local = {"rope_local_base_freq": near[0].get("base", 10_000.0)} if near else {}
        return super().write_attention(model) | write_rotary((far or near)[0]) | local
