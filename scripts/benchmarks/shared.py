"""A shared machine: how the time of a training step, or of a sampled token, grows beside other busy programs.

Neighbours are processes with an endless loop. With t threads on c CPUs beside n neighbours, the fair share of each
thread is c / (n + t) CPUs, at most one. So the time should grow by max(1, (n + t) / c) and no more. All processes are
in one session, within which Linux gives every thread an equal share.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.processes import WorkerProcess, in_turn
from benchmarks.report import Report, Row, Spread
from benchmarks.setting import Setting
from benchmarks.throughput import LAPTOP, describe
from minigpt.fast.threads import cpus

NEIGHBOURS = (0, 1, 2, 4, 8)
SETTLE, WARM_UP = 6.0, 0.5  # seconds of warm-up: minigpt, which adapts its threads, and the others
BLOCK = 1.0  # seconds that a measurement takes, about
OURS, SPINNING, ONE, NANOGPT = "minigpt", "minigpt, spinning", "minigpt, one thread", "nanoGPT"
SPIN = "300000"  # as libgomp has it by default
NEIGHBOUR = """
import os
parent = os.getppid()
while os.getppid() == parent:  # a benchmark that is killed leaves none behind
    for _ in range(1_000_000):
        pass
"""
COLUMNS = {
    "neighbours": ("neighbours", "d"),
    "program": ("who", ""),
    "threads": ("threads", "d"),
    "ms": ("ms", ",.1f"),
    "x alone": ("growth", ".2f"),
    "x fair share": ("unfair", ".2f"),
    "minigpt's time, x": ("ratio", ".2f"),
    "load": ("load", ""),
}


@dataclass
class Cell:
    """The measurements of one program beside n neighbours: seconds a step or token, and the load, in each round."""

    threads: int
    seconds: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)


def run(setting: Setting, neighbours: Sequence[int] = NEIGHBOURS) -> Report:
    """Measure training and writing beside each number of neighbours. Raises UserError."""
    report = setting.report("shared", "itself")
    common: dict[str, Any] = {"shape": LAPTOP, "precision": "auto", "weights": "float32", "cache": True}
    for do, batch in (("train", 12), ("sample", 1)):
        specs = {name: setting.spec(do=do, program="minigpt", batch=batch, **common) for name in (OURS, SPINNING, ONE)}
        if setting.nanogpt:
            specs[NANOGPT] = setting.spec(do=do, program="nanogpt", batch=batch, **common)
        what = "training, ms a step" if do == "train" else "sampling, ms a token"
        title = f"{what}: {describe(LAPTOP)}, batch {batch}, {setting.repeat} rounds, in turn"
        report.begin(title)
        report.add(title, COLUMNS, rows(measure_cells(specs, setting.repeat, neighbours)))
    report.notes += [
        f"fair share: t threads beside n neighbours on {cpus()} CPUs take max(1, (n + t) / {cpus()}) times as long as "
        "alone; `x fair share` is the measured growth over that",
        f"{SPINNING}: threads wait as they do in torch by default; {ONE}: OMP_NUM_THREADS=1",
        "minigpt's time, x: the time over minigpt's in the same round; below 1 the program was faster",
        "load: the load average of the last minute (smallest..largest), with all programs of this machine",
    ]
    return report


def measure_cells(
    specs: dict[str, dict[str, Any]], repeat: int, neighbours: Sequence[int]
) -> dict[tuple[int, str], Cell]:
    """Measure each program beside each number of neighbours, in turn, for `repeat` rounds."""
    variables = {SPINNING: {"GOMP_SPINCOUNT": SPIN, "OMP_NUM_THREADS": str(torch.get_num_threads())}}
    variables[ONE] = {"OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(WorkerProcess(name, spec, session=False, **variables.get(name, {})))
            for name, spec in specs.items()
        }
        cells = {(n, name): Cell(workers[name].facts["threads"]) for n in neighbours for name in specs}
        for worker in workers.values():
            worker.work(2)
        for turn in range(repeat):
            for n in neighbours:
                with busy(n):
                    for name in in_turn(list(specs), turn):
                        cells[n, name].seconds.append(seconds_each(workers[name], SETTLE if name == OURS else WARM_UP))
                        cells[n, name].load.append(os.getloadavg()[0])
    return cells


def seconds_each(worker: WorkerProcess, settle: float) -> float:
    """Seconds a step or token, after a warm-up of `settle` seconds."""
    began, done = perf_counter(), 0
    while (passed := perf_counter() - began) < settle:
        worker.work(1 + done // 8)
        done += 1 + done // 8
    count = max(1, round(done * BLOCK / passed))
    return worker.work(count) / count


@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run `count` neighbours until the `with` ends."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-S", "-c", NEIGHBOUR], cwd=Path(sys.prefix))
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        yield started


def rows(cells: dict[tuple[int, str], Cell]) -> list[Row]:
    """A row for each number of neighbours and program. Growth is over the fewest neighbours in the same round."""
    fewest, made = min(n for n, _ in cells), []
    for (n, name), cell in cells.items():
        seconds, alone = Spread(tuple(cell.seconds)), Spread(tuple(cells[fewest, name].seconds))
        growth = seconds.over(alone)
        fair = fair_growth(n, cell.threads, cpus()) / fair_growth(fewest, cell.threads, cpus())
        row: Row = {"neighbours": n, "who": name, "threads": cell.threads}
        row["ms"] = Spread(tuple(1000 * s for s in cell.seconds))
        row |= {"growth": growth, "unfair": Spread(tuple(value / fair for value in growth.values))}
        row["load"] = f"{min(cell.load):.1f}..{max(cell.load):.1f}"
        if name != OURS:
            row["ratio"] = seconds.over(Spread(tuple(cells[n, OURS].seconds)))
        made.append(row)
    return made


def fair_growth(neighbours: int, threads: int, cpus: int) -> float:
    """How many times as long as alone a program takes if it gets its fair share."""
    return max(1.0, (neighbours + threads) / cpus)
