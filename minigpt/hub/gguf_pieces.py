"""Converts a SentencePiece vocabulary of a GGUF file (`tokenizer.ggml.model: llama`) to a tokenizer.json.

Llama 2, Mistral and TinyLlama have such a vocabulary. The file has a score for each piece. Of all neighbours whose
union is a piece, sentencepiece's `bpe` models merge the two whose union has the best score, and the first two if scores
are equal. A tokenizer.json has an ordered list of merges instead, which is computed here: every way to make a piece
from two others, sorted by the score of the piece, best first. The order of two ways to make the same piece makes no
difference: no text was found in which both stand side by side and share a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigpt.system.errors import UserError
from minigpt.system.strict_json import has_form
from minigpt.system.waiting import progress
from minigpt.text.hf_steps import LARGEST, LONGEST_NAME, SPACE

NORMAL, UNKNOWN, CONTROL, OWN, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of pieces; OWN: user-defined

Json = dict[str, Any]


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
    if odd := next((token for token, id in ids.items() if types[id] == OWN and SPACE in token), None):
        raise UserError(f"tokenizer.ggml.tokens: {odd[:40]!r} is a user-defined token with a space: it is not read")
    lead = [{"type": "Prepend", "prepend": SPACE}] if values.get("ggml.add_space_prefix", True) else []
    signs = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    added = [added_piece(token, id, types[id]) for token, id in ids.items() if types[id] in (UNKNOWN, CONTROL, OWN)]
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
        what = f"a piece of {len(long):,} characters; at most {LONGEST_NAME:,} are read"
        raise UserError(f"tokenizer.ggml.tokens: {what}")
    found, size = [], 0  # size: characters of the merges in a tokenizer.json
    for piece, score in progress(pieces.items(), "finding the merges", len(pieces), "pieces"):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                found.append((-score, left, right))
                size += len('["",""],') + len(piece)
        if size > LARGEST:
            raise UserError(f"tokenizer.ggml.tokens: their merges take more than {LARGEST:,} characters")
    return [(left, right) for _, left, right in sorted(found)]


def added_piece(token: str, id: int, kind: int) -> Json:
    """A piece that no merge makes: a special token, or one that is matched in a text before any other step."""
    return {"id": id, "content": token, "special": kind != OWN, "normalized": kind == OWN}
