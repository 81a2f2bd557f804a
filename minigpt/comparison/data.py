"""The text, its tokenizer and its best possible loss: most runs of a comparison share them, so they are cached."""

from __future__ import annotations

from functools import lru_cache

from minigpt.text.corpus import Corpus
from minigpt.text.dataset import DataConfig
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.assemble import open_text
from minigpt.training.floor import Expected, expectations


@lru_cache(maxsize=8)
def text_and_tokenizer(data: DataConfig) -> tuple[Corpus, Tokenizer]:
    """The text that a config names, and the tokenizer fitted to it."""
    return open_text(data)


@lru_cache(maxsize=8)
def expected_of(data: DataConfig) -> Expected | None:
    """What the ideal and the forgetful reader predict for the validation text; None where no floor is known."""
    return expectations(*text_and_tokenizer(data))
