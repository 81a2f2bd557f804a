"""A script as an answer: the top-level lines of a file, from an input `x` that it creates to `out`, as a function of x.

Layers that earlier lines create are its parameters. The lines after x = torch.randn(B, T, C) run again for every
input; B, T and C are then the sizes of that input.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

INPUTS = ("randn", "rand", "ones", "zeros", "normal", "tensor")  # torch's functions that make an input
RUNS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.If)


class Script(nn.Module):
    """The lines of a script as a module: x (B, T, D) -> the last tensor that they assign."""

    def __init__(self, names: Mapping[str, Any], lines: list[ast.stmt], sizes: list[str], entry: str, last: str):
        super().__init__()
        for name, value in names.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
        code = compile(ast.Module(lines, []), str(names.get("__file__", "<script>")), "exec")

        def forward(x: Tensor) -> Any:
            given = dict(names) | dict(zip(sizes, x.shape)) | {entry: x}
            exec(code, given)
            return given[last]

        self.forward = forward


def script(names: Mapping[str, Any], text: str) -> Script | None:
    """The script of a file; None if no line creates an input, or no later line assigns a tensor like it."""
    body = ast.parse(text).body
    for number, line in enumerate(body):
        if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
            continue
        entry, call = line.targets[0].id, line.value
        made = names.get(entry)
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in [f"torch.{word}" for word in INPUTS]:
            continue
        if not isinstance(made, Tensor) or made.dim() not in (2, 3) or not made.is_floating_point():
            continue
        lines: list[ast.stmt] = [
            one for one in body[number + 1 :] if isinstance(one, RUNS) and not makes_layer(one, names)
        ]
        made_later = [target.id for one in lines if isinstance(one, ast.Assign) for target in one.targets
                      if isinstance(target, ast.Name)]  # fmt: skip
        last = [name for name in made_later if isinstance(value := names.get(name), Tensor)
                and value.dim() == made.dim() and value.shape[:-1] == made.shape[:-1]]  # fmt: skip
        if last:
            sizes = [one.id if isinstance(one, ast.Name) else "" for one in call.args]
            return Script(names, lines, sizes, entry, last[-1])
    return None


def makes_layer(line: ast.stmt, names: Mapping[str, Any]) -> bool:
    """Whether a line creates a layer, or is an `if __name__ == "__main__"` block."""
    if isinstance(line, ast.Assign):
        named = [one.id for target in line.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        return any(isinstance(names.get(name), nn.Module) for name in named)
    return isinstance(line, ast.If) and "__main__" in ast.unparse(line.test)
