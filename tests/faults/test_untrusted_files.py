"""Untrusted files: nothing in them executes, memory stays bounded, and each is refused by name."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import untrusted
from running import forked, slow_but
from untrusted import CONFIGS, MANIFESTS, STATES, TENSORS, TOKENIZERS, made

from minigpt.training.checkpoint import FORMAT, CheckpointError, prune, save, tensors_of

HERE = Path(__file__).parent
FILES: dict[str, Any] = {**TOKENIZERS, **CONFIGS}


class Reader:
    """The process that opens them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process = forked([0, 1], argv=[str(HERE / "open_untrusted.py")], cwd=str(folder))

    def refuses(self, what: str, path: Path, named: Path | None = None) -> str:
        """Have a file opened: it must be refused in one line that names it, in time, and nothing else may happen."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked and answers
        asked.write(json.dumps({"what": what, "path": str(path)}) + "\n")
        asked.flush()
        answer: dict[str, Any] = json.loads(answers.readline() or '{"refusal": "the reader died"}')
        refusal: str = answer["refusal"]
        kind = "CheckpointError: " if what == "checkpoint" else "ConfigError: " if what == "config" else "UserError: "
        assert refusal.startswith((kind, "UserError: ")), refusal[:400]
        assert str(named or path) in refusal and "\n" not in refusal and len(refusal) < 700, refusal[:1000]
        assert answer["noted"] == []
        assert answer["seconds"] < 20  # most take milliseconds, the largest one or two seconds
        assert not (self.folder / "CANARY").exists()
        return refusal


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("reader"))
    yield made
    assert made.process.stdin and made.process.stdout
    made.process.stdin.close()
    made.process.wait()
    made.process.stdout.close()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A good checkpoint, to be changed by an attacker."""
    return untrusted.checkpoint(tmp_path / "checkpoints")


@pytest.mark.parametrize("name", [*untrusted.FILES, "manifest.json"])
def test_a_pickle_under_the_name_of_a_checkpoints_file(reader: Reader, good: Path, name: str) -> None:
    for _, raw in untrusted.pickles(reader.folder / "CANARY"):
        (good / name).write_bytes(raw)
        if name != "manifest.json":
            untrusted.update_manifest(good)
        assert name in reader.refuses("checkpoint", good.parent, good)


def test_the_canary_sings(tmp_path: Path) -> None:
    """Loaded as what it is, each pickle does run a command: the tests here would notice."""
    for name, raw in untrusted.pickles(tmp_path / "CANARY"):
        if name.startswith("torch"):
            torch.load(io.BytesIO(raw), weights_only=False)
        else:
            pickle.loads(raw)
        (tmp_path / "CANARY").unlink()


@pytest.mark.parametrize("what", slow_but(TENSORS, *TENSORS.keys() - {"a header of 100 MB"}))
def test_untrusted_tensors(reader: Reader, good: Path, what: str) -> None:
    for name in untrusted.FILES[:2]:
        original = (good / name).read_bytes()
        (good / name).write_bytes(made(TENSORS[what]))
        untrusted.update_manifest(good)
        if name.startswith("model") or what not in ("NaN", "infinity"):  # a memory of squares may overflow
            assert name in reader.refuses("checkpoint", good.parent, good) or what in ("NaN", "infinity")
        (good / name).write_bytes(original)


@pytest.mark.parametrize("what", STATES)
def test_an_untrusted_state(reader: Reader, good: Path, what: str) -> None:
    (good / "state.json").write_bytes(made(STATES[what]))
    untrusted.update_manifest(good)
    assert "state.json" in reader.refuses("checkpoint", good.parent, good)


@pytest.mark.parametrize("what", MANIFESTS)
def test_an_untrusted_manifest(reader: Reader, good: Path, what: str) -> None:
    (good.parent.parent / "secret.txt").write_bytes(b"")
    for name in untrusted.FILES:
        (good / name).write_bytes(b"")
    manifest = {"format": FORMAT, "files": MANIFESTS[what], "run": {}}
    (good / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    reader.refuses("checkpoint", good.parent, good)


@pytest.mark.parametrize("what", slow_but(FILES, *FILES.keys() - {"two million empty lists"}))
def test_an_untrusted_tokenizer_or_config(reader: Reader, tmp_path: Path, what: str) -> None:
    if what in TOKENIZERS:
        (tmp_path / "tokenizer.json").write_bytes(made(TOKENIZERS[what]))
        reader.refuses("tokenizer", tmp_path / "tokenizer.json")
    if what in CONFIGS:
        (tmp_path / "config.yaml").write_text(CONFIGS[what], encoding="utf-8")
        reader.refuses("config", tmp_path / "config.yaml")


@pytest.mark.parametrize("target", ["secret.txt", "/dev/zero", "/dev/tty", "pipe", "folder", "nowhere"])
def test_links_and_what_is_no_file(reader: Reader, good: Path, target: str) -> None:
    """A name that leads out of the folder, or to something that never ends or never answers, is not followed."""
    outside = good.parents[1] / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "secret.txt").write_text('{"kind": "byte"}', encoding="utf-8")
    os.mkfifo(outside / "pipe")
    for name in (*untrusted.FILES, "manifest.json"):
        kept = (good / name).read_bytes()
        (good / name).unlink()
        (good / name).symlink_to(outside / target)
        assert name in reader.refuses("checkpoint", good.parent, good)
        (good / name).unlink()
        (good / name).write_bytes(kept)
    tokenizer = outside / "tokenizer.json"
    tokenizer.symlink_to(target)
    assert "plain file" in reader.refuses("tokenizer", tokenizer) or target == "nowhere"
    if target not in ("secret.txt", "nowhere"):
        config = outside / "config.yaml"
        config.symlink_to(target)
        assert "not a plain file" in reader.refuses("config", config)
    if target == "pipe":
        (good / "state.json").unlink()
        os.mkfifo(good / "state.json")
        reader.refuses("checkpoint", good.parent, good)


def test_a_link_to_the_checkpoints_of_another_run(reader: Reader, good: Path, tmp_path: Path) -> None:
    """To resume there would replace and remove what is not this run's."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(good.parent)
    reader.refuses("checkpoint", tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="symbolic link"):
        save(tmp_path / "run" / "checkpoints", 11, tensors_of(torch.nn.Linear(2, 1)), {}, {})
    with pytest.raises(CheckpointError, match="symbolic link"):
        prune(tmp_path / "run" / "checkpoints", 0)
    assert [path.name for path in good.parent.iterdir()] == ["step-000010"]


def test_good_files_are_taken(reader: Reader, good: Path, tmp_path: Path) -> None:
    """The reader that refuses all of the above opens what is right."""
    (tmp_path / "tokenizer.json").write_text('{"kind": "byte"}', encoding="utf-8")
    (tmp_path / "config.yaml").write_text("model: {n_layer: 1}", encoding="utf-8")
    for what, path in (("checkpoint", good.parent), ("tokenizer", "tokenizer.json"), ("config", "config.yaml")):
        with pytest.raises(AssertionError):
            reader.refuses(what, tmp_path / path)
