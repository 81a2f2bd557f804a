"""The graph of kinds: every edge holds in float64 for every position, values and gradients, plain and fast.

An identity holds to rounding, a limit to the error that it states. The edges stand in the files of the kinds.
"""

from __future__ import annotations

import pytest

from minigpt.attention import Attention, MultiHead, Position
from minigpt.attention.edge import Edge
from minigpt.checks.graph import ROUNDING, Step, all_steps, gap, path, positions_of

STEPS, KINDS = all_steps(), list(Attention.kinds)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_an_edge_holds(step: Step) -> None:
    assert inside(step)
    check(step, inside(step))


@pytest.mark.slow
def test_every_edge_holds_with_positions_that_are_alike() -> None:
    for step in STEPS:
        check(step, [position for position in positions_of(step) if position not in inside(step)])


def inside(step: Step) -> list[str]:
    """The positions of an edge that act inside an attention, and one that acts elsewhere: to it others are alike."""
    elsewhere = [name for name in positions_of(step) if not any(map(Position.kinds[name].acts_by, ("rotate", "bias")))]
    return [position for position in positions_of(step) if position not in elsewhere[1:]]


def check(step: Step, positions: list[str]) -> None:
    """Both ends compute the same, plain and fast."""
    allowed = max(step.edge.error, ROUNDING)
    for position in positions:
        for fast in (False, True):
            far = gap(step, position, fast)
            assert far <= allowed, f"with position {position}, {'fast' if fast else 'plain'}: off by {far:.2g}"


def test_the_graph_is_connected() -> None:
    for kind in KINDS:
        assert kind == "average_loop" or path(STEPS, "average_loop", kind), kind


def test_an_edge_stands_in_the_file_of_the_later_kind() -> None:
    for step in STEPS:
        assert step.edge.to in KINDS, step


@pytest.mark.parametrize(
    ("edge", "position"),
    [
        (Edge("single_head", "n_head = 2", own={"n_head": 2}), "none"),
        (Edge("multi_head", "unscaled", own={"scaled": False}), "rotary"),
        (Edge("dot_product", "no identities"), "none"),
    ],
)
def test_a_wrong_edge_is_seen(edge: Edge, position: str) -> None:
    assert gap(Step(MultiHead.kind, edge), position) > 1e-3
