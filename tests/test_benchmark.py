"""The benchmark: programs take turns, nothing is written into a checkout, and every suite measures what it says."""

from __future__ import annotations

import math
import re
import sys
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarking import CONFIG, briefly, files, furnish_checkout, numbers
from running import ForkedProcess, script, small_text, well

from benchmarks import shared, trainings
from benchmarks.commands import column
from benchmarks.device import SMALL, Run, model_of, passes
from benchmarks.processes import WorkerProcess, interleave, time_command
from benchmarks.report import Report
from minigpt.attention import Attention
from minigpt.fast import decoding, switch
from minigpt.model import GPT
from minigpt.system.errors import UserError
from minigpt.system.process import JsonProcess

CPU = torch.device("cpu")
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "vocab_size": 11}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a text, a config and a checkout."""
    return furnish_checkout(tmp_path)


# ---- other processes ----


@pytest.fixture
def workers_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked from the tests' server."""
    monkeypatch.setattr(JsonProcess, "__init__", ForkedProcess.__init__)


def spec(home: Path, **more: Any) -> dict[str, Any]:
    told = {"program": "nanogpt", "path": str(home / "nanoGPT"), "device": "cpu", "compile": False, "shape": SHAPE}
    return {**told, "batch": 2, **more}


def test_workers_take_turns_and_leave_the_checkout_as_it_is(home: Path, workers_forked: None) -> None:
    before = files(home / "nanoGPT")
    specs = {"training": spec(home, do="train"), "writing": spec(home, do="sample")}
    measured = interleave(specs, 3, 2, 1).values()
    assert all(len(seconds.values) == 2 and min(seconds.values) > 0 for _, seconds in measured)
    assert {facts["parameters"] for facts, _ in measured} == {11 * 11}
    assert files(home / "nanoGPT") == before


def test_a_worker_that_fails_says_who_and_why(home: Path, workers_forked: None) -> None:
    (home / "nanoGPT" / "model.py").write_text("raise RuntimeError('no luck')\n", encoding="utf-8")
    with pytest.raises(UserError, match="nanoGPT: RuntimeError: no luck"):
        WorkerProcess("nanoGPT", spec(home, do="train"))


def test_the_loss_of_a_checkpoint_is_exact(home: Path, workers_forked: None) -> None:
    """Every target counts once, also in the short last window. The loss of a bigram does not depend on windows."""
    copy = trainings.make_copy(home / "nanoGPT", home / "copy", home / "text.txt")
    table = torch.randn(copy.vocab_size, copy.vocab_size)
    copy.out.mkdir()
    args = {**trainings.SHAPE, "vocab_size": copy.vocab_size}
    torch.save({"model": {"_orig_mod.table.weight": table}, "model_args": args}, copy.out / "ckpt.pt")
    told = spec(home, do="evaluate", folder=str(copy.out), val=str(copy.val), window=64)
    with WorkerProcess("nanoGPT", told) as worker:
        facts = worker.facts
    ids = np.fromfile(copy.val, np.uint16).astype(int)
    paid = [-table[a].log_softmax(0)[b].item() for a, b in pairwise(ids)]
    assert facts["targets"] == len(paid) and len(paid) % 64
    assert facts["loss"] == pytest.approx(math.fsum(paid) / len(paid), rel=1e-5)


def test_a_command_is_timed_to_its_first_line_or_to_its_end(tmp_path: Path) -> None:
    code = "import time; print('hello'); print('step 1/2'); time.sleep({}); open('end', 'w')"
    seconds, first = time_command("it", [sys.executable, "-c", code.format(0.2)], tmp_path, r"step 1")
    assert first is not None and seconds >= first + 0.15
    (tmp_path / "end").unlink()
    time_command("it", [sys.executable, "-c", code.format(60)], tmp_path, r"step 1", stop=True)
    assert not (tmp_path / "end").exists()
    with pytest.raises(UserError, match="it ended with code 3; its last line: oh"):
        time_command("it", [sys.executable, "-c", "print('oh'); raise SystemExit(3)"], tmp_path)
    with pytest.raises(UserError, match="never wrote a line like 'step'"):
        time_command("it", [sys.executable, "-c", "print('oh')"], tmp_path, "step")


# ---- a checkout ----


def test_a_copy_has_the_text_as_nanogpt_reads_it(home: Path) -> None:
    (home / "text.txt").write_text("ba" * 10 + "c", encoding="utf-8")
    copy = trainings.make_copy(home / "nanoGPT", home / "copy", home / "text.txt")
    ids = [np.fromfile(copy.val.with_name(f"{split}.bin"), np.uint16).tolist() for split in ("train", "val")]
    assert ids == [[1, 0] * 9, [1, 0, 2]]
    assert copy.vocab_size == 3


@pytest.mark.parametrize("how", ["{}", "\ufeff{}", "{}\r\n\u2028é"])
def test_both_are_judged_by_the_same_characters(home: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.corpus.DATA", home / "data")
    (home / "text.txt").write_bytes(how.format(small_text()).encode())
    copy = trainings.make_copy(home / "nanoGPT", home / "copy", home / "text.txt")
    dataset = trainings.prepare(trainings.check(str(home / "small.yaml"), trainings.overrides(home / "text.txt", CPU)))
    val = dataset.splits["val"]
    assert dataset.ids[val.start : val.stop].tolist() == np.fromfile(copy.val, np.uint16).tolist()


@pytest.mark.slow
def test_the_recipe_is_trained_from_a_seed_of_its_own(home: Path) -> None:
    """One more config file sets it, since train.py has a fixed seed."""
    copy = trainings.make_copy(home / "nanoGPT", home / "copy", home / "text.txt")
    python, program, *words = copy.train(42, 2, CPU)
    ended = script(copy.folder / program, *words, cwd=copy.folder)
    assert python == sys.executable and re.search(trainings.FIRST_STEP_OF_NANOGPT, well(ended))
    assert torch.load(copy.out / "ckpt.pt", weights_only=True)["seed"] == 42


# ---- mistakes ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: the following arguments are required: SUITE"),
        (["throughput", "--nanogpt", "nowhere"], "--nanogpt nowhere: no such folder"),
        (["throughput", "--nanogpt", "nanoGPT/config"], "not a checkout of nanoGPT (there is no train.py in it)"),
        (["throughput", "--repeat", "0"], "--repeat: expected 1 to 1,000,000, found 0"),
        (["throughput", "--steps", "9" * 30], "--steps: expected 1 to 1,000,000, found 9"),
        (["shared", "--neighbours", "0,1000000"], "--neighbours: expected numbers of 0 to 1,000"),
        (["time-to-loss", "--first-seed", "9" * 30], "--first-seed: expected 0 to 1,000,000, found 9"),
        (["sampling", "--tokens", "-1"], "--tokens: expected 1 to 1,000,000, found -1"),
        (["attention", "--kinds", "sliding_windw", "--square", "64"], "did you mean 'sliding_window'?"),
        (["attention", "--contexts", "64,x"], "argument --contexts: invalid lengths value: '64,x'"),
        (["attention", "--contexts", "0,8"], "--contexts: expected lengths of 1 to 1,048,576"),
        (["attention", "--square", "99999"], "--square: expected a side of 1 to 32,768"),
        (["startup", "--text", "nothing.txt"], "--text nothing.txt: no such file"),
        (["startup", "--text", "text.txt", "--config", "none.yaml"], "none.yaml: no such file"),
        (["time-to-loss", "--seeds", "0"], "--seeds"),
        (["time-to-loss", "--text", "text.txt", "--config", "small.yaml", "--equal-time"], "--equal-time: give --"),
        (["time-to-loss", "--text", "text.txt", "--config", "short.yaml"], "model.block_size is 8; at least 64"),
        (["time-to-loss", "--text", "text.txt", "--config", "bytes.yaml"], "expected data.tokenizer=char"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(home: Path, arguments: list[str], message: str) -> None:
    (home / "short.yaml").write_text(CONFIG.replace("block_size: 64", "block_size: 8"), encoding="utf-8")
    (home / "bytes.yaml").write_text(CONFIG.replace("text.txt", "text.txt, tokenizer: byte"), encoding="utf-8")
    ended = script("benchmark.py", *arguments, cwd=home)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert ended.err.startswith("error: ") and message in ended.err
    assert not (home / "runs").exists()


def test_what_is_compared_with_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="transformers is not installed"):
        Report(Namespace(suite="sampling", device="cpu"))
    assert Report(Namespace(suite="shared", device="cpu")).others() == {"transformers": "transformers"}


# ---- the suites ----

PLUGIN = """\
from minigpt.attention.softmax.multi_head import MultiHead


class Mine(MultiHead, kind="mine"):
    pass
"""
BRIEF = ("--square", "64")
GPT2 = ("transformers.models.gpt2.modeling_gpt2",)
SOME = ("--kinds", "average_matrix,linear", *BRIEF)
GROUPED = [f"grouped_query, n_kv_head={n}" for n in (1, 2, 4)]


@pytest.mark.slow
def test_attention_measures_every_kind(home: Path) -> None:
    (home / "mine.py").write_text(PLUGIN, encoding="utf-8")
    few = ("--contexts", "16,8", "--repeat", "1", *BRIEF)
    found = numbers(briefly(home, "attention", "--plugin", "mine.py", *few), home, "attention")
    cells, growth, decoded = (table["rows"] for table in found["tables"])
    kinds = {row["kind"] for row in decoded}
    shipped = {kind for kind in Attention.kinds if Attention.kinds[kind].__module__.startswith("minigpt.attention.")}
    assert {kind.split(",")[0] for kind in kinds} == shipped | {"mine"} and set(GROUPED) <= kinds
    assert [row["context"] for row in cells] == [8, 16] * len(kinds)
    assert {row["kind"] for row in growth} == kinds
    by_kind = {row["kind"]: row for row in decoded}
    assert by_kind["average_matrix"]["near_bytes"] == by_kind["average_matrix"]["far_bytes"] == 128 * 4
    assert [by_kind[name]["smaller"] for name in GROUPED] == [4.0, 2.0, 1.0]
    assert by_kind["multi_head"]["bytes_per_token"] == 2 * 128 * 4
    assert all(row["ratio"]["median"] == 1 for row in cells if row["kind"] == "multi_head")


def test_a_kind_that_takes_too_long_stops(home: Path) -> None:
    ended = briefly(home, "attention", "--contexts", "8,16", "--repeat", "1", "--limit", "0", *SOME)
    cells = numbers(ended, home, "attention")["tables"][0]["rows"]
    assert {row["context"] for row in cells if row["ms"] is not None} == {8}
    assert all(re.search(r"16 +- +- +- +-$", line) for line in ended.out.splitlines() if re.match(r"\w+ +16 ", line))


@pytest.mark.slow
def test_throughput_measures_everybody(home: Path) -> None:
    few = ("--nanogpt", "nanoGPT", "--steps", "2", "--repeat", "2", *BRIEF)
    found = numbers(briefly(home, "throughput", *few, imports=GPT2), home, "throughput")
    who = [row["who"] for row in found["tables"][0]["rows"]]
    assert who == ["minigpt, float32", "minigpt, auto", "nanoGPT", "transformers"]
    row = found["tables"][0]["rows"][0]
    assert row["parameters"] == 804_096
    speed, theirs = row["tokens_per_second"]["values"], found["tables"][0]["rows"][2]["tokens_per_second"]["values"]
    assert row["x nanoGPT"]["values"] == pytest.approx([a / b for a, b in zip(speed, theirs)])
    square = next(p["gflops"] for p in found["matmul"] if p["precision"] == "float32")
    assert row["mfu"] == pytest.approx(row["tokens_per_second"]["median"] * row["flops_per_token"] / square / 1e9)


@pytest.mark.slow
def test_sampling_with_the_cache_writes_what_it_writes_without(home: Path) -> None:
    """Without a checkout of nanoGPT, only transformers is compared, and a note says so."""
    few = ("--tokens", "70", "--repeat", "1", *BRIEF)
    ended = briefly(home, "sampling", *few, imports=GPT2)
    for table in numbers(ended, home, "sampling")["tables"]:
        assert [row["who"] for row in table["rows"]] == ["minigpt", "minigpt, no cache", "transformers"]
        assert table["rows"][0]["same"] == "yes"
    assert "no checkout of nanoGPT was given (--nanogpt DIR): minigpt is compared with transformers alone" in ended.out


@pytest.mark.slow
def test_startup_is_measured_to_the_first_step(home: Path) -> None:
    few = ("--nanogpt", "nanoGPT", "--text", "text.txt", "--config", "small.yaml", "--repeat", "1", *BRIEF)
    found = numbers(briefly(home, "startup", *few), home, "startup")
    seconds = {row["what"]: row["seconds"]["median"] for row in found["tables"][0]["rows"]}
    assert list(seconds)[-2:] == ["minigpt's first step", "nanoGPT's first step"]
    assert len(seconds) == 5 and min(seconds.values()) > 0


@pytest.mark.slow
def test_a_shared_machine_is_measured_beside_each_number_of_neighbours(home: Path) -> None:
    few = ("--nanogpt", "nanoGPT", "--neighbours", "0,1", "--repeat", "1", *BRIEF)
    found = numbers(briefly(home, "shared", *few), home, "shared")
    for table in found["tables"]:
        who = [shared.MINIGPT, shared.SPINNING, shared.ONE, shared.NANOGPT]
        assert [(row["neighbours"], row["who"]) for row in table["rows"]] == [(n, name) for n in (0, 1) for name in who]
        assert all(row["growth"]["values"] == [1.0] for row in table["rows"][:4])


@pytest.mark.slow
def test_every_trick_is_turned_off_once(home: Path) -> None:
    few = ("--steps", "1", "--tokens", "8", "--repeat", "1", *BRIEF)
    found = numbers(briefly(home, "tricks", *few), home, "tricks")
    turned_off = []
    for table in found["tables"]:
        off = [row["who"] for row in table["rows"] if row["who"] not in ("nothing", "all of them")]
        turned_off.append(sorted(off))
        assert {row["slower"]["median"] for row in table["rows"] if row["who"] == "nothing"} == {1.0}
    both = [trick for trick in (*switch.TRICKS, *decoding.TRICKS) if trick != switch.KERNELS]  # which a CPU has not
    in_decoding = {"waves as a state", "states of fixed size", "rewritten keys"}
    assert turned_off[1] == sorted({*switch.TRICKS} - in_decoding - {switch.KERNELS})
    assert set().union(*turned_off) == {*both}
    assert turned_off[0] == sorted({*turned_off[1]} - {"joined in training"})  # which acts in bfloat16 only
    assert turned_off[2] == sorted({*both} - {"joined in training", "convolution by FFT"})


@pytest.mark.slow
def test_time_to_loss_trains_both_to_their_end(home: Path) -> None:
    before = files(home / "nanoGPT")
    few = ("--nanogpt", "nanoGPT", "--text", "text.txt", "--config", "small.yaml", "--seeds", "2", *BRIEF)
    ended = briefly(home, "time-to-loss", *few, "--steps", "4", "--equal-time")
    found = numbers(ended, home, "time-to-loss")
    runs, both = (table["rows"] for table in found["tables"])
    longer = "minigpt, in nanoGPT's time"
    first, second = ["nanoGPT", "minigpt", longer], ["minigpt", "nanoGPT", longer]
    assert [(r["who"], r["seed"]) for r in runs] == [*((who, 1) for who in first), *((who, 2) for who in second)]
    assert {row["steps"] for row in runs if row["who"] != longer} == {4}
    mine = next(row for row in runs if row["who"] == "minigpt")
    assert mine["startup"] + mine["training"] + mine["rest"] == pytest.approx(mine["seconds"])
    assert {row["who"]: row["loss"]["values"] for row in both}["nanoGPT"] == column(runs, "nanoGPT", "loss")
    assert any("reached nanoGPT's median loss" in note for note in found["notes"])
    assert any("of 2 took no longer than nanoGPT's run from the same seed" in note for note in found["notes"])
    assert files(home / "nanoGPT") == before


@pytest.mark.slow
def test_a_device_is_tried_in_one_run_whose_parts_fail_alone(home: Path) -> None:
    """On a CPU, where every kind must be equal. A precision that it lacks says so in its row, and the rest goes on."""
    ended = briefly(home, "device", "--small", "--device", "cpu", "--text", "text.txt", *BRIEF)
    found = numbers(ended, home, "device")
    kinds, weights, tiny, memory, gpt2, together, baby = (table["rows"] for table in found["tables"])
    assert {row["kind"] for row in kinds} == set(Attention.kinds)
    assert {row["equal"] for row in (*kinds, *weights)} == {"yes"}
    assert [row["precision"] for row in tiny] == ["float32", "tf32", "bfloat16", "float16"]
    assert all("loss" in row or "tf32" in row["says"] for row in tiny)
    assert 0.8 < memory[0]["ratio"] < 1.2
    assert {row["who"] for row in gpt2} == {"minigpt, compiled", "minigpt, not compiled"}
    assert [row["loss"] for row in together] == pytest.approx([together[0]["loss"]] * 3, rel=1e-3)
    assert baby[0]["steps"] == 4 and "reached" not in baby[0]
    assert any("kernels: not measured: UserError: there are none on a CPU" in note for note in found["notes"])


def test_a_kind_that_is_another_on_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of the models that are made fast is the one on the device."""
    run, places = Run(Report(Namespace(suite="device", device="cpu")), SMALL, Path()), iter("cd" * 2)

    def spoilt(model: GPT) -> GPT:
        if next(places) == "d":
            with torch.no_grad():
                model.head.weight[0] *= 1.1
        return model

    assert run.compared(model_of("multi_head"), passes)["equal"] == "yes"
    monkeypatch.setattr("benchmarks.device.make_fast", spoilt)
    row = run.compared(model_of("multi_head"), passes)
    assert row["equal"] == "NO" and row["own"] < 1e-5 < row["logits"]

    def refuses(model: GPT) -> GPT:
        raise NotImplementedError("the operator is not there")

    monkeypatch.setattr("benchmarks.device.make_fast", refuses)
    assert run.compared(model_of("multi_head"), passes) == {"equal": "the operator is not there"}
