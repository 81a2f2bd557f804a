"""A small change in the code of a kind is seen by a law or an edge (`mutants.py` tries all; this chapter a sample)."""

from __future__ import annotations

import inspect
import sys
from collections import Counter

import pytest
from mutants import known, mutants, survivors

from minigpt.attention import Attention
from minigpt.inspection.graph import ROUNDING, all_steps, family, gap

UNREAD = ("indexer", "native_sparse", *(k for k, c in Attention.kinds.items() if family(c) == "linear"))  # not all seen
ENOUGH = 2  # mutants of each kind


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind for name, kind in Attention.kinds.items() if name not in UNREAD], ids=lambda k: k.kind
)
def test_a_sample_of_mutants_is_seen(kind: type[Attention]) -> None:
    counts: Counter[str] = Counter()
    assert list(survivors(kind, ENOUGH, counts)) == []


def test_a_flipped_sign_turns_an_edge_red_and_is_taken_back() -> None:
    kind = Attention.kinds["multi_head"]
    made = {what for _, what, _ in mutants(inspect.getsource(sys.modules[kind.__module__]))}
    assert len(made) >= 3
    counts: Counter[str] = Counter()
    list(survivors(kind, None, counts))
    assert counts["an edge"] >= 1
    assert all(gap(step) <= max(step.edge.error, ROUNDING) for step in all_steps() if step.kind == "multi_head")


def test_each_mutant_that_is_excused_is_one() -> None:
    """What the list of excused mutants names is made by the tool, and has a reason."""
    names = {
        f"{kind.kind}.{function}: {what}"
        for kind in Attention.kinds.values()
        for function, what, _ in mutants(inspect.getsource(sys.modules[kind.__module__]))
    }
    assert all(name in names and why for name, why in known().items())
