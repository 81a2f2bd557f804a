"""The result of a check: exactly one of four verdicts, and how the learner's answer was built and called."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

Verdict = Literal["right", "right, in another convention", "wrong", "cannot tell"]


@dataclass
class Report:
    """The result of one check."""

    verdict: Verdict
    target: str
    file: str = ""
    names: list[str] = field(default_factory=list)
    """wrong: what is wrong, a sentence each; convention: which one; cannot tell: why."""
    fixes: list[str] = field(default_factory=list)
    line: int = 0
    """The line of the learner's file nearest to the first wrong number; 0: not known."""
    code: str = ""
    """The code on that line."""
    step: str = ""
    """The first intermediate result that is wrong: "scores", "weights"."""
    example: str = ""
    """The numbers of the answer and the right ones side by side, for a small input."""
    how: list[str] = field(default_factory=list)
    """How the answer was built, called, and which parameter was taken for what."""
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    measured: bool = False
    """Whether the sentences in `names` are measurements of the output, not named bugs."""

    @property
    def exit_code(self) -> int:
        """0 if the answer is right, 2 if it is wrong or the check cannot tell."""
        return 0 if self.verdict.startswith("right") else 2

    def to_json(self) -> dict[str, Any]:
        """The report as a dict of JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Report:
        """The report that `to_json` was made from. Raises ValueError for anything else."""
        known = {entry.name for entry in fields(Report)}
        if set(data) - known or data.get("verdict") not in get_args(Verdict):
            raise ValueError("not a report")
        return Report(**data)

    def __str__(self) -> str:
        lines = [f"{self.verdict.upper()}: {self.target}"]
        lines += [f"  {sentence}" for sentence in self.names]
        if self.line:
            what = (
                f", where {self.step} first {'differ' if self.step.endswith('s') else 'differs'}" if self.step else ""
            )
            lines.append(f"  line {self.line}{what}: {self.code}")
        lines += [f"  fix: {fix}" for fix in self.fixes]
        if self.example:
            lines += ["", *(f"  {row}".rstrip() for row in self.example.splitlines()), ""]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  {entry}" for entry in self.how]
        if self.unchecked:
            lines.append(f"  not checked: {', '.join(self.unchecked)}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows."""
        printer.text(str(self))
