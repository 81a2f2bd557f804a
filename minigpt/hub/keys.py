"""Reads the keys of a config.json strictly: an unknown key is refused by its name, never ignored.

A config.json may be untrusted, and a key that is not read can change what the model computes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from minigpt.system.errors import UserError

# Keys that change no logit: names and records, options of training and generation, special tokens.
NO_EFFECT = """
_name_or_path architectures attn_implementation _attn_implementation _attn_implementation_autoset auto_map
cache_implementation dtype torch_dtype transformers_version model_type name_or_path transformers.js_config
use_cache gradient_checkpointing initializer_range init_config init_device init_std verbose pretraining_tp
bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id tokenizer_class
tokenizer_name prefix finetuning_task task_specific_params problem_type id2label label2id num_labels
return_dict output_attentions output_hidden_states torchscript use_bfloat16 tf_legacy_loss
chunk_size_feed_forward is_decoder tie_encoder_decoder unsloth_fixed unsloth_version
attention_dropout attn_pdrop embd_pdrop emb_pdrop resid_pdrop hidden_dropout classifier_dropout embedding_dropout
dropout mlp_dropout residual_dropout
summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
"""
# minigpt's own key: the string before each training text, a line end. It is put before a prompt as well.
BEFORE_TEXT = "minigpt_before_text"
WITHOUT_EFFECT = frozenset(NO_EFFECT.split())
# Keys that must be missing or off: each changes what is computed, and minigpt has no counterpart of it.
MUST_BE_OFF = (
    "add_cross_attention", "cross_attention_hidden_size", "is_encoder_decoder", "pruned_heads", "quantization_config",
    "compression_config", "num_local_experts", "num_experts", "lora", "sparse_attention",
)  # fmt: skip
REQUIRED = object()
LARGEST = 1 << 24  # the largest whole number in a config.json: no width, vocabulary or context is larger


def show(value: Any) -> str:
    """A value as JSON, shortened for a message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


class Keys:
    """The keys of a config.json, or of a group (a nested object). Every method raises UserError that names the key."""

    def __init__(self, values: Mapping[str, Any], family: str, within: str = ""):
        self.values, self.family, self.within = values, family, within
        self.left = set(values)

    def wrong(self, key: str, what: str) -> UserError:
        """A UserError that names the key; `what` says what was found and what is expected."""
        return UserError(f"config.json: {self.within}{key}: {what}")

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, unchecked; the default if the key is null or missing."""
        self.left.discard(key)
        value = self.values.get(key)
        if value is None and default is REQUIRED:
            raise self.wrong(key, f"missing; a model of the family {self.family} needs it")
        return default if value is None else value

    def whole(self, key: str, default: Any = REQUIRED) -> Any:
        """A whole number of at least 1, or the default."""
        value = self.take(key, default)
        if value is not default and not (type(value) is int and 1 <= value <= LARGEST):
            raise self.wrong(key, f"expected a whole number from 1 to {LARGEST:,}, found {show(value)}")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A number above zero, or the default."""
        value = self.take(key, default)
        if value is not default and not (type(value) in (int, float) and 0 < value < 1e30):
            raise self.wrong(key, f"expected a number above 0, found {show(value)}")
        return default if value is default else float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.take(key, default)
        if type(value) is not bool:
            raise self.wrong(key, f"expected true or false, found {show(value)}")
        return bool(value)

    def choice(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """The word of a key, translated by `choices`: config.json's word -> minigpt's."""
        value = self.take(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(key, f"{show(value)} has no counterpart in minigpt (known: {', '.join(choices)})")
        return choices[value]

    def must(self, key: str, *allowed: Any) -> None:
        """Check a key that has no counterpart: it must have one of the `allowed` values, be null, or be missing."""
        value = self.take(key)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            known = " or ".join([*map(show, allowed), "null"])
            raise self.wrong(key, f"{show(value)} has no counterpart in minigpt (known: {known})")

    def group(self, key: str) -> Keys:
        """The keys of a nested group; none if the group is missing."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"expected a group of keys, found {show(value)}")
        return Keys(value, self.family, f"{self.within}{key}.")

    def same(self, key: str, value: Any) -> None:
        """Check a key that is a second name of another one: it must have the same value, be null, or be missing."""
        found = self.take(key)
        if found is not None and found != value:
            raise self.wrong(key, f"{show(found)}, and another key says {show(value)}")

    def finish(self, *ignored: str) -> None:
        """Refuse every key that was not read, unless it is known to change no logit."""
        for key in MUST_BE_OFF:
            value = self.take(key)
            if value not in (None, False, 0, {}, []):
                raise self.wrong(key, f"{show(value)} has no counterpart in minigpt")
        for key in sorted(self.left - WITHOUT_EFFECT - set(ignored)):
            what = f"{show(self.values[key])}: minigpt does not know this key of the family {self.family}"
            raise self.wrong(key, f"{what}, and it may change what the model computes")
