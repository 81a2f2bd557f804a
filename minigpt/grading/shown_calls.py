"""Finds how a learner's file builds its own classes: `attention = MyAttention(48, 6)`, or a line below `__main__`.

A call that does not run when the file is loaded is run here, if it contains only numbers, dicts and names of the file.
Then no size has to be guessed.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

PLAIN = (ast.Constant, ast.Name, ast.Dict, ast.List, ast.Tuple, ast.keyword, ast.Call, ast.BinOp, ast.UnaryOp,
         ast.operator, ast.unaryop, ast.expr_context)  # fmt: skip
BUILDERS = ("dict", "SimpleNamespace", "Namespace")


@dataclass(frozen=True)
class Example:
    """A call of a class in the file that defines the class."""

    text: str
    make: Callable[[], Any]
    numbers: Mapping[str, int]
    """The integers that the call passes, by the names of the arguments, or by the keys of a dict."""


def examples(kind: type) -> list[Example]:
    """The calls of a class in the file that defines it, the last first; [] if none can be run."""
    module = sys.modules.get(kind.__module__)
    try:
        tree = ast.parse(inspect.getsource(module)) if module else None
    except (OSError, TypeError, SyntaxError):
        return []
    if tree is None:
        return []
    names, found = dict(vars(module)), list[Example]()
    for statement in statements(tree.body):
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == kind.__name__:
                found += [example for example in [example_of(kind, call, dict(names))] if example]
        if isinstance(statement, ast.Assign) and plain(statement.value, names):
            with suppress(Exception):  # the learner's code may raise anything
                exec(compile(ast.Module([statement], []), "<example>", "exec"), names)
    return found[::-1]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements outside of functions and classes, and those in functions without arguments (`main`)."""
    for statement in body:
        runs = isinstance(statement, ast.FunctionDef) and not statement.args.args
        if isinstance(statement, (ast.If, ast.With, ast.For, ast.FunctionDef)):
            yield from statements(statement.body) if runs or not isinstance(statement, ast.FunctionDef) else ()
        elif not isinstance(statement, ast.ClassDef):
            yield statement


def plain(value: ast.expr, names: Mapping[str, Any]) -> bool:
    """Whether an expression holds only numbers, dicts, lists, names, and calls of what the file defines."""
    for node in ast.walk(value):
        if not isinstance(node, PLAIN):
            return False
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in BUILDERS and not inspect.isclass(names.get(name)):
                return False
    return True


def example_of(kind: type, call: ast.Call, names: dict[str, Any]) -> Example | None:
    """A call as an example; None if its arguments cannot be computed here, or do not fit."""
    if not plain(call, names):
        return None
    positional = ast.Tuple([*call.args], ast.Load())
    named = ast.Dict([ast.Constant(one.arg) for one in call.keywords], [one.value for one in call.keywords])
    whole = ast.fix_missing_locations(ast.Expression(ast.Tuple([positional, named], ast.Load())))
    try:
        given, more = eval(compile(whole, "<example>", "eval"), names)
        bound = inspect.signature(kind).bind(*given, **more)
    except Exception:  # an unknown name, or the learner's code, which may raise anything
        return None
    numbers = dict[str, int]()
    for name, value in bound.arguments.items():
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {name: value})
        numbers |= {str(key): number for key, number in held.items() if type(number) is int}
    return Example(ast.unparse(call), lambda: kind(*given, **more), numbers)
