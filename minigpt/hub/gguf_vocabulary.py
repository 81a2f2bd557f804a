"""A tokenizer as the vocabulary of a GGUF file: tokens, their types, merges, and the name of a split pattern.

llama.cpp needs the merges of a byte-level vocabulary. `char` and `byte` have none, so they have no counterpart.
"""

from __future__ import annotations

from typing import Any

from minigpt.hub.gguf_model import SPECIAL, WHOLE
from minigpt.hub.tokenizer_json import letters_of_bytes, merges_of, ranks_of
from minigpt.system.errors import UserError
from minigpt.text.hf_steps import read_steps
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked
from minigpt.text.split_patterns import CL100K, LLAMA3, OF_GGUF
from minigpt.text.tokenizer import BPE, Public, Tokenizer

NORMAL, UNUSED = 1, 5  # token types, besides SPECIAL and WHOLE
NAMES = {"bpe": "gpt-2", "gpt2": "gpt-2", "cl100k_base": "dbrx", "o200k_base": "gpt-4o"}  # tokenizer.ggml.pre

Json = dict[str, Any]


def vocabulary(tokenizer: Tokenizer) -> Json:
    """The keys `tokenizer.*` of a GGUF file. Raises UserError for a tokenizer that has no counterpart."""
    if isinstance(tokenizer, Ranked):
        found = tokenizer.tokens, tokenizer.merges, tokenizer.split, tokenizer.whole
    elif isinstance(tokenizer, HuggingFace):
        found = of_file(tokenizer)
    elif isinstance(tokenizer, (BPE, Public)):
        found = of_pieces(tokenizer)
    else:
        why = f"{tokenizer.kind} has no merges, and llama.cpp reads a vocabulary by its merges"
        raise UserError(f"data.tokenizer: {why}: train with data.tokenizer=bpe or gpt2")
    tokens, merges, split, whole = found
    if not merges:
        raise UserError(
            f"data.tokenizer: {tokenizer.kind}: llama.cpp reads a vocabulary by its merges, and it has none"
        )
    filled = [f"<unused{id}>" if token is None else token for id, token in enumerate(tokens)]
    special = dict.fromkeys(tokenizer.special_tokens.values(), SPECIAL) | dict.fromkeys(whole, WHOLE)
    types = [UNUSED if token is None else special.get(id, NORMAL) for id, token in enumerate(tokens)]
    values: Json = {
        "ggml.model": "gpt2",
        "ggml.pre": split,
        "ggml.tokens": filled,
        "ggml.token_type": types,
        "ggml.merges": merges,
        "ggml.add_bos_token": tokenizer.begin_of_text is not None,
        "ggml.bos_token_id": tokenizer.begin_of_text,
        "chat_template": getattr(tokenizer, "chat_template", None),
    }
    values |= {f"ggml.{name}_token_id": id for name, id in zip(("eos", "eot", "eom"), tokenizer.ends)}
    return {f"tokenizer.{key}": value for key, value in values.items() if value is not None}


Found = tuple[list[Any], list[str], str, list[int]]  # tokens (None: an id without one), merges, split, whole tokens


def of_pieces(tokenizer: BPE | Public) -> Found:
    """The vocabulary of a tokenizer that tiktoken runs: its merges are computed from its ranks."""
    ranks, letters = ranks_of(tokenizer), letters_of_bytes()
    spelled = {piece: "".join(letters[byte] for byte in piece) for piece in ranks}
    tokens: list[Any] = [None] * tokenizer.vocab_size
    for piece, id in ranks.items():
        tokens[id] = spelled[piece]
    for name, id in tokenizer.special_tokens.items():
        tokens[id] = name
    merges = [f"{spelled[left]} {spelled[right]}" for left, right in merges_of(ranks)]
    return tokens, merges, NAMES[tokenizer.kind], []


def of_file(tokenizer: HuggingFace) -> Found:
    """The vocabulary of a byte-level tokenizer.json. Raises UserError for steps that GGUF has no name for."""
    program = read_steps(tokenizer.text, tokenizer.vocab_size).program
    model, split = program["model"], split_name(program)
    if split is None or program["normalizer"] or model["type"] != "BPE" or model["byte_fallback"]:
        raise UserError("data.tokenizer: the steps of this tokenizer.json have no name in a GGUF file")
    tokens: list[Any] = [None] * tokenizer.vocab_size
    for token, id in model["vocab"].items():
        tokens[id] = token
    for one in program["added_tokens"]:
        tokens[one["id"]] = one["content"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return tokens, merges, split, [one["id"] for one in program["added_tokens"] if not one["special"]]


def split_name(program: Json) -> str | None:
    """llama.cpp's name for the way in which a tokenizer.json splits a text; None if there is none."""
    words = (program["pre_tokenizer"] or {}).get("pretokenizers", [])
    kinds = [step["type"] for step in words]
    by_letters = bool(words) and words[-1]["type"] == "ByteLevel" and not words[-1]["add_prefix_space"]
    if by_letters and kinds[:-1] in ([], ["Digits"]) and words[-1]["use_regex"]:
        one_by_one = kinds[0] == "Digits" and words[0]["individual_digits"]
        return "smollm" if one_by_one else "gpt-2" if len(words) == 1 else None
    if by_letters and kinds == ["Split", "ByteLevel"] and not words[-1]["use_regex"]:
        pattern = words[0]["pattern"].get("Regex")
        pattern = LLAMA3 if pattern == CL100K else pattern  # both split a text into the same words
        return next((name for name, known in OF_GGUF.items() if known == pattern), None)
    return None
