"""Two, three and four processes learn what one does, with the whole model in each or with shares of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sharded_cases
import torch
from ranks import ranks
from safetensors.torch import load_file
from sharded_cases import CASES, OF_DDP, OF_FOUR, TEXT

EXACT = 1e-10  # relative; the sums of three processes differ by rounding, 1e-16 each


def together(folder: Path, processes: int) -> Path:
    """What so many processes have learned, in files of a folder."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    ended = ranks(sharded_cases.__file__, folder, cwd=folder, processes=processes, imports=["peft"])
    assert ended.code == 0, ended.err[-4000:]
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one process has learned, and what two, three and four have."""
    return {processes: together(tmp_path_factory.mktemp(f"{processes}"), processes) for processes in (1, 2, 3, 4)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=EXACT, atol=EXACT), name


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_they_learn_what_one_does(name: str, folders: dict[int, Path]) -> None:
    """The start to the bit, then three steps: weights, the optimizer's state, losses, norms, and logits of writing."""
    alone = load_file(folders[1] / f"{name} ddp")
    for folder in (folders[processes] for processes in ((2, 3, 4) if name in OF_FOUR else (2, 3))):
        ddp, fsdp = (load_file(folder / f"{name} {parallel}") for parallel in ("ddp", "fsdp"))
        same(ddp, fsdp)
        for start in (key for key in alone if key.startswith("start ")):
            assert torch.equal(alone[start], fsdp[start])
        if name != "dropout":  # each process draws its own
            same(alone, fsdp)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_DDP)
def test_a_process_may_have_no_gradient_of_a_parameter(name: str, folders: dict[int, Path]) -> None:
    """Nor need any have one: then it stays as it was, without a state."""
    alone = load_file(folders[1] / f"{name} ddp")
    for processes in (2, 3):
        same(alone, load_file(folders[processes] / f"{name} ddp"))
    assert "blocks.0.scale|step" in alone and "blocks.0.never|step" not in alone


@pytest.mark.slow
def test_every_kind_starts_in_shards_as_it_does_whole(folders: dict[int, Path]) -> None:
    found = load_file(folders[2] / "fresh")
    assert len(found) > 40 and [kind for kind, equal in found.items() if not equal] == []
