"""The usual names of arguments and attributes, by the size that they hold.

B batch, T positions, D model width, H query heads, G key heads, d width of a head, V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "D": ("D", "C", "d_model", "n_embd", "n_embed", "embed_dim", "embedding_dim", "emb_dim", "embed_size", "dim",
          "d_embed", "d_in", "d_out", "hidden_size", "hidden_dim", "in_features", "input_dim", "in_dim", "out_dim",
          "model_dim", "dim_model", "width", "emb", "k", "features", "channels", "n_dim", "output_dim", "d_emb",
          "emb_size",           "nf", "n_embed", "embedding_size", "model_width", "d_hidden"),
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
