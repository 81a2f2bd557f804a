"""GPT-2: "Language Models are Unsupervised Multitask Learners". The released models use the tanh form of GELU."""

from __future__ import annotations

from typing import Any, ClassVar

from minigpt.hub.family import QKV, Family
from minigpt.hub.keys import Keys
from minigpt.hub.layouts import TRANSPOSED, Layout, fused
from minigpt.hub.spelled import Spelled

TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")  # the same function under three names
GELUS = {"gelu": "gelu"} | dict.fromkeys(TANH, "gelu_tanh")
SUMMARY = "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout"
GELU_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new"}


class GPT2(Family):
    """Learned positions, layer norms, query, key and value in one transposed matrix, the head tied to the tokens."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    embeddings = "transformer.wte"
    names: ClassVar[dict[str, str]] = {
        "transformer.wte": "tokens", "transformer.wpe": "position.table", "transformer.ln_f": "norm", "lm_head": "head"
    }  # fmt: skip
    sizes: ClassVar[dict[str, str]] = {"n_layer": "n_layer", "n_embd": "n_embd", "n_positions": "block_size"}
    layer = "transformer.h.{}"
    layer_names: ClassVar[dict[str, str]] = {
        "ln_1": "attention_norm", "attn.c_attn": QKV, "attn.c_proj": "attention.project", "ln_2": "mlp_norm",
        "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.project",
    }  # fmt: skip
    buffers = r".*\.attn\.(bias|masked_bias)"
    defaults: ClassVar[dict[str, Any]] = {
        "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    }  # fmt: skip
    other_names: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }  # fmt: skip
    no_effect: ClassVar[dict[str, str]] = {
        "the same scores, computed in another order": "reorder_and_upcast_attn",
        "the size of a mask in older code: the context is n_positions": "n_ctx",
        "heads for other tasks": SUMMARY,
        "keys of GPT-1": "n_special predict_special_tokens",
    }

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head, n_layer = keys.integer("n_embd"), keys.integer("n_head"), keys.integer("n_layer")
        scale = (D / n_head) ** -0.5 if keys.flag("scale_attn_weights") else 1.0
        fall = keys.flag("scale_attn_by_inverse_layer_idx")
        scales = [scale / (layer + 1) for layer in range(min(n_layer, 1000))] if fall else [scale]
        return {
            **self.read_sizes(keys),
            "position": "learned",
            "attention": [{"kind": "multi_head", "n_head": n_head, "score_scale": scale} for scale in scales],
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_epsilon")},
            "mlp": {"kind": keys.choice("activation_function", GELUS), "width": keys.integer("n_inner", 4 * D)},
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        D, first = model["n_embd"], model["attention"][0]
        scales = [attention.get("score_scale") for attention in model["attention"]]
        unit = first.get("head_dim", D) ** -0.5
        return {
            "n_head": first.get("n_head", 1),
            "n_inner": model["mlp"]["width"],
            "activation_function": GELU_NAMES.get(model["mlp"]["kind"], "gelu_new"),
            "layer_norm_epsilon": model["norm"]["epsilon"],
            "scale_attn_weights": scales[0] == unit,
            "scale_attn_by_inverse_layer_idx": len(set(scales)) > 1,
        }

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        D, others = model["n_embd"], ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        return {"attn.c_attn": TRANSPOSED.then(fused(D, D, D))} | dict.fromkeys(others, TRANSPOSED)
