"""Damaged checkpoints: refused, or skipped with a warning, and never loaded with wrong numbers."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import crash
import pytest

from minigpt.training.checkpoint import FILES, CheckpointError, load, newest, prune

ALL = (*FILES, "manifest.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 1 and 2; every number in them is the step."""
    for step in (1, 2):
        crash.write(tmp_path, step)
    return tmp_path


def spoilt(folder: Path, contents: Iterator[tuple[str, bytes]]) -> int:
    """Put each of these into step 2: it must be refused, and skipped for step 1. How many there were."""
    count, path = 0, folder / "step-000002"
    for name, raw in contents:
        original = (path / name).read_bytes()
        (path / name).write_bytes(raw)
        found, notes = newest(folder)
        assert found.path.name == "step-000001" and found.state["seconds"] == 0.5
        assert len(notes) == 1 and re.match(r"skipped: .*step-000002[/:]", notes[0])
        (path / name).write_bytes(original)
        count += 1
    assert crash.read(folder) == 2  # the damage was all there was to it
    return count


def test_100_flipped_bits(folder: Path) -> None:
    def flips() -> Iterator[tuple[str, bytes]]:
        draw = random.Random(300)
        for number in range(100):
            name = ALL[number % len(ALL)]
            raw = bytearray((folder / "step-000002" / name).read_bytes())
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
            yield name, bytes(raw)

    assert spoilt(folder, flips()) == 100


def test_cut_short_anywhere(folder: Path) -> None:
    def cuts() -> Iterator[tuple[str, bytes]]:
        for name in ALL:
            raw = (folder / "step-000002" / name).read_bytes()
            for length in range(0, len(raw), 7):
                yield name, raw[:length]

    assert spoilt(folder, cuts()) > 90


def test_a_file_of_another_checkpoint(folder: Path) -> None:
    others = ((name, (folder / "step-000001" / name).read_bytes()) for name in ALL)
    assert spoilt(folder, others) == 4


def test_a_checkpoint_under_another_name_is_refused(folder: Path) -> None:
    """Its numbers are whole, and of another step."""
    (folder / "step-000002").rename(folder / "step-000009")
    with pytest.raises(CheckpointError, match="step 2 is not the one of the folder"):
        load(folder / "step-000009")
    assert newest(folder)[0].state["step"] == 1


def test_pruning_never_removes_the_last_good_one(folder: Path) -> None:
    """A disk that damages whatever is newest: damaged ones do not count among those that are kept."""
    for step in (3, 4):
        shutil.copytree(folder / "step-000002", folder / f"step-{step:06d}")
        (folder / f"step-{step:06d}" / "state.json").write_text("{}", encoding="utf-8")
    prune(folder, 1)
    assert crash.read(folder) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["step-000002", "step-000003", "step-000004"]


def test_a_whole_checkpoint_is_never_replaced(folder: Path) -> None:
    """To replace it would take two renames, and between them there would be none."""
    with pytest.raises(FileExistsError, match="step-000002 is there already, and whole"):
        crash.write(folder, 2)
    assert crash.read(folder) == 2
    (folder / "step-000002" / "state.json").unlink()
    crash.write(folder, 2)  # one that is skipped is
    assert crash.read(folder) == 2


@pytest.mark.parametrize("name", [".DS_Store", "._model.safetensors", "Thumbs.db", "desktop.ini", ".nfs000000000a2b"])
def test_what_a_system_leaves_where_it_has_looked_is_no_damage(name: str, folder: Path) -> None:
    (folder / "step-000002" / name).write_bytes(b"Bud1")
    assert newest(folder)[0].path.name == "step-000002"
    prune(folder, 1)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000002"]
