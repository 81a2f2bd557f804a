"""Checkpoints: what is saved is loaded, what is damaged is refused, and a failed save changes no older checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from minigpt.model import GPT, ModelConfig
from minigpt.runs import checkpoint
from minigpt.runs.checkpoint import FILES, FORMAT, CheckpointError, fill, load, newest, prune, save, tensors_of, verify

MEMORY = {"tokens.weight|exp_avg": torch.randn(3, 4), "tokens.weight|step": torch.tensor(7.0)}
STATE = {"seconds": 1.5, "tokens": 640, "evaluations": [[10, 2.5, 2.75]]}


def make_model(tied_head: bool = True) -> GPT:
    return GPT(ModelConfig(n_layer=1, n_embd=8, block_size=4, tied_head=tied_head), vocab_size=11)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with checkpoints of step 5 and step 10."""
    for step in (5, 10):
        save(tmp_path / "checkpoints", step, tensors_of(make_model()), MEMORY, STATE)
    return tmp_path / "checkpoints"


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def reseal(path: Path) -> None:
    """Make the manifest fit the files again, as someone with bad intentions would."""
    sums = {
        name: {
            "size": (path / name).stat().st_size,
            "sha256": hashlib.sha256((path / name).read_bytes()).hexdigest(),
        }
        for name in FILES
    }
    manifest = {"format": FORMAT, "files": sums, "run": {}}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


# ---- what was saved comes back ----


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_who_may_read_the_config_may_read_the_weights(saved: Path) -> None:
    """A class on one server: safetensors alone would keep them for their owner."""
    modes = {path.stat().st_mode for path in (saved / "step-000005").iterdir()}
    assert len(modes) == 1 and (saved / "step-000005" / "model.safetensors").stat().st_mode in modes


@pytest.mark.parametrize("tied_head", [True, False])
def test_everything_comes_back_to_the_bit(tmp_path: Path, tied_head: bool) -> None:
    model, other = make_model(tied_head), make_model(tied_head)
    path = save(tmp_path / "checkpoints", 500, tensors_of(model), MEMORY, STATE)
    assert path == tmp_path / "checkpoints" / "step-000500"
    found = load(path)
    assert found.state == {**STATE, "step": 500}
    assert equal(found.optimizer, MEMORY)
    assert not equal(other.state_dict(), model.state_dict())
    fill(other, found.model, path)
    assert equal(other.state_dict(), model.state_dict())
    assert (other.head.weight is other.tokens.weight) is tied_head


def test_a_tied_head_is_stored_once(saved: Path) -> None:
    names = load_file(saved / "step-000010" / "model.safetensors").keys()
    assert "tokens.weight" in names
    assert "head.weight" not in names
    assert names == dict(make_model().named_parameters()).keys()


def test_buffers_that_are_saved_are_saved_and_others_are_not(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("kept", torch.arange(3))
    model.register_buffer("made_again", torch.arange(3), persistent=False)
    found = load(save(tmp_path, 1, tensors_of(model), {}, {}))
    assert found.model.keys() == {"weight", "bias", "kept"}


def test_tensors_that_share_or_skip_memory_are_stored_as_what_they_are(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    memory = {"turned|a": whole.T, "row|b": whole[1]}
    assert equal(load(save(tmp_path, 1, tensors_of(make_model()), memory, {})).optimizer, memory)


def test_the_folder_holds_four_plain_files_and_no_pickle(saved: Path) -> None:
    path = saved / "step-000010"
    assert {entry.name for entry in path.iterdir()} == {*FILES, "manifest.json"}
    for entry in path.iterdir():
        assert not entry.read_bytes().startswith((b"\x80", b"PK"))  # pickles, and the zip that torch.save makes
    assert [entry.name for entry in sorted(saved.iterdir())] == ["step-000005", "step-000010"]


def test_a_missing_folder_is_made_but_not_the_run_around_it(tmp_path: Path) -> None:
    verify(save(tmp_path / "checkpoints", 1, tensors_of(make_model()), {}, {}))
    with pytest.raises(FileNotFoundError):  # a run's folder that went away
        save(tmp_path / "gone" / "checkpoints", 1, tensors_of(make_model()), {}, {})


# ---- what was damaged is refused; flipped bits are in faults/test_damage.py, links in faults/test_untrusted_files.py


def cut_short(path: Path) -> None:
    raw = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(raw[:-1])


def grown(path: Path) -> None:
    with (path / "optimizer.safetensors").open("ab") as file:
        file.write(b"\0")


def missing(path: Path) -> None:
    (path / "optimizer.safetensors").unlink()


def unsealed(path: Path) -> None:
    (path / "manifest.json").unlink()


def extra(path: Path) -> None:
    (path / "model.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


def edited(path: Path) -> None:
    state = (path / "state.json").read_text("utf-8")
    (path / "state.json").write_text(state.replace("640", "641"), encoding="utf-8")


def other_format(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": FORMAT - 1}), encoding="utf-8")


def names_another_file(path: Path) -> None:
    manifest = (path / "manifest.json").read_text("utf-8")
    (path / "manifest.json").write_text(manifest.replace("state.json", "../state.json"), encoding="utf-8")


def not_json(path: Path) -> None:
    (path / "manifest.json").write_text("[" * 60_000, encoding="utf-8")


def endless_json(path: Path) -> None:
    (path / "manifest.json").write_text(" " * (1 << 21) + "{}", encoding="utf-8")


def linked_folder(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def a_folder_for_a_file(path: Path) -> None:
    (path / "state.json").unlink()
    (path / "state.json").mkdir()


def a_file_for_the_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("", encoding="utf-8")


def resealed_rubbish(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\xff" * 100)
    reseal(path)


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (cut_short, r"model\.safetensors: its size is not the one in the manifest"),
    (grown, r"optimizer\.safetensors: its size is not the one in the manifest"),
    (missing, r"optimizer\.safetensors: missing"),
    (unsealed, r"manifest\.json: missing"),
    (extra, r"'model\.pkl' does not belong in a checkpoint"),
    (edited, r"state\.json: its SHA-256 is not the one in the manifest: damaged or edited"),
    (other_format, r"format 2, and this version of minigpt reads format 3"),
    (names_another_file, r"the manifest must list exactly model\.safetensors, optimizer\.safetensors, state\.json"),
    (not_json, r"manifest\.json: not a JSON object"),
    (endless_json, r"manifest\.json: not a JSON object of at most 1,048,576 bytes"),
    (linked_folder, r"not a checkpoint folder"),
    (a_folder_for_a_file, r"state\.json: missing, or not a plain file"),
    (a_file_for_the_folder, r"not a checkpoint folder"),
    (resealed_rubbish, r"model\.safetensors: a header of [\d,]+ bytes"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    saved: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(saved / "step-000010")
    with pytest.raises(CheckpointError, match=message) as refused:
        load(saved / "step-000010")
    assert "\n" not in str(refused.value)
    found, notes = newest(saved)
    assert found.state["step"] == 5
    assert notes == [f"skipped: {refused.value}"]


def test_where_none_is_good_all_are_named(saved: Path) -> None:
    cut_short(saved / "step-000005")
    missing(saved / "step-000010")
    with pytest.raises(CheckpointError, match=r"step-000010/optimizer.*missing.*; .*step-000005/model.*its size"):
        newest(saved)


def test_where_there_is_none_it_says_so(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="there is no checkpoint here yet"):
            newest(folder)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused_by_name_and_passed_over(saved: Path, value: float) -> None:
    model = make_model()
    with torch.no_grad():
        model.blocks[0].mlp.up.weight[2, 3] = value  # type: ignore[union-attr]
    path = save(saved, 15, tensors_of(model), MEMORY, STATE)
    with pytest.raises(CheckpointError, match=r"step-000015: blocks\.0\.mlp\.up\.weight: holds NaN or infinity"):
        load(path)
    assert newest(saved)[0].state["step"] == 10


# ---- putting tensors into a model ----


def without_one(tensors: dict[str, Tensor]) -> None:
    del tensors["norm.weight"]


def with_one_more(tensors: dict[str, Tensor]) -> None:
    tensors["blocks.1.mlp.up.weight"] = torch.zeros(2)


def misshapen(tensors: dict[str, Tensor]) -> None:
    tensors["tokens.weight"] = torch.zeros(12, 8)


def of_another_type(tensors: dict[str, Tensor]) -> None:
    tensors["tokens.weight"] = tensors["tokens.weight"].half()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_one, r"step-7: norm\.weight: the checkpoint has no such tensor"),
        (with_one_more, r"step-7: blocks\.1\.mlp\.up\.weight: the model has no such tensor"),
        (misshapen, r"tokens\.weight: \(12, 8\) of torch\.float32, but the model has \(11, 8\) of torch\.float32"),
        (of_another_type, r"tokens\.weight: .*torch\.float16, but the model has .*torch\.float32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name_and_none_is_put(
    change: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    tensors, model = checkpoint.tensors_of(make_model()), make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        fill(model, dict(reversed(tensors.items())), "step-7")
    assert equal(model.state_dict(), before)


# ---- a failure leaves what was there ----


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["OSError", "KeyboardInterrupt"])
@pytest.mark.parametrize(("name", "calls"), [("save_file", 2), ("sha256_of", 3), ("sync", 5)])
def test_a_failure_while_saving_leaves_the_last_checkpoint_and_no_rubbish(
    saved: Path, monkeypatch: pytest.MonkeyPatch, name: str, calls: int, error: BaseException
) -> None:
    before, real = contents(saved), getattr(checkpoint, name)
    for failing in range(calls):
        left = [failing]

        def fail(*arguments: Any, left: list[int] = left, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise error
            return real(*arguments, **keywords)

        monkeypatch.setattr(checkpoint, name, fail)
        with pytest.raises(type(error)):
            save(saved, 15, tensors_of(make_model()), MEMORY, STATE)
        monkeypatch.setattr(checkpoint, name, real)
        assert contents(saved) == before
        assert newest(saved)[0].state["step"] == 10
    verify(save(saved, 15, tensors_of(make_model()), MEMORY, STATE))


# ---- only the newest are kept ----


def test_prune_keeps_the_newest_by_number(tmp_path: Path) -> None:
    for step in (999_999, 5, 1_000_000, 10):
        save(tmp_path, step, tensors_of(make_model()), {}, {})
    prune(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000010", "step-1000000", "step-999999"]
    prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1000000"]
    verify(tmp_path / "step-1000000")
    prune(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1000000"]
