"""A real comparison, with its worker pool: exact numbers, resumed where it stopped, and every failure reported."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from comparing import SMALL, elsewhere, finished, made_up, run, small, written  # noqa: F401
from running import ForkedProcess, script, started, wait_until, well

import minigpt.comparison.pool
from minigpt.comparison.experiment import Experiment, duration
from minigpt.comparison.page import page_of_variants
from minigpt.comparison.pool import WorkerPool
from minigpt.comparison.results import jobs, load_result
from minigpt.comparison.statistics import mean_of_all
from minigpt.comparison.summary import in_words, summarise
from minigpt.system.errors import UserError
from minigpt.system.locks import InUse, Lock
from minigpt.system.plugin import load_plugin

TWICE = SMALL.replace("  mean: {model.attention: average_softmax}", "  again: {model.attention: single_head}")


def test_a_variant_compared_with_itself_differs_by_exactly_zero(tmp_path: Path) -> None:
    summary, said = finished(small(tmp_path, TWICE), processes=True)
    again, one = summary["variants"]
    assert again["difference"]["mean"] == again["difference"]["low"] == again["difference"]["high"] == 0.0
    assert again["difference"]["pairs"] == 2
    assert "no difference shown" in again["difference"]["sentence"]
    assert again["loss"] == one["loss"]
    assert again["accuracy"] == one["accuracy"]
    losses = {(run["variant"], run["seed"]): run["loss"] for run in summary["runs"]}
    assert losses["again", 1] == losses["one head", 1] != losses["one head", 2]
    assert "4 of 4 runs to do, 2 at a time: about" in said[1]
    assert sum(line.startswith("run ") for line in said) == 4


@pytest.mark.slow
def test_it_continues_where_it_was_stopped_and_notices_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = small(tmp_path)
    summary, _ = finished(comparison)
    folders = [job.folder for job in jobs(comparison, ())]
    before = [(folder / "result.json").read_bytes() for folder in folders]
    assert finished(comparison)[1] == ["all 4 runs are finished already"]
    (folders[0] / "result.json").unlink()  # as if stopped before it was written
    (folders[1] / "result.json").write_bytes(before[1].replace(b"loss", b"lose", 1))
    again, said = finished(comparison)
    assert "2 of 4 runs to do" in "".join(said)
    assert "one head, seed 1: its result is damaged; it is trained again" in said
    assert [r["loss"] for r in again["runs"]] == [r["loss"] for r in summary["runs"]]
    assert [(folder / "result.json").read_bytes() for folder in folders[2:]] == before[2:]
    monkeypatch.setattr("minigpt.comparison.experiment.code_digest", lambda: "another")
    assert finished(comparison)[1][0].startswith("note: 4 runs were made by another version of minigpt's code")
    changed, said = finished(small(tmp_path, SMALL.replace("average_softmax", "average_matrix")))
    assert "mean, seed 1: its config or a plugin has changed; it is trained again" in said
    assert sum("trained again" in line for line in said) == 2
    assert changed["runs"][1] == again["runs"][1]


@pytest.mark.slow
def test_two_comparisons_at_a_time_share_the_work_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.comparison.pool.JsonProcess", ForkedProcess)  # for both, until both have ended
    comparison = small(tmp_path, SMALL.replace("max_steps: 6", "max_steps: 60"))
    results: list[Any] = []
    both = [threading.Thread(target=lambda: results.append(run(comparison))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    (first, _), (second, _) = results
    assert first["runs"] == second["runs"]  # including the seconds: each run was done once, by one of them


def test_another_comparison_of_the_name_is_refused_while_one_is_under_way(tmp_path: Path) -> None:
    """It would train the same runs again with its own config, and remove the results of the first."""
    comparison = small(tmp_path)
    with Experiment(comparison, (), False).alone():
        with Experiment(comparison, (), False).alone():  # the same runs: they share them
            pass
        with pytest.raises(InUse) as refused:
            finished(small(tmp_path, SMALL.replace("max_steps: 6", "max_steps: 7")))
        assert str(refused.value).startswith(f"{comparison.folder} is in use by process {os.getpid()} on ")
        assert str(refused.value).endswith("unless both do the same runs: give this one another --name")
    with Experiment(small(tmp_path, SMALL.replace("max_steps: 6", "max_steps: 7")), (), False).alone():
        pass


def test_a_run_of_another_process_is_told_and_not_waited_for_when_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minigpt.comparison.pool.JsonProcess", ForkedProcess)
    monkeypatch.setattr("minigpt.comparison.pool.SILENCE", 1.0)
    comparison, said = small(tmp_path), list[str]()
    folder = jobs(comparison, ())[0].folder
    folder.mkdir(parents=True)
    with Lock(folder), pytest.raises(UserError) as failed:
        Experiment(comparison, (), False, said.append).run("a test")
    who = f"{folder} is in use by process {os.getpid()} on {os.uname().nodename}: two runs cannot share a folder"
    assert f"run: mean, seed 1: {who}; its result is used" in said
    assert f"mean, seed 1: {who}; it has given no sign of life for 1 s: end it; the other runs" in str(failed.value)


def test_what_differs_is_measured_and_the_numbers_agree(tmp_path: Path) -> None:
    text = SMALL.replace("max_steps: 6", "max_steps: 12, optimizer: {kind: muon, learning_rate: 0.04}")
    comparison = small(tmp_path, text)
    summary, _ = finished(comparison)
    mean, one = summary["variants"]
    pairs = [(load_result(job.folder, job.key)[0] or {}) for job in jobs(comparison, ())]
    of_mean, of_head = ([r["above"] for r in pairs if r["variant"] == name] for name in ("mean", "one head"))
    assert mean["difference"]["mean"] == pytest.approx(sum(a - b for a, b in zip(of_mean, of_head)) / 2)
    assert mean["above"] == pytest.approx(sum(of_mean) / 2)
    assert one["above"] == pytest.approx(one["loss"] - summary["floor"])
    assert mean["cache_bytes_per_token"] < 1 < one["cache_bytes_per_token"] == 2 * 16 * 4
    assert one["flops_per_token"] > mean["flops_per_token"]
    with (comparison.folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["above"]) for row in rows] == [r["above"] for r in pairs]
    assert [float(row["accuracy_recall"]) for row in rows] == [r["names"]["recall"]["accuracy"] for r in pairs]
    shown = in_words(summary)
    assert f"{mean['above']:.4f}" in shown
    assert summary["held_equal"].startswith("Held equal: 12 steps; the same batches in the same order, seeds 1, 2.")
    assert "the forgetful reader" in shown
    assert mean["difference"]["sentence"] in shown


NINE = SMALL.replace("  mean: {model.attention: average_softmax}\n", "".join(f"  v{n}: {{}}\n" for n in range(9)))


def of_differences(folder: Path, text: str, *every: float) -> dict[str, Any]:
    """A summary of three made-up pairs for each variant: its difference to one head, and 0.01 less and more."""
    comparison, results = small(folder, text, ("compare.seeds=[1, 2, 3]",)), list[Any]()
    of_variant = dict(zip(comparison.variants, every)) | {"one head": 0.0}
    for job in jobs(comparison, ()):
        spread = 0.0 if job.variant == "one head" else 0.01 * (job.seed - 2)
        results.append((job, made_up(job, 1 + of_variant[job.variant] + spread)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.comparison.summary._example", lambda comparison, results: None)
        return summarise(comparison, results, "a test")


def test_better_is_said_of_many_variants_only_where_all_such_words_are_likely_true(tmp_path: Path) -> None:
    """With a standard deviation of 0.01 in three pairs, 0.05 is 8.7 standard errors: p = 0.013, and 0.2: p = 0.0008."""
    alone = of_differences(tmp_path, SMALL, 0.05)["variants"][0]["difference"]
    interval = "(95 % confidence interval +0.0252 to +0.0748, 3 pairs)"
    assert alone["sentence"] == f"mean is worse than one head by 0.0500 nats a character {interval}."
    summary = of_differences(tmp_path, NINE, 0.05, -0.2, *[0.001] * 7)
    first, second, third, *_ = (row["difference"] for row in summary["variants"])
    assert all(first[key] == alone[key] for key in ("mean", "low", "high", "p"))  # plain intervals stay
    assert not first["shown"] and second["shown"] and summary["comparisons"] == 9
    assert (first["p_holm"], second["p_holm"]) == pytest.approx((8 * first["p"], 9 * second["p"]))
    assert first["sentence"].startswith("v0 against one head: no difference shown among 9 (+0.0500; 95 % confidence")
    more = "which by itself leaves out zero; if it stays so, 4 new seeds show it in four of five cases)."
    assert first["sentence"].endswith(more)
    assert second["sentence"].startswith("v1 is better than one head by 0.2000 nats a character (95 %")
    assert "no difference shown (+0.0010" in third["sentence"]
    about = "These are 9 comparisons, judged together with Holm's correction"
    assert about in summary["judged"] and about in in_words(summary)
    assert "; 7 seeds show one of 2 in four of five cases" in page_of_variants(summary)
    assert "These are" not in in_words(of_differences(tmp_path, SMALL, 0.05))


def test_a_mean_of_equals_is_what_they_are() -> None:
    odd = next(x for x in (0.1 + n / 1000 for n in range(100)) if math.fsum([x] * 3) / 3 != x)
    assert mean_of_all([odd] * 3) == odd
    assert mean_of_all([odd, None]) is None


@pytest.mark.slow
def test_equal_seconds_are_steps_that_take_them(tmp_path: Path) -> None:
    text = TWICE.replace("match: steps", "match: seconds, seconds: 0.4").replace(
        "  again", "  mean: {model.attention: average_loop}\n  again"
    )
    comparison = small(tmp_path, text)
    summary, _ = finished(comparison)
    mean, again, one = summary["variants"]
    speeds = {v["step"] for v in json.loads((comparison.folder / "speeds.json").read_text("utf-8")).values()}
    assert {max(1, round(0.4 / step)) for step in speeds} == {mean["steps"], one["steps"]}
    assert again["steps"] == one["steps"]  # measured once, so equal things stay equal
    assert again["difference"]["mean"] == 0
    assert summary["held_equal"].startswith("Held equal: 0.4 s of training, measured")
    assert finished(comparison)[1] == ["all 6 runs are finished already"]  # speeds are kept, so configs are equal


def test_equal_parameters_are_said_to_be_equal(tmp_path: Path) -> None:
    summary, _ = finished(small(tmp_path, SMALL.replace("seeds: [1, 2]", "seeds: [1]"), ("compare.match=parameters",)))
    mean, one = (row["parameters"] for row in summary["variants"])
    assert mean == pytest.approx(one, rel=0.01)
    assert summary["held_equal"].startswith(f"Held equal: parameters ({min(mean, one):,}")
    assert "within 1 %), 6 steps; the same batches in the same order" in summary["held_equal"]


def test_a_diverged_run_is_a_row_that_says_so(tmp_path: Path) -> None:
    wild = "model.attention: average_softmax, training.optimizer.learning_rate: 1e30, training.grad_clip: 0"
    text = SMALL.replace("model.attention: average_softmax", wild).replace("max_steps: 6", "max_steps: 12")
    summary, _ = finished(small(tmp_path, text.replace("device: cpu", "device: cpu, warmup_steps: 0")))
    row = summary["variants"][0]
    assert row["runs"] == 0
    assert row["loss"] is row["difference"] is None
    assert row["trouble"].startswith("seed 1 diverged: step ")
    assert summary["variants"][1]["runs"] == 2
    assert f"mean: {row['trouble']}" in in_words(summary)


PLUGIN = """
import os
from minigpt.attention.softmax.multi_head import MultiHead

class Mine(MultiHead, kind="mine"):
    def scores(self, query, key):
        print("a plugin may print")
        return super().scores(query, key).tanh()

class Deadly(MultiHead, kind="deadly"):
    def qkv(self, x, past):
        if self.training and x.shape[0] == 5:
            os._exit(7)
        return super().qkv(x, past)
"""


@pytest.mark.slow
def test_a_plugin_is_compared_and_a_change_of_it_noticed(tmp_path: Path) -> None:
    plugin = tmp_path / "compare_mine.py"
    plugin.write_text(PLUGIN)
    load_plugin(plugin)
    text = SMALL.replace("average_softmax", "{kind: mine, n_head: 2}").replace("seeds: [1, 2]", "seeds: [3]")
    summary, _ = finished(small(tmp_path, text), (plugin,), processes=True)  # a plugin may print to stdout
    assert summary["variants"][0]["runs"] == 1
    assert "one pair has no confidence interval" in summary["variants"][0]["difference"]["sentence"]
    plugin.write_text(PLUGIN.replace(".tanh()", ".sin()"))
    load_plugin(plugin)
    said = finished(small(tmp_path, text), (plugin,))[1]
    assert "mean, seed 3: its config or a plugin has changed; it is trained again" in said


@pytest.mark.slow
def test_what_was_loaded_at_the_start_is_what_ran_though_the_plugin_is_edited_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers are processes. All of them get the code of the start, also one that starts after the edit."""
    plugin, said = tmp_path / "compare_edited.py", list[str]()
    monkeypatch.setattr(minigpt.comparison.pool, "JsonProcess", ForkedProcess)
    plugin.write_text(PLUGIN.replace('"mine"', '"mine3"').replace('"deadly"', '"deadly3"'))
    load_plugin(plugin)
    text = SMALL.replace("average_softmax", "{kind: mine3, n_head: 2}")
    dies = "  dies: {model.attention: deadly3, training.micro_batch_size: 5}\n  one head: {"
    text = text.replace("  one head: {", dies).replace("seeds: [1, 2]", "seeds: [1, 2], processes: 1")
    comparison = small(tmp_path, text)

    def edit(line: str) -> None:
        said.append(line)
        if "runs to do" in line:
            plugin.write_text("raise RuntimeError('half written')")

    experiment = Experiment(comparison, (plugin,), False, edit, skip_checks=True)
    speed = {"step": 1.0, "curve": 1.0, "whole": 1.0, "notes": []}  # to measure it, the deadly one would take steps
    comparison.folder.mkdir(parents=True)
    speeds = {experiment.key(config): speed for config in comparison.variants.values()}
    (comparison.folder / "speeds.json").write_text(json.dumps(speeds))
    with pytest.raises(UserError, match="dies, seed 1: its process ended with code 7; dies, seed 2: "):
        experiment.run("a test")
    summary = json.loads((comparison.folder / "results.json").read_text("utf-8"))
    assert [(row["variant"], row["runs"]) for row in summary["variants"]] == [("mean", 2), ("one head", 2)]
    [note] = summary["notes"]
    assert note.startswith(f"{plugin} was edited while the runs were under way; the results are those of the plugin as")
    assert f"note: {note}" in said and note in (comparison.folder / "page.html").read_text("utf-8")
    assert len(experiment.unfinished()) == 2  # the results are found again under what was loaded
    plugin.write_text(PLUGIN.replace('"mine"', '"mine3"').replace('"deadly"', '"deadly3"').replace("tanh", "sin"))
    load_plugin(plugin)
    assert len(experiment.unfinished()) == 6  # and not under another plugin


def test_results_that_somebody_removed_are_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = small(tmp_path, SMALL.replace("seeds: [1, 2]", "seeds: [1]"))
    finished(comparison)
    results = list(comparison.folder.rglob("result.json"))
    monkeypatch.setattr(Experiment, "edits", lambda self: [path.unlink() for path in results] and [])
    with pytest.raises(UserError, match=r"could be finished; its results are gone from .*small: does another comp"):
        finished(comparison)


def test_a_worker_that_dies_loses_only_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "compare_deadly.py"
    plugin.write_text(PLUGIN.replace('"mine"', '"mine2"').replace('"deadly"', '"deadly2"'))
    load_plugin(plugin)
    text = SMALL.replace("model.attention: average_softmax", "model.attention: deadly2, training.micro_batch_size: 5")
    comparison = small(tmp_path, text)
    experiment = Experiment(comparison, (plugin,), False, lambda line: None)
    experiment.speeds = {name: {"step": 1.0, "curve": 1.0, "whole": 1.0} for name in comparison.variants}
    monkeypatch.setattr(minigpt.comparison.pool, "JsonProcess", ForkedProcess)
    with WorkerPool(2, (plugin,)) as pool:
        failures = experiment.do(pool, experiment.jobs())
    assert failures == [f"mean, seed {seed}: its process ended with code 7" for seed in (1, 2)]
    assert [job.variant for job in experiment.unfinished()] == ["mean", "mean"]


def test_a_model_that_cannot_be_trained_is_refused_before_any_run(tmp_path: Path) -> None:
    text = SMALL.replace("average_softmax", "{kind: average_softmax, causal: false}")
    with pytest.raises(UserError, match=r"mean: layer 1 .* sees the future"):
        finished(small(tmp_path, text))
    assert not list((tmp_path / "runs").rglob("result.json"))


@pytest.mark.slow
def test_any_key_can_be_compared_data_included(tmp_path: Path) -> None:
    text = SMALL.replace("model.attention: average_softmax", "data.stories.scenes: 2, model.position: rotary")
    summary, _ = finished(small(tmp_path, text.replace("seeds: [1, 2]", "seeds: [1]")))
    assert summary["compared"] == ["data.stories.scenes", "model.position", "model.attention"]
    assert "batches that differ as the variants do" in summary["held_equal"]
    assert summary["floor"] is summary["example"] is None
    assert all(row["above"] > 0 for row in summary["variants"])


@pytest.mark.slow
def test_the_command_prints_the_same_and_continues_after_a_stop(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("max_steps: 6", "max_steps: 80"))
    own = {"MINIGPT_DATA": str(tmp_path / "data")}
    with started("compare.py", "--config", path, cwd=tmp_path, stdout=True, **own) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("run 1 of 4"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(20) == 130
    finished = {p: p.read_bytes() for p in (tmp_path / "runs").rglob("result.json")}
    assert 1 <= len(finished) < 4
    assert f"the same command goes on with the {4 - len(finished)} runs that are left" in rest
    assert "failed" not in rest
    said = well(script("compare.py", "--config", path, cwd=tmp_path, **own))
    assert f"{4 - len(finished)} of 4 runs to do" in said
    assert all(path.read_bytes() == raw for path, raw in finished.items())
    folder = tmp_path / "runs" / "compare" / "small"
    row = json.loads((folder / "results.json").read_text("utf-8"))["variants"][0]
    assert f"{row['above']:.4f}" in said
    assert row["difference"]["sentence"] in said


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_no_worker_outlives_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("max_steps: 6", "max_steps: 4000"))
    with started("compare.py", "--config", path, "--skip-checks", cwd=tmp_path, stdout=True) as command:
        assert command.stdout is not None
        assert any("runs to do" in line for line in command.stdout)
        wait_until(lambda: len(children(command.pid)) == 2, command)
        workers = children(command.pid)
    wait_until(lambda: all(state(pid) == "Z" for pid in workers))  # it was killed


def children(parent: int) -> list[int]:
    """The processes that any thread of a process has started."""
    return [int(pid) for file in Path(f"/proc/{parent}/task").glob("*/children") for pid in file.read_text().split()]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def test_durations_as_text() -> None:
    assert [duration(s) for s in (3.4, 59.6, 61, 600)] == ["3 s", "1 min 00 s", "1 min 01 s", "10 min 00 s"]
