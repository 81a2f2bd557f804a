"""Two and three processes learn what one does, with the whole model in each or with shares of it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_cases
import torch
from running import environment
from safetensors.torch import load_file
from sharded_cases import CASES, TEXT, learned, settings

EXACT = 1e-10  # relative; the sums of three processes differ by rounding, 1e-16 each


def together(folder: Path, processes: int) -> Path:
    """What so many processes have learned, in files of a folder."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = environment() | {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, sharded_cases.__file__, str(folder)]
    ranks = [env | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"} for rank in range(processes)]
    started = [subprocess.Popen(command, env=one, stderr=subprocess.PIPE, text=True) for one in ranks]
    said = [one.communicate(timeout=200)[1] for one in started]
    assert [one.returncode for one in started] == [0] * processes, "".join(text[-2000:] for text in said)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What two processes have learned, and what three have."""
    return {processes: together(tmp_path_factory.mktemp(f"{processes}"), processes) for processes in (2, 3)}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=EXACT, atol=EXACT), name


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_they_learn_what_one_does(name: str, folders: dict[int, Path], text: Path) -> None:
    """The start to the bit, then three steps: weights, the optimizer's state, losses, norms, and logits of writing."""
    alone = learned(settings(text, *CASES[name], "ddp"))
    for folder in folders.values():
        ddp, fsdp = (load_file(folder / f"{name} {parallel}") for parallel in ("ddp", "fsdp"))
        same(ddp, fsdp)
        for start in (key for key in alone if key.startswith("start ")):
            assert torch.equal(alone[start], fsdp[start])
        if name != "dropout":  # each process draws its own
            same(alone, fsdp)


@pytest.mark.slow
def test_every_kind_starts_in_shards_as_it_does_whole(folders: dict[int, Path]) -> None:
    found = load_file(folders[2] / "fresh")
    assert len(found) > 40 and [kind for kind, equal in found.items() if not equal] == []
