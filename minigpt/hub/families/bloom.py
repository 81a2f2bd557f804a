"""Positions as a bias: BLOOM (arXiv 2211.05100) and MPT (Mosaic's, 2023), both with ALiBi (arXiv 2108.12409).

BLOOM has a norm after the embeddings, and keeps query, key and value of each head side by side in one matrix; its tanh
GELU has 0.79788456 where other models have sqrt(2/pi). MPT has no biases.
"""

from __future__ import annotations

from typing import Any, ClassVar

from minigpt.hub.families.neox import fused_names
from minigpt.hub.family import QKV, Family
from minigpt.hub.keys import Keys
from minigpt.hub.layouts import Layout, fused, fused_by_head
from minigpt.hub.spelled import Spelled

ALIBI = {"kind": "alibi", "slopes": "bloom"}


class BLOOM(Family):
    """BLOOM."""

    model_type = "bloom"
    architecture = "BloomForCausalLM"
    prefix = "transformer."
    embeddings = "transformer.word_embeddings"
    names: ClassVar[dict[str, str]] = {
        "transformer.word_embeddings": "tokens", "transformer.word_embeddings_layernorm": "embedding_norm",
        "transformer.ln_f": "norm", "lm_head": "head",
    }  # fmt: skip
    sizes: ClassVar[dict[str, str]] = {"n_layer": "n_layer", "hidden_size": "n_embd", "seq_length": "block_size"}
    layer = "transformer.h.{}"
    layer_names = fused_names("self_attention")
    defaults: ClassVar[dict[str, Any]] = {
        "hidden_size": 64, "n_layer": 2, "n_head": 8, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        "pretraining_tp": 1, "slow_but_exact": False, "seq_length": 2048,
    }  # fmt: skip
    other_names: ClassVar[dict[str, str]] = {
        "n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"
    }  # fmt: skip
    no_effect: ClassVar[dict[str, str]] = {
        "the same values, computed in another order": """
            attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion""",
        "keys of the program that trained it": "skip_bias_add skip_bias_add_qkv offset_alibi",
    }

    def read(self, keys: Keys) -> dict[str, Any]:
        D = keys.integer("hidden_size")
        keys.must("apply_residual_connection_post_layernorm", False)
        keys.must("n_inner", 4 * D)
        slices, in_slices = keys.integer("pretraining_tp"), keys.flag("slow_but_exact")
        if in_slices and slices > 1:
            problem = (
                f"true has no counterpart in minigpt where pretraining_tp is above 1 ({slices}): without two biases"
            )
            raise keys.error("slow_but_exact", problem)
        return {
            **self.read_sizes(keys),
            "position": ALIBI,
            "attention": {"kind": "multi_head", "n_head": keys.integer("n_head")},
            "embedding_norm": True,
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_epsilon")},
            "mlp": {"kind": "gelu_tanh", "width": 4 * D},
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        return {
            "n_head": model["attention"][0].get("n_head", 1),
            "layer_norm_epsilon": model["norm"]["epsilon"],
        }

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        return {"self_attention.query_key_value": fused_by_head(attention["head_dim"])}


class MPT(Family):
    """MPT."""

    model_type = "mpt"
    architecture = "MptForCausalLM"
    prefix = "transformer."
    embeddings = "transformer.wte"
    names: ClassVar[dict[str, str]] = {"transformer.wte": "tokens", "transformer.norm_f": "norm", "lm_head": "head"}
    sizes: ClassVar[dict[str, str]] = {"n_layers": "n_layer", "d_model": "n_embd", "max_seq_len": "block_size"}
    layer = "transformer.blocks.{}"
    layer_names: ClassVar[dict[str, str]] = {
        "norm_1": "attention_norm", "attn.Wqkv": QKV, "attn.out_proj": "attention.project", "norm_2": "mlp_norm",
        "ffn.up_proj": "mlp.up", "ffn.down_proj": "mlp.project",
    }  # fmt: skip
    defaults: ClassVar[dict[str, Any]] = {
        "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }  # fmt: skip
    other_names: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"
    }  # fmt: skip
    no_effect: ClassVar[dict[str, str]] = {
        "how its weights began": "init_config init_device init_std",
        "what it says while it trains": "verbose",
        "it scales gradients": "embedding_fraction",
        "with ALiBi there are none": "learned_pos_emb",
    }

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head = keys.integer("d_model"), keys.integer("n_heads")
        no_effect = ("attn_impl", "attn_uses_sequence_id", "tie_word_embeddings")  # for a group, the last means nothing
        group = keys.group("attn_config", [*keys.no_effect, *no_effect])
        for key, value in MPT_ATTENTION.items():
            group.must(key, value)
        scale = group.number("softmax_scale", (D / n_head) ** -0.5)
        keys.must("expansion_ratio", 4)
        keys.must("no_bias", True)
        keys.must("logit_scale")
        keys.must("norm_type", "low_precision_layernorm", "layernorm")
        return {
            **self.read_sizes(keys),
            "bias": False,
            "position": ALIBI,
            "attention": {"kind": "multi_head", "n_head": n_head, "score_scale": scale},
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_epsilon")},
            "mlp": {"kind": "gelu", "width": 4 * D},
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        return {
            "n_heads": first.get("n_head", 1),
            "attn_config": MPT_ATTENTION | {"softmax_scale": first.get("score_scale")},
            "layer_norm_epsilon": model["norm"]["epsilon"],
        }

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        return {"attn.Wqkv": fused(*[model["n_embd"]] * 3)}


MPT_ATTENTION = {
    "attn_type": "multihead_attention",
    "alibi": True,
    "alibi_bias_max": 8,
    "prefix_lm": False,
    "qk_ln": False,
    "clip_qkv": None,
}
