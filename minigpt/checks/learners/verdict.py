"""The result of a check: the verdict, the laws that are broken, and how the program was built and called."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from minigpt.checks.reading.structure import Broken, Note

COLORS = re.compile("\x1b\\[[0-9;]*m")
Verdict = Literal["right", "right, in another convention", "wrong", "cannot tell"]


@dataclass
class Report:
    """The result of one check."""

    verdict: Verdict
    target: str
    """What the program was held against, or is nearest to: "multi_head,rotary"."""
    file: str = ""
    laws: list[Broken] = field(default_factory=list)
    """wrong: the laws that are broken, the cause first."""
    names: list[str] = field(default_factory=list)
    """A sentence each. wrong: what is wrong; in another convention: which one; cannot tell: why."""
    code: str = ""
    """The line of the learner's file where the first law breaks."""
    how: list[str] = field(default_factory=list)
    """How the program was built and called, and what was read in it."""
    notes: list[str] = field(default_factory=list)
    listing: str = ""
    """Each line of the file beside what it makes, if that was asked for."""

    @property
    def exit_code(self) -> int:
        """0 if the program is right, 2 if it is wrong or the check cannot tell."""
        return 0 if self.verdict.startswith("right") else 2

    @property
    def line(self) -> int:
        """The line of the learner's file where the first law breaks; 0: none."""
        return self.laws[0].line if self.laws else 0

    @property
    def fixes(self) -> list[str]:
        """How to mend what is wrong."""
        return [law.mend for law in self.laws]

    def to_json(self) -> dict[str, Any]:
        """The report as a dict of JSON values."""
        laws = [{name: getattr(law, name) for name in Broken.__dataclass_fields__} for law in self.laws]
        return asdict(self) | {"laws": laws}  # a Note is a Broken, too

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """The report that `to_json` was made from. Raises ValueError for anything else."""
        known = {entry.name for entry in fields(Report)}
        if set(data) - known or data.get("verdict") not in get_args(Verdict):
            raise ValueError("not a report")
        try:
            laws = [Note(**law) if "convention" in law else Broken(**law) for law in data.get("laws", [])]
            return Report(**{**data, "laws": laws})
        except TypeError:
            raise ValueError("not a report") from None

    def __str__(self) -> str:
        return self.text()

    def text(self, color: bool = False) -> str:
        """The report, with what is wrong in red if `color`."""
        lines = [f"{self.verdict.upper()}: {self.target}".removesuffix(": ")]
        lines += [f"  {sentence}" for sentence in self.names]
        for law in self.laws[:1]:
            lines.append(f"  the law: {law.law}")
            lines += [f"  line {law.line}: {self.code}"] if law.line else []
            lines += [f"  {'':{len(f'line {law.line}:')}} {law.row}"] if law.row else []
        lines += [f"  mend it: {fix}" for fix in self.fixes]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {entry}" for entry in self.how]
        listing = self.listing if color else COLORS.sub("", self.listing)
        return "\n".join([*lines, *(["", listing] if listing else [])])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows."""
        printer.text(str(self))


def frames_in(error: BaseException, path: Path) -> list[traceback.FrameSummary]:
    """The calls inside a file that led to an error."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]


def what_it_raised(error: BaseException, path: Path) -> str:
    """An error in one line, with the line of the learner's file."""
    text = " ".join(str(error).split())[:300]
    lines = [frame.lineno for frame in frames_in(error, path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, text = [error.lineno], error.msg
    return f"{type(error).__name__}: {text}" + (f" (line {lines[-1]})" if lines else "")
