"""Mutants: one small change in the code of a kind, and whether an edge of the graph, a law or an oracle sees it.

    python tests/mutants.py                    # every kind and shared file; then the count, family by family
    python tests/mutants.py multi_head linear  # some
    python tests/mutants.py --sample 3         # three mutants of each file, as the slow test does

A mutant has another sign, operator, number, index, comparison or truth value, or leaves out a function of one argument.
Only what computes is changed, not constructors, options and edges. Its code takes the place of the original's inside
the same functions, so that kinds that build on it and its faster forms meet it too. Each is shown to the edges of its
kind first, then to the laws, then to the tests that hold its family against the papers' formulas; the first that sees
it is counted. `known_mutants.txt` excuses those that compute the same, each with the reason.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import random
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from laws import ATTENTIONS, Case, asked_of, make_model, obey
from test_edges import inside

from minigpt.attention import Attention, base
from minigpt.attention.linear import published, recurrent
from minigpt.attention.position import Alibi, NoPosition, Rotary
from minigpt.attention.sparse import choice
from minigpt.checks.graph import ROUNDING, Step, all_steps, family, gap
from minigpt.checks.laws_of_attention import Law, LawError
from minigpt.checks.learners.edits import mutated, replace_node

HERE = Path(__file__).parent
SKIPPED = {"__init__", "mistakes_within"}  # how it starts, its options
SKIPPED |= {"stages", "head_note", "one_by_one"}  # what is only looked at
EDGE, LAW, ORACLE, SAME, NOTHING = "an edge", "a law", "an oracle", "computes the same", "nothing"
ORACLES = {  # the tests that hold the kinds of a family against formulas of their own
    "averages": ("test_ladder.py",),
    "softmax": ("test_oracles_softmax.py",),
    "compact": ("test_oracles_compact.py", "test_compact.py"),
    "sparse": ("test_oracles_sparse.py", "test_cache.py"),
    "linear": ("test_oracles_linear.py", "test_recurrent.py", "test_convolution.py"),
}


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a file that compute: methods of its classes and what they call, but not what only edges call."""
    top = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    edges = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Edge"]
    of_edges = {name for edge in edges for name in names_in(edge)}
    callers = {f.name: {g.name for g in top if f.name in names_in(g) and g is not f} for f in top}
    of_classes = {
        name for node in tree.body if isinstance(node, ast.ClassDef) for f in node.body for name in names_in(f)
    }
    of_edges |= {name for name, by in callers.items() if by and by <= of_edges and name not in of_classes}
    found = [node for node in top if node.name not in of_edges | SKIPPED]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name not in SKIPPED]
    return found


def names_in(tree: ast.AST) -> set[str]:
    """The names that a part of a file mentions."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def mutants(source: str) -> Iterator[tuple[str, str, Callable[[], ast.Module]]]:
    """(function, what is changed, what makes the changed file), for every change of a file.

    Of changes that read alike in one function the second ends in "(2)", the third in "(3)".
    """
    seen: Counter[str] = Counter()
    for place, function in enumerate(functions(ast.parse(source))):
        ends = [function.args, *([function.returns] if function.returns else [])]
        signature = {id(node) for end in ends for node in ast.walk(end)}
        for index, node in enumerate(ast.walk(function)):
            if node is function or id(node) in signature:
                continue
            for which, (what, other) in enumerate(mutated(node)):
                line = f"{ast.unparse(node)} -> {ast.unparse(other)} ({what})"
                seen[f"{function.name}: {line}"] += 1
                again = seen[f"{function.name}: {line}"]
                yield (
                    function.name,
                    line + (f" ({again})" if again > 1 else ""),
                    partial(changed, source, place, index, which),
                )


def changed(source: str, place: int, index: int, which: int) -> ast.Module:
    """The file in which one node of one function has become something else."""
    tree = ast.parse(source)
    function = functions(tree)[place]
    node = list(ast.walk(function))[index]
    replace_node(function, node, [other for _, other in mutated(node)][which])
    return ast.fix_missing_locations(tree)


@contextmanager
def in_place(module: types.ModuleType, tree: ast.Module) -> Iterator[None]:
    """The functions of a file compute what the changed file says, inside the `with`."""
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


# ---- who sees it ----


@dataclass(frozen=True)
class Subject:
    """A file that is changed, and the kinds in which that has to show."""

    name: str
    module: types.ModuleType
    kinds: tuple[type[Attention], ...]

    @property
    def family(self) -> str:
        """The folder of the kind; "shared" for what several kinds share."""
        return family(self.kinds[0]) if self.name in Attention.kinds else "shared"


@cache
def subjects() -> dict[str, Subject]:
    """Every file that is changed: those of the kinds, and four that kinds share."""
    found = {name: Subject(name, sys.modules[k.__module__], (k,)) for name, k in Attention.kinds.items()}
    shared = {
        base: ("multi_head", "grouped_query"),
        choice: ("top_k", "block_top_k"),
        recurrent: ("linear", "mamba2", "kimi_delta"),
        published: ("gated_delta_net", "mamba2", "gated_linear"),
    }
    for module, names in shared.items():
        name = module.__name__.rpartition(".")[2]
        found[name + ".py"] = Subject(name + ".py", module, tuple(Attention.kinds[n] for n in names))
    return found


Watchers = dict[str, list[Callable[[], bool]]]


def watchers(subject: Subject) -> Watchers:
    """Who is asked about a mutant, by what they are: each answers whether something is wrong."""
    names, families = {k.kind for k in subject.kinds}, dict.fromkeys(map(family, subject.kinds))
    steps = [step for step in all_steps() if names & {step.kind, step.edge.to}]
    positions = NoPosition, Rotary, Alibi
    cases = [Case(a, p.Config()) for a in ATTENTIONS if a.component in subject.kinds for p in positions]
    return {
        EDGE: [partial(is_red, s, p, fast) for fast in (False, True) for s in steps for p in inside(s)],
        LAW: [partial(is_broken, law, case, far) for case in cases for law, far in asked_of(case)],
        ORACLE: [partial(fails, file) for name in families for file in ORACLES[name]],
    }


def caught(asked: Watchers) -> str:
    """Who sees that something is wrong; empty if nobody does. Who saw one mutant is asked first of the next."""
    make_model.cache_clear()
    for by, each in asked.items():
        for place, sees in enumerate(each):
            if sees():
                each.insert(0, each.pop(place))
                return by
    return ""


def is_red(step: Step, position: str, fast: bool) -> bool:
    """Whether an edge does not hold any more."""
    try:
        return not gap(step, position, fast) <= max(step.edge.error, ROUNDING)
    except Exception:  # a mutant may raise anything
        return True


def is_broken(law: Law, case: Case, far: bool) -> bool:
    """Whether a case breaks a law."""
    try:
        obey(law, case, far)
    except (LawError, Exception):
        return True
    return False


def fails(file: str) -> bool:
    """Whether a file of tests fails, in a fork of this process, which has the mutant."""
    child = os.fork()
    if not child:
        code = 1
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            code = int(
                pytest.main(["-x", "-q", "-n", "0", "--assert=plain", "-p", "no:cacheprovider", str(HERE / file)])
            )
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


# ---- the count ----


def known() -> dict[str, str]:
    """Mutants that nothing can see, each with the reason: they compute the same as the original."""
    lines = (HERE / "known_mutants.txt").read_text(encoding="utf-8").splitlines()
    return {key.strip(): why.strip() for key, _, why in (line.rpartition(" | ") for line in lines if line)}


def named(subject: Subject) -> list[tuple[str, Callable[[], ast.Module]]]:
    """The mutants of a file, with their names."""
    source, owner = inspect.getsource(subject.module), subject.name.removesuffix(".py")
    return [(f"{owner}.{function}: {what}", make) for function, what, make in mutants(source)]


def drawn(subject: Subject, sample: int | None) -> list[tuple[str, Callable[[], ast.Module]]]:
    """Some mutants of a file, or all of them, in an order drawn once; not those that are excused."""
    excused = known()
    made = [pair for pair in named(subject) if pair[0] not in excused]
    return random.Random(subject.name).sample(made, len(made))[:sample]


def survivors(subject: Subject, sample: int | None, counts: Counter[str]) -> Iterator[str]:
    """The mutants of a file that nobody sees; all are counted by who saw them."""
    excused, asked = known(), watchers(subject)
    for name, make in named(subject) if sample is None else drawn(subject, sample):
        if name in excused:
            counts[SAME] += 1
            continue
        with in_place(subject.module, make()):
            by = caught(asked)
        make_model.cache_clear()
        counts[by or NOTHING] += 1
        if not by:
            yield name


def turned_red(subject: Subject, enough: int, among: int) -> tuple[list[str], list[str]]:
    """Of the first mutants of a file, in an order drawn once, those that an edge sees, and those that none does; after
    `enough` that are seen, no more are asked. The edges are asked in their plain form only.
    """
    steps = [step for step in all_steps() if {k.kind for k in subject.kinds} & {step.kind, step.edge.to}]
    edges = {EDGE: [partial(is_red, step, p, False) for step in steps for p in inside(step)]}
    red, missed = list[str](), list[str]()
    for mutant, make in drawn(subject, among):
        if len(red) < enough:
            with in_place(subject.module, make()):
                (red if caught(edges) else missed).append(str(mutant))
    return red, missed


def table(counts: dict[str, Counter[str]]) -> str:
    """The count as Markdown, a row for each family."""
    columns = EDGE, LAW, ORACLE, SAME, NOTHING
    rows = [
        ["family", "files", "mutants", f"seen by {EDGE}", f"by {LAW}", f"by {ORACLE}", SAME, "survive"],
        ["---"] * 8,
    ]
    groups: dict[str, list[str]] = {}
    for name in counts:
        groups.setdefault(subjects()[name].family, []).append(name)
    groups["all"] = list(counts)
    for group, names in groups.items():
        total = sum((counts[name] for name in names), Counter[str]())
        rows.append([group, *map(str, (len(names), sum(total.values()), *(total[column] for column in columns)))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(names: Sequence[str], sample: int | None) -> int:
    """Print the mutants that nobody saw, and how many were seen by whom; returns how many survived."""
    torch.set_num_threads(1)
    counts: dict[str, Counter[str]] = {}
    for name in names or subjects():
        counts[name] = Counter()
        for survivor in survivors(subjects()[name], sample, counts[name]):
            print(f"survives: {survivor}", flush=True)
        print(f"{name}: " + ", ".join(f"{n} {by}" for by, n in counts[name].items()), file=sys.stderr, flush=True)
    print(table(counts))
    return sum(count[NOTHING] for count in counts.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="names of kinds (default: all, and what they share)")
    parser.add_argument("--sample", type=int, help="so many mutants of each file only")
    given = parser.parse_args()
    sys.exit(bool(main(given.kinds, given.sample)))
