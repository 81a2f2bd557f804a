"""What a suite is given, and the report that it makes: medians with their spread, as tables to print and as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.machine import Shape, describe_machine, product_rates
from benchmarks.trainings import check_checkout
from minigpt.comparison.summary import aligned, number
from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.terminal import command_line, complain
from minigpt.training.loop import choose_device

Row = dict[str, Any]
Columns = Mapping[str, tuple[str, str]]  # {title: (key of a row, format)}


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

    def rate(self, amount: float) -> Spread:
        """An amount of work for each of these seconds, in each round."""
        return Spread(tuple(amount / value for value in self.values))

    def to_json(self) -> Row:
        """The form in which it is written to JSON."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": list(self.values)}

    def text(self, form: str) -> str:
        """The median, smallest and largest value: `10.2 (9.8..11.0)`."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:{form}}" + (f" ({low:{form}}..{high:{form}})" if len(self.values) > 1 else "")


@dataclass
class Table:
    """Rows, and the columns to print."""

    title: str
    columns: Columns
    rows: Sequence[Row]

    def lines(self) -> Iterator[str]:
        """The lines to print; a missing number is a dash."""
        body = [[cell(row.get(key), form) for key, form in self.columns.values()] for row in self.rows]
        yield from (self.title, "")
        yield from aligned([[*self.columns], *body])

    def to_json(self) -> Row:
        """The form in which it is written to JSON."""
        rows = [{k: v.to_json() if isinstance(v, Spread) else v for k, v in row.items()} for row in self.rows]
        return {"title": self.title, "columns": {head: key for head, (key, _) in self.columns.items()}, "rows": rows}


def columns(header: str) -> Columns:
    """The columns of a table from its header, `program=who | seed:d`: title, key (if it is another) and format."""
    parts = [part.strip().partition(":") for part in header.split("|")]
    names = [(name.partition("="), form) for name, _, form in parts]
    return {title: (key or title, form) for (title, _, key), form in names}


def cell(value: Any, form: str) -> str:
    """The text of one cell."""
    if isinstance(value, Spread):
        return value.text(form)
    return value if isinstance(value, str) else number(value, form)


PRODUCTS = columns(
    "(m, k) @ (k, n)=shape | type=precision | GFLOP/s=gflops:,.0f | at the start=first:,.0f | at the end=last:,.0f"
)


class Report:
    """A suite's options, with the programs that they name, and its tables.

    The speed of matrix products is measured when the suite begins and again when it ends. Raises UserError before
    anything is measured if something is missing.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.tables, self.notes = options, list[Table](), list[str]()
        self.repeat = getattr(options, "repeat", 1)
        self.nanogpt: Path | None = getattr(options, "nanogpt", None)
        best = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = choose_device(best if options.device == "auto" else options.device)
        if self.nanogpt is not None:
            check_checkout(self.nanogpt)
        compared = options.suite in ("throughput", "sampling", "startup")
        if compared and importlib.util.find_spec("transformers") is None:
            raise UserError("transformers is not installed, but minigpt is compared with it: pip install transformers")

    def spec(self, **spec: Any) -> dict[str, Any]:
        """The instructions for a worker (see worker.py); for nanoGPT, with the path of its code."""
        code = {"path": str(self.nanogpt.resolve())} if self.nanogpt and spec["program"] == "nanogpt" else {}
        return {"device": self.device.type, "compile": self.device.type == "cuda", **code, **spec}

    def others(self) -> dict[str, str]:
        """The programs that minigpt is compared with: the name to print, and the name in a spec."""
        transformers = {} if self.options.suite == "device" else {"transformers": "transformers"}
        return ({"nanoGPT": "nanogpt"} if self.nanogpt else {}) | transformers

    def start(self, shapes: Sequence[Shape] = (), alone: str = "") -> None:
        """Measure the machine. `shapes`: of products in the suite's models. `alone`: what is left without nanoGPT."""
        if self.nanogpt is None and alone:
            self.notes.append(f"no checkout of nanoGPT was given (--nanogpt DIR): minigpt is compared with {alone}")
        size = self.options.square or (8192 if self.device.type == "cuda" else 2048)
        self.machine, self.shapes = describe_machine(self.device, self.nanogpt), [(size, size, size), *shapes]
        self.before = product_rates(self.shapes, self.device)

    def begin(self, title: str) -> str:
        """Print on stderr what is measured next: it may take minutes. Returns the title."""
        complain(title)
        return title

    def add(self, title: str, columns: Columns, rows: Sequence[Row]) -> None:
        """Add a table."""
        self.tables.append(Table(title, columns, rows))

    def finish(self) -> None:
        """Measure the products again, and add MFU to each row that has FLOP/s: over the large product of its type."""
        self.products: list[Row] = []
        for ((m, k, n), precision), last in product_rates(self.shapes, self.device).items():
            first = self.before[(m, k, n), precision]
            row = {"shape": f"({m}, {k}) @ ({k}, {n})", "precision": precision, "gflops": median(first + last) / 1e9}
            self.products.append(row | {"first": median(first) / 1e9, "last": median(last) / 1e9})
        square = {row["precision"]: row["gflops"] * 1e9 for row in self.products[:2]}
        for row in (row for table in self.tables for row in table.rows if row.get("flops_per_second")):
            flops = row["flops_per_second"]
            flops = flops.median if isinstance(flops, Spread) else flops
            row["mfu"] = flops / square[row.get("precision", "float32")]

    def text(self) -> str:
        """The whole report as text."""
        products = Table("matrix products on this machine, at the start and at the end", PRODUCTS, self.products)
        *tables, last = ["\n".join(table.lines()) for table in (*self.tables, products)]
        return "\n\n".join(["\n".join(self.machine["lines"]), *tables, "\n".join(f"- {n}" for n in self.notes), last])

    def write(self) -> Path:
        """Write `benchmark-SUITE.json`; it replaces an older one. Raises OSError."""
        command, suite = command_line(["python", "scripts/benchmark.py", *sys.argv[1:]]), self.options.suite
        numbers: Row = {"suite": suite, "command": command, "machine": self.machine, "notes": self.notes}
        numbers |= {"matmul": self.products, "tables": [table.to_json() for table in self.tables]}
        path: Path = self.options.out / f"benchmark-{suite}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(numbers, indent=1, allow_nan=False) + "\n")
        return path
