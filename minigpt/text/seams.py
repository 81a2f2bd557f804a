"""Where a text can be cut so that the ids of its parts are those of the whole, and where in a text something is.

A library that tokenizes needs memory in proportion to the text, and does not react to signals: a long text is encoded
in parts. The split patterns that tiktoken runs here are known, and so are places where all of them end a word. Of a
vocabulary of `tokenizers`, most have no token that crosses the end of a word; this is checked at each cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from minigpt.system.errors import UserError

# ---------------------------------------------------------------------------------- places


class Before(NamedTuple):
    """How much of a document comes before a piece of it."""

    characters: int = 0
    lines: int = 0
    """How many line ends."""
    column: int = 0
    """How many characters after the last line end."""

    def and_then(self, text: str) -> Before:
        """The same with a piece more."""
        start = text.rfind("\n") + 1
        column = len(text) - start + (0 if start else self.column)
        return Before(self.characters + len(text), self.lines + text.count("\n"), column)


BEGINNING = Before()


class Unencodable(UserError):
    """A text has a character that cannot be encoded; in the message, {} stands for the character and its place."""

    def __init__(self, message: str, text: str, index: int):
        super().__init__(message.format(locate(text, index)))
        self.message, self.text, self.index = message, text, index

    def after(self, before: Before) -> str:
        """The message with the place in a document of which the text is a piece."""
        return self.message.format(locate(self.text, self.index, before))


def locate(text: str, index: int, before: Before = BEGINNING) -> str:
    """The place of a character in a text, in words: 'é' (U+00E9) at index 17 (line 2, column 5)."""
    place = before.and_then(text[:index])
    where = f" (line {place.lines + 1}, column {place.column + 1})" if before.lines or "\n" in text else ""
    return f"{text[index]!r} (U+{ord(text[index]):04X}) at index {place.characters}{where}"


# ---------------------------------------------------------------------------------- for tiktoken

# Places where each split pattern that tiktoken runs here begins a new word, whatever comes before and after: between a
# letter or digit and white space or a mark such as a comma; before a blank; after a line end that stands alone.
MARKS = r"[\s.,;:!?\u2026\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]"
CUT = rf"(?:(?<=[^\W_])(?={MARKS})|(?<=\S)(?=[^\S\r\n\x1c-\x1f])|(?<=\S\n)(?=[^\s/]))"
PART = 2000  # characters of a part, at most, where there are such places
SLOW = 1 << 17  # characters that take a tenth of a second
LONGEST = 1 << 24  # characters without such a place: they take tiktoken half a minute, and a gigabyte or two
BLANKS = 1 << 19  # characters of white space in a row: twice as many are too many for tiktoken's search for words


def parts(text: str) -> Iterator[str]:
    """Split a text into parts whose ids, one after the other, are those of the whole.

    A part is longer than PART only where there is no place to cut. Raises Unencodable for a part that is too long.
    """
    some = rf".{{1,{PART}}}(?:\Z|{CUT})|.{{1,{LONGEST - 1}}}?(?:\Z|{CUT})|.{{{LONGEST}}}"
    for match in re.finditer(rf"(?s){some}", text):
        part = match[0]
        blanks = re.search(rf"\s{{{BLANKS}}}", part) if len(part) >= BLANKS else None
        if blanks or len(part) >= LONGEST:
            run, many = ("white space", BLANKS) if blanks else ("a word", LONGEST)
            hint = "put line ends into it, or take data.tokenizer=byte or char"
            message = f"from {{}} on, {run} of {many:,} characters or more, too many to tokenize: {hint}"
            raise Unencodable(message, text, match.end() - len(part[blanks.start() :] if blanks else part.lstrip()))
        yield part


def last_part(text: str) -> int:
    """The start of the last of a text's `parts`, which could be longer if more text followed. Raises Unencodable."""
    last = 0
    for part in parts(text):
        last = len(part)
    return len(text) - last


# ---------------------------------------------------------------------------------- for tokenizers

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
