"""The usual names of arguments and attributes, by the size that they hold.

A name that is not among them is read word by word: `n_query_heads`, `numKvGroups`, `head_width`.

B batch, T positions, D model width, H query heads, G key heads, d width of a head, W hidden width of an MLP,
V vocabulary, L layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from minigpt.grading.target import Target

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "D": ("D", "C", "d_model", "n_embd", "n_embed", "embed_dim", "embedding_dim", "emb_dim", "embed_size", "dim",
          "d_embed", "d_in", "d_out", "hidden_size", "hidden_dim", "in_features", "input_dim", "in_dim", "out_dim",
          "model_dim", "dim_model", "width", "emb", "k", "features", "channels", "n_dim", "output_dim", "d_emb",
          "emb_size",           "nf", "n_embed", "embedding_size", "model_width", "d_hidden",
          "normalized_shape", "ndim", "size"),
    "H": ("H", "h", "n_head", "n_heads", "num_heads", "heads", "nhead", "nheads", "head_count", "num_head",
          "num_attention_heads", "n_q_heads", "num_query_heads", "query_heads",
          "nh", "head_num"),
    "G": ("G", "n_kv_head", "n_kv_heads", "num_kv_heads", "kv_heads", "num_key_value_heads", "num_kv_groups",
          "n_groups", "num_groups", "groups", "n_kv", "num_kv", "kv_head", "h_kv", "kv_n_head"),
    "d": ("d", "d_k", "d_v", "d_head", "head_dim", "head_size", "dim_head", "head_width", "key_dim", "hd", "d_h",
          "size_per_head", "hs"),
    "T": ("T", "block_size", "context_length", "context_size", "ctx_len", "n_ctx", "seq_len", "max_seq_len", "max_len",
          "max_length", "seq_length", "sequence_length", "max_sequence_length", "max_position_embeddings", "length",
          "max_T", "window_length", "context", "ctx", "n_positions", "max_seq", "max_positions", "max_pos"),
    "window": ("window", "window_size", "sliding_window", "W", "w"),
    "V": ("vocab_size", "V", "n_vocab", "vocab", "num_tokens", "vocabulary_size", "n_tokens"),
    "L": ("n_layer", "n_layers", "num_layers", "layers", "depth"),
}  # fmt: skip

DROPS = ("dropout", "p", "dropout_rate", "drop", "attn_dropout", "resid_dropout", "attn_pdrop", "resid_pdrop",
         "dropout_p", "proj_drop", "attn_drop", "p_drop", "drop_rate", "dropout_prob", "pdrop")  # fmt: skip
CONSTANTS = {**dict.fromkeys(DROPS, 0.1),  # above 0: dropout that is active in evaluation mode shows
             "bias": True, "qkv_bias": True, "causal": True, "is_causal": True, "batch_first": True}  # fmt: skip
CONTEXT = 64  # the longest length, for a constructor that asks for one

COUNTS = {"n", "num", "nb", "nr", "no", "number", "count", "of", "total", "max", "maximum", "q", "query", "queries",
          "attn", "attention", "self", "anzahl"}  # fmt: skip
HEADS = {"head", "heads", "nhead", "nheads", "kopf", "koepfe", "tete", "tetes", "cabezas"}
KEYS = {"kv", "k", "v", "key", "keys", "value", "values"}
GROUPS = {"group", "groups", "grp"}
SIZES = {"dim", "dims", "size", "width", "d", "dimension", "features", "channels", "hidden", "units"}
HIDDEN = {"ff", "ffn", "mlp", "inner", "intermediate", "feedforward"}
LENGTHS = {"seq", "sequence", "context", "ctx", "len", "length", "positions", "pos"}
MODEL = {"model", "emb", "embd", "embed", "embedding", "hidden", "hiddens", "input", "in", "token", "residual",
         "resid", "stream", "feature", "features", "channel", "channels", "width"}  # fmt: skip


@cache
def axis_of(name: str) -> str:
    """The size that an argument holds, "D" for example, from its whole name or from its words; "" if it is unknown."""
    for axis, names in ARGUMENTS.items():
        if name in names or name.lower() in names:
            return axis
    words = {*re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_")} - {""}
    sized = bool(words & (SIZES | COUNTS))
    if words & {"per", "ratio", "mult", "factor", "multiplier", "rep", "eps", "base", "theta", "rope", "rotary"}:
        return ""
    if words & {"vocab", "vocabulary"}:
        return "V"
    if words & {"layers", "layer", "blocks", "depth"} and words & COUNTS:
        return "L"
    if words & HEADS:
        if words & SIZES:
            return "d"
        return "G" if words & (KEYS | GROUPS) else "H" if words <= HEADS | COUNTS else ""
    if words & GROUPS:
        return "G" if words <= GROUPS | COUNTS | KEYS else ""
    if words & HIDDEN:
        return "W" if sized else ""
    if words & LENGTHS and "window" not in words:
        return "T" if words <= LENGTHS | COUNTS | SIZES | {"model", "token", "tokens"} else ""
    return "D" if words & MODEL and sized and words <= MODEL | SIZES | COUNTS else ""


def value_of(name: str, target: Target, words: bool = True) -> tuple[bool, Any]:
    """(Whether the name of an argument is known, its value). `words`: the words inside the name count too."""
    sizes = target.sizes
    if name in CONSTANTS:
        return True, CONSTANTS[name] if name not in ("causal", "is_causal") else not target.options.full
    if name == "window" and target.options.window:
        return True, target.options.window
    exact = any(name in names or name.lower() in names for names in ARGUMENTS.values())
    axis = axis_of(name) if words or exact else ""
    axis = "D" if axis == "d" and axis not in sizes else axis  # MLP(d, 4 * d), where there are no heads
    if axis == "T":
        return True, CONTEXT
    if axis == "window":
        return bool(target.options.window), target.options.window
    return axis in sizes, sizes.get(axis)
