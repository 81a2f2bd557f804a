"""Untrusted text in names, keys, arguments and files: what it means, and how it is printed."""

from __future__ import annotations

import ast
import json
import os
import pty
import shutil
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from running import furnish, script, started
from running import one_line as told

import minigpt
from minigpt.system.terminal import one_line, printable


@pytest.mark.parametrize("where", ["a=b", "training.x=1"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_run_in_a_folder_with_an_equals_sign_is_no_override(
    where: str, absolute: bool, trained: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / where))
    run = (folder if absolute else Path(where)) / "runs" / "small"
    words = f"data.source={folder / 'text.txt'}", "--allow-data-change"
    told(script("train.py", "--resume", run, *words, cwd=tmp_path), 2, f"--resume: {run} has done all its 8 steps")


def test_a_path_with_an_equals_sign_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = script("train.py", "--resume", "/a=b/runs/tiny", cwd=tmp_path)
    assert ended.code == 2 and ended.err.startswith("error: there is no run /a=b/runs/tiny"), ended


# ---- control characters ----

EVIL = "\x1b]0;owned\x07\x1b[2J\n\r\x85\u2028\u202e\x9b31m"


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal acts on, except its own line ends."""
    return [letter for letter in text if letter != "\n" and one_line(letter) != letter]


def test_everything_that_a_terminal_obeys_is_written_out() -> None:
    assert one_line(EVIL) == r"\x1b]0;owned\x07\x1b[2J\n\r\x85\u2028\u202e\x9b31m"
    assert one_line("né 🦉 日本 \u200d\\n") == "né 🦉 日本 \u200d\\n"
    assert printable("a\tb\n\x1b\r\n") == "a\tb\n\\x1b\\r\n"
    every = "".join(map(chr, range(0x11000)))
    assert all(unicodedata.category(letter) not in ("Cc", "Cs", "Zl", "Zp") for letter in one_line(every))


@pytest.mark.parametrize(
    ("name", "arguments", "lines"),
    [
        ("train.py", ["--config", "small.yaml", f"model.{EVIL}=1"], 1),
        ("train.py", ["--config", "small.yaml", f"model.x={EVIL}"], 1),
        ("train.py", ["--config", f"{EVIL}.yaml"], 1),
        ("train.py", ["--config", "keys.yaml"], 2),
        ("train.py", ["--config", "small.yaml", f"data.source={EVIL}"], 1),
        ("train.py", ["--config", "small.yaml", "data.source=texts"], 1),
        ("train.py", ["--resume", EVIL], 1),
        ("train.py", ["--config", "small.yaml", "--plugin", f"{EVIL}.py"], 1),
        ("train.py", ["--config", "small.yaml", f"--{EVIL}"], 1),
        ("sample.py", ["--run", EVIL], 1),
        ("sample.py", [f"--{EVIL}"], 1),
        ("compare.py", ["--config", "variants.yaml"], 2),
    ],
)
def test_a_mistake_obeys_nothing(name: str, arguments: list[str], lines: int, tmp_path: Path) -> None:
    """Escape sequences and line ends in arguments, keys, names of files and variants are shown, not sent."""
    furnish(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / f"{EVIL.replace('/', '')}.txt").write_bytes(b"\0")
    quoted = json.dumps(EVIL)
    (tmp_path / "keys.yaml").write_text(f"model: {{{quoted}: 1}}\n{quoted}: 2\n", encoding="utf-8")
    variants = f'compare: {{baseline: {quoted}}}\nvariants: {{{quoted}: {{model.x: 1}}, {quoted[:-1]}b": []}}\n'
    (tmp_path / "variants.yaml").write_text(variants, encoding="utf-8")
    ended = script(name, *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert obeyed(ended.out + ended.err) == []
    assert ended.err.count("\n") == lines, ended.err


def test_what_a_run_says_obeys_nothing(tmp_path: Path) -> None:
    """Nor do the names of its texts, and what it writes."""
    furnish(tmp_path)
    (tmp_path / f"{EVIL}.txt").write_text("a\x1b[31mb\x9b\r" * 200, encoding="utf-8")
    trained = script("train.py", "--config", "small.yaml", f"data.source={EVIL}.txt", cwd=tmp_path)
    assert trained.code == 0 and obeyed(trained.out) == []
    assert one_line(f"{EVIL}.txt") in trained.out and "\n    " in trained.out
    shown = script("show_attention.py", "--prompt", "a\x1b[31m", cwd=tmp_path)
    assert shown.code == 0 and obeyed(shown.out) == []
    to_a_file = script("sample.py", "--prompt", "a\x1b[31m", cwd=tmp_path)
    assert to_a_file.out.startswith("a\x1b[31m")  # as it is: no terminal reads it


def test_a_sample_on_a_terminal_obeys_nothing(tmp_path: Path) -> None:
    furnish(tmp_path)
    (tmp_path / "text.txt").write_text("a\x1b[31mb\x9b\r" * 200, encoding="utf-8")
    assert script("train.py", "--config", "small.yaml", cwd=tmp_path).code == 0
    ours, theirs = pty.openpty()
    with started("sample.py", "--prompt", "a\x1b[31m", cwd=tmp_path, terminal=theirs) as running:
        os.close(theirs)
        read = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 1 << 16):
                read += piece
        assert running.wait() == 0
    os.close(ours)
    assert rb"a\x1b[31m" in read and b"\x1b" not in read


def test_no_file_prints_by_itself() -> None:
    """Two functions print lines and make them printable, in report.py and terminal.py; texts that stream are others,
    and so is the list of commands, which is there before anything is imported.

    A lesson is a notebook too, and a notebook prints.
    """
    root = Path(minigpt.__file__).parents[1]
    allowed = {"report.py", "terminal.py", "learn_pieces.py", "sample.py", "__main__.py"}
    for path in [*(root / "minigpt").rglob("*.py"), *(root / "scripts").glob("*.py")]:
        calls = [node.func.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if is_call(node)]
        assert "print" not in calls or path.name in allowed or path.name.startswith("lesson_"), path


def is_call(node: Any) -> bool:
    """Whether a node of Python's syntax calls something by its name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
