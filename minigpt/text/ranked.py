"""The byte-level vocabulary of a GGUF file: tokens, merges, and the name of a split pattern, run by tiktoken.

It differs from `bpe` in that nothing is learned, ids are in any order, and a vocabulary may lack single bytes.

N ids   V vocabulary size
"""

from __future__ import annotations

from itertools import count

import numpy as np
import tiktoken

from minigpt.system.errors import UserError
from minigpt.system.strict_json import has_form
from minigpt.text.hf_steps import bytes_of
from minigpt.text.hf_tokenizer import Published
from minigpt.text.seams import Unencodable, last_part
from minigpt.text.split_patterns import OF_GGUF
from minigpt.text.tokenizer import Ids, encode_parts, from_letters, split_at, utf8


class Ranked(Published, kind="ranked"):
    """An id is a token of a published vocabulary of bytes; pairs are merged in the order of a list of merges."""

    def __init__(
        self,
        tokens: list[str],
        merges: list[str],
        split: str,
        special: list[int],
        whole: list[int],
        begin_of_text: int | None,
        ends: list[int],
        chat_template: str | None,
    ):
        """The V tokens and the merges have a letter for each byte, as GPT-2's; `split` is as in `tokenizer.ggml.pre`.

        `special` and `whole` are the ids of tokens that are plain text instead; the `whole` ones are matched in a text
        before any other step. Raises UserError.
        """
        if not (has_form(tokens, [str]) and has_form(merges, [str]) and has_form([special, whole], [[int]])):
            raise UserError("tokens and merges must be lists of texts, special and whole lists of ids")
        super().__init__(len(tokens), begin_of_text, ends, chat_template, [*special, *whole])
        if not isinstance(split, str) or split not in OF_GGUF:
            raise UserError(f"the split pattern {str(split)[:40]!r} is not known here, only {', '.join(OF_GGUF)}")
        self.tokens, self.merges, self.split, self.special, self.whole = tokens, merges, split, special, whole
        self.special_tokens = {tokens[id]: id for id in special}
        self._whole = {tokens[id]: id for id in whole}
        own_text = [(tokens[id], id) for id in (*special, *whole)]
        self._pieces = bytes_of(zip(tokens, count()), own_text, len(tokens), "bytes", False)
        ids = {piece: id for id, piece in enumerate(self._pieces) if id not in {*special, *whole}}
        ranks = ranks_of(merges, ids)
        self._ids = np.array([ids.get(piece, -1) for piece in ranks], dtype=np.int64)  # (ranks,): -1 is unknown
        self._encoding = tiktoken.Encoding("ranked", pat_str=OF_GGUF[split], mergeable_ranks=ranks, special_tokens={})

    def encode(self, text: str) -> Ids:
        """The ids (N,) of a text. Raises UserError for a character with a byte that the vocabulary lacks."""
        utf8(text)  # tiktoken would replace invalid text without an error
        ids = [np.empty(0, dtype=np.int64)]
        for n, section in enumerate(split_at(self._whole, text)):
            if n % 2:
                ids.append(np.array([self._whole[section]]))
                continue
            ids += [self._ids[ranks] for ranks in encode_parts(self._encoding, section)]
        all_ids = np.concatenate(ids)  # (N,)
        if (all_ids < 0).any():
            self._refuse(text)
        return all_ids

    def cut(self, text: str) -> int:
        """The last index where a text can be cut if more text follows; 0: nowhere yet. No whole token is cut."""
        at = last_part(text)
        around = [text.find(name, max(0, at - len(name) + 1), at + len(name) - 1) for name in self._whole]
        return min([at, *(start for start in around if start >= 0)])

    def _refuse(self, text: str) -> None:
        for index, character in enumerate(text):
            if (self._ids[self._encoding.encode_ordinary(character)] < 0).any():
                raise Unencodable("{} cannot be written: the vocabulary lacks it", text, index)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token."""
        return self._pieces[self._check(id)]


def ranks_of(merges: list[str], ids: dict[bytes, int]) -> dict[bytes, int]:
    """The pieces that merges can make -> their ranks: the 256 bytes, then the union of each pair, in order.

    Raises UserError for a pair that is not made of two tokens, or whose union is not a token.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    for merge in merges:
        pair = [from_letters(token) for token in merge.split(" ")]
        if len(pair) != 2 or None in pair:
            raise UserError(f"the merge {merge[:40]!r} is not a pair of tokens")
        left, right = (piece or b"" for piece in pair)
        if not (left in ids and right in ids and left + right in ids):
            raise UserError(f"the merge {merge[:40]!r} is made of, or makes, what is no token")
        ranks.setdefault(left + right, len(ranks))
    return ranks
