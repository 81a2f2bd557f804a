"""The weights of an untrusted folder are read whole and right, or refused in one line; nothing is left behind."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from pathlib import Path

import pytest
import torch
from hub_folders import INDEX, WEIGHTS, edit, gpt2_folder, in_its_folder, refused, rewrite
from running import script, well
from safetensors.torch import load_file

from minigpt.hub.importer import import_folder
from minigpt.system.errors import UserError
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.report import silent

folder = pytest.fixture(gpt2_folder)
elsewhere = pytest.fixture(autouse=True)(in_its_folder)


# ---- what is refused: the weights ----


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    refused(folder, UserError, r"pytorch_model\.bin is a pickle, which can run code .*save_pretrained")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/tmp/outside.safetensors", "a/b.safetensors", "..\\x.safetensors", "model.bin"]
)
def test_an_index_names_only_files_beside_it(name: str, folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "outside.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
    refused(folder, CheckpointError, "is not the name of a .safetensors file in this folder")


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json", "one.safetensors"])
def test_links_and_pipes_are_not_followed(name: str, folder: Path) -> None:
    if name == "one.safetensors":  # a shard
        (folder / WEIGHTS).rename(folder / name)
        (folder / INDEX).write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
    (folder / name).rename(folder.parent / "outside")
    (folder / name).symlink_to(folder.parent / "outside")
    refused(folder, UserError, "a symbolic link")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, UserError, "not a plain file")


def test_the_cache_of_huggingface_hub_holds_links(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    assert import_folder(snapshot, "mine", None, silent).is_dir()


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (struct.pack("<Q", 1 << 40) + b"{}", "a header of 1,099,511,627,776 bytes"),
        (struct.pack("<Q", 2) + b"{}", "missing from the weights"),
        (None, "model.safetensors"),  # cut short
        (struct.pack("<Q", 10) + b"not json..", "[Hh]eader"),
    ],
)
def test_a_file_of_weights_that_is_none(contents: bytes | None, message: str, folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(contents or (folder / WEIGHTS).read_bytes()[:-1])
    refused(folder, CheckpointError, message)


BIAS = "transformer.ln_f.bias"


@pytest.mark.parametrize(
    ("tensors", "message"),  # None removes a tensor
    [
        ({"transformer.h.0.more": torch.ones(3)}, "transformer.h.0.more: the config has no such tensor"),
        ({BIAS: None}, f"{BIAS}: missing from the weights"),
        ({BIAS: torch.ones(46)}, rf"{BIAS}: \(46,\), but by the config it has \(45,\)"),
        *[
            ({BIAS: torch.ones(45).to(dtype)}, f"{BIAS}: .* is not read .only F32, F16, BF16")
            for dtype in (torch.int8, torch.float64, torch.float8_e4m3fn)
        ],
        *[({BIAS: torch.full((45,), value)}, "norm.bias: expected float32 numbers") for value in (math.nan, math.inf)],
    ],
)
def test_tensors_that_do_not_fit_are_named(tensors: dict[str, torch.Tensor | None], message: str, folder: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            weights.pop(name, None)
            weights.update({} if tensor is None else {name: tensor})

    rewrite(folder, change)
    refused(folder, CheckpointError, message)


def test_a_tied_head_with_numbers_of_its_own(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].clone()}))
    assert import_folder(folder, "mine", None, silent).is_dir()
    rewrite(folder, lambda tensors: tensors["lm_head.weight"][3].add_(1))
    with pytest.raises(CheckpointError, match="not equal to the embeddings"):
        import_folder(folder, "mine", None, silent)


def test_an_index_that_does_not_fit_its_files(folder: Path) -> None:
    names = dict.fromkeys(load_file(folder / WEIGHTS), "one.safetensors")
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": names | {"more": "one.safetensors"}}))
    refused(folder, CheckpointError, "more: the index and the file do not both have this tensor")
    (folder / INDEX).write_text(json.dumps({"weight_map": [1]}))
    refused(folder, CheckpointError, "expected weight_map")
    (folder / INDEX).write_text(json.dumps({"weight_map": {str(n): f"{n}.safetensors" for n in range(1001)}}))
    refused(folder, CheckpointError, "1,001 files; at most 1,000")
    with (folder / INDEX).open("ab") as file:
        file.truncate(1 << 30)
    refused(folder, UserError, "such a file has at most")


# ---- the command ----


def test_the_command_says_one_line_and_ends_with_a_code(folder: Path) -> None:
    assert "run: runs/mine" in well(script("import_hf.py", "model", "--name", "mine", cwd=folder.parent))
    edit(folder, n_head=7)
    ended = script("import_hf.py", "model", cwd=folder.parent)
    assert ended.code == 2 and re.fullmatch(r"error: .*7 heads do not divide.*\n", ended.err)
    edit(folder, n_head=3)
    os.truncate(folder / WEIGHTS, 5000)
    ended = script("import_hf.py", "model", cwd=folder.parent)
    assert ended.code == 4 and re.fullmatch(r"checkpoint refused: .*\n", ended.err)
    assert [path.name for path in Path("runs").iterdir()] == ["mine"]


WHILE_WRITING = """\
import os
from minigpt.training import checkpoint
plain = checkpoint.write_tensors
def write(*arguments):
    {act}
    plain(*arguments)
checkpoint.write_tensors = write
"""


@pytest.mark.parametrize(
    ("act", "code"), [("os.kill(os.getpid(), 15)", 143), ("raise OSError(28, 'No space left on device')", 5)]
)
def test_what_ends_while_weights_are_written_leaves_nothing(act: str, code: int, folder: Path) -> None:
    Path("stopping.py").write_text(WHILE_WRITING.format(act=act))
    ended = script("import_hf.py", "model", "--plugin", "stopping.py", cwd=folder.parent)
    assert ended.code == code and len(ended.err.splitlines()) == 1
    assert not list(Path("runs").iterdir())


def test_an_imported_run_cannot_be_resumed_and_that_is_said(folder: Path) -> None:
    import_folder(folder, "mine", None, silent)
    ended = script("train.py", "--resume", "runs/mine", cwd=folder.parent)
    assert ended.code == 2 and "--from-run mine data.source=my.txt" in ended.err


FAMILY = """\
from minigpt.hub.families.gpt2 import GPT2

class Mine(GPT2):
    model_type = "mine"
"""


def test_a_family_of_ones_own_is_a_plugin(folder: Path) -> None:
    edit(folder, model_type="mine")
    Path("family.py").write_text(FAMILY)
    assert script("import_hf.py", "model", cwd=folder.parent).code == 2
    well(script("import_hf.py", "model", "--plugin", "family.py", cwd=folder.parent))
