"""Errors that the user can fix: one line each, and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType

from minigpt.system.places import with_extra
from minigpt.system.terminal import one_line

Mistake = tuple[str, str]  # (where, what)


def meant(word: str, words: Iterable[str], alike: float = 0.6) -> str:
    """The end of a message about an unknown word: the most similar known word, if its similarity is `alike` or more."""
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""


class UserError(ValueError):
    """Something in the input is wrong. Scripts print the message and end with exit code 2."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: in a notebook, too, a mistake is one line."""
        return [f"error: {self}"]


class ConfigError(UserError):
    """The mistakes of a config, one line each: `where: what`."""

    def __init__(self, mistakes: Sequence[Mistake]):
        self.mistakes = list(mistakes)
        super().__init__("\n".join(one_line(f"{where}: {problem}") for where, problem in self.mistakes))


def package(name: str, purpose: str, extra: str, otherwise: str = "", error: type[UserError] = UserError) -> ModuleType:
    """A module of an optional package. Raises the error where it is not installed: what it is for, and the extra."""
    try:
        return import_module(name)
    except ImportError:
        distribution = name.partition(".")[0]
        raise error(f"{purpose} the package {distribution}: {with_extra(extra)}{otherwise}") from None
