"""The figures of the benchmark add up, and the neighbours of its shared machine come and go with it."""

from __future__ import annotations

import os
import select
import signal
from argparse import Namespace
from contextlib import suppress

import pytest
import torch
from benchmarking import shown
from running import SCRIPTS, forked, wait_until

from benchmarks import shared
from benchmarks.attention import exponent, peak_bytes
from benchmarks.commands import LONGER, column, steps_within, summary, verdicts
from benchmarks.processes import in_turn
from benchmarks.report import Report, Spread, Table

CPU = torch.device("cpu")


def test_a_spread_is_its_median_and_its_ends() -> None:
    spread = Spread((3.0, 1.0, 10.0))
    assert spread.text(".1f") == "3.0 (1.0..10.0)"
    assert spread.to_json() == {"median": 3.0, "min": 1.0, "max": 10.0, "values": [3.0, 1.0, 10.0]}
    assert spread.rate(30).values == (10.0, 30.0, 3.0)
    assert Spread((2.5,)).text(".1f") == "2.5"


def test_ratios_are_taken_round_by_round() -> None:
    """A round in which both were slower changes no ratio."""
    quiet, disturbed = Spread((1.0, 10.0, 1.0)), Spread((2.0, 20.0, 2.0))
    assert disturbed.over(quiet).values == (2.0, 2.0, 2.0)


def test_a_table_shows_what_the_json_holds() -> None:
    columns = {"who": ("who", ""), "seconds": ("seconds", ".2f"), "steps": ("steps", ",d")}
    table = Table("title", columns, [{"who": "a", "seconds": Spread((1.0, 2.0)), "steps": 1200}, {"who": "b"}])
    assert [shown(line) for line in list(table.lines())[3:]] == [["a", "1.50 (1.00..2.00)", "1,200"], ["b", "-", "-"]]
    assert table.to_json()["rows"][0]["seconds"]["median"] == 1.5


def test_the_share_of_the_machine_is_taken_of_the_product_of_the_same_type() -> None:
    report = Report(Namespace(suite="x", device="cpu", square=8))
    report.start()
    half = Spread((1e9,))
    report.add("t", {}, [{"flops_per_second": half}, {"flops_per_second": half, "precision": "bfloat16"}, {}])
    report.finish()
    first, second, third = report.tables[0].rows
    speeds = {row["precision"]: row["gflops"] for row in report.products}
    assert first["mfu"] == pytest.approx(1 / speeds["float32"])
    assert second["mfu"] == pytest.approx(1 / speeds["bfloat16"])
    assert "mfu" not in third


def test_products_are_measured_at_the_start_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([[1e9, 3e9], [8e9], [5e9, 7e9], [4e9]])
    monkeypatch.setattr("benchmarks.machine.product_rate", lambda shape, dtype, device: next(rates))
    report = Report(Namespace(suite="x", device="cpu", square=8))
    report.start()
    report.finish()
    shape = {"shape": "(8, 8) @ (8, 8)"}
    assert report.products == [
        {**shape, "precision": "float32", "gflops": 4.0, "first": 2.0, "last": 6.0},
        {**shape, "precision": "bfloat16", "gflops": 6.0, "first": 8.0, "last": 4.0},
    ]


def test_the_exponent_of_a_power_is_found() -> None:
    assert exponent([64, 128, 512], [3 * T**1.7 for T in (64, 128, 512)]) == pytest.approx(1.7)


def test_the_peak_is_what_tensors_hold_at_one_time() -> None:
    def step() -> None:
        a = torch.zeros(1000)  # 4000 bytes
        b = torch.zeros(500)  # 2000 more
        del a
        assert len(torch.zeros(250)) + len(b) == 750  # 1000 more, 4000 less

    assert peak_bytes(step, CPU) == 6000


def test_every_round_begins_with_another_one() -> None:
    assert [in_turn("abc", turn) for turn in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_a_verdict_asks_every_seed() -> None:
    rows = [{"who": "nanoGPT", "seed": s, "loss": loss, "seconds": 10.0} for s, loss in ((1, 1.9), (2, 1.7), (3, 1.8))]
    rows += [{"who": "minigpt", "seed": s, "loss": loss, "seconds": 2.0} for s, loss in ((2, 1.8), (1, 1.7), (3, 1.81))]
    assert column(rows, "minigpt", "loss") == [1.7, 1.8, 1.81]
    assert verdicts(rows) == ["minigpt: NOT every seed reached nanoGPT's median loss 1.8000 (2 of 3)"]
    assert verdicts(rows[:-1]) == ["minigpt: every seed reached nanoGPT's median loss 1.8000 (2 of 2)"]
    assert verdicts(rows[3:]) == []
    assert summary(rows)[1]["ratio"].values == (5.0, 5.0, 5.0)
    assert summary(rows)[1]["difference"].median == pytest.approx(0.01)


def test_a_longer_run_is_counted_out_at_the_slowest_pace_and_says_if_it_took_too_long() -> None:
    known = [{"seconds": 14.0, "training": 10.0, "steps": 100}, {"seconds": 15.0, "training": 12.0, "steps": 100}]
    assert steps_within(28.0, known) == 200  # 4 beside the training, 0.12 a step
    rows = [{"who": "nanoGPT", "seed": s, "loss": 1.9, "seconds": 10.0} for s in (1, 2)]
    rows += [{"who": LONGER, "seed": s, "loss": 1.5, "seconds": t} for s, t in ((1, 9.9), (2, 10.1))]
    assert verdicts(rows)[-1] == f"{LONGER}: 1 of 2 took no longer than nanoGPT's run from the same seed"


def test_a_share_is_fair_where_every_thread_gets_as_much() -> None:
    assert [shared.fair_growth(n, threads=2, cpus=2) for n in (0, 1, 2, 4, 8)] == [1.0, 1.5, 2.0, 3.0, 5.0]
    assert [shared.fair_growth(n, threads=1, cpus=2) for n in (0, 1, 2, 4, 8)] == [1.0, 1.0, 1.5, 2.5, 4.5]


def test_growth_is_taken_round_by_round_and_over_the_fair_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "cpus", lambda: 2)
    cells = [{"threads": 2, "seconds": [1.0, 2.0], "load": [0.1, 0.5]}]
    cells += [{"threads": 2, "seconds": [3.0, 8.0], "load": [2, 3]}]
    alone, beside = shared.rows({(0, shared.MINIGPT): cells[0], (2, shared.MINIGPT): cells[1]})
    assert alone["unfair"].values == (1.0, 1.0) and alone["load"] == "0.1..0.5"
    assert beside["growth"].values == (3.0, 4.0) and beside["unfair"].values == (1.5, 2.0)


def test_neighbours_compute_until_they_are_no_longer_needed() -> None:
    with shared.busy(2) as neighbours:
        assert [process.poll() for process in neighbours] == [None, None]
    assert all(process.poll() is not None for process in neighbours)


@pytest.mark.skipif(os.name == "nt", reason="a process of Windows keeps the number of its parent")
def test_neighbours_end_with_a_benchmark_that_is_killed() -> None:
    """The neighbour holds its end of the pipe as long as it lives."""
    code = f"""
import sys
sys.path[0] = {str(SCRIPTS)!r}
from benchmarks import shared
with shared.busy(1) as neighbours:
    print(neighbours[0].pid, flush=True)
    input()
"""
    killed = forked([0, 1], code=code, argv=["-c"], cwd=os.getcwd(), env={})
    assert killed.stdin and killed.stdout
    with killed.stdin, killed.stdout:
        neighbour = int(killed.stdout.readline())
        try:
            assert not select.select([killed.stdout], [], [], 0.1)[0]
            killed.kill()
            wait_until(lambda: bool(select.select([killed.stdout], [], [], 0)[0]))
        finally:
            with suppress(ProcessLookupError):
                os.kill(neighbour, signal.SIGKILL)
