"""Attention and MLP in parallel: GPT-NeoX (arXiv 2204.06745) with Pythia, GPT-J, and Phi.

NeoX keeps query, key and value of each head side by side in one matrix, and rotates a quarter of a head's features.
GPT-J and Phi have one norm for attention and MLP, and a bias in the head. GPT-J pairs neighbouring features, as here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from minigpt.hub.families.gpt2 import GELU_NAMES, GELUS, GPT2, SUMMARY
from minigpt.hub.families.rope import read_rotary, rotated_features, write_rotary
from minigpt.hub.family import QKV, Family
from minigpt.hub.keys import Keys
from minigpt.hub.layouts import IDENTITY, Layout, each, fused_by_head, halves
from minigpt.hub.spelled import Spelled


def fused_names(attention: str) -> dict[str, str]:
    """The modules of a layer that keeps query, key and value in one matrix: GPT-NeoX's, and BLOOM's."""
    return {
        "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
        f"{attention}.query_key_value": QKV, f"{attention}.dense": "attention.project",
        "mlp.dense_h_to_4h": "mlp.up", "mlp.dense_4h_to_h": "mlp.project",
    }  # fmt: skip


class GPTNeoX(Family):
    """GPT-NeoX and Pythia."""

    model_type = "gpt_neox"
    architecture = "GPTNeoXForCausalLM"
    prefix = "gpt_neox."
    head = "embed_out"
    renamed = {"lm_head": "embed_out"}  # noqa: RUF012
    embeddings = "gpt_neox.embed_in"
    names: ClassVar[dict[str, str]] = {
        "gpt_neox.embed_in": "tokens", "gpt_neox.final_layer_norm": "norm", "embed_out": "head"
    }  # fmt: skip
    layer = "gpt_neox.layers.{}"
    layer_names = fused_names("attention")
    buffers = r".*\.(rotary_emb\.inv_freq|attention\.(bias|masked_bias))"
    defaults: ClassVar[dict[str, Any]] = {
        "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64, "intermediate_size": 24576,
        "hidden_act": "gelu", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "tie_word_embeddings": False,
        "use_parallel_residual": True, "attention_bias": True, "rotary_emb_base": 10_000.0, "rotary_pct": 0.25,
    }  # fmt: skip

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head = keys.integer("hidden_size"), keys.integer("num_attention_heads")
        bias = keys.flag("attention_bias")
        position = read_rotary(keys, max(1, D // n_head), base="rotary_emb_base", share="rotary_pct")
        keys.same("rope_theta", position["base"])
        keys.same("partial_rotary_factor", position["share"])
        parallel = keys.flag("use_parallel_residual")
        return {
            **self.read_sizes(keys),
            "position": position,
            "attention": {"kind": "multi_head", "n_head": n_head, "qkv_bias": bias, "project_bias": bias},
            "block": "parallel" if parallel else "pre_norm",
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_eps")},
            "mlp": {"kind": keys.choice("hidden_act", GELUS), "width": keys.integer("intermediate_size")},
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        return {
            "num_attention_heads": first.get("n_head", 1),
            "intermediate_size": model["mlp"]["width"],
            "hidden_act": GELU_NAMES.get(model["mlp"]["kind"], "gelu"),
            "layer_norm_eps": model["norm"]["epsilon"],
            "attention_bias": first.get("qkv_bias", True),
            "use_parallel_residual": model["block"]["kind"] == "parallel",
            "rotary_emb_base": first["position"].get("base", 10_000.0),
            "rotary_pct": first["position"].get("share", 1.0),
            "rope_scaling": write_rotary(first["position"])["rope_scaling"],
        }

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        rotary_order = halves(attention["head_dim"], rotated_features(attention))
        qkv = fused_by_head(attention["head_dim"]).then(each(rotary_order, rotary_order, IDENTITY))
        return {"attention.query_key_value": qkv}


class GPTJ(Family):
    """GPT-J."""

    model_type = "gptj"
    architecture = "GPTJForCausalLM"
    prefix = "transformer."
    embeddings = "transformer.wte"
    names: ClassVar[dict[str, str]] = {"transformer.wte": "tokens", "transformer.ln_f": "norm", "lm_head": "head"}
    sizes = GPT2.sizes
    layer = "transformer.h.{}"
    layer_names: ClassVar[dict[str, str]] = {
        "ln_1": "attention_norm", "attn.q_proj": "attention.query", "attn.k_proj": "attention.key",
        "attn.v_proj": "attention.value", "attn.out_proj": "attention.project", "mlp.fc_in": "mlp.up",
        "mlp.fc_out": "mlp.project",
    }  # fmt: skip
    buffers = r".*\.attn\.(bias|masked_bias|embed_positions)"
    defaults: ClassVar[dict[str, Any]] = {
        "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip
    other_names = GPT2.other_names
    no_effect: ClassVar[dict[str, str]] = {
        "the size of a mask in older code: the context is n_positions": "n_ctx",
        "heads for other tasks": SUMMARY,
    }

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head = keys.integer("n_embd"), keys.integer("n_head")
        d, rotated = max(1, D // n_head), keys.integer("rotary_dim")
        keys.must("rotary", True)
        keys.must("scale_attn_weights", True)
        if rotated % 2 or rotated > d:
            raise keys.error("rotary_dim", f"{rotated} of {d} features are rotated: expected an even number of them")
        return {
            **self.read_sizes(keys),
            "position": {"kind": "rotary", "share": share_of(rotated, d)},
            "attention": {"kind": "multi_head", "n_head": n_head, "qkv_bias": False, "project_bias": False},
            "block": "parallel_one_norm",
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_epsilon")},
            "mlp": {"kind": keys.choice("activation_function", GELUS), "width": keys.integer("n_inner", 4 * D)},
            "head_bias": True,
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        return {
            "n_head": first.get("n_head", 1),
            "n_inner": model["mlp"]["width"],
            "rotary_dim": rotated_features(first) or self.defaults["rotary_dim"],
            "activation_function": GELU_NAMES.get(model["mlp"]["kind"], "gelu_new"),
            "layer_norm_epsilon": model["norm"]["epsilon"],
        }


def share_of(rotated: int, width: int) -> float:
    """The fraction of a head's features that are rotated: int(share * width) == rotated, in spite of rounding."""
    share = rotated / width
    return share if int(share * width) == rotated else math.nextafter(share, 1.0)


class Phi(Family):
    """Phi 1 and 2 (arXiv 2306.11644)."""

    model_type = "phi"
    architecture = "PhiForCausalLM"
    names: ClassVar[dict[str, str]] = {
        "model.embed_tokens": "tokens", "model.final_layernorm": "norm", "lm_head": "head"
    }  # fmt: skip
    layer_names: ClassVar[dict[str, str]] = {
        "input_layernorm": "attention_norm", "self_attn.q_proj": "attention.query",
        "self_attn.k_proj": "attention.key", "self_attn.v_proj": "attention.value",
        "self_attn.dense": "attention.project", "mlp.fc1": "mlp.up", "mlp.fc2": "mlp.project",
    }  # fmt: skip
    defaults: ClassVar[dict[str, Any]] = {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
        "hidden_act": "gelu_new", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False, "rope_theta": 10_000.0, "partial_rotary_factor": 0.5,
    }  # fmt: skip

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head = keys.integer("hidden_size"), keys.integer("num_attention_heads")
        n_kv_head = keys.integer("num_key_value_heads", n_head)
        keys.must("qk_layernorm", False)
        return {
            **self.read_sizes(keys),
            "position": read_rotary(keys, max(1, D // n_head), share="partial_rotary_factor"),
            "attention": {"kind": "grouped_query", "n_head": n_head, "n_kv_head": n_kv_head},
            "block": "parallel_one_norm",
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_eps")},
            "mlp": {"kind": keys.choice("hidden_act", GELUS), "width": keys.integer("intermediate_size")},
            "head_bias": True,
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        n_head = first.get("n_head", 1)
        return {
            "num_attention_heads": n_head,
            "num_key_value_heads": first.get("n_kv_head", n_head),
            "intermediate_size": model["mlp"]["width"],
            "hidden_act": GELU_NAMES.get(model["mlp"]["kind"], "gelu_new"),
            "layer_norm_eps": model["norm"]["epsilon"],
            "partial_rotary_factor": first["position"].get("share", 1.0),
            **write_rotary(first["position"]),
        }

    def layouts(self, attention: Spelled, model: Spelled) -> dict[str, Layout]:
        rotary_order = halves(attention["head_dim"], rotated_features(attention))
        return dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj"), rotary_order)
