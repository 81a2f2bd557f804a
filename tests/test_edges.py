"""The graph of kinds: every edge holds in float64 for every position, values and gradients, plain and fast.

An identity holds to rounding, a limit to the error that it states. The edges stand in the files of the kinds.
"""

from __future__ import annotations

import pytest

from minigpt.attention import Attention, MultiHead
from minigpt.attention.edge import Edge
from minigpt.attention.position import Position
from minigpt.inspection.graph import ROUNDING, Step, all_steps, gap, path, positions_of

STEPS, KINDS = all_steps(), list(Attention.kinds)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_an_edge_holds(step: Step) -> None:
    allowed = max(step.edge.error, ROUNDING)
    positions = positions_of(step)
    assert positions
    outside = [name for name in positions if not any(map(Position.kinds[name].acts_by, ("rotate", "bias")))]
    for position in [name for name in positions if name not in outside[1:]]:  # to an attention these are alike
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
        (Edge("single_head", "n_head = 2", mine={"n_head": 2}), "none"),
        (Edge("multi_head", "unscaled", mine={"scaled": False}), "rotary"),
        (Edge("dot_product", "no identities"), "none"),
    ],
)
def test_a_wrong_edge_is_seen(edge: Edge, position: str) -> None:
    assert gap(Step(MultiHead.kind, edge), position) > 1e-3
