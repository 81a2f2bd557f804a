"""Writes a tokenizer as the files from which `transformers.AutoTokenizer` reads an equal one.

    tokenizer.json           the steps: split the text, look up pieces, merge; run by Hugging Face's `tokenizers`
    tokenizer_config.json    which class reads it, the context, the token that ends a text

Equal means: the same ids for every text. So the exported tokenizer, too, reads special tokens as plain text
(`split_special_tokens`), and raises an error for a character that a `char` tokenizer does not know. One exception: a
stretch of more than 2,000 characters without the end of a word may get other ids, because `Tiktoken.encode` splits it
anywhere. A vocabulary that came with a model is exported unchanged: in it, the name of a special token in a text is the
token, as chat templates need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked
from minigpt.text.split_patterns import CHARACTERS, CL100K, GPT4O, OF_GGUF
from minigpt.text.tokenizer import BPE, Byte, Char, Public, Tiktoken, Tokenizer, byte_letters

WORDS = {"cl100k_base": CL100K, "o200k_base": GPT4O}  # the split patterns that are not GPT-2's

Json = dict[str, Any]


def tokenizer_files(tokenizer: Tokenizer, block_size: int) -> dict[str, str]:
    """The two files, by name. Raises UserError for a tokenizer that has no counterpart, such as a plugin's."""
    template = getattr(tokenizer, "chat_template", None)
    names: dict[int | None, str] = {id: name for name, id in tokenizer.special_tokens.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not is_published(tokenizer),
        "bos_token": names.get(tokenizer.begin_of_text),
        "eos_token": names.get(tokenizer.end_of_text),
        "chat_template": template,
    }
    config = {key: value for key, value in config.items() if value is not None}
    return {"tokenizer.json": steps_of(tokenizer), "tokenizer_config.json": as_text(config)}


def is_published(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer came with a model: its special tokens and its chat template are exported unchanged."""
    return isinstance(tokenizer, (HuggingFace, Ranked))


def steps_of(tokenizer: Tokenizer) -> str:
    """The text of tokenizer.json. Raises UserError for a kind without a counterpart."""
    if isinstance(tokenizer, HuggingFace):
        return tokenizer.text
    added = [added_token(name, id, special=True) for name, id in tokenizer.special_tokens.items()]
    if isinstance(tokenizer, Char):
        steps = of_characters(tokenizer)
    elif isinstance(tokenizer, Byte):
        steps = of_bytes()
    elif isinstance(tokenizer, (BPE, Public)):
        steps = of_pieces(tokenizer)
    elif isinstance(tokenizer, Ranked):
        steps = of_merges(tokenizer)
        added += [added_token(tokenizer.tokens[id], id, special=False) for id in tokenizer.whole]
    else:
        kinds: list[type[Tokenizer]] = [Char, Byte, BPE, *Public.__subclasses__(), HuggingFace, Ranked]
        known = ", ".join(kind.kind for kind in kinds)
        raise UserError(f"data.tokenizer: {tokenizer.kind} has no counterpart in tokenizer.json (known: {known})")
    whole = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None}
    return as_text(whole | {"added_tokens": sorted(added, key=lambda one: one["id"])} | steps)


def as_text(values: Json) -> str:
    """The text of a JSON file."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def of_characters(tokenizer: Char) -> Json:
    """Each word is one character. Without <unk>, `WordLevel` raises an error for one that the vocabulary lacks."""
    vocabulary = {character: id for id, character in enumerate(tokenizer.alphabet)}
    return {
        "pre_tokenizer": split(CHARACTERS),
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def of_bytes() -> Json:
    """Byte-pair encoding without merges."""
    letters = letters_of_bytes()
    return {
        "pre_tokenizer": byte_level(use_regex=False),
        "decoder": byte_level(use_regex=False),
        "model": bpe_model({letters[byte]: byte for byte in range(256)}, []),
    }


def of_pieces(tokenizer: BPE | Public) -> Json:
    """Byte-pair encoding: the text is split into words, and the pieces of a word are merged by rank."""
    ranks, letters = ranks_of(tokenizer), letters_of_bytes()
    vocabulary = {"".join(letters[byte] for byte in piece): rank for piece, rank in ranks.items()}
    known = list(vocabulary)
    numbers = {piece: number for number, piece in enumerate(ranks)}
    merges = [f"{known[numbers[left]]} {known[numbers[right]]}" for left, right in merges_of(ranks)]
    words = [split(WORDS[tokenizer.kind])] if tokenizer.kind in WORDS else []
    steps = [*words, byte_level(use_regex=not words)]
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": byte_level(use_regex=False),
        "model": bpe_model(
            vocabulary | dict(tokenizer.special_tokens), merges
        ),  # special tokens too: otherwise they would get consecutive ids
    }


def of_merges(tokenizer: Ranked) -> Json:
    """The vocabulary and the merges, unchanged. transformers silently drops a byte that the vocabulary lacks."""
    vocabulary = {token: id for id, token in enumerate(tokenizer.tokens)}
    words = [split(OF_GGUF[tokenizer.split]), byte_level(use_regex=False)]
    steps = {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
        "decoder": byte_level(use_regex=False),
        "model": bpe_model(vocabulary, tokenizer.merges) | {"ignore_merges": False},
    }
    begin = tokenizer.begin_of_text
    return steps if begin is None else steps | {"post_processor": in_front(tokenizer.tokens[begin], begin)}


def in_front(name: str, id: int) -> Json:
    """The step that puts a special token in front of a text."""
    token, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    again = {"Sequence": {"id": "B", "type_id": 1}}
    special = {name: {"id": name, "ids": [id], "tokens": [name]}}
    return {
        "type": "TemplateProcessing",
        "single": [token, text],
        "pair": [token, text, again],
        "special_tokens": special,
    }


def split(pattern: str) -> Json:
    """The step that splits a text into the matches of a pattern."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex: bool) -> Json:
    """The step that writes each byte as a printable character; with `use_regex` it splits into GPT-2's words first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def bpe_model(vocabulary: Mapping[str, int], merges: list[str]) -> Json:
    """A BPE model. `ignore_merges`: a word that is in the vocabulary is one piece, as in tiktoken."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
        "vocab": vocabulary,
        "merges": merges,
    }


def letters_of_bytes() -> dict[int, str]:
    """The printable character that byte-level BPE uses for each byte."""
    return {ord(byte): letter for letter, byte in byte_letters().items()}


def added_token(name: str, id: int, special: bool) -> Json:
    """An entry of `added_tokens`: a token that is matched in a text before any other step."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": name, **plain, "special": special}


def ranks_of(tokenizer: Tiktoken) -> dict[bytes, int]:
    """The pieces of a vocabulary -> their ranks, which are their ids, in order."""
    pieces = sorted(tokenizer.encoding.token_byte_values(), key=tokenizer.encoding.encode_single_token)
    return {piece: tokenizer.encoding.encode_single_token(piece) for piece in pieces}


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merges of byte-pair encoding, in order, from the ranks of the pieces.

    tiktoken merges the neighbours whose union has the lowest rank. The merges inside a piece do not depend on the text
    around it, because no merge crosses the border of the piece. So a piece is always merged from the same two parts:
    those that are left when its bytes are merged by the ranks below its own. A piece of which more than two parts are
    left is never merged, and occurs only as a whole word.
    """
    merges = []
    for piece, rank in progress(ranks.items(), "writing the merges", len(ranks), "pieces"):
        parts = merged(piece, ranks, rank)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def merged(word: bytes, ranks: Mapping[bytes, int], below: int) -> list[bytes]:
    """The pieces of a word, merged by the ranks below a given one."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 1:
        unions = [ranks.get(left + right, below) for left, right in pairwise(parts)]
        if (lowest := min(unions)) >= below:
            break
        i = unions.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
