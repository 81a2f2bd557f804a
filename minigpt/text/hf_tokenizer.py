"""The tokenizer of a published model: its tokenizer.json, run by Hugging Face's `tokenizers`.

Every text that was encoded is compared with the bytes of its ids: a vocabulary that lacks a character, or changes it,
raises an error instead of losing it.

N ids   V vocabulary size
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigpt.system.errors import UserError, package
from minigpt.system.places import command
from minigpt.system.strict_json import has_form
from minigpt.system.terminal import one_line
from minigpt.system.waiting import progress
from minigpt.text.hf_steps import MOST_IDS, Json, read_steps
from minigpt.text.seams import Unencodable, last_seam, whole_parts
from minigpt.text.tokenizer import Ids, Tokenizer, split_at, utf8

PART = 1 << 16  # characters that are encoded at once: `tokenizers` needs some 160 bytes for each
LONGEST_PART = 1 << 20  # characters of a part in which no word ends


class Published(Tokenizer):
    """The vocabulary of a published model. A special token stands for plain text only in `encode_marked`."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Tokenizer.Config):
        """No options: the model says whether there is an end of text."""

        without = ("end_of_text",)

    def __init__(
        self,
        vocab_size: int,
        begin_of_text: int | None,
        ends: list[int],
        chat_template: str | None,
        special: Sequence[int] = (),
    ):
        """`chat_template` is kept for an export, and never run; `special` are other ids that have a meaning.

        Raises UserError unless these are a number of ids, ids below that number, and a text or None.
        """
        if not (has_form([vocab_size, chat_template], (int, str | None)) and 0 < vocab_size <= MOST_IDS):
            raise UserError(f"vocab_size must be a number up to {MOST_IDS:,}, and chat_template a text")
        if not (has_form(ends, [int]) and has_form(begin_of_text, int | None)):
            raise UserError("begin_of_text must be an id, and ends a list of ids")
        ids = [*ends, *special, *([] if begin_of_text is None else [begin_of_text])]
        if any(not 0 <= id < vocab_size for id in ids):
            raise UserError(f"begin_of_text and ends must be ids from 0 to {vocab_size - 1}, found {ids}")
        self.vocab_size, self.begin_of_text, self.ends = vocab_size, begin_of_text, ends
        self.end_of_text, self.chat_template = ends[0] if ends else None, chat_template

    @classmethod
    def fit(cls, config: Any, texts: Iterable[str]) -> Tokenizer:
        """A published vocabulary is not learned from a text. Raises UserError."""
        raise UserError(f"data.tokenizer: {cls.kind} comes with a model: import one ({command('import_hf')})")


class HuggingFace(Published, kind="hf"):
    """An id is a token of a published vocabulary; the steps of its tokenizer.json lead from a text to the ids.

    Kinds of vocabulary: byte-level byte-pair encoding (GPT-2, Llama 3, Qwen), and SentencePiece's, in which a space is
    a character and unknown characters are written as bytes (Llama 2, Gemma). The latter may read a text as if a space
    stood in front of it: then the bytes of the ids begin with that space.
    """

    def __init__(
        self, text: str, vocab_size: int, begin_of_text: int | None, ends: list[int], chat_template: str | None
    ):
        """`text` is that of tokenizer.json. Raises UserError for steps that are not run here, and when `tokenizers` is
        not installed."""
        super().__init__(vocab_size, begin_of_text, ends, chat_template)
        if not isinstance(text, str):
            raise UserError("text must be the text of a tokenizer.json")
        self.text, self._steps = text, read_steps(text, vocab_size)
        self.special_tokens = self._steps.special
        self._plain = list(self._steps.pieces)  # (V,); a special token never stands for plain text
        for id in self.special_tokens.values():
            self._plain[id] = b"\xff"
        self._library = run_by_library(self._steps.program)

    def encode(self, text: str) -> Ids:
        """The ids (N,) of a text. Raises UserError for a character that the vocabulary cannot write."""
        return self._encode(text, self._steps.leads)

    def encode_rest(self, text: str) -> Ids:
        """The ids (N,) of a text that follows a `cut`: no space is put in front of it. Raises UserError."""
        return self._encode(text, "never")

    def encode_after(self, text: str) -> Ids:
        """The ids (N,) of a text that follows a special token. Raises UserError."""
        return self._encode(text, self._steps.leads_again)

    def cut(self, text: str) -> int:
        """The last index where a text can be cut if more text follows; 0: nowhere yet."""
        return last_seam(text, self._ids, LONGEST_PART)

    def encode_marked(self, text: str) -> Ids:
        """The ids (N,) of a text in which the name of a special token stands for the token. Raises UserError."""
        ids = list[int]()
        for n, section in enumerate(split_at(self.special_tokens, text)):
            leads = self._steps.leads_again if n else self._steps.leads
            ids += [self.special_tokens[section]] if n % 2 else self._encode(section, leads).tolist()
        return np.array(ids, dtype=np.int64)

    def _encode(self, text: str, leads: str) -> Ids:
        utf8(text)
        lead = " " if text and (leads == "always" or (leads == "missing" and text[0] != " ")) else ""
        ids, done = list[int](), 0
        for part in progress(whole_parts(lead + text, self._ids, PART, LONGEST_PART), "tokenizing", unit="parts"):
            part_ids = self._ids(part)
            if (wrong := self._first_wrong(part, part_ids)) is not None:
                message = "{} cannot be written: the vocabulary lacks it, or changes it"
                raise Unencodable(message, text, max(0, done + wrong - len(lead)))
            ids, done = ids + part_ids, done + len(part)
        return np.array(ids, dtype=np.int64)

    def _ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        except Exception as error:
            raise UserError(f"the tokenizer cannot write this text: {one_line(str(error))}") from None
        return ids

    def _first_wrong(self, text: str, ids: list[int]) -> int | None:
        """The index of the first character that differs in the bytes of the ids; None if none does."""
        decoded, expected = b"".join(map(self._plain.__getitem__, ids)), text.encode()
        if decoded == expected:
            return None
        shorter = min(len(decoded), len(expected))
        same = next((i for i in range(shorter) if decoded[i] != expected[i]), shorter)
        return min(len(expected[:same].decode("utf-8", "ignore")), len(text) - 1)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token. An id that the vocabulary does not use has the text U+FFFD."""
        return self._steps.pieces[self._check(id)]


def run_by_library(program: Json) -> Any:
    """A `tokenizers.Tokenizer`, which reads the names of special tokens as plain text. Raises UserError."""
    tokenizers = package("tokenizers", "the tokenizer of this model is run by", "bpe")
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(program))
    except Exception as error:
        raise UserError(f"not a tokenizer: {one_line(str(error))[:300]}") from None
    for token in program["added_tokens"]:
        name, id = token["content"], token["id"]
        if library.token_to_id(name) != id:
            raise UserError(f"the added token {name[:40]!r} cannot have the id {id}: ids are missing")
    library.encode_special_tokens = True
    return library
