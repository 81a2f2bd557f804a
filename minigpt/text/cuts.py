"""Documents -> pieces of about a mebibyte, whose ids are those of the whole document, and blocks of such pieces.

Where a document can be cut depends on the tokenizer. A tokenizer of a plugin gets whole documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from minigpt.system.errors import UserError
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked
from minigpt.text.seams import BEGINNING, Before, Unencodable, last_part
from minigpt.text.tokenizer import Byte, Char, Ids, Tiktoken, Tokenizer

STEP = 1 << 20  # characters that are added at a time until a text can be cut
BLOCK = 10**6  # characters of a block, at least: a piece of STEP characters is a block by itself

Cut = Callable[[str], int]  # a text -> the last index where it can be cut if more text follows; 0: nowhere yet


class Piece(NamedTuple):
    """A part of a document."""

    document: int
    n: int
    """The number of the piece in its document; piece 0 begins it."""
    text: str
    before: Before = BEGINNING
    """How much of the document comes before it."""


class Failed(UserError):
    """A document cannot be encoded."""

    def __init__(self, document: int, message: str):
        super().__init__(message)
        self.document, self.message = document, message


def place_to_cut(tokenizer: Tokenizer) -> Cut | None:
    """The function that says where a text can be cut; None: nowhere, as for subclasses that replace `encode`."""
    encode = type(tokenizer).encode
    if encode in (Char.encode, Byte.encode):
        return len
    if encode is Tiktoken.encode:
        return last_part
    if isinstance(tokenizer, (HuggingFace, Ranked)) and encode in (HuggingFace.encode, Ranked.encode):
        return tokenizer.cut
    return None


def cut_up(document: Iterable[str], cut: Cut) -> Iterator[str]:
    """A document in pieces -> the same in other pieces, cut where `cut` allows it. Raises what `cut` raises."""
    held, searched = "", 0  # searched: where there is no place to cut, so many characters of it were looked through
    for piece in document:
        for start in range(0, len(piece), STEP):
            held += piece[start : start + STEP]
            if len(held) < 2 * searched:  # not in every step: the time would grow with the square of the length
                continue
            end = cut(held)
            if end:
                yield held[:end]
            held = held[end:]
            searched = 0 if end else len(held)
    if 0 < searched < len(held):
        cut(held)
    if held:
        yield held


@contextmanager
def naming(place: Callable[[int], str]) -> Iterator[None]:
    """Turns Failed into a UserError that begins with the place of the document: a file, and a line of it."""
    try:
        yield
    except Failed as error:
        raise UserError(f"{place(error.document)}: {error.message}") from None


def pieces_of(document: int, texts: Iterable[str], cut: Cut) -> Iterator[Piece]:
    """The pieces of a document, cut where `cut` allows it. Raises Failed."""
    before = BEGINNING
    try:
        for n, text in enumerate(cut_up(texts, cut)):
            yield Piece(document, n, text, before)
            before = before.and_then(text)
    except Unencodable as error:
        raise Failed(document, error.after(before)) from None


def blocks(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group pieces in order into blocks of at least BLOCK characters; the last block may be shorter."""
    block, size = list[Piece](), 0
    for piece in pieces:
        block.append(piece)
        size += len(piece.text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def encode_block(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> tuple[Ids, list[int]]:
    """The ids (N,) of pieces one after the other, and how many each has. Raises Failed."""
    parts = [np.empty(0, np.int64)]
    for piece in pieces:
        try:
            encode = tokenizer.encode_rest if piece.n and isinstance(tokenizer, HuggingFace) else tokenizer.encode
            ids = encode(piece.text)  # (ids of the piece,)
        except Unencodable as error:
            raise Failed(piece.document, error.after(piece.before)) from None
        except UserError as error:
            raise Failed(piece.document, str(error)) from None
        if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.text_ids:
            problem = f"the tokenizer {tokenizer.kind} gave ids from {ids.min()} to {ids.max()}"
            raise Failed(piece.document, f"{problem}, but its vocab_size is {tokenizer.text_ids}")
        parts.append(ids)
    return np.concatenate(parts), list(map(len, parts[1:]))
