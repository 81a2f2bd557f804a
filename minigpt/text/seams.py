"""Where a text can be cut so that the ids of its parts are those of the whole, for any vocabulary.

A library that tokenizes needs memory in proportion to the text, and does not react to signals. Most vocabularies have
no token that reaches across the end of a word; here it is tried at each cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

WORD_END = re.compile(r"(?<=\w)(?=\W)")
SEAM = 64  # characters on each side of a cut that are looked at


def whole_parts(text: str, ids: Callable[[str], list[int]], size: int, longest: int) -> Iterator[str]:
    """Parts of a text, of about `size` characters, between which no token reaches: `ids` are the same on both sides.

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
