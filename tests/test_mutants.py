"""A small change in the code of a kind is seen by an edge, a law or an oracle (`mutants.py` tries all)."""

from __future__ import annotations

import ast
import inspect
from collections import Counter

import pytest
from mutants import (
    EDGE,
    NOTHING,
    ORACLES,
    fails,
    functions,
    known,
    mutants,
    named,
    subjects,
    survivors,
    table,
    turned_red,
)

from minigpt.attention import Attention
from minigpt.checks.graph import ROUNDING, all_steps, gap

ENOUGH = 2  # mutants of each file
FEWER = {"average_softmax": 0, "grouped_query": 0, "soft_cap_window": 0}  # there is nothing to change that counts
FEWER |= {"query_key": 1}  # there is one
FEWER |= {"cross_layer": 1, "talking_heads": 0, "dot_product": 1, "taylor": 1, "published.py": 1}  # laws or oracles see


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", subjects())
def test_a_changed_formula_turns_an_edge_red(name: str) -> None:
    """Two of eight, quickly in every fourth file; laws and oracles are asked in the longer tests as well."""
    red, missed = turned_red(subjects()[name], ENOUGH, among=8)
    assert len(red) == FEWER.get(name, ENOUGH), (
        f"no edge sees {missed}; if fewer changes can be made, {name} has a line in FEWER"
    )


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", subjects())
def test_a_sample_of_mutants_is_seen(name: str) -> None:
    """Two of every other file; with `--whole` of all."""
    counts: Counter[str] = Counter()
    assert list(survivors(subjects()[name], ENOUGH, counts)) == []


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for files in ORACLES.values() for file in files])
def test_an_oracle_passes_where_nothing_is_changed(file: str) -> None:
    """In the fork in which it is asked about a mutant: else it would see all of them."""
    assert not fails(file)


def test_a_flipped_sign_turns_an_edge_red_and_is_taken_back() -> None:
    counts: Counter[str] = Counter()
    assert list(survivors(subjects()["multi_head"], None, counts)) == []
    assert counts[EDGE] >= 3
    assert all(gap(step) <= max(step.edge.error, ROUNDING) for step in all_steps() if step.kind == "multi_head")


def test_each_mutant_that_is_excused_is_one() -> None:
    """What the list of excused mutants names is made by the tool, once, and has a reason."""
    names = [name for subject in subjects().values() for name, _ in named(subject)]
    assert len(names) == len({*names})
    assert all(name in names and why for name, why in known().items())


def test_every_kind_has_mutants_and_a_row() -> None:
    assert {*Attention.kinds} < {*subjects()}
    for name in (name for name, subject in subjects().items() if not named(subject)):  # all its own is options
        own = filter(inspect.isfunction, vars(Attention.kinds[name]).values())
        assert not [method for method in own if "Tensor" in method.__annotations__.get("return", "")], name
    text = table({name: Counter({EDGE: 1, NOTHING: 1}) for name in subjects()})
    assert text.splitlines()[-1].split("|")[2:4] == [f" {len(subjects())} ", f" {2 * len(subjects())} "]


def test_what_only_edges_call_is_not_changed() -> None:
    source = """
def used(x): return -x
def helper(x): return x + 1
def prepare(own, other): helper(used(own))
class Kind:
    edges = (Edge("other", "always", prepare=prepare),)
    def weights(self, x): return -used(x)
"""
    assert [function.name for function in functions(ast.parse(source))] == ["used", "weights"]
    assert {function for function, _, _ in mutants(inspect.cleandoc(source))} == {"used", "weights"}
