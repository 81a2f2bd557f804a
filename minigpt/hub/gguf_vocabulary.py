"""The vocabulary of a GGUF file, the keys `tokenizer.*`, as a tokenizer and back.

A vocabulary of bytes (`gpt2`) has tokens, merges, and the name of a split pattern. llama.cpp needs the merges; `char`
and `byte` have none, so they have no counterpart.

A SentencePiece vocabulary (`llama`: Llama 2, Mistral, TinyLlama) is read as a tokenizer.json. It has a score for each
piece. Of all neighbours whose union is a piece, sentencepiece's `bpe` models merge the two whose union has the best
score, and the first two if scores are equal. A tokenizer.json has an ordered list of merges instead, which is computed
here: every way to make a piece from two others, sorted by the score of the piece, best first. The order of two ways to
make the same piece makes no difference: no text was found in which both stand side by side and share a part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from minigpt.hub.keys import show
from minigpt.hub.tokenizer_json import Vocabulary, vocabulary_of
from minigpt.system.errors import UserError
from minigpt.system.strict_json import has_form
from minigpt.system.waiting import progress
from minigpt.text.hf_steps import LARGEST, LONGEST_NAME, MOST_IDS, SPACE, Json, read_steps
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked
from minigpt.text.split_patterns import CL100K, LLAMA3, NAMES
from minigpt.text.tokenizer import BPE, Public, Tokenizer

NORMAL, UNKNOWN, SPECIAL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # types of tokens; 4: matched before any other step
ENDS = ("eos", "eot", "eom")
BEGINS = ("llama-bpe", "llama3", "llama-v3", "falcon3")  # split patterns for which llama.cpp begins a text with a token


# ---------------------------------------------------------------------------------- read


def read_vocabulary(values: Json) -> Ranked | HuggingFace:
    """The tokenizer, from the keys `ggml.*` and `chat_template`. Raises UserError for a vocabulary that is not read."""
    readers: dict[Any, Callable[[Json], Ranked | HuggingFace]] = {"gpt2": of_bytes, "llama": of_pieces}
    if not isinstance(model := values.get("ggml.model"), str) or model not in readers:
        problem = "only vocabularies of bytes (gpt2) and of SentencePiece (llama) are read"
        raise UserError(
            f"tokenizer.ggml.model: {show(model)}: {problem}; the model's folder with tokenizer.json may be"
        )
    if (count := len(values["ggml.tokens"])) > MOST_IDS:
        raise UserError(f"tokenizer.ggml.tokens: {count:,}; at most {MOST_IDS:,} are read")
    return readers[model](values)


def of_bytes(values: Json) -> Ranked:
    """The tokenizer of a byte-level vocabulary, from the keys `ggml.*`. Raises UserError."""
    tokens, split = values["ggml.tokens"], values.get("ggml.pre", "gpt-2")
    types = values.get("ggml.token_type", [1] * len(tokens))
    if not has_form(types, [int]) or len(types) != len(tokens):
        raise UserError("tokenizer.ggml.token_type: expected a number for each token")
    for key in ("ggml.add_space_prefix", "ggml.remove_extra_whitespaces", "ggml.precompiled_charsmap"):
        if values.get(key):
            raise UserError(f"tokenizer.{key} changes the text: it is not read for a vocabulary of bytes")
    begins = values.get("ggml.add_bos_token", split in BEGINS)
    return Ranked(
        tokens,
        values.get("ggml.merges", []),
        split,
        special=[id for id, kind in enumerate(types) if kind == SPECIAL],
        whole=[id for id, kind in enumerate(types) if kind == USER_DEFINED],
        begin_of_text=values.get("ggml.bos_token_id") if begins else None,
        ends=ends_of(values),
        chat_template=values.get("chat_template"),
    )


def of_pieces(values: Json) -> HuggingFace:
    """The tokenizer of a SentencePiece vocabulary, from the keys `ggml.*`. Raises UserError.

    By default, llama.cpp begins a text with the token 1.
    """
    begin = values.get("ggml.bos_token_id", 1) if values.get("ggml.add_bos_token", True) else None
    text = json.dumps(steps_of_pieces(values), ensure_ascii=False, separators=(",", ":"))
    ends = ends_of({"ggml.eos_token_id": 2} | values)
    return HuggingFace(text, len(values["ggml.tokens"]), begin, ends, values.get("chat_template"))


def steps_of_pieces(values: Mapping[str, Any]) -> Json:
    """The values of a tokenizer.json, from the keys `ggml.*`. Raises UserError for a vocabulary that is not read."""
    tokens, scores, types = (values.get(f"ggml.{name}") for name in ("tokens", "scores", "token_type"))
    if not (has_form([scores, types], ([float], [int])) and len(scores) == len(types) == len(tokens)):  # type: ignore[arg-type]
        raise UserError("tokenizer.ggml.scores and token_type: expected a number for each token")
    assert tokens is not None and scores is not None and types is not None
    for key in ("ggml.precompiled_charsmap", "ggml.remove_extra_whitespaces"):
        if values.get(key):
            raise UserError(f"tokenizer.{key} changes the text: it is not read")
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise UserError("tokenizer.ggml.tokens: two of them are equal")
    pieces = {token: scores[id] for token, id in ids.items() if types[id] == NORMAL}
    if odd := next((piece for piece in pieces if not set(piece) <= pieces.keys()), None):
        raise UserError(
            f"tokenizer.ggml.tokens: the piece {odd[:40]!r} has a character that is no piece: it is not read"
        )
    if odd := next((token for token, id in ids.items() if types[id] == USER_DEFINED and SPACE in token), None):
        raise UserError(f"tokenizer.ggml.tokens: {odd[:40]!r} is a user-defined token with a space: it is not read")
    lead = [{"type": "Prepend", "prepend": SPACE}] if values.get("ggml.add_space_prefix", True) else []
    signs = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    added = [
        {"id": id, "content": token, "special": types[id] != USER_DEFINED, "normalized": types[id] == USER_DEFINED}
        for token, id in ids.items()
        if types[id] in (UNKNOWN, SPECIAL, USER_DEFINED)
    ]
    unknown = next((token for token, id in ids.items() if types[id] == UNKNOWN), None)
    model = {"type": "BPE", "vocab": ids, "merges": merges_of(pieces), "byte_fallback": True, "fuse_unk": True}
    return {
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [*lead, signs]},
        "model": model | {"unk_token": unknown},
    }


def merges_of(pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces whose union is a piece, in the order in which they are merged. Raises UserError for so long
    pieces, or so many pairs, that no tokenizer.json could hold them: n pieces `aaa...` are made of n^2 / 2 pairs."""
    if long := next((piece for piece in pieces if len(piece) > LONGEST_NAME), None):
        raise UserError(
            f"tokenizer.ggml.tokens: a piece of {len(long):,} characters; at most {LONGEST_NAME:,} are read"
        )
    merges, size = [], 0  # size: characters of the merges in a tokenizer.json
    for piece, score in progress(pieces.items(), "finding the merges", len(pieces), "pieces"):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                merges.append((-score, left, right))
                size += len('["",""],') + len(piece)
        if size > LARGEST:
            raise UserError(f"tokenizer.ggml.tokens: their merges take more than {LARGEST:,} characters")
    return [(left, right) for _, left, right in sorted(merges)]


def ends_of(values: Json) -> list[Any]:
    """The ids at which generation stops. Raises UserError."""
    of_ollama = values.get("ggml.eos_token_ids", [])
    if not has_form(of_ollama, [int]):
        raise UserError("tokenizer.ggml.eos_token_ids: expected a list of ids")
    ids = [values.get(f"ggml.{name}_token_id") for name in ENDS]
    return [id for id in dict.fromkeys([*ids, *of_ollama]) if id is not None]


# ---------------------------------------------------------------------------------- written


def write_vocabulary(tokenizer: Tokenizer) -> Json:
    """The keys `tokenizer.*` of a GGUF file. Raises UserError for a tokenizer that has no counterpart."""
    if isinstance(tokenizer, HuggingFace):
        tokens, merges, split, user_defined = of_file(tokenizer)
    elif isinstance(tokenizer, (BPE, Public, Ranked)):
        tokens, merges, split, user_defined = vocabulary_of(tokenizer)
    else:
        why = f"{tokenizer.kind} has no merges, and llama.cpp reads a vocabulary by its merges"
        raise UserError(f"data.tokenizer: {why}: train with data.tokenizer=bpe or gpt2")
    if not merges:
        raise UserError(
            f"data.tokenizer: {tokenizer.kind}: llama.cpp reads a vocabulary by its merges, and it has none"
        )
    names = [f"<unused{id}>" if token is None else token for id, token in enumerate(tokens)]
    special = dict.fromkeys(tokenizer.special_tokens.values(), SPECIAL) | dict.fromkeys(user_defined, USER_DEFINED)
    types = [UNUSED if token is None else special.get(id, NORMAL) for id, token in enumerate(tokens)]
    values: Json = {
        "ggml.model": "gpt2",
        "ggml.pre": split,
        "ggml.tokens": names,
        "ggml.token_type": types,
        "ggml.merges": merges,
        "ggml.add_bos_token": tokenizer.begin_of_text is not None,
        "ggml.bos_token_id": tokenizer.begin_of_text,
        "chat_template": getattr(tokenizer, "chat_template", None),
    }
    values |= {f"ggml.{name}_token_id": id for name, id in zip(ENDS, tokenizer.ends)}
    return {f"tokenizer.{key}": value for key, value in values.items() if value is not None}


def of_file(tokenizer: HuggingFace) -> Vocabulary:
    """The vocabulary of a byte-level tokenizer.json. Raises UserError for steps that GGUF has no name for."""
    program = read_steps(tokenizer.text, tokenizer.vocab_size).program
    model, split = program["model"], split_name(program)
    if split is None or program["normalizer"] or model["type"] != "BPE" or model["byte_fallback"]:
        raise UserError("data.tokenizer: the steps of this tokenizer.json have no name in a GGUF file")
    names = {id: token for token, id in model["vocab"].items()}
    names |= {token["id"]: token["content"] for token in program["added_tokens"]}
    names |= {id: tokenizer.label(id) for id in tokenizer.marks.values()}
    tokens = [names.get(id) for id in range(tokenizer.vocab_size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return Vocabulary(tokens, merges, split, [token["id"] for token in program["added_tokens"] if not token["special"]])


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
        return NAMES[pattern][0] if pattern in NAMES else None
    return None
