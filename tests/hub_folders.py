"""Untrusted folders of weights for the tests: made, changed, and refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make
from safetensors.torch import load_file, save_file

from minigpt.hub.importer import import_folder
from minigpt.hub.tokenizer_json import tokenizer_files
from minigpt.text.tokenizer import Byte
from minigpt.training.report import silent

BYTES = {"vocab_size": 256}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixture: the folder of the test is the current one."""
    monkeypatch.chdir(tmp_path)


def gpt2_folder(tmp_path: Path) -> Path:
    """A fixture: a folder of transformers with a GPT-2 of random weights."""
    return save(tmp_path / "model", "gpt2")


def save(folder: Path, case: str, **options: Any) -> Path:
    """Write a model of a case as transformers does, with a tokenizer of bytes."""
    make(case, **BYTES).save_pretrained(folder, **options)
    for name, text in tokenizer_files(Byte(), 40).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def edit(folder: Path, name: str = "config.json", **values: Any) -> None:
    """Change keys of a JSON file."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values), encoding="utf-8")


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the tensors of a folder."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def refused(folder: Path, error: type[Exception], message: str) -> None:
    """An import of the folder is one line, and leaves nothing."""
    with pytest.raises(error, match=message) as info:
        import_folder(folder, "model", None, silent)
    assert len(str(info.value).splitlines()) == 1 and len(str(info.value)) < 1000
    assert not list(Path("runs").glob("*")) and not list(Path("runs").glob(".*"))
