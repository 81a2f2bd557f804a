"""Runs: what a run's folder contains, and how it is used and repeated from there."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from running import environment, furnish, script, well
from small_trainings import equal

import minigpt
from minigpt.config.options import load as load_config
from minigpt.learning.playground.player import Player
from minigpt.system.errors import UserError
from minigpt.text import corpus as corpora
from minigpt.training import checkpoint
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.report import read_metrics
from minigpt.training.run import Run, newest_run
from minigpt.training.start import resume, start


def losses(folder: Path) -> list[float]:
    return [line["train/loss"] for line in read_metrics(folder / "metrics.jsonl")]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.newest(folder / "checkpoints")[0].model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one trained run, `small`, of 12 steps."""
    folder = furnish(tmp_path_factory.mktemp("home"))
    well(script("train.py", "--config", "small.yaml", "training.max_steps=12", "training.sample_every=6", cwd=folder))
    return folder


@pytest.fixture
def run(home: Path) -> Run:
    return minigpt.load(home / "runs" / "small", device="cpu")


# ---- the folder ----


def test_a_run_folder_holds_what_the_design_says(home: Path) -> None:
    folder = home / "runs" / "small"
    names = "config.yaml tokenizer.json environment.json metrics.jsonl loss.svg samples.txt checkpoints"
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {*names.split()}
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    assert not [path for path in folder.rglob("*") if path.suffix in (".pt", ".pkl", ".pth", ".bin")]
    text = (folder / "samples.txt").read_text("utf-8")
    assert [line for line in text.splitlines() if line.startswith("---")] == ["--- step 6 ---", "--- step 12 ---"]
    ran = json.loads((folder / "environment.json").read_text("utf-8"))
    assert ran["command"][1:3] == ["--config", "small.yaml"] and ran["torch"] == torch.__version__


def test_the_verdict_says_what_is_left_of_the_step_that_it_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    trainer = resume(Path("runs/small"), ["training.max_steps=13"], [], False, False)
    assert trainer.lock is not None
    kept = "kept (training.keep.best=1 keeps them)"
    with trainer.lock:
        for best, what in (
            (4, f"4 are not {kept}; those of step 8 and 12 are, in runs/small/checkpoints"),
            (8, "8 are kept: --run runs/small@8"),
        ):
            trainer.history.evaluations = [(best, 2.0, 2.0), (10, 1.9, 2.1), (12, 1.8, 2.2)]
            assert f"train anew with training.max_steps={best}. The weights of step {what}" in trainer.verdict()
    shutil.move("runs/small/checkpoints/step-000012", "away")
    assert minigpt.load("runs/small", "cpu").step == 8
    shutil.rmtree("runs/small/checkpoints")
    assert trainer.left_of(3) == f". The weights of step 3 are not {kept}"


def test_metrics_have_every_step_once_and_the_exact_validation_loss_now_and_then(home: Path) -> None:
    lines = read_metrics(home / "runs" / "small" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "val/loss" in line] == [4, 8, 12]
    assert [line["tokens"] for line in lines] == [64 * step for step in range(1, 13)]
    expected = {"step", "train/loss", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds"}
    assert all(line.keys() - {"val/loss", "val/bits_per_byte", "val/perplexity"} == expected for line in lines)
    last, facts = lines[-1], minigpt.load(home / "runs" / "small", "cpu").facts()
    assert last["val/bits_per_byte"] == pytest.approx(last["val/loss"] / math.log(2))  # of ASCII characters
    assert last["val/perplexity"] == math.exp(last["val/loss"])
    assert facts["bits a byte"] == f"{last['val/bits_per_byte']:.4f}" and facts["perplexity"].endswith(" a token")
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(lines))


def test_the_curve_is_a_picture_that_ends_at_the_last_losses(home: Path) -> None:
    folder = home / "runs" / "small"
    picture = (folder / "loss.svg").read_text("utf-8")
    xml.etree.ElementTree.fromstring(picture)
    last = read_metrics(folder / "metrics.jsonl")[-1]
    assert f"training: {last['train/loss']:.4f}" in picture
    assert f"validation: {last['val/loss']:.4f}" in picture


def test_the_config_of_a_run_is_complete_and_trains_the_same_run_again(home: Path) -> None:
    folder = home / "runs" / "small"
    config = load_config(RunConfig, folder / "config.yaml")
    assert config.training.max_steps == 12  # the override, not the file's 8
    well(script("train.py", "--config", folder / "config.yaml", "--name", "again", cwd=home))
    assert losses(home / "runs" / "again") == losses(folder)
    assert equal(weights(home / "runs" / "again"), weights(folder))
    assert (home / "runs" / "again" / "config.yaml").read_bytes() == (folder / "config.yaml").read_bytes()


def test_a_name_that_is_taken_is_numbered(home: Path) -> None:
    for number in (2, 3):
        well(script("train.py", "--config", "small.yaml", "training.max_steps=1", cwd=home))
        assert (home / "runs" / f"small-{number}").is_dir()


# ---- from a notebook ----


@pytest.mark.slow
def test_a_fresh_process_loads_a_run_as_the_documentation_says(home: Path) -> None:
    code = (
        'import minigpt; run = minigpt.load("runs/small"); text = run.generate("the");'
        'maps = run.attention("the cat"); print(repr(text), [tuple(map.shape) for map in maps])'
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout.startswith("'the")
    assert ended.stdout.endswith(" [(2, 7, 7)]\n")


def test_a_run_writes_what_its_config_and_the_call_say(run: Run) -> None:
    text = run.generate("the")
    assert text.startswith("the") and len(text) == 3 + 20
    assert text == run.generate("the") == "the" + "".join(run.stream("the", use_cache=False))
    assert text != run.generate("the", seed=2)
    assert run.generate("the", max_tokens=0) == "the"
    stop = text[10:12]
    assert run.generate("the", stop=stop) == text[: text.index(stop, 3)]


def test_an_empty_prompt_starts_a_text(run: Run) -> None:
    assert len(run.generate()) == 20
    assert run.prompt_ids("").tolist() == run.prompt_ids("\n").tolist()


def test_a_prompt_of_the_built_in_stories_begins_where_a_story_does(run: Run) -> None:
    """After the line end, which every window that begins with a story begins with."""
    told = replace(run, config=replace(run.config, data=replace(run.config.data, source="stories")))
    begun = run.prompt_ids("\nthe").tolist()
    assert told.context_ids("the").tolist() == told.context_ids("\nthe").tolist() == begun
    assert run.context_ids("the").tolist() == run.prompt_ids("the").tolist() != begun
    assert told.context_ids("").tolist() == run.prompt_ids("").tolist()


def test_a_prompt_has_the_token_in_front_that_the_model_is_used_to(run: Run) -> None:
    tokenizer = copy(run.tokenizer)
    tokenizer.begin_of_text, tokenizer.special_tokens = 3, {"<s>": 3}
    used = replace(run, tokenizer=tokenizer)
    marked = replace(used, marked=True)
    the = run.prompt_ids("the").tolist()[0]
    assert used.context_ids("the").tolist() == marked.context_ids("<s>the").tolist() == [[3, *the]]
    assert used.context_ids("").tolist() == [[3]]
    assert marked.prompt_ids("the<s>the").tolist() == [[*the, 3, *the]]
    assert len(used.attention("the")[0][0]) == len(used.labels("the")) == 4
    with pytest.raises(UserError, match="the prompt: unknown character '<'"):
        used.context_ids("<s>the")


def test_writing_stops_at_the_end_of_text(run: Run) -> None:
    tokenizer = copy(run.tokenizer)
    whole = run.generate("the")
    tokenizer.ends = (int(run.prompt_ids(whole[10])[0, 0]),)
    assert replace(run, tokenizer=tokenizer).generate("the") == whole[: whole.index(whole[10], 3)]
    assert Player(replace(run, tokenizer=tokenizer)).ended(tokenizer.ends)
    assert not Player(run).ended(tokenizer.ends)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpora, "DATA", tmp_path / "data")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.quick("char")
@pytest.mark.parametrize("kind", ["char", "byte"])
def test_a_model_learns_where_documents_end(kind: str) -> None:
    Path("talk.jsonl").write_text('{"text": "hullo"}\n{"text": "bye"}\n' * 40, encoding="utf-8")
    options = ["data.source=talk.jsonl", f"data.tokenizer={{kind: {kind}, end_of_text: true}}", "model.n_layer=1"]
    options += ["model.n_embd=32", "model.block_size=16", "training.batch_size=16", "training.warmup_steps=2"]
    options += ["training.schedule=constant", "training.device=cpu", "training.max_steps=60"]
    start(load_config(RunConfig, "tiny.yaml", options), "straight", [], False, skip_checks=True).fit()
    run = minigpt.load("runs/straight", "cpu")
    assert run.generate("h", max_tokens=40) == "hullo" and run.generate("b", max_tokens=40) == "bye"
    assert replace(run, marked=True).labels("<|end_of_text|>h") == ["<|end_of_text|>", "h"]


@pytest.mark.usefixtures("elsewhere")
def test_a_validation_text_of_its_own_belongs_to_the_run_as_its_source_does() -> None:
    Path("talk.jsonl").write_text('{"text": "hullo"}\n{"text": "bye, bye"}\n' * 20, encoding="utf-8")
    Path("test.jsonl").write_text('{"text": "hullo, bye"}\n{"text": "bye, bye"}\n', encoding="utf-8")
    options = ["data.source=talk.jsonl", "data.validation=test.jsonl", "model.n_layer=1", "training.max_steps=2"]
    options += ["model.n_embd=32", "model.block_size=8", "training.warmup_steps=2", "training.device=cpu"]
    said = list[str]()
    start(load_config(RunConfig, "tiny.yaml", options), "it", [], False, said.append, skip_checks=True).fit()
    assert sum(line.startswith("note: 1 of the 2 documents for validation are also among those") for line in said) == 1
    with Path("test.jsonl").open("a") as file:
        file.write('{"text": "hullo, hullo"}\n')
    with pytest.raises(UserError, match=r"is not the one that .* was trained on; --allow-data-change"):
        resume(Path("runs/it"), ["training.max_steps=4"], [], False, False, skip_checks=True)
    resume(Path("runs/it"), ["training.max_steps=4"], [], True, False, skip_checks=True)


def test_a_sample_is_one_story_and_other_text_goes_on_over_its_line_ends(run: Run) -> None:
    """With the sampling of `tiny.yaml`, whatever text it is given."""
    config = replace(run.config, sampling=load_config(RunConfig, "tiny.yaml", ["data.source=text.txt"]).sampling)
    own = replace(run, config=config)
    told = replace(run, config=replace(config, data=replace(config.data, source="stories")))
    seed = next(seed for seed in range(100) if "\n" in told.generate(seed=seed, stop="@"))
    whole = own.generate(seed=seed)
    assert len(whole) == 200 and "\n" in whole
    assert told.generate(seed=seed) == whole.partition("\n")[0]


def test_attention_of_a_text_is_one_map_a_layer_and_labels_are_its_tokens(run: Run) -> None:
    (weights,) = run.attention("the cat")
    assert weights.shape == (2, 7, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 7))
    assert run.labels("the cat") == list("the cat")
    with pytest.raises(UserError, match="the text has 17 tokens; the context holds 16"):
        run.attention("the cat sat on a ")


def test_attention_reads_a_text_as_sampling_reads_a_prompt(run: Run) -> None:
    """A prompt of the built-in stories has the line end before it in front, which takes a place of the context."""
    told = replace(run, config=replace(run.config, data=replace(run.config.data, source="stories")))
    assert told.labels("the cat") == told.labels("\nthe cat") == ["\n", *"the cat"]
    (weights,), (begun,) = told.attention("the cat"), run.attention("\nthe cat")
    assert torch.equal(weights, begun)
    with pytest.raises(UserError, match="the text has 17 tokens with the line end in front; the context holds 16"):
        told.attention("the cat sat on a")


def test_a_picture_of_attention_is_of_the_heads_that_were_asked_for(run: Run, tmp_path: Path) -> None:
    """Indices in Python, from 0; names in the picture, from 1."""
    run.show_attention("the cat", head=1).save(tmp_path / "head.svg")
    drawn = "".join(xml.etree.ElementTree.parse(tmp_path / "head.svg").getroot().itertext())
    assert "layer 1, head 2" in drawn and "layer 1, head 1" not in drawn
    assert run.show_attention("the cat")._repr_svg_().count("<image") == 2
    with pytest.raises(UserError, match="layer=1, head=None: there is no such head; they count from 0"):
        run.show_attention("the cat", layer=1)


def test_a_prompt_with_an_unknown_character_is_refused_at_its_place(run: Run) -> None:
    with pytest.raises(UserError, match=r"^the prompt: unknown character 'Z' \(U\+005A\) at index 4"):
        run.generate("the Z")


def test_the_newest_run_is_the_one_that_was_trained_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"there is no run in .*runs yet: python scripts/train\.py --config"):
        newest_run()
    for age, name in ((30, "a"), (10, "b"), (20, "c")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        for file in ("config.yaml", "metrics.jsonl"):
            (folder / file).write_text("", encoding="utf-8")
            os.utime(folder / file, (1e9 - age, 1e9 - age))
    (tmp_path / "runs" / "not a run").mkdir()
    assert newest_run() == Path("runs/b")
    assert newest_run("a") == Path("runs/a")
    assert newest_run("runs/c") == Path("runs/c")
    with pytest.raises(UserError, match="there is no run d: neither d nor runs/d is a folder"):
        newest_run("d")


def test_what_is_not_a_run_and_what_has_no_checkpoint_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run \(there is no config.yaml in it\)"):
        minigpt.load(tmp_path)
    for name in ("config.yaml", "tokenizer.json"):
        (tmp_path / name).write_bytes((home / "runs" / "small" / name).read_bytes())
    with pytest.raises(CheckpointError, match="there is no checkpoint here yet"):
        minigpt.load(tmp_path)
