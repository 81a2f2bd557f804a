"""Positions as a bias: BLOOM (arXiv 2211.05100) and MPT (Mosaic's, 2023), both with ALiBi (arXiv 2108.12409).

BLOOM has a norm after the embeddings, and keeps query, key and value of each head side by side in one matrix; its tanh
GELU has 0.79788456 where other models have sqrt(2/pi). MPT has no biases.
"""

from __future__ import annotations

from typing import Any

from minigpt.hub.family import Family, Row, row
from minigpt.hub.keys import Keys
from minigpt.hub.layouts import fused, fused_by_head
from minigpt.hub.spelled import Spelled

ALIBI = {"kind": "alibi", "slopes": "bloom"}
CONTEXT = 2048  # of BLOOM, if its config.json does not have it


class BLOOM(Family):
    """BLOOM."""

    model_type = "bloom"
    architecture = "BloomForCausalLM"
    prefix = "transformer."
    embeddings = "transformer.word_embeddings"

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head, n_layer = (self.either(keys, *names) for names in NAMES)
        keys.must("apply_residual_connection_post_layernorm", False)
        keys.must("n_inner", 4 * D)
        for key in ("slow_but_exact", "attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion"):
            keys.take(key)  # no effect: the same values, computed in another order
        for key in ("skip_bias_add", "skip_bias_add_qkv", "offset_alibi"):
            keys.take(key)  # no effect: keys of the program that trained it
        return {
            "n_layer": n_layer,
            "n_embd": D,
            "block_size": keys.whole("seq_length", CONTEXT),
            "position": ALIBI,
            "attention": {"kind": "multi_head", "n_head": n_head},
            "embedding_norm": True,
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_epsilon", 1e-5)},
            "mlp": {"kind": "gelu_tanh", "width": 4 * D},
            "tied_head": keys.flag("tie_word_embeddings", True),
        }

    def either(self, keys: Keys, name: str, other: str, default: int) -> int:
        """The value of a key with two names. Raises UserError if both are there and differ."""
        found = keys.whole(name, keys.whole(other, default))
        keys.same(other, found)
        return int(found)

    def write(self, model: Spelled) -> dict[str, Any]:
        return {
            "hidden_size": model["n_embd"],
            "n_layer": model["n_layer"],
            "n_head": model["attention"][0].get("n_head", 1),
            "seq_length": model["block_size"],
            "layer_norm_epsilon": model["norm"]["epsilon"],
        }

    def model_rows(self) -> list[Row]:
        return [
            row("transformer.word_embeddings", "tokens"),
            row("transformer.word_embeddings_layernorm", "embedding_norm"),
            row("transformer.ln_f", "norm"),
            row("lm_head", "head"),
        ]

    def layer_rows(self, attention: Spelled, model: Spelled) -> list[Row]:
        layer, block = "transformer.h.{}", "blocks.{}"
        names = [f"{block}.attention.{name}" for name in ("query", "key", "value")]
        three = fused_by_head(attention["head_dim"])
        return [
            row(f"{layer}.input_layernorm", f"{block}.attention_norm"),
            row(f"{layer}.self_attention.query_key_value", *names, layout=three),
            row(f"{layer}.self_attention.dense", f"{block}.attention.project"),
            row(f"{layer}.post_attention_layernorm", f"{block}.mlp_norm"),
            row(f"{layer}.mlp.dense_h_to_4h", f"{block}.mlp.up"),
            row(f"{layer}.mlp.dense_4h_to_h", f"{block}.mlp.project"),
        ]


NAMES = (("hidden_size", "n_embed", 64), ("n_head", "num_attention_heads", 8), ("n_layer", "num_hidden_layers", 2))


class MPT(Family):
    """MPT."""

    model_type = "mpt"
    architecture = "MptForCausalLM"
    prefix = "transformer."
    embeddings = "transformer.wte"

    def read(self, keys: Keys) -> dict[str, Any]:
        D, n_head = keys.whole("d_model", 2048), keys.whole("n_heads", 16)
        group = keys.group("attn_config")
        for key, value in MPT_ATTENTION.items():
            group.must(key, value)
        scale = group.number("softmax_scale", (D / n_head) ** -0.5)
        group.finish("attn_impl", "attn_uses_sequence_id")
        keys.must("expansion_ratio", 4)
        keys.must("no_bias", True)
        keys.must("logit_scale")
        keys.must("norm_type", "low_precision_layernorm", "layernorm")
        keys.take("embedding_fraction")  # no effect: it scales gradients
        keys.take("learned_pos_emb")  # no effect: with ALiBi there are none
        return {
            "n_layer": keys.whole("n_layers", 24),
            "n_embd": D,
            "block_size": keys.whole("max_seq_len", 2048),
            "bias": False,
            "position": ALIBI,
            "attention": {"kind": "multi_head", "n_head": n_head, "score_scale": scale},
            "norm": {"kind": "layernorm", "epsilon": keys.number("layer_norm_epsilon", 1e-5)},
            "mlp": {"kind": "gelu", "width": 4 * D},
            "tied_head": keys.flag("tie_word_embeddings", True),
        }

    def write(self, model: Spelled) -> dict[str, Any]:
        first = model["attention"][0]
        return {
            "d_model": model["n_embd"],
            "n_layers": model["n_layer"],
            "n_heads": first.get("n_head", 1),
            "max_seq_len": model["block_size"],
            "attn_config": MPT_ATTENTION | {"softmax_scale": first.get("score_scale")},
            "layer_norm_epsilon": model["norm"]["epsilon"],
        }

    def model_rows(self) -> list[Row]:
        return [row("transformer.wte", "tokens"), row("transformer.norm_f", "norm"), row("lm_head", "head")]

    def layer_rows(self, attention: Spelled, model: Spelled) -> list[Row]:
        layer, block, D = "transformer.blocks.{}", "blocks.{}", model["n_embd"]
        names = [f"{block}.attention.{name}" for name in ("query", "key", "value")]
        return [
            row(f"{layer}.norm_1", f"{block}.attention_norm"),
            row(f"{layer}.attn.Wqkv", *names, layout=fused(D, D, D)),
            row(f"{layer}.attn.out_proj", f"{block}.attention.project"),
            row(f"{layer}.norm_2", f"{block}.mlp_norm"),
            row(f"{layer}.ffn.up_proj", f"{block}.mlp.up"),
            row(f"{layer}.ffn.down_proj", f"{block}.mlp.project"),
        ]


MPT_ATTENTION = {
    "attn_type": "multihead_attention",
    "alibi": True,
    "alibi_bias_max": 8,
    "prefix_lm": False,
    "qk_ln": False,
    "clip_qkv": None,
}
