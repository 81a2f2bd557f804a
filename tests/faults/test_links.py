"""Links, pipes and devices at any depth of a run or a comparison: named in one line, and nothing outside is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from comparing import written
from running import script, started
from stopping import COMMANDS

from minigpt.system.errors import UserError
from minigpt.system.folder import refuse_links

MINE = "what I wrote\n"
DEEP = ["explorer.html", ".config.yaml.1", ".holder", "plugins/my.py", "checkpoints/step-000008/state.json", ".lock"]
DEEP += ["diverged/a/b/note", "samples.txt", "metrics.jsonl"]
IN_A_COMPARISON = ["page.html", "speeds.json"]
IN_A_COMPARISON += [
    f"one-head-seed-1/{name}"
    for name in ("config.yaml", "tokenizer.json", ".lock", "result.json", "checkpoints/step-000006")
]


@pytest.fixture
def home(home: Path) -> Path:
    """A folder with a run `small`, and beside it what is not the run's."""
    (home.parent / "outside").mkdir()
    (home.parent / "outside" / "note.txt").write_text(MINE, encoding="utf-8")
    return home


def untouched(home: Path) -> bool:
    """Whether all that is outside is as it was."""
    outside = home.parent / "outside"
    return os.listdir(outside) == ["note.txt"] and (outside / "note.txt").read_text("utf-8") == MINE


def refused(command: tuple[str, ...], home: Path, name: str) -> None:
    """A command ends at once with one line that names what is wrong, and leaves alone what is outside."""
    ended = script(*command, cwd=home)
    assert ended.code == 2 and ended.err.count("\n") == 1 and name in ended.err, ended
    assert untouched(home)


def spoilt(inside: Path, outside: Path) -> Iterator[None]:
    """At a place, one after another: links to a file, to nothing and to a folder, and a pipe."""
    inside.parent.mkdir(parents=True, exist_ok=True)
    for target in ("note.txt", "new.txt", ""):
        inside.unlink(missing_ok=True)
        inside.symlink_to(outside / target)
        yield
    inside.unlink()
    os.mkfifo(inside)
    yield


@pytest.mark.parametrize(("name", "command"), [*zip(DEEP, [*COMMANDS] * 3)])
def test_at_any_depth_of_a_run(name: str, command: str, home: Path) -> None:
    run = home / "runs" / "small"
    for number, _ in enumerate(spoilt(run / name, home.parent / "outside")):
        with pytest.raises(UserError, match=f"runs/small/{name}: not a plain file"):
            refuse_links(run)
        if number % 3 == 0:  # a link to a file, and a pipe
            refused(COMMANDS[command], home, f"runs/small/{name}: not a plain file")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_itself_a_link(command: str, home: Path) -> None:
    (home / "runs" / "small").rename(home / "real")
    (home / "runs" / "small").symlink_to(home / "real")
    refused(COMMANDS[command], home, f"runs/small: a symbolic link: give the folder itself, {home / 'real'}")


def test_an_untrusted_folder_among_the_runs_is_not_taken_for_the_newest(home: Path) -> None:
    """Neither a run whose checkpoints are a link, nor a link to a run: without a name, one's own run is meant."""
    shutil.copytree(home / "runs" / "small", home / "runs" / "strange")
    shutil.rmtree(home / "runs" / "strange" / "checkpoints")
    (home / "runs" / "strange" / "checkpoints").symlink_to(home / "runs" / "small" / "checkpoints")
    (home / "runs" / "link").symlink_to(home / "runs" / "strange")
    (home / "runs" / "strange" / "metrics.jsonl").touch()
    ended = script("train.py", "--resume", "training.max_steps=9", cwd=home)
    assert ended.code == 0 and "run: runs/small, resumed after step 8" in ended.out, ended


@pytest.mark.parametrize("name", IN_A_COMPARISON)
def test_at_any_depth_of_a_comparison(name: str, home: Path) -> None:
    written(home)
    for _ in islice(spoilt(home / "runs" / "compare" / "small" / name, home.parent / "outside"), 0, None, 3):
        refused(("compare.py", "--config", "small.yaml"), home, f"compare/small/{name}: not a plain file")


@pytest.mark.parametrize("name", ["one-head-seed-1", "one-head-seed-1/checkpoints", ""])
def test_a_folder_of_a_comparison_that_leads_out(name: str, home: Path) -> None:
    """What is in such a folder would be removed to make room for a run."""
    written(home)
    inside = home / "runs" / "compare" / "small" / name
    inside.parent.mkdir(parents=True)
    inside.symlink_to(home.parent / "outside")
    refused(("compare.py", "--config", "small.yaml"), home, "runs/compare/small")


def test_what_goes_away_while_it_is_looked_at_and_plain_folders_are_no_trouble(home: Path) -> None:
    (home / "runs" / "small" / "my notes" / "deep").mkdir(parents=True)
    (home / "runs" / "small" / "my notes" / "deep" / "a.txt").write_text(MINE, encoding="utf-8")
    for command in COMMANDS.values():
        assert script(*command, cwd=home).code == 0


# ---- files without an end, of which a user names one ----

ENDLESS = ("/dev/zero", "/proc/kmsg", "pipe")
READING = {
    "train.py --config {}.yaml": "{}.yaml",
    "compare.py --config {}.yaml": "{}.yaml",
    "train.py --config small.yaml --plugin {}.py": "{}.py",
    "train.py --config small.yaml data.source={}.txt": "{}.txt",
    "train.py --config small.yaml data.source={}-*.jsonl.gz": "{}-1.jsonl.gz",
    "sample.py --prompt-file {}.txt": "{}.txt",
    "check.py {}.py": "{}.py",
    "import_hf.py {}.gguf": "{}.gguf",
    "import_hf.py {}": "{}/config.json",
}


@pytest.mark.parametrize("target", ENDLESS)
@pytest.mark.parametrize("line", READING)
def test_a_file_without_an_end_is_named_and_not_read(line: str, target: str, home: Path) -> None:
    """Nor is a pipe opened, which would wait for somebody who writes."""
    if target.startswith("/") and not os.path.exists(target):
        pytest.skip(f"there is no {target} here")
    path = home / READING[line].format("endless")
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path) if target == "pipe" else path.symlink_to(target)
    command = line.format("endless").split()
    with started(*command, cwd=home) as running:
        said = running.rest()
        assert running.wait() == 2 and said.count("\n") == 1
    assert path.name in said
    kinds = ("not a plain file", "neither a file nor a folder", "a symbolic link")
    assert any(kind in said for kind in kinds), said
