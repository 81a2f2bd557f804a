"""Where a text can be cut so that the ids of its parts are those of the whole, for any vocabulary.

A library that tokenizes needs memory in proportion to the text, and does not react to signals: a long text is encoded
in parts. Most vocabularies have no token that crosses the end of a word; this is checked at each cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

WORD_END = re.compile(r"(?<=\w)(?=\W)")
SEAM = 64  # characters on each side of a cut that are encoded to check it
NEAR = 1 << 12  # characters at the end of a text in which a cut is looked for first


def whole_parts(text: str, ids: Callable[[str], list[int]], size: int, longest: int) -> Iterator[str]:
    """Parts of a text, of about `size` characters, so that no token crosses a cut: `ids` encodes both sides alike.

    A part that has reached `longest` characters without such a place is cut anywhere.
    """
    start = 0
    while len(text) - start > size:
        cut = min(start + longest, len(text))
        for place in WORD_END.finditer(text, start + size, cut):
            at = place.start()
            left, right = text[max(0, at - SEAM) : at], text[at : at + SEAM]
            if ids(left + right) == ids(left) + ids(right):
                cut = at
                break
        yield text[start:cut]
        start = cut
    yield text[start:]


def last_seam(text: str, ids: Callable[[str], list[int]], longest: int) -> int:
    """The last index where a text can be cut, if more text follows, and no token crosses; 0: nowhere yet.

    A text of more than `longest` characters without such a place is cut anywhere.
    """
    end = len(text) - SEAM
    for start in (max(0, end - NEAR), 0):
        for place in reversed([place.start() for place in WORD_END.finditer(text, start, max(0, end))]):
            left, right = text[max(0, place - SEAM) : place], text[place : place + SEAM]
            if place and ids(left + right) == ids(left) + ids(right):
                return place
    return end if len(text) > longest else 0
