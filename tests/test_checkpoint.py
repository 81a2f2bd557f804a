"""Checkpoints: what is saved is loaded, what is damaged is refused, and a failed save changes no older checkpoint."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_trainings import equal
from test_slices import seal
from torch import Tensor, nn

from minigpt.model import GPT, ModelConfig
from minigpt.training import checkpoint
from minigpt.training.checkpoint import (
    FILES,
    FORMAT,
    CheckpointError,
    checkpoints,
    fill,
    load,
    newest,
    prune,
    save,
    tensors_of,
    verify,
)

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


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A damage: a file with other bytes."""
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes()))


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
    """The manifest fits the files again, as someone with bad intentions would have it."""
    (path / "model.safetensors").write_bytes(b"\xff" * 100)
    seal(path)


MODEL, OPTIMIZER, MANIFEST = "model.safetensors", "optimizer.safetensors", "manifest.json"
cut_short = rewritten(MODEL, lambda raw: raw[:-1])
other_format = rewritten(MANIFEST, lambda raw: json.dumps(json.loads(raw) | {"format": FORMAT - 1}).encode())


def missing(path: Path) -> None:
    (path / OPTIMIZER).unlink()


OTHER_SIZE = "its size is not the one in the manifest"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut_short, rf"model\.safetensors: {OTHER_SIZE}"),
    "grown": (rewritten(OPTIMIZER, lambda raw: raw + b"\0"), rf"optimizer\.safetensors: {OTHER_SIZE}"),
    "missing": (missing, r"optimizer\.safetensors: missing"),
    "unsealed": (lambda path: (path / MANIFEST).unlink(), r"manifest\.json: missing"),
    "extra": (
        lambda path: (path / "model.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR."),
        r"'model\.pkl' does not belong in a checkpoint",
    ),
    "edited": (
        rewritten("state.json", lambda raw: raw.replace(b"640", b"641")),
        r"state\.json: its SHA-256 is not the one in the manifest: damaged or edited",
    ),
    "another format": (other_format, rf"state\.json: format {FORMAT}, and the manifest says {FORMAT - 1}: damaged"),
    "names another file": (
        rewritten(MANIFEST, lambda raw: raw.replace(b"state.json", b"../state.json")),
        r"the manifest must list exactly model\.safetensors, optimizer\.safetensors, state\.json",
    ),
    "not JSON": (rewritten(MANIFEST, lambda raw: b"[" * 60_000), r"manifest\.json: not a JSON object"),
    "endless JSON": (
        rewritten(MANIFEST, lambda raw: b" " * (1 << 21) + b"{}"),
        r"manifest\.json: not a JSON object of at most 1,048,576 bytes",
    ),
    "a linked folder": (linked_folder, r"not a checkpoint folder"),
    "a folder for a file": (a_folder_for_a_file, r"state\.json: missing, or not a plain file"),
    "a file for the folder": (a_file_for_the_folder, r"not a checkpoint folder"),
    "resealed rubbish": (resealed_rubbish, r"model\.safetensors: a header of [\d,]+ bytes"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    saved: Path, damage: Callable[[Path], object], message: str
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


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("norm.weight", None, r"step-7: norm\.weight: the checkpoint has no such tensor"),
        ("blocks.1.mlp.up.weight", torch.zeros(2), r"step-7: blocks\.1\.mlp\.up\.weight: the model has no such tensor"),
        (
            "tokens.weight",
            torch.zeros(12, 8),
            r"tokens\.weight: \(12, 8\) of torch\.float32, but the model has \(11, 8\) of torch\.float32",
        ),
        (
            "tokens.weight",
            torch.zeros(11, 8).half(),
            r"tokens\.weight: .*torch\.float16, but the model has .*torch\.float32",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name_and_none_is_put(
    name: str, change: Tensor | None, message: str
) -> None:
    tensors, model = checkpoint.tensors_of(make_model()), make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    put = {key: tensor for key, tensor in (tensors | {name: change}).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        fill(model, dict(reversed(put.items())), "step-7")
    assert equal(model.state_dict(), before)


# ---- only the newest are kept ----


def test_prune_keeps_the_best_of_those_that_are_there(tmp_path: Path) -> None:
    """One that was lost, or that was never written, is not missed: the best of the others is kept."""
    for step in (5, 10, 15, 20):
        save(tmp_path, step, tensors_of(make_model()), {}, {})
    evaluations = [(step, 9.0, loss) for step, loss in ((4, 1.0), (5, 3.0), (10, 2.0), (15, 2.0), (20, 2.5))]
    prune(tmp_path, 2, evaluations)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000020", "step-000015", "step-000010"]
    prune(tmp_path, 1, evaluations)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000020", "step-000010"]
    prune(tmp_path, 1, [*evaluations, (20, 9.0, 0.5)])
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000020"]


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
