"""OLMo 2 (arXiv 2501.00656). Differences from Llama: the norms come after attention and after the MLP, and the norms of
queries and keys act on all heads at once."""

from __future__ import annotations

from typing import Any, ClassVar

from minigpt.hub.families.llama import PARTS, Llama
from minigpt.hub.keys import Keys
from minigpt.hub.spelled import Spelled


class OLMo2(Llama):
    """OLMo 2."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    layer_names = {
        "post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "mlp_norm"
    } | PARTS  # fmt: skip
    defaults: ClassVar[dict[str, Any]] = Llama.defaults | {"rms_norm_eps": 1e-5}

    def read(self, keys: Keys) -> dict[str, Any]:
        return super().read(keys) | {"block": "post_norm"}

    def read_attention(self, keys: Keys, epsilon: float) -> dict[str, Any]:
        return super().read_attention(keys, epsilon) | {"qk_norm": "whole", "qk_norm_epsilon": epsilon}

    def read_mlp_bias(self, keys: Keys) -> bool:
        return False

    def write_attention(self, model: Spelled) -> dict[str, Any]:
        return {"attention_bias": model["attention"][0].get("qkv_bias", False)}
