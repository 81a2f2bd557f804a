"""The code between x and the output stays short, and contains no faster form."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.values import Values
from minigpt.seeing.reading import PACKAGE, functions_on_the_way, lines_of, table


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
        modules = [n.module or "" for n in ast.walk(ast.parse(path.read_text("utf-8")))
                   if isinstance(n, ast.ImportFrom)]  # fmt: skip
        assert not [module for module in modules if module.startswith("minigpt.fast")], path


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "one by hand": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
    "an RMSNorm": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt(),
    "an activation": lambda x: torch.nn.functional.gelu(3 * x + 1, approximate="tanh"),
    "gates": lambda x: torch.nn.functional.silu(x) * x.flip(-1).sigmoid(),
    "a softmax": lambda x: x.softmax(-1) - 0.5 * x,
    "a logarithm": lambda x: x.log_softmax(-1),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_a_part_means_has_the_values_that_torch_gives(part: str) -> None:
    """The meanings of one text, evaluated for the numbers of another, are what torch computes for that one."""
    layer = torch.nn.Linear(5, 5).double()
    draw = torch.Generator().manual_seed(1)
    x, other = (torch.randn(1, T, 5, dtype=torch.float64, generator=draw) for T in (1, 7))
    with torch.no_grad():
        with Reading(__file__) as reading:
            reading.text(x)
            reading.parameters(layer)
            ids = reading.shadows.ids(PARTS[part](layer(x)))
        assert reading.inputs is not None
        atoms = [reading.of[number].terms[0][0] for number in reading.inputs.ravel().tolist()]
        values = Values(reading.of, dict(zip(atoms, other[0].T)), dict(layer.named_parameters()), 7)
        evaluated = torch.stack([values.of_number(number) for number in ids.ravel().tolist()], -1)
        torch.testing.assert_close(evaluated, PARTS[part](layer(other))[0], rtol=1e-9, atol=1e-12)
