"""Small changes in the code of a kind: one token of one of its steps is another one.

A learner's program that computes what a changed kind computes has the mistake that the change makes. Only functions
that run are changed: their code takes the place of the original's inside the same functions, and is taken back.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import re
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# In a rule, f is a function of torch or of the module, p any function, n and m are names, v is no constant, *r and **k
# are further arguments, and another letter is anything.
MUTATED = {
    "operator": "a + b -> a - b; a - b -> a + b; a * b -> a / b; a / b -> a * b; a ** b -> a * b; a & b -> a | b; "
    "a | b -> a & b; a % b -> a // b; a // b -> a % b",
    "sign": "-a -> a; +a -> a; ~a -> a; not a -> a",
    "comparison": "a < b -> a <= b; a <= b -> a < b; a > b -> a >= b; a >= b -> a > b; "
    "a == b -> a != b; a != b -> a == b",
    "no .mT": "a.mT -> a",
}
LEFT_OUT = {
    "left out": "a * b -> a; a * b -> b; a / b -> a; a + b -> a; a + b -> b; a - b -> a; a - b -> -b; a & b -> a; "
    "a & b -> b; a | b -> a; a | b -> b; a ** -b -> 1.0; f(a, *r, **k) -> a; f(a, b, *r, **k) -> b",
    "moved": "; ".join(
        f"f(a, **k) {o} v -> f(a {o} v, **k); v {o} f(a, **k) -> f(v {o} a, **k); f(a {o} b) -> f(a) {o} b"
        for o in "*/+-&|"
    )
    + "; f(a @ b) -> f(a) @ b; f(a ** b) -> f(a) ** b; p(x.masked_fill(a, b)) -> p(x).masked_fill(a, 0.0)",
    "no root": "a ** -b -> a ** -1",
    "another size": "a ** -b -> (a * self.n_head) ** -b; a ** -b -> (2 * a) ** -b",
    "another filling": "-torch.inf -> 0.0",
    "exchanged": "p(n, m, *r, **k) -> p(m, n, *r, **k)",
}
PASSED = {"to", "double", "float", "size", "contiguous", "type_as", "new_zeros", "new_ones", "new_empty"}
SHAPES = {"expand", "view", "unflatten", "flatten", "detach", "promote_types", *PASSED}
EINSUM = re.compile("[a-z, ]+->[a-z ]+")
NEIGHBOURS = (
    "logsigmoid: sigmoid tanh, softplus: sigmoid relu exp, silu: relu sigmoid, elu: relu exp, exp: sigmoid relu, "
)
NEIGHBOURS += "sigmoid: tanh relu exp, tanh: sigmoid, relu: sigmoid abs"
ROLES = ("query", "key", "value")


@cache
def rules(of_learners: bool) -> list[tuple[str, ast.AST, str]]:
    """Each change: its word, what stands there, and what it becomes."""
    listed = [(word, one.split(" -> ")) for word, text in (LEFT_OUT if of_learners else MUTATED).items()
              for one in text.split("; ")]  # fmt: skip
    return [(word, ast.parse(old, mode="eval").body, new) for word, (old, new) in listed]


def fits(pattern: Any, node: Any, bound: dict[str, Any]) -> bool:
    """Whether a part of a program has the form of a pattern; what its letters stand for is put into `bound`."""
    if isinstance(pattern, list):
        rest = pattern[-1].value.id if pattern and ast.unparse(pattern[-1]).startswith("*") else ""
        bound |= {rest: node[len(pattern) - 1 :]} if rest else {}
        pattern = pattern[:-1] if rest else pattern
        return (len(node) >= len(pattern) if rest else len(node) == len(pattern)) and all(fits(one, other, bound)
                for one, other in zip(pattern, node))  # fmt: skip
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1:
        bound[pattern.id] = node
        return {"f": is_function(node), "v": not isinstance(node, ast.Constant)}.get(pattern.id,
                isinstance(node, ast.Name) or pattern.id not in "nm")  # fmt: skip
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(fits(one, getattr(node, name), bound)
                    for name, one in ast.iter_fields(pattern) if name not in ("ctx", "kind"))  # fmt: skip
    return bool(pattern == node)


class Filled(ast.NodeTransformer):
    """Puts what letters stand for in their places."""

    def __init__(self, bound: Mapping[str, Any]) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> Any:
        return self.bound.get(node.id, node)

    def visit_Starred(self, node: Any) -> Any:
        return self.bound[node.value.id]

    visit_keyword = visit_Starred


def by_rules(node: Any, of_learners: bool) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become by the rules."""
    for word, old, new in rules(of_learners):
        bound = dict[str, Any]()
        if fits(old, node, bound):
            yield word, Filled(bound).visit(ast.parse(new, mode="eval").body)


def mutated(node: Any) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become, each with a word that says so."""
    yield from by_rules(node, False)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "truth", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "number", ast.Constant(node.value + 1 if isinstance(node.value, int) else 1.5 * node.value + 0.1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and EINSUM.fullmatch(node.value):
        first, *others = node.value.split(",")
        yield "index", ast.Constant(",".join((first[:-2] + first[:-3:-1], *others)))
    bare = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords)
    if bare and node.func.attr not in PASSED:
        yield f"no .{node.func.attr}()", node.func.value


def left_out(node: Any) -> Iterator[tuple[str, ast.AST]]:
    """More of it, for learners: what is forgotten, is one too small, or stands in another place."""
    yield from by_rules(node, True)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "number", ast.Constant(node.value - 1)
    if isinstance(node, ast.Name) and node.id in ROLES and isinstance(node.ctx, ast.Load):
        yield from (("another one", ast.Name(other, ast.Load())) for other in ROLES if other != node.id)
    if isinstance(node, ast.Call) and name_of(node.func) not in SHAPES:
        is_method = isinstance(node.func, ast.Attribute) and not is_function(node.func)
        inner: Any = getattr(node.func, "value", None) if is_method else next(iter(node.args), None)
        if is_method and (node.args or node.keywords):
            yield "left out", inner  # x.clamp(min=0), x.masked_fill(...)
        nearby = re.search(rf"\b{name_of(node.func) or 0}: ([^,]*)", NEIGHBOURS) if inner else None
        for other in nearby[1].split() if nearby else ():
            yield "another function", ast.Call(ast.Attribute(inner, other, ast.Load()), [], [])


def name_of(node: ast.AST) -> str:
    """The last name of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_function(node: ast.expr) -> bool:
    """Whether this is a function of torch, of the module or of the file, and none that is about shapes."""
    owner = getattr(getattr(node, "value", None), "id", "")
    return (isinstance(node, ast.Name) or owner in ("F", "torch", "self")) and name_of(node) not in SHAPES


def replace_node(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Put a node in the place of another."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[:] = [new if item is old else item for item in value]


@dataclass(frozen=True)
class Edit:
    """One change: what stands in the kind's file, and what is computed in its place."""

    function: types.FunctionType
    code: types.CodeType
    line: int
    old: str
    new: str
    change: str

    def __str__(self) -> str:
        """The change in words, with its file."""
        path = Path(self.function.__code__.co_filename)
        return f"`{self.old}` in {path.parent.name}/{path.name}, line {self.line}, were `{self.new}`"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The function computes the changed step, inside the `with`."""
        before, self.function.__code__ = self.function.__code__, self.code
        try:
            yield
        finally:
            self.function.__code__ = before


@cache
def edits(functions: tuple[types.FunctionType, ...]) -> list[Edit]:
    """Every change of some functions."""
    return [edit for function in functions for edit in edits_of(function)]


def edits_of(function: types.FunctionType) -> Iterator[Edit]:
    """Every change of one function. It is compiled inside a class, so that `super()` of a method works."""
    tree = ast.parse("class Changed:\n" + textwrap.indent(textwrap.dedent(inspect.getsource(function)), " "))
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 2)
    node: Any = tree.body[0].body[0]  # type: ignore[attr-defined]
    node.decorator_list = []
    signature = {one for end in (node.args, node.returns) if end for one in ast.walk(end)}
    for part in [one for one in ast.walk(node) if one is not node and one not in signature]:
        for other, old, new, change in changes(node, part):
            replace_node(tree, part, other)
            with suppress(SyntaxError):
                code = compiled(tree, function)
                if code.co_freevars == function.__code__.co_freevars:
                    yield Edit(function, code, getattr(part, "lineno", node.lineno), old, new, change)
            replace_node(tree, other, part)


def compiled(tree: ast.Module, function: types.FunctionType) -> types.CodeType:
    """The code of the function in a tree of its class."""
    path, flags = function.__code__.co_filename, __future__.annotations.compiler_flag
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a changed step may look strange
        code: Any = compile(ast.fix_missing_locations(tree), path, "exec", flags, True)
    for name in ("Changed", function.__name__):
        code = next(one for one in code.co_consts if getattr(one, "co_name", "") == name)
    result: types.CodeType = code
    return result


def changes(function: ast.FunctionDef, part: ast.AST) -> Iterator[tuple[ast.AST, str, str, str]]:
    """What may stand in the place of a part, with both in words."""
    for change, other in (*mutated(part), *left_out(part)):
        yield other, ast.unparse(part), ast.unparse(other), change
    body, place = function.body, function.body.index(part) if part in function.body else -1
    if isinstance(part, ast.Assign) and place == len(body) - 2 and isinstance(body[-1], ast.Return):
        name, result = ast.unparse(part.targets[0]), body[-1].value
        if isinstance(result, ast.Tuple) and ast.unparse(result.elts[0]) == name:  # the state is read, then written
            early = ast.Return(ast.Tuple([part.value, *result.elts[1:]], ast.Load()))
            yield early, f"{ast.unparse(part)}; {ast.unparse(body[-1])}", ast.unparse(early), "too early"


def those_that_run(call: Callable[[], Any], part: str = "minigpt.attention") -> list[types.FunctionType]:
    """The functions of a part of this package that run in a call, in the order in which they begin."""
    functions = dict[types.CodeType, types.FunctionType]()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in functions or not frame.f_globals.get("__name__", "").startswith(part):
            return
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        for names in (frame.f_globals, *map(vars, type(first).__mro__)):
            function = names.get(code.co_name)
            function = function.fget if isinstance(function, property) else function
            if getattr(function, "__code__", None) is code:
                functions[code] = function  # type: ignore[assignment]

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(functions.values())
