"""Checksums: a run's config, tokenizer and plugins are those of its checkpoints; a changed one is named."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import one_line, script, well
from shim import OFF, under
from stopping import COMMANDS, SMALL, equal, furnished, metrics, resume, train, train_until

from minigpt.training.checkpoint import CheckpointError
from minigpt.training.run import open_checkpoint, read_config, seal

HERE = Path(__file__).parent
BPE = SMALL.replace("source: text.txt", "source: text.txt, tokenizer: {kind: bpe, vocab_size: 280}")
PLUGIN = "--plugin", "mine.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a BPE tokenizer and a plugin, with checkpoints of the steps 8 and 12."""
    folder = furnished(tmp_path_factory.mktemp("trained"), BPE)
    (folder / "mine.py").write_text("KIND = 1\n", encoding="utf-8")
    assert train(folder, "training.sample_every=0", *PLUGIN).code == 0
    return folder


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "home")
    return tmp_path / "home"


def damages(name: str, raw: bytes) -> Iterator[bytes]:
    """Flipped bits, and cuts at a line's end."""
    draw = random.Random(name)
    for _ in range(60):
        spoilt = bytearray(raw)
        spoilt[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        yield bytes(spoilt)
    lines = raw.splitlines(keepends=True)
    yield from (b"".join(lines[:count]) for count in range(0, len(lines), 1 + len(lines) // 30))


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json", "plugins/mine.py"])
def test_a_damaged_file_is_never_another_config_or_tokenizer(name: str, home: Path) -> None:
    file = home / "runs" / "small" / name
    raw, run = file.read_bytes(), home / "runs" / "small"
    saved = seal(run)
    assert saved == open_checkpoint(run)[0].seal
    for number, spoilt in enumerate(damages(name, raw)):
        file.write_bytes(spoilt)
        assert [each for each, digest in seal(run).items() if digest != saved[each]] == [name]
        if number % 10 == 0:  # the checkpoint, which takes longer to read, is refused for its seal
            with pytest.raises(CheckpointError, match=re.escape(f"{file}: not what it was when step-000012 was saved")):
                open_checkpoint(run)
    file.write_bytes(raw)
    assert open_checkpoint(run)[0].state["step"] == 12


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer.json", "plugins/mine.py", "metrics.jsonl"])
def test_a_file_without_end_is_refused_by_its_size(name: str, home: Path) -> None:
    """Before it is read: the server would end a command that reads so much for longer than it may."""
    os.truncate(home / "runs" / "small" / name, 5 << 30)
    for command in COMMANDS.values() if name != "metrics.jsonl" else [COMMANDS["resume"]]:
        ended = script(*command, cwd=home)
        one_line(ended, 2)
        assert re.search(f"{name}: (5,368,709,120 bytes|larger than)", ended.err), ended


CHANGES = ("config.yaml", "max_steps: 12", "max_steps: 13"), ("tokenizer.json", " ", "  "), ("tokenizer.json", "", "")


@pytest.mark.parametrize(("command", "change"), [*zip(COMMANDS, CHANGES)], ids=COMMANDS)
def test_every_command_names_it(command: str, change: tuple[str, str, str], home: Path) -> None:
    (name, old, new), path, before = change, home / "runs" / "small" / change[0], metrics(home)
    path.write_text(path.read_text("utf-8").replace(old, new, 1), encoding="utf-8") if old else path.unlink()
    why = "not what it was" if old else "missing"
    one_line(script(*COMMANDS[command], cwd=home), 4, f"checkpoint refused: skipped: runs/small/{name}: {why}")
    assert metrics(home) == before


def test_what_is_changed_on_purpose_holds_for_older_checkpoints_too(home: Path) -> None:
    """The newest checkpoint after the change is damaged: the one before the change goes on with what was changed."""
    assert resume(home, "training.max_steps=16").code == 0
    run = home / "runs" / "small"
    shutil.rmtree(run / "checkpoints" / "step-000016")
    saved, notes = open_checkpoint(run)
    assert saved.state["step"] == 12 and notes == [] and read_config(run).training.max_steps == 16
    assert resume(home).code == 0
    config = (run / "config.yaml").read_text("utf-8")
    (run / "config.yaml").write_text(config.replace("max_steps: 16", "max_steps: 17"), encoding="utf-8")
    assert resume(home).code == 4


def test_a_crash_while_a_change_is_written_down_leaves_a_run_that_goes_on(home: Path) -> None:
    """SIGKILL before every file-system operation: the config is the old or the new one, and nothing is missing."""
    (home / "mine.py").write_text("KIND = 2\n", encoding="utf-8")
    said = script(HERE / "rewrite.py", home / "runs" / "small", home / "mine.py", cwd=home, **under(home, OFF))
    found = [json.loads(line) for line in well(said).splitlines()]
    assert len(found) > 15 and [each["code"] for each in found] == [-9] * (len(found) - 1) + [0]
    for each in found:
        assert each["step"] == 12 and each["notes"] == [] and each["meant"] and each["max_steps"] in (12, 99)
        assert each["copies"]["mine.py"] in ("KIND = 1\n", "KIND = 2\n")
        if each["copies"]["mine.py"] == "KIND = 2\n":
            assert each["copies"]["mine.py.until-step-12"] == "KIND = 1\n"
    assert found[0]["max_steps"] == 12 and found[-1]["max_steps"] == 99


def test_a_line_of_changes_that_was_cut_off_swallows_no_other(home: Path) -> None:
    (home / "runs" / "small" / "changes.jsonl").write_bytes(b'{"step": 12, "chan')
    assert resume(home, "training.max_steps=14").code == 0
    shutil.rmtree(home / "runs" / "small" / "checkpoints" / "step-000014")
    assert resume(home).code == 0


def test_lines_of_the_metrics_that_are_missing_are_counted(home: Path) -> None:
    path = home / "runs" / "small" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b'{"step": 4, "train/lo\n', *lines[6:]]))
    ended = resume(home, "training.max_steps=14")
    warning = "warning: runs/small/metrics.jsonl: 3 of 12 steps have no line, 1 lines are damaged and left out"
    assert ended.code == 0 and warning in ended.out, ended
    assert [line["step"] for line in metrics(home)] == [1, 2, 3, *range(7, 15)]
    path.unlink()
    assert "metrics.jsonl: 14 of 14 steps have no line" in resume(home, "training.max_steps=16").out


@pytest.mark.parametrize(
    "act", ["os.remove({0})", "os.rename({0}, 'elsewhere')", "Path({0} + '2').touch(); os.replace({0} + '2', {0})"]
)
def test_metrics_that_are_removed_while_training_are_written_again(act: str, straight: Path, tmp_path: Path) -> None:
    folder = furnished(tmp_path)
    ended = train_until(folder, act.format("'runs/small/metrics.jsonl'"), "minigpt.training.loop", "accumulate", 6)
    assert ended.code == 0 and ended.err == "", ended
    assert ended.out.count("warning: runs/small/metrics.jsonl: it was removed or replaced") == 1
    assert equal(folder, straight)
