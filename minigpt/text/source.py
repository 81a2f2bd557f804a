"""Texts of one's own: a class makes text number n, where `data.source` names it.

    class Squares(Source, kind="squares"):                      # --plugin squares.py data.source=squares
        def text(self, number):
            return f"{number} times {number} is {number * number}.\\n"

A text is a function of its number and of the options alone, so that a resumed run reads the same. Whoever also knows
how probable each character is writes a task (`languages/tasks/base.py`), which has a floor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from minigpt.config.options import Component, Natural, Range
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.languages.language import Stories
from minigpt.text.languages.tasks import Task

TOLD_TWICE = 64  # texts, at most, that are made a second time
TAKEN = {Stories.name, "shakespeare", "pretrained"}


class Source(Component):
    """The base of all sources of one's own."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Component.Config):
        """The options that all of them have."""

        count: Annotated[int, Range(1, 10_000_000)] = 10_000
        """The number of texts; as of any text, those at the end are for validation (`data.validation`)."""
        seed: Natural = 0
        """Equal seeds give equal texts."""

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind in TAKEN or kind in Task.kinds:
            raise UserError(f"the kind {kind!r} is the name of another source: choose another name")
        super().__init_subclass__(kind=kind)

    def __init__(self, config: Any):
        self.config = config

    def text(self, number: int) -> str:
        """Text number 0, 1, ..., whole: what parts it from the next one belongs to it."""
        raise TypeError(f"{type(self).__name__} must define text(number)")


def text_of(source: Source, number: int) -> str:
    """A text of a source. Raises UserError for what is no text."""
    text = source.text(number)
    where = f"data.source: {source.kind}: text({number})"
    if not isinstance(text, str) or not text:
        raise UserError(f"{where} is {text!r}: expected a text of at least a character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{where} has no UTF-8: {error}") from None
    return text


def read_through(config: Source.Config) -> Iterator[tuple[str, str]]:
    """All texts of a source in order, and the SHA-256 of each. Raises UserError for one that another instance of the
    source, which is asked from the last to the first, makes otherwise."""
    source, other, kind = config.component(config), config.component(config), config.component.kind
    sums, every = dict[int, str](), -(-config.count // TOLD_TWICE)
    for number in progress(range(config.count), f"making the texts of {kind}", config.count, "texts"):
        text = text_of(source, number)
        sha256 = hashlib.sha256(text.encode("utf-8")).hexdigest()
        if number % every == 0:
            sums[number] = sha256
        yield text, sha256
    for number in reversed(sums):
        if hashlib.sha256(text_of(other, number).encode("utf-8")).hexdigest() != sums[number]:
            problem = f"text({number}) is not the same twice"
            hint = "it may depend on the number and the options alone, as with random.Random(f'{seed} {number}')"
            raise UserError(f"data.source: {kind}: {problem}: {hint}")
