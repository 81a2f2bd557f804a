"""Errors that are the user's to mend: one line each, and exit code 2."""

from __future__ import annotations

from collections.abc import Sequence

from minigpt.system.terminal import one_line

Mistake = tuple[str, str]  # (where, what)


class UserError(ValueError):
    """Something the user got wrong. Scripts print it as it stands and leave with exit code 2."""


class ConfigError(UserError):
    """One line for each mistake: `where: what`."""

    def __init__(self, mistakes: Sequence[Mistake]):
        self.mistakes = list(mistakes)
        super().__init__("\n".join(one_line(f"{where}: {what}") for where, what in self.mistakes))
