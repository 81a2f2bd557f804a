"""Finds words in a prompt that look like special tokens but are plain text, which is easily overlooked."""

from __future__ import annotations

import re
from collections.abc import Collection

from minigpt.system.errors import meant
from minigpt.text.tokenizer import split_at

LOOKS = re.compile(r"<\|[^\s<>|]{1,40}\|>|</?\w{1,40}>")


def misspelt(text: str, names: Collection[str]) -> list[str]:
    """A note for each word of a text that looks like a special token and is not one of `names`."""
    words = dict.fromkeys(word for section in split_at(names, text)[::2] for word in LOOKS.findall(section))
    lines = []
    for word in words:
        near = meant(word, names, alike=0.7)
        if near or word.startswith("<|"):
            ending = near or f" (some of its special tokens: {', '.join([*names][:5])})"
            lines.append(f"note: {word} is no special token of this model, so it is plain text{ending}")
    return lines
