"""What a benchmark writes down: medians with their spread, ratios round by round; tables, and the same as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from minigpt.bench.hardware import Yardstick, describe_machine
from minigpt.comparison.summary import aligned, number
from minigpt.system.folder import write_whole

Row = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """One thing measured several times, in the order of the rounds. Raises ValueError for no measurement at all."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a spread needs at least one value")

    @property
    def median(self) -> float:
        """The one in the middle."""
        return median(self.values)

    def over(self, other: Spread) -> Spread:
        """This divided by another, round by round: what disturbed both at once drops out."""
        return Spread(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def times(self, factor: float) -> Spread:
        """Each measurement in another unit."""
        return Spread(tuple(value * factor for value in self.values))

    def to_json(self) -> Row:
        """As the file has it."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": list(self.values)}

    def text(self, form: str) -> str:
        """The median, and from where to where it went: `10.2 (9.8..11.0)`."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:{form}}" + (f" ({low:{form}}..{high:{form}})" if len(self.values) > 1 else "")


def rate(amount: float, seconds: Spread) -> Spread:
    """How much of something was done in a second."""
    return Spread(tuple(amount / second for second in seconds.values))


@dataclass
class Table:
    """Rows, and which of their numbers are shown: head -> (key, format)."""

    title: str
    columns: Mapping[str, tuple[str, str]]
    rows: list[Row]

    def lines(self) -> Iterator[str]:
        """As it is printed; a dash where there is no number."""
        body = [[cell(row.get(key), form) for key, form in self.columns.values()] for row in self.rows]
        yield from (self.title, "")
        yield from aligned([[*self.columns], *body])

    def to_json(self) -> Row:
        """As the file has it."""
        rows = [{k: v.to_json() if isinstance(v, Spread) else v for k, v in row.items()} for row in self.rows]
        return {"title": self.title, "columns": {head: key for head, (key, _) in self.columns.items()}, "rows": rows}


def cell(value: Any, form: str) -> str:
    """A value as a table shows it."""
    if isinstance(value, Spread):
        return value.text(form)
    return value if isinstance(value, str) else number(value, form)


@dataclass
class Report:
    """A suite under way. Matrix products are measured when it begins and when it ends, between them its tables."""

    suite: str
    command: str
    yardstick: Yardstick
    nanogpt: Path | None
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = describe_machine(self.yardstick.device, self.nanogpt)
        self.yardstick.measure()

    def begin(self, title: str) -> None:
        """Say on stderr what is measured now: it may take a while."""
        print(title, file=sys.stderr)

    def add(self, title: str, columns: Mapping[str, tuple[str, str]], rows: Sequence[Row]) -> None:
        """Add a table."""
        self.tables.append(Table(title, columns, list(rows)))

    def finish(self) -> None:
        """Measure the machine once more, and say what share of it was used, where a row says what it computed."""
        self.yardstick.measure()
        for row in (row for table in self.tables for row in table.rows if row.get("flops_per_second")):
            did = row["flops_per_second"]
            did = did.median if isinstance(did, Spread) else did
            row["mfu"] = did / self.yardstick.square(row.get("precision", "float32"))

    def text(self) -> str:
        """All of it, to be read."""
        blocks = ["\n".join(self.machine["lines"]), *("\n".join(table.lines()) for table in self.tables)]
        matmul = Table("matrix products here, start and end of this run", MATMUL, self.yardstick.rows())
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join([*blocks, notes, "\n".join(matmul.lines())])

    def write(self, folder: Path) -> Path:
        """Write `benchmark-SUITE.json`, in the place of an older one. Raises OSError."""
        found: Row = {"suite": self.suite, "command": self.command, "machine": self.machine, "notes": self.notes}
        found |= {"matmul": self.yardstick.rows(), "tables": [table.to_json() for table in self.tables]}
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"benchmark-{self.suite}.json"
        write_whole(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
        return path


MATMUL = {"(m, k) @ (k, n)": ("shape", ""), "type": ("precision", ""), "GFLOP/s": ("gflops", ",.0f")}
MATMUL |= {"at the start": ("first", ",.0f"), "at the end": ("last", ",.0f")}
