"""Folders that are written beside their place: whole or not there, and what a killed process leaves is removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minigpt.system import beside as beside_module
from minigpt.system.beside import Beside, sweep, written_beside
from minigpt.system.folder import write_whole
from minigpt.system.moving import rename

# Writes half a folder, says so, and waits to be killed.
HALF = """
import sys, time
from pathlib import Path
from minigpt.system.beside import written_beside
with written_beside(Path(sys.argv[1])) as beside:
    (beside.path / "half").write_text("half")
    if sys.argv[2] == "aside":
        Path(sys.argv[1]).rename(beside.path.with_name(beside.path.name.replace("writing", "before")))
    print("ready", flush=True)
    time.sleep(60)
"""


def halfway(place: Path, what: str = "writing") -> subprocess.Popen[bytes]:
    """A process that writes beside a place, until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HALF, str(place), what], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "out"
    with written_beside(place) as beside:
        (beside.path / "a").write_text("one")
        assert not place.exists()
        beside.put(place)
    assert (names(tmp_path), names(place)) == (["out"], ["a"])
    with pytest.raises(OSError, match="full"), written_beside(place) as beside:
        raise OSError("full")
    with written_beside(place) as beside:
        (beside.path / "b").write_text("two")
        beside.put(place)
    assert (names(tmp_path), names(place)) == (["out"], ["b"])  # what was there is replaced as a whole


def test_a_name_that_an_empty_folder_reserves_is_never_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a training of that name could begin between two renames, and have its folder replaced."""
    place, free = tmp_path / "out", list[bool]()

    def watched(old: Path, new: Path) -> None:
        rename(old, new)
        free.append(not place.exists())

    monkeypatch.setattr(beside_module, "rename", watched)
    place.mkdir()
    with written_beside(place) as beside:
        (beside.path / "a").write_text("one")
        beside.put(place)
    assert free == [False] and names(place) == ["a"]


def test_what_a_killed_process_left_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    process = halfway(tmp_path / "out")
    left = f".out.writing-{process.pid}"
    sweep(tmp_path)
    assert names(tmp_path) == [left]
    killed(process)
    assert names(tmp_path) == [left]
    with written_beside(tmp_path / "another"):
        assert left not in names(tmp_path)
    assert names(tmp_path) == []


def test_what_a_killed_process_put_aside_comes_back(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    process = halfway(tmp_path / "out", "aside")
    sweep(tmp_path)
    assert f".out.before-{process.pid}" in names(tmp_path)  # its process goes on
    killed(process)
    sweep(tmp_path)
    assert (names(tmp_path), names(tmp_path / "out")) == (["out"], ["mine"])


def test_others_folders_are_left_alone(tmp_path: Path) -> None:
    for name in (".out.writing-x", ".out.writing-1", "out.writing-2", ".out.before"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    (tmp_path / "there").mkdir()
    (tmp_path / ".out.writing-3").symlink_to(tmp_path / "there", target_is_directory=True)
    (tmp_path / ".empty.writing-4").mkdir()  # its process was killed before it was locked
    before = names(tmp_path)
    sweep(tmp_path)
    assert names(tmp_path) == [name for name in before if name != ".empty.writing-4"]


def test_a_folder_of_the_same_number_on_another_machine_is_not_taken(tmp_path: Path) -> None:
    """In containers that share a folder, processes have equal numbers."""
    first, second = Beside(tmp_path / "out"), Beside(tmp_path / "out")
    assert names(tmp_path) == [f".out.writing-{os.getpid() + n}" for n in (0, 1)]
    first.lock.__exit__()
    second.lock.__exit__()


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, texts = tmp_path / "file", ["a" * 1000, "b" * 1000]
    with ThreadPoolExecutor(2) as pool:
        for writing in [pool.submit(write_whole, path, text) for _ in range(100) for text in texts]:
            writing.result()
    assert path.read_text() in texts and names(tmp_path) == ["file"]
