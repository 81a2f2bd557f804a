"""The tokenizer of a folder of weights, written and read: tokenizer.json, and the ids that begin and end a text.

    tokenizer.json           the steps: split the text, look up pieces, merge; run by Hugging Face's `tokenizers`
    tokenizer_config.json    which class reads it, the context, the token that ends a text

From the files that are written, `transformers.AutoTokenizer` reads an equal tokenizer: the same ids for every text. So
it, too, reads special tokens as plain text (`split_special_tokens`), and raises an error for a character that a `char`
tokenizer does not know. One exception: a stretch of more than 2,000 characters without the end of a word may get other
ids, because `Tiktoken.encode` splits it anywhere. A vocabulary that came with a model is exported unchanged: in it, the
name of a special token in a text is the token, as chat templates need it.

A folder that is read is untrusted: the steps in it are those of `text/hf_steps.py`.

V vocabulary size
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from minigpt.hub.folder import check_plain, read_json
from minigpt.system.errors import UserError
from minigpt.system.folder import read_start
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.waiting import progress
from minigpt.text.hf_steps import LARGEST, Json, added_token, bpe_model, byte_level, split, word_level
from minigpt.text.hf_tokenizer import HuggingFace, Published
from minigpt.text.ranked import Ranked
from minigpt.text.split_patterns import CHARACTERS, GPT2, OF_GGUF, OF_TIKTOKEN
from minigpt.text.tokenizer import BPE, Byte, Char, Public, Tokenizer, in_letters

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
GENERATION, TEMPLATE = "generation_config.json", "chat_template.jinja"
MAX_SETTINGS = 1 << 22  # bytes; tokenizer_config.json may list thousands of tokens
BEGINS = {"type": "TemplateProcessing"}  # the step that puts tokens around a text
TEMPLATE_FORM = {"type": str, "single": [{str: {str: str | int}}], "special_tokens": {str: {"ids": [int]}}}


# ---------------------------------------------------------------------------------- written


def tokenizer_files(tokenizer: Tokenizer, block_size: int) -> dict[str, str]:
    """The two files, by name. Raises UserError for a tokenizer that has no counterpart, such as a plugin's."""
    names: dict[int | None, str] = {id: name for name, id in tokenizer.special_tokens.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": not isinstance(tokenizer, Published),
        "bos_token": names.get(tokenizer.begin_of_text),
        "eos_token": names.get(tokenizer.end_of_text),
        "chat_template": getattr(tokenizer, "chat_template", None),
    }
    config = {key: value for key, value in config.items() if value is not None}
    return {FILE: steps_of(tokenizer), SETTINGS: as_text(config)}


def as_text(values: Json) -> str:
    """The text of a JSON file."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def steps_of(tokenizer: Tokenizer) -> str:
    """The text of tokenizer.json. Raises UserError for a kind without a counterpart."""
    if isinstance(tokenizer, HuggingFace):
        if tokenizer.marks:
            raise UserError(f"data.tokenizer: its tokenizer.json has no place for {', '.join(tokenizer.marks)}")
        return tokenizer.text
    added = [added_token(id, name, True) for name, id in tokenizer.special_tokens.items()]
    steps: Json = {"pre_tokenizer": byte_level(), "decoder": byte_level()}
    if isinstance(tokenizer, Char):  # without <unk>, `WordLevel` raises an error for a character that it lacks
        model = word_level({character: id for id, character in enumerate(tokenizer.alphabet)}, "<unk>")
        steps = {"pre_tokenizer": split({"Regex": CHARACTERS}), "decoder": {"type": "Fuse"}, "model": model}
    elif isinstance(tokenizer, Byte):
        steps["model"] = bpe_model({in_letters(bytes([byte])): byte for byte in range(256)}, [])
    elif isinstance(tokenizer, (BPE, Public, Ranked)):
        steps |= of_merges(tokenizer)
    else:
        kinds: list[type[Tokenizer]] = [Char, Byte, BPE, *Public.__subclasses__(), HuggingFace, Ranked]
        names = ", ".join(kind.kind for kind in kinds)
        raise UserError(f"data.tokenizer: {tokenizer.kind} has no counterpart in tokenizer.json (known: {names})")
    if isinstance(tokenizer, Ranked):
        added += [added_token(id, tokenizer.tokens[id], False) for id in tokenizer.whole]
    common = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None}
    return as_text(common | {"added_tokens": sorted(added, key=lambda token: token["id"])} | steps)


def of_merges(tokenizer: BPE | Public | Ranked) -> Json:
    """The text is split into words, and the pieces of a word are merged. transformers silently drops a byte that the
    vocabulary lacks."""
    tokens, merges, name, _ = vocabulary_of(tokenizer)
    ranked = isinstance(tokenizer, Ranked)
    pattern = OF_GGUF[name] if ranked else OF_TIKTOKEN[tokenizer.kind][1]
    words = [split({"Regex": pattern}), byte_level()]
    if pattern == GPT2 and not ranked:
        words = [byte_level(use_regex=True)]
    vocabulary = {token: id for id, token in enumerate(tokens) if token is not None}
    steps: Json = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": words}}
    steps["model"] = bpe_model(vocabulary, merges, ignore_merges=not ranked)
    begin = tokenizer.begin_of_text
    return steps if begin is None else steps | {"post_processor": in_front(str(tokens[begin]), begin)}


class Vocabulary(NamedTuple):
    """A byte-level vocabulary as published files have it."""

    tokens: list[str | None]
    """(V,): each with a letter for each byte, or plain text; None for an id that is not used."""
    merges: list[str]
    split: str
    """llama.cpp's name of the pattern that splits a text into words."""
    user_defined: list[int]
    """The ids of tokens that are matched in a text before any other step, besides the special ones."""


def vocabulary_of(tokenizer: BPE | Public | Ranked) -> Vocabulary:
    """The vocabulary of a tokenizer that tiktoken runs; if it has ranks alone, its merges are computed from them."""
    if isinstance(tokenizer, Ranked):
        marks = [tokenizer.label(id) for id in tokenizer.marks.values()]
        return Vocabulary([*tokenizer.tokens, *marks], tokenizer.merges, tokenizer.split, tokenizer.whole)
    pieces = sorted(tokenizer.encoding.token_byte_values(), key=tokenizer.encoding.encode_single_token)
    ranks = {piece: tokenizer.encoding.encode_single_token(piece) for piece in pieces}
    letters = {piece: in_letters(piece) for piece in pieces}
    names = {id: letters[piece] for piece, id in ranks.items()}
    names |= {id: name for name, id in tokenizer.special_tokens.items()}
    tokens = [names.get(id) for id in range(tokenizer.vocab_size)]
    merges = [f"{letters[left]} {letters[right]}" for left, right in merges_of(ranks)]
    return Vocabulary(tokens, merges, OF_TIKTOKEN[tokenizer.kind][0], [])


def in_front(name: str, id: int) -> Json:
    """The step that puts a special token in front of a text."""
    token, text = {"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    again = {"Sequence": {"id": "B", "type_id": 1}}
    special = {name: {"id": name, "ids": [id], "tokens": [name]}}
    return BEGINS | {"single": [token, text], "pair": [token, text, again], "special_tokens": special}


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


# ---------------------------------------------------------------------------------- read


def read_tokenizer(folder: Path, config: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder, for a model with `vocab_size` embeddings. Raises UserError, and OSError."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"{folder}: there is no {FILE} in it, and without one text cannot become ids")
    check_plain(path)
    raw = read_start(path, LARGEST + 1)
    if len(raw) > LARGEST:
        raise UserError(f"{path}: larger than {LARGEST:,} bytes: this is not a tokenizer")
    try:
        steps = parse_json(raw.decode("utf-8"), huge=True)
        return Tokenizer.from_json(
            {
                "kind": "hf",
                "text": json.dumps(steps, ensure_ascii=False, separators=(",", ":")),  # a third to a half of its size
                "vocab_size": vocab_size,
                "begin_of_text": begin_of_text(steps),
                "ends": [id for id in stated_ends(folder, config) if 0 <= id < vocab_size],
                "chat_template": chat_template(folder),
            }
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: not the JSON of a tokenizer: {' '.join(str(error).split())[:200]}") from None


def begin_of_text(steps: Any) -> int | None:
    """The id that a template (`<s> $A`) puts in front of a text; None if there is none."""
    step = steps.get("post_processor") if isinstance(steps, dict) else None
    processors = step.get("processors") if isinstance(step, dict) and step.get("type") == "Sequence" else [step]
    for each in processors if isinstance(processors, list) else []:
        if has_form(each, TEMPLATE_FORM) and each["type"] == BEGINS["type"] and each["single"]:
            name = each["single"][0].get("SpecialToken", {}).get("id")
            if ids := each["special_tokens"].get(name, {}).get("ids"):
                return int(ids[0])
    return None


def stated_ends(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """The ids at which generation stops: those of generation_config.json, or of config.json. Raises UserError."""
    path = folder / GENERATION
    generation = read_json(path, MAX_SETTINGS) if path.exists() else {}
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    if not has_form(ends, int | None) and not has_form(ends, [int]):
        raise UserError("eos_token_id is neither an id nor a list of ids")
    return list(dict.fromkeys(ends if isinstance(ends, list) else [] if ends is None else [ends]))


def odd_ends(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """A note about end-of-text ids that are out of range or missing; an empty string if all is well."""
    out_of_range = [id for id in stated_ends(folder, config) if id not in tokenizer.ends]
    if out_of_range:
        ids = f"the model has the ids 0 to {tokenizer.vocab_size - 1:,}"
        return f"note: eos_token_id {', '.join(map(str, out_of_range))} cannot be written, and is left out: {ids}"
    if tokenizer.special_tokens and not tokenizer.ends:
        return "note: it has special tokens, and eos_token_id names none: writing ends after --max-tokens only"
    return ""


def chat_template(folder: Path) -> str | None:
    """The chat template of a folder, or None. It is kept for an export, and never run."""
    if (folder / TEMPLATE).exists():
        check_plain(folder / TEMPLATE)
        return read_start(folder / TEMPLATE, MAX_SETTINGS).decode("utf-8", "replace")
    path = folder / SETTINGS
    template = read_json(path, MAX_SETTINGS, huge=True).get("chat_template") if path.exists() else None
    return template if isinstance(template, str) else None
