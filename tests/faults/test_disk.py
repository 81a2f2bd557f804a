"""A disk that is full, read-only or removed: one line, exit code 5, and everything saved before is complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Ended, one_line, script
from shim import FULL, under
from stopping import STEP, equal, furnished, leftovers, metrics, newest, resume, same, train, train_until, whole_lines

START = ("train.py", "--config", "small.yaml", "training.sample_every=0")


IO_ERROR = 5, "input/output error: "


def needed_and_free(ended: Ended) -> tuple[int, int]:
    """The bytes that the line tells."""
    found = re.search(r"needs ([\d,]+) bytes and ([\d,]+) are free", ended.err)
    assert found, ended.err
    needed, free = (int(number.replace(",", "")) for number in found.groups())
    return needed, free


# ---- full ----


def test_full_during_the_second_save(straight: Path, tmp_path: Path) -> None:
    """From some operation on whatever is written there meets a full disk; then there is room, and the run goes on."""
    ended = script(*START, cwd=furnished(tmp_path), **under(tmp_path, FULL, 9, ".writing-000008"))
    one_line(ended, *IO_ERROR)
    needed, _ = needed_and_free(ended)
    tensors = sum(path.stat().st_size for path in newest(tmp_path).path.glob("*.safetensors"))
    assert 0.5 * tensors < needed <= tensors  # the numbers, without their names
    assert newest(tmp_path).state["step"] == 4 and leftovers(tmp_path) == []
    resumed = resume(tmp_path)
    assert resumed.code == 0 and "skipped" not in resumed.out
    assert equal(tmp_path, straight)


def test_a_limit_on_the_size_of_files(straight: Path, tmp_path: Path) -> None:
    """RLIMIT_FSIZE lets logs and the config be written, and no weights."""
    limit = newest(straight).path.joinpath("optimizer.safetensors").stat().st_size - 1
    act = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    ended = train_until(furnished(tmp_path), act, *STEP, 1)
    one_line(ended, *IO_ERROR)
    needed_and_free(ended)
    assert os.listdir(tmp_path / "runs" / "small" / "checkpoints") == [] and leftovers(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", disk], capture_output=True)
        if shutil.which("mount")
        else None
    )
    if mounted is None or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here (that takes root)")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_small_disk_fills_up(small_disk: Path) -> None:
    ended = train(furnished(small_disk), "training.sample_every=0", "training.checkpoint_every=1")
    one_line(ended, *IO_ERROR)
    needed, free = needed_and_free(ended)
    assert free < needed < 128 * 1024
    step = newest(small_disk).state["step"]
    assert step >= 1 and leftovers(small_disk) == []
    assert [line["step"] for line in metrics(small_disk)] == list(range(1, step + 2))


@pytest.mark.parametrize("name", ["metrics.jsonl", "loss.svg"])
def test_a_log_that_cannot_be_written_warns_once_and_training_goes_on(
    name: str, straight: Path, tmp_path: Path
) -> None:
    furnished(tmp_path)
    at = 4 if name == "metrics.jsonl" else 1
    ended = script("train.py", "--config", "small.yaml", cwd=tmp_path, **under(tmp_path, FULL, at, name))
    assert ended.code == 0 and ended.err == "", ended
    (warning,) = {line for line in ended.out.splitlines() if line.startswith("warning: ")}
    assert name in warning and ("No space left on device" in warning or "bytes could be written" in warning)
    assert ended.out.count(warning) == (1 if name == "metrics.jsonl" else 3)  # a picture a checkpoint
    assert same(newest(tmp_path), newest(straight))
    assert whole_lines(tmp_path)


def test_full_while_tokenizing(tmp_path: Path) -> None:
    furnished(tmp_path)
    data = tmp_path / "data"
    ended = script(*START, cwd=tmp_path, MINIGPT_DATA=str(data), **under(data, FULL, 3))
    one_line(ended, *IO_ERROR)
    assert leftovers(tmp_path) == [] and not (tmp_path / "runs").exists()


# ---- read-only, or gone ----


def test_a_folder_for_runs_that_is_none(tmp_path: Path) -> None:
    """A link to a disk that is not there; a file."""
    furnished(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "unplugged" / "runs")
    one_line(train(tmp_path), *IO_ERROR)
    (tmp_path / "runs").unlink()
    (tmp_path / "runs").write_text("", encoding="utf-8")
    one_line(train(tmp_path), *IO_ERROR)


@pytest.mark.parametrize("what", ["new", "resumed"])
def test_a_read_only_folder_is_noticed_before_the_first_step(what: str, straight: Path, tmp_path: Path) -> None:
    furnished(tmp_path)
    shutil.copytree(straight / "runs", tmp_path / "runs")
    before = metrics(tmp_path)
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "--bind", "-o", "ro", tmp_path / "runs", tmp_path / "runs"], capture_output=True
        ).returncode
        == 0
    )
    if os.geteuid() == 0 and not mounted:
        pytest.skip("root may write everywhere, and a folder cannot be mounted read-only here")
    folders = [tmp_path / "runs", *(path for path in (tmp_path / "runs").rglob("*") if path.is_dir())]
    for folder in folders if not mounted else []:
        folder.chmod(0o500)
    try:
        one_line(train(tmp_path) if what == "new" else resume(tmp_path, "training.max_steps=24"), *IO_ERROR)
    finally:
        for folder in folders if not mounted else []:
            folder.chmod(0o700)
        if mounted:
            subprocess.run(["umount", tmp_path / "runs"], check=True)
    assert metrics(tmp_path) == before and sorted(os.listdir(tmp_path / "runs")) == ["small"]


@pytest.mark.parametrize("moment", [(*STEP, 3), ("minigpt.training.trainer", "signals", 1)])
def test_a_folder_that_vanishes_within_the_training_or_before_it(moment: tuple[str, str, int], tmp_path: Path) -> None:
    """The run ends at the next checkpoint, and makes up no folder that looks like a run."""
    one_line(train_until(furnished(tmp_path), "shutil.rmtree('runs/small')", *moment), *IO_ERROR)
    assert not (tmp_path / "runs" / "small").exists()


# ---- refused: another program has it open ----

REFUSED = """
import os
from minigpt.system import moving
moving.PATIENCE, plain = 0.2, os.replace

def replace(old, new):
    if {where}:
        raise PermissionError(13, "Access is denied")
    plain(old, new)

os.replace = replace
"""


def with_refused(folder: Path, where: str, *arguments: object) -> Ended:
    """A run in which the system refuses some renames for good, as Windows does while another program reads."""
    code = REFUSED.format(where=where)
    (furnished(folder) / "refused.py").write_text(f"exec({code!r}, {{}})", "utf-8")  # no mistake of the plugin
    return train(folder, "--plugin", "refused.py", *arguments)


def kept(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "runs" / "small" / "checkpoints"))


@pytest.mark.parametrize("large", [False, True])
def test_a_checkpoint_that_is_refused_its_place_is_told_and_training_goes_on(
    large: bool, straight: Path, tmp_path: Path
) -> None:
    (tmp_path / "large.py").write_text(f"import minigpt.training.saver as s\nif {large}: s.LARGE = 0\n", "utf-8")
    ended = with_refused(tmp_path, "str(new).endswith('step-000008')", "--plugin", "large.py")
    one_line(ended, 0)
    assert ended.err.startswith("warning: runs/small/checkpoints/.writing-000008-")
    assert " cannot be renamed to step-000008: Access is denied (tried for 0.2 s" in ended.err
    assert ended.err.endswith("training goes on, and the next checkpoint is tried\n")
    assert kept(tmp_path) == ["step-000004", "step-000012"] and leftovers(tmp_path) == []
    assert same(newest(tmp_path), newest(straight))


def test_the_last_checkpoint_must_be_there(straight: Path, tmp_path: Path) -> None:
    ended = with_refused(tmp_path, "str(new).endswith('step-000012')")
    one_line(ended, *IO_ERROR)
    assert "cannot be renamed to step-000012" in ended.err and leftovers(tmp_path) == []
    assert kept(tmp_path) == ["step-000004", "step-000008"]
    assert resume(tmp_path).code == 0 and same(newest(tmp_path), newest(straight))


def test_an_old_checkpoint_that_is_not_let_go_stays_and_ends_nothing(straight: Path, tmp_path: Path) -> None:
    ended = with_refused(tmp_path, "'.removing' in str(new)", "training.checkpoint_every=3")
    assert ended.code == 0 and ended.err.count("\n") == 3, ended  # at step 9; at step 12 for two of them
    assert ended.err.startswith("warning: runs/small/checkpoints/step-000003 stays there: ")
    assert kept(tmp_path) == [f"step-{step:06d}" for step in (3, 6, 9, 12)]
    assert train(tmp_path, "--name", "small", "training.max_steps=1").code == 0  # another run is not hindered
    assert resume(tmp_path, "training.max_steps=13").code == 0
    assert kept(tmp_path) == ["step-000012", "step-000013"]


def test_a_folder_that_a_disk_is_mounted_on_stays_and_ends_nothing(tmp_path: Path) -> None:
    """The system itself refuses to rename it (EBUSY), for as long as the run lasts."""
    place = tmp_path / "runs" / "small" / "checkpoints" / "step-000004"
    mount = ["mount", "--bind", str(place), str(place)]
    act = f"import subprocess, minigpt.system.moving as m; m.PATIENCE = 0.2; subprocess.run({mount})"
    ended = train_until(furnished(tmp_path), act, *STEP, 6)
    if subprocess.run(["umount", place], capture_output=True).returncode:
        pytest.skip("a folder cannot be mounted here (that takes root)")
    one_line(ended, 0, "Device or resource busy (tried for")
    assert kept(tmp_path) == ["step-000004", "step-000008", "step-000012"]


SCANNER = """
import sys, time
from pathlib import Path
print("ready", flush=True)
while True:
    for folder in Path(sys.argv[1]).glob(".removing-*"):
        try:
            (folder / str(time.monotonic_ns())).touch()
        except OSError:
            pass
"""


def test_a_program_that_puts_files_into_what_is_removed_ends_nothing(straight: Path, tmp_path: Path) -> None:
    """What it keeps from being removed is removed at the next save without it."""
    (furnished(tmp_path) / "hasty.py").write_text("import minigpt.system.moving as m; m.PATIENCE = 0.1", "utf-8")
    folder = tmp_path / "runs" / "small" / "checkpoints"
    command = [sys.executable, "-c", SCANNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as scanner:
        assert scanner.stdout and scanner.stdout.readline()
        ended = train(tmp_path, "--plugin", "hasty.py", "training.checkpoint_every=1", "training.sample_every=0")
        scanner.kill()
    assert ended.code == 0, ended
    assert [line for line in ended.err.splitlines() if " stays there: " not in line] == []
    assert same(newest(tmp_path), newest(straight))
    assert resume(tmp_path, "training.max_steps=13").code == 0 and leftovers(tmp_path) == []
