"""Mutants: one small change in the code of a kind, and whether a law or an edge of the graph sees it.

    python tests/mutants.py                    # every kind
    python tests/mutants.py multi_head linear  # some
    python tests/mutants.py --sample 3         # three mutants of each file, as the slow test does

A mutant has another sign, operator, number, comparison or truth value, or leaves out a function of one argument. Only
what computes is changed, not constructors, options and edges. Its code takes the place of the original's inside the
same functions, so that kinds that build on it and its faster forms meet it too.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import random
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from laws import ATTENTIONS, Case, broken_laws, make_model

from minigpt.attention import Attention
from minigpt.attention.position import Alibi, NoPosition, Rotary
from minigpt.inspection.graph import ROUNDING, Step, all_steps, gap, positions_of

SKIPPED = {"__init__", "mistakes_within", "stages"}  # how it starts, its options, what is only looked at
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
PASSED = {"to", "double", "float", "size", "contiguous", "type_as", "new_zeros", "new_ones", "new_empty"}


def mutated(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may become, each with a word that says so."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.UnaryOp):
        yield "sign", node.operand
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "truth", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "number", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield "number", ast.Constant(1.5 * node.value + 0.1)
    bare = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords)
    if bare and node.func.attr not in PASSED:
        yield f"no .{node.func.attr}()", node.func.value
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        yield "no .mT", node.value


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a file that compute: methods of its classes and what they call, but for `prepare`s of edges."""
    edges = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Edge")
    named = {name.id for edge in edges for name in ast.walk(edge) if isinstance(name, ast.Name)}
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in named]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name not in SKIPPED]
    return found


def mutants(source: str) -> Iterator[tuple[str, str, Callable[[], ast.Module]]]:
    """(function, what is changed, what makes the changed file), for every change of a file."""
    for place, function in enumerate(functions(ast.parse(source))):
        ends = [function.args, *([function.returns] if function.returns else [])]
        signature = {id(node) for end in ends for node in ast.walk(end)}
        for index, node in enumerate(ast.walk(function)):
            if node is function or id(node) in signature:
                continue
            for which, (what, other) in enumerate(mutated(node)):
                line = f"{ast.unparse(node)} -> {ast.unparse(other)} ({what})"
                yield function.name, line, partial(changed, source, place, index, which)


def changed(source: str, place: int, index: int, which: int) -> ast.Module:
    """The file in which one node of one function has become something else."""
    tree = ast.parse(source)
    function = functions(tree)[place]
    node = list(ast.walk(function))[index]
    replace_node(function, node, [other for _, other in mutated(node)][which])
    return ast.fix_missing_locations(tree)


def replace_node(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Put a node in the place of another."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[:] = [new if item is old else item for item in value]


@contextmanager
def in_place(kind: type[Attention], tree: ast.Module) -> Iterator[None]:
    """The functions of the file of a kind compute what the changed file says, inside the `with`."""
    module = sys.modules[kind.__module__]
    kept = dict(Attention.kinds)
    other = types.ModuleType(module.__name__)
    other.__dict__["__file__"] = module.__file__
    try:
        exec(compile(tree, str(module.__file__), "exec"), other.__dict__)
    finally:
        Attention.kinds.clear()
        Attention.kinds.update(kept)
    pairs = list(pairs_of(vars(module), vars(other), module.__name__))
    before = [(ours, ours.__code__) for ours, _ in pairs]
    try:
        for ours, theirs in pairs:
            ours.__code__ = theirs.__code__
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        for name in vars(module):  # the classes of the module lead to their own options again
            if inspect.isclass(vars(module)[name]) and "Config" in vars(vars(module)[name]):
                vars(module)[name].Config.component = vars(module)[name]


def pairs_of(ours: dict[str, object], theirs: dict[str, object], name: str) -> Iterator[tuple[object, object]]:
    """The functions of a file and of its mutant, side by side."""
    for key, value in list(ours.items()):
        other = theirs.get(key)
        if inspect.isclass(value) and value.__module__ == name and key != "Config":
            yield from pairs_of(dict(vars(value)), dict(vars(other)), name)
        if isinstance(value, property) and isinstance(other, property):
            value, other = value.fget, other.fget
        if inspect.isfunction(value) and inspect.isfunction(other) and value.__module__ == name:
            same = value.__code__.co_freevars == other.__code__.co_freevars
            yield from [(value, other)] if same else []


def caught(kind: type[Attention]) -> str:
    """What sees that something is wrong with a kind: an edge, a law, or nothing."""
    for step in all_steps():
        if kind.kind in (step.kind, step.edge.to) and is_red(step):
            return "an edge"
    make_model.cache_clear()
    cases = [Case(a, p.Config()) for a in ATTENTIONS if a.component is kind for p in (NoPosition, Rotary, Alibi)]
    return "a law" if any(map(breaks, cases)) else ""


def is_red(step: Step) -> bool:
    """Whether an edge does not hold any more."""
    try:
        gaps = (gap(step, position, fast) for position in positions_of(step) for fast in (False, True))
        return any(far > max(step.edge.error, ROUNDING) for far in gaps)
    except Exception:  # a mutant may raise anything
        return True


def breaks(case: Case) -> bool:
    """Whether a case breaks a law."""
    try:
        return bool(broken_laws(case))
    except Exception:
        return True


def known() -> dict[str, str]:
    """Mutants that no law and no edge needs to see, each with the reason: most compute the same as the original."""
    lines = (Path(__file__).parent / "known_mutants.txt").read_text(encoding="utf-8").splitlines()
    return {key.strip(): why.strip() for key, _, why in (line.partition(" | ") for line in lines if line)}


def survivors(kind: type[Attention], sample: int | None, counts: Counter[str]) -> Iterator[str]:
    """The mutants of the file of a kind that nothing sees; all are counted by what saw them."""
    source, excused = inspect.getsource(sys.modules[kind.__module__]), known()
    made = [(f"{kind.kind}.{function}: {what}", make) for function, what, make in mutants(source)]
    made = [pair for pair in made if pair[0] not in excused]
    if sample is not None:
        made = random.Random(kind.kind).sample(made, min(sample, len(made)))
    for name, make in made:
        with in_place(kind, make()):
            by = caught(kind)
        make_model.cache_clear()
        counts[by or "nothing"] += 1
        if not by:
            yield name


def main(names: list[str], sample: int | None) -> int:
    """Print the mutants that nothing saw, and how many were seen by what; returns how many survived."""
    counts: Counter[str] = Counter()
    for name in names or list(Attention.kinds):
        for survivor in survivors(Attention.kinds[name], sample, counts):
            print(f"survives: {survivor}", flush=True)
    print(f"{sum(counts.values())} mutants: " + ", ".join(f"{n} seen by {by}" for by, n in counts.most_common()))
    return counts["nothing"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="names of kinds (default: all)")
    parser.add_argument("--sample", type=int, help="so many mutants of each file only")
    given = parser.parse_args()
    sys.exit(bool(main(given.kinds, given.sample)))
