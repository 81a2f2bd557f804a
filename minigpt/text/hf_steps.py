"""The steps of a tokenizer.json: how they are written, which of an untrusted file are run, the bytes of each token.

Such a file is a program: normalise the text, split it into words, merge their characters or bytes. It is copied into
new values, with known steps and known options only. A step that hides or changes text (lower case, removed spaces,
dropout) is refused by name, and so is a split pattern that is not in `split_patterns.py`. Steps that do not act on a
plain text (templates, truncation, padding, decoders) are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from minigpt.system.errors import UserError
from minigpt.system.strict_json import has_form, parse_json
from minigpt.text.split_patterns import CHARACTERS, KNOWN
from minigpt.text.tokenizer import from_letters

LARGEST = 40 << 20  # characters of a tokenizer.json; the largest of the known families has 34 million
MOST_IDS = 1 << 20
LONGEST_NAME = 1000  # characters of an added token
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space

Json = dict[str, Any]
FILE = {"added_tokens": [{"id": int, "content": str, "special": bool}], "model": {"type": str, "vocab": {str: int}}}
CHANGING = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")  # options of a model that change or hide text


# ---------------------------------------------------------------------------------- how steps are written


def bpe_model(vocabulary: Json, merges: Any, **options: Any) -> Json:
    """A model that merges pairs. `ignore_merges`: a word that is in the vocabulary is one piece, as in tiktoken."""
    plain = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    flags = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": True}
    return {"type": "BPE"} | plain | flags | options | {"vocab": vocabulary, "merges": merges}


def word_level(vocabulary: Json, unknown: str) -> Json:
    """A model that looks up whole words; the token `unknown` stands for the words that it lacks."""
    return {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown}


def split(pattern: Json, behavior: str = "Isolated") -> Json:
    """The step that splits a text into the matches of a pattern, and what is between them."""
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def byte_level(use_regex: bool = False, add_prefix_space: bool = False) -> Json:
    """The step that writes each byte as a printable character; with `use_regex` it splits into GPT-2's words first."""
    space = {"add_prefix_space": add_prefix_space}
    return {"type": "ByteLevel"} | space | {"trim_offsets": False, "use_regex": use_regex}


def added_token(id: int, content: str, special: bool, **flags: Any) -> Json:
    """An entry of `added_tokens`: a token that is matched in a text before any other step."""
    rules = {name: bool(flags.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return {"id": id, "content": content} | rules | {"special": special}


# ---------------------------------------------------------------------------------- which steps are read


@dataclass(frozen=True)
class Steps:
    """The steps of a tokenizer.json that are run."""

    program: Json
    """The values of a tokenizer.json with these steps only. It puts nothing in front of a text."""
    special: dict[str, int]
    """The special tokens: name -> id."""
    pieces: list[bytes]
    """(V,): the bytes of each id; U+FFFD for an id that is not used."""
    leads: str
    """When a space is put in front of a text: `never`, `always`, or if it is `missing`."""
    leads_again: str
    """When a space is put in front of the text after a special token: one of the same words."""


def read_steps(text: str, vocab_size: int) -> Steps:
    """The steps of a tokenizer.json, given as text. Raises UserError for a step that is not run here."""
    if len(text) > LARGEST:
        raise UserError(f"larger than {LARGEST:,} characters: this is not a tokenizer.json")
    try:
        values = parse_json(text)
    except ValueError as error:
        raise UserError(f"not JSON: {error}") from None
    if not has_form(values, FILE):
        raise UserError('not a tokenizer.json: it needs "added_tokens", and a "model" with a "vocab"')
    model = read_model(values["model"])
    # a model may have no rows for its tokenizer's last special tokens: Gemma 3's text models lack <image_soft_token>
    added = [one for one in values["added_tokens"] if one["id"] < vocab_size or not one["special"]]
    check_ids(model["vocab"], added, vocab_size)
    normalizers = [read_normalizer(one) for one in listed(values, "normalizer", "normalizers")]
    words = [read_split(one) for one in listed(values, "pre_tokenizer", "pretokenizers")]
    whole = [(one["content"], one["id"]) for one in added]
    how, fallback = writing([*normalizers, *words]), bool(model.get("byte_fallback"))
    pieces = bytes_of(model["vocab"].items(), whole, vocab_size, how, fallback)
    leads, again = take_lead(normalizers, words)
    program: Json = {"version": "1.0", "model": model, "added_tokens": [added_token(**one) for one in added]}
    program |= dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    program["normalizer"] = {"type": "Sequence", "normalizers": normalizers} if normalizers else None
    program["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": words} if words else None
    return Steps(program, {one["content"]: one["id"] for one in added if one["special"]}, pieces, leads, again)


def read_model(model: Json) -> Json:
    """The values of a model that merges pairs (BPE), or looks up whole words (WordLevel). Raises UserError."""
    if model["type"] not in ("BPE", "WordLevel"):
        raise UserError(f"the model {model['type'][:40]!r} is not run here, only BPE")
    for name in CHANGING:
        if model.get(name):
            raise UserError(f"the model's {name} is not run here: it changes or hides text")
    vocabulary, unknown = model["vocab"], model.get("unk_token")
    if not (vocabulary and has_form(unknown, str | None)):
        raise UserError("the model must have a vocabulary, and its unk_token must be a text")
    if model["type"] == "WordLevel":  # any token may stand for an unknown word: its bytes differ, so `encode` raises
        return word_level(vocabulary, next(iter(vocabulary)))
    merges = model.get("merges")
    if not (has_form(merges, [str]) or has_form(merges, [(str, str)])):
        raise UserError("the model's merges must be a list of pairs of tokens")
    flags = {name: bool(model.get(name)) for name in ("fuse_unk", "byte_fallback", "ignore_merges")}
    return bpe_model(vocabulary, merges, unk_token=unknown if unknown in vocabulary else None, **flags)


def check_ids(vocabulary: dict[str, int], added: list[Json], vocab_size: int) -> None:
    """Raises UserError unless every id is a row of the model, and belongs to one token."""
    if any(not 0 < len(one["content"]) <= LONGEST_NAME for one in added):
        raise UserError(f"an added token must have 1 to {LONGEST_NAME} characters")
    names = vocabulary | {one["content"]: one["id"] for one in added}
    moved_id = next((one["content"] for one in added if vocabulary.get(one["content"], one["id"]) != one["id"]), None)
    if moved_id is not None or len(set(names.values())) != len(names):
        raise UserError(f"two tokens have one id, or one has two{'' if moved_id is None else f': {moved_id[:40]!r}'}")
    low, high = min(names.values(), default=0), max(names.values(), default=0)
    if low < 0 or high >= vocab_size:
        raise UserError(f"the tokenizer has ids from {low} to {high}, but the model has {vocab_size:,} rows for them")


def listed(values: Json, name: str, plural: str) -> list[Json]:
    """The steps under a name, in order: there is one step, or a sequence of them. Raises UserError."""
    step = values.get(name)
    steps = step.get(plural) if isinstance(step, dict) and step.get("type") == "Sequence" else [step] if step else []
    if not has_form(steps, [{"type": str}]):
        raise UserError(f"the {name} must be a step with a type, or a sequence of them")
    assert isinstance(steps, list)
    return steps


def read_normalizer(step: Json) -> Json:
    """The values of a normalizer: NFC, or SentencePiece's signs for spaces. Raises UserError for any other."""
    kind, sign = step["type"], {"Prepend": step.get("prepend"), "Replace": step.get("content")}.get(step["type"])
    if kind == "NFC":
        return {"type": kind}
    if kind == "Prepend" and sign == SPACE:
        return {"type": kind, "prepend": SPACE}
    if kind == "Replace" and sign == SPACE and step.get("pattern") == {"String": " "}:
        return {"type": kind, "pattern": {"String": " "}, "content": SPACE}
    raise UserError(f"the normalizer {kind[:40]!r} is not run here as it stands: it changes the text")


def read_split(step: Json) -> Json:
    """The values of a step that splits a text into words. Raises UserError for an unknown one."""
    kind = step["type"]
    if kind == "Digits":
        return {"type": kind, "individual_digits": bool(step.get("individual_digits"))}
    if kind == "ByteLevel":
        return byte_level(bool(step.get("use_regex", True)), bool(step.get("add_prefix_space", True)))
    if kind == "Metaspace" and step.get("replacement") == SPACE:
        scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
        if scheme in ("always", "first", "never"):
            split = bool(step.get("split", True))
            return {"type": kind, "replacement": SPACE, "prepend_scheme": scheme, "split": split}
    if kind == "Split" and step.get("behavior") in ("Isolated", "MergedWithPrevious", "MergedWithNext"):
        return read_pattern(step)
    raise UserError(f"the pre_tokenizer {kind[:40]!r} is not run here as it stands")


def read_pattern(step: Json) -> Json:
    """The values of a split at a fixed string, or by a known pattern. Raises UserError for any other."""
    pattern: Any = step.get("pattern")
    if step.get("invert") or not (has_form(pattern, {"Regex": str}) or has_form(pattern, {"String": str})):
        raise UserError("the pre_tokenizer 'Split' must have a pattern, and invert must be false")
    if "Regex" in pattern and pattern["Regex"] not in KNOWN:
        excerpt = pattern["Regex"] if len(pattern["Regex"]) <= 60 else f"{pattern['Regex'][:60]}..."
        runnable = "only the patterns in minigpt/text/split_patterns.py are"
        raise UserError(f"the split pattern {excerpt!r} is not run here, since a pattern may never end: {runnable}")
    return split(pattern, step["behavior"])


def writing(steps: list[Json]) -> str:
    """How tokens write a text: as `bytes`, with signs for `spaces`, or as plain `characters`. Raises UserError."""
    if any(step["type"] == "ByteLevel" for step in steps):
        return "bytes"
    if any(step["type"] in ("Metaspace", "Replace") for step in steps):
        return "spaces"
    if any(step.get("pattern") == {"Regex": CHARACTERS} for step in steps):
        return "characters"
    raise UserError("how spaces are written is not known: there is neither ByteLevel, Metaspace nor Replace")


def take_lead(normalizers: list[Json], words: list[Json]) -> tuple[str, str]:
    """Remove the steps that put a space in front of a text; returns `leads` and `leads_again`. Raises UserError."""
    leads = "never", "never"
    for step in list(normalizers):
        if step["type"] == "Prepend":
            normalizers.remove(step)
            leads = "always", "always"
    for n, step in enumerate(words):
        scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space") else "never")
        if scheme != "never" and n:
            raise UserError(f"the pre_tokenizer {step['type']!r} puts a space in front of every word: not run here")
        if scheme != "never":
            leads = "missing", "never" if scheme == "first" else "missing"
            words[n] = step | ({"prepend_scheme": "never"} if "prepend_scheme" in step else {"add_prefix_space": False})
    return leads


def bytes_of(
    tokens: Iterable[tuple[str, int]], whole: Iterable[tuple[str, int]], vocab_size: int, how: str, fallback: bool
) -> list[bytes]:
    """(V,): the bytes of each id, from pairs of a token and its id; U+FFFD for an id that is not used.

    `how` is that of `writing`; the tokens `whole` are their own text. `fallback`: a token <0x0A> stands for a byte.
    Raises UserError.
    """
    pieces = ["\N{REPLACEMENT CHARACTER}".encode()] * vocab_size
    single = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)} if fallback else {}
    try:
        for token, id in tokens:
            if how == "spaces":
                pieces[id] = single.get(token) or token.replace(SPACE, " ").encode()
            else:
                pieces[id] = (from_letters(token) if how == "bytes" else None) or token.encode()
        for token, id in whole:
            pieces[id] = token.encode()
    except UnicodeEncodeError:
        raise UserError("a token has half a surrogate pair, which is not a character") from None
    return pieces
