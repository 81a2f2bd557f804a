"""A tokenizer of ours as the files from which `transformers.AutoTokenizer` reads an equal one.

    tokenizer.json           the steps: split the text, look pieces up, merge; run by Hugging Face's `tokenizers`
    tokenizer_config.json    which class reads it, the context, the token that ends a text

Equal means: the same ids for every text. So special tokens are plain text there too (`split_special_tokens`), and a
character that a `char` tokenizer does not know is an error there too. A stretch of more than 2,000 characters without
the end of a word, which `Tiktoken.encode` splits anywhere, may get other ids there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import tiktoken

from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.tokenizer import BPE, Byte, Char, Public, Tiktoken, Tokenizer
from minigpt.text.tokenizer import byte_letters as letters_of_bytes

# What splits a text into words. GPT-2's own is the one that `ByteLevel` has built in; the others are those of
# tiktoken's encodings, written without possessive quantifiers: Oniguruma reads {1,3}+ as a repetition.
CONTRACTIONS = r"'(?i:[sdmt]|ll|ve|re)"
CL100K = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # cl100k_base
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {"cl100k_base": CL100K, "o200k_base": O200K}
CHARACTERS = r"[\s\S]"  # each character by itself

Json = dict[str, Any]


def tokenizer_files(tokenizer: Tokenizer, block_size: int) -> dict[str, str]:
    """The two files, by name. Raises UserError for a tokenizer that has no counterpart, such as a plugin's."""
    special: dict[str, int] = {}
    if isinstance(tokenizer, Char):
        steps = of_characters(tokenizer)
    elif isinstance(tokenizer, Byte):
        steps = of_bytes()
    elif isinstance(tokenizer, (BPE, Public)):
        steps, special = of_pieces(tokenizer), special_tokens(tokenizer.encoding)
    else:
        kinds: list[type[Tokenizer]] = [Char, Byte, BPE, *Public.__subclasses__()]
        known = ", ".join(kind.kind for kind in kinds)
        raise UserError(f"data.tokenizer: {tokenizer.kind} has no counterpart in tokenizer.json (known: {known})")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    if tokenizer.end_of_text is not None:
        config["eos_token"] = next(text for text, id in special.items() if id == tokenizer.end_of_text)
    added = [added_token(text, id) for text, id in sorted(special.items(), key=lambda item: item[1])]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None}
    files = {"tokenizer.json": whole | {"post_processor": None} | steps, "tokenizer_config.json": config}
    return {name: json.dumps(values, indent=1, ensure_ascii=False) + "\n" for name, values in files.items()}


def of_characters(tokenizer: Char) -> Json:
    """A word is a character. `WordLevel` raises an error for one that is not in the vocabulary if it has no <unk>."""
    vocabulary = {character: id for id, character in enumerate(tokenizer.alphabet)}
    return {
        "pre_tokenizer": split(CHARACTERS),
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def of_bytes() -> Json:
    """Byte-pair encoding without merges."""
    letters = byte_letters()
    return {
        "pre_tokenizer": byte_level(use_regex=False),
        "decoder": byte_level(use_regex=False),
        "model": bpe_model({letters[byte]: byte for byte in range(256)}, []),
    }


def of_pieces(tokenizer: BPE | Public) -> Json:
    """Byte-pair encoding: the text is split into words, and the pieces of a word are merged by rank."""
    ranks, letters = ranks_of(tokenizer), byte_letters()
    vocabulary = {"".join(letters[byte] for byte in piece): rank for piece, rank in ranks.items()}
    known = list(vocabulary)
    numbers = {piece: number for number, piece in enumerate(ranks)}
    merges = [f"{known[numbers[left]]} {known[numbers[right]]}" for left, right in merges_of(ranks)]
    words = [split(WORDS[tokenizer.kind])] if tokenizer.kind in WORDS else []
    steps = [*words, byte_level(use_regex=not words)]
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": byte_level(use_regex=False),
        "model": bpe_model(vocabulary, merges),
    }


def split(pattern: str) -> Json:
    """The step that splits a text into the matches of a pattern."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex: bool) -> Json:
    """The step that writes each byte as a printable character; with `use_regex` it splits into GPT-2's words first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def bpe_model(vocabulary: Mapping[str, int], merges: list[str]) -> Json:
    """`ignore_merges`: a word that is in the vocabulary is one piece, as in tiktoken."""
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


def byte_letters() -> dict[int, str]:
    """The printable character that byte-level BPE uses for each byte."""
    return {ord(byte): letter for letter, byte in letters_of_bytes().items()}


def special_tokens(encoding: tiktoken.Encoding) -> dict[str, int]:
    """The special tokens of an encoding, and their ids."""
    return {text: encoding.encode_single_token(text) for text in encoding.special_tokens_set}


def added_token(text: str, id: int) -> Json:
    """A special token, as tokenizer.json lists it."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": text, **plain, "special": True}


def ranks_of(tokenizer: Tiktoken) -> dict[bytes, int]:
    """The pieces of a vocabulary and their ranks, which are their ids, in order."""
    pieces = sorted(tokenizer.encoding.token_byte_values(), key=tokenizer.encoding.encode_single_token)
    return {piece: tokenizer.encoding.encode_single_token(piece) for piece in pieces}


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merges of byte-pair encoding, in order, from the ranks of the pieces.

    tiktoken merges the neighbours whose union has the lowest rank. What is merged inside a piece does not depend on
    what is around it, since no merge goes across its border. So each piece comes from the same two parts every time:
    those that are left when its bytes are merged by the ranks below its own. A piece of which more than two parts are
    left is never merged, and occurs as a whole word only.
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
