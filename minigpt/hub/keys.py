"""Reads the keys of a config.json strictly: a key is used, or changes no logit, or is refused by its name.

A config.json may be untrusted, and a key that is not read can change what the model computes. A missing key has the
value that transformers gives it in the family; null is a value of its own, as in transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from minigpt.system.errors import UserError

# Keys that change no logit of any family, by the reason. A family has more of them (`Family.no_effect`).
NO_EFFECT = {
    "names, and records of how the file was made": """
        _name_or_path name_or_path _commit_hash architectures auto_map custom_pipelines finetuning_task model_type
        tokenizer_class tokenizer_name transformers_version transformers.js_config unsloth_fixed unsloth_version""",
    "numbers are read as float32, whatever they were": "dtype torch_dtype use_bfloat16",
    "how transformers computes and returns the same numbers": """
        attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled xla_device
        cache_implementation use_cache gradient_checkpointing return_dict output_attentions output_hidden_states
        output_past torchscript""",
    "training: the weights come from the file, and dropout acts in training only": """
        initializer_range tf_legacy_loss attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout
        dropout embd_pdrop emb_pdrop embedding_dropout hidden_dropout hidden_dropout_prob mlp_dropout resid_pdrop
        residual_dropout""",
    "special tokens: the tokenizer has them": """
        bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id""",
    "heads for other tasks": "id2label label2id num_labels _num_labels problem_type task_specific_params",
    "encoders, and pairs of an encoder and a decoder": "chunk_size_feed_forward is_decoder tie_encoder_decoder",
    "generation: how text is written from the logits": """
        assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty
        do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
        no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
        num_return_sequences output_scores prefix remove_invalid_values repetition_penalty return_dict_in_generate
        suppress_tokens target_lookbehind temperature top_k top_p typical_p""",
}
# Keys that must be missing or off: each changes what is computed, and minigpt has no counterpart of it.
MUST_BE_OFF = (
    "add_cross_attention", "cross_attention_hidden_size", "is_encoder_decoder", "pruned_heads", "quantization_config",
    "compression_config", "num_local_experts", "num_experts", "lora", "sparse_attention",
)  # fmt: skip
# minigpt's own key: the string before each training text, a line end. It is put before a prompt as well.
BEFORE_TEXT = "minigpt_before_text"
REQUIRED = object()
LARGEST = 1 << 24  # the largest whole number in a config.json: no width, vocabulary or context is larger


def show(value: Any) -> str:
    """A value as JSON, shortened for a message."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


def under_one_name(values: Mapping[str, Any], other_names: Mapping[str, str]) -> dict[str, Any]:
    """The keys, those with two names under the second one: {other name: name}. Raises UserError if both differ."""
    renamed = {key: value for key, value in values.items() if key not in other_names}
    for other, name in other_names.items():
        value = values.get(other)
        if value is not None and renamed.setdefault(name, value) != value:
            raise UserError(f"config.json: {other}: {show(value)}, and {name} is {show(renamed[name])}")
    return renamed


class Keys:
    """The keys of a config.json, or of a group (a nested object). Every method raises UserError that names the key."""

    def __init__(
        self,
        values: Mapping[str, Any],
        family: str,
        within: str = "",
        defaults: Mapping[str, Any] | None = None,
        no_effect: Iterable[str] = (),
    ):
        """`defaults`: the values of missing keys; null without one. `no_effect`: names of keys that change no logit."""
        self.values, self.family, self.within = values, family, within
        self.defaults, self.no_effect = defaults or {}, set(no_effect)
        self.unread = set(values)
        self.groups = dict[str, Keys]()

    def error(self, key: str, problem: str) -> UserError:
        """A UserError that names the key; `problem` says what was found and what is expected."""
        return UserError(f"config.json: {self.within}{key}: {problem}")

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, unchecked; `default` if it is null, or missing in a family without a default for it."""
        self.unread.discard(key)
        value = self.values.get(key, self.defaults.get(key))
        if value is None and default is REQUIRED and key not in self.values:
            raise self.error(key, f"missing; a model of the family {self.family} needs it")
        return default if value is None and default is not REQUIRED else value

    def integer(self, key: str, default: Any = REQUIRED) -> Any:
        """A whole number of at least 1, or the default for null."""
        value = self.take(key, default)
        if value is not default and not (type(value) is int and 1 <= value <= LARGEST):
            raise self.error(key, f"expected a whole number from 1 to {LARGEST:,}, found {show(value)}")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A number above zero, or the default for null."""
        value = self.take(key, default)
        if value is not default and not (type(value) in (int, float) and 0 < value < 1e30):
            raise self.error(key, f"expected a number above 0, found {show(value)}")
        return default if value is default else float(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.take(key, REQUIRED)
        if type(value) is not bool:
            raise self.error(key, f"expected true or false, found {show(value)}")
        return bool(value)

    def choice(self, key: str, choices: Mapping[str, str]) -> str:
        """The word of a key, translated by `choices`: config.json's word -> minigpt's."""
        value = self.take(key, REQUIRED)
        if not isinstance(value, str) or value not in choices:
            raise self.error(key, f"{show(value)} has no counterpart in minigpt (known: {', '.join(choices)})")
        return choices[value]

    def must(self, key: str, *allowed: Any) -> None:
        """Check a key that has no counterpart: it must have one of the `allowed` values, be null, or be missing."""
        self.unread.discard(key)
        value = self.values.get(key)
        if value is not None and not any(type(value) is type(other) and value == other for other in allowed):
            choices = " or ".join([*map(show, allowed), "null"])
            raise self.error(key, f"{show(value)} has no counterpart in minigpt (known: {choices})")

    def group(self, key: str, no_effect: Iterable[str] = ()) -> Keys:
        """The keys of a nested group; none if it is missing or null. `no_effect`: its keys that change no logit."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"expected a group of keys, found {show(value)}")
        return self.groups.setdefault(key, Keys(value, self.family, f"{self.within}{key}.", no_effect=no_effect))

    def same(self, key: str, value: Any) -> None:
        """Check a key that is a second name of another one: it must have the same value, be null, or be missing."""
        second = self.take(key)
        if second is not None and second != value:
            raise self.error(key, f"{show(second)}, and another key says {show(value)}")

    def finish(self) -> None:
        """Refuse every key that was not read, here and in the groups, unless it is known to change no logit."""
        for key in MUST_BE_OFF:
            value = self.take(key)
            if value not in (None, False, 0, {}, []):
                raise self.error(key, f"{show(value)} has no counterpart in minigpt")
        for key in sorted(self.unread - self.no_effect):
            problem = f"{show(self.values[key])}: minigpt does not know this key of the family {self.family}"
            raise self.error(key, f"{problem}, and it may change what the model computes")
        for group in self.groups.values():
            group.finish()
