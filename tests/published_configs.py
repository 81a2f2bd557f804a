"""What the config.json of published models says, and how many parameters the model has by its model card.

Keys that change no logit are here too, as the files have them: they must not stop a model from being read.
"""

from __future__ import annotations

from typing import Any

COMMON = {"use_cache": True, "initializer_range": 0.02, "torch_dtype": "bfloat16", "transformers_version": "4.40.1"}
GROUP = {"rope_type": "llama3", "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
SUMMARY = {
    "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "pretraining_tp": 1, "rope_scaling": None,
    "rms_norm_eps": 1e-05, "tie_word_embeddings": False, **COMMON,
}  # fmt: skip

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        {
            "model_type": "gpt2", "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
            "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12,
            "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257, **SUMMARY,
        },
        124_439_808,
    ),
    "SmolLM2-135M": (
        LLAMA
        | {
            "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
            "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "rope_interleaved": False,
            "rope_theta": 100000, "tie_word_embeddings": True, "vocab_size": 49152,
        },
        134_515_008,
    ),
    "Llama-3.1-8B": (
        LLAMA
        | {
            "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "mlp_bias": False, "rope_theta": 500000.0,
            "rope_scaling": GROUP | {"factor": 8.0, "high_freq_factor": 4.0},
        },
        8_030_261_248,
    ),
    "Mistral-7B-v0.1": (
        {
            "model_type": "mistral", "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000, **COMMON,
        },
        7_241_732_096,
    ),
    "Qwen2.5-0.5B": (
        {
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
            "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
            "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False,
            "use_sliding_window": False, "vocab_size": 151936, **COMMON,
        },
        494_032_768,
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
            "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
            "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936, **COMMON,
        },
        596_049_920,
    ),
    "gemma-2b": (
        {
            "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu",
            "hidden_activation": None, "hidden_size": 2048, "intermediate_size": 16384,
            "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 18,
            "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 10000.0, "vocab_size": 256000, **COMMON,
        },
        2_506_172_416,
    ),
    "gemma-2-2b": (
        {
            "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "bos_token_id": 2,
            "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
            "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8,
            "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000, **COMMON,
        },
        2_614_341_888,
    ),
    "gemma-3-1b": (
        {
            "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2,
            "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None,
            "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
            "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26,
            "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
            "sliding_window_pattern": 6, "vocab_size": 262144, **COMMON,
        },
        999_885_952,
    ),
    "OLMo-2-0425-1B": (
        {
            "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
            "intermediate_size": 8192, "max_position_embeddings": 4096, "num_attention_heads": 16,
            "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352, **COMMON,
        },
        1_484_916_736,
    ),
    "pythia-70m": (
        {
            "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
            "hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 6,
            "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "use_parallel_residual": True,
            "vocab_size": 50304, **COMMON,
        },
        70_426_624,
    ),
    "gpt-j-6b": (
        {
            "model_type": "gptj", "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"],
            "attn_pdrop": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256,
            "gradient_checkpointing": False, "layer_norm_epsilon": 1e-05, "n_embd": 4096, "n_head": 16,
            "n_inner": None, "n_layer": 28, "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64,
            "scale_attn_weights": True, "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer",
            "vocab_size": 50400, **SUMMARY, **COMMON,
        },
        6_050_882_784,
    ),
    "bloom-560m": (
        {
            "model_type": "bloom", "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0,
            "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 3, "unk_token_id": 0, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05,
            "masked_softmax_fusion": True, "n_embed": 1024, "n_inner": None, "n_layer": 24,
            "num_attention_heads": 16, "offset_alibi": 100, "pretraining_tp": 1, "seq_length": 2048,
            "skip_bias_add": True, "skip_bias_add_qkv": False, "vocab_size": 250880, **COMMON,
        },
        559_214_592,
    ),
    "mpt-7b": (
        {
            "model_type": "mpt", "architectures": ["MPTForCausalLM"],
            "attn_config": {
                "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
                "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
                "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
            },
            "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "d_model": 4096, "emb_pdrop": 0,
            "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {"name": "kaiming_normal_"},
            "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048, "n_heads": 32,
            "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
            "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0, "vocab_size": 50432, **COMMON,
        },
        6_649_286_656,
    ),
    "phi-2": (
        {
            "model_type": "phi", "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256,
            "embd_pdrop": 0.0, "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560,
            "intermediate_size": 10240, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
            "partial_rotary_factor": 0.4, "qk_layernorm": False, "resid_pdrop": 0.1, "rope_scaling": None,
            "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 51200, **COMMON,
        },
        2_779_683_840,
    ),
}  # fmt: skip
