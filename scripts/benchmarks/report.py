"""The report of a benchmark: medians with their spread, ratios, tables to print, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import Hardware, describe_machine
from minigpt.comparison.summary import aligned, number
from minigpt.system.folder import write_whole
from minigpt.system.terminal import complain

Row = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """The measurements of one quantity, one a round. Raises ValueError if there is none."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a spread needs at least one value")

    @property
    def median(self) -> float:
        """The median of the measurements."""
        return median(self.values)

    def over(self, other: Spread) -> Spread:
        """The ratio to another quantity in each round. What slows both down in the same round cancels out."""
        return Spread(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))

    def times(self, factor: float) -> Spread:
        """Each measurement multiplied by a factor, as for another unit."""
        return Spread(tuple(value * factor for value in self.values))

    def to_json(self) -> Row:
        """The form in which it is written to JSON."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": list(self.values)}

    def text(self, form: str) -> str:
        """The median, smallest and largest value: `10.2 (9.8..11.0)`."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:{form}}" + (f" ({low:{form}}..{high:{form}})" if len(self.values) > 1 else "")


def rate(amount: float, seconds: Spread) -> Spread:
    """An amount of work as a rate per second, in each round."""
    return Spread(tuple(amount / second for second in seconds.values))


@dataclass
class Table:
    """Rows, and the columns to print: {title: (key of a row, format)}."""

    title: str
    columns: Mapping[str, tuple[str, str]]
    rows: list[Row]

    def lines(self) -> Iterator[str]:
        """The lines to print; a missing number is a dash."""
        body = [[cell(row.get(key), form) for key, form in self.columns.values()] for row in self.rows]
        yield from (self.title, "")
        yield from aligned([[*self.columns], *body])

    def to_json(self) -> Row:
        """The form in which it is written to JSON."""
        rows = [{k: v.to_json() if isinstance(v, Spread) else v for k, v in row.items()} for row in self.rows]
        return {"title": self.title, "columns": {head: key for head, (key, _) in self.columns.items()}, "rows": rows}


def cell(value: Any, form: str) -> str:
    """The text of one cell."""
    if isinstance(value, Spread):
        return value.text(form)
    return value if isinstance(value, str) else number(value, form)


@dataclass
class Report:
    """The report of one suite. The hardware is measured when the suite begins and again when it ends."""

    suite: str
    command: str
    hardware: Hardware
    nanogpt: Path | None
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = describe_machine(self.hardware.device, self.nanogpt)
        self.hardware.measure()

    def begin(self, title: str) -> None:
        """Print on stderr what is measured next: it may take minutes."""
        complain(title)

    def add(self, title: str, columns: Mapping[str, tuple[str, str]], rows: Sequence[Row]) -> None:
        """Add a table."""
        self.tables.append(Table(title, columns, list(rows)))

    def finish(self) -> None:
        """Measure the hardware again, and add MFU to each row that has FLOP/s."""
        self.hardware.measure()
        for row in (row for table in self.tables for row in table.rows if row.get("flops_per_second")):
            flops = row["flops_per_second"]
            flops = flops.median if isinstance(flops, Spread) else flops
            row["mfu"] = flops / self.hardware.square(row.get("precision", "float32"))

    def text(self) -> str:
        """The whole report as text."""
        blocks = ["\n".join(self.machine["lines"]), *("\n".join(table.lines()) for table in self.tables)]
        matmul = Table("matrix products on this machine, at the start and at the end", MATMUL, self.hardware.rows())
        notes = "\n".join(f"- {note}" for note in self.notes)
        return "\n\n".join([*blocks, notes, "\n".join(matmul.lines())])

    def write(self, folder: Path) -> Path:
        """Write `benchmark-SUITE.json`; it replaces an older one. Raises OSError."""
        found: Row = {"suite": self.suite, "command": self.command, "machine": self.machine, "notes": self.notes}
        found |= {"matmul": self.hardware.rows(), "tables": [table.to_json() for table in self.tables]}
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"benchmark-{self.suite}.json"
        write_whole(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
        return path


MATMUL = {"(m, k) @ (k, n)": ("shape", ""), "type": ("precision", ""), "GFLOP/s": ("gflops", ",.0f")}
MATMUL |= {"at the start": ("first", ",.0f"), "at the end": ("last", ",.0f")}
