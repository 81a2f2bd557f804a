"""Counts the lines of code that a reader needs to follow x through an attention layer to its output.

The rule: make one layer of a kind with a position, in plain form, and call it once as in training. Every function of
`minigpt` that runs during this counts with all its lines, also those that did not run, but without docstrings, comments
and blank lines. A statement over several lines counts once for each line. Functions that read configs are left out.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from minigpt.attention import Attention, Past, Position
from minigpt.model.config import ModelConfig

PACKAGE = Path(__file__).parents[1]
OPTIONS = PACKAGE / "config"


def functions_on_the_way(kind: str, position: str) -> dict[Path, list[CodeType]]:
    """The functions that run while a layer is made and called, by file, in the order of their first call."""
    model = ModelConfig(position=Position.kinds[position].Config(), attention=Attention.kinds[kind].Config())
    config, past, called = model.layer_attention(0), Past(), dict[CodeType, None]()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents and OPTIONS not in path.parents:
            called[frame.f_code] = None

    sys.setprofile(watch)
    try:
        config.component(config, model)(torch.zeros(1, 2, model.n_embd), past)
    finally:
        sys.setprofile(None)
    by_file: dict[Path, list[CodeType]] = defaultdict(list)
    for code in called:
        if code.co_name not in ("<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>"):  # inside another function
            by_file[Path(code.co_filename)].append(code)
    return dict(by_file)


def lines_of(path: Path, code: CodeType) -> int:
    """The number of code lines of a function, without its docstring, comments and blank lines."""
    source = path.read_text(encoding="utf-8")
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    node = next(n for n in nodes if n.name == code.co_name and _first_line(n) == code.co_firstlineno)
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    left_out = range(docstring.lineno, (docstring.end_lineno or 0) + 1) if docstring else range(0)
    lines = source.splitlines()
    numbers = (n for n in range(_first_line(node), (node.end_lineno or 0) + 1) if n not in left_out)
    return sum(1 for n in numbers if lines[n - 1].strip() and not lines[n - 1].strip().startswith("#"))


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def table(kind: str, position: str) -> tuple[list[str], int, int]:
    """Lines to print, the total number of code lines, and the number of files."""
    rows, total = [], 0
    by_file = functions_on_the_way(kind, position)
    for path, codes in by_file.items():
        counts = [(code.co_name, lines_of(path, code)) for code in codes]
        total += sum(count for _, count in counts)
        names = ", ".join(f"{name} {count}" for name, count in counts)
        rows.append(f"{sum(count for _, count in counts):4}  minigpt/{path.relative_to(PACKAGE)}: {names}")
    return [*rows, f"{total:4}  lines in {len(by_file)} files"], total, len(by_file)
