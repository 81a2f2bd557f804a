"""A shared machine: how the time of a training step, or of a sampled token, grows beside other busy programs.

Neighbours are processes with an endless loop. With t threads on c CPUs beside n neighbours, the fair share of each
thread is c / (n + t) CPUs, at most one. So the time should grow by max(1, (n + t) / c) and no more. All processes are
in one session, within which Linux gives every thread an equal share.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.processes import WorkerProcess, in_turn
from benchmarks.report import Report, Row, Spread, columns
from benchmarks.throughput import LAPTOP, describe
from benchmarks.worker import Spec
from minigpt.fast.threads import cpus
from minigpt.system.machine import load

SETTLE, WARM_UP = 6.0, 0.5  # seconds of warm-up: minigpt, which adapts its threads, and the others
BLOCK = 1.0  # seconds that a measurement takes, about
MINIGPT, SPINNING, ONE, NANOGPT = "minigpt", "minigpt, spinning", "minigpt, one thread", "nanoGPT"
SPIN = "300000"  # as libgomp has it by default
NEIGHBOUR = """
import os
parent = os.getppid()
while os.getppid() == parent:  # a benchmark that is killed leaves none behind
    for _ in range(1_000_000):
        pass
"""
COLUMNS = columns(
    "neighbours:d | program=who | threads:d | ms:,.1f | x alone=growth:.2f | x fair share=unfair:.2f"
    " | minigpt's time, x=ratio:.2f | load"
)


def shared(report: Report) -> None:
    """Measure training and writing beside each number of neighbours. Raises UserError."""
    report.start(alone="itself")
    common: Spec = {"shape": LAPTOP, "precision": "auto", "weights": "float32", "cache": True, "session": False}
    spinning = {"GOMP_SPINCOUNT": SPIN, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    programs: dict[str, Spec] = {MINIGPT: {"program": "minigpt"}}
    programs[SPINNING] = {"program": "minigpt", "variables": spinning}
    programs[ONE] = {"program": "minigpt", "variables": {"OMP_NUM_THREADS": "1"}}
    if report.nanogpt:
        programs[NANOGPT] = {"program": "nanogpt"}
    for do, batch, work in (("train", 12, "training, ms a step"), ("sample", 1, "sampling, ms a token")):
        specs = {name: report.spec(do=do, batch=batch, **common, **own) for name, own in programs.items()}
        title = report.begin(f"{work}: {describe(LAPTOP)}, batch {batch}, {report.repeat} rounds, in turn")
        report.add(title, COLUMNS, rows(measure(specs, report.repeat, report.options.neighbours)))
    report.notes += [
        f"fair share: t threads beside n neighbours on {cpus()} CPUs take max(1, (n + t) / {cpus()}) times as long as "
        "alone; `x fair share` is the measured growth over that",
        f"{SPINNING}: threads wait as they do in torch by default; {ONE}: OMP_NUM_THREADS=1",
        "minigpt's time, x: the time over minigpt's in the same round; below 1 the program was faster",
        "load: the load average of the last minute (smallest..largest), with all programs of this machine",
    ]


def measure(specs: dict[str, Spec], repeat: int, neighbours: Sequence[int]) -> dict[tuple[int, str], Row]:
    """Measure each program beside each number of neighbours, in turn.

    Returns the number of its threads, and in each round the seconds of a step or a token, and the load.
    """
    with ExitStack() as stack:
        workers = {name: stack.enter_context(WorkerProcess(name, spec)) for name, spec in specs.items()}
        for worker in workers.values():
            worker.work(2)
        cells = {(n, name): Row(seconds=[], load=[], threads=0) for n in neighbours for name in specs}
        for turn in range(repeat):
            for n in neighbours:
                with busy(n):
                    for name in in_turn(list(specs), turn):
                        settle = SETTLE if name == MINIGPT else WARM_UP
                        cells[n, name]["threads"] = workers[name].facts["threads"]
                        cells[n, name]["seconds"].append(seconds_each(workers[name], settle))
                        cells[n, name]["load"].append(load())
    return cells


def seconds_each(worker: WorkerProcess, settle: float) -> float:
    """Seconds a step or token, after a warm-up of `settle` seconds."""
    start, done = perf_counter(), 0
    while (passed := perf_counter() - start) < settle:
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


def rows(cells: dict[tuple[int, str], Row]) -> list[Row]:
    """A row for each number of neighbours and program. Growth is over the fewest neighbours in the same round."""
    seconds = {key: Spread(tuple(cell["seconds"])) for key, cell in cells.items()}
    fewest, table = min(n for n, _ in cells), list[Row]()
    for (n, name), cell in cells.items():
        threads, time = cell["threads"], seconds[n, name]
        growth, low, high = time.over(seconds[fewest, name]), min(cell["load"]), max(cell["load"])
        fair = fair_growth(n, threads, cpus()) / fair_growth(fewest, threads, cpus())
        row = Row(neighbours=n, who=name, threads=threads, ms=time.times(1000), growth=growth)
        row |= {"unfair": growth.times(1 / fair), "load": f"{low:.1f}..{high:.1f}"}
        if name != MINIGPT:
            row["ratio"] = time.over(seconds[n, MINIGPT])
        table.append(row)
    return table


def fair_growth(neighbours: int, threads: int, cpus: int) -> float:
    """How many times as long as alone a program takes if it gets its fair share."""
    return max(1.0, (neighbours + threads) / cpus)
