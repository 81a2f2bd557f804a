"""Runs of earlier versions: the code of their time made them (runs_of_old/make.py), and every command takes them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import running
import torch
import yaml
from faults.untrusted import update_manifest, update_run
from running import script, well

from minigpt.config import upgrade
from minigpt.config.options import Component
from minigpt.config.upgrade import EVERYWHERE, FORMAT
from minigpt.system.errors import UserError
from minigpt.system.plugin import load_plugin
from minigpt.text.dataset import Dataset
from minigpt.training import checkpoint, shards
from minigpt.training.checkpoint import CheckpointError, verify
from minigpt.training.loop import evaluate
from minigpt.training.optimizer import AdamW
from minigpt.training.run import load, open_checkpoint
from minigpt.training.start import resume

HERE = Path(__file__).with_name("runs_of_old")
sys.path.insert(0, str(HERE))
import today  # noqa: E402  the script beside them

NAMES = sorted(path.parent.name for path in HERE.glob("*/expected.json"))
NEAR = 2e-6  # float32: logits and losses by other products in the same sums


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Copies a run, and the text that it learned from, into the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIGPT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    shutil.copy(HERE / "text.txt", tmp_path)

    def copied(name: str) -> Path:
        for plugin in plugins_of(name):
            for family in Component.__subclasses__():  # its kinds are of this test alone
                monkeypatch.setattr(family, "kinds", dict(family.kinds))
            monkeypatch.setattr("minigpt.system.plugin.PLUGINS", {})
            load_plugin(plugin)
        return Path(shutil.copytree(HERE / name, tmp_path / "runs" / name))

    return copied


def plugins_of(name: str) -> list[Path]:
    """The plugins that a run was made with, which say the same for every version."""
    return sorted((HERE / name / "plugins").glob("*.py"))


def expected(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((HERE / name / "expected.json").read_text("utf-8"))
    return values


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of its files, but for a lock's."""
    return {name: raw for name, raw in running.contents(folder).items() if not Path(name).name.startswith(".")}


def newest_step(run: Path) -> Path:
    return checkpoint.checkpoints(run / "checkpoints")[0]


def off(folder: Path, name: str, *overrides: str) -> float:
    """How far the logits of a run are from those that the code of its time gave."""
    run = load(folder, device="cpu", overrides=overrides)
    with torch.no_grad():
        logits = run.model(run.prompt_ids(expected(name)["prompt"]))[0, -1]
    return (logits - torch.tensor(expected(name)["logits"])).abs().max().item()


# ---- what they compute ----


def test_every_format_has_a_run_of_its_time() -> None:
    formats = {name: verify(newest_step(HERE / name))[2] for name in NAMES}
    assert set(formats.values()) == set(range(1, FORMAT + 1))
    assert all(name.startswith(f"format-{number}") for name, number in formats.items())


@pytest.mark.parametrize("name", NAMES)
def test_it_writes_and_predicts_what_it_did(old: Callable[[str], Path], name: str) -> None:
    folder, then = old(name), expected(name)
    run = load(folder, device="cpu")
    assert run.generate(then["prompt"], temperature=0, max_tokens=30) == then["text"]
    if name != "format-1-either":
        assert off(folder, name) < NEAR
    dataset = Dataset(run.config.data, run.config.data.open(), run.tokenizer, run.config.model.block_size)
    assert evaluate(run.model, dataset, "val", run.config.training) == pytest.approx(then["loss"], abs=2e-5)
    assert contents(folder) == contents(HERE / name)  # whoever opens it writes nothing


def test_gelu_was_its_tanh_approximation(old: Callable[[str], Path]) -> None:
    folder = old("format-1-tanh")
    assert load(folder).config.model.mlp.component.kind == "gelu_tanh"
    assert off(folder, "format-1-tanh", "model.mlp=gelu") > 50 * NEAR  # so the run can tell them apart


def test_where_gelu_may_mean_either_a_note_says_what_was_taken(
    old: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = old("format-1-either")
    note = f"note: {folder}: model.mlp: gelu became the exact function at about the time of this run"
    *_, said = load(folder).notes
    assert said.startswith(note) and capsys.readouterr().err.endswith(f"{said}\n")
    assert off(folder, "format-1-either", "model.mlp=gelu") < NEAR < off(folder, "format-1-either")


def test_rotary_positions_turned_other_features(old: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = old("format-1")
    monkeypatch.setattr(upgrade, "OF_TENSORS", {})
    assert off(folder, "format-1") > 1e-3


def test_what_cannot_be_carried_over_is_refused_by_name(old: Callable[[str], Path]) -> None:
    """Turned features of the text itself: no layer makes them whose rows could change places."""
    folder = old("format-1")
    config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    config["model"]["attention"] = {"kind": "dot_product"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"step-000020: model\.attention: dot_product: rotary"):
        open_checkpoint(folder)
    config["model"]["pieces"] = 3
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(UserError, match=r"model\.pieces: unknown key"):
        open_checkpoint(folder)


def test_overrides_come_after_the_steps(old: Callable[[str], Path]) -> None:
    run = load(old("format-2"), overrides=["model.mlp=geglu"])
    assert run.config.model.mlp.component.kind == "geglu"
    assert run.config.model.mlp.width == 12  # `mlp_width` of its own config


# ---- training goes on ----


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_training_and_is_then_a_run_of_today(old: Callable[[str], Path], name: str) -> None:
    folder, said = old(name), list[str]()
    trainer = resume(folder, ["training.max_steps=24"], plugins_of(name), False, False, said.append)
    trainer.fit()
    of_heads = name == "format-3-muon"  # Muon stepped each head by itself
    loss = trainer.history.evaluations[-1][2]
    assert loss == pytest.approx(expected(name)["loss_after_more_steps"], abs=0.02 if of_heads else 1e-4)
    assert any("training.optimizer.per_head: True is no option any more" in line for line in said) is of_heads
    assert (folder / "config.yaml").read_text("utf-8").startswith(f"format: {FORMAT}\n")
    saved, notes = open_checkpoint(folder)
    assert saved.format == FORMAT and saved.path.name == "step-000024" and notes == []
    before = newest_step(HERE / name)  # still there, and of use if the new one is damaged
    shutil.rmtree(saved.path)
    saved, _ = open_checkpoint(folder)
    assert (saved.path.name, saved.format) == (before.name, verify(before)[2])


def test_several_processes_do_not_read_slices_of_other_weights(old: Callable[[str], Path]) -> None:
    """Each of them would read its own rows, in their former order."""
    saved, _ = open_checkpoint(old("format-1"), values=False)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(CheckpointError, match=r"format 1: .* resume it in one process first"):
        shards.fill(model, AdamW(AdamW.Config(), model), saved)


# ---- every command ----

COMMANDS = {
    "sample": ("--prompt", "the cat", "--max-tokens", "8"),
    "show_attention": ("--prompt", "the cat"),
    "explore": ("--prompt", "the cat"),
    "export_hf": ("--out", "exported", "--remote-code"),
    "swap": ("--config", "swaps.yaml"),
}
SWAPS = "rows: [{name: mean, swap: [model.attention=average_softmax]}]\nlength: 16\npieces: 2\n"


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("command", [*COMMANDS, "train --resume", "train --from-run"])
@pytest.mark.parametrize("name", NAMES)
def test_every_command_takes_it(old: Callable[[str], Path], tmp_path: Path, name: str, command: str) -> None:
    old(name)
    (tmp_path / "swaps.yaml").write_text(SWAPS, encoding="utf-8")
    script_name, _, option = command.partition(" ")
    run = [option or "--run", name, *(word for path in plugins_of(name) for word in ("--plugin", path))]
    ended = script(f"{script_name}.py", *run, *COMMANDS.get(command, ["training.max_steps=22"]), cwd=tmp_path)
    if plugins_of(name) and command == "export_hf":  # its tokenizer is unknown elsewhere
        assert ended.code == 2 and "letters_4 has no counterpart" in ended.err
        return
    better = f"note: runs/{name}: the validation loss was "  # at an earlier step; today's programs say so of any run
    notes = [line for line in ended.err.splitlines() if not line.startswith(better)]
    assert ended.err.count(better) <= 1
    assert ended.code == 0 and len(notes) == (name == "format-1-either" and option != "--resume"), ended.err


# ---- the number ----


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_number_is_found(old: Callable[[str], Path], name: str) -> None:
    """A 1 or a 2 that was a 3 would put the rows of weights in another order."""
    manifest = newest_step(old(name)) / "manifest.json"
    raw = manifest.read_bytes()
    place = raw.index(b'"format": ') + len('"format": ')
    for bit in range(8):
        manifest.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :])
        with pytest.raises(CheckpointError, match=r"damaged or edited|not a JSON object"):
            checkpoint.load(manifest.parent)


def later(path: Path) -> None:
    """The file as a later version would write it."""
    if path.suffix == ".yaml":
        text = path.read_text("utf-8").split("\n", 2)[2]
        path.write_text(f"format: {FORMAT + 1}\nminigpt: 9.8.7\n{text}", encoding="utf-8")
    else:
        values = json.loads(path.read_text("utf-8")) | {"format": FORMAT + 1, "minigpt": "9.8.7"}
        path.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize("file", ["config.yaml", "tokenizer.json", "state.json"])
def test_a_later_format_is_refused_with_the_version_that_wrote_it(old: Callable[[str], Path], file: str) -> None:
    folder = old(f"format-{FORMAT}")
    saved = newest_step(folder)
    place = saved if file == "state.json" else folder / file
    later(saved / file if file == "state.json" else place)
    update_manifest(saved)
    update_run(folder)
    if file == "state.json":
        later(saved / "manifest.json")
    with pytest.raises((UserError, CheckpointError)) as refused:
        load(folder)
    assert f"{place}: format {FORMAT + 1}, written by minigpt 9.8.7; this is minigpt" in str(refused.value)


def test_a_config_that_a_run_left_behind_is_one_to_train_with(old: Callable[[str], Path], tmp_path: Path) -> None:
    """Its number says what it means, whatever the version that reads it."""
    config = old(f"format-{FORMAT}") / "config.yaml"
    ended = script("train.py", "--config", config, "--name", "again", "training.max_steps=1", cwd=tmp_path)
    well(ended)
    assert f"format: {FORMAT}" in (tmp_path / "runs" / "again" / "config.yaml").read_text("utf-8")
    later(config)
    ended = script("train.py", "--config", config, "training.max_steps=1", cwd=tmp_path)
    assert ended.code == 2 and "written by minigpt 9.8.7" in ended.err


# ---- comparisons ----


@pytest.fixture
def comparison(old: Callable[[str], Path], tmp_path: Path) -> Path:
    """An old comparison, as the code of its time left it, in its place."""
    old("comparison")
    (tmp_path / "runs" / "compare").mkdir()
    shutil.copy(HERE / "comparison.yaml", tmp_path)
    folder = (tmp_path / "runs" / "comparison").rename(tmp_path / "runs" / "compare" / "comparison")
    (folder / "page.html").write_text("a page of its time", encoding="utf-8")
    return folder


def test_a_comparison_of_an_earlier_version_is_kept_and_said_to_be_so(comparison: Path, tmp_path: Path) -> None:
    before = contents(comparison)
    out = well(script("compare.py", "--config", "comparison.yaml", cwd=tmp_path))
    assert "all 2 runs are finished already" in out
    assert "note: 2 of 2 runs were made by an earlier version of minigpt" in out
    loss = json.loads(before["results.json"])["variants"][0]["loss"]
    assert f"{loss:.4f}"[:5] in out
    assert contents(comparison) == before


def test_new_runs_of_such_a_comparison_come_beside_the_old_ones(comparison: Path, tmp_path: Path) -> None:
    before = contents(comparison)
    out = well(script("compare.py", "--config", "comparison.yaml", "compare.seeds=[1, 2]", cwd=tmp_path))
    assert "2 of 4 runs to do" in out and "note: 2 of 4 runs were made by an earlier version" in out
    after = contents(comparison)
    written = {"results.json", "page.html"}
    assert {name: raw for name, raw in after.items() if name in before and name not in written} == {
        name: raw for name, raw in before.items() if name not in written
    }
    assert json.loads(after["results.json"])["format"] == FORMAT
    assert "earlier version of minigpt" in after["page.html"].decode("utf-8")


@pytest.mark.parametrize("change", ["training.max_steps=9", "--skip-checks"])
def test_it_is_never_overwritten(comparison: Path, tmp_path: Path, change: str) -> None:
    before = contents(comparison)
    ended = script("compare.py", "--config", "comparison.yaml", change, cwd=tmp_path)
    assert ended.code == 2 and "give this comparison another --name" in ended.err
    assert {name: raw for name, raw in contents(comparison).items() if name in before} == before


def test_a_result_of_a_later_version_is_not_overwritten_either(comparison: Path, tmp_path: Path) -> None:
    well(script("compare.py", "--config", "comparison.yaml", "--name", "new", cwd=tmp_path))
    path = tmp_path / "runs" / "compare" / "new" / "mean-seed-1" / "result.json"
    result = json.loads(json.loads(path.read_text("utf-8"))["result"])
    assert result["format"] == FORMAT
    from minigpt.comparison.results import save_result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minigpt.comparison.results.stamped", lambda values: values)
        save_result(path.parent, result | {"format": FORMAT + 1, "minigpt": "9.8.7", "key": "another"})
    raw = path.read_bytes()
    ended = script("compare.py", "--config", "comparison.yaml", "--name", "new", cwd=tmp_path)
    assert ended.code == 2 and "written by minigpt 9.8.7" in ended.err and path.read_bytes() == raw


# ---- the next format ----


def test_options_defaults_and_meanings_change_with_a_new_format_only() -> None:
    """A run of another version reads them. `python tests/runs_of_old/today.py` says the same, and adds new kinds."""
    then, now = json.loads(today.TODAY.read_text("utf-8")), json.loads(json.dumps(today.today()))
    assert then["format"] == FORMAT, "a new format: make a run of it, then write today.json"
    assert today.differences(then, now) == [], "raise FORMAT in minigpt/config/upgrade.py, and make a run of it"
    assert [part.keys() for part in now.values() if isinstance(part, dict)] == [
        part.keys() for part in then.values() if isinstance(part, dict)
    ], "there are new kinds: write today.json"


def test_a_changed_default_and_a_changed_meaning_are_seen() -> None:
    then = today.today()
    now = json.loads(json.dumps(then))
    now["options"]["Optimizer muon"]["momentum"] = 0.9
    del now["options"]["DataConfig"]["field"]
    now["logits"]["mlp gelu"] = today.computed({"mlp": "gelu_tanh"})
    now["options"]["MLP new"] = {"width": 1}
    assert today.differences(then, now) == ["options of Optimizer muon", "options of DataConfig", "logits of mlp gelu"]


def test_the_number_stands_in_every_file_of_a_run() -> None:
    folder = HERE / f"format-{EVERYWHERE}"
    files = [folder / "tokenizer.json", *(newest_step(folder) / name for name in ("state.json", "manifest.json"))]
    assert [json.loads(path.read_text("utf-8"))["format"] for path in files] == [EVERYWHERE] * 3
    assert yaml.safe_load((folder / "config.yaml").read_text("utf-8"))["format"] == EVERYWHERE
