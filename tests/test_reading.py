"""The code between x and the output stays short, and contains no faster form."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from minigpt.attention import Attention
from minigpt.inspection.reading import PACKAGE, functions_on_the_way, lines_of, table


def test_multi_head_with_rotary_is_ninety_lines_in_three_files_at_most() -> None:
    _, lines, files = table("multi_head", "rotary")
    assert lines <= 90
    assert files <= 3


COUNTED = '''
def three(x):
    """What it is.

    In more words.
    """
    # a comment

    means = [
        x]  # (T,)
    return means


def one(x): return x
'''


def test_docstrings_comments_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path, namespace = tmp_path / "counted.py", dict[str, Any]()
    path.write_text(COUNTED, encoding="utf-8")
    exec(compile(COUNTED, str(path), "exec"), namespace)
    assert [lines_of(path, namespace[name].__code__) for name in ("three", "one")] == [4, 1]


@pytest.mark.parametrize("kind", Attention.kinds)
def test_a_reader_of_the_textbook_never_meets_a_faster_form(kind: str) -> None:
    files = {path.relative_to(PACKAGE).parts[0] for path in functions_on_the_way(kind, "rotary")}
    assert files == {"attention"}


def test_no_file_of_the_textbook_imports_a_faster_form() -> None:
    for path in (*(PACKAGE / "attention").rglob("*.py"), *(PACKAGE / "model").rglob("*.py")):
        modules = [
            n.module or "" for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)
        ]
        assert not [module for module in modules if module.startswith("minigpt.fast")], path
