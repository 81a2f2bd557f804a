"""Tensors in slices: whole tensors come back; what is not whole is refused, with or without a manifest that fits."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_trainings import equal
from torch import Tensor

from minigpt.config.upgrade import FORMAT, stamped
from minigpt.training import slices
from minigpt.training.checkpoint import CheckpointError, begin, finish, load, newest, save, sum_of

MODEL = {"table": torch.arange(33.0).reshape(11, 3), "scale": torch.tensor(2.5), "bias": torch.arange(7.0)}
MEMORY = {"table|momentum": torch.arange(33.0).reshape(11, 3) / 7, "table|step": torch.tensor(4.0)}
STATE = {"seconds": 1.5}


def name_of(process: int, number: int) -> str:
    return f"shard-{process + 1:05d}-model-{number:05d}-of-00002.safetensors"


def shards(tensors: dict[str, Tensor], processes: int) -> list[tuple[dict[str, Tensor], dict[str, list[int]]]]:
    """What each process has of some tensors, and where that begins: rows as torch shares them out, numbers once."""
    each: list[tuple[dict[str, Tensor], dict[str, list[int]]]] = [({}, {}) for _ in range(processes)]
    for name, tensor in tensors.items():
        rows = tensor.chunk(processes) if tensor.ndim else (tensor,)
        begin = 0
        for (mine, places), part in zip(each, rows):
            mine[name], places[name] = part.clone(), [begin, *[0] * (tensor.ndim - 1)][: tensor.ndim]
            begin += len(part) if tensor.ndim else 0
    return each


def write_shard(path: Path, tensors: dict[str, Tensor], places: Any) -> None:
    said = {name: {"saved_offsets": place} for name, place in places.items()} if isinstance(places, dict) else places
    save_file(tensors, path, {"DCP_SHARDING_INFO": json.dumps(said), "format": "pt"})


def seal(path: Path) -> None:
    """A manifest for whatever is there."""
    files = [file for file in path.iterdir() if file.name != "manifest.json"]
    sums = {f.name: {"size": f.stat().st_size, "sha256": hashlib.sha256(f.read_bytes()).hexdigest()} for f in files}
    (path / "manifest.json").write_text(json.dumps({"format": FORMAT, "files": sums, "run": {}}), encoding="utf-8")


@pytest.fixture
def sliced(tmp_path: Path) -> Path:
    """A checkpoint of step 10 in the slices of three processes, and an older one in whole tensors."""
    save(tmp_path, 5, MODEL, MEMORY, STATE)
    path = tmp_path / "step-000010"
    path.mkdir()
    for number, tensors in ((1, MODEL), (2, MEMORY)):
        for process, (mine, places) in enumerate(shards(tensors, 3)):
            write_shard(path / name_of(process, number), mine, places)
    (path / "state.json").write_text(json.dumps(stamped({**STATE, "step": 10})), encoding="utf-8")
    seal(path)
    return path


def test_slices_are_read_as_whole_tensors(sliced: Path) -> None:
    found = load(sliced)
    assert equal(found.model, MODEL) and equal(found.optimizer, MEMORY)
    assert found.state == {**STATE, "step": 10}


@pytest.mark.parametrize("step", ["step-000005", "step-000010"])
def test_without_values_everything_is_checked_and_nothing_kept(sliced: Path, step: str) -> None:
    found = load(sliced.with_name(step), values=False)
    assert {name: tensor.shape for name, tensor in found.model.items()} == {n: t.shape for n, t in MODEL.items()}
    assert all(tensor.is_meta for tensor in (*found.model.values(), *found.optimizer.values()))


@pytest.mark.parametrize("values", [True, False])
def test_a_weight_that_is_no_number_is_refused_in_any_slice(sliced: Path, values: bool) -> None:
    (mine, places) = shards(MODEL, 3)[2]
    mine["table"][1, 1] = torch.nan
    write_shard(sliced / name_of(2, 1), mine, places)
    seal(sliced)
    with pytest.raises(CheckpointError, match="step-000010: table: holds NaN or infinity"):
        load(sliced, values)


# ---- what is not whole is refused ----


Damage = Callable[[Path], object]
FILE = name_of(1, 1)


def missing(path: Path) -> None:
    (path / FILE).unlink()


def extra(path: Path) -> None:
    shutil.copy(path / name_of(2, 1), path / name_of(3, 1))


def metadata(path: Path) -> None:
    (path / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


def linked(path: Path) -> None:
    (path / FILE).rename(path.parent / "elsewhere")
    (path / FILE).symlink_to(path.parent / "elsewhere")


def state_alone(path: Path) -> None:
    for file in path.glob("shard-*"):
        file.unlink()


def rewritten(change: Callable[[bytes], bytes]) -> Damage:
    """The second process's weights are other bytes."""
    return lambda path: (path / FILE).write_bytes(change((path / FILE).read_bytes()))


def resealed(damage: Damage) -> Damage:
    """A damage with a manifest that fits it."""
    return lambda path: (damage(path), seal(path))


def endless(path: Path) -> None:
    """Slices without a number, whose shapes overflow."""
    header = {"table": {"dtype": "F32", "shape": [2**63 - 1, 2, 0], "data_offsets": [0, 0]}}
    for process in range(3):
        raw = json.dumps(header if process == 1 else {}).encode()
        (path / name_of(process, 1)).write_bytes(len(raw).to_bytes(8, "little") + raw)


def says(places: Any) -> Damage:
    """The header of the second process's weights says something else."""
    mine, right = shards(MODEL, 3)[1]
    said = right | places if isinstance(places, dict) else places
    return resealed(lambda path: write_shard(path / FILE, mine, said))


def shaped(tensor: Tensor) -> Damage:
    """The second process's slice of the table is another tensor."""
    mine, places = shards(MODEL, 3)[1]
    return resealed(lambda path: write_shard(path / FILE, mine | {"table": tensor}, places))


SECOND = r"shard-00002-model-00001-of-00002\.safetensors: "
NOT_LISTED = r"step-000010: the manifest must list exactly .*, or shards and state\.json"
DAMAGES: list[tuple[str, Damage, str]] = [
    (
        "tampered",
        rewritten(lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
        SECOND + "its SHA-256 is not the one in the manifest",
    ),
    ("missing", missing, SECOND + "missing, or not a plain file"),
    ("extra", extra, r"'shard-00004-model-00001-of-00002\.safetensors' does not belong in a checkpoint"),
    ("metadata", metadata, r"'\.metadata' does not belong in a checkpoint"),
    ("linked", linked, SECOND + "missing, or not a plain file"),
    ("resealed missing", resealed(missing), r"(table|bias): rows \d to \d are missing"),
    ("resealed extra", resealed(extra), r"shard-00004.*: row \d+ is there twice"),
    ("resealed metadata", resealed(metadata), NOT_LISTED),
    ("resealed both", resealed(lambda path: save_file(MODEL, path / "model.safetensors")), NOT_LISTED),
    ("resealed state alone", resealed(state_alone), NOT_LISTED),
    ("resealed pickle", resealed(lambda path: torch.save(MODEL, path / FILE)), SECOND + r"a header of [\d,]+ bytes"),
    ("resealed cut", resealed(rewritten(lambda raw: raw[:-4])), SECOND),
    ("overlap", says({"table": [3, 0]}), SECOND + "table: row 3 is there twice"),
    ("gap", says({"table": [5, 0]}), SECOND + "table: rows 4 to 4 are missing"),
    ("far", says({"table": [2**62, 0]}), "table: rows 4 to 7 are missing"),
    ("negative", says({"table": [-4, 0]}), SECOND + r"table: a slice that begins at \[-4, 0\] is not whole rows"),
    ("columns", says({"table": [4, 1]}), SECOND + r"table: a slice that begins at \[4, 1\] is not whole rows"),
    ("too short", says({"table": [4]}), SECOND + r"table: a slice that begins at \[4\] is not whole rows"),
    ("no number", says({"table": [True, 0]}), SECOND + "DCP_SHARDING_INFO does not say where each slice begins"),
    ("too large", says({"table": [2**80, 0]}), SECOND + ".*does not fit into 64 bits"),
    ("another name", says({"tables": [4, 0]}), SECOND + "DCP_SHARDING_INFO does not say where each slice begins"),
    ("a list", says([1, 2]), SECOND + "DCP_SHARDING_INFO does not say where each slice begins"),
    ("narrow", shaped(torch.zeros(4, 2)), r"table: a slice of \(4, 2\), torch.float32, beside one of \(4, 3\)"),
    ("half", shaped(torch.zeros(4, 3).half()), r"table: a slice of \(4, 3\), torch.float16, beside one of \(4, 3\)"),
    ("short", shaped(torch.zeros(3, 3)), r"table: rows 7 to 7 are missing"),
    ("long", shaped(torch.zeros(5, 3)), r"table: row 8 is there twice"),
    ("endless", resealed(endless), r"table: no tensor has the shape \(9223372036854775807, 2, 0\)"),
    ("float8", shaped(torch.zeros(4, 3).to(torch.float8_e4m3fn)), SECOND + "table: F8_E4M3 is not a type"),
]


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_slices_that_are_not_whole_are_refused_and_the_checkpoint_before_is_used(
    sliced: Path, damage: Damage, message: str
) -> None:
    damage(sliced)
    with pytest.raises(CheckpointError, match=message) as refused:
        load(sliced)
    assert "\n" not in str(refused.value) and str(sliced) in str(refused.value)
    with pytest.raises(CheckpointError, match=message):
        load(sliced, values=False)
    found, notes = newest(sliced.parent)
    assert found.state["step"] == 5 and notes == [f"skipped: {refused.value}"]


def test_no_more_is_allocated_than_the_files_have(sliced: Path) -> None:
    """A header of some bytes that speaks of exabytes is refused by its table alone."""
    says({"table": [2**62, 0]})(sliced)
    with pytest.raises(ValueError, match="rows 4 to 7 are missing"):
        slices.slices_of(sorted(sliced.glob("shard-*-00001-of-*")))


def test_a_tensor_without_rows_is_whole(tmp_path: Path) -> None:
    for process in range(2):
        write_shard(tmp_path / name_of(process, 1), {"none": torch.zeros(0, 3)}, {"none": [0, 0]})
    found = slices.read(slices.slices_of(sorted(tmp_path.iterdir())))
    assert found["none"].shape == (0, 3)


@pytest.mark.parametrize("gone", range(6))
def test_what_is_sealed_is_whole(gone: int, sliced: Path) -> None:
    """A process has written nothing: the first one sees it by the headers, also where the last rows are missing."""
    folder = sliced.parent
    beside = begin(folder, 15)
    for file in sorted(sliced.glob("shard-*")):
        (beside / file.name).write_bytes(file.read_bytes())
    sorted(beside.iterdir())[gone].unlink()
    sums = {file.name: sum_of(file) for file in beside.iterdir()}
    with pytest.raises(CheckpointError, match=r"rows (\d to \d are missing|of it were not written)"):
        finish(beside, 15, sums, MODEL | MEMORY, STATE, {})
    assert not (folder / "step-000015").exists()
